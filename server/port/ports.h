// Ports: the port processes (server/port) of jobs that span several nodes, one for each job. It
// starts and ends them, passes them layouts and messages, and submits what they say as inputs.
// What a port says is hostile until it is checked: it runs as the job's user.
//
// With a keeper, ports outlive this irisd, and the next one attaches to them.
//
// A thread of its own does the work; functions only queue. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/events/log.h"
#include "server/host/daemon.h"
#include "server/link/link.h"
#include "server/port/port.pb.h"
#include "server/session/poller.h"
#include "server/tenant/worker_program.h"

namespace iris::server {

class Ports : public PortOutput {
 public:
  struct Setup {
    std::function<WorkerProgram::Started(const StartPort&)> start;
    std::function<void(const Input&)> submit;
    // Settings that all ports get, as in port::Setup.
    std::string backend;
    std::string interface;
    uint32_t port_min = 0, port_max = 0;
    std::string ucx;
    std::string transports;
    std::string devices;
    bool direct = false;
    std::vector<std::string> etcd;  // of jobs without a rendezvous; empty: these are refused
    // Reads it anew for each port, since certificates are renewed. Null: plain text.
    std::function<absl::StatusOr<port::EtcdTls>()> etcd_tls;
    std::string fabric;  // as of PortReady
    std::string secret;  // of jobs that bring none; empty: these are refused
    absl::Duration silence = absl::Seconds(5);
    absl::Duration connect = absl::Seconds(60);  // to reach the leader
    absl::Duration attach = absl::Minutes(10);   // ports wait for the next irisd for so long
    DescriptorKeeper* keeper = nullptr;          // outlives the Ports; null: nothing is kept
  };

  static absl::StatusOr<std::unique_ptr<Ports>> Create(Setup setup, const Logger* logger);
  // Ends all ports.
  ~Ports() override;

  void Start(const StartPort& wanted, std::vector<std::shared_ptr<const RankPort>> ports) override;
  void Attach(const AttachPort& wanted, std::vector<wire::UniqueFd> kept) override;
  void LayOut(const SetLayout& layout, std::vector<PortSegment> segments) override;
  void Send(const SendToNode& message) override;
  void Stop(JobId job) override;
  std::optional<PortReport> ReportOf(JobId job) const override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Port;

  Ports(Setup setup, std::unique_ptr<Poller> poller, const Logger* logger);

  void Post(std::function<void()> command) ABSL_LOCKS_EXCLUDED(mu_);
  // Only the thread runs the following functions.
  void Run();
  absl::Status Begin(const StartPort& wanted,
                     const std::vector<std::shared_ptr<const RankPort>>& ranks);
  // Returns the descriptor that the port gets, so that the next irisd can attach to it.
  absl::StatusOr<wire::UniqueFd> Keep(JobId job, const RunningWorker& process);
  // Attaches to a port of another irisd.
  absl::Status TakeOver(const AttachPort& wanted, std::vector<wire::UniqueFd> kept);
  Port* Find(JobId job);
  absl::Status Watch(Port* port, wire::UniqueFd link);
  void Queue(Port* port, LinkType type, std::string payload, wire::UniqueFd fd = {},
             uint64_t number = 0);
  void Flush(Port* port);
  void OnLink(Port* port, uint32_t events);
  absl::Status Handle(Port* port, const LinkMessage& message);
  void OnReady(Port* port, const port::Ready& ready) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReport(Port* port, const port::Report& report) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes what the port has taken. False if that was not sent.
  static bool Took(Port* port, uint64_t taken);
  // The port hears that its messages up to this number are in the state.
  void Acknowledge(Port* port, uint64_t number);
  void Forget(JobId job) ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(Port* port, const std::string& reason);

  const Setup setup_;
  const std::unique_ptr<Poller> poller_;
  const Logger* const logger_;
  std::map<JobId, std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<Port>> ending_;

  mutable absl::Mutex mu_;
  std::map<JobId, PortReport> reports_ ABSL_GUARDED_BY(mu_);  // of ports that are ready
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace iris::server
