// The machine's state written and read back: equal, going on the same, and no bytes that abort
// irisd. After every input of random histories: tests/model/job_model_test.cc.
#include "server/state/machine_state.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/job/testing/job_machine_testing.h"
#include "server/state/machine_state.pb.h"

namespace iris::server {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::testing::HasSubstr;

class MachineStateTest : public MachineTest {
 protected:
  absl::StatusOr<std::unique_ptr<JobMachine>> Decode(const std::string& bytes) {
    return MachineState::Decode(bytes, Limits(), Ledger(Devices()), Unusable());
  }

  // From here on the machine is the one that was read back.
  void Exchange() {
    const std::string bytes = MachineState::Encode(*machine_);
    auto copy = Decode(bytes);
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(MachineState::Encode(**copy), bytes);
    machine_ = *std::move(copy);
  }

  // Everything that a state can hold: a ready job with teams, values, outcomes and operations that
  // wait, one that grows, one that is broken, one that joins and starves, segments that are
  // dropped.
  void Fill() {
    busy_ = ReadyJob(3);
    AskAll(busy_, 0,
           AllocateOp{
               .bytes = 5000, .alignment_bytes = 4096, .name = "w", .tensor = {"f32", {10, 125}}});
    AskAll(busy_, 1, BroadcastOp{1, std::string(3000, 'v')});
    AskAll(busy_, 2, CreateTeamOp{{2, 0}});
    AskAll(busy_, 3, CreateTeamOp{{1}});
    Ask(busy_, 1, 0, DestroyTeamOp{7}, /*team=*/2);
    AskAll(busy_, 4, FreeOp{.offset_bytes = 99});
    Ask(busy_, 0, 0, BroadcastOp{0, "waits"}, /*team=*/1);
    for (const uint64_t k : {0, 1}) {
      const std::string name = absl::StrCat("own", k);
      const CallId own = Ask(busy_, 0, k, AllocateOp{.bytes = 9, .name = name}, OwnTeam(0));
      Ask(busy_, 1, k, OpenOp{0, name}, OwnTeam(1));
      if (k == 1) Ask(busy_, 0, 2, FreeOp{OffsetOf(own)}, OwnTeam(0));
    }
    for (const uint64_t k : {2, 3}) {
      RegisterOp mine{.piece_bytes = {kGranularity, kGranularity}, .bytes = kGranularity + k};
      mine.name = absl::StrCat("mine", k);
      const CallId own = Ask(busy_, 1, k, mine, OwnTeam(1));
      Ask(busy_, 0, k + 1, OpenOp{1, mine.name}, OwnTeam(0));
      if (k == 3) Ask(busy_, 1, 4, FreeOp{OffsetOf(own)}, OwnTeam(1));
    }
    AskAll(busy_, 5, GrowOp{kMiB});
    CreateSegments();
    GrowMapped(busy_, 1, Watched<SegmentsAdded>(busy_.sessions[0]).at(0).grow);
    Ask(busy_, 2, 5, GrowOp{kMiB});  // a retry

    JoinSpec other = Spec(0, 2);
    other.job = "other";
    TestJob broken = ReadyJob(2, other);
    Ask(broken, 0, 0, AllocateOp{.bytes = 8});
    HangUp(broken.sessions[1]);
    broken_ = broken;

    JoinSpec forming = Spec(0, 2);
    forming.job = "forming";
    Join(Open(300), forming);
    JoinSpec gone = Spec(0, 1);
    gone.job = "gone";
    const SessionId leaves = Open(301);
    const CallId call = Join(leaves, gone);
    CreateSegments();
    const TestJob alone{ResultOf<JoinResult>(call).job, {leaves}};
    Mapped(alone, 0);
    Leave(alone, 0);  // its segment is being dropped
    Do(DriverFree{1, 12345});
  }

