// Comms: configs and workspaces.
#include "iris/rounds/comm.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/residency.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

using impl::Invalid;

// `config` is complete.
bool IsValid(const Config& config) {
  constexpr uint64_t kMaxBytes = 1ull << 36;  // keeps every sum of sizes far from overflow
  constexpr uint64_t kPushUnitBytes = 16 * kMaxTeamRanks * impl::kPushSlots;
  if (config.barriers_only) return true;
  return config.max_blocks >= 1 && config.max_blocks <= kMaxBlocks &&
         config.blocks <= config.max_blocks && config.block_threads <= kMaxThreads &&
         config.unroll <= kMaxUnroll && config.packet_blocks >= 1 &&
         config.packet_blocks <= config.max_blocks && config.packet_bytes >= 16 &&
         config.packet_bytes <= kMaxBytes && config.packet_bytes % 16 == 0 &&
         config.line_blocks >= 1 && config.line_blocks <= config.max_blocks &&
         config.line_bytes >= impl::kLineUnitBytes * impl::kMaxLineMembers &&
         config.line_bytes <= kMaxBytes &&
         config.line_bytes % (impl::kLineUnitBytes * impl::kMaxLineMembers) == 0 &&
         config.push_blocks >= 1 && config.push_blocks <= config.max_blocks &&
         config.push_bytes >= kPushUnitBytes && config.push_bytes <= kMaxBytes &&
         config.push_bytes % kPushUnitBytes == 0 && config.stage_bytes >= 16 * kMaxTeamRanks &&
         config.stage_bytes <= kMaxBytes && config.stage_bytes % (16 * kMaxTeamRanks) == 0;
}

// The ranks and heaps for which this process has made Comms. There is an entry for each base
// address of heaps, so there are few.
class RanksHere {
 public:
  static RanksHere& Get() {
    static RanksHere* const ranks = new RanksHere();
    return *ranks;
  }

  void Note(const DeviceContext& context) {
    const std::lock_guard<std::mutex> lock(mu_);
    for (Heaps& heaps : heaps_) {
      if (heaps.base != context.base) continue;
      heaps.several = heaps.several || heaps.rank != context.rank;
      return;
    }
    heaps_.push_back({context.base, context.rank, false});
  }

  bool HasSeveral(const DeviceContext& context) {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const Heaps& heaps : heaps_) {
      if (heaps.base == context.base) return heaps.several;
    }
    return false;
  }

 private:
  struct Heaps {
    uint64_t base;
    uint32_t rank;
    bool several;
  };
  std::mutex mu_;
  std::vector<Heaps> heaps_;
};

// Claims room on the current device for what a Comm of `rank` may launch.
Result TakeShare(const char* name, uint32_t rank, Comm* comm) {
  const uint32_t slots = backend::ResidentBlocks();
  if (slots == 0) return {};
  Claim claim;
  claim.most = comm->config.max_blocks;
  // A workspace larger than collectives need is for GEMMs, whose kernels use all free slots.
  if (comm->team.size == 1) {
    claim.own = true;
    claim.most = claim.together = 0;
  } else if (comm->workspace_bytes > WorkspaceBytes(comm->team.size, comm->config)) {
    claim.whole = true;
    constexpr uint32_t kLeastPart = 8;  // of the device: fewer blocks would be of no use
    claim.together = std::clamp(slots / kLeastPart, 1u, comm->config.max_blocks);
    if (claim.most == kMaxBlocks) claim.most = std::max(claim.most, slots);
  }
  const uint64_t timeout_ns =
      comm->config.timeout_ns != 0 ? comm->config.timeout_ns : comm->context.timeout_ns;
  ShareInfo info;
  for (uint32_t k = 0; name != nullptr && name[k] != 0 && k + 1 < sizeof(info.name); ++k) {
    info.name[k] = name[k];
  }
  info.rank = rank;
  info.members = comm->team.size;
  info.products = claim.whole;
  return Residency::Get().Make(claim, info, slots, timeout_ns, &comm->share);
}

// Lets context and team count ranks from the first one of this node, so that operations find no
// other nodes in them.
Result CountFromFirstMapped(DeviceContext* context, DeviceTeam* team) {
  if (context->n_mapped == 0) return {};
  for (uint32_t i = 0; i < team->size && i < kMaxTeamRanks; ++i) {
    const uint32_t local = MemberRank(*team, i) - context->first_mapped;
    if (local >= context->n_mapped) return Invalid("a member of the team is on another node");
    team->members[i] = static_cast<uint8_t>(local);
  }
  team->first = 0;
  context->base += context->first_mapped * context->stride_bytes;
  context->rank -= context->first_mapped;
  context->n_ranks = context->n_mapped;
  context->first_mapped = context->n_mapped = 0;
  context->port = nullptr;
  return {};
}

}  // namespace

bool SharesProcess(const Comm& comm) { return RanksHere::Get().HasSeveral(comm.context); }

uint64_t WorkspaceBytes(uint32_t n_members, const Config& config) {
  const Config complete = impl::Complete(config);
  if (n_members == 0 || n_members > kMaxTeamRanks || !IsValid(complete)) return 0;
  return impl::OffsetsOf(n_members, complete).total_bytes;
}

