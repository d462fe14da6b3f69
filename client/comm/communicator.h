// Communicator: the implementation of iris::ccl::Communicator. It allocates the workspace, launches
// the operations of a backend on a stream, and reports the failed operation, the missing rank and
// its process in a status.
//
// iris/collective/collective.h says what the operations do, and which memory they take. If the team
// has ranks on several nodes, iris/nodes/nodes.h adds to that; variants of GEMMs and norms other
// than kPair are then kUnimplemented. One call at a time per Communicator. Borrows the context and
// the backend's table.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/backend/operations.h"
#include "client/comm/collective_log.h"
#include "client/comm/message_group.h"
#include "client/comm/rules.h"
#include "client/context/host_context.h"
#include "iris/collective/collective.h"
#include "iris/context_types.h"
#include "iris/moe/moe.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"

namespace iris::internal {

struct CommunicatorOptions {
  ccl::Config config;  // the same on all members. IRIS_CCL_CHECK=1 in the environment: check_calls
  std::string name;    // of the workspace, as iris-ctl shows it; unique in the job, or empty
  uint64_t matmul_bytes = 0;  // of workspace for GEMMs; see MatmulBytes
  // For teams with ranks on several nodes. Those of the team's first rank hold for all ranks.
  std::vector<NodesRule> nodes_rules;
  std::vector<ops::Rule> gemm_rules;  // for GEMMs whose variant is kAuto; the same on all ranks
};

class Communicator {
 public:
  // Makes a communicator. Collective over the team. Borrows the context, which must outlive it.
  // kInvalidArgument for a bad config. kFailedPrecondition if this rank is not in the team. Other
  // errors are those of ccl::CreateComm, HostContext::Allocate and Barrier.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(
      HostContext& context, const backend::BackendOperations& backend, const Team& team,
      const CommunicatorOptions& options = {});

  // Computes CommunicatorOptions::matmul_bytes for a problem on n_members ranks, which may be on
  // several nodes if the job is; for kAuto, it suffices for the variants chosen with and without
  // `rules`. kInvalidArgument says what is wrong.
  static absl::StatusOr<uint64_t> MatmulBytes(const HostContext& context,
                                              const backend::BackendOperations& backend,
                                              uint32_t n_members, const ccl::Config& config,
                                              const ops::Problem& problem,
                                              const std::vector<ops::Rule>& rules = {});

  // Frees nothing in the heap: freeing the workspace is collective, and a destructor that waits for
  // peers would hang on an error path. Without Destroy the workspace stays until the job ends.
  // Synchronize streams first.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Frees the workspace. Collective over the team. Synchronize streams first. Every later call
  // fails.
  absl::Status Destroy();

  const Team& team() const { return team_; }
  // Puts a collective on the stream and returns. Errors of the arguments are returned at once,
  // others by Check or Synchronize. `call.root` is a world rank.
  absl::Status Run(ccl::Call call, backend::Stream& stream);
  // Puts messages on the stream, all at once. `peer_index` is a world rank, and `what` names the
  // call in errors. Within a group, a single message is kept for GroupEnd.
  absl::Status Exchange(const char* what, absl::Span<ccl::Message> messages,
                        backend::Stream& stream);

  // Single messages between GroupStart and GroupEnd are kept. GroupEnd puts them on its stream, all
  // at once, if none failed; otherwise it returns the first error and puts nothing on the stream.
  // Other operations fail. The stream of a kept message is ignored: the caller gives all messages
  // the same one. Check and Destroy may be called; Destroy drops the group.
  absl::Status GroupStart();
  // A null stream means that nothing was kept, or that the group is ended for its error.
  absl::Status GroupEnd(backend::Stream* stream);
  bool in_group() const { return group_.open(); }
  // Records an error of the group that the caller found, and returns it.
  absl::Status GroupFailed(absl::Status status) { return group_.Fail(std::move(status)); }

