#include "client/base/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"

namespace iris::base {
namespace {

using ::testing::HasSubstr;

int starter = 4711;

absl::StatusOr<LauncherInfo> Read(std::map<std::string, std::string> variables) {
  return ReadLauncher(
      [&](const char* name) -> std::optional<std::string> {
        const auto it = variables.find(name);
        if (it == variables.end()) return std::nullopt;
        return it->second;
      },
      [](const std::string& name) { return name == "hydra_" ? starter : 0; });
}

LauncherInfo Good(std::map<std::string, std::string> variables) {
  auto info = Read(std::move(variables));
  EXPECT_TRUE(info.ok()) << info.status();
  return info.value_or(LauncherInfo{});
}

std::string Text(std::map<std::string, std::string> variables) {
  const LauncherInfo info = Good(std::move(variables));
  return absl::StrCat(info.launcher, ": rank ", info.rank, " of ", info.n_ranks, ", local ",
                      info.local_rank, ", job ", info.job);
}

// The message of a refusal; fails the test unless it is kInvalidArgument.
std::string Bad(std::map<std::string, std::string> variables) {
  auto info = Read(std::move(variables));
  EXPECT_EQ(info.status().code(), absl::StatusCode::kInvalidArgument) << info.status();
  return std::string(info.status().message());
}

TEST(LauncherTest, NothingSetMeansOneRankOfTheDefaultJob) {
  EXPECT_EQ(Text({}), "none: rank 0 of 1, local 0, job default");
}

TEST(LauncherTest, IrisAll) {
  EXPECT_EQ(Text({{"IRIS_RANK", "3"},
                  {"IRIS_N_RANKS", "8"},
                  {"IRIS_LOCAL_RANK", "1"},
                  {"IRIS_JOB", "train"}}),
            "iris: rank 3 of 8, local 1, job train");
}

TEST(LauncherTest, IrisLocalRankDefaultsToRankAndJobToDefault) {
  const LauncherInfo info = Good({{"IRIS_RANK", "3"}, {"IRIS_N_RANKS", "8"}});
  EXPECT_EQ(info.local_rank, 3);
  EXPECT_EQ(info.job, "default");
}

TEST(LauncherTest, IrisWithoutSizeNamesTheMissingVariable) {
  EXPECT_THAT(Bad({{"IRIS_RANK", "0"}}), HasSubstr("IRIS_N_RANKS is missing beside IRIS_RANK"));
}

TEST(LauncherTest, IrisWithoutRankNamesTheMissingVariable) {
  EXPECT_THAT(Bad({{"IRIS_N_RANKS", "4"}}), HasSubstr("IRIS_RANK is missing beside IRIS_N_RANKS"));
}

TEST(LauncherTest, IrisLocalRankAloneNamesTheMissingVariable) {
  EXPECT_THAT(Bad({{"IRIS_LOCAL_RANK", "0"}}), HasSubstr("IRIS_RANK is missing"));
}

TEST(LauncherTest, IrisJobAloneNamesTheJobOfOneRank) {
  const LauncherInfo info = Good({{"IRIS_JOB", "mine"}});
  EXPECT_EQ(info.launcher, "none");
  EXPECT_EQ(info.job, "mine");
}

TEST(LauncherTest, IrisJobOverridesAnotherLaunchersName) {
  EXPECT_EQ(Good({{"IRIS_JOB", "mine"},
                  {"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"TORCHELASTIC_RUN_ID", "abc"}})
                .job,
            "mine");
}

TEST(LauncherTest, EmptyIrisJobIsAsIfNotSet) { EXPECT_EQ(Good({{"IRIS_JOB", ""}}).job, "default"); }

TEST(LauncherTest, IrisComesBeforeTorchrun) {
  const LauncherInfo info =
      Good({{"IRIS_RANK", "1"}, {"IRIS_N_RANKS", "2"}, {"RANK", "5"}, {"WORLD_SIZE", "6"}});
  EXPECT_EQ(info.launcher, "iris");
  EXPECT_EQ(info.rank, 1);
}

TEST(LauncherTest, TorchrunAll) {
  EXPECT_EQ(Text({{"RANK", "5"},
                  {"WORLD_SIZE", "6"},
                  {"LOCAL_RANK", "1"},
                  {"TORCHELASTIC_RUN_ID", "abc"},
                  {"MASTER_ADDR", "node1"},
                  {"MASTER_PORT", "29500"}}),
            "torchrun: rank 5 of 6, local 1, job torchrun-abc");
}

TEST(LauncherTest, TorchrunStandaloneRunsAreToldApartByTheirStore) {
  EXPECT_EQ(Good({{"RANK", "0"},
                  {"WORLD_SIZE", "1"},
                  {"TORCHELASTIC_RUN_ID", "none"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", "29501"}})
                .job,
            "torchrun-127.0.0.1:29501");
}

TEST(LauncherTest, TorchrunWithoutRunIdUsesTheMaster) {
  EXPECT_EQ(
      Good({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}})
          .job,
      "torchrun-node1:29500");
}

TEST(LauncherTest, TorchrunWithHalfAMasterIsTheDefaultJob) {
  EXPECT_EQ(Good({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node1"}}).job, "default");
}

TEST(LauncherTest, TorchrunWithoutWorldSize) {
  EXPECT_THAT(Bad({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is missing beside RANK"));
}

TEST(LauncherTest, TorchrunWithoutRank) {
  EXPECT_THAT(Bad({{"WORLD_SIZE", "4"}}), HasSubstr("RANK is missing beside WORLD_SIZE"));
}

TEST(LauncherTest, OpenMpiAll) {
  EXPECT_EQ(Text({{"OMPI_COMM_WORLD_RANK", "2"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                  {"PMIX_NAMESPACE", "prterun-n1-77@1"}}),
            "openmpi: rank 2 of 4, local 0, job openmpi-prterun-n1-77@1");
}

TEST(LauncherTest, OpenMpiFourNamesTheJobByItsId) {
  EXPECT_EQ(Good({{"OMPI_COMM_WORLD_RANK", "2"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_MCA_ess_base_jobid", "12345"}})
                .job,
            "openmpi-12345");
}

TEST(LauncherTest, OpenMpiWithoutSize) {
  EXPECT_THAT(Bad({{"OMPI_COMM_WORLD_RANK", "2"}}), HasSubstr("OMPI_COMM_WORLD_SIZE is missing"));
}

TEST(LauncherTest, OpenMpiUnderSlurmIsOpenMpi) {
  const LauncherInfo info = Good({{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"SLURM_PROCID", "0"},
                                  {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(info.launcher, "openmpi");
  EXPECT_EQ(info.rank, 2);
}

TEST(LauncherTest, MpichAll) {
  EXPECT_EQ(Text({{"PMI_RANK", "2"},
                  {"PMI_SIZE", "4"},
                  {"MPI_LOCALRANKID", "2"},
                  {"MPI_LOCALNRANKS", "4"}}),
            "mpich: rank 2 of 4, local 2, job mpich-4711");
}

TEST(LauncherTest, MpichBesideSlurmIsWhoStartedTheRank) {
  const std::map<std::string, std::string> both = {{"PMI_RANK", "1"},
                                                   {"PMI_SIZE", "2"},
                                                   {"SLURM_PROCID", "0"},
                                                   {"SLURM_NTASKS", "2"},
                                                   {"SLURM_JOB_ID", "9"}};
  EXPECT_EQ(Good(both).launcher, "mpich") << "mpiexec in a job of Slurm";
  starter = 0;
  EXPECT_EQ(Good(both).launcher, "slurm") << "srun --mpi=pmi2";
  starter = 4711;
}

TEST(LauncherTest, MpichWithoutSize) {
  EXPECT_THAT(Bad({{"PMI_RANK", "0"}}), HasSubstr("PMI_SIZE is missing beside PMI_RANK"));
}

TEST(LauncherTest, OpenMpiBesideItsPmiIsOpenMpi) {
  EXPECT_EQ(Good({{"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"},
                  {"PMI_RANK", "1"},
                  {"PMI_SIZE", "2"}})
                .launcher,
            "openmpi");
}

TEST(LauncherTest, RanksOfThisNodeByEachLauncher) {
  EXPECT_EQ(
      Good({{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}})
          .n_local,
      8);
  EXPECT_EQ(Good({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})
                .n_local,
            2);
  EXPECT_EQ(Good({{"PMI_RANK", "0"},
                  {"PMI_SIZE", "4"},
                  {"MPI_LOCALRANKID", "0"},
                  {"MPI_LOCALNRANKS", "1"}})
                .n_local,
            1);
  EXPECT_EQ(Good({{"IRIS_RANK", "5"},
                  {"IRIS_N_RANKS", "8"},
                  {"IRIS_LOCAL_RANK", "1"},
                  {"IRIS_N_LOCAL", "4"}})
                .n_local,
            4);
  // Not more than the job has.
  EXPECT_EQ(Good({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"IRIS_N_LOCAL", "8"}}).n_local, 2);
  EXPECT_EQ(Good({{"IRIS_RANK", "0"}, {"IRIS_N_RANKS", "2"}}).n_local, 0);
}

TEST(LauncherTest, RanksOfThisNodeBySlurm) {
  const auto of_node = [](const char* node, const char* tasks) {
    return Good({{"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "9"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_STEP_NUM_NODES", "5"},
                 {"SLURM_NODEID", node},
                 {"SLURM_STEP_TASKS_PER_NODE", tasks}})
        .n_local;
  };
  EXPECT_EQ(of_node("0", "2(x4),1"), 2);
  EXPECT_EQ(of_node("3", "2(x4),1"), 2);
  EXPECT_EQ(of_node("4", "2(x4),1"), 1);
  EXPECT_EQ(Good({{"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "8"},
                  {"SLURM_LOCALID", "0"},
                  {"SLURM_NNODES", "2"},
                  {"SLURM_NTASKS_PER_NODE", "4"}})
                .n_local,
            4);
  const std::map<std::string, std::string> unknown = {{"SLURM_PROCID", "0"},
                                                      {"SLURM_NTASKS", "4"},
                                                      {"SLURM_LOCALID", "0"},
                                                      {"SLURM_STEP_NUM_NODES", "2"}};
  EXPECT_THAT(Bad(unknown), HasSubstr("4 ranks on 2 nodes (SLURM_STEP_NUM_NODES)"));
  EXPECT_THAT(Bad(unknown), HasSubstr("set IRIS_N_LOCAL"));
  auto wrong = unknown;
  wrong["SLURM_NODEID"] = "0";
  for (const char* tasks : {"2(x", "x", "2(x0)", "0", "2(x99999999)"}) {
    wrong["SLURM_STEP_TASKS_PER_NODE"] = tasks;
    EXPECT_THAT(Bad(wrong), HasSubstr("SLURM_STEP_TASKS_PER_NODE")) << tasks;
  }
}

TEST(LauncherTest, RanksOfSeveralNodesNeedTheirLocalRank) {
  EXPECT_THAT(Bad({{"RANK", "0"}, {"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}}),
              HasSubstr("LOCAL_RANK is missing"));
}

TEST(LauncherTest, MpichOverNodesIsNamedByTheirRendezvous) {
  EXPECT_EQ(Good({{"PMI_RANK", "0"},
                  {"PMI_SIZE", "4"},
                  {"MPI_LOCALRANKID", "0"},
                  {"MPI_LOCALNRANKS", "2"},
                  {"IRIS_RENDEZVOUS", "a:5"}})
                .job,
            "mpich-a:5");
  EXPECT_EQ(Good({{"PMI_RANK", "0"},
                  {"PMI_SIZE", "4"},
                  {"MPI_LOCALRANKID", "0"},
                  {"MPI_LOCALNRANKS", "2"}})
                .job,
            LauncherInfo().job);
}

absl::StatusOr<int> First(NodeOfRank node, std::map<std::string, std::string> variables = {}) {
  return FirstLocalRank(node, [&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

TEST(LauncherTest, FirstRankOfANode) {
  EXPECT_EQ(First({5, 8, 1, 4}).value_or(-1), 4);
  for (const NodeOfRank& wrong :
       {NodeOfRank{0, 8, 1, 4}, {5, 8, 4, 4}, {6, 8, 1, 4}, {80, 800, 1, 65}}) {
    const auto first = First(wrong);
    EXPECT_EQ(first.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(first.status().message()), HasSubstr("follow each other"));
  }
  // Cyclic placement: rank 4 is on the first node.
  std::map<std::string, std::string> slurm = {
      {"SLURM_PROCID", "4"}, {"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  EXPECT_THAT(std::string(First({4, 8, 2, 4}, slurm).status().message()),
              HasSubstr("Slurm has placed 0 ranks"));
  slurm["SLURM_NODEID"] = "1";
  EXPECT_EQ(First({4, 8, 0, 4}, slurm).value_or(-1), 4);
  slurm["SLURM_GTIDS"] = "4,5,6,7";
  EXPECT_EQ(First({4, 8, 0, 4}, slurm).value_or(-1), 4);
  // Its last rank is where it would be otherwise.
  slurm["SLURM_GTIDS"] = "1,3,5,7";
  EXPECT_THAT(std::string(First({7, 8, 3, 4}, slurm).status().message()),
              HasSubstr("Slurm has placed ranks 1,3,5,7 here"));
  // Of other tasks, such as mpirun's own.
  slurm["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)";
  EXPECT_EQ(First({7, 8, 3, 4}, slurm).value_or(-1), 4);
}

absl::StatusOr<std::string> Rendezvous(std::map<std::string, std::string> variables) {
  return ReadRendezvous([&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

TEST(LauncherTest, WhereNodesMeet) {
  EXPECT_EQ(*Rendezvous({{"IRIS_RENDEZVOUS", "[fe80::1]:7"}, {"MASTER_ADDR", "a"}}), "[fe80::1]:7");
  EXPECT_EQ(*Rendezvous({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}), "a:29501");
  EXPECT_EQ(*Rendezvous({{"MASTER_ADDR", "fd00::1"}, {"MASTER_PORT", "1"}}), "[fd00::1]:2");
  const auto slurm = [](const char* nodes) {
    return *Rendezvous(
        {{"SLURM_STEP_NODELIST", nodes}, {"SLURM_JOB_ID", "1000"}, {"SLURM_STEP_ID", "3"}});
  };
  EXPECT_EQ(slurm("n[07-12,20]-x,b"), "n07-x:26003");
  EXPECT_EQ(slurm("n[7,9]"), "n7:26003");
  EXPECT_EQ(slurm("a,b[1-2]"), "a:26003");
  EXPECT_EQ(slurm("one"), "one:26003");
  for (const char* wrong : {"a", "a:", ":5", "a:0", "a:70000", "fe80::1:5", "a:5x"}) {
    EXPECT_THAT(std::string(Rendezvous({{"IRIS_RENDEZVOUS", wrong}}).status().message()),
                HasSubstr("IRIS_RENDEZVOUS"))
        << wrong;
  }
  EXPECT_FALSE(Rendezvous({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}}).ok());
  EXPECT_FALSE(Rendezvous({{"SLURM_STEP_NODELIST", "n[1-2"}, {"SLURM_JOB_ID", "1"}}).ok());
  EXPECT_EQ(*Rendezvous({}), "");
  EXPECT_EQ(*Rendezvous({{"MASTER_ADDR", "a"}, {"SLURM_JOB_ID", "1"}}), "");
}

TEST(LauncherTest, Secrets) {
  EXPECT_EQ(*ReadSecret("x", "sixteen letters!"), "sixteen letters!");
  EXPECT_EQ(*ReadSecret("x", "000102030405060708090a0B0c0D0e0f"),
            std::string("\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17", 16));
  EXPECT_EQ(*ReadSecret("x", "0123456789abcdef"), "0123456789abcdef");  // too short to be digits
  for (const std::string& wrong : {std::string("hush"), std::string(65, 'x')}) {
    const auto secret = ReadSecret("x", wrong);
    EXPECT_EQ(secret.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(secret.status().message()), ::testing::Not(HasSubstr(wrong)));
  }
}

TEST(LauncherTest, RanksOfThisNodeAlone) {
  EXPECT_EQ(Good({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "8"}}).n_ranks, 8);
  EXPECT_EQ(Good({{"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "4"},
                  {"SLURM_STEP_NUM_NODES", "1"},
                  {"SLURM_NNODES", "2"}})
                .n_ranks,
            4);
  EXPECT_EQ(Good({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_NNODES", "2"}}).n_ranks, 1);
}

TEST(LauncherTest, FindsAnAncestorByTheBeginningOfItsName) {
  std::ifstream file("/proc/" + std::to_string(getppid()) + "/comm");
  std::string name;
  ASSERT_TRUE(std::getline(file, name));
  EXPECT_EQ(FindAncestor(name.substr(0, 3)), getppid());
  EXPECT_EQ(FindAncestor("no process has this name"), 0);
}

TEST(LauncherTest, PmixWithItsOwnSize) {
  EXPECT_EQ(Text({{"PMIX_RANK", "1"}, {"PMIX_SIZE", "3"}, {"PMIX_NAMESPACE", "ns7"}}),
            "pmix: rank 1 of 3, local 1, job pmix-ns7");
}

TEST(LauncherTest, PmixTakesItsSizeFromSlurm) {
  const LauncherInfo info =
      Good({{"PMIX_RANK", "1"}, {"SLURM_NTASKS", "3"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(info.launcher, "pmix");
  EXPECT_EQ(info.n_ranks, 3);
  EXPECT_EQ(info.local_rank, 0);
}

TEST(LauncherTest, PmixWithoutAnySize) {
  EXPECT_THAT(Bad({{"PMIX_RANK", "1"}}), HasSubstr("PMIX_SIZE is missing beside PMIX_RANK"));
}

TEST(LauncherTest, SlurmAll) {
  EXPECT_EQ(Text({{"SLURM_PROCID", "7"},
                  {"SLURM_NTASKS", "16"},
                  {"SLURM_LOCALID", "3"},
                  {"SLURM_JOB_ID", "991"},
                  {"SLURM_STEP_ID", "2"}}),
            "slurm: rank 7 of 16, local 3, job slurm-991.2");
}

TEST(LauncherTest, SlurmOldNameOfTheSize) {
  EXPECT_EQ(Good({{"SLURM_PROCID", "1"}, {"SLURM_NPROCS", "2"}}).n_ranks, 2);
}

TEST(LauncherTest, SlurmJobWithoutStep) {
  EXPECT_EQ(Good({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "991"}}).job,
            "slurm-991");
}

TEST(LauncherTest, ShellOfASlurmAllocationIsNoRank) {
  // salloc sets the size for the shell; only srun makes ranks.
  const LauncherInfo info = Good({{"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "991"}});
  EXPECT_EQ(info.launcher, "none");
  EXPECT_EQ(info.n_ranks, 1);
}

TEST(LauncherTest, SlurmWithoutSize) {
  EXPECT_THAT(Bad({{"SLURM_PROCID", "1"}}), HasSubstr("SLURM_NTASKS is missing"));
}

TEST(LauncherTest, RankThatIsNoNumber) {
  EXPECT_THAT(Bad({{"IRIS_RANK", "two"}, {"IRIS_N_RANKS", "4"}}),
              HasSubstr("IRIS_RANK=\"two\" is not a number"));
}

TEST(LauncherTest, EmptyRankIsNoNumber) {
  EXPECT_THAT(Bad({{"RANK", ""}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK=\"\" is not a number"));
}

TEST(LauncherTest, RankWithTrailingText) {
  EXPECT_THAT(Bad({{"RANK", "1x"}, {"WORLD_SIZE", "4"}}), HasSubstr("is not a number"));
}

TEST(LauncherTest, NegativeRank) {
  EXPECT_THAT(Bad({{"IRIS_RANK", "-1"}, {"IRIS_N_RANKS", "4"}}),
              HasSubstr("IRIS_RANK=-1 is out of range"));
}

TEST(LauncherTest, RankEqualToSize) {
  EXPECT_THAT(Bad({{"IRIS_RANK", "4"}, {"IRIS_N_RANKS", "4"}}),
              HasSubstr("IRIS_N_RANKS=4 allows 0 to 3"));
}

TEST(LauncherTest, ZeroRanks) {
  EXPECT_THAT(Bad({{"IRIS_RANK", "0"}, {"IRIS_N_RANKS", "0"}}),
              HasSubstr("IRIS_N_RANKS=0 is out of range"));
}

TEST(LauncherTest, SizeBeyondAnInt) {
  EXPECT_THAT(Bad({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}),
              HasSubstr("WORLD_SIZE=\"99999999999\" is not a number"));
}

TEST(LauncherTest, BadSizeNamesTheVariableItCameFrom) {
  EXPECT_THAT(Bad({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "x"}}), HasSubstr("SLURM_NTASKS=\"x\""));
}

TEST(LauncherTest, BadLocalRank) {
  EXPECT_THAT(Bad({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "-2"}}),
              HasSubstr("LOCAL_RANK=-2 is out of range"));
}

TEST(LauncherTest, HugeValueIsCutInTheMessage) {
  EXPECT_LT(Bad({{"RANK", std::string(100000, 'z')}, {"WORLD_SIZE", "1"}}).size(), 300u);
}

TEST(LauncherTest, LongJobNamesOfLaunchersAreCut) {
  EXPECT_EQ(
      Good({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", std::string(500, 'r')}})
          .job.size(),
      128u);
}

TEST(LauncherTest, ReadsTheProcessEnvironment) {
  setenv("IRIS_RANK", "1", 1);
  setenv("IRIS_N_RANKS", "2", 1);
  auto info = ReadLauncher();
  unsetenv("IRIS_RANK");
  unsetenv("IRIS_N_RANKS");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->rank, 1);
  EXPECT_EQ(info->n_ranks, 2);
}

}  // namespace
}  // namespace iris::base
