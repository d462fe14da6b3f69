// Jobs that span several nodes: a machine for each node, and links that deliver their messages in
// order, but not at once.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/limits.h"
#include "server/job/job.h"
#include "server/job/job_machine.h"
#include "server/job/testing/fake_clock.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One node: its machine and what it has caused.
struct TestNode {
  NodeId id = 0;
  std::string fabric;  // its domain, or empty
  std::unique_ptr<JobMachine> machine;
  std::map<CallId, Reply> replies;
  std::vector<SetLayout> layouts;
  std::map<SegmentId, ImportSegment> imported;  // that are not dropped
  std::vector<NotifyWatch> watched;
  std::set<Rank> left;  // ranks that the status page says have left
  JobId job;
  bool port = false;                // started, and not stopped
  bool connected = false;           // to the leader
  bool cut = false;                 // its messages are lost
  std::deque<NodeMessage> out, in;  // between it and the leader
  // Its port process, which outlives its irisd.
  std::set<SegmentId> memory;
  std::deque<SendToNode> unsent;  // that irisd has not given it yet
  uint64_t taken = 0;             // the number of the last one that it has
  std::deque<NodeSaid> told;      // with numbers; that it would tell another irisd again
  uint64_t n_told = 0;
};

class NodesTest : public ::testing::Test {
 protected:
  // Starts `n_nodes` irisds, whose nodes have `n_local` ranks each.
  void Build(uint32_t n_nodes, uint32_t n_local) {
    n_local_ = n_local;
    n_ranks_ = n_nodes * n_local;
    for (uint32_t i = 0; i < n_nodes; ++i) {
      TestNode& node = *nodes_.emplace_back(std::make_unique<TestNode>());
      node.id = i * n_local;
      node.machine = std::make_unique<JobMachine>(
          JobLimits(), Ledger({{"dev-0", uint64_t{1} << 40, kGranularity, 0}}), UnusablePairs());
    }
  }
  TestNode& NodeOf(Rank rank) { return *nodes_[rank / n_local_]; }

  void Do(TestNode& node, const Input& input) {
    Effects effects = node.machine->Apply(input, {clock_.Now(), clock_.Wall()});
    if (checks_) {
      const absl::Status status = node.machine->CheckInvariants();
      EXPECT_TRUE(status.ok()) << status << " on node " << node.id;
    }
    for (Effect& effect : effects) Carry(node, effect);
  }

  void Carry(TestNode& node, Effect& effect) {
    if (auto* reply = std::get_if<Reply>(&effect)) {
      EXPECT_TRUE(node.replies.emplace(reply->call, std::move(*reply)).second) << "twice";
    } else if (const auto* create = std::get_if<CreateSegment>(&effect)) {
      created_.push_back(
          {&node, SegmentCreated{create->id, absl::OkStatus(),
                                 node.fabric.empty() ? "" : Handle(node, create->id)}});
    } else if (const auto* import = std::get_if<ImportSegment>(&effect)) {
      node.imported[import->id] = *import;
    } else if (const auto* drop = std::get_if<DropSegment>(&effect)) {
      node.imported.erase(drop->id);
      created_.push_back({&node, SegmentDropped{drop->id}});
    } else if (const auto* start = std::get_if<StartPort>(&effect)) {
      EXPECT_EQ(start->node, node.id);
      node.job = start->job;
      node.port = true;
      created_.push_back({&node, PortReady{node.job, 77 + node.id, absl::StrCat("host-", node.id),
                                           node.fabric.empty() ? "no fabric" : node.fabric}});
    } else if (const auto* layout = std::get_if<SetLayout>(&effect)) {
      LayOut(node, *layout);
    } else if (const auto* attach = std::get_if<AttachPort>(&effect)) {
      EXPECT_LE(attach->taken, node.taken);
      EXPECT_GE(attach->sent, node.taken);
      EXPECT_LE(attach->heard, node.n_told);
      node.memory.clear();
      LayOut(node, attach->layout);
    } else if (const auto* send = std::get_if<SendToNode>(&effect)) {
      if (slow_) return node.unsent.push_back(*send);
      Take(node, *send);
    } else if (std::get_if<StopPort>(&effect) != nullptr) {
      node.port = false;
    } else if (const auto* watch = std::get_if<NotifyWatch>(&effect)) {
      node.watched.push_back(*watch);
    } else if (const auto* state = std::get_if<SetRankState>(&effect)) {
      if (state->state == RankState::kLeft && !state->abort) node.left.insert(state->rank);
    }
  }

  static void LayOut(TestNode& node, const SetLayout& layout) {
    node.layouts.push_back(layout);
    for (const SegmentInfo& info : layout.segments) node.memory.insert(info.id);
    for (const SegmentId id : layout.forgotten) node.memory.erase(id);
  }
  // The port process gets a message for other nodes.
  void Take(TestNode& node, const SendToNode& send) {
    if (send.number <= node.taken) return;
    EXPECT_EQ(send.number, node.taken + 1);
    node.taken = send.number;
    if (node.id != kLeader && node.connected) node.out.push_back(send.message);
    for (auto& other : nodes_) {
      const bool receives = send.all || other->id == send.node;
      if (node.id == kLeader && receives && other->port && other->connected) {
        other->in.push_back(send.message);
      }
    }
  }
  // Another irisd goes on, after one that was killed before it gave its port process `unsent`, and
  // perhaps before it heard of memory. The port process repeats what it has told; ranks watch
  // again.
  void Restart(TestNode& node) {
    node.unsent.clear();
    std::vector<SegmentId> memory;
    for (const Segment& segment : node.machine->Segments()) {
      const bool is_there = std::any_of(created_.begin(), created_.end(), [&](const auto& each) {
        const auto* const dropped = std::get_if<SegmentDropped>(&each.second);
        const auto* const created = std::get_if<SegmentCreated>(&each.second);
        return each.first == &node && ((dropped && dropped->segment == segment.info.id) ||
                                       (created && created->segment == segment.info.id));
      });
      if ((segment.created && !segment.dropping) || (is_there && random_() % 2 == 0)) {
        memory.push_back(segment.info.id);
      }
    }
    std::erase_if(created_, [&](const auto& each) { return each.first == &node; });
    std::vector<SessionId> sessions;
    for (Rank rank = node.id; rank < node.id + n_local_; ++rank) {
      sessions.push_back(SessionId{rank + 1});
    }
    Do(node, Recovered{2, sessions, memory, {node.job}, {node.job}});
    for (const NodeSaid& each : node.told) Do(node, each);
    for (const SessionId session : sessions) Do(node, WatchOpened{session, NewCall(), node.job});
  }

  static std::string Handle(const TestNode& node, SegmentId segment) {
    std::string handle = absl::StrCat("segment ", segment.value, " of node ", node.id);
    handle.resize(wire::kFabricHandleBytes);
    return handle;
  }
  // Connects the nodes' ports, once all have started.
  void Connect() {
    for (auto& node : nodes_) {
      if (node->id == kLeader) continue;
      node->connected = true;
      Do(*node, NodeConnected{node->job, kLeader, "host-0"});
      Do(*nodes_[0], NodeConnected{nodes_[0]->job, node->id, absl::StrCat("host-", node->id)});
    }
  }
  // Does one thing that waits, if there is one: of a node or its links, from a random one on.
  bool Step() {
    const auto any = [this](size_t n) {
      return std::uniform_int_distribution<size_t>(0, n - 1)(random_);
    };
    if (!created_.empty() && any(3) == 0) {
      const auto [node, input] = created_.front();
      created_.pop_front();
      Do(*node, input);
      return true;
    }
    const size_t first = any(nodes_.size());
    TestNode& talks = *nodes_[first];
    if (!talks.unsent.empty()) {
      Take(talks, talks.unsent.front());
      talks.unsent.pop_front();
      if (any(2) == 0) Do(talks, PortTook{talks.job, talks.taken});
      return true;
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      TestNode& node = *nodes_[(first + i) % nodes_.size()];
      const bool outwards = node.in.empty() || (!node.out.empty() && any(2) == 0);
      std::deque<NodeMessage>& link = outwards ? node.out : node.in;
      if (link.empty()) continue;
      NodeMessage message = std::move(link.front());
      link.pop_front();
      TestNode& to = outwards ? *nodes_[0] : node;
      if (node.cut) return true;
      to.told.push_back(
          {to.job, outwards ? node.id : kLeader, std::move(message), ++to.n_told, to.taken});
      if (to.told.size() > 5) to.told.pop_front();  // they are acknowledged
      Do(to, to.told.back());
      return true;
    }
    return !created_.empty() || std::any_of(nodes_.begin(), nodes_.end(),
                                            [](const auto& node) { return !node->unsent.empty(); });
  }
  void Settle() {
    for (int i = 0; Step(); ++i) ASSERT_LT(i, 1'000'000) << "nodes talk without an end";
  }

