// Handshake: the frames that open a session, as a pure machine. Frames and the time go in; the next
// action comes out. It knows no socket and no clock. Not thread-safe; owns only its state.
//
//   a client whose pidfd the kernel gave    kHello -> open
//   any other client                        kHello -> challenge; kChallengeReply -> open
//
// Anything else refuses the client, with the reason that it is told. After the end nothing more may
// go in.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace iris::server {

// Checks a frame of the handshake, or of an open session. kPermissionDenied: another process than
// `pid` sent it. kInvalidArgument: it brings descriptors (a kCall may bring one), or its type is
// not legal now.
absl::Status CheckFrame(const wire::Frame& frame, int64_t pid,
                        std::initializer_list<wire::FrameType> legal);

class Handshake {
 public:
  // The caller sends kChallenge with this payload, and waits for another frame.
  struct Challenge {
    wire::NoncePayload nonce;
  };
  // The caller opens the session: the client is who the kernel says, if that process still runs.
  struct Open {};
  // The caller tells the client, and hangs up.
  struct Refuse {
    absl::Status reason;
  };
  using Step = std::variant<Challenge, Open, Refuse>;

  struct Start {
    int64_t pid = 0;  // of the process that connected, as the kernel says
    // The pidfd came with the connection. Otherwise it was opened by number before this machine was
    // made, and the client proves, by sending the nonce back, that the number is still its own.
    bool attested = false;
    wire::NoncePayload nonce;  // random; ignored if attested
    absl::Time now;
    absl::Duration timeout;
  };
  explicit Handshake(const Start& start);

  Step OnFrame(const wire::Frame& frame);

  // Return when OnDeadline is due, and the action then.
  absl::Time deadline() const { return deadline_; }
  Refuse OnDeadline() const;

  // Valid once it has opened: the client calls by frames, and needs no gRPC socket.
  bool calls_by_frames() const { return calls_by_frames_; }
  // Valid once it has opened: the client knows kRestarted, so its session can outlive this irisd.
  bool outlives_irisd() const { return outlives_irisd_; }

 private:
  Step OnHello(const wire::Frame& frame);
  Step OnReply(const wire::Frame& frame);

  const Start start_;
  const absl::Time deadline_;
  bool challenged_ = false;
  bool calls_by_frames_ = false;
  bool outlives_irisd_ = false;
};

// Return what a client is told when its session opens, and when another irisd goes on with it.
// Texts that are too long are cut.
wire::WelcomePayload MakeWelcome(uint64_t session_id, uint64_t daemon_id, std::string_view backend);
wire::RestartedPayload MakeRestarted(uint64_t generation);

}  // namespace iris::server
