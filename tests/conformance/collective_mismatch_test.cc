// Members that call differently: all of them are told, at once, and in the same words.
#include <cstdint>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/call_record.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::CallRecord;
using ccl::Comm;
using ccl::Config;
using ccl::ErrorInfo;
using ccl::Mismatch;
using ccl::Operation;
using ccl::ReduceOp;
using ccl::Variant;

constexpr uint64_t kSecondNs = 1000ull * 1000 * 1000;
// A mismatch is known within a fraction of a second; this allows for a machine that is busy.
constexpr uint64_t kSoonNs = 30 * kSecondNs;
static_assert(kSoonNs < kTestTimeoutNs / 2);

// A call that a test makes.
struct Call {
  Operation operation = Operation::kAllReduce;
  uint64_t bytes = 4096;  // of the larger of in and out
  DType type = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = 0;
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;   // instead of what the rules say
  uint32_t threads = 0;  // likewise
};

uint64_t CountOf(const Call& call, uint32_t n) {
  const uint64_t all = call.bytes / DTypeBytes(call.type);
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kBroadcast:
    case Operation::kSendRecv:
      return all;
    default:
      return all / n;
  }
}

Result Make(Rank& rank, Comm comm, const Call& call, uint8_t* in, uint8_t* out) {
  comm.config.blocks = call.blocks;
  comm.config.block_threads = call.threads;
  const uint32_t n = comm.team.size;
  const uint64_t count = CountOf(call, n);
  backend::Stream& stream = rank.stream;
  switch (call.operation) {
    case Operation::kAllReduce:
      return ccl::AllReduce(comm, in, out, count, call.type, call.op, stream, call.variant);
    case Operation::kReduceScatter:
      return ccl::ReduceScatter(comm, in, out, count, call.type, call.op, stream, call.variant);
    case Operation::kReduce:
      return ccl::Reduce(comm, in, out, count, call.type, call.op, call.root, stream, call.variant);
    case Operation::kAllGather:
      return ccl::AllGather(comm, in, out, count, call.type, stream, call.variant);
    case Operation::kGather:
      return ccl::Gather(comm, in, out, count, call.type, call.root, stream, call.variant);
    case Operation::kScatter:
      return ccl::Scatter(comm, in, out, count, call.type, call.root, stream, call.variant);
    case Operation::kAllToAll:
      return ccl::AllToAll(comm, in, out, count, call.type, stream, call.variant);
    case Operation::kBroadcast:
      return ccl::Broadcast(comm, in, out, count, call.type, call.root, stream, call.variant);
    case Operation::kSendRecv:
      // To the next member; nobody expects it.
      return ccl::Send(comm, in, count, call.type, (comm.team.index + 1) % n, stream);
    case Operation::kAllToAllV: {
      std::vector<uint64_t> counts(n, count);
      std::vector<uint64_t> offsets(n);
      for (uint32_t m = 0; m < n; ++m) offsets[m] = m * count;
      return ccl::AllToAllV(comm, in, {counts.data(), offsets.data()}, out,
                            {counts.data(), offsets.data()}, call.type, stream);
    }
    default:
      return ccl::Barrier(comm, stream);
  }
}

std::string Text(const CallRecord& call) {
  return std::string(ccl::OperationName(call.operation)) + "(" + std::to_string(call.count) + ", " +
         DTypeName(call.type) + ", " + ccl::ReduceOpName(call.op) + ", root " +
         std::to_string(static_cast<int32_t>(call.root)) + ", to " +
         std::to_string(static_cast<int32_t>(call.to)) + ", " + ccl::VariantName(call.variant) +
         ", " + std::to_string(call.blocks) + " blocks)";
}
// Everything that the members must agree about.
std::string Text(const ErrorInfo& info) {
  const Mismatch& m = info.mismatch;
  std::ostringstream text;
  text << "#" << info.sequence << " member " << static_cast<int32_t>(info.member_index) << "; "
       << m.most << " " << Text(ccl::Unpack(m.most_call)) << "; " << m.other << " "
       << Text(ccl::Unpack(m.other_call)) << "; rest " << m.rest << "; absent " << m.absent;
  if (m.rows_differ) {
    text << "; rows " << m.sender << " " << m.receiver << " " << m.sent_bytes << " "
         << m.expected_bytes;
  }
  return text.str();
}

