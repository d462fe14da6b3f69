#include "client/internal/convert.h"

#include <gtest/gtest.h>

#include "client/internal/clock.h"
#include "proto/wire/limits.h"

namespace iris::internal {
namespace {

namespace v1 = iris::v1;

TEST(ConvertTest, JoinCarriesEveryOption) {
  const v1::JoinRequest request = ToProto(ContextOptions{.job = "job",
                                                         .rank = 1,
                                                         .n_ranks = 2,
                                                         .local_rank = 3,
                                                         .heap_bytes = 4,
                                                         .max_heap_bytes = 5,
                                                         .prealloc = true,
                                                         .device_uuid = "uuid",
                                                         .join_timeout = absl::Seconds(6)});
  EXPECT_EQ(request.job(), "job");
  EXPECT_EQ(request.rank(), 1);
  EXPECT_EQ(request.n_ranks(), 2);
  EXPECT_EQ(request.local_rank(), 3);
  EXPECT_EQ(request.heap_bytes(), 4u);
  EXPECT_EQ(request.max_heap_bytes(), 5u);
  EXPECT_TRUE(request.prealloc());
  EXPECT_EQ(request.device_uuid(), "uuid");
  EXPECT_EQ(request.timeout_ms(), 6000u);
  EXPECT_EQ(request.team_sync_bytes(), kSyncAreaBytes);
}

TEST(ConvertTest, TimeoutsAreNeverZeroWhichMeansIrisdsOwn) {
  EXPECT_EQ(ToProto(OperationCall{.timeout = absl::ZeroDuration(), .op = GrowOp{}}).timeout_ms(),
            1u);
  EXPECT_EQ(
      ToProto(OperationCall{.timeout = absl::InfiniteDuration(), .op = GrowOp{}}).timeout_ms(),
      static_cast<uint64_t>(absl::ToInt64Milliseconds(kTimeoutMax)));
}

TEST(ConvertTest, WhatIsTooLongIsCutJustBeyondItsLimit) {
  const std::string huge(8 << 20, 'x');
  EXPECT_EQ(ToProto(ContextOptions{.job = huge}).job().size(), wire::kMaxJobNameBytes + 1);
  OperationCall call;
  call.op = AllocateOptions{
      .name = huge, .dtype = huge, .shape = std::vector<uint64_t>(wire::kMaxDims * 100, 1)};
  const v1::OperateRequest allocate = ToProto(call);
  EXPECT_EQ(allocate.allocate().name().size(), wire::kMaxAllocationNameBytes + 1);
  EXPECT_EQ(allocate.allocate().tensor().dtype().size(), wire::kMaxDtypeBytes + 1);
  EXPECT_EQ(static_cast<size_t>(allocate.allocate().tensor().shape_size()), wire::kMaxDims + 1);
  call.op = BroadcastOp{0, huge};
  EXPECT_EQ(ToProto(call).broadcast().value().size(), wire::kMaxBroadcastBytes + 1);
  call.op = CreateTeamOp{std::vector<uint32_t>(wire::kMaxRanks * 100, 1)};
  EXPECT_EQ(static_cast<uint32_t>(ToProto(call).create_team().ranks_size()), wire::kMaxRanks + 1);
  EXPECT_EQ(ToErrorText(absl::InternalError(huge)).size(), wire::kMaxErrorTextBytes);
}

TEST(ConvertTest, EveryOperationHasItsMessage) {
  OperationCall call{.job_id = 1, .team_id = 2, .k = 3};
  call.op = AllocateOptions{.bytes = 4, .alignment_bytes = 8, .shape = {2, 2}};
  v1::OperateRequest request = ToProto(call);
  EXPECT_EQ(request.job_id(), 1u);
  EXPECT_EQ(request.team_id(), 2u);
  EXPECT_EQ(request.k(), 3u);
  EXPECT_EQ(request.allocate().bytes(), 4u);
  EXPECT_EQ(request.allocate().alignment_bytes(), 8u);
  EXPECT_EQ(request.allocate().tensor().shape_size(), 2);
  call.op = FreeOp{64};
  EXPECT_EQ(ToProto(call).free().offset_bytes(), 64u);
  call.op = BroadcastOp{5, "value"};
  EXPECT_EQ(ToProto(call).broadcast().root(), 5u);
  EXPECT_EQ(ToProto(call).broadcast().value(), "value");
  call.op = CreateTeamOp{{3, 1}};
  EXPECT_EQ(ToProto(call).create_team().ranks(0), 3u);
  call.op = DestroyTeamOp{9};
  EXPECT_EQ(ToProto(call).destroy_team().last_barrier_epoch(), 9u);
  call.op = GrowOp{10};
  EXPECT_EQ(ToProto(call).grow().bytes(), 10u);
}

TEST(ConvertTest, OutcomeIsItsStatusOrItsResult) {
  v1::Outcome message;
  message.set_k(3);
  message.mutable_result()->set_offset_bytes(64);
  message.mutable_result()->set_value("value");
  message.mutable_result()->set_heap_bytes(128);
  Outcome outcome = FromProto(v1::Outcome(message));
  EXPECT_EQ(outcome.k, 3u);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.result.offset_bytes, 64u);
  EXPECT_EQ(outcome.result.value, "value");
  EXPECT_EQ(outcome.result.heap_bytes, 128u);
  EXPECT_FALSE(outcome.result.team.has_value());

