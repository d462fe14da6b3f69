#include "server/port/port.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/rights.h"
#include "server/job/clock.h"
#include "server/port/admission.h"

namespace iris::port {
namespace {

using server::LinkType;

constexpr int kEventsAtOnce = 64;
// Connections that have not proved anything, beside one for each rank of nodes that are awaited:
// the nodes of a large job come all at once.
constexpr size_t kMaxStrangers = 128;
constexpr auto kHandshakeWithin = absl::Seconds(5);
// The port of the job before this one may still have the rendezvous, and refuses nodes of this one.
constexpr auto kEarlierJobEndsWithin = absl::Seconds(3);
constexpr auto kRetryRefusedAfter = absl::Milliseconds(300);
constexpr auto kRetryAfter = absl::Milliseconds(100);
constexpr auto kReportEvery = absl::Seconds(1);
constexpr auto kReportNewsAfter = absl::Milliseconds(20);  // of nodes that come one after another
constexpr auto kMinTimer = absl::Milliseconds(5), kMaxTimer = absl::Milliseconds(100);
// After the last work, this process looks for more before it sleeps, where a CPU is free for it.
// Elsewhere the other node's process, or the rank, waits for this CPU until the end of the spin.
constexpr auto kSpin = absl::Microseconds(20);
constexpr unsigned kSpinsAboveCpus = 4;
// Kernels of GPUs cannot wake this process: it looks for so long, and then so often.
constexpr auto kSpinForKernels = absl::Milliseconds(1);
constexpr auto kPollKernels = absl::Microseconds(50);
// The first beats of a connection come faster, so that its clock is known soon: some at once, in
// spite of what else happens at that time, and the others a little later.
constexpr size_t kBeatsAtOnce = 4;
constexpr auto kFirstBeatsEvery = absl::Milliseconds(100);
constexpr auto kLookAtEvents = absl::Microseconds(200);  // while data flows
constexpr uint32_t kMinSilenceMs = 50;
constexpr size_t kMaxLinkBytes = 256 << 20;
// irisd hears after so much that it was taken; with the next report in any case.
constexpr uint64_t kTellTakenAfter = 64;
constexpr size_t kTellTakenAfterBytes = 256 << 10;

absl::Status Bad(absl::string_view what) {
  return absl::InternalError(absl::StrCat("irisd sent a port a wrong message: ", what));
}

template <typename Message>
absl::StatusOr<Message> Parse(std::string_view payload) {
  Message message;
  if (message.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return message;
  return Bad("it cannot be decoded");
}

// The first address of etcd that can be found.
template <typename Texts>
absl::StatusOr<Address> FirstOf(const Texts& texts) {
  absl::StatusOr<Address> found = Bad("no etcd");
  for (const std::string& text : texts) {
    found = Resolve(text);
    if (found.ok()) break;
  }
  return found;
}

}  // namespace

Port::Port(wire::UniqueFd link, wire::UniqueFd epoll, const server::Logger* logger)
    : logger_(logger), epoll_(std::move(epoll)), link_(std::move(link)) {}

absl::StatusOr<std::unique_ptr<Port>> Port::Create(wire::UniqueFd link,
                                                   const server::Logger* logger) {
  wire::UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return wire::ErrnoStatus(errno, "make the port's epoll descriptor");
  std::unique_ptr<Port> port(new Port(std::move(link), std::move(epoll), logger));
  const absl::Status status = port->Watch(port->link_.get(), EPOLLIN);
  if (!status.ok()) return status;
  return port;
}

absl::Status Port::Watch(int fd, uint32_t events, bool change) {
  struct epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), change ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0) {
    return absl::OkStatus();
  }
  return wire::ErrnoStatus(errno, "watch a descriptor");
}

absl::Status Port::Start(const std::function<absl::Status()>& confine) {
  absl::Status status;
  while (status.ok() && !is_set_up_ && !over_) status = HandleEvents(absl::InfiniteDuration());
  if (over_) return status;
  if (status.ok()) status = Open();
  if (status.ok()) status = confine();
  if (status.ok()) {
    TellReady();
    const absl::Time connect_by = now_ + absl::Milliseconds(setup_.connect_ms());
    if (!leads()) {
      Node& node = nodes_[0];
      if (MeetsByEtcd()) {
        node.last_error = absl::UnavailableError("etcd has not answered yet");
      } else {
        node.target = rendezvous_;
      }
      node.connect_at = now_;
      node.connect_by = connect_by;
    }
    if (MeetsByEtcd()) {
      // Its thread begins confined.
      meet_by_ = connect_by;
      MeetingOptions options;
      options.endpoints.assign(setup_.etcd().begin(), setup_.etcd().end());
      options.job = setup_.job();
      options.uid = setup_.uid();
      options.secret = setup_.secret();
      if (setup_.has_etcd_tls()) {
        const EtcdTls& tls = setup_.etcd_tls();
        options.tls = grpc::SslCredentialsOptions{.pem_root_certs = tls.ca(),
                                                  .pem_private_key = tls.key(),
                                                  .pem_cert_chain = tls.certificate()};
      }
      if (leads()) options.leader = self_.address();
      meeting_ = std::make_unique<Meeting>(std::move(options));
      status = Watch(meeting_->event_fd(), EPOLLIN);
      if (!status.ok()) return status;
    }
    return FlushLink();
  }
  failed_ = status;
  return Run();
}

