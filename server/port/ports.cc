#include "server/port/ports.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "proto/wire/rights.h"
#include "server/job/clock.h"
#include "server/job/text.h"
#include "server/keep/kept_name.h"
#include "server/port/handshake.h"
#include "server/port/secret.h"
#include "server/session/session_server.h"
#include "server/state/node_proto.h"

namespace iris::server {
namespace {

// A port that is to stop has this long to send what is queued.
constexpr auto kEndsWithin = absl::Seconds(2);
// A port that takes nothing while more bytes than this wait for it hangs.
constexpr size_t kMaxQueuedBytes = 64 << 20;
// So many messages, with as many bytes as may be queued, may wait in the state of irisd until the
// port has taken them.
constexpr size_t kMaxUntaken = 1 << 17;
// The port hears after so many messages, or after a report, that irisd has stored them.
constexpr uint64_t kAcknowledgeAfter = 64;
// Of texts and times in a report.
constexpr size_t kMaxReportedBytes = 64;
constexpr uint64_t kMaxReportedMs = 365ull * 24 * 3600 * 1000;
constexpr auto kTellsBeforeTheJoin = absl::Seconds(1);
constexpr auto kRetryEvery = absl::Milliseconds(20);
// A port reports three times within network.silence, or each second.
constexpr auto kLeastPatience = absl::Seconds(1);

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string NameOf(JobId job) { return KeptName{KeptName::Kind::kPort, job.value}.Text(); }

bool IsSocket(const wire::UniqueFd& fd) {
  struct stat info = {};
  return fstat(fd.get(), &info) == 0 && S_ISSOCK(info.st_mode);
}

absl::StatusOr<wire::UniqueFd> Duplicate(const wire::UniqueFd& fd) {
  wire::UniqueFd copy(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy.valid()) return wire::ErrnoStatus(errno, "duplicate a descriptor for a port process");
  return copy;
}

}  // namespace

struct Ports::Port {
  JobId job;
  NodeId node = 0;
  uint32_t n_ranks = 0;  // of the job
  std::unique_ptr<RunningWorker> process;
  Poller::Watched link;
  LinkReader reader{LinkSender::kPort};
  LinkWriter writer;
  bool ready = false;
  bool attached = false;                     // of an irisd before
  absl::Time said = absl::InfiniteFuture();  // when its last message came, once it is ready
  uint64_t sent = 0, taken = 0;              // numbers of messages to it
  uint64_t heard = 0, acknowledged = 0;      // and from it
  struct Untaken {
    uint64_t number;
    size_t bytes;
  };
  std::deque<Untaken> untaken;
  size_t untaken_bytes = 0;
  struct Held {
    LinkType type;
    std::string payload;
    wire::UniqueFd fd;
    uint64_t number = 0;
  };
  std::vector<Held> held;                        // what it gets once it is ready
  absl::Time retry_at = absl::InfiniteFuture();  // when descriptors are in flight
  absl::Time end_at = absl::InfiniteFuture();    // of one that stops
};

absl::StatusOr<std::unique_ptr<Ports>> Ports::Create(Setup setup, const Logger* logger) {
  absl::StatusOr<std::unique_ptr<Poller>> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<Ports> made(new Ports(std::move(setup), *std::move(poller), logger));
  made->thread_ = std::thread([ports = made.get()] { ports->Run(); });
  return made;
}

Ports::Ports(Setup setup, std::unique_ptr<Poller> poller, const Logger* logger)
    : setup_(std::move(setup)), poller_(std::move(poller)), logger_(logger) {}

Ports::~Ports() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  poller_->Wake();
  thread_.join();
}

void Ports::Post(std::function<void()> command) {
  {
    absl::MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
  }
  poller_->Wake();
}

void Ports::Run() {
  const absl::Duration patience = std::max(setup_.silence, kLeastPatience);
  while (true) {
    std::vector<std::function<void()>> commands;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) break;
      commands = std::exchange(commands_, {});
    }
    for (const auto& command : commands) command();
    const absl::Time now = SteadyNow();
    absl::Time next = absl::InfiniteFuture();
    for (auto each = ports_.begin(); each != ports_.end();) {
      Port* const port = (each++)->second.get();  // Flush may move it to ending_
      if (port->retry_at <= now) Flush(port);
      next = std::min(next, port->retry_at);
      if (!port->link.valid()) continue;
      if (now - port->said > patience) {
        Fail(port, absl::StrCat("it says nothing for ", absl::FormatDuration(patience),
                                ": it is stopped, hangs, or gets no CPU (network.silence)"));
      } else {
        next = std::min(next, port->said + patience);
      }
    }
    std::erase_if(ending_, [&](const std::unique_ptr<Port>& port) {
      if (port->retry_at <= now && port->link.valid()) Flush(port.get());
      next = std::min({next, port->retry_at, port->end_at});
      return port->end_at <= now || !port->link.valid();  // its destructor kills and reaps it
    });
    poller_->Wait(commands.empty() ? next - now : absl::ZeroDuration());
  }
  ports_.clear();
  ending_.clear();
}

