// Operations of the control plane, whichever they are: each function calls that of the operation's
// own file. What the sequence of a team's operations needs to know of them (team_calls.cc), and
// what they are given to run on. Not thread-safe: inside the JobMachine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/events.h"
#include "server/job/job.h"
#include "server/job/operation_spec.h"
#include "server/job/results.h"

namespace iris::server {

// The operation is over; the outcome's k and heap size are filled in by the caller.
struct Concluded {
  absl::Status status;
  OperationResult result;
  bool ends_team = false;  // it was the team's last
};
// It must be executed again once the heap has grown.
struct NeedsGrowth {
  uint64_t needed_bytes = 0;
  uint64_t wanted_bytes = 0;
  absl::Status unfit;  // its outcome if the heap cannot grow; why not is appended
};
// It is carried out by who has the descriptors: the pieces become segments of the members' heaps,
// and the range an allocation of the team. `offset_bytes`, of the range, is free for them.
struct Adopts {
  uint64_t offset_bytes = 0;
  HeapAllocation allocation;
};
using Executed = std::variant<Concluded, NeedsGrowth, Adopts>;

// Memory that a member gives to be registered: allocations that follow each other, and how many
// bytes of the first are before the range.
struct Given {
  Rank rank = 0;
  uint64_t lead_bytes = 0;
  std::vector<uint64_t> piece_bytes;
};

// What an operation runs on: the job and the team that asks.
struct Run {
  Job& job;
  Team& team;
  std::string what;  // which operation this is: messages begin with it
  absl::Time wall;
  bool grown = false;               // the growth that it needed has been published
  uint64_t granularity_bytes = 0;   // of every device's memory
  std::vector<Given> given;         // by every member, of a register
  std::vector<EventDetail> events;  // of what it does; they precede its outcome

  // `why`, behind which operation it is.
  absl::Status Error(const absl::Status& why) const;
};

// "allocate #3 (team 0): "
std::string What(const Operation& op, const Team& team);
std::string Describe(const Operation& op);
bool Same(const Operation& a, const Operation& b);
absl::Status Check(const Operation& op, const Team& team);
void Prepare(Operation& op, const Team& team, size_t index);
// `asked` is the Same as `pending`.
void Merge(Operation& pending, const Operation& asked, const Team& team);
uint64_t HeldBytes(const Operation& op);
std::optional<uint64_t> FreesIfItFails(const Operation& op);
// Whether irisd has more to remember once it has succeeded.
bool KeepsMore(const Operation& op);
Executed Execute(const Operation& op, Run& run);

}  // namespace iris::server