absl::Status Port::Open() {
  const absl::StatusOr<Address> toward =
      MeetsByEtcd() ? FirstOf(setup_.etcd()) : Resolve(setup_.rendezvous());
  if (!toward.ok()) return toward.status();
  absl::StatusOr<Interface> interface = FindInterface(setup_.interface(), *toward);
  if (!interface.ok()) return interface.status();
  interface_ = *std::move(interface);
  Address at = interface_.address;
  if (!MeetsByEtcd()) {
    rendezvous_ = *toward;
    if (leads()) at = rendezvous_;
  } else if (setup_.interface().empty() && (at.host == "::1" || at.host.rfind("127.", 0) == 0)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the way to etcd at ", toward->Text(), " is this host's own ", interface_.name,
        ", where no other node reaches it: set network.interface, or another address in "
        "network.etcd"));
  }
  const absl::Time listen_by = server::SteadyNow() + kEarlierJobEndsWithin;
  absl::StatusOr<wire::UniqueFd> listener = Listen(&at, setup_.port_min(), setup_.port_max());
  while (absl::IsAlreadyExists(listener.status()) && server::SteadyNow() < listen_by) {
    absl::SleepFor(absl::Milliseconds(20));
    listener = Listen(&at, setup_.port_min(), setup_.port_max());
  }
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  absl::StatusOr<std::unique_ptr<HeapMemory>> memory =
      HeapMemory::Open(setup_.backend(), setup_.max_heap_bytes());
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  engine_ = std::make_unique<Engine>(RequestLimits{setup_.first_rank(), setup_.n_local(),
                                                   setup_.n_ranks(), setup_.max_heap_bytes()},
                                     memory_.get());
  UcxOptions options;
  options.path = setup_.ucx();
  options.transports = setup_.transports();
  options.device = interface_.name;
  options.devices = setup_.devices();
  options.direct = setup_.direct();
  options.ipv6 = interface_.address.ipv6;
  options.port_min = setup_.port_min();
  options.port_max = setup_.port_max();
  options.n_nodes = setup_.n_ranks() - setup_.n_local() + 1;
  options.silence = absl::Milliseconds(setup_.silence_ms());
  UcxWorker::Handlers handlers;
  handlers.message = [this](std::string_view header, std::string_view data) {
    engine_->OnMessage(header, data);
  };
  handlers.sent = [this](UcxWorker::SendTag* tag, bool ok) { engine_->OnSent(tag, ok); };
  handlers.failed = [this](void* tag, const char* reason) { engine_->OnFailed(tag, reason); };
  if (const absl::Status refuses = RefuseStrangers(); !refuses.ok()) return refuses;
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker =
      UcxWorker::Create(options, std::move(handlers));
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  engine_->SetWorker(worker_.get());
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  self_.set_job(setup_.job());
  self_.set_uid(setup_.uid());
  self_.set_first_rank(setup_.first_rank());
  self_.set_n_local(setup_.n_local());
  self_.set_n_ranks(setup_.n_ranks());
  self_.set_name(host);
  self_.set_address(at.Text());
  self_.set_worker(worker_->address());
  self_.set_data(interface_.address.host);
  if (self_.ByteSizeLong() > kMaxHandshakeBytes / 2) {
    return absl::FailedPreconditionError("UCX's address of this node is too long");
  }
  now_ = server::SteadyNow();
  absl::Status status = Watch(listener_.get(), EPOLLIN);
  status.Update(Watch(worker_->event_fd(), EPOLLIN));
  return status;
}

absl::Status Port::Run() {
  const bool polls_kernels = setup_.backend() != "emu";
  const absl::Duration spin = std::thread::hardware_concurrency() <= kSpinsAboveCpus
                                  ? absl::ZeroDuration()
                                  : (polls_kernels ? kSpinForKernels : kSpin);
  absl::Time busy = server::SteadyNow(), looked = busy;
  while (!over_ && failed_.ok()) {
    const bool any = engine_->Poll();
    for (const auto& [node, reason] : engine_->TakeBroken()) LoseNode(node, reason);
    for (const uint32_t node : engine_->TakeWanted()) Meet(node);
    now_ = server::SteadyNow();
    if (now_ >= next_timer_) next_timer_ = OnTimer(now_);
    failed_.Update(FlushLink());
    if (any) busy = now_;
    if (any || now_ - busy < spin) {
      if (now_ - looked < kLookAtEvents) continue;
      looked = now_;
      failed_.Update(HandleEvents(absl::ZeroDuration()));
      continue;
    }
    engine_->SetAsleep(true);
    if (!engine_->HasRequests() && worker_->Arm()) {
      absl::Duration timeout = next_timer_ - now_;
      if (polls_kernels) timeout = std::min(timeout, kPollKernels);
      failed_.Update(HandleEvents(std::max(timeout, absl::ZeroDuration())));
      looked = now_;
    }
    engine_->SetAsleep(false);
  }
  if (engine_ != nullptr) engine_->Stop(failed_.ok() ? over_code_ : StatusCode::kInternal);
  if (!failed_.ok()) {
    Failed failed;
    failed.set_code(static_cast<uint32_t>(failed_.code()));
    failed.set_reason(std::string(failed_.message()));
    Tell(LinkType::kPortFailed, failed);
    (void)FlushLink();
  }
  const absl::Status ended = meeting_ == nullptr ? absl::OkStatus() : meeting_->End();
  if (!ended.ok()) {
    logger_->Warn(
        "the next job of this name waits until this one's key in etcd ends",
        {{"job", setup_.job()}, {"seconds", kMeetingTtlSeconds}, {"error", ended.message()}});
  }
  return failed_;
}