  v1::TeamInfo& team = *message.mutable_result()->mutable_team();
  team.set_team_id(7);
  team.add_ranks(2);
  team.set_barrier_slot(1);
  team.set_barrier_start_epoch(11);
  team.set_sync_offset_bytes(4096);
  outcome = FromProto(v1::Outcome(message));
  ASSERT_TRUE(outcome.result.team.has_value());
  EXPECT_EQ(outcome.result.team->team_id, 7u);
  EXPECT_EQ(outcome.result.team->ranks, std::vector<uint32_t>{2});
  EXPECT_EQ(outcome.result.team->barrier_slot, 1u);
  EXPECT_EQ(outcome.result.team->barrier_start_epoch, 11u);
  EXPECT_EQ(outcome.result.team->sync_offset_bytes, 4096u);

  message.set_code(9);
  message.set_text("live allocations");
  outcome = FromProto(v1::Outcome(message));
  EXPECT_EQ(outcome.status, absl::FailedPreconditionError("live allocations"));
}

TEST(ConvertTest, JoinReplyBecomesAJob) {
  v1::JoinReply reply;
  reply.set_job_id(1);
  reply.set_epoch(2);
  reply.set_proposed_base(3);
  reply.set_stride_bytes(4);
  reply.set_heap_bytes(5);
  v1::Segment& segment = *reply.add_segments();
  segment.set_segment_id(6);
  segment.set_rank(7);
  segment.set_offset_bytes(8);
  segment.set_bytes(9);
  v1::Peer& peer = *reply.add_peers();
  peer.set_pid(10);
  peer.set_device_uuid("peer");
  peer.set_device_index(11);
  reply.mutable_device()->set_backend("emu");
  reply.mutable_device()->set_uuid("mine");
  reply.mutable_device()->set_index(12);
  reply.set_map_timeout_ms(13);
  reply.set_link_bytes(14);
  reply.set_create_ns(15);
  reply.set_export_ns(16);
  const JoinedJob job = FromProto(reply);
  EXPECT_EQ(job.job_id, 1u);
  EXPECT_EQ(job.epoch, 2u);
  EXPECT_EQ(job.proposed_base, 3u);
  EXPECT_EQ(job.stride_bytes, 4u);
  EXPECT_EQ(job.heap_bytes, 5u);
  ASSERT_EQ(job.segments.size(), 1u);
  EXPECT_EQ(job.segments[0].segment_id, 6u);
  EXPECT_EQ(job.segments[0].rank, 7u);
  EXPECT_EQ(job.segments[0].offset_bytes, 8u);
  EXPECT_EQ(job.segments[0].bytes, 9u);
  ASSERT_EQ(job.peers.size(), 1u);
  EXPECT_EQ(job.peers[0].pid, 10);
  EXPECT_EQ(job.peers[0].device_uuid, "peer");
  EXPECT_EQ(job.peers[0].device_index, 11u);
  EXPECT_EQ(job.backend, "emu");
  EXPECT_EQ(job.device_uuid, "mine");
  EXPECT_EQ(job.device_index, 12u);
  EXPECT_EQ(job.map_timeout, absl::Milliseconds(13));
  EXPECT_EQ(job.link_bytes, 14u);
  EXPECT_EQ(job.create, absl::Nanoseconds(15));
  EXPECT_EQ(job.export_fds, absl::Nanoseconds(16));
}

TEST(ConvertTest, ReportedErrorHasText) {
  EXPECT_EQ(ToErrorText(absl::InternalError("x")), "x");
  EXPECT_EQ(ToErrorText(absl::Status(absl::StatusCode::kInternal, "")), "INTERNAL");
}

}  // namespace
}  // namespace iris::internal
