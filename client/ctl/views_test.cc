#include "client/ctl/views.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
constexpr int64_t kMinuteAgoMs = (1'000'000 - 60) * 1000ll;

v1::Job* AddJob(v1::ListJobsReply* reply) {
  v1::Job* job = reply->add_jobs();
  job->set_job_id(0xab);
  job->set_job("train");
  job->set_uid(1000);
  job->set_state(v1::JOB_STATE_READY);
  job->set_epoch(1);
  job->set_n_ranks(2);
  job->set_heap_bytes(64 << 20);
  job->set_created_unix_ms(kMinuteAgoMs);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::JobRank* entry = job->add_ranks();
    entry->set_rank(rank);
    entry->set_state(v1::RANK_STATE_READY);
    entry->set_pid(100 + rank);
    entry->set_base(0x400000000000);
  }
  return job;
}

// The things of a page, which its first field has.
Json ListJson(const Message& page) { return MessageJson(page).begin().value(); }

// A listing of one page as a table.
std::string Text(View view, const Message& reply) {
  ListPrinter printer(std::move(view), /*as_json=*/false);
  const std::string text = printer.Page(reply, kNow);
  return text + printer.End();
}

TEST(StateWordTest, IsLowerCase) {
  EXPECT_EQ(StateWord(v1::RANK_STATE_READY), "ready");
  EXPECT_EQ(StateWord(v1::JOB_STATE_BROKEN), "broken");
}

TEST(StateWordTest, OfANewerIrisdIsUnknown) {
  EXPECT_EQ(StateWord(static_cast<v1::RankState>(99)), "unknown");
  EXPECT_EQ(StateWord(v1::JOB_STATE_UNSPECIFIED), "unknown");
}

TEST(ViewsTest, EmptyListsSayWhatThereIsNotAnyOf) {
  EXPECT_EQ(Text(DevicesView(), v1::ListDevicesReply()), "no devices\n");
  EXPECT_EQ(Text(JobsView(), v1::ListJobsReply()), "no jobs\n");
  EXPECT_EQ(Text(HeapsView(), v1::ListHeapsReply()), "no heaps\n");
  EXPECT_EQ(Text(AllocationsView(), v1::ListAllocationsReply()), "no allocations\n");
  EXPECT_EQ(Text(SessionsView(), v1::ListSessionsReply()), "no sessions\n");
}

TEST(ViewsTest, EmptyListsAreEmptyArrays) {
  EXPECT_EQ(Dump(ListJson(v1::ListDevicesReply()), -1), "[]\n");
  EXPECT_EQ(Dump(ListJson(v1::ListJobsReply()), -1), "[]\n");
  EXPECT_EQ(Dump(ListJson(v1::ListHeapsReply()), -1), "[]\n");
  EXPECT_EQ(Dump(ListJson(v1::ListAllocationsReply()), -1), "[]\n");
  EXPECT_EQ(Dump(ListJson(v1::ListSessionsReply()), -1), "[]\n");
}

TEST(ViewsTest, AListingIsOneTableHoweverManyPages) {
  v1::ListHeapsReply first, second;
  first.add_heaps()->set_job("a");
  second.add_heaps()->set_job("longer");
  second.add_heaps()->set_job("b");
  ListPrinter printer(HeapsView(), /*as_json=*/false);
  EXPECT_THAT(printer.Page(first, kNow), StartsWith("JOB  RANK  PID"));
  const std::string more = printer.Page(second, kNow);
  EXPECT_THAT(more, StartsWith("longer     0    0"));
  EXPECT_THAT(more, HasSubstr("\nb          0    0"));
  EXPECT_EQ(printer.Page(v1::ListHeapsReply(), kNow), "");
  EXPECT_EQ(printer.End(), "");
}

TEST(ViewsTest, AListingIsOneJsonDocumentHoweverManyPages) {
  v1::ListJobsReply all, none;
  for (int i = 0; i < 5; ++i) AddJob(&all)->set_job(absl::StrCat("two\nlines ", i));
  for (const int at : {0, 1, 4, 5}) {
    v1::ListJobsReply first, second;
    for (int i = 0; i < 5; ++i) *(i < at ? first : second).add_jobs() = all.jobs(i);
    ListPrinter printer(JobsView(), /*as_json=*/true);
    std::string text = printer.Page(first, kNow);
    text += printer.Page(none, kNow);
    text += printer.Page(second, kNow);
    EXPECT_FALSE(nlohmann::json::accept(text)) << "a part passes for the whole";
    EXPECT_EQ(text + printer.End(), Dump(ListJson(all), 2));
  }
  EXPECT_EQ(ListPrinter(JobsView(), true).End(), "[]\n");
}

