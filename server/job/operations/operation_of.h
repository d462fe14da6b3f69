// OperationOf<Args>: what one operation of the control plane can do, given its arguments. Each
// operation has a file of its own beside this one: its arguments, and OperationOf for them.
//
// To add an operation: its file here, with its line in operation_spec.h; its message in
// proto/iris/v1/heap.proto; how the one becomes the other in server/state/operation_proto.cc.
// Nothing else in irisd knows which operations there are.
//
// Each OperationOf<Args> has these (all static, pure but for Execute):
//   kName                   the word for messages and events
// Arguments(args)         the arguments for messages, in parentheses or empty; of what Check allows
//   Same(a, b)              whether two members ask for the same
//   Check(args, team)       an error: what one member's arguments alone show to be wrong
//   Execute(args, run)      all have asked, and for the same: does it (operation.h has Run)
// and may replace what OperationDefaults has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace iris::server {

struct Team;

template <typename Args>
struct OperationOf;

template <typename Args>
struct OperationDefaults {
  // Whether a rank's own team can be asked for it: it concerns nobody else.
  static constexpr bool kOfOneRank = false;
  // Arguments as the member with this index in the team means them: what means the same is made
  // equal, and what is not this member's to say is dropped.
  static void Prepare(Args& /*args*/, const Team& /*team*/, size_t /*index*/) {}
  // Adds to `pending`, the first member's, what another one brings along.
  static void Merge(Args& /*pending*/, const Args& /*asked*/, const Team& /*team*/) {}
  // Bytes of a value in the arguments, which irisd holds until the outcome.
  static uint64_t HeldBytes(const Args& /*args*/) { return 0; }
  // The offset of what the team has registered and has no more if the operation fails.
  static std::optional<uint64_t> FreesIfItFails(const Args& /*args*/) { return std::nullopt; }
};

}  // namespace iris::server