// What a member must be said to have called.
void ExpectCall(const CallRecord& record, const Call& call, uint32_t member, uint32_t n) {
  EXPECT_EQ(record.operation, call.operation);
  const bool counts =
      call.operation != Operation::kBarrier && call.operation != Operation::kAllToAllV;
  if (counts) {
    EXPECT_EQ(record.count, CountOf(call, n));
    EXPECT_EQ(record.type, call.type);
  }
  if (call.operation == Operation::kAllReduce || call.operation == Operation::kReduce ||
      call.operation == Operation::kReduceScatter) {
    EXPECT_EQ(record.op, call.op);
  }
  if (call.operation == Operation::kSendRecv) {
    EXPECT_EQ(record.root, member);
    EXPECT_EQ(record.to, (member + 1) % n);
  } else if (call.operation == Operation::kBroadcast || call.operation == Operation::kReduce ||
             call.operation == Operation::kGather || call.operation == Operation::kScatter) {
    EXPECT_EQ(record.root, call.root);
  }
  if (call.blocks != 0) {
    EXPECT_EQ(record.blocks, call.blocks);
  }
}

struct Buffers {
  uint8_t* in;
  uint8_t* out;
};

// One world for many mismatches, since making one takes longer.
class Mismatches {
 public:
  explicit Mismatches(uint32_t n, uint64_t bytes = 1 << 20, const Config& config = {})
      : n_(n),
        world_(n, 2 * bytes + (8 << 20) + ccl::WorkspaceBytes(n, config)),
        comms_(n),
        buffers_(n),
        infos_(n) {
    world_.Run([&](Rank& rank) {
      comms_[rank.rank()] = rank.NewComm(rank.ctx.world, config);
      buffers_[rank.rank()] = {rank.New<uint8_t>(bytes + 4096), rank.New<uint8_t>(bytes + 4096)};
    });
  }

  // All call `most`, but `odd`, which calls `other`.
  void Expect(const Call& most, const Call& other, uint32_t odd, const std::string& what) {
    SCOPED_TRACE(what + ", " + std::to_string(n_) + " members, " + std::to_string(odd) +
                 " differs");
    std::vector<uint64_t> took(n_);
    std::vector<Result> results(n_);
    world_.Run([&](Rank& rank) {
      const uint32_t me = rank.rank();
      const Comm& comm = comms_[me];
      // A good operation before, so that it is not the first that fails.
      Result good = ccl::Barrier(comm, rank.stream);
      if (good.ok()) good = rank.stream.Synchronize();
      EXPECT_TRUE(good.ok()) << good.what;
      rank.HostBarrier();
      const uint64_t start = backend::ClockNanoseconds();
      const Result made =
          Make(rank, comm, me == odd ? other : most, buffers_[me].in, buffers_[me].out);
      EXPECT_TRUE(made.ok()) << made.what;
      rank.Synchronize();
      took[me] = backend::ClockNanoseconds() - start;
      infos_[me] = {};
      results[me] = ccl::CheckError(comm, &infos_[me]);
      rank.HostBarrier();
      Result reset = ccl::PrepareWorkspace(comm, rank.stream);
      if (reset.ok()) reset = rank.stream.Synchronize();
      EXPECT_TRUE(reset.ok()) << reset.what;
      ccl::ResetError(comm);
    });
    const uint64_t all = (uint64_t{1} << n_) - 1;
    // Of two members, the first counts as most.
    const bool swapped = n_ == 2 && odd == 0;
    const uint32_t differs = swapped ? 1 : odd;
    for (uint32_t m = 0; m < n_; ++m) {
      EXPECT_EQ(results[m].code, StatusCode::kInvalidArgument) << m << ": " << results[m].what;
      EXPECT_LT(took[m], kSoonNs) << m;
      EXPECT_EQ(Text(infos_[m]), Text(infos_[0])) << m;
      EXPECT_EQ(infos_[m].sequence, 1u);
    }
    const Mismatch& mismatch = infos_[0].mismatch;
    EXPECT_EQ(infos_[0].member_index, differs);
    EXPECT_EQ(mismatch.other, uint64_t{1} << differs);
    EXPECT_EQ(mismatch.rest, 0u);
    EXPECT_EQ(mismatch.absent, 0u);
    EXPECT_EQ(mismatch.most, all & ~(uint64_t{1} << differs));
    ExpectCall(ccl::Unpack(mismatch.most_call), swapped ? other : most, swapped ? 0 : odd, n_);
    ExpectCall(ccl::Unpack(mismatch.other_call), swapped ? most : other, differs, n_);
  }

