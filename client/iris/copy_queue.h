// iris::CopyQueue: copies to the heaps of peers that kernels request and the copy engine makes.
// Kernels post descriptors (<iris/copy_ring.h>) into a ring in host memory. A thread of this object
// takes them in order, and puts each copy on a stream of its own, as Stream::Put with a signal
// does.
//
//   auto queue = iris::CopyQueue::Create(*context);
//   auto status =
//       iris::Launch({8, 256}, stream, Kernel, context->device_context(), queue->device());
//   status = stream.Synchronize();   // all descriptors are posted
//   status = queue->Drain();         // all are copied, or `status` is the error
//
// A descriptor that Stream::Put would refuse stops the queue: kernels that post or wait get
// kAborted, and Drain and status() name the descriptor and what is wrong with it. An error of the
// stream stops it, too. If a kernel ends in the middle of a post, its descriptor never arrives, and
// Drain says so after its timeout.
//
// The thread polls all the time while there are descriptors, and with pauses otherwise. For a copy
// with a signal, the device needs room for a kernel of one thread next to the kernels that wait for
// the signal: see Stream::PrepareSignals, which Create calls.
//
// Thread-safe, but for moves. A queue ends before its context, and after the kernels that use it.
// Header-only over <iris/c_api.h>, with a std::thread. C++17.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "iris/c_api.h"
#include "iris/context.h"
#include "iris/copy_ring_types.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris {

struct CopyQueueOptions {
  // The most descriptors that can be posted and not yet copied: a power of two from 1 to
  // kMaxCapacity. A kernel that posts more waits.
  uint64_t capacity = 256;
  // The sleep of the thread between two polls when nothing has been posted for a while. With 0 the
  // thread never sleeps, and occupies a core.
  std::chrono::microseconds pause{50};

  static constexpr uint64_t kMaxCapacity = 1 << 16;
};

class CopyQueue {
 public:
  CopyQueue() = default;
  // Stops the thread once the stream has run the copies that it was given. Descriptors that the
  // thread has not taken are not copied: call Drain before.
  ~CopyQueue() = default;
  CopyQueue(CopyQueue&&) noexcept = default;
  CopyQueue& operator=(CopyQueue&&) noexcept = default;

  // Makes a queue. Not collective. Borrows the context. kInvalidArgument if the options are not
  // valid. kResourceExhausted if there is no memory, or no thread.
  static StatusOr<CopyQueue> Create(const Context& context, const CopyQueueOptions& options = {}) {
    if (options.capacity == 0 || options.capacity > CopyQueueOptions::kMaxCapacity ||
        (options.capacity & (options.capacity - 1)) != 0) {
      return Status(StatusCode::kInvalidArgument,
                    "the capacity of a CopyQueue is a power of two from 1 to 65536, not " +
                        std::to_string(options.capacity));
    }
    if (options.pause.count() < 0) {
      return Status(StatusCode::kInvalidArgument, "the pause of a CopyQueue is negative");
    }
    CopyQueue queue;
    queue.state_ = std::make_unique<State>(options);
    IRIS_RETURN_IF_ERROR(queue.state_->Begin(context));
    return StatusOr<CopyQueue>(std::move(queue));
  }

  // Returns the value that kernels take, valid as long as this object; empty if this is empty.
  DeviceCopyQueue device() const {
    return state_ == nullptr ? DeviceCopyQueue() : state_->device();
  }

  // Waits until all descriptors that were posted before have been copied; call it after the kernels
  // that post have ended, or once you know that they have posted. Returns the first error of the
  // queue, or kDeadlineExceeded after `timeout`, which says what is missing.
  Status Drain(std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    return state_ == nullptr ? Empty() : state_->Drain(timeout);
  }

  // Returns the first error, or OK.
  Status status() const { return state_ == nullptr ? Empty() : state_->status(); }
  // Returns the number of finished copies.
  uint64_t completed() const { return state_ == nullptr ? 0 : state_->completed(); }

 private:
  static Status Empty() {
    return Status(StatusCode::kFailedPrecondition,
                  "this CopyQueue is empty: see CopyQueue::Create");
  }

  class State {
   public:
    explicit State(const CopyQueueOptions& options) : options_(options) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (!thread_.joinable()) return;
      stop_.store(true, std::memory_order_relaxed);
      thread_.join();
    }

    Status Begin(const Context& context) {
      context_ = context.get();
      IRIS_ASSIGN_OR_RETURN(slots_, HostArray<CopyDescriptor>::Create(context, options_.capacity));
      IRIS_ASSIGN_OR_RETURN(words_, HostArray<CopyQueueWords>::Create(context));
      IRIS_ASSIGN_OR_RETURN(posted_, DeviceArray<uint64_t>::Create(context, 1));
      IRIS_ASSIGN_OR_RETURN(copies_, Stream::Create(context));
      IRIS_ASSIGN_OR_RETURN(looks_, Stream::Create(context));
      IRIS_RETURN_IF_ERROR(looks_.Fill(posted_.get(), 0, posted_.bytes()));
      IRIS_RETURN_IF_ERROR(looks_.Synchronize());
      IRIS_RETURN_IF_ERROR(Stream::PrepareSignals(context));
      try {
        thread_ = std::thread([this] { Run(); });
      } catch (const std::system_error& error) {
        return Status(StatusCode::kResourceExhausted,
                      std::string("no thread for a CopyQueue: ") + error.what());
      }
      return Status();
    }

