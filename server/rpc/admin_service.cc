#include "server/rpc/admin_service.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "server/rpc/convert.h"

namespace iris::server {
namespace {

bool SeesAll(uint32_t uid) { return uid == 0 || uid == geteuid(); }

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

uint32_t OpenFds() {
  DIR* const dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  uint32_t n = 0;
  while (const struct dirent* entry = readdir(dir)) n += entry->d_name[0] != '.';
  closedir(dir);
  return n - 1;  // the directory's own
}

uint64_t FdLimit() {
  struct rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

// The command line of a process, printable; empty if it is gone.
std::string CommandOf(int64_t pid) {
  std::string command = ReadSmallFile(absl::StrCat("/proc/", pid, "/cmdline"));
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  return EscapeForLog(command, 256);
}

// Finishes a unary call at once.
grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context,
                                   const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// A reader of events. Owns itself; leaves the log before it dies.
class EventStream : public grpc::ServerWriteReactor<v1::Event>, public EventFollower {
 public:
  EventStream(EventLog* log, CallCounter* calls, uint32_t uid)
      : hold_(calls), log_(log), uid_(uid) {}

  // Reads the log: all that is kept, then, if `follow`, what comes.
  void Start(bool follow) ABSL_LOCKS_EXCLUDED(mu_) {
    log_->Read(this, follow);
    absl::MutexLock lock(&mu_);
    started_ = true;
    if (!follow) closing_ = true;
    Advance();
  }

  // Before Start has returned, all that is kept may come: the queue takes it.
  void Push(const EventRecord& event) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (!SeesAll(uid_) && event.uid != uid_) return;
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    if (queue_.size() >= (started_ ? kEventsQueuedPerFollower : kEventsKept)) {
      ++dropped_;
      return;
    }
    queue_.emplace_back();
    ToProto(event, &queue_.back());
    queue_.back().set_dropped(std::exchange(dropped_, 0));
    if (started_) Advance();
  }

  void End() override { Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "irisd is stopping")); }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) {
      queue_.clear();
      closing_ = true;
    } else if (!queue_.empty()) {
      queue_.pop_front();
    }
    Advance();
  }

  void OnCancel() override { Close(grpc::Status(grpc::StatusCode::CANCELLED, "reader gone")); }

  void Close(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = true;
    status_ = status;
    Advance();
  }

  void OnDone() override {
    log_->Unfollow(this);
    delete this;
  }

 private:
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
      return;
    }
    if (closing_) {
      finished_ = true;
      Finish(status_);
    }
  }

  const CallCounter::Hold hold_;
  EventLog* const log_;
  const uint32_t uid_;
  absl::Mutex mu_;
  std::deque<v1::Event> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

AdminService::AdminService(Daemon* daemon, const Connections* connections, CallCounter* calls,
                           DaemonFacts facts)
    : daemon_(daemon), connections_(connections), calls_(calls), facts_(std::move(facts)) {}

absl::StatusOr<CallerInfo> AdminService::Caller(const grpc::CallbackServerContext& context) const {
  const std::optional<Connection> connection = connections_->Find(context.peer());
  if (!connection.has_value()) return absl::PermissionDeniedError("the connection has ended");
  return connection->caller;
}

