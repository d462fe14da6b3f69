#include "client/comm/communicator.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/backend/device_status.h"
#include "client/base/annotate.h"
#include "client/base/environment.h"
#include "client/base/log.h"
#include "client/comm/communicator_text.h"
#include "client/comm/mismatch_text.h"
#include "device/base/bytes.h"
#include "iris/status.h"
#include "iris/team_members.h"

namespace iris::internal {

using ccl::Comm;
using ccl::CommOptions;
using ccl::Config;
using ccl::ErrorInfo;
using ccl::ErrorReport;

namespace {

// Returns the config of a communicator of this process for the config that its caller wants.
absl::StatusOr<Config> ConfigOf(const HostContext& context,
                                const backend::BackendOperations& backend, Config config) {
  const auto switches = ReadSwitches(Environment);
  if (!switches.ok()) return switches.status();
  if (switches->ccl_check.value_or(false)) config.check_calls = true;
  if (!switches->ccl_lines.value_or(true)) config.without_lines = true;
  if (config.max_blocks == 0) {
    config.max_blocks = backend.MaxBlocksWhenShared(context.ranks_per_device(), 0);
    // Blocks that were asked for explicitly are not limited.
    if (config.max_blocks != 0) {
      config.max_blocks = std::max({config.max_blocks, config.blocks, config.packet_blocks});
    }
  }
  return config;
}

// Returns, for each rank, the index of its node among those of the ranks, in their order. Nodes
// that map each other count as one.
std::vector<uint32_t> NodesOf(const HostContext& context, absl::Span<const uint32_t> ranks) {
  std::map<uint32_t, uint32_t> indexes;  // by first rank
  std::vector<uint32_t> nodes;
  for (const uint32_t rank : ranks) {
    uint32_t first = 0;
    for (const Node& node : context.job().nodes) {
      if (node.first_rank <= rank && !node.with_previous) first = node.first_rank;
    }
    nodes.push_back(
        indexes.try_emplace(first, static_cast<uint32_t>(indexes.size())).first->second);
  }
  return nodes;
}

// Returns the team's ranks whose heaps are mapped. Only collectives use it: it has no area for
// barriers.
DeviceTeam MappedTeam(const HostContext& context, const Team& team) {
  DeviceTeam mapped;
  mapped.id = team.id;
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : team.ranks) {
    if (rank == context.rank()) mapped.index = static_cast<uint32_t>(ranks.size());
    if (context.Maps(rank)) ranks.push_back(rank);
  }
  mapped.size = static_cast<uint32_t>(ranks.size());
  SetMembers(ranks.data(), context.first_mapped(), context.n_mapped(), &mapped);
  return mapped;
}

// Returns the largest size up to `wanted` with which `n` parts of a workspace take at most 1/16 of
// the heap.
uint64_t PartBytes(uint64_t wanted_bytes, uint64_t heap_bytes, uint64_t n) {
  return std::clamp(heap_bytes / 16 / n / 256 * 256, uint64_t{4 << 10}, wanted_bytes);
}

// Returns the config between nodes, the same on all ranks: that of the rules of the team's first
// rank. Ranks with different ones would cut calls differently and mix up their data.
absl::StatusOr<ccl::NodesConfig> AgreeOnNodes(HostContext& context,
                                              const backend::BackendOperations& backend,
                                              const Team& team, uint32_t n_nodes,
                                              const std::vector<NodesRule>& rules) {
  const uint32_t first = team.ranks.front();
  IRIS_ASSIGN_OR_RETURN(
      const std::string text,
      context.teams().Broadcast(FormatNodesConfig(NodesConfigOf(rules, n_nodes)), first, team));
  const absl::StatusOr<Rules> agreed = ParseRules(text, backend.HasVariant);
  if (!agreed.ok()) {
    return Annotate(agreed.status(), absl::StrCat("the settings between nodes of rank ", first));
  }
  ccl::NodesConfig config = NodesConfigOf(agreed->nodes, n_nodes);
  const uint64_t heap_bytes = context.job().heap_bytes;
  // TCP carries pieces of 1 MiB best.
  if (config.piece_bytes == 0) config.piece_bytes = 1 << 20;
  if (config.leader_bytes == 0) config.leader_bytes = 128 << 10;
  config.piece_bytes = PartBytes(config.piece_bytes, heap_bytes, NodesPieces(n_nodes));
  config.leader_bytes = PartBytes(config.leader_bytes, heap_bytes, 2 * uint64_t{n_nodes} + 1);
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(
    HostContext& context, const backend::BackendOperations& backend, const Team& team,
    const CommunicatorOptions& options) {
  const std::string what = absl::StrCat("create a communicator of ", team.ranks.size(), " ranks");
  if (!team.member()) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": this rank is not one of them"));
  }
  std::unique_ptr<Communicator> made(new Communicator(context, backend, team));
  absl::StatusOr<Config> read = ConfigOf(context, backend, options.config);
  if (!read.ok()) return Annotate(read.status(), what);
  Config& config = *read;
  // The team of the kernels on mapped memory.
  DeviceTeam mapped = team.device;
  uint32_t most_mapped = mapped.size;
  uint32_t n_nodes = 1;
  if (team.device.step != DeviceTeam::kListed) {
    config.barriers_only = false;  // collectives of the nodes' leaders are part of a barrier
    made->nodes_of_ = NodesOf(context, team.ranks);
    mapped = MappedTeam(context, team);
    n_nodes = *std::max_element(made->nodes_of_.begin(), made->nodes_of_.end()) + 1;
    std::vector<uint32_t> sizes(n_nodes);
    for (const uint32_t node : made->nodes_of_) ++sizes[node];
    most_mapped = *std::max_element(sizes.begin(), sizes.end());
    if (most_mapped > kMaxTeamRanks || n_nodes > ccl::kMaxNodes) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " of ", n_nodes, " nodes, up to ", most_mapped, " on each: at most ",
                       kMaxTeamRanks, " ranks of each of ", ccl::kMaxNodes, " nodes are possible"));
    }
  }
  uint64_t bytes = backend.WorkspaceBytes(most_mapped, config);
  constexpr uint64_t kMaxMatmulBytes = uint64_t{1} << 46;
  if (bytes == 0 || options.matmul_bytes > kMaxMatmulBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": an option of the communicator is outside its limits"));
  }
  if (options.config.barriers_only && options.matmul_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": with barriers_only, matmul_bytes must be 0"));
  }
  bytes += options.matmul_bytes;
  const uint64_t nodes_offset_bytes = (bytes + ccl::kWorkspaceAlignmentBytes - 1) /
                                      ccl::kWorkspaceAlignmentBytes * ccl::kWorkspaceAlignmentBytes;
  ccl::NodesConfig nodes;
  if (made->spans_nodes()) {
    auto agreed = AgreeOnNodes(context, backend, team, n_nodes, options.nodes_rules);
    if (!agreed.ok()) return Annotate(agreed.status(), what);
    nodes = *agreed;
    const uint64_t nodes_bytes = backend.NodesWorkspaceBytes(team.device.size, n_nodes, nodes);
    if (nodes_bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": an option between nodes is outside its limits"));
    }
    bytes = nodes_offset_bytes + nodes_bytes;
  }
  auto workspace = context.teams().Allocate(
      {.bytes = bytes, .alignment_bytes = ccl::kWorkspaceAlignmentBytes, .name = options.name},
      team);
  if (!workspace.ok()) return Annotate(workspace.status(), what);
  made->workspace_ = *std::move(workspace);

  // From here on every rank continues to the barrier of Prepare, also after a failure, so that no
  // rank waits for nothing.
  made->report_ = static_cast<ErrorReport*>(backend.MallocHost(sizeof(ErrorReport)));
  absl::Status status;
  if (made->report_ == nullptr) {
    status = absl::ResourceExhaustedError(absl::StrCat(what, ": no host memory"));
  } else {
    *made->report_ = {};
    CommOptions comm;
    comm.context = context.device_context();
    comm.team = mapped;
    comm.workspace = made->workspace_.address;
    comm.workspace_bytes = backend.WorkspaceBytes(mapped.size, config) + options.matmul_bytes;
    comm.report = made->report_;
    comm.config = config;
    comm.name = options.name.c_str();
    if (options.matmul_bytes != 0) {
      const std::vector<ops::Rule>& rules = options.gemm_rules;
      status =
          FromDevice(backend.CreateResources(rules.data(), rules.size(), &made->products_), what);
    }
    comm.products = made->products_;
    if (status.ok()) {
      const Result result = backend.CreateComm(comm, &made->comm_);
      status = FromDevice(result, what);
      if (result.code == StatusCode::kResourceExhausted ||
          result.code == StatusCode::kDeadlineExceeded) {
        status = absl::Status(status.code(), absl::StrCat(status.message(), SharesText(backend)));
      }
    }
    if (status.ok() && made->spans_nodes()) {
      status = Annotate(made->CreateNodes(nodes_offset_bytes, nodes, options.name), what);
    }
    if (status.ok() && options.matmul_bytes != 0) {
      status = FromDevice(backend.PrepareMatmul(), what);
    }
    if (status.ok()) status = FromDevice(backend.PrepareNorm(), what);
    // Later launches of this rank must not wait for an operation of another rank of the process,
    // which may wait for this rank.
    if (status.ok()) status = FromDevice(backend.PrepareHelpers(), what);
  }
  if (status.ok()) {
    CollectiveLog::Communicator log = {.team_id = team.id,
                                       .n_members = team.device.size,
                                       .workspace_offset_bytes = made->comm_.workspace_offset_bytes,
                                       .finished_at = ccl::kWorkspaceFinishedAt,
                                       .waiting_at = ccl::kWorkspaceWaitingAt};
    if (made->spans_nodes()) {
      log.workspace_offset_bytes = made->nodes_.progress_offset_bytes;
      log.finished_at = ccl::kNodesFinishedAt;
      log.waiting_at = ccl::kNodesWaitingAt;
    }
    made->log_ = CollectiveLog(context.control_page(), log);
  }
  const absl::Status prepared = status.ok() ? made->Prepare() : context.teams().Barrier(team);
  if (status.ok()) status = Annotate(prepared, what);
  if (!status.ok()) return status;
  if (const std::string queues = QueuesText(backend); !queues.empty()) log::Warning(queues);
  return made;
}

