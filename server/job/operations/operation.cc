#include "server/job/operations/operation.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

// Calls `f` with the OperationOf and the arguments of whichever operation it is.
template <typename F>
auto With(const Operation& op, F&& f) {
  return std::visit(
      [&](const auto& args) {
        using Args = std::decay_t<decltype(args)>;
        return f(OperationOf<Args>(), args);
      },
      op);
}

std::string NameOf(const Operation& op) {
  return With(op, [](auto of, const auto& /*args*/) { return std::string(of.kName); });
}

}  // namespace

absl::Status Run::Error(const absl::Status& why) const {
  return absl::Status(why.code(), absl::StrCat(what, why.message()));
}

std::string What(const Operation& op, const Team& team) {
  return absl::StrCat(NameOf(op), " #", team.next_k, " (", TeamText(team.info.id), "): ");
}

std::string Describe(const Operation& op) {
  return With(op,
              [](auto of, const auto& args) { return absl::StrCat(of.kName, of.Arguments(args)); });
}

bool Same(const Operation& a, const Operation& b) {
  if (a.index() != b.index()) return false;
  return With(a, [&b](auto of, const auto& args) {
    return of.Same(args, std::get<std::decay_t<decltype(args)>>(b));
  });
}

absl::Status Check(const Operation& op, const Team& team) {
  return With(op, [&team](auto of, const auto& args) -> absl::Status {
    if (IsOwnTeam(team.info.id) && !of.kOfOneRank) {
      return absl::InvalidArgumentError(
          "a rank alone allocates, registers, publishes, opens and frees, and nothing else: ask a "
          "team");
    }
    return of.Check(args, team);
  });
}

void Prepare(Operation& op, const Team& team, size_t index) {
  std::visit(
      [&](auto& args) { OperationOf<std::decay_t<decltype(args)>>::Prepare(args, team, index); },
      op);
}

void Merge(Operation& pending, const Operation& asked, const Team& team) {
  std::visit(
      [&](auto& args) {
        using Args = std::decay_t<decltype(args)>;
        OperationOf<Args>::Merge(args, std::get<Args>(asked), team);
      },
      pending);
}

uint64_t HeldBytes(const Operation& op) {
  return With(op, [](auto of, const auto& args) { return of.HeldBytes(args); });
}

std::optional<uint64_t> FreesIfItFails(const Operation& op) {
  return With(op, [](auto of, const auto& args) { return of.FreesIfItFails(args); });
}

bool KeepsMore(const Operation& op) {
  return !std::holds_alternative<FreeOp>(op) && !std::holds_alternative<DestroyTeamOp>(op) &&
         !std::holds_alternative<ConfirmOp>(op);
}

Executed Execute(const Operation& op, Run& run) {
  return With(op, [&run](auto of, const auto& args) { return of.Execute(args, run); });
}

}  // namespace iris::server
