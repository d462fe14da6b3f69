// The part of World that knows collectives.
#include "iris/collective/collective.h"
#include "tests/conformance/world.h"

namespace iris::conformance {

ccl::Config Rank::SharedConfig() const {
  ccl::Config config;
  config.max_blocks = ccl::MaxBlocksWhenShared(world_.ranks_per_device());
  return config;
}

ccl::Comm Rank::NewComm(const DeviceTeam& team) { return NewComm(team, ccl::Config{}); }

ccl::Comm Rank::NewComm(const DeviceTeam& team, const ccl::Config& config) {
  ccl::Comm comm;
  RequireOk(rank_.NewComm(team, config, &comm));
  return comm;
}

}  // namespace iris::conformance
