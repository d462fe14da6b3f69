#include "client/abi/handles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace iris::abi {
namespace {

using ::testing::HasSubstr;

// Counts its lives, and can tell a reader that it has ended.
class Probe : public Object {
 public:
  static constexpr Kind kKind = Kind::kStream;
  static constexpr uint64_t kAlive = 0x616c6976652e2e2e;

  explicit Probe(uint64_t n = 0, std::function<void()> at_end = nullptr)
      : number(n), at_end_(std::move(at_end)) {
    ++n_alive;
  }
  ~Probe() override {
    alive.store(0);
    --n_alive;
    if (at_end_) at_end_();
  }

  static inline std::atomic<int64_t> n_alive{0};
  std::atomic<uint64_t> alive{kAlive};
  const uint64_t number;

 private:
  const std::function<void()> at_end_;
};

HandleTable& Table() { return HandleTable::Get(); }

void* Add(uint64_t number = 0) {
  return Table().Add(Kind::kStream, std::make_unique<Probe>(number));
}

uint64_t Bits(const void* handle) { return reinterpret_cast<uint64_t>(handle); }
void* Handle(uint64_t bits) { return reinterpret_cast<void*>(bits); }

TEST(HandlesTest, AHandleStandsForItsObjectUntilItIsRemoved) {
  void* const handle = Add(7);
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(Bits(handle) % 2, 1u) << "it could be taken for an aligned address";
  {
    const Held<Probe> held(handle);
    ASSERT_TRUE(held);
    EXPECT_EQ(held->number, 7u);
  }
  EXPECT_TRUE(Table().Remove(Kind::kStream, handle));
  EXPECT_EQ(Probe::n_alive, 0);
  EXPECT_FALSE(Held<Probe>(handle));
  EXPECT_FALSE(Table().Remove(Kind::kStream, handle));
  EXPECT_STREQ(Table().Describe(Kind::kStream, handle), "was destroyed, or never made");
}

TEST(HandlesTest, AnObjectLivesAsLongAsACallHoldsIt) {
  void* const handle = Add(3);
  {
    const Held<Probe> first(handle), second(handle);
    EXPECT_TRUE(Table().Remove(Kind::kStream, handle));
    EXPECT_FALSE(Held<Probe>(handle)) << "the name is gone";
    EXPECT_FALSE(Table().Remove(Kind::kStream, handle));
    EXPECT_EQ(first->alive, Probe::kAlive);
    EXPECT_EQ(second->number, 3u);
  }
  EXPECT_EQ(Probe::n_alive, 0);
}

TEST(HandlesTest, AHandleOfAnotherKindIsNotTaken) {
  void* const handle = Add();
  for (const Kind kind :
       {Kind::kNone, Kind::kContext, Kind::kTeam, Kind::kEvent, Kind::kGraph, Kind::kComm}) {
    EXPECT_EQ(Table().Acquire(kind, handle), nullptr) << KindName(kind);
    EXPECT_FALSE(Table().Remove(kind, handle)) << KindName(kind);
    EXPECT_THAT(Table().Describe(kind, handle), HasSubstr("another kind"));
  }
  EXPECT_TRUE(Held<Probe>(handle));
  EXPECT_TRUE(Table().Remove(Kind::kStream, handle));
}

TEST(HandlesTest, NothingNearAHandleIsOne) {
  void* const handle = Add();
  for (int bit = 0; bit < 64; ++bit) {
    void* const other = Handle(Bits(handle) ^ uint64_t{1} << bit);
    EXPECT_FALSE(Held<Probe>(other)) << "bit " << bit;
    EXPECT_FALSE(Table().Remove(Kind::kStream, other)) << "bit " << bit;
  }
  EXPECT_TRUE(Held<Probe>(handle));
  EXPECT_TRUE(Table().Remove(Kind::kStream, handle));
}

TEST(HandlesTest, WhatIsNoHandleIsSaidToBeNone) {
  int local = 0;
  std::string text(100, 'x');
  EXPECT_STREQ(Table().Describe(Kind::kTeam, nullptr), "is null");
  EXPECT_FALSE(Held<Probe>(nullptr));
  for (const void* address : {static_cast<const void*>(&local), static_cast<const void*>(&text),
                              static_cast<const void*>(Handle(~uint64_t{0}))}) {
    EXPECT_FALSE(Held<Probe>(address));
    EXPECT_STREQ(Table().Describe(Kind::kStream, address), "is no handle that Iris made");
  }
}

TEST(HandlesTest, RandomBitsAreNoHandles) {
  std::set<void*> live;
  for (int i = 0; i < 100; ++i) live.insert(Add());
  std::mt19937_64 random(20260401);
  const auto expect_unknown = [&](uint64_t bits) {
    if (live.count(Handle(bits)) != 0) return;
    EXPECT_FALSE(Held<Probe>(Handle(bits))) << std::hex << bits;
    EXPECT_FALSE(Table().Remove(Kind::kStream, Handle(bits))) << std::hex << bits;
    EXPECT_NE(Table().Describe(Kind::kStream, Handle(bits)), nullptr);
  };
  for (int i = 0; i < 1'000'000; ++i) {
    expect_unknown(random());
    // These have the right shape: a stream, at any place, of a small or large generation.
    expect_unknown(1 | uint64_t{static_cast<uint8_t>(Kind::kStream)} << 1 |
                   (random() & ((uint64_t{1} << (i % 2 == 0 ? 57 : 27)) - 32)));
  }
  EXPECT_EQ(Probe::n_alive, 100);
  for (void* const handle : live) EXPECT_TRUE(Table().Remove(Kind::kStream, handle));
  EXPECT_EQ(Probe::n_alive, 0);
}

// More objects one after the other than slots that are ever there at once.
TEST(HandlesTest, ASlotThatIsUsedAgainHasAnotherHandle) {
  std::vector<void*> before;
  std::set<void*> all;
  for (uint64_t i = 0; i < 20'000; ++i) {
    void* const handle = Add(i);
    ASSERT_TRUE(all.insert(handle).second) << "handle " << i << " was one before";
    ASSERT_EQ(Held<Probe>(handle)->number, i);
    ASSERT_TRUE(Table().Remove(Kind::kStream, handle));
    if (i % 100 == 0) before.push_back(handle);
  }
  EXPECT_EQ(Probe::n_alive, 0);
  std::vector<void*> others;
  for (int i = 0; i < 5000; ++i) others.push_back(Add());
  for (void* const handle : before) EXPECT_FALSE(Held<Probe>(handle));
  for (void* const handle : others) EXPECT_TRUE(Table().Remove(Kind::kStream, handle));
}

TEST(HandlesTest, AnEndMayGiveUpOtherHandles) {
  void* const inner = Add();
  void* const outer = Table().Add(Kind::kContext, std::make_unique<Probe>(0, [&] {
                                    EXPECT_TRUE(Table().Remove(Kind::kStream, inner));
                                  }));
  EXPECT_TRUE(Table().Remove(Kind::kContext, outer));
  EXPECT_FALSE(Held<Probe>(inner));
}

TEST(HandlesTest, OneOfManyThreadsRemovesAHandle) {
  for (int round = 0; round < 300; ++round) {
    const int64_t before = Probe::n_alive;
    void* const handle = Add();
    std::atomic<int> removed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        const Held<Probe> held(handle);
        if (Table().Remove(Kind::kStream, handle)) ++removed;
        if (held && held->alive != Probe::kAlive) ++removed;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(removed, 1);
    ASSERT_EQ(Probe::n_alive, before);
  }
}

// Readers hold what writers remove and replace. A reader sees the object that it asked for, whole,
// or none.
TEST(HandlesTest, ReadersSeeTheirObjectOrNone) {
  constexpr int kPlaces = 8, kRounds = 20'000;
  struct Place {
    absl::Mutex mu;
    void* handle ABSL_GUARDED_BY(mu) = nullptr;
    uint64_t number ABSL_GUARDED_BY(mu) = 0;
  };
  std::vector<Place> places(kPlaces);
  const int64_t before = Probe::n_alive;
  for (Place& place : places) {
    absl::MutexLock lock(&place.mu);
    place.handle = Add();
  }
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> n_held{0}, n_gone{0}, numbers{1};
  const auto write = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kRounds; ++i) {
      Place& place = places[random() % kPlaces];
      const uint64_t number = numbers++;
      void* const fresh = Add(number);
      void* old = nullptr;
      {
        absl::MutexLock lock(&place.mu);
        old = std::exchange(place.handle, fresh);
        place.number = number;
      }
      if (!Table().Remove(Kind::kStream, old)) ++wrong;
    }
  };
  const auto read = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (!done) {
      Place& place = places[random() % kPlaces];
      void* handle = nullptr;
      uint64_t number = 0;
      {
        absl::MutexLock lock(&place.mu);
        handle = place.handle;
        number = place.number;
      }
      if (random() % 4 == 0) std::this_thread::yield();
      const Held<Probe> held(handle);
      if (!held) {
        ++n_gone;
        continue;
      }
      ++n_held;
      if (random() % 4 == 0) std::this_thread::yield();
      if (held->alive != Probe::kAlive || held->number != number) ++wrong;
    }
  };
  std::vector<std::thread> readers, writers;
  for (unsigned t = 0; t < 3; ++t) readers.emplace_back(read, t);
  for (unsigned t = 0; t < 3; ++t) writers.emplace_back(write, 100 + t);
  for (std::thread& thread : writers) thread.join();
  done = true;
  for (std::thread& thread : readers) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(n_held, 0u);
  EXPECT_EQ(Probe::n_alive, before + kPlaces);
  for (Place& place : places) {
    absl::MutexLock lock(&place.mu);
    EXPECT_TRUE(Table().Remove(Kind::kStream, place.handle));
  }
  EXPECT_EQ(Probe::n_alive, before);
}

TEST(HandlesTest, AFullTableTakesNoMoreUntilOneIsRemoved) {
  const int64_t before = Probe::n_alive;
  std::vector<void*> handles;
  for (;;) {
    void* const handle = Add(handles.size());
    if (handle == nullptr) break;
    handles.push_back(handle);
    ASSERT_LE(handles.size(), HandleTable::kMaxObjects);
  }
  EXPECT_EQ(Probe::n_alive, HandleTable::kMaxObjects) << "the one that was refused has ended";
  EXPECT_EQ(handles.size(), HandleTable::kMaxObjects - static_cast<uint64_t>(before));
  void* const stale = handles[handles.size() / 2];
  EXPECT_TRUE(Table().Remove(Kind::kStream, stale));
  void* const again = Add();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(Add(), nullptr);
  EXPECT_NE(again, stale);
  EXPECT_FALSE(Held<Probe>(stale));
  handles[handles.size() / 2] = again;
  for (uint64_t i = 0; i < handles.size(); ++i) {
    ASSERT_TRUE(Table().Remove(Kind::kStream, handles[i])) << i;
  }
  EXPECT_EQ(Probe::n_alive, before);
}

}  // namespace
}  // namespace iris::abi
