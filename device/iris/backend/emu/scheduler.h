// Scheduler: streams, the queue of blocks that wait for a worker, and the workers. A process has
// one scheduler, which is never destroyed: its threads may outlive main. Thread-safe, by one lock.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "iris/backend/emu/backend.h"
#include "iris/backend/emu/block.h"

namespace iris::backend::emu {

// One launch (copies and fills are launches too).
struct Operation {
  LaunchConfig config;
  std::shared_ptr<const Work> work;
  StreamState* stream = nullptr;
  // For ThreadSanitizer: threads of the launch acquire `begin` and release `end`. The two addresses
  // alternate in a stream, so that two threads of one launch do not seem ordered.
  char* begin = nullptr;
  char* end = nullptr;
  char launched = 0;

  // Guarded by the scheduler's lock.
  uint32_t next_block = 0;
  uint32_t unfinished_blocks = 0;
};

// The work that is recorded while a stream is captured, and then is the graph, unchanged.
struct Capture {
  struct Node {
    LaunchConfig config;
    std::shared_ptr<const Work> work;
  };
  std::vector<Node> nodes;
  const StreamState* origin = nullptr;
  bool ended = false;
};

class StreamState {
 public:
  StreamState() = default;
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

 private:
  friend class Scheduler;
  // The scheduler's lock guards all of these.
  std::deque<std::unique_ptr<Operation>> queue_;  // the first one runs
  uint64_t submitted_ = 0;
  uint64_t finished_ = 0;
  absl::CondVar changed_;
  std::shared_ptr<Capture> capture_;  // of this stream, or of one for which it has waited
  char sync_[2];                      // addresses for ThreadSanitizer
};

inline StreamState* StateOf(const raw::StreamHandle& stream) {
  return static_cast<StreamState*>(stream.native);
}

class Scheduler {
 public:
  static Scheduler& Get();

  Result Submit(const LaunchConfig& config, StreamState* stream, std::shared_ptr<const Work> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  Result BeginCapture(StreamState* stream) ABSL_LOCKS_EXCLUDED(mu_);
  Result EndCapture(StreamState* stream, std::shared_ptr<const Capture>* out)
      ABSL_LOCKS_EXCLUDED(mu_);
  Result Replay(const Capture& graph, StreamState* stream) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsCapturing(StreamState* stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the capture of `stream`, or null.
  std::shared_ptr<Capture> CaptureOf(StreamState* stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes `stream` a branch of `capture`. Returns false if `stream` belongs to another capture, or
  // if `capture` has ended.
  bool JoinCapture(StreamState* stream, const std::shared_ptr<Capture>& capture)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Synchronize(StreamState* stream) ABSL_LOCKS_EXCLUDED(mu_);
  bool Idle(StreamState* stream) ABSL_LOCKS_EXCLUDED(mu_);

  uint32_t worker_count() const { return worker_count_; }
  // Returns the most blocks that run at once; 0: any number.
  uint32_t resident_blocks() const { return resident_blocks_; }
  // Waits until no operation runs or is queued.
  void SynchronizeAll() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Taken {
    const Operation* operation = nullptr;
    uint32_t block_index = 0;
  };
  class Worker;

  Scheduler();
  Result Append(const LaunchConfig& config, StreamState* stream, std::shared_ptr<const Work> work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static bool Capturing(StreamState* stream);
  Result StartWorkers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Taken WaitForBlock() ABSL_LOCKS_EXCLUDED(mu_);
  Taken TryTakeBlock() ABSL_LOCKS_EXCLUDED(mu_);
  Taken TakeBlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return resident_blocks_ == 0 || running_blocks_ < resident_blocks_;
  }
  void BlockFinished(const Operation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void Enqueue(Operation* operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void* WorkerMain(void* scheduler);

  const uint32_t worker_count_;
  const uint32_t resident_blocks_;
  std::atomic<uint32_t> pending_count_{0};  // size of pending_, to read without the lock

  absl::Mutex mu_;
  absl::CondVar work_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t idle_workers_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t running_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unfinished_operations_ ABSL_GUARDED_BY(mu_) = 0;
  absl::CondVar all_finished_ ABSL_GUARDED_BY(mu_);
  std::deque<Operation*> pending_ ABSL_GUARDED_BY(mu_);  // with blocks that no worker has taken
};

}  // namespace iris::backend::emu
