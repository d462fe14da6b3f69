// Operations of the control plane: the arguments with which a rank asks for one, and the functions
// of each operation, which the files of operations/ define. Plain data.
//
// To add an operation: its struct here and its name in Operation; its functions in a file of
// operations/; its message in proto/iris/v1/heap.proto; the conversion between the two in
// server/state/operation_proto.cc. Nothing else in irisd knows which operations there are.
//
// Each operation has:
//   kName                 the word for messages and events
//   Execute(run)          carries it out, after every rank has asked for the same (operation.h)
// and, where the default does not fit:
//   Arguments()           the arguments for messages, in parentheses; Check has passed
//   Check(team)           returns an error that is evident from one rank's arguments
//   kOfOneRank            a rank can ask its own team for it: it concerns no other rank
//   kKeepsNothing         irisd keeps nothing of it once it has succeeded
//   Same(other)           true if two ranks ask for the same; by default they are compared by ==
//   Prepare(team, index)  normalizes the arguments of the rank with this index in the team, and
//                         drops those that the rank may not give
//   Merge(asked, team)    adds another rank's arguments to those of the first rank
//   HeldBytes()           bytes of the value that irisd holds until the outcome
//   FreesIfItFails()      offset of registered memory that the team loses if the operation fails
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/job/ids.h"
#include "server/job/shared_bytes.h"

namespace iris::server {

struct Team;
struct Run;
struct Concluded;
struct NeedsGrowth;
struct Adopts;
// An error is the operation's outcome; the caller prepends the name of the operation.
using Executed = absl::StatusOr<std::variant<Concluded, NeedsGrowth, Adopts>>;

// The type and shape of an allocation, as its client describes them to people.
struct TensorInfo {
  std::string dtype;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// Allocates a range of the heap, at the same offset for every rank of the team. A range that a
// rank's own team allocates belongs to that rank only, and no other heap uses its offset.
struct AllocateOp {
  static constexpr char kName[] = "allocate";
  static constexpr bool kOfOneRank = true;
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;  // raised to irisd's smallest alignment
  std::string name;              // unique (Job::CheckName), or empty
  TensorInfo tensor;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  void Prepare(const Team& team, size_t index);
  Executed Execute(Run& run) const;
  friend bool operator==(const AllocateOp&, const AllocateOp&) = default;
};

// Frees an allocation of the same team, or closes one that a rank's own team has opened.
struct FreeOp {
  static constexpr char kName[] = "free";
  static constexpr bool kOfOneRank = true;
  static constexpr bool kKeepsNothing = true;
  uint64_t offset_bytes = 0;

  std::string Arguments() const;
  Executed Execute(Run& run) const;
  friend bool operator==(const FreeOp&, const FreeOp&) = default;
};

// Sends the root's value to every rank. The value is shared, never copied, from the root's request
// to the answers.
struct BroadcastOp {
  static constexpr char kName[] = "broadcast";
  Rank root = 0;
  SharedBytes value;  // the root's; values of other ranks are dropped

  std::string Arguments() const;
  bool Same(const BroadcastOp& other) const { return root == other.root; }
  absl::Status Check(const Team& team) const;
  void Prepare(const Team& team, size_t index);
  void Merge(const BroadcastOp& asked, const Team& team);
  uint64_t HeldBytes() const { return value.size(); }
  Executed Execute(Run& run) const;
};

// Makes a team of some ranks of this team, in the order of `ranks`.
struct CreateTeamOp {
  static constexpr char kName[] = "create_team";
  std::vector<Rank> ranks;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
  friend bool operator==(const CreateTeamOp&, const CreateTeamOp&) = default;
};

// Ends a team, as its last operation, and frees its barrier slot and its area.
struct DestroyTeamOp {
  static constexpr char kName[] = "destroy_team";
  static constexpr bool kKeepsNothing = true;
  // The rank's epoch word. Ranks may differ: the largest one is used.
  uint32_t last_barrier_epoch = 0;