  // Puts a GEMM on the stream. Errors of the arguments name the problem.
  absl::Status Matmul(const ops::Matmul& call, backend::Stream& stream);
  // Says how Matmul runs this call, whose matrices may be null: see ops::Choose.
  absl::StatusOr<ops::LaunchPlan> ChooseMatmul(const ops::Matmul& call) const;

  // MoE operations; see iris/moe/moe.h. Errors of the arguments name the config. The sizes suffice
  // for any team of n_members; if the job is on several nodes, also for one that is.
  static absl::StatusOr<moe::Sizes> MoeSizes(const HostContext& context,
                                             const backend::BackendOperations& backend,
                                             uint32_t n_members, uint32_t index,
                                             const moe::Config& config);
  absl::Status PrepareMoe();
  absl::Status MoeDispatch(const moe::Config& config, void* workspace, const moe::Dispatch& call,
                           backend::Stream& stream);
  absl::Status MoeCombine(const moe::Config& config, void* workspace, const moe::Combine& call,
                          backend::Stream& stream);
  // Puts a norm of sums on the stream. Errors of the arguments name the problem.
  absl::Status Norm(const norm::Norm& call, backend::Stream& stream);
  // Says how Norm runs this problem.
  absl::StatusOr<norm::Plan> ChooseNorm(const norm::Problem& problem) const;

  // Returns the first failure among the operations that the streams have run, with the operation
  // and its number. kDeadlineExceeded names the missing ranks, kAborted rank and pid of a dead one.
  // On all ranks, kInvalidArgument names a rank whose call differs from most others', with both
  // calls in full, and kOutOfRange a rank's token that chose no valid expert. The failure stays
  // until Reset.
  absl::Status Check() const;
  // Returns a word in host memory that kernels can read. It is not 0 once an operation has failed.
  const uint64_t* error_word() const {
    return nodes_report_ != nullptr ? &nodes_report_->word : &report_->word;
  }
  // Waits for the stream, then returns Check().
  absl::Status Synchronize(backend::Stream& stream);

  // Makes a Communicator that failed usable again. Collective over the team. All ranks synchronize
  // their streams first.
  absl::Status Reset();

 private:
  Communicator(HostContext& context, const backend::BackendOperations& backend, Team team)
      : context_(context), backend_(backend), team_(std::move(team)) {}
  // Returns kFailedPrecondition after Destroy or in a forked child.
  absl::Status Usable() const;
  // Converts a world rank to its index in the team. kInvalidArgument if it is not in the team.
  absl::Status ToIndex(uint32_t* rank) const;
  template <typename Start>
  absl::Status PutMoe(ccl::Operation what, const moe::Config& config, void* workspace,
                      uint32_t tokens, DType type, Start start);
  // Zeroes this rank's workspace, then waits for the other ranks.
  absl::Status Prepare();
  // Runs work(stream) on a stream of its own and waits for it.
  template <typename Work>
  absl::Status OnStream(const char* what, Work work) const;

  // Returns true if the team has ranks on several nodes.
  bool spans_nodes() const { return !nodes_of_.empty(); }
  // Makes the part of the communicator between nodes, over comm_.
  absl::Status CreateNodes(uint64_t offset_bytes, const ccl::NodesConfig& config,
                           const std::string& name);
  absl::Status CheckNodes() const;
  // Puts checked messages on the stream.
  absl::Status PutMessages(const char* what, absl::Span<const ccl::Message> messages,
                           backend::Stream& stream);

  HostContext& context_;
  const backend::BackendOperations& backend_;
  const Team team_;
  Allocation workspace_;
  ccl::Comm comm_;
  ccl::ErrorReport* report_ = nullptr;
  // If the team has ranks on several nodes, comm_ is over those of this node.
  std::vector<uint32_t> nodes_of_;  // by index in the team: the index of the rank's node
  ccl::NodesComm nodes_;
  ccl::NodesReport* nodes_report_ = nullptr;
  ops::Resources* products_ = nullptr;  // with matmul_bytes
  CollectiveLog log_;
  bool destroyed_ = false;
  MessageGroup group_;
};

}  // namespace iris::internal
