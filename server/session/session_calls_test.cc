#include "server/session/session_calls.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace iris::server {
namespace {

using ::testing::HasSubstr;
using wire::CallMethod;
using wire::FrameType;

struct Asked : ActiveCall {
  IncomingCall call;
  std::string request;
  int cancelled = 0;
  int sent = 0;
  void OnCancel() override {
    ++cancelled;
    call.reply->Finish(absl::CancelledError("cancelled"));
  }
  void OnSent() override { ++sent; }
};

wire::UniqueFd Memfd(const std::string& bytes, int seals) {
  wire::UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;

class SessionCallsTest : public ::testing::Test {
 protected:
  SessionCallsTest() {
    poller_ = *Poller::Create();
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    wire::UniqueFd ours(pair[0]);
    client_.Reset(pair[1]);
    socket_ = *poller_->Watch(&ours, EPOLLIN | EPOLLRDHUP, [this](uint32_t events) {
      if ((events & EPOLLOUT) != 0) calls_->OnWritable();
      if ((events & EPOLLIN) == 0) return;
      ++reads_;
      const auto frame = wire::ReceiveFrame(socket_.get());
      if (frame.ok()) status_ = calls_->OnFrame(*frame);
    });
    calls_ = SessionCalls::Create(MakeSetup());
  }
  ~SessionCallsTest() override {
    calls_->Close();
    asked_.clear();
    EXPECT_EQ(account_->calls.calls(), 0u) << "something was not given back";
    EXPECT_EQ(account_->calls.unread_bytes(), 0u);
  }

  static CallShare::Limits Limits() {
    CallShare::Limits limits;
    limits.max_calls = 400;
    limits.max_unread_bytes = 4 << 20;
    return limits;
  }
  SessionCalls::Setup MakeSetup() {
    SessionCalls::Setup setup;
    setup.socket = &socket_;
    setup.peer =
        RpcPeer{Party{1000}, SessionId{7}, CallerInfo{.pid = 5, .party = {1000}}, account_};
    setup.serve = &serve_;
    setup.end = [this](const absl::Status& status) { ended_ = status; };
    return setup;
  }

  absl::Status Frame(const wire::Frame& frame) { return calls_->OnFrame(frame); }
  static wire::Frame MakeCall(uint64_t number, uint32_t method, const std::string& request,
                              wire::UniqueFd fd = {}, std::optional<uint32_t> bytes = {}) {
    wire::Frame frame;
    frame.type = FrameType::kCall;
    wire::CallPayload header;
    header.call = number;
    header.method = method;
    header.bytes = bytes.value_or(static_cast<uint32_t>(request.size()));
    frame.payload.resize(sizeof(header) + request.size());
    std::memcpy(frame.payload.data(), &header, sizeof(header));
    std::memcpy(frame.payload.data() + sizeof(header), request.data(), request.size());
    if (fd.valid()) frame.fds.push_back(std::move(fd));
    return frame;
  }
  absl::Status Call(uint64_t number, CallMethod method = CallMethod::kOperate,
                    const std::string& request = "r") {
    return Frame(MakeCall(number, static_cast<uint32_t>(method), request));
  }
  absl::Status Number(FrameType type, uint64_t number) {
    wire::Frame frame;
    frame.type = type;
    wire::CallNumberPayload payload;
    payload.call = number;
    frame.payload.resize(sizeof(payload));
    std::memcpy(frame.payload.data(), &payload, sizeof(payload));
    return Frame(frame);
  }
  // Answers one, as a service does.
  void Answer(size_t i, const std::string& message) {
    asked_[i]->call.reply->Send({message, nullptr});
    asked_[i]->call.reply->Finish(absl::OkStatus());
  }

  // The messages that the client has received for a call since last time, and the call's end.
  struct Got {
    std::vector<std::string> messages;
    std::string partial;
    int ends = 0;
    absl::Status status;
  };
  void Read(int max_frames = 1 << 20) {
    for (int i = 0; i < max_frames; ++i) {
      const auto frame = wire::ReceiveFrame(client_.get());
      if (!frame.ok()) return;
      if (frame->type == FrameType::kFailure) {
        const auto failure = *frame->As<wire::FailurePayload>();
        got_[failure.call].status = wire::StatusFromErrorPayload(failure.error);
        ++got_[failure.call].ends;
        continue;
      }
      ASSERT_EQ(frame->type, FrameType::kAnswer);
      const auto parts = *frame->Split<wire::AnswerPayload>();
      EXPECT_LE(parts.second.size(), wire::kMaxCallFrameBytes);
      Got& got = got_[parts.first.call];
      EXPECT_EQ(got.ends, 0);
      if ((parts.first.flags & wire::kAnswerMessage) != 0) {
        got.partial.append(parts.second);
        if ((parts.first.flags & wire::kAnswerContinues) == 0) {
          got.messages.push_back(std::exchange(got.partial, ""));
        }
      }
      if ((parts.first.flags & wire::kAnswerEnds) != 0) ++got.ends;
    }
  }
  void ReadAll() {
    for (int i = 0; i < 1000; ++i) {
      Read();
      poller_->Wait(absl::ZeroDuration());
    }
    Read();
  }

  std::unique_ptr<Poller> poller_;
  Accounts accounts_{1 << 30, Limits()};
  const std::shared_ptr<Account> account_ = accounts_.Open(Party{1000}, /*is_operator=*/false);
  wire::UniqueFd client_;
  Poller::Watched socket_;
  std::vector<std::shared_ptr<Asked>> asked_;
  bool at_once_ = false;
  ServeCall serve_ = [this](const IncomingCall& call) -> std::shared_ptr<ActiveCall> {
    EXPECT_EQ(call.session.value, 7u);
    EXPECT_EQ(call.caller.party.uid, 1000u);
    auto asked = std::make_shared<Asked>();
    asked->call = call;
    asked->request = std::string(call.request);
    asked_.push_back(asked);
    n_descriptors_ = call.descriptors.size();
    if (!at_once_) return asked;
    Answer(asked_.size() - 1, "at once");
    return nullptr;
  };
  std::shared_ptr<SessionCalls> calls_;
  absl::Status ended_;
  absl::Status status_;
  int reads_ = 0;
  size_t n_descriptors_ = 0;  // of the last call
  std::map<uint64_t, Got> got_;
};

TEST_F(SessionCallsTest, CallsAreServedAndAnswered) {
  ASSERT_TRUE(Call(1, CallMethod::kJoin, "request").ok());
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0]->request, "request");
  EXPECT_EQ(asked_[0]->call.method, Method::kJoin);
  Answer(0, "reply");
  Read();
  EXPECT_EQ(got_[1].messages, std::vector<std::string>{"reply"});
  EXPECT_EQ(got_[1].ends, 1);
}

