// DescriptorSender: sends sessions their descriptors, and the frames before these. It retries
// blocked sessions, and checks which descriptors were received, which makes room for others of the
// same tenants. Not thread-safe: it belongs to the session thread. Borrows the closer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/wire/frame.h"
#include "server/account/in_flight.h"
#include "server/session/deferred_close.h"
#include "server/session/session.h"

namespace iris::server {

class DescriptorSender {
 public:
  // Returns null if no session has the key any more.
  using Find = std::function<Session*(uint64_t key)>;
  using End = std::function<void(Session&, const absl::Status&)>;

  // `end` ends a session whose descriptors cannot be sent for `patience`.
  DescriptorSender(const AdmissionLimits& limits, absl::Duration patience, DeferredClose* closer,
                   Find find, End end)
      : patience_(patience),
        closer_(closer),
        find_(std::move(find)),
        end_(std::move(end)),
        in_flight_(limits) {}

  // Returns the share of one session, or kResourceExhausted if that has no room for `n_needed`.
  absl::StatusOr<InFlight::Hold> Share(const Applicant& applicant, uint32_t n_needed);

  // Sends kWelcome, with the client's end of a gRPC socket, which is borrowed, if it wants one.
  absl::Status Welcome(Session& session, const wire::WelcomePayload& welcome,
                       absl::Span<const int> rpc_socket);
  // Sends the frames that the socket takes now, and sends the rest later.
  absl::Status Flush(Session& session);
  // Sends the client the error `told`, unless it is OK, and ends the session's connection. Keeps
  // the session's share until the client has received everything.
  void Close(Session& session, const absl::Status& told);

  absl::Time deadline() const { return retries_.empty() ? absl::InfiniteFuture() : retry_at_; }
  void RunDeadlines(absl::Time now);
  // Checks which descriptors were received since the last check, at most 50 times a second.
  void LookForReceived(absl::Time now);
  // Returns false if LookForReceived must still be called now and then.
  bool settled() const { return unread_.empty() && ended_.empty(); }

  uint64_t in_flight_of(const Party& tenant) const { return in_flight_.of(tenant); }
  // Closes the connections that remain after Close.
  void Clear();

 private:
  // The connection of an ended session whose client has not yet received every descriptor. The
  // kernel charges the descriptors to irisd's user until the client reads them or closes its end,
  // so they count in their tenant's share until then.
  struct UnreadSocket {
    Party tenant;
    wire::UniqueFd socket;
    InFlight::Hold share;
  };

  static Outbox::Socket SocketOf(const Session& session);
  // Has LookForReceived check the session, if the session has unread descriptors.
  void WatchUnread(Session& session);
  // Reports the restart to a client that needs it. Returns false if the client's queue is full.
  absl::StatusOr<bool> Announce(Session& session);
  void RetryLater(Session& session, absl::Time now);

  const absl::Duration patience_;
  DeferredClose* const closer_;
  const Find find_;
  const End end_;
  InFlight in_flight_;
  std::vector<UnreadSocket> ended_;
  std::vector<uint64_t> retries_;  // keys of blocked sessions
  absl::Time retry_at_ = absl::InfinitePast();
  std::vector<uint64_t> unread_;  // keys of sessions that have descriptors in flight
  absl::Time looked_ = absl::InfinitePast();
};

}  // namespace iris::server
