#include "client/wire/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/base/clock.h"
#include "client/base/utf8.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/wire/limits.h"

namespace iris::internal {
namespace {

namespace v1 = iris::v1;

// Parses a request as irisd does.
template <typename Message>
Message Parse(const std::string& bytes) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}
v1::JoinRequest Join(const HostContextOptions& options,
                     absl::Duration timeout = absl::ZeroDuration()) {
  return Parse<v1::JoinRequest>(EncodeJoin(77, options, timeout));
}
v1::OperateRequest Operate(const OperationCall& call) {
  return Parse<v1::OperateRequest>(EncodeOperate(77, call, call.timeout));
}
Outcome Decoded(const v1::Outcome& outcome) {
  v1::OperateReply reply;
  *reply.mutable_outcome() = outcome;
  const absl::StatusOr<Outcome> decoded = DecodeOperateReply(reply.SerializeAsString());
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.value_or(Outcome());
}

TEST(ConvertTest, JoinCarriesEveryOption) {
  const v1::JoinRequest request = Join({{.job = "job",
                                         .rank = 1,
                                         .n_ranks = 2,
                                         .local_rank = 3,
                                         .heap_bytes = 4,
                                         .max_heap_bytes = 5,
                                         .prealloc = true,
                                         .device_uuid = "uuid"}},
                                       absl::Seconds(6));
  EXPECT_EQ(request.session_id(), 77u);
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
  EXPECT_EQ(request.number(), kJoinNumber);
  EXPECT_FALSE(request.has_nodes());
}

TEST(ConvertTest, JoinOfSeveralNodesSaysWhichRanksAreHere) {
  HostContextOptions options = {{.rank = 5, .n_ranks = 8, .local_rank = 1, .n_local = 4}};
  options.rendezvous = "a:5";
  options.secret = "not \xff UTF-8 here";
  options.by_launcher = {"b:6", "another \xff secret"};
  const v1::JoinRequest request = Join(options);
  ASSERT_TRUE(request.has_nodes());
  EXPECT_EQ(request.nodes().first_local(), 4u);
  EXPECT_EQ(request.nodes().n_local(), 4u);
  EXPECT_EQ(request.nodes().rendezvous(), "a:5");
  EXPECT_EQ(request.nodes().secret(), options.secret);
  EXPECT_EQ(request.nodes().launcher_rendezvous(), "b:6");
  EXPECT_EQ(request.nodes().launcher_secret(), options.by_launcher.secret);
  options.n_ranks = 4;
  EXPECT_FALSE(Join(options).has_nodes());
}

TEST(ConvertTest, TimeoutsAreNeverZeroWhichMeansIrisdsOwn) {
  EXPECT_EQ(Operate(OperationCall{.timeout = absl::ZeroDuration(), .op = GrowOp{}}).timeout_ms(),
            1u);
  EXPECT_EQ(
      Operate(OperationCall{.timeout = absl::InfiniteDuration(), .op = GrowOp{}}).timeout_ms(),
      static_cast<uint64_t>(absl::ToInt64Milliseconds(kTimeoutMax)));
}

TEST(ConvertTest, WhatIsTooLongIsCutJustBeyondItsLimit) {
  const std::string huge(8 << 20, 'x');
  EXPECT_EQ(Join({{.job = huge}}).job().size(), wire::kMaxJobNameBytes + 1);
  OperationCall call;
  call.op = AllocateOptions{.name = huge,
                            .dtype = DType::kF8E4M3,
                            .shape = std::vector<uint64_t>(wire::kMaxDims * 100, 1)};
  const v1::OperateRequest allocate = Operate(call);
  EXPECT_EQ(allocate.allocate().name().size(), wire::kMaxAllocationNameBytes + 1);
  EXPECT_EQ(allocate.allocate().tensor().dtype(), "f8e4m3");
  for (uint32_t type = 0; type < kDTypeCount; ++type) {
    const std::string name = DTypeName(static_cast<DType>(type));
    EXPECT_LE(name.size(), wire::kMaxDtypeBytes) << name;
  }
  EXPECT_EQ(static_cast<size_t>(allocate.allocate().tensor().shape_size()), wire::kMaxDims + 1);
  call.op = BroadcastOp{0, huge};
  EXPECT_EQ(Operate(call).broadcast().value().size(), wire::kMaxBroadcastBytes + 1);
  call.op = CreateTeamOp{std::vector<uint32_t>(wire::kMaxWorldRanks * 2, 1)};
  EXPECT_EQ(static_cast<uint32_t>(Operate(call).create_team().ranks_size()),
            wire::kMaxWorldRanks + 1);
  EXPECT_EQ(ToErrorText(absl::InternalError(huge)).size(), wire::kMaxErrorTextBytes);
}

TEST(ConvertTest, EveryOperationHasItsMessage) {
  OperationCall call{.job_id = 1, .team_id = 2, .k = 3};
  call.op = AllocateOptions{.bytes = 4, .alignment_bytes = 8, .shape = {2, 2}};
  v1::OperateRequest request = Operate(call);
  EXPECT_EQ(request.job_id(), 1u);
  EXPECT_EQ(request.team_id(), 2u);
  EXPECT_EQ(request.k(), 3u);
  EXPECT_EQ(request.allocate().bytes(), 4u);
  EXPECT_EQ(request.allocate().alignment_bytes(), 8u);
  EXPECT_EQ(request.allocate().tensor().shape_size(), 2);
  call.op = FreeOp{64};
  EXPECT_EQ(Operate(call).free().offset_bytes(), 64u);
  call.op = BroadcastOp{5, "value"};
  EXPECT_EQ(Operate(call).broadcast().root(), 5u);
  EXPECT_EQ(Operate(call).broadcast().value(), "value");
  call.op = CreateTeamOp{{3, 1}};
  EXPECT_EQ(Operate(call).create_team().ranks(0), 3u);
  call.op = DestroyTeamOp{9};
  EXPECT_EQ(Operate(call).destroy_team().last_barrier_epoch(), 9u);
  call.op = GrowOp{10};
  EXPECT_EQ(Operate(call).grow().bytes(), 10u);
  call.op = OpenOp{3, "inbox"};
  EXPECT_EQ(Operate(call).open().rank(), 3u);
  EXPECT_EQ(Operate(call).open().name(), "inbox");
  call.op = PublishOp{2048, "inbox"};
  EXPECT_EQ(Operate(call).publish().offset_bytes(), 2048u);
  EXPECT_EQ(Operate(call).publish().name(), "inbox");
  call.op = SplitOp{3, -1, 7};
  ASSERT_EQ(Operate(call).split().wishes_size(), 1);
  EXPECT_EQ(Operate(call).split().wishes(0).rank(), 3u);
  EXPECT_EQ(Operate(call).split().wishes(0).color(), -1);
  EXPECT_EQ(Operate(call).split().wishes(0).key(), 7);
}

TEST(ConvertTest, OutcomeIsItsStatusOrItsResult) {
  v1::Outcome message;
  message.set_k(3);
  message.mutable_result()->set_offset_bytes(64);
  message.mutable_result()->set_value("value");
  message.mutable_result()->set_heap_bytes(128);
  Outcome outcome = Decoded(message);
  EXPECT_EQ(outcome.k, 3u);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.result.offset_bytes, 64u);
  EXPECT_EQ(outcome.result.value, "value");
  EXPECT_EQ(outcome.result.heap_bytes, 128u);
  EXPECT_FALSE(outcome.result.opened.has_value());
  message.mutable_result()->mutable_opened()->set_offset_bytes(4096);
  message.mutable_result()->mutable_opened()->set_bytes(7);
  message.mutable_result()->mutable_opened()->set_dtype("f32");
  outcome = Decoded(message);
  ASSERT_TRUE(outcome.result.opened.has_value());
  EXPECT_EQ(outcome.result.opened->offset_bytes, 4096u);
  EXPECT_EQ(outcome.result.opened->bytes, 7u);
  EXPECT_EQ(outcome.result.opened->dtype, "f32");
  EXPECT_FALSE(outcome.result.team.has_value());

