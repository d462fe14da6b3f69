// broadcast: the root's value goes to every member. The value is shared, never copied, from the
// root's request to every member's answer.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/job/ids.h"
#include "server/job/operations/operation_of.h"
#include "server/job/shared_bytes.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct BroadcastOp {
  Rank root = 0;
  SharedBytes value;  // the root's; what others say is dropped
};

template <>
struct OperationOf<BroadcastOp> : OperationDefaults<BroadcastOp> {
  static constexpr char kName[] = "broadcast";
  static std::string Arguments(const BroadcastOp& op);
  static bool Same(const BroadcastOp& a, const BroadcastOp& b) { return a.root == b.root; }
  static absl::Status Check(const BroadcastOp& op, const Team& team);
  static void Prepare(BroadcastOp& op, const Team& team, size_t index);
  static void Merge(BroadcastOp& pending, const BroadcastOp& asked, const Team& team);
  static uint64_t HeldBytes(const BroadcastOp& op) { return op.value.size(); }
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const BroadcastOp& op, Run& run);
};

}  // namespace iris::server
