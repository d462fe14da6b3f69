// What ranks do with memory that they have registered: each has a buffer across two allocations of
// its own, and fills that of the next one by a kernel and by the copy engine. On any backend. For
// tests, each of which is one program.
#pragma once

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/driver/testing/own_memory.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "tests/integration/require.h"

namespace iris::testing {

// Room for a GPU's communicator, and above the heap for two buffers of each of 8 ranks.
inline ContextOptions SmallHeap() {
  ContextOptions options;
  options.heap_bytes = 96 << 20;
  options.max_heap_bytes = 256 << 20;
  options.timeout = std::chrono::seconds(20);
  return options;
}

inline constexpr uint64_t kPiece = 2 << 20;

// Of so many allocations; null: it says why.
inline std::unique_ptr<driver::testing::OwnMemory> Own(const Context& context, uint32_t n_pieces) {
  auto memory = driver::testing::OwnMemory::Create(*driver::KindOf(context.backend()), "",
                                                   context.device_index(), n_pieces, kPiece);
  if (!memory.ok()) std::cout << memory.status() << std::endl;
  return memory.ok() ? *std::move(memory) : nullptr;
}

IRIS_KERNEL void PutInto(DeviceContext ctx, uint32_t peer, uint8_t* target, const uint8_t* source,
                         uint64_t n, uint64_t* signal) {
  Put(ctx, peer, target, source, n);
  SignalSet(ctx, peer, signal, 1);
}

IRIS_KERNEL void CountWrong(DeviceContext ctx, const uint8_t* mine, uint64_t n,
                            const uint64_t* signal, uint8_t wanted, uint64_t* wrong) {
  *wrong = WaitUntil(ctx, signal, Compare::kGe, 1) == WaitResult::kOk ? 0 : n + 1;
  for (uint64_t i = 0; i < n; ++i) *wrong += mine[i] != wanted;
}

// Each rank has a buffer across two allocations, and fills that of the next one: by a kernel, by
// the copy engine, and with a collective's result. It reads its own where it is. A single rank
// registers its buffer and is refused to open it.
inline int RegisteredBuffers() {
  Context c = Require(Context::Create(SmallHeap()));
  const uint32_t n = c.n_ranks(), me = c.rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  constexpr uint64_t kBytes = 3 << 20, kLead = 4096;
  const auto memory = Own(c, 2);
  REQUIRE(memory != nullptr);
  auto buffer = Require(c.Register<uint8_t>(memory->at(kLead), kBytes, "buffer"));
  REQUIRE(buffer.get() == memory->at(kLead) && buffer.size == kBytes);
  auto arrived = Require(c.AllocateLocal<uint64_t>(1, "arrived"));
  auto message = Require(DeviceArray<uint8_t>::Create(c, kBytes));
  // What the platform's plain allocation gave is refused, and the error says what to do.
  REQUIRE_FAILS(c.Register<uint8_t>(message.get(), 4096, "plain"), StatusCode::kInvalidArgument,
                "register 4 KiB", "copy it into the heap");
  if (n == 1) {
    // There is no other rank that could open it, and this one has its address.
    REQUIRE_FAILS(c.Open<uint8_t>(0, "buffer"), StatusCode::kInvalidArgument, "use the address");
    REQUIRE_OK(c.Free(buffer));
    return 0;
  }
  auto theirs = Require(c.Open<uint8_t>(next, "buffer"));
  REQUIRE(theirs.size == kBytes && theirs.rank == next && theirs.dtype == DType::kU8);
  auto announce = Require(c.Open<uint64_t>(next, "arrived"));
  REQUIRE(theirs.offset_bytes >= c.heap_bytes());
  const bool reaches = c.Reaches(next);  // else the port does
  // Kernels put from the heap alone to ranks of other nodes.
  auto in_heap = Require(c.AllocateLocal<uint8_t>(kBytes));
  uint8_t* const source = reaches ? message.get() : in_heap.get();
  if (reaches) {
    const auto place = Require(c.Locate(theirs.get()));
    REQUIRE(place.rank == next && place.offset_bytes == theirs.offset_bytes);
    REQUIRE(!c.IsSymmetric(theirs.get()));
  }

  auto stream = Require(Stream::Create(c));
  auto wrong = Require(HostArray<uint64_t>::Create(c));
  REQUIRE_OK(stream.Fill(source, static_cast<uint8_t>(16 + me), kBytes));
  REQUIRE_OK(Launch({1, 256}, stream, PutInto, c.device_context(), next, theirs.symmetric(), source,
                    kBytes, announce.symmetric()));
  REQUIRE_OK(Launch({1, 1}, stream, CountWrong, c.device_context(), buffer.get(), kBytes,
                    arrived.get(), static_cast<uint8_t>(16 + before), wrong.get()));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(*wrong == 0);
  REQUIRE_OK(c.Barrier());

  // The copy engine, to and from it.
  REQUIRE_OK(stream.Fill(source, static_cast<uint8_t>(32 + me), kBytes));
  REQUIRE_OK(stream.Put(c, next, theirs.symmetric(), source, kBytes));
  REQUIRE_OK(stream.Fill(source, uint8_t{0}, kBytes));
  REQUIRE_OK(stream.Get(c, next, source, theirs.symmetric(), kBytes));
  REQUIRE_OK(Launch({1, 1}, stream, CountWrong, c.device_context(), source, kBytes, arrived.get(),
                    static_cast<uint8_t>(32 + me), wrong.get()));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(*wrong == 0);
  REQUIRE_OK(c.Put(next, theirs.symmetric(), std::vector<uint8_t>(8, 32 + me).data(), 8));
  REQUIRE_OK(c.Quiet());
  if (reaches) {
    REQUIRE_FAILS(stream.Put(c, next, theirs.symmetric(), source, kBytes + 1),
                  StatusCode::kInvalidArgument, "ends beyond the heap", "has registered");
  }
  if (n > 2 && c.Reaches(before)) {
    REQUIRE_FAILS(stream.Put(c, before, theirs.symmetric(), source, 1),
                  StatusCode::kInvalidArgument, absl::StrCat("rank ", before, " has registered"));
  }
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(Launch({1, 1}, stream, CountWrong, c.device_context(), buffer.get(), kBytes,
                    arrived.get(), static_cast<uint8_t>(32 + before), wrong.get()));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(*wrong == 0);

  // What others still have open stays, and a second buffer has another place.
  REQUIRE_OK(c.Free(buffer));
  auto again = Require(c.Register<uint8_t>(memory->at(kLead), kBytes, "buffer"));
  REQUIRE(again.offset_bytes != buffer.offset_bytes);
  REQUIRE_OK(c.Barrier());
  auto second = Require(c.Open<uint8_t>(next, "buffer"));
  REQUIRE_OK(stream.Fill(source, static_cast<uint8_t>(64 + me), kBytes));
  REQUIRE_OK(stream.Put(c, next, second.symmetric(), source, kBytes));
  REQUIRE_OK(stream.Get(c, next, source, theirs.symmetric(), kBytes));  // the same memory
  REQUIRE_OK(Launch({1, 1}, stream, CountWrong, c.device_context(), source, kBytes, arrived.get(),
                    static_cast<uint8_t>(64 + me), wrong.get()));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(*wrong == 0);
  REQUIRE_OK(c.Close(theirs));
  REQUIRE_OK(c.Close(second));
  REQUIRE_FAILS(c.Close(second), StatusCode::kInvalidArgument, "has not opened it");
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(c.Free(again));
  REQUIRE_OK(c.Barrier());
  return 0;
}

// Adds one to each word of the next rank's, and tells it so in the word behind them.
IRIS_KERNEL void AddToNext(DeviceContext ctx, uint32_t peer, uint64_t* words, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) AtomicAdd(ctx, peer, words + i, uint64_t{1});
  SignalAdd(ctx, peer, words + n, 1);
}