Communicator::~Communicator() {
  if (!context_.OwnProcess()) log_.Forget();
  if (context_.OwnProcess()) {
    backend_.ReleaseNodesComm(&nodes_);
    backend_.ReleaseComm(&comm_);
  }
  if (products_ != nullptr) backend_.DestroyResources(products_);
  if (report_ != nullptr) backend_.FreeHost(report_);
  if (nodes_report_ != nullptr) backend_.FreeHost(nodes_report_);
}

template <typename Work>
absl::Status Communicator::OnStream(const char* what, Work work) const {
  backend::Stream* stream = nullptr;
  absl::Status status = FromDevice(backend_.CreateStream(&stream), "make a stream");
  if (status.ok()) status = FromDevice(work(*stream), what);
  if (status.ok()) status = FromDevice(backend_.Synchronize(*stream), what);
  if (stream != nullptr) backend_.DestroyStream(stream);
  return status;
}

absl::Status Communicator::CreateNodes(uint64_t offset_bytes, const ccl::NodesConfig& config,
                                       const std::string& name) {
  nodes_report_ = static_cast<ccl::NodesReport*>(backend_.MallocHost(sizeof(ccl::NodesReport)));
  if (nodes_report_ == nullptr) return absl::ResourceExhaustedError("no host memory");
  *nodes_report_ = {};
  ccl::NodesOptions options;
  options.context = context_.device_context();
  options.size = team_.device.size;
  options.index = team_.device.index;
  options.ranks = team_.ranks.data();
  options.nodes = nodes_of_.data();
  options.local = comm_;
  options.heap_bytes = context_.heap_bytes();
  options.config = config;
  options.workspace = static_cast<uint8_t*>(workspace_.address) + offset_bytes;
  options.workspace_bytes = workspace_.bytes - offset_bytes;
  options.report = nodes_report_;
  options.name = name.c_str();
  return OnStream("write the workspace between nodes", [&](backend::Stream& stream) {
    return backend_.CreateNodesComm(options, stream, &nodes_);
  });
}

