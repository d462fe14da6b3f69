// Session: the data of one session, or of a handshake that may become one. It belongs to the
// session thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "server/account/admission.h"
#include "server/job/ids.h"
#include "server/session/handshake.h"
#include "server/session/outbox.h"
#include "server/session/peer.h"
#include "server/session/poller.h"
#include "server/session/session_calls.h"
#include "server/session/session_rpc.h"

namespace iris::server {

struct Session {
  enum class State { kHandshake, kOpen, kEnding };

  const Party& tenant() const { return peer.applicant.tenant; }

  uint64_t key = 0;  // never reused
  SessionId id;      // zero until open
  State state = State::kHandshake;
  Peer peer;  // its pidfd moves to `process` when the session opens
  Admission::Place place;
  std::optional<Handshake> handshake;   // until open
  Poller::Watched socket;               // until the hang-up
  Poller::Watched process;              // from open until gone
  std::optional<SessionRpc> rpc;        // from open until the hang-up
  std::shared_ptr<SessionCalls> calls;  // from open until the hang-up
  Outbox outbox;
  uint64_t look = 0;    // the inspection of the next packet whose answer is awaited
  bool looked = false;  // the next packet may be received
  bool retries = false, unread = false;  // it is in the lists of the DescriptorSender
  // If another irisd had the session, frames are dropped until the client has seen this generation.
  // 0 if the client has seen it, or if no other irisd had the session.
  uint64_t awaits = 0;
  bool announced = true;  // kRestarted was sent, if the client needs it
};

}  // namespace iris::server
