// Operations of the control plane: the arguments with which a rank asks for one, and the functions
// of each operation, which the files of operations/ define. Plain data.
//
// To add an operation: its struct here and its name in Operation; its functions in a file of
// operations/; its message in proto/iris/v1/heap.proto; the conversion between the two in
// server/state/operation_proto.cc. Nothing else in irisd knows which operations there are.
//
// Each operation has:
//   kName                 the word for messages and events
//   Execute(run)          carries it out; every rank has asked, and for the same (operation.h)
// and, where the default does not fit:
//   Arguments()           the arguments for messages, in parentheses; Check has passed
//   Check(team)           an error that the arguments of one rank alone show
//   kOfOneRank            a rank's own team can be asked for it: it concerns no other rank
//   kKeepsNothing         irisd has no more to remember once it has succeeded
//   Same(other)           true if two ranks ask for the same; by default they are compared by ==
//   Prepare(team, index)  makes equal what means the same to the rank with this index in the team,
//                         and drops what is not this rank's to say
//   Merge(asked, team)    adds what another rank brings along to the arguments of the first one
//   HeldBytes()           bytes of a value, which irisd holds until the outcome
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
// An error is the operation's outcome; the caller says before it which operation this was.
using Executed = absl::StatusOr<std::variant<Concluded, NeedsGrowth, Adopts>>;

// The type and shape of an allocation as its client names them, for people to read.
struct TensorInfo {
  std::string dtype;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// A range of the heap, at the same offset for every rank of the team. A range that a rank's own
// team allocates is that rank's alone, and no other heap has anything at its offset.
struct AllocateOp {
  static constexpr char kName[] = "allocate";
  static constexpr bool kOfOneRank = true;
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;  // raised to the smallest that irisd has
  std::string name;              // unique (Job::CheckName), or empty
  TensorInfo tensor;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  void Prepare(const Team& team, size_t index);
  Executed Execute(Run& run) const;
  friend bool operator==(const AllocateOp&, const AllocateOp&) = default;
};

// Gives back what the same team allocated. A rank's own team also gives back what it has opened.
struct FreeOp {
  static constexpr char kName[] = "free";
  static constexpr bool kOfOneRank = true;
  static constexpr bool kKeepsNothing = true;
  uint64_t offset_bytes = 0;

  std::string Arguments() const;
  Executed Execute(Run& run) const;
  friend bool operator==(const FreeOp&, const FreeOp&) = default;
};

// The root's value goes to every rank. It is shared, never copied, from the root's request to the
// answers.
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

// Some ranks of a team, in an order of their own, become a team.
struct CreateTeamOp {
  static constexpr char kName[] = "create_team";
  std::vector<Rank> ranks;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
  friend bool operator==(const CreateTeamOp&, const CreateTeamOp&) = default;
};

// The last operation of a team. Its barrier slot and its area become free.
struct DestroyTeamOp {
  static constexpr char kName[] = "destroy_team";
  static constexpr bool kKeepsNothing = true;
  // How far the rank's epoch word has come. Ranks may differ: the furthest counts.
  uint32_t last_barrier_epoch = 0;

  bool Same(const DestroyTeamOp& /*other*/) const { return true; }
  absl::Status Check(const Team& team) const;
  void Merge(const DestroyTeamOp& asked, const Team& team);
  Executed Execute(Run& run) const;
};

// At least so many more bytes in every rank's heap, within the stride.
struct GrowOp {
  static constexpr char kName[] = "grow";
  uint64_t bytes = 0;

  std::string Arguments() const;
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
  friend bool operator==(const GrowOp&, const GrowOp&) = default;
};

// A rank looks for what another rank has allocated alone, by its name, and asks its own team. The
// call never waits: no such name yet is not an error, and the rank asks again.
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

// Gives a name to what a rank has allocated alone without one, so that others can open it. The rank
// asks its own team.
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

// Memory that a rank has allocated itself becomes part of its heap, by the descriptors that came
// with the call. It lies above the heap, in the room that the heap has not grown into, and irisd
// neither counts nor makes it: it only lends it on. A rank asks its own team, or every rank of
// another team gives memory of its own: then all have it at one offset.
struct RegisterOp {
  static constexpr char kName[] = "register";
  static constexpr bool kOfOneRank = true;
  // Bytes of each allocation of which the call has a descriptor; they follow each other.
  std::vector<uint64_t> piece_bytes;
  uint64_t lead_bytes = 0;  // of the first one, which are before the range
  uint64_t bytes = 0;       // of the range, which ends in the last one
  std::string name;         // unique (Job::CheckName), or empty
  TensorInfo tensor;
  // Not empty: why this rank's memory cannot be shared. Nothing else of the rank counts.
  std::string error;

  std::string Arguments() const;
  // The allocations around the range are each rank's own.
  bool Same(const RegisterOp& other) const {
    return bytes == other.bytes && name == other.name && tensor == other.tensor;
  }
  absl::Status Check(const Team& team) const;
  Executed Execute(Run& run) const;
};

// Every rank has mapped what the team has registered together, or says why it could not. If the
// operation fails, the memory is registered no more: either all ranks can use it, or none has it.
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

// Every rank names a color and a key. The ranks with one color become a team, in the order of their
// keys.
struct SplitOp {
  static constexpr char kName[] = "split";
  struct Wish {
    Rank rank = 0;
    int32_t color = 0;  // negative: the rank comes into no team
    int32_t key = 0;
    friend bool operator==(const Wish&, const Wish&) = default;
  };
  std::vector<Wish> wishes;  // a rank asks with its own; those of the others are merged in

  bool Same(const SplitOp& /*other*/) const { return true; }
  absl::Status Check(const Team& team) const;
  void Prepare(const Team& team, size_t index);
  void Merge(const SplitOp& asked, const Team& team);
  Executed Execute(Run& run) const;
};

// The order is that of recorded states: a new operation comes last.
using Operation = std::variant<AllocateOp, FreeOp, BroadcastOp, CreateTeamOp, DestroyTeamOp, GrowOp,
                               OpenOp, PublishOp, RegisterOp, ConfirmOp, SplitOp>;

struct OperationSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Duration timeout;  // zero: the default
  Operation op;
  bool only_thread = false;  // no other thread of the rank has used its context
  absl::Status room;         // not OK: why irisd is to keep nothing more for the user
};

}  // namespace iris::server