absl::Status Communicator::Prepare() {
  const absl::Status status = OnStream("clear the workspace", [this](backend::Stream& stream) {
    Result result = backend_.PrepareWorkspace(comm_, stream);
    if (result.ok() && spans_nodes()) result = backend_.PrepareNodesWorkspace(nodes_, stream);
    return result;
  });
  log_.Clear();
  const absl::Status met = context_.teams().Barrier(team_);
  return status.ok() ? met : status;
}

absl::Status Communicator::Usable() const {
  if (destroyed_) return absl::FailedPreconditionError("this communicator was destroyed");
  if (group_.open()) {
    return absl::FailedPreconditionError(
        "a group of this communicator is open, and takes send and recv alone: end it first");
  }
  return absl::OkStatus();
}

absl::Status Communicator::Destroy() {
  group_.Drop();
  if (absl::Status status = Usable(); !status.ok()) return status;
  destroyed_ = true;
  log_.Close();
  backend_.ReleaseNodesComm(&nodes_);
  backend_.ReleaseComm(&comm_);
  return Annotate(context_.teams().Free(workspace_), "destroy the communicator");
}

absl::Status Communicator::ToIndex(uint32_t* rank) const {
  const auto found = std::find(team_.ranks.begin(), team_.ranks.end(), *rank);
  if (found == team_.ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *rank,
                     " is not one of the team: roots and peers are ranks of the job, and "
                     "the team has ",
                     absl::StrJoin(team_.ranks, ", ")));
  }
  *rank = static_cast<uint32_t>(found - team_.ranks.begin());
  return absl::OkStatus();
}

