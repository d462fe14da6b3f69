// The table of the backend that this is compiled for.
#include "client/backend/operations.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "iris/backend/select.h"
#include "iris/collective/collective.h"
#include "iris/collective/whole_lines.h"
#include "iris/fill/fill.h"
#include "iris/moe/moe.h"
#include "iris/nodes/copies.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"
#include "proto/wire/version.h"

namespace iris::backend {
namespace {

// Runs after a copy on the stream: a reader that acquires the word sees the copied bytes.
IRIS_KERNEL void ChangeWord(uint64_t* word, uint64_t value, SignalOp op) {
  if (op == SignalOp::kSet) {
    Store<Scope::kSystem, Order::kRelease>(word, value);
  } else {
    (void)FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelease>(word, value);
  }
}

constexpr Result kNoMemory = {StatusCode::kResourceExhausted, "no host memory"};

// Makes a new T by `make`. A failure leaves no object.
template <typename T, typename Make>
Result MakeNew(T** out, Make make) {
  T* const made = new (std::nothrow) T();
  if (made == nullptr) return kNoMemory;
  const Result result = make(made);
  if (!result.ok()) {
    delete made;
    return result;
  }
  *out = made;
  return {};
}

Result NewStream(Stream** out) {
  return MakeNew(out, [](Stream* stream) { return Stream::Create(stream); });
}

Stream* BorrowStream(void* native) { return new (std::nothrow) Stream(Stream::Borrow(native)); }

Result NewGraph(Stream& stream, Graph** out) {
  return MakeNew(out, [&](Graph* graph) { return EndCapture(stream, graph); });
}

Result NewEvent(Event** out) {
  return MakeNew(out, [](Event* event) { return Event::Create(event); });
}

Result SignalAfter(uint64_t* word, uint64_t value, SignalOp op, Stream& stream) {
  return Launch({1, 1}, stream, ChangeWord, word, value, op);
}

Result PrepareSignals() {
  const Result result = PrepareKernel(ChangeWord);
  return result.ok() ? ccl::PrepareNodesCopies() : result;
}

// The host's and the kernel's words, each written by one of them.
struct ClockWords {
  uint64_t asked;
  uint64_t answered;
  uint64_t device_ns;
};
constexpr uint32_t kClockAnswers = 64;
constexpr uint64_t kClockTimeoutNs = 5ull * 1000 * 1000 * 1000;

IRIS_KERNEL void AnswerClock(ClockWords* words) {
  const uint64_t begun = ClockNanoseconds();
  for (uint64_t k = 1; k <= kClockAnswers; ++k) {
    while (Load<Scope::kSystem, Order::kAcquire>(&words->asked) < k) {
      Pause();
      if (ClockNanoseconds() - begun > kClockTimeoutNs) return;
    }
    Store<Scope::kSystem, Order::kRelaxed>(&words->device_ns, ClockNanoseconds());
    Store<Scope::kSystem, Order::kRelease>(&words->answered, k);
  }
}

// Asks the kernel, which runs or is going to run. Returns true if it has answered each time.
bool AskClock(ClockWords* words, ClockSample* best) {
  const uint64_t begun = HostClockNanoseconds();
  best->error_ns = ~uint64_t{0};
  for (uint64_t k = 1; k <= kClockAnswers; ++k) {
    const uint64_t asked = HostClockNanoseconds();
    __atomic_store_n(&words->asked, k, __ATOMIC_RELEASE);
    uint64_t now = asked;
    while (__atomic_load_n(&words->answered, __ATOMIC_ACQUIRE) < k) {
      now = HostClockNanoseconds();
      if (now - begun > kClockTimeoutNs) return false;
    }
    now = HostClockNanoseconds();
    if ((now - asked) / 2 >= best->error_ns) continue;
    best->device_ns = __atomic_load_n(&words->device_ns, __ATOMIC_RELAXED);
    best->host_ns = asked + (now - asked) / 2;
    best->error_ns = (now - asked) / 2 + 1;
  }
  return true;
}

// Words for one question at a time. Allocating and freeing memory of the host may wait for all that
// a device does, so that they are kept for the next question. A question that a busy device has not
// answered keeps its words and its stream until it has.
struct ClockQuestion {
  ClockWords* words = nullptr;
  Stream* stream = nullptr;
};
constexpr size_t kClockQuestionsMax = 8;  // that are not answered

class ClockQuestions {
 public:
  static ClockQuestions& Get() {
    static ClockQuestions* const all = new ClockQuestions();
    return *all;
  }