TEST(ViewsTest, JobsTable) {
  v1::ListJobsReply reply;
  AddJob(&reply)->set_same_address(true);
  EXPECT_EQ(Text(JobsView(), reply),
            "JOB     UID  STATE  EPOCH  RANKS    HEAP/RANK  ALLOCATED  ALLOCATIONS  TEAMS  "
            "DEVICES  SAME-ADDRESS    AGE\n"
            "train  1000  ready      1  2 ready     64 MiB        0 B            0      0  0       "
            " yes           1m 0s\n");
}

TEST(ViewsTest, JobsTableTellsOfSharedDevices) {
  v1::ListJobsReply reply;
  v1::Job* job = AddJob(&reply);
  job->mutable_ranks(0)->set_device_uuid("emu-0");
  job->mutable_ranks(1)->set_device_uuid("emu-1");
  EXPECT_THAT(Text(JobsView(), reply), Not(HasSubstr("shared")));
  job->mutable_ranks(1)->set_device_uuid("emu-0");
  EXPECT_THAT(Text(JobsView(), reply), HasSubstr("1 shared"));
}

TEST(ViewsTest, JobsTableCountsRanksByState) {
  v1::ListJobsReply reply;
  v1::Job* job = AddJob(&reply);
  job->set_state(v1::JOB_STATE_BROKEN);
  job->mutable_ranks(1)->set_state(v1::RANK_STATE_DEAD);
  EXPECT_THAT(Text(JobsView(), reply), HasSubstr("2: 1 dead, 1 ready"));
}

TEST(ViewsTest, JobsTableCountsRanksOnOtherNodes) {
  v1::ListJobsReply reply;
  AddJob(&reply)->mutable_ranks(1)->set_node("host-b");
  EXPECT_THAT(Text(JobsView(), reply), HasSubstr("2 ready (1 on other nodes)"));
}

TEST(ViewsTest, NodesTable) {
  v1::ListNodesReply reply;
  v1::JobNode* node = reply.add_nodes();
  node->set_job("train");
  node->set_n_ranks(2);
  node->set_name("host-a");
  node->set_leads(true);
  node->set_here(true);
  node->set_state(v1::NODE_STATE_CONNECTED);
  node->set_heard_ms(400);
  node->set_transport("tcp on eth0");
  node->set_address("10.0.0.1:4711");
  node->set_refused_messages(2);
  node->set_refused_connections(3);
  node->set_mapped(true);
  node->set_fabric("rack");
  node = reply.add_nodes();
  node->set_job("train");
  node->set_node(2);
  node->set_n_ranks(1);
  node->set_name("host-b\033[2J");
  node->set_state(v1::NODE_STATE_LOST);
  node->set_reason("silent for 5s");
  node->set_heard_ms(5300);
  node->set_rtt_us(123);
  node->set_sent_bytes(1 << 20);
  node->set_transport("tcp/eth0");
  node = reply.add_nodes();
  node->set_job("train");
  node->set_node(3);
  node->set_mapped(true);
  node->set_fabric("rack");
  EXPECT_EQ(
      Text(NodesView(), reply),
      "JOB    NODE  HOST           RANKS  ROLE              STATE      HEARD       RTT   SENT  "
      "RECEIVED  REFUSED  TRANSPORT    ADDRESS        REASON         FABRIC\n"
      "train     0  host-a         0-1    leads, this node  connected  0.4 s         -    0 B  "
      "     0 B        5  tcp on eth0  10.0.0.1:4711  -              rack\n"
      "train     2  host-b\\x1b[2J  2      follows           lost       5.3 s  0.123 ms  1 MiB  "
      "     0 B        -  tcp/eth0     -              silent for 5s  -\n"
      "train     3  -              3-     follows           unknown        -         -    0 B  "
      "     0 B        -  -            -              -              mapped: rack\n");
  const Json json = ListJson(reply);
  EXPECT_EQ(json[1]["state"], "lost");
  EXPECT_EQ(json[1]["rtt_us"], 123);
  EXPECT_EQ(json[0]["rtt_us"], nullptr);
}

TEST(ViewsTest, JobsJsonHasEveryRank) {
  v1::ListJobsReply reply;
  AddJob(&reply);
  const Json json = ListJson(reply);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["job"], "train");
  EXPECT_EQ(json[0]["job_id"], "171");
  EXPECT_EQ(json[0]["state"], "ready");
  EXPECT_EQ(json[0]["heap_bytes"], 64 << 20);
  ASSERT_EQ(json[0]["ranks"].size(), 2u);
  EXPECT_EQ(json[0]["ranks"][1]["pid"], 101);
  EXPECT_EQ(json[0]["ranks"][1]["base"], "0x400000000000");
}

