// confirm: every member has mapped what the team has registered together, or says why it could not.
// Whatever else comes of it than success, the memory is registered no more: either all members can
// use it, or none has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/job/ids.h"
#include "server/job/operations/operation_of.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct ConfirmOp {
  uint64_t offset_bytes = 0;
  std::string error;  // not empty: this member could not map it, and why
  friend bool operator==(const ConfirmOp&, const ConfirmOp&) = default;
};

template <>
struct OperationOf<ConfirmOp> : OperationDefaults<ConfirmOp> {
  static constexpr char kName[] = "confirm";
  static std::string Arguments(const ConfirmOp& op);
  static bool Same(const ConfirmOp& a, const ConfirmOp& b) {
    return a.offset_bytes == b.offset_bytes;
  }
  static absl::Status Check(const ConfirmOp& op, const Team& team);
  static std::optional<uint64_t> FreesIfItFails(const ConfirmOp& op) { return op.offset_bytes; }
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const ConfirmOp& op, Run& run);
};

}  // namespace iris::server