  TestJob busy_, broken_;
};

TEST_F(MachineStateTest, ASplitGoesOnAndItsTeamsAreReadBack) {
  const TestJob job = ReadyJob(3);
  Ask(job, 2, 0, SplitOp{{{2, 4, -5}}});
  Ask(job, 0, 0, SplitOp{{{0, 4, 0}}});
  Exchange();
  const CallId last = Ask(job, 1, 0, SplitOp{{{1, 0, 0}}});
  EXPECT_THAT(ResultOf<OperationResult>(last).team->ranks, testing::ElementsAre(1));
  Exchange();
  const CallId again = Ask(job, 0, 0, SplitOp{{{0, 4, 0}}});
  EXPECT_THAT(ResultOf<OperationResult>(again).team->ranks, testing::ElementsAre(2, 0));
}

// Handles that are not passed on yet are not stored: such jobs break when irisd is restarted.
TEST_F(MachineStateTest, MemoryOfOtherNodesIsReadBackWhileItGrows) {
  const std::string handle(wire::kFabricHandleBytes, 'h');
  const auto create = [&] {
    for (const CreateSegment& each : std::exchange(to_create_, {})) {
      Do(SegmentCreated{each.id, absl::OkStatus(), handle});
    }
  };
  JoinSpec spec = Spec(0, 2);
  spec.nodes = JoinNodes{0, 1, "a:4711", "0123456789abcdef"};
  const SessionId session = Open(100);
  Join(session, spec);
  create();
  const JobId job = TheJob().id;
  Do(PortReady{job, 77, "host-0", "rack"});
  Do(NodeConnected{job, 1, "host-1"});
  Do(NodeSaid{job, 1,
              NodeJoined{.n_ranks = 2,
                         .heap_bytes = kHeap,
                         .stride_bytes = 4 * kHeap,
                         .team_sync_bytes = 8 * kKiB,
                         .pids = {101},
                         .fabric = "rack",
                         .ranks_per_device = 1,
                         .handles = {handle}}});
  ASSERT_EQ(All<ImportSegment>().size(), 1u);
  Exchange();
  Do(MappedCall{session, NewCall(), job, 1, wire::kProposedBase, ""});
  Do(NodeSaid{job, 1, NodeMapped{true}});
  Exchange();
  const AllocateOp large{.bytes = 2 * kHeap};
  const CallId call = Ask({job, {session}}, 0, 0, large);
  Do(NodeSaid{job, 1, OperationAsked{kWorldTeam, 0, 1, absl::ZeroDuration(), false, large}});
  Exchange();
  create();
  const auto begun = All<SendToNode>();
  const GrowId grow = std::get<GrowthBegun>(begun.back().message).grow;
  Do(NodeSaid{job, 1, GrowthCreated{grow, "", {handle}}});
  ASSERT_EQ(All<ImportSegment>().size(), 2u);
  Exchange();
  GrowMapped({job, {session}}, 0, grow);
  Do(NodeSaid{job, 1, GrowthMapped{grow, ""}});
  EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
  Exchange();
}

// The numbers and the values of messages that a port process may not have taken.
TEST_F(MachineStateTest, MessagesToOtherNodesAreReadBack) {
  const TestJob job = JobOfTwoNodes(/*taken=*/1);
  Ask(job, 0, 0, BroadcastOp{0, "value"});
  Do(NodeSaid{job.id, 1, OperationAsked{.rank = 1, .op = BroadcastOp{0, SharedBytes()}}, 4});
  const auto sent = All<SendToNode>();
  ASSERT_EQ(sent.size(), 3u);
  Exchange();
  std::vector<SegmentId> memory;
  for (const Segment& segment : machine_->Segments()) memory.push_back(segment.info.id);
  effects_.clear();
  Do(Recovered{2, {job.sessions[0]}, memory, {job.id}, {job.id}});
  const auto attached = All<AttachPort>();
  ASSERT_EQ(attached.size(), 1u);
  EXPECT_EQ(attached[0].heard, 4u);
  EXPECT_EQ(attached[0].sent, 3u);
  EXPECT_EQ(attached[0].taken, 1u);
  const auto again = All<SendToNode>();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].number, 2u);
  EXPECT_TRUE(std::holds_alternative<NodesMapped>(again[0].message));
  EXPECT_EQ(again[1].number, 3u);
  EXPECT_TRUE(again[1].all);
  const auto& decided = std::get<OperationDecided>(again[1].message);
  EXPECT_EQ(std::get<BroadcastOp>(decided.op).value.view(), "value");
  Do(PortTook{job.id, 3});
  Exchange();
  effects_.clear();
  Do(Recovered{3, {job.sessions[0]}, memory, {job.id}, {job.id}});
  EXPECT_TRUE(All<SendToNode>().empty());
}