absl::Status Port::HandleEvents(absl::Duration timeout) {
  struct epoll_event events[kEventsAtOnce];
  int timeout_ms = -1;
  if (timeout < absl::Milliseconds(1)) {
    timeout_ms = 0;
    if (timeout > absl::ZeroDuration()) {
      struct pollfd ready = {epoll_.get(), POLLIN, 0};
      const struct timespec wait = absl::ToTimespec(timeout);
      (void)ppoll(&ready, 1, &wait, nullptr);
    }
  } else if (timeout != absl::InfiniteDuration()) {
    timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(timeout)) + 1;
  }
  const int n = epoll_wait(epoll_.get(), events, kEventsAtOnce, timeout_ms);
  if (n < 0 && errno != EINTR) return wire::ErrnoStatus(errno, "wait for events");
  now_ = server::SteadyNow();
  for (int i = 0; i < n; ++i) {
    const int fd = events[i].data.fd;
    if (fd == attach_.get()) {
      OnAttach();
    } else if (fd == link_.get()) {
      if ((events[i].events & EPOLLOUT) != 0) link_blocked_ = false;
      if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) continue;
      const absl::Status status = ReadLink();
      if (!status.ok()) return status;
    } else if (fd == listener_.get()) {
      Accept();
    } else if (meeting_ != nullptr && fd == meeting_->event_fd()) {
      OnMeeting();
    } else if (lines_.count(fd) != 0) {
      OnLine(fd, events[i].events);
    }
    // Events of UCX and of rings have no other effect than to end the wait. Rings' eventfds are
    // watched for edges and never read, since their ranks could make a read block.
  }
  return absl::OkStatus();
}

// The link.

absl::Status Port::ReadLink() {
  const absl::StatusOr<server::LinkReader::Received> received = reader_.Receive(link_.get());
  if (absl::IsUnavailable(received.status())) {
    LinkEnds();
    return absl::OkStatus();
  }
  if (!received.ok()) return received.status();
  for (;;) {
    absl::StatusOr<std::optional<server::LinkMessage>> message = reader_.Next();
    if (!message.ok()) return message.status();
    if (!message->has_value()) return absl::OkStatus();
    const absl::Status status = OnLinkMessage(**std::move(message));
    if (!status.ok()) return status;
  }
}

absl::Status Port::OnLinkMessage(server::LinkMessage message) {
  const std::string_view payload = message.payload;
  if (message.type() == LinkType::kStop) {
    over_ = true;
    over_code_ = StatusCode::kAborted;
    return absl::OkStatus();
  }
  if (message.type() == LinkType::kPortSetup) {
    if (is_set_up_) return Bad("a second setup");
    absl::StatusOr<Setup> setup = Parse<Setup>(payload);
    if (!setup.ok()) return setup.status();
    setup_ = *std::move(setup);
    if (setup_.n_local() == 0 || setup_.n_ranks() > wire::kMaxWorldRanks ||
        setup_.first_rank() >= setup_.n_ranks() ||
        setup_.n_local() > setup_.n_ranks() - setup_.first_rank() ||
        setup_.n_local() > wire::kMaxRanks || setup_.max_heap_bytes() == 0 ||
        setup_.max_heap_bytes() > (1ull << 44) || setup_.secret().size() < 16 ||
        setup_.rendezvous().empty() == setup_.etcd().empty() ||
        setup_.port_min() > setup_.port_max() || setup_.port_max() > 65535) {
      return Bad("a setup that is out of range");
    }
    setup_.set_silence_ms(std::max<uint64_t>(setup_.silence_ms(), kMinSilenceMs));
    is_set_up_ = true;
    if (!message.fd.valid()) return absl::OkStatus();
    attach_ = std::move(message.fd);
    // From now on this process outlives its irisd (Confine).
    (void)prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
    return Watch(attach_.get(), EPOLLIN);
  }
  if (engine_ == nullptr) return Bad("a message before the setup was answered");
  const auto handle = [&](auto parsed, auto&& use) -> absl::Status {
    if (!parsed.ok()) return parsed.status();
    return use(*parsed);
  };
  switch (message.type()) {
    case LinkType::kPortMemory:
      return handle(Parse<Memory>(payload),
                    [&](const Memory& memory) { return OnMemory(memory, std::move(message.fd)); });
    case LinkType::kPortRank:
      return handle(Parse<RankRing>(payload),
                    [&](const RankRing& rank) { return OnRank(rank, std::move(message.fd)); });
    case LinkType::kPortLayout:
      return handle(Parse<Layout>(payload), [&](const Layout& layout) { return OnLayout(layout); });
    case LinkType::kPortToNode:
      return handle(Parse<NodeMessage>(payload), [&](const NodeMessage& to) {
        OnToNode(to);
        return absl::OkStatus();
      });
    case LinkType::kPortResume:
      return handle(Parse<Resume>(payload), [&](const Resume& resume) {
        OnResume(resume);
        return absl::OkStatus();
      });
    case LinkType::kPortTook:
      return handle(Parse<Took>(payload), [&](const Took& took) {
        Acknowledged(took.taken());
        return absl::OkStatus();
      });
    default:
      return Bad(absl::StrCat("type ", static_cast<int>(message.type())));
  }
}