void Ports::Start(const StartPort& wanted, std::vector<std::shared_ptr<const RankPort>> ranks) {
  Post([this, wanted, ranks = std::move(ranks)] {
    const absl::Status begun = Begin(wanted, ranks);
    if (begun.ok()) return;
    ports_.erase(wanted.job);
    Forget(wanted.job);
    setup_.submit(PortFailed{wanted.job, std::string(begun.message())});
  });
}

absl::Status Ports::Begin(const StartPort& wanted,
                          const std::vector<std::shared_ptr<const RankPort>>& ranks) {
  port::Setup setup;
  // The join would otherwise fail first, and could not say what is wrong with the connection.
  const absl::Duration connect = std::min<absl::Duration>(
      setup_.connect, wanted.join_timeout -
                          std::min<absl::Duration>(wanted.join_timeout / 10, kTellsBeforeTheJoin));
  if (wanted.rendezvous.empty()) {
    if (setup_.etcd.empty()) {
      return absl::FailedPreconditionError(
          "the job has ranks on several nodes, and nothing says where they meet: set "
          "IRIS_RENDEZVOUS to HOST:PORT of the node of rank 0, the same on all nodes, with a free "
          "port (mpirun -x IRIS_RENDEZVOUS or -genv IRIS_RENDEZVOUS HOST:PORT, srun "
          "--export=ALL,IRIS_RENDEZVOUS=...), or give irisd on every node the same network.etcd; "
          "torchrun sets MASTER_ADDR and MASTER_PORT, and Slurm SLURM_STEP_NODELIST and "
          "SLURM_JOB_ID");
    }
    setup.mutable_etcd()->Assign(setup_.etcd.begin(), setup_.etcd.end());
    if (setup_.etcd_tls != nullptr) {
      absl::StatusOr<port::EtcdTls> tls = setup_.etcd_tls();
      if (!tls.ok()) return tls.status();
      *setup.mutable_etcd_tls() = *std::move(tls);
    }
  }
  setup.set_job(wanted.name);
  setup.set_uid(wanted.caller.party.uid);
  setup.set_first_rank(wanted.node);
  setup.set_n_local(wanted.n_local);
  setup.set_n_ranks(wanted.n_ranks);
  setup.set_rendezvous(wanted.rendezvous);
  setup.set_secret(wanted.secret);
  if (wanted.secret.empty()) {
    if (setup_.secret.empty()) {
      return absl::FailedPreconditionError(
          "a job that spans several nodes has a secret: set IRIS_JOB_SECRET to the same 16 to 64 "
          "bytes for all its ranks, or give irisd on every node the same network.secret_file");
    }
    // The secret of all jobs stays with irisd.
    setup.set_secret(port::Hmac(setup_.secret,
                                {"iris job", absl::StrCat(wanted.caller.party.uid), wanted.name}));
  }
  setup.set_max_heap_bytes(wanted.stride_bytes);
  setup.set_interface(setup_.interface);
  setup.set_port_min(setup_.port_min);
  setup.set_port_max(setup_.port_max);
  setup.set_ucx(setup_.ucx);
  setup.set_transports(setup_.transports);
  setup.set_devices(setup_.devices);
  setup.set_direct(setup_.direct);
  setup.set_backend(setup_.backend);
  setup.set_silence_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(setup_.silence)));
  setup.set_connect_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(connect)));
  setup.set_attach_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(setup_.attach)));

  WorkerProgram::Started started = setup_.start(wanted);
  if (!started.ok()) return started.status();
  Port* const port = (ports_[wanted.job] = std::make_unique<Port>()).get();
  port->job = wanted.job;
  port->node = wanted.node;
  port->n_ranks = wanted.n_ranks;
  port->process = *std::move(started);
  if (absl::Status s = Watch(port, port->process->TakeLink()); !s.ok()) return s;
  absl::StatusOr<wire::UniqueFd> attach = Keep(wanted.job, *port->process);
  if (!attach.ok()) return attach.status();
  Queue(port, LinkType::kPortSetup, setup.SerializeAsString(), *std::move(attach));
  for (size_t i = 0; i < ranks.size(); ++i) {
    port::RankRing ring;
    ring.set_rank(wanted.node + static_cast<Rank>(i));
    for (const bool wake : {false, true}) {
      absl::StatusOr<wire::UniqueFd> fd = Duplicate(wake ? ranks[i]->wake : ranks[i]->memory);
      if (!fd.ok()) return fd.status();
      ring.set_wake(wake);
      Queue(port, LinkType::kPortRank, ring.SerializeAsString(), *std::move(fd));
    }
  }
  Flush(port);
  return absl::OkStatus();
}

