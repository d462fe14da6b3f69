// register: memory that a rank has allocated itself becomes part of its heap, as the descriptors
// say that came with the call. It lies above the heap, in the room that the heap has not grown
// into, and irisd neither counts nor makes it: it only lends it on. Asked of the rank's own team,
// or of another one, of which every member gives memory of its own: all have it at one offset then.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/job/operations/operation_of.h"
#include "server/job/tensor_info.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct RegisterOp {
  // How long each of the allocations is that the call's descriptors are of; they follow each other.
  std::vector<uint64_t> piece_bytes;
  uint64_t lead_bytes = 0;  // of the first one, which are before the range
  uint64_t bytes = 0;       // of the range, which ends in the last one
  std::string name;         // unique (NameTaken), or empty
  TensorInfo tensor;
  // Not empty: this member's memory cannot be shared, and why. Nothing else of the member counts.
  std::string error;
  friend bool operator==(const RegisterOp&, const RegisterOp&) = default;
};

template <>
struct OperationOf<RegisterOp> : OperationDefaults<RegisterOp> {
  static constexpr char kName[] = "register";
  static constexpr bool kOfOneRank = true;
  static std::string Arguments(const RegisterOp& op);
  // Of the same size, for the same; the allocations around it are each member's own.
  static bool Same(const RegisterOp& a, const RegisterOp& b) {
    return a.bytes == b.bytes && a.name == b.name && a.tensor == b.tensor;
  }
  static absl::Status Check(const RegisterOp& op, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const RegisterOp& op, Run& run);
};

}  // namespace iris::server
