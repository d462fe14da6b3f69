#include "server/rpc/services.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/rpc/convert.h"

namespace iris::server {
namespace {

std::string TextOf(const LinkPayload& payload) {
  return payload.head + (payload.tail == nullptr ? "" : *payload.tail);
}

std::string Bytes(size_t n) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 131 >> 3);
  return bytes;
}

Outcome Broadcast(const std::string& value) {
  Outcome outcome;
  outcome.k = 300;
  outcome.result.value = value;
  outcome.result.heap_bytes = 1 << 20;
  return outcome;
}

v1::OperateReply Parsed(const LinkPayload& payload) {
  v1::OperateReply reply;
  const absl::Status status = ParseMessage(TextOf(payload), &reply);
  EXPECT_TRUE(status.ok()) << status;
  return reply;
}

TEST(MessageTest, ReadsWhatItWrites) {
  v1::JoinRequest request;
  request.set_job("train");
  request.set_rank(3);
  v1::JoinRequest read;
  ASSERT_TRUE(ParseMessage(TextOf(SerializeMessage(request)), &read).ok());
  EXPECT_EQ(read.SerializeAsString(), request.SerializeAsString());
}

TEST(MessageTest, AnEmptyMessageIsNoBytes) {
  const LinkPayload bytes = SerializeMessage(v1::LeaveReply());
  EXPECT_EQ(bytes.size(), 0u);
  v1::LeaveReply read;
  EXPECT_TRUE(ParseMessage(TextOf(bytes), &read).ok());
}

TEST(MessageTest, ReadsALargeMessage) {
  v1::OperateRequest request;
  request.mutable_broadcast()->set_value(Bytes(10'000));
  v1::OperateRequest read;
  ASSERT_TRUE(ParseMessage(TextOf(SerializeMessage(request)), &read).ok());
  EXPECT_EQ(read.broadcast().value(), request.broadcast().value());
}

TEST(MessageTest, WhatDoesNotParseIsSaid) {
  for (const std::string& garbage :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), std::string("\x0a\x7f", 2),
        std::string(100, '\x07')}) {
    v1::OperateRequest read;
    const absl::Status status = ParseMessage(garbage, &read);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "not a message of type iris.v1.OperateRequest"))
        << status;
  }
}

TEST(OperateReplyTest, HoldsTheValueThatItShares) {
  std::weak_ptr<const std::string> watch;
  std::optional<LinkPayload> payload;
  {
    const Outcome outcome = Broadcast(Bytes(1 << 20));
    watch = outcome.result.value.share();
    payload = OperateReplyOf(outcome);
    EXPECT_EQ(payload->tail->data(), outcome.result.value.share()->data());
  }
  EXPECT_FALSE(watch.expired());
  payload.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(OperateReplyTest, IsTheMessageThatProtobufWouldWrite) {
  Outcome outcome = Broadcast(Bytes(5000));
  outcome.result.offset_bytes = 4096;
  outcome.result.team.emplace();
  outcome.result.team->ranks = {0, 2};
  const v1::OperateReply reply = Parsed(OperateReplyOf(outcome));
  EXPECT_EQ(reply.outcome().k(), 300u);
  EXPECT_EQ(reply.outcome().code(), 0u);
  EXPECT_EQ(reply.outcome().result().value(), Bytes(5000));
  EXPECT_EQ(reply.outcome().result().offset_bytes(), 4096u);
  EXPECT_EQ(reply.outcome().result().heap_bytes(), 1u << 20);
  EXPECT_EQ(reply.outcome().result().team().ranks_size(), 2);
}

TEST(OperateReplyTest, ValuesOfEverySizeAreWhole) {
  // Around the lengths where a varint grows.
  for (const size_t n : {0, 1, 100, 127, 128, 129, 16'370, 16'383, 16'384, 16'400, 1 << 20}) {
    const v1::OperateReply reply = Parsed(OperateReplyOf(Broadcast(Bytes(n))));
    EXPECT_EQ(reply.outcome().result().value(), Bytes(n)) << n;
    EXPECT_EQ(reply.outcome().k(), 300u) << n;
  }
}

TEST(OperateReplyTest, EveryMembersReplySharesTheValue) {
  // The machine answers each rank with an Outcome of its own, copied from one.
  const Outcome decided = Broadcast(Bytes(1 << 20));
  std::vector<LinkPayload> replies;
  for (int member = 0; member < 8; ++member) {
    const Outcome mine = decided;
    replies.push_back(OperateReplyOf(mine));
  }
  std::set<const char*> addresses;
  for (const LinkPayload& reply : replies) {
    ASSERT_NE(reply.tail, nullptr);
    EXPECT_LT(reply.head.size(), 64u);
    EXPECT_EQ(reply.tail->size(), 1u << 20);
    addresses.insert(reply.tail->data());
  }
  EXPECT_EQ(addresses.size(), 1u) << "the value was copied";
}

TEST(OperateReplyTest, AFailureHasCodeAndTextAlone) {
  Outcome outcome = Broadcast("");
  outcome.status = absl::AbortedError("rank 3 hung up");
  outcome.result.value = std::string("not to be seen");
  const v1::OperateReply reply = Parsed(OperateReplyOf(outcome));
  EXPECT_EQ(reply.outcome().k(), 300u);
  EXPECT_EQ(reply.outcome().code(), 10u);
  EXPECT_EQ(reply.outcome().text(), "rank 3 hung up");
  EXPECT_FALSE(reply.outcome().has_result());
}

}  // namespace
}  // namespace iris::server
