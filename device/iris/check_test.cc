// Tests the emulator's report for a wrong peer, address or alignment in the device API.
#include "iris/impl/check.h"

#include <sys/mman.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "iris/backend/select.h"
#include "iris/device.h"

namespace iris {
namespace {

using ::testing::ContainsRegex;
using ::testing::KilledBySignal;

constexpr uint64_t kStride = 64 * 1024;
constexpr uint64_t kMappedBytes = kStride / 2;

// "counters" is at offset 1024, 256 bytes long; the memory of Iris at 8192, 4096 bytes long.
bool NearestOfTest(const backend::HeapMap*, uint32_t rank, uint64_t offset,
                   backend::HeapRange* out) {
  if (rank > 1) return false;
  *out = backend::HeapRange();
  if (offset < 4096) {
    out->offset_bytes = 1024;
    out->bytes = 256;
    snprintf(out->name, sizeof(out->name), "counters");
  } else {
    out->offset_bytes = 8192;
    out->bytes = 4096;
    out->internal = 1;
    snprintf(out->name, sizeof(out->name), "the barrier area of team 0");
  }
  return true;
}

bool AllowedByTest(const backend::HeapMap* map, uint32_t rank, uint64_t offset, uint64_t bytes,
                   char* why, uint64_t why_bytes) {
  backend::HeapRange range;
  if (NearestOfTest(map, rank, offset, &range) && range.internal == 0 &&
      offset >= range.offset_bytes && offset + bytes <= range.offset_bytes + range.bytes) {
    return true;
  }
  if (why != nullptr) {
    snprintf(why, why_bytes, "offset %d of rank %u is refused", static_cast<int>(offset), rank);
  }
  return false;
}

// The heaps of three ranks, the first half of each mapped. The test is rank 1.
class CheckTest : public testing::Test {
 protected:
  void SetUp() override {
    // A forked child has no workers: start a new process instead.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    void* const window =
        mmap(nullptr, 3 * kStride, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(window, MAP_FAILED);
    ctx_.rank = 1;
    ctx_.n_ranks = 3;
    ctx_.base = reinterpret_cast<uint64_t>(window);
    ctx_.stride_bytes = kStride;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(mprotect(AtOffset<void>(ctx_, rank, 0), kMappedBytes, PROT_READ | PROT_WRITE), 0);
    }
    map_.nearest = &NearestOfTest;
    ctx_.heap_map = &map_;
    ctx_.world.size = 3;
    ctx_.world.index = 1;
    mine_ = AtOffset<uint8_t>(ctx_, 1, 0);
  }
  void TearDown() override { munmap(reinterpret_cast<void*>(ctx_.base), 3 * kStride); }