  const Comm& comm(uint32_t m) const { return comms_[m]; }
  uint32_t n() const { return n_; }

 private:
  const uint32_t n_;
  World world_;
  std::vector<Comm> comms_;
  std::vector<Buffers> buffers_;
  std::vector<ErrorInfo> infos_;
};

constexpr Operation kTeamOperations[] = {
    Operation::kAllReduce, Operation::kReduceScatter, Operation::kReduce,   Operation::kAllGather,
    Operation::kGather,    Operation::kScatter,       Operation::kAllToAll, Operation::kBroadcast,
    Operation::kAllToAllV, Operation::kBarrier};

class MismatchTest : public testing::TestWithParam<uint32_t> {};
#if defined(IRIS_TSAN)
INSTANTIATE_TEST_SUITE_P(Ranks, MismatchTest, testing::Values(3));
#else
INSTANTIATE_TEST_SUITE_P(Ranks, MismatchTest, testing::Values(2, 3, 4, 5));
#endif

TEST_P(MismatchTest, EveryOperationAgainstEveryOther) {
  Mismatches mismatches(GetParam());
  uint32_t k = 0;
  for (uint64_t bytes : {4 << 10, 32 << 10, 1 << 20}) {
    for (Operation most : kTeamOperations) {
      for (Operation other : kTeamOperations) {
        if (most == other || ++k % kSlower != 0) continue;
        mismatches.Expect({.operation = most, .bytes = bytes}, {.operation = other, .bytes = bytes},
                          k % mismatches.n(),
                          std::string(ccl::OperationName(most)) + " against " +
                              ccl::OperationName(other) + " of " + std::to_string(bytes));
      }
    }
  }
}

TEST_P(MismatchTest, EveryArgument) {
  Mismatches mismatches(GetParam());
  uint32_t k = 0;
  for (uint64_t bytes : {4 << 10, 32 << 10, 1 << 20}) {
    for (Operation operation : kTeamOperations) {
      if (operation == Operation::kBarrier || operation == Operation::kAllToAllV) continue;
      const Call call = {.operation = operation, .bytes = bytes};
      Call type = call;
      type.type = DType::kI32;
      Call count = call;
      count.bytes += 512;
      std::vector<std::pair<const char*, Call>> others = {{"type", type}, {"count", count}};
      if (operation == Operation::kAllReduce || operation == Operation::kReduce ||
          operation == Operation::kReduceScatter) {
        Call op = call;
        op.op = ReduceOp::kMax;
        Call both = op;
        both.type = DType::kI32;
        others.push_back({"op", op});
        others.push_back({"type and op", both});
      }
      if (operation == Operation::kReduce || operation == Operation::kBroadcast ||
          operation == Operation::kGather || operation == Operation::kScatter) {
        Call root = call;
        root.root = 1;
        others.push_back({"root", root});
      }
      for (const auto& [what, other] : others) {
        if (++k % kSlower != 0) continue;
        mismatches.Expect(call, other, k % mismatches.n(),
                          std::string(ccl::OperationName(operation)) + " of " +
                              std::to_string(bytes) + ": " + what);
      }
    }
  }
}

