// The session socket's frames. One SOCK_SEQPACKET packet is one frame: a FrameHeader, then the
// payload struct of its type, as in memory (both ends are on one machine), with descriptors
// (SCM_RIGHTS). docs/protocol.md has the order of frames and the rules for calls and restarts.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"

namespace iris::wire {

inline constexpr uint32_t kMagic = 0x53495249;  // "IRIS"
inline constexpr uint16_t kVersion = 1;         // of every frame; the only one this code speaks
// A client whose hello has at least this version_max knows kRestarted and kRestartSeen. Headers of
// frames still have kVersion.
inline constexpr uint16_t kVersionRestarts = 2;

enum class FrameType : uint16_t {
  kHello = 1,           // of the client
  kChallenge = 2,       // of irisd, only if the kernel has no SO_PEERPIDFD
  kChallengeReply = 3,  // of the client; its SCM_CREDENTIALS name the connecting process
  kWelcome = 4,         // of irisd, with the socket of the session's gRPC channel
  kError = 5,           // of irisd, which then closes the socket
  kDescriptors = 6,     // of irisd
  kAck = 7,             // of the client
  kRpcRequest = 8,      // of the client: its gRPC socket is lost
  kRpcSocket = 9,       // of irisd, with a new gRPC socket
  kCall = 10,           // of the client
  kCancelCall = 11,     // of the client
  kTaken = 12,          // of the client: one message of a stream was read
  kAnswer = 13,         // of irisd
  kFailure = 14,        // of irisd
  kRestarted = 15,      // of irisd
  kRestartSeen = 16,    // of the client
};

struct FrameHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t type = 0;
  uint32_t payload_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 16);

// A flag of HelloPayload: the client calls by kCall, and needs no gRPC socket.
inline constexpr uint32_t kCallsByFrames = 1;

struct HelloPayload {
  uint16_t version_min = kVersion;
  uint16_t version_max = kVersion;  // or kVersionRestarts
  uint32_t flags = 0;               // kCallsByFrames; other bits are zero
  char client_version[32] = {};     // for logs; zero-terminated
};

struct NoncePayload {  // kChallenge and kChallengeReply
  uint8_t nonce[32] = {};
};

struct WelcomePayload {
  uint64_t session_id = 0;
  uint64_t daemon_id = 0;  // random, one per irisd life
  char daemon_version[32] = {};
  char backend[16] = {};  // of irisd's devices; zero-terminated
};

struct ErrorPayload {
  uint32_t code = 0;  // absl::StatusCode
  uint32_t text_bytes = 0;
  char text[kMaxErrorTextBytes] = {};
};

enum class DescriptorKind : uint32_t {
  kSegment = 1,      // a heap segment, read-write
  kControlPage = 2,  // of `rank`: read-write if it is the receiver's own, else read-only
  kStatusPage = 3,   // read-only
  kLink = 4,         // of device `rank`, for the process to map read-only and keep (decision 010)
  kPortMemory = 5,   // of the receiver's `rank`, in a job of several nodes (iris/port_types.h)
  kPortWake = 6,     // the eventfd that wakes the port process
};

struct DescriptorRecord {
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  uint64_t segment_id = 0;  // 0 unless kind is kSegment
  uint64_t bytes = 0;
  uint32_t rank = 0;
  uint32_t kind = 0;  // DescriptorKind
};

struct DescriptorsPayload {
  uint32_t count = 0;  // also the number of descriptors of the frame, in this order
  uint32_t reserved = 0;
  DescriptorRecord records[kMaxDescriptorsPerFrame] = {};
};

struct AckPayload {
  uint32_t count = 0;
  uint32_t reserved = 0;
};

// Methods of the heap service, as kCall names them. The numbers are part of the protocol.
enum class CallMethod : uint32_t {
  kJoin = 1,
  kMapped = 2,
  kOperate = 3,
  kGrowMapped = 4,
  kLeave = 5,
  kResume = 6,
  kWatch = 7,  // the answer is a stream
  kBorrow = 8,
  kAwaitBarrier = 9,
};

// `bytes` bytes of the request follow, if these are at most kMaxCallFrameBytes; else they are in
// the descriptor of the frame.
struct CallPayload {
  uint64_t call = 0;
  uint32_t method = 0;  // CallMethod
  uint32_t bytes = 0;
};

struct CallNumberPayload {  // kCancelCall and kTaken
  uint64_t call = 0;
};

inline constexpr uint32_t kAnswerMessage = 1;    // a message follows, or a piece of one
inline constexpr uint32_t kAnswerContinues = 2;  // the message continues in the next kAnswer
inline constexpr uint32_t kAnswerEnds = 4;       // the call has ended, and it succeeded

