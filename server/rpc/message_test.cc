#include "server/rpc/message.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/rpc/operate_reply.h"

namespace iris::server {
namespace {

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  return slices;
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

v1::OperateReply Parsed(const grpc::ByteBuffer& bytes) {
  v1::OperateReply reply;
  const absl::Status status = ParseMessage(bytes, &reply);
  EXPECT_TRUE(status.ok()) << status;
  return reply;
}

TEST(MessageTest, ReadsWhatItWrites) {
  v1::JoinRequest request;
  request.set_job("train");
  request.set_rank(3);
  v1::JoinRequest read;
  ASSERT_TRUE(ParseMessage(SerializeMessage(request), &read).ok());
  EXPECT_EQ(read.SerializeAsString(), request.SerializeAsString());
}

TEST(MessageTest, AnEmptyMessageIsNoBytes) {
  const grpc::ByteBuffer bytes = SerializeMessage(v1::LeaveReply());
  EXPECT_EQ(bytes.Length(), 0u);
  v1::LeaveReply read;
  EXPECT_TRUE(ParseMessage(bytes, &read).ok());
}

TEST(MessageTest, ReadsAMessageInManySlices) {
  v1::OperateRequest request;
  request.mutable_broadcast()->set_value(Bytes(10'000));
  const std::string all = request.SerializeAsString();
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < all.size(); at += 7) slices.emplace_back(all.substr(at, 7));
  v1::OperateRequest read;
  ASSERT_TRUE(ParseMessage(grpc::ByteBuffer(slices.data(), slices.size()), &read).ok());
  EXPECT_EQ(read.broadcast().value(), request.broadcast().value());
}

TEST(MessageTest, WhatDoesNotParseIsSaid) {
  for (const std::string& garbage :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), std::string("\x0a\x7f", 2),
        std::string(100, '\x07')}) {
    const grpc::Slice slice(garbage);
    v1::OperateRequest read;
    const absl::Status status = ParseMessage(grpc::ByteBuffer(&slice, 1), &read);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "not a message of type iris.v1.OperateRequest"))
        << status;
  }
}

TEST(SharedSliceTest, HoldsWhatItShows) {
  std::weak_ptr<const std::string> watch;
  std::optional<grpc::Slice> slice;
  {
    const auto value = std::make_shared<const std::string>(Bytes(1 << 20));
    watch = value;
    slice = SharedSlice(value);
    EXPECT_EQ(slice->begin(), reinterpret_cast<const uint8_t*>(value->data()));
    EXPECT_EQ(slice->size(), value->size());
  }
  EXPECT_FALSE(watch.expired());
  {
    const grpc::ByteBuffer copy(&*slice, 1);
    slice.reset();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(OperateReplyTest, IsTheMessageThatProtobufWouldWrite) {
  Outcome outcome = Broadcast(Bytes(5000));
  outcome.result.offset_bytes = 4096;
  outcome.result.team.emplace();
  outcome.result.team->ranks = {0, 2};
  const v1::OperateReply reply = Parsed(SerializeOperateReply(outcome));
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
    const v1::OperateReply reply = Parsed(SerializeOperateReply(Broadcast(Bytes(n))));
    EXPECT_EQ(reply.outcome().result().value(), Bytes(n)) << n;
    EXPECT_EQ(reply.outcome().k(), 300u) << n;
  }
}

TEST(OperateReplyTest, EveryMembersReplySharesTheValue) {
  // What the machine answers each member with: an Outcome of its own, copied from one.
  const Outcome decided = Broadcast(Bytes(1 << 20));
  std::vector<grpc::ByteBuffer> replies;
  for (int member = 0; member < 8; ++member) {
    const Outcome mine = decided;
    replies.push_back(SerializeOperateReply(mine));
  }
  std::set<const uint8_t*> addresses;
  for (const grpc::ByteBuffer& reply : replies) {
    const std::vector<grpc::Slice> slices = SlicesOf(reply);
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_LT(slices[0].size(), 64u);
    EXPECT_EQ(slices[1].size(), 1u << 20);
    addresses.insert(slices[1].begin());
  }
  EXPECT_EQ(addresses.size(), 1u) << "the value was copied";
}

TEST(OperateReplyTest, AFailureHasCodeAndTextAlone) {
  Outcome outcome = Broadcast("");
  outcome.status = absl::AbortedError("rank 3 hung up");
  outcome.result.value = std::string("not to be seen");
  const v1::OperateReply reply = Parsed(SerializeOperateReply(outcome));
  EXPECT_EQ(reply.outcome().k(), 300u);
  EXPECT_EQ(reply.outcome().code(), 10u);
  EXPECT_EQ(reply.outcome().text(), "rank 3 hung up");
  EXPECT_FALSE(reply.outcome().has_result());
}

}  // namespace
}  // namespace iris::server