absl::StatusOr<std::vector<JobSnapshot>> AdminService::VisibleJobs(
    const grpc::CallbackServerContext& context, const std::string& name, bool allocations) const {
  absl::StatusOr<CallerInfo> caller = Caller(context);
  if (!caller.ok()) return caller.status();
  JobQuery query{.name = name, .allocations = allocations};
  if (!SeesAll(caller->uid)) query.uid = caller->uid;
  std::vector<JobSnapshot> jobs =
      daemon_->Inspect([&query](const JobMachine& machine) { return machine.Jobs(query); });
  if (jobs.empty() && !name.empty()) {
    return absl::NotFoundError(absl::StrCat("no job \"", EscapeForLog(name, wire::kMaxJobNameBytes),
                                            "\" that uid ", caller->uid, " may see"));
  }
  return jobs;
}

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest* /*request*/,
                                                  v1::GetStatusReply* reply) {
  const absl::StatusOr<CallerInfo> caller = Caller(*context);
  if (!caller.ok()) return Finished(context, caller.status());
  reply->set_version(wire::kIrisVersion);
  reply->set_pid(getpid());
  reply->set_start_time_unix_ms(absl::ToUnixMillis(facts_.started));
  reply->set_runtime_dir(facts_.runtime_dir);
  reply->set_n_devices(static_cast<uint32_t>(daemon_->driver().devices().size()));
  daemon_->Inspect([reply](const JobMachine& machine) {
    reply->set_n_jobs(static_cast<uint32_t>(machine.n_jobs()));
    reply->set_n_sessions(static_cast<uint32_t>(machine.n_sessions()));
    reply->set_heap_bytes(machine.ledger().used_bytes_total());
  });
  reply->set_rss_bytes(RssBytes());
  reply->set_open_fds(OpenFds());
  reply->set_fd_limit(FdLimit());
  reply->set_sessions_total(facts_.sessions_total());
  reply->set_sessions_refused_total(facts_.sessions_refused());
  reply->set_attestation(facts_.attestation);
  reply->set_stopping(daemon_->stopping());
  for (const DaemonFacts::Backend& backend : facts_.backends) {
    v1::BackendStatus* const status = reply->add_backends();
    status->set_backend(backend.name);
    status->set_available(backend.available);
    status->set_detail(backend.detail);
  }
  return Finished(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListDevices(grpc::CallbackServerContext* context,
                                                    const v1::ListDevicesRequest* /*request*/,
                                                    v1::ListDevicesReply* reply) {
  const absl::StatusOr<CallerInfo> caller = Caller(*context);
  if (!caller.ok()) return Finished(context, caller.status());
  const std::vector<Ledger::DeviceAccount> accounts =
      daemon_->Inspect([](const JobMachine& machine) { return machine.ledger().devices(); });
  for (const driver::DeviceInfo& device : daemon_->driver().devices()) {
    const uint64_t used = device.index < accounts.size() ? accounts[device.index].used_bytes : 0;
    ToProto(device, used, reply->add_devices());
  }
  return Finished(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListJobs(grpc::CallbackServerContext* context,
                                                 const v1::ListJobsRequest* request,
                                                 v1::ListJobsReply* reply) {
  const absl::StatusOr<std::vector<JobSnapshot>> jobs = VisibleJobs(*context, request->job());
  if (!jobs.ok()) return Finished(context, jobs.status());
  for (const JobSnapshot& job : *jobs) ToProto(job, daemon_->driver().devices(), reply->add_jobs());
  return Finished(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListHeaps(grpc::CallbackServerContext* context,
                                                  const v1::ListHeapsRequest* request,
                                                  v1::ListHeapsReply* reply) {
  const absl::StatusOr<std::vector<JobSnapshot>> jobs = VisibleJobs(*context, request->job());
  if (!jobs.ok()) return Finished(context, jobs.status());
  for (const JobSnapshot& job : *jobs) {
    for (const RankSnapshot& rank : job.ranks) {
      if (rank.segments.empty()) continue;
      v1::Heap* const heap = reply->add_heaps();
      heap->set_job_id(job.id.value);
      heap->set_job(job.name);
      heap->set_uid(job.uid);
      heap->set_rank(rank.rank);
      heap->set_pid(rank.pid);
      heap->set_state(static_cast<v1::RankState>(rank.state));
      if (rank.device_index < daemon_->driver().devices().size()) {
        heap->set_device_uuid(daemon_->driver().devices()[rank.device_index].uuid);
      }
      uint64_t bytes = 0;
      for (const SegmentInfo& segment : rank.segments) bytes += segment.bytes;
      heap->set_heap_bytes(bytes);
      heap->set_max_heap_bytes(job.stride_bytes);
      heap->set_allocated_bytes(job.allocated_bytes);
      heap->set_largest_free_bytes(job.largest_free_bytes);
      heap->set_n_segments(static_cast<uint32_t>(rank.segments.size()));
    }
  }
  return Finished(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListAllocations(grpc::CallbackServerContext* context,
                                                        const v1::ListAllocationsRequest* request,
                                                        v1::ListAllocationsReply* reply) {
  const absl::StatusOr<std::vector<JobSnapshot>> jobs = VisibleJobs(*context, request->job(), true);
  if (!jobs.ok()) return Finished(context, jobs.status());
  for (const JobSnapshot& job : *jobs) {
    for (const AllocationSnapshot& allocation : job.allocations) {
      ToProto(allocation, job, reply->add_allocations());
    }
  }
  return Finished(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ListSessions(grpc::CallbackServerContext* context,
                                                     const v1::ListSessionsRequest* /*request*/,
                                                     v1::ListSessionsReply* reply) {
  const absl::StatusOr<CallerInfo> caller = Caller(*context);
  if (!caller.ok()) return Finished(context, caller.status());
  const std::vector<SessionSnapshot> sessions =
      daemon_->Inspect([](const JobMachine& machine) { return machine.Sessions(); });
  for (const SessionSnapshot& from : sessions) {
    if (!SeesAll(caller->uid) && from.caller.uid != caller->uid) continue;
    v1::Session* const session = reply->add_sessions();
    session->set_session_id(from.id.value);
    session->set_pid(from.caller.pid);
    session->set_uid(from.caller.uid);
    session->set_gid(from.caller.gid);
    session->set_command(CommandOf(from.caller.pid));
    session->set_state(from.ending ? "ending" : "open");
    session->set_job(from.job);
    session->set_rank(from.rank);
    session->set_created_unix_ms(absl::ToUnixMillis(from.created));
  }
  return Finished(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::Event>* AdminService::Events(grpc::CallbackServerContext* context,
                                                          const v1::EventsRequest* request) {
  const absl::StatusOr<CallerInfo> caller = Caller(*context);
  auto* const stream = new EventStream(&daemon_->events(), calls_, caller.ok() ? caller->uid : ~0u);
  if (!caller.ok()) {
    stream->Close(ToGrpc(caller.status()));
  } else {
    stream->Start(request->follow());
  }
  return stream;
}

absl::Status AdminService::DoPeek(const grpc::CallbackServerContext& context,
                                  const v1::PeekRequest& request, v1::PeekReply* reply) const {
  if (request.job().empty()) return absl::InvalidArgumentError("peek: name a job");
  if (request.bytes() == 0 || request.bytes() > wire::kMaxPeekBytes) {
    return absl::InvalidArgumentError(absl::StrCat("peek: ", request.bytes(),
                                                   " bytes asked for; 1 to ", wire::kMaxPeekBytes,
                                                   " can be read in a call"));
  }
  const absl::StatusOr<std::vector<JobSnapshot>> jobs = VisibleJobs(context, request.job());
  if (!jobs.ok()) return jobs.status();
  if (jobs->size() > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "peek: ", jobs->size(), " users have a job of that name; ask as the user who owns it"));
  }
  const JobSnapshot& job = jobs->front();
  const auto rank = std::find_if(job.ranks.begin(), job.ranks.end(),
                                 [&](const RankSnapshot& r) { return r.rank == request.rank(); });
  if (rank == job.ranks.end() || rank->segments.empty()) {
    return absl::NotFoundError(absl::StrCat("peek: job \"", EscapeForLog(job.name),
                                            "\" has no rank ", request.rank(), " with memory"));
  }
  uint64_t heap_bytes = 0;
  for (const SegmentInfo& segment : rank->segments) {
    heap_bytes = std::max(heap_bytes, segment.offset_bytes + segment.bytes);
  }
  if (request.offset_bytes() > heap_bytes ||
      request.bytes() > heap_bytes - request.offset_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("peek: ", request.bytes(), " bytes at offset ",
                                                   request.offset_bytes(), " leave the heap of ",
                                                   heap_bytes, " bytes"));
  }
  std::string data(request.bytes(), '\0');
  uint64_t done = 0;
  while (done < data.size()) {
    const uint64_t at = request.offset_bytes() + done;
    const auto segment =
        std::find_if(rank->segments.begin(), rank->segments.end(), [at](const SegmentInfo& s) {
          return at >= s.offset_bytes && at - s.offset_bytes < s.bytes;
        });
    if (segment == rank->segments.end()) {
      return absl::NotFoundError("peek: the heap has no memory there now");
    }
    const uint64_t inside = at - segment->offset_bytes;
    const uint64_t n = std::min<uint64_t>(data.size() - done, segment->bytes - inside);
    const absl::Status status = daemon_->segments().Read(
        segment->id, inside,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(data.data()) + done, static_cast<size_t>(n)));
    if (!status.ok()) return status;
    done += n;
  }
  reply->set_data(std::move(data));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AdminService::Peek(grpc::CallbackServerContext* context,
                                             const v1::PeekRequest* request, v1::PeekReply* reply) {
  return Finished(context, DoPeek(*context, *request, reply));
}

}  // namespace iris::server
