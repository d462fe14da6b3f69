#include "server/rpc/listings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "server/log.h"
#include "server/rpc/convert.h"
#include "server/rpc/listing_page.h"
#include "server/rpc/page_token.h"

namespace iris::server {
namespace {

// The kernel's name of a process, printable; empty if it is gone. Not its command line: that lies
// in the process's own memory, which can be made such that whoever reads it waits.
std::string CommandOf(int64_t pid) {
  const wire::UniqueFd fd(open(absl::StrCat("/proc/", pid, "/comm").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  char text[64];
  const ssize_t n = read(fd.get(), text, sizeof(text));
  std::string command(text, n > 0 ? static_cast<size_t>(n) : 0);
  if (!command.empty() && command.back() == '\n') command.pop_back();
  return EscapeForLog(command, sizeof(text) * 4);
}

void ToProto(const RankSnapshot& rank, const JobSnapshot& job,
             absl::Span<const driver::DeviceInfo> devices, v1::Heap* heap) {
  heap->set_job_id(job.id.value);
  heap->set_job(job.name);
  heap->set_uid(job.party.uid);
  heap->set_rank(rank.rank);
  heap->set_pid(rank.pid);
  heap->set_state(ToProto(rank.state));
  if (rank.device_index < devices.size()) heap->set_device_uuid(devices[rank.device_index].uuid);
  uint64_t bytes = 0;
  for (const SegmentInfo& segment : rank.segments) bytes += segment.bytes;
  heap->set_heap_bytes(bytes);
  heap->set_max_heap_bytes(job.stride_bytes);
  heap->set_allocated_bytes(job.allocated_bytes);
  heap->set_largest_free_bytes(job.largest_free_bytes);
  heap->set_n_segments(static_cast<uint32_t>(rank.segments.size()));
}

// Where the communicators of a job have their workspaces, as its ranks write in their pages.
std::set<uint64_t> WorkspacesOf(const Daemon& daemon, JobId job) {
  std::set<uint64_t> offsets;
  const auto page = std::make_unique<wire::ControlPage>();
  for (const std::shared_ptr<const PageFile>& file : daemon.ControlPages(job)) {
    if (!file->Copy(page.get()).ok()) continue;
    for (const wire::CollectiveRecord& record : page->collectives) {
      if (record.n_members > 0) offsets.insert(record.workspace_offset_bytes);
    }
  }
  return offsets;
}

// Names the allocations of communicators, which have no name of their own. It reads the ranks'
// pages, so it is not called while the machine is locked.
void NameWorkspaces(const Daemon& daemon,
                    google::protobuf::RepeatedPtrField<v1::Allocation>* allocations) {
  std::map<uint64_t, std::set<uint64_t>> workspaces;  // by job
  for (v1::Allocation& allocation : *allocations) {
    if (!allocation.name().empty()) continue;
    const auto [known, is_new] = workspaces.try_emplace(allocation.job_id());
    if (is_new) known->second = WorkspacesOf(daemon, JobId{allocation.job_id()});
    if (known->second.contains(allocation.offset_bytes())) {
      allocation.set_name("(workspace of a communicator)");
    }
  }
}

void ToProto(const SessionSnapshot& from, v1::Session* to) {
  to->set_session_id(from.id.value);
  to->set_pid(from.caller.pid);
  to->set_uid(from.caller.party.uid);
  to->set_gid(from.caller.gid);
  to->set_state(from.ending ? "ending" : "open");
  to->set_job(from.job);
  to->set_rank(from.rank);
  to->set_created_unix_ms(absl::ToUnixMillis(from.created));
}

// A page of what jobs have. `visit(machine, query, after, &page)` adds to it.
template <typename Request, typename Items, typename Visit>
absl::StatusOr<std::string> PageOfJobs(const Daemon& daemon, const CallerInfo& caller,
                                       absl::string_view listing, const Request& request,
                                       Items* items, Visit visit) {
  const auto after = ReadPageToken(listing, request.job(), request.page_token());
  if (!after.ok()) return after.status();
  const JobQuery query = QueryOf(caller, request.job());
  Page<Items> page(request.page_size(), items);
  const bool found = daemon.Inspect([&](const JobMachine& machine) {
    visit(machine, query, *after, &page);
    // On a later page, a job that has ended is the end of the listing.
    bool any = items->size() > 0 || query.name.empty() || !request.page_token().empty();
    if (!any) machine.VisitJobs(query, {}, [&any](const JobSnapshot&) { return !(any = true); });
    return any;
  });
  if (!found) return NoSuchJob(caller, query.name);
  return page.NextToken(listing, request.job());
}

// One job, without the commands of its sessions.
void Describe(const Daemon& daemon, const JobMachine& machine, const JobSnapshot& job,
              v1::JobDescription* to) {
  const auto& devices = daemon.driver().devices();
  ToProto(job, devices, to->mutable_job());
  const JobQuery query{.party = job.party, .name = job.name};
  machine.VisitRanks(query, {}, [&](const JobSnapshot& head, const RankSnapshot& rank) {
    if (!rank.segments.empty()) ToProto(rank, head, devices, to->add_heaps());
    return true;
  });
  machine.VisitAllocations(query, {},
                           [&](const JobSnapshot& head, const AllocationSnapshot& allocation) {
                             ToProto(allocation, head, to->add_allocations());
                             return to->allocations_size() < static_cast<int>(wire::kListPageMax);
                           });
  std::set<SessionId> sessions;
  for (const RankSnapshot& rank : job.ranks) sessions.insert(rank.session);
  machine.VisitSessions(job.party, {}, [&](const SessionSnapshot& session) {
    if (sessions.contains(session.id)) ToProto(session, to->add_sessions());
    return true;
  });
  to->set_last_event(daemon.events().last());
}

}  // namespace

JobQuery QueryOf(const CallerInfo& caller, const std::string& name) {
  JobQuery query{.name = name};
  if (!SeesAll(caller.party)) query.party = caller.party;
  return query;
}

absl::Status NoSuchJob(const CallerInfo& caller, const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no job \"", EscapeForLog(name, wire::kMaxJobNameBytes),
                                          "\" that ", caller.party.Text(), " may see"));
}

bool SeesAll(const Party& party) { return party.IsOperator(geteuid()); }

absl::StatusOr<std::vector<JobSnapshot>> VisibleJobs(const Daemon& daemon, const CallerInfo& caller,
                                                     const std::string& name) {
  const JobQuery query = QueryOf(caller, name);
  std::vector<JobSnapshot> jobs =
      daemon.Inspect([&query](const JobMachine& machine) { return machine.Jobs(query); });
  if (jobs.empty() && !name.empty()) return NoSuchJob(caller, name);
  return jobs;
}

absl::Status ListDevices(const Daemon& daemon, const v1::ListDevicesRequest& request,
                         v1::ListDevicesReply* reply) {
  const auto after = ReadPageToken("devices", "", request.page_token());
  if (!after.ok()) return after.status();
  const std::vector<Ledger::DeviceAccount> accounts =
      daemon.Inspect([](const JobMachine& machine) { return machine.ledger().devices(); });
  Page page(request.page_size(), reply->mutable_devices());
  for (const driver::DeviceInfo& device : daemon.driver().devices()) {
    const ListPosition at{.id = uint64_t{device.index} + 1};
    if (at.id <= after->id) continue;
    const bool known = device.index < accounts.size();
    const bool taken = page.Add(at, [&](v1::Device* message) {
      ToProto(device, known ? accounts[device.index].used_bytes : 0, message);
    });
    if (!taken) break;
  }
  reply->set_next_page_token(page.NextToken("devices", ""));
  return absl::OkStatus();
}

absl::Status ListJobs(const Daemon& daemon, const CallerInfo& caller,
                      const v1::ListJobsRequest& request, v1::ListJobsReply* reply) {
  auto next = PageOfJobs(
      daemon, caller, "jobs", request, reply->mutable_jobs(),
      [&](const JobMachine& machine, const JobQuery& query, ListPosition after, auto* page) {
        machine.VisitJobs(query, after, [&](const JobSnapshot& job) {
          return page->Add({.id = job.id.value}, [&](v1::Job* message) {
            ToProto(job, daemon.driver().devices(), message);
          });
        });
      });
  if (!next.ok()) return next.status();
  reply->set_next_page_token(*std::move(next));
  return absl::OkStatus();
}

absl::Status ListHeaps(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListHeapsRequest& request, v1::ListHeapsReply* reply) {
  auto next = PageOfJobs(
      daemon, caller, "heaps", request, reply->mutable_heaps(),
      [&](const JobMachine& machine, const JobQuery& query, ListPosition after, auto* page) {
        machine.VisitRanks(query, after, [&](const JobSnapshot& job, const RankSnapshot& rank) {
          if (rank.segments.empty()) return true;
          return page->Add({.id = job.id.value, .item = rank.rank}, [&](v1::Heap* message) {
            ToProto(rank, job, daemon.driver().devices(), message);
          });
        });
      });
  if (!next.ok()) return next.status();
  reply->set_next_page_token(*std::move(next));
  return absl::OkStatus();
}

absl::Status ListAllocations(const Daemon& daemon, const CallerInfo& caller,
                             const v1::ListAllocationsRequest& request,
                             v1::ListAllocationsReply* reply) {
  auto next = PageOfJobs(
      daemon, caller, "allocations", request, reply->mutable_allocations(),
      [&](const JobMachine& machine, const JobQuery& query, ListPosition after, auto* page) {
        machine.VisitAllocations(
            query, after, [&](const JobSnapshot& job, const AllocationSnapshot& allocation) {
              return page->Add({.id = job.id.value, .item = allocation.offset_bytes},
                               [&](v1::Allocation* m) { ToProto(allocation, job, m); });
            });
      });
  if (!next.ok()) return next.status();
  NameWorkspaces(daemon, reply->mutable_allocations());
  reply->set_next_page_token(*std::move(next));
  return absl::OkStatus();
}

absl::Status ListSessions(const Daemon& daemon, const CallerInfo& caller,
                          const v1::ListSessionsRequest& request, v1::ListSessionsReply* reply) {
  const auto after = ReadPageToken("sessions", "", request.page_token());
  if (!after.ok()) return after.status();
  std::optional<Party> party;
  if (!SeesAll(caller.party)) party = caller.party;
  // One more than fit, so that the page knows whether anything follows.
  std::vector<SessionSnapshot> sessions;
  daemon.Inspect([&](const JobMachine& machine) {
    machine.VisitSessions(party, *after, [&](const SessionSnapshot& session) {
      sessions.push_back(session);
      return sessions.size() <= PageSize(request.page_size());
    });
  });
  Page page(request.page_size(), reply->mutable_sessions());
  for (const SessionSnapshot& session : sessions) {
    const bool taken = page.Add({.id = session.id.value}, [&](v1::Session* message) {
      ToProto(session, message);
      message->set_command(CommandOf(session.caller.pid));
    });
    if (!taken) break;
  }
  reply->set_next_page_token(page.NextToken("sessions", ""));
  return absl::OkStatus();
}

absl::Status DescribeJobs(const Daemon& daemon, const CallerInfo& caller,
                          const v1::DescribeJobsRequest& request, v1::DescribeJobsReply* reply) {
  auto next = PageOfJobs(
      daemon, caller, "descriptions", request, reply->mutable_jobs(),
      [&](const JobMachine& machine, const JobQuery& query, ListPosition after, auto* page) {
        machine.VisitJobs(query, after, [&](const JobSnapshot& job) {
          return page->Add({.id = job.id.value}, [&](v1::JobDescription* message) {
            Describe(daemon, machine, job, message);
          });
        });
      });
  if (!next.ok()) return next.status();
  for (v1::JobDescription& job : *reply->mutable_jobs()) {
    NameWorkspaces(daemon, job.mutable_allocations());
    for (v1::Session& session : *job.mutable_sessions()) {
      session.set_command(CommandOf(session.pid()));
    }
  }
  reply->set_next_page_token(*std::move(next));
  return absl::OkStatus();
}

}  // namespace iris::server
