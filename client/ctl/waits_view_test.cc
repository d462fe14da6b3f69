#include <string>

#include "client/ctl/views.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::HasSubstr;

v1::Wait AllReduce() {
  v1::Wait wait;
  wait.set_job_id(7);
  wait.set_job("train");
  wait.set_kind(v1::WAIT_KIND_COLLECTIVE);
  wait.set_n_members(4);
  wait.set_call("all_reduce");
  wait.set_number(17);
  wait.set_bytes(1 << 20);
  wait.set_dtype("f32");
  wait.set_waited_ms(12345);
  for (const uint32_t rank : {0, 1, 3}) wait.add_waiting()->set_rank(rank);
  v1::WaitMember* const missing = wait.add_missing();
  missing->set_rank(2);
  missing->set_pid(4711);
  missing->set_stopped(true);
  missing->set_place(v1::WAIT_PLACE_NOT_COME);
  return wait;
}

TEST(WaitTextTest, OfACollective) {
  v1::Wait wait = AllReduce();
  EXPECT_EQ(WaitText(wait),
            "job train  all_reduce #17 of 4 ranks (1 MiB, f32)  ranks 0,1,3 wait for rank 2 "
            "(pid 4711, stopped, has not called) since 12.3 s\n");
  wait.mutable_missing(0)->set_place(v1::WAIT_PLACE_INSIDE);
  EXPECT_THAT(WaitText(wait), HasSubstr("(pid 4711, stopped, is in it)"));
  wait.mutable_missing(0)->set_place(v1::WAIT_PLACE_QUEUED);
  EXPECT_THAT(WaitText(wait), HasSubstr("(pid 4711, stopped, has called)"));
  wait.set_device_unknown(true);
  EXPECT_THAT(WaitText(wait), HasSubstr("how far the devices are cannot be read"));
  wait.clear_missing();
  EXPECT_THAT(WaitText(wait), HasSubstr("ranks 0,1,3 are in it, and nobody is missing"));
}

TEST(WaitTextTest, OfRanksOnOtherNodesHasTheirNode) {
  v1::Wait wait = AllReduce();
  wait.mutable_waiting(2)->set_node("host-b");
  wait.mutable_missing(0)->set_stopped(false);
  wait.mutable_missing(0)->set_node("host-b");
  wait.mutable_missing(0)->set_node_rank(2);
  EXPECT_EQ(WaitText(wait),
            "job train  all_reduce #17 of 4 ranks (1 MiB, f32)  ranks 0,1, rank 3 on node host-b "
            "wait for rank 2 (pid 4711 on node host-b (from rank 2), has not called) "
            "since 12.3 s\n");
  wait.mutable_missing(0)->set_place(v1::WAIT_PLACE_UNSPECIFIED);
  EXPECT_THAT(WaitText(wait), HasSubstr(" wait for rank 2 (pid 4711 on node host-b (from rank 2)) "
                                        "since 12.3 s [iris-ctl waits on their node says more]\n"));
  // Only the ranks of which nothing else is known are taken together.
  *wait.add_missing() = wait.missing(0);
  wait.mutable_missing(1)->set_rank(4);
  wait.add_missing()->set_rank(5);
  wait.mutable_missing(2)->set_node("");
  wait.set_kind(v1::WAIT_KIND_OPERATION);
  wait.set_leader("host-b");
  EXPECT_THAT(WaitText(wait),
              HasSubstr(" wait for ranks 2,4 on node host-b (from rank 2), rank 5 (on another "
                        "node) since 12.3 s [iris-ctl waits on node host-b (from rank 0) says who "
                        "has called there]\n"));
}

TEST(WaitTextTest, OfNodesOfOneHostNameKeepsThemApart) {
  v1::Wait wait = AllReduce();
  wait.clear_missing();
  for (const uint32_t rank : {4, 5, 6, 7}) {
    v1::WaitMember* const member = wait.add_missing();
    member->set_rank(rank);
    member->set_node("vm");
    member->set_node_rank(rank / 2 * 2);
  }
  EXPECT_THAT(WaitText(wait),
              HasSubstr(" wait for ranks 4,5 on node vm (from rank 4), ranks 6,7 on "
                        "node vm (from rank 6) since 12.3 s"));
}

