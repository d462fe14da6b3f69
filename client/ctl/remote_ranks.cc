#include "client/ctl/remote_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/launcher.h"
#include "client/base/meeting_place.h"
#include "client/base/printable.h"
#include "client/ctl/agent.h"
#include "device/base/process.h"
#include "proto/wire/version.h"

extern char** environ;

namespace iris::ctl {
namespace {

using internal::Now;

// For the last words of a host whose ranks have ended or been killed.
constexpr absl::Duration kEndTime = absl::Seconds(10);
constexpr absl::Duration kShellEndTime = absl::Seconds(2);  // after its output has ended

std::string RankRange(int first, int n) {
  return n == 1 ? absl::StrCat("rank ", first) : absl::StrCat("ranks ", first, "-", first + n - 1);
}

// Returns the variables of this process that ranks on other hosts need: those of Iris, and the
// paths of programs, libraries and Python.
std::vector<std::string> VariablesForHosts() {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    for (const char* const wanted : {"IRIS_", "PATH=", "LD_LIBRARY_PATH=", "PYTHONPATH="}) {
      if (absl::StartsWith(*each, wanted)) variables.emplace_back(*each);
    }
  }
  return variables;
}

// Returns what an agent says in numbers; false if the text is something else.
bool ReadNumbers(absl::string_view text, size_t n, std::vector<int>* numbers) {
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    int number = 0;
    if (!absl::SimpleAtoi(word, &number) || number < 0 || numbers->size() == n) return false;
    numbers->push_back(number);
  }
  return numbers->size() == n;
}

}  // namespace

std::string DefaultRemoteShell() {
  const char* const rsh = std::getenv("IRIS_RUN_RSH");
  // ssh could not ask for a password: it is not in the terminal's foreground.
  return rsh == nullptr || *rsh == '\0' ? "ssh -o BatchMode=yes" : rsh;
}

absl::StatusOr<std::vector<std::string>> ReadRemoteShell(const std::string& text) {
  std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.empty()) return absl::InvalidArgumentError("--rsh: it names no program");
  return words;
}

RemoteRanks::RemoteRanks(RunOptions options, RemoteOptions remote)
    : RankSet(std::move(options)), remote_(std::move(remote)) {
  int rank = 0;
  for (const HostRanks& place : remote_.hosts) {
    Host& host = hosts_.emplace_back();
    host.place = place;
    host.first_rank = rank;
    for (int i = 0; i < place.n_ranks; ++i) processes_.push_back({rank++, -1, false, place.name});
  }
}

std::string RemoteRanks::Describe(const Host& host) const {
  return absl::StrCat(RankRange(host.first_rank, host.place.n_ranks), " on ", host.place.name);
}

bool RemoteRanks::AllAre(State state) const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [&](const Host& host) { return host.state == state; });
}

bool RemoteRanks::Finished() const { return AllAre(State::kDone); }

absl::Status RemoteRanks::StartAll() {
  std::string agent = remote_.agent;
  if (agent.empty()) {
    agent = base::ProgramFile();
    if (agent.empty()) return absl::UnavailableError("iris-run: /proc/self/exe: mount /proc");
  }
  absl::StatusOr<std::string> secret = base::FreshSecret();
  if (!secret.ok()) return internal::Annotate(secret.status(), "iris-run");
  secret_ = *std::move(secret);
  // The agent learns all else from its input: other users see the arguments of processes.
  const std::string command = absl::StrCat("exec ", ShellQuote(agent), " ", kAgentFlag);
  for (Host& host : hosts_) {
    wire::UniqueFd in_read, in_write, out_read, out_write, err_read, err_write;
    for (const auto& [read_end, write_end] :
         {std::pair(&in_read, &in_write), std::pair(&out_read, &out_write),
          std::pair(&err_read, &err_write)}) {
      if (absl::Status status = MakePipe(read_end, write_end); !status.ok()) return status;
    }
    Child child = {
        .command = host.place.here ? std::vector<std::string>{"/bin/sh", "-c"} : remote_.rsh,
        .input = in_read.get(),
        .output = out_write.get(),
        .error = err_write.get()};
    if (!host.place.here) child.command.push_back(host.place.name);
    child.command.push_back(command);
    const absl::StatusOr<pid_t> pid = Spawn(child);
    if (!pid.ok()) return pid.status();
    host.shell = *pid;
    host.deadline = Now() + remote_.connect_timeout;
    host.channel = std::make_unique<AgentChannel>(std::move(out_read), std::move(in_write),
                                                  /*skip_noise=*/true);
    fcntl(err_read.get(), F_SETFL, O_NONBLOCK);
    outputs_.push_back(std::make_unique<Output>(Output{std::move(err_read), 2, {}}));
    outputs_.back()->prefixer.emplace(absl::StrCat("iris-run: ", host.place.name, ": "));
    host.errors = outputs_.back().get();
  }
  return absl::OkStatus();
}

