// irisd --supervise: the real program under its supervisor, as an operator starts it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {
namespace {

DaemonOptions Supervised() {
  DaemonOptions options;
  options.n_devices = 1;
  options.device_memory = "64MiB";
  options.supervised = true;
  return options;
}

TEST(IrisdSuperviseTest, ServesAgainAfterADeath) {
  auto daemon = Daemon::Start(Supervised());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const std::string dir = (*daemon)->runtime_dir();
  EXPECT_TRUE(std::filesystem::exists(dir + "/.supervisor/notify"));
  const pid_t first = (*daemon)->Supervised();
  ASSERT_GT(first, 0);
  ASSERT_TRUE(Eventually([&] { return absl::StrContains((*daemon)->Log(), "irisd serves"); }));
  kill(first, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const pid_t now = (*daemon)->Supervised();
    return now > 0 && now != first;
  }));
  ASSERT_TRUE(Eventually([&] { return (*daemon)->GetStatus().ok(); })) << (*daemon)->Log();
  EXPECT_TRUE(absl::StrContains((*daemon)->Log(), "is started again")) << (*daemon)->Log();

  kill((*daemon)->pid(), SIGHUP);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains((*daemon)->Log(), "the settings are reloaded");
  })) << (*daemon)->Log();
  const absl::StatusOr<int> code = (*daemon)->Stop();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir));
}

TEST(IrisdSuperviseTest, SaysWhatIsWrongAndEnds) {
  DaemonOptions options = Supervised();
  options.flags = {"--max-jobs", "x"};
  const auto daemon = Daemon::Start(options);
  EXPECT_TRUE(absl::StrContains(daemon.status().message(), "irisd: --max-jobs: \"x\" is not"))
      << daemon.status();

  // An irisd that serves the directory without a supervisor stays alone.
  TempDir dir;
  options.flags = {};
  options.supervised = false;
  options.runtime_dir = dir.path();
  const auto alone = Daemon::Start(options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  options.supervised = true;
  // Another irisd answers there, so that the start seems to succeed.
  const auto second = Daemon::Start(options);
  if (second.ok()) {
    EXPECT_TRUE(Eventually([&] { return !(*second)->alive(); }));
    EXPECT_TRUE(absl::StrContains((*second)->Log(), "another irisd")) << (*second)->Log();
  }
  EXPECT_TRUE((*alone)->GetStatus().ok());
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/.supervisor"));
}

}  // namespace
}  // namespace iris::testing
