// The real irisd-worker, as the core sees it: started by WorkerProgram, spoken to over its link by
// a core that does only what the test says, while real gRPC clients call through sockets that the
// test made.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.grpc.pb.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "server/link/link.h"
#include "server/link/methods.h"
#include "server/sandbox/sanitizers.h"
#include "server/tenant/worker_program.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;

constexpr auto kPatience = absl::Seconds(60);
constexpr char kProgram[] = "server/irisd-worker";

// A message of the worker's, with its payload's bytes.
struct Received {
  LinkHeader header;
  std::string payload;
  LinkType type() const { return header.type; }
};

// A core that the test controls, and a worker.
class FakeCore {
 public:
  explicit FakeCore(uint64_t memory_bytes = 512ull << 20) {
    WorkerSettings settings;
    settings.program = kProgram;
    settings.memory_bytes = memory_bytes;
    absl::StatusOr<WorkerProgram> program = WorkerProgram::Open(settings);
    if (!program.ok()) ADD_FAILURE() << program.status();
    if (!program.ok()) return;
    const absl::Time start = absl::Now();
    WorkerProgram::Started worker = program->Start("uid 1000");
    if (!worker.ok()) ADD_FAILURE() << worker.status();
    if (!worker.ok()) return;
    started_in_ = absl::Now() - start;
    process_ = *std::move(worker);
    link_ = process_->TakeLink();
    ready_ = Next();
    ready_in_ = absl::Now() - start;
  }

  RunningWorker& process() { return *process_; }
  const std::optional<Received>& ready() const { return ready_; }
  absl::Duration started_in() const { return started_in_; }
  absl::Duration ready_in() const { return ready_in_; }

  // The next message of any type; nothing if none comes in time, or the link has closed.
  std::optional<Received> Next(absl::Duration patience = kPatience) {
    const absl::Time deadline = absl::Now() + patience;
    for (;;) {
      const absl::StatusOr<std::optional<LinkMessage>> message = reader_.Next();
      if (!message.ok()) ADD_FAILURE() << message.status();
      if (!message.ok()) return std::nullopt;
      if (message->has_value())
        return Received{(*message)->header, std::string((*message)->payload)};
      const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      struct pollfd ready = {link_.get(), POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) == 0) {
        return std::nullopt;
      }
      if (!reader_.Receive(link_.get()).ok()) return std::nullopt;
    }
  }
  // The next message, which must be of that type; others fail the test.
  Received Expect(LinkType type) {
    const std::optional<Received> message = Next();
    if (!message.has_value()) ADD_FAILURE() << "no message, type " << static_cast<int>(type);
    if (!message.has_value()) return {};
    EXPECT_EQ(message->type(), type);
    return *message;
  }

  void Send(LinkType type, uint64_t connection, uint64_t call, std::string payload = {},
            absl::StatusCode code = absl::StatusCode::kOk, wire::UniqueFd fd = {}) {
    LinkHeader header;
    header.type = type;
    header.connection = connection;
    header.call = call;
    header.code = static_cast<uint32_t>(code);
    writer_.Queue(header, {std::move(payload), nullptr}, std::move(fd));
    Flush();
  }
  // A new connection; the client's end.
  wire::UniqueFd ConnectSocket(uint64_t number) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    Send(LinkType::kConnect, number, 0, {}, absl::StatusCode::kOk, wire::UniqueFd(pair[0]));
    return wire::UniqueFd(pair[1]);
  }
  std::shared_ptr<grpc::Channel> Connect(uint64_t number) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomInsecureChannelFromFd("irisd", ConnectSocket(number).Release(),
                                                   arguments);
  }
  void Answer(uint64_t call, std::string payload) {
    Send(LinkType::kMessage, 0, call, std::move(payload));
    Send(LinkType::kFinish, 0, call);
  }
  void Fail(uint64_t call, absl::StatusCode code, std::string text) {
    Send(LinkType::kFinish, 0, call, std::move(text), code);
  }
  void CloseLink() { link_.Reset(); }

  // How the worker ended.
  std::string End() {
    struct pollfd ended = {process_->pidfd(), POLLIN, 0};
    if (poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) != 1) {
      return "still runs";
    }
    return process_->Reap().value_or("still runs");
  }

 private:
  void Flush() {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      const absl::StatusOr<LinkWriter::Flushed> flushed = writer_.Flush(link_.get());
      EXPECT_TRUE(flushed.ok()) << flushed.status();
      if (!flushed.ok() || *flushed == LinkWriter::Flushed::kAll) return;
      struct pollfd ready = {link_.get(), POLLOUT, 0};
      poll(&ready, 1, 10);
    }
    ADD_FAILURE() << "the worker does not read";
  }

  std::unique_ptr<RunningWorker> process_;
  wire::UniqueFd link_;
  LinkReader reader_{LinkSender::kWorker};
  LinkWriter writer_;
  std::optional<Received> ready_;
  absl::Duration started_in_, ready_in_;
};

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
}

