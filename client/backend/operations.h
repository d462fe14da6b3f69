// BackendOperations: the functions of a backend that the host library calls. A backend is a
// separate library (libiris_emu.so, ...), which the host library opens if irisd has that backend,
// or it is linked into the program; see load.h.
//
// Constant, and as thread-safe as the listed functions (iris/backend/host.h,
// iris/collective/collective.h). The host library and its backends are built together, and check
// this by `version` and the sizes.
#pragma once

#include <cstdint>

#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"
#include "iris/collective/collective.h"
#include "iris/collective/whole_lines.h"
#include "iris/fill/fill.h"
#include "iris/moe/moe.h"
#include "iris/nodes/copies.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"
#include "iris/trace_area.h"
#include "iris/types.h"

namespace iris::backend {

struct BackendOperations {
  uint64_t size_bytes;  // of this struct
  uint64_t comm_bytes;  // of ccl::Comm
  const char* version;  // of Iris
  const char* name;     // backend::BackendName()

  // The backend makes and destroys streams; the host library only passes them on.
  Result (*CreateStream)(Stream** out);
  Stream* (*BorrowStream)(void* native);
  void (*DestroyStream)(Stream* stream);
  Result (*Synchronize)(Stream& stream);
  bool (*Idle)(Stream& stream);
  raw::StreamHandle (*Native)(const Stream& stream);
  Result (*CopyAsync)(void* to, const void* from, uint64_t bytes, Stream& stream);
  Result (*CopyRowsAsync)(void* to, const void* from, const RowsToCopy& rows, Stream& stream);
  Result (*FillAsync)(void* to, uint8_t value, uint64_t bytes, Stream& stream);

  Result (*BeginCapture)(Stream& stream);
  Result (*EndCapture)(Stream& stream, Graph** out);
  Result (*LaunchGraph)(Graph& graph, Stream& stream);
  void (*DestroyGraph)(Graph* graph);
  Result (*CreateEvent)(Event** out);
  void (*DestroyEvent)(Event* event);
  Result (*Record)(Event& event, Stream& stream);
  Result (*WaitEvent)(Stream& stream, const Event& event);
  Result (*ElapsedNanoseconds)(const Event& from, const Event& to, uint64_t* out);

  void* (*MallocDevice)(uint64_t bytes);
  void (*FreeDevice)(void* p);
  void* (*MallocHost)(uint64_t bytes);
  void (*FreeHost)(void* p);

  // Changes the word when the stream reaches this point, and releases the stream's earlier writes.
  Result (*SignalAfter)(uint64_t* word, uint64_t value, SignalOp op, Stream& stream);
  // A copy between this rank and one of another node: the function of this name.
  Result (*CopyOnNodes)(const ccl::NodesCopy& copy, Stream& stream);
  // Loads the kernels of the two.
  Result (*PrepareSignals)();
  bool (*KernelsReach)(const void* p);

  // These are the functions of the same names.
  uint32_t (*MaxBlocksWhenShared)(uint32_t ranks_per_device, uint32_t multiprocessors);
  uint64_t (*WorkspaceBytes)(uint32_t n_members, const ccl::Config& config);
  Result (*CreateComm)(const ccl::CommOptions& options, ccl::Comm* out);
  void (*ReleaseComm)(ccl::Comm* comm);
  bool (*SharesProcess)(const ccl::Comm& comm);
  StreamQueues (*CountQueues)();
  uint32_t (*ListShares)(ccl::ShareInfo* out, uint32_t capacity);
  Result (*PrepareWorkspace)(const ccl::Comm& comm, Stream& stream);
  Result (*Run)(const ccl::Comm& comm, const ccl::Call& call, Stream& stream);
  Result (*Exchange)(const ccl::Comm& comm, const ccl::Message* messages, uint32_t n_messages,
                     Stream& stream);
  Result (*CheckError)(const ccl::Comm& comm, ccl::ErrorInfo* info);
  void (*ResetError)(const ccl::Comm& comm);
  Result (*CopyMissing)(const ccl::Comm& comm, uint64_t* mask, Stream& stream);
  bool (*HasVariant)(ccl::Operation operation, ccl::Variant variant);

  // The functions of these names, for iris-ctl doctor.
  uint64_t (*LineSearchBytes)(uint32_t n_members);
  Result (*SearchTornLines)(const ccl::LineSearch& search, Stream& stream);