  v1::TeamInfo& team = *message.mutable_result()->mutable_team();
  team.set_team_id(7);
  team.add_ranks(2);
  team.set_barrier_slot(1);
  team.set_barrier_start_epoch(11);
  team.set_sync_offset_bytes(4096);
  outcome = Decoded(message);
  ASSERT_TRUE(outcome.result.team.has_value());
  EXPECT_EQ(outcome.result.team->team_id, 7u);
  EXPECT_EQ(outcome.result.team->ranks, std::vector<uint32_t>{2});
  EXPECT_EQ(outcome.result.team->barrier_slot, 1u);
  EXPECT_EQ(outcome.result.team->barrier_start_epoch, 11u);
  EXPECT_EQ(outcome.result.team->sync_offset_bytes, 4096u);

  message.set_code(9);
  message.set_text("live allocations");
  outcome = Decoded(message);
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
  reply.set_first_local(17);
  v1::Node& node = *reply.add_nodes();
  node.set_first_rank(18);
  node.set_n_ranks(19);
  node.set_name("host");
  node.set_with_previous(true);
  node.set_ranks_per_device(20);
  const JoinedJob job = *DecodeJoinReply(reply.SerializeAsString());
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
  EXPECT_EQ(job.first_local, 17u);
  ASSERT_EQ(job.nodes.size(), 1u);
  EXPECT_EQ(job.nodes[0].first_rank, 18u);
  EXPECT_EQ(job.nodes[0].n_ranks, 19u);
  EXPECT_EQ(job.nodes[0].name, "host");
  EXPECT_TRUE(job.nodes[0].with_previous);
  EXPECT_EQ(job.nodes[0].ranks_per_device, 20u);
}