absl::Status Communicator::Run(ccl::Call call, backend::Stream& stream) {
  const TraceRecorder::Span span(context_.trace(), TraceHostCall::kLaunch, 0,
                                 static_cast<uint64_t>(call.operation));
  const char* const what = ccl::OperationName(call.operation);
  absl::Status status = context_.CheckShared("in", call.in, team_.ranks);
  if (status.ok()) status = context_.CheckShared("out", call.out, team_.ranks);
  if (status.ok()) status = Usable();
  if (status.ok() && ccl::HasRoot(call.operation)) status = ToIndex(&call.root);
  if (!status.ok()) return Annotate(status, what);
  const Result result =
      spans_nodes() ? backend_.RunOnNodes(nodes_, call, stream) : backend_.Run(comm_, call, stream);
  if (!result.ok()) return FromDevice(result, what);
  // The device does not count a call of no elements.
  const bool has_count =
      call.operation != ccl::Operation::kBarrier && call.operation != ccl::Operation::kAllToAllV;
  if (!has_count) call.count = 0;
  if (!has_count || call.count != 0) {
    log_.Put(call.operation, call.count, static_cast<uint8_t>(call.type));
  }
  return absl::OkStatus();
}

absl::Status Communicator::Exchange(const char* what, absl::Span<ccl::Message> messages,
                                    backend::Stream& stream) {
  const bool keep = group_.open() && messages.size() == 1;
  absl::Status status = keep ? absl::OkStatus() : Usable();
  for (ccl::Message& message : messages) {
    if (status.ok() && message.in == nullptr && message.out == nullptr && message.count != 0) {
      status = absl::InvalidArgumentError("the buffer is null");
    }
    if (status.ok()) status = ToIndex(&message.peer_index);
  }
  if (!status.ok()) {
    status = Annotate(status, what);
    return keep ? group_.Fail(status) : status;
  }
  if (keep) {
    group_.Add(messages.front());
    return absl::OkStatus();
  }
  return PutMessages(what, messages, stream);
}

absl::Status Communicator::PutMessages(const char* what, absl::Span<const ccl::Message> messages,
                                       backend::Stream& stream) {
  const uint32_t n = static_cast<uint32_t>(messages.size());
  return FromDevice(spans_nodes() ? backend_.ExchangeOnNodes(nodes_, messages.data(), n, stream)
                                  : backend_.Exchange(comm_, messages.data(), n, stream),
                    what);
}

absl::Status Communicator::GroupStart() {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "group_start");
  group_.Start();
  return absl::OkStatus();
}

absl::Status Communicator::GroupEnd(backend::Stream* stream) {
  absl::Status status = group_.End();
  if (!status.ok() || stream == nullptr) return status;
  if (status = Usable(); !status.ok()) return Annotate(status, "group_end");
  return PutMessages("group_end", group_.messages(), *stream);
}

