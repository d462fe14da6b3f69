// Memory on worker threads: what is reported, and that nothing is kept of what failed.
#include "server/host/segment_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <variant>
#include <vector>

#include "device/driver/emu_driver.h"

namespace iris::server {
namespace {

class SegmentStoreTest : public testing::Test {
 protected:
  ~SegmentStoreTest() override {
    quick_.Stop();
    slow_.Stop();
  }
  // The first report of type T, when it has come; takes it out.
  template <typename T>
  T Wait() {
    absl::MutexLock lock(&mu_);
    const auto find = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return std::find_if(reports_.begin(), reports_.end(),
                          [](const Input& report) { return std::holds_alternative<T>(report); });
    };
    const auto come = [this, &find]()
                          ABSL_SHARED_LOCKS_REQUIRED(mu_) { return find() != reports_.end(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&come), absl::Seconds(60)));
    const auto found = find();
    if (found == reports_.end()) return T();
    const T report = std::get<T>(*found);
    reports_.erase(found);
    return report;
  }
  template <typename T>
  size_t Count() {
    absl::MutexLock lock(&mu_);
    return std::count_if(reports_.begin(), reports_.end(),
                         [](const Input& report) { return std::holds_alternative<T>(report); });
  }

  const std::unique_ptr<driver::GpuDriver> driver_ = driver::CreateEmuDriver({1, 8ull << 20});
  const Logger logger_{LogLevel::kError, LogFormat::kKeyValue};
  absl::Mutex mu_;
  std::vector<Input> reports_ ABSL_GUARDED_BY(mu_);
  WorkerPool quick_{1}, slow_{1};
  HostMemory host_memory_;
  SegmentStore store_{driver_.get(),
                      &host_memory_,
                      &quick_,
                      &slow_,
                      [this](const Input& report) {
                        absl::MutexLock lock(&mu_);
                        reports_.push_back(report);
                      },
                      &logger_};
};

TEST_F(SegmentStoreTest, CreatesReadsAndDrops) {
  const SegmentId id{1};
  store_.Create({.id = id, .bytes = 2 << 20});
  EXPECT_TRUE(Wait<SegmentCreated>().status.ok());
  ASSERT_NE(store_.Find(id), nullptr);
  EXPECT_EQ(store_.Find(id)->device_index(), 0u);
  std::vector<uint8_t> bytes(8, 1);
  EXPECT_TRUE(store_.Read(id, 4096, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes, std::vector<uint8_t>(8, 0));
  store_.Drop(id);
  EXPECT_EQ(Wait<SegmentDropped>().segment, id);
  EXPECT_EQ(store_.Find(id), nullptr);
  EXPECT_TRUE(absl::IsNotFound(store_.Read(id, 0, absl::MakeSpan(bytes))));
}

TEST_F(SegmentStoreTest, AHoldOutlivesTheDrop) {
  const SegmentId id{1};
  store_.Create({.id = id, .bytes = 2 << 20});
  Wait<SegmentCreated>();
  auto hold = store_.Find(id);
  store_.Drop(id);
  store_.Create({.id = SegmentId{2}, .bytes = 2 << 20, .prealloc = true});  // behind any drop
  Wait<SegmentCreated>();
  EXPECT_EQ(Count<SegmentDropped>(), 0u);
  hold.reset();
  EXPECT_EQ(Wait<SegmentDropped>().segment, id);
}

TEST_F(SegmentStoreTest, AFailedCreationIsReportedOnceAndForgotten) {
  const SegmentId id{1};
  store_.Create({.id = id, .bytes = 1});  // off the granularity
  EXPECT_TRUE(absl::IsInvalidArgument(Wait<SegmentCreated>().status));
  quick_.Stop();  // it has come to its end
  store_.Drop(id);
  slow_.Stop();
  EXPECT_EQ(Count<SegmentDropped>(), 1u);  // who asks for a drop hears of it, whatever there was
}

}  // namespace
}  // namespace iris::server
