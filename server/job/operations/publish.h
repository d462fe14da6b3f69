// publish: gives a name to what a rank has allocated alone without one, so that others can open it.
// Asked of the rank's own team.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/job/operations/operation_of.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct PublishOp {
  uint64_t offset_bytes = 0;
  std::string name;
  friend bool operator==(const PublishOp&, const PublishOp&) = default;
};

template <>
struct OperationOf<PublishOp> : OperationDefaults<PublishOp> {
  static constexpr char kName[] = "publish";
  static constexpr bool kOfOneRank = true;
  static std::string Arguments(const PublishOp& op);
  static bool Same(const PublishOp& a, const PublishOp& b) { return a == b; }
  static absl::Status Check(const PublishOp& op, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const PublishOp& op, Run& run);
};

}  // namespace iris::server
