// Outbox: the descriptors that are being sent to one session. It queues them, and keeps at most
// kDescriptorWindow in flight, and no more than the share of the session's tenant (InFlight). Not
// thread-safe. It owns the queue, and sends through functions that its owner provides.
//
// A client's acknowledgement of a descriptor does not suffice: a descriptor counts as received once
// the kernel reports that nothing that was sent is unread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "server/account/in_flight.h"

namespace iris::server {

// Returns true if the peer has received everything that was sent on this socket, or has dropped it
// by closing. The kernel reports it, so no peer can fake it.
bool AllReceived(int socket);

// A descriptor for a session. It is opened when it is sent, so queued ones take no descriptors.
struct OutgoingDescriptor {
  wire::DescriptorRecord record;
  std::function<absl::StatusOr<int>()> open;  // the caller owns the result
};

class Outbox {
 public:
  // Accesses the session's socket. The functions are called only during a call of the Outbox.
  struct Socket {
    // Sends one frame with descriptors, which are borrowed, like wire::SendFrame.
    std::function<absl::Status(const wire::DescriptorsPayload& payload, absl::Span<const int>)>
        send;
    // Implements AllReceived.
    std::function<bool()> all_received;
  };

  static constexpr size_t kMaxQueued = 16384;

  Outbox() = default;
  // `share` counts the descriptors of this outbox that are in flight.
  explicit Outbox(InFlight::Hold share) : share_(std::move(share)) {}

  // kResourceExhausted, with the queue unchanged, if it would be longer than kMaxQueued.
  absl::Status Queue(std::vector<OutgoingDescriptor> descriptors);

  // Counts the client's acknowledgement of `count` more descriptors. Returns kInvalidArgument if
  // fewer are in flight.
  absl::Status Acknowledge(uint32_t count);

  // HasRoom returns true if a descriptor from outside the queue may be sent, and CountSent counts
  // that descriptor. The client acknowledges it like the others, except the one of kWelcome.
  bool HasRoom() const { return n_in_flight() < wire::kDescriptorWindow && share_.Room() > 0; }
  void CountSent() {
    ++n_unacknowledged_;
    share_.Add(1);
  }
  void CountWelcome() { share_.Add(1); }
  // Assumes that an earlier irisd has sent as many descriptors as allowed, until nothing is unread.
  void CountEarlier() { share_.Add(wire::kDescriptorWindow); }
  // Checks whether everything sent was received. Returns true if that made room in the share.
  bool Look(const Socket& socket);

  enum class Flushed {
    kIdle,     // nothing to do before the next Queue or Acknowledge
    kUnread,   // the client has acknowledged some that it may not have received: flush again in a
               // while, since nothing reports when it receives them
    kBlocked,  // descriptors, its share, or room in the socket ran out: flush again in a while
  };
  // Sends the descriptors that fit. A peer that is gone is no error: its hang-up will be reported.
  // Any other failure of `send`, or of opening a descriptor, is returned, and the descriptor stays
  // queued. kResourceExhausted if the outbox was blocked for `patience`; the message has the cause.
  absl::StatusOr<Flushed> Flush(const Socket& socket, absl::Time now, absl::Duration patience);

  // Empties the queue, and returns the share, because descriptors in flight outlive the session.
  InFlight::Hold Close();

  size_t n_queued() const { return queue_.size(); }
  // Returns the number of descriptors that were sent and are not acknowledged, or not received.
  uint32_t n_in_flight() const { return std::max(n_unacknowledged_, share_.count()); }
  const InFlight::Hold& share() const { return share_; }

 private:
  absl::StatusOr<Flushed> Blocked(absl::Time now, absl::Duration patience, const std::string& by);

  std::deque<OutgoingDescriptor> queue_;
  uint32_t n_unacknowledged_ = 0;
  InFlight::Hold share_;
  absl::Time blocked_since_ = absl::InfiniteFuture();
};

}  // namespace iris::server