TEST_P(MismatchTest, EveryVariantAgainstEveryOther) {
  Mismatches mismatches(GetParam());
  uint32_t k = 0;
  for (uint64_t bytes : {4 << 10, 256 << 10}) {
    for (uint32_t v = 1; v < ccl::kVariantCount; ++v) {
      for (uint32_t w = 1; w < ccl::kVariantCount; ++w) {
        if (!ccl::IsVariant(v) || !ccl::IsVariant(w)) continue;
        const Call most = {.bytes = bytes, .variant = static_cast<Variant>(v)};
        const Call other = {.bytes = bytes, .variant = static_cast<Variant>(w)};
        const auto chosen = [&](const Call& call) {
          return ccl::Choose(mismatches.comm(0), {call.operation, CountOf(call, mismatches.n()),
                                                  call.type, call.op, call.variant});
        };
        // Different names may come to the same. Who is in the minority changes with the size, so
        // that each pair is there in both ways.
        const bool same = chosen(most).variant == chosen(other).variant;
        if (same || (v < w) != (bytes == 4 << 10) || ++k % kSlower != 0) continue;
        mismatches.Expect(most, other, k % mismatches.n(),
                          std::string(ccl::VariantName(most.variant)) + " against " +
                              ccl::VariantName(other.variant) + " of " + std::to_string(bytes));
      }
    }
  }
}

TEST_P(MismatchTest, OtherGridsAndThreads) {
  Mismatches mismatches(GetParam());
  for (Variant variant : {Variant::kPackets, Variant::kTwoShot}) {
    for (uint32_t threads : {0u, 32u, 61u, 256u}) {
      const Call most = {.bytes = 32 << 10, .variant = variant, .blocks = 4};
      const Call other = {.bytes = 32 << 10, .variant = variant, .blocks = 1, .threads = threads};
      mismatches.Expect(most, other, 1, "blocks 4 against 1");
      mismatches.Expect(other, most, 1, "blocks 1 against 4");
      const Call gather = {
          .operation = Operation::kAllGather, .bytes = 32 << 10, .threads = threads};
      mismatches.Expect(most, gather, 0, "other threads");
    }
  }
}

TEST_P(MismatchTest, ASendThatNobodyExpects) {
  Mismatches mismatches(GetParam());
  for (uint64_t bytes : {4 << 10, 32 << 10, 1 << 20}) {
    for (Operation most : kTeamOperations) {
      mismatches.Expect({.operation = most, .bytes = bytes},
                        {.operation = Operation::kSendRecv, .bytes = bytes}, GetParam() - 1,
                        std::string(ccl::OperationName(most)) + " against a send");
    }
  }
}

TEST_P(MismatchTest, WithCheckCallsAsWell) {
  Config config;
  config.check_calls = true;
  Mismatches mismatches(GetParam(), 1 << 20, config);
  for (uint64_t bytes : {4 << 10, 32 << 10}) {
    const Call sum = {.bytes = bytes};
    mismatches.Expect(sum, {.bytes = bytes, .type = DType::kI32, .op = ReduceOp::kMax}, 1,
                      "type and op");
    mismatches.Expect(sum, {.operation = Operation::kAllGather, .bytes = bytes}, 1, "operation");
    mismatches.Expect(sum, {.operation = Operation::kBarrier}, 1, "barrier");
  }
}

// Two members that send each other something, and one that has nothing to do with it.
TEST(MismatchPairTest, TwoSendsFailAndLeaveTheOthersAlone) {
  std::vector<ErrorInfo> infos(3);
  World(3, (1 << 20) + ccl::WorkspaceBytes(3)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    float* x = rank.New<float>(100);
    rank.HostBarrier();
    if (rank.rank() == 0) {
      EXPECT_TRUE(ccl::CheckError(comm).ok());
      return;
    }
    const Result made = ccl::Send(comm, x, 100, DType::kF32, rank.rank() == 1 ? 2 : 1, rank.stream);
    EXPECT_TRUE(made.ok()) << made.what;
    const uint64_t start = backend::ClockNanoseconds();
    rank.Synchronize();
    EXPECT_LT(backend::ClockNanoseconds() - start, kSoonNs);
    EXPECT_EQ(ccl::CheckError(comm, &infos[rank.rank()]).code, StatusCode::kInvalidArgument);
  });
  EXPECT_EQ(Text(infos[1]), Text(infos[2]));
  EXPECT_EQ(infos[1].mismatch.most, 2u);
  EXPECT_EQ(infos[1].mismatch.other, 4u);
  EXPECT_EQ(infos[1].mismatch.absent, 0u);
  EXPECT_EQ(ccl::Unpack(infos[1].mismatch.most_call).root, 1u);
  EXPECT_EQ(ccl::Unpack(infos[1].mismatch.other_call).root, 2u);
}

