// The schedules of the matrix kernels, run by a model of ranks and blocks; and what is refused.
#include "iris/backend/cuda/matmul/plan.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace iris::backend::cuda::matmul {
namespace {

alignas(128) char memory[2048];

Problem ProblemOf(Kind kind, uint64_t m, uint64_t n, uint64_t k, uint32_t rank, uint32_t n_ranks) {
  Problem p;
  p.kind = kind;
  p.in = p.out = DType::kBf16;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a = memory;
  p.lda = (k + 7) / 8 * 8;
  p.b = memory;
  p.ldb = (n + 7) / 8 * 8;
  p.ldd = n;
  p.rank = rank;
  p.n_ranks = n_ranks;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    p.d[r] = memory;
    p.workspace[r] = memory;
  }
  p.workspace_bytes = WorkspaceBytes(p);
  return p;
}

Plan PlanOf(const Problem& p, Tile tile = Tile::kAny) {
  Plan plan;
  const char* why = MakePlan(p, &plan, tile);
  EXPECT_EQ(nullptr, why) << why;
  return plan;
}

struct Shape {
  uint64_t m;
  uint64_t n;
};
constexpr Shape kShapes[] = {{2100, 1100}, {1000, 776}, {129, 1}, {65, 5000},
                             {1500, 300},  {64, 500},   {16, 64}};
constexpr Kind kKinds[] = {Kind::kReduceScatter, Kind::kAllReduce, Kind::kAllGather,
                           Kind::kAllScatter};
constexpr Tile kTiles[] = {Tile::k128x256, Tile::k128x128, Tile::k128x128InTurns};

// Calls `body` with a plan for each rank.
template <typename Body>
void ForEachJob(Body body) {
  for (const Kind kind : kKinds) {
    for (const Shape& shape : kShapes) {
      for (const uint32_t n_ranks : {1u, 2u, 3u, 8u, 16u}) {
        for (const Tile tile : kTiles) {
          std::vector<Plan> plans;
          for (uint32_t r = 0; r < n_ranks; ++r) {
            const Problem p = ProblemOf(kind, shape.m, shape.n, 640, r, n_ranks);
            plans.push_back(PlanOf(p, tile));
          }
          SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) + ", " +
                       std::to_string(shape.m) + " x " + std::to_string(shape.n) + ", " +
                       std::to_string(n_ranks) + " ranks");
          body(plans);
        }
      }
    }
  }
}

TEST(ScheduleTest, EveryElementIsDoneOncePerRank) {
  ForEachJob([](const std::vector<Plan>& plans) {
    for (const Plan& plan : plans) {
      const Schedule& s = plan.schedule;
      std::set<std::pair<uint32_t, uint32_t>> corners;
      std::set<std::tuple<uint32_t, uint32_t>> indices;
      uint64_t elements = 0;
      for (uint32_t t = 0; t < s.total; ++t) {
        for (uint32_t place = 0; place < s.cluster; ++place) {
          Work work;
          if (!WorkAt(s, t, place, &work)) continue;
          ASSERT_LT(work.index, TilesOfSlice(s));
          ASSERT_TRUE(indices.insert({work.slice, work.index}).second);
          if (work.row >= work.end) continue;
          ASSERT_LE(work.end, s.m);
          ASSERT_LT(work.column, s.n);
          ASSERT_TRUE(corners.insert({work.row, work.column}).second);
          elements += uint64_t{std::min(work.end - work.row, s.tile_m)} *
                      std::min(s.n - work.column, s.tile_n);
        }
      }
      ASSERT_EQ(uint64_t{s.m} * s.n, elements);
    }
  });
}

