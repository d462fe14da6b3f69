// The link between irisd's core and a worker: messages on a SOCK_STREAM socket pair. The worker
// speaks gRPC with a tenant's clients; the core decides. A message is a LinkHeader, as it lies in
// memory (both ends are one build on one machine), then `bytes` bytes of payload.
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
// life of a worker. Every call gets exactly one kFinish, after a kCancel too, unless its connection
// ends first. A unary call that succeeds gets one kMessage before its kFinish. Every connection
// gets exactly one kClosed, after a kDisconnect too; nothing names it afterwards. A receiver
// ignores messages of a call or a connection that has ended. A stream has at most kStreamCredits
// messages on their way without their kSent. The worker refuses calls beyond the limits below by
// itself. Each end goes on reading while it cannot write, but the core only while little waits for
// the worker.
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
};

struct LinkHeader {
  uint32_t bytes = 0;  // of the payload; at most wire::kMaxRpcBytes
  LinkType type{};
  uint16_t method = 0;
  uint32_t code = 0;  // absl::StatusCode
  uint32_t reserved = 0;
  uint64_t connection = 0;
  uint64_t call = 0;
};
static_assert(sizeof(LinkHeader) == 32);

using wire::kMaxCallsPerConnection;
inline constexpr uint32_t kMaxCallsPerWorker = wire::kMaxCallsPerTenant;
using wire::kStreamCredits;
// The payload of kReady is at most this long.
inline constexpr size_t kMaxReadyBytes = 64;

// A payload that is written: `head`, then what `tail` points at, if anything. The tail is shared,
// not copied: the value of a broadcast goes out to all ranks from one place.
struct LinkPayload {
  std::string head;
  std::shared_ptr<const std::string> tail;

  size_t size() const { return head.size() + (tail == nullptr ? 0 : tail->size()); }
};

// A message that was read. `payload` is valid until the reader is called again.
struct LinkMessage {
  LinkHeader header;
  std::string_view payload;
  wire::UniqueFd fd;  // kConnect's

  LinkType type() const { return header.type; }
};

// The sender of what a reader reads.
enum class LinkSender { kCore, kWorker };

// Reads messages as their bytes come. It holds at most one message and the bytes of one Receive,
// and takes memory only for bytes that have come, whatever a header announces.
class LinkReader {
 public:
  explicit LinkReader(LinkSender sender) : sender_(sender) {}

  enum class Received { kSome, kNothingYet };
  // Takes bytes from a socket that does not block, once; from the core, descriptors too.
  // kUnavailable if the other end has closed. kInvalidArgument if a worker sent descriptors, which
  // stay in the socket, since closing them may take long.
  absl::StatusOr<Received> Receive(int socket);

  // Returns the next whole message, or nothing if more has to be received first. kInvalidArgument,
  // with the reason, if the bytes are no message of this sender. Then nothing more can be read.
  absl::StatusOr<std::optional<LinkMessage>> Next();

 private:
  absl::Status Check(const LinkHeader& header) const;

  const LinkSender sender_;
  std::string bytes_;  // from `begin_` on, they were not given out yet
  size_t begin_ = 0;
  std::vector<wire::UniqueFd> fds_;
};

// Writes messages in order as far as the socket takes them, and keeps the rest.
class LinkWriter {
 public:
  // Sets `header.bytes`. A payload has at most wire::kMaxRpcBytes. `fd` goes with a kConnect.
  void Queue(LinkHeader header, LinkPayload payload = {}, wire::UniqueFd fd = {});

  // Removes the kConnect of this connection, of which no byte was written, from the queue, and
  // moves its descriptor to *fd. Returns false if there is none.
  bool Withdraw(uint64_t connection, wire::UniqueFd* fd);
  // Empties the queue; returns its descriptors.
  std::vector<wire::UniqueFd> Clear();

  enum class Flushed {
    kAll,
    kBlocked,        // until the socket can be written
    kNoDescriptors,  // too many descriptors are in flight: again in a moment
  };
  // Writes to a socket that does not block. kUnavailable if the other end has closed. Descriptors
  // that were sent are closed, or moved to *sent: if the receiver has closed its duplicate already,
  // the last close is here, and may take as long as a client likes.
  absl::StatusOr<Flushed> Flush(int socket, std::vector<wire::UniqueFd>* sent = nullptr);

  // Counts headers too, and shared tails as if they were not shared.
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
  size_t written_ = 0;  // of the front
  size_t queued_bytes_ = 0;
};

}  // namespace iris::server
