// What the members of a team can ask for together: the operations of the control plane. Plain data.
#pragma once

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/ids.h"
#include "server/job/operations/allocate.h"
#include "server/job/operations/broadcast.h"
#include "server/job/operations/confirm.h"
#include "server/job/operations/create_team.h"
#include "server/job/operations/destroy_team.h"
#include "server/job/operations/free.h"
#include "server/job/operations/grow.h"
#include "server/job/operations/open.h"
#include "server/job/operations/publish.h"
#include "server/job/operations/register.h"
#include "server/job/operations/split.h"

namespace iris::server {

// Every operation that there is. The order is that of recorded states: a new one comes last.
using Operation = std::variant<AllocateOp, FreeOp, BroadcastOp, CreateTeamOp, DestroyTeamOp, GrowOp,
                               OpenOp, PublishOp, RegisterOp, ConfirmOp, SplitOp>;

struct OperationSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Duration timeout;  // zero: the default
  Operation op;
  bool only_thread = false;  // no other thread of the rank has used its context
  absl::Status room;         // not OK: irisd is to keep nothing more for the user, and why
};

}  // namespace iris::server
