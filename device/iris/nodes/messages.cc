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

// Checks the buffer of a message.
Result CheckMessage(const NodesComm& comm, const Message& message) {
  if (message.peer_index >= comm.size) return Invalid("the other side is not a member");
  if (message.in != nullptr && message.out != nullptr) {
    return Invalid("a message of Exchange has both an in and an out");
  }
  Request request = {{{Operation::kSendRecv, message.count, message.type},
                      message.in,
                      message.out,
                      CallRecord::kNobody}};
  request.in_rows = Sends(message) ? 1 : 0;
  request.out_rows = 1 - request.in_rows;
  bool nothing = false;
  const Result result = impl::CheckRequest(comm.local, &request, &nothing);
  if (!result.ok() || nothing) return result;
  const void* const buffer = Sends(message) ? message.in : message.out;
  if (impl::OverlapsWorkspace(comm, buffer, BytesOf(message))) {
    return Invalid("a buffer overlaps the workspace");
  }
  return {};
}

// Puts the messages to and from other ranks on the stream. Their ranks have counted `operation`.
Result LaunchMessages(const NodesComm& comm, const Call& call, std::vector<Placed> all,
                      backend::Stream& stream) {
  constexpr uint32_t kDistances = kMaxNodesMessages / 2;
  std::sort(all.begin(), all.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(a.turn, a.distance, Sends(b.message)) <
           std::tuple(b.turn, b.distance, Sends(a.message));
  });
  NodesCall args = impl::CallOf(comm, call, NodesPath::kAuto);
  for (size_t begin = 0; begin < all.size();) {
    NodesMessages messages = {};
    uint32_t n = 0;
    const auto window = [](const Placed& placed) {
      return std::pair(placed.turn, placed.distance / kDistances);
    };
    for (; begin + n < all.size() && window(all[begin + n]) == window(all[begin]); ++n) {
      const Message& message = all[begin + n].message;
      NodesMessage& to = messages.each[n];
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
    const Result result =
        impl::LaunchPieces(comm, n, n, stream, [&](const LaunchConfig& launch, uint32_t) {
          return backend::Launch(launch, stream, &impl::MessageKernel<>, args, messages);
        });
    if (!result.ok()) return result;
  }
  // Other nodes are told of a failure.
  args.ends = call.operation == Operation::kAllToAllV ? 1 : 0;
  return impl::LaunchIdleTurn(comm, args, stream);
}

// Appends the messages to and from other ranks.
void Place(const NodesComm& comm, const Message* messages, uint32_t n_messages,
           std::vector<Placed>* all) {
  std::vector<uint32_t> turns(2 * uint64_t{comm.size}, 0);
  for (uint32_t i = 0; i < n_messages; ++i) {
    const Message& message = messages[i];
    if (message.count == 0 || message.peer_index == comm.index) continue;
    const uint32_t n = comm.size;
    const uint32_t distance =
        Sends(message) ? message.peer_index + n - comm.index : comm.index + n - message.peer_index;
    all->push_back(
        {message, turns[2 * message.peer_index + (Sends(message) ? 1 : 0)]++, distance % n});
  }
}

}  // namespace

