#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/events/log.h"

namespace iris::server {
namespace {

class LineWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // as irisd does; a writer may outlive its pipe's reader
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
  }
  void TearDown() override {
    for (const int fd : pipe_) close(fd);
  }
  // Reads until `text` has come, or 20 s have passed.
  std::string ReadUntil(const std::string& text) {
    fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
    const absl::Time end = absl::Now() + absl::Seconds(20);
    std::string got;
    while (!absl::StrContains(got, text) && absl::Now() < end) {
      char buffer[65536];
      const ssize_t n = read(pipe_[0], buffer, sizeof(buffer));
      if (n > 0) got.append(buffer, static_cast<size_t>(n));
      if (n <= 0) absl::SleepFor(absl::Milliseconds(1));
    }
    return got;
  }

  int pipe_[2] = {-1, -1};
};

TEST_F(LineWriterTest, TheDestructorWaitsUntilAllIsWritten) {
  std::string wanted;
  {
    LineWriter writer(pipe_[1], nullptr);
    for (int i = 0; i < 1000; ++i) {
      writer.Write(absl::StrCat(i, "\n"));
      absl::StrAppend(&wanted, i, "\n");
    }
  }
  EXPECT_EQ(ReadUntil("999\n"), wanted);
}

TEST_F(LineWriterTest, NobodyWaitsForAFullPipeAndItsReaderHearsWhatIsMissing) {
  constexpr uint64_t kLines = 3000;
  const std::string text(1000, 'x');
  const absl::Time start = absl::Now();
  std::string got;
  uint64_t n_left_out = 0;
  {
    const Logger logger(LogLevel::kInfo, LogFormat::kKeyValue, pipe_[1]);
    for (uint64_t i = 0; i < kLines; ++i) logger.Plain(text);
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    n_left_out = logger.lines_left_out();
    EXPECT_GT(n_left_out, 500u);  // two queues and a pipe take less than 2,200
    got = ReadUntil("lines were left out");
    logger.Info("it goes on");
    got += ReadUntil("it goes on\"\n");
  }
  uint64_t n_written = 0, n_said = 0;
  for (const absl::string_view line : absl::StrSplit(got, '\n')) {
    if (line == text) ++n_written;
    const size_t number = line.rfind("lines=");
    uint64_t n = 0;
    if (number != line.npos && absl::SimpleAtoi(line.substr(number + 6), &n)) n_said += n;
  }
  EXPECT_EQ(n_said, n_left_out);
  EXPECT_EQ(n_written + n_said, kLines);
  EXPECT_TRUE(absl::StrContains(got, "level=warning msg=\"lines were left out"));
}

TEST_F(LineWriterTest, TheDestructorDoesNotWaitForAPipeThatNobodyReads) {
  const absl::Time start = absl::Now();
  {
    LineWriter writer(pipe_[1], [](uint64_t) { return std::string(); });
    for (int i = 0; i < 300; ++i) writer.Write(std::string(1000, 'x'));
  }
  EXPECT_LT(absl::Now() - start, LineWriter::kEndWithin + absl::Seconds(10));
}

TEST_F(LineWriterTest, ADescriptorThatFailsCostsItsLinesOnly) {
  LineWriter writer(-1, [](uint64_t) { return std::string("left out\n"); });
  writer.Write("lost\n");
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (writer.n_left_out() == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(writer.n_left_out(), 1u);
}

}  // namespace
}  // namespace iris::server
