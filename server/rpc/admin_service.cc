#include "server/rpc/admin_service.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "device/base/descriptors.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "server/rpc/convert.h"
#include "server/rpc/heap_part.h"
#include "server/rpc/listing_page.h"
#include "server/rpc/listings.h"
#include "server/rpc/message.h"
#include "server/rpc/page_token.h"
#include "server/rpc/stream_writer.h"

namespace iris::server {
namespace {

std::string ReadSmallFile(const std::string& path) {
  const wire::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  char text[512];
  const ssize_t n = read(fd.get(), text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

uint64_t RssBytes() {
  unsigned long long size = 0, resident = 0;
  if (sscanf(ReadSmallFile("/proc/self/statm").c_str(), "%llu %llu", &size, &resident) != 2) {
    return 0;
  }
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t FdLimit() {
  struct rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

// A reader of events.
class EventStream : public StreamWriter, public EventFollower {
 public:
  EventStream(EventLog* log, CallCounter* calls, const Party& party, std::shared_ptr<Replier> reply)
      : StreamWriter(calls, std::move(reply)), log_(log), party_(party) {}

  // Reads the log: all that is kept, then, if `follow`, what comes.
  void Start(bool follow) {
    log_->Read(std::static_pointer_cast<EventStream>(shared_from_this()), follow);
    max_queued_.store(kEventsQueuedPerFollower, std::memory_order_relaxed);
    if (!follow) Finish(absl::OkStatus());
  }

  // The log calls it for one event at a time.
  void Push(const EventRecord& event) override {
    if (!SeesAll(party_) && event.party != party_) return;
    v1::Event message;
    ToProto(event, &message);
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
  // All that is kept comes at once at first: the queue takes it.
  std::atomic<size_t> max_queued_{kEventsKept};
  uint64_t dropped_ = 0;  // since the last event that was queued; Push's alone
};

}  // namespace

AdminService::AdminService(Daemon* daemon, Calls* calls, DaemonFacts facts)
    : daemon_(daemon), calls_(calls), facts_(std::move(facts)) {}

void AdminService::FillStatus(v1::GetStatusReply* reply) const {
  reply->set_version(wire::kIrisVersion);
  reply->set_pid(getpid());
  reply->set_start_time_unix_ms(absl::ToUnixMillis(facts_.started));
  reply->set_runtime_dir(facts_.runtime_dir);
  reply->set_n_devices(static_cast<uint32_t>(daemon_->driver().devices().size()));
  daemon_->Inspect([reply](const JobMachine& machine) {
    reply->set_n_jobs(static_cast<uint32_t>(machine.n_jobs()));
    reply->set_n_sessions(static_cast<uint32_t>(machine.n_sessions()));
    reply->set_heap_bytes(machine.ledger().used_bytes_total());
    reply->set_kept_bytes(machine.kept_bytes());
  });
  reply->set_rss_bytes(RssBytes());
  reply->set_open_fds(static_cast<uint32_t>(std::max(base::CountDescriptors(), 0)));
  reply->set_fd_limit(FdLimit());
  reply->set_sessions_total(facts_.sessions_total());
  reply->set_sessions_refused_total(facts_.sessions_refused());
  if (facts_.descriptors_closing != nullptr) {
    reply->set_descriptors_closing(facts_.descriptors_closing());
  }
  if (facts_.closing_troubles != nullptr) {
    reply->set_closing_troubles_total(facts_.closing_troubles());
  }
  if (facts_.worker_troubles != nullptr) {
    const DaemonFacts::Troubles troubles = facts_.worker_troubles();
    reply->set_worker_troubles_total(troubles.n);
    reply->set_last_worker_trouble(troubles.last);
  }
  if (facts_.log_lines_left_out != nullptr) {
    reply->set_log_lines_left_out_total(facts_.log_lines_left_out());
  }
  if (const std::optional<Daemon::KeptSnapshot> kept = daemon_->Kept(); kept.has_value()) {
    v1::KeptForNext* const out = reply->mutable_kept_for_next();
    out->set_generation(kept->generation);
    out->set_descriptors(kept->descriptors);
    out->set_max_descriptors(kept->max_descriptors);
    out->set_state_bytes(kept->state_bytes);
    out->set_lost_because(std::string(kept->status.message()));
  }
  reply->set_attestation(facts_.attestation);
  reply->set_stopping(daemon_->stopping());
  for (const DaemonFacts::Backend& backend : facts_.backends) {
    v1::BackendStatus* const status = reply->add_backends();
    status->set_backend(backend.name);
    status->set_available(backend.available);
    status->set_detail(backend.detail);
  }
}

absl::Status AdminService::ReadHeap(const CallerInfo& caller, const v1::PeekRequest& request,
                                    v1::PeekReply* reply) const {
  if (request.bytes() == 0 || request.bytes() > wire::kMaxPeekBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("peek: ", base::SizeText(request.bytes()), " asked for; 1 byte to ",
                     base::SizeText(wire::kMaxPeekBytes), " can be read in a call"));
  }
  const absl::StatusOr<HeapPart> part = FindHeapPart(
      *daemon_, caller,
      {"peek", request.job(), request.rank(), request.offset_bytes(), request.bytes()});
  if (!part.ok()) return part.status();
  std::string data(request.bytes(), '\0');
  uint64_t done = 0;
  for (const SegmentInfo& segment : part->segments) {
    const uint64_t inside = request.offset_bytes() + done - segment.offset_bytes;
    const uint64_t n = std::min<uint64_t>(data.size() - done, segment.bytes - inside);
    const absl::Status status = daemon_->segments().Read(
        segment.id, inside,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(data.data()) + done, static_cast<size_t>(n)));
    if (!status.ok()) return status;
    done += n;
  }
  reply->set_data(std::move(data));
  return absl::OkStatus();
}

namespace {

void ToProto(const DoorUse& from, v1::Tenant* to) {
  to->set_sessions(from.sessions);
  to->set_admin_connections(from.admin_connections);
  to->set_calls(from.calls);
  to->set_unread_bytes(from.unread_bytes);
  to->set_descriptors_in_flight(from.descriptors_in_flight);
}

void ToProto(const AccountSnapshot& from, v1::Tenant* to) {
  to->set_jobs(from.jobs);
  to->set_teams(from.teams);
  to->set_allocations(from.allocations);
  to->set_registered_pieces(from.registered_pieces);
  to->set_value_bytes(from.value_bytes);
  to->set_descriptors(from.descriptors);
  to->set_heap_bytes(from.heap_bytes);
}

}  // namespace

absl::Status AdminService::TenantsPage(const CallerInfo& caller,
                                       const v1::ListTenantsRequest& request,
                                       v1::ListTenantsReply* reply) const {
  const auto after = ReadPageToken("tenants", "", request.page_token());
  if (!after.ok()) return after.status();
  const Accounts& accounts = daemon_->accounts();
  Page page(request.page_size(), reply->mutable_tenants());
  for (const std::shared_ptr<const Account>& account : accounts.List()) {
    if (account->number <= after->id) continue;
    const Party& tenant = account->tenant;
    if (!SeesAll(caller.party) && tenant != caller.party.Account()) continue;
    const bool taken = page.Add({.id = account->number}, [&](v1::Tenant* to) {
      to->set_name(tenant.Text());
      to->set_uid(tenant.uid);
      to->set_container(tenant.container);
      if (facts_.door_use != nullptr) ToProto(facts_.door_use(*account), to);
      ToProto(daemon_->Inspect(
                  [&tenant](const JobMachine& machine) { return machine.AccountOf(tenant); }),
              to);
      to->set_core_bytes(account->core_bytes());
      to->set_core_us(static_cast<uint64_t>(absl::ToInt64Microseconds(account->core_time())));
    });
    if (!taken) break;
  }
  reply->set_next_page_token(page.NextToken("tenants", ""));
  v1::Tenant* const one = reply->mutable_limits();
  v1::Tenant* const all = reply->mutable_limits_of_all();
  if (facts_.door_limits_of_one != nullptr) ToProto(facts_.door_limits_of_one(), one);
  if (facts_.door_limits_of_all != nullptr) ToProto(facts_.door_limits_of_all(), all);
  const JobLimits limits =
      daemon_->Inspect([](const JobMachine& machine) { return machine.limits(); });
  one->set_jobs(limits.max_jobs_per_uid);
  one->set_heap_bytes(limits.max_heap_bytes_per_uid);
  all->set_jobs(limits.max_jobs);
  all->set_descriptors(limits.max_descriptors);
  all->set_core_bytes(accounts.limit_bytes());
  reply->set_core_bytes(CoreMemory::Total());
  return absl::OkStatus();
}

// The table.

std::shared_ptr<ActiveCall> AdminService::GetStatus(const IncomingCall& call) {
  return calls_->Answer<v1::GetStatusRequest, v1::GetStatusReply>(
      call, [this](const CallerInfo& /*caller*/, const v1::GetStatusRequest& /*message*/,
                   v1::GetStatusReply* out) {
        FillStatus(out);
        return absl::OkStatus();
      });
}

std::shared_ptr<ActiveCall> AdminService::ListDevices(const IncomingCall& call) {
  return calls_->Answer<v1::ListDevicesRequest, v1::ListDevicesReply>(
      call,
      [this](const CallerInfo& /*caller*/, const v1::ListDevicesRequest& message,
             v1::ListDevicesReply* out) { return server::ListDevices(*daemon_, message, out); });
}

std::shared_ptr<ActiveCall> AdminService::ListJobs(const IncomingCall& call) {
  return calls_->Answer<v1::ListJobsRequest, v1::ListJobsReply>(
      call,
      [this](const CallerInfo& caller, const v1::ListJobsRequest& message, v1::ListJobsReply* out) {
        return server::ListJobs(*daemon_, caller, message, out);
      });
}

std::shared_ptr<ActiveCall> AdminService::ListHeaps(const IncomingCall& call) {
  return calls_->Answer<v1::ListHeapsRequest, v1::ListHeapsReply>(
      call, [this](const CallerInfo& caller, const v1::ListHeapsRequest& message,
                   v1::ListHeapsReply* out) {
        return server::ListHeaps(*daemon_, caller, message, out);
      });
}

std::shared_ptr<ActiveCall> AdminService::ListAllocations(const IncomingCall& call) {
  return calls_->Answer<v1::ListAllocationsRequest, v1::ListAllocationsReply>(
      call, [this](const CallerInfo& caller, const v1::ListAllocationsRequest& message,
                   v1::ListAllocationsReply* out) {
        return server::ListAllocations(*daemon_, caller, message, out);
      });
}

std::shared_ptr<ActiveCall> AdminService::ListSessions(const IncomingCall& call) {
  return calls_->Answer<v1::ListSessionsRequest, v1::ListSessionsReply>(
      call, [this](const CallerInfo& caller, const v1::ListSessionsRequest& message,
                   v1::ListSessionsReply* out) {
        return server::ListSessions(*daemon_, caller, message, out);
      });
}

std::shared_ptr<ActiveCall> AdminService::ListTenants(const IncomingCall& call) {
  return calls_->Answer<v1::ListTenantsRequest, v1::ListTenantsReply>(
      call, [this](const CallerInfo& caller, const v1::ListTenantsRequest& message,
                   v1::ListTenantsReply* out) { return TenantsPage(caller, message, out); });
}

std::shared_ptr<ActiveCall> AdminService::ListWaits(const IncomingCall& call) {
  return calls_->Answer<v1::ListWaitsRequest, v1::ListWaitsReply>(
      call, [this](const CallerInfo& caller, const v1::ListWaitsRequest& message,
                   v1::ListWaitsReply* out) {
        return server::ListWaits(*daemon_, caller, message, out);
      });
}

std::shared_ptr<ActiveCall> AdminService::DescribeJobs(const IncomingCall& call) {
  return calls_->Answer<v1::DescribeJobsRequest, v1::DescribeJobsReply>(
      call, [this](const CallerInfo& caller, const v1::DescribeJobsRequest& message,
                   v1::DescribeJobsReply* out) {
        return server::DescribeJobs(*daemon_, caller, message, out);
      });
}

std::shared_ptr<ActiveCall> AdminService::Events(const IncomingCall& call) {
  v1::EventsRequest message;
  const absl::Status parsed = ParseMessage(call.request, &message);
  if (!parsed.ok()) {
    call.reply->Finish(parsed);
    return nullptr;
  }
  auto stream = std::make_shared<EventStream>(&daemon_->events(), calls_->counter(),
                                              call.caller.party, call.reply);
  stream->Start(message.follow());
  return stream;
}

std::shared_ptr<ActiveCall> AdminService::Peek(const IncomingCall& call) {
  return calls_->Answer<v1::PeekRequest, v1::PeekReply>(
      call, [this](const CallerInfo& caller, const v1::PeekRequest& message, v1::PeekReply* out) {
        return ReadHeap(caller, message, out);
      });
}

}  // namespace iris::server
