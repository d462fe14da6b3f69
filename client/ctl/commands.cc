#include "client/ctl/commands.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/borrowed_heap.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"
#include "device/base/suggest.h"

namespace iris::ctl {
namespace {

using Stub = AdminClient::Stub;

constexpr size_t kMaxCommandBytes = 16 << 10;

// Returns 0 if stdout is no terminal, or if the terminal does not report its width.
size_t TerminalColumns() {
  winsize size = {};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

absl::Status ShowStatus(const Options& options, AdminClient& client, Output write) {
  const auto reply = client.GetStatus();
  if (!reply.ok()) return reply.status();
  write(options.json ? Dump(MessageJson(*reply), 2) : StatusText(*reply, absl::Now()));
  return absl::OkStatus();
}

// Returns the names that need no quotes, one per line, for the shell's completion.
std::string PlainNames(const v1::ListJobsReply& page) {
  std::string names;
  for (const auto& job : page.jobs()) {
    const bool plain = std::all_of(job.job().begin(), job.job().end(), [](unsigned char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':' || c == '/';
    });
    if (plain) absl::StrAppend(&names, job.job(), "\n");
  }
  return names;
}

// Returns the text of a file of /proc/PID; empty if there is none.
std::string ReadProc(int64_t pid, const char* what) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", what), std::ios::binary);
  std::string text(kMaxCommandBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// irisd reports only a process's name. This process can read the command lines of this user's own
// processes: one with this pid and this name is the session's.
void ShowCommandLines(google::protobuf::RepeatedPtrField<v1::Session>* sessions) {
  for (v1::Session& session : *sessions) {
    if (session.uid() != geteuid() || ReadProc(session.pid(), "comm") != session.command())
      continue;
    const std::string line = ReadProc(session.pid(), "cmdline");
    if (!line.empty()) session.set_command(line);
  }
}

template <auto method, View (*view)()>
absl::Status Show(const Options& options, AdminClient& client, Output write) {
  ListPrinter printer(view(), options.json, TerminalColumns());
  std::string limits;
  const absl::Status listed = client.List(method, options.job, [&](auto& page) {
    using Page = std::decay_t<decltype(page)>;
    if constexpr (std::is_same_v<Page, v1::ListSessionsReply>) {
      ShowCommandLines(page.mutable_sessions());
    } else if constexpr (std::is_same_v<Page, v1::ListTenantsReply>) {
      if (!options.json) limits = TenantLimitsText(page);
    }
    return write(printer.Page(page, absl::Now()));
  });
  if (listed.ok()) write(printer.End() + limits);
  return listed;
}

absl::Status ShowJobs(const Options& options, AdminClient& client, Output write) {
  if (!options.names) return Show<&Stub::ListJobs, JobsView>(options, client, write);
  return client.List(&Stub::ListJobs, options.job,
                     [&](const v1::ListJobsReply& page) { return write(PlainNames(page)); });
}

absl::Status ShowDescription(const Options& options, AdminClient& client, Output write) {
  auto jobs = client.All(&Stub::DescribeJobs, options.job);
  if (!jobs.ok()) return jobs.status();
  for (v1::JobDescription& job : *jobs->mutable_jobs()) ShowCommandLines(job.mutable_sessions());
  std::vector<v1::Event> events;
  const absl::Status told = client.Events(/*follow=*/false, [&](const v1::Event& event) {
    if (event.job() == options.job) events.push_back(event);
    return true;
  });
  if (!told.ok()) return told;
  const std::vector<JobDescription> descriptions = Describe(*jobs, events);
  if (options.json) {
    Json json = Json::array();
    for (const JobDescription& each : descriptions) json.push_back(DescriptionJson(each));
    write(Dump(json, 2));
    return absl::OkStatus();
  }
  std::string text;
  for (const JobDescription& each : descriptions) {
    absl::StrAppend(&text, text.empty() ? "" : "\n",
                    DescriptionText(each, absl::Now(), TerminalColumns()));
  }
  write(text);
  return absl::OkStatus();
}

absl::Status ShowPeek(const Options& options, AdminClient& client, Output write) {
  v1::ListAllocationsReply allocations;
  if (NamesAllocation(options.peek)) {
    absl::StatusOr<v1::ListAllocationsReply> all = client.AllocationsOfOne(options.job);
    if (!all.ok()) return all.status();
    allocations = *std::move(all);
  }
  const absl::StatusOr<PeekPlan> plan = PlanPeek(options.peek, allocations);
  if (!plan.ok()) return plan.status();
  const auto data = ReadHeap(client.runtime_dir(),
                             {options.job, options.peek.rank, plan->offset_bytes, plan->bytes});
  if (!data.ok()) return data.status();
  write(options.json ? Dump(PeekJson(options.peek, *plan, *data), 2)
                     : PeekText(options.peek, *plan, *data));
  return absl::OkStatus();
}

}  // namespace

absl::Span<const Command> Commands() {
  static constexpr Command kCommands[] = {
      {"status", "irisd itself: version, memory, descriptors, counts", "status", false, ShowStatus},
      {"devices", "Devices, their memory and what is in use", "devices --watch 5", false,
       Show<&Stub::ListDevices, DevicesView>},
      {"jobs", "Jobs, their state and their ranks", "jobs --format json", true, ShowJobs},
      {"describe", "All of one job: ranks, memory, allocations, events", "describe train", false,
       ShowDescription},
      {"heaps", "The heap of each rank", "heaps --job train", true,
       Show<&Stub::ListHeaps, HeapsView>},
      {"allocations", "Every live allocation: name, offset, size, shape",
       "allocations --job train --format json", true,
       Show<&Stub::ListAllocations, AllocationsView>},
      {"sessions", "Processes that are connected", "sessions --watch", false,
       Show<&Stub::ListSessions, SessionsView>},
      {"tenants", "What irisd keeps for each user and container, and does for it", "tenants", false,
       Show<&Stub::ListTenants, TenantsView>},
      {"waits", "Who waits for whom, and in which call: of all jobs, or of one", "waits train",
       true, Show<&Stub::ListWaits, WaitsView>},
      {"nodes", "The nodes of jobs that span several, and the connections to them", "nodes train",
       true, Show<&Stub::ListNodes, NodesView>},
      {"events", "What has happened", "events --follow --job train", true},
      {"peek", "Values or bytes of a rank's heap", "peek train 0 weights --dtype f32 --count 16",
       false, ShowPeek},
      {"trace", "What kernels and calls of a running job do, as a file for Perfetto",
       "trace train --seconds 5 -o trace.json"},
      {"doctor", "Checks this machine, its devices and irisd; says what to do",
       "doctor --runtime-dir /run/iris"},
      {"completion", "Prints the completion script of a shell",
       "completion bash > /usr/share/bash-completion/completions/iris-ctl"}};
  return kCommands;
}

absl::Status WithNearJobs(const Options& options, AdminClient& client, const absl::Status& status) {
  if (!absl::IsNotFound(status) || options.job.empty()) return status;
  const auto jobs = client.All(&Stub::ListJobs);
  if (!jobs.ok()) return status;
  std::vector<std::string> names;
  for (const v1::Job& job : jobs->jobs()) names.push_back(job.job());
  if (std::find(names.begin(), names.end(), options.job) != names.end()) return status;
  const std::string meant = base::DidYouMean(options.job, names);
  return absl::NotFoundError(absl::StrCat(
      status.message(), !meant.empty()  ? meant
                        : names.empty() ? "; there are no jobs that you may see"
                                        : "; iris-ctl jobs lists those that you may see"));
}

}  // namespace iris::ctl
