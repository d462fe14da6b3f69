#include "server/job/operations/operation.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "server/job/text.h"

namespace iris::server {

std::string What(const Operation& op, const Team& team) {
  const char* const name = std::visit([](const auto& args) { return args.kName; }, op);
  return absl::StrCat(name, " #", team.next_k, " (", TeamText(team.info.id), "): ");
}

std::string Describe(const Operation& op) {
  return std::visit(
      [](const auto& args) {
        if constexpr (requires { args.Arguments(); }) return args.kName + args.Arguments();
        return std::string(args.kName);
      },
      op);
}

bool Same(const Operation& a, const Operation& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b](const auto& args) {
        using Args = std::decay_t<decltype(args)>;
        const Args& others = std::get<Args>(b);
        if constexpr (requires { &Args::Same; }) {
          return args.Same(others);
        } else {
          return args == others;
        }
      },
      a);
}

absl::Status Check(const Operation& op, const Team& team) {
  return std::visit(
      [&team](const auto& args) -> absl::Status {
        if constexpr (!requires { args.kOfOneRank; }) {
          if (IsOwnTeam(team.info.id)) {
            return absl::InvalidArgumentError(
                "a rank alone allocates, registers, publishes, opens and frees, and nothing else: "
                "ask a team");
          }
        }
        if constexpr (requires { args.Check(team); }) return args.Check(team);
        return absl::OkStatus();
      },
      op);
}

void Prepare(Operation& op, const Team& team, size_t index) {
  std::visit(
      [&](auto& args) {
        if constexpr (requires { &std::decay_t<decltype(args)>::Prepare; }) {
          args.Prepare(team, index);
        }
      },
      op);
}

void Merge(Operation& pending, const Operation& asked, const Team& team) {
  std::visit(
      [&](auto& args) {
        using Args = std::decay_t<decltype(args)>;
        if constexpr (requires { &Args::Merge; }) args.Merge(std::get<Args>(asked), team);
      },
      pending);
}

uint64_t HeldBytes(const Operation& op) {
  return std::visit(
      [](const auto& args) -> uint64_t {
        if constexpr (requires { args.HeldBytes(); }) return args.HeldBytes();
        return 0;
      },
      op);
}

std::optional<uint64_t> FreesIfItFails(const Operation& op) {
  return std::visit(
      [](const auto& args) -> std::optional<uint64_t> {
        if constexpr (requires { args.FreesIfItFails(); }) return args.FreesIfItFails();
        return std::nullopt;
      },
      op);
}

bool KeepsNothing(const Operation& op) {
  return std::visit(
      [](const auto& args) {
        return requires { args.kKeepsNothing; };
      },
      op);
}

Executed Execute(const Operation& op, Run& run) {
  return std::visit([&run](const auto& args) { return args.Execute(run); }, op);
}

}  // namespace iris::server
