#include "device/base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace iris::base {
namespace {

TEST(ProcessTest, ANameMayHoldAnything) {
  const auto process = ParseProcess("12 (a) T (b\n) S 7 12 12 0 -1\n");
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->name, "a) T (b\n");
  EXPECT_EQ(process->state, 'S');
  EXPECT_EQ(process->parent, 7);
  EXPECT_FALSE(process->stopped());
}

TEST(ProcessTest, StartIsField22) {
  std::string stat = "7 (a) b) 1 2 (c) S";
  for (int field = 4; field <= 30; ++field) stat += " " + std::to_string(field);
  const auto process = ParseProcess(stat);
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->flags, 9u);
  EXPECT_EQ(process->start, 22u);
}

TEST(ProcessTest, AnIncompleteLineHasNoStart) {
  EXPECT_FALSE(ParseProcess("").has_value());
  EXPECT_FALSE(ParseProcess("7 (x").has_value());
  const auto process = ParseProcess("7 (x) S 1 2 3");
  ASSERT_TRUE(process.has_value());
  EXPECT_FALSE(process->start.has_value());
}

TEST(ProcessTest, TellsOfThisProcess) {
  const auto process = ReadProcess(getpid());
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->name, "process_test");
  EXPECT_EQ(process->parent, getppid());
  EXPECT_FALSE(process->stopped());
}

TEST(ProcessTest, TellsWhoIsStopped) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto process = ReadProcess(child);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(process->stopped());
}

TEST(ProcessTest, TellsWhoIsExiting) {
  EXPECT_FALSE(ReadProcess(getpid())->exiting());
  EXPECT_TRUE(ParseProcess("12 (a) R 7 12 12 0 -1 4194564 0\n")->exiting());
  EXPECT_FALSE(ParseProcess("12 (a) R 7 12 12 0 -1 4194560 0\n")->exiting());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  siginfo_t ended = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  const auto process = ReadProcess(child);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(process->exiting());
}

TEST(ProcessTest, NothingOfAFileThatCannotBeRead) {
  // As the file of a process that ended after it was opened: the read fails.
  EXPECT_FALSE(ReadProcessFile("/proc").has_value());
}

TEST(ProcessTest, NothingOfAProcessThatIsNot) {
  EXPECT_FALSE(ReadProcess(-1).has_value());
  EXPECT_FALSE(ParseProcess("").has_value());
  EXPECT_FALSE(ParseProcess("12 (name").has_value());
  EXPECT_FALSE(ParseProcess("12 )name( S 1").has_value());
  EXPECT_FALSE(ParseProcess("12 (name) S").has_value());
}

TEST(ProgramFileTest, IsThisProgramInItsFolder) {
  const std::string file = ProgramFile(), folder = ProgramFolder();
  EXPECT_EQ(file.rfind(folder, 0), 0u);
  EXPECT_EQ(file.substr(folder.size()), "process_test");
}

}  // namespace
}  // namespace iris::base