  Result Take(ClockQuestion* out) {
    std::lock_guard<std::mutex> lock(mu_);
    for (size_t k = 0; k < unanswered_.size();) {
      if (!Ended(unanswered_[k])) {
        ++k;
        continue;
      }
      delete unanswered_[k].stream;
      free_.push_back(unanswered_[k].words);
      unanswered_.erase(unanswered_.begin() + static_cast<std::ptrdiff_t>(k));
    }
    if (unanswered_.size() >= kClockQuestionsMax) return kBusy;
    if (free_.empty()) {
      out->words = static_cast<ClockWords*>(MallocHost(sizeof(ClockWords)));
    } else {
      out->words = free_.back();
      free_.pop_back();
    }
    if (out->words == nullptr) return kNoMemory;
    *out->words = {};
    return NewStream(&out->stream);
  }

  void GiveBack(const ClockQuestion& question) {
    std::lock_guard<std::mutex> lock(mu_);
    if (question.stream != nullptr && !Ended(question)) {
      unanswered_.push_back(question);
      return;
    }
    delete question.stream;
    if (question.words != nullptr) free_.push_back(question.words);
  }

  static constexpr Result kBusy = {StatusCode::kDeadlineExceeded,
                                   "the device does not answer: it is busy"};

 private:
  static bool Ended(const ClockQuestion& question) { return question.stream->Idle(); }