absl::StatusOr<uint64_t> Communicator::MatmulBytes(const HostContext& context,
                                                   const backend::BackendOperations& backend,
                                                   uint32_t n_members, const Config& from,
                                                   const ops::Problem& problem,
                                                   const std::vector<ops::Rule>& rules) {
  const std::string what = CallText(problem);
  if (Result result = backend.CheckMatmul(problem); !result.ok()) return FromDevice(result, what);
  const absl::StatusOr<Config> read = ConfigOf(context, backend, from);
  if (!read.ok()) return Annotate(read.status(), what);
  const Config& config = *read;
  const uint64_t plain = backend.WorkspaceBytes(n_members, config);
  const uint64_t whole =
      backend.MatmulWorkspaceBytes(n_members, config, problem, rules.data(), rules.size());
  uint64_t bytes = plain == 0 || whole == 0 ? 0 : whole - plain;
  const bool several = context.n_mapped() != context.n_ranks();
  if (several && n_members <= context.n_ranks() && backend.WorkspaceBytes(1, config) != 0) {
    bytes = std::max(bytes, backend.MatmulWorkspaceBytesOnNodes(n_members, problem));
  }
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", n_members,
                     " members, or the options of their communicator, are not possible: give 1 to ",
                     several ? std::max(kMaxTeamRanks, context.n_ranks()) : kMaxTeamRanks,
                     " members, and options within their limits"));
  }
  return bytes;
}

absl::StatusOr<ops::LaunchPlan> Communicator::ChooseMatmul(const ops::Matmul& call) const {
  const std::string what = CallText(call.problem);
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, what);
  ops::LaunchPlan plan;
  const Result result = spans_nodes() ? backend_.ChooseMatmulOnNodes(nodes_, call, &plan)
                                      : backend_.ChooseMatmul(comm_, call, &plan);
  if (!result.ok()) return FromDevice(result, what);
  return plan;
}

absl::Status Communicator::Matmul(const ops::Matmul& call, backend::Stream& stream) {
  const ops::Problem& problem = call.problem;
  const TraceRecorder::Span span(context_.trace(), TraceHostCall::kLaunch, 0,
                                 static_cast<uint64_t>(problem.operation));
  const auto what = [&] { return CallText(problem); };
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, what());
  for (const auto& [name, p] : {std::pair<const char*, const void*>{"A", call.a},
                                {"B", call.b},
                                {"D", call.d},
                                {"the bias", call.bias}}) {
    if (p == nullptr) continue;
    absl::Status status = context_.CheckShared(name, p, team_.ranks);
    if (!status.ok()) return Annotate(status, what());
  }
  ops::LaunchPlan plan;
  const Result result = spans_nodes() ? backend_.LaunchMatmulOnNodes(nodes_, call, stream, &plan)
                                      : backend_.LaunchMatmul(comm_, call, stream, &plan);
  if (!result.ok()) return FromDevice(result, what());
  // On one node a pair is two operations of the device: the round that compares the calls, and the
  // collective.
  const bool pair = plan.variant == ops::Variant::kPair && team_.ranks.size() > 1 && !spans_nodes();
  for (int i = 0; i < (pair ? 2 : 1); ++i) {
    log_.Put(problem.operation, problem.m * problem.n, static_cast<uint8_t>(problem.out));
  }
  return absl::OkStatus();
}

absl::StatusOr<moe::Sizes> Communicator::MoeSizes(const HostContext& context,
                                                  const backend::BackendOperations& backend,
                                                  uint32_t n_members, uint32_t index,
                                                  const moe::Config& config) {
  moe::Sizes sizes;
  const Result result =
      backend.MoeSizesOf(n_members, index, config, &sizes, context.n_mapped() != context.n_ranks());
  if (!result.ok()) return FromDevice(result, CallText("moe", config));
  return sizes;
}

absl::Status Communicator::PrepareMoe() {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "prepare moe");
  return FromDevice(backend_.PrepareMoe(), "prepare moe");
}

template <typename Start>
absl::Status Communicator::PutMoe(ccl::Operation what, const moe::Config& config, void* workspace,
                                  uint32_t tokens, DType type, Start start) {
  const TraceRecorder::Span span(context_.trace(), TraceHostCall::kLaunch, 0,
                                 static_cast<uint64_t>(what));
  const auto text = [&] { return CallText(ccl::OperationName(what), config); };
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, text());
  absl::Status status = context_.CheckShared("the workspace", workspace, team_.ranks);
  if (!status.ok()) return Annotate(status, text());
  moe::Sizes sizes;
  Result result =
      backend_.MoeSizesOf(team_.device.size, team_.device.index, config, &sizes, spans_nodes());
  if (!result.ok()) return FromDevice(result, text());
  // Other ranks write into the workspace: an unmapped address would end their processes.
  if (context_.Locate(workspace).ok() && !context_.IsMapped(workspace, sizes.workspace_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        text(), ": the workspace begins in the heap and reaches beyond it: allocate ",
        base::SizeText(sizes.workspace_bytes), " for it, as the sizes of the config say"));
  }
  result = start();
  if (!result.ok()) return FromDevice(result, text());
  log_.Put(what, uint64_t{tokens} * config.hidden, static_cast<uint8_t>(type));
  return absl::OkStatus();
}

