#include "iris/backend/emu/scheduler.h"

#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

#include "iris/backend/emu/diagnosis.h"
#include "iris/backend/emu/sanitizers.h"

namespace iris::backend::emu {
namespace {

constexpr uint32_t kMaxWorkers = 64;
// A worker whose blocks make progress but do not end starts another block after this many rounds.
constexpr uint32_t kRoundsPerStart = 16;
// A worker whose blocks only poll yields. After kYieldNs it sleeps for kSleepNs between rounds.
constexpr uint64_t kYieldNs = 2 * 1000 * 1000;
constexpr long kSleepNs = 50 * 1000;

// Returns IRIS_EMU_RESIDENT_BLOCKS; 0 if the variable is not set.
uint32_t CountResidentBlocks() {
  const char* wanted = getenv("IRIS_EMU_RESIDENT_BLOCKS");
  const unsigned long n = wanted != nullptr ? strtoul(wanted, nullptr, 10) : 0;
  constexpr unsigned long kMost = 1u << 20;
  return static_cast<uint32_t>(n < kMost ? n : kMost);
}

uint32_t CountWorkers() {
  const char* wanted = getenv("IRIS_EMU_WORKERS");
  unsigned long n = wanted != nullptr ? strtoul(wanted, nullptr, 10) : 0;
  if (n == 0) n = std::thread::hardware_concurrency();
  if (n == 0) n = 1;
  return static_cast<uint32_t>(n < kMaxWorkers ? n : kMaxWorkers);
}

}  // namespace

// One OS thread and the blocks that it runs.
class Scheduler::Worker {
 public:
  explicit Worker(Scheduler* scheduler) : scheduler_(scheduler) {}

  [[noreturn]] void Loop() {
    uint32_t rounds = 0;       // since a block was started
    uint64_t still_since = 0;  // when the blocks began to only poll; 0: they do more
    for (;;) {
      if (blocks_.empty()) Start(scheduler_->WaitForBlock());
      const Block::Progress progress = Round();
      ++rounds;
      if (progress.moved && rounds < kRoundsPerStart) {
        still_since = 0;
        continue;
      }
      if (scheduler_->pending_count_.load(std::memory_order_relaxed) > 0) {
        const Taken taken = scheduler_->TryTakeBlock();
        if (taken.operation != nullptr) {
          Start(taken);
          rounds = 0;
          still_since = 0;
          continue;
        }
      }
      if (progress.moved) {
        still_since = 0;
      } else if (progress.stored) {
        still_since = 0;
        sched_yield();
      } else {
        const uint64_t now = ClockNanoseconds();
        if (still_since == 0) still_since = now;
        if (now - still_since < kYieldNs) {
          sched_yield();
        } else {
          const timespec pause = {0, kSleepNs};
          nanosleep(&pause, nullptr);
        }
      }
    }
  }

 private:
  void Start(const Taken& taken) {
    blocks_.push_back(std::make_unique<Block>(taken.operation, &stacks_, taken.block_index));
  }

  // Resumes the threads of each block once, and removes finished blocks.
  Block::Progress Round() {
    Block::Progress sum = {false, false};
    size_t kept = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      Block* block = blocks_[i].get();
      const Block::Progress progress = block->Turn();
      sum.moved |= progress.moved;
      sum.stored |= progress.stored;
      if (block->finished()) {
        const Operation* operation = block->operation();
        blocks_[i].reset();
        scheduler_->BlockFinished(operation);
      } else {
        if (kept != i) blocks_[kept] = std::move(blocks_[i]);
        ++kept;
      }
    }
    blocks_.resize(kept);
    return sum;
  }