// Rank 0 waits for others to join.
v1::Wait JoinOf(uint32_t n_members) {
  v1::Wait wait;
  wait.set_job("train");
  wait.set_kind(v1::WAIT_KIND_JOIN);
  wait.set_n_members(n_members);
  wait.set_call("join");
  wait.set_waited_ms(-1);
  wait.add_waiting()->set_rank(0);
  return wait;
}

TEST(WaitTextTest, OfAJoinTakesTheRanksOfAnotherNodeTogether) {
  v1::Wait wait = JoinOf(4);
  for (const uint32_t rank : {1, 2, 3}) {
    v1::WaitMember* const member = wait.add_missing();
    member->set_rank(rank);
    member->set_place(v1::WAIT_PLACE_NOT_COME);
    if (rank > 1) member->set_node("");
  }
  EXPECT_EQ(WaitText(wait),
            "job train  join of 4 ranks  rank 0 waits for rank 1 (no process), "
            "ranks 2,3 on another node\n");
}

TEST(WaitTextTest, OfAJoinHasNoNumber) {
  v1::Wait wait = JoinOf(2);
  wait.add_missing()->set_rank(1);
  EXPECT_EQ(WaitText(wait), "job train  join of 2 ranks  rank 0 waits for rank 1 (no process)\n");
}

TEST(WaitTextTest, OfAnOperationHasItsNumberAsErrorsHaveIt) {
  v1::Wait wait = AllReduce();
  wait.set_kind(v1::WAIT_KIND_OPERATION);
  wait.set_call("allocate(bytes=8 name='(x)')");
  wait.clear_bytes();
  wait.clear_dtype();
  EXPECT_THAT(WaitText(wait), HasSubstr("  allocate #17 of 4 ranks (bytes=8 name='(x)')  ranks 0"));
}

TEST(WaitTextTest, OfATeamAndOfAGrowth) {
  v1::Wait wait = AllReduce();
  wait.set_kind(v1::WAIT_KIND_GROWTH);
  wait.set_team_id(3);
  EXPECT_THAT(WaitText(wait), HasSubstr("(1 MiB, f32, team 3)"));
  EXPECT_THAT(WaitText(wait), HasSubstr("wait for the memory of rank 2 (pid 4711, stopped)"));
}

TEST(WaitTextTest, OfAKernel) {
  v1::Wait wait;
  wait.set_job("train");
  wait.set_kind(v1::WAIT_KIND_KERNEL);
  wait.set_call("kernel signal");
  wait.set_block(3);
  wait.set_wanted(7);
  wait.set_seen(6);
  wait.set_waited_ms(12345);
  wait.add_waiting()->set_rank(0);
  wait.add_missing()->set_rank(1);
  wait.mutable_missing(0)->set_pid(4711);
  EXPECT_EQ(WaitText(wait),
            "job train  kernel signal (block 3, has to be 7 and was 6)  rank 0 waits for rank 1 "
            "(pid 4711) since 12.3 s\n");
  v1::ListWaitsReply reply;
  *reply.add_waits() = wait;
  const auto json = ArrayJson(reply.waits())[0];
  EXPECT_EQ(json["kind"], "kernel");
  EXPECT_EQ(json["block"], 3);
  EXPECT_EQ(json["wanted"], 7);
  EXPECT_EQ(json["seen"], 6);
}

TEST(WaitTextTest, NamesStayOnOneLine) {
  v1::Wait wait = AllReduce();
  wait.set_job("a\nb");
  wait.set_call("c\033[2J");
  const std::string text = WaitText(wait);
  EXPECT_THAT(text, HasSubstr("job a\\nb  c\\x1b[2J #17"));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(WaitsJsonTest, HasEveryField) {
  v1::ListWaitsReply reply;
  *reply.add_waits() = AllReduce();
  const auto json = ArrayJson(reply.waits());
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["job_id"], "7");
  EXPECT_EQ(json[0]["kind"], "collective");
  EXPECT_EQ(json[0]["number"], 17);
  EXPECT_EQ(json[0]["waiting"].size(), 3u);
  EXPECT_EQ(json[0]["missing"][0]["rank"], 2);
  EXPECT_EQ(json[0]["missing"][0]["stopped"], true);
  EXPECT_EQ(json[0]["missing"][0]["place"], "not_come");
  EXPECT_EQ(static_cast<int>(json[0].size()), v1::Wait::descriptor()->field_count());
}

}  // namespace
}  // namespace iris::ctl
