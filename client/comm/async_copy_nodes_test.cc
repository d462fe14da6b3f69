// Copies on streams to ranks of other nodes, over NodesJob.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/backend/operations.h"
#include "client/comm/async_copy.h"
#include "client/context/testing/nodes_job.h"

namespace iris::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 300'000;

class AsyncCopyNodesTest : public NodesJob {
 protected:
  void Begin(uint32_t n_nodes, uint32_t n_local,
             std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    heap_bytes_ = 16 << 20;
    Start(n_nodes, n_local, timeout);
    ASSERT_TRUE(backend_.CreateStream(&stream_).ok());
  }
  void TearDown() override {
    if (stream_ != nullptr) backend_.DestroyStream(stream_);
    NodesJob::TearDown();
  }
  // Of rank 0.
  absl::Status Copy(CopyKind kind, uint32_t peer, void* dst, const void* src, RowsToCopy rows,
                    SignalOptions signal = {}) {
    return CopyAsync(context(0), backend_, kind, dst, src, rows, peer, *stream_, signal);
  }
  absl::Status Put(uint32_t peer, void* dst, const void* src, uint64_t bytes,
                   SignalOptions signal = {}) {
    return Copy(CopyKind::kPut, peer, dst, src, {1, bytes, bytes, bytes}, signal);
  }
  absl::Status Get(uint32_t peer, void* dst, const void* src, uint64_t bytes,
                   SignalOptions signal = {}) {
    return Copy(CopyKind::kGet, peer, dst, src, {1, bytes, bytes, bytes}, signal);
  }
  void Synchronize() { ASSERT_TRUE(backend_.Synchronize(*stream_).ok()); }

  const backend::BackendOperations& backend_ = *iris_backend_operations();
  backend::Stream* stream_ = nullptr;
};

TEST_F(AsyncCopyNodesTest, ReachAllRanksFromAllMemory) {
  Begin(2, 2);
  std::vector<uint8_t> host(kBytes), back(kBytes);
  uint64_t* const word = At<uint64_t>(0, kData - 64);
  const auto word_of = [&](uint32_t peer) { return *At<uint64_t>(peer, kData - 64); };
  for (uint32_t peer = 0; peer < 4; ++peer) {
    for (uint64_t i = 0; i < kBytes; ++i) host[i] = static_cast<uint8_t>(i * 7 + peer);
    uint8_t* const place = At(0, kData);
    ASSERT_TRUE(Put(peer, place, host.data(), kBytes, {word, 5}).ok());
    ASSERT_TRUE(Get(peer, back.data(), place, kBytes, {word, 2, SignalOp::kAdd}).ok());
    Synchronize();
    EXPECT_EQ(back, host) << peer;
    EXPECT_EQ(word_of(peer), 7u) << peer;
    // The heap of this rank, at the same offset as the destination there, and of its neighbour.
    for (const uint32_t from : {0u, 1u}) {
      if (from == peer) continue;
      std::memset(At(from, kData), static_cast<int>(16 * from + peer), kBytes);
      ASSERT_TRUE(Put(peer, place, At(0, 0) + (At(from, kData) - At(0, 0)), kBytes).ok()) << peer;
      Synchronize();
      EXPECT_EQ(At(peer, kData)[kBytes - 1], 16 * from + peer);
    }
    ASSERT_TRUE(Put(peer, place, nullptr, 0, {word, 1, SignalOp::kAdd}).ok());
    ASSERT_TRUE(Put(peer, place, nullptr, 0).ok());
    Synchronize();
    EXPECT_EQ(word_of(peer), 8u);
    std::memset(At(peer, kData), 0, 64);
    ASSERT_TRUE(Copy(CopyKind::kPut, peer, place, host.data(), {3, 2, 10, 100}).ok());
    Synchronize();
    EXPECT_EQ(At(peer, kData)[11], host[1 + 100]);
    EXPECT_EQ(At(peer, kData)[12], 0);
  }
}

TEST_F(AsyncCopyNodesTest, WrongCallsAreRefused) {
  Begin(2, 1);
  uint8_t local[64] = {};
  const auto text = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(text(Put(2, At(0, kData), local, 8)), HasSubstr("there is no rank 2"));
  EXPECT_THAT(text(Put(1, local, local, 8)), HasSubstr("not in this rank's heap"));
  EXPECT_THAT(text(Put(1, At(0, heap_bytes_ - 4), local, 8)),
              AllOf(HasSubstr("put 8 bytes to rank 1: "), HasSubstr("ends beyond the heap"),
                    HasSubstr("has registered and this rank has open")));
  EXPECT_THAT(text(Get(1, nullptr, At(0, kData), 8)), HasSubstr("the destination is null"));
  EXPECT_THAT(text(Put(1, At(0, kData), local, 8, {At<uint64_t>(0, kData + 12)})),
              HasSubstr("not aligned"));
  EXPECT_THAT(text(Put(1, At(0, kData), local, 8, {At<uint64_t>(0, kData)})),
              HasSubstr("the signal lies in the range"));
  // A backend whose kernels do not reach what malloc returns.
  backend::BackendOperations other = backend_;
  other.KernelsReach = [](const void*) { return false; };
  EXPECT_THAT(text(CopyAsync(context(0), other, CopyKind::kPut, At(0, kData), local, {1, 8, 8, 8},
                             1, *stream_, {})),
              AllOf(HasSubstr("kernels of the device do not reach"), HasSubstr("iris_put()")));
  Synchronize();
  EXPECT_EQ(context(0).port()->n_failures(), 0u);
}

TEST_F(AsyncCopyNodesTest, AFailureIsToldOnceToEachStream) {
  Begin(2, 1, std::chrono::milliseconds(50));
  thread_->Pause();
  ASSERT_TRUE(Put(1, At(0, kData), At(0, kData), 100).ok());
  ASSERT_TRUE(Get(1, At(0, kData), At(0, kData), 100).ok());
  Synchronize();
  thread_->Resume();
  // Otherwise the contexts would wait at their end for requests that nobody takes any more.
  ASSERT_TRUE(context(0).port()->Settle(absl::Now() + absl::Seconds(60)).ok());
  const HostPort& port = *context(0).port();
  std::atomic<uint64_t> told[2] = {0, 1};
  const absl::Status status = port.FailedCopies(&told[0]);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("2 copies between nodes on streams failed; the first of all was a put to "
                        "rank 1: time is up"));
  EXPECT_TRUE(port.FailedCopies(&told[0]).ok());
  EXPECT_THAT(std::string(port.FailedCopies(&told[1]).message()), HasSubstr("1 copy between"));
  EXPECT_TRUE(port.FailedCopies(&told[1]).ok());
}

TEST_F(AsyncCopyNodesTest, ABrokenJobIsTold) {
  Begin(2, 1);
  thread_->Pause();
  ASSERT_TRUE(Put(1, At(0, kData), At(0, kData), 100).ok());
  pages_[0]->broken_by = 2;
  __atomic_store_n(&pages_[0]->abort, 1u, __ATOMIC_RELEASE);
  Synchronize();
  std::atomic<uint64_t> told{0};
  for (const absl::Status& status :
       {context(0).port()->FailedCopies(&told), Put(1, At(0, kData), At(0, kData), 100)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("put "), HasSubstr("rank 1 (on another node)")));
  }
  thread_->Resume();
}

}  // namespace
}  // namespace iris::internal
