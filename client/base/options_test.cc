#include "client/base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>

#include "tests/cc/require.h"

namespace iris::internal {
namespace {

using iris::testing::Require;
using ::testing::HasSubstr;

absl::StatusOr<HostContextOptions> Resolve(const ContextOptions& options,
                                           std::map<std::string, std::string> variables = {}) {
  return ResolveOptions({options}, [&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

std::string Refusal(const absl::StatusOr<HostContextOptions>& resolved) {
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument) << resolved.status();
  return std::string(resolved.status().message());
}

TEST(OptionsTest, VariablesThatOthersReadAreChecked) {
  for (const char* variable : {"IRIS_CHECK_ACCESS", "IRIS_CCL_CHECK", "IRIS_CCL_LINES",
                               "IRIS_LOG_LEVEL", "IRIS_EMU_WORKERS", "IRIS_EMU_RESIDENT_BLOCKS"}) {
    EXPECT_THAT(Refusal(Resolve({}, {{variable,
                                      "gar\x1b"
                                      "bage"}})),
                HasSubstr(std::string(variable) + "=\"gar\\x1b"
                                                  "bage\" is not "));
    EXPECT_TRUE(Resolve({}, {{variable, ""}}).ok()) << variable;
  }
}

TEST(OptionsTest, NothingGivenIsRankZeroOfOne) {
  auto resolved = Require(Resolve({}));
  EXPECT_EQ(resolved.rank, 0);
  EXPECT_EQ(resolved.n_ranks, 1);
  EXPECT_EQ(resolved.local_rank, 0);
  EXPECT_EQ(resolved.heap_bytes, 1ull << 30);
  EXPECT_EQ(resolved.join_timeout, std::chrono::seconds(60));
  EXPECT_EQ(resolved.timeout, std::chrono::seconds(60));
  EXPECT_EQ(resolved.connect_timeout, std::chrono::seconds(2));
}

TEST(OptionsTest, GivenTimeoutsStand) {
  using std::chrono::seconds;
  auto resolved = Require(
      Resolve({.join_timeout = seconds(1), .timeout = seconds(3), .connect_timeout = seconds(4)}));
  EXPECT_EQ(resolved.join_timeout, seconds(1));
  EXPECT_EQ(resolved.timeout, seconds(3));
  EXPECT_EQ(resolved.connect_timeout, seconds(4));
}

TEST(OptionsTest, ProgramsThatNobodyLaunchedDoNotMeet) {
  const auto job = [](ContextOptions options, std::map<std::string, std::string> variables = {}) {
    auto resolved = Resolve(options, std::move(variables));
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved.ok() ? resolved->job : "";
  };
  EXPECT_EQ(job({}).rfind("alone-" + std::to_string(getpid()) + "-", 0), 0u) << job({});
  EXPECT_NE(job({}), job({}));
  EXPECT_NE(job({.rank = 0, .n_ranks = 1}), job({.rank = 0, .n_ranks = 1}));
  // A process that names a job, or has several ranks, expects others to join.
  EXPECT_EQ(job({}, {{"IRIS_JOB", "mine"}}), "mine");
  EXPECT_EQ(job({}, {{"IRIS_JOB", "default"}}), "default");
  EXPECT_EQ(job({.job = "mine"}), "mine");
  EXPECT_EQ(job({.rank = 0, .n_ranks = 2}), "default");
  EXPECT_EQ(job({.rank = 0, .n_ranks = 1}, {{"IRIS_JOB", "mine"}}), "mine");
  EXPECT_EQ(job({}, {{"IRIS_RANK", "0"}, {"IRIS_N_RANKS", "1"}}), "default");
}

void ExpectPlace(const absl::StatusOr<HostContextOptions>& resolved, int rank, int n_ranks,
                 int local_rank) {
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->job, "mine");
  EXPECT_EQ(resolved->rank, rank);
  EXPECT_EQ(resolved->n_ranks, n_ranks);
  EXPECT_EQ(resolved->local_rank, local_rank);
}

TEST(OptionsTest, EnvironmentFillsWhatIsLeftOut) {
  ExpectPlace(Resolve({.job = "mine"}, {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}),
              2, 4, 1);
}

TEST(OptionsTest, OptionsOverrideTheEnvironment) {
  ExpectPlace(Resolve({.job = "mine", .rank = 1, .n_ranks = 2, .local_rank = 0},
                      {{"IRIS_RANK", "5"}, {"IRIS_N_RANKS", "8"}, {"IRIS_JOB", "other"}}),
              1, 2, 0);
}

TEST(OptionsTest, BadVariablesDoNotMatterWhenRankAndSizeAreGiven) {
  EXPECT_TRUE(Resolve({.rank = 0, .n_ranks = 1}, {{"RANK", "x"}, {"WORLD_SIZE", "y"}}).ok());
}

TEST(OptionsTest, BadVariablesMatterOtherwise) {
  EXPECT_THAT(Refusal(Resolve({.rank = 0}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}})),
              HasSubstr("RANK=\"x\""));
}

TEST(OptionsTest, JobNameComesFromTheEnvironmentAlsoWithGivenRanks) {
  auto resolved = Require(Resolve({.rank = 0, .n_ranks = 1}, {{"IRIS_JOB", "env"}}));
  EXPECT_EQ(resolved.job, "env");
}

TEST(OptionsTest, LocalRankIsTheRankUnlessSaid) {
  auto resolved = Require(Resolve({.rank = 3, .n_ranks = 4}));
  EXPECT_EQ(resolved.local_rank, 3);
}

TEST(OptionsTest, LargeHeapsHaveRoomForATrace) {
  const auto events = [](uint64_t heap_bytes, std::map<std::string, std::string> environment) {
    return Resolve({.rank = 0, .n_ranks = 1, .heap_bytes = heap_bytes}, environment)->trace_events;
  };
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(events(256 * kMiB, {}), 16380u);
  EXPECT_EQ(events(256 * kMiB - 1, {}), 0u);
  EXPECT_EQ(events(1 * kMiB, {{"IRIS_TRACE_EVENTS", "5"}}), 5u);
  EXPECT_EQ(events(512 * kMiB, {{"IRIS_TRACE_EVENTS", "0"}}), 0u);
  EXPECT_EQ(events(1 * kMiB, {{"IRIS_TRACE", "x.json"}}), 16380u);
}

TEST(OptionsTest, NumbersOfEventsThatAreNone) {
  for (const char* text : {"x", "-1", "16777217"}) {
    EXPECT_THAT(Refusal(Resolve({.rank = 0, .n_ranks = 1}, {{"IRIS_TRACE_EVENTS", text}})),
                HasSubstr("IRIS_TRACE_EVENTS"));
  }
  EXPECT_THAT(Refusal(Resolve({.rank = 0, .n_ranks = 1},
                              {{"IRIS_TRACE_EVENTS", "0"}, {"IRIS_TRACE", "x"}})),
              HasSubstr("set one of the two"));
}

TEST(OptionsTest, RankBeyondSize) {
  EXPECT_THAT(Refusal(Resolve({.rank = 4, .n_ranks = 4})), HasSubstr("rank 4 of 4"));
}

TEST(OptionsTest, ZeroRanks) {
  EXPECT_THAT(Refusal(Resolve({.rank = 0, .n_ranks = 0})), HasSubstr("rank 0 of 0"));
}

TEST(OptionsTest, NegativeRank) {
  EXPECT_THAT(Refusal(Resolve({.rank = -2, .n_ranks = 4})), HasSubstr("must not be negative"));
}

TEST(OptionsTest, HeapBytesFromTheEnvironment) {
  auto resolved = Require(Resolve({}, {{"IRIS_HEAP_BYTES", "64M"}}));
  EXPECT_EQ(resolved.heap_bytes, 64ull << 20);
}

TEST(OptionsTest, GivenHeapBytesStand) {
  auto resolved = Require(Resolve({.heap_bytes = 2 << 20}, {{"IRIS_HEAP_BYTES", "64M"}}));
  EXPECT_EQ(resolved.heap_bytes, 2ull << 20);
}

TEST(OptionsTest, BadHeapBytesNameTheVariable) {
  EXPECT_THAT(Refusal(Resolve({}, {{"IRIS_HEAP_BYTES", "much"}})), HasSubstr("IRIS_HEAP_BYTES"));
}

TEST(OptionsTest, HeapBytesTakeTheOneGrammarOfSizes) {
  for (const char* text : {"512M", "512MiB", "536870912", "0x20000000"}) {
    EXPECT_EQ(Resolve({}, {{"IRIS_HEAP_BYTES", text}})->heap_bytes, 512ull << 20) << text;
  }
}

TEST(OptionsTest, MaxHeapBelowHeap) {
  EXPECT_THAT(Refusal(Resolve({.heap_bytes = 4 << 20, .max_heap_bytes = 2 << 20})),
              HasSubstr("max_heap_bytes=2 MiB is less"));
}

ContextOptions RankOfNode() { return {.rank = 5, .n_ranks = 8, .local_rank = 1, .n_local = 4}; }

TEST(OptionsTest, RanksOfSeveralNodes) {
  ContextOptions options = RankOfNode();
  ASSERT_TRUE(Resolve(options).ok());
  EXPECT_EQ(Resolve(options)->rendezvous, "");  // irisd may have an etcd
  options.rendezvous = "a:5";
  auto resolved = Require(Resolve(options, {{"IRIS_JOB_SECRET", "this is the secret"}}));
  EXPECT_TRUE(resolved.spans_nodes());
  EXPECT_EQ(resolved.secret, "this is the secret");
  options.secret = "short";
  EXPECT_THAT(Refusal(Resolve(options)), HasSubstr("option secret has 5 bytes"));
  options.secret.clear();
  options.rendezvous = "a";
  EXPECT_THAT(Refusal(Resolve(options)), HasSubstr("rendezvous=\"a\""));
  options.n_local = 9;
  EXPECT_THAT(Refusal(Resolve(options)), HasSubstr("n_local=9 is more than 8 ranks"));
}

TEST(OptionsTest, GivenRanksOfSeveralNodesNeedALocalRank) {
  const std::map<std::string, std::string> variables = {{"IRIS_N_LOCAL", "4"},
                                                        {"IRIS_RENDEZVOUS", "a:5"}};
  EXPECT_THAT(Refusal(Resolve({.rank = 5, .n_ranks = 8}, variables)),
              HasSubstr("give the local rank"));
  auto with = variables;
  with["IRIS_LOCAL_RANK"] = "1";
  auto resolved = Require(Resolve({.rank = 5, .n_ranks = 8}, with));
  EXPECT_EQ(resolved.local_rank, 1);
}

TEST(OptionsTest, TheLaunchersPmixIsAskedForWhatIsMissing) {
  const std::map<std::string, std::string> bare = {{"OMPI_COMM_WORLD_RANK", "0"},
                                                   {"OMPI_COMM_WORLD_SIZE", "4"},
                                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                   {"PMIX_NAMESPACE", "5"}};
  const auto asks = [&](const char* variable, const char* value, ContextOptions options = {}) {
    auto variables = bare;
    variables[variable] = value;
    auto resolved = Resolve(options, variables);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved.ok() && resolved->asks_pmix;
  };
  EXPECT_TRUE(asks("OTHER", ""));
  EXPECT_TRUE(asks("IRIS_RENDEZVOUS", "a:5"));
  EXPECT_TRUE(asks("IRIS_JOB_SECRET", "this is the secret"));
  EXPECT_FALSE(asks("IRIS_RENDEZVOUS", "a:5", {.secret = "this is the secret"}));
  EXPECT_FALSE(asks("PMIX_NAMESPACE", "")) << "without a server";
  EXPECT_FALSE(asks("OMPI_COMM_WORLD_LOCAL_SIZE", "4")) << "on one node";
  // Its server has other ranks.
  EXPECT_FALSE(asks("OTHER", "", {.rank = 0, .n_ranks = 4, .local_rank = 0, .n_local = 2}));
  EXPECT_FALSE(asks("OTHER", "", {.rank = 1, .local_rank = 1}));
  auto ours = bare;
  ours.merge(std::map<std::string, std::string>{
      {"IRIS_RANK", "0"}, {"IRIS_N_RANKS", "4"}, {"IRIS_LOCAL_RANK", "0"}, {"IRIS_N_LOCAL", "2"}});
  EXPECT_FALSE(Resolve({}, ours)->asks_pmix) << "the launcher is another one";
}

TEST(OptionsTest, OneNodeNeedsNoRendezvous) {
  auto resolved = Require(Resolve({.rank = 1, .n_ranks = 2}, {{"IRIS_N_LOCAL", "8"}}));
  EXPECT_FALSE(resolved.spans_nodes());
}

}  // namespace
}  // namespace iris::internal