TEST_F(MachineStateTest, EmptyMachine) { Exchange(); }

TEST_F(MachineStateTest, EverythingIsReadBack) {
  Fill();
  const auto before = machine_->Jobs({.allocations = true});
  Exchange();
  const auto after = machine_->Jobs({.allocations = true});
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].name, before[i].name);
    EXPECT_EQ(after[i].state, before[i].state);
    EXPECT_EQ(after[i].allocated_bytes, before[i].allocated_bytes);
    EXPECT_EQ(after[i].largest_free_bytes, before[i].largest_free_bytes);
    EXPECT_EQ(after[i].created, before[i].created);
    ASSERT_EQ(after[i].allocations.size(), before[i].allocations.size());
    for (size_t j = 0; j < after[i].allocations.size(); ++j) {
      EXPECT_EQ(after[i].allocations[j].team, before[i].allocations[j].team);
      EXPECT_EQ(after[i].allocations[j].n_open, before[i].allocations[j].n_open);
      EXPECT_EQ(after[i].allocations[j].freed, before[i].allocations[j].freed);
      EXPECT_EQ(after[i].allocations[j].registered, before[i].allocations[j].registered);
    }
  }
}

TEST_F(MachineStateTest, AJobGoesOnWhereItWas) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, BroadcastOp{0, "value"});
  const CallId first = Ask(job, 0, 1, AllocateOp{.bytes = 100, .name = "x"});
  Exchange();
  EXPECT_EQ(ResultOf<OperationResult>(Ask(job, 1, 0, BroadcastOp{0, ""})).value, "value");
  const CallId second = Ask(job, 1, 1, AllocateOp{.bytes = 100, .name = "x"});
  EXPECT_TRUE(OneOutcome({first, second}).ok());
  Exchange();
  EXPECT_TRUE(
      absl::IsAlreadyExists(OneOutcome(AskAll(job, 2, AllocateOp{.bytes = 100, .name = "x"}))));
  EXPECT_TRUE(OneOutcome(AskAll(job, 3, FreeOp{OffsetOf(first)})).ok());
  EndJob(job);
}

