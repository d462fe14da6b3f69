// Handshake: the frames that open a session, as a pure machine. Frames and the time go in; the next
// action comes out. It knows no socket and no clock. Not thread-safe; owns only its state.
//
//   a client whose pidfd the kernel gave    kHello -> open
//   any other client                        kHello -> challenge; kChallengeReply -> open
//
// Anything else refuses the client, which gets the reason. OnFrame is not called after the end.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace iris::server {

// Checks a frame of the handshake, or of an open session. kPermissionDenied if another process than
// `pid` sent it. kInvalidArgument if it brings descriptors (a kCall may bring one), or if its type
// is not legal now.
absl::Status CheckFrame(const wire::Frame& frame, int64_t pid,
                        std::initializer_list<wire::FrameType> legal);

class Handshake {
 public:
  enum class Step {
    kChallenge,  // the caller sends kChallenge with nonce(), and waits for another frame
    kOpen,       // the caller opens the session: the client is who the kernel says, if that process
                 // still runs
  };

  struct Start {
    int64_t pid = 0;  // of the process that connected, as the kernel says
    // True if the pidfd came with the connection. Otherwise it was opened by number earlier, and
    // the client proves, by sending the nonce back, that the number is still its own.
    bool attested = false;
    wire::NoncePayload nonce;  // random; ignored if attested
    absl::Time now;
    absl::Duration timeout;
  };
  explicit Handshake(const Start& start) : start_(start) {}

  // An error refuses the client: the caller sends the error, and hangs up.
  absl::StatusOr<Step> OnFrame(const wire::Frame& frame);
  const wire::NoncePayload& nonce() const { return start_.nonce; }

  // Return the time at which to refuse the client, and the error for it.
  absl::Time deadline() const { return start_.now + start_.timeout; }
  absl::Status OnDeadline() const;

  // Valid once it has opened: true if the client calls by frames, and needs no gRPC socket.
  bool calls_by_frames() const { return calls_by_frames_; }
  // Valid once it has opened: true if the client knows kRestarted, and can outlive this irisd.
  bool outlives_irisd() const { return outlives_irisd_; }

 private:
  absl::StatusOr<Step> OnHello(const wire::Frame& frame);
  absl::StatusOr<Step> OnReply(const wire::Frame& frame);

  const Start start_;
  bool challenged_ = false;
  bool calls_by_frames_ = false;
  bool outlives_irisd_ = false;
};

// Return the payload for a client whose session opens, and for one with which another irisd
// continues. Texts that are too long are cut.
wire::WelcomePayload MakeWelcome(uint64_t session_id, uint64_t daemon_id, std::string_view backend);
wire::RestartedPayload MakeRestarted(uint64_t generation);

}  // namespace iris::server