// A raw unary call on a thread of its own.
struct RawCall {
  std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
  std::future<std::pair<grpc::Status, std::string>> result;
};

std::string Text(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

RawCall CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                const std::string& request) {
  RawCall call;
  SetDeadline(*call.context);
  call.result = std::async(std::launch::async, [=, context = call.context.get()] {
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    auto rpc = stub.PrepareUnaryCall(context, method, grpc::ByteBuffer(&slice, 1), &queue);
    rpc->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    rpc->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return std::make_pair(status, status.ok() ? Text(reply) : std::string());
  });
  return call;
}

constexpr char kOperate[] = "/iris.v1.HeapService/Operate";
constexpr char kListJobs[] = "/iris.v1.AdminService/ListJobs";

TEST(WorkerTest, SaysItsVersionWhenItIsReady) {
  FakeCore core;
  ASSERT_TRUE(core.ready().has_value());
  EXPECT_EQ(core.ready()->type(), LinkType::kReady);
  EXPECT_EQ(core.ready()->payload, wire::kIrisVersion);
  std::cout << "a worker is started in " << core.started_in() << " and ready in " << core.ready_in()
            << std::endl;
  RecordProperty("ready_us", absl::StrCat(absl::ToInt64Microseconds(core.ready_in())));
}

TEST(WorkerTest, RelaysEveryMethodByItsNumber) {
  FakeCore core;
  const auto channel = core.Connect(1);
  uint64_t last_call = 0;
  for (const MethodInfo& method : kMethods) {
    if (method.streams) continue;
    const std::string request = absl::StrCat("request of ", std::string(method.name));
    RawCall call = CallRaw(channel, std::string(method.name), request);
    const Received received = core.Expect(LinkType::kCall);
    EXPECT_EQ(received.header.method, static_cast<uint16_t>(method.method)) << method.name;
    EXPECT_EQ(received.header.connection, 1u);
    EXPECT_GT(received.header.call, last_call);
    EXPECT_EQ(received.payload, request);
    last_call = received.header.call;
    core.Answer(received.header.call, "answer");
    const auto [status, answer] = call.result.get();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(answer, "answer");
  }
}

TEST(WorkerTest, TellsConnectionsApart) {
  FakeCore core;
  const auto first = core.Connect(7);
  const auto second = core.Connect(8);
  RawCall a = CallRaw(first, kListJobs, "a");
  const Received from_first = core.Expect(LinkType::kCall);
  RawCall b = CallRaw(second, kListJobs, "b");
  const Received from_second = core.Expect(LinkType::kCall);
  EXPECT_EQ(from_first.header.connection, 7u);
  EXPECT_EQ(from_second.header.connection, 8u);
  core.Answer(from_second.header.call, "B");
  core.Answer(from_first.header.call, "A");
  EXPECT_EQ(a.result.get().second, "A");
  EXPECT_EQ(b.result.get().second, "B");
}

TEST(WorkerTest, PassesFailuresWithTheirText) {
  FakeCore core;
  const auto channel = core.Connect(1);
  RawCall call = CallRaw(channel, kOperate, "");
  const Received received = core.Expect(LinkType::kCall);
  core.Fail(received.header.call, absl::StatusCode::kAborted, "rank 3 (pid 77) has died");
  const grpc::Status status = call.result.get().first;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "rank 3 (pid 77) has died");
}

TEST(WorkerTest, AnEmptyAnswerIsAnAnswer) {
  FakeCore core;
  const auto channel = core.Connect(1);
  RawCall call = CallRaw(channel, kOperate, "");
  core.Answer(core.Expect(LinkType::kCall).header.call, "");
  const auto [status, answer] = call.result.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer, "");
}