TEST_F(SessionCallsTest, AnswersAtOnceAndInAnyOrder) {
  at_once_ = true;
  ASSERT_TRUE(Call(1).ok());
  at_once_ = false;
  ASSERT_TRUE(Call(5).ok());
  ASSERT_TRUE(Call(6).ok());
  Answer(2, "six");
  Answer(1, "five");
  Read();
  EXPECT_EQ(got_[1].messages.front(), "at once");
  EXPECT_EQ(got_[5].messages.front(), "five");
  EXPECT_EQ(got_[6].messages.front(), "six");
}

TEST_F(SessionCallsTest, FailuresKeepCodeAndText) {
  ASSERT_TRUE(Call(1).ok());
  asked_[0]->call.reply->Finish(absl::NotFoundError("no such team"));
  Read();
  EXPECT_EQ(got_[1].status, absl::NotFoundError("no such team"));
  EXPECT_TRUE(got_[1].messages.empty());
}

TEST_F(SessionCallsTest, ACallWithoutAnAnswerIsSaidToHaveNone) {
  ASSERT_TRUE(Call(1).ok());
  asked_[0]->call.reply->Finish(absl::OkStatus());
  Read();
  EXPECT_EQ(got_[1].status.code(), absl::StatusCode::kInternal);
}

TEST_F(SessionCallsTest, LongAnswersComeInPiecesAlsoWithASharedTail) {
  const auto tail = std::make_shared<const std::string>(1 << 20, 't');
  const std::string head(3 * wire::kMaxCallFrameBytes / 2, 'h');
  for (const uint64_t number : {1, 2}) {
    ASSERT_TRUE(Call(number).ok());
    asked_.back()->call.reply->Send({head, tail});
    asked_.back()->call.reply->Finish(absl::OkStatus());
  }
  ReadAll();
  for (const uint64_t number : {1, 2}) {
    ASSERT_EQ(got_[number].messages.size(), 1u);
    EXPECT_TRUE(got_[number].messages.front() == head + *tail);
    EXPECT_EQ(got_[number].ends, 1);
  }
}