// Blocks of every rank take their tiles in order and wait for what another rank has to send first.
// Any number of blocks, at any rank, comes to the end.
TEST(ScheduleTest, NoRingWaitsForItself) {
  std::mt19937 random(20261123);
  ForEachJob(
      [&random](const std::vector<Plan>& plans) {
        const uint32_t n_ranks = static_cast<uint32_t>(plans.size());
        if (!IsRing(plans[0].schedule)) return;
        struct Block {
          uint32_t t;
          uint32_t stride;
        };
        std::vector<std::vector<Block>> blocks(n_ranks);
        for (uint32_t r = 0; r < n_ranks; ++r) {
          const uint32_t workers = 1 + random() % 40;
          for (uint32_t w = 0; w < workers; ++w) blocks[r].push_back({w, workers});
        }
        // By rank: (step, tile) that has come from the rank before.
        std::vector<std::set<std::pair<uint32_t, uint32_t>>> sent(n_ranks);
        std::map<uint32_t, uint32_t> finished;
        bool moves = true;
        while (moves) {
          moves = false;
          for (uint32_t r = 0; r < n_ranks; ++r) {
            const Schedule& s = plans[r].schedule;
            for (Block& block : blocks[r]) {
              while (block.t < s.total) {
                Work work[2];
                bool there = true;
                bool ready = true;
                for (uint32_t place = 0; place < s.cluster; ++place) {
                  there = WorkAt(s, block.t, place, &work[place]);
                  if (!there || work[place].step == 0 || work[place].row >= work[place].end)
                    continue;
                  ready = ready && sent[r].count({work[place].step, work[place].index}) != 0;
                }
                if (there && !ready) break;
                moves = true;
                block.t += block.stride;
                for (uint32_t place = 0; there && place < s.cluster; ++place) {
                  if (work[place].row >= work[place].end) continue;
                  if (work[place].step == n_ranks - 1) {
                    ASSERT_EQ(r, work[place].slice);
                    ++finished[r];
                  } else {
                    sent[(r + 1) % n_ranks].insert({work[place].step + 1, work[place].index});
                  }
                }
              }
            }
          }
        }
        for (uint32_t r = 0; r < n_ranks; ++r) {
          const Schedule& s = plans[r].schedule;
          for (const Block& block : blocks[r])
            ASSERT_GE(block.t, s.total) << "rank " << r << " hangs";
          ASSERT_GT(finished[r], 0u)
              << "a rank without a tile of its own would not wait for the others";
        }
      });
}

// Every part of every row of tiles belongs to one piece, and a piece to one rank; the plan counts
// them.
TEST(ScheduleTest, PiecesOfAGatheredMatrixAreToldApart) {
  for (const bool copies : {false, true}) {
    for (const uint64_t k : {64u, 1000u, 14336u}) {
      for (const uint32_t n_ranks : {2u, 3u, 8u}) {
        Problem p = ProblemOf(Kind::kAllGather, 8195, 512, k, 0, n_ranks);
        if (copies) p.copy_stream = memory;
        const Plan plan = PlanOf(p);
        const Schedule& s = plan.schedule;
        EXPECT_EQ(copies ? 1u : 0u, s.copied);
        std::map<uint64_t, uint32_t> owners;
        for (uint32_t rank = 0; rank < n_ranks; ++rank) {
          for (uint32_t row = 0; row < s.pairs_m * s.cluster; ++row) {
            for (uint32_t part = 0; part < CeilDiv(s.k, kPushK); ++part) {
              const uint64_t piece = PieceOf(s, rank, row, part);
              ASSERT_LT(piece, plan.flags);
              ASSERT_EQ(rank, owners.insert({piece, rank}).first->second);
              // A piece begins where the sender begins it.
              ASSERT_EQ(piece, PieceOf(s, rank, row / s.piece_rows * s.piece_rows,
                                       part / s.piece_parts * s.piece_parts));
            }
          }
        }
        EXPECT_EQ(plan.flags, owners.size());
      }
    }
  }
}

TEST(PlanTest, TheHalvesOfAWorkspaceHoldWhatIsAsked) {
  ForEachJob([](const std::vector<Plan>& plans) {
    const Schedule& s = plans[0].schedule;
    Problem p = ProblemOf(s.kind, s.m, s.n, s.k, 0, s.n_ranks);
    const uint64_t bytes = WorkspaceBytesOf(p, plans[0]);
    if (s.n_ranks == 1) {
      EXPECT_EQ(0u, bytes);
      return;
    }
    uint64_t end = kHeaderBytes;
    for (uint32_t parity = 0; parity < 2; ++parity) {
      const Half half = HalfAt(bytes, parity);
      EXPECT_GE(half.flags_offset_bytes, end);
      EXPECT_GE(half.flags, plans[0].flags);
      EXPECT_GE(half.data_offset_bytes, half.flags_offset_bytes + half.flags * 8);
      EXPECT_GE(half.data_bytes, plans[0].data_bytes);
      EXPECT_GE(half.packets_offset_bytes, half.data_offset_bytes + half.data_bytes);
      EXPECT_GE(half.packets_bytes, plans[0].packets_bytes);
      end = half.packets_offset_bytes + half.packets_bytes;
    }
    EXPECT_LE(end, bytes);
  });
}

