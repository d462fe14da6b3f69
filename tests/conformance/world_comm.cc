// The part of World that knows collectives.
#include "device/collective/collective.h"
#include "tests/conformance/world.h"

namespace iris::conformance {

ccl::Comm Rank::NewComm(const DeviceTeam& team) { return NewComm(team, ccl::Config{}); }

ccl::Comm Rank::NewComm(const DeviceTeam& team, const ccl::Config& config) {
  ccl::CommOptions options;
  options.context = ctx;
  options.team = team;
  options.config = config;
  if (config.max_blocks == 0) {
    options.config.max_blocks = ccl::MaxBlocksWhenShared(world_->ranks_per_device());
  }
  options.workspace_bytes = ccl::WorkspaceBytes(team.size, options.config);
  options.workspace = New<uint8_t>(options.workspace_bytes);
  static_assert(sizeof(ccl::ErrorReport) <= 256, "world.cc has room for so much");
  options.report = world_->NewErrorReport();
  ccl::Comm comm;
  if (team.index < team.size) {
    const Result result = ccl::CreateComm(options, &comm);
    EXPECT_TRUE(result.ok()) << result.what;
  }
  HostBarrier();  // all have loaded their kernels
  return comm;
}

}  // namespace iris::conformance