TEST_F(MachineStateTest, DeadlinesAndRetriesGoOn) {
  const TestJob job = ReadyJob(2);
  const CallId waits = Ask(job, 0, 0, AllocateOp{.bytes = 1});
  Exchange();
  const CallId again = Ask(job, 0, 0, AllocateOp{.bytes = 1});
  Advance(absl::Minutes(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(OneOutcome({waits, again})));
  EXPECT_THAT(StatusOf(waits).message(),
              HasSubstr("after 1m, the timeout of rank 0 (pid 100), which was over first"));
}

TEST_F(MachineStateTest, WhoGaveUpIsRemembered) {
  JoinSpec hasty = Spec(1, 3);
  hasty.timeout = absl::Seconds(5);
  Join(Open(101), hasty);
  CreateSegments();
  Advance(absl::Seconds(5));  // and with it the job is gone
  DropSegments();
  Exchange();
  JoinSpec late = Spec(0, 3);
  late.timeout = absl::Seconds(9);
  const CallId call = Join(Open(100), late);
  hasty.rank = 2;
  Join(Open(102), hasty);
  CreateSegments();
  Advance(absl::Seconds(5));
  Exchange();
  Advance(absl::Seconds(4));
  EXPECT_THAT(
      StatusOf(call).message(),
      HasSubstr("these came and gave up: rank 2 (pid 102) after 5s (its own timeout); rank 1 "
                "(pid 101) after 5s (its own timeout), shortly before this rank came"));
}

TEST_F(MachineStateTest, WhoWasRefusedIsRemembered) {
  const SessionId other = Open(100);
  JoinSpec wrong = Spec(1, 2);
  wrong.heap_bytes = 0;
  Join(Open(101), wrong);
  Exchange();
  const absl::Status told = StatusOf(Join(other, Spec(0, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(told)) << told;
  EXPECT_THAT(told.message(), HasSubstr("rank 1 (pid 101) was refused, and no rank joins"));
}

TEST_F(MachineStateTest, ALeaseIsTakenUpByAnotherSessionOfItsProcess) {
  const TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  Exchange();
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Resume(Open(555), job, 0))));
  EXPECT_TRUE(StatusOf(Resume(Open(100), job, 0)).ok());
}

TEST_F(MachineStateTest, AGrowthGoesOn) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, GrowOp{kMiB});
  Exchange();
  CreateSegments();
  const GrowId grow = Watched<SegmentsAdded>(job.sessions[0]).at(0).grow;
  GrowMapped(job, 0, grow);
  Exchange();
  GrowMapped(job, 1, grow);
  EXPECT_TRUE(OneOutcome(calls).ok());
  EXPECT_EQ(TheJob().heap_bytes, 2 * kHeap);
}

TEST_F(MachineStateTest, OtherDevicesAreRefused) {
  Fill();
  const std::string bytes = MachineState::Encode(*machine_);
  auto devices = Devices();
  devices[1].uuid = "another";
  const absl::Status other = MachineState::Decode(bytes, Limits(), Ledger(devices)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other));
  EXPECT_THAT(other.message(), HasSubstr("another"));
  devices.pop_back();
  EXPECT_TRUE(
      absl::IsFailedPrecondition(MachineState::Decode(bytes, Limits(), Ledger(devices)).status()));
}

TEST_F(MachineStateTest, OtherVersionsAndNonsenseAreRefused) {
  EXPECT_TRUE(absl::IsDataLoss(Decode("").status()));
  EXPECT_TRUE(absl::IsDataLoss(Decode("nonsense").status()));
  state::MachineState state;
  ASSERT_TRUE(state.ParseFromString(MachineState::Encode(*machine_)));
  state.set_version(2);
  EXPECT_THAT(Decode(state.SerializeAsString()).status().message(), HasSubstr("version 2"));
}

TEST_F(MachineStateTest, CountersOfIdsThatEndOrBeginAtZeroAreRefused) {
  state::MachineState good;
  ASSERT_TRUE(good.ParseFromString(MachineState::Encode(*machine_)));
  for (const uint64_t next : {uint64_t{0}, ~uint64_t{0}}) {
    for (const auto set :
         {&state::MachineState::set_next_job, &state::MachineState::set_next_segment,
          &state::MachineState::set_next_grow}) {
      state::MachineState state = good;
      (state.*set)(next);
      EXPECT_TRUE(absl::IsDataLoss(Decode(state.SerializeAsString()).status())) << next;
    }
  }
}

class HostileStateTest : public MachineStateTest {
 protected:
  void SetUp() override {
    MachineStateTest::SetUp();
    Fill();
    ASSERT_TRUE(state_.ParseFromString(MachineState::Encode(*machine_)));
  }