TEST(WorkerTest, CarriesTheLargestMessagesAndNoLarger) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const std::string largest(wire::kMaxRpcBytes, 'x');
  RawCall call = CallRaw(channel, kOperate, largest);
  const Received received = core.Expect(LinkType::kCall);
  EXPECT_TRUE(received.payload == largest);
  core.Answer(received.header.call, largest);
  const auto [status, answer] = call.result.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(answer == largest);

  const grpc::Status refused = CallRaw(channel, kOperate, largest + "x").result.get().first;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_FALSE(core.Next(absl::Milliseconds(50)).has_value());
}

TEST(WorkerTest, AStreamGivesACreditForEachMessageThatIsTaken) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const auto stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub->Events(&context, v1::EventsRequest());
  const uint64_t call = core.Expect(LinkType::kCall).header.call;
  v1::Event event;
  for (uint64_t i = 1; i <= 3; ++i) {
    event.set_sequence(i);
    core.Send(LinkType::kMessage, 0, call, event.SerializeAsString());
  }
  for (uint64_t i = 1; i <= 3; ++i) {
    v1::Event read;
    ASSERT_TRUE(reader->Read(&read));
    EXPECT_EQ(read.sequence(), i);
    EXPECT_EQ(core.Expect(LinkType::kSent).header.call, call);
  }
  core.Send(LinkType::kFinish, 0, call, "irisd is stopping", absl::StatusCode::kUnavailable);
  v1::Event read;
  EXPECT_FALSE(reader->Read(&read));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "irisd is stopping");
}

TEST(WorkerTest, AStreamThatNobodyReadsGivesNoCredits) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const auto stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub->Events(&context, v1::EventsRequest());
  const uint64_t call = core.Expect(LinkType::kCall).header.call;
  v1::Event event;
  event.set_text(std::string(1 << 20, 'x'));
  for (uint32_t i = 0; i < kStreamCredits; ++i) {
    core.Send(LinkType::kMessage, 0, call, event.SerializeAsString());
  }
  uint32_t credits = 0;
  while (core.Next(absl::Milliseconds(300)).has_value()) ++credits;
  EXPECT_LT(credits, kStreamCredits);
  v1::Event read;
  for (uint32_t i = 0; i < kStreamCredits; ++i) ASSERT_TRUE(reader->Read(&read));
  for (; credits < kStreamCredits; ++credits) core.Expect(LinkType::kSent);
  context.TryCancel();
  (void)reader->Finish();
}

TEST(WorkerTest, ACancelledCallIsToldOnceAndItsAnswerIgnored) {
  FakeCore core;
  const auto channel = core.Connect(1);
  RawCall call = CallRaw(channel, kOperate, "");
  const uint64_t cancelled = core.Expect(LinkType::kCall).header.call;
  call.context->TryCancel();
  EXPECT_EQ(call.result.get().first.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(core.Expect(LinkType::kCancel).header.call, cancelled);
  core.Answer(cancelled, "too late");
  RawCall next = CallRaw(channel, kOperate, "");
  core.Answer(core.Expect(LinkType::kCall).header.call, "next");
  EXPECT_EQ(next.result.get().second, "next");
}

TEST(WorkerTest, RefusesMoreCallsThanAConnectionMayHave) {
  FakeCore core;
  const auto channel = core.Connect(1);
  // Cancelled ones count until the core says that they are over.
  for (uint32_t i = 0; i < kMaxCallsPerConnection; ++i) {
    RawCall call = CallRaw(channel, kOperate, "");
    core.Expect(LinkType::kCall);
    call.context->TryCancel();
    call.result.get();
    core.Expect(LinkType::kCancel);
  }
  const grpc::Status refused = CallRaw(channel, kOperate, "").result.get().first;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("this connection has 272 calls open"));
  // The answer on another connection shows that all earlier messages have arrived.
  const auto other = core.Connect(2);
  RawCall call = CallRaw(other, kOperate, "");
  const uint64_t number = core.Expect(LinkType::kCall).header.call;
  core.Fail(1, absl::StatusCode::kCancelled, "");
  core.Answer(number, "other");
  EXPECT_EQ(call.result.get().second, "other");
  RawCall again = CallRaw(channel, kOperate, "");
  core.Answer(core.Expect(LinkType::kCall).header.call, "again");
  EXPECT_EQ(again.result.get().second, "again");
}

