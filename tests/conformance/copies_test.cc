// Copies on streams between ranks of different nodes, which a PortThread simulates.
#include "iris/nodes/copies.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::CopyOnNodes;
using ccl::NodesCopy;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kMost = 3 * kPortStageBytes + 12345;

local::WorldOptions Nodes(uint32_t n_ranks, uint32_t n_nodes, uint32_t delay_us_max = 0) {
  local::WorldOptions options;
  options.n_ranks = n_ranks;
  options.n_nodes = n_nodes;
  options.heap_bytes = 8 << 20;
  options.timeout_ns = kTestTimeoutNs;
  options.port = {/*seed=*/5, delay_us_max};
  return options;
}

Bytes Pattern(uint64_t n, uint64_t seed) {
  Bytes bytes(n);
  for (uint64_t i = 0; i < n; ++i) {
    bytes[i] = static_cast<uint8_t>((i * 131 + i / 251 + seed * 17) % 255);  // never 255
  }
  return bytes;
}

// Memory outside the heap, and the failures of a rank.
class Outside {
 public:
  explicit Outside(uint64_t n)
      : bytes_(static_cast<uint8_t*>(backend::MallocDevice(n))),
        failures_(new (backend::MallocHost(sizeof(PortFailures))) PortFailures()) {}
  ~Outside() {
    backend::FreeDevice(bytes_);
    backend::FreeHost(failures_);
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  uint8_t* get() const { return bytes_; }
  PortFailures* failures() const { return failures_; }
  uint64_t n_failures() const { return __atomic_load_n(&failures_->count, __ATOMIC_ACQUIRE); }
  uint64_t first() const { return failures_->first; }

 private:
  uint8_t* const bytes_;
  PortFailures* const failures_;
};

NodesCopy CopyOf(Rank& rank, bool puts, uint32_t peer, void* remote, void* local, RowsToCopy rows,
                 const Outside& outside, SignalTo signal = {nullptr, 0}) {
  NodesCopy copy;
  copy.context = rank.ctx;
  copy.peer = peer;
  copy.puts = puts;
  copy.staged = !InHeap(rank.ctx, local);
  copy.remote = remote;
  copy.local = local;
  copy.rows = rows;
  copy.signal = signal;
  copy.failures = outside.failures();
  return copy;
}
RowsToCopy OneRow(uint64_t bytes) { return {1, bytes, bytes, bytes}; }

// What a copy of rows makes of `to`.
Bytes WithRows(Bytes to, const Bytes& from, const RowsToCopy& rows) {
  for (uint64_t row = 0; row < rows.rows; ++row) {
    std::memcpy(to.data() + row * rows.dst_pitch_bytes, from.data() + row * rows.src_pitch_bytes,
                rows.row_bytes);
  }
  return to;
}

TEST(CopiesTest, RowsOfAllSizesFromHeapAndElsewhere) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    const uint32_t other = 1 - rank.rank();
    auto* const inbox = rank.New<uint8_t>(kMost);
    auto* const source = rank.New<uint8_t>(kMost);
    auto* const result = rank.New<uint8_t>(kMost);
    auto* const word = rank.New<uint64_t>(1);
    const Outside from(kMost), to(kMost);
    const Bytes mine = Pattern(kMost, rank.rank()), theirs = Pattern(kMost, other);
    const Bytes guards(kMost, 255);
    rank.Write(source, mine);
    rank.Write(from.get(), mine);
    uint64_t n_signals = 0;
    for (const RowsToCopy& rows : {
             OneRow(1),
             OneRow(8),
             OneRow(9),
             OneRow(kPortStageBytes),
             OneRow(kMost),
             RowsToCopy{2, 1, 2, 1},
             RowsToCopy{37, 129, 131, 640},
             RowsToCopy{64, 512, 512, 512},
             RowsToCopy{100, 16, 4096, 16},
             RowsToCopy{600, 1000, 1001, 1100},
             RowsToCopy{2, 300'000, 300'001, 400'000},
             RowsToCopy{0, 16, 16, 16},
             RowsToCopy{5, 0, 0, 0},
         }) {
      const RowsToCopy back = {rows.rows, rows.row_bytes, rows.src_pitch_bytes,
                               rows.dst_pitch_bytes};
      for (const bool in_heap : {true, false}) {
        rank.Write(inbox, guards);
        rank.Write(in_heap ? result : to.get(), guards);
        rank.HostBarrier();
        RequireOk(CopyOnNodes(CopyOf(rank, true, other, inbox, in_heap ? source : from.get(), rows,
                                     from, {word, 1, SignalOp::kAdd}),
                              rank.stream));
        // It has arrived when the stream has run it. No quiet is needed.
        rank.Synchronize();
        rank.HostBarrier();
        EXPECT_EQ(rank.Read(word), ++n_signals);
        EXPECT_EQ(rank.Read(inbox, kMost), WithRows(guards, theirs, rows)) << rows.rows;
        rank.HostBarrier();
        RequireOk(CopyOnNodes(CopyOf(rank, false, other, inbox, in_heap ? result : to.get(), back,
                                     from, {word, 1, SignalOp::kAdd}),
                              rank.stream));
        rank.Synchronize();
        rank.HostBarrier();
        EXPECT_EQ(rank.Read(word), ++n_signals);
        EXPECT_EQ(rank.Read(in_heap ? result : to.get(), kMost),
                  WithRows(guards, WithRows(guards, mine, rows), back))
            << rows.rows;
      }
    }
    EXPECT_EQ(from.n_failures(), 0u);
  });
}

