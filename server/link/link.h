// The link between irisd's core and a worker: messages on a SOCK_STREAM socket pair. The worker
// speaks gRPC with a tenant's clients; the core decides. A message is a LinkHeader in its memory
// layout (both ends are one build on one machine), then `bytes` bytes of payload.
//
//   core → worker   kConnect{connection}          with the descriptor of a connected socket
//                   kDisconnect{connection}       close it; its calls are over, without kFinish
//                   kMessage{call, payload}       one message of the call's answer
//                   kFinish{call, code, payload}  the call's end; the payload is the error's text
//                   kStop                         end in order: deliver what is queued, then exit
//                   kPing                         say kPong
//   worker → core   kReady{payload}               once, first; the payload is the worker's version
//                   kCall{connection, call, method, payload}    the payload is the request
//                   kCancel{call}                 the caller is gone
//                   kSent{call}                   one message of a stream was taken by gRPC
//                   kClosed{connection}           it has ended; so have its calls
//                   kPong                         once for each kPing
//
// The rules. The core numbers connections and the worker numbers calls, both upwards from 1 in the
// life of a worker. Every call gets exactly one kFinish, even after a kCancel, unless its
// connection ends first. A unary call that succeeds gets one kMessage before its kFinish. Every
// connection gets exactly one kClosed, even after a kDisconnect; no later message names it. A
// receiver ignores messages of a call or a connection that has ended. A stream has at most
// kStreamCredits messages that were sent and have no kSent yet. The worker itself refuses calls
// beyond the limits below. Each end continues to read while it cannot write, but the core reads
// only while few bytes wait for the worker.
//
// Nothing here is thread-safe: the owner of a reader or a writer locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

enum class LinkType : uint16_t {
  kConnect = 1,
  kDisconnect = 2,
  kMessage = 3,
  kFinish = 4,
  kStop = 5,
  kPing = 6,
  kReady = 16,
  kCall = 17,
  kCancel = 18,
  kSent = 19,
  kClosed = 20,
  kPong = 21,
  // With the port process of a job; the payloads are messages of server/port/port.proto.
  kPortSetup = 32,
  kPortMemory = 33,  // with a descriptor, or none
  kPortRank = 34,    // likewise
  kPortLayout = 35,
  kPortToNode = 36,
  kPortResume = 37,
  kPortTook = 38,  // in both directions
  kPortReady = 48,
  kPortFromNode = 49,
  kPortNode = 50,
  kPortFailed = 51,
  kPortReport = 52,
};

// The version of the messages between irisd's core and port processes, which outlive the irisd that
// started them: change it with LinkHeader and with server/port/port.proto.
inline constexpr uint32_t kPortLinkVersion = 1;

// A datagram to a port process, over the socket to attach to it, with a descriptor: the other end
// of a new link, which replaces the one that it has. `node_version` is port::kProtocolVersion.
struct PortAttach {
  uint32_t magic = kMagic;
  uint32_t version = kPortLinkVersion;
  uint32_t node_version = 0;

  static constexpr uint32_t kMagic = 0x74726f70;  // "port"
};

struct LinkHeader {
  uint32_t bytes = 0;  // size of the payload; at most wire::kMaxRpcBytes
  LinkType type{};
  uint16_t method = 0;
  uint32_t code = 0;   // absl::StatusCode
  uint32_t n_fds = 0;  // 1: a descriptor comes with it
  uint64_t connection = 0;
  uint64_t call = 0;
};
static_assert(sizeof(LinkHeader) == 32);

using wire::kMaxCallsPerConnection;
inline constexpr uint32_t kMaxCallsPerWorker = wire::kMaxCallsPerTenant;
using wire::kStreamCredits;
// The longest payload of kReady.
inline constexpr size_t kMaxReadyBytes = 64;

// A payload to be written: `head`, then the string at `tail`, if any. The tail is shared, not
// copied: all ranks get the value of a broadcast from one place.
struct LinkPayload {
  std::string head;
  std::shared_ptr<const std::string> tail;

  size_t size() const { return head.size() + (tail == nullptr ? 0 : tail->size()); }
};

// A message that was read. `payload` is valid until the reader is called again.
struct LinkMessage {
  LinkHeader header;
  std::string_view payload;
  wire::UniqueFd fd;  // of kConnect, kPortMemory and kPortRank

  LinkType type() const { return header.type; }
};

// The end that sends what a reader reads.
enum class LinkSender { kCore, kWorker, kPort };

// Reads messages as their bytes arrive. It holds at most one message and the bytes of one Receive,
// and allocates memory only for bytes that have arrived, whatever size a header announces.
class LinkReader {
 public:
  explicit LinkReader(LinkSender sender) : sender_(sender) {}

  enum class Received { kSome, kNothingYet };
  // Receives bytes, once, from a socket that does not block; from the core, descriptors too.
  // Returns kUnavailable if the other end has closed, and kInvalidArgument if a worker or a port
  // sent descriptors, which stay in the socket, since their close may take long.
  absl::StatusOr<Received> Receive(int socket);

  // Returns the next complete message, or nothing if more must be received first. kInvalidArgument,
  // with the reason, if the bytes are no message of this sender; nothing more can be read then.
  absl::StatusOr<std::optional<LinkMessage>> Next();

 private:
  absl::Status Check(const LinkHeader& header) const;

  LinkSender sender_;
  std::string bytes_;  // bytes from `begin_` on are not returned yet
  size_t begin_ = 0;
  std::vector<wire::UniqueFd> fds_;
};

// Writes messages in order until the socket takes no more, and keeps the rest.
class LinkWriter {
 public:
  // Queues a message. Sets `header.bytes`, at most wire::kMaxRpcBytes. `fd` goes with it, if it is
  // valid and the type may have one.
  void Queue(LinkHeader header, LinkPayload payload = {}, wire::UniqueFd fd = {});

  // Removes the connection's kConnect, if no byte of it was written, from the queue, and moves its
  // descriptor to *fd. Returns false if there is none.
  bool Withdraw(uint64_t connection, wire::UniqueFd* fd);
  // Empties the queue; returns its descriptors.
  std::vector<wire::UniqueFd> Clear();

  enum class Flushed {
    kAll,
    kBlocked,        // continue when the socket can be written
    kNoDescriptors,  // too many descriptors are in flight: retry in a moment
  };
  // Writes to a socket that does not block. Returns kUnavailable if the other end has closed.
  // Descriptors that were sent are closed, or moved to *sent: if the receiver has already closed
  // its duplicate, this close is the last one, and may take as long as a client likes.
  absl::StatusOr<Flushed> Flush(int socket, std::vector<wire::UniqueFd>* sent = nullptr);

  // Returns the queued bytes, with headers. A shared tail counts once for each message.
  size_t queued_bytes() const { return queued_bytes_; }
  bool empty() const { return queue_.empty(); }

 private:
  struct Item {
    LinkHeader header;
    LinkPayload payload;
    wire::UniqueFd fd;  // until the first byte is written

    size_t size() const { return sizeof(header) + payload.size(); }
  };

  // Removes `n` bytes, which were written, from the front.
  void Written(size_t n);

  std::deque<Item> queue_;
  size_t written_ = 0;  // bytes of the front
  size_t queued_bytes_ = 0;
};

}  // namespace iris::server
