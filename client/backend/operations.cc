// The table of the backend that this is compiled for.
#include "client/backend/operations.h"

#include <new>
#include <utility>

#include "iris/backend/select.h"
#include "iris/collective/collective.h"
#include "iris/collective/rules.h"
#include "iris/fill/fill.h"
#include "proto/wire/version.h"

namespace iris::backend {
namespace {

// Behind a copy on the stream: whoever acquires the word sees the copied bytes.
IRIS_KERNEL void ChangeWord(uint64_t* word, uint64_t value, SignalOp op) {
  if (op == SignalOp::kSet) {
    Store<Scope::kSystem, Order::kRelease>(word, value);
  } else {
    (void)FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelease>(word, value);
  }
}

constexpr Result kNoMemory = {StatusCode::kResourceExhausted, "no host memory"};

// A new T, made by `make`; nothing is left of one that fails.
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

Result PrepareSignals() { return PrepareKernel(ChangeWord); }

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
  table.PrepareSignals = PrepareSignals;
  table.MaxBlocksWhenShared = ccl::MaxBlocksWhenShared;
  table.WorkspaceBytes = ccl::WorkspaceBytes;
  table.CreateComm = ccl::CreateComm;
  table.PrepareWorkspace = ccl::PrepareWorkspace;
  table.AllReduce = ccl::AllReduce;
  table.ReduceScatter = ccl::ReduceScatter;
  table.Reduce = ccl::Reduce;
  table.AllGather = ccl::AllGather;
  table.Gather = ccl::Gather;
  table.Scatter = ccl::Scatter;
  table.AllToAll = ccl::AllToAll;
  table.AllToAllV = ccl::AllToAllV;
  table.Broadcast = ccl::Broadcast;
  table.Send = ccl::Send;
  table.Recv = ccl::Recv;
  table.SendRecv = ccl::SendRecv;
  table.Exchange = ccl::Exchange;
  table.Barrier = ccl::Barrier;
  table.CheckError = ccl::CheckError;
  table.ResetError = ccl::ResetError;
  table.CopyMissing = ccl::CopyMissing;
  table.VariantName = ccl::VariantName;
  table.ReduceOpName = ccl::ReduceOpName;
  table.ParseRules = ccl::ParseRules;
  table.MakeSequence = fill::MakeSequence;
  table.Fill = fill::Fill;
  return table;
}

}  // namespace
}  // namespace iris::backend

const iris::backend::BackendOperations* iris_backend_operations() {
  static const iris::backend::BackendOperations table = iris::backend::MakeTable();
  return &table;
}
