// The operations of a team that irisd decides, and their outcomes, as plain values.
// docs/protocol.md has their rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/wire/job.h"
#include "iris/context_types.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

struct FreeOp {
  uint64_t offset_bytes = 0;
};
// Sends root's value to every rank. Only root has a value, which is borrowed: it may be large.
struct BroadcastOp {
  uint32_t root = 0;  // world rank
  absl::string_view value;
};
struct CreateTeamOp {
  std::vector<uint32_t> ranks;  // world ranks in the order wanted
};
struct DestroyTeamOp {
  uint32_t last_barrier_epoch = 0;  // of this rank's epoch word
};
struct GrowOp {
  uint64_t bytes = 0;
};
// Opens an allocation of one rank by its name. For this rank's own team.
struct OpenOp {
  uint32_t rank = 0;
  std::string name;
};
// Names an allocation that has no name. For this rank's own team.
struct PublishOp {
  uint64_t offset_bytes = 0;
  std::string name;
};
// Registers memory that the rank has allocated itself: for its own team, or, with memory of every
// other member, for another one. `options` has its bytes, name, dtype and shape.
struct RegisterOp {
  AllocateOptions options;
  std::vector<uint64_t> piece_bytes;  // of the allocations that contain it
  uint64_t lead_bytes = 0;            // of the first allocation, before it
  // One for each allocation. Shared, because a call that was not answered is repeated.
  std::vector<std::shared_ptr<const wire::UniqueFd>> descriptors;
  absl::Status error;  // not OK: it cannot be shared, so that the others need not wait for it
};
// Reports whether this rank has mapped the memory that its team registers together.
struct ConfirmOp {
  uint64_t offset_bytes = 0;
  absl::Status mapped;
};
// Makes teams of the ranks with the same color, in the order of their keys.
struct SplitOp {
  uint32_t rank = 0;  // the caller
  int32_t color = 0;  // negative: the caller is in no team
  int32_t key = 0;
};
using Operation = std::variant<AllocateOptions, FreeOp, BroadcastOp, CreateTeamOp, DestroyTeamOp,
                               GrowOp, OpenOp, PublishOp, RegisterOp, ConfirmOp, SplitOp>;

// The k-th call of this rank on a team.
struct OperationCall {
  uint64_t job_id = 0;
  uint32_t team_id = 0;
  uint64_t k = 0;
  absl::Duration timeout;
  Operation op;
  bool only_thread = false;  // no other thread of this rank has used the context
};

// A host barrier that this rank waits in.
struct BarrierWait {
  uint64_t job_id = 0;
  uint32_t team_id = 0;
  uint32_t epoch = 0;
  std::vector<uint32_t> missing;  // world ranks
  bool only_thread = false;
  uint64_t moment = 0;      // of the previous answer; 0: there is none
  bool time_is_up = false;  // answered at once
};
// The answer of irisd about a barrier.
struct BarrierAnswer {
  uint64_t moment = 0;
  bool cannot_end = false;
  std::string text;  // why it cannot end; or, if the time is up, where the missing are
};

// An opened allocation, in the heap of its owner.
struct OpenedRange {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  std::string dtype;        // as that rank said
  bool registered = false;  // memory of that rank's own, which is borrowed from irisd
};

struct OperationResult {
  uint64_t offset_bytes = 0;          // allocate, register
  std::string value;                  // broadcast
  std::optional<TeamInfo> team;       // create a team, split: the one that this rank is in
  uint64_t heap_bytes = 0;            // the heap's size after the operation
  std::optional<OpenedRange> opened;  // open: absent while there is nothing of that name
};

// Holds the result of a team's k-th operation, which is the same on all ranks of the team.
struct Outcome {
  uint64_t k = 0;
  absl::Status status;
  OperationResult result;
};

}  // namespace iris::internal