IRIS_KERNEL void FillBytes(uint8_t* to, uint64_t n, uint8_t value) {
  for (uint64_t i = backend::ThreadOfGrid(); i < n; i += backend::ThreadsOfGrid()) to[i] = value;
}

IRIS_KERNEL void AwaitAndCompare(DeviceContext ctx, const uint64_t* ready, uint64_t round,
                                 const uint8_t* bytes, uint64_t n, uint32_t* wrong) {
  if (WaitUntil(ctx, ready, Compare::kGe, round, Block{}) != WaitResult::kOk) {
    *wrong = 1000;
    return;
  }
  for (uint64_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) {
    if (bytes[i] != static_cast<uint8_t>(round)) *wrong = static_cast<uint32_t>(round);
  }
}

// The stream orders kernels and copies, and the signal comes after all pieces. The source is
// changed as soon as the stream goes on.
void PassMessages(bool staged, bool captured) {
  World(Nodes(2, 2, 30)).Run([&](Rank& rank) {
    constexpr uint32_t kRounds = 40 / kSlower;
    auto* const inbox = rank.New<uint8_t>(kMost);
    auto* const taken = rank.New<uint64_t>(1);
    auto* const ready = rank.New<uint64_t>(1);
    auto* const source = rank.New<uint8_t>(kMost);
    auto* const wrong = rank.New<uint32_t>(1);
    const Outside outside(kMost);
    uint8_t* const from = staged ? outside.get() : source;
    // On rank 0: fill, put. On rank 1: compare, then tell rank 0.
    backend::Graph graph;
    for (uint32_t round = 1; round <= kRounds; ++round) {
      if (rank.rank() == 0) {
        rank.Launch({4, 32}, FillBytes, from, kMost, static_cast<uint8_t>(round));
        if (captured && round == 1) RequireOk(backend::BeginCapture(rank.stream));
        if (!captured || round == 1) {
          RequireOk(CopyOnNodes(CopyOf(rank, true, 1, inbox, from, OneRow(kMost), outside,
                                       {ready, 1, SignalOp::kAdd}),
                                rank.stream));
        }
        if (captured && round == 1) RequireOk(backend::EndCapture(rank.stream, &graph));
        if (captured) RequireOk(backend::LaunchGraph(graph, rank.stream));
        rank.Launch({4, 32}, FillBytes, from, kMost, uint8_t{255});
      } else {
        rank.Launch({1, 32}, AwaitAndCompare, rank.ctx, static_cast<const uint64_t*>(ready),
                    uint64_t{round}, static_cast<const uint8_t*>(inbox), kMost, wrong);
        RequireOk(CopyOnNodes(CopyOf(rank, true, 0, nullptr, nullptr, {}, outside, {taken, round}),
                              rank.stream));
      }
      rank.Synchronize();
      rank.HostBarrier();
      EXPECT_EQ(rank.Read(taken), rank.rank() == 0 ? round : 0);
    }
    EXPECT_EQ(rank.Read(wrong), 0u);
    EXPECT_EQ(outside.n_failures(), 0u);
  });
}

TEST(CopiesTest, SignalsComeAfterTheirBytes) {
  PassMessages(false, false);
  PassMessages(true, false);
}
TEST(CopiesTest, GraphsCaptureThem) {
  PassMessages(false, true);
  PassMessages(true, true);
}

