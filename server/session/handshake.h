// Handshake: the talk that opens a session, as a pure machine. Frames and the time go in; what is
// to be done comes out. It knows no socket and no clock. Not thread-safe; owns only its state.
//
//   a client whose pidfd the kernel gave    kHello -> open
//   any other client                        kHello -> challenge; kChallengeReply -> open
//
// Everything else refuses the client, with the reason that it is told. After the end nothing more
// may go in.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace iris::server {

// kPermissionDenied: another process than `pid` sent the frame. kInvalidArgument: it brings
// descriptors (a kCall may bring one), or it is of none of the types that are legal now. For the
// handshake and for all that comes after it.
absl::Status CheckFrame(const wire::Frame& frame, int64_t pid,
                        std::initializer_list<wire::FrameType> legal);

class Handshake {
 public:
  // What the caller does next.
  struct Challenge {  // sends kChallenge with this payload, and waits for another frame
    wire::NoncePayload nonce;
  };
  struct Open {
  };  // opens the session: the client is who the kernel says, if that process still runs
  struct Refuse {  // tells the client, and hangs up
    absl::Status reason;
  };
  using Step = std::variant<Challenge, Open, Refuse>;

  struct Start {
    int64_t pid = 0;  // of the process that connected, as the kernel says
    // The pidfd came with the connection. Otherwise it was opened by number before this machine was
    // made, and the client proves, by sending the nonce back, that the number is still its own.
    bool attested = false;
    wire::NoncePayload nonce;  // random; not looked at if attested
    absl::Time now;
    absl::Duration timeout;
  };
  explicit Handshake(const Start& start);

  // The next frame of the client.
  Step OnFrame(const wire::Frame& frame);

  // When OnDeadline is due, and what then is to be done.
  absl::Time deadline() const { return deadline_; }
  Refuse OnDeadline() const;

  // Once it has opened: the client calls by frames, and needs no gRPC socket.
  bool calls_by_frames() const { return calls_by_frames_; }
  // The same: it knows kRestarted, so that its session can outlive this irisd.
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

// What an opened client is told. Texts that are too long are cut.
wire::WelcomePayload MakeWelcome(uint64_t session_id, uint64_t daemon_id, std::string_view backend);

}  // namespace iris::server
