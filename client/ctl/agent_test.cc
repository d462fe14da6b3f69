#include "client/ctl/agent.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

const std::string kZero(1, '\0');

HostJob SomeJob() {
  HostJob job;
  job.folder = "/a folder";
  job.bind = true;
  job.options.command = {"program", "", "two\nlines", "it's \"$x\""};
  job.options.n_ranks = 4;
  job.options.first_rank = 2;
  job.options.n_local = 2;
  job.options.job = "train";
  job.options.prefix = false;
  job.options.colour_stderr = true;
  job.options.environment = {"A=1", "B=x=\ny"};
  job.options.kill_after = absl::Milliseconds(1500);
  return job;
}

TEST(AgentTest, AJobArrivesAsItWas) {
  const HostJob job = SomeJob();
  const auto read = DecodeJob(EncodeJob(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->folder, job.folder);
  EXPECT_TRUE(read->bind);
  EXPECT_FALSE(read->verbose);
  EXPECT_EQ(read->options.command, job.options.command);
  EXPECT_EQ(read->options.environment, job.options.environment);
  EXPECT_EQ(read->options.n_ranks, 4);
  EXPECT_EQ(read->options.first_rank, 2);
  EXPECT_EQ(read->options.n_local, 2);
  EXPECT_EQ(read->options.job, "train");
  EXPECT_EQ(read->options.runtime_dir, "");
  EXPECT_FALSE(read->options.prefix);
  EXPECT_TRUE(read->options.capture);
  EXPECT_FALSE(read->options.colour_stdout);
  EXPECT_TRUE(read->options.colour_stderr);
  EXPECT_EQ(read->options.kill_after, absl::Milliseconds(1500));
}

TEST(AgentTest, AJobMayHaveNoVariablesAndNoTimeToEnd) {
  HostJob job = SomeJob();
  job.options.environment.clear();
  job.options.kill_after = absl::InfiniteDuration();
  const auto read = DecodeJob(EncodeJob(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->options.environment.empty());
  EXPECT_EQ(read->options.kill_after, absl::Hours(24 * 365));
}

TEST(AgentTest, RefusesWhatIsNoJob) {
  EXPECT_FALSE(DecodeJob("").ok());
  EXPECT_FALSE(DecodeJob(std::string(100, '\0')).ok());
  const auto changed = [](auto change) {
    HostJob job = SomeJob();
    change(job);
    return DecodeJob(EncodeJob(job)).ok();
  };
  EXPECT_TRUE(changed([](HostJob&) {}));
  EXPECT_FALSE(changed([](HostJob& job) { job.options.first_rank = 3; }));
  EXPECT_FALSE(changed([](HostJob& job) { job.options.first_rank = -1; }));
  EXPECT_FALSE(changed([](HostJob& job) { job.options.n_local = 0; }));
  EXPECT_FALSE(changed([](HostJob& job) { job.options.n_ranks = job.options.n_local = 65; }));
  EXPECT_FALSE(changed([](HostJob& job) { job.options.n_ranks = 8193; }));
  EXPECT_FALSE(changed([](HostJob& job) { job.options.command.clear(); }));
  const std::string text = EncodeJob(SomeJob());
  const std::string words = absl::StrCat(kZero, "4", kZero, "program");
  for (const char* const wrong : {"7", "-1", "x", "", "99999999999999999999"}) {
    const std::string other =
        absl::StrReplaceAll(text, {{words, absl::StrCat(kZero, wrong, kZero, "program")}});
    ASSERT_NE(other, text);
    EXPECT_FALSE(DecodeJob(other).ok()) << wrong;
  }
}

}  // namespace
}  // namespace iris::ctl