// Shows what the login shell of a host has written. A refusal may be among it.
void RemoteRanks::Noise(Host& host) {
  const std::string noise = host.channel->TakeNoise();
  if (noise.empty()) return;
  std::string lines;
  LinePrefixer prefixer(absl::StrCat("iris-run: ", host.place.name, ": "));
  prefixer.Append(noise, &lines);
  prefixer.Finish(&lines);
  Write(2, lines);
}

void RemoteRanks::TakeFrames(Host& host) {
  while (host.state != State::kDone) {
    const auto frame = host.channel->Next();
    Noise(host);
    if (!frame.ok()) return Lose(host, std::string(frame.status().message()));
    if (!frame->has_value()) return;
    if (host.state != State::kConnecting) {
      host.deadline = Now() + (host.ending ? kEndTime : kSilence);
    }
    TakeFrame(host, **frame);
  }
}

void RemoteRanks::TakeFrame(Host& host, const AgentChannel::Frame& frame) {
  const auto wrong = [&] { Lose(host, "its agent sent a wrong message"); };
  std::vector<int> numbers;
  switch (frame.type) {
    case FrameType::kHello: {
      const std::pair<std::string, std::string> words = absl::StrSplit(frame.payload, ' ');
      if (host.state != State::kConnecting || !absl::SimpleAtoi(words.second, &host.free_port)) {
        return wrong();
      }
      if (words.first != wire::kIrisVersion) {
        return Lose(host, absl::StrCat("its iris-run is ", base::Printable(words.first),
                                       ", and this one ", wire::kIrisVersion));
      }
      host.state = State::kConnected;
      host.deadline = Now() + kSilence;
      if (AllAre(State::kConnected)) SendJobs();
      return;
    }
    case FrameType::kStarted:
      if (host.state != State::kStarting ||
          !ReadNumbers(frame.payload, static_cast<size_t>(host.place.n_ranks), &numbers)) {
        return wrong();
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        processes_[static_cast<size_t>(host.first_rank) + i].pid = numbers[i];
      }
      host.state = State::kRunning;
      return;
    case FrameType::kOut:
      return Write(1, frame.payload);
    case FrameType::kErr:
      return Write(2, frame.payload);
    case FrameType::kEnded: {
      if (host.state != State::kRunning || !ReadNumbers(frame.payload, 3, &numbers) ||
          numbers[0] < host.first_rank || numbers[0] >= host.first_rank + host.place.n_ranks) {
        return wrong();
      }
      Process& process = processes_[static_cast<size_t>(numbers[0])];
      process.ended = true;
      Ended(process, numbers[1], numbers[2]);
      const auto first = processes_.begin() + host.first_rank;
      if (std::all_of(first, first + host.place.n_ranks,
                      [](const Process& each) { return each.ended; })) {
        ExpectTheEnd(host);
      }
      return;
    }
    case FrameType::kDone:
      if (!ReadNumbers(frame.payload, 1, &numbers)) return wrong();
      if (host.state == State::kRunning) return Finish(host);
      Finish(host);
      if (ending_) return;
      exit_code_ = numbers[0] == 0 ? kExitHostFailed : numbers[0];
      Write(2, absl::StrCat("iris-run: cannot start ", Describe(host), "\n"));
      return EndNow();
    case FrameType::kBeat:
      return;
    case FrameType::kJob:
    case FrameType::kSignal:
      break;
  }
  wrong();
}

