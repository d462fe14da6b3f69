// Teams.
#include <utility>

#include "client/abi/objects.h"
#include "iris/types.h"
#include "proto/wire/limits.h"

using namespace iris::abi;  // functions in C have no namespace of their own

namespace {

absl::Status Give(ContextObject& context, absl::StatusOr<iris::Team> team, iris_team** out) {
  if (!team.ok()) return team.status();
  return context.state->Give(std::make_unique<TeamObject>(context.state, *std::move(team)), out);
}

}  // namespace

iris_code iris_team_get_info(iris_context* context, iris_team* team, iris_team_info* out) {
  return WithTeam(context, team, [&](auto&, const auto& members) {
    iris_team_info info = {};
    info.id = members.id;
    info.index = members.index;
    info.n_ranks = static_cast<uint32_t>(members.ranks.size());
    info.ranks = members.ranks.data();
    return WriteStruct(info, "iris_team_info", out);
  });
}

iris_code iris_team_get_device(iris_context* context, iris_team* team, void* device_team,
                               size_t bytes) {
  return WithTeam(context, team, [&](auto&, const auto& members) -> absl::Status {
    IRIS_ABI_TRY(NotNull(device_team, "the place for the DeviceTeam"));
    if (bytes > 1 << 16) return Invalid("no DeviceTeam has so many bytes");
    const iris::DeviceTeam& device = members.device;
    std::memset(device_team, 0, bytes);
    std::memcpy(device_team, &device, bytes < sizeof(device) ? bytes : sizeof(device));
    return absl::OkStatus();
  });
}

iris_code iris_team_create(iris_context* context, iris_team* parent, const uint32_t* ranks,
                           uint32_t n_ranks, iris_team** out) {
  return WithTeam(context, parent, [&](auto& object, const auto& members) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "create a team: the place for the handle"));
    if (n_ranks > 0) IRIS_ABI_TRY(NotNull(ranks, "create a team: the list of ranks"));
    const uint32_t most =
        object.host().spans_nodes() ? iris::wire::kMaxWorldRanks : iris::kMaxTeamRanks;
    if (n_ranks > most) {
      return Invalid("create a team of ", n_ranks, " ranks: a team has at most ", most);
    }
    return Give(object, object.host().teams().CreateTeam({ranks, n_ranks}, members), out);
  });
}

iris_code iris_team_split(iris_context* context, iris_team* parent, int32_t color, int32_t key,
                          iris_team** out) {
  return WithTeam(context, parent, [&](auto& object, const auto& members) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "split a team: the place for the handle"));
    return Give(object, object.host().teams().SplitTeam(color, key, members), out);
  });
}

iris_code iris_team_local(iris_context* context, iris_team** out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "the team of this node: the place for the handle"));
    return Give(object, object.host().LocalTeam(), out);
  });
}

iris_code iris_team_rail(iris_context* context, iris_team** out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "the team of a rail: the place for the handle"));
    return Give(object, object.host().RailTeam(), out);
  });
}

iris_code iris_team_destroy(iris_context* context, iris_team* team) {
  return WithTeam(context, team, [&](auto& object, const auto& members) -> absl::Status {
    if (team == nullptr) {
      return Invalid("destroy a team: the world is not destroyed");
    }
    IRIS_ABI_TRY(object.host().Usable());
    absl::Status status;
    if (members.member()) status = object.host().teams().DestroyTeam(members);
    if (status.ok()) object.state->Disown(Kind::kTeam, team);
    return status;
  });
}