  JoinSpec Spec(Rank rank) const {
    JoinSpec spec;
    spec.job = "train";
    spec.rank = static_cast<int32_t>(rank);
    spec.n_ranks = static_cast<int32_t>(n_ranks_);
    spec.heap_bytes = kHeap;
    spec.local_rank = static_cast<int32_t>(rank % n_local_);
    spec.team_sync_bytes = 8 * kKiB;
    spec.nodes = JoinNodes{rank / n_local_ * n_local_, n_local_, "host-0:4711", "0123456789abcdef"};
    return spec;
  }
  CallId Join(const JoinSpec& spec) {
    const Rank rank = static_cast<Rank>(spec.rank);
    const SessionId session{rank + 1};
    Do(NodeOf(rank), SessionOpened{session,
                                   {.pid = 100 + rank, .party = {1000}, .process_start = 7},
                                   absl::ZeroDuration()});
    const CallId call = NewCall();
    Do(NodeOf(rank), JoinCall{session, call, spec});
    return call;
  }
  std::vector<CallId> JoinAll() {
    std::vector<CallId> calls;
    for (Rank rank = 0; rank < n_ranks_; ++rank) calls.push_back(Join(Spec(rank)));
    Connect();
    Settle();
    return calls;
  }
  std::vector<CallId> MapAll() {
    std::vector<CallId> calls;
    for (Rank rank = 0; rank < n_ranks_; ++rank) {
      calls.push_back(NewCall());
      Do(NodeOf(rank), MappedCall{SessionId{rank + 1}, calls.back(), NodeOf(rank).job, 1,
                                  wire::kProposedBase, ""});
    }
    Settle();
    return calls;
  }
  void MakeReady(uint32_t n_nodes, uint32_t n_local) {
    Build(n_nodes, n_local);
    MakeReady();
  }
  void MakeReady() {
    const auto joined = JoinAll();
    for (Rank rank = 0; rank < n_ranks_; ++rank) {
      ASSERT_TRUE(StatusOf(rank, joined[rank]).ok()) << StatusOf(rank, joined[rank]);
    }
    const auto mapped = MapAll();
    for (Rank rank = 0; rank < n_ranks_; ++rank) {
      ASSERT_TRUE(StatusOf(rank, mapped[rank]).ok()) << StatusOf(rank, mapped[rank]);
    }
  }
  CallId Ask(Rank rank, uint64_t k, Operation op, TeamId team = kWorldTeam,
             absl::Duration timeout = absl::ZeroDuration()) {
    const CallId call = NewCall();
    Do(NodeOf(rank),
       OperateCall{SessionId{rank + 1}, call, {NodeOf(rank).job, team, k, timeout, std::move(op)}});
    return call;
  }
  std::vector<CallId> AskAll(uint64_t k, const Operation& op, TeamId team = kWorldTeam) {
    std::vector<CallId> calls;
    for (Rank rank = 0; rank < n_ranks_; ++rank) calls.push_back(Ask(rank, k, op, team));
    Settle();
    return calls;
  }
  // Ranks map what they are sent. `fails`: all but this one.
  void MapGrowth(std::optional<Rank> fails = std::nullopt) {
    for (Rank rank = 0; rank < n_ranks_; ++rank) {
      GrowId grow;
      for (const NotifyWatch& each : NodeOf(rank).watched) {
        const auto* const added = std::get_if<SegmentsAdded>(&each.event);
        if (added == nullptr || each.session != SessionId{rank + 1}) continue;
        grow = added->grow;
        const std::string& fabric = NodeOf(rank).fabric;
        const auto shares = [&fabric](const auto& node) { return node->fabric == fabric; };
        const auto n_nodes = std::count_if(nodes_.begin(), nodes_.end(), shares);
        EXPECT_THAT(added->segments, SizeIs(n_local_ * (fabric.empty() ? 1 : n_nodes)));
      }
      Do(NodeOf(rank), GrowMappedCall{SessionId{rank + 1}, NewCall(), NodeOf(rank).job, grow,
                                      fails == rank ? "no room" : ""});
    }
    Settle();
  }
  CallId NewCall() { return CallId{next_call_++}; }

  absl::Status StatusOf(Rank rank, CallId call) {
    const auto found = NodeOf(rank).replies.find(call);
    if (found == NodeOf(rank).replies.end()) return absl::UnknownError("not answered yet");
    if (!found->second.status.ok()) return found->second.status;
    const auto* outcome = std::get_if<Outcome>(&found->second.result);
    return outcome == nullptr ? absl::OkStatus() : outcome->status;
  }
  OperationResult ResultOf(Rank rank, CallId call) {
    EXPECT_TRUE(StatusOf(rank, call).ok()) << StatusOf(rank, call);
    const auto* outcome = std::get_if<Outcome>(&NodeOf(rank).replies.at(call).result);
    return outcome == nullptr ? OperationResult() : outcome->result;
  }
  // The one status of a call of each rank.
  absl::Status OneStatus(const std::vector<CallId>& calls) {
    for (Rank rank = 0; rank < calls.size(); ++rank) {
      EXPECT_EQ(StatusOf(rank, calls[rank]), StatusOf(0, calls[0])) << "rank " << rank;
    }
    return StatusOf(0, calls[0]);
  }
  JobState StateOn(const TestNode& node) {
    const auto jobs = node.machine->Jobs();
    return jobs.empty() ? JobState{} : jobs[0].state;
  }

  static std::vector<NodeSnapshot> NodesOf(const TestNode& node) {
    std::vector<NodeSnapshot> nodes;
    node.machine->VisitNodes({}, {}, [&](const JobSnapshot& job, const NodeSnapshot& each) {
      EXPECT_EQ(job.leader.has_value(), node.id != kLeader);
      nodes.push_back(each);
      return true;
    });
    return nodes;
  }
  static std::vector<PendingSnapshot> PendingOn(const TestNode& node) {
    std::vector<PendingSnapshot> pending;
    node.machine->VisitWaits({}, {}, [&](const JobSnapshot&, const WaitsSnapshot& waits) {
      pending = waits.pending;
      return true;
    });
    return pending;
  }
  static std::vector<RankState> RankStatesOn(const TestNode& node) {
    std::vector<RankState> states;
    for (const JobSnapshot& job : node.machine->Jobs()) {
      for (const RankSnapshot& rank : job.ranks) {
        EXPECT_EQ(rank.node.has_value(), rank.rank - job.first_local >= job.n_local);
        states.push_back(rank.state);
      }
    }
    return states;
  }

  FakeClock clock_;
  std::minstd_rand random_{1};
  bool checks_ = true;
  bool slow_ = false;  // irisd gives messages to port processes later
  uint32_t n_local_ = 0, n_ranks_ = 0;
  std::vector<std::unique_ptr<TestNode>> nodes_;
  std::deque<std::pair<TestNode*, Input>> created_;
  uint64_t next_call_ = 1;
};

MATCHER_P3(IsNode, node, n_ranks, state, "") {
  return arg.part.node == NodeId(node) && arg.part.n_ranks == uint32_t(n_ranks) &&
         arg.state == state;
}

TEST_F(NodesTest, JoinsAndCommitsWithOneLayout) {
  MakeReady(3, 2);
  for (const auto& node : nodes_) {
    ASSERT_THAT(node->layouts, SizeIs(1));
    EXPECT_EQ(node->layouts[0].epoch, 77u);
    EXPECT_EQ(node->layouts[0].nodes,
              (std::vector<NodePart>{{0, 2, "host-0", false, "no fabric", 2},
                                     {2, 2, "host-2", false, "no fabric", 2},
                                     {4, 2, "host-4", false, "no fabric", 2}}));
    EXPECT_THAT(node->layouts[0].segments, SizeIs(2));
    EXPECT_EQ(node->layouts[0].segments[1].rank, node->id + 1);
    EXPECT_EQ(StateOn(*node), JobState::kReady);
    EXPECT_TRUE(node->machine->Jobs()[0].same_address);
  }
}

TEST_F(NodesTest, GivesARankTheMemoryAndPeersOfItsNode) {
  Build(2, 2);
  const auto joined = JoinAll();
  const auto* result = std::get_if<JoinResult>(&NodeOf(3).replies.at(joined[3]).result);
  ASSERT_NE(result, nullptr);
  EXPECT_EQ(result->first_local, 2u);
  ASSERT_THAT(result->segments, SizeIs(2));
  EXPECT_EQ(result->segments[0].rank, 2u);
  ASSERT_THAT(result->peers, SizeIs(2));
  EXPECT_EQ(result->peers[1].pid, 103);
  EXPECT_THAT(result->nodes, SizeIs(2));
}

