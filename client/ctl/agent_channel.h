// AgentChannel: frames between iris-run and its agent on a host, through a remote shell.
//
// It never blocks: frames wait in memory until the descriptor takes them. One thread. Frames have a
// type, four bytes with the size of the payload, and the payload. Both ends have the same version.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {

enum class FrameType : uint8_t {
  kHello = 'H',    // of the agent: its version, and a free port of its host
  kJob = 'J',      // of iris-run, once all agents are there: a HostJob
  kStarted = 'S',  // of the agent: the pids of its ranks
  kOut = 'O',      // of the agent: text for stdout
  kErr = 'E',      // of the agent: text for stderr
  kEnded = 'W',    // of the agent: rank, code and status of waitid
  kDone = 'D',     // of the agent, as its last frame: its exit code
  kSignal = 'K',   // of iris-run: a signal for all ranks that run
  kBeat = 'B',     // of both, each kBeatInterval
};

// Each end takes the other for lost after kSilence.
inline constexpr absl::Duration kBeatInterval = absl::Seconds(10);
inline constexpr absl::Duration kSilence = absl::Seconds(60);

class AgentChannel {
 public:
  struct Frame {
    FrameType type;
    std::string payload;
  };
  enum class Read { kData, kNothing, kEnd };
  static constexpr size_t kMaxPayloadBytes = 8 << 20;
  static constexpr size_t kMaxNoiseBytes = 64 << 10;

  // With `skip_noise`, what comes before the other end's Greet is no frame: a login shell may have
  // written it.
  AgentChannel(wire::UniqueFd in, wire::UniqueFd out, bool skip_noise);

  void Greet();
  // Queues a frame. After the other end has closed, it is dropped.
  void Send(FrameType type, absl::string_view payload = "");
  size_t pending_bytes() const { return pending_.size(); }

  // Appends two entries for poll; Handle takes the two back, reads and writes.
  void AddTo(std::vector<pollfd>* polled) const;
  void Handle(const pollfd* polled);
  // Reads what is there, up to a bound.
  Read Receive();
  // True after the end of the incoming stream.
  bool ended() const { return ended_; }

  // Returns the next frame, or nullopt if it has not arrived whole. kInvalidArgument if the stream
  // has something else than frames; it then has no more.
  absl::StatusOr<std::optional<Frame>> Next();
  // Returns what came before the greeting, and after Receive has returned kEnd without one.
  std::string TakeNoise();

 private:
  void Flush();

  const wire::UniqueFd in_;
  const wire::UniqueFd out_;
  std::string received_;
  std::string pending_;
  std::string noise_;
  bool greeted_;
  bool ended_ = false;
  bool closed_ = false;  // the other end reads no more
};

}  // namespace iris::ctl
