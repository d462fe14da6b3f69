#include "client/ctl/trace.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/base/annotate.h"
#include "client/base/whole_file.h"
#include "client/ctl/borrowed_heap.h"
#include "client/ctl/text.h"
#include "client/trace/mapped_trace.h"
#include "client/trace/trace_json.h"
#include "client/trace/trace_recorder.h"
#include "iris/backend/host_functions.h"
#include "proto/wire/clock_drift.h"

namespace iris::ctl {
namespace {

using internal::Annotate;
using internal::MappedTrace;
using internal::RankTrace;
using internal::TraceFile;
using internal::TraceMark;
using internal::TraceNode;
using internal::TraceRecorder;

constexpr absl::Duration kLook = absl::Milliseconds(20);
// The time after which events that began while the trace was on have been written.
constexpr absl::Duration kSettle = absl::Milliseconds(50);
// The time by which traces last longer if they are not switched off.
constexpr absl::Duration kLonger = absl::Milliseconds(500);
constexpr int64_t kEventResolutionNs = 1000 * 1000;

struct Place {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

absl::StatusOr<Place> FindTrace(AdminClient& client, const std::string& job) {
  const auto all = client.AllocationsOfOne(job);
  if (!all.ok()) return all.status();
  for (const v1::Allocation& each : all->allocations()) {
    if (each.name() == TraceRecorder::kName && !each.has_owner()) {
      return Place{each.offset_bytes(), each.bytes()};
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("job '", job,
                   "' has no room for a trace: heaps of 256 MiB and more have it by themselves. "
                   "Start its ranks with IRIS_TRACE_EVENTS=16384 in the environment (1 MiB)"));
}

absl::StatusOr<std::vector<uint32_t>> FindRanks(AdminClient& client, const TraceWish& wish) {
  const auto jobs = client.All(&AdminClient::Stub::ListJobs, wish.job);
  if (!jobs.ok()) return jobs.status();
  std::set<uint32_t> ranks;
  for (const v1::Job& job : jobs->jobs()) {
    for (const v1::JobRank& rank : job.ranks()) {
      // Memory of other nodes cannot be read here. Asked for by name, irisd says where it is.
      if (!rank.has_node() || wish.rank == rank.rank()) ranks.insert(rank.rank());
    }
  }
  if (!wish.rank.has_value()) return std::vector<uint32_t>(ranks.begin(), ranks.end());
  if (ranks.count(*wish.rank) != 0) return std::vector<uint32_t>{*wish.rank};
  return absl::NotFoundError(
      absl::StrCat("job '", wish.job, "' has ", ranks.size(), " ranks, and no rank ", *wish.rank));
}

struct Borrowed {
  uint32_t rank = 0;
  BorrowedHeap heap;
  MappedTrace trace;
  ClockSample first = {};
  bool on = false;
};

// Calls `with` for all ranks, each on its device, and returns the first error.
absl::Status OnEach(std::vector<Borrowed>& traces, const char* what,
                    absl::FunctionRef<absl::Status(Borrowed&)> with) {
  absl::Status first;
  for (Borrowed& each : traces) {
    absl::Status status = each.heap.UseDevice();
    if (status.ok()) status = with(each);
    if (first.ok()) first = Annotate(status, absl::StrCat(what, each.rank));
  }
  return first;
}

absl::Status SwitchOff(std::vector<Borrowed>& traces) {
  return OnEach(traces, "switch off the trace of rank ", [](Borrowed& each) {
    return std::exchange(each.on, false) ? each.trace.SwitchOff() : absl::OkStatus();
  });
}

// Adds irisd's events of the job since `since_ns`.
absl::Status AddMarks(AdminClient& client, const std::string& job, uint64_t since_ns,
                      TraceFile* file) {
  // irisd's times are of the wall clock.
  const int64_t wall_ahead =
      absl::GetCurrentTimeNanos() - static_cast<int64_t>(backend::HostClockNanoseconds());
  file->marks_error_ns = kEventResolutionNs;
  return client.Events(/*follow=*/false, [&](const v1::Event& event) {
    const int64_t at = event.time_unix_ms() * 1000 * 1000 - wall_ahead;
    if (event.job() != job || at < 0) return true;
    if (static_cast<uint64_t>(at) + kEventResolutionNs < since_ns) return true;
    TraceMark mark;
    mark.host_ns = static_cast<uint64_t>(at);
    mark.name = event.kind();
    mark.text = event.text();
    mark.rank = event.rank();
    mark.pid = event.pid();
    file->marks.push_back(std::move(mark));
    return true;
  });
}

// Takes down what irisd knows of the clock of the job's leader; nothing if the job has one node.
absl::Status CompareNodes(AdminClient& client, const std::string& job,
                          std::optional<TraceNode>* node) {
  const uint64_t now = backend::HostClockNanoseconds();
  const auto nodes = client.All(&AdminClient::Stub::ListNodes, job);
  if (!nodes.ok()) return nodes.status();
  std::optional<ClockSample> sample;
  for (const v1::JobNode& each : nodes->nodes()) {
    if (each.here()) {
      if (!node->has_value()) node->emplace();
      (*node)->node = each.node();
      (*node)->name = each.name();
      (*node)->run = each.run();
      if (each.leads()) sample = {now, now, 0};
    } else if (each.leads() && each.has_clock_ahead_ns() && each.has_clock_error_ns()) {
      sample = {now, now + static_cast<uint64_t>(each.clock_ahead_ns()), each.clock_error_ns()};
    }
  }
  if (!node->has_value() || !sample.has_value()) return absl::OkStatus();
  (*node)->last = sample;
  std::optional<ClockSample>& first = (*node)->first;
  if (!first.has_value()) {
    first = sample;
    return absl::OkStatus();
  }
  // Shortly after the nodes have been connected, a later comparison says more of the beginning.
  const uint64_t error_ns = sample->error_ns + wire::ClockDriftNs(now - first->device_ns);
  if (error_ns < first->error_ns) {
    first = {first->device_ns, first->device_ns + (sample->host_ns - sample->device_ns), error_ns};
  }
  return absl::OkStatus();
}

// Distinguishes an error of the file from those of irisd.
absl::Status FileError(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(status.message(), ": name another file with -o"));
}

std::string Summary(const TraceFile& file, const std::string& path) {
  uint64_t events = 0, dropped = 0, unfinished = 0, error_ns = 0;
  for (const RankTrace& rank : file.ranks) {
    events += rank.events.size();
    dropped += rank.dropped;
    unfinished += rank.unfinished;
    error_ns = std::max({error_ns, rank.first.error_ns, rank.last.error_ns});
  }
  std::string text = absl::StrFormat(
      "%s: %d events of %d rank%s and %d of irisd, %d dropped, on one clock within %.3f us\n", path,
      events, file.ranks.size(), file.ranks.size() == 1 ? "" : "s", file.marks.size(), dropped,
      static_cast<double>(error_ns) / 1000);
  if (file.node.has_value()) {
    const std::optional<uint64_t> nodes_ns = NodeErrorNs(file);
    text += nodes_ns.has_value()
                ? absl::StrFormat(
                      "The clock of the node of rank 0 is known within %.3f us: merge "
                      "the files of all nodes with --merge\n",
                      static_cast<double>(*nodes_ns) / 1000)
                : "The clock of the node of rank 0 is not known (iris-ctl nodes): the file cannot "
                  "be merged with those of other nodes\n";
  }
  if (unfinished > 0) absl::StrAppend(&text, unfinished, " events were begun and never finished\n");
  if (dropped > 0) {
    absl::StrAppend(&text,
                    "What was dropped came last: trace for a shorter time, or start the ranks with "
                    "a larger IRIS_TRACE_EVENTS\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> TakeTrace(const TraceWish& wish, AdminClient& client,
                                      absl::FunctionRef<bool()> over,
                                      absl::FunctionRef<void(const std::string&)> say) {
  const auto place = FindTrace(client, wish.job);
  if (!place.ok()) return place.status();
  const auto ranks = FindRanks(client, wish);
  if (!ranks.ok()) return ranks.status();
  std::vector<Borrowed> traces;
  const absl::Cleanup nothing_stays_on = [&traces] { (void)SwitchOff(traces); };
  for (const uint32_t rank : *ranks) {
    auto heap = BorrowedHeap::Map(client.runtime_dir(),
                                  {wish.job, rank, place->offset_bytes, place->bytes});
    if (!heap.ok()) return Annotate(heap.status(), absl::StrCat("borrow the trace of rank ", rank));
    const MappedTrace trace(&heap->driver(), heap->address(), place->bytes);
    traces.push_back(Borrowed{rank, *std::move(heap), trace});
  }
  absl::Status status = OnEach(traces, "compare the clocks of rank ", [](Borrowed& each) {
    const auto sample = internal::SampleClocks(each.heap.backend());
    if (sample.ok()) each.first = *sample;
    return sample.status();
  });
  if (!status.ok()) return status;
  TraceFile file;
  file.job = wish.job;
  status = CompareNodes(client, wish.job, &file.node);
  if (!status.ok()) return status;
  uint64_t since_ns = 0;
  if (wish.seconds > 0) {
    since_ns = backend::HostClockNanoseconds();
    const absl::Duration time = absl::Seconds(wish.seconds);
    status = OnEach(traces, "switch on the trace of rank ", [&](Borrowed& each) {
      const uint64_t passed = backend::HostClockNanoseconds() - each.first.host_ns;
      const uint64_t now = each.first.device_ns + passed;
      absl::Status switched = each.trace.SwitchOn(
          now, now + static_cast<uint64_t>(absl::ToInt64Nanoseconds(time + kLonger)));
      each.on = switched.ok();
      return switched;
    });
    if (!status.ok()) return status;
    say(absl::StrCat("tracing ", ranks->size(), ranks->size() == 1 ? " rank" : " ranks", " for ",
                     wish.seconds, " s; Ctrl-C ends it and writes what there is"));
    for (const absl::Time end = absl::Now() + time; absl::Now() < end && !over();) {
      absl::SleepFor(std::min(kLook, end - absl::Now()));
    }
    status = SwitchOff(traces);
    if (!status.ok()) return status;
    absl::SleepFor(kSettle);
  }
  status = OnEach(traces, "read the trace of rank ", [&file](Borrowed& each) {
    const auto last = internal::SampleClocks(each.heap.backend());
    if (!last.ok()) return last.status();
    absl::StatusOr<RankTrace> read = each.trace.Read();
    if (!read.ok()) return read.status();
    read->rank = each.rank;
    read->first = each.first;
    read->last = *last;
    file.ranks.push_back(*std::move(read));
    return absl::OkStatus();
  });
  if (status.ok()) status = AddMarks(client, wish.job, since_ns, &file);
  // A job that has ended has no nodes any more.
  if (status.ok() && file.node.has_value()) {
    status = CompareNodes(client, wish.job, &file.node);
    if (absl::IsNotFound(status)) status = absl::OkStatus();
  }
  if (status.ok()) {
    file.host = internal::HostId();
    status = FileError(internal::WriteFile(wish.file, internal::TraceJson(file)));
  }
  if (!status.ok()) return status;
  return Summary(file, wish.file);
}

}  // namespace iris::ctl