absl::Status Ports::Watch(Port* port, wire::UniqueFd link) {
  absl::StatusOr<Poller::Watched> watched =
      poller_->Watch(&link, EPOLLIN, [this, port](uint32_t events) { OnLink(port, events); });
  if (watched.ok()) port->link = *std::move(watched);
  return watched.status();
}

absl::StatusOr<wire::UniqueFd> Ports::Keep(JobId job, const RunningWorker& process) {
  if (setup_.keeper == nullptr) return wire::UniqueFd();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return wire::ErrnoStatus(errno, "make the socket to attach to a port process");
  }
  const wire::UniqueFd ours(ends[0]);
  wire::UniqueFd theirs(ends[1]);
  // The port can send nothing by it.
  (void)shutdown(ours.get(), SHUT_RD);
  // The keeper alone has the socket, so it ends with what is kept.
  (void)setup_.keeper->Store(NameOf(job), {ours.get(), process.pidfd()});
  return setup_.keeper->gave_up() ? wire::UniqueFd() : std::move(theirs);
}

void Ports::Attach(const AttachPort& wanted, std::vector<wire::UniqueFd> kept) {
  auto shared = std::make_shared<std::vector<wire::UniqueFd>>(std::move(kept));
  Post([this, wanted, shared] {
    const absl::Status taken = TakeOver(wanted, std::move(*shared));
    if (taken.ok()) return;
    ports_.erase(wanted.job);
    Forget(wanted.job);
    setup_.submit(PortFailed{wanted.job, absl::StrCat("irisd was restarted: ", taken.message())});
  });
}

absl::Status Ports::TakeOver(const AttachPort& wanted, std::vector<wire::UniqueFd> kept) {
  if (kept.size() != 2 || IsSocket(kept[0]) == IsSocket(kept[1])) {
    return absl::InvalidArgumentError("the descriptors of the port process were not kept");
  }
  if (!IsSocket(kept[0])) std::swap(kept[0], kept[1]);
  absl::StatusOr<std::unique_ptr<RunningWorker>> process = AdoptWorker(std::move(kept[1]));
  if (!process.ok()) return process.status();
  Port* const port = (ports_[wanted.job] = std::make_unique<Port>()).get();
  port->job = wanted.job;
  port->node = wanted.node;
  port->n_ranks = wanted.n_ranks;
  port->process = *std::move(process);
  port->attached = true;
  port->said = SteadyNow();
  port->heard = port->acknowledged = wanted.heard;
  port->sent = wanted.sent;
  port->taken = wanted.taken;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return wire::ErrnoStatus(errno, "make another link to a port process");
  }
  wire::UniqueFd ours(ends[0]);
  const wire::UniqueFd theirs(ends[1]);
  PortAttach attach{.node_version = port::kProtocolVersion};
  struct iovec content = {&attach, sizeof(attach)};
  const int fd = theirs.get();
  if (wire::SendRights(kept[0].get(), {&content, 1}, {&fd, 1}, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    return errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED
               ? absl::UnavailableError("the port process has ended meanwhile")
               : wire::ErrnoStatus(errno, "attach to a port process");
  }
  if (absl::Status s = Watch(port, std::move(ours)); !s.ok()) return s;
  port::Resume resume;
  resume.set_taken(wanted.heard);
  for (const SegmentInfo& segment : wanted.layout.segments) {
    resume.add_segment_ids(segment.id.value);
  }
  Queue(port, LinkType::kPortResume, resume.SerializeAsString());
  Flush(port);
  return absl::OkStatus();
}

