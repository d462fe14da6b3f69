// RemoteRanks: the ranks of a job on several hosts, which an agent (agent.h) on each host starts.
//
// iris-run decides as it does for ranks of its own node; agents start, signal and report. It starts
// the remote shell of each host, and sends the job, with its secret, when all agents have answered.
// An agent ends its ranks when iris-run is gone or silent for kSilence; a host is lost when its
// remote shell ends or it says nothing for kSilence. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/ctl/agent_channel.h"
#include "client/ctl/host_list.h"
#include "client/ctl/rank_set.h"

namespace iris::ctl {

struct RemoteOptions {
  std::vector<HostRanks> hosts;    // not empty; their ranks are those of RunOptions
  std::vector<std::string> rsh;    // the remote shell, which gets a host and a command
  std::string rendezvous;          // HOST:PORT; empty: a free port of rendezvous_host
  std::string rendezvous_host;     // a name of the first host; empty: that in `hosts`
  std::string agent;               // path of iris-run on all hosts; empty: this program's
  std::string folder;              // where ranks work; empty: in this process's folder
  absl::Duration connect_timeout;  // until all agents have answered
  bool bind = false;
  bool verbose = false;
};

// Returns the command line of the remote shell if no option gives one: IRIS_RUN_RSH, else ssh.
std::string DefaultRemoteShell();
// Returns its words. kInvalidArgument if there are none.
absl::StatusOr<std::vector<std::string>> ReadRemoteShell(const std::string& text);

class RemoteRanks : public RankSet {
 public:
  RemoteRanks(RunOptions options, RemoteOptions remote);

 protected:
  absl::Status StartAll() override;
  void HandleSignal(int signal) override;
  void SignalRunning(int signal) override;
  void ReapEnded() override;
  void Write(int fd, const std::string& text) override;
  bool Finished() const override;
  void AddPolled(std::vector<pollfd>* polled) override;
  void HandlePolled(const pollfd* polled) override;
  absl::Time Tick(absl::Time now) override;

 private:
  enum class State {
    kConnecting,
    kConnected,
    kStarting,  // the job has been sent
    kRunning,
    kDone,
  };
  struct Host {
    HostRanks place;
    int first_rank = 0;
    pid_t shell = -1;
    bool shell_ended = false;
    State state = State::kConnecting;
    std::unique_ptr<AgentChannel> channel;  // null: done
    Output* errors = nullptr;               // of the remote shell
    int free_port = 0;
    bool ending = false;  // its ranks have ended, or are being killed
    absl::Time deadline;  // it is lost if it says nothing until then
  };

  void TakeFrames(Host& host);
  void TakeFrame(Host& host, const AgentChannel::Frame& frame);
  void Noise(Host& host);
  void SendJobs();
  void Finish(Host& host);
  void Lose(Host& host, const std::string& why);
  void Overdue(Host& host);
  void EndNow();
  void ExpectTheEnd(Host& host);
  void Beat(absl::Time now);
  bool AllAre(State state) const;
  std::string Describe(const Host& host) const;

  const RemoteOptions remote_;
  std::string secret_;
  std::vector<Host> hosts_;
  bool jobs_sent_ = false;
  absl::Time next_beat_ = absl::InfinitePast();
};

}  // namespace iris::ctl
