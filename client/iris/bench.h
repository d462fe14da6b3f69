// DoBench: measures how long work on a stream takes, over all ranks.
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
  uint32_t n_warmup = 25;   // runs before, which do not count
  uint32_t n_repeat = 100;  // runs that count; at least 1
  // Called before each run, and not measured: it prepares what a run needs, for example sets sums
  // to zero. Caches are warm unless it overwrites more memory than they hold.
  std::function<Status()> before{};
};

// Calls run() repeatedly and returns the median time of a run on the device: the largest of the
// ranks' medians, on all of them. Collective over all ranks, with the same numbers of runs.
//
// run() puts its work on `stream`: launches, copies, collectives, a graph. It is timed by events
// before and after it. Work on another stream counts if run() waits for it, or makes `stream` wait
// for it. If only one rank has work, the run() of the others does nothing.
//
// All ranks have finished a run before any of them begins the next one, or calls its
// options.before(), so runs may reuse memory of the heap. When DoBench returns, the results of the
// last run are complete on all ranks.
//
// Returns the first error of run(), of options.before() and of the stream. kInvalidArgument if
// n_repeat is 0. If one rank fails, the barriers of the others fail when that rank leaves the job,
// and name it. One thread at a time for a context. `stream` must not be captured meanwhile.
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