// The nodes of a fabric domain.
class FabricTest : public NodesTest {
 protected:
  // Three nodes of two ranks, of which the first two share a domain.
  void Build() {
    NodesTest::Build(3, 2);
    nodes_[0]->fabric = nodes_[1]->fabric = "rack-a";
    nodes_[2]->fabric = "rack-b";
  }
  // The handles by which a rank's clients import the memory of each rank that they map; "" of its
  // own node.
  std::vector<std::string> HandlesOf(Rank rank, const std::vector<SegmentInfo>& segments) {
    std::vector<std::string> handles;
    for (const SegmentInfo& info : segments) {
      const auto found = NodeOf(rank).imported.find(info.id);
      handles.push_back(found == NodeOf(rank).imported.end() ? "" : found->second.fabric);
      if (found != NodeOf(rank).imported.end()) {
        EXPECT_EQ(found->second.bytes, info.bytes);
      }
    }
    return handles;
  }
  JoinResult JoinResultOf(Rank rank, CallId call) {
    EXPECT_TRUE(StatusOf(rank, call).ok()) << StatusOf(rank, call);
    return std::get<JoinResult>(NodeOf(rank).replies.at(call).result);
  }
};

TEST_F(FabricTest, NodesOfADomainMapEachOther) {
  Build();
  const auto joined = JoinAll();
  const std::vector<bool> with_previous = {false, true, false};
  const JoinResult on_first = JoinResultOf(1, joined[1]);
  ASSERT_THAT(on_first.segments, SizeIs(4));
  EXPECT_EQ(on_first.segments[3].rank, 3u);
  EXPECT_THAT(on_first.peers, SizeIs(2));
  EXPECT_EQ(HandlesOf(1, on_first.segments),
            (std::vector<std::string>{"", "", Handle(*nodes_[1], SegmentId{1}),
                                      Handle(*nodes_[1], SegmentId{2})}));
  const JoinResult on_second = JoinResultOf(2, joined[2]);
  EXPECT_EQ(HandlesOf(2, on_second.segments),
            (std::vector<std::string>{Handle(*nodes_[0], SegmentId{1}),
                                      Handle(*nodes_[0], SegmentId{2}), "", ""}));
  EXPECT_THAT(JoinResultOf(4, joined[4]).segments, SizeIs(2));
  for (Rank rank = 0; rank < n_ranks_; ++rank) {
    const JoinResult result = JoinResultOf(rank, joined[rank]);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(result.nodes[i].with_previous, with_previous[i]);
  }
  // Ports get the memory of their own node.
  for (const auto& node : nodes_) {
    ASSERT_THAT(node->layouts, SizeIs(1));
    ASSERT_THAT(node->layouts[0].segments, SizeIs(2));
    EXPECT_EQ(node->layouts[0].segments[0].rank, node->id);
  }
  MapAll();
  for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kReady);
  // Operators see the domains; heaps are those of this node.
  const std::vector<NodeSnapshot> shots = NodesOf(*nodes_[1]);
  ASSERT_THAT(shots, SizeIs(3));
  EXPECT_EQ(shots[0].part.fabric, "rack-a");
  EXPECT_EQ(shots[2].part.fabric, "rack-b");
  EXPECT_TRUE(shots[0].mapped && shots[1].mapped && !shots[2].mapped);
  nodes_[1]->machine->VisitRanks({}, {}, [](const JobSnapshot&, const RankSnapshot& rank) {
    EXPECT_EQ(rank.segments.empty(), rank.rank / 2 != 1);
    return true;
  });
}

TEST_F(FabricTest, HeapsGrowInAllNodesThatMapThem) {
  Build();
  MakeReady();
  const auto calls = AskAll(0, AllocateOp{.bytes = 2 * kHeap});
  MapGrowth();
  EXPECT_TRUE(OneStatus(calls).ok()) << OneStatus(calls);
  EXPECT_THAT(nodes_[0]->imported, SizeIs(4));
  EXPECT_THAT(nodes_[2]->imported, IsEmpty());
  for (const auto& [id, import] : nodes_[0]->imported)
    EXPECT_THAT(import.fabric, HasSubstr("node 2"));
  // A growth that fails leaves nothing of it.
  const auto failing = AskAll(1, AllocateOp{.bytes = kHeap});
  MapGrowth(/*fails=*/3);
  EXPECT_FALSE(OneStatus(failing).ok());
  EXPECT_THAT(nodes_[0]->imported, SizeIs(4));
  EXPECT_THAT(nodes_[1]->imported, SizeIs(4));
  for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kReady);
}

TEST_F(FabricTest, AHeapDoesNotGrowByMemoryThatOtherNodesCannotMap) {
  Build();
  MakeReady();
  nodes_[1]->fabric = "";  // its driver exports nothing from now on
  const auto calls = AskAll(0, AllocateOp{.bytes = 2 * kHeap});
  EXPECT_EQ(OneStatus(calls).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(OneStatus(calls).message()), HasSubstr("could not be exported"));
  for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kReady);
  EXPECT_THAT(nodes_[0]->imported, SizeIs(2));
  nodes_[0]->fabric = "";
  EXPECT_FALSE(OneStatus(AskAll(1, AllocateOp{.bytes = 2 * kHeap})).ok());
  for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kReady);
}

TEST_F(FabricTest, NothingIsLeftOfANodeThatIsLost) {
  Build();
  MakeReady();
  Do(*nodes_[0], NodeLost{nodes_[0]->job, 2, "gone"});
  Do(*nodes_[1], NodeLost{nodes_[1]->job, 0, "gone"});
  Settle();
  for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kBroken);
  for (Rank rank = 0; rank < n_ranks_; ++rank) {
    Do(NodeOf(rank), SessionHungUp{SessionId{rank + 1}, "test"});
    Do(NodeOf(rank), ProcessGone{SessionId{rank + 1}});
  }
  Settle();
  for (const auto& node : nodes_) {
    EXPECT_THAT(node->imported, IsEmpty());
    EXPECT_THAT(node->machine->Segments(), IsEmpty());
    EXPECT_EQ(node->machine->ledger().used_bytes_total(), 0u);
  }
}

TEST_F(FabricTest, MapsNoMoreRanksThanAWindowHas) {
  NodesTest::Build(3, 30);  // 60 of at most 64
  for (auto& node : nodes_) node->fabric = "rack-a";
  MakeReady();
  EXPECT_THAT(nodes_[0]->imported, SizeIs(30));
  EXPECT_THAT(nodes_[1]->imported, SizeIs(30));
  EXPECT_THAT(nodes_[2]->imported, IsEmpty());
}

TEST_F(FabricTest, NodesThatAreApartDoNotMapEachOther) {
  Build();
  nodes_[1]->fabric = "rack-b";
  nodes_[2]->fabric = "rack-a";
  MakeReady();
  for (const auto& node : nodes_) EXPECT_THAT(node->imported, IsEmpty());
}

TEST_F(FabricTest, RefusesHandlesThatCannotBe) {
  Build();
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < n_ranks_; ++rank) calls.push_back(Join(Spec(rank)));
  while (!created_.empty()) {
    const auto [node, input] = created_.front();
    created_.pop_front();
    Do(*node, input);
  }
  Connect();
  // A node that says one handle for two ranks.
  auto& joined = std::get<NodeJoined>(nodes_[1]->out.front());
  ASSERT_THAT(joined.handles, SizeIs(2));
  joined.handles.pop_back();
  Settle();
  for (Rank rank = 0; rank < n_ranks_; ++rank) {
    EXPECT_THAT(std::string(StatusOf(rank, calls[rank]).message()),
                HasSubstr("1 fabric handles, or malformed ones, for 2 ranks"));
  }
  for (const auto& node : nodes_) EXPECT_THAT(node->imported, IsEmpty());
}

TEST_F(FabricTest, ANodeWithoutAFabricMapsNoOther) {
  Build();
  nodes_[1]->fabric = "";
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < n_ranks_; ++rank) calls.push_back(Join(Spec(rank)));
  Connect();
  while (nodes_[1]->in.empty()) Step();
  auto& layout = std::get<NodesJoined>(nodes_[1]->in.front());
  layout.nodes[1].with_previous = true;
  layout.nodes[1].fabric = layout.nodes[0].fabric;
  layout.handles.assign(4, std::string(wire::kFabricHandleBytes, 'h'));
  Settle();
  EXPECT_THAT(std::string(StatusOf(2, calls[2]).message()), HasSubstr("in no fabric"));
  EXPECT_THAT(nodes_[1]->imported, IsEmpty());
}

TEST_F(FabricTest, RefusesALayoutWhoseHandlesAreMissing) {
  Build();
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < n_ranks_; ++rank) calls.push_back(Join(Spec(rank)));
  Connect();
  while (nodes_[1]->in.empty()) Step();
  auto* const layout = std::get_if<NodesJoined>(&nodes_[1]->in.front());
  ASSERT_NE(layout, nullptr);
  layout->handles.front().resize(5);
  Settle();
  EXPECT_THAT(std::string(StatusOf(2, calls[2]).message()), HasSubstr("malformed ones"));
  EXPECT_THAT(nodes_[1]->imported, IsEmpty());
  EXPECT_EQ(nodes_[1]->machine->Jobs().size(), 0u);
}

