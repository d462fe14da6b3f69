#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/ctl/permission.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"

namespace iris::ctl {
namespace {

constexpr auto kRight = Table::Align::kRight;

// irisd's name of the barrier area of a team, without the team's number.
constexpr char kSyncName[] = "iris.sync.";

const v1::Heap* HeapOf(const JobDescription& description, uint32_t rank) {
  for (const v1::Heap& heap : description.at.heaps()) {
    if (heap.rank() == rank) return &heap;
  }
  return nullptr;
}

const v1::Session* SessionOf(const JobDescription& description, const v1::JobRank& rank) {
  for (const v1::Session& session : description.at.sessions()) {
    if (session.session_id() == rank.session_id()) return &session;
  }
  return nullptr;
}

// Returns "2: team 0 with 5 allocations, team 3 with 1, rank 2 alone with 1".
std::string TeamsOf(const JobDescription& description) {
  std::map<uint32_t, int> teams, ranks;
  for (const v1::Allocation& allocation : description.at.allocations()) {
    absl::string_view name = allocation.name();
    uint32_t team_id = 0;
    // The area itself belongs to the job.
    if (allocation.has_owner()) {
      ++ranks[allocation.owner()];
    } else if (absl::ConsumePrefix(&name, kSyncName) && absl::SimpleAtoi(name, &team_id)) {
      teams.emplace(team_id, 0);
    } else {
      ++teams[allocation.team_id()];
    }
  }
  std::vector<std::string> parts;
  const auto add = [&parts](const std::string& whose, int count) {
    parts.push_back(absl::StrCat(whose, " with ", count,
                                 !parts.empty() ? ""
                                 : count == 1   ? " allocation"
                                                : " allocations"));
  };
  for (const auto& [team_id, count] : teams) add(absl::StrCat("team ", team_id), count);
  for (const auto& [rank, count] : ranks) add(absl::StrCat("rank ", rank, " alone"), count);
  return absl::StrCat(description.at.job().n_teams(), parts.empty() ? "" : ": ",
                      absl::StrJoin(parts, ", "));
}

// Appends a table below its title, indented by two.
void Section(const std::string& title, Table table, const char* none, std::string* text) {
  absl::StrAppend(text, "\n", title, ":");
  if (table.rows() == 0) {
    absl::StrAppend(text, " ", none, "\n");
    return;
  }
  std::string lines = table.Take();
  lines.pop_back();  // the last line feed
  absl::StrAppend(text, "\n  ", absl::StrReplaceAll(lines, {{"\n", "\n  "}}), "\n");
}

// Returns "ready", or "ready on host-b" for a rank on another node.
std::string StateText(const v1::JobRank& rank) {
  const std::string state = StateWord(rank.state());
  if (!rank.has_node()) return state;
  return absl::StrCat(state, " on ",
                      rank.node().empty() ? "another node" : EscapeName(rank.node()));
}

Table RanksTable(const JobDescription& description) {
  Table table({{"RANK", kRight},
               {"STATE"},
               {"PID", kRight},
               {"DEVICE"},
               {"HEAP", kRight},
               {"MAX", kRight},
               {"ALLOCATED", kRight},
               {"LARGEST-FREE", kRight},
               {"BASE", kRight},
               {"SESSION", kRight},
               {"COMMAND", Table::Align::kLeft, /*may_be_cut=*/true}});
  for (const v1::JobRank& rank : description.at.job().ranks()) {
    const v1::Heap* const heap = HeapOf(description, rank.rank());
    const v1::Session* const session = SessionOf(description, rank);
    const auto bytes = [&](uint64_t (v1::Heap::*field)() const) {
      return heap == nullptr ? "" : HumanBytes((heap->*field)());
    };
    table.Add({absl::StrCat(rank.rank()), StateText(rank),
               rank.pid() > 0 ? absl::StrCat(rank.pid()) : "", EscapeName(rank.device_uuid()),
               bytes(&v1::Heap::heap_bytes), bytes(&v1::Heap::max_heap_bytes),
               bytes(&v1::Heap::allocated_bytes), bytes(&v1::Heap::largest_free_bytes),
               absl::StrFormat("0x%x", rank.base()),
               rank.session_id() > 0 ? absl::StrCat(rank.session_id()) : "",
               session == nullptr ? "" : EscapeName(session->command())});
  }
  return table;
}

Table AllocationsTable(const JobDescription& description, absl::Time now) {
  View view = AllocationsView();
  view.columns.erase(view.columns.begin());  // the job
  Table table = view.MakeTable();
  for (const v1::Allocation& each : description.at.allocations()) view.AddRow(each, now, &table);
  return table;
}

Table EventsTable(const JobDescription& description, absl::Time now) {
  Table table({{"AGE", kRight},
               {"EVENT"},
               {"RANK", kRight},
               {"PID", kRight},
               {"TEXT", Table::Align::kLeft, /*may_be_cut=*/true}});
  const auto& events = description.events;
  for (size_t i = events.size() - std::min(events.size(), kDescribedEvents); i < events.size();
       ++i) {
    table.Add({Age(events[i].time_unix_ms(), now), EscapeName(events[i].kind()),
               events[i].rank() >= 0 ? absl::StrCat(events[i].rank()) : "",
               events[i].pid() > 0 ? absl::StrCat(events[i].pid()) : "",
               EscapeName(events[i].text())});
  }
  return table;
}

}  // namespace

std::vector<JobDescription> Describe(const v1::DescribeJobsReply& reply,
                                     const std::vector<v1::Event>& events) {
  std::vector<JobDescription> descriptions;
  for (const v1::JobDescription& at : reply.jobs()) {
    JobDescription description{at, {}};
    for (const v1::Event& event : events) {
      if (event.job() == at.job().job() && event.time_unix_ms() >= at.job().created_unix_ms() &&
          event.sequence() <= at.last_event()) {
        description.events.push_back(event);
      }
    }
    descriptions.push_back(std::move(description));
  }
  return descriptions;
}

std::string DescriptionText(const JobDescription& description, absl::Time now, size_t max_width) {
  const v1::Job& job = description.at.job();
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-15s %s\n", absl::StrCat(name, ":"), value);
  };
  line("Name", EscapeName(job.job()));
  line("State", StateWord(job.state()));
  line("User", absl::StrCat(EscapeName(UserName(job.uid())), " (uid ", job.uid(), ")"));
  line("Job id", absl::StrCat(job.job_id()));
  line("Epoch", absl::StrCat(job.epoch()));
  line("Created", absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S %z",
                                                absl::FromUnixMillis(job.created_unix_ms()),
                                                absl::LocalTimeZone()),
                               ", ", Age(job.created_unix_ms(), now), " ago"));
  line("Ranks", RankStates(job));
  line("Heap per rank", absl::StrCat(HumanBytes(job.heap_bytes()), ", ",
                                     HumanBytes(job.allocated_bytes()), " in ", job.n_allocations(),
                                     job.n_allocations() == 1 ? " allocation" : " allocations"));
  line("Same address", job.same_address() ? "yes" : "no");
  line("Teams", TeamsOf(description));

  // Two columns are the indentation.
  const size_t width = max_width > 2 ? max_width - 2 : 0;
  Table ranks = RanksTable(description);
  ranks.set_max_width(width);
  Section("Ranks", std::move(ranks), "none has joined", &text);
  const int n_shown = description.at.allocations_size();
  Section(static_cast<uint32_t>(n_shown) < job.n_allocations()
              ? absl::StrCat("Allocations (the first ", n_shown, " of ", job.n_allocations(), ")")
              : "Allocations",
          AllocationsTable(description, now), "none", &text);
  Table events = EventsTable(description, now);
  events.set_max_width(width);
  const bool some = description.events.size() > kDescribedEvents;
  Section(some ? absl::StrCat("Events (the last ", kDescribedEvents, " of ",
                              description.events.size(), ")")
               : "Events",
          std::move(events), "none that irisd still has", &text);
  return text;
}

Json DescriptionJson(const JobDescription& description) {
  Json json = MessageJson(description.at.job());
  for (int i = 0; i < description.at.job().ranks_size(); ++i) {
    const v1::JobRank& rank = description.at.job().ranks(i);
    Json& entry = json["ranks"].at(static_cast<size_t>(i));
    if (const v1::Heap* const heap = HeapOf(description, rank.rank()); heap != nullptr) {
      const Json all = MessageJson(*heap);
      for (const char* field : {"heap_bytes", "max_heap_bytes", "allocated_bytes",
                                "largest_free_bytes", "n_segments"}) {
        entry[field] = all.at(field);
      }
    }
    const v1::Session* const session = SessionOf(description, rank);
    entry["command"] = session == nullptr ? "" : session->command();
  }
  json["allocations"] = ArrayJson(description.at.allocations());
  json["events"] = ArrayJson(description.events);
  return json;
}

}  // namespace iris::ctl
