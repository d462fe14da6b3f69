// The examples of docs/device, run as they stand there: tests/docs/snippets.py makes device_pages.h
// from the text of the pages.
#include "tests/docs/device_pages.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

std::vector<float> Counting(uint64_t n, float first) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(DevicePagesTest, LoadStore) {
  World(3).Run([](Rank& rank) {
    float* x = rank.New<float>(100);
    float* sums = rank.New<float>(128);
    rank.Write(x, std::vector<float>(100, static_cast<float>(rank.rank() + 1)));
    rank.HostBarrier();
    rank.Launch({2, 64}, docs::load_store::SumOfVectors, rank.ctx, static_cast<const float*>(x),
                sums, uint64_t{100});
    std::vector<float> expected(128, 6.0f);
    std::fill(expected.begin() + 100, expected.end(), 0.0f);
    EXPECT_EQ(rank.Read(sums, 128), expected);
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, GetPut) {
  World(3).Run([](Rank& rank) {
    float* mine = rank.New<float>(1024);
    float* theirs = rank.New<float>(1024);
    float* relayed = rank.New<float>(1024);
    rank.Write(mine, Counting(1024, 1000.0f * rank.rank()));
    rank.HostBarrier();
    const float* from = mine;
    rank.Launch({2, 64}, docs::get_put::SendParts, rank.ctx, from, theirs, uint64_t{700});
    rank.Launch({1, 64}, docs::get_put::Relay, rank.ctx, 0u, 2u, from, relayed, uint64_t{33});
    rank.Synchronize();
    rank.HostBarrier();
    std::vector<float> expected(1024);
    const std::vector<float> sent = Counting(700, 1000.0f * ((rank.rank() + 2) % 3));
    std::copy(sent.begin(), sent.end(), expected.begin());
    EXPECT_EQ(rank.Read(theirs, 1024), expected);
    if (rank.rank() == 2) {
      EXPECT_EQ(rank.Read(relayed, 33), Counting(33, 0.0f));
    }
  });
}

TEST(DevicePagesTest, TileGrid) {
  World(2).Run([](Rank& rank) {
    constexpr uint32_t kRows = 70, kColumns = 45;  // no multiples of a tile
    float* mine = rank.New<float>(kRows * kColumns);
    float* theirs = rank.New<float>(kRows * kColumns);
    rank.Write(mine, Counting(kRows * kColumns, 10000.0f * rank.rank()));
    rank.HostBarrier();
    const float* from = mine;
    rank.Launch({3, 64}, docs::tiles::PutTilesToNext, rank.ctx, from, theirs, kRows, kColumns);
    rank.Synchronize();
    rank.HostBarrier();
    EXPECT_EQ(rank.Read(theirs, kRows * kColumns),
              Counting(kRows * kColumns, 10000.0f * (1 - rank.rank())));
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, TileProduct) {
  World(2).Run([](Rank& rank) {
    // No dimension is a multiple of a tile, and rows begin at any multiple of 2 bytes.
    constexpr uint32_t kM = 137, kN = 139, kK = 45;
    const auto element = [](uint32_t matrix, uint32_t of, uint32_t line, uint32_t k) {
      return static_cast<float>((line * 7 + k * 3 + line * k % 11 + matrix + of) % 8) - 3.0f;
    };
    const auto matrix = [&](uint32_t which, uint32_t lines) {
      std::vector<Bfloat16> values(lines * kK);
      for (uint32_t i = 0; i < lines * kK; ++i) {
        values[i] = Bfloat16(element(which, rank.rank(), i / kK, i % kK));
      }
      Bfloat16* const there = rank.New<Bfloat16>(values.size());
      rank.Write(there, values);
      return static_cast<const Bfloat16*>(there);
    };
    const Bfloat16* const a = matrix(0, kM);
    const Bfloat16* const b = matrix(1, kN);
    float* const d = rank.New<float>(kM * kN);
    rank.Write(d, std::vector<float>(kM * kN, -1.0f));
    rank.HostBarrier();
    rank.Launch({3, TileProduct<Bfloat16>::kThreads}, docs::tile_product::MultiplyForNext, rank.ctx,
                a, b, d, kM, kN, kK);
    rank.Synchronize();
    rank.HostBarrier();
    const std::vector<float> got = rank.Read(d, kM * kN);
    for (uint32_t i = 0; i < kM * kN; ++i) {
      float sum = 0;
      for (uint32_t k = 0; k < kK; ++k) {
        sum += element(0, 1 - rank.rank(), i / kN, k) * element(1, 1 - rank.rank(), i % kN, k);
      }
      ASSERT_EQ(got[i], std::max(sum, 0.0f)) << "row " << i / kN << ", column " << i % kN;
    }
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, TileAttention) {
  constexpr uint32_t kQueries = 70, kMaxKeys = 50, kDim = 64;
  const auto keys_of = [](uint32_t rank) { return 50 - 17 * rank; };
  // An element of line i of the queries of a rank, or of its keys, or of its values.
  const auto element = [](uint32_t which, uint32_t rank, uint32_t i, uint32_t d) {
    return static_cast<float>((i * (2 + which) + d * 5 + rank * 11) % 31) / 16.0f - 0.9375f;
  };
  World(2, 4 << 20).Run([&](Rank& rank) {
    const auto lines = [&](uint32_t which, uint32_t n) {
      std::vector<Half> values(n * kDim);
      for (uint32_t i = 0; i < n * kDim; ++i) {
        values[i] = Half(element(which, rank.rank(), i / kDim, i % kDim));
      }
      Half* const there = rank.New<Half>(values.size());
      rank.Write(there, values);
      return static_cast<const Half*>(there);
    };
    const Half* const q = lines(0, kQueries);
    const Half* const k = lines(1, kMaxKeys);
    const Half* const v = lines(2, kMaxKeys);
    uint32_t* const n_keys = rank.New<uint32_t>(1);
    rank.Write(n_keys, keys_of(rank.rank()));
    float* const o = rank.New<float>(kQueries * kDim);
    float* const m = rank.New<float>(kQueries);
    float* const l = rank.New<float>(kQueries);
    float* const one = rank.New<float>(kDim);
    using Attention = iris::TileAttention<Half, kDim>;
    ASSERT_TRUE(
        backend::PrepareKernel(docs::tile_attention::AttendToAll, Attention::kSharedBytes).ok());
    rank.HostBarrier();
    const uint32_t* const n = n_keys;
    rank.Launch({2, Attention::kThreads, Attention::kSharedBytes},
                docs::tile_attention::AttendToAll, rank.ctx, q, kQueries, k, v, n,
                Attention::State{o, m, l});
    rank.Launch({1, RowAttention<Half, kDim>::kThreads}, docs::tile_attention::AttendWithOne,
                rank.ctx, q + 3 * kDim, k, v, n, one);
    const std::vector<float> got = rank.Read(o, kQueries * kDim);
    const std::vector<float> got_one = rank.Read(one, kDim);
    for (uint32_t row = 0; row < kQueries; ++row) {
      std::vector<double> sums(kDim);
      double total = 0;
      for (uint32_t peer = 0; peer < 2; ++peer) {
        for (uint32_t key = 0; key < keys_of(peer); ++key) {
          double score = 0;
          for (uint32_t d = 0; d < kDim; ++d) {
            score += element(0, rank.rank(), row, d) * element(1, peer, key, d);
          }
          const double weight = std::exp(score / 8);  // the root of 64
          total += weight;
          for (uint32_t d = 0; d < kDim; ++d) sums[d] += weight * element(2, peer, key, d);
        }
      }
      for (uint32_t d = 0; d < kDim; ++d) {
        ASSERT_NEAR(got[row * kDim + d], sums[d] / total, 1.0 / 1024) << "row " << row;
        if (row == 3) {
          ASSERT_NEAR(got_one[d], sums[d] / total, 1e-4);
        }
      }
    }
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, Tiles) {
  World(2).Run([](Rank& rank) {
    constexpr uint64_t kRows = 37, kColumns = 50;
    float* x = rank.New<float>(kRows * kColumns);
    float* y = rank.New<float>(kRows * kColumns);
    rank.Write(x, Counting(kRows * kColumns, 5000.0f * rank.rank()));
    rank.HostBarrier();
    rank.Launch({3, 64}, docs::tiles::TransposeOfNext, rank.ctx, static_cast<const float*>(x), y,
                kRows, kColumns);
    const std::vector<float> got = rank.Read(y, kRows * kColumns);
    for (uint64_t r = 0; r < kRows; ++r) {
      for (uint64_t c = 0; c < kColumns; ++c) {
        ASSERT_EQ(got[c * kRows + r], 5000.0f * rank.next() + static_cast<float>(r * kColumns + c));
      }
    }
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, Atomics) {
  World(3).Run([](Rank& rank) {
    constexpr uint32_t kBins = 10, kValues = 600;
    uint32_t* values = rank.New<uint32_t>(kValues);
    uint32_t* counts = rank.New<uint32_t>(kBins + 2);
    double* largest = rank.New<double>(1);
    std::vector<uint32_t> numbers(kValues);
    for (uint32_t i = 0; i < kValues; ++i) numbers[i] = i % (kBins + 2);
    rank.Write(values, numbers);
    rank.HostBarrier();
    rank.Launch({2, 32}, docs::atomics::Histogram, rank.ctx, static_cast<const uint32_t*>(values),
                uint64_t{kValues}, counts, kBins, largest);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() == 0) {
      std::vector<uint32_t> expected(kBins + 2, 3 * kValues / (kBins + 2));
      expected[kBins] = expected[kBins + 1] = 0;
      EXPECT_EQ(rank.Read(counts, kBins + 2), expected);
      EXPECT_EQ(rank.Read(largest), static_cast<double>(kBins + 1));
    }
  });
}

TEST(DevicePagesTest, Signals) {
  World(3).Run([](Rank& rank) {
    float* numbers = rank.New<float>(100);
    float* inbox = rank.New<float>(100);
    uint64_t* arrived = rank.New<uint64_t>(1);
    uint64_t* done = rank.New<uint64_t>(1);
    float* sum = rank.New<float>(1);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(numbers, Counting(100, 1.0f));
    rank.HostBarrier();
    rank.Launch({1, 64}, docs::signals::Distribute, rank.ctx, static_cast<const float*>(numbers),
                inbox, uint64_t{100}, arrived, done, sum, failed);
    EXPECT_EQ(rank.Read(sum), rank.rank() == 0 ? 0.0f : 5050.0f);
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

TEST(DevicePagesTest, Barriers) {
  World(4).Run([](Rank& rank) {
    uint64_t* boxes = rank.New<uint64_t>(2);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(boxes, std::vector<uint64_t>{rank.rank() + 1, 0});
    rank.HostBarrier();
    rank.Launch({1, 32}, docs::barriers::Rounds, rank.ctx, boxes, 10u, failed);
    // Ten ranks further back began with it.
    EXPECT_EQ(rank.Read(boxes), 1024u * ((rank.rank() + 2) % 4 + 1));
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

TEST(DevicePagesTest, HeapBases) {
  World(3).Run([](Rank& rank) {
    uint64_t* table = rank.New<uint64_t>(3);
    float* x = rank.New<float>(77);
    float* y = rank.New<float>(77);
    uint32_t* finished = rank.New<uint32_t>(1);
    rank.Write(x, Counting(77, 100.0f * rank.rank()));
    rank.Launch({}, docs::heap_bases::TableOf, rank.ctx, table);
    rank.Synchronize();
    rank.HostBarrier();
    rank.Launch({1, 40}, docs::heap_bases::ForeignKernel, static_cast<const uint64_t*>(table),
                rank.rank(), 3u, static_cast<const float*>(x), y, uint64_t{77}, finished);
    rank.Synchronize();
    rank.HostBarrier();
    EXPECT_EQ(rank.Read(y, 77), Counting(77, 100.0f * ((rank.rank() + 2) % 3)));
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.Read(finished), 3u);
    }
  });
}

TEST(DevicePagesTest, TileSignals) {
  World(2).Run([](Rank& rank) {
    constexpr uint64_t kRows = 37, kColumns = 48, kTiles = 9;
    float* d = rank.New<float>(kRows * kColumns);
    uint64_t* arrived = rank.New<uint64_t>(1);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.HostBarrier();
    rank.Launch({2, 64}, docs::tile_signals::MakeTiles, rank.ctx, d, kRows, kColumns, arrived);
    rank.Launch({1, 32}, docs::tile_signals::AwaitTiles, rank.ctx,
                static_cast<const uint64_t*>(arrived), kTiles, failed);
    EXPECT_EQ(rank.Read(failed), 0u);
    EXPECT_EQ(rank.Read(d, kRows * kColumns), Counting(kRows * kColumns, 0.0f));
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, SplitBarriers) {
  World(3).Run([](Rank& rank) {
    float* give = rank.New<float>(100);
    float* inbox = rank.New<float>(100);
    float* own = rank.New<float>(100);
    float* sums = rank.New<float>(2);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(give, std::vector<float>(100, static_cast<float>(rank.rank() + 1)));
    rank.Write(own, Counting(100, 1.0f));
    rank.HostBarrier();
    rank.Launch({1, 40}, docs::split_barriers::GiveAndAdd, rank.ctx,
                static_cast<const float*>(give), inbox, static_cast<const float*>(own),
                uint64_t{100}, sums, failed);
    EXPECT_EQ(rank.Read(failed), 0u);
    const float previous = static_cast<float>((rank.rank() + 2) % 3 + 1);
    EXPECT_EQ(rank.Read(sums, 2), (std::vector<float>{5050.0f, 100 * previous}));
    rank.HostBarrier();
  });
}

TEST(DevicePagesTest, Rings) {
  World(2).Run([](Rank& rank) {
    constexpr uint64_t kRows = 30;
    uint32_t* table = rank.New<uint32_t>(kRows * 64);
    uint64_t* arrived = rank.New<uint64_t>(1);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.HostBarrier();
    rank.Launch({1, 4 * backend::WarpSize()}, docs::rings::MakeAndSendRows, rank.ctx, table, kRows,
                arrived, failed);
    rank.Launch({1, 32}, docs::tile_signals::AwaitTiles, rank.ctx,
                static_cast<const uint64_t*>(arrived), kRows, failed);
    EXPECT_EQ(rank.Read(failed), 0u);
    std::vector<uint32_t> expected(kRows * 64);
    std::iota(expected.begin(), expected.end(), 0u);
    EXPECT_EQ(rank.Read(table, kRows * 64), expected);
    rank.HostBarrier();
  });
}

}  // namespace
}  // namespace iris::conformance