TEST_F(NodesTest, WaitsForEveryNode) {
  Build(2, 2);
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 3; ++rank) calls.push_back(Join(Spec(rank)));
  Settle();
  Connect();
  Settle();
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(StatusOf(rank, calls[rank]).code(), absl::StatusCode::kUnknown);
  }
  calls.push_back(Join(Spec(3)));
  Settle();
  EXPECT_TRUE(OneStatus(calls).ok());
}

TEST_F(NodesTest, RefusesNodesThatCannotBe) {
  Build(2, 2);
  JoinSpec spec = Spec(1);
  spec.nodes->first_local = 2;
  EXPECT_THAT(StatusOf(1, Join(spec)).message(), HasSubstr("ranks of this node would be 2 to 3"));
  spec = Spec(2);
  spec.nodes->n_local = 4;
  EXPECT_THAT(StatusOf(2, Join(spec)).message(), HasSubstr("1 to 3 of its ranks on each"));
  spec = Spec(3);
  spec.job = "other";
  spec.nodes->secret = "short";
  EXPECT_THAT(StatusOf(3, Join(spec)).message(), HasSubstr("16 to 64"));
}

TEST_F(NodesTest, TellsAllRanksOfANodeThatTheyDoNotFollowEachOther) {
  Build(1, 8);
  // Ranks of two nodes in turns, of which this one has 0, 2, 4 and 6.
  std::vector<CallId> calls(8);
  for (Rank rank = 0; rank < 8; rank += 2) {
    JoinSpec spec = Spec(rank);
    spec.nodes->n_local = 4;
    spec.nodes->first_local = rank - rank / 2;
    calls[rank] = Join(spec);
  }
  EXPECT_THAT(StatusOf(2, calls[2]).message(),
              AllOf(HasSubstr("the first rank of its node would be 1, and that of rank 0"),
                    HasSubstr("srun --distribution=block")));
  for (const Rank rank : {0u, 4u, 6u}) {
    EXPECT_THAT(
        StatusOf(rank, calls[rank]).message(),
        AllOf(HasSubstr("rank 2 (pid 102) was refused"), HasSubstr("mpirun --map-by slot")));
  }
  EXPECT_FALSE(nodes_[0]->port);
}

TEST_F(NodesTest, ARefusedRankIsToldToTheOtherNodes) {
  Build(2, 2);
  std::vector<CallId> calls;
  for (const Rank rank : {0u, 2u}) calls.push_back(Join(Spec(rank)));
  Connect();
  Settle();
  JoinSpec spec = Spec(1);
  spec.heap_bytes = 2 * kHeap;
  EXPECT_THAT(StatusOf(1, Join(spec)).message(), HasSubstr("heap_bytes=2097152"));
  Settle();
  EXPECT_THAT(StatusOf(0, calls[0]).message(), HasSubstr("rank 1 (pid 101) was refused"));
  EXPECT_EQ(StatusOf(2, calls[1]), StatusOf(0, calls[0]));
  // Also if it comes later, once.
  EXPECT_EQ(StatusOf(3, Join(Spec(3))), StatusOf(0, calls[0]));
  EXPECT_FALSE(nodes_[1]->port);
  Do(*nodes_[1], JoinCall{SessionId{4}, NewCall(), Spec(3)});
  EXPECT_TRUE(nodes_[1]->port);
}

TEST_F(NodesTest, TellsAllWhatNodesSaidDifferently) {
  Build(2, 2);
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    JoinSpec spec = Spec(rank);
    if (rank >= 2) spec.heap_bytes = 2 * kHeap;
    calls.push_back(Join(spec));
  }
  Connect();
  Settle();
  const absl::Status status = OneStatus(calls);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("ranks 2 to 3 on node host-2 (from rank 2)"),
                                      HasSubstr("heap_bytes=2097152"), HasSubstr("1048576")));
  for (const auto& node : nodes_) EXPECT_FALSE(node->port);
}

TEST_F(NodesTest, OneOutcomeForEachOperation) {
  MakeReady(2, 2);
  const auto first = AskAll(0, AllocateOp{.bytes = 4096, .name = "x", .tensor = {}});
  EXPECT_TRUE(OneStatus(first).ok());
  const auto second = AskAll(1, AllocateOp{.bytes = 4096, .name = "y", .tensor = {}});
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ResultOf(rank, second[rank]).offset_bytes, ResultOf(0, second[0]).offset_bytes);
    EXPECT_GT(ResultOf(rank, second[rank]).offset_bytes, ResultOf(0, first[0]).offset_bytes);
  }
  // A name that is taken, and ranks that differ.
  EXPECT_EQ(OneStatus(AskAll(2, AllocateOp{.bytes = 1, .name = "x", .tensor = {}})).code(),
            absl::StatusCode::kAlreadyExists);
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    calls.push_back(Ask(rank, 3, AllocateOp{.bytes = rank == 3 ? 2u : 1u, .tensor = {}}));
  }
  Settle();
  EXPECT_THAT(OneStatus(calls).message(),
              AllOf(HasSubstr("the ranks differ"), HasSubstr("rank 3 (pid 103 on node host-2)")));
  // The value of a broadcast comes to every node.
  calls.clear();
  for (Rank rank = 0; rank < 4; ++rank) {
    calls.push_back(Ask(rank, 4, BroadcastOp{3, rank == 3 ? SharedBytes("hello") : SharedBytes()}));
  }
  Settle();
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ResultOf(rank, calls[rank]).value.view(), "hello");
  }
}

TEST_F(NodesTest, TimeIsUpForAllAlike) {
  MakeReady(2, 2);
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    calls.push_back(Ask(rank, 0, AllocateOp{.bytes = 1, .tensor = {}}, kWorldTeam,
                        absl::Seconds(rank == 2 ? 1 : 60)));
  }
  Settle();
  clock_.Advance(absl::Seconds(2));
  Do(*nodes_[0], Tick{});
  Settle();
  // A rank that asks late gets the same.
  calls.push_back(Ask(3, 0, AllocateOp{.bytes = 1, .tensor = {}}));
  Settle();
  const absl::Status status = OneStatus(calls);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("missing: rank 3 (pid 103 on node host-2)"));
  EXPECT_TRUE(OneStatus(AskAll(1, AllocateOp{.bytes = 1, .tensor = {}})).ok());
}

TEST_F(NodesTest, TheHeapGrowsOnAllNodesOrOnNone) {
  MakeReady(2, 2);
  const auto first = AskAll(0, AllocateOp{.bytes = 2 * kHeap, .tensor = {}});
  EXPECT_EQ(OneStatus(first).code(), absl::StatusCode::kUnknown);
  MapGrowth();
  EXPECT_TRUE(OneStatus(first).ok()) << OneStatus(first);
  EXPECT_GT(ResultOf(3, first[3]).heap_bytes, 2 * kHeap);
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->machine->Jobs()[0].heap_bytes, ResultOf(3, first[3]).heap_bytes);
    EXPECT_THAT(node->layouts.back().segments, SizeIs(2));
    EXPECT_EQ(node->layouts.back().epoch, 77u);
  }
  const uint64_t used = nodes_[1]->machine->ledger().used_bytes_total();
  const auto second = AskAll(1, AllocateOp{.bytes = kHeap, .tensor = {}});
  MapGrowth(3);
  EXPECT_EQ(OneStatus(second).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(OneStatus(second).message(), HasSubstr("on node host-2: rank 3 (pid 103) could"));
  for (const auto& node : nodes_) {
    EXPECT_THAT(node->layouts.back().forgotten, SizeIs(2));
    EXPECT_EQ(node->machine->ledger().used_bytes_total(), used);
  }
  EXPECT_TRUE(OneStatus(AskAll(2, AllocateOp{.bytes = 1, .tensor = {}})).ok());
  // A node without memory for it.
  clock_.Advance(absl::Seconds(1));
  const auto third = AskAll(3, GrowOp{.bytes = uint64_t{1} << 50});
  EXPECT_EQ(OneStatus(third).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(NodesTest, TheHeapGrowsByACallOfItsOwn) {
  MakeReady(2, 2);
  const auto grown = AskAll(0, GrowOp{.bytes = kHeap});
  MapGrowth();
  EXPECT_TRUE(OneStatus(grown).ok()) << OneStatus(grown);
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->machine->Jobs()[0].heap_bytes, 2 * kHeap);
    EXPECT_EQ(StateOn(*node), JobState::kReady);
  }
  EXPECT_TRUE(OneStatus(AskAll(1, AllocateOp{.bytes = 1, .tensor = {}})).ok());
}