void RemoteRanks::SendJobs() {
  HostJob job;
  job.options = options_;
  job.bind = remote_.bind;
  job.verbose = remote_.verbose;
  job.folder = remote_.folder;
  if (job.folder.empty()) {
    char folder[PATH_MAX];
    job.folder = getcwd(folder, sizeof(folder)) == nullptr ? "/" : folder;
  }
  const std::string& first =
      remote_.rendezvous_host.empty() ? remote_.hosts[0].name : remote_.rendezvous_host;
  std::string rendezvous = remote_.rendezvous;
  if (rendezvous.empty()) {
    if (hosts_[0].free_port == 0) {
      return Lose(hosts_[0], "it has no free port from 20000 to 29999; give --rendezvous");
    }
    rendezvous = base::HostAndPort(first, hosts_[0].free_port);
  }
  if (remote_.verbose) {
    Write(2, absl::StrCat("iris-run: ",
                          absl::StrJoin(hosts_, ", ",
                                        [&](std::string* out, const Host& host) {
                                          absl::StrAppend(out, Describe(host));
                                        }),
                          "; they meet at ", rendezvous, "\n"));
  }
  for (Host& host : hosts_) {
    job.options.first_rank = host.first_rank;
    job.options.n_local = host.place.n_ranks;
    std::vector<std::string>& variables = job.options.environment;
    // Of variables with one name, the last one counts.
    variables = {absl::StrCat("IRIS_JOB_SECRET=", secret_)};
    for (std::string& each : VariablesForHosts()) {
      if (each != "IRIS_JOB_SECRET=") variables.push_back(std::move(each));
    }
    variables.insert(variables.end(), {absl::StrCat("IRIS_RENDEZVOUS=", rendezvous),
                                       absl::StrCat("IRIS_N_LOCAL=", host.place.n_ranks)});
    variables.insert(variables.end(), options_.environment.begin(), options_.environment.end());
    host.channel->Send(FrameType::kJob, EncodeJob(job));
    host.state = State::kStarting;
  }
  jobs_sent_ = true;
}

// No more is expected of the host. An agent that is still there sees the end of its input, and ends
// its ranks.
void RemoteRanks::Finish(Host& host) {
  host.state = State::kDone;
  host.channel.reset();
  for (int i = 0; i < host.place.n_ranks; ++i) {
    processes_[static_cast<size_t>(host.first_rank + i)].ended = true;
  }
}

void RemoteRanks::Lose(Host& host, const std::string& why) {
  if (host.state == State::kDone) return;
  if (!host.shell_ended) kill(-host.shell, SIGKILL);
  while (host.errors->fd.valid()) {
    pollfd wait = {host.errors->fd.get(), POLLIN, 0};
    if (poll(&wait, 1, 0) <= 0) break;
    ReadOutput(*host.errors);
  }
  const bool started = host.state == State::kRunning;
  Finish(host);
  if (started) {
    Fail(kExitHostFailed, absl::StrCat("lost ", Describe(host), ": ", why));
    return;
  }
  if (exit_code_ == 0) exit_code_ = kExitHostFailed;
  if (!ending_) {
    Write(2, absl::StrCat("iris-run: cannot start ", Describe(host), ": ", why, "\n"));
    EndNow();
  }
}

// Ends all that has been started.
void RemoteRanks::EndNow() {
  ending_ = true;
  kill_time_ = absl::InfiniteFuture();
  for (Host& host : hosts_) {
    if (host.state == State::kConnecting || host.state == State::kConnected) Finish(host);
  }
  SignalRunning(SIGKILL);
}

void RemoteRanks::ExpectTheEnd(Host& host) {
  if (!host.ending) host.deadline = Now() + kEndTime;
  host.ending = true;
}