  // GEMMs: ops::WorkspaceBytes, Choose, Launch and Prepare; the functions of the names that end in
  // OnNodes.
  uint64_t (*MatmulWorkspaceBytes)(uint32_t n_members, const ccl::Config& config,
                                   const ops::Problem& problem, const ops::Rule* rules,
                                   size_t n_rules);
  Result (*ChooseMatmul)(const ccl::Comm& comm, const ops::Matmul& call, ops::LaunchPlan* out);
  Result (*LaunchMatmul)(const ccl::Comm& comm, const ops::Matmul& call, Stream& stream,
                         ops::LaunchPlan* ran);
  uint64_t (*MatmulWorkspaceBytesOnNodes)(uint32_t n_members, const ops::Problem& problem);
  Result (*ChooseMatmulOnNodes)(const ccl::NodesComm& comm, const ops::Matmul& call,
                                ops::LaunchPlan* out);
  Result (*LaunchMatmulOnNodes)(const ccl::NodesComm& comm, const ops::Matmul& call, Stream& stream,
                                ops::LaunchPlan* ran);
  Result (*PrepareMatmul)();
  Result (*CreateResources)(const ops::Rule* rules, size_t n_rules, ops::Resources** out);
  void (*DestroyResources)(ops::Resources* resources);
  Result (*CheckMatmul)(const ops::Problem& problem);

  // MoE: moe::SizesOf, LaunchDispatch, LaunchCombine and Prepare; the functions of the names that
  // end in OnNodes.
  Result (*MoeSizesOf)(uint32_t n_members, uint32_t index, const moe::Config& config,
                       moe::Sizes* out, bool on_nodes);
  Result (*MoeDispatch)(const ccl::Comm& comm, const moe::Config& config, void* workspace,
                        const moe::Dispatch& call, Stream& stream);
  Result (*MoeCombine)(const ccl::Comm& comm, const moe::Config& config, void* workspace,
                       const moe::Combine& call, Stream& stream);
  Result (*MoeDispatchOnNodes)(const ccl::NodesComm& comm, const moe::Config& config,
                               void* workspace, const moe::Dispatch& call, Stream& stream);
  Result (*MoeCombineOnNodes)(const ccl::NodesComm& comm, const moe::Config& config,
                              void* workspace, const moe::Combine& call, Stream& stream);
  Result (*PrepareMoe)();

  // Norms of sums: norm::Choose, Launch and Prepare; the functions of the names that end in
  // OnNodes.
  Result (*ChooseNorm)(const ccl::Comm& comm, const norm::Problem& problem, norm::Plan* out);
  Result (*LaunchNorm)(const ccl::Comm& comm, const norm::Norm& call, Stream& stream);
  Result (*ChooseNormOnNodes)(const ccl::NodesComm& comm, const norm::Problem& problem,
                              norm::Plan* out);
  Result (*LaunchNormOnNodes)(const ccl::NodesComm& comm, const norm::Norm& call, Stream& stream);
  Result (*PrepareNorm)();

  // The values of tensors.
  Result (*MakeSequence)(const fill::Description& from, fill::Sequence* out);
  Result (*Fill)(const fill::Sequence& sequence, uint64_t first, const fill::Place& place,
                 Stream& stream);
  // Loads the other kernels of the host library: those of fills, of signals and of the clock.
  Result (*PrepareHelpers)();
  // Compares the clock of the current device with the host's. A kernel answers the host several
  // times, and the best answer counts. kDeadlineExceeded if the device was busy for seconds.
  Result (*SampleClock)(ClockSample* out);

  // Teams with ranks on several nodes: the functions of these names in iris/nodes/nodes.h.
  uint64_t (*NodesWorkspaceBytes)(uint32_t size, uint32_t n_nodes, const ccl::NodesConfig& config);
  Result (*CreateNodesComm)(const ccl::NodesOptions& options, Stream& stream, ccl::NodesComm* out);
  void (*ReleaseNodesComm)(ccl::NodesComm* comm);
  Result (*RunOnNodes)(const ccl::NodesComm& comm, const ccl::Call& call, Stream& stream);
  Result (*ExchangeOnNodes)(const ccl::NodesComm& comm, const ccl::Message* messages,
                            uint32_t n_messages, Stream& stream);
  Result (*CheckNodesError)(const ccl::NodesComm& comm, ccl::NodesErrorInfo* info);
  void (*ResetNodesError)(const ccl::NodesComm& comm);
  Result (*QuietNodes)(const ccl::NodesComm& comm, Stream& stream);
  Result (*PrepareNodesWorkspace)(const ccl::NodesComm& comm, Stream& stream);
};

}  // namespace iris::backend

// The function that a backend's library exports.
extern "C" __attribute__((visibility("default"))) const iris::backend::BackendOperations*
iris_backend_operations();
