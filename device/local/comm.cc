// The part of Rank that knows collectives.
#include "device/local/world.h"
#include "iris/collective/collective.h"

namespace iris::local {

Result Rank::NewComm(const DeviceTeam& team, const ccl::Config& config, ccl::Comm* comm) {
  *comm = ccl::Comm();
  ccl::CommOptions options;
  options.context = ctx;
  options.team = team;
  options.config = config;
  if (config.max_blocks == 0) {
    options.config.max_blocks = ccl::MaxBlocksWhenShared(world_->ranks_per_device());
  }
  options.workspace_bytes = ccl::WorkspaceBytes(team.size, options.config);
  options.workspace = New<uint8_t>(options.workspace_bytes);
  options.report = static_cast<ccl::ErrorReport*>(world_->NewReport(sizeof(ccl::ErrorReport)));
  Result result;
  if (options.workspace == nullptr || options.report == nullptr) {
    result = {StatusCode::kInvalidArgument, "the world has no room for another communicator"};
  } else if (team.index < team.size) {
    result = ccl::CreateComm(options, comm);
    if (result.ok()) world_->AtEnd([made = *comm]() mutable { ccl::ReleaseComm(&made); });
  }
  HostBarrier();  // all have loaded their kernels
  return result;
}

}  // namespace iris::local