  template <typename... Params, typename... Args>
  void Run(void (*kernel)(Params...), Args... args) {
    backend::Stream stream;
    ASSERT_TRUE(backend::Stream::Create(&stream).ok());
    ASSERT_TRUE(backend::Launch({2, 4}, stream, kernel, args...).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
  }

  DeviceContext ctx_;
  backend::HeapMap map_;
  uint8_t* mine_ = nullptr;
};

bool Chosen() { return backend::BlockIndex() == 1 && backend::ThreadIndex() == 3; }

IRIS_KERNEL void StoreTo(DeviceContext ctx, uint32_t peer, uint8_t* p) {
  if (Chosen()) Store(ctx, peer, reinterpret_cast<uint32_t*>(p), 1u);
}

TEST_F(CheckTest, AWrongPeerIsNamedWithKernelRankBlockThreadAndAddress) {
  EXPECT_EXIT(
      Run(&StoreTo, ctx_, 7u, mine_ + 1024), KilledBySignal(SIGABRT),
      ContainsRegex("iris: rank 1: kernel iris::StoreTo, block 1, thread 3: Store of 4 bytes "
                    "at 0x[0-9a-f]+ for rank 7: there is no rank 7 in a job of 3: ranks are "
                    "0 to 2.*at offset 1024 of the heap of rank 1 \\(this rank\\); 0 bytes "
                    "inside \"counters\" \\(offset 1024 to 1280\\)"));
}

TEST_F(CheckTest, AnAddressInNoHeap) {
  static uint8_t elsewhere[8];
  EXPECT_DEATH(Run(&StoreTo, ctx_, 0u, &elsewhere[0]),
               "Store of 4 bytes.*: the address is outside the heap: give an address that Allocate "
               "returned.*the address is in no heap");
  EXPECT_DEATH(Run(&StoreTo, ctx_, 0u, static_cast<uint8_t*>(nullptr)), "a null pointer plus 0");
}

TEST_F(CheckTest, AnAddressInTheHeapOfAPeer) {
  EXPECT_DEATH(Run(&StoreTo, ctx_, 2u, mine_ + kStride + 16),
               "in the heap of another rank: give the address of the own copy, and the peer as the "
               "rank.*at offset 16 of the heap of rank 2; the nearest|at offset 16 of the heap of "
               "rank 2");
}

TEST_F(CheckTest, AnAddressBehindTheLastHeap) {
  EXPECT_DEATH(Run(&StoreTo, ctx_, 2u, mine_ + 2 * kStride + 16), "16 bytes behind the last heap");
}

IRIS_KERNEL void PutTo(DeviceContext ctx, uint8_t* dst, const uint8_t* src, uint64_t bytes) {
  if (Chosen()) Put(ctx, 0, dst, src, bytes);
}

TEST_F(CheckTest, ARangeThatLeavesTheHeap) {
  EXPECT_DEATH(Run(&PutTo, ctx_, mine_ + kStride - 8, mine_, uint64_t{16}),
               "Put of 16 bytes.*the range ends behind the heap, which has room for 65536 bytes");
}

IRIS_KERNEL void PutRowsTo(DeviceContext ctx, float* dst, const float* src, Strided rows) {
  if (Chosen()) Put(ctx, 0, dst, src, rows);
}
IRIS_KERNEL void GetRowsFrom(DeviceContext ctx, float* dst, const float* src, Strided rows) {
  if (Chosen()) Get(ctx, 0, dst, src, rows);
}
IRIS_KERNEL void PutAndSignal(DeviceContext ctx, float* dst, const float* src, uint64_t count,
                              uint8_t* word) {
  if (Chosen()) PutSignal(ctx, 0, dst, src, count, {reinterpret_cast<uint64_t*>(word), 1});
}

TEST_F(CheckTest, RowsAndElementsThatLeaveTheHeap) {
  float* const here = reinterpret_cast<float*>(mine_);
  float* const end = reinterpret_cast<float*>(mine_ + kStride);
  const Strided column = {3, 1, 8, 1};  // 17 floats from first to last
  EXPECT_DEATH(Run(&PutRowsTo, ctx_, end - 16, here, column),
               "Put of 68 bytes.*the range ends behind the heap");
  EXPECT_DEATH(Run(&GetRowsFrom, ctx_, here, end - 2, column),
               "Get of 12 bytes.*the range ends behind the heap");
  EXPECT_DEATH(Run(&PutAndSignal, ctx_, end - 4, here, uint64_t{5}, mine_),
               "PutSignal of 20 bytes.*the range ends behind the heap");
  EXPECT_DEATH(Run(&PutAndSignal, ctx_, here + 256, here, uint64_t{5}, mine_ + 4), "SignalSet.*");
}

TEST_F(CheckTest, TheOtherSideOfACopyMayNotLeaveItsHeapEither) {
  EXPECT_DEATH(Run(&PutTo, ctx_, mine_, mine_ + kStride - 8, uint64_t{16}),
               "Put of 16 bytes.*the range ends behind the heap");
}

TEST_F(CheckTest, NothingIsCheckedOfNoBytesAndOrdinaryCallsPass) {
  Run(&PutTo, ctx_, static_cast<uint8_t*>(nullptr), static_cast<const uint8_t*>(nullptr),
      uint64_t{0});
  static uint8_t elsewhere[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  Run(&PutTo, ctx_, mine_ + 1024, &elsewhere[0], uint64_t{8});
  EXPECT_EQ(AtOffset<uint8_t>(ctx_, 0, 1024)[7], 8);
}

IRIS_KERNEL void AddTo(DeviceContext ctx, uint8_t* p) {
  if (Chosen()) (void)AtomicAdd(ctx, 2, reinterpret_cast<uint64_t*>(p), uint64_t{1});
}
IRIS_KERNEL void Signal(DeviceContext ctx, uint8_t* p) {
  if (Chosen()) SignalSet(ctx, 2, reinterpret_cast<uint64_t*>(p), 1);
}
IRIS_KERNEL void WaitFor(DeviceContext ctx, uint8_t* p) {
  if (Chosen()) (void)WaitUntil(ctx, reinterpret_cast<uint64_t*>(p), Compare::kEq, 0);
}

TEST_F(CheckTest, WordsThatAreNotAligned) {
  EXPECT_DEATH(
      Run(&AddTo, ctx_, mine_ + 1028),
      "AtomicAdd of 8 bytes at 0x[0-9a-f]+ for rank 2: the address is not aligned: it must "
      "be a multiple of 8.*4 bytes inside \"counters\"");
  EXPECT_DEATH(Run(&Signal, ctx_, mine_ + 1025), "SignalSet of 8 bytes.*not aligned");
  EXPECT_DEATH(Run(&StoreTo, ctx_, 0u, mine_ + 1026), "Store of 4 bytes.*multiple of 4");
  EXPECT_DEATH(Run(&WaitFor, ctx_, mine_ + 1028),
               "iris: rank 1: kernel .*WaitFor.*of 8 bytes at 0x[0-9a-f]+: .*multiple of 8");
}

IRIS_KERNEL void AskForMember(DeviceContext ctx, uint32_t index, uint8_t* out) {
  if (Chosen()) *out = static_cast<uint8_t>(MemberRank(ctx.world, index));
}

TEST_F(CheckTest, AnIndexThatTheTeamDoesNotHave) {
  EXPECT_DEATH(Run(&AskForMember, ctx_, 3u, mine_),
               "rank 1: .*AskForMember.*MemberRank: the team has no member 3: it has 3");
}

IRIS_KERNEL void MeetOthers(DeviceContext ctx, DeviceTeam team) { (void)Barrier(ctx, team); }

TEST_F(CheckTest, ABarrierOfATeamOfOthers) {
  DeviceTeam others;
  others.size = others.index = 1;
  EXPECT_DEATH(Run(&MeetOthers, ctx_, others), "Barrier: this rank is not a member of the team");
}

IRIS_KERNEL void TranslateTo(DeviceContext ctx, uint32_t peer, uint8_t* p) {
  if (Chosen()) *Translate(ctx, peer, p) = 1;
}

TEST_F(CheckTest, ATranslationForNobodyOrOfAnythingElse) {
  EXPECT_DEATH(Run(&TranslateTo, ctx_, 3u, mine_),
               "Translate at .* for rank 3: there is no rank 3");
  static uint8_t elsewhere[8];
  EXPECT_DEATH(Run(&TranslateTo, ctx_, 2u, &elsewhere[0]), "Translate.*outside the heap");
  EXPECT_EQ(Translate(ctx_, 2, mine_ + kStride), mine_ + 2 * kStride);  // the end of the heap
}

TEST_F(CheckTest, AccessesOutsideOfAllocationsAreRefusedWhereThatWasAskedFor) {
  Run(&StoreTo, ctx_, 0u, mine_ + 2048);  // in no allocation
  map_.allowed = &AllowedByTest;
  Run(&StoreTo, ctx_, 0u, mine_ + 1276);
  EXPECT_DEATH(Run(&StoreTo, ctx_, 0u, mine_ + 1280),
               "for rank 0: offset 1280 of rank 0 is refused\n.*"
               "the nearest allocation ends 0 bytes before: \"counters\"");
  EXPECT_DEATH(Run(&StoreTo, ctx_, 0u, mine_ + 1000),
               "the nearest allocation is 24 bytes further: \"counters\"");
  EXPECT_DEATH(Run(&PutTo, ctx_, mine_ + 1024, mine_ + 1272, uint64_t{16}),
               "offset 1272 of rank 1");
  EXPECT_DEATH(Run(&StoreTo, ctx_, 0u, mine_ + 8200), "8 bytes inside the barrier area of team 0");
  // Rank 2 has no allocation that anybody knows.
  EXPECT_DEATH(Run(&StoreTo, ctx_, 2u, mine_ + 1024), "offset 1024 of rank 2 is refused");
}

#if !defined(IRIS_ASAN) && !defined(IRIS_TSAN)
TEST_F(CheckTest, APartOfTheHeapWithoutMemory) {
  EXPECT_EXIT(
      Run(&StoreTo, ctx_, 2u, mine_ + kMappedBytes + 64), KilledBySignal(SIGSEGV),
      ContainsRegex("iris: rank 1: kernel iris::StoreTo, block 1, thread 3: it wrote to "
                    "0x[0-9a-f]+, where no memory is mapped.*at offset 32832 of the heap of "
                    "rank 2"));
}
#endif

// By a table of heaps, which tells of the ranks and of the heaps' size, or does not.

IRIS_KERNEL void AddByTable(HeapBases heaps, uint32_t peer, uint8_t* p) {
  if (Chosen()) (void)AtomicAdd(heaps, peer, reinterpret_cast<uint32_t*>(p), 1u);
}

TEST_F(CheckTest, ByATable) {
  uint64_t bases[3];
  FillHeapBases(ctx_, bases);
  const HeapBases heaps = {bases, 1, 3, kStride};
  EXPECT_DEATH(Run(&AddByTable, heaps, 5u, mine_ + 1024),
               "AtomicAdd of 4 bytes at 0x[0-9a-f]+ for rank 5: there is no rank 5 in a job of 3.*"
               "at offset 1024 of the heap of rank 1 .this rank.");
  EXPECT_DEATH(Run(&AddByTable, heaps, 0u, mine_ + kStride + 16), "in the heap of another rank");
  EXPECT_DEATH(Run(&AddByTable, heaps, 0u, mine_ + 2), "must be a multiple of 4");
  EXPECT_DEATH((void)Translate(heaps, 3, mine_), "Translate at 0x[0-9a-f]+ for rank 3");
  // Without a heap size the range is not checked; the alignment is.
  EXPECT_DEATH(Run(&AddByTable, HeapBases{bases, 1}, 0u, mine_ + 2), "must be a multiple of 4");
  Run(&AddByTable, HeapBases{bases, 1}, 0u, mine_ + 64);
  EXPECT_EQ(*reinterpret_cast<uint32_t*>(mine_ - kStride + 64), 1u);
}

IRIS_KERNEL void LoadTileFrom(DeviceContext ctx, const uint8_t* p, uint64_t valid_rows) {
  float tile[64];
  const Tile whole = {8, 8, 512, 1, valid_rows};
  if (Chosen()) LoadTile(ctx, 2, reinterpret_cast<const float*>(p), whole, &tile[0]);
}

TEST_F(CheckTest, ATileThatLeavesTheHeap) {
  const uint8_t* p = mine_ + kStride - 2 * 4 * 512;
  EXPECT_DEATH(Run(&LoadTileFrom, ctx_, p, uint64_t{8}),
               "LoadTile of 14368 bytes.*: the range ends behind the heap");
  EXPECT_DEATH(Run(&LoadTileFrom, ctx_, static_cast<const uint8_t*>(mine_ + 2), uint64_t{8}),
               "must be a multiple of 4");
  // Masked rows are not there.
  Run(&LoadTileFrom, ctx_, static_cast<const uint8_t*>(mine_ + kMappedBytes - 4 * 512 - 32),
      uint64_t{2});
}

}  // namespace
}  // namespace iris