  // Decoding must not abort. A decoded state must be sound, and must survive the death of all
  // ranks.
  void Try() {
    auto decoded = Decode(state_.SerializeAsString());
    if (!decoded.ok()) {
      ++n_refused_;
      return;
    }
    ++n_accepted_;
    JobMachine& machine = **decoded;
    const Time now{clock_.Now() + absl::Hours(2), clock_.Wall()};
    machine.Apply(Tick{}, now);
    ASSERT_TRUE(machine.CheckInvariants().ok()) << machine.CheckInvariants();
    for (const SessionSnapshot& session : machine.Sessions()) {
      machine.Apply(ProcessGone{session.id}, now);
    }
    ASSERT_TRUE(machine.CheckInvariants().ok()) << machine.CheckInvariants();
  }

  // Tries every scalar of the message, one after the other, with values that it should not have,
  // and every repeated field with an element more and one less.
  void Spoil(Message* message) {
    const Reflection& reflection = *message->GetReflection();
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->field(i);
      if (field->is_repeated()) {
        SpoilRepeated(message, reflection, field);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        if (!reflection.HasField(*message, field)) continue;
        Spoil(reflection.MutableMessage(message, field));
        std::unique_ptr<Message> kept(reflection.GetMessage(*message, field).New());
        kept->CopyFrom(reflection.GetMessage(*message, field));
        reflection.ClearField(message, field);
        Try();
        reflection.MutableMessage(message, field)->CopyFrom(*kept);
      } else {
        SpoilScalar(message, reflection, field);
      }
    }
  }

  void SpoilScalar(Message* message, const Reflection& r, const FieldDescriptor* field) {
    const std::unique_ptr<Message> kept(message->New());
    kept->CopyFrom(*message);
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{4096},
                                 uint64_t{1} << 31, ~uint64_t{0} >> 1, ~uint64_t{0}}) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_UINT32:
          r.SetUInt32(message, field, static_cast<uint32_t>(value));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          r.SetUInt64(message, field, value);
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          r.SetInt64(message, field, static_cast<int64_t>(value));
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          r.SetBool(message, field, value != 0);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          r.SetString(message, field, std::string(value % 200, '\xff'));
          break;
        default:
          FAIL() << "a field of a new type: " << field->full_name();
      }
      Try();
    }
    message->CopyFrom(*kept);
  }

  void SpoilRepeated(Message* message, const Reflection& r, const FieldDescriptor* field) {
    const int n = r.FieldSize(*message, field);
    const std::unique_ptr<Message> kept(message->New());
    kept->CopyFrom(*message);
    if (n > 0) {
      r.RemoveLast(message, field);
      Try();
      message->CopyFrom(*kept);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{77}, ~uint64_t{0}}) {
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
          r.AddUInt32(message, field, static_cast<uint32_t>(value));
        } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
          r.AddUInt64(message, field, value);
        } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
          r.AddBool(message, field, value != 0);
        } else {
          FAIL() << "a field of a new type: " << field->full_name();
        }
        Try();
        message->CopyFrom(*kept);
      }
      return;
    }
    if (n > 0) {
      r.AddMessage(message, field)->CopyFrom(r.GetRepeatedMessage(*kept, field, 0));
      Try();
      message->CopyFrom(*kept);
    }
    r.AddMessage(message, field);
    Try();
    message->CopyFrom(*kept);
    for (int i = 0; i < n; ++i) Spoil(r.MutableRepeatedMessage(message, field, i));
  }

  state::MachineState state_;
  int n_refused_ = 0;
  int n_accepted_ = 0;
};

TEST_F(HostileStateTest, EveryFieldWithEveryOddValueIsBorne) {
  Spoil(&state_);
  EXPECT_GT(n_refused_, 1000);
  EXPECT_GT(n_accepted_, 100);  // texts, times and the like
  std::printf("%d states refused, %d accepted\n", n_refused_, n_accepted_);
}

