#include "device/backend/emu/scheduler.h"

#include <sched.h>
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

#include "device/backend/emu/sanitizers.h"

namespace iris::backend::emu {
namespace {

constexpr uint32_t kMaxWorkers = 64;
// A worker whose blocks keep moving without ending (say, a sync in a loop that waits for a flag)
// still starts another block after this many rounds.
constexpr uint32_t kRoundsPerStart = 16;
// A worker whose blocks only poll yields; after this long it sleeps between rounds, so that a wait
// for a rank that is away for long does not burn a core.
constexpr uint64_t kYieldNs = 2 * 1000 * 1000;
constexpr long kSleepNs = 50 * 1000;

uint32_t CountWorkers() {
  const char* wanted = getenv("IRIS_EMU_WORKERS");
  unsigned long n = wanted != nullptr ? strtoul(wanted, nullptr, 10) : 0;
  if (n == 0) n = std::thread::hardware_concurrency();
  if (n == 0) n = 1;
  return static_cast<uint32_t>(n < kMaxWorkers ? n : kMaxWorkers);
}

std::atomic<bool>* g_forked = nullptr;

}  // namespace

// One OS thread and the blocks that it runs.
class Scheduler::Worker {
 public:
  explicit Worker(Scheduler* scheduler) : scheduler_(scheduler) {}

