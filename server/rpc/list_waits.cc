// Implements ListWaits, which looks at one job after the other.
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "device/base/process.h"
#include "server/rpc/listing_page.h"
#include "server/rpc/listings.h"
#include "server/rpc/waits.h"

namespace iris::server {
namespace {

constexpr int kJobsLookedAt = 64;  // at most, by one page

struct LookedAt {
  JobSnapshot job;
  WaitsSnapshot waits;
};

std::optional<LookedAt> NextJob(const Daemon& daemon, const JobQuery& query, ListPosition after) {
  std::optional<LookedAt> next;
  daemon.Inspect([&](const JobMachine& machine) {
    machine.VisitWaits(query, after, [&](const JobSnapshot& job, const WaitsSnapshot& waits) {
      next = LookedAt{job, waits};
      return false;
    });
  });
  return next;
}

std::vector<FoundWait> WaitsOf(const Daemon& daemon, const LookedAt& at) {
  std::vector<wire::ControlPage> pages;
  for (const std::shared_ptr<const PageFile>& file : daemon.ControlPages(at.job.id)) {
    if (!file->Copy(&pages.emplace_back()).ok()) pages.back() = {};
  }
  if (pages.size() != at.job.n_local) pages.clear();
  const auto read_heap = [&](Rank rank, uint64_t offset_bytes, absl::Span<uint8_t> out) {
    if (rank >= at.job.ranks.size()) return false;
    for (const SegmentInfo& segment : at.job.ranks[rank].segments) {
      if (offset_bytes < segment.offset_bytes) continue;
      const uint64_t inside = offset_bytes - segment.offset_bytes;
      if (inside >= segment.bytes || segment.bytes - inside < out.size()) continue;
      return daemon.segments().Read(segment.id, inside, out).ok();
    }
    return false;
  };
  std::map<int64_t, bool> stopped;  // each process is checked once
  const auto is_stopped = [&](int64_t pid) {
    const auto [known, is_new] = stopped.try_emplace(pid, false);
    if (is_new) {
      const auto process = base::ReadProcess(pid);
      known->second = process.has_value() && process->stopped();
    }
    return known->second;
  };
  return FindWaits({at.job, at.waits, pages, daemon.SteadyNow(), read_heap, is_stopped});
}

}  // namespace

absl::Status ListWaits(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListWaitsRequest& request, v1::ListWaitsReply* reply) {
  const auto begin = ReadPageToken("waits", request.job(), request.page_token());
  if (!begin.ok()) return begin.status();
  const JobQuery query = QueryOf(caller, request.job());
  Page page(request.page_size(), reply->mutable_waits());
  ListPosition at = *begin;
  for (int looked_at = 0;; ++looked_at) {
    const std::optional<LookedAt> next = NextJob(daemon, query, at);
    if (!next.has_value()) {
      // On a later page, a job that has ended is the end of the listing.
      const bool any = looked_at > 0 || query.name.empty() || !request.page_token().empty();
      return any ? absl::OkStatus() : NoSuchJob(caller, query.name);
    }
    if (looked_at == kJobsLookedAt) break;
    const bool entered = next->job.id.value == at.id;
    for (const FoundWait& found : WaitsOf(daemon, *next)) {
      if (entered && found.key <= at.item) continue;
      const ListPosition here{.id = next->job.id.value, .item = found.key};
      if (!page.Add(here, [&](v1::Wait* wait) { *wait = found.wait; })) {
        reply->set_next_page_token(page.NextToken("waits", request.job()));
        return absl::OkStatus();
      }
    }
    at = {.id = next->job.id.value + 1, .item = 0};
  }
  reply->set_next_page_token(MakePageToken("waits", request.job(), at));
  return absl::OkStatus();
}

}  // namespace iris::server