TEST_F(NodesTest, ARankThatLeavesEndsTheGrowthAlone) {
  for (const bool early : {true, false}) {
    nodes_.clear();
    MakeReady(2, 2);
    const uint64_t used = nodes_[1]->machine->ledger().used_bytes_total();
    std::vector<CallId> calls;
    for (Rank rank = 0; rank < 4; ++rank) calls.push_back(Ask(rank, 0, GrowOp{.bytes = kHeap}));
    if (!early) Settle();
    Do(NodeOf(3), LeaveCall{SessionId{4}, NewCall(), NodeOf(3).job});
    Settle();
    for (const Rank rank : {0u, 1u, 2u}) {
      EXPECT_THAT(StatusOf(rank, calls[rank]).message(), HasSubstr("rank 3")) << early;
    }
    for (const auto& node : nodes_) {
      EXPECT_EQ(StateOn(*node), JobState::kReady) << early;
      EXPECT_THAT(node->left, ElementsAre(3)) << early;
    }
    EXPECT_EQ(nodes_[1]->machine->ledger().used_bytes_total(), used) << early;
    Do(NodeOf(2), LeaveCall{SessionId{3}, NewCall(), NodeOf(2).job});
    Settle();
    EXPECT_EQ(nodes_[1]->machine->ledger().used_bytes_total(), 0u);
  }
}

// Followers do not hear which outcomes ranks of other nodes have asked for.
TEST_F(NodesTest, ForgetsValuesThatAllHaveAskedFor) {
  MakeReady(2, 2);
  const std::string value(wire::kMaxBroadcastBytes, 'x');
  for (uint64_t k = 0; k < kMaxValueBytesPerJob / value.size() + 2; ++k) {
    std::vector<CallId> calls;
    for (Rank rank = 0; rank < 4; ++rank) {
      calls.push_back(Ask(rank, k, BroadcastOp{2, SharedBytes(rank == 2 ? value : "")}));
    }
    Settle();
    ASSERT_TRUE(OneStatus(calls).ok()) << k << ": " << OneStatus(calls);
  }
}

// Memory of ranks, as their port processes have it.
class RegisterTest : public NodesTest {
 protected:
  static constexpr uint64_t kG = kGranularity;
  static RegisterOp Memory(uint64_t pieces = 1, uint64_t lead = 0, uint64_t bytes = kG / 2) {
    return {.piece_bytes = std::vector<uint64_t>(pieces, kG),
            .lead_bytes = lead,
            .bytes = bytes,
            .name = "x",
            .tensor = {}};
  }
  // Where the port process of each node has registered memory, by rank.
  std::map<Rank, std::vector<uint64_t>> InPorts() {
    std::map<Rank, std::vector<uint64_t>> found;
    for (const auto& node : nodes_) {
      const std::vector<JobSnapshot> jobs = node->machine->Jobs();
      for (const RankSnapshot& rank : jobs.at(0).ranks) {
        for (const SegmentInfo& info : rank.registered) {
          EXPECT_TRUE(node->memory.contains(info.id)) << "rank " << rank.rank;
          found[rank.rank].push_back(info.offset_bytes);
        }
      }
    }
    return found;
  }
  size_t InPort(const TestNode& node) { return node.memory.size() - n_local_; }
};

TEST_F(RegisterTest, TogetherLiesAtOneOffsetOnAllNodes) {
  MakeReady(3, 2);
  const uint64_t stride = nodes_[0]->machine->Jobs().at(0).stride_bytes;
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 6; ++rank) {
    // The leader's ranks have the least around the range.
    calls.push_back(Ask(rank, 0, Memory(1 + rank, rank / 2 * kG, kG / 2)));
  }
  Settle();
  ASSERT_FALSE(OneStatus(calls).ok());  // it does not end in the last of rank 5's allocations
  EXPECT_THAT(OneStatus(calls).message(), HasSubstr("begin in the first and end in the last"));
  EXPECT_THAT(InPorts(), IsEmpty());

  for (Rank rank = 0; rank < 6; ++rank) {
    RegisterOp op{.piece_bytes = {(1 + rank) * kG}, .lead_bytes = rank / 2 * kG, .bytes = kG / 2};
    calls[rank] = Ask(rank, 1, op);
  }
  Settle();
  ASSERT_TRUE(OneStatus(calls).ok()) << OneStatus(calls);
  // Two granules of ranks 4 and 5 before it, four of rank 5 from its begin on.
  const uint64_t offset = stride - 4 * kG;
  for (Rank rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(ResultOf(rank, calls[rank]).offset_bytes, offset);
    EXPECT_THAT(InPorts()[rank], ElementsAre(offset - rank / 2 * kG));
  }
  EXPECT_TRUE(OneStatus(AskAll(2, ConfirmOp{offset})).ok());
  // The heap ends below it, on all nodes.
  EXPECT_THAT(OneStatus(AskAll(3, GrowOp{stride - kHeap - 5 * kG})).message(),
              HasSubstr("are of registered memory"));
  const auto below = AskAll(4, Memory());
  ASSERT_TRUE(OneStatus(below).ok()) << OneStatus(below);
  EXPECT_EQ(ResultOf(5, below[5]).offset_bytes, offset - 3 * kG);
  for (const uint64_t each : {offset, offset - 3 * kG}) {
    EXPECT_TRUE(OneStatus(AskAll(each == offset ? 5 : 6, FreeOp{each})).ok());
  }
  EXPECT_THAT(InPorts(), IsEmpty());
  for (const auto& node : nodes_) EXPECT_EQ(InPort(*node), 0u);
}

TEST_F(RegisterTest, WhatOneCannotConfirmIsFreedOnAllNodes) {
  MakeReady(3, 2);
  uint64_t k = 0;
  for (const bool in_time : {true, false}) {
    const auto calls = AskAll(k++, Memory());
    ASSERT_TRUE(OneStatus(calls).ok()) << OneStatus(calls);
    const uint64_t offset = ResultOf(0, calls[0]).offset_bytes;
    EXPECT_THAT(InPorts(), SizeIs(6));
    std::vector<CallId> confirms;
    if (in_time) {
      // Node 2's other rank has not asked when the outcome comes, and none of node 4.
      confirms = {Ask(2, k, ConfirmOp{offset, "no room"})};
      Settle();
      EXPECT_THAT(StatusOf(2, confirms[0]).message(), HasSubstr("could not map it: no room"));
    } else {
      confirms = {Ask(0, k, ConfirmOp{offset}, kWorldTeam, absl::Seconds(1))};
      clock_.Advance(absl::Seconds(2));
      Do(*nodes_[0], Tick{});
      Settle();
      EXPECT_EQ(StatusOf(0, confirms[0]).code(), absl::StatusCode::kDeadlineExceeded);
    }
    EXPECT_FALSE(OneStatus(AskAll(k++, ConfirmOp{offset})).ok());
    EXPECT_THAT(InPorts(), IsEmpty());
    for (const auto& node : nodes_) EXPECT_EQ(InPort(*node), 0u);
  }
  EXPECT_TRUE(OneStatus(AskAll(k, AllocateOp{.bytes = 1, .tensor = {}})).ok());
}

TEST_F(RegisterTest, ARankAloneRegistersAndOthersOpen) {
  MakeReady(2, 2);
  for (const Rank owner : {1u, 2u}) {
    RegisterOp unnamed = Memory();
    unnamed.name.clear();
    const CallId call = Ask(owner, 0, unnamed, OwnTeam(owner));
    Settle();
    const uint64_t offset = ResultOf(owner, call).offset_bytes;
    EXPECT_THAT(InPorts(), SizeIs(1));
    Ask(owner, 1, PublishOp{offset, "x"}, OwnTeam(owner));
    Settle();
    const Rank opener = 3;
    const CallId opens = Ask(opener, owner == 1 ? 0 : 2, OpenOp{owner, "x"}, OwnTeam(opener));
    Settle();
    const OperationResult result = ResultOf(opener, opens);
    ASSERT_TRUE(result.opened.has_value());
    EXPECT_EQ(result.opened->offset_bytes, offset);
    EXPECT_TRUE(result.opened->registered);
    Ask(owner, 2, FreeOp{offset}, OwnTeam(owner));
    Settle();
    EXPECT_THAT(InPorts(), SizeIs(1)) << "it is open";
    Ask(opener, owner == 1 ? 1 : 3, FreeOp{offset}, OwnTeam(opener));
    Settle();
    EXPECT_THAT(InPorts(), IsEmpty());
  }
  const CallId bad = Ask(3, 4, Memory(1, 2 * kG), OwnTeam(3));
  RegisterOp uneven = Memory();
  uneven.piece_bytes = {kG + 1};
  const CallId worse = Ask(2, 3, uneven, OwnTeam(2));
  Settle();
  EXPECT_THAT(StatusOf(3, bad).message(), HasSubstr("do not begin in the first"));
  EXPECT_THAT(StatusOf(2, worse).message(), HasSubstr("a multiple of"));
  EXPECT_EQ(InPort(*nodes_[1]), 0u);
}