Ports::Port* Ports::Find(JobId job) {
  const auto found = ports_.find(job);
  return found == ports_.end() ? nullptr : found->second.get();
}

void Ports::LayOut(const SetLayout& layout, std::vector<PortSegment> segments) {
  Post([this, layout, segments = std::move(segments)] {
    Port* const port = Find(layout.job);
    if (port == nullptr) return;
    for (const PortSegment& segment : segments) {
      port::Memory memory;
      memory.set_segment_id(segment.info.id.value);
      memory.set_rank(segment.info.rank);
      memory.set_offset_bytes(segment.info.offset_bytes);
      memory.set_bytes(segment.info.bytes);
      memory.set_device_uuid(segment.device_uuid);
      memory.set_registered(segment.info.offset_bytes >= layout.registered_from);
      absl::StatusOr<int> fd = segment.open();
      if (!fd.ok()) return Fail(port, std::string(fd.status().message()));
      Queue(port, LinkType::kPortMemory, memory.SerializeAsString(), wire::UniqueFd(*fd));
    }
    for (const SegmentId id : layout.forgotten) {
      port::Memory memory;
      memory.set_segment_id(id.value);
      memory.set_forget(true);
      Queue(port, LinkType::kPortMemory, memory.SerializeAsString());
    }
    if (layout.epoch != 0 && layout.nodes.empty()) return Flush(port);
    port::Layout to;
    to.set_epoch(layout.epoch);
    for (const NodePart& part : layout.nodes) {
      port::Layout::Node* const node = to.add_nodes();
      node->set_first_rank(part.node);
      node->set_n_ranks(part.n_ranks);
    }
    Queue(port, LinkType::kPortLayout, to.SerializeAsString());
    Flush(port);
  });
}

void Ports::Send(const SendToNode& message) {
  Post([this, job = message.job, node = message.node, all = message.all, number = message.number,
        payload = EncodeNodeMessage(message.message)] {
    Port* const port = Find(job);
    if (port == nullptr) return;
    port::NodeMessage to;
    to.set_node(node);
    to.set_all(all);
    to.set_payload(payload);
    to.set_number(number);
    to.set_taken(port->acknowledged = port->heard);
    port->sent = std::max(port->sent, number);
    if (number > port->taken) {
      port->untaken.push_back({number, payload.size()});
      port->untaken_bytes += payload.size();
    }
    Queue(port, LinkType::kPortToNode, to.SerializeAsString(), {}, number);
    if (port->untaken.size() > kMaxUntaken || port->untaken_bytes > kMaxQueuedBytes) {
      return Fail(port, absl::StrCat("its port process has not taken ", port->untaken.size(),
                                     " messages of ", port->untaken_bytes,
                                     " bytes: it is stopped, or hangs"));
    }
    Flush(port);
  });
}

void Ports::Stop(JobId job) {
  Post([this, job] {
    const auto found = ports_.find(job);
    if (found == ports_.end()) return;
    std::unique_ptr<Port> port = std::move(found->second);
    ports_.erase(found);
    Forget(job);
    port->end_at = SteadyNow() + kEndsWithin;
    Queue(port.get(), LinkType::kStop, "");
    Flush(port.get());
    ending_.push_back(std::move(port));
  });
}

void Ports::Queue(Port* port, LinkType type, std::string payload, wire::UniqueFd fd,
                  uint64_t number) {
  if (!port->ready && type != LinkType::kPortSetup && type != LinkType::kPortResume &&
      type != LinkType::kStop) {
    port->held.push_back({type, std::move(payload), std::move(fd), number});
    return;
  }
  port->writer.Queue({.type = type}, {std::move(payload), nullptr}, std::move(fd));
}