TEST_F(HostileStateTest, OddJobsOfSeveralNodesAreBorne) {
  machine_ = std::make_unique<JobMachine>(Limits(), Ledger(Devices()), Unusable());
  JobOfTwoNodes(/*taken=*/0);
  ASSERT_TRUE(state_.ParseFromString(MachineState::Encode(*machine_)));
  state::Job* const job = state_.mutable_jobs(0);
  ASSERT_EQ(job->outbox_size(), 2);
  Spoil(job->mutable_nodes());
  Spoil(job->mutable_outbox(1));
  EXPECT_GT(n_refused_, 20);
  const state::MachineState good = state_;
  job->mutable_nodes()->set_sent(1);
  EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status()));
  state_ = good;
  state_.mutable_jobs(0)->mutable_outbox(0)->set_message("nonsense");
  EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status()));
}

TEST_F(HostileStateTest, SegmentsWithoutBytesOrBeyondAnyWindowAreRefused) {
  const state::MachineState good = state_;
  int n_dropping = 0;
  for (int i = 0; i < good.segments_size(); ++i) {
    n_dropping += good.segments(i).dropping();
    for (const uint64_t bytes : {uint64_t{0}, ~uint64_t{0}}) {
      state_ = good;
      state_.mutable_segments(i)->set_bytes(bytes);
      EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status())) << i;
    }
    state_ = good;
    state_.mutable_segments(i)->set_offset_bytes(~uint64_t{0});
    EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status())) << i;
  }
  EXPECT_GT(n_dropping, 0);
}

TEST_F(HostileStateTest, AnotherProcessThatSpeaksForARankIsRefused) {
  const state::MachineState good = state_;
  int n_speak = 0;
  for (int i = 0; i < good.sessions_size(); ++i) {
    if (!good.sessions(i).has_lease()) continue;
    ++n_speak;
    for (const auto change :
         {+[](state::Process* caller) { caller->set_pid(9); },
          +[](state::Process* caller) { caller->set_start(9); },
          +[](state::Process* caller) { caller->mutable_party()->set_container(9); }}) {
      state_ = good;
      change(state_.mutable_sessions(i)->mutable_caller());
      EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status())) << i;
    }
  }
  EXPECT_GT(n_speak, 0);
}

TEST_F(HostileStateTest, RegisteredMemoryBeyondAnyWindowIsRefused) {
  int n_registered = 0;
  for (state::Job& job : *state_.mutable_jobs()) {
    for (state::Allocation& allocation : *job.mutable_allocations()) {
      if (allocation.pieces_size() == 0) continue;
      ++n_registered;
      const state::Allocation kept = allocation;
      allocation.set_bytes(uint64_t{0} - allocation.offset_bytes());  // its end comes round to zero
      EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status()));
      allocation = kept;
    }
  }
  EXPECT_GT(n_registered, 0);
}

TEST_F(HostileStateTest, HeapMemoryAtTheOffsetOfRegisteredMemoryIsRefused) {
  int n_tried = 0;
  for (state::Job& job : *state_.mutable_jobs()) {
    auto* const all = job.mutable_allocations();
    const auto registered = std::find_if(
        all->begin(), all->end(), [](const state::Allocation& a) { return a.pieces_size() > 0; });
    if (registered == all->end()) continue;
    all->SwapElements(0, static_cast<int>(registered - all->begin()));
    for (int i = 1; i < all->size(); ++i) {
      if (all->Get(i).pieces_size() > 0) continue;
      ++n_tried;
      all->Mutable(0)->set_offset_bytes(all->Get(i).offset_bytes());
      EXPECT_TRUE(absl::IsDataLoss(Decode(state_.SerializeAsString()).status())) << i;
    }
  }
  EXPECT_GT(n_tried, 0);
}

TEST_F(HostileStateTest, ChangedAndCutBytesAreBorne) {
  const std::string good = state_.SerializeAsString();
  std::minstd_rand random(20261121);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    if (!state_.ParseFromString(bytes)) continue;
    Try();
  }
}

}  // namespace
}  // namespace iris::server
