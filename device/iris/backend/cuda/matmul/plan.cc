#include "iris/backend/cuda/matmul/plan.h"

#include <algorithm>

namespace iris::backend::cuda::matmul {
namespace {

bool IsNarrow(DType type) { return type == DType::kF16 || type == DType::kBf16; }
bool IsAligned(const void* p, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// Rows of tiles that are processed together, so that the cache holds them.
constexpr uint32_t kGroup = 8;
// The copy engine sends a rank's rows of A in kPieces, of complete rows from kLeastRowsBytes on.
constexpr uint32_t kPieces = 3;
constexpr uint64_t kLeastRowsBytes = uint64_t{24} << 20;

// Returns the size of a 256th of half a workspace such that `units` of them hold `bytes`.
uint64_t UnitsFor(uint64_t bytes, uint64_t units) {
  return ((bytes + units - 1) / units + 1023) / 1024 * 1024;
}

const char* CheckShape(const Problem& p) {
  constexpr uint64_t kMost = uint64_t{1} << 31;
  if (p.kind > Kind::kAllScatter) return "the kind is not one of those there are";
  if (!IsNarrow(p.in)) return "A and B must be float16 or bfloat16";
  if (p.out != p.in && p.out != DType::kF32) return "D must have the type of A, or float32";
  if (p.activation > Activation::kSilu) return "the activation is not one of those there are";
  if (p.bias != nullptr && !IsNarrow(p.bias_type) && p.bias_type != DType::kF32) {
    return "the type of the bias is not one of those there are";
  }
  if (p.n_ranks == 0 || p.n_ranks > kMaxRanks) return "there must be 1 to 16 ranks";
  if (p.rank >= p.n_ranks) return "the rank must be below the number of ranks";
  if (p.m == 0 || p.n == 0 || p.k == 0) return "m, n and k must be at least 1";
  if (p.m >= kMost || p.n >= kMost || p.k >= kMost) return "m, n and k must be below 2^31";
  if (p.m < p.n_ranks) return "there must be as many rows as ranks";
  if (p.lda < p.k || p.ldb < (p.transposed_b ? p.k : p.n) || p.ldd < p.n) {
    return "a leading dimension is less than a row";
  }
  // The limit of the copy engine's maps, with room for address arithmetic.
  constexpr uint64_t kMostLeading = uint64_t{1} << 36;
  if (p.lda > kMostLeading || p.ldb > kMostLeading || p.ldd > kMostLeading) {
    return "a leading dimension is above 2^36";
  }
  if (p.lda % 8 != 0 || p.ldb % 8 != 0) {
    return "the leading dimensions of A and B must be multiples of 8";
  }
  return nullptr;
}

const char* CheckPointers(const Problem& p) {
  if (p.a == nullptr || p.b == nullptr) return "A and B must be there";
  if (!IsAligned(p.a, 16) || !IsAligned(p.b, 16)) return "A and B must be aligned to 16 bytes";
  const bool all = p.kind == Kind::kAllReduce || p.kind == Kind::kAllScatter;
  for (uint32_t r = 0; r < p.n_ranks; ++r) {
    if (r != p.rank && !all) continue;
    if (p.d[r] == nullptr) return "D must be there, at every rank that gets results";
    if (!IsAligned(p.d[r], DTypeBytes(p.out))) return "D must be aligned to its elements";
  }
  if (p.copy_stream != nullptr && (p.copy_events[0] == nullptr || p.copy_events[1] == nullptr)) {
    return "a copy stream needs two events";
  }
  if (p.bias != nullptr && !IsAligned(p.bias, DTypeBytes(p.bias_type))) {
    return "the bias must be aligned to its elements";
  }
  return nullptr;
}

Tile ChooseTile(const Problem& p, Tile wanted) {
  if (p.m <= 64) return Tile::k64x64;
  const bool ring = p.n_ranks > 1 && (p.kind == Kind::kReduceScatter || p.kind == Kind::kAllReduce);
  // Sums of a ring that travel as float need twice the staging memory.
  if (ring && p.out == DType::kF32) return Tile::k128x128;
  if (wanted != Tile::kAny) return wanted;
  // Smaller tiles are sent in smaller bursts, which delay the loads of other blocks less.
  if (p.n_ranks > 1 && p.kind != Kind::kAllGather) return Tile::k128x128InTurns;
  const uint64_t rows = (p.m + 127) / 128;
  constexpr uint64_t kMultiprocessors = 132;
  // The larger tile is faster per element; the smaller one leaves less idle at the end.
  const uint64_t large = (rows * ((p.n + 255) / 256) + kMultiprocessors - 1) / kMultiprocessors;
  const uint64_t small = (rows * ((p.n + 127) / 128) + kMultiprocessors - 1) / kMultiprocessors;
  return small * 104 < large * 200 ? Tile::k128x128InTurns : Tile::k128x256;
}

}  // namespace

const char* MakePlan(const Problem& p, Plan* plan, Tile tile) {
  if (const char* why = CheckShape(p); why != nullptr) return why;
  *plan = Plan();
  plan->tile = ChooseTile(p, tile);
  Schedule& s = plan->schedule;
  s.kind = p.kind;
  s.rank = p.rank;
  s.n_ranks = p.n_ranks;
  s.m = static_cast<uint32_t>(p.m);
  s.n = static_cast<uint32_t>(p.n);
  s.k = static_cast<uint32_t>(p.k);
  s.tile_m = plan->tile == Tile::k64x64 ? 64 : 128;
  s.tile_n = plan->tile == Tile::k128x256 ? 256 : plan->tile == Tile::k64x64 ? 64 : 128;
  s.cluster = plan->tile == Tile::k64x64 ? 1 : 2;
  s.split = 1;
  s.tiles_n = CeilDiv(s.n, s.tile_n);
  // A small problem of a ring is one row of tiles, which has the rows of all ranks.
  const bool packets = plan->tile == Tile::k64x64 && Sums(s);
  const bool dealt =
      p.kind == Kind::kReduceScatter || p.kind == Kind::kAllReduce || p.kind == Kind::kAllGather;
  // A small A that is gathered is one slice, too, so that B is read once.
  s.slices = dealt && plan->tile != Tile::k64x64 ? p.n_ranks : 1;
  const uint32_t rows_max = CeilDiv(s.m, s.slices);
  s.pairs_m = CeilDiv(rows_max, s.tile_m * s.cluster);
  const uint64_t tiles = uint64_t{s.pairs_m} * s.tiles_n * s.cluster;
  if (tiles * s.slices >= uint64_t{1} << 30) return "there are more than 2^30 tiles";
  s.group = std::min(kGroup, s.pairs_m);
  const uint32_t pairs = s.pairs_m * s.tiles_n;
  s.segments = 1;
  if (p.kind == Kind::kAllGather) {
    s.per_segment = s.group * s.tiles_n;
    s.segments = CeilDiv(s.pairs_m, s.group);
  } else {
    if (p.kind == Kind::kAllReduce && IsRing(s)) {
      // About two waves of tiles: with fewer, ranks wait for each other.
      s.segments = std::clamp<uint32_t>(pairs / 132, 1, std::min(kMaxSegments, pairs));
    }
    s.per_segment = CeilDiv(pairs, s.segments);
  }
  uint32_t items = s.segments * s.slices;
  if (IsRing(s)) {
    // Diagonal order: while a segment's sums travel to its next step, other segments make steps.
    uint32_t at = 0;
    for (uint32_t diagonal = 0; diagonal < s.segments + s.n_ranks - 1; ++diagonal) {
      for (uint32_t segment = 0; segment < s.segments; ++segment) {
        if (segment > diagonal || diagonal - segment >= s.n_ranks) continue;
        s.order[at++] = static_cast<uint8_t>(segment << 4 | (diagonal - segment));
      }
    }
    items = at;
  }
  const uint64_t total = uint64_t{items} * s.per_segment;
  if (total >= uint64_t{1} << 30) return "there are more than 2^30 tiles";
  s.total = static_cast<uint32_t>(total);

  const uint64_t wide = DTypeBytes(p.out);
  if (packets) {
    plan->packets_bytes = uint64_t{p.n_ranks + 1} * s.tiles_n * 64 * s.tile_n * wide * 2;
  } else if (IsRing(s)) {
    plan->flags = (p.n_ranks - 1) * tiles * (s.tile_m / 64);
    plan->data_bytes = (p.n_ranks - 1) * tiles * s.tile_m * s.tile_n * wide;
  } else if (p.kind == Kind::kAllGather && p.n_ranks > 1) {
    s.piece_rows = 1;
    s.piece_parts = 1;
    const bool whole = s.slices == 1;
    if (p.copy_stream != nullptr && !whole) {
      // Large pieces suit copy engines. A small share is cut along k, as its tiles run together.
      s.copied = 1;
      const uint32_t rows = s.pairs_m * s.cluster;
      const uint32_t parts = CeilDiv(s.k, kPushK);
      const bool small = uint64_t{rows_max} * s.k * 2 < kLeastRowsBytes;
      s.piece_rows = small ? rows : CeilDiv(rows, kPieces);
      s.piece_parts = small ? CeilDiv(parts, kPieces) : parts;
    }
    plan->flags = PieceOf(s, p.n_ranks, 0, 0);
    plan->data_bytes = p.m * ((p.k + 7) / 8 * 16);
  }
  // More than any memory, and small enough that sums of bytes do not overflow.
  constexpr uint64_t kMostBytes = uint64_t{1} << 46;
  if (plan->data_bytes > kMostBytes || plan->packets_bytes > kMostBytes) {
    return "the workspace would be above 64 TiB";
  }
  return nullptr;
}

uint32_t SignatureOf(const Problem& p, const Plan& plan) {
  // An FNV-1a hash of everything that all ranks must have in common.
  const bool own_n = p.kind == Kind::kAllGather || p.kind == Kind::kAllScatter;
  const bool own_m = p.kind == Kind::kAllScatter;
  const bool own_k = p.kind == Kind::kReduceScatter || p.kind == Kind::kAllReduce;
  const uint64_t words[] = {static_cast<uint64_t>(p.kind),
                            static_cast<uint64_t>(p.in),
                            static_cast<uint64_t>(p.out),
                            p.n_ranks,
                            own_m ? 0 : p.m,
                            own_n ? 0 : p.n,
                            own_k || p.kind == Kind::kAllScatter ? 0 : p.k,
                            own_m   ? 0
                            : own_n ? plan.schedule.tile_m
                                    : static_cast<uint64_t>(plan.tile),
                            plan.schedule.copied,
                            plan.schedule.piece_rows,
                            plan.schedule.piece_parts,
                            own_n ? 0 : plan.schedule.group,
                            own_n ? 0 : plan.schedule.segments,
                            p.workspace_bytes};
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint64_t word : words) {
    for (uint32_t i = 0; i < 8; ++i) hash = (hash ^ (word >> 8 * i & 0xff)) * 0x100000001b3;
  }
  return static_cast<uint32_t>(hash ^ hash >> 32) | 1;
}

uint64_t WorkspaceBytesOf(const Problem& p, const Plan& plan) {
  if (p.n_ranks == 1) return 0;
  const uint64_t unit =
      std::max({UnitsFor(plan.flags * sizeof(uint64_t), 1), UnitsFor(plan.data_bytes, 191),
                UnitsFor(plan.packets_bytes, 64), uint64_t{1024}});
  return kHeaderBytes + 2 * 256 * unit;
}

const char* CheckAndPlan(const Problem& problem, Plan* plan) {
  if (const char* why = MakePlan(problem, plan); why != nullptr) return why;
  if (const char* why = CheckPointers(problem); why != nullptr) return why;
  if (problem.n_ranks <= 1) return nullptr;
  if (problem.workspace_bytes < WorkspaceBytesOf(problem, *plan)) {
    return "the workspace is too small: see WorkspaceBytes";
  }
  for (uint32_t r = 0; r < problem.n_ranks; ++r) {
    if (problem.workspace[r] == nullptr || !IsAligned(problem.workspace[r], 128)) {
      return "every rank must have a workspace, aligned to 128 bytes";
    }
  }
  return nullptr;
}

bool Supports(const Problem& problem, const char** why) {
  Plan plan;
  *why = CheckAndPlan(problem, &plan);
  return *why == nullptr;
}

uint64_t WorkspaceBytes(const Problem& problem) {
  Plan plan;
  return MakePlan(problem, &plan) == nullptr ? WorkspaceBytesOf(problem, plan) : 0;
}

}  // namespace iris::backend::cuda::matmul
