#include "server/link/link.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "server/link/drop_unread.h"

namespace iris::server {
namespace {

LinkHeader Header(LinkType type, uint64_t connection = 0, uint64_t call = 0, uint16_t method = 0) {
  LinkHeader header;
  header.type = type;
  header.connection = connection;
  header.call = call;
  header.method = method;
  return header;
}

struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a.Reset(fds[0]);
    b.Reset(fds[1]);
  }
  wire::UniqueFd a, b;
};

struct Got {
  LinkHeader header;
  std::string payload;
  bool has_fd = false;
};

// All that has come, or the first error.
absl::StatusOr<std::vector<Got>> ReadAll(LinkReader* reader, int socket) {
  std::vector<Got> got;
  while (true) {
    const absl::StatusOr<LinkReader::Received> received = reader->Receive(socket);
    if (!received.ok()) return received.status();
    if (*received == LinkReader::Received::kNothingYet) return got;
    while (true) {
      absl::StatusOr<std::optional<LinkMessage>> message = reader->Next();
      if (!message.ok()) return message.status();
      if (!message->has_value()) break;
      got.push_back({(*message)->header, std::string((*message)->payload), (*message)->fd.valid()});
    }
  }
}

// Returns the status of a reader of a worker's messages for these bytes.
absl::Status Hear(const std::string& bytes) {
  Pair pair;
  EXPECT_EQ(write(pair.a.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  LinkReader reader(LinkSender::kWorker);
  return ReadAll(&reader, pair.b.get()).status();
}

std::string BytesOf(const LinkHeader& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

TEST(LinkTest, WhatIsWrittenIsRead) {
  Pair pair;
  LinkWriter writer;
  const auto shared = std::make_shared<const std::string>(100'000, 's');
  writer.Queue(Header(LinkType::kMessage, 0, 7), {"head", shared});
  LinkHeader finish = Header(LinkType::kFinish, 0, 7);
  finish.code = 5;
  writer.Queue(finish, {"why", nullptr});
  writer.Queue(Header(LinkType::kStop));
  const size_t bytes = 3 * sizeof(LinkHeader) + 4 + 100'000 + 3;
  EXPECT_EQ(writer.queued_bytes(), bytes);
  ASSERT_EQ(*writer.Flush(pair.a.get()), LinkWriter::Flushed::kAll);
  EXPECT_EQ(writer.queued_bytes(), 0u);
  LinkReader reader(LinkSender::kCore);
  const auto got = ReadAll(&reader, pair.b.get());
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 3u);
  EXPECT_EQ((*got)[0].header.call, 7u);
  EXPECT_EQ((*got)[0].payload, "head" + *shared);
  EXPECT_EQ((*got)[1].header.code, 5u);
  EXPECT_EQ((*got)[1].payload, "why");
  EXPECT_EQ((*got)[2].header.type, LinkType::kStop);
}

TEST(LinkTest, TheTailIsShared) {
  LinkWriter writer;
  auto value = std::make_shared<const std::string>(1 << 20, 'v');
  for (uint64_t call = 1; call <= 8; ++call) {
    writer.Queue(Header(LinkType::kMessage, 0, call), {"", value});
  }
  EXPECT_EQ(value.use_count(), 9);
}

TEST(LinkTest, MessagesComeInPiecesOfEverySize) {
  std::string bytes;
  for (uint64_t call = 1; call <= 5; ++call) {
    LinkHeader header = Header(LinkType::kCall, 1, call, 3);
    header.bytes = static_cast<uint32_t>(call * 11);
    bytes += BytesOf(header) + std::string(call * 11, static_cast<char>('a' + call));
  }
  for (size_t piece = 1; piece < bytes.size(); piece = piece * 3 / 2 + 1) {
    Pair pair;
    LinkReader reader(LinkSender::kWorker);
    std::vector<Got> got;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const std::string part = bytes.substr(at, piece);
      ASSERT_EQ(write(pair.a.get(), part.data(), part.size()), static_cast<ssize_t>(part.size()));
      auto some = ReadAll(&reader, pair.b.get());
      ASSERT_TRUE(some.ok()) << some.status();
      for (Got& one : *some) got.push_back(std::move(one));
    }
    ASSERT_EQ(got.size(), 5u) << piece;
    for (uint64_t call = 1; call <= 5; ++call) {
      EXPECT_EQ(got[call - 1].header.call, call);
      EXPECT_EQ(got[call - 1].payload, std::string(call * 11, static_cast<char>('a' + call)));
    }
  }
}

TEST(LinkTest, WhatTheSocketDoesNotTakeWaits) {
  Pair pair;
  LinkWriter writer;
  std::string all;
  for (uint64_t call = 1; call <= 40; ++call) {
    const std::string payload(100'000, static_cast<char>(call));
    all += payload;
    writer.Queue(Header(LinkType::kMessage, 0, call), {payload, nullptr});
  }
  LinkReader reader(LinkSender::kCore);
  std::string read;
  int blocked = 0;
  while (true) {
    const auto flushed = writer.Flush(pair.a.get());
    ASSERT_TRUE(flushed.ok()) << flushed.status();
    const auto got = ReadAll(&reader, pair.b.get());
    ASSERT_TRUE(got.ok()) << got.status();
    for (const Got& one : *got) read += one.payload;
    if (*flushed == LinkWriter::Flushed::kAll) break;
    ++blocked;
  }
  EXPECT_GT(blocked, 0);
  EXPECT_EQ(read, all);
}

TEST(LinkTest, EachConnectionComesWithItsOwnDescriptor) {
  Pair pair;
  LinkWriter writer;
  std::vector<ino_t> inodes;
  std::vector<Pair> sockets(5);
  for (uint64_t i = 0; i < sockets.size(); ++i) {
    struct stat info;
    ASSERT_EQ(fstat(sockets[i].a.get(), &info), 0);
    inodes.push_back(info.st_ino);
    writer.Queue(Header(LinkType::kMessage, 0, i + 1), {std::string(i * 1000, 'x'), nullptr});
    writer.Queue(Header(LinkType::kConnect, i + 1), {}, std::move(sockets[i].a));
  }
  ASSERT_EQ(*writer.Flush(pair.a.get()), LinkWriter::Flushed::kAll);
  LinkReader reader(LinkSender::kCore);
  std::vector<ino_t> seen;
  while (true) {
    const auto received = reader.Receive(pair.b.get());
    ASSERT_TRUE(received.ok()) << received.status();
    if (*received == LinkReader::Received::kNothingYet) break;
    while (true) {
      auto message = reader.Next();
      ASSERT_TRUE(message.ok()) << message.status();
      if (!message->has_value()) break;
      if ((*message)->type() != LinkType::kConnect) continue;
      struct stat info;
      ASSERT_EQ(fstat((*message)->fd.get(), &info), 0);
      EXPECT_EQ(fcntl((*message)->fd.get(), F_GETFD), FD_CLOEXEC);
      seen.push_back(info.st_ino);
    }
  }
  EXPECT_EQ(seen, inodes);
}

TEST(LinkTest, TheEndOfTheOtherSideIsSeenByBoth) {
  Pair pair;
  pair.a.Reset();
  LinkReader reader(LinkSender::kWorker);
  EXPECT_TRUE(absl::IsUnavailable(reader.Receive(pair.b.get()).status()));
  LinkWriter writer;
  writer.Queue(Header(LinkType::kStop));
  EXPECT_TRUE(absl::IsUnavailable(writer.Flush(pair.b.get()).status()));
}

TEST(LinkTest, WhatAWorkerMayNotSayIsRefused) {
  struct Case {
    const char* what;
    LinkHeader header;
    const char* text;
  };
  std::vector<Case> cases;
  cases.push_back({"no type", LinkHeader(), "does not send that"});
  LinkHeader h = Header(LinkType::kReady);
  h.type = static_cast<LinkType>(99);
  cases.push_back({"an unknown type", h, "does not send that"});
  cases.push_back({"a type of the core's", Header(LinkType::kMessage, 0, 1), "does not send that"});
  cases.push_back({"a connect", Header(LinkType::kConnect, 1), "does not send that"});
  h = Header(LinkType::kCall, 1, 1, 3);
  h.bytes = wire::kMaxRpcBytes + 1;
  cases.push_back({"a request that is too long", h, "at most"});
  h.bytes = ~0u;
  cases.push_back({"a request of 4 GiB", h, "at most"});
  h = Header(LinkType::kCancel, 0, 1);
  h.bytes = 1;
  cases.push_back({"a payload where none belongs", h, "at most 0"});
  h = Header(LinkType::kReady);
  h.bytes = kMaxReadyBytes + 1;
  cases.push_back({"a long version", h, "at most"});
  cases.push_back({"a call of no connection", Header(LinkType::kCall, 0, 1, 3), "connection"});
  cases.push_back({"a call without a number", Header(LinkType::kCall, 1, 0, 3), "its call"});
  cases.push_back({"a call of no method", Header(LinkType::kCall, 1, 1, 0), "method"});
  cases.push_back({"a cancel with a connection", Header(LinkType::kCancel, 1, 1), "connection"});
  cases.push_back({"a close with a call", Header(LinkType::kClosed, 1, 1), "its call"});
  h = Header(LinkType::kSent, 0, 1);
  h.code = 1;
  cases.push_back({"a code", h, "not zero"});
  h = Header(LinkType::kSent, 0, 1);
  h.n_fds = 1;
  cases.push_back({"a descriptor", h, "not zero"});
  for (const Case& c : cases) {
    const absl::Status status = Hear(BytesOf(c.header));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.what << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << c.what << ": " << status;
  }
}

TEST(LinkTest, AnAnnouncedPayloadTakesNoMemoryBeforeItComes) {
  // Many workers that announce much and send nothing must cost nothing: only what has come is kept.
  LinkHeader header = Header(LinkType::kCall, 1, 1, 3);
  header.bytes = wire::kMaxRpcBytes;
  const auto rss_kib = [] {
    long pages = 0;
    FILE* const file = fopen("/proc/self/statm", "r");
    EXPECT_EQ(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE) / 1024;
  };
  std::vector<std::unique_ptr<LinkReader>> readers;
  const long before = rss_kib();
  for (int i = 0; i < 200; ++i) {
    Pair pair;
    const std::string bytes = BytesOf(header) + "x";
    ASSERT_EQ(write(pair.a.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    readers.push_back(std::make_unique<LinkReader>(LinkSender::kWorker));
    ASSERT_TRUE(ReadAll(readers.back().get(), pair.b.get()).ok());
  }
  EXPECT_LT(rss_kib() - before, 16 * 1024);
}

// Closing a descriptor may block, so this process never takes one from a worker.
TEST(LinkTest, DescriptorsOfAWorkerAreRefusedAndLeft) {
  Pair pair;
  Pair other;
  LinkWriter writer;  // a worker that attaches one to its second message
  writer.Queue(Header(LinkType::kSent, 0, 1));
  writer.Queue(Header(LinkType::kCancel, 0, 1), {}, std::move(other.a));
  ASSERT_EQ(*writer.Flush(pair.a.get()), LinkWriter::Flushed::kAll);
  LinkReader reader(LinkSender::kWorker);
  const auto got = ReadAll(&reader, pair.b.get());
  EXPECT_TRUE(absl::IsInvalidArgument(got.status())) << got.status();
  EXPECT_EQ(NextOf(pair.b.get()), Next::kDescriptors);
  char byte;
  EXPECT_EQ(recv(other.b.get(), &byte, 1, MSG_DONTWAIT), -1) << "the descriptor was closed";
  pair.b.Reset();
  EXPECT_EQ(recv(other.b.get(), &byte, 1, MSG_DONTWAIT), 0) << "it is still open somewhere";
}

TEST(LinkTest, AConnectWithoutADescriptorIsRefused) {
  Pair pair;
  const std::string bytes = BytesOf(Header(LinkType::kConnect, 1));
  ASSERT_EQ(write(pair.a.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  LinkReader reader(LinkSender::kCore);
  const absl::Status status = ReadAll(&reader, pair.b.get()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(LinkTest, MessagesToAPortCarryADescriptorOrNone) {
  Pair pair, other;
  LinkWriter writer;
  writer.Queue(Header(LinkType::kPortSetup), {"setup", nullptr});
  writer.Queue(Header(LinkType::kPortMemory), {"memory", nullptr}, std::move(other.a));
  writer.Queue(Header(LinkType::kPortMemory), {"forget", nullptr});
  writer.Queue(Header(LinkType::kPortRank), {"ring", nullptr}, std::move(other.b));
  ASSERT_TRUE(writer.Flush(pair.a.get()).ok());
  LinkReader reader(LinkSender::kCore);
  const auto got = ReadAll(&reader, pair.b.get());
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ((*got)[i].has_fd, i % 2 == 1) << i;
  EXPECT_EQ((*got)[3].payload, "ring");

  LinkHeader without = Header(LinkType::kPortRank, 0, 0, /*method=*/1);
  const std::string bytes = BytesOf(without);
  ASSERT_EQ(write(pair.a.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadAll(&reader, pair.b.get()).status()));
}

TEST(LinkTest, RandomBytesNeverDoHarm) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    const size_t n = 1 + random() % 400;
    for (size_t i = 0; i < n; ++i) bytes.push_back(static_cast<char>(random()));
    if (round % 2 == 0) {  // a good header first, with some of its bytes changed
      std::string good = BytesOf(Header(LinkType::kCall, 1, 1, 3));
      for (int i = 0; i < 2; ++i) good[random() % good.size()] = static_cast<char>(random());
      bytes = good + bytes;
    }
    refused += !Hear(bytes).ok();
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace iris::server