TEST(PlanTest, RanksOfOneCallHaveOneSignatureAndOtherCallsAnother) {
  const auto signature = [](const Problem& p) { return SignatureOf(p, PlanOf(p)); };
  const Problem one = ProblemOf(Kind::kReduceScatter, 512, 512, 512, 0, 4);
  Problem other = ProblemOf(Kind::kReduceScatter, 512, 512, 520, 3, 4);
  other.workspace_bytes = one.workspace_bytes;
  EXPECT_EQ(signature(one), signature(other)) << "k is each rank's own";
  other.n = 504;
  EXPECT_NE(signature(one), signature(other));
  other = one;
  other.out = DType::kF32;
  EXPECT_NE(signature(one), signature(other));
  other = one;
  other.kind = Kind::kAllReduce;
  EXPECT_NE(signature(one), signature(other));
}

TEST(PlanTest, WhatOtherOperationsLeaveIsNoFlagOfAnotherCall) {
  // Launch 16256 of a workspace, and the elements 1 and 0 of bfloat16, where others had their data.
  constexpr uint32_t kEpoch = 16256;
  constexpr uint64_t kLeft = uint64_t{0x3f80} << 32 | 0x3f80;
  static_assert(static_cast<uint32_t>(kLeft) == kEpoch);
  EXPECT_FALSE(IsOfAnotherCall(static_cast<uint32_t>(kLeft), kEpoch, true));
  // Without these, a flag is of a rank with another call.
  const uint64_t other = FlagOf(0x1234567, kEpoch);
  EXPECT_TRUE(IsOfAnotherCall(static_cast<uint32_t>(other), kEpoch, false));
  EXPECT_FALSE(IsOfAnotherCall(static_cast<uint32_t>(other), kEpoch + 1, false));
}

TEST(PlanTest, RefusalsSayWhy) {
  const Problem good = ProblemOf(Kind::kAllReduce, 512, 512, 512, 1, 4);
  const char* why = nullptr;
  ASSERT_TRUE(Supports(good, &why)) << why;
  const auto refuses = [&good](const char* part, auto change) {
    Problem p = good;
    change(&p);
    const char* said = nullptr;
    EXPECT_FALSE(Supports(p, &said)) << part;
    const std::string text = said == nullptr ? "" : said;
    EXPECT_NE(std::string::npos, text.find(part)) << text;
  };
  refuses("float16 or bfloat16", [](Problem* p) { p->in = DType::kF32; });
  refuses("type of A, or float32", [](Problem* p) { p->out = DType::kF16; });
  refuses("1 to 16 ranks", [](Problem* p) { p->n_ranks = 17; });
  refuses("1 to 16 ranks", [](Problem* p) { p->n_ranks = 0; });
  refuses("below the number of ranks", [](Problem* p) { p->rank = 4; });
  refuses("at least 1", [](Problem* p) { p->k = 0; });
  refuses("below 2^31", [](Problem* p) { p->n = uint64_t{1} << 31; });
  refuses("as many rows as ranks", [](Problem* p) { p->m = 3; });
  refuses("less than a row", [](Problem* p) { p->lda = 504; });
  refuses("above 2^36", [](Problem* p) { p->ldd = ~uint64_t{0}; });
  refuses("multiples of 8", [](Problem* p) { p->ldb = 513; });
  refuses("A and B must be there", [](Problem* p) { p->b = nullptr; });
  refuses("aligned to 16", [](Problem* p) { p->a = memory + 8; });
  refuses("D must be there", [](Problem* p) { p->d[3] = nullptr; });
  refuses("D must be aligned", [](Problem* p) { p->d[1] = memory + 1; });
  refuses("bias must be aligned", [](Problem* p) {
    p->bias = memory + 1;
    p->bias_type = DType::kF16;
  });
  refuses("type of the bias", [](Problem* p) { p->bias = memory; });
  refuses("two events", [](Problem* p) { p->copy_stream = memory; });
  refuses("have a workspace", [](Problem* p) { p->workspace[2] = nullptr; });
  refuses("too small", [](Problem* p) { --p->workspace_bytes; });
  refuses("more than 2^30 tiles", [](Problem* p) {
    p->m = (uint64_t{1} << 31) - 1;
    p->n = p->m;
    p->ldb = p->ldd = uint64_t{1} << 31;
  });
  refuses("64 TiB", [](Problem* p) {
    p->kind = Kind::kAllGather;
    p->m = (uint64_t{1} << 31) - 1;
    p->k = p->m;
    p->lda = uint64_t{1} << 31;
  });
  refuses("kind", [](Problem* p) { p->kind = static_cast<Kind>(4); });
  refuses("activation", [](Problem* p) { p->activation = static_cast<Activation>(4); });
  EXPECT_EQ(0u, WorkspaceBytes(Problem()));
}

}  // namespace
}  // namespace iris::backend::cuda::matmul
