// Structs between a program and a library of different versions: what has grown, and what has not.
#include "client/abi/objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "client/abi/loans.h"

namespace iris::abi {
namespace {

using ::testing::HasSubstr;

// As the first version had it, as this library has it, and as a later one may.
struct First {
  size_t size;
  uint64_t first;
};
struct Ours {
  size_t size;
  uint64_t first;
  uint64_t second;
};
struct Later {
  size_t size;
  uint64_t first;
  uint64_t second;
  uint64_t third;
};

template <typename T>
absl::Status Read(const T& given, Ours* out) {
  IRIS_ASSIGN_OR_RETURN(*out,
                        ReadStruct(reinterpret_cast<const Ours*>(&given), sizeof(First), "ours"));
  return absl::OkStatus();
}

TEST(StructTest, AnOlderHeaderLeavesOutWhatItDoesNotKnow) {
  struct {
    First known = {sizeof(First), 1};
    uint64_t foreign = 99;  // behind the caller's struct: not read
  } given;
  Ours read = {7, 7, 7};
  ASSERT_TRUE(Read(given.known, &read).ok());
  EXPECT_EQ(read.first, 1u);
  EXPECT_EQ(read.second, 0u);
}

TEST(StructTest, NoHeaderKnowsLessThanTheFirst) {
  const Ours given = {sizeof(First) - 1, 1, 2};
  Ours read = {};
  const absl::Status status = Read(given, &read);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("ours: its size is 15, and at least 16 is expected"));
}

TEST(StructTest, ANewerHeaderMayKnowMoreAndNotUseIt) {
  Later given = {sizeof(Later), 1, 2, 0};
  Ours read = {};
  ASSERT_TRUE(Read(given, &read).ok());
  EXPECT_EQ(read.second, 2u);
  given.third = 3;
  EXPECT_THAT(Read(given, &read).message(), HasSubstr("a field at byte 24"));
}

TEST(StructTest, AnAnswerIsAsLongAsTheCallersStruct) {
  struct {
    First known = {sizeof(First), 0};
    uint64_t foreign = 99;
  } older;
  ASSERT_TRUE(WriteStruct(Ours{0, 1, 2}, "ours", reinterpret_cast<Ours*>(&older.known)).ok());
  EXPECT_EQ(older.known.size, sizeof(First));
  EXPECT_EQ(older.known.first, 1u);
  EXPECT_EQ(older.foreign, 99u);
  Later newer = {sizeof(Later), 7, 7, 7};
  ASSERT_TRUE(WriteStruct(Ours{0, 1, 2}, "ours", reinterpret_cast<Ours*>(&newer)).ok());
  EXPECT_EQ(newer.second, 2u);
  EXPECT_EQ(newer.third, 0u);
}

// The library must not require more than the first version had: see tests/bundle/previous.
TEST(StructTest, StructsDoNotShrink) {
  EXPECT_GE(sizeof(iris_context_options), kContextOptionsBytes);
  EXPECT_GE(sizeof(iris_allocate_options), kAllocateOptionsBytes);
  EXPECT_GE(sizeof(iris_allocation), kAllocationBytes);
  EXPECT_GE(sizeof(iris_signal), kSignalBytes);
  EXPECT_GE(sizeof(iris_rows), kRowsBytes);
  EXPECT_GE(sizeof(iris_comm_options), kCommOptionsBytes);
  EXPECT_GE(sizeof(iris_matmul), kMatmulBytes);
  EXPECT_EQ(sizeof(iris_moe_config), kMoeConfigBytes);
  EXPECT_EQ(sizeof(iris_moe_dispatch_call), kMoeDispatchCallBytes);
  EXPECT_EQ(sizeof(iris_moe_combine_call), kMoeCombineCallBytes);
  EXPECT_GE(sizeof(iris_norm), kNormBytes);
  EXPECT_GE(sizeof(iris_opened), kOpenedBytes);
}

TEST(LoansTest, WhatIsLentIsNotFreedAndWhatIsFreedIsNotLent) {
  Loans loans;
  uint64_t n_lent = 7;
  ASSERT_TRUE(loans.Lend());
  ASSERT_TRUE(loans.Lend());
  EXPECT_FALSE(loans.Free(&n_lent));
  EXPECT_EQ(n_lent, 2u);
  EXPECT_FALSE(loans.freed());
  loans.Return();
  loans.Return();
  EXPECT_TRUE(loans.Free(&n_lent));
  EXPECT_TRUE(loans.freed());
  EXPECT_FALSE(loans.Lend());
  EXPECT_FALSE(loans.Free(&n_lent));
  EXPECT_EQ(n_lent, 0u);
  loans.TakeBack();
  EXPECT_FALSE(loans.freed());
  EXPECT_TRUE(loans.Lend());
}

// A loan and a free on two threads never both succeed: one is refused, in whatever order.
TEST(LoansTest, ALoanAndAFreeAtTheSameTime) {
  constexpr int kRounds = 200;
  std::vector<Loans> loans(kRounds);
  std::atomic<int> ready{0};
  std::vector<char> lent(kRounds), freed(kRounds);
  const auto meet = [&ready](int round) {
    ready.fetch_add(1);
    while (ready.load() < 2 * (round + 1)) std::this_thread::yield();
  };
  std::thread lender([&] {
    for (int k = 0; k < kRounds; ++k) {
      meet(k);
      lent[k] = loans[k].Lend() ? 1 : 0;
    }
  });
  for (int k = 0; k < kRounds; ++k) {
    meet(k);
    uint64_t n_lent = 0;
    freed[k] = loans[k].Free(&n_lent) ? 1 : 0;
  }
  lender.join();
  for (int k = 0; k < kRounds; ++k) EXPECT_EQ(lent[k] + freed[k], 1) << k;
}

TEST(TellTest, TheTextOfAnErrorCannotSteerATerminal) {
  EXPECT_EQ(Tell(absl::UnavailableError("irisd: \x1b[2J\ngone")), IRIS_UNAVAILABLE);
  EXPECT_STREQ(iris_error_message(), "irisd: \\x1b[2J\\ngone");
}

}  // namespace
}  // namespace iris::abi