void Ports::Flush(Port* port) {
  port->retry_at = absl::InfiniteFuture();
  if (!port->link.valid()) return;
  const absl::StatusOr<LinkWriter::Flushed> flushed = port->writer.Flush(port->link.get());
  if (!flushed.ok()) return;  // its end is reported as an event of the link
  if (*flushed == LinkWriter::Flushed::kNoDescriptors) port->retry_at = SteadyNow() + kRetryEvery;
  const bool blocked = *flushed == LinkWriter::Flushed::kBlocked;
  port->link.SetEvents(blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
  if (port->writer.queued_bytes() > kMaxQueuedBytes) {
    Fail(port, "its port process takes nothing: it is stopped, or hangs");
  }
}

void Ports::OnLink(Port* port, uint32_t events) {
  if ((events & EPOLLOUT) != 0) Flush(port);
  if (!port->link.valid()) return;
  const bool stops = port->end_at != absl::InfiniteFuture();
  if ((events & EPOLLIN) != 0) {
    const absl::StatusOr<LinkReader::Received> received = port->reader.Receive(port->link.get());
    while (received.ok()) {
      const absl::StatusOr<std::optional<LinkMessage>> message = port->reader.Next();
      if (message.ok() && !message->has_value()) return;
      const absl::Status handled =
          message.ok() ? (stops ? absl::OkStatus() : Handle(port, **message)) : message.status();
      if (!handled.ok()) return Fail(port, std::string(handled.message()));
      if (!port->link.valid()) return;
    }
  } else if ((events & (EPOLLHUP | EPOLLERR)) == 0) {
    return;
  }
  if (stops) {
    port->link.Reset();
    poller_->Wake();
    return;
  }
  // The link is closed: the process has ended, or is about to.
  std::string how;
  for (int i = 0; i < 20 && how.empty(); ++i) {
    how = port->process->Reap().value_or("");
    if (how.empty()) absl::SleepFor(absl::Milliseconds(5));
  }
  Fail(port, how.empty() ? "it closed its link" : absl::StrCat("it was ", how));
}

absl::Status Ports::Handle(Port* port, const LinkMessage& message) {
  port->said = SteadyNow();
  const auto wrong = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("its port process ", what));
  };
  const auto parse = [&](google::protobuf::MessageLite* to) {
    return to->ParseFromArray(message.payload.data(), static_cast<int>(message.payload.size()))
               ? absl::OkStatus()
               : wrong("says nonsense");
  };
  constexpr absl::string_view kUntrue = "says that it has what it was not sent";
  constexpr absl::string_view kLeftOut = "has left out a message";
  const JobId job = port->job;
  absl::Status status;
  switch (message.type()) {
    case LinkType::kPortReady: {
      port::Ready ready;
      if (status = parse(&ready); !status.ok() || std::exchange(port->ready, true)) return status;
      if (!Took(port, ready.taken())) return wrong(kUntrue);
      OnReady(port, ready);
      return absl::OkStatus();
    }
    case LinkType::kPortFromNode: {
      port::NodeMessage from;
      if (status = parse(&from); !status.ok()) return status;
      if (!Took(port, from.taken())) return wrong(kUntrue);
      if (from.number() > port->heard + 1) return wrong(kLeftOut);
      absl::StatusOr<NodeMessage> said = DecodeNodeMessage(from.payload());
      if (said.ok()) {
        setup_.submit(NodeSaid{job, from.node(), *std::move(said), from.number(), from.taken()});
      } else {
        setup_.submit(
            NodeLost{job, from.node(), std::string(said.status().message()), from.number()});
      }
      Acknowledge(port, from.number());
      return absl::OkStatus();
    }
    case LinkType::kPortNode: {
      port::NodeState node;
      if (status = parse(&node); !status.ok()) return status;
      if (node.number() > port->heard + 1) return wrong(kLeftOut);
      if (node.lost()) {
        setup_.submit(NodeLost{job, node.node(), node.reason(), node.number()});
      } else {
        setup_.submit(NodeConnected{job, node.node(), node.name(), node.number()});
      }
      Acknowledge(port, node.number());
      return absl::OkStatus();
    }
    case LinkType::kPortTook: {
      port::Took took;
      if (status = parse(&took); !status.ok()) return status;
      if (!Took(port, took.taken())) return wrong(kUntrue);
      setup_.submit(PortTook{job, took.taken()});
      return absl::OkStatus();
    }
    case LinkType::kPortReport: {
      port::Report report;
      if (status = parse(&report); !status.ok()) return status;
      const uint64_t before = port->taken;
      if (!Took(port, report.taken())) return wrong(kUntrue);
      if (port->taken != before) setup_.submit(PortTook{job, port->taken});
      OnReport(port, report);
      return absl::OkStatus();
    }
    case LinkType::kPortFailed: {
      port::Failed failed;
      if (status = parse(&failed); !status.ok()) return status;
      Fail(port, failed.reason());
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("its port process says what no port says");
  }
}

bool Ports::Took(Port* port, uint64_t taken) {
  if (taken > port->sent) return false;
  port->taken = std::max(port->taken, taken);
  while (!port->untaken.empty() && port->untaken.front().number <= taken) {
    port->untaken_bytes -= port->untaken.front().bytes;
    port->untaken.pop_front();
  }
  return true;
}

