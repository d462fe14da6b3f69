// The kernel of messages between any two ranks of a NodesComm: of send, recv, exchange and
// all_to_all_v. layout.h has the memory.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/memory.h"
#include "iris/nodes/impl/kernels.h"
#include "iris/nodes/impl/layout.h"
#include "iris/signal.h"

namespace iris::ccl::impl {

// Sends a message in chunks. All threads of the block call it. Returns false in all of them after a
// failure.
IRIS_DEVICE inline bool SendMessage(const NodesCall& call, const NodesMessage& message,
                                    Going& going) {
  const DeviceContext& ctx = call.context;
  const uint32_t me = call.index;
  uint64_t* const sent = MineAt<uint64_t>(call, call.at.sent) + message.peer;
  const uint64_t* const freed = MineAt<uint64_t>(call, call.at.taken) + message.peer;
  uint64_t number = *sent;
  for (uint64_t at = 0; at < message.bytes; at += call.message_bytes) {
    ++number;
    const uint64_t slot = (number & 1) * call.size + me;
    const uint64_t bytes = Min(call.message_bytes, message.bytes - at);
    if (backend::ThreadIndex() == 0 &&
        !AwaitRank(call, ctx.rank, message.rank, message.peer, freed,
                   [number](uint64_t value) { return value + 2 >= number; })) {
      going.Stop();
    }
    if (!going.Sync()) return false;
    const uint8_t* from = message.in + at;
    if (message.staged != 0) {
      uint8_t* const stage =
          MineAt<uint8_t>(call, call.at.message_stages + message.peer * call.message_bytes);
      Copy(stage, from, bytes, Block{});
      backend::BlockSync();
      from = stage;
    }
    iris::PutSignal(
        ctx, message.rank, MineAt<uint8_t>(call, call.at.messages + slot * call.message_bytes),
        from, bytes,
        SignalTo{MineAt<uint64_t>(call, call.at.came) + slot,
                 static_cast<uint64_t>(message.signature) << 32 | static_cast<uint32_t>(number)},
        Block{});
  }
  backend::BlockSync();
  if (backend::ThreadIndex() == 0) *sent = number;
  return true;
}

// Receives a message likewise.
IRIS_DEVICE inline bool ReceiveMessage(const NodesCall& call, const NodesMessage& message,
                                       Going& going) {
  const DeviceContext& ctx = call.context;
  uint64_t* const received = MineAt<uint64_t>(call, call.at.received) + message.peer;
  uint64_t number = *received;
  for (uint64_t at = 0; at < message.bytes; at += call.message_bytes) {
    ++number;
    const uint64_t slot = (number & 1) * call.size + message.peer;
    const uint64_t bytes = Min(call.message_bytes, message.bytes - at);
    const uint64_t* const word = MineAt<uint64_t>(call, call.at.came) + slot;
    if (backend::ThreadIndex() == 0) {
      uint64_t seen = 0;
      if (!AwaitRank(call, ctx.rank, message.rank, message.peer, word,
                     [&seen, number](uint64_t value) {
                       seen = value;
                       return static_cast<uint32_t>(value) == static_cast<uint32_t>(number);
                     })) {
        going.Stop();
      } else if (static_cast<uint32_t>(seen >> 32) != message.signature) {
        RecordFailure(call, static_cast<uint64_t>(StatusCode::kInvalidArgument), message.peer);
        going.Stop();
      }
    }
    if (!going.Sync()) return false;
    Copy(message.out + at, MineAt<uint8_t>(call, call.at.messages + slot * call.message_bytes),
         bytes, Block{});
    backend::BlockSync();
    if (backend::ThreadIndex() == 0) {
      iris::SignalSet(ctx, message.rank, MineAt<uint64_t>(call, call.at.taken) + call.index,
                      number);
    }
  }
  if (backend::ThreadIndex() == 0) *received = number;
  return true;
}

// Each block has one message. All blocks of a launch may wait for other ranks.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MessageKernel(IRIS_PARAM NodesCall call,
                                                                  IRIS_PARAM NodesMessages all) {
  IRIS_SHARED(uint32_t, stopped);
  Going going(&stopped);
  if (!MayGoOn(call, going)) return;
  const NodesMessage& message = all.each[backend::BlockIndex()];
  if (message.in != nullptr) {
    (void)SendMessage(call, message, going);
  } else {
    (void)ReceiveMessage(call, message, going);
  }
}

}  // namespace iris::ccl::impl
