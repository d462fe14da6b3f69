#include "client/ctl/agent.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/base/clock.h"
#include "client/base/meeting_place.h"
#include "client/ctl/agent_channel.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace iris::ctl {
namespace {

// Texts of a job hold no zero byte: all of them were arguments or variables.
constexpr absl::string_view kSeparator("\0", 1);
// Of output that iris-run has not taken. The ranks then wait, as for a slow terminal.
constexpr size_t kMaxPendingBytes = 1 << 20;

// The ranks of an agent. It decides nothing: it reports ends and output, and sends the signals that
// iris-run asks for.
class AgentRanks : public RankSet {
 public:
  AgentRanks(RunOptions options, AgentChannel* channel)
      : RankSet(std::move(options)), channel_(channel) {}

 protected:
  absl::Status StartAll() override {
    if (absl::Status status = RankSet::StartAll(); !status.ok()) return status;
    std::vector<pid_t> pids;
    for (const Process& process : processes_) pids.push_back(process.pid);
    channel_->Send(FrameType::kStarted, absl::StrJoin(pids, " "));
    return absl::OkStatus();
  }

  void Ended(const Process& process, int code, int status) override {
    channel_->Send(FrameType::kEnded, absl::StrCat(process.rank, " ", code, " ", status));
  }

  void Write(int fd, const std::string& text) override {
    if (!text.empty()) channel_->Send(fd == 1 ? FrameType::kOut : FrameType::kErr, text);
  }

  bool TakesOutput() const override { return channel_->pending_bytes() < kMaxPendingBytes; }
  void AddPolled(std::vector<pollfd>* polled) override { channel_->AddTo(polled); }
  void HandlePolled(const pollfd* polled) override {
    channel_->Handle(polled);
    TakeFrames();
  }

  absl::Time Tick(absl::Time now) override {
    if (now >= next_beat_) {
      channel_->Send(FrameType::kBeat);
      next_beat_ = now + kBeatInterval;
    }
    if (now >= heard_ + kSilence && channel_->Receive() == AgentChannel::Read::kData) TakeFrames();
    if (!channel_->ended() && now < heard_ + kSilence) {
      return std::min(next_beat_, heard_ + kSilence);
    }
    BeginEnding();  // iris-run is gone: SIGTERM to all ranks, and SIGKILL later
    return next_beat_;
  }

 private:
  void TakeFrames() {
    for (;;) {
      const auto frame = channel_->Next();
      if (!frame.ok() || !frame->has_value()) return;
      heard_ = internal::Now();
      int signal = 0;
      if ((*frame)->type == FrameType::kSignal && absl::SimpleAtoi((*frame)->payload, &signal)) {
        SignalRunning(signal);
      }
    }
  }

  AgentChannel* const channel_;
  absl::Time next_beat_ = absl::InfinitePast();
  absl::Time heard_ = internal::Now();
};

// Waits for the first frame of a type, or, without one, until all is sent. Returns nothing if
// iris-run is gone.
std::optional<std::string> Await(AgentChannel& channel, std::optional<FrameType> type) {
  absl::Time heard = internal::Now();
  for (;;) {
    for (;;) {
      auto frame = channel.Next();
      if (!frame.ok()) return std::nullopt;
      if (!frame->has_value()) break;
      heard = internal::Now();
      if ((*frame)->type == type) return std::move((*frame)->payload);
    }
    if (!type.has_value() && channel.pending_bytes() == 0) return "";
    const int64_t left_ms = absl::ToInt64Milliseconds(heard + kSilence - internal::Now());
    if (channel.ended() || left_ms <= 0) return std::nullopt;
    std::vector<pollfd> polled;
    channel.AddTo(&polled);
    const int beat_ms = static_cast<int>(absl::ToInt64Milliseconds(kBeatInterval));
    if (poll(polled.data(), polled.size(), std::min(static_cast<int>(left_ms), beat_ms)) > 0) {
      channel.Handle(polled.data());
    } else {
      channel.Send(FrameType::kBeat);
    }
  }
}

int StartJob(AgentChannel& channel, HostJob job) {
  const auto refuse = [&](const std::string& text) {
    channel.Send(FrameType::kErr, absl::StrCat("iris-run: ", text, "\n"));
    return kExitCannotExecute;
  };
  if (chdir(job.folder.c_str()) != 0) {
    return refuse(absl::StrCat("working directory ", job.folder, ": ", strerror(errno)));
  }
  if (job.bind) {
    const auto text = BindCores(job.verbose, &job.options);
    if (!text.ok()) return refuse(std::string(text.status().message()));
    channel.Send(FrameType::kErr, *text);
  }
  return AgentRanks(std::move(job.options), &channel).Run();
}

}  // namespace

