// DoBench: how long work on a stream takes, over all ranks.
//
//   const auto run = [&] { return iris::Launch(all, stream, Kernel, ctx, x); };
//   IRIS_ASSIGN_OR_RETURN(const auto time, iris::DoBench(context, stream, run, {.n_repeat = 10}));
//   std::printf("%.1f us\n", time.count());
//
// Header-only over <iris/c_api.h>. C++17.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "iris/context.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris {

using Microseconds = std::chrono::duration<double, std::micro>;

struct BenchOptions {
  uint32_t n_warmup = 25;   // runs that do not count, before
  uint32_t n_repeat = 100;  // runs that count; at least 1
  // Called before each run, and not measured: sets what a run needs, such as sums to zero. A write
  // over more memory than the caches hold makes them cold, which they are not otherwise.
  std::function<Status()> before{};
};

// Collective over all ranks, with the same numbers of runs. Calls run() again and again, and gives
// the median time of a run on the device; of the ranks' medians the largest, to all of them.
//
// run() puts its work on `stream`: launches, copies, collectives, a graph. The time is that of
// events before and behind it. Work on another stream counts if run() waits for it, or lets
// `stream` wait. What only one rank has to do, the others' run() leaves out.
//
// All ranks have finished a run before any of them begins the next one, or calls its
// options.before(): so memory of the heap may be used again in each. When the call returns, what
// the last run wrote is there on all ranks.
//
// Errors: the first one of run(), of options.before() and of the stream. kInvalidArgument: an
// n_repeat of 0. If one rank fails, the barriers of the others fail when it leaves the job, and
// name it. One thread at a time for a context. Nothing on `stream` is being captured.
inline StatusOr<Microseconds> DoBench(Context& context, Stream& stream,
                                      const std::function<Status()>& run,
                                      const BenchOptions& options = {}) {
  if (options.n_repeat == 0) {
    return Status(StatusCode::kInvalidArgument, "DoBench: n_repeat is 0, and has to be at least 1");
  }
  IRIS_ASSIGN_OR_RETURN(Event begin, Event::Create(context));
  IRIS_ASSIGN_OR_RETURN(Event end, Event::Create(context));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());
  std::vector<double> times;  // of this rank, in microseconds
  times.reserve(options.n_repeat);
  for (uint64_t i = 0; i < uint64_t{options.n_warmup} + options.n_repeat; ++i) {
    if (options.before) {
      IRIS_RETURN_IF_ERROR(options.before());
      IRIS_RETURN_IF_ERROR(stream.Synchronize());
      IRIS_RETURN_IF_ERROR(context.Barrier());
    }
    IRIS_RETURN_IF_ERROR(begin.Record(stream));
    IRIS_RETURN_IF_ERROR(run());
    IRIS_RETURN_IF_ERROR(end.Record(stream));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    IRIS_RETURN_IF_ERROR(context.Barrier());
    if (i < options.n_warmup) continue;
    IRIS_ASSIGN_OR_RETURN(const std::chrono::nanoseconds time, end.Since(begin));
    times.push_back(Microseconds(time).count());
  }
  std::sort(times.begin(), times.end());
  const double own = (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
  double longest = 0;
  for (uint32_t rank = 0; rank < context.n_ranks(); ++rank) {
    IRIS_ASSIGN_OR_RETURN(const double its, context.BroadcastValue(own, rank));
    longest = std::max(longest, its);
  }
  return Microseconds(longest);
}

}  // namespace iris