TEST_F(SessionCallsTest, LongRequestsComeAsSealedMemfds) {
  const std::string request(1 << 20, 'q');
  ASSERT_TRUE(Frame(MakeCall(1, 3, "", Memfd(request, kSeals), 1 << 20)).ok());
  EXPECT_TRUE(asked_[0]->request == request);
}

TEST_F(SessionCallsTest, OnlyAnOperateInTheFrameBringsOtherDescriptors) {
  const auto with = [](uint64_t number, CallMethod method, int n, const std::string& request) {
    wire::Frame frame = MakeCall(number, static_cast<uint32_t>(method), request);
    for (; n > 0; --n) frame.fds.push_back(Memfd("memory", kSeals));
    return frame;
  };
  ASSERT_TRUE(Frame(with(1, CallMethod::kOperate, 3, "request")).ok());
  EXPECT_EQ(n_descriptors_, 3u);
  EXPECT_EQ(asked_[0]->request, "request");
  ASSERT_TRUE(Frame(with(2, CallMethod::kOperate, 0, "request")).ok());
  EXPECT_EQ(n_descriptors_, 0u);
  EXPECT_EQ(Frame(with(3, CallMethod::kBorrow, 1, "request")).code(),
            absl::StatusCode::kInvalidArgument);
  wire::Frame two = MakeCall(4, static_cast<uint32_t>(CallMethod::kOperate), "",
                             Memfd(std::string(1 << 20, 'q'), kSeals), 1 << 20);
  two.fds.push_back(Memfd("memory", kSeals));
  EXPECT_EQ(Frame(two).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionCallsTest, DescriptorsThatCouldChangeOrWaitAreRefused) {
  const std::string request(1 << 20, 'q');
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const wire::UniqueFd write_end(pipe_ends[1]);
  uint64_t number = 1;
  const auto refuse = [&](wire::UniqueFd fd, uint32_t bytes, const char* why) {
    const absl::Status status = Frame(MakeCall(number++, 3, "", std::move(fd), bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refuse(wire::UniqueFd(pipe_ends[0]), 1 << 20, "no memfd that is sealed");
  refuse(wire::UniqueFd(open("/dev/zero", O_RDONLY)), 1 << 20, "no memfd that is sealed");
  refuse(wire::UniqueFd(open("/proc/self/exe", O_RDONLY)), 1 << 20, "no memfd that is sealed");
  refuse(Memfd(request, F_SEAL_WRITE), 1 << 20, "no memfd that is sealed");
  refuse(Memfd(request, F_SEAL_SHRINK | F_SEAL_GROW), 1 << 20, "no memfd that is sealed");
  refuse(Memfd(request, kSeals), (1 << 20) + 1, "came in a memfd of 1048576");
  refuse(Memfd(request, kSeals), 1 << 19, "came in a memfd of 1048576");
  refuse(Memfd(request, kSeals), wire::kMaxRpcBytes + 1, "at most");
  refuse({}, 1 << 20, "with 0 bytes and 0 descriptors");
  refuse(Memfd(request, kSeals), 5, "came with 0 bytes and 1 descriptors");
  EXPECT_TRUE(asked_.empty());
}

TEST_F(SessionCallsTest, RulesOfTheProtocol) {
  ASSERT_TRUE(Call(5, CallMethod::kWatch).ok());
  const auto broken = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  broken(Call(5));
  broken(Call(4));
  broken(Call(0));
  broken(Number(FrameType::kCancelCall, 0));
  broken(Number(FrameType::kCancelCall, 6));
  broken(Number(FrameType::kTaken, 6));
  broken(Number(FrameType::kTaken, 5));  // nothing was sent
  wire::Frame shorter = MakeCall(7, 3, "");
  shorter.payload.pop_back();
  broken(Frame(shorter));
  broken(Frame(MakeCall(8, 3, "abc", {}, 2)));
  broken(Frame(MakeCall(9, 3, "abc", {}, 4)));
  wire::Frame cancel;
  cancel.type = FrameType::kCancelCall;
  broken(Frame(cancel));
}

TEST_F(SessionCallsTest, MethodsOfNobodyAndOfOthersFailAlone) {
  uint64_t number = 1;
  for (const uint32_t method : {0u, 10u, 14u, 15u, 99u, 65536u + 3, ~0u}) {
    ASSERT_TRUE(Frame(MakeCall(number, method, "")).ok());
    Read();
    EXPECT_EQ(got_[number].status.code(), absl::StatusCode::kUnimplemented);
    ++number;
  }
  EXPECT_TRUE(asked_.empty());
}

TEST_F(SessionCallsTest, CancelReachesTheCallOnceItRuns) {
  ASSERT_TRUE(Call(1).ok());
  ASSERT_TRUE(Number(FrameType::kCancelCall, 1).ok());
  EXPECT_EQ(asked_[0]->cancelled, 1);
  Read();
  EXPECT_EQ(got_[1].status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(Number(FrameType::kCancelCall, 1).ok()) << "it may have crossed the answer";
  EXPECT_EQ(asked_[0]->cancelled, 1);
}

TEST_F(SessionCallsTest, CloseCancelsAllAndSwallowsWhatIsSaidLater) {
  ASSERT_TRUE(Call(1).ok());
  ASSERT_TRUE(Call(2).ok());
  Answer(0, "in time");
  calls_->Close();
  EXPECT_EQ(asked_[0]->cancelled, 0);
  EXPECT_EQ(asked_[1]->cancelled, 1);
  Answer(1, "late");
  Read();
  EXPECT_EQ(got_.count(2), 0u);
}

TEST_F(SessionCallsTest, StreamsHaveCredits) {
  ASSERT_TRUE(Call(1, CallMethod::kWatch).ok());
  for (const char* event : {"a", "b"}) asked_[0]->call.reply->Send({event, nullptr});
  ASSERT_TRUE(Number(FrameType::kTaken, 1).ok());
  ASSERT_TRUE(Number(FrameType::kTaken, 1).ok());
  EXPECT_EQ(asked_[0]->sent, 2);
  EXPECT_FALSE(Number(FrameType::kTaken, 1).ok());
  asked_[0]->call.reply->Finish(absl::OkStatus());
  ASSERT_TRUE(Number(FrameType::kTaken, 1).ok()) << "the stream may have ended meanwhile";
  Read();
  EXPECT_EQ(got_[1].messages, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(got_[1].ends, 1);
}

TEST_F(SessionCallsTest, CallsOfASessionAndOfATenantAreLimited) {
  for (uint64_t n = 1; n <= wire::kMaxCallsPerConnection; ++n) ASSERT_TRUE(Call(n).ok());
  ASSERT_TRUE(Call(1000).ok());
  Read();
  EXPECT_EQ(got_[1000].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(got_[1000].status.message()), HasSubstr("this session has"));
  EXPECT_EQ(asked_.size(), wire::kMaxCallsPerConnection);
  // Another session of the same tenant.
  auto other = SessionCalls::Create(MakeSetup());
  calls_.swap(other);
  const uint64_t left = Limits().max_calls - wire::kMaxCallsPerConnection;
  for (uint64_t n = 1; n <= left; ++n) ASSERT_TRUE(Call(n).ok());
  ASSERT_TRUE(Call(2000).ok());
  Read();
  EXPECT_THAT(std::string(got_[2000].status.message()), HasSubstr("uid 1000 has 400 calls"));
  other->Close();
}

TEST_F(SessionCallsTest, WhoDoesNotReadIsNotReadEither) {
  at_once_ = false;
  uint64_t number = 0;
  const std::string answer(10'000, 'x');
  while (got_.empty() && number < wire::kMaxCallsPerConnection) {
    ASSERT_TRUE(Call(++number).ok());
    Answer(number - 1, answer);
  }
  // Something is there to be read, and is not.
  wire::CallPayload header;
  header.call = number + 1;
  header.method = 3;
  ASSERT_TRUE(wire::SendFrame(client_.get(), FrameType::kCall, header, "", {}).ok());
  for (int i = 0; i < 10; ++i) poller_->Wait(absl::ZeroDuration());
  EXPECT_EQ(reads_, 0);
  // It reads, so it is read.
  ReadAll();
  EXPECT_EQ(reads_, 1);
  EXPECT_EQ(asked_.size(), number + 1);
  for (uint64_t n = 1; n <= number; ++n) EXPECT_TRUE(got_[n].messages.front() == answer) << n;
  EXPECT_TRUE(ended_.ok());
}

TEST_F(SessionCallsTest, WhoLeavesMoreUnreadThanTheShareIsEnded) {
  const std::string answer(1 << 20, 'x');
  for (uint64_t number = 1; number <= 6; ++number) {
    ASSERT_TRUE(Call(number).ok());
    Answer(number - 1, answer);
  }
  EXPECT_EQ(ended_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ended_.message()), HasSubstr("uid 1000"));
}

TEST_F(SessionCallsTest, AValueThatManyAnswersShareCountsOnce) {
  // As a broadcast of a large job whose members are slow: more than the share, if it was copied.
  const auto tail = std::make_shared<const std::string>(1 << 20, 't');
  for (uint64_t number = 1; number <= 64; ++number) {
    ASSERT_TRUE(Call(number).ok());
    asked_.back()->call.reply->Send({"head", tail});
    asked_.back()->call.reply->Finish(absl::OkStatus());
  }
  EXPECT_TRUE(ended_.ok()) << ended_;
  for (int i = 0; i < 100; ++i) ReadAll();
  for (uint64_t number = 1; number <= 64; ++number) EXPECT_EQ(got_[number].ends, 1) << number;
}

TEST_F(SessionCallsTest, AClientThatIsGoneEndsNothingHere) {
  ASSERT_TRUE(Call(1).ok());
  ASSERT_TRUE(Call(2).ok());
  client_.Reset();
  Answer(0, "nobody reads this");
  Answer(1, "nor this");
  calls_->Close();
}

TEST_F(SessionCallsTest, AnswersComeFromOtherThreadsWhileItCloses) {
  for (uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(Call(n).ok());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (size_t i = t; i < 200; i += 4) Answer(i, std::string(1000, 'a'));
    });
  }
  Read(50);
  calls_->Close();
  for (std::thread& thread : threads) thread.join();
}

// No random frame crashes, waits, or leaves anything allocated.
TEST_F(SessionCallsTest, RandomFramesAreErrorsOrCalls) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20'000; ++i) {
    wire::Frame frame;
    const FrameType types[] = {FrameType::kCall, FrameType::kCancelCall, FrameType::kTaken};
    frame.type = types[random() % 3];
    frame.payload.resize(random() % 40);
    for (uint8_t& byte : frame.payload) byte = static_cast<uint8_t>(random() % 4);
    if (random() % 8 == 0) frame.fds.push_back(Memfd("abc", random() % 2 == 0 ? 0 : kSeals));
    (void)Frame(frame);
    if (!asked_.empty() && random() % 4 == 0) Answer(random() % asked_.size(), "x");
    if (i % 100 == 0) Read();
  }
}

}  // namespace
}  // namespace iris::server