  bool Same(const DestroyTeamOp& /*other*/) const { return true; }
  absl::Status Check(const Team& team) const;
  void Merge(const DestroyTeamOp& asked, const Team& team);
  Executed Execute(Run& run) const;
};

// Grows every rank's heap by at least `bytes`, within its stride.
struct GrowOp {
  static constexpr char kName[] = "grow";
  uint64_t bytes = 0;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
  friend bool operator==(const GrowOp&, const GrowOp&) = default;
};

// Opens, by name, an allocation that another rank made alone. The rank asks its own team. The call
// never waits: it succeeds even if no allocation has the name, and the rank asks again.
struct OpenOp {
  static constexpr char kName[] = "open";
  static constexpr bool kOfOneRank = true;
  Rank owner = 0;
  std::string name;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
  friend bool operator==(const OpenOp&, const OpenOp&) = default;
};

// Names an allocation that a rank made alone and without a name, so that other ranks can open it.
// The rank asks its own team.
struct PublishOp {
  static constexpr char kName[] = "publish";
  static constexpr bool kOfOneRank = true;
  uint64_t offset_bytes = 0;
  std::string name;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
  friend bool operator==(const PublishOp&, const PublishOp&) = default;
};

// Adds memory that a rank allocated itself to its heap, through the descriptors that came with the
// call. The memory lies above the heap, in a part of the stride that the heap has not reached.
// irisd neither creates nor counts the memory, and only lends it. A rank asks its own team; or
// every rank of another team registers memory of its own, and all get the same offset.
struct RegisterOp {
  static constexpr char kName[] = "register";
  static constexpr bool kOfOneRank = true;
  // Sizes of the allocations whose descriptors came with the call. They are contiguous.
  std::vector<uint64_t> piece_bytes;
  uint64_t lead_bytes = 0;  // in the first allocation, before the range
  uint64_t bytes = 0;       // of the range, which ends in the last allocation
  std::string name;         // unique (Job::CheckName), or empty
  TensorInfo tensor;
  // Why this rank's memory cannot be shared. If it is not empty, other fields are ignored.
  std::string error;

  std::string Arguments() const;
  // Ranks may differ in the allocations around the range.
  bool Same(const RegisterOp& other) const {
    return bytes == other.bytes && name == other.name && tensor == other.tensor;
  }
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
};

// Reports that a rank has mapped memory that the team registered together, or why it could not. If
// the operation fails, the memory is no longer registered: either all ranks can use it, or none.
struct ConfirmOp {
  static constexpr char kName[] = "confirm";
  static constexpr bool kKeepsNothing = true;
  uint64_t offset_bytes = 0;
  std::string error;  // not empty: why this rank could not map it

  std::string Arguments() const;
  bool Same(const ConfirmOp& other) const { return offset_bytes == other.offset_bytes; }
  absl::Status Check(const Team& team) const;
  uint64_t FreesIfItFails() const { return offset_bytes; }
  Executed Execute(Run& run) const;
};

// Every rank gives a color and a key. Ranks of one color become a team, in the order of their keys.
struct SplitOp {
  static constexpr char kName[] = "split";
  struct Wish {
    Rank rank = 0;
    int32_t color = 0;  // negative: the rank joins no team
    int32_t key = 0;
    friend bool operator==(const Wish&, const Wish&) = default;
  };
  std::vector<Wish> wishes;  // a rank asks with its own wish; the other ranks' wishes are merged in

  bool Same(const SplitOp& /*other*/) const { return true; }
  absl::Status Check(const Team& team) const;
  void Prepare(const Team& team, size_t index);
  void Merge(const SplitOp& asked, const Team& team);
  Executed Execute(Run& run) const;
};

// Recorded states have the index of the type: a new operation comes last.
using Operation = std::variant<AllocateOp, FreeOp, BroadcastOp, CreateTeamOp, DestroyTeamOp, GrowOp,
                               OpenOp, PublishOp, RegisterOp, ConfirmOp, SplitOp>;

struct OperationSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Duration timeout;  // zero: the default
  Operation op;
  bool only_thread = false;  // no other thread of the rank has used its context
  absl::Status room;         // an error if irisd must keep nothing more for the user
};

}  // namespace iris::server
