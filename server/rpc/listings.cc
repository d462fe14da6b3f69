#include "server/rpc/listings.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/process.h"
#include "proto/wire/limits.h"
#include "server/events/log.h"
#include "server/rpc/convert.h"
#include "server/rpc/listing_page.h"

namespace iris::server {
namespace {

// Returns the kernel's name of a process, printable; empty if the process is gone. The command line
// is not used: it is in the process's own memory, and the process can make its reader wait.
std::string CommandOf(int64_t pid) {
  const std::optional<base::Process> process = base::ReadProcess(pid);
  return process.has_value() ? EscapeForLog(process->name) : "";
}

// Returns offsets of the workspaces of a job's communicators, from its ranks' pages.
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

// Sets the names of communicators' allocations. Reads the ranks' pages, so the machine must not be
// locked.
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

// Answers with a page of entries of jobs, which `visit(machine, query, after, &page)` adds.
template <typename Request, typename Reply, typename Items, typename Visit>
absl::Status PageOfJobs(absl::string_view listing, const Daemon& daemon, const CallerInfo& caller,
                        const Request& request, Reply* reply, Items* items, Visit visit) {
  const JobQuery query = QueryOf(caller, request.job());
  const auto fill = [&](ListPosition after, auto* page) {
    const bool found = daemon.Inspect([&](const JobMachine& machine) {
      visit(machine, query, after, page);
      // On a later page, a job that has ended is the end of the listing.
      bool any = items->size() > 0 || query.name.empty() || !request.page_token().empty();
      if (!any) machine.VisitJobs(query, {}, [&any](const JobSnapshot&) { return !(any = true); });
      return any;
    });
    return found ? absl::OkStatus() : NoSuchJob(caller, query.name);
  };
  return FillPage(listing, request.job(), request, reply, items, fill);
}

// Describes one job, without the commands of its sessions.
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
    if (sessions.contains(session.id)) Write(session, to->add_sessions());
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

absl::Status ListDevices(const Daemon& daemon, const CallerInfo& /*caller*/,
                         const v1::ListDevicesRequest& request, v1::ListDevicesReply* reply) {
  const std::vector<Ledger::DeviceAccount> accounts =
      daemon.Inspect([](const JobMachine& machine) { return machine.ledger().devices(); });
  const auto fill = [&](ListPosition after, auto* page) {
    for (const driver::DeviceInfo& device : daemon.driver().devices()) {
      const ListPosition at{.id = uint64_t{device.index} + 1};
      if (at.id <= after.id) continue;
      const bool taken = page->Add(at, [&](v1::Device* message) {
        Write(device, message);
        if (device.index < accounts.size()) {
          message->set_used_bytes(accounts[device.index].used_bytes);
        }
      });
      if (!taken) break;
    }
    return absl::OkStatus();
  };
  return FillPage("devices", "", request, reply, reply->mutable_devices(), fill);
}

absl::Status ListJobs(const Daemon& daemon, const CallerInfo& caller,
                      const v1::ListJobsRequest& request, v1::ListJobsReply* reply) {
  return PageOfJobs("jobs", daemon, caller, request, reply, reply->mutable_jobs(),
                    [&](const JobMachine& machine, const JobQuery& query, auto after, auto* page) {
                      machine.VisitJobs(query, after, [&](const JobSnapshot& job) {
                        return page->Add({.id = job.id.value}, [&](v1::Job* message) {
                          ToProto(job, daemon.driver().devices(), message);
                        });
                      });
                    });
}

absl::Status ListHeaps(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListHeapsRequest& request, v1::ListHeapsReply* reply) {
  return PageOfJobs(
      "heaps", daemon, caller, request, reply, reply->mutable_heaps(),
      [&](const JobMachine& machine, const JobQuery& query, auto after, auto* page) {
        machine.VisitRanks(query, after, [&](const JobSnapshot& job, const RankSnapshot& rank) {
          if (rank.segments.empty()) return true;
          return page->Add({.id = job.id.value, .item = rank.rank}, [&](v1::Heap* message) {
            ToProto(rank, job, daemon.driver().devices(), message);
          });
        });
      });
}

absl::Status ListAllocations(const Daemon& daemon, const CallerInfo& caller,
                             const v1::ListAllocationsRequest& request,
                             v1::ListAllocationsReply* reply) {
  const absl::Status listed = PageOfJobs(
      "allocations", daemon, caller, request, reply, reply->mutable_allocations(),
      [&](const JobMachine& machine, const JobQuery& query, auto after, auto* page) {
        machine.VisitAllocations(
            query, after, [&](const JobSnapshot& job, const AllocationSnapshot& allocation) {
              return page->Add({.id = job.id.value, .item = allocation.offset_bytes},
                               [&](v1::Allocation* m) { ToProto(allocation, job, m); });
            });
      });
  if (listed.ok()) NameWorkspaces(daemon, reply->mutable_allocations());
  return listed;
}

absl::Status ListSessions(const Daemon& daemon, const CallerInfo& caller,
                          const v1::ListSessionsRequest& request, v1::ListSessionsReply* reply) {
  std::optional<Party> party;
  if (!SeesAll(caller.party)) party = caller.party;
  const auto fill = [&](ListPosition after, auto* page) {
    // Collects one more than fits, so that the page knows if anything follows.
    std::vector<SessionSnapshot> sessions;
    daemon.Inspect([&](const JobMachine& machine) {
      machine.VisitSessions(party, after, [&](const SessionSnapshot& session) {
        sessions.push_back(session);
        return sessions.size() <= PageSize(request.page_size());
      });
    });
    for (const SessionSnapshot& session : sessions) {
      const bool taken = page->Add({.id = session.id.value}, [&](v1::Session* message) {
        Write(session, message);
        message->set_command(CommandOf(session.caller.pid));
        message->set_state(session.ending ? "ending" : "open");
      });
      if (!taken) break;
    }
    return absl::OkStatus();
  };
  return FillPage("sessions", "", request, reply, reply->mutable_sessions(), fill);
}

absl::Status ListNodes(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListNodesRequest& request, v1::ListNodesReply* reply) {
  const JobQuery query = QueryOf(caller, request.job());
  struct Row {
    std::shared_ptr<const JobSnapshot> job;
    NodeSnapshot node;
  };
  const auto fill = [&](ListPosition after, auto* page) {
    // Collects one more than fits, so that the page knows if anything follows.
    std::vector<Row> rows;
    const bool found = daemon.Inspect([&](const JobMachine& machine) {
      machine.VisitNodes(query, after, [&](const JobSnapshot& job, const NodeSnapshot& node) {
        const bool same = !rows.empty() && rows.back().job->id == job.id;
        rows.push_back({same ? rows.back().job : std::make_shared<JobSnapshot>(job), node});
        return rows.size() <= PageSize(request.page_size());
      });
      bool any = !rows.empty() || query.name.empty() || !request.page_token().empty();
      if (!any) machine.VisitJobs(query, {}, [&any](const JobSnapshot&) { return !(any = true); });
      return any;
    });
    if (!found) return NoSuchJob(caller, query.name);
    const JobSnapshot* reported = nullptr;
    std::optional<PortReport> report;
    for (const Row& row : rows) {
      if (std::exchange(reported, row.job.get()) != row.job.get()) {
        report = daemon.PortReportOf(row.job->id);
      }
      const ListPosition at{.id = row.job->id.value, .item = row.node.part.node};
      const bool taken = page->Add(at, [&](v1::JobNode* to) {
        ToProto(row.node, *row.job, report, daemon.SteadyNow(), to);
      });
      if (!taken) break;
    }
    return absl::OkStatus();
  };
  return FillPage("nodes", request.job(), request, reply, reply->mutable_nodes(), fill);
}

absl::Status DescribeJobs(const Daemon& daemon, const CallerInfo& caller,
                          const v1::DescribeJobsRequest& request, v1::DescribeJobsReply* reply) {
  const absl::Status listed =
      PageOfJobs("descriptions", daemon, caller, request, reply, reply->mutable_jobs(),
                 [&](const JobMachine& machine, const JobQuery& query, auto after, auto* page) {
                   machine.VisitJobs(query, after, [&](const JobSnapshot& job) {
                     return page->Add({.id = job.id.value}, [&](v1::JobDescription* message) {
                       Describe(daemon, machine, job, message);
                     });
                   });
                 });
  if (!listed.ok()) return listed;
  for (v1::JobDescription& job : *reply->mutable_jobs()) {
    NameWorkspaces(daemon, job.mutable_allocations());
    for (v1::Session& session : *job.mutable_sessions()) {
      session.set_command(CommandOf(session.pid()));
    }
  }
  return absl::OkStatus();
}

}  // namespace iris::server
