// Copies that a kernel requests and the copy engine makes: the kernel posts descriptors into a ring
// in host memory, and a host thread (iris::CopyQueue of <iris/copy_queue.h>) puts the copies on a
// stream. The multiprocessors then spend no time on the bytes.
//
//   // One thread, once the data is complete:
//   CopyRequest request;
//   request.to = peer;
//   request.dst = inbox;                      // in this rank's heap: means the peer's copy
//   request.src = tile;                       // device memory of this rank
//   request.bytes = bytes;
//   request.signal = {arrived, 1, SignalOp::kAdd};
//   uint64_t number = 0;
//   if (PostCopy(ctx, queue, request, &number) != WaitResult::kOk) return;
//   ...
//   AwaitCopy(ctx, queue, number);            // before this kernel overwrites `tile`
//
// `queue` is CopyQueue::device(), given to the kernel by value. Any number of threads of any
// kernels of the rank post at the same time; descriptors go out in the order of their numbers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/copy_ring_types.h"
#include "iris/impl/coop.h"
#include "iris/impl/wait.h"
#include "iris/types.h"

namespace iris {

// A copy from memory of this rank to the heap of a rank.
struct CopyRequest {
  uint32_t to = 0;            // world rank; may be the caller's own
  void* dst = nullptr;        // an address in the caller's heap: stands for the copy of `to`
  const void* src = nullptr;  // device memory that does not change until the copy has been made
  uint64_t bytes = 0;
  // The signal sent to the peer after all bytes have arrived. A null `word` means no signal.
  SignalTo signal = {nullptr, 0, SignalOp::kSet};
};

namespace impl {

// Returns true if the host has stopped taking descriptors.
IRIS_DEVICE inline bool CopyQueueStopped(const DeviceCopyQueue& queue) {
  return backend::Load<Scope::kSystem, Order::kAcquire>(&queue.host->stopped) != 0;
}

IRIS_DEVICE inline uint64_t CopiesDone(const DeviceCopyQueue& queue) {
  return backend::Load<Scope::kSystem, Order::kAcquire>(&queue.host->completed);
}

}  // namespace impl

// Posts a copy, without waiting for it. The calling thread releases what it wrote before, and after
// a BlockSync what its block wrote. Pass `*number`, if given, to AwaitCopy.
//
// Waits only while the ring is full. On an error nothing was posted: kTimeout if the ring stayed
// full, kAborted if a rank has died, or if the host has stopped the queue: see CopyQueue::Drain.
IRIS_DEVICE inline WaitResult PostCopy(const DeviceContext& ctx, const DeviceCopyQueue& queue,
                                       const CopyRequest& request, uint64_t* number = nullptr,
                                       uint64_t timeout_ns = 0) {
  if (impl::CopyQueueStopped(queue)) return WaitResult::kAborted;
  uint64_t ticket = 0;
  // Takes a place only when it is free, so a thread that gives up leaves no gap.
  const WaitResult result = impl::BoundedWait(
      ctx, timeout_ns,
      [&] {
        uint64_t seen = backend::Load<Scope::kDevice, Order::kRelaxed>(queue.posted);
        while (seen - impl::CopiesDone(queue) < queue.capacity) {
          const uint64_t found = backend::CompareExchange<Scope::kDevice, Order::kRelaxed>(
              queue.posted, seen, seen + 1);
          if (found == seen) {
            ticket = seen;
            return true;
          }
          seen = found;
        }
        return false;
      },
      [&] { return impl::CopyQueueStopped(queue); });
  if (result != WaitResult::kOk) return result;
  CopyDescriptor* const slot = queue.slots + ticket % queue.capacity;
  // The stores are relaxed, since the host reads the words while others are written.
  const auto set = [](uint64_t* word, uint64_t value) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(word, value);
  };
  set(&slot->dst, reinterpret_cast<uint64_t>(request.dst));
  set(&slot->src, reinterpret_cast<uint64_t>(request.src));
  set(&slot->bytes, request.bytes);
  set(&slot->signal, reinterpret_cast<uint64_t>(request.signal.word));
  set(&slot->signal_value, request.signal.value);
  set(&slot->to_and_op, request.to | static_cast<uint64_t>(request.signal.op) << 32);
  backend::Store<Scope::kSystem, Order::kRelease>(&slot->sequence, ticket + 1);
  if (number != nullptr) *number = ticket;
  return WaitResult::kOk;
}

// Returns true if the copy of this number, and all before it, have been made: `src` may then be
// overwritten.
IRIS_DEVICE inline bool TestCopy(const DeviceCopyQueue& queue, uint64_t number) {
  return impl::CopiesDone(queue) > number;
}

// Waits until the copy of this number, and all before it, have been made. Fails as PostCopy does;
// after a failure the copy may still be made.
template <typename Coop = Thread, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline WaitResult AwaitCopy(const DeviceContext& ctx, const DeviceCopyQueue& queue,
                                        uint64_t number, Coop coop = Coop{},
                                        uint64_t timeout_ns = 0) {
  WaitResult result = WaitResult::kOk;
  if (impl::CoopIndex(coop) == 0) {
    result = impl::BoundedWait(
        ctx, timeout_ns, [&] { return TestCopy(queue, number); },
        [&] { return impl::CopyQueueStopped(queue); });
  }
  return static_cast<WaitResult>(impl::CoopBroadcast(coop, static_cast<uint32_t>(result)));
}

}  // namespace iris