  Scheduler* scheduler_;
  StackPool stacks_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

Scheduler& Scheduler::Get() {
  static Scheduler* const scheduler = new Scheduler;
  return *scheduler;
}

Scheduler::Scheduler() : worker_count_(CountWorkers()), resident_blocks_(CountResidentBlocks()) {}

namespace {
__thread uint32_t t_worker_index = 0;
std::atomic<uint32_t> g_workers_begun{0};
}  // namespace

uint32_t WorkerIndex() { return t_worker_index; }

void* Scheduler::WorkerMain(void* scheduler) {
  t_worker_index = g_workers_begun.fetch_add(1, std::memory_order_relaxed);
  // Never undone: a worker's own accesses are the runtime's, and fibers have a separate state.
  TsanIgnoreBegin();
  AcceptFaults();
  Worker worker(static_cast<Scheduler*>(scheduler));
  worker.Loop();
}

Result Scheduler::StartWorkers() {
  if (started_) return {};
  InstallFaultHandler();
  // Handlers would run on a kernel thread's small stack. Workers allow faults, on another stack.
  sigset_t all, old;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &old) != 0) {
    return {StatusCode::kInternal, "cannot block signals for the worker threads"};
  }
  uint32_t n_started = 0;
  for (uint32_t i = 0; i < worker_count_; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, &Scheduler::WorkerMain, this) != 0) break;
    pthread_setname_np(thread, "iris-emu");
    pthread_detach(thread);
    ++n_started;
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (n_started == 0) {
    return {StatusCode::kResourceExhausted,
            "cannot start a worker thread: raise the limit of threads"};
  }
  started_ = true;
  return {};
}

bool Scheduler::Capturing(StreamState* stream) {
  return stream->capture_ != nullptr && !stream->capture_->ended;
}

Result Scheduler::Submit(const LaunchConfig& config, StreamState* stream,
                         std::shared_ptr<const Work> work) {
  if (config.shared_bytes > Traits::kMaxDynamicSharedBytes) {
    return {StatusCode::kInvalidArgument,
            "launch with too much shared memory: at most 163,840 bytes"};
  }
  HeapView heaps;
  if (work->Heaps(&heaps) && heaps.map != nullptr && heaps.map->pid != 0 &&
      heaps.map->pid != getpid()) {
    return {StatusCode::kFailedPrecondition,
            "launch in a forked child of the process whose context the kernel was given: the heaps "
            "are not mapped here; exec a program that makes its own context"};
  }
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  if (Capturing(stream)) {
    stream->capture_->nodes.push_back({config, std::move(work)});
    return {};
  }
  return Append(config, stream, std::move(work));
}

Result Scheduler::Append(const LaunchConfig& config, StreamState* stream,
                         std::shared_ptr<const Work> work) {
  if (Result result = StartWorkers(); !result.ok()) return result;
  auto operation = std::make_unique<Operation>();
  operation->config = config;
  operation->work = std::move(work);
  operation->stream = stream;
  TsanRelease(&operation->launched);
  operation->unfinished_blocks = config.grid;
  operation->begin = &stream->sync_[(stream->submitted_ + 1) % 2];
  operation->end = &stream->sync_[stream->submitted_ % 2];
  ++stream->submitted_;
  ++unfinished_operations_;
  stream->queue_.push_back(std::move(operation));
  if (stream->queue_.size() == 1) Enqueue(stream->queue_.front().get());
  return {};
}

Result Scheduler::BeginCapture(StreamState* stream) {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  stream->capture_ = std::make_shared<Capture>();
  stream->capture_->origin = stream;
  return {};
}

Result Scheduler::EndCapture(StreamState* stream, std::shared_ptr<const Capture>* out) {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  if (!Capturing(stream) || stream->capture_->origin != stream) {
    return {StatusCode::kFailedPrecondition, "end of a capture that did not begin on this stream"};
  }
  stream->capture_->ended = true;
  *out = std::move(stream->capture_);
  return {};
}

Result Scheduler::Replay(const Capture& graph, StreamState* stream) {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  for (const Capture::Node& node : graph.nodes) {
    if (Result result = Append(node.config, stream, node.work); !result.ok()) return result;
  }
  return {};
}

bool Scheduler::IsCapturing(StreamState* stream) {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  return Capturing(stream);
}

std::shared_ptr<Capture> Scheduler::CaptureOf(StreamState* stream) {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  return Capturing(stream) ? stream->capture_ : nullptr;
}

bool Scheduler::JoinCapture(StreamState* stream, const std::shared_ptr<Capture>& capture) {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  if (capture->ended || (Capturing(stream) && stream->capture_ != capture)) return false;
  stream->capture_ = capture;
  return true;
}

void Scheduler::Synchronize(StreamState* stream) {
  {
    TsanIgnoreScope ignore;
    absl::MutexLock lock(&mu_);
    const uint64_t until = stream->submitted_;
    while (stream->finished_ < until) stream->changed_.Wait(&mu_);
  }
  TsanAcquire(&stream->sync_[0]);
  TsanAcquire(&stream->sync_[1]);
}

