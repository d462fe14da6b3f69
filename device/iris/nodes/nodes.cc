// NodesComms: configs, workspaces, failures, and the arguments of kernels.
#include "iris/nodes/nodes.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "iris/nodes/impl/launch.h"
#include "iris/nodes/impl/layout.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

using impl::Invalid;
using impl::NodesCall;

template <typename T>
void Default(T* field, T value) {
  if (*field == 0) *field = value;
}

NodesConfig Complete(NodesConfig config, uint32_t size, uint32_t n_nodes) {
  constexpr bool emu = backend::Traits::kEmulated;
  constexpr uint64_t kKiB = 1024;
  const uint64_t nodes = std::max(n_nodes, 1u);
  Default(&config.leaders_most_bytes, 64 * kKiB);
  for (uint64_t& most : config.leaders_most_bytes_of) Default(&most, config.leaders_most_bytes);
  Default(&config.leader_bytes, 128 * kKiB);
  // Pieces of more than 1 MiB travel more slowly over TCP, and all inboxes together stay small.
  Default(&config.piece_bytes, std::clamp(8192 * kKiB / nodes / 256 * 256, 4 * kKiB, 1024 * kKiB));
  Default(&config.message_bytes,
          std::max(4 * kKiB, std::min((emu ? 16 : 256) * kKiB,
                                      (emu ? 64 : 16384) * kKiB / std::max(size, 1u) / 256 * 256)));
  Default(&config.direct_nodes, 2u);
  Default(&config.blocks, emu ? 4u : 32u);
  Default(&config.threads, emu ? 64u : kMaxThreads);
  return config;
}

bool IsValid(const NodesConfig& config) {
  constexpr uint64_t kMost = 1ull << 30;
  return config.leader_bytes >= 4096 && config.leader_bytes <= kMost &&
         config.leader_bytes % 256 == 0 && config.piece_bytes >= 4096 &&
         config.piece_bytes <= kMost && config.piece_bytes % 256 == 0 &&
         config.message_bytes >= 256 && config.message_bytes <= kMost &&
         config.message_bytes % 256 == 0 && config.blocks <= kMaxBlocks &&
         config.threads <= kMaxThreads && config.path <= NodesPath::kRails;
}

}  // namespace

uint32_t impl::NodesSignatureOf(const PackedCall& call, uint32_t root, NodesPath path) {
  uint64_t hash = 0xcbf29ce484222325ull ^ root ^ static_cast<uint64_t>(path) << 32;
  for (const uint32_t word : call.words) {
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash ^ hash >> 32) | 1;
}

NodesCall impl::CallOf(const NodesComm& comm, const Call& call, NodesPath path) {
  const uint32_t root = HasRoot(call.operation) ? call.root : CallRecord::kNobody;
  CallRecord record = {call, root, CallRecord::kNobody, 0, false};
  record.variant = Variant::kAuto;
  NodesCall args = {};
  args.context = comm.context;
  args.report = comm.report;
  args.local_word = &comm.local.report->word;
  args.local_header_bytes = comm.local.workspace_offset_bytes;
  args.workspace_bytes = comm.workspace_offset_bytes;
  args.at = NodesOffsetsOf(comm.size, comm.n_nodes, comm.config);
  args.leader_bytes = comm.config.leader_bytes;
  args.piece_bytes = comm.config.piece_bytes;
  args.message_bytes = comm.config.message_bytes;
  args.size = comm.size;
  args.index = comm.index;
  args.n_nodes = comm.n_nodes;
  args.node = comm.node;
  args.place = comm.local.team.index;
  args.operation = call.operation;
  args.even = comm.even ? 1 : 0;
  args.call = Pack(record);
  args.signature = NodesSignatureOf(args.call, root, path);
  return args;
}

NodesCall impl::CallOf(const NodesComm& comm, const PackedCall& whole) {
  NodesCall args = CallOf(comm, Call{{Operation::kBarrier}}, NodesPath::kAuto);
  args.operation = whole.operation();
  args.call = whole;
  args.signature = NodesSignatureOf(whole, CallRecord::kNobody, NodesPath::kAuto);
  return args;
}

bool impl::PortReads(const NodesComm& comm, const void* p, uint64_t bytes) {
  const uint64_t offset = OffsetBytes(comm.context, p);
  return offset < comm.heap_bytes && bytes <= comm.heap_bytes - offset;
}

bool impl::OverlapsWorkspace(const NodesComm& comm, const void* buffer, uint64_t bytes) {
  const void* const workspace =
      AtOffset<void>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  return bytes != 0 && Overlap(buffer, bytes, workspace, comm.workspace_bytes);
}