TEST(ViewsTest, NamesFromOutsideCannotSteerTheTerminal) {
  v1::ListAllocationsReply reply;
  v1::Allocation* allocation = reply.add_allocations();
  allocation->set_job("evil\033[2J");
  allocation->set_name("two\nlines");
  const std::string text = Text(AllocationsView(), reply);
  EXPECT_THAT(text, HasSubstr("evil\\x1b[2J"));
  EXPECT_THAT(text, HasSubstr("two\\nlines"));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
}

TEST(ViewsTest, JsonCannotSteerTheTerminalAndStaysTheSameJson) {
  v1::ListDevicesReply reply;
  reply.add_devices()->set_name("\033[2J\x7f \xc2\x9b \xe2\x80\xae \xe6\x97\xa5 \"\\");
  const std::string text = Dump(ListJson(reply), -1);
  EXPECT_THAT(text, HasSubstr("\"\\u001b[2J\\u007f \\u009b \\u202e \xe6\x97\xa5 \\\"\\\\\""));
  EXPECT_EQ(nlohmann::json::parse(text)[0]["name"], reply.devices(0).name());
}

TEST(ViewsTest, AllocationsTableAndJson) {
  v1::ListAllocationsReply reply;
  v1::Allocation* allocation = reply.add_allocations();
  allocation->set_job("train");
  allocation->set_name("weights");
  allocation->set_offset_bytes(0x400);
  allocation->set_bytes(16384);
  allocation->mutable_tensor()->set_dtype("f32");
  allocation->mutable_tensor()->add_shape(64);
  allocation->mutable_tensor()->add_shape(64);
  allocation->set_k(3);
  allocation->set_created_unix_ms(kMinuteAgoMs);
  EXPECT_EQ(Text(AllocationsView(), reply),
            "JOB    NAME     OFFSET    SIZE  DTYPE  SHAPE  TEAM  K    AGE\n"
            "train  weights   0x400  16 KiB  f32    64x64     0  3  1m 0s\n");
  const Json json = ListJson(reply);
  EXPECT_EQ(json[0]["offset_bytes"], 0x400);
  EXPECT_EQ(json[0]["shape"], nlohmann::ordered_json({64, 64}));
  EXPECT_TRUE(json[0]["owner"].is_null());
}

TEST(ViewsTest, WhatARankAllocatedAloneIsShownWithTheRank) {
  v1::ListAllocationsReply reply;
  v1::Allocation* allocation = reply.add_allocations();
  allocation->set_job("train");
  allocation->set_name("inbox");
  allocation->set_team_id(0xFFFF0002u);
  allocation->set_owner(2);
  EXPECT_THAT(Text(AllocationsView(), reply), HasSubstr("  rank 2  "));
  allocation->set_n_open(3);
  allocation->set_freed(true);
  allocation->set_registered(true);
  EXPECT_THAT(Text(AllocationsView(), reply),
              HasSubstr("  rank 2, registered, freed, open by 3  "));
  const Json json = ListJson(reply);
  EXPECT_EQ(json[0]["owner"], 2);
  EXPECT_EQ(json[0]["n_open"], 3);
  EXPECT_EQ(json[0]["freed"], true);
  EXPECT_EQ(json[0]["registered"], true);
}

TEST(ViewsTest, LargeNumbersSurviveJson) {
  v1::ListHeapsReply reply;
  v1::Heap* heap = reply.add_heaps();
  heap->set_heap_bytes(UINT64_MAX);
  heap->set_job_id(UINT64_MAX);
  const std::string text = Dump(ListJson(reply), -1);
  EXPECT_THAT(text, HasSubstr("\"heap_bytes\":18446744073709551615"));
  EXPECT_THAT(text, HasSubstr("\"job_id\":\"18446744073709551615\""));
}

TEST(ViewsTest, HeapsTable) {
  v1::ListHeapsReply reply;
  v1::Heap* heap = reply.add_heaps();
  heap->set_job("train");
  heap->set_rank(1);
  heap->set_pid(4711);
  heap->set_state(v1::RANK_STATE_READY);
  heap->set_device_uuid("emu-1");
  heap->set_heap_bytes(1 << 30);
  heap->set_max_heap_bytes(4ull << 30);
  heap->set_allocated_bytes(1536);
  heap->set_largest_free_bytes(1 << 20);
  heap->set_n_segments(1);
  EXPECT_EQ(Text(HeapsView(), reply),
            "JOB    RANK   PID  STATE  DEVICE   HEAP    MAX  ALLOCATED  LARGEST-FREE  SEGMENTS\n"
            "train     1  4711  ready  emu-1   1 GiB  4 GiB   1.50 KiB         1 MiB         1\n");
}