bool Scheduler::Idle(StreamState* stream) {
  {
    TsanIgnoreScope ignore;
    absl::MutexLock lock(&mu_);
    if (stream->finished_ != stream->submitted_) return false;
  }
  TsanAcquire(&stream->sync_[0]);
  TsanAcquire(&stream->sync_[1]);
  return true;
}

void Scheduler::SynchronizeAll() {
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  while (unfinished_operations_ != 0) all_finished_.Wait(&mu_);
}

void Scheduler::Enqueue(Operation* operation) {
  pending_.push_back(operation);
  pending_count_.store(static_cast<uint32_t>(pending_.size()), std::memory_order_relaxed);
  const uint32_t blocks = operation->config.grid;
  for (uint32_t i = 0; i < blocks && i < idle_workers_; ++i) work_.Signal();
}

// Launches alternate, so that a large one does not delay others. If the number of resident blocks
// is limited, all blocks of a launch begin before one of the next does, as on GPUs.
Scheduler::Taken Scheduler::TakeBlock() {
  if (pending_.empty() || !HasRoom()) return {};
  ++running_blocks_;
  Operation* operation = pending_.front();
  pending_.pop_front();
  const Taken taken = {operation, operation->next_block++};
  if (operation->next_block < operation->config.grid) {
    if (resident_blocks_ == 0) {
      pending_.push_back(operation);
    } else {
      pending_.push_front(operation);
    }
  }
  pending_count_.store(static_cast<uint32_t>(pending_.size()), std::memory_order_relaxed);
  return taken;
}

Scheduler::Taken Scheduler::TryTakeBlock() {
  absl::MutexLock lock(&mu_);
  return TakeBlock();
}

Scheduler::Taken Scheduler::WaitForBlock() {
  absl::MutexLock lock(&mu_);
  ++idle_workers_;
  while (pending_.empty() || !HasRoom()) work_.Wait(&mu_);
  --idle_workers_;
  return TakeBlock();
}

void Scheduler::BlockFinished(const Operation* operation) {
  std::unique_ptr<Operation> finished;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  StreamState* stream = operation->stream;
  Operation* mine = stream->queue_.front().get();
  --running_blocks_;
  if (resident_blocks_ != 0 && !pending_.empty()) work_.Signal();
  if (--mine->unfinished_blocks > 0) return;
  if (--unfinished_operations_ == 0) all_finished_.SignalAll();
  finished = std::move(stream->queue_.front());
  stream->queue_.pop_front();
  ++stream->finished_;
  if (!stream->queue_.empty()) Enqueue(stream->queue_.front().get());
  stream->changed_.SignalAll();  // the last access to the stream, which its owner may now destroy
}

Result Submit(const LaunchConfig& config, StreamState* stream, std::shared_ptr<const Work> work) {
  return Scheduler::Get().Submit(config, stream, std::move(work));
}

}  // namespace iris::backend::emu

namespace iris::backend {

Result raw::CheckCaller() {
  if (emu::t_current.in_kernel != 0) {
    return {StatusCode::kFailedPrecondition,
            "called from inside a kernel: only the host launches, copies and waits"};
  }
  return {};
}

Result raw::CreateStream(StreamHandle* out) {
  out->native = new emu::StreamState;
  return {};
}

void raw::DestroyStream(const StreamHandle& stream) {
  if (emu::t_current.in_kernel == 0) emu::Scheduler::Get().Synchronize(emu::StateOf(stream));
  delete emu::StateOf(stream);
}

Result raw::SynchronizeStream(const StreamHandle& stream) {
  emu::Scheduler::Get().Synchronize(emu::StateOf(stream));
  return {};
}

Result raw::SynchronizeDevice() {
  emu::Scheduler::Get().SynchronizeAll();
  return {};
}

bool raw::IsIdle(const StreamHandle& stream) {
  return emu::Scheduler::Get().Idle(emu::StateOf(stream));
}

bool raw::IsCapturing(const StreamHandle& stream) {
  return emu::Scheduler::Get().IsCapturing(emu::StateOf(stream));
}

uint32_t ResidentBlocks() { return emu::Scheduler::Get().resident_blocks(); }

uint32_t MultiprocessorCount() { return emu::Scheduler::Get().worker_count(); }

}  // namespace iris::backend
