#include "client/ctl/agent_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "device/base/posix.h"

namespace iris::ctl {
namespace {

constexpr char kGreeting[] = "\niris-run agent\n";
constexpr size_t kHeaderBytes = 1 + sizeof(uint32_t);

}  // namespace

AgentChannel::AgentChannel(wire::UniqueFd in, wire::UniqueFd out, bool skip_noise)
    : in_(std::move(in)), out_(std::move(out)), greeted_(!skip_noise) {
  for (const int fd : {in_.get(), out_.get()}) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
}

void AgentChannel::Greet() {
  pending_.append(kGreeting);
  Flush();
}

void AgentChannel::Send(FrameType type, absl::string_view payload) {
  if (closed_) return;
  const uint32_t size = static_cast<uint32_t>(payload.size());
  char header[kHeaderBytes] = {static_cast<char>(type)};
  memcpy(header + 1, &size, sizeof(size));
  absl::StrAppend(&pending_, absl::string_view(header, sizeof(header)), payload);
  Flush();
}

void AgentChannel::Flush() {
  size_t done = 0;
  while (!closed_ && done < pending_.size()) {
    const ssize_t n = base::Retry(
        [&] { return write(out_.get(), pending_.data() + done, pending_.size() - done); });
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      break;
    } else {
      closed_ = true;
    }
  }
  if (closed_) done = pending_.size();
  pending_.erase(0, done);
}

void AgentChannel::AddTo(std::vector<pollfd>* polled) const {
  polled->push_back({ended_ ? -1 : in_.get(), POLLIN, 0});
  polled->push_back({pending_.empty() ? -1 : out_.get(), POLLOUT, 0});
}

void AgentChannel::Handle(const pollfd* polled) {
  if (polled[0].revents != 0) Receive();
  if (polled[1].revents != 0) Flush();
}

AgentChannel::Read AgentChannel::Receive() {
  if (ended_) return Read::kEnd;
  char buffer[64 << 10];
  const ssize_t n = base::Retry([&] { return read(in_.get(), buffer, sizeof(buffer)); });
  if (n > 0) {
    received_.append(buffer, static_cast<size_t>(n));
    return Read::kData;
  }
  if (n < 0 && errno == EAGAIN) return Read::kNothing;
  ended_ = true;
  if (!greeted_) noise_ = std::exchange(received_, "");
  return Read::kEnd;
}

absl::StatusOr<std::optional<AgentChannel::Frame>> AgentChannel::Next() {
  if (!greeted_) {
    const size_t begin = received_.find(kGreeting);
    if (begin == received_.npos) {
      if (received_.size() <= kMaxNoiseBytes) return std::nullopt;
      noise_ = std::exchange(received_, "");
      ended_ = true;
      return absl::InvalidArgumentError("its shell writes too much text, and starts no agent");
    }
    noise_ = received_.substr(0, begin);
    received_.erase(0, begin + strlen(kGreeting));
    greeted_ = true;
  }
  if (received_.size() < kHeaderBytes) return std::nullopt;
  uint32_t size;
  memcpy(&size, received_.data() + 1, sizeof(size));
  if (size > kMaxPayloadBytes) {
    received_.clear();
    ended_ = true;
    return absl::InvalidArgumentError(absl::StrCat("a message has ", size, " bytes"));
  }
  if (received_.size() < kHeaderBytes + size) return std::nullopt;
  Frame frame = {static_cast<FrameType>(received_[0]), received_.substr(kHeaderBytes, size)};
  received_.erase(0, kHeaderBytes + size);
  return frame;
}

std::string AgentChannel::TakeNoise() { return std::exchange(noise_, ""); }

}  // namespace iris::ctl