TEST_F(RegisterTest, AnotherIrisdGoesOnWithIt) {
  MakeReady(2, 2);
  const auto calls = AskAll(0, Memory());
  ASSERT_TRUE(OneStatus(calls).ok()) << OneStatus(calls);
  // One asks again of another irisd, which keeps what it gave.
  const CallId given = Ask(2, 1, RegisterOp{.piece_bytes = {kG}, .bytes = 8, .tensor = {}});
  const CallId of_leader = Ask(0, 1, RegisterOp{.piece_bytes = {kG}, .bytes = 8, .tensor = {}});
  Settle();
  for (const auto& node : nodes_) {
    Restart(*node);
    EXPECT_EQ(InPort(*node), 2u);
    EXPECT_THAT(InPorts(), SizeIs(4));
    EXPECT_EQ(node->layouts.back().registered_from, kHeap);
  }
  EXPECT_FALSE(StatusOf(2, given).ok() || StatusOf(0, of_leader).ok());
  for (const Rank rank : {1u, 3u}) {
    Ask(rank, 1, RegisterOp{.piece_bytes = {kG}, .bytes = 8, .tensor = {}});
  }
  Settle();
  EXPECT_EQ(InPort(*nodes_[1]), 4u);
  EXPECT_EQ(InPort(*nodes_[0]), 4u);
}