Result impl::MakeComm(const CommOptions& options, Comm* out) {
  DeviceContext context = options.context;
  DeviceTeam team = options.team;
  if (team.step != DeviceTeam::kListed) {
    return Invalid(
        "the team has ranks of other nodes, whose heaps are not mapped here: use a team of this "
        "node's ranks, Context::local()");
  }
  if (Result result = CountFromFirstMapped(&context, &team); !result.ok()) return result;
  const Config config = impl::Complete(options.config);
  if (!IsValid(config)) return Invalid("a field of the Config is out of its range");
  if (context.stride_bytes == 0 || context.rank >= context.n_ranks) {
    return Invalid("the DeviceContext has no heap");
  }
  if (team.size == 0 || team.size > kMaxTeamRanks) return Invalid("the team has no sensible size");
  if (team.index >= team.size || team.members[team.index] != context.rank) {
    return Invalid("this rank is not the member of the team that `index` says");
  }
  for (uint32_t i = 0; i < team.size; ++i) {
    if (team.members[i] >= context.n_ranks) return Invalid("a member of the team is not a rank");
    for (uint32_t k = 0; k < i; ++k) {
      if (team.members[k] == team.members[i]) return Invalid("a rank is in the team twice");
    }
  }
  if (options.workspace_bytes < WorkspaceBytes(team.size, config)) {
    return Invalid("the workspace is smaller than WorkspaceBytes()");
  }
  if (!InHeap(context, options.workspace)) return Invalid("the workspace is not in the heap");
  const uint64_t offset_bytes = OffsetBytes(context, options.workspace);
  if (options.workspace_bytes > context.stride_bytes - offset_bytes) {
    return Invalid("the workspace reaches beyond the heap");
  }
  if (reinterpret_cast<uint64_t>(options.workspace) % kWorkspaceAlignmentBytes != 0) {
    return Invalid("the workspace is not aligned to kWorkspaceAlignmentBytes");
  }
  if (options.report == nullptr) return Invalid("the report is null");
  Comm made;
  made.context = context;
  made.team = team;
  made.workspace_offset_bytes = offset_bytes;
  made.workspace_bytes = options.workspace_bytes;
  made.report = options.report;
  made.config = config;
  made.products = options.products;
  if (Result result = UseRules(config.rules, config.n_rules, &made); !result.ok()) return result;
  if (Result result = TakeShare(options.name, options.context.rank, &made); !result.ok())
    return result;
  RanksHere::Get().Note(context);
  *out = made;
  return {};
}

Result UseRules(const Rule* rules, uint32_t n_rules, Comm* comm) {
  ResolvedRules resolved;
  uint32_t n = 0;
  for (uint32_t operation = 0; operation < kOperationCount; ++operation) {
    const uint32_t begin = n;
    for (uint32_t i = 0; i < n_rules; ++i) {
      const Rule& rule = rules[i];
      if (static_cast<uint32_t>(rule.operation) != operation) continue;
      if (comm->team.size > rule.max_members) continue;
      // A rule never applies if an earlier rule of the same variant covers it.
      bool covered = false;
      for (uint32_t k = begin; k < n; ++k) {
        covered = covered || (resolved.rows[k].variant == rule.variant &&
                              resolved.rows[k].max_bytes >= rule.max_bytes);
      }
      if (covered) continue;
      if (rule.blocks > kMaxBlocks || rule.threads > kMaxThreads || rule.unroll > kMaxUnroll) {
        return impl::Invalid("a number of a rule is out of its range");
      }
      if (n == ResolvedRules::kMax) return impl::Invalid("there are too many rules for this team");
      resolved.rows[n++] = {rule.max_bytes, static_cast<uint16_t>(rule.blocks),
                            static_cast<uint16_t>(rule.threads), rule.variant,
                            static_cast<uint8_t>(rule.unroll)};
    }
    resolved.end[operation] = static_cast<uint16_t>(n);
  }
  comm->rules = resolved;
  return {};
}

uint32_t ListShares(ShareInfo* out, uint32_t capacity) {
  return Residency::Get().List(out, capacity);
}

void ReleaseComm(Comm* comm) {
  if (comm->share != nullptr) Residency::Get().Release(comm->share);
  comm->share = nullptr;
}

uint32_t MaxBlocksWhenShared(uint32_t ranks_per_device, uint32_t multiprocessors) {
  if (ranks_per_device <= 1) return 0;
  if (multiprocessors == 0) {
    if (backend::Traits::kEmulated) return 0;  // its blocks take turns
    multiprocessors = backend::MultiprocessorCount();
  }
  // The largest kernels fill a multiprocessor with one block.
  const uint32_t blocks = multiprocessors / ranks_per_device;
  return blocks < 1 ? 1 : blocks > kMaxBlocks ? kMaxBlocks : blocks;
}

Result PrepareWorkspace(const Comm& comm, backend::Stream& stream) {
  if (comm.team.size == 0) return Invalid("the Comm was not made by CreateComm");
  uint8_t* workspace =
      iris::AtOffset<uint8_t>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  return backend::FillAsync(workspace, 0, comm.workspace_bytes, stream);
}

}  // namespace iris::ccl