absl::Status Port::OnMemory(const Memory& memory, wire::UniqueFd fd) {
  if (memory.forget()) {
    Forget(memory.segment_id());
    return absl::OkStatus();
  }
  if (segments_.contains(memory.segment_id())) return absl::OkStatus();  // from an irisd before
  if (memory.rank() - setup_.first_rank() >= setup_.n_local()) return Bad("memory of another node");
  const absl::Status status =
      memory_->Add(memory.segment_id(), memory.rank(), memory.offset_bytes(), memory.bytes(),
                   memory.device_uuid(), std::move(fd));
  if (!status.ok() && memory.registered()) {
    logger_->Warn("registered memory is not reached from other nodes",
                  {{"job", setup_.job()}, {"error", status.ToString()}});
    return absl::OkStatus();
  }
  if (!status.ok()) return status;
  segments_.insert(memory.segment_id());
  engine_->Offer(memory.rank(), memory.offset_bytes());
  return absl::OkStatus();
}

void Port::Forget(uint64_t segment_id) {
  engine_->Withdraw(segment_id);
  memory_->Forget(segment_id);
  segments_.erase(segment_id);
}

absl::Status Port::OnRank(const RankRing& rank, wire::UniqueFd fd) {
  if (rank.rank() - setup_.first_rank() >= setup_.n_local()) return Bad("a rank of another node");
  if (wakes_.count(rank.rank()) != 0) return Bad("a rank's ring for the second time");
  if (!rank.wake()) {
    absl::StatusOr<std::shared_ptr<PortMapping>> mapping =
        PortMapping::Map(std::move(fd), rank.rank());
    if (!mapping.ok()) return mapping.status();
    mappings_[rank.rank()] = *std::move(mapping);
    return absl::OkStatus();
  }
  const auto mapping = mappings_.find(rank.rank());
  if (mapping == mappings_.end()) return Bad("a rank's eventfd without its memory");
  const absl::Status status = Watch(fd.get(), EPOLLIN | EPOLLET);
  if (!status.ok()) return status;
  wakes_[rank.rank()] = std::move(fd);
  engine_->Attach(rank.rank(), std::move(mapping->second));
  mappings_.erase(mapping);
  return absl::OkStatus();
}

absl::Status Port::OnLayout(const Layout& layout) {
  if (epoch_ == layout.epoch()) return absl::OkStatus();  // from an irisd before
  epoch_ = layout.epoch();
  if (layout.epoch() == 0) {
    engine_->Stop(StatusCode::kAborted);
    return absl::OkStatus();
  }
  std::vector<NodeRange> ranges;
  for (const Layout::Node& node : layout.nodes()) {
    ranges.push_back({node.first_rank(), node.n_ranks()});
  }
  const absl::Status status = engine_->SetLayout(layout.epoch(), ranges);
  if (!status.ok()) return status;
  for (const NodeRange& range : ranges) {
    const auto node = nodes_.find(range.first_rank);
    if (node != nodes_.end() && node->second.connected && node->second.n_ranks != range.n_ranks) {
      return Bad("a layout that differs from what a node said");
    }
  }
  return absl::OkStatus();
}

void Port::OnToNode(const NodeMessage& message) {
  Acknowledged(message.taken());
  if (message.number() != 0 && message.number() <= taken_) return;  // from an irisd before
  taken_ = std::max(taken_, message.number());
  taken_bytes_ += message.payload().size();
  if (taken_ - taken_told_ >= kTellTakenAfter || taken_bytes_ >= kTellTakenAfterBytes) {
    Took took;
    took.set_taken(TellTaken());
    Tell(LinkType::kPortTook, took);
  }
  if (leads() && message.all()) {
    for (const auto& [id, node] : nodes_) SendTo(id, FrameType::kNodeMessage, message.payload());
  } else {
    SendTo(leads() ? message.node() : 0, FrameType::kNodeMessage, message.payload());
  }
}

template <typename Message>
void Port::Tell(LinkType type, const Message& message) {
  if (link_.valid()) writer_.Queue({.type = type}, {message.SerializeAsString(), nullptr});
}

template <typename Message>
void Port::TellKept(LinkType type, Message message) {
  message.set_number(++n_told_);
  std::string payload = message.SerializeAsString();
  if (attach_.valid()) {
    kept_bytes_ += payload.size();
    kept_.push_back({n_told_, type, payload});
  }
  if (link_.valid() && !awaits_resume_) {
    writer_.Queue({.type = type}, {std::move(payload), nullptr});
  }
}

void Port::TellReady() {
  Ready ready;
  ready.set_ucx_version(worker_->version());
  ready.set_transports(absl::StrCat(worker_->transports(), " on ", interface_.name));
  ready.set_address(self_.address());
  ready.set_taken(TellTaken());
  Tell(LinkType::kPortReady, ready);
}

uint64_t Port::TellTaken() {
  taken_bytes_ = 0;
  return taken_told_ = taken_;
}

