#include "server/rpc/admin_calls.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "device/base/descriptors.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"
#include "server/rpc/convert.h"
#include "server/rpc/heap_part.h"
#include "server/rpc/listing_page.h"
#include "server/rpc/listings.h"

namespace iris::server {

IRIS_FIELDS(DaemonFacts::Backend, v1::BackendStatus, backend, available, detail);
IRIS_FIELDS(DaemonFacts::Counts, v1::GetStatusReply, sessions_total,
            (sessions_refused, sessions_refused_total), descriptors_closing,
            (closing_troubles, closing_troubles_total),
            (log_lines_left_out, log_lines_left_out_total),
            (worker_troubles, worker_troubles_total), last_worker_trouble);
IRIS_FIELDS(DaemonFacts::Network, v1::NetworkSettings, interface, port_min, port_max, ucx,
            transports, devices, direct, (silence, silence_ms, ms), has_secret, etcd, etcd_tls,
            etcd_certificate, fabric, no_fabric);
IRIS_FIELDS(DaemonFacts, v1::GetStatusReply, runtime_dir, attestation,
            (started, start_time_unix_ms, ms), backends, network);
IRIS_FIELDS(Party, v1::Tenant, (Text(), name), uid, container);

namespace {

uint64_t RssBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (!(statm >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t FdLimit() {
  struct rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

class EventStream : public StreamWriter, public EventFollower {
 public:
  EventStream(EventLog* log, CallCounter* calls, const Party& party, std::shared_ptr<Replier> reply)
      : StreamWriter(calls, std::move(reply)), log_(log), party_(party) {}

  // Streams all events that the log still has, then, if `follow`, each new one.
  void Start(bool follow) {
    log_->Read(std::static_pointer_cast<EventStream>(shared_from_this()), follow);
    max_queued_.store(kEventsQueuedPerFollower, std::memory_order_relaxed);
    if (!follow) Finish(absl::OkStatus());
  }

  // The log calls Push for one event at a time.
  void Push(const EventRecord& event) override {
    if (!SeesAll(party_) && event.party != party_) return;
    v1::Event message;
    Write(event, &message);
    message.set_dropped(dropped_);
    if (!Queue(message, max_queued_.load(std::memory_order_relaxed))) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
    Flush();
  }

  void End() override { Finish(absl::UnavailableError("irisd is stopping")); }

 private:
  void OnReaderGone() override { log_->Unfollow(this); }

  EventLog* const log_;
  const Party party_;
  // At first all kept events come at once, so the queue has room for them.
  std::atomic<size_t> max_queued_{kEventsKept};
  uint64_t dropped_ = 0;  // since the last event that was queued; only Push uses it
};

}  // namespace

absl::Status GetStatus(const AdminSources& from, const CallerInfo& /*caller*/,
                       const v1::GetStatusRequest& /*request*/, v1::GetStatusReply* reply) {
  const Daemon& daemon = from.daemon;
  Write(from.facts, reply);
  Write(from.facts.counts(), reply);
  reply->set_version(wire::kIrisVersion);
  reply->set_pid(getpid());
  reply->set_n_devices(static_cast<uint32_t>(daemon.driver().devices().size()));
  daemon.Inspect([reply](const JobMachine& machine) {
    reply->set_n_jobs(static_cast<uint32_t>(machine.n_jobs()));
    reply->set_n_sessions(static_cast<uint32_t>(machine.n_sessions()));
    reply->set_heap_bytes(machine.ledger().used_bytes_total());
    reply->set_kept_bytes(machine.kept_bytes());
  });
  reply->set_rss_bytes(RssBytes());
  reply->set_open_fds(static_cast<uint32_t>(std::max(base::CountDescriptors(), 0)));
  reply->set_fd_limit(FdLimit());
  const std::optional<Daemon::KeptSnapshot> kept = daemon.Kept();
  if (kept.has_value()) Write(*kept, reply->mutable_kept_for_next());
  reply->set_stopping(daemon.stopping());
  return absl::OkStatus();
}

absl::Status Peek(const Daemon& daemon, const CallerInfo& caller, const v1::PeekRequest& request,
                  v1::PeekReply* reply) {
  if (request.bytes() == 0 || request.bytes() > wire::kMaxPeekBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("peek: ", base::SizeText(request.bytes()), " asked for; 1 byte to ",
                     base::SizeText(wire::kMaxPeekBytes), " can be read in a call"));
  }
  const absl::StatusOr<HeapPart> part = FindHeapPart(
      daemon, caller,
      {"peek", request.job(), request.rank(), request.offset_bytes(), request.bytes()});
  if (!part.ok()) return part.status();
  std::string data(request.bytes(), '\0');
  uint64_t done = 0;
  for (const SegmentInfo& segment : part->segments) {
    const uint64_t inside = request.offset_bytes() + done - segment.offset_bytes;
    const uint64_t n = std::min<uint64_t>(data.size() - done, segment.bytes - inside);
    const absl::Status status = daemon.segments().Read(
        segment.id, inside,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(data.data()) + done, static_cast<size_t>(n)));
    if (!status.ok()) return status;
    done += n;
  }
  reply->set_data(std::move(data));
  return absl::OkStatus();
}

absl::Status ListTenants(const AdminSources& from, const CallerInfo& caller,
                         const v1::ListTenantsRequest& request, v1::ListTenantsReply* reply) {
  const Daemon& daemon = from.daemon;
  const Accounts& accounts = daemon.accounts();
  const auto fill = [&](ListPosition after, auto* page) {
    for (const std::shared_ptr<const Account>& account : accounts.List()) {
      if (account->number <= after.id) continue;
      const Party& tenant = account->tenant;
      if (!SeesAll(caller.party) && tenant != caller.party.Account()) continue;
      const bool taken = page->Add({.id = account->number}, [&](v1::Tenant* to) {
        Write(tenant, to);
        Write(from.facts.door_use(*account), to);
        Write(daemon.Inspect(
                  [&tenant](const JobMachine& machine) { return machine.AccountOf(tenant); }),
              to);
        to->set_core_bytes(account->core_bytes());
        to->set_core_us(static_cast<uint64_t>(absl::ToInt64Microseconds(account->core_time())));
      });
      if (!taken) break;
    }
    return absl::OkStatus();
  };
  const absl::Status filled =
      FillPage("tenants", "", request, reply, reply->mutable_tenants(), fill);
  if (!filled.ok()) return filled;
  v1::Tenant* const one = reply->mutable_limits();
  v1::Tenant* const all = reply->mutable_limits_of_all();
  Write(from.facts.door_limits_of_one(), one);
  Write(from.facts.door_limits_of_all(), all);
  const JobLimits limits =
      daemon.Inspect([](const JobMachine& machine) { return machine.limits(); });
  one->set_jobs(limits.max_jobs_per_uid);
  one->set_heap_bytes(limits.max_heap_bytes_per_uid);
  all->set_jobs(limits.max_jobs);
  all->set_descriptors(limits.max_descriptors);
  all->set_core_bytes(accounts.limit_bytes());
  reply->set_core_bytes(CoreMemory::Total());
  return absl::OkStatus();
}

std::shared_ptr<ActiveCall> Events(EventLog* log, CallCounter* counter, const IncomingCall& call,
                                   const v1::EventsRequest& request) {
  auto stream = std::make_shared<EventStream>(log, counter, call.caller.party, call.reply);
  stream->Start(request.follow());
  return stream;
}

}  // namespace iris::server