    DeviceCopyQueue device() const {
      DeviceCopyQueue queue;
      queue.slots = slots_.get();
      queue.host = words_.get();
      queue.posted = posted_.get();
      queue.capacity = options_.capacity;
      return queue;
    }

    Status status() const {
      std::lock_guard<std::mutex> lock(mu_);
      return status_;
    }
    uint64_t completed() const { return __atomic_load_n(&words_->completed, __ATOMIC_ACQUIRE); }

    Status Drain(std::chrono::nanoseconds timeout) {
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      uint64_t posted = 0;
      {
        // Only one thread looks at a time, because an error of the stream is reported only once.
        std::lock_guard<std::mutex> lock(looks_mu_);
        IRIS_RETURN_IF_ERROR(looks_.Copy(&posted, posted_.get(), sizeof(posted)));
        IRIS_RETURN_IF_ERROR(looks_.Synchronize());
      }
      for (;;) {
        // Reads completed() before the status: copies made before an error count as made.
        if (completed() >= posted) return Status();
        IRIS_RETURN_IF_ERROR(status());
        if (std::chrono::steady_clock::now() >= deadline) break;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      const uint64_t taken = taken_.load(std::memory_order_acquire);
      if (taken < posted) {
        return Status(StatusCode::kDeadlineExceeded,
                      "a CopyQueue waits for copy #" + std::to_string(taken) + " of " +
                          std::to_string(posted) +
                          ", whose descriptor was begun and not finished: the kernel that posted "
                          "it runs still, or has ended in the middle; then make a new queue");
      }
      return Status(StatusCode::kDeadlineExceeded,
                    "a CopyQueue has made " + std::to_string(completed()) + " of " +
                        std::to_string(posted) + " copies in the time that Drain was given");
    }

   private:
    void Run() {
      uint64_t taken = 0, done = 0;
      uint32_t looks = 0;  // consecutive polls without a new descriptor
      while (!stop_.load(std::memory_order_relaxed)) {
        bool moved = false;
        while (!stop_.load(std::memory_order_relaxed)) {
          const CopyDescriptor& slot = slots_[taken % options_.capacity];
          if (__atomic_load_n(&slot.sequence, __ATOMIC_ACQUIRE) != taken + 1) break;
          if (Status status = Take(slot); !status.ok()) {
            return Fail(
                Status(status.code(), "copy #" + std::to_string(taken) +
                                          " of a CopyQueue: " + std::string(status.message())));
          }
          taken_.store(++taken, std::memory_order_release);
          moved = true;
        }
        if (done != taken && copies_.Idle()) {
          if (Status status = copies_.Synchronize(); !status.ok()) return Fail(std::move(status));
          done = taken;
          __atomic_store_n(&words_->completed, done, __ATOMIC_RELEASE);
          moved = true;
        }
        looks = moved ? 0 : looks + 1;
        if (looks < kLooksBeforePause || options_.pause.count() == 0) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(options_.pause);
        }
      }
      Fail(Status(StatusCode::kFailedPrecondition, "this CopyQueue has ended"));
    }

    Status Take(const CopyDescriptor& slot) {
      const auto get = [](const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); };
      const uint64_t to_and_op = get(&slot.to_and_op);
      auto signal = impl::Sized<iris_signal>();
      signal.word = reinterpret_cast<uint64_t*>(get(&slot.signal));
      signal.value = get(&slot.signal_value);
      signal.op = static_cast<SignalOp>(to_and_op >> 32) == SignalOp::kSet ? IRIS_SIGNAL_SET
                                                                           : IRIS_SIGNAL_ADD;
      return impl::FromC(iris_put_async(context_, reinterpret_cast<void*>(get(&slot.dst)),
                                        reinterpret_cast<const void*>(get(&slot.src)),
                                        get(&slot.bytes), static_cast<uint32_t>(to_and_op),
                                        copies_.get(), &signal));
    }

    // Stops the queue with an error. The thread calls it last.
    void Fail(Status status) {
      {
        std::lock_guard<std::mutex> lock(mu_);
        status_ = std::move(status);
      }
      __atomic_store_n(&words_->stopped, 1u, __ATOMIC_RELEASE);
      // Copies on the stream must finish before their sources and the ring end.
      (void)copies_.Synchronize();
    }

    static constexpr uint32_t kLooksBeforePause = 1000;

    iris_context* context_ = nullptr;
    const CopyQueueOptions options_;
    HostArray<CopyDescriptor> slots_;
    HostArray<CopyQueueWords> words_;
    DeviceArray<uint64_t> posted_;
    Stream copies_, looks_;
    std::mutex looks_mu_;
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> taken_{0};
    mutable std::mutex mu_;  // guards these fields
    Status status_;
    std::thread thread_;
  };

  std::unique_ptr<State> state_;
};

}  // namespace iris