// Sends and receives that belong together, between operations of the team: nothing to complain
// about, however long one of them waits.
TEST(MismatchPairTest, PairsBetweenOperationsOfTheTeamAreNone) {
  World(3, (1 << 20) + ccl::WorkspaceBytes(3)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    float* x = rank.New<float>(100);
    rank.HostBarrier();
    for (uint32_t round = 0; round < 30; ++round) {
      const uint32_t from = round % 3;
      const uint32_t to = (from + 1) % 3;
      // Who is late differs, too: longer than it takes to become suspicious.
      if (rank.rank() == round / 3 % 3) {
        const uint64_t start = backend::ClockNanoseconds();
        while (backend::ClockNanoseconds() - start < 2 * 1000 * 1000) {
        }
      }
      Result result;
      if (rank.rank() == from) result = ccl::Send(comm, x, 100, DType::kF32, to, rank.stream);
      if (rank.rank() == to) result = ccl::Recv(comm, x, 100, DType::kF32, from, rank.stream);
      if (result.ok()) {
        result = ccl::AllReduce(comm, x, x, 100, DType::kF32, ReduceOp::kMax, rank.stream);
      }
      EXPECT_TRUE(result.ok()) << result.what;
      if (round % 2 == 0) rank.Synchronize();
    }
    rank.Synchronize();
    ErrorInfo info;
    const Result checked = ccl::CheckError(comm, &info);
    EXPECT_TRUE(checked.ok()) << checked.what << " " << Text(info);
  });
}

// Rows of all_to_all_v are compared pair by pair.
TEST(MismatchRowsTest, ARowThatIsNotExpected) {
  std::vector<ErrorInfo> infos(3);
  World(3, (1 << 20) + ccl::WorkspaceBytes(3)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    float* in = rank.New<float>(300);
    float* out = rank.New<float>(300);
    rank.HostBarrier();
    std::vector<uint64_t> to(3, 100);
    std::vector<uint64_t> from(3, 100);
    const std::vector<uint64_t> offsets = {0, 100, 200};
    if (rank.rank() == 1) to[2] = 99;
    const Result made = ccl::AllToAllV(comm, in, {to.data(), offsets.data()}, out,
                                       {from.data(), offsets.data()}, DType::kF32, rank.stream);
    EXPECT_TRUE(made.ok()) << made.what;
    rank.Synchronize();
    EXPECT_EQ(ccl::CheckError(comm, &infos[rank.rank()]).code, StatusCode::kInvalidArgument);
  });
  for (const ErrorInfo& info : infos) EXPECT_EQ(Text(info), Text(infos[0]));
  const Mismatch& mismatch = infos[0].mismatch;
  EXPECT_TRUE(mismatch.rows_differ);
  EXPECT_EQ(mismatch.sender, 1u);
  EXPECT_EQ(mismatch.receiver, 2u);
  EXPECT_EQ(mismatch.sent_bytes, 396u);
  EXPECT_EQ(mismatch.expected_bytes, 400u);
}