Result ExchangeOnNodes(const NodesComm& comm, const Message* messages, uint32_t n_messages,
                       backend::Stream& stream) {
  if (Result result = impl::CheckNodesComm(comm); !result.ok()) return result;
  std::vector<const Message*> to_self;
  std::vector<const Message*> from_self;
  for (uint32_t i = 0; i < n_messages; ++i) {
    const Message& message = messages[i];
    if (Result result = CheckMessage(comm, message); !result.ok()) return result;
    if (message.count == 0) continue;
    for (uint32_t k = 0; k < i; ++k) {
      const Message& other = messages[k];
      if (other.count == 0 || (Sends(message) && Sends(other))) continue;
      if (impl::Overlap(Sends(message) ? message.in : message.out, BytesOf(message),
                        Sends(other) ? other.in : other.out, BytesOf(other))) {
        return Invalid("what is received overlaps with another buffer of the call");
      }
    }
    if (message.peer_index == comm.index) {
      (Sends(message) ? to_self : from_self).push_back(&message);
    }
  }
  bool alike = to_self.size() == from_self.size();
  for (size_t k = 0; alike && k < to_self.size(); ++k) {
    alike = to_self[k]->count == from_self[k]->count && to_self[k]->type == from_self[k]->type;
  }
  if (!alike) return Invalid("a member sends itself what it does not receive in the same call");
  for (size_t k = 0; k < to_self.size(); ++k) {
    const Result result =
        backend::CopyAsync(from_self[k]->out, to_self[k]->in, BytesOf(*to_self[k]), stream);
    if (!result.ok()) return result;
  }
  std::vector<Placed> all;
  Place(comm, messages, n_messages, &all);
  if (all.empty()) return {};
  return LaunchMessages(comm, {{Operation::kSendRecv}}, std::move(all), stream);
}

Result impl::RunAllToAllVOnNodes(const NodesComm& comm, const Call& call, backend::Stream& stream) {
  const uint64_t element_bytes = DTypeBytes(call.type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (call.to.counts == nullptr || call.to.offsets == nullptr || call.from.counts == nullptr ||
      call.from.offsets == nullptr) {
    return Invalid("an array of a Layout is null");
  }
  constexpr uint64_t kLimit = 1ull << 40;
  std::vector<Message> messages;
  uint64_t in_end = 0;
  uint64_t out_end = 0;
  for (uint32_t m = 0; m < comm.size; ++m) {
    if (call.to.counts[m] > kLimit || call.to.offsets[m] > kLimit || call.from.counts[m] > kLimit ||
        call.from.offsets[m] > kLimit) {
      return Invalid("the count is too large");
    }
    const uint8_t* const in = static_cast<const uint8_t*>(call.in);
    uint8_t* const out = static_cast<uint8_t*>(call.out);
    if (call.to.counts[m] != 0) {
      if (in == nullptr) return Invalid("a buffer is null");
      messages.push_back(
          {in + call.to.offsets[m] * element_bytes, nullptr, call.to.counts[m], call.type, m});
      in_end = std::max(in_end, call.to.offsets[m] + call.to.counts[m]);
    }
    if (call.from.counts[m] != 0) {
      if (out == nullptr) return Invalid("a buffer is null");
      messages.push_back(
          {nullptr, out + call.from.offsets[m] * element_bytes, call.from.counts[m], call.type, m});
      out_end = std::max(out_end, call.from.offsets[m] + call.from.counts[m]);
    }
  }
  if (call.to.counts[comm.index] != call.from.counts[comm.index]) {
    return Invalid("a member sends itself another count than it expects");
  }
  if (in_end != 0 && out_end != 0 &&
      Overlap(call.in, in_end * element_bytes, call.out, out_end * element_bytes)) {
    return Invalid("in and out overlap");
  }
  for (const Message& message : messages) {
    if (Result result = CheckMessage(comm, message); !result.ok()) return result;
  }
  if (const uint64_t own = call.to.counts[comm.index]; own != 0) {
    const Result result = backend::CopyAsync(
        static_cast<uint8_t*>(call.out) + call.from.offsets[comm.index] * element_bytes,
        static_cast<const uint8_t*>(call.in) + call.to.offsets[comm.index] * element_bytes,
        own * element_bytes, stream);
    if (!result.ok()) return result;
  }
  std::vector<Placed> all;
  Place(comm, messages.data(), static_cast<uint32_t>(messages.size()), &all);
  return LaunchMessages(comm, {{Operation::kAllToAllV, 0, call.type}}, std::move(all), stream);
}

Result impl::PrepareNodesMessages() { return backend::PrepareKernel(&MessageKernel<>); }

}  // namespace iris::ccl
