#include "server/session/handshake.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/version.h"

namespace iris::server {
namespace {

template <size_t n>
void CopyText(std::string_view from, char (&to)[n]) {
  std::memcpy(to, from.data(), std::min(from.size(), n - 1));
}

}  // namespace

absl::Status CheckFrame(const wire::Frame& frame, int64_t pid,
                        std::initializer_list<wire::FrameType> legal) {
  if (frame.sender.pid != pid) {
    return absl::PermissionDeniedError(
        absl::StrCat("a message of process ", frame.sender.pid, " on the session of process ", pid,
                     ": a forked child must open a session of its own"));
  }
  // SessionCalls checks the descriptors of a kCall.
  if (!frame.fds.empty() && frame.type != wire::FrameType::kCall) {
    return absl::InvalidArgumentError("descriptors came that nobody asked for");
  }
  if (std::find(legal.begin(), legal.end(), frame.type) == legal.end()) {
    const auto number = [](std::string* out, wire::FrameType type) {
      absl::StrAppend(out, static_cast<int>(type));
    };
    return absl::InvalidArgumentError(
        absl::StrCat("session frame of type ", static_cast<int>(frame.type), " where only type ",
                     absl::StrJoin(legal, " or ", number), " is legal"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Handshake::Step> Handshake::OnFrame(const wire::Frame& frame) {
  absl::Status status =
      CheckFrame(frame, start_.pid,
                 {challenged_ ? wire::FrameType::kChallengeReply : wire::FrameType::kHello});
  if (!status.ok()) return status;
  return challenged_ ? OnReply(frame) : OnHello(frame);
}

absl::StatusOr<Handshake::Step> Handshake::OnHello(const wire::Frame& frame) {
  const absl::StatusOr<wire::HelloPayload> hello = frame.As<wire::HelloPayload>();
  if (!hello.ok()) return hello.status();
  if (hello->version_min > wire::kVersion || hello->version_max < wire::kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the client speaks protocol versions ", hello->version_min, " to ",
                     hello->version_max, ", irisd ", wire::kIrisVersion, " speaks version ",
                     wire::kVersion, ": install matching versions"));
  }
  if ((hello->flags & ~wire::kCallsByFrames) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the hello has flags ", hello->flags,
                                                   " of which irisd knows ", wire::kCallsByFrames,
                                                   ": install matching versions"));
  }
  calls_by_frames_ = (hello->flags & wire::kCallsByFrames) != 0;
  outlives_irisd_ = calls_by_frames_ && hello->version_max >= wire::kVersionRestarts;
  if (start_.attested) return Step::kOpen;
  challenged_ = true;
  return Step::kChallenge;
}

absl::StatusOr<Handshake::Step> Handshake::OnReply(const wire::Frame& frame) {
  const absl::StatusOr<wire::NoncePayload> reply = frame.As<wire::NoncePayload>();
  if (!reply.ok()) return reply.status();
  if (std::memcmp(reply->nonce, start_.nonce.nonce, sizeof(reply->nonce)) != 0) {
    return absl::PermissionDeniedError("the challenge came back changed");
  }
  // CheckFrame has compared the sender's pid. The frame was sent after the pidfd was opened, so if
  // the pidfd's process still runs, it is the sender.
  return Step::kOpen;
}

absl::Status Handshake::OnDeadline() const {
  return absl::DeadlineExceededError(
      absl::StrCat("the handshake was not finished within ", absl::FormatDuration(start_.timeout)));
}

wire::WelcomePayload MakeWelcome(uint64_t session_id, uint64_t daemon_id,
                                 std::string_view backend) {
  wire::WelcomePayload welcome;
  welcome.session_id = session_id;
  welcome.daemon_id = daemon_id;
  CopyText(wire::kIrisVersion, welcome.daemon_version);
  CopyText(backend, welcome.backend);
  return welcome;
}

wire::RestartedPayload MakeRestarted(uint64_t generation) {
  wire::RestartedPayload restarted;
  restarted.generation = generation;
  CopyText(wire::kIrisVersion, restarted.daemon_version);
  return restarted;
}

}  // namespace iris::server