TEST(ViewsTest, SessionsThatHaveNotJoinedShowNoRank) {
  v1::ListSessionsReply reply;
  v1::Session* session = reply.add_sessions();
  session->set_session_id(1);
  session->set_pid(7);
  session->set_command("train");
  session->set_state("open");
  session->set_created_unix_ms(kMinuteAgoMs);
  EXPECT_EQ(Text(SessionsView(), reply),
            "SESSION  PID  UID  STATE  JOB  RANK    AGE  COMMAND\n"
            "1          7    0  open   -       -  1m 0s  train\n");
}

TEST(ViewsTest, LongNamesAndCommandsAreShownWhole) {
  const std::string uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
  const std::string command = "/a/long/path/to/train --data " + std::string(300, 'x');
  v1::ListHeapsReply heaps;
  heaps.add_heaps()->set_device_uuid(uuid);
  EXPECT_THAT(Text(HeapsView(), heaps), HasSubstr("  " + uuid + "  "));
  v1::ListSessionsReply sessions;
  sessions.add_sessions()->set_command(command);
  EXPECT_THAT(Text(SessionsView(), sessions), HasSubstr("  " + command + "\n"));
}

TEST(ViewsTest, DevicesTable) {
  v1::ListDevicesReply reply;
  v1::Device* device = reply.add_devices();
  device->set_uuid("emu-0");
  device->set_backend("emu");
  device->set_name("emulated");
  device->set_memory_bytes(8ull << 30);
  device->set_used_bytes(64 << 20);
  device->set_granularity_bytes(2 << 20);
  EXPECT_EQ(Text(DevicesView(), reply),
            "INDEX  UUID   BACKEND  NAME      MEMORY    USED  GRANULARITY\n"
            "    0  emu-0  emu      emulated   8 GiB  64 MiB        2 MiB\n");
}

TEST(ViewsTest, StatusSaysWhichBackendIsMissingAndWhy) {
  v1::GetStatusReply reply;
  reply.set_version("1.2.3");
  reply.set_pid(99);
  reply.set_start_time_unix_ms(kMinuteAgoMs);
  v1::BackendStatus* backend = reply.add_backends();
  backend->set_backend("emu");
  backend->set_available(true);
  backend = reply.add_backends();
  backend->set_backend("gpu");
  backend->set_detail("no driver");
  const std::string text = StatusText(reply, kNow);
  EXPECT_THAT(text, HasSubstr("irisd 1.2.3, pid 99, up 1m 0s\n"));
  EXPECT_THAT(text, HasSubstr("emu\n"));
  EXPECT_THAT(text, HasSubstr("gpu (not available): no driver\n"));
  EXPECT_EQ(MessageJson(reply)["backends"][1]["available"], false);
}

TEST(ViewsTest, StatusTellsOfMemoryThatProcessesKeep) {
  v1::GetStatusReply reply;
  EXPECT_THAT(StatusText(reply, kNow), Not(HasSubstr("kept")));
  reply.set_kept_bytes(64 << 20);
  EXPECT_THAT(StatusText(reply, kNow),
              HasSubstr("kept by processes  64 MiB, of jobs that they left"));
  EXPECT_EQ(MessageJson(reply)["kept_bytes"], 64 << 20);
}

TEST(ViewsTest, EventsShowWhatTheyHave) {
  v1::Event event;
  event.set_time_unix_ms(3'723'004);
  event.set_kind("rank_dead");
  event.set_job("train");
  event.set_rank(2);
  event.set_pid(77);
  event.set_text("killed");
  EXPECT_EQ(EventText(event, absl::UTCTimeZone()),
            "01:02:03.004  rank_dead             job=train  rank=2  pid=77  killed\n");
}

TEST(ViewsTest, EventsWithoutRankAndLostOnes) {
  v1::Event event;
  event.set_kind("started");
  event.set_rank(-1);
  event.set_dropped(3);
  EXPECT_EQ(EventText(event, absl::UTCTimeZone()),
            "(3 events lost)\n00:00:00.000  started             \n");
}

TEST(ViewsTest, EventJsonIsOneLine) {
  v1::Event event;
  event.set_sequence(5);
  event.set_text("a\nb");
  const std::string line = Dump(MessageJson(event), -1);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(nlohmann::json::parse(line)["text"], "a\nb");
}

TEST(ViewsTest, BytesThatAreNoTextBecomeReplacementCharacters) {
  EXPECT_EQ(Dump("\xff", -1), "\"\xEF\xBF\xBD\"\n");
}

}  // namespace
}  // namespace iris::ctl