Result impl::CheckNodesComm(const NodesComm& comm) {
  if (comm.report == nullptr) return Invalid("the NodesComm was not made by CreateNodesComm");
  if (!CheckNodesError(comm).ok()) {
    return {StatusCode::kFailedPrecondition,
            "an earlier operation of this communicator failed: iris_comm_check() says which and "
            "why, iris_comm_reset() makes it usable again"};
  }
  return {};
}

uint64_t NodesWorkspaceBytes(uint32_t size, uint32_t n_nodes, const NodesConfig& config) {
  const NodesConfig complete = Complete(config, size, n_nodes);
  if (n_nodes < 2 || n_nodes > kMaxNodes || size < n_nodes || !IsValid(complete)) return 0;
  return impl::NodesOffsetsOf(size, n_nodes, complete).total;
}

Result PrepareNodesKernels() {
  if (Result result = impl::PrepareNodesOperations(); !result.ok()) return result;
  return impl::PrepareNodesMessages();
}

Result CreateNodesComm(const NodesOptions& options, backend::Stream& stream, NodesComm* out) {
  if (Result result = PrepareNodesKernels(); !result.ok()) return result;
  NodesComm made;
  made.context = options.context;
  made.local = options.local;
  made.ranks = options.ranks;
  made.nodes = options.nodes;
  made.size = options.size;
  made.index = options.index;
  made.report = options.report;
  made.heap_bytes = options.heap_bytes != 0 ? options.heap_bytes : options.context.stride_bytes;
  if (options.ranks == nullptr || options.nodes == nullptr || options.index >= options.size ||
      options.ranks[options.index] != options.context.rank) {
    return Invalid("this rank is not the member of the team that `index` says");
  }
  if (options.report == nullptr) return Invalid("the report is null");
  if (options.local.report == nullptr) return Invalid("the local Comm was not made by CreateComm");
  if (options.context.port == nullptr) return Invalid("the DeviceContext has no port");
  for (uint32_t m = 0; m < made.size; ++m) {
    if (options.nodes[m] > made.n_nodes) return Invalid("the nodes are not numbered in order");
    made.n_nodes = std::max(made.n_nodes, options.nodes[m] + 1);
  }
  if (made.n_nodes < 2) return Invalid("the team has ranks of one node alone");
  if (made.n_nodes > kMaxNodes) return Invalid("the team has ranks of more than 256 nodes");
  made.node = options.nodes[options.index];
  // The table at the beginning of the workspace.
  std::vector<uint32_t> table(made.n_nodes + 1 + 2 * uint64_t{made.size}, 0);
  uint32_t* const firsts = table.data();
  uint32_t* const ranks = firsts + made.n_nodes + 1;
  uint32_t* const places = ranks + made.size;
  for (uint32_t m = 0; m < made.size; ++m) ++firsts[options.nodes[m] + 1];
  made.even = true;
  for (uint32_t b = 0; b < made.n_nodes; ++b) {
    made.most_local = std::max(made.most_local, firsts[b + 1]);
    made.even = made.even && firsts[b + 1] == firsts[1];
    firsts[b + 1] += firsts[b];
  }
  std::vector<uint32_t> next(firsts, firsts + made.n_nodes);
  for (uint32_t m = 0; m < made.size; ++m) {
    const uint32_t entry = next[options.nodes[m]]++;
    ranks[entry] = options.ranks[m];
    places[entry] = m;
    made.even = made.even && entry == m;
  }
  const uint32_t first = firsts[made.node];
  const DeviceTeam& team = options.local.team;
  bool agrees = team.size == firsts[made.node + 1] - first;
  for (uint32_t l = 0; agrees && l < team.size; ++l) {
    agrees = MemberRank(team, l) + options.context.first_mapped == ranks[first + l];
  }
  if (!agrees) return Invalid("the local Comm is not over the team's ranks of this node");
  made.config = Complete(options.config, made.size, made.n_nodes);
  if (!IsValid(made.config)) return Invalid("a field of the NodesConfig is out of its range");
  if (made.most_local * 16 > std::min(made.config.leader_bytes, made.config.piece_bytes)) {
    return Invalid("leader_bytes or piece_bytes are too few for the ranks of a node");
  }
  const impl::NodesOffsets at = impl::NodesOffsetsOf(made.size, made.n_nodes, made.config);
  made.workspace_bytes = at.total;
  if (options.workspace_bytes < made.workspace_bytes) {
    return Invalid("the workspace is smaller than NodesWorkspaceBytes()");
  }
  if (!InHeap(made.context, options.workspace)) return Invalid("the workspace is not in the heap");
  made.workspace_offset_bytes = OffsetBytes(made.context, options.workspace);
  made.progress_offset_bytes = made.workspace_offset_bytes + at.state;
  if (reinterpret_cast<uint64_t>(options.workspace) % kWorkspaceAlignmentBytes != 0 ||
      made.workspace_bytes > made.context.stride_bytes - made.workspace_offset_bytes) {
    return Invalid("the workspace is not aligned, or reaches beyond the heap");
  }
  if (made.local.config.timeout_ns != 0) made.context.timeout_ns = made.local.config.timeout_ns;
  if (Result result = PrepareNodesWorkspace(made, stream); !result.ok()) return result;
  if (Result result = backend::CopyAsync(options.workspace, table.data(),
                                         table.size() * sizeof(uint32_t), stream);
      !result.ok()) {
    return result;
  }
  if (Result result = stream.Synchronize(); !result.ok()) return result;
  if (const uint32_t slots = backend::ResidentBlocks(); slots != 0) {
    Claim claim;
    claim.most = std::min(std::max(made.config.blocks, impl::kMaxNodesMessages), slots);
    ShareInfo info;
    for (uint32_t k = 0; options.name[k] != 0 && k + 1 < sizeof(info.name); ++k) {
      info.name[k] = options.name[k];
    }
    info.rank = made.context.rank;
    info.members = made.size;
    const Result result =
        Residency::Get().Make(claim, info, slots, made.context.timeout_ns, &made.share);
    if (!result.ok()) return result;
  }
  *out = made;
  return {};
}