std::string EncodeJob(const HostJob& job) {
  const RunOptions& options = job.options;
  std::vector<std::string> texts = {job.folder, options.job, options.runtime_dir};
  for (const int64_t number :
       {int64_t{options.first_rank}, int64_t{options.n_local}, int64_t{options.n_ranks},
        int64_t{options.prefix}, int64_t{options.colour_stdout}, int64_t{options.colour_stderr},
        int64_t{job.bind}, int64_t{job.verbose},
        absl::ToInt64Milliseconds(std::min(options.kill_after, absl::Hours(24 * 365))),
        static_cast<int64_t>(options.command.size())}) {
    texts.push_back(absl::StrCat(number));
  }
  texts.insert(texts.end(), options.command.begin(), options.command.end());
  texts.insert(texts.end(), options.environment.begin(), options.environment.end());
  return absl::StrJoin(texts, kSeparator);
}

absl::StatusOr<HostJob> DecodeJob(absl::string_view text) {
  std::vector<std::string> texts = absl::StrSplit(text, kSeparator);
  constexpr size_t kTexts = 3, kNumbers = 10;
  std::array<int64_t, kNumbers> numbers = {};
  bool good = texts.size() > kTexts + kNumbers;
  for (size_t i = 0; good && i < kNumbers; ++i) {
    good = absl::SimpleAtoi(texts[kTexts + i], &numbers[i]) && numbers[i] >= 0;
  }
  const auto [first, n_local, n_ranks, prefix, colour_stdout, colour_stderr, bind, verbose,
              kill_after_ms, n_words] = numbers;
  if (!good || n_local < 1 || n_local > int64_t{wire::kMaxRanks} ||
      n_ranks > int64_t{wire::kMaxWorldRanks} || first > n_ranks - n_local || n_words < 1 ||
      n_words > static_cast<int64_t>(texts.size() - kTexts - kNumbers)) {
    return absl::InvalidArgumentError("iris-run sent a wrong message");
  }
  HostJob job;
  job.folder = texts[0];
  job.options.job = texts[1];
  job.options.runtime_dir = texts[2];
  job.options.first_rank = static_cast<int>(first);
  job.options.n_local = static_cast<int>(n_local);
  job.options.n_ranks = static_cast<int>(n_ranks);
  job.options.prefix = prefix != 0;
  job.options.capture = true;
  job.options.colour_stdout = colour_stdout != 0;
  job.options.colour_stderr = colour_stderr != 0;
  job.bind = bind != 0;
  job.verbose = verbose != 0;
  job.options.kill_after = absl::Milliseconds(kill_after_ms);
  const auto words = texts.begin() + kTexts + kNumbers;
  job.options.command.assign(words, words + n_words);
  job.options.environment.assign(words + n_words, texts.end());
  return job;
}

int RunAgent() {
  signal(SIGPIPE, SIG_IGN);
  AgentChannel channel(wire::UniqueFd(STDIN_FILENO), wire::UniqueFd(STDOUT_FILENO),
                       /*skip_noise=*/false);
  channel.Greet();
  channel.Send(FrameType::kHello, absl::StrCat(wire::kIrisVersion, " ", base::FreePort()));
  const std::optional<std::string> text = Await(channel, FrameType::kJob);
  if (!text.has_value()) return kExitHostFailed;
  absl::StatusOr<HostJob> job = DecodeJob(*text);
  if (!job.ok()) {
    channel.Send(FrameType::kErr, absl::StrCat("iris-run: ", job.status().message(), "\n"));
  }
  const int code = job.ok() ? StartJob(channel, *std::move(job)) : kExitHostFailed;
  channel.Send(FrameType::kDone, absl::StrCat(code));
  Await(channel, std::nullopt);
  return code;
}

}  // namespace iris::ctl
