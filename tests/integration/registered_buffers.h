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
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "tests/integration/require.h"

namespace iris::testing {

inline ContextOptions SmallHeap() {
  ContextOptions options;
  options.heap_bytes = 8 << 20;
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
// the copy engine, and with a collective's result. It reads its own where it is.
inline int RegisteredBuffers() {
  auto context = Context::Create(SmallHeap());
  REQUIRE_OK(context);
  Context& c = *context;
  const uint32_t n = c.n_ranks(), me = c.rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  constexpr uint64_t kBytes = 3 << 20, kLead = 4096;
  const auto memory = Own(c, 2);
  REQUIRE(memory != nullptr);
  auto buffer = c.Register<uint8_t>(memory->at(kLead), kBytes, "buffer");
  REQUIRE_OK(buffer);
  REQUIRE(buffer->get() == memory->at(kLead) && buffer->size == kBytes);
  auto arrived = c.AllocateLocal<uint64_t>(1, "arrived");
  REQUIRE_OK(arrived);
  auto theirs = c.Open<uint8_t>(next, "buffer");
  REQUIRE_OK(theirs);
  REQUIRE(theirs->size == kBytes && theirs->rank == next && theirs->dtype == DType::kU8);
  auto announce = c.Open<uint64_t>(next, "arrived");
  REQUIRE_OK(announce);
  const auto place = c.Locate(theirs->get());
  REQUIRE_OK(place);
  REQUIRE(place->rank == next && place->offset_bytes == theirs->offset_bytes);
  REQUIRE(place->offset_bytes >= c.heap_bytes());
  REQUIRE(!c.IsSymmetric(theirs->get()));

  auto stream = Stream::Create(c);
  REQUIRE_OK(stream);
  auto message = DeviceArray<uint8_t>::Create(c, kBytes);
  REQUIRE_OK(message);
  auto wrong = HostArray<uint64_t>::Create(c);
  REQUIRE_OK(wrong);
  REQUIRE_OK(stream->Fill(message->get(), static_cast<uint8_t>(16 + me), kBytes));
  REQUIRE_OK(Launch({1, 256}, *stream, PutInto, c.device_context(), next, theirs->symmetric(),
                    message->get(), kBytes, announce->symmetric()));
  REQUIRE_OK(Launch({1, 1}, *stream, CountWrong, c.device_context(), buffer->get(), kBytes,
                    arrived->get(), static_cast<uint8_t>(16 + before), wrong->get()));
  REQUIRE_OK(stream->Synchronize());
  REQUIRE(**wrong == 0);
  REQUIRE_OK(c.Barrier());

  // The copy engine, to and from it.
  REQUIRE_OK(stream->Fill(message->get(), static_cast<uint8_t>(32 + me), kBytes));
  REQUIRE_OK(stream->Put(c, next, theirs->symmetric(), message->get(), kBytes));
  REQUIRE_OK(stream->Fill(message->get(), uint8_t{0}, kBytes));
  REQUIRE_OK(stream->Get(c, next, message->get(), theirs->symmetric(), kBytes));
  REQUIRE_OK(Launch({1, 1}, *stream, CountWrong, c.device_context(), message->get(), kBytes,
                    arrived->get(), static_cast<uint8_t>(32 + me), wrong->get()));
  REQUIRE_OK(stream->Synchronize());
  REQUIRE(**wrong == 0);
  REQUIRE_FAILS(stream->Put(c, next, theirs->symmetric(), message->get(), kBytes + 1),
                StatusCode::kInvalidArgument, "ends beyond the heap", "has registered");
  if (n > 2) {
    REQUIRE_FAILS(stream->Put(c, before, theirs->symmetric(), message->get(), 1),
                  StatusCode::kInvalidArgument, absl::StrCat("rank ", before, " has registered"));
  }
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(Launch({1, 1}, *stream, CountWrong, c.device_context(), buffer->get(), kBytes,
                    arrived->get(), static_cast<uint8_t>(32 + before), wrong->get()));
  REQUIRE_OK(stream->Synchronize());
  REQUIRE(**wrong == 0);

  // What others still have open stays, and a second buffer has another place.
  REQUIRE_OK(c.Free(*buffer));
  auto again = c.Register<uint8_t>(memory->at(kLead), kBytes, "buffer");
  REQUIRE_OK(again);
  REQUIRE(again->offset_bytes != buffer->offset_bytes);
  REQUIRE_OK(c.Barrier());
  auto second = c.Open<uint8_t>(next, "buffer");
  REQUIRE_OK(second);
  REQUIRE_OK(stream->Fill(message->get(), static_cast<uint8_t>(64 + me), kBytes));
  REQUIRE_OK(stream->Put(c, next, second->symmetric(), message->get(), kBytes));
  REQUIRE_OK(stream->Get(c, next, message->get(), theirs->symmetric(), kBytes));  // the same memory
  REQUIRE_OK(Launch({1, 1}, *stream, CountWrong, c.device_context(), message->get(), kBytes,
                    arrived->get(), static_cast<uint8_t>(64 + me), wrong->get()));
  REQUIRE_OK(stream->Synchronize());
  REQUIRE(**wrong == 0);
  REQUIRE_OK(c.Close(*theirs));
  REQUIRE_OK(c.Close(*second));
  REQUIRE_FAILS(c.Close(*second), StatusCode::kInvalidArgument, "has not opened it");
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(c.Free(*again));
  // What the platform's plain allocation gave is refused, and the error says what to do.
  REQUIRE_FAILS(c.Register<uint8_t>(message->get(), 4096, "plain"), StatusCode::kInvalidArgument,
                "register 4096 bytes", "copy it into the heap");
  REQUIRE_OK(c.Barrier());
  return 0;
}

}  // namespace iris::testing
