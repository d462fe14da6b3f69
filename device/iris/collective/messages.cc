// Messages: Send, Recv, SendRecv and Exchange.
//
// Each launch of Exchange has messages that wait only for each other: the k-th message between two
// ranks in one direction is in round k, and rounds go by the distance from sender to receiver in
// the team. Both sides compute the same rounds, so ranks never wait in a circle.
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/collective/operations.h"
#include "iris/rounds/layout.h"

namespace iris::ccl {
namespace {

using impl::Invalid;
using impl::Request;

bool Sends(const Message& message) { return message.in != nullptr; }

Request RequestOf(uint32_t me, const Message& message) {
  const bool sends = Sends(message);
  Request request = {{{Operation::kSendRecv, message.count, message.type},
                      message.in,
                      message.out,
                      sends ? me : message.peer_index}};
  request.in_rows = sends ? 1 : 0;
  request.out_rows = sends ? 0 : 1;
  request.receiver = sends ? message.peer_index : me;
  return request;
}

const void* BufferOf(const Message& message) { return Sends(message) ? message.in : message.out; }
uint64_t BytesOf(const Message& message) { return message.count * DTypeBytes(message.type); }

// Numbers the messages between two ranks in one direction, from 0. Of() takes all messages of the
// call in order and returns the number of each.
class Turns {
 public:
  uint32_t Of(const Message& message) {
    return message.count == 0 ? 0 : n_[message.peer_index][Sends(message) ? 1 : 0]++;
  }

 private:
  uint32_t n_[kMaxTeamRanks][2] = {};
};

// Returns the counterpart of message i, which this rank sends to itself or receives from itself:
// the k-th receive for the k-th send, and vice versa. Returns null if there is none.
const Message* AnswerOf(const Message* messages, uint32_t n, uint32_t i) {
  const auto has_way = [&](uint32_t k, bool sends) {
    return messages[k].count != 0 && messages[k].peer_index == messages[i].peer_index &&
           Sends(messages[k]) == sends;
  };
  uint32_t before = 0;
  for (uint32_t k = 0; k < i; ++k) before += has_way(k, Sends(messages[i]));
  for (uint32_t k = 0; k < n; ++k) {
    if (has_way(k, !Sends(messages[i])) && before-- == 0) return &messages[k];
  }
  return nullptr;
}

// Launches the messages of number `turn`. Sets `*more` if some message has a higher number.
Result LaunchTurn(const Comm& comm, const Message* messages, uint32_t n_messages, uint32_t turn,
                  bool* more, backend::Stream& stream) {
  const uint32_t n = comm.team.size;
  const uint32_t step = impl::PlacesOf(comm.config).distances;
  *more = false;
  for (uint32_t begin = 1; begin < n; begin += step) {
    Request requests[impl::kMaxMessages];
    const Request* launched[impl::kMaxMessages];
    uint32_t n_launched = 0;
    Turns turns;
    for (uint32_t i = 0; i < n_messages; ++i) {
      const uint32_t own = turns.Of(messages[i]);
      if (messages[i].count == 0 || messages[i].peer_index == comm.team.index) continue;
      Request request = RequestOf(comm.team.index, messages[i]);
      const uint32_t distance = impl::MessageDistance(request, n);
      if (distance < begin || distance >= begin + step) continue;
      if (own > turn) *more = true;
      if (own != turn) continue;
      bool nothing = false;
      // The request was checked before; this call sets its offsets.
      if (Result result = impl::CheckRequest(comm, &request, &nothing); !result.ok()) return result;
      requests[n_launched] = request;
      launched[n_launched] = &requests[n_launched];
      ++n_launched;
    }
    if (n_launched == 0) continue;
    if (Result result = impl::LaunchMessages(comm, launched, n_launched, stream); !result.ok()) {
      return result;
    }
  }
  return {};
}

Result RunOne(const Comm& comm, const Message& message, backend::Stream& stream) {
  if (Result result = impl::CheckComm(comm); !result.ok()) return result;
  if (message.peer_index >= comm.team.size || message.peer_index == comm.team.index) {
    return Invalid("the other side is not another member");
  }
  Request request = RequestOf(comm.team.index, message);
  bool nothing = false;
  const Result result = impl::CheckRequest(comm, &request, &nothing);
  if (!result.ok() || nothing) return result;
  return impl::LaunchRequest(comm, request, stream);
}

}  // namespace

Result impl::CheckMessages(const Comm& comm, uint32_t n, uint32_t index, const Message* messages,
                           uint32_t n_messages) {
  if (Result result = impl::CheckComm(comm); !result.ok()) return result;
  for (uint32_t i = 0; i < n_messages; ++i) {
    const Message& message = messages[i];
    if (message.peer_index >= n) return Invalid("the other side is not a member");
    if (message.in != nullptr && message.out != nullptr) {
      return Invalid("a message of Exchange has both an in and an out");
    }
    Request request = RequestOf(index, message);
    bool nothing = false;
    if (Result result = impl::CheckRequest(comm, &request, &nothing); !result.ok()) return result;
    if (nothing) continue;
    for (uint32_t k = 0; k < i; ++k) {
      if ((!Sends(message) || !Sends(messages[k])) && messages[k].count != 0 &&
          impl::Overlap(BufferOf(message), BytesOf(message), BufferOf(messages[k]),
                        BytesOf(messages[k]))) {
        return Invalid("what is received overlaps with another buffer of the call");
      }
    }
  }
  for (uint32_t i = 0; i < n_messages; ++i) {
    if (messages[i].count == 0 || messages[i].peer_index != index) continue;
    const Message* answer = AnswerOf(messages, n_messages, i);
    if (answer == nullptr) {
      return Invalid("a member sends itself what it does not receive in the same call");
    }
    if (answer->count != messages[i].count || answer->type != messages[i].type) {
      return Invalid("a member sends itself another count or type than it receives");
    }
  }
  return {};
}

Result impl::CopyOwnMessages(uint32_t index, const Message* messages, uint32_t n_messages,
                             backend::Stream& stream) {
  for (uint32_t i = 0; i < n_messages; ++i) {
    const Message& message = messages[i];
    if (message.count == 0 || message.peer_index != index || !Sends(message)) continue;
    const Result result = backend::CopyAsync(AnswerOf(messages, n_messages, i)->out, message.in,
                                             BytesOf(message), stream);
    if (!result.ok()) return result;
  }
  return {};
}

Result Exchange(const Comm& comm, const Message* messages, uint32_t n_messages,
                backend::Stream& stream) {
  const uint32_t me = comm.team.index;
  Result result = impl::CheckMessages(comm, comm.team.size, me, messages, n_messages);
  if (result.ok()) result = impl::CopyOwnMessages(me, messages, n_messages, stream);
  if (!result.ok()) return result;
  uint32_t n_others = 0;
  uint32_t last = 0;
  for (uint32_t i = 0; i < n_messages; ++i) {
    if (messages[i].count == 0 || messages[i].peer_index == me) continue;
    ++n_others;
    last = i;
  }
  if (n_others == 1) return RunOne(comm, messages[last], stream);
  bool more = n_others != 0;
  for (uint32_t turn = 0; more; ++turn) {
    result = LaunchTurn(comm, messages, n_messages, turn, &more, stream);
    if (!result.ok()) return result;
  }
  return {};
}

}  // namespace iris::ccl