struct AnswerPayload {
  uint64_t call = 0;
  uint32_t flags = 0;
  uint32_t reserved = 0;
};

struct FailurePayload {
  uint64_t call = 0;
  ErrorPayload error;
};

struct RestartedPayload {
  uint64_t generation = 0;  // counts the irisds of this state; only grows
  char daemon_version[32] = {};
};

struct RestartSeenPayload {
  uint64_t generation = 0;  // of the kRestarted that it answers
};

inline constexpr size_t kMaxPayloadBytes = sizeof(AnswerPayload) + kMaxCallFrameBytes;
static_assert(kMaxPayloadBytes >= sizeof(FailurePayload));
static_assert(kMaxPayloadBytes >= sizeof(DescriptorsPayload));
static_assert(kMaxPayloadBytes >= sizeof(CallPayload) + kMaxCallFrameBytes);

// One received frame. `sender` is from the kernel (pid 0 if SO_PASSCRED is off).
struct Frame {
  FrameType type = FrameType::kError;
  std::vector<uint8_t> payload;
  std::vector<UniqueFd> fds;
  struct ucred sender = {};

  // Returns the payload as struct P and the bytes after it, which are valid as long as the frame.
  // kInvalidArgument if the payload is shorter than P.
  template <typename P>
  absl::StatusOr<std::pair<P, std::string_view>> Split() const {
    static_assert(std::is_trivially_copyable_v<P>);
    if (payload.size() < sizeof(P)) return WrongLength();
    std::pair<P, std::string_view> parts;
    std::memcpy(&parts.first, payload.data(), sizeof(P));
    parts.second = {reinterpret_cast<const char*>(payload.data()) + sizeof(P),
                    payload.size() - sizeof(P)};
    return parts;
  }

  // Returns the payload as struct P. kInvalidArgument if its length is not sizeof(P).
  template <typename P>
  absl::StatusOr<P> As() const {
    if (payload.size() != sizeof(P)) return WrongLength();
    return Split<P>()->first;
  }

 private:
  static absl::Status WrongLength() {
    return absl::InvalidArgumentError("session frame has the wrong length for its type");
  }
};

// Sends one frame, whose payload is `head` and `tail`; never blocks. `fds` are borrowed: the kernel
// duplicates them. kUnavailable if the peer is gone. kResourceExhausted if its queue is full, or if
// too many descriptors are in flight; nothing was sent. Thread-safe, as the kernel orders packets.
absl::Status SendFrame(int socket, FrameType type, absl::Span<const uint8_t> head,
                       std::string_view tail = {}, absl::Span<const int> fds = {});

// Sends a frame of a struct and the bytes that follow it.
template <typename P>
absl::Status SendFrame(int socket, FrameType type, const P& payload, std::string_view bytes,
                       absl::Span<const int> fds = {}) {
  static_assert(std::is_trivially_copyable_v<P>);
  return SendFrame(socket, type,
                   absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&payload), sizeof(payload)),
                   bytes, fds);
}
template <typename P>
absl::Status SendFrame(int socket, FrameType type, const P& payload,
                       absl::Span<const int> fds = {}) {
  return SendFrame(socket, type, payload, std::string_view(), fds);
}

// Sends a frame of a type that has no payload.
inline absl::Status SendEmptyFrame(int socket, FrameType type, absl::Span<const int> fds = {}) {
  return SendFrame(socket, type, absl::Span<const uint8_t>(), "", fds);
}

// Receives one frame; never blocks. The frame owns its descriptors; on an error they are in
// `*refused`, or closed if `refused` is null. kUnavailable if the peer closed, and all its frames
// have been received. kInvalidArgument if the packet is no frame. kFailedPrecondition if it has
// another version, or if the socket is empty (IsNoFrameYet).
absl::StatusOr<Frame> ReceiveFrame(int socket, std::vector<UniqueFd>* refused = nullptr);

// Returns true if ReceiveFrame found the socket empty.
bool IsNoFrameYet(const absl::Status& status);

// Builds an error payload; text beyond the limit is cut.
ErrorPayload MakeErrorPayload(const absl::Status& status);

// Returns the status of an error payload; hostile lengths and codes are bounded.
absl::Status StatusFromErrorPayload(const ErrorPayload& payload);

// Returns "<what>: <strerror>", with the code that fits the number. All code uses it for errno.
absl::Status ErrnoStatus(int error, std::string_view what);

}  // namespace iris::wire