void RemoteRanks::SignalRunning(int signal) {
  for (Host& host : hosts_) {
    if (host.state != State::kStarting && host.state != State::kRunning) continue;
    host.channel->Send(FrameType::kSignal, absl::StrCat(signal));
    if (signal == SIGKILL) ExpectTheEnd(host);
  }
}

void RemoteRanks::HandleSignal(int signal) {
  const bool asks_for_the_end =
      signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  if (!jobs_sent_ && asks_for_the_end) {
    exit_code_ = 128 + signal;
    EndNow();
  } else {
    RankSet::HandleSignal(signal);
  }
}

void RemoteRanks::ReapEnded() {
  for (Host& host : hosts_) {
    if (host.shell < 0 || host.shell_ended) continue;
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(host.shell), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    host.shell_ended = true;
    while (host.state != State::kDone && host.channel->Receive() == AgentChannel::Read::kData) {
      TakeFrames(host);
    }
    TakeFrames(host);
    Lose(host, absl::StrCat(remote_.rsh[0], " ", DescribeWaitStatus(info.si_code, info.si_status),
                            host.state <= State::kConnecting && info.si_status == kExitNotFound
                                ? "; iris-run must be at the same path on all hosts"
                                : ""));
  }
}

void RemoteRanks::AddPolled(std::vector<pollfd>* polled) {
  for (const Host& host : hosts_) {
    if (host.state == State::kDone) {
      polled->insert(polled->end(), 2, {-1, 0, 0});
    } else {
      host.channel->AddTo(polled);
    }
  }
}

void RemoteRanks::HandlePolled(const pollfd* polled) {
  for (Host& host : hosts_) {
    const pollfd* const entries = std::exchange(polled, polled + 2);
    if (host.state == State::kDone) continue;
    host.channel->Handle(entries);
    const bool ended = entries->revents != 0 && host.channel->ended();
    TakeFrames(host);
    if (ended) host.deadline = std::min(host.deadline, Now() + kShellEndTime);
  }
}

// A host has said nothing in time, unless it has done so while iris-run waited for its own output.
void RemoteRanks::Overdue(Host& host) {
  if (host.channel->Receive() == AgentChannel::Read::kData) {
    if (host.state != State::kConnecting) host.deadline = Now() + kEndTime;
    TakeFrames(host);
    if (host.state == State::kDone || Now() < host.deadline) return;
  }
  if (host.channel->ended()) return Lose(host, "its output has ended");
  if (host.state == State::kConnecting) {
    return Lose(
        host, absl::StrCat("no agent has answered in ",
                           absl::FormatDuration(remote_.connect_timeout), " (--connect-timeout)"));
  }
  Lose(host, host.ending
                 ? absl::StrCat("it does not end within ", absl::FormatDuration(kEndTime))
                 : absl::StrCat("nothing has come from it for ", absl::FormatDuration(kSilence)));
}

void RemoteRanks::Beat(absl::Time now) {
  if (now < next_beat_) return;
  next_beat_ = now + kBeatInterval;
  for (Host& host : hosts_) {
    if (host.state != State::kConnecting && host.state != State::kDone) {
      host.channel->Send(FrameType::kBeat);
    }
  }
}

absl::Time RemoteRanks::Tick(absl::Time now) {
  Beat(now);
  absl::Time next = next_beat_;
  for (Host& host : hosts_) {
    if (host.state != State::kDone && now >= host.deadline) Overdue(host);
    if (host.state != State::kDone) next = std::min(next, host.deadline);
  }
  return next;
}

// Agents hear beats also while a reader, such as a pager, takes nothing.
void RemoteRanks::Write(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size(); done += PIPE_BUF) {
    pollfd wait = {fd, POLLOUT, 0};
    const int beat_ms = static_cast<int>(absl::ToInt64Milliseconds(kBeatInterval)) / 2;
    while (poll(&wait, 1, beat_ms) == 0) Beat(Now());
    RankSet::Write(fd, text.substr(done, PIPE_BUF));
  }
}

}  // namespace iris::ctl