void Ports::Acknowledge(Port* port, uint64_t number) {
  port->heard = std::max(port->heard, number);
  if (port->heard - port->acknowledged < kAcknowledgeAfter || !port->link.valid()) return;
  port::Took took;
  took.set_taken(port->acknowledged = port->heard);
  Queue(port, LinkType::kPortTook, took.SerializeAsString());
  Flush(port);
}

void Ports::OnReady(Port* port, const port::Ready& ready) {
  logger_->Info(port->attached ? "irisd has attached to a port to other nodes"
                               : "a port to other nodes is open",
                {{"job_id", port->job.value},
                 {"address", ready.address()},
                 {"ucx", ready.ucx_version()},
                 {"transports", ready.transports()}});
  {
    absl::MutexLock lock(&mu_);
    reports_[port->job] = {.at = SteadyNow(),
                           .ucx_version = CleanText(ready.ucx_version(), kMaxReportedBytes),
                           .transports = CleanText(ready.transports(), kMaxReportedBytes),
                           .address = CleanText(ready.address(), kMaxReportedBytes),
                           .peers = {}};
  }
  for (Port::Held& held : std::exchange(port->held, {})) {
    if (held.number != 0 && held.number <= port->taken) continue;
    Queue(port, held.type, std::move(held.payload), std::move(held.fd));
  }
  Flush(port);
  if (port->attached) {
    setup_.submit(PortTook{port->job, port->taken});
  } else {
    setup_.submit(PortReady{port->job, SessionServer::RandomNumber(), HostName(), setup_.fabric});
  }
}

void Ports::OnReport(Port* of, const port::Report& report) {
  const Port& port = *of;
  if (port.heard != port.acknowledged) {
    port::Took took;
    took.set_taken(of->acknowledged = port.heard);
    Queue(of, LinkType::kPortTook, took.SerializeAsString());
    Flush(of);
  }
  absl::MutexLock lock(&mu_);
  const auto found = reports_.find(port.job);
  if (found == reports_.end()) return;  // it is not ready
  PortReport& to = found->second;
  to.at = SteadyNow();
  to.refused_messages = report.refused_messages();
  to.refused_connections = report.refused_connections();
  to.peers.clear();
  for (const port::Report::Peer& from : report.peers()) {
    if (from.node() >= port.n_ranks || from.node() == port.node) continue;
    PortReport::Peer& peer = to.peers[from.node()];
    peer = {.connected = from.connected(),
            .address = CleanText(from.address(), kMaxReportedBytes),
            .heard_ms = std::min(from.heard_ms(), kMaxReportedMs),
            .rtt_us = std::nullopt,
            .clock_ahead_ns = std::nullopt,
            .clock_error_ns = std::nullopt,
            .transport = CleanText(from.transport(), kMaxReportedBytes),
            .sent_bytes = from.sent_bytes(),
            .received_bytes = from.received_bytes()};
    if (from.has_rtt_us()) peer.rtt_us = std::min(from.rtt_us(), kMaxReportedMs * 1000);
    if (from.has_clock_ahead_ns()) {
      peer.clock_ahead_ns = from.clock_ahead_ns();
      peer.clock_error_ns = std::min(from.clock_error_ns(), kMaxReportedMs * 1'000'000);
    }
  }
}

std::optional<PortReport> Ports::ReportOf(JobId job) const {
  absl::MutexLock lock(&mu_);
  const auto found = reports_.find(job);
  if (found == reports_.end()) return std::nullopt;
  return found->second;
}

void Ports::Forget(JobId job) {
  if (setup_.keeper != nullptr) setup_.keeper->Remove(NameOf(job));
  absl::MutexLock lock(&mu_);
  reports_.erase(job);
}

void Ports::Fail(Port* port, const std::string& reason) {
  const JobId job = port->job;
  port->link.Reset();
  if (port->end_at != absl::InfiniteFuture()) return;
  port->end_at = absl::InfinitePast();
  const auto found = ports_.find(job);
  if (found != ports_.end() && found->second.get() == port) {
    ending_.push_back(std::move(found->second));  // the caller still uses it
    ports_.erase(found);
    Forget(job);
  }
  poller_->Wake();
  setup_.submit(PortFailed{job, reason});
}

}  // namespace iris::server
