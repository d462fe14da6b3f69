// split: every member names a color and a key. The members with one color become a team, in the
// order of their keys.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/job/ids.h"
#include "server/job/operations/operation_of.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct SplitOp {
  struct Wish {
    Rank rank = 0;
    int32_t color = 0;  // negative: the rank comes into no team
    int32_t key = 0;
    friend bool operator==(const Wish&, const Wish&) = default;
  };
  std::vector<Wish> wishes;  // a rank asks with its own; those of the others are merged in
  friend bool operator==(const SplitOp&, const SplitOp&) = default;
};

template <>
struct OperationOf<SplitOp> : OperationDefaults<SplitOp> {
  static constexpr char kName[] = "split";
  static std::string Arguments(const SplitOp& /*op*/) { return ""; }
  static bool Same(const SplitOp& /*a*/, const SplitOp& /*b*/) { return true; }
  static absl::Status Check(const SplitOp& op, const Team& team);
  static void Prepare(SplitOp& op, const Team& team, size_t index);
  static void Merge(SplitOp& pending, const SplitOp& asked, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const SplitOp& op, Run& run);
};

}  // namespace iris::server
