// WaitMonitor: reports failed waits of a program's kernels as an error that names the rank.
//
//   IRIS_KERNEL void Consume(iris::DeviceContext ctx, uint32_t from, const uint64_t* ready,
//                            iris::WaitReport report) {
//     if (!iris::AwaitSignal(ctx, from, ready, 1, report, iris::Block{})) return;
//     ...
//   }
//
//   IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
//   IRIS_RETURN_IF_ERROR(iris::Launch(all, stream, Consume, ctx, previous, ready, monitor));
//   IRIS_RETURN_IF_ERROR(monitor.Synchronize(stream));  // waits; names a missing rank
//
// Collectives of iris::ccl need no monitor: their Communicator reports the same failures.
// Header-only over <iris/c_api.h>. C++17.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>

#include "iris/c_api.h"
#include "iris/context.h"
#include "iris/status.h"
#include "iris/stream.h"
#include "iris/types.h"

namespace iris {

// Any number of kernels, also on several streams, may report to one monitor. It must outlive them,
// and end before its context. Move-only; thread-safe, but for moves.
class WaitMonitor {
 public:
  // Makes an empty monitor: failed waits are not reported, and every call fails.
  WaitMonitor() = default;

  // Makes a monitor. Not collective. kResourceExhausted without host memory that kernels can write.
  static StatusOr<WaitMonitor> Create(const Context& context) {
    WaitMonitor monitor;
    IRIS_ASSIGN_OR_RETURN(monitor.failure_, HostArray<WaitFailure>::Create(context));
    monitor.context_ = context.get();
    monitor.rank_ = context.rank();
    monitor.n_ranks_ = context.n_ranks();
    return monitor;
  }

  // A monitor converts to the value that kernels take.
  operator WaitReport() const { return WaitReport{failure_.get()}; }  // NOLINT: stands for it

  // Returns the first failure that a kernel has reported so far. kDeadlineExceeded if a signal did
  // not arrive in time; the message says which rank should have raised it, how long the wait was,
  // and what to check. kAborted if a rank died, hung up or left; the message names it. The failure
  // stays, and later waits with this monitor end at once: make another monitor to continue.
  Status Check() const {
    if (context_ == nullptr) {
      return Status(StatusCode::kFailedPrecondition,
                    "this WaitMonitor is empty: it was moved from, or made without Create");
    }
    const WaitFailure& failure = *failure_.get();
    if (__atomic_load_n(&failure.state, __ATOMIC_ACQUIRE) != WaitFailure::kTold) return Status();
    char text[200];
    std::snprintf(text, sizeof(text),
                  "a kernel of rank %" PRIu32 " (block %" PRIu32 ") waited for a signal of %s",
                  rank_, failure.block, Name(failure.from).c_str());
    std::string message = text;
    if (failure.result == WaitResult::kTimeout) {
      std::snprintf(text, sizeof(text), " for %.3g s",
                    static_cast<double>(failure.waited_ns) / 1e9);
      message += text;
    }
    std::snprintf(text, sizeof(text), ", which has to be %" PRIu64 " and was %" PRIu64,
                  failure.wanted, failure.seen);
    message += text;
    const Status health = impl::FromC(iris_context_health(context_));
    if (!health.ok()) return Status(health.code(), message + "; " + health.message());
    if (failure.result == WaitResult::kAborted) {
      return Status(StatusCode::kAborted, message + "; the wait was aborted");
    }
    message += failure.from == rank_
                   ? "; what raises it is on this device: all blocks that wait for each other must "
                     "have room there at once, and a kernel beside one that waits is prepared "
                     "before (PrepareKernel)"
                   : "; look whether that rank still runs and has launched its kernel (iris-ctl "
                     "jobs), and whether the grid has room on its device; "
                     "ContextOptions::timeout says how long waits last";
    return Status(StatusCode::kDeadlineExceeded, message);
  }

  // Waits for the stream. Returns the error of Check, or if there is none, that of the stream.
  Status Synchronize(Stream& stream) const {
    const Status status = stream.Synchronize();
    const Status check = Check();
    return check.ok() ? status : check;
  }

 private:
  std::string Name(uint32_t rank) const {
    if (rank == rank_) return "its own rank";
    int64_t pid = 0;
    const bool known = rank < n_ranks_ && iris_context_peer_pid(context_, rank, &pid) == IRIS_OK;
    return "rank " + std::to_string(rank) +
           (known && pid != 0 ? " (pid " + std::to_string(pid) + ")" : "");
  }

  HostArray<WaitFailure> failure_;
  iris_context* context_ = nullptr;
  uint32_t rank_ = 0;
  uint32_t n_ranks_ = 0;
};

}  // namespace iris