IRIS_KERNEL void SignalKernel(DeviceContext ctx, uint32_t to, uint64_t* word) {
  SignalSet(ctx, to, word, 1);
}
IRIS_KERNEL void AwaitKernel(DeviceContext ctx, const uint64_t* word, uint32_t* failed) {
  if (WaitUntil(ctx, word, Compare::kGe, uint64_t{1}) != WaitResult::kOk) *failed = 1;
}

TEST(CopiesTest, WhatTheStreamDoesNextFindsThemArrived) {
  World(Nodes(4, 2, 200)).Run([](Rank& rank) {
    constexpr uint64_t kBytes = 5000;
    auto* const inbox = rank.New<uint8_t>(kBytes);
    auto* const back = rank.New<uint8_t>(kBytes);
    auto* const word = rank.New<uint64_t>(1);
    auto* const failed = rank.New<uint32_t>(1);
    const Outside outside(kBytes);
    // Rank 0 puts to rank 2, and signals to rank 1 of its own node, which gets from rank 2.
    if (rank.rank() == 0) {
      rank.Write(outside.get(), Bytes(kBytes, 7));
      RequireOk(CopyOnNodes(CopyOf(rank, true, 2, inbox, outside.get(), OneRow(kBytes), outside),
                            rank.stream));
      rank.Launch({}, SignalKernel, rank.ctx, 1u, word);
    } else if (rank.rank() == 1) {
      rank.Launch({}, AwaitKernel, rank.ctx, static_cast<const uint64_t*>(word), failed);
      RequireOk(
          CopyOnNodes(CopyOf(rank, false, 2, inbox, back, OneRow(kBytes), outside), rank.stream));
      EXPECT_EQ(rank.Read(back, kBytes), Bytes(kBytes, 7));
      EXPECT_EQ(rank.Read(failed), 0u);
    }
    rank.Synchronize();
    rank.HostBarrier();
  });
}

TEST(CopiesTest, StreamsShareTheStages) {
  constexpr uint32_t kStreams = 7, kRounds = 6;
  World(Nodes(2, 2, 20)).Run([](Rank& rank) {
    const uint32_t other = 1 - rank.rank();
    constexpr uint64_t kEach = kPortStageBytes + 777;
    auto* const inbox = rank.New<uint8_t>(kStreams * kEach);
    const Outside from(kStreams * kEach), to(kStreams * kEach);
    const Bytes mine = Pattern(kStreams * kEach, rank.rank());
    rank.Write(from.get(), mine);
    std::vector<backend::Stream> streams(kStreams);
    for (backend::Stream& stream : streams) RequireOk(backend::Stream::Create(&stream));
    for (uint32_t round = 0; round < kRounds; ++round) {
      for (uint32_t s = 0; s < kStreams; ++s) {
        const uint64_t at = s * kEach;
        RequireOk(
            CopyOnNodes(CopyOf(rank, true, other, inbox + at, from.get() + at, OneRow(kEach), from),
                        streams[s]));
        RequireOk(
            CopyOnNodes(CopyOf(rank, false, other, inbox + at, to.get() + at, OneRow(kEach), from),
                        streams[s]));
      }
    }
    for (backend::Stream& stream : streams) RequireOk(stream.Synchronize());
    EXPECT_EQ(rank.Read(to.get(), kStreams * kEach), mine);
    EXPECT_EQ(from.n_failures(), 0u);
    rank.HostBarrier();
  });
}

// Failures.

// PortFailures::first of a put to rank 1.
uint64_t FirstOf(StatusCode code) { return static_cast<uint64_t>(code) | 1 << 8 | 1 << 16; }

