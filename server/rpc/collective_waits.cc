// Finds waits on the devices, from the operations that each rank has enqueued on its streams
// through a communicator, and from the progress of its device.
//
// A rank is in operation N if it has enqueued N and has finished N operations. It waits for ranks
// that have finished fewer, or have not enqueued N. If there are none, it waits for ranks whose
// process is stopped; else for those whose device is not seen waiting, if other devices are.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "proto/wire/limits.h"
#include "server/rpc/waits.h"

namespace iris::server {
namespace {

// Ranks always run ahead of each other. If it is unknown whether a device waits, a shorter delay is
// not reported unless a process is stopped; nor is an operation that all ranks are in.
constexpr int64_t kNewsMs = 1000;

// The name for an operation that has left its rank's page, or has no valid number in it.
constexpr char kLongAgo[] = "collective";

struct Place {
  Rank rank = 0;
  const wire::CollectiveRecord* record = nullptr;  // null: the rank has none yet
  bool known = false;                              // the following fields are known
  uint32_t finished = 0;                           // operations
  uint32_t waited_long_in = 0;                     // 1 + the operation's number; 0: none
  uint32_t n_put() const { return record == nullptr ? 0 : record->n_put; }
};

bool Reached(uint32_t seen, uint32_t wanted) { return wire::EpochReached(seen, wanted); }

const wire::CollectiveEntry* EntryOf(const Place& place, uint32_t number) {
  if (place.record == nullptr || Reached(number, place.n_put())) return nullptr;
  if (place.n_put() - number > wire::kCollectiveEntries) return nullptr;
  return &place.record->last[number % wire::kCollectiveEntries];
}

std::vector<Place> PlacesOf(const WaitSources& from, const TeamInfo& team,
                            uint64_t workspace_offset_bytes) {
  std::vector<Place> places;
  for (const Rank rank : team.ranks) {
    Place place{.rank = rank};
    const wire::ControlPage* const page = PageOf(from, rank);
    if (page == nullptr) continue;
    for (const wire::CollectiveRecord& record : page->collectives) {
      if (!IsHere(from, rank) || record.n_members != team.ranks.size() ||
          record.team_id != team.id || record.workspace_offset_bytes != workspace_offset_bytes ||
          (record.version & 1) != 0) {
        continue;
      }
      place.record = &record;
      uint64_t waiting = 0;
      const auto read = [&](uint16_t at, auto* word) {
        return from.read_heap(rank, workspace_offset_bytes + at,
                              absl::MakeSpan(reinterpret_cast<uint8_t*>(word), sizeof(*word)));
      };
      place.known = read(record.finished_at, &place.finished) && read(record.waiting_at, &waiting);
      place.waited_long_in = static_cast<uint32_t>(waiting);
      break;
    }
    places.push_back(place);
  }
  return places;
}

v1::Wait Describe(const WaitSources& from, const TeamInfo& team, const std::vector<Place>& places,
                  uint32_t number, const std::set<Rank>& waiting, const std::set<Rank>& missing) {
  v1::Wait wait = NewWait(from, v1::WAIT_KIND_COLLECTIVE, team.id, team.ranks.size());
  wait.set_number(number);
  wait.set_waited_ms(-1);
  wait.set_call(kLongAgo);
  for (const Place& place : places) {
    const wire::CollectiveEntry* const entry = EntryOf(place, number);
    if (waiting.contains(place.rank)) {
      AddMember(from, place.rank, v1::WAIT_PLACE_INSIDE, wait.mutable_waiting());
      if (entry == nullptr) continue;
      const bool named = entry->call > 0 && entry->call < ccl::kOperationCount;
      wait.set_call(named ? ccl::OperationName(static_cast<ccl::Operation>(entry->call))
                          : kLongAgo);
      const DType type = static_cast<DType>(entry->dtype);
      if (entry->dtype != 0) wait.set_dtype(DTypeName(type));
      wait.set_bytes(entry->count * DTypeBytes(type));
      wait.set_waited_ms(std::max(wait.waited_ms(), AgeOfPageTime(entry->put_ms, from.now)));
    } else if (missing.contains(place.rank)) {
      const bool put = !Reached(number, place.n_put());
      const bool inside =
          put && place.known && place.finished == number && place.waited_long_in == number + 1;
      AddMember(from, place.rank,
                inside ? v1::WAIT_PLACE_INSIDE
                : put  ? v1::WAIT_PLACE_QUEUED
                       : v1::WAIT_PLACE_NOT_COME,
                wait.mutable_missing());
    }
  }
  return wait;
}

// Returns the wait in operation `number`, which some ranks are in, if it is worth reporting.
std::optional<v1::Wait> WaitIn(const WaitSources& from, const TeamInfo& team,
                               const std::vector<Place>& places, uint32_t number) {
  std::set<Rank> inside;
  std::set<Rank> missing;
  for (const Place& place : places) {
    const bool put = !Reached(number, place.n_put());
    if (!put || !Reached(place.finished, number)) {
      missing.insert(place.rank);
    } else if (place.finished == number) {
      inside.insert(place.rank);
    }
  }
  bool stopped = false;
  for (const Rank rank : inside) {
    if (IsStopped(from, rank)) stopped = missing.insert(rank).second || stopped;
  }
  if (missing.empty() && !stopped) {
    const auto waits = [&](const Place& place) { return place.waited_long_in == number + 1; };
    if (std::any_of(places.begin(), places.end(), waits)) {
      for (const Place& place : places) {
        if (inside.contains(place.rank) && !waits(place)) missing.insert(place.rank);
      }
    }
  }
  for (const Rank rank : missing) inside.erase(rank);
  // A device's progress is that of its first block; other blocks may wait for a stopped rank.
  for (const Place& place : places) {
    if (stopped && place.finished == number + 1 && place.n_put() == number + 1) {
      inside.insert(place.rank);
    }
  }
  // If only stopped ranks are in the operation, no rank waits for them.
  if (inside.empty()) return std::nullopt;
  v1::Wait wait = Describe(from, team, places, number, inside, missing);
  if (missing.empty() && wait.waited_ms() < kNewsMs) return std::nullopt;
  return wait;
}

// Describes a wait if the host cannot read the progress of devices.
std::optional<v1::Wait> PutWait(const WaitSources& from, const TeamInfo& team,
                                const std::vector<Place>& places) {
  uint32_t number = places.front().n_put();
  for (const Place& place : places) {
    if (!Reached(place.n_put(), number)) number = place.n_put();
  }
  std::set<Rank> ahead;
  std::set<Rank> behind;
  for (const Place& place : places) {
    (place.n_put() == number ? behind : ahead).insert(place.rank);
  }
  if (ahead.empty()) return std::nullopt;
  v1::Wait wait = Describe(from, team, places, number, ahead, behind);
  const bool stopped =
      std::any_of(behind.begin(), behind.end(), [&](Rank rank) { return IsStopped(from, rank); });
  if (!stopped && wait.waited_ms() >= 0 && wait.waited_ms() < kNewsMs) return std::nullopt;
  for (v1::WaitMember& member : *wait.mutable_waiting()) member.set_place(v1::WAIT_PLACE_QUEUED);
  wait.set_device_unknown(true);
  return wait;
}

}  // namespace

std::vector<FoundWait> FindCollectives(const WaitSources& from) {
  std::vector<FoundWait> found;
  if (from.pages.empty()) return found;
  std::map<uint32_t, const TeamInfo*> teams;
  for (const TeamInfo& team : from.waits.teams) teams[team.id] = &team;
  std::set<std::pair<uint64_t, uint32_t>> communicators;  // workspace, team
  for (const wire::ControlPage& page : from.pages) {
    for (const wire::CollectiveRecord& record : page.collectives) {
      if (record.n_members < 2 || record.workspace_offset_bytes >= wire::kMaxHeapBytes) continue;
      if (!teams.contains(record.team_id)) continue;
      communicators.insert({record.workspace_offset_bytes, record.team_id});
    }
  }
  for (const auto& [offset_bytes, team_id] : communicators) {
    const TeamInfo& team = *teams[team_id];
    const std::vector<Place> places = PlacesOf(from, team, offset_bytes);
    std::vector<v1::Wait> waits;
    const bool known = std::all_of(places.begin(), places.end(), [](const Place& place) {
      return place.known || place.record == nullptr;
    });
    if (known) {
      std::set<uint32_t> numbers;
      for (const Place& place : places) {
        if (!Reached(place.finished, place.n_put())) numbers.insert(place.finished);
      }
      for (const uint32_t number : numbers) {
        std::optional<v1::Wait> wait = WaitIn(from, team, places, number);
        if (wait.has_value()) waits.push_back(*std::move(wait));
      }
    } else if (std::optional<v1::Wait> wait = PutWait(from, team, places); wait.has_value()) {
      waits.push_back(*std::move(wait));
    }
    // Those that lack nobody here lack ranks of other nodes, if there are any.
    for (v1::Wait& wait : waits) {
      if (wait.missing().empty()) AddOtherNodes(from, team, &wait);
    }
    // Workspaces are aligned to more than the number of ranks.
    for (uint64_t i = 0; i < waits.size(); ++i) {
      found.push_back({MakeWaitKey(WaitKey::kCollective, offset_bytes + i), std::move(waits[i])});
    }
  }
  return found;
}

}  // namespace iris::server
