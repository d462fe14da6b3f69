// Block: one running block of a kernel, with its threads as fibers, their syncs, and their shared
// memory. A block belongs to one worker thread. The kernel uses it through backend.h's functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "iris/backend/emu/backend.h"
#include "iris/backend/emu/fiber.h"

namespace iris::backend::emu {

struct Operation;
class Block;

// One thread of a block.
struct DeviceThread {
  enum class State : uint8_t { kReady, kInBlockSync, kInWarpSync };

  Fiber fiber;
  Block* block;
  DeviceThread* next;  // in the queue or the list of waiters that contains this thread
  uint32_t index;
  uint32_t fenced;
  State state;
};

// A first-in, first-out queue. The links are in the threads.
struct ThreadQueue {
  DeviceThread* head = nullptr;
  DeviceThread* tail = nullptr;
  uint32_t count = 0;

  void Push(DeviceThread* thread);
  DeviceThread* Pop();
  // Appends all of `other`.
  void Append(ThreadQueue* other);
};

class Block {
 public:
  Block(const Operation* operation, StackPool* stacks, uint32_t block_index);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  struct Progress {
    bool moved;   // a thread has begun, ended, or passed a sync
    bool stored;  // a thread has written an atomic: others may wait for it
  };

  // Returns true if `address` is in the guard of the running thread's stack.
  bool IsStackGuard(const void* address) const {
    return running_ != nullptr && running_->fiber.IsGuard(address);
  }

  // Resumes each ready thread once.
  Progress Turn();

  bool finished() const { return live_ == 0; }
  const Operation* operation() const { return operation_; }

  // Operations of the running thread.
  void Yield();
  void ArriveAtBlockSync();
  void ArriveAtWarpSync();
  Bytes16 ShuffleInWarp(Bytes16 value, uint32_t source_lane);
  uint64_t BallotInWarp(bool value);
  void* Shared(const void* key, uint64_t bytes, uint64_t alignment_bytes);
  void* dynamic_shared() { return dynamic_shared_; }

 private:
  // Values pass through slots[phase]. A thread that is one operation ahead uses the other slots.
  struct WarpState {
    uint32_t live;
    uint32_t arrived;
    uint32_t phase;
    ThreadQueue waiting;
    uint64_t present[2];  // lanes that have given a value
    uint64_t ballot[2];
    Bytes16 slots[2][Traits::kWarpThreads];
    char sync[2];  // addresses for ThreadSanitizer
  };
  struct SharedSlot {
    const void* key;
    void* memory;
  };
  static constexpr uint32_t kMaxSharedSlots = 64;

  static void RunThread(void* thread) noexcept;

  // Inlined: see fiber.h on returns after a switch.
  [[gnu::always_inline]] inline void Resume(DeviceThread* thread);
  void Exit(DeviceThread* thread);
  void WaitInWarp();
  void ReleaseBlockIfComplete();
  void ReleaseWarpIfComplete(WarpState* warp);
  [[noreturn]] void TrapDeadlock();

  const Operation* operation_;
  StackPool* stacks_;
  uint32_t index_;
  uint32_t size_;
  uint32_t next_to_start_ = 0;
  uint32_t live_;         // threads that have not returned, those not yet started included
  uint32_t arrived_ = 0;  // in BlockSync
  uint32_t phase_ = 0;
  bool moved_ = false;
  DeviceThread* running_ = nullptr;
  ThreadQueue ready_;
  ThreadQueue in_block_sync_;
  char sync_[2];  // addresses for ThreadSanitizer
  std::unique_ptr<DeviceThread[]> threads_;
  std::unique_ptr<WarpState[]> warps_;
  uint8_t* arena_ = nullptr;
  uint64_t arena_bytes_ = 0;
  uint64_t arena_used_ = 0;
  void* dynamic_shared_ = nullptr;
  uint32_t n_shared_slots_ = 0;
  SharedSlot shared_slots_[kMaxSharedSlots];
};

// For diagnoses on a worker. RunningWork returns the running block's work, or null outside of
// kernels; IsStackGuard returns true if the address is in the guard of the running thread's stack.
const Work* RunningWork();
bool IsStackGuard(const void* address);

}  // namespace iris::backend::emu
