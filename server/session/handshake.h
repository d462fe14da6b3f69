// Handshake: the frames that open a session, as a pure state machine: frames and the time in, the
// next action out. It uses no socket and no clock. Not thread-safe; owns only its state.
//
//   a client whose pidfd the kernel gave    kHello -> open
//   any other client                        kHello -> challenge; kChallengeReply -> open
//
// Any other frame refuses the client, which gets the reason. OnFrame is not called after the end.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"

namespace iris::server {

// Checks a frame of the handshake, or of an open session. Returns kPermissionDenied if another
// process than `pid` sent it. Returns kInvalidArgument if the frame has descriptors (a kCall may
// have one), or if its type is not legal now.
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
    // True if the pidfd came with the connection. Otherwise it was opened by pid earlier, and the
    // client proves, by returning the nonce, that the pid is still its own.
    bool attested = false;
    wire::NoncePayload nonce;  // random; ignored if attested
    absl::Time now;
    absl::Duration timeout;
  };
  explicit Handshake(const Start& start) : start_(start) {}

  // Handles the next frame. After an error the caller sends the error to the client, and hangs up.
  absl::StatusOr<Step> OnFrame(const wire::Frame& frame);
  const wire::NoncePayload& nonce() const { return start_.nonce; }

  // Return the time at which to refuse the client, and the error to refuse it with.
  absl::Time deadline() const { return start_.now + start_.timeout; }
  absl::Status OnDeadline() const;

  // Valid once open: returns true if the client calls by frames, and needs no gRPC socket.
  bool calls_by_frames() const { return calls_by_frames_; }
  // Valid once open: returns true if the client knows kRestarted, and can outlive this irisd.
  bool outlives_irisd() const { return outlives_irisd_; }

 private:
  absl::StatusOr<Step> OnHello(const wire::Frame& frame);
  absl::StatusOr<Step> OnReply(const wire::Frame& frame);

  const Start start_;
  bool challenged_ = false;
  bool calls_by_frames_ = false;
  bool outlives_irisd_ = false;
};

// Return the payloads for a client whose session opens, and for a client whose session another
// irisd continues. Texts that are too long are cut.
wire::WelcomePayload MakeWelcome(uint64_t session_id, uint64_t daemon_id, std::string_view backend);
wire::RestartedPayload MakeRestarted(uint64_t generation);

}  // namespace iris::server