TEST(WorkerTest, AConnectionThatIsClosedEndsOnceAndTakesItsCallsAlong) {
  FakeCore core;
  const auto channel = core.Connect(1);
  RawCall call = CallRaw(channel, kOperate, "");
  const uint64_t number = core.Expect(LinkType::kCall).header.call;
  core.Send(LinkType::kDisconnect, 1, 0);
  EXPECT_EQ(call.result.get().first.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(core.Expect(LinkType::kClosed).header.connection, 1u);
  core.Answer(number, "too late");
  core.Send(LinkType::kDisconnect, 1, 0);
  EXPECT_FALSE(core.Next(absl::Milliseconds(100)).has_value());
}

TEST(WorkerTest, TellsThatAClientHasHungUp) {
  FakeCore core;
  {
    const wire::UniqueFd silent = core.ConnectSocket(4);
    core.ConnectSocket(5).Reset();
    EXPECT_EQ(core.Expect(LinkType::kClosed).header.connection, 5u);
  }
  EXPECT_EQ(core.Expect(LinkType::kClosed).header.connection, 4u);
  EXPECT_FALSE(core.Next(absl::Milliseconds(100)).has_value());
}

TEST(WorkerTest, GarbageEndsItsOwnConnectionAlone) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const wire::UniqueFd garbage = core.ConnectSocket(2);
  const std::string bytes(1 << 16, '\xa5');
  EXPECT_GT(send(garbage.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  EXPECT_EQ(core.Expect(LinkType::kClosed).header.connection, 2u);
  RawCall call = CallRaw(channel, kOperate, "");
  core.Answer(core.Expect(LinkType::kCall).header.call, "well");
  EXPECT_EQ(call.result.get().second, "well");
}

// HTTP/2 by hand, for clients that break its manners.
class Http2 {
 public:
  // The preface, and a window of `window_bytes` for every stream.
  explicit Http2(uint16_t window_bytes) {
    bytes_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    Frame(6, 4, 0, 0);
    bytes_.append({0, 4, 0, 0, static_cast<char>(window_bytes >> 8),
                   static_cast<char>(window_bytes)});  // SETTINGS_INITIAL_WINDOW_SIZE
  }
  // HEADERS and an empty message: a call of ListJobs.
  void Call(uint32_t stream) {
    std::string headers("\x83\x86", 2);  // :method POST, :scheme http
    const std::pair<std::string, std::string> literals[] = {{":path", kListJobs},
                                                            {":authority", "irisd"},
                                                            {"te", "trailers"},
                                                            {"content-type", "application/grpc"}};
    for (const auto& [name, value] : literals) {
      headers += '\0';
      headers += static_cast<char>(name.size());
      headers += name;
      headers += static_cast<char>(value.size());
      headers += value;
    }
    Frame(headers.size(), 1, 4, stream);  // END_HEADERS
    bytes_ += headers;
    Frame(5, 0, 1, stream);  // END_STREAM
    bytes_.append(5, '\0');
  }
  void Reset(uint32_t stream) {
    Frame(4, 3, 0, stream);
    bytes_.append({0, 0, 0, 8});  // CANCEL
  }
  std::string Take() { return std::exchange(bytes_, {}); }

 private:
  void Frame(size_t length, char type, char flags, uint32_t stream) {
    for (const int shift : {16, 8, 0}) bytes_ += static_cast<char>(length >> shift);
    bytes_ += type;
    bytes_ += flags;
    for (const int shift : {24, 16, 8, 0}) bytes_ += static_cast<char>(stream >> shift);
  }

  std::string bytes_;
};

TEST(WorkerTest, AReaderThatLeavesTooMuchUnreadIsRefused) {
  FakeCore core(128ull << 20);  // 32 MiB of a connection
  const auto channel = core.Connect(1);
  const wire::UniqueFd stuck = core.ConnectSocket(2);
  Http2 client(0);
  constexpr uint32_t kCalls = 12;
  for (uint32_t i = 0; i < kCalls; ++i) client.Call(2 * i + 1);
  const std::string bytes = client.Take();
  ASSERT_EQ(send(stuck.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  const std::string answer(wire::kMaxRpcBytes, 'x');
  for (uint32_t i = 0; i < kCalls; ++i) {
    core.Answer(core.Expect(LinkType::kCall).header.call, answer);
  }
  // 8 of the answers wait, and the rest is dropped. The other connection has its own count.
  for (int i = 0; i < 4; ++i) {
    RawCall call = CallRaw(channel, kOperate, "");
    core.Answer(core.Expect(LinkType::kCall).header.call, answer);
    EXPECT_EQ(call.result.get().second.size(), answer.size());
  }
  EXPECT_FALSE(core.process().Reap().has_value());
}

TEST(WorkerTest, AnswersHealthAndReflectionByItself) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const auto [status, health] = CallRaw(channel, "/grpc.health.v1.Health/Check", "").result.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(health, "\x08\x01");  // SERVING

  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(wait());
  const grpc::Slice list(std::string("\x3a\x01*"));  // list_services
  call->Write(grpc::ByteBuffer(&list, 1), nullptr);
  ASSERT_TRUE(wait());
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  ASSERT_TRUE(wait());
  const std::string names = Text(reply);
  for (const char* name : {"iris.v1.HeapService", "iris.v1.AdminService", "grpc.health.v1.Health",
                           "grpc.reflection.v1alpha.ServerReflection"}) {
    EXPECT_THAT(names, HasSubstr(name));
  }
  const grpc::Slice file(std::string("\x22\x13iris.v1.HeapService"));  // file_containing_symbol
  call->Write(grpc::ByteBuffer(&file, 1), nullptr);
  ASSERT_TRUE(wait());
  call->Read(&reply, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_THAT(Text(reply), HasSubstr("JoinRequest"));
  context.TryCancel();
  EXPECT_FALSE(core.Next(absl::Milliseconds(50)).has_value());
}

TEST(WorkerTest, StopsInOrder) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const auto stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub->Events(&context, v1::EventsRequest());
  const uint64_t call = core.Expect(LinkType::kCall).header.call;
  RawCall open = CallRaw(channel, kOperate, "");
  core.Expect(LinkType::kCall);
  v1::Event event;
  event.set_text(std::string(100000, 'x'));
  for (uint32_t i = 0; i < kStreamCredits; ++i) {
    core.Send(LinkType::kMessage, 0, call, event.SerializeAsString());
  }
  core.Send(LinkType::kFinish, 0, call);
  core.Send(LinkType::kStop, 0, 0);
  uint32_t read = 0;
  while (reader->Read(&event)) ++read;
  EXPECT_EQ(read, kStreamCredits);
  EXPECT_TRUE(reader->Finish().ok());
  const grpc::Status status = open.result.get().first;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "irisd is stopping");
  EXPECT_EQ(core.End(), "exited with 0");
}

TEST(WorkerTest, AReaderThatDoesNotReadCannotHoldAStopUp) {
  FakeCore core;
  const auto channel = core.Connect(1);
  const auto stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub->Events(&context, v1::EventsRequest());
  const uint64_t call = core.Expect(LinkType::kCall).header.call;
  v1::Event event;
  event.set_text(std::string(1 << 20, 'x'));
  for (uint32_t i = 0; i < kStreamCredits; ++i) {
    core.Send(LinkType::kMessage, 0, call, event.SerializeAsString());
  }
  core.Send(LinkType::kStop, 0, 0);
  EXPECT_EQ(core.End(), "exited with 0");
}

TEST(WorkerTest, EndsWhenItsLinkDoes) {
  FakeCore core;
  const auto channel = core.Connect(1);
  RawCall open = CallRaw(channel, kOperate, "");
  core.Expect(LinkType::kCall);
  core.CloseLink();
  const grpc::Status status = open.result.get().first;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("connect to irisd again"));
  EXPECT_EQ(core.End(), "exited with 0");
}

// Returns the lines "Name: value" of the process's status in /proc, by name.
std::map<std::string, std::string> ReadStatus(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::map<std::string, std::string> found;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    found[line.substr(0, colon)] = value == std::string::npos ? "" : line.substr(value);
  }
  return found;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(WorkerTest, HoldsNothingThatItDoesNotNeed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may make another user of a worker";
  FakeCore core;
  ASSERT_TRUE(core.ready().has_value());
  const pid_t pid = core.process().pid();
  std::map<std::string, std::string> status = ReadStatus(pid);
  EXPECT_EQ(status["Name"], "irisd-worker");
  EXPECT_EQ(status["Uid"], "65534\t65534\t65534\t65534");
  EXPECT_EQ(status["Gid"], "65534\t65534\t65534\t65534");
  EXPECT_EQ(status["Groups"], "");
  EXPECT_EQ(status["NoNewPrivs"], "1");
  EXPECT_EQ(status["Seccomp"], kSanitized ? "0" : "2");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) {
    EXPECT_EQ(status[set], "0000000000000000") << set;
  }
  EXPECT_EQ(status["SigBlk"], "0000000000000000");
  EXPECT_EQ(ReadFile(absl::StrCat("/proc/", pid, "/oom_score_adj")), "1000\n");
  const std::string limits = ReadFile(absl::StrCat("/proc/", pid, "/limits"));
  EXPECT_THAT(limits, HasSubstr("Max core file size        0                    0"));
  if (!kSanitized) {
    EXPECT_THAT(limits, HasSubstr("Max data size             536870912            536870912"));
  }
  EXPECT_THAT(ReadFile(absl::StrCat("/proc/", pid, "/cmdline")), HasSubstr("--tenant=uid 1000"));
  std::cout << "threads " << status["Threads"] << ", RSS " << status["VmRSS"] << ", anonymous "
            << status["RssAnon"] << ", data " << status["VmData"] << std::endl;
}