IRIS_KERNEL void CountWrongWords(DeviceContext ctx, const uint64_t* words, uint64_t n,
                                 const uint64_t* signal, uint64_t wanted, uint64_t* wrong) {
  *wrong = WaitUntil(ctx, signal, Compare::kGe, 1) == WaitResult::kOk ? 0 : n + 1;
  for (uint64_t i = 0; i < n; ++i) *wrong += words[i] != wanted;
}

// All ranks register a buffer of their own together. It is used as what Allocate gave: atomics and
// signals, puts by kernel and by the copy engine, and collectives in place. Each rank looks at the
// result where it has the memory itself.
inline int RegisteredTogether() {
  Context c = Require(Context::Create(SmallHeap()));
  const uint32_t n = c.n_ranks(), me = c.rank(), next = (me + 1) % n;
  constexpr uint64_t kWords = 300 << 10, kLead = 4096, kSome = 100;
  const auto memory = Own(c, 2);
  REQUIRE(memory != nullptr);
  uint64_t* const own = reinterpret_cast<uint64_t*>(memory->at(kLead));
  auto stream = Require(Stream::Create(c));
  REQUIRE_OK(stream.Fill(memory->at(0), uint8_t{0}, 2 * kPiece));
  REQUIRE_OK(stream.Synchronize());
  auto x = Require(c.RegisterSymmetric<uint64_t>(own, kWords, "together"));
  REQUIRE(x.get() != own && x.size == kWords && x.offset_bytes >= c.heap_bytes());
  const auto place = Require(c.Locate(x.get()));
  REQUIRE(place.rank == me && place.offset_bytes == x.offset_bytes);
  REQUIRE(Require(c.BroadcastValue(x.offset_bytes, 0)) == x.offset_bytes);
  REQUIRE(c.IsSymmetric(x.get(), kWords * 8) && !c.IsSymmetric(x.get() + 1, kWords * 8));
  REQUIRE(!c.IsSymmetric(own));
  const bool reaches = c.Reaches(next);  // else the port does
  if (reaches) REQUIRE(c.IsSymmetric(c.Translate(next, x.get())));

  // Atomics and a signal to the peer's, which it finds where it has them.
  auto wrong = Require(HostArray<uint64_t>::Create(c));
  REQUIRE_OK(Launch({1, 1}, stream, AddToNext, c.device_context(), next, x.get(), kSome));
  REQUIRE_OK(Launch({1, 1}, stream, CountWrongWords, c.device_context(), x.get(), kSome,
                    x.get() + kSome, uint64_t{1}, wrong.get()));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(*wrong == 0);
  REQUIRE_OK(Launch({1, 1}, stream, CountWrongWords, c.device_context(), own, kSome, own + kSome,
                    uint64_t{1}, wrong.get()));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(*wrong == 0);
  REQUIRE_OK(c.Barrier());

  // The copy engine, from what the rank itself has to the peer's and back.
  REQUIRE_OK(stream.Fill(own, uint8_t{0}, kWords * 8));
  REQUIRE_OK(stream.Fill(own, static_cast<uint8_t>(1 + me), 8));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(stream.Put(c, next, x.get() + 8, own, 8));
  REQUIRE_OK(stream.Get(c, next, x.get() + 16, x.get(), 8));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(c.Barrier());
  const uint64_t ones = 0x0101010101010101;
  std::vector<uint64_t> seen(32);
  REQUIRE_OK(stream.Copy(seen.data(), own, seen.size() * 8));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(seen[0] == ones * (1 + me) && seen[8] == ones * (1 + (me + n - 1) % n) &&
          seen[16] == ones * (1 + next));
  if (reaches) {
    REQUIRE_FAILS(stream.Put(c, next, x.get() + kWords, own, 1), StatusCode::kInvalidArgument,
                  "ends beyond the heap");
  }

  // A collective of all takes it where it lies; the variant needs both buffers in the heap.
  auto comm = Require(ccl::Communicator::Create(c, {.name = "collectives"}));
  REQUIRE_OK(stream.Fill(own, uint8_t{0}, kWords * 8));
  REQUIRE_OK(stream.Fill(own, static_cast<uint8_t>(1 + me), kSome * 8));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(comm.AllGather(x.get(), x.get() + 1024, kSome, DType::kI64, stream,
                            reaches ? ccl::Variant::kCopyEngine : ccl::Variant::kAuto));
  REQUIRE_OK(
      comm.AllReduce(x.get(), x.get() + 512, kSome, DType::kI64, ccl::ReduceOp::kSum, stream));
  REQUIRE_OK(comm.Synchronize(stream));
  std::vector<uint64_t> all(1024 + n * kSome);
  REQUIRE_OK(stream.Copy(all.data(), own, all.size() * 8));
  REQUIRE_OK(stream.Synchronize());
  for (uint64_t i = 0; i < kSome; ++i) {
    REQUIRE(all[512 + i] == ones * (n * (n + 1) / 2));
    for (uint32_t r = 0; r < n; ++r) REQUIRE(all[1024 + r * kSome + i] == ones * (1 + r));
  }

  // What a part of the ranks has is not for all of them.
  std::vector<uint32_t> two = {0};
  if (n > 1) two.push_back(1);
  const auto pair = Require(c.CreateTeam(two));
  const auto other = Own(c, 1);
  REQUIRE(other != nullptr);
  if (pair.member()) {
    auto y = Require(c.RegisterSymmetric<uint8_t>(other->at(0), kPiece, "of two", pair));
    if (n > 2) {
      REQUIRE_FAILS(comm.AllReduce(y.get(), y.get(), 16, DType::kU8, ccl::ReduceOp::kSum, stream),
                    StatusCode::kInvalidArgument, "above the heap", "registered nothing together");
    }
    const uint32_t peer = n > 1 ? 1 - me : 0;
    REQUIRE_OK(stream.Put(c, peer, y.get(), own, 1));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE_OK(c.Barrier(pair));
    REQUIRE_OK(c.Free(y));
    REQUIRE(!c.IsSymmetric(y.get()));
    REQUIRE_FAILS(c.Free(y), StatusCode::kInvalidArgument, "no live allocation");
  }
  REQUIRE_OK(c.Barrier());

  // What one cannot share, or has of another size, is registered by none, and all hear of whom.
  auto message = Require(DeviceArray<uint8_t>::Create(c, 4096));
  if (n > 1) {
    REQUIRE_FAILS(c.RegisterSymmetric<uint8_t>(me == 1 ? message.get() : other->at(0), 4096, "y"),
                  StatusCode::kInvalidArgument, "rank 1 (pid ", "copy it into the heap");
    REQUIRE_FAILS(c.RegisterSymmetric<uint8_t>(other->at(0), 4096 + me, "y"),
                  StatusCode::kInvalidArgument, "the ranks differ");
    REQUIRE_FAILS(c.RegisterSymmetric<uint8_t>(other->at(me == 1 ? 512 : 0), 4096, "y"),
                  StatusCode::kInvalidArgument, "begin alike on all members");
  }
  REQUIRE_FAILS(c.RegisterSymmetric<uint8_t>(me == 0 ? nullptr : other->at(0), 4096, "y"),
                StatusCode::kInvalidArgument, "rank 0 (pid ", "that is no memory");
  REQUIRE_FAILS(c.RegisterSymmetric<uint64_t>(x.get(), 16, "y"), StatusCode::kInvalidArgument,
                "in the heap already");
  REQUIRE_FAILS(c.RegisterSymmetric<uint64_t>(own, kWords, "together"), StatusCode::kAlreadyExists,
                "'together' is live");
  // The same memory again, and then the place of the first.
  auto again = Require(c.RegisterSymmetric<uint64_t>(own, kWords, "again"));
  REQUIRE(again.offset_bytes < x.offset_bytes);
  const uint64_t top = x.offset_bytes;
  REQUIRE_OK(c.Free(x));
  REQUIRE_OK(c.Free(again));
  auto third = Require(c.RegisterSymmetric<uint64_t>(own, kWords, "together"));
  REQUIRE(third.offset_bytes == top);
  REQUIRE_OK(c.Free(third));
  REQUIRE_OK(comm.Destroy());
  REQUIRE_OK(c.Barrier());
  return 0;
}

}  // namespace iris::testing
