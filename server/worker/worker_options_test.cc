#include "server/worker/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace iris::server {
namespace {

TEST(WorkerOptionsTest, SurviveTheCommandLine) {
  WorkerOptions options;
  options.tenant = "uid 7 pid=4026531836 --memory=1";
  options.memory_bytes = 1ull << 40;
  options.seccomp = false;
  options.json_log = true;
  options.closing = true;
  options.looking = LookingLimits{FileKind{0020000, (uint64_t{195} << 32) + 255}, 7, 8};
  options.ids = WorkerIds{65534, 65533};
  const absl::StatusOr<WorkerOptions> back = FromArguments(ToArguments(options));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->tenant, options.tenant);
  EXPECT_EQ(back->memory_bytes, options.memory_bytes);
  EXPECT_FALSE(back->seccomp);
  EXPECT_TRUE(back->json_log);
  EXPECT_TRUE(back->closing);
  EXPECT_EQ(back->looking, options.looking);
  ASSERT_TRUE(back->ids.has_value());
  EXPECT_EQ(back->ids->uid, 65534u);
  EXPECT_EQ(back->ids->gid, 65533u);
}

TEST(WorkerOptionsTest, WithoutIdsAWorkerStaysWhoItIs) {
  WorkerOptions options;
  options.memory_bytes = 1;
  const absl::StatusOr<WorkerOptions> back = FromArguments(ToArguments(options));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_FALSE(back->ids.has_value());
  EXPECT_FALSE(back->closing);
  EXPECT_EQ(back->looking, std::nullopt);
  EXPECT_TRUE(back->seccomp);
}

TEST(WorkerOptionsTest, RefusesWhatIrisdDoesNotSay) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"--tenant=x"},
           {"--memory=x"},
           {"--memory=1", "--uid=5"},
           {"--memory=1", "--gid=5"},
           {"--memory=1", "--uid=0", "--gid=5"},
           {"--memory=1", "--uid=-1", "--gid=5"},
           {"--memory=1", "--unknown=1"},
           {"--memory=1", "serve"},
       }) {
    EXPECT_EQ(FromArguments(arguments).status().code(), absl::StatusCode::kInvalidArgument)
        << ::testing::PrintToString(arguments);
  }
}

}  // namespace
}  // namespace iris::server
