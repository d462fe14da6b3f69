// Messages between ranks of a NodesComm: ExchangeOnNodes, and all_to_all_v, whose rows are
// messages.
//
// As in collective/messages.cc, each launch has messages that wait only for each other: the k-th
// message between two ranks in one direction is in round k, and rounds go by the distance from
// sender to receiver in the team.
#include "iris/nodes/impl/messages.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "iris/collective/operations.h"
#include "iris/nodes/impl/launch.h"
#include "iris/nodes/nodes.h"
#include "iris/rounds/launch.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

using impl::Invalid;
using impl::kMaxNodesMessages;
using impl::NodesCall;
using impl::NodesMessage;
using impl::NodesMessages;
using impl::Request;

bool Sends(const Message& message) { return message.in != nullptr; }
uint64_t BytesOf(const Message& message) { return message.count * DTypeBytes(message.type); }

// A message with its place in the order of launches.
struct Placed {
  Message message;
  uint32_t turn;
  uint32_t distance;
};

// Returns the messages to and from other ranks.
std::vector<Placed> Place(const NodesComm& comm, const Message* messages, uint32_t n_messages) {
  const uint32_t n = comm.size;
  std::vector<Placed> all;
  std::vector<uint32_t> turns(2 * uint64_t{n}, 0);
  for (uint32_t i = 0; i < n_messages; ++i) {
    const Message& message = messages[i];
    if (message.count == 0 || message.peer_index == comm.index) continue;
    const uint32_t distance =
        Sends(message) ? message.peer_index + n - comm.index : comm.index + n - message.peer_index;
    all.push_back(
        {message, turns[2 * message.peer_index + (Sends(message) ? 1 : 0)]++, distance % n});
  }
  return all;
}

// Puts checked messages on the stream, as parts of `call`.
Result RunMessages(const NodesComm& comm, const Call& call, const Message* messages,
                   uint32_t n_messages, backend::Stream& stream) {
  Result result = impl::CopyOwnMessages(comm.index, messages, n_messages, stream);
  if (!result.ok()) return result;
  std::vector<Placed> all = Place(comm, messages, n_messages);
  // All ranks count an all_to_all_v, also those to which it brings nothing.
  if (all.empty() && call.operation != Operation::kAllToAllV) return {};
  constexpr uint32_t kDistances = kMaxNodesMessages / 2;
  std::sort(all.begin(), all.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(a.turn, a.distance, Sends(b.message)) <
           std::tuple(b.turn, b.distance, Sends(a.message));
  });
  NodesCall args = impl::CallOf(comm, call, NodesPath::kAuto);
  for (size_t begin = 0; begin < all.size();) {
    NodesMessages launched = {};
    uint32_t n = 0;
    const auto window = [](const Placed& placed) {
      return std::pair(placed.turn, placed.distance / kDistances);
    };
    for (; begin + n < all.size() && window(all[begin + n]) == window(all[begin]); ++n) {
      const Message& message = all[begin + n].message;
      NodesMessage& to = launched.each[n];
      to.in = static_cast<const uint8_t*>(message.in);
      to.out = static_cast<uint8_t*>(message.out);
      to.bytes = BytesOf(message);
      to.peer = message.peer_index;
      to.rank = comm.ranks[message.peer_index];
      to.staged =
          !Reaches(comm.context, to.rank) && !impl::PortReads(comm, message.in, to.bytes) ? 1 : 0;
      CallRecord record = {{Operation::kSendRecv, message.count, message.type}};
      to.signature = impl::NodesSignatureOf(Pack(record), 0, NodesPath::kAuto);
    }
    begin += n;
    result = impl::LaunchPieces(comm, n, n, stream, [&](const LaunchConfig& launch, uint32_t) {
      return backend::Launch(launch, stream, &impl::MessageKernel<>, args, launched);
    });
    if (!result.ok()) return result;
  }
  // Other nodes are told of a failure.
  args.ends = call.operation == Operation::kAllToAllV ? 1 : 0;
  return impl::LaunchIdleTurn(comm, args, stream);
}

}  // namespace

Result ExchangeOnNodes(const NodesComm& comm, const Message* messages, uint32_t n_messages,
                       backend::Stream& stream) {
  Result result = impl::CheckNodesComm(comm);
  if (result.ok()) {
    result = impl::CheckMessages(comm.local, comm.size, comm.index, messages, n_messages);
  }
  if (!result.ok()) return result;
  for (uint32_t i = 0; i < n_messages; ++i) {
    const void* const buffer = Sends(messages[i]) ? messages[i].in : messages[i].out;
    if (impl::OverlapsWorkspace(comm, buffer, BytesOf(messages[i]))) {
      return Invalid("a buffer overlaps the workspace");
    }
  }
  return RunMessages(comm, {{Operation::kSendRecv}}, messages, n_messages, stream);
}

Result impl::RunAllToAllVOnNodes(const NodesComm& comm, const Call& call, backend::Stream& stream) {
  Request request = {call};
  uint64_t in_bytes = 0;
  uint64_t out_bytes = 0;
  const Result result =
      CheckLayouts(comm.local, comm.size, comm.index, &request, &in_bytes, &out_bytes);
  if (!result.ok()) return result;
  if (OverlapsWorkspace(comm, call.in, in_bytes) || OverlapsWorkspace(comm, call.out, out_bytes)) {
    return Invalid("a buffer overlaps the workspace");
  }
  const uint64_t element_bytes = DTypeBytes(call.type);
  std::vector<Message> messages;
  for (uint32_t m = 0; m < comm.size; ++m) {
    if (call.to.counts[m] != 0) {
      messages.push_back({static_cast<const uint8_t*>(call.in) + call.to.offsets[m] * element_bytes,
                          nullptr, call.to.counts[m], call.type, m});
    }
    if (call.from.counts[m] != 0) {
      messages.push_back({nullptr,
                          static_cast<uint8_t*>(call.out) + call.from.offsets[m] * element_bytes,
                          call.from.counts[m], call.type, m});
    }
  }
  return RunMessages(comm, {{Operation::kAllToAllV, 0, call.type}}, messages.data(),
                     static_cast<uint32_t>(messages.size()), stream);
}

Result impl::PrepareNodesMessages() { return backend::PrepareKernel(&MessageKernel<>); }

}  // namespace iris::ccl
