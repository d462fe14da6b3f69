// Connection: a TCP connection between two ports, which authenticates them and carries their
// control messages. Data goes by UCX, once a connection exists. Its end is the first sign of a
// port's death; beats find a silent one. Never blocks; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/port/handshake.h"

namespace iris::port {

// The clock of another node, compared with this node's. Both are steady clocks.
struct ClockReading {
  int64_t ahead_ns = 0;   // the other's time minus this one's
  uint64_t error_ns = 0;  // at most: half of a round trip, and wire::ClockDriftNs since then
};
// The number of measurements of the other side's clock that are remembered.
inline constexpr size_t kClockSamples = 8;

// The longest payload of a frame after the handshake.
inline constexpr uint32_t kMaxFrameBytes = 2 << 20;

class Connection {
 public:
  // Takes a socket that does not block, and that is connected or connecting (the initiator's).
  Connection(wire::UniqueFd fd, const Identity* self, const std::string* secret, bool initiator,
             absl::Time now);

  int fd() const { return fd_.get(); }
  bool ready() const { return ready_; }  // the handshake is over
  const Identity& other() const { return handshake_.other(); }
  const Keys& keys() const { return handshake_.keys(); }
  absl::Time opened() const { return opened_; }
  absl::Time heard() const { return heard_; }    // when the last bytes came
  absl::Time beaten() const { return beaten_; }  // when the last beat was queued

  // Queues a beat, which the other side answers at once; only when ready.
  void SendBeat(absl::Time now);
  // Takes the payload of a beat and queues the answer, or takes the payload of an answer. False if
  // it is none. `now` is a time after it was received: measurements rely on that.
  bool TakeBeat(std::string_view payload, absl::Time now);
  bool TakeAnswer(std::string_view payload, absl::Time now);
  // The last measurement; none before the first answer.
  std::optional<absl::Duration> rtt() const { return rtt_; }
  size_t n_clock_samples() const { return clocks_.size(); }
  // The most exact of the last measurements of the other side's steady clock, as of `now`; none
  // before the first answer.
  std::optional<ClockReading> clock(absl::Time now) const;

  struct Frame {
    FrameType type{};
    std::string payload;
  };
  // Reads what has come. An error ends the connection, and is the reason for people; Flush may
  // still tell the other side.
  absl::Status Read(absl::Time now);
  // Returns the frames after the handshake, in order.
  std::optional<Frame> Next();

  // Queues a frame; only when ready.
  void Send(FrameType type, std::string_view payload);
  // Writes what the socket takes.
  absl::Status Flush();
  bool wants_to_write() const { return !out_.empty(); }
  size_t queued_bytes() const { return out_.size(); }

 private:
  absl::Status Take(FrameType type, std::string_view payload);
  static std::string MacOf(const std::string& key, uint64_t number, const FrameHeader& header,
                           std::string_view payload);

  const wire::UniqueFd fd_;
  Handshake handshake_;
  bool ready_ = false;
  bool connecting_;
  const absl::Time opened_;
  absl::Time heard_, beaten_;
  std::optional<absl::Duration> rtt_;
  struct ClockSample {
    absl::Time at;
    ClockReading reading;  // at that time
  };
  std::deque<ClockSample> clocks_;
  std::string in_, out_;
  uint64_t n_sent_ = 0, n_received_ = 0;  // frames with an HMAC
  std::deque<Frame> frames_;
};

// A socket address of TCP, and its text: ADDRESS:PORT or [ADDRESS]:PORT.
struct Address {
  std::string host;  // a number, after Resolve
  uint16_t port = 0;
  bool ipv6 = false;

  std::string Text() const;
};

// Resolves HOST:PORT or [HOST]:PORT. It may ask a name server, which is bounded by its settings.
absl::StatusOr<Address> Resolve(const std::string& text);

// The interface of a node.
struct Interface {
  std::string name;
  Address address;  // with port 0
};
// Finds the interface with this name or address; if it is empty, the one that leads to `toward`.
absl::StatusOr<Interface> FindInterface(const std::string& name, const Address& toward);

// Listens at `address`, whose port 0 means: any in [port_min, port_max], or any at all. Sets the
// port.
absl::StatusOr<wire::UniqueFd> Listen(Address* address, uint32_t port_min, uint32_t port_max);

// Starts to connect, from this node's address `from` if that is not empty.
absl::StatusOr<wire::UniqueFd> StartToConnect(const Address& to, const std::string& from);

// Sets what a connection of ports needs on an accepted or new socket.
void TuneSocket(int fd);

}  // namespace iris::port
