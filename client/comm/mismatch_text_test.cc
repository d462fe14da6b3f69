#include "client/comm/mismatch_text.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/call_record.h"
#include "iris/ops/call_record.h"

namespace iris::internal {
namespace {

using ccl::ErrorInfo;
using ccl::Operation;
using ccl::ReduceOp;
using ccl::Variant;

const std::vector<uint32_t> kRanks = {0, 1, 2, 7};

ErrorInfo Differs() {
  ErrorInfo info;
  info.operation = Operation::kAllGather;
  info.sequence = 5;
  info.mismatch.most = 0b1011;
  info.mismatch.other = 0b0100;
  ccl::CallRecord most = {
      {Operation::kAllReduce, 1024, DType::kI32, ReduceOp::kMax, Variant::kPackets}};
  most.blocks = 2;
  info.mismatch.most_call = ccl::Pack(most);
  ccl::CallRecord other = {
      {Operation::kAllGather, 512, DType::kF32, ReduceOp::kSum, Variant::kDirect}};
  other.blocks = 1;
  info.mismatch.other_call = ccl::Pack(other);
  return info;
}

TEST(MismatchTextTest, NamesBothCallsInFull) {
  EXPECT_EQ(MismatchText(Differs(), kRanks),
            "all_reduce #5: rank 2 called all_gather(count=512, type=f32, variant=direct, "
            "blocks=1), ranks 0, 1 and 7 called all_reduce(count=1024, type=i32, op=max, "
            "variant=packets, blocks=2)");
}

TEST(MismatchTextTest, NamesWhoElseAndWhoWasAbsent) {
  ErrorInfo info = Differs();
  info.mismatch.most = 0b0001;
  info.mismatch.rest = 0b0010;
  info.mismatch.absent = 0b1000;
  info.mismatch.other_call = ccl::Pack({{Operation::kBarrier}});
  EXPECT_EQ(MismatchText(info, kRanks),
            "all_reduce #5: rank 2 called barrier(), rank 0 called all_reduce(count=1024, "
            "type=i32, op=max, variant=packets, blocks=2); rank 1 called something else again; "
            "rank 7 had not come");
}

TEST(MismatchTextTest, ProductsTellTheirShapes) {
  ErrorInfo info = Differs();
  ops::CallRecord most;
  most.operation = Operation::kMatmulAllReduce;
  most.type = DType::kBf16;
  most.out_type = DType::kF32;
  most.m = 64;
  most.n = 4096;
  most.ldd = 4100;
  most.bias = true;
  most.transposed_b = true;
  most.activation = ops::Activation::kGelu;
  most.variant = ops::Variant::kFused;
  most.blocks = 3;
  ops::CallRecord other;
  other.operation = Operation::kAllGatherMatmul;
  other.type = DType::kF16;
  other.m = 7;
  other.k = 9;
  other.variant = ops::Variant::kPair;
  other.blocks = 1;
  info.mismatch.most_call = ops::Pack(most);
  info.mismatch.other_call = ops::Pack(other);
  EXPECT_EQ(MismatchText(info, kRanks),
            "matmul_all_reduce #5: rank 2 called all_gather_matmul(m=7, k=9, type=f16, "
            "variant=pair, blocks=1), ranks 0, 1 and 7 called matmul_all_reduce(m=64, n=4096, "
            "type=bf16 to f32, ldd=4100, bias, transposed B, gelu, variant=fused, blocks=3)");
}

TEST(MismatchTextTest, RootsAndPairsAreWorldRanks) {
  ErrorInfo info = Differs();
  ccl::CallRecord most = ccl::Unpack(info.mismatch.most_call);
  most.operation = Operation::kReduce;
  most.root = 3;
  info.mismatch.most_call = ccl::Pack(most);
  ccl::CallRecord other = ccl::Unpack(info.mismatch.other_call);
  other.operation = Operation::kSendRecv;
  other.root = 2;
  other.to = 3;
  info.mismatch.other_call = ccl::Pack(other);
  EXPECT_EQ(MismatchText(info, kRanks),
            "reduce #5: rank 2 called send(count=512, type=f32, to=7), ranks 0, 1 and 7 called "
            "reduce(count=1024, type=i32, op=max, root=7, variant=packets, blocks=2)");
  info.mismatch.other = 0b1000;
  EXPECT_NE(MismatchText(info, kRanks).find("rank 7 called recv(count=512, type=f32, from=2)"),
            std::string::npos);
}

TEST(MismatchTextTest, WhoComparesCallsAloneIsNamed) {
  ErrorInfo info = Differs();
  info.mismatch.other_call = info.mismatch.most_call;
  ccl::CallRecord checking = ccl::Unpack(info.mismatch.most_call);
  checking.check_calls = true;
  info.mismatch.most_call = ccl::Pack(checking);
  EXPECT_EQ(MismatchText(info, kRanks),
            "all_reduce #5: rank 2 called all_reduce(count=1024, type=i32, op=max, "
            "variant=packets, blocks=2), ranks 0, 1 and 7 called all_reduce(count=1024, type=i32, "
            "op=max, variant=packets, blocks=2); ranks 0, 1 and 7 alone compare calls before "
            "anything moves (check_calls, IRIS_CCL_CHECK): let all ranks do so, or none");
  std::swap(info.mismatch.most_call, info.mismatch.other_call);
  EXPECT_NE(MismatchText(info, kRanks).find("; rank 2 alone compares"), std::string::npos);
}

TEST(MismatchTextTest, RowsThatDiffer) {
  ErrorInfo info;
  info.operation = Operation::kAllToAllV;
  info.mismatch.rows_differ = true;
  info.mismatch.sender = 1;
  info.mismatch.receiver = 3;
  info.mismatch.sent_bytes = 400;
  info.mismatch.expected_bytes = 8;
  EXPECT_EQ(MismatchText(info, kRanks),
            "all_to_all_v #0: rank 1 sends 400 bytes to rank 7, which expects 8 bytes from it");
}

TEST(MismatchTextTest, WithoutAVerdictItSaysSo) {
  ErrorInfo info;
  info.operation = Operation::kBarrier;
  EXPECT_EQ(MismatchText(info, kRanks),
            "barrier #0: the members of the team called differently, and what each called is not "
            "known");
}

}  // namespace
}  // namespace iris::internal