TEST_F(RegisterTest, NothingIsLeftOfARankThatIsLost) {
  MakeReady(2, 2);
  const CallId waits = Ask(2, 0, Memory());
  Settle();
  Do(NodeOf(3), SessionHungUp{SessionId{4}, "test"});
  Settle();
  EXPECT_EQ(StatusOf(2, waits).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(InPort(*nodes_[1]), 0u);
  size_t n_segments = 0;
  for (const Segment& segment : nodes_[1]->machine->Segments()) n_segments += segment.registered;
  EXPECT_EQ(n_segments, 0u);
}

TEST_F(RegisterTest, NothingIsLeftOfARankThatLeavesBeforeTheOutcome) {
  MakeReady(2, 1);
  const CallId waits = Ask(1, 0, Memory(), OwnTeam(1));
  EXPECT_THAT(nodes_[1]->machine->Segments(), SizeIs(2));
  Do(NodeOf(1), LeaveCall{SessionId{2}, NewCall(), NodeOf(1).job});
  Settle();
  EXPECT_EQ(StatusOf(1, waits).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(nodes_[1]->machine->Segments(), IsEmpty());
}

TEST_F(RegisterTest, IsForJobsWhoseNodesDoNotMapEachOther) {
  Build(2, 2);
  nodes_[0]->fabric = nodes_[1]->fabric = "rack-a";
  MakeReady();
  const auto calls = AskAll(0, Memory());
  EXPECT_EQ(OneStatus(calls).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(InPort(*nodes_[0]), 0u);
}

TEST_F(NodesTest, TeamsAcrossNodes) {
  MakeReady(2, 2);
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    calls.push_back(Ask(rank, 0, SplitOp{{{rank, static_cast<int32_t>(rank % 2), 0}}}));  // rails
  }
  Settle();
  ASSERT_TRUE(OneStatus(calls).ok());
  const TeamInfo rail = *ResultOf(3, calls[3]).team;
  EXPECT_EQ(rail.ranks, (std::vector<Rank>{1, 3}));
  const CallId one = Ask(1, 0, AllocateOp{.bytes = 64, .tensor = {}}, rail.id);
  const CallId three = Ask(3, 0, AllocateOp{.bytes = 64, .tensor = {}}, rail.id);
  Settle();
  EXPECT_EQ(ResultOf(1, one).offset_bytes, ResultOf(3, three).offset_bytes);
  // A rank alone, and the world after it.
  const CallId own = Ask(2, 0, AllocateOp{.bytes = 64, .tensor = {}}, OwnTeam(2));
  Settle();
  EXPECT_GT(ResultOf(2, own).offset_bytes, ResultOf(1, one).offset_bytes);
  EXPECT_TRUE(OneStatus(AskAll(1, AllocateOp{.bytes = 64, .tensor = {}})).ok());
}

TEST_F(NodesTest, TellsEveryNodeOfADeadRank) {
  MakeReady(3, 2);
  std::vector<CallId> waiting;
  for (const Rank rank : {0u, 1u, 2u, 5u}) {
    waiting.push_back(Ask(rank, 0, AllocateOp{.bytes = 1, .tensor = {}}));
  }
  Settle();
  Do(NodeOf(4), SessionHungUp{SessionId{5}, "test"});
  Do(NodeOf(4), ProcessGone{SessionId{5}});
  Settle();
  const Rank ranks[] = {0, 1, 2, 5};
  for (size_t i = 0; i < waiting.size(); ++i) {
    EXPECT_THAT(StatusOf(ranks[i], waiting[i]).message(), HasSubstr("rank 4 (pid 104"));
    EXPECT_EQ(StatusOf(ranks[i], waiting[i]).code(), absl::StatusCode::kAborted);
  }
  for (const auto& node : nodes_) {
    EXPECT_EQ(StateOn(*node), JobState::kBroken);
    EXPECT_EQ(node->layouts.back().epoch, 0u);
    EXPECT_FALSE(node->watched.empty());
  }
}

TEST_F(NodesTest, ALostNodeBreaksTheJobOnBothSides) {
  MakeReady(3, 2);
  nodes_[1]->cut = true;
  Do(*nodes_[0], NodeLost{nodes_[0]->job, 2, "silent for 5s"});
  Do(*nodes_[1], NodeLost{nodes_[1]->job, 0, "silent for 5s"});
  Settle();
  for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kBroken);
  EXPECT_THAT(StatusOf(0, Ask(0, 0, AllocateOp{.bytes = 1, .tensor = {}})).message(),
              HasSubstr("node host-2 (from rank 2) is lost: silent for 5s"));
  EXPECT_THAT(StatusOf(5, Ask(5, 0, AllocateOp{.bytes = 1, .tensor = {}})).message(),
              HasSubstr("node host-2 (from rank 2) is lost: silent for 5s"));
  EXPECT_THAT(StatusOf(3, Ask(3, 0, AllocateOp{.bytes = 1, .tensor = {}})).message(),
              HasSubstr("node host-0 (from rank 0), which leads the job, is lost"));
}

// iris-ctl shows what each irisd knows of the others.
TEST_F(NodesTest, ListsNodesAndRanksWhileTheyJoin) {
  Build(3, 2);
  for (const Rank rank : {0u, 1u, 2u, 4u, 5u}) Join(Spec(rank));
  Settle();
  EXPECT_THAT(NodesOf(*nodes_[0]),
              ElementsAre(IsNode(0, 2, NodeState::kJoined), IsNode(2, 4, NodeState::kAwaited)));
  EXPECT_THAT(NodesOf(*nodes_[1]),
              ElementsAre(IsNode(0, 0, NodeState::kAwaited), IsNode(2, 2, NodeState::kConnected),
                          IsNode(4, 2, NodeState::kUnknown)));
  EXPECT_EQ(NodesOf(*nodes_[1])[0].address, "host-0:4711");
  Connect();
  Settle();
  EXPECT_THAT(NodesOf(*nodes_[0]),
              ElementsAre(IsNode(0, 2, NodeState::kJoined), IsNode(2, 0, NodeState::kConnected),
                          IsNode(4, 2, NodeState::kJoined)));
  EXPECT_EQ(NodesOf(*nodes_[0])[2].part.name, "host-4");
  // Ranks of another node count as joined once it says so, and only the leader knows.
  ASSERT_THAT(PendingOn(*nodes_[0]), SizeIs(1));
  EXPECT_THAT(PendingOn(*nodes_[0])[0].waiting, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(PendingOn(*nodes_[0])[0].missing, ElementsAre(2, 3));
  EXPECT_THAT(PendingOn(*nodes_[2])[0].waiting, ElementsAre(4, 5));
  EXPECT_THAT(RankStatesOn(*nodes_[0]),
              ElementsAre(RankState::kJoined, RankState::kJoined, RankState::kAbsent,
                          RankState::kAbsent, RankState::kJoined, RankState::kJoined));
  EXPECT_THAT(RankStatesOn(*nodes_[2]),
              ElementsAre(RankState{}, RankState{}, RankState{}, RankState{}, RankState::kJoined,
                          RankState::kJoined));
  Join(Spec(3));
  Settle();
  Do(NodeOf(4), MappedCall{SessionId{5}, NewCall(), NodeOf(4).job, 1, wire::kProposedBase, ""});
  Do(NodeOf(4), MappedCall{SessionId{6}, NewCall(), NodeOf(4).job, 1, wire::kProposedBase, ""});
  Settle();
  EXPECT_THAT(PendingOn(*nodes_[0])[0].waiting, ElementsAre(4, 5));
  EXPECT_THAT(PendingOn(*nodes_[0])[0].missing, ElementsAre(0, 1, 2, 3));
  MapAll();
  for (const auto& node : nodes_) EXPECT_THAT(RankStatesOn(*node), Each(RankState::kReady));
}

TEST_F(NodesTest, ListsWhyANodeIsLost) {
  MakeReady(3, 2);
  Do(*nodes_[0], NodeLost{nodes_[0]->job, 2, "silent\033 for 5s"});
  Settle();
  EXPECT_THAT(NodesOf(*nodes_[0]),
              ElementsAre(IsNode(0, 2, NodeState::kMapped), IsNode(2, 2, NodeState::kLost),
                          IsNode(4, 2, NodeState::kMapped)));
  EXPECT_EQ(NodesOf(*nodes_[0])[1].lost_because, "silent? for 5s");
  EXPECT_THAT(NodesOf(*nodes_[2])[1], IsNode(2, 2, NodeState::kLost));
  EXPECT_THAT(NodesOf(*nodes_[2])[1].lost_because, HasSubstr("silent? for 5s"));
  EXPECT_THAT(NodesOf(*nodes_[1])[0], IsNode(0, 2, NodeState::kLost));
  EXPECT_THAT(NodesOf(*nodes_[1])[0].lost_because, HasSubstr("gave this node up"));
  Do(*nodes_[2], PortFailed{nodes_[2]->job, "it was killed"});
  EXPECT_THAT(NodesOf(*nodes_[2])[2], IsNode(4, 2, NodeState::kLost));
  EXPECT_THAT(NodesOf(*nodes_[2])[2].lost_because, HasSubstr("it was killed"));
}

TEST_F(NodesTest, TheLeaderServesUntilTheLastRankHasLeft) {
  MakeReady(2, 2);
  const auto leave = [this](Rank rank) {
    Do(NodeOf(rank), LeaveCall{SessionId{rank + 1}, NewCall(), NodeOf(rank).job});
    Settle();
  };
  leave(0);
  leave(1);
  EXPECT_TRUE(nodes_[0]->port);
  const CallId alone = Ask(3, 0, AllocateOp{.bytes = 64, .tensor = {}}, OwnTeam(3));
  Settle();
  EXPECT_TRUE(StatusOf(3, alone).ok()) << StatusOf(3, alone);
  leave(2);
  leave(3);
  for (const auto& node : nodes_) {
    EXPECT_FALSE(node->port);
    EXPECT_THAT(node->machine->Jobs(), IsEmpty());
    EXPECT_EQ(node->machine->ledger().used_bytes_total(), 0u);
    EXPECT_EQ(node->machine->NextDeadline(), absl::InfiniteFuture());
  }
}

TEST_F(NodesTest, AFailedPortEndsTheJoin) {
  Build(2, 2);
  const CallId call = Join(Spec(2));
  Do(*nodes_[1], PortFailed{nodes_[1]->job, "cannot reach host-0:4711"});
  EXPECT_EQ(StatusOf(2, call).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(StatusOf(2, call).message(), HasSubstr("cannot reach host-0:4711"));
  EXPECT_FALSE(nodes_[1]->port);
}

TEST_F(NodesTest, AnotherIrisdTellsTheOtherNodes) {
  MakeReady(2, 2);
  std::vector<SegmentId> memory;
  for (const Segment& segment : nodes_[1]->machine->Segments()) memory.push_back(segment.info.id);
  Do(*nodes_[1], Recovered{2, {SessionId{3}, SessionId{4}}, memory, {nodes_[1]->job}});
  Settle();
  EXPECT_THAT(StatusOf(3, Ask(3, 0, AllocateOp{.bytes = 1, .tensor = {}})).message(),
              HasSubstr("the port process of this node ended: irisd was restarted"));
  // The leader sees the end of the connection.
  Do(*nodes_[0], NodeLost{nodes_[0]->job, 2, "it closed the connection"});
  EXPECT_EQ(StateOn(*nodes_[0]), JobState::kBroken);
}

// All that was sent and decided before, in either direction, has its effect once.
TEST_F(NodesTest, AnotherIrisdGoesOn) {
  MakeReady(2, 2);
  slow_ = true;
  for (const size_t restarted : {1, 0}) {
    const uint64_t k = restarted == 1 ? 0 : 1;
    std::vector<CallId> calls;
    for (Rank rank = 0; rank < 4; ++rank) {
      calls.push_back(Ask(rank, k, AllocateOp{.bytes = 4096, .tensor = {}}));
    }
    EXPECT_THAT(nodes_[1]->unsent, SizeIs(2));
    if (restarted == 0) {
      while (nodes_[0]->unsent.empty()) ASSERT_TRUE(Step());  // the outcome
    }
    TestNode& node = *nodes_[restarted];
    Restart(node);
    EXPECT_THAT(node.unsent, Not(IsEmpty()));
    EXPECT_EQ(node.layouts.back().epoch, 77u);
    EXPECT_THAT(node.layouts.back().segments, SizeIs(2));
    Settle();
    for (Rank rank = node.id; rank < node.id + 2; ++rank) {
      calls[rank] = Ask(rank, k, AllocateOp{.bytes = 4096, .tensor = {}});
    }
    Settle();
    EXPECT_TRUE(OneStatus(calls).ok()) << OneStatus(calls);
  }
  // A dead rank is told by the next irisd.
  Do(NodeOf(3), SessionHungUp{SessionId{4}, "test"});
  EXPECT_EQ(StateOn(*nodes_[1]), JobState::kBroken);
  Restart(*nodes_[1]);
  EXPECT_EQ(nodes_[1]->layouts.back().epoch, 0u);
  Settle();
  EXPECT_EQ(StateOn(*nodes_[0]), JobState::kBroken);
  EXPECT_EQ(RankStatesOn(*nodes_[0])[3], RankState::kEnding);
}

TEST_F(NodesTest, NothingIsKeptThatThePortProcessHas) {
  MakeReady(2, 2);
  for (uint64_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(OneStatus(AskAll(k, AllocateOp{.bytes = 1, .tensor = {}})).ok());
  }
  for (auto& node : nodes_) {
    Do(*node, PortTook{node->job, node->taken});
    slow_ = true;
    Restart(*node);
    EXPECT_THAT(node->unsent, IsEmpty());
  }
}

TEST_F(NodesTest, AJobThatFormsFailsWithItsIrisd) {
  Build(2, 2);
  const CallId call = Join(Spec(2));
  Restart(*nodes_[1]);
  EXPECT_FALSE(nodes_[1]->port);
  EXPECT_THAT(nodes_[1]->machine->Jobs(), IsEmpty());
  EXPECT_EQ(StatusOf(2, call).code(), absl::StatusCode::kUnknown);  // it was forgotten
  nodes_.clear();
  created_.clear();
  Build(2, 2);
  JoinAll();
  Restart(*nodes_[0]);
  EXPECT_THAT(nodes_[0]->machine->Jobs(), IsEmpty());
}

TEST_F(FabricTest, AJobOfAFabricBreaksWithItsIrisd) {
  Build();
  MakeReady();
  Restart(*nodes_[1]);
  EXPECT_EQ(StateOn(*nodes_[1]), JobState::kBroken);
  Restart(*nodes_[2]);  // it maps no other node
  EXPECT_EQ(StateOn(*nodes_[2]), JobState::kReady);
}

TEST_F(NodesTest, ARankThatGivesUpIsWaitedForAgain) {
  Build(2, 1);
  JoinSpec hurried = Spec(1);
  hurried.timeout = absl::Seconds(1);
  const CallId first = Join(hurried);
  created_.clear();
  nodes_[1]->connected = true;
  Do(*nodes_[1], NodeConnected{nodes_[1]->job, kLeader, "host-0"});
  Do(*nodes_[1], SegmentCreated{SegmentId{1}, absl::OkStatus()});
  EXPECT_THAT(nodes_[1]->out, SizeIs(1));
  clock_.Advance(absl::Seconds(2));
  Do(*nodes_[1], Tick{});
  EXPECT_EQ(StatusOf(1, first).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(nodes_[1]->port);
}

// What a hostile node says is refused, and costs that node the job at most.
TEST_F(NodesTest, RefusesWhatDoesNotFit) {
  const NodeMessage kBad[] = {
      NodeJoined{.n_ranks = 4, .pids = {1, 2}},
      NodeMapped{true},
      NodesMapped{true},
      NodesJoined{1, {{0, 2, "a"}, {2, 2, "b"}}},
      OperationAsked{.rank = 0, .op = AllocateOp{.bytes = 1, .tensor = {}}},
      OperationAsked{.k = 9, .rank = 2, .op = AllocateOp{.bytes = 1, .tensor = {}}},
      OperationDecided{.op = AllocateOp{.bytes = 1, .tensor = {}}},
      JoinsFailed{absl::InternalError("x")},
      RankIs{99, RankState::kDead, 1, "x"},
      RankIs{0, RankState::kReady, 1, "x"},
      NodeIsLost{0, "x"},
  };
  for (const NodeMessage& bad : kBad) {
    nodes_.clear();
    MakeReady(2, 2);
    Do(*nodes_[0], NodeSaid{nodes_[0]->job, 2, bad});
    Settle();
    for (const auto& node : nodes_) EXPECT_EQ(StateOn(*node), JobState::kBroken) << bad.index();
  }
}

TEST_F(NodesTest, RefusesWhatDoesNotFitOfTheLeader) {
  const NodeMessage kBad[] = {
      OperationDecided{.k = 1, .op = FreeOp{}},
      OperationDecided{.op = AllocateOp{.bytes = 1, .alignment_bytes = 3, .tensor = {}}},
      OperationDecided{.op = AllocateOp{.bytes = 8 * kHeap, .alignment_bytes = 256, .tensor = {}}},
      OperationDecided{.op = FreeOp{12345}},
      OperationDecided{.op = GrowOp{0}},
      OperationDecided{.op = CreateTeamOp{{0, 99}}},
      OperationDecided{.op = SplitOp{{{77, 0, 0}}}},
      OperationDecided{.op = DestroyTeamOp{}},
      OperationDecided{.op = BroadcastOp{99, SharedBytes("x")}},
      OperationDecided{.op = RegisterOp{.piece_bytes = {kHeap}, .bytes = 1, .tensor = {}}},
      OperationDecided{.team = OwnTeam(2),
                       .op = RegisterOp{.piece_bytes = {kHeap}, .bytes = 1, .tensor = {}}},
      OperationDecided{.op = ConfirmOp{0}},
      OperationDecided{.op = AllocateOp{.bytes = 1,
                                        .alignment_bytes = 256,
                                        .name = std::string(1000, 'x'),
                                        .tensor = {}}},
      GrowthMaps{GrowId{1}},
      GrowthEnded{GrowId{1}, true, ""},
  };
  for (const NodeMessage& bad : kBad) {
    nodes_.clear();
    MakeReady(2, 2);
    Do(*nodes_[1], NodeSaid{nodes_[1]->job, kLeader, bad});
    Settle();
    EXPECT_EQ(StateOn(*nodes_[1]), JobState::kBroken) << &bad - kBad;
  }
  // The memory of this node is not there yet.
  nodes_.clear();
  MakeReady(2, 2);
  Do(*nodes_[1], NodeSaid{nodes_[1]->job, kLeader, GrowthBegun{GrowId{7}, kHeap}});
  Do(*nodes_[1], NodeSaid{nodes_[1]->job, kLeader, GrowthMaps{GrowId{7}}});
  EXPECT_EQ(StateOn(*nodes_[1]), JobState::kBroken);
}

// A port process is its user's: what it says of nodes is not believed.
TEST_F(NodesTest, IgnoresNodesThatTheJobDoesNotHave) {
  Build(2, 2);
  const CallId call = Join(Spec(0));
  for (const NodeId node : {0u, 1u, 4u, 4000000000u}) {
    Do(*nodes_[0], NodeConnected{nodes_[0]->job, node, "host-x"});
  }
  EXPECT_THAT(NodesOf(*nodes_[0]),
              ElementsAre(IsNode(0, 2, NodeState::kAwaited), IsNode(2, 2, NodeState::kAwaited)));
  Join(Spec(2));
  Do(*nodes_[1], NodeConnected{nodes_[1]->job, 1, "host-x"});
  EXPECT_THAT(NodesOf(*nodes_[1]),
              ElementsAre(IsNode(0, 0, NodeState::kAwaited), IsNode(2, 2, NodeState::kAwaited)));
  EXPECT_EQ(StatusOf(0, call).code(), absl::StatusCode::kUnknown);
}

// Each node sends the leader one message for each step. IRIS_TEST_NODES=1000 is the long form.
TEST_F(NodesTest, ManyNodesJoin) {
  checks_ = false;
  const char* const n_nodes = std::getenv("IRIS_TEST_NODES");
  MakeReady(n_nodes == nullptr ? 100 : static_cast<uint32_t>(atoi(n_nodes)), 8);
  EXPECT_TRUE(OneStatus(AskAll(0, AllocateOp{.bytes = 4096, .tensor = {}})).ok());
  for (const auto& node : nodes_) ASSERT_EQ(StateOn(*node), JobState::kReady);
}

// Random operations by teams of all kinds, with messages in any order that the links allow: each
// (team, k) has one outcome, and all nodes have the same heap.
class RandomTest : public NodesTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Restarts, RandomTest, ::testing::Bool());

TEST_P(RandomTest, OperationsAgree) {
  const bool restarts = GetParam();  // of any irisd at any time
  uint64_t largest_heap_bytes = 0;
  for (int seed = 1; seed <= (restarts ? 60 : 20); ++seed) {
    random_.seed(static_cast<unsigned>(seed));
    nodes_.clear();
    slow_ = false;
    MakeReady(3, 2);
    const auto any = [this](uint32_t n) {
      return static_cast<uint32_t>(std::uniform_int_distribution<uint32_t>(0, n - 1)(random_));
    };
    std::map<TeamId, std::vector<Rank>> teams = {{kWorldTeam, {0, 1, 2, 3, 4, 5}}};
    std::map<std::pair<TeamId, Rank>, uint64_t> next;
    for (Rank rank = 0; rank < 6; ++rank) teams[OwnTeam(rank)] = {rank};
    std::vector<uint64_t> offsets;
    slow_ = restarts;
    for (int round = 0; round < 40; ++round) {
      auto team = teams.begin();
      std::advance(team, any(static_cast<uint32_t>(teams.size())));
      const auto [id, members] = *team;
      Operation op = AllocateOp{.bytes = 1 + any(5000), .tensor = {}};
      const uint32_t what = any(10);
      if (what < 3 && !offsets.empty()) {
        op = FreeOp{offsets[any(static_cast<uint32_t>(offsets.size()))]};
      } else if (what == 3 && members.size() > 1) {
        op = CreateTeamOp{{members[any(static_cast<uint32_t>(members.size()))]}};
      } else if (what == 4 && members.size() > 1) {
        op = BroadcastOp{members[0], SharedBytes("value")};
      } else if (what == 5 && restarts) {
        op = AllocateOp{.bytes = kHeap / 2, .tensor = {}};  // once in a while the heap grows
      }
      std::vector<std::pair<Rank, CallId>> calls;
      // Answers that were under way are lost. Ranks repeat calls that were not answered.
      int left = 5;
      const auto restart = [&] {
        if (left-- <= 0) return;
        TestNode& node = *nodes_[any(3)];
        Restart(node);
        for (auto& [rank, call] : calls) {
          if (&NodeOf(rank) != &node) continue;
          if (any(2) == 0 || StatusOf(rank, call).code() == absl::StatusCode::kUnknown) {
            call = Ask(rank, next[{id, rank}] - 1, op, id);
          }
        }
      };
      for (const Rank rank : members) {
        for (uint32_t steps = any(4); steps > 0; --steps) {
          Step();
          if (restarts && any(8) == 0) restart();
        }
        calls.push_back({rank, Ask(rank, next[{id, rank}]++, op, id)});
      }
      const auto is_answered = [&](const auto& each) {
        return StatusOf(each.first, each.second).code() != absl::StatusCode::kUnknown;
      };
      for (int i = 0; i < 20; ++i) {
        while (Step()) {
          if (restarts && any(16) == 0) restart();
        }
        if (std::all_of(calls.begin(), calls.end(), is_answered)) break;
        MapGrowth();
      }
      const absl::Status status = StatusOf(calls[0].first, calls[0].second);
      for (const auto& [rank, call] : calls) ASSERT_EQ(StatusOf(rank, call), status) << seed;
      if (!status.ok()) continue;
      const OperationResult result = ResultOf(calls[0].first, calls[0].second);
      if (std::holds_alternative<AllocateOp>(op)) offsets.push_back(result.offset_bytes);
      if (std::holds_alternative<CreateTeamOp>(op)) {
        const Rank member = std::get<CreateTeamOp>(op).ranks[0];
        for (const auto& [rank, call] : calls) {
          if (rank == member) teams[ResultOf(rank, call).team->id] = {member};
        }
      }
    }
    std::set<std::string> heaps;
    for (const auto& node : nodes_) {
      std::string heap;
      const JobSnapshot job = node->machine->Jobs({.allocations = true})[0];
      for (const AllocationSnapshot& each : job.allocations) {
        absl::StrAppend(&heap, each.offset_bytes, "+", each.bytes, " of ", each.team, "; ");
      }
      heaps.insert(heap);
      largest_heap_bytes = std::max(largest_heap_bytes, job.heap_bytes);
    }
    EXPECT_THAT(heaps, SizeIs(1)) << "seed " << seed;
    for (const auto& node : nodes_) {
      std::set<SegmentId> memory;
      for (const Segment& segment : node->machine->Segments()) memory.insert(segment.info.id);
      EXPECT_EQ(node->memory, memory) << "seed " << seed;
    }
  }
  EXPECT_EQ(largest_heap_bytes > kHeap, restarts);
}

}  // namespace
}  // namespace iris::server
