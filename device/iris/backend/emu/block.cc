#include "iris/backend/emu/block.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "iris/backend/emu/sanitizers.h"
#include "iris/backend/emu/scheduler.h"

namespace iris::backend::emu {

__thread Current t_current = {0, 0, 1, 1, 0, 0, 0, 0};

namespace {

// The block whose thread currently runs on this worker.
__thread Block* t_block = nullptr;

constexpr uint64_t kArenaAlignmentBytes = 128;
// The gap between variables, by which AddressSanitizer detects an overrun.
constexpr uint64_t kSharedGapBytes = 32;
#ifdef NDEBUG
constexpr bool kFillShared = false;
#else
// ThreadSanitizer would treat the fill as an access of the first thread that uses the variable.
constexpr bool kFillShared = !kTsan;
#endif

[[noreturn]] void Die(const char* format, uint32_t block, uint32_t thread, const char* what) {
  char text[512];
  const int n = snprintf(text, sizeof(text), format, block, thread, what);
  if (n > 0) {
    const size_t bytes =
        static_cast<size_t>(n) < sizeof(text) ? static_cast<size_t>(n) : sizeof(text);
    if (write(STDERR_FILENO, text, bytes) < 0) abort();
  }
  abort();
}

Block& CurrentBlock() {
  if (t_block == nullptr) TrapWith("called outside of a kernel");
  return *t_block;
}

}  // namespace

void ThreadQueue::Push(DeviceThread* thread) {
  thread->next = nullptr;
  if (head == nullptr) {
    head = thread;
  } else {
    tail->next = thread;
  }
  tail = thread;
  ++count;
}

DeviceThread* ThreadQueue::Pop() {
  DeviceThread* thread = head;
  head = thread->next;
  --count;
  return thread;
}

void ThreadQueue::Append(ThreadQueue* other) {
  if (other->head == nullptr) return;
  if (head == nullptr) {
    head = other->head;
  } else {
    tail->next = other->head;
  }
  tail = other->tail;
  count += other->count;
  other->head = nullptr;
  other->count = 0;
}

Block::Block(const Operation* operation, StackPool* stacks, uint32_t block_index)
    : operation_(operation),
      stacks_(stacks),
      index_(block_index),
      size_(operation->config.block),
      live_(size_),
      threads_(new DeviceThread[size_]),
      warps_(new WarpState[(size_ + Traits::kWarpThreads - 1) / Traits::kWarpThreads]) {
  for (uint32_t first = 0; first < size_; first += Traits::kWarpThreads) {
    WarpState& warp = warps_[first / Traits::kWarpThreads];
    warp.live = size_ - first < Traits::kWarpThreads ? size_ - first : Traits::kWarpThreads;
    warp.arrived = 0;
    warp.phase = 0;
    warp.present[0] = warp.present[1] = 0;
    warp.ballot[0] = warp.ballot[1] = 0;
  }
  // Allocates all shared memory at once before any thread runs: only touched pages cost memory.
  const uint64_t dynamic_bytes =
      (operation->config.shared_bytes + kArenaAlignmentBytes - 1) & ~(kArenaAlignmentBytes - 1);
  arena_bytes_ = dynamic_bytes + kSharedGapBytes + kMaxStaticSharedBytes;
  arena_ =
      static_cast<uint8_t*>(::operator new(arena_bytes_, std::align_val_t(kArenaAlignmentBytes)));
  dynamic_shared_ = arena_;
  arena_used_ = dynamic_bytes + kSharedGapBytes;
  if (kFillShared) memset(arena_, 0xa5, operation->config.shared_bytes);
  AsanPoison(arena_ + operation->config.shared_bytes,
             arena_bytes_ - operation->config.shared_bytes);
}

Block::~Block() {
  AsanUnpoison(arena_, arena_bytes_);
  ::operator delete(arena_, std::align_val_t(kArenaAlignmentBytes));
}

void Block::Resume(DeviceThread* thread) {
  running_ = thread;
  t_current.thread_index = thread->index;
  t_current.polls = 0;
  t_current.fenced = thread->fenced;
  thread->fiber.SwitchIn();
  thread->fenced = t_current.fenced;
  if (!thread->fiber.StackIsWhole()) {
    Die("iris: block %u, thread %u: a kernel's thread overflowed its stack (%s KiB): use less "
        "local memory or recursion\n",
        index_, thread->index, kUsableStackBytes == 64 * 1024 ? "64" : "256");
  }
  if (thread->fiber.finished()) Exit(thread);
}

Block::Progress Block::Turn() {
  moved_ = false;
  t_block = this;
  t_current.block_index = index_;
  t_current.block_size = size_;
  t_current.grid_size = operation_->config.grid;
  t_current.stored = 0;
  t_current.in_kernel = 1;
  for (uint32_t n = ready_.count; n > 0; --n) Resume(ready_.Pop());
  while (next_to_start_ < size_) {
    DeviceThread* thread = &threads_[next_to_start_];
    thread->block = this;
    thread->index = next_to_start_++;
    thread->fenced = 0;
    thread->state = DeviceThread::State::kReady;
    uint8_t* stack = stacks_->Take();
    if (stack == nullptr) {
      Die("iris: block %u, thread %u: %s\n", index_, thread->index,
          "no memory for the stacks of a kernel's threads: launch fewer blocks or threads");
    }
    thread->fiber.Prepare(stack, &Block::RunThread, thread);
    if (kTsan) {
      char name[48];
      snprintf(name, sizeof(name), "block %u thread %u", index_, thread->index);
      thread->fiber.SetName(name);
    }
    moved_ = true;
    Resume(thread);
  }
  if (live_ > 0 && ready_.count == 0) TrapDeadlock();
  const Progress progress = {moved_, t_current.stored != 0};
  t_current = Current{0, 0, 1, 1, 0, 0, 0, 0};
  t_block = nullptr;
  return progress;
}

void Block::RunThread(void* argument) noexcept {
  DeviceThread* thread = static_cast<DeviceThread*>(argument);
  const Operation* operation = thread->block->operation_;
  TsanAcquire(const_cast<char*>(&operation->launched));
  TsanAcquire(operation->begin);
  operation->work->Run();
  TsanRelease(operation->end);
}

void Block::Exit(DeviceThread* thread) {
  stacks_->Give(thread->fiber.Release());
  moved_ = true;
  --live_;
  ReleaseBlockIfComplete();
  WarpState& warp = warps_[thread->index / Traits::kWarpThreads];
  --warp.live;
  ReleaseWarpIfComplete(&warp);
}

void Block::Yield() {
  DeviceThread* thread = running_;
  ready_.Push(thread);
  thread->fiber.SwitchOut();
}

void Block::ReleaseBlockIfComplete() {
  if (arrived_ == 0 || arrived_ != live_) return;
  arrived_ = 0;
  phase_ ^= 1;
  moved_ = true;
  ready_.Append(&in_block_sync_);
}

void Block::ReleaseWarpIfComplete(WarpState* warp) {
  if (warp->arrived == 0 || warp->arrived != warp->live) return;
  warp->arrived = 0;
  warp->phase ^= 1;
  warp->present[warp->phase] = 0;
  warp->ballot[warp->phase] = 0;
  moved_ = true;
  ready_.Append(&warp->waiting);
}

void Block::ArriveAtBlockSync() {
  DeviceThread* thread = running_;
  char* sync = &sync_[phase_];
  TsanRelease(sync);
  if (++arrived_ == live_) {
    ReleaseBlockIfComplete();
  } else {
    thread->state = DeviceThread::State::kInBlockSync;
    in_block_sync_.Push(thread);
    thread->fiber.SwitchOut();
    thread->state = DeviceThread::State::kReady;
  }
  TsanAcquire(sync);
}

void Block::WaitInWarp() {
  DeviceThread* thread = running_;
  WarpState& warp = warps_[thread->index / Traits::kWarpThreads];
  if (++warp.arrived == warp.live) {
    ReleaseWarpIfComplete(&warp);
    return;
  }
  thread->state = DeviceThread::State::kInWarpSync;
  warp.waiting.Push(thread);
  thread->fiber.SwitchOut();
  thread->state = DeviceThread::State::kReady;
}

void Block::ArriveAtWarpSync() {
  WarpState& warp = warps_[running_->index / Traits::kWarpThreads];
  char* sync = &warp.sync[warp.phase];
  TsanRelease(sync);
  WaitInWarp();
  TsanAcquire(sync);
}

// As on GPUs, a shuffle passes values and orders no memory.
Bytes16 Block::ShuffleInWarp(Bytes16 value, uint32_t source_lane) {
  WarpState& warp = warps_[running_->index / Traits::kWarpThreads];
  const uint32_t lane = running_->index % Traits::kWarpThreads;
  const uint32_t phase = warp.phase;
  warp.slots[phase][lane] = value;
  warp.present[phase] |= uint64_t{1} << lane;
  WaitInWarp();
  if (source_lane >= Traits::kWarpThreads || (warp.present[phase] >> source_lane & 1) == 0)
    return value;
  return warp.slots[phase][source_lane];
}

uint64_t Block::BallotInWarp(bool value) {
  WarpState& warp = warps_[running_->index / Traits::kWarpThreads];
  const uint32_t phase = warp.phase;
  if (value) warp.ballot[phase] |= uint64_t{1} << (running_->index % Traits::kWarpThreads);
  WaitInWarp();
  return warp.ballot[phase];
}

void* Block::Shared(const void* key, uint64_t bytes, uint64_t alignment_bytes) {
  for (uint32_t i = 0; i < n_shared_slots_; ++i) {
    if (shared_slots_[i].key == key) return shared_slots_[i].memory;
  }
  const uint64_t offset = (arena_used_ + alignment_bytes - 1) & ~(alignment_bytes - 1);
  if (n_shared_slots_ == kMaxSharedSlots || bytes > arena_bytes_ - kSharedGapBytes ||
      offset > arena_bytes_ - kSharedGapBytes - bytes) {
    TrapWith("more shared variables than a block has memory for: 64 variables of 64 KiB together");
  }
  arena_used_ = offset + bytes + kSharedGapBytes;
  uint8_t* memory = arena_ + offset;
  AsanUnpoison(memory, bytes);
  if (kFillShared) memset(memory, 0xa5, bytes);
  shared_slots_[n_shared_slots_++] = {key, memory};
  return memory;
}

void Block::TrapDeadlock() {
  uint32_t in_block_sync = 0;
  uint32_t in_warp_sync = 0;
  uint32_t example = 0;
  for (uint32_t i = 0; i < size_; ++i) {
    if (threads_[i].fiber.finished()) continue;
    if (threads_[i].state == DeviceThread::State::kInBlockSync) ++in_block_sync;
    if (threads_[i].state == DeviceThread::State::kInWarpSync) {
      ++in_warp_sync;
      example = i;
    }
  }
  char what[128];
  snprintf(what, sizeof(what), "%u threads wait in BlockSync and %u in WarpSync or a shuffle",
           in_block_sync, in_warp_sync);
  Die("iris: block %u, thread %u: no thread of the block can go on: %s\n", index_, example, what);
}

void SwitchAfterPolls() {
  t_current.polls = 0;
  t_current.stored = 1;  // many loads may also be work, so the worker does not sleep
  if (t_block != nullptr) t_block->Yield();
}

// Flattened: see fiber.h on returns after a switch.
[[gnu::flatten]] void SyncBlock() { CurrentBlock().ArriveAtBlockSync(); }
[[gnu::flatten]] void SyncWarp() { CurrentBlock().ArriveAtWarpSync(); }
[[gnu::flatten]] Bytes16 ShuffleBytes(Bytes16 value, uint32_t source_lane) {
  return CurrentBlock().ShuffleInWarp(value, source_lane);
}
uint64_t BallotBits(bool value) { return CurrentBlock().BallotInWarp(value); }
void* DynamicSharedBytes() { return CurrentBlock().dynamic_shared(); }
void* SharedBytes(const void* key, uint64_t bytes, uint64_t alignment_bytes) {
  return CurrentBlock().Shared(key, bytes, alignment_bytes);
}

const Work* RunningWork() {
  return t_block == nullptr ? nullptr : t_block->operation()->work.get();
}

bool IsStackGuard(const void* address) {
  return t_block != nullptr && t_block->IsStackGuard(address);
}

void TrapWith(const char* what) {
  Die("iris: trap in block %u, thread %u: %s\n", t_current.block_index, t_current.thread_index,
      what);
}

}  // namespace iris::backend::emu

namespace iris::backend {

void Pause() {
  if (emu::t_block != nullptr) {
    emu::t_block->Yield();
  } else {
    sched_yield();
  }
}

}  // namespace iris::backend
