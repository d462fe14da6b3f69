#include "client/ctl/commands.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/ctl/borrowed_heap.h"
#include "client/ctl/describe.h"
#include "client/ctl/suggest.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"
#include "client/ctl/waits_view.h"

namespace iris::ctl {
namespace {

// How much of a command line is read: no more than anybody wants to see.
constexpr size_t kMaxCommandBytes = 16 << 10;

// Of the terminal that reads us; 0: it is none, or does not say.
size_t TerminalColumns() {
  winsize size = {};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

absl::Status ShowStatus(const Options& options, AdminClient& client, Output write) {
  const auto reply = client.GetStatus();
  if (!reply.ok()) return reply.status();
  write(options.json ? Dump(StatusJson(*reply), 2) : StatusText(*reply, absl::Now()));
  return absl::OkStatus();
}

// Shows what `list(take)` lists.
template <typename Reply, typename List>
absl::Status Show(ListView<Reply> view, bool json, Output write, List list) {
  view.table.set_max_width(TerminalColumns());
  ListPrinter<Reply> printer(std::move(view), json);
  const absl::Status listed =
      list([&](const Reply& page) { return write(printer.Page(page, absl::Now())); });
  if (listed.ok()) write(printer.End());
  return listed;
}

absl::Status ShowDevices(const Options& options, AdminClient& client, Output write) {
  return Show(DevicesView(), options.json, write,
              [&](auto take) { return client.ListDevices(take); });
}

// For the completion: one a line, those that need no quotes.
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

absl::Status ShowJobs(const Options& options, AdminClient& client, Output write) {
  if (options.names) {
    return client.ListJobs(options.job,
                           [&](const v1::ListJobsReply& page) { return write(PlainNames(page)); });
  }
  return Show(JobsView(), options.json, write,
              [&](auto take) { return client.ListJobs(options.job, take); });
}

absl::Status ShowHeaps(const Options& options, AdminClient& client, Output write) {
  return Show(HeapsView(), options.json, write,
              [&](auto take) { return client.ListHeaps(options.job, take); });
}

absl::Status ShowAllocations(const Options& options, AdminClient& client, Output write) {
  return Show(AllocationsView(), options.json, write,
              [&](auto take) { return client.ListAllocations(options.job, take); });
}

// What /proc says of a process; empty if it says nothing.
std::string ReadProc(int64_t pid, const char* what) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", what), std::ios::binary);
  std::string text(kMaxCommandBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// irisd tells a process's name alone. The whole command line of this user's own processes can be
// read here: where a process of that number has that name, it is the same one.
void ShowCommandLines(google::protobuf::RepeatedPtrField<v1::Session>* sessions) {
  for (v1::Session& session : *sessions) {
    if (session.uid() != geteuid() || ReadProc(session.pid(), "comm") != session.command())
      continue;
    const std::string line = ReadProc(session.pid(), "cmdline");
    if (!line.empty()) session.set_command(line);
  }
}

absl::Status ShowSessions(const Options& options, AdminClient& client, Output write) {
  return Show(SessionsView(), options.json, write, [&](auto take) {
    return client.ListSessions([&](v1::ListSessionsReply page) {
      ShowCommandLines(page.mutable_sessions());
      return take(page);
    });
  });
}

absl::Status ShowTenants(const Options& options, AdminClient& client, Output write) {
  v1::ListTenantsReply last;
  const absl::Status shown = Show(TenantsView(), options.json, write, [&](auto take) {
    return client.ListTenants([&](const v1::ListTenantsReply& page) {
      last = page;
      return take(page);
    });
  });
  if (shown.ok() && !options.json) write(TenantLimitsText(last));
  return shown;
}

absl::Status ShowWaits(const Options& options, AdminClient& client, Output write) {
  JsonList json;
  bool any = false;
  const absl::Status listed = client.ListWaits(options.job, [&](const v1::ListWaitsReply& page) {
    if (page.waits().empty()) return true;
    any = true;
    if (options.json) return write(json.Add(WaitsJson(page)));
    std::string text;
    for (const v1::Wait& wait : page.waits()) text += WaitText(wait);
    return write(text);
  });
  if (!listed.ok()) return listed;
  if (options.json) {
    write(json.End());
  } else if (!any) {
    write("nobody waits\n");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ListJobsReply> AllJobs(AdminClient& client, const std::string& job) {
  return AdminClient::All<v1::ListJobsReply>([&](auto take) { return client.ListJobs(job, take); });
}

absl::StatusOr<v1::ListAllocationsReply> AllAllocations(AdminClient& client,
                                                        const std::string& job) {
  return AdminClient::All<v1::ListAllocationsReply>(
      [&](auto take) { return client.ListAllocations(job, take); });
}

absl::Status ShowDescription(const Options& options, AdminClient& client, Output write) {
  auto jobs = AdminClient::All<v1::DescribeJobsReply>(
      [&](auto take) { return client.DescribeJobs(options.job, take); });
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
    auto json = nlohmann::ordered_json::array();
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
    absl::StatusOr<v1::ListAllocationsReply> all = AllAllocations(client, options.job);
    if (!all.ok()) return all.status();
    allocations = *std::move(all);
    std::set<uint64_t> jobs;
    for (const v1::Allocation& each : allocations.allocations()) jobs.insert(each.job_id());
    if (jobs.size() > 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          jobs.size(), " users have a job named '", options.job, "'; ask as the user who owns it"));
    }
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

Command FindCommand(const std::string& name) {
  const std::pair<const char*, Command> commands[] = {
      {"status", ShowStatus},     {"devices", ShowDevices},
      {"jobs", ShowJobs},         {"describe", ShowDescription},
      {"heaps", ShowHeaps},       {"allocations", ShowAllocations},
      {"sessions", ShowSessions}, {"tenants", ShowTenants},
      {"waits", ShowWaits},       {"peek", ShowPeek}};
  for (const auto& [each, command] : commands) {
    if (name == each) return command;
  }
  return nullptr;
}

absl::Status WithNearJobs(const Options& options, AdminClient& client, const absl::Status& status) {
  if (!absl::IsNotFound(status) || options.job.empty()) return status;
  const auto jobs = AllJobs(client, "");
  if (!jobs.ok()) return status;
  std::vector<std::string> names;
  for (const v1::Job& job : jobs->jobs()) names.push_back(job.job());
  if (std::find(names.begin(), names.end(), options.job) != names.end()) return status;
  const std::string meant = DidYouMean(options.job, names);
  return absl::NotFoundError(absl::StrCat(
      status.message(), !meant.empty()  ? meant
                        : names.empty() ? "; there are no jobs that you may see"
                                        : "; iris-ctl jobs lists those that you may see"));
}

}  // namespace iris::ctl