absl::Status Communicator::MoeDispatch(const moe::Config& config, void* workspace,
                                       const moe::Dispatch& call, backend::Stream& stream) {
  return PutMoe(ccl::Operation::kMoeDispatch, config, workspace, call.tokens, config.in, [&] {
    return spans_nodes() ? backend_.MoeDispatchOnNodes(nodes_, config, workspace, call, stream)
                         : backend_.MoeDispatch(comm_, config, workspace, call, stream);
  });
}

absl::Status Communicator::MoeCombine(const moe::Config& config, void* workspace,
                                      const moe::Combine& call, backend::Stream& stream) {
  return PutMoe(ccl::Operation::kMoeCombine, config, workspace, call.tokens, call.out_type, [&] {
    return spans_nodes() ? backend_.MoeCombineOnNodes(nodes_, config, workspace, call, stream)
                         : backend_.MoeCombine(comm_, config, workspace, call, stream);
  });
}

absl::StatusOr<norm::Plan> Communicator::ChooseNorm(const norm::Problem& problem) const {
  const std::string what = CallText(problem);
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, what);
  norm::Plan plan;
  const Result result = spans_nodes() ? backend_.ChooseNormOnNodes(nodes_, problem, &plan)
                                      : backend_.ChooseNorm(comm_, problem, &plan);
  if (!result.ok()) return FromDevice(result, what);
  return plan;
}

absl::Status Communicator::Norm(const norm::Norm& call, backend::Stream& stream) {
  const norm::Problem& problem = call.problem;
  const TraceRecorder::Span span(context_.trace(), TraceHostCall::kLaunch, 0,
                                 static_cast<uint64_t>(problem.operation));
  const auto what = [&] { return CallText(problem); };
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, what());
  for (const auto& [name, p] : {std::pair<const char*, const void*>{"in", call.in},
                                {"the residual", call.residual},
                                {"residual_out", call.residual_out},
                                {"the weight", call.weight},
                                {"out", call.out},
                                {"the scale", call.scale},
                                {"the scales", call.scales}}) {
    if (p == nullptr) continue;
    absl::Status status = context_.CheckShared(name, p, team_.ranks);
    if (!status.ok()) return Annotate(status, what());
  }
  const Result result = spans_nodes() ? backend_.LaunchNormOnNodes(nodes_, call, stream)
                                      : backend_.LaunchNorm(comm_, call, stream);
  if (!result.ok()) return FromDevice(result, what());
  if (problem.rows != 0) {
    log_.Put(problem.operation, problem.rows * problem.hidden, static_cast<uint8_t>(problem.in));
  }
  return absl::OkStatus();
}

absl::Status Communicator::CheckNodes() const {
  ccl::NodesErrorInfo info;
  const Result result = backend_.CheckNodesError(nodes_, &info);
  if (result.ok()) return absl::OkStatus();
  const bool known = info.member_index < team_.ranks.size();
  const uint32_t rank = known ? team_.ranks[info.member_index] : 0;
  std::string text = absl::StrCat(ccl::OperationName(info.operation), " #", info.sequence, " of ",
                                  team_.ranks.size(), " ranks on ", nodes_.n_nodes, " nodes: ");
  if (result.code == StatusCode::kInvalidArgument && info.local) {
    std::vector<uint32_t> mapped;
    std::copy_if(team_.ranks.begin(), team_.ranks.end(), std::back_inserter(mapped),
                 [this](uint32_t r) { return context_.Maps(r); });
    absl::StrAppend(&text, "ranks of this node, or of its fabric, called differently: among them, ",
                    MismatchText(info.detail, mapped));
  } else if (result.code == StatusCode::kInvalidArgument && info.elsewhere) {
    absl::StrAppend(&text, "the ranks on the node of ", context_.MissingName(rank),
                    " called differently, as the errors there say");
  } else if (result.code == StatusCode::kInvalidArgument && info.has_calls) {
    absl::StrAppend(&text, CallsText(info.mine, context_.rank(), info.theirs, rank, team_.ranks));
  } else if (result.code == StatusCode::kOutOfRange ||
             result.code == StatusCode::kFailedPrecondition) {
    absl::StrAppend(&text, MoeFailureText(info.detail, result.code, rank));
  } else {
    absl::StrAppend(&text, result.what);
    if (known) absl::StrAppend(&text, "; it was ", context_.MissingName(rank));
  }
  if (result.code == StatusCode::kAborted) {
    const absl::Status health = context_.Health();
    if (!health.ok()) absl::StrAppend(&text, "; ", health.message());
  }
  return absl::Status(CodeOf(result.code), text);
}