void ReleaseNodesComm(NodesComm* comm) {
  if (comm->share != nullptr) Residency::Get().Release(comm->share);
  comm->share = nullptr;
}

Result CheckNodesError(const NodesComm& comm, NodesErrorInfo* info) {
  NodesErrorInfo found;
  NodesErrorInfo& to = info != nullptr ? *info : found;
  to = {};
  if (comm.report == nullptr) return Invalid("the NodesComm was not made by CreateNodesComm");
  const auto in_team = [&comm](uint32_t local) {
    for (uint32_t m = 0; m < comm.size && local != ErrorInfo::kNoMember; ++m) {
      if (comm.nodes[m] == comm.node && local-- == 0) return m;
    }
    return uint32_t{NodesErrorInfo::kNoMember};
  };
  const uint64_t word = __atomic_load_n(&comm.report->word, __ATOMIC_ACQUIRE);
  const Result local = CheckError(comm.local, &to.detail);
  if (word == 0) {
    if (local.ok()) return {};
    to.local = true;
    to.operation = to.detail.operation;
    to.member_index = in_team(to.detail.member_index);
    to.sequence = to.detail.sequence;
    return local;
  }
  to.operation = static_cast<Operation>(word >> 8 & 0xff);
  const uint32_t member = static_cast<uint32_t>(word >> 16 & 0xffffff);
  if (member != 0) to.member_index = member - 1;
  to.sequence = static_cast<uint32_t>(word >> 40);
  if ((word & impl::kWithinNode) != 0) {
    to.local = member != 0 && comm.nodes[member - 1] == comm.node;
    to.elsewhere = !to.local;
    if (to.local) to.member_index = in_team(to.detail.member_index);
  }
  if (__atomic_load_n(&comm.report->has_calls, __ATOMIC_ACQUIRE) != 0) {
    to.has_calls = true;
    to.mine = comm.report->mine;
    to.theirs = comm.report->theirs;
  }
  const StatusCode code = static_cast<StatusCode>(word & 0x7f);
  if (impl::FoundByAll(word)) {
    for (uint32_t k = 0; k < 2; ++k) to.detail.detail[k] = comm.local.report->mismatch[k];
  }
  return impl::ErrorOf(code);
}

Result PrepareNodesWorkspace(const NodesComm& comm, backend::Stream& stream) {
  const impl::NodesOffsets at = impl::NodesOffsetsOf(comm.size, comm.n_nodes, comm.config);
  // The words alone: all else is written before it is read.
  return backend::FillAsync(
      AtOffset<uint8_t>(comm.context, comm.context.rank, comm.workspace_offset_bytes + at.state), 0,
      at.leaders - at.state, stream);
}

void ResetNodesError(const NodesComm& comm) {
  if (comm.report == nullptr) return;
  ResetError(comm.local);
  comm.report->has_calls = 0;
  __atomic_store_n(&comm.report->word, uint64_t{0}, __ATOMIC_RELEASE);
}

}  // namespace iris::ccl