TEST(WorkerTest, DiesRatherThanTakeMoreMemory) {
  if (kSanitized) GTEST_SKIP() << "memory is not bounded in this build";
  // The worker has less memory than many large requests need that the core does not read.
  FakeCore core(64ull << 20);
  ASSERT_TRUE(core.ready().has_value());
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<RawCall> calls;
  // All connections first: the worker may be dead before the last call.
  for (uint64_t i = 1; i <= 16; ++i) channels.push_back(core.Connect(i));
  for (int j = 0; j < 4; ++j) {
    for (const std::shared_ptr<grpc::Channel>& channel : channels) {
      calls.push_back(CallRaw(channel, kOperate, std::string(wire::kMaxRpcBytes, 'x')));
    }
  }
  // Refused or dead: in either case every call has an answer, and it never grew.
  const absl::Time deadline = absl::Now() + absl::Seconds(3);
  uint64_t most_kib = 0;
  while (absl::Now() < deadline && !core.process().Reap().has_value()) {
    most_kib = std::max<uint64_t>(
        most_kib, strtoull(ReadStatus(core.process().pid())["RssAnon"].c_str(), nullptr, 10));
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LE(most_kib, 64u << 10);
  core.process().Kill();
  core.CloseLink();
  for (RawCall& call : calls) EXPECT_FALSE(call.result.get().first.ok());
}

TEST(WorkerTest, AFloodOfResetsTakesNoMoreThanItsMemory) {
  if (kSanitized) GTEST_SKIP() << "memory is not bounded in this build";
  constexpr uint64_t kMemory = 96ull << 20;
  FakeCore core(kMemory);
  ASSERT_TRUE(core.ready().has_value());
  const wire::UniqueFd flood = core.ConnectSocket(1);
  Http2 client(65535);
  uint32_t stream = 1;
  uint64_t most_kib = 0;
  std::string bytes;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::optional<std::string> end;
  while (absl::Now() < deadline && !(end = core.process().Reap()).has_value()) {
    for (int i = 0; bytes.empty() && i < 200; ++i, stream += 2) {
      client.Call(stream);
      client.Reset(stream);
    }
    if (bytes.empty()) bytes = client.Take();
    const ssize_t n = send(flood.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) bytes.erase(0, static_cast<size_t>(n));
    most_kib = std::max<uint64_t>(
        most_kib, strtoull(ReadStatus(core.process().pid())["RssAnon"].c_str(), nullptr, 10));
    if (n < 0) absl::SleepFor(absl::Milliseconds(5));
    while (core.Next(absl::ZeroDuration()).has_value()) {
    }
  }
  EXPECT_LE(most_kib, kMemory >> 10);
  std::cout << "it took " << most_kib << " KiB, and " << end.value_or("runs") << std::endl;
}

}  // namespace
}  // namespace iris::server