TEST(CopiesTest, AFailedCopySendsNoSignal) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    auto* const word = rank.New<uint64_t>(1);
    auto* const last = rank.New<uint8_t>(1);
    const Outside outside(kMost);
    rank.HostBarrier();
    if (rank.rank() == 0) {
      // The port process finds out where the heap of the other rank ends.
      const uint64_t room = rank.ctx.stride_bytes - OffsetBytes(rank.ctx, last);
      for (const bool puts : {true, false}) {
        RequireOk(CopyOnNodes(CopyOf(rank, puts, 1, last + room - 100, outside.get(), OneRow(kMost),
                                     outside, {word, 1}),
                              rank.stream));
      }
      rank.Synchronize();
      EXPECT_EQ(outside.n_failures(), 2u);
      EXPECT_EQ(outside.first(), FirstOf(StatusCode::kOutOfRange));
    }
    rank.HostBarrier();
    EXPECT_EQ(rank.Read(word), 0u);
    if (rank.rank() == 0) {
      // Only the first piece fails. The last one, with the signal, has a place.
      const Outside zeros(kPortStageBytes + 8);
      rank.Write(zeros.get(), Bytes(kPortStageBytes + 8, 0));
      uint8_t* const before = AtOffset<uint8_t>(rank.ctx, 0, 0) - kPortStageBytes;
      RequireOk(CopyOnNodes(
          CopyOf(rank, true, 1, before, zeros.get(), OneRow(kPortStageBytes + 8), zeros, {word, 1}),
          rank.stream));
      rank.Synchronize();
      EXPECT_EQ(zeros.n_failures(), 1u);
    }
    rank.HostBarrier();
    EXPECT_EQ(rank.Read(word), 0u);
  });
}

TEST(CopiesTest, TimeIsUp) {
  local::WorldOptions options = Nodes(2, 2);
  options.timeout_ns = 30 * 1000 * 1000;
  World world(options);
  world.Run([&](Rank& rank) {
    auto* const inbox = rank.New<uint8_t>(kMost);
    const Outside outside(kMost);
    rank.HostBarrier();
    if (rank.rank() != 0) return;
    const Bytes mine = Pattern(kMost, 1);
    rank.Write(outside.get(), mine);
    // More copies than stages: the later ones find none.
    world.port_thread()->Pause();
    for (uint32_t i = 0; i < kPortStages + 2; ++i) {
      RequireOk(CopyOnNodes(CopyOf(rank, i % 2 == 0, 1, inbox, outside.get(), OneRow(100), outside),
                            rank.stream));
    }
    rank.Synchronize();
    EXPECT_EQ(outside.n_failures(), kPortStages + 2);
    EXPECT_EQ(outside.first(), FirstOf(StatusCode::kDeadlineExceeded));
    // The stage of a request that may still be carried out stays claimed.
    SyncArea* const area = AtOffset<SyncArea>(rank.ctx, 0, rank.ctx.world.sync_offset_bytes);
    EXPECT_EQ(rank.Read(&area->slots[0].port_posted), kPortStages);
    // Late answers free them.
    world.port_thread()->Resume();
    rank.ctx.timeout_ns = kTestTimeoutNs;
    rank.Write(outside.get(), mine);
    for (const bool puts : {true, false}) {
      RequireOk(CopyOnNodes(CopyOf(rank, puts, 1, inbox, outside.get(), OneRow(kMost), outside),
                            rank.stream));
    }
    EXPECT_EQ(rank.Read(outside.get(), kMost), mine);
    EXPECT_EQ(outside.n_failures(), kPortStages + 2);
  });
}

template <typename End>
void ExpectAborted(End end) {
  World world(Nodes(2, 2));
  world.port_thread()->Pause();
  world.Run([&](Rank& rank) {
    auto* const inbox = rank.New<uint8_t>(kMost);
    const Outside outside(kMost);
    if (rank.rank() != 0) return;
    RequireOk(CopyOnNodes(CopyOf(rank, true, 1, inbox, outside.get(), OneRow(kMost), outside),
                          rank.stream));
    RequireOk(
        CopyOnNodes(CopyOf(rank, false, 1, inbox, inbox, OneRow(kMost), outside), rank.stream));
    end(world);
    rank.Synchronize();
    EXPECT_EQ(outside.n_failures(), 2u);
    EXPECT_EQ(outside.first(), FirstOf(StatusCode::kAborted));
  });
  world.port_thread()->Resume();
}

TEST(CopiesTest, AbortEndsThem) {
  ExpectAborted([](World& world) { world.Abort(); });
}
TEST(CopiesTest, APortThatHasStoppedEndsThem) {
  ExpectAborted([](World& world) { world.port_thread()->Fail(14); });
}

TEST(CopiesTest, WithoutAPortTheyAreRefused) {
  World(1).Run([](Rank& rank) {
    const Outside outside(8);
    EXPECT_EQ(CopyOnNodes(CopyOf(rank, true, 1, outside.get(), outside.get(), OneRow(8), outside),
                          rank.stream)
                  .code,
              StatusCode::kFailedPrecondition);
  });
}

}  // namespace
}  // namespace iris::conformance