// A member that comes when the others have found out is told the same.
TEST(MismatchLateTest, WhoComesLaterIsToldTheSame) {
  std::vector<ErrorInfo> infos(4);
  World(4, (1 << 20) + ccl::WorkspaceBytes(4)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    float* x = rank.New<float>(1000);
    rank.HostBarrier();
    const bool late = rank.rank() == 3;
    const ReduceOp op = rank.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum;
    if (late) rank.HostBarrier();  // the others have failed
    const Result made = ccl::AllReduce(comm, x, x, 1000, DType::kF32, op, rank.stream);
    EXPECT_TRUE(made.ok()) << made.what;
    rank.Synchronize();
    EXPECT_EQ(ccl::CheckError(comm, &infos[rank.rank()]).code, StatusCode::kInvalidArgument);
    if (!late) rank.HostBarrier();
  });
  for (const ErrorInfo& info : infos) EXPECT_EQ(Text(info), Text(infos[0]));
  EXPECT_EQ(infos[0].mismatch.most, 5u);
  EXPECT_EQ(infos[0].mismatch.other, 2u);
  EXPECT_EQ(infos[0].mismatch.absent, 8u);
}

// Config::check_calls, which the environment of one process may say alone.
TEST(MismatchCheckTest, ChecksThatOneMemberMakesAloneAreTold) {
  const Variant variants[] = {Variant::kPackets, Variant::kLines, Variant::kDirect};
  World world(3, (1 << 20) + std::size(variants) * ccl::WorkspaceBytes(3), 4 * kSecondNs);
  for (const Variant variant : variants) {
    world.Run([&](Rank& rank) {
      Config config;
      config.check_calls = rank.rank() == 2;
      const Comm comm = rank.NewComm(rank.ctx.world, config);
      float* x = rank.New<float>(30);
      float* all = rank.New<float>(90);
      rank.HostBarrier();
      const Result made = ccl::AllGather(comm, x, all, 30, DType::kF32, rank.stream, variant);
      EXPECT_TRUE(made.ok()) << made.what;
      rank.Synchronize();
      ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(comm, &info).code, StatusCode::kInvalidArgument)
          << ccl::VariantName(variant) << " at " << rank.rank();
      EXPECT_EQ(info.mismatch.most, 3u);
      EXPECT_EQ(info.mismatch.other, 4u);
      EXPECT_EQ(ccl::Unpack(info.mismatch.most_call).count, 30u);
      EXPECT_EQ(ccl::Unpack(info.mismatch.other_call).count, 30u);
      EXPECT_EQ(ccl::Unpack(info.mismatch.most_call).blocks,
                ccl::Unpack(info.mismatch.other_call).blocks);
      EXPECT_FALSE(ccl::Unpack(info.mismatch.most_call).check_calls);
      EXPECT_TRUE(ccl::Unpack(info.mismatch.other_call).check_calls);
      rank.HostBarrier();
    });
  }
}

// Of two calls that as many made, the one of the first member counts as that of most; who made a
// third one is named, too.
TEST(MismatchManyTest, TiesAndThirdCalls) {
  std::vector<ErrorInfo> infos(5);
  World(5, (1 << 20) + ccl::WorkspaceBytes(5)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    float* x = rank.New<float>(1000);
    rank.HostBarrier();
    const ReduceOp ops[] = {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum, ReduceOp::kMax,
                            ReduceOp::kMin};
    const Result made =
        ccl::AllReduce(comm, x, x, 1000, DType::kF32, ops[rank.rank()], rank.stream);
    EXPECT_TRUE(made.ok()) << made.what;
    rank.Synchronize();
    EXPECT_EQ(ccl::CheckError(comm, &infos[rank.rank()]).code, StatusCode::kInvalidArgument);
  });
  for (const ErrorInfo& info : infos) EXPECT_EQ(Text(info), Text(infos[0]));
  EXPECT_EQ(infos[0].mismatch.most, 0b10001u);
  EXPECT_EQ(infos[0].mismatch.other, 0b01010u);
  EXPECT_EQ(infos[0].mismatch.rest, 0b00100u);
  EXPECT_EQ(ccl::Unpack(infos[0].mismatch.most_call).op, ReduceOp::kMin);
  EXPECT_EQ(ccl::Unpack(infos[0].mismatch.other_call).op, ReduceOp::kMax);
}

}  // namespace
}  // namespace iris::conformance