  std::mutex mu_;
  std::vector<ClockWords*> free_;
  std::vector<ClockQuestion> unanswered_;
};

Result SampleClock(ClockSample* out) {
  if (Traits::kEmulated) {
    const uint64_t now = HostClockNanoseconds();
    *out = {now, now, 0};  // they are the same clock
    return {};
  }
  ClockQuestion question;
  Result result = ClockQuestions::Get().Take(&question);
  if (result.ok()) result = Launch({1, 1}, *question.stream, AnswerClock, question.words);
  if (result.ok() && AskClock(question.words, out)) {
    result = question.stream->Synchronize();  // the kernel has given its last answer
  } else if (result.ok()) {
    // If the kernel begins to run later, it ends at once.
    __atomic_store_n(&question.words->asked, kClockAnswers, __ATOMIC_RELEASE);
    result = ClockQuestions::kBusy;
  }
  ClockQuestions::Get().GiveBack(question);
  return result;
}

Result NewResources(const ops::Rule* rules, size_t n_rules, ops::Resources** out) {
  std::unique_ptr<ops::Resources> made;
  Result result = ops::CreateResources(&made);
  if (!result.ok()) return result;
  made->rules.assign(rules, rules + n_rules);
  *out = made.release();
  return result;
}

Result PrepareHelpers() {
  Result result = PrepareSignals();
  if (result.ok()) result = PrepareKernel(AnswerClock);
  if (result.ok()) result = fill::Prepare();
  return result;
}

BackendOperations MakeTable() {
  BackendOperations table = {};
  table.size_bytes = sizeof(BackendOperations);
  table.comm_bytes = sizeof(ccl::Comm);
  table.version = wire::kIrisVersion;
  table.name = BackendName();
  table.CreateStream = NewStream;
  table.BorrowStream = BorrowStream;
  table.DestroyStream = [](Stream* stream) { delete stream; };
  table.Synchronize = [](Stream& stream) { return stream.Synchronize(); };
  table.Idle = [](Stream& stream) { return stream.Idle(); };
  table.Native = [](const Stream& stream) { return stream.handle(); };
  table.CopyAsync = CopyAsync;
  table.CopyRowsAsync = CopyRowsAsync;
  table.FillAsync = FillAsync;
  table.BeginCapture = BeginCapture;
  table.EndCapture = NewGraph;
  table.LaunchGraph = LaunchGraph;
  table.DestroyGraph = [](Graph* graph) { delete graph; };
  table.CreateEvent = NewEvent;
  table.DestroyEvent = [](Event* event) { delete event; };
  table.Record = Record;
  table.WaitEvent = WaitEvent;
  table.ElapsedNanoseconds = ElapsedNanoseconds;
  table.MallocDevice = MallocDevice;
  table.FreeDevice = FreeDevice;
  table.MallocHost = MallocHost;
  table.FreeHost = FreeHost;
  table.SignalAfter = SignalAfter;
  table.CopyOnNodes = ccl::CopyOnNodes;
  table.PrepareSignals = PrepareSignals;
  table.KernelsReach = KernelsReach;
  table.PrepareHelpers = PrepareHelpers;
  table.MaxBlocksWhenShared = ccl::MaxBlocksWhenShared;
  table.WorkspaceBytes = ccl::WorkspaceBytes;
  table.CreateComm = ccl::CreateComm;
  table.ReleaseComm = ccl::ReleaseComm;
  table.SharesProcess = ccl::SharesProcess;
  table.CountQueues = CountQueues;
  table.ListShares = ccl::ListShares;
  table.PrepareWorkspace = ccl::PrepareWorkspace;
  table.Run = ccl::Run;
  table.Exchange = ccl::Exchange;
  table.CheckError = ccl::CheckError;
  table.ResetError = ccl::ResetError;
  table.CopyMissing = ccl::CopyMissing;
  table.HasVariant = ccl::HasVariant;
  table.LineSearchBytes = ccl::LineSearchBytes;
  table.SearchTornLines = ccl::SearchTornLines;
  table.MatmulWorkspaceBytes = ops::WorkspaceBytes;
  table.ChooseMatmul = ops::Choose;
  table.LaunchMatmul = ops::Launch;
  table.MatmulWorkspaceBytesOnNodes = ops::WorkspaceBytesOnNodes;
  table.ChooseMatmulOnNodes = ops::ChooseOnNodes;
  table.LaunchMatmulOnNodes = ops::LaunchOnNodes;
  table.PrepareMatmul = ops::Prepare;
  table.CreateResources = NewResources;
  table.DestroyResources = [](ops::Resources* resources) { delete resources; };
  table.CheckMatmul = ops::CheckProblem;
  table.MoeSizesOf = moe::SizesOf;
  table.MoeDispatch = moe::LaunchDispatch;
  table.MoeCombine = moe::LaunchCombine;
  table.MoeDispatchOnNodes = moe::LaunchDispatchOnNodes;
  table.MoeCombineOnNodes = moe::LaunchCombineOnNodes;
  table.PrepareMoe = moe::Prepare;
  table.ChooseNorm = norm::Choose;
  table.LaunchNorm = norm::Launch;
  table.ChooseNormOnNodes = norm::ChooseOnNodes;
  table.LaunchNormOnNodes = norm::LaunchOnNodes;
  table.PrepareNorm = norm::Prepare;
  table.MakeSequence = fill::MakeSequence;
  table.Fill = fill::Fill;
  table.SampleClock = SampleClock;
  table.NodesWorkspaceBytes = ccl::NodesWorkspaceBytes;
  table.CreateNodesComm = ccl::CreateNodesComm;
  table.ReleaseNodesComm = ccl::ReleaseNodesComm;
  table.RunOnNodes = ccl::RunOnNodes;
  table.ExchangeOnNodes = ccl::ExchangeOnNodes;
  table.CheckNodesError = ccl::CheckNodesError;
  table.ResetNodesError = ccl::ResetNodesError;
  table.QuietNodes = ccl::QuietNodes;
  table.PrepareNodesWorkspace = ccl::PrepareNodesWorkspace;
  return table;
}

}  // namespace
}  // namespace iris::backend

const iris::backend::BackendOperations* iris_backend_operations() {
  static const iris::backend::BackendOperations table = iris::backend::MakeTable();
  return &table;
}