void Port::Acknowledged(uint64_t number) {
  while (!kept_.empty() && kept_.front().number <= number) {
    kept_bytes_ -= kept_.front().payload.size();
    kept_.pop_front();
  }
}

void Port::LinkEnds() {
  link_.Reset();  // which ends the watch, too: no other process has it
  reader_ = server::LinkReader(server::LinkSender::kCore);
  (void)writer_.Clear();
  link_blocked_ = false;
  if (attach_.valid()) {
    attach_by_ = now_ + absl::Milliseconds(setup_.attach_ms());
  } else {
    over_ = true;
  }
}

void Port::OnAttach() {
  server::PortAttach attach = {.magic = 0};
  wire::Rights rights;
  const ssize_t n =
      wire::ReceiveRights(attach_.get(), &attach, sizeof(attach), MSG_DONTWAIT, &rights);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {  // irisd's manager has dropped it: there will be no other one
    attach_.Reset();
    if (!link_.valid()) over_ = true;
    return;
  }
  if (n != sizeof(attach) || attach.magic != server::PortAttach::kMagic || rights.fds.size() != 1 ||
      (rights.flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    logger_->Warn("a port was sent nonsense in place of a link", {{"job", setup_.job()}});
    return;
  }
  LinkEnds();
  attach_by_ = absl::InfiniteFuture();
  link_ = std::move(rights.fds.front());
  awaits_resume_ = true;
  if (attach.version != server::kPortLinkVersion || attach.node_version != kProtocolVersion) {
    failed_.Update(absl::FailedPreconditionError(absl::StrCat(
        "irisd was replaced by one whose messages to port processes and other nodes have versions ",
        attach.version, " and ", attach.node_version, ", and this process has ",
        server::kPortLinkVersion, " and ", kProtocolVersion,
        ": jobs of several nodes do not survive that")));
    return;
  }
  failed_.Update(Watch(link_.get(), EPOLLIN));
}

void Port::OnResume(const Resume& resume) {
  awaits_resume_ = false;
  Acknowledged(resume.taken());
  const std::set<uint64_t> wanted(resume.segment_ids().begin(), resume.segment_ids().end());
  for (const uint64_t id : std::set<uint64_t>(segments_)) {
    if (!wanted.contains(id)) Forget(id);
  }
  TellReady();
  for (const Kept& each : kept_) {
    writer_.Queue({.type = each.type}, {each.payload, nullptr});
  }
}

absl::Status Port::FlushLink() {
  if (writer_.queued_bytes() + kept_bytes_ > kMaxLinkBytes) {
    return absl::ResourceExhaustedError("irisd does not read what this port tells it");
  }
  if (writer_.empty() || link_blocked_) return absl::OkStatus();
  const absl::StatusOr<server::LinkWriter::Flushed> flushed = writer_.Flush(link_.get());
  if (absl::IsUnavailable(flushed.status())) {
    LinkEnds();
    return absl::OkStatus();
  }
  if (!flushed.ok()) return flushed.status();
  link_blocked_ = *flushed != server::LinkWriter::Flushed::kAll;
  return Watch(link_.get(), link_blocked_ ? EPOLLIN | EPOLLOUT : EPOLLIN, /*change=*/true);
}

// Lines to other ports.

void Port::Accept() {
  size_t most = kMaxStrangers + setup_.n_ranks() - setup_.n_local();
  for (const auto& [id, node] : nodes_) most -= node.connected ? node.n_ranks : 0;
  for (int i = 0; i < kEventsAtOnce; ++i) {
    wire::UniqueFd fd(base::Retry(
        [&] { return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
    if (!fd.valid()) return;
    TuneSocket(fd.get());
    size_t strangers = 0;
    int oldest = -1;
    for (const auto& [each, line] : lines_) {
      if (line.initiator || line.confirmed) continue;
      ++strangers;
      if (oldest < 0 || line.connection->opened() < lines_[oldest].connection->opened()) {
        oldest = each;
      }
    }
    if (strangers >= most) {
      EndLine(oldest, absl::ResourceExhaustedError("too many connections prove nothing"));
    }
    AddLine(std::move(fd), std::nullopt);
  }
}

void Port::AddLine(wire::UniqueFd fd, std::optional<uint32_t> node) {
  const int number = fd.get();
  const bool initiator = node.has_value();
  if (!Watch(number, initiator ? EPOLLIN | EPOLLOUT : EPOLLIN).ok()) return;
  lines_[number] = {.connection = std::make_unique<Connection>(std::move(fd), &self_,
                                                               &setup_.secret(), initiator, now_),
                    .node = node,
                    .initiator = initiator,
                    .watches_writes = initiator};
  if (initiator) nodes_[*node].fd = number;
}

void Port::OnLine(int fd, uint32_t events) {
  Line& line = lines_[fd];
  Connection& connection = *line.connection;
  absl::Status status;
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
    const bool was_ready = connection.ready();
    status = connection.Read(now_);
    // The other side's UCX may connect as soon as it has this side's last frame.
    if (status.ok() && !was_ready && connection.ready()) {
      status = AdmitHost(connection.other().data());
    }
    if (status.ok() && !was_ready && connection.ready()) {
      if (line.initiator && connection.other().first_rank() != *line.node) {
        status = absl::FailedPreconditionError(
            absl::StrCat("it is the port of the node at rank ", connection.other().first_rank(),
                         ", where the one at rank ", *line.node, " was expected"));
      } else {
        connection.SendBeat(server::SteadyNow());
        Confirm(fd);
      }
    }
    // Frames before an error count, such as a last message.
    for (;;) {
      const auto again = lines_.find(fd);
      if (again == lines_.end() || again->second.connection.get() != &connection) return;
      if (!again->second.confirmed) break;
      std::optional<Connection::Frame> frame = connection.Next();
      if (!frame.has_value()) break;
      OnFrame(fd, *frame);
    }
  }
  if (!status.ok()) {
    (void)connection.Flush();
    return EndLine(fd, status);
  }
  FlushLine(fd);
}

void Port::FlushLine(int fd) {
  Line& line = lines_[fd];
  const absl::Status status = line.connection->Flush();
  if (!status.ok()) return EndLine(fd, status);
  const bool writes = line.connection->wants_to_write();
  if (writes == line.watches_writes) return;
  line.watches_writes = writes;
  (void)Watch(fd, writes ? EPOLLIN | EPOLLOUT : EPOLLIN, /*change=*/true);
}

void Port::OnFrame(int fd, const Connection::Frame& frame) {
  Line& line = lines_[fd];
  const uint32_t from = *line.node;
  // Its first frame shows that the initiator has this side's keys, so data may be sent to it.
  if (!line.initiator) engine_->AllowSending(from);
  const std::string_view payload = frame.payload;
  const auto wrong = [&] {
    EndLine(fd, absl::InvalidArgumentError(absl::StrCat("it broke the protocol with frame ",
                                                        static_cast<int>(frame.type))));
  };
  switch (frame.type) {
    case FrameType::kBeat:
      return line.connection->TakeBeat(payload, server::SteadyNow()) ? void() : wrong();
    case FrameType::kAnswer:
      if (!line.connection->TakeAnswer(payload, server::SteadyNow())) return wrong();
      if (line.connection->n_clock_samples() < kBeatsAtOnce) {
        line.connection->SendBeat(server::SteadyNow());
      }
      return;
    case FrameType::kNodeMessage: {
      if (!leads() && from != 0) return wrong();
      NodeMessage message;
      message.set_node(from);
      message.set_payload(frame.payload);
      message.set_taken(TellTaken());
      return TellKept(LinkType::kPortFromNode, std::move(message));
    }
    case FrameType::kMeet: {
      port::Meet meet;
      if (!meet.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return wrong();
      if (!leads()) {
        if (from != 0 || meet.node() >= setup_.first_rank()) return wrong();
        Node& node = nodes_[meet.node()];
        if (node.connected || node.lost || node.fd >= 0 || node.target.has_value()) return;
        const absl::StatusOr<Address> target = Resolve(meet.address());
        if (!target.ok()) return LoseNode(meet.node(), std::string(target.status().message()));
        node.target = *target;
        node.connect_at = now_;
        node.connect_by = now_ + absl::Milliseconds(setup_.connect_ms());
        return StartLine(meet.node());
      }
      const auto asked = nodes_.find(meet.node());
      const auto asker = nodes_.find(from);
      if (asked == nodes_.end() || asked == asker || !asked->second.connected) {
        LostNode lost;
        lost.set_node(meet.node());
        lost.set_reason("node 0 is not connected to it");
        return SendTo(from, FrameType::kLostNode, lost.SerializeAsString());
      }
      const auto [called, caller] = std::minmax({asked->first, from});
      meet.set_node(called);
      meet.set_address(nodes_[called].address);
      return SendTo(caller, FrameType::kMeet, meet.SerializeAsString());
    }
    case FrameType::kLostNode: {
      LostNode lost;
      if (!lost.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return wrong();
      if (lost.node() == from) {
        return EndLine(fd, absl::FailedPreconditionError(
                               absl::StrCat("it refuses this node: ", lost.reason())));
      }
      if (!leads() && from != 0) return wrong();
      if (nodes_.count(lost.node()) == 0) return;
      return LoseNode(lost.node(), absl::StrCat("the node at rank ", from, " (", nodes_[from].name,
                                                ") lost it: ", lost.reason()));
    }
    default:
      return wrong();
  }
}

void Port::Confirm(int fd) {
  Line& line = lines_[fd];
  const Connection& connection = *line.connection;
  const Identity& other = connection.other();
  Node& node = nodes_[other.first_rank()];
  absl::Status status;
  if (node.connected || node.lost) {
    status = absl::AlreadyExistsError(
        absl::StrCat("the node at rank ", other.first_rank(),
                     node.lost ? " was lost"
                               : " is connected already: does another job of this "
                                 "name run?"));
  } else if (!line.initiator && !leads() && other.first_rank() < setup_.first_rank()) {
    status = absl::InvalidArgumentError("it calls a node that calls it");
  } else {
    for (const auto& [id, each] : nodes_) {
      if (id != other.first_rank() && each.connected && id < other.first_rank() + other.n_local() &&
          other.first_rank() < id + each.n_ranks) {
        status = absl::InvalidArgumentError(
            absl::StrCat("the nodes at ranks ", id, " and ", other.first_rank(), " overlap"));
      }
    }
  }
  if (status.ok()) {
    status = engine_->Connect(other.first_rank(), other.worker(),
                              {connection.keys().sent_tag, connection.keys().received_tag},
                              line.initiator ? Engine::Turn::kFirst : Engine::Turn::kSecond);
  }
  if (!status.ok()) {
    // For the other side, the handshake has succeeded.
    LostNode lost;
    lost.set_node(setup_.first_rank());
    lost.set_reason(std::string(status.message()));
    line.connection->Send(FrameType::kLostNode, lost.SerializeAsString());
    (void)line.connection->Flush();
    return EndLine(fd, status);
  }
  line.node = other.first_rank();
  line.confirmed = true;
  node.fd = fd;
  node.connected = true;
  node.n_ranks = other.n_local();
  node.name = other.name();
  node.address = other.address();
  node.connect_by = node.connect_at = absl::InfiniteFuture();
  next_report_ = std::min(next_report_, now_ + kReportNewsAfter);
  if (!leads() && *line.node != 0) return;
  if (!leads() && meeting_ != nullptr) meeting_->Stop();
  NodeState state;
  state.set_node(*line.node);
  state.set_name(node.name);
  TellKept(LinkType::kPortNode, state);
}

void Port::SendTo(uint32_t id, FrameType type, std::string_view payload) {
  const auto node = nodes_.find(id);
  if (node == nodes_.end() || !node->second.connected || node->second.lost) return;
  const int fd = node->second.fd;
  lines_[fd].connection->Send(type, payload);
  FlushLine(fd);
}

void Port::EndLine(int fd, const absl::Status& why) {
  const auto found = lines_.find(fd);
  if (found == lines_.end()) return;
  Line line = std::move(found->second);
  lines_.erase(found);
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (!line.node.has_value()) {
    return Refused(1, why.message());
  }
  Node& node = nodes_[*line.node];
  node.fd = -1;
  if (line.confirmed || node.lost) {
    return LoseNode(*line.node, std::string(why.message()));
  }
  node.last_error = why;
  const bool refused = !absl::IsUnavailable(why);
  node.connect_at = now_ + (refused ? kRetryRefusedAfter : kRetryAfter);
  node.refused_by =
      refused ? std::min(node.refused_by, now_ + kEarlierJobEndsWithin) : absl::InfiniteFuture();
}

void Port::Refused(uint64_t n, absl::string_view reason) {
  const uint64_t before = std::exchange(refused_, refused_ + n);
  if (before >= 10 && before / 1000 == refused_ / 1000) return;
  logger_->Warn("a port refused a connection",
                {{"job", setup_.job()}, {"reason", reason}, {"refused", refused_}});
}

void Port::StartLine(uint32_t id) {
  Node& node = nodes_[id];
  node.connect_at = absl::InfiniteFuture();
  absl::StatusOr<wire::UniqueFd> fd = StartToConnect(*node.target, interface_.address.host);
  if (fd.ok()) return AddLine(*std::move(fd), id);
  node.last_error = fd.status();
  node.connect_at = now_ + kRetryAfter;
}

void Port::OnMeeting() {
  const std::optional<Meeting::News> news = meeting_->Take();
  if (!news.has_value()) return;
  if (leads()) {
    const bool had_met = has_met_;
    has_met_ = has_met_ || news->status.ok();
    meeting_error_ = news->status;
    if (had_met && news->status.ok()) {
      logger_->Info("etcd has the job's address again", {{"job", setup_.job()}});
    } else if (had_met) {
      logger_->Warn("the job goes on, and no longer stands in etcd",
                    {{"job", setup_.job()}, {"error", news->status.message()}});
    } else if (!news->status.ok() && !absl::IsUnavailable(news->status)) {
      failed_.Update(news->status);
    }
    return;
  }
  Node& leader = nodes_[0];
  if (leader.connected || leader.lost) return;
  if (!news->leader.has_value()) {
    leader.last_error = news->status;
    if (!absl::IsUnavailable(news->status)) leader.refused_by = now_;
    return;
  }
  if (leader.fd >= 0) EndLine(leader.fd, absl::UnavailableError("the leader listens elsewhere"));
  leader.target = news->leader;
  leader.refused_by = absl::InfiniteFuture();
  StartLine(0);
}

void Port::LoseNode(uint32_t id, const std::string& reason) {
  Node& node = nodes_[id];
  if (std::exchange(node.lost, true)) return;
  node.connected = false;
  node.connect_at = node.connect_by = absl::InfiniteFuture();
  engine_->Lose(id);
  if (node.fd >= 0) {
    const int fd = std::exchange(node.fd, -1);
    lines_.erase(fd);
  }
  logger_->Warn("a port lost a node",
                {{"job", setup_.job()}, {"node", id}, {"name", node.name}, {"reason", reason}});
  if (leads() || id == 0) {
    NodeState state;
    state.set_node(id);
    state.set_lost(true);
    state.set_reason(reason);
    TellKept(LinkType::kPortNode, state);
    return;
  }
  LostNode lost;
  lost.set_node(id);
  lost.set_reason(reason.substr(0, 1000));
  SendTo(0, FrameType::kLostNode, lost.SerializeAsString());
}

void Port::Meet(uint32_t id) {
  Node& node = nodes_[id];
  if (node.connected || node.lost) return;
  node.connect_by = std::min(node.connect_by, now_ + absl::Milliseconds(setup_.connect_ms()));
  if (leads() || id == 0) return;  // the other side connects, or this one does already
  port::Meet meet;
  meet.set_node(id);
  SendTo(0, FrameType::kMeet, meet.SerializeAsString());
}

absl::Time Port::OnTimer(absl::Time now) {
  if (const RefusedStrangers strangers = TakeRefusedStrangers(); strangers.n > 0) {
    Refused(strangers.n, absl::StrCat("host ", strangers.last,
                                      ", which is no node of the job, connected to UCX's port"));
  }
  if (const absl::Status failure = memory_->TakeFailure(); !failure.ok()) {
    logger_->Warn("a port cannot use memory of a device, or not by atomics",
                  {{"job", setup_.job()}, {"error", failure.message()}});
  }
  if (const absl::Status failure = engine_->TakeFailure(); !failure.ok()) {
    logger_->Warn("data of this node goes by messages, although network.direct is on",
                  {{"job", setup_.job()}, {"error", failure.message()}});
  }
  const absl::Duration silence = absl::Milliseconds(setup_.silence_ms());
  std::vector<std::pair<int, absl::Status>> ended;
  for (auto& [fd, line] : lines_) {
    Connection& connection = *line.connection;
    if (!line.confirmed) {
      if (now - connection.opened() > kHandshakeWithin) {
        ended.emplace_back(fd, absl::UnavailableError(absl::StrCat(
                                   "no answer within ", absl::FormatDuration(kHandshakeWithin))));
      }
      continue;
    }
    if (now - connection.heard() > silence) {
      ended.emplace_back(fd, absl::UnavailableError(absl::StrCat("nothing was heard of it for ",
                                                                 absl::FormatDuration(silence))));
    } else if (now - connection.beaten() >
               (connection.n_clock_samples() < kClockSamples
                    ? std::min<absl::Duration>(kFirstBeatsEvery, silence / 3)
                    : silence / 3)) {
      connection.SendBeat(server::SteadyNow());
      const absl::Status status = connection.Flush();
      if (!status.ok()) ended.emplace_back(fd, status);
    }
  }
  for (const auto& [fd, status] : ended) EndLine(fd, status);
  std::vector<uint32_t> due, late;
  for (const auto& [id, node] : nodes_) {
    if (node.lost || node.connected) continue;
    if (now >= std::min(node.connect_by, node.refused_by)) {
      late.push_back(id);
    } else if (node.target.has_value() && node.fd < 0 && now >= node.connect_at) {
      due.push_back(id);
    }
  }
  for (const uint32_t id : due) StartLine(id);
  for (const uint32_t id : late) {
    const Node& node = nodes_[id];
    const std::string where =
        node.target.has_value() ? absl::StrCat(" at ", node.target->Text()) : "";
    const absl::Status& error = node.last_error;
    const bool tried = error.ok() || absl::IsUnavailable(error);
    const std::string reason =
        absl::StrCat("no connection to the node of rank ", id, where,
                     tried ? absl::StrCat(" within ", setup_.connect_ms(), " ms") : "",
                     error.ok() ? "" : absl::StrCat(": ", error.message()));
    if (id == 0) {
      failed_.Update(
          absl::Status(tried ? absl::StatusCode::kDeadlineExceeded : error.code(), reason));
    } else {
      LoseNode(id, reason);
    }
  }
  if (leads() && meeting_ != nullptr && !has_met_ && now >= meet_by_) {
    failed_.Update(absl::DeadlineExceededError(
        absl::StrCat("the job's address could not be put into etcd within ", setup_.connect_ms(),
                     " ms: ", meeting_error_.message())));
  }
  if (!link_.valid() && now >= attach_by_) {
    failed_.Update(absl::UnavailableError(
        absl::StrCat("irisd has ended, and no other one came within ", setup_.attach_ms(), " ms")));
  }
  if (now >= next_report_) {
    TellReport(now);
    next_report_ = now + std::min<absl::Duration>(kReportEvery, silence / 3);
  }
  return now + std::clamp(silence / 10, kMinTimer, kMaxTimer);
}

void Port::TellReport(absl::Time now) {
  Report report;
  report.set_refused_messages(engine_->refused());
  report.set_refused_connections(refused_);
  for (const auto& [id, node] : nodes_) {
    if (!node.connected && !node.lost) continue;
    Report::Peer& peer = *report.add_peers();
    const Engine::Traffic traffic = engine_->TrafficWith(id);
    peer.set_node(id);
    peer.set_connected(node.connected);
    peer.set_address(node.address);
    peer.set_transport(absl::StrCat(traffic.transport, traffic.direct ? ", direct" : ""));
    peer.set_sent_bytes(traffic.sent_bytes);
    peer.set_received_bytes(traffic.received_bytes);
    const auto line = lines_.find(node.fd);
    if (line == lines_.end()) continue;
    const Connection& connection = *line->second.connection;
    peer.set_heard_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(now - connection.heard())));
    if (connection.rtt().has_value()) {
      peer.set_rtt_us(static_cast<uint64_t>(absl::ToInt64Microseconds(*connection.rtt())));
    }
    if (const std::optional<ClockReading> clock = connection.clock(now); clock.has_value()) {
      peer.set_clock_ahead_ns(clock->ahead_ns);
      peer.set_clock_error_ns(clock->error_ns);
    }
  }
  report.set_taken(TellTaken());
  Tell(LinkType::kPortReport, report);
}

}  // namespace iris::port