TEST(ConvertTest, ReportedErrorHasText) {
  EXPECT_EQ(ToErrorText(absl::InternalError("x")), "x");
  EXPECT_EQ(ToErrorText(absl::Status(absl::StatusCode::kInternal, "")), "INTERNAL");
}

// irisd refuses a message with a text that is not UTF-8, and the error would be lost.
TEST(ConvertTest, ReportedErrorIsUtf8) {
  EXPECT_EQ(ToErrorText(absl::InternalError("a\xff\xc3z")), "a??z");
  EXPECT_EQ(ToErrorText(absl::InternalError("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80")),
            "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  std::string at_the_limit(wire::kMaxErrorTextBytes - 1, 'x');
  EXPECT_EQ(ToErrorText(absl::InternalError(at_the_limit + "\xc3\xa4")), at_the_limit);
}

using ::testing::HasSubstr;

void ExpectRefused(const absl::Status& status, const std::string& why) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}

TEST(ConvertTest, WhatDoesNotParseIsAnError) {
  ExpectRefused(DecodeJoinReply("\x3a\x7f").status(), "JoinReply of 2 bytes: end of buffer");
  ExpectRefused(DecodeJoinReply(std::string(1, '\0')).status(), "invalid tag");
  ExpectRefused(DecodeMappedReply("\x08").status(), "end of buffer");
  ExpectRefused(DecodeMappedReply("\x0f").status(), "unknown pbf field type");
  ExpectRefused(DecodeOperateReply("\x0a\x02\x08\x80").status(), "end of buffer");
  ExpectRefused(DecodeWatchEvent("\x28" + std::string(11, '\xff')).status(), "varint too long");
}

TEST(ConvertTest, TextsAreUtf8AndBytesAreAny) {
  v1::Outcome outcome;
  outcome.mutable_result()->set_value("\xff\xfe");
  EXPECT_EQ(Decoded(outcome).result.value, "\xff\xfe");
  // A peer's uuid; protobuf itself would not write it.
  ExpectRefused(DecodeJoinReply("\x42\x03\x1a\x01\xff").status(), "not UTF-8");
  ExpectRefused(DecodeWatchEvent("\x22\x03\x0a\x01\x80").status(), "not UTF-8");
  for (const char* text : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe2\x82",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

TEST(ConvertTest, ListsHaveTheLimitsOfAJob) {
  const auto segments = [](uint32_t n) {
    v1::JoinReply reply;
    for (uint32_t i = 0; i < n; ++i) reply.add_segments();
    return DecodeJoinReply(reply.SerializeAsString());
  };
  EXPECT_EQ(segments(wire::kMaxRanks * wire::kMaxSegmentsPerHeap)->segments.size(),
            wire::kMaxRanks * wire::kMaxSegmentsPerHeap);
  ExpectRefused(segments(wire::kMaxRanks * wire::kMaxSegmentsPerHeap + 1).status(), "segments");
  const auto peers = [](uint32_t n) {
    v1::JoinReply reply;
    for (uint32_t i = 0; i < n; ++i) reply.add_peers();
    return DecodeJoinReply(reply.SerializeAsString());
  };
  EXPECT_EQ(peers(wire::kMaxRanks)->peers.size(), wire::kMaxRanks);
  ExpectRefused(peers(wire::kMaxRanks + 1).status(), "peers");
  const auto ranks = [](uint32_t n) {
    v1::MappedReply reply;
    for (uint32_t i = 0; i < n; ++i) reply.mutable_world()->add_ranks(i);
    return DecodeMappedReply(reply.SerializeAsString());
  };
  EXPECT_EQ(ranks(wire::kMaxWorldRanks)->world.ranks.size(), wire::kMaxWorldRanks);
  ExpectRefused(ranks(wire::kMaxWorldRanks + 1).status(), "ranks");
}

TEST(ConvertTest, WhatANewerIrisdSaysIsSkipped) {
  v1::WatchEvent event;
  event.mutable_rank_changed()->set_rank(3);
  event.mutable_rank_changed()->set_state(static_cast<v1::RankState>(99));
  const absl::StatusOr<WatchEvent> decoded = DecodeWatchEvent(event.SerializeAsString());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<RankChange>(*decoded).state, wire::PageRankState::kUnspecified);
  // Fields 200 to 203 of every wire type, before one that is known; and that one as another type.
  const std::string unknown = std::string("\xc0\x0c\x05", 3) + "\xc9\x0c" + std::string(8, 'x') +
                              "\xd2\x0c\x02xy" + "\xdd\x0c" + std::string(4, 'x');
  const absl::StatusOr<CommittedJob> job = DecodeMappedReply(unknown + "\x0a\x02xy" + "\x08\x01");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->same_address);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*DecodeWatchEvent(unknown)));
}

TEST(ConvertTest, ANumberTooLargeForATimeIsALongTime) {
  v1::JoinReply reply;
  reply.set_map_timeout_ms(~0ull);
  EXPECT_GT(DecodeJoinReply(reply.SerializeAsString())->map_timeout, absl::Hours(1));
}

}  // namespace
}  // namespace iris::internal
