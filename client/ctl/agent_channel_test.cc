#include "client/ctl/agent_channel.h"

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

// An agent's channel and iris-run's. `raw` writes to the latter beside the agent.
class AgentChannelTest : public testing::Test {
 protected:
  AgentChannelTest() {
    int up[2], down[2];
    EXPECT_EQ(pipe(up), 0);
    EXPECT_EQ(pipe(down), 0);
    raw_ = wire::UniqueFd(dup(up[1]));
    agent_ = std::make_unique<AgentChannel>(wire::UniqueFd(down[0]), wire::UniqueFd(up[1]), false);
    run_ = std::make_unique<AgentChannel>(wire::UniqueFd(up[0]), wire::UniqueFd(down[1]), true);
  }

  void Raw(absl::string_view text) {
    EXPECT_EQ(write(raw_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // Returns the next frame as "type:payload", or "" if there is none, or an error.
  static std::string Next(AgentChannel& channel) {
    while (channel.Receive() == AgentChannel::Read::kData) {
    }
    const auto frame = channel.Next();
    if (!frame.ok()) return absl::StrCat("error: ", frame.status().message());
    if (!frame->has_value()) return "";
    return absl::StrCat(std::string(1, static_cast<char>((*frame)->type)), ":", (*frame)->payload);
  }

  wire::UniqueFd raw_;
  std::unique_ptr<AgentChannel> agent_, run_;
};

TEST_F(AgentChannelTest, FramesArriveInBothDirections) {
  agent_->Greet();
  agent_->Send(FrameType::kHello, "1 2");
  agent_->Send(FrameType::kBeat);
  run_->Send(FrameType::kSignal, std::string("2\0\n", 3));
  EXPECT_EQ(Next(*run_), "H:1 2");
  EXPECT_EQ(Next(*run_), "B:");
  EXPECT_EQ(Next(*run_), "");
  EXPECT_EQ(Next(*agent_), std::string("K:2\0\n", 5));
  EXPECT_FALSE(run_->ended());
}

TEST_F(AgentChannelTest, WhatALoginShellWritesIsNoFrame) {
  Raw("Welcome to host b\nH\0\0\0\0");
  EXPECT_EQ(Next(*run_), "");
  agent_->Greet();
  agent_->Send(FrameType::kHello, "1");
  EXPECT_EQ(Next(*run_), "H:1");
  EXPECT_EQ(run_->TakeNoise(), "Welcome to host b\nH");
  EXPECT_EQ(run_->TakeNoise(), "");
}

TEST_F(AgentChannelTest, TextWithoutAGreetingIsToldAtTheEnd) {
  Raw("This account is not available.\n");
  EXPECT_EQ(Next(*run_), "");
  EXPECT_EQ(run_->TakeNoise(), "");
  raw_.Reset();
  agent_.reset();
  EXPECT_EQ(Next(*run_), "");
  EXPECT_TRUE(run_->ended());
  EXPECT_EQ(run_->TakeNoise(), "This account is not available.\n");
}

TEST_F(AgentChannelTest, TooMuchTextIsAnError) {
  for (int i = 0; i < 2; ++i) {
    Raw(std::string(AgentChannel::kMaxNoiseBytes / 2 + 1, 'x'));
    EXPECT_EQ(Next(*run_),
              i == 0 ? "" : "error: its shell writes too much text, and starts no agent");
  }
  EXPECT_TRUE(run_->ended());
}

TEST_F(AgentChannelTest, AFrameThatIsTooLargeIsAnError) {
  agent_->Greet();
  Raw("O\xff\xff\xff\xffxyz");
  EXPECT_EQ(Next(*run_), "error: a message has 4294967295 bytes");
  EXPECT_TRUE(run_->ended());
}

TEST_F(AgentChannelTest, SendNeverBlocksAndLosesNothing) {
  const std::string large(AgentChannel::kMaxPayloadBytes / 2, 'x');
  agent_->Greet();
  agent_->Send(FrameType::kOut, large);
  agent_->Send(FrameType::kOut, "end");
  EXPECT_GT(agent_->pending_bytes(), large.size() / 2);
  std::vector<std::string> frames;
  for (int i = 0; i < 100000 && frames.size() < 2; ++i) {
    std::vector<pollfd> polled;
    agent_->AddTo(&polled);
    run_->AddTo(&polled);
    ASSERT_GT(poll(polled.data(), polled.size(), 10000), 0);
    agent_->Handle(&polled[0]);
    run_->Handle(&polled[2]);
    for (std::string next; !(next = Next(*run_)).empty();) frames.push_back(std::move(next));
  }
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0], "O:" + large);
  EXPECT_EQ(frames[1], "O:end");
  EXPECT_EQ(agent_->pending_bytes(), 0u);
}

TEST_F(AgentChannelTest, NothingIsKeptForAnEndThatIsGone) {
  signal(SIGPIPE, SIG_IGN);
  run_.reset();
  agent_->Send(FrameType::kOut, "x");
  agent_->Send(FrameType::kOut, "y");
  EXPECT_EQ(agent_->pending_bytes(), 0u);
  EXPECT_EQ(agent_->Receive(), AgentChannel::Read::kEnd);
  EXPECT_TRUE(agent_->ended());
}

}  // namespace
}  // namespace iris::ctl
