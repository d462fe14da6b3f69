// Outbox: the descriptors that are on their way to one session. It queues them, keeps at most
// kDescriptorWindow in flight, and counts what the client has acknowledged. Not thread-safe; it
// owns what is queued, and sends through a function that its owner gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"

namespace iris::server {

// A descriptor on its way to a session: opened only when it is sent, so that a queue costs no
// descriptors.
struct OutgoingDescriptor {
  wire::DescriptorRecord record;
  std::function<absl::StatusOr<int>()> open;  // the caller owns the result
};

class Outbox {
 public:
  // Sends one frame with its descriptors, which are borrowed. As wire::SendFrame.
  using Send =
      std::function<absl::Status(const wire::DescriptorsPayload& payload, absl::Span<const int>)>;

  static constexpr size_t kMaxQueued = 16384;

  // kResourceExhausted: the queue would be longer than kMaxQueued; it is unchanged.
  absl::Status Queue(std::vector<OutgoingDescriptor> descriptors);

  // Whether one more descriptor may be on its way, for one that does not come from the queue; and
  // that it is.
  bool HasRoom() const { return n_in_flight_ < wire::kDescriptorWindow; }
  void CountSent() { ++n_in_flight_; }

  // The client has received so many more. kInvalidArgument: so many are not on their way.
  absl::Status Acknowledge(uint32_t count);

  enum class Flushed {
    kIdle,     // nothing to do before the next Queue or Acknowledge
    kBlocked,  // descriptors or room in the socket ran out: flush again in a while
  };
  // Sends what fits. A peer that is gone is no error here: its hang-up is on its way. Any other
  // failure of `send`, or of opening a descriptor, is returned; what it concerns stays queued.
  absl::StatusOr<Flushed> Flush(const Send& send);

  // Forgets everything.
  void Clear();

  size_t n_queued() const { return queue_.size(); }
  uint32_t n_in_flight() const { return n_in_flight_; }

 private:
  std::deque<OutgoingDescriptor> queue_;
  uint32_t n_in_flight_ = 0;  // sent and not acknowledged
};

}  // namespace iris::server