absl::Status Communicator::Check() const {
  if (spans_nodes()) return CheckNodes();
  ErrorInfo info;
  const Result result = backend_.CheckError(comm_, &info);
  if (result.ok()) return absl::OkStatus();
  if (result.code == StatusCode::kInvalidArgument) {
    std::string text = MismatchText(info, team_.ranks);
    if (info.member_index < team_.ranks.size()) {
      const uint32_t rank = team_.ranks[info.member_index];
      absl::StrAppend(&text, "; rank ", rank, " is pid ", context_.peer_pid(rank));
    }
    return absl::InvalidArgumentError(text);
  }
  std::string text = absl::StrCat(ccl::OperationName(info.operation), " #", info.sequence, " of ",
                                  team_.ranks.size(), " ranks: ");
  if (result.code == StatusCode::kOutOfRange || result.code == StatusCode::kFailedPrecondition) {
    const bool known = info.member_index < team_.ranks.size();
    const uint32_t rank = known ? team_.ranks[info.member_index] : info.member_index;
    absl::StrAppend(&text, MoeFailureText(info, result.code, rank));
    return absl::Status(CodeOf(result.code), text);
  }
  absl::StrAppend(&text, result.what);
  if (result.code == StatusCode::kAborted) {
    // irisd and the status page know which rank died.
    const absl::Status health = context_.Health();
    if (!health.ok()) absl::StrAppend(&text, "; ", health.message());
  } else {
    // All ranks that a thread of the kernel found missing; else the one of the error word.
    uint64_t missing = 0;
    backend::Stream* stream = nullptr;
    const bool copied = backend_.CreateStream(&stream).ok() &&
                        backend_.CopyMissing(comm_, &missing, *stream).ok() &&
                        backend_.Synchronize(*stream).ok();
    if (stream != nullptr) backend_.DestroyStream(stream);
    if (!copied) missing = 0;
    if (info.member_index < team_.ranks.size()) missing |= uint64_t{1} << info.member_index;
    const char* separator = "; it was ";
    for (uint32_t m = 0; m < team_.ranks.size(); ++m) {
      if ((missing >> m & 1) == 0) continue;
      const uint32_t rank = team_.ranks[m];
      absl::StrAppend(&text, separator, context_.MissingName(rank));
      separator = ", ";
    }
    if (const std::string queues = QueuesText(backend_); !queues.empty()) {
      absl::StrAppend(&text, "; ", queues);
    }
    if (backend_.SharesProcess(comm_)) {
      absl::StrAppend(&text,
                      "; ranks of this job are threads of one process: a kernel that one of them "
                      "launches for the first time, and memory that it allocates, may wait until "
                      "the device is idle, so load kernels before (PrepareKernel in C++)");
    }
  }
  return absl::Status(CodeOf(result.code), text);
}

absl::Status Communicator::Synchronize(backend::Stream& stream) {
  if (group_.open()) return Annotate(Usable(), "synchronize");
  const TraceRecorder::Span span(context_.trace(), TraceHostCall::kSynchronize);
  const absl::Status status = FromDevice(backend_.Synchronize(stream), "synchronize the stream");
  const absl::Status check = Check();
  return check.ok() ? status : check;
}

absl::Status Communicator::Reset() {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "reset");
  // Kernels of a rank that has not called Reset yet may still write into the workspaces of others.
  // If these were cleared earlier, old words and packets would look like those of later operations.
  absl::Status status = context_.teams().Barrier(team_);
  if (status.ok() && spans_nodes()) {
    // Puts may be on their way, too.
    status = OnStream("wait for the port", [this](backend::Stream& stream) {
      return backend_.QuietNodes(nodes_, stream);
    });
    const absl::Status met = context_.teams().Barrier(team_);
    if (status.ok()) status = met;
  }
  if (status.ok()) status = Prepare();
  if (!status.ok()) return Annotate(status, "reset the communicator");
  backend_.ResetError(comm_);
  if (spans_nodes()) backend_.ResetNodesError(nodes_);
  return absl::OkStatus();
}

}  // namespace iris::internal