  [[noreturn]] void Loop() {
    uint32_t rounds = 0;       // since a block was started
    uint64_t still_since = 0;  // when the blocks began to do nothing but poll; 0: they do more
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

  // A turn for each block.
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

Scheduler::Scheduler() : worker_count_(CountWorkers()) { g_forked = &forked_; }

void* Scheduler::WorkerMain(void* scheduler) {
  // For good: a worker's own accesses are the runtime's. The threads of kernels are fibers, with a
  // state of their own.
  TsanIgnoreBegin();
  Worker worker(static_cast<Scheduler*>(scheduler));
  worker.Loop();
}

Result Scheduler::StartWorkers() {
  if (started_) return {};
  // A signal handler would run on the small stack of some kernel's thread.
  sigset_t all, old;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &old) != 0) {
    return {ErrorCode::kInternal, "cannot block signals for the worker threads"};
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
    return {ErrorCode::kResourceExhausted,
            "cannot start a worker thread: raise the limit of threads"};
  }
  pthread_atfork(nullptr, nullptr, [] { g_forked->store(true, std::memory_order_relaxed); });
  started_ = true;
  return {};
}

Result Scheduler::CheckCaller(StreamState* stream) {
  if (stream == nullptr) {
    return {ErrorCode::kFailedPrecondition,
            "launch on a stream that was not created or was moved from"};
  }
  if (t_current.in_kernel != 0) {
    return {ErrorCode::kFailedPrecondition, "launch from inside a kernel: only the host launches"};
  }
  if (forked()) {
    return {ErrorCode::kFailedPrecondition,
            "launch in a forked child: launch in the parent, or exec"};
  }
  return {};
}

bool Scheduler::Capturing(StreamState* stream) {
  return stream->capture_ != nullptr && !stream->capture_->ended;
}

Result Scheduler::Submit(const LaunchConfig& config, StreamState* stream,
                         std::shared_ptr<const Work> work) {
  if (Result result = CheckCaller(stream); !result.ok()) return result;
  if (config.grid == 0)
    return {ErrorCode::kInvalidArgument, "launch of 0 blocks: grid is 1 or more"};
  if (config.block == 0)
    return {ErrorCode::kInvalidArgument, "launch of 0 threads: block is 1 to 1,024"};
  if (config.block > kMaxBlockThreads) {
    return {ErrorCode::kInvalidArgument, "launch of too many threads: block is 1 to 1,024"};
  }
  if (config.shared_bytes > Traits::kMaxDynamicSharedBytes) {
    return {ErrorCode::kInvalidArgument,
            "launch with too much shared memory: at most 163,840 bytes"};
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
  stream->queue_.push_back(std::move(operation));
  if (stream->queue_.size() == 1) Enqueue(stream->queue_.front().get());
  return {};
}

Result Scheduler::BeginCapture(StreamState* stream) {
  if (Result result = CheckCaller(stream); !result.ok()) return result;
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  if (Capturing(stream)) {
    return {ErrorCode::kFailedPrecondition, "begin of a capture on a stream that is capturing"};
  }
  stream->capture_ = std::make_shared<Capture>();
  stream->capture_->origin = stream;
  return {};
}

Result Scheduler::EndCapture(StreamState* stream, std::shared_ptr<const Capture>* out) {
  if (Result result = CheckCaller(stream); !result.ok()) return result;
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  if (!Capturing(stream) || stream->capture_->origin != stream) {
    return {ErrorCode::kFailedPrecondition, "end of a capture that did not begin on this stream"};
  }
  stream->capture_->ended = true;
  *out = std::move(stream->capture_);
  return {};
}

Result Scheduler::Replay(const Capture& graph, StreamState* stream) {
  if (Result result = CheckCaller(stream); !result.ok()) return result;
  TsanIgnoreScope ignore;
  absl::MutexLock lock(&mu_);
  if (Capturing(stream)) {
    return {ErrorCode::kFailedPrecondition, "launch of a graph on a stream that is capturing"};
  }
  for (const Capture::Node& node : graph.nodes) {
    if (Result result = Append(node.config, stream, node.work); !result.ok()) return result;
  }
  return {};
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

Result Scheduler::Synchronize(StreamState* stream) {
  if (t_current.in_kernel != 0) {
    return {ErrorCode::kFailedPrecondition, "synchronize inside a kernel: only the host waits"};
  }
  if (forked()) {
    return {ErrorCode::kFailedPrecondition,
            "synchronize in a forked child: the parent has the workers"};
  }
  {
    TsanIgnoreScope ignore;
    absl::MutexLock lock(&mu_);
    if (Capturing(stream)) {
      return {ErrorCode::kFailedPrecondition,
              "synchronize a stream that is capturing: end the capture first"};
    }
    const uint64_t until = stream->submitted_;
    while (stream->finished_ < until) stream->changed_.Wait(&mu_);
  }
  TsanAcquire(&stream->sync_[0]);
  TsanAcquire(&stream->sync_[1]);
  return {};
}

bool Scheduler::Idle(StreamState* stream) {
  if (forked()) return true;
  {
    TsanIgnoreScope ignore;
    absl::MutexLock lock(&mu_);
    if (stream->finished_ != stream->submitted_) return false;
  }
  TsanAcquire(&stream->sync_[0]);
  TsanAcquire(&stream->sync_[1]);
  return true;
}

void Scheduler::Enqueue(Operation* operation) {
  pending_.push_back(operation);
  pending_count_.store(static_cast<uint32_t>(pending_.size()), std::memory_order_relaxed);
  const uint32_t blocks = operation->config.grid;
  for (uint32_t i = 0; i < blocks && i < idle_workers_; ++i) work_.Signal();
}

// Launches take turns, so that a large one does not hold up the others.
Scheduler::Taken Scheduler::TakeBlock() {
  if (pending_.empty()) return {};
  Operation* operation = pending_.front();
  pending_.pop_front();
  const Taken taken = {operation, operation->next_block++};
  if (operation->next_block < operation->config.grid) pending_.push_back(operation);
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
  while (pending_.empty()) work_.Wait(&mu_);
  --idle_workers_;
  return TakeBlock();
}

void Scheduler::BlockFinished(const Operation* operation) {
  std::unique_ptr<Operation> finished;  // destroyed after the lock is given back
  absl::MutexLock lock(&mu_);
  StreamState* stream = operation->stream;
  Operation* mine = stream->queue_.front().get();
  if (--mine->unfinished_blocks > 0) return;
  finished = std::move(stream->queue_.front());
  stream->queue_.pop_front();
  ++stream->finished_;
  if (!stream->queue_.empty()) Enqueue(stream->queue_.front().get());
  stream->changed_.SignalAll();  // the last look at the stream: its owner may destroy it now
}

Result Submit(const LaunchConfig& config, StreamState* stream, std::shared_ptr<const Work> work) {
  return Scheduler::Get().Submit(config, stream, std::move(work));
}

}  // namespace iris::backend::emu

namespace iris::backend {

Stream::Stream() = default;
Stream::Stream(Stream&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)), owned_(std::exchange(other.owned_, false)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  Stream old(std::move(*this));
  state_ = std::exchange(other.state_, nullptr);
  owned_ = std::exchange(other.owned_, false);
  return *this;
}

Stream::~Stream() {
  if (!owned_) return;
  // In a forked child its operations are the parent's, and nobody here can finish them.
  if (emu::Scheduler::Get().forked()) return;
  (void)emu::Scheduler::Get().Synchronize(state_);
  delete state_;
}

Result Stream::Create(Stream* out) {
  *out = Stream();
  out->state_ = new emu::StreamState;
  out->owned_ = true;
  return {};
}

Stream Stream::Borrow(void* native) {
  Stream stream;
  stream.state_ = static_cast<emu::StreamState*>(native);
  return stream;
}

Result Stream::Synchronize() {
  if (state_ == nullptr) {
    return {ErrorCode::kFailedPrecondition,
            "synchronize a stream that was not created or was moved from"};
  }
  return emu::Scheduler::Get().Synchronize(state_);
}

bool Stream::Idle() { return state_ == nullptr || emu::Scheduler::Get().Idle(state_); }

uint32_t MultiprocessorCount() { return emu::Scheduler::Get().worker_count(); }

uint64_t ClockNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace iris::backend
