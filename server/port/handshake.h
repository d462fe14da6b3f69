// The handshake of two ports, and the keys that it gives. Pure: it takes frames and returns frames.
//
//   initiator → other   kHello      magic, version, nonce
//   other → initiator   kChallenge  nonce
//   initiator → other   kProof      HMAC of all so far and of its Identity, Identity
//   other → initiator   kWelcome    likewise
//   either              kRefused    text; the connection ends
//
// The other learns nothing of this port before it has proved that it knows the job's secret, except
// the version. Frames of kHello and kRefused never change, so that versions can name each other.
// Later frames have an HMAC, by keys that the secret and both nonces give. Nothing is encrypted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/port/wire.pb.h"

namespace iris::port {

// Of what follows, and of the messages between irisds (server/state/node_message.proto).
inline constexpr uint32_t kProtocolVersion = 2;

enum class FrameType : uint16_t {
  kHello = 1,
  kRefused = 2,
  kChallenge = 3,
  kProof = 4,
  kWelcome = 5,
  // After the handshake.
  kBeat = 16,         // a Beat
  kNodeMessage = 17,  // payload of a NodeMessage
  kMeet = 18,
  kLostNode = 19,
  kAnswer = 20,  // to a beat
};

struct FrameHeader {
  uint32_t bytes = 0;  // of the payload, without the HMAC that follows it after the handshake
  FrameType type{};
  uint16_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 8);

inline constexpr uint32_t kMaxHandshakeBytes = 8 << 10;

void AppendFrame(FrameType type, std::string_view payload, std::string* out);

// What the handshake gives, from this side's view.
struct Keys {
  std::string sent, received;  // of the HMACs of frames
  uint64_t sent_tag = 0, received_tag = 0;
};

class Handshake {
 public:
  // `self` and `secret` are borrowed.
  Handshake(const Identity* self, const std::string* secret, bool initiator);

  // Appends the first frame, if this side begins.
  void Begin(std::string* out);

  // Takes the next frame, and appends the answer to *out. Returns true when the handshake is over.
  // An error says, for people, why the other side is refused, or why it refuses this one.
  absl::StatusOr<bool> Take(FrameType type, std::string_view payload, std::string* out);

  const Identity& other() const { return other_; }
  const Keys& keys() const { return keys_; }

 private:
  absl::Status OnHello(std::string_view payload, std::string* out);
  // Checks the HMAC of the other's identity, then the identity.
  absl::Status OnIdentity(std::string_view label, std::string_view payload);
  std::string Prove(std::string_view label);
  void MakeKeys();

  const Identity* const self_;
  const std::string* const secret_;
  const bool initiator_;
  FrameType expected_;
  std::string transcript_;  // payloads so far
  Identity other_;
  Keys keys_;
};

}  // namespace iris::port
