// Real irisd-port processes on the loopback or in network namespaces, with this test as their irisd
// and their ranks.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/iris/types.h"
#include "server/port/handshake.h"
#include "server/port/meeting.h"
#include "server/port/testing/fake_etcd.h"
#include "server/port/testing/port_node.h"

namespace iris::port {
namespace {

using server::LinkType;

uint64_t Seed() {
  const char* const chosen = getenv("IRIS_TEST_SEED");
  if (chosen == nullptr) return 1;
  const uint64_t seed =
      strcmp(chosen, "random") == 0 ? std::random_device()() : strtoull(chosen, nullptr, 10);
  printf("IRIS_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// The target port_direct_test runs cases of this file with direct copies.
const bool kDirect = nodes_are_direct = getenv("IRIS_TEST_DIRECT") != nullptr;

PortRequest Put(uint32_t to, uint64_t dst, uint64_t src, uint64_t bytes) {
  PortRequest request = {};
  request.op = PortOp::kPut;
  request.to = to;
  request.dst = dst;
  request.src = src;
  request.bytes = bytes;
  request.signal = kNoPortSignal;
  return request;
}

PortRequest Get(uint32_t to, uint64_t dst, uint64_t src, uint64_t bytes) {
  PortRequest request = Put(to, dst, src, bytes);
  request.op = PortOp::kGet;
  return request;
}

PortRequest Atomic(uint32_t to, uint64_t dst, PortAtomic atomic, PortType type, uint64_t value,
                   uint64_t compare = 0) {
  PortRequest request = Put(to, dst, compare, value);
  request.op = PortOp::kAtomic;
  request.atomic = atomic;
  request.type = type;
  return request;
}

void Fill(uint8_t* to, uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random();
    memcpy(to + i, &word, 8);
  }
}

template <typename Condition>
bool Eventually(Condition condition, absl::Duration within = absl::Seconds(20)) {
  const absl::Time end = absl::Now() + within;
  while (!condition()) {
    if (absl::Now() > end) return false;
    sched_yield();
  }
  return true;
}

uint64_t WordAt(const uint8_t* heap, uint64_t offset) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(heap + offset), __ATOMIC_ACQUIRE);
}

constexpr uint64_t kMiB = 1 << 20;

TEST(PortTest, PutsAndGetsAllSizes) {
  Cluster cluster =
      Start(2, 1, nullptr, [](int, PortNodeOptions* options) { options->heap_bytes = 136 * kMiB; });
  ASSERT_TRUE(cluster.ok);
  uint8_t* const here = cluster.nodes[0]->heap(0);
  uint8_t* const there = cluster.nodes[1]->heap(1);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  Fill(here, 65 * kMiB, Seed());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{4096},
                               uint64_t{8192}, uint64_t{8193}, kMiB + 3, 64 * kMiB}) {
    // The target crosses from one segment to the next.
    const uint64_t dst = 68 * kMiB - bytes / 2 - 5;
    memset(there + dst - 1, 0xEE, bytes + 2);
    ASSERT_EQ(ring.Wait(ring.Post(Put(1, dst, 3, bytes))), StatusCode::kOk) << bytes;
    EXPECT_EQ(memcmp(there + dst, here + 3, bytes), 0) << bytes;
    EXPECT_EQ(there[dst - 1], 0xEE) << bytes;
    EXPECT_EQ(there[dst + bytes], 0xEE) << bytes;

    memset(here + 66 * kMiB, 0xEE, bytes + 2);
    ASSERT_EQ(ring.Wait(ring.Post(Get(1, 66 * kMiB + 1, dst, bytes))), StatusCode::kOk) << bytes;
    EXPECT_EQ(memcmp(here + 66 * kMiB + 1, there + dst, bytes), 0) << bytes;
    EXPECT_EQ(here[66 * kMiB], 0xEE) << bytes;
    EXPECT_EQ(here[66 * kMiB + 1 + bytes], 0xEE) << bytes;
  }
}

TEST(PortTest, ValuesAndInlinePuts) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  PortMemory& memory = cluster.nodes[1]->memory(1);
  PortRequester ring = cluster.nodes[1]->Requester(1);
  Fill(memory.values, kPortValueBytes, 5);
  Fill(cluster.nodes[0]->heap(0), kPortValueBytes, 6);
  for (const uint64_t bytes : {uint64_t{5}, uint64_t{100'000}, kPortValueBytes}) {
    PortRequest put = Put(0, 2 * kMiB, kPortValueBytes - bytes, bytes);
    put.space = PortSpace::kValues;
    ASSERT_EQ(ring.Wait(ring.Post(put)), StatusCode::kOk);
    EXPECT_EQ(memcmp(cluster.nodes[0]->heap(0) + 2 * kMiB, memory.values + kPortValueBytes - bytes,
                     bytes),
              0);
  }
  for (const uint64_t bytes : {uint64_t{5}, uint64_t{100'000}, kPortValueBytes}) {
    PortRequest get = Get(0, kPortValueBytes - bytes, 0, bytes);
    get.space = PortSpace::kValues;
    ASSERT_EQ(ring.Wait(ring.Post(get)), StatusCode::kOk);
    EXPECT_EQ(memcmp(cluster.nodes[0]->heap(0), memory.values + kPortValueBytes - bytes, bytes), 0);
  }
  PortRequest put = Put(0, 5 * kMiB + 4, 0x1122334455667788, 4);
  put.space = PortSpace::kInline;
  put.signal = 5 * kMiB + 8;
  put.signal_value = 9;
  ASSERT_EQ(ring.Wait(ring.Post(put)), StatusCode::kOk);
  EXPECT_EQ(WordAt(cluster.nodes[0]->heap(0), 5 * kMiB), 0x5566778800000000u);
  EXPECT_EQ(WordAt(cluster.nodes[0]->heap(0), 5 * kMiB + 8), 9u);
}

TEST(PortTest, Rows) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  uint8_t* const here = cluster.nodes[0]->heap(0);
  uint8_t* const there = cluster.nodes[1]->heap(1);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  struct Case {
    uint64_t rows, length, dst_stride, src_stride;
  };
  uint64_t signal = 0;
  for (const Case& each :
       {Case{0, 8, 8, 8}, Case{1, 100, 7, 3}, Case{1000, 4, 12, 8}, Case{300, 1000, 1000, 1200},
        Case{10, 100'000, 130'000, 100'000}, Case{3, 700'001, 700'003, 800'000},
        Case{64, 4096, 4096, 4096}, Case{7, 0, 10, 10}}) {
    PortRows rows = {};
    rows.rows = each.rows;
    rows.dst_stride = each.dst_stride;
    rows.src_stride = each.src_stride;
    Fill(here, 4 * kMiB, each.rows);
    std::vector<uint8_t> expected(8 * kMiB, 0);
    memset(there, 0, 8 * kMiB - 8);
    for (uint64_t i = 0; i < each.rows; ++i) {
      memcpy(expected.data() + kMiB + i * each.dst_stride, here + 5 + i * each.src_stride,
             each.length);
    }
    PortRequest put = Put(1, kMiB, 5, each.length);
    put.op = PortOp::kPutRows;
    put.signal = 8 * kMiB - 8;
    put.signal_op = static_cast<uint8_t>(SignalOp::kAdd);
    put.signal_value = 2;
    ASSERT_EQ(ring.Wait(ring.Post(put, &rows)), StatusCode::kOk) << each.rows;
    EXPECT_EQ(memcmp(there, expected.data(), 8 * kMiB - 8), 0) << each.rows;
    EXPECT_EQ(WordAt(there, 8 * kMiB - 8), signal += 2) << each.rows;

    Fill(there, 4 * kMiB, each.rows + 100);
    memset(here, 0, 8 * kMiB);
    std::fill(expected.begin(), expected.end(), 0);
    for (uint64_t i = 0; i < each.rows; ++i) {
      memcpy(expected.data() + kMiB + i * each.dst_stride, there + 5 + i * each.src_stride,
             each.length);
    }
    PortRequest get = Get(1, kMiB, 5, each.length);
    get.op = PortOp::kGetRows;
    ASSERT_EQ(ring.Wait(ring.Post(get, &rows)), StatusCode::kOk) << each.rows;
    EXPECT_EQ(memcmp(here, expected.data(), 8 * kMiB), 0) << each.rows;
  }
  EXPECT_TRUE(ring.WaitAll());
}

TEST(PortTest, SignalsFollowTheirData) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  uint8_t* const here = cluster.nodes[0]->heap(0);
  uint8_t* const there = cluster.nodes[1]->heap(1);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  for (uint64_t i = 1; i <= 30; ++i) {
    memset(here, static_cast<int>(i), kMiB);
    PortRequest put = Put(1, kMiB, 0, kMiB);
    put.signal = 0;
    put.signal_value = i;
    const uint64_t number = ring.Post(put);
    ASSERT_TRUE(Eventually([&] { return WordAt(there, 0) == i; }));
    ASSERT_EQ(there[2 * kMiB - 1], i);
    ASSERT_EQ(ring.Wait(number), StatusCode::kOk);
  }
}

// The operations on words, once more.
template <typename T>
T Apply(PortAtomic op, T old, T value, T compare) {
  switch (op) {
    case PortAtomic::kAdd:
    case PortAtomic::kSub:
      if constexpr (std::is_integral_v<T>) {
        const auto a = static_cast<std::make_unsigned_t<T>>(old);
        const auto b = static_cast<std::make_unsigned_t<T>>(value);
        return static_cast<T>(op == PortAtomic::kAdd ? a + b : a - b);
      } else {
        return op == PortAtomic::kAdd ? old + value : old - value;
      }
    case PortAtomic::kExchange:
      return value;
    case PortAtomic::kMin:
      return std::min(old, value);
    case PortAtomic::kMax:
      return std::max(old, value);
    case PortAtomic::kCompareExchange:
      return old == compare ? value : old;
    case PortAtomic::kLoad:
      return old;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == PortAtomic::kAnd) return old & value;
    if (op == PortAtomic::kOr) return old | value;
    if (op == PortAtomic::kXor) return old ^ value;
  }
  return old;
}

template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename T>
void CheckAtomics(Cluster* cluster, PortType type) {
  PortRequester ring = cluster->nodes[0]->Requester(0);
  ring.Resume();
  uint8_t* const word = cluster->nodes[1]->heap(1) + 64;
  std::mt19937_64 random(Seed());
  const auto draw = [&] {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(random());
    return static_cast<T>(static_cast<int64_t>(random() % 2001) - 1000) / 4;
  };
  T model = draw();
  memcpy(word, &model, sizeof(model));
  for (int i = 0; i < 300; ++i) {
    const auto op = static_cast<PortAtomic>(random() % 10);
    const bool is_bitwise =
        op == PortAtomic::kAnd || op == PortAtomic::kOr || op == PortAtomic::kXor;
    const T value = draw(), compare = random() % 2 == 0 ? model : draw();
    uint64_t old = 0;
    const StatusCode code =
        ring.Wait(ring.Post(Atomic(1, 64, op, type, Bits(value), Bits(compare))), &old);
    if (is_bitwise && !std::is_integral_v<T>) {
      ASSERT_EQ(code, StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_EQ(code, StatusCode::kOk);
    ASSERT_EQ(old, Bits(model)) << static_cast<int>(op);
    model = Apply(op, model, value, compare);
    ASSERT_EQ(memcmp(word, &model, sizeof(model)), 0) << static_cast<int>(op);
  }
}

TEST(PortTest, AtomicsOfAllTypes) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  CheckAtomics<int32_t>(&cluster, PortType::kInt32);
  CheckAtomics<uint32_t>(&cluster, PortType::kUint32);
  CheckAtomics<int64_t>(&cluster, PortType::kInt64);
  CheckAtomics<uint64_t>(&cluster, PortType::kUint64);
  CheckAtomics<float>(&cluster, PortType::kFloat);
  CheckAtomics<double>(&cluster, PortType::kDouble);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  ring.Resume();
  uint8_t* const word = cluster.nodes[1]->heap(1) + 64;
  uint64_t old = 0;
  memset(word, 0, 8);
  // 1.5 + 0.25 in half precision, 1.5 + 2 in bfloat16; the neighbour stays.
  const uint16_t half = 0x3E00, bfloat16 = 0x3FC0, other = 0xABCD;
  memcpy(word, &half, 2);
  memcpy(word + 2, &other, 2);
  ASSERT_EQ(ring.Wait(ring.Post(Atomic(1, 64, PortAtomic::kAdd, PortType::kHalf, 0x3400)), &old),
            StatusCode::kOk);
  EXPECT_EQ(old, 0x3E00u);
  EXPECT_EQ(WordAt(word, 0), 0xABCD3F00u);
  memcpy(word, &bfloat16, 2);
  ASSERT_EQ(
      ring.Wait(ring.Post(Atomic(1, 64, PortAtomic::kAdd, PortType::kBfloat16, 0x4000)), &old),
      StatusCode::kOk);
  EXPECT_EQ(old, 0x3FC0u);
  EXPECT_EQ(WordAt(word, 0), 0xABCD4060u);
  EXPECT_EQ(ring.Wait(ring.Post(Atomic(1, 64, PortAtomic::kMax, PortType::kHalf, 1))),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ring.Wait(ring.Post(Atomic(1, 68, PortAtomic::kAdd, PortType::kUint64, 1))),
            StatusCode::kInvalidArgument);
}

// Each rank changes a region of its own in the heap of each rank of the other nodes, so that a
// model in the order of its ring knows every byte.
TEST(PortTest, RandomOperationsMatchAModel) {
  constexpr int kNodes = 3;
  constexpr uint32_t kRanks = 6;
  constexpr uint64_t kRegion = 512 << 10, kSource = 4 * kMiB, kSourceBytes = kMiB, kGot = 6 * kMiB,
                     kGotBytes = kMiB;
  Cluster cluster = Start(kNodes, 2);
  ASSERT_TRUE(cluster.ok);
  const auto heap = [&](uint32_t rank) { return cluster.nodes[rank / 2]->heap(rank); };
  std::vector<std::vector<uint8_t>> model(kRanks, std::vector<uint8_t>(8 * kMiB, 0));
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    Fill(heap(rank), 8 * kMiB, Seed() + rank);
    memcpy(model[rank].data(), heap(rank), 8 * kMiB);
  }
  std::vector<std::thread> threads;
  std::vector<std::string> errors(kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(Seed() * 100 + rank);
      PortRequester rings[2] = {cluster.nodes[rank / 2]->Requester(rank, 0),
                                cluster.nodes[rank / 2]->Requester(rank, 1)};
      struct Expected {
        uint32_t ring;
        uint64_t number;
        uint64_t old;
      };
      std::vector<Expected> values;
      uint64_t got_at = 0;
      for (int i = 0; i < 1500 && errors[rank].empty(); ++i) {
        uint32_t to = static_cast<uint32_t>(random() % kRanks);
        if (to / 2 == rank / 2) continue;
        // One ring for each target, since rings are not ordered among themselves.
        const uint32_t ring = (to / 2) % 2;
        uint8_t* const there = model[to].data();
        const uint64_t region = rank * kRegion;
        const uint64_t bytes = random() % 4 == 0 ? random() % 200'000 : random() % 300;
        const uint64_t at = region + random() % (kRegion - 200'000);
        const uint64_t source = kSource + random() % (kSourceBytes - 200'000);
        switch (random() % 5) {
          case 0:
          case 1: {
            PortRequest put = Put(to, at, source, bytes);
            memcpy(there + at, model[rank].data() + source, bytes);
            if (random() % 2 == 0) {
              put.signal = region + 8 * (random() % 100);
              put.signal_op = static_cast<uint8_t>(random() % 2);
              put.signal_value = random();
              uint64_t word = WordAt(there, put.signal);
              word = put.signal_op == 0 ? put.signal_value : word + put.signal_value;
              memcpy(there + put.signal, &word, 8);
            }
            rings[ring].Post(put);
            break;
          }
          case 2: {
            if (got_at + bytes > kGotBytes) break;
            rings[ring].Post(Get(to, kGot + got_at, at, bytes));
            memcpy(model[rank].data() + kGot + got_at, there + at, bytes);
            got_at += bytes;
            break;
          }
          case 3: {
            PortRows rows = {};
            rows.rows = random() % 40;
            PortRequest put = Put(to, at, source, random() % 1000);
            put.op = PortOp::kPutRows;
            rows.dst_stride = put.bytes + random() % 100;
            rows.src_stride = put.bytes + random() % 100;
            for (uint64_t r = 0; r < rows.rows; ++r) {
              memcpy(there + at + r * rows.dst_stride,
                     model[rank].data() + source + r * rows.src_stride, put.bytes);
            }
            rings[ring].Post(put, &rows);
            break;
          }
          default: {
            const uint64_t word_at = region + 8 * (random() % 100);
            const auto op = static_cast<PortAtomic>(random() % 10);
            const uint64_t old = WordAt(there, word_at), value = random();
            const uint64_t made = Apply<uint64_t>(op, old, value, old);
            memcpy(there + word_at, &made, 8);
            const uint64_t number =
                rings[ring].Post(Atomic(to, word_at, op, PortType::kUint64, value, old));
            values.push_back({ring, number, old});
            break;
          }
        }
        if (values.size() < 50 && i != 1499) continue;
        for (const Expected& each : values) {
          uint64_t old = 0;
          if (rings[each.ring].Wait(each.number, &old) != StatusCode::kOk || old != each.old) {
            errors[rank] = absl::StrCat("atomic ", each.number, " of ring ", each.ring);
          }
        }
        values.clear();
      }
      for (PortRequester& ring : rings) {
        if (!ring.WaitAll()) errors[rank] += " not all complete";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(errors[rank], "") << rank;
    EXPECT_EQ(memcmp(heap(rank), model[rank].data(), 8 * kMiB), 0) << rank;
    for (const PortRingWords& words : cluster.nodes[rank / 2]->memory(rank).words) {
      EXPECT_EQ(words.failed, 0u);
      EXPECT_EQ(words.read, words.completed);
    }
  }
}

TEST(PortTest, RefusesWhatIsOutOfBoundsAndGoesOn) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  const uint64_t heap = cluster.nodes[0]->heap_bytes(), stride = 1ull << 30;
  const auto code = [&](const PortRequest& request, const PortRows* rows = nullptr) {
    return ring.Wait(ring.Post(request, rows));
  };
  // At the source.
  EXPECT_EQ(code(Put(0, 0, 0, 8)), StatusCode::kInvalidArgument) << "to itself";
  EXPECT_EQ(code(Put(2, 0, 0, 8)), StatusCode::kInvalidArgument) << "no such rank";
  EXPECT_EQ(code(Put(1, 0, heap - 4, 8)), StatusCode::kOutOfRange) << "source without memory";
  EXPECT_EQ(code(Put(1, ~0ull, 0, 8)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Put(1, stride - 4, 0, 8)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Put(1, 0, 0, ~0ull)), StatusCode::kOutOfRange);
  PortRequest odd = Put(1, 0, 0, 8);
  odd.flags = 1;
  EXPECT_EQ(code(odd), StatusCode::kInvalidArgument);
  odd = Put(1, 0, 0, 8);
  odd.signal = 4;
  EXPECT_EQ(code(odd), StatusCode::kInvalidArgument);
  odd = Put(1, 0, 0, 9);
  odd.space = PortSpace::kInline;
  EXPECT_EQ(code(odd), StatusCode::kInvalidArgument);
  odd = Put(1, 0, kPortValueBytes - 7, 8);
  odd.space = PortSpace::kValues;
  EXPECT_EQ(code(odd), StatusCode::kOutOfRange);
  odd = Put(1, 0, 0, 8);
  odd.op = PortOp::kGetRows;
  PortRows rows = {};
  rows.rows = ~0ull;
  rows.dst_stride = rows.src_stride = 8;
  EXPECT_EQ(code(odd, &rows), StatusCode::kInvalidArgument);
  rows.rows = 2;
  rows.dst_stride = 4;
  EXPECT_EQ(code(odd, &rows), StatusCode::kInvalidArgument);
  // At the target, where there is less memory than the stride.
  EXPECT_EQ(code(Put(1, heap - 4, 0, 8)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Put(1, heap, 0, 100'000)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Put(1, heap - 100'000, 0, kMiB)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Get(1, 0, heap - 4, 8)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Get(1, 0, heap - 4, 100'000)), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Atomic(1, heap, PortAtomic::kAdd, PortType::kInt32, 1)), StatusCode::kOutOfRange);
  odd = Put(1, 0, 0, 8);
  odd.signal = heap;
  EXPECT_EQ(code(odd), StatusCode::kOutOfRange);
  EXPECT_EQ(code(Put(1, 0, 0, 8)), StatusCode::kOk);
  const PortRingWords& words = cluster.nodes[0]->memory(0).words[0];
  EXPECT_EQ(words.failed, 19u);
  EXPECT_EQ(words.first_failed, (1u << 8) | static_cast<uint64_t>(StatusCode::kInvalidArgument));
}

TEST(PortTest, MemoryThatIsHostileHurtsNobodyElse) {
  Cluster cluster = Start(2, 2);
  ASSERT_TRUE(cluster.ok);
  PortMemory& hostile = cluster.nodes[0]->memory(0);
  PortRequester waker = cluster.nodes[0]->Requester(0);
  std::mt19937_64 random(Seed());
  std::vector<uint8_t> before(cluster.nodes[1]->heap(3), cluster.nodes[1]->heap(3) + 8 * kMiB);
  PortRequester good = cluster.nodes[0]->Requester(1);
  // Random requests, with numbers that the port expects, and changed while they are read.
  uint64_t number = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 100; ++i, ++number) {
      auto* const words = reinterpret_cast<uint64_t*>(&hostile.rings[0].slots[number % kPortSlots]);
      for (int w = 0; w < 7; ++w) words[w] = random() >> (random() % 64);
      if (random() % 2 == 0) {
        // Nearly right, and never to rank 3.
        auto* const slot = reinterpret_cast<PortRequest*>(words);
        memset(slot, 0, 56);
        slot->op = static_cast<PortOp>(1 + random() % 5);
        slot->space = static_cast<PortSpace>(random() % 4);
        slot->to = 2;
        slot->dst = random() >> (random() % 64);
        slot->src = random() >> (random() % 64);
        slot->bytes = random() >> (random() % 64);
        slot->signal = random() % 2 == 0 ? kNoPortSignal : random() >> (random() % 64);
      } else if (reinterpret_cast<PortRequest*>(words)->to == 3) {
        reinterpret_cast<PortRequest*>(words)->to = 77;
      }
      __atomic_store_n(words + 7, number + 1, __ATOMIC_RELEASE);
    }
    memset(&hostile.words[0], static_cast<int>(random()), sizeof(hostile.words[0]));
    hostile.rank = 99;
    hostile.asleep = 1;
    waker.Wake();
    if (round % 20 == 0) {
      ASSERT_EQ(good.Wait(good.Post(Put(2, 8 * kMiB - 64, 0, 8))), StatusCode::kOk);
    }
    // Of two more, the first may be taken for the second slot of a request of rows.
    for (int i = 0; i < 2; ++i, ++number) {
      PortRequest request = Put(2, 0, 0, 0);
      auto* const slot = &hostile.rings[0].slots[number % kPortSlots];
      memcpy(static_cast<void*>(slot), &request, 56);
      __atomic_store_n(&slot->sequence, number + 1, __ATOMIC_RELEASE);
    }
    waker.Wake();
    const PortResult& last = hostile.rings[0].results[(number - 1) % kPortSlots];
    ASSERT_TRUE(Eventually([&] {
      return __atomic_load_n(&last.done, __ATOMIC_ACQUIRE) >> 8 == number;
    })) << round;
  }
  EXPECT_EQ(memcmp(before.data(), cluster.nodes[1]->heap(3), before.size()), 0);
  ASSERT_EQ(good.Wait(good.Post(Put(3, 0, 0, 8))), StatusCode::kOk);
  EXPECT_EQ(cluster.nodes[0]->WaitForEnd(absl::ZeroDuration()), -1);
  EXPECT_EQ(cluster.nodes[1]->WaitForEnd(absl::ZeroDuration()), -1);
}

TEST(PortTest, ThePortsOfNodesMeetOnFirstUseAndADeadOneEndsRequests) {
  Cluster cluster = Start(3, 1);
  ASSERT_TRUE(cluster.ok);
  PortRequester one = cluster.nodes[1]->Requester(1), two = cluster.nodes[2]->Requester(2);
  const uint64_t first = one.Post(Atomic(2, 0, PortAtomic::kAdd, PortType::kUint64, 5));
  const uint64_t second = two.Post(Atomic(1, 0, PortAtomic::kAdd, PortType::kUint64, 7));
  ASSERT_EQ(one.Wait(first), StatusCode::kOk);
  ASSERT_EQ(two.Wait(second), StatusCode::kOk);
  EXPECT_EQ(WordAt(cluster.nodes[2]->heap(2), 0), 5u);
  EXPECT_EQ(WordAt(cluster.nodes[1]->heap(1), 0), 7u);

  cluster.nodes[2]->Signal(SIGKILL);
  const absl::Time killed = absl::Now();
  const auto state = cluster.nodes[0]->WaitForMessage<NodeState>(LinkType::kPortNode);
  ASSERT_TRUE(state.has_value());
  EXPECT_LE(absl::Now() - killed, absl::Seconds(2));  // before the silence is over
  EXPECT_EQ(state->node(), 2u);
  EXPECT_TRUE(state->lost());
  EXPECT_NE(state->reason(), "");
  ASSERT_TRUE(
      Eventually([&] { return one.Wait(one.Post(Put(2, 0, 0, kMiB))) == StatusCode::kAborted; }));
  EXPECT_EQ(one.Wait(one.Post(Put(0, 0, 0, kMiB))), StatusCode::kOk);
}

TEST(PortTest, AStoppedPortIsLostAfterSilenceAndDelaysNobodyElse) {
  Cluster cluster = Start(
      3, 1, nullptr, [](int, PortNodeOptions* options) { options->setup.set_silence_ms(2500); });
  ASSERT_TRUE(cluster.ok);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  ASSERT_EQ(ring.Wait(ring.Post(Put(2, 0, 0, 8))), StatusCode::kOk);
  cluster.nodes[2]->Signal(SIGSTOP);
  const absl::Time stopped = absl::Now();
  std::vector<uint64_t> stuck;
  for (int i = 0; i < 20; ++i) stuck.push_back(ring.Post(Put(2, 0, 0, 4 * kMiB)));
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, 100'000))), StatusCode::kOk);
  }
  StatusCode code = StatusCode::kOk;
  EXPECT_FALSE(ring.Done(stuck.back(), &code)) << "the other node was delayed until the loss";
  const auto state = cluster.nodes[0]->WaitForMessage<NodeState>(LinkType::kPortNode);
  ASSERT_TRUE(state.has_value());
  EXPECT_LE(absl::Now() - stopped, absl::Seconds(10));
  EXPECT_EQ(state->node(), 2u);
  EXPECT_TRUE(absl::StrContains(state->reason(), "nothing was heard")) << state->reason();
  StatusCode last = StatusCode::kOk;
  for (const uint64_t number : stuck) last = ring.Wait(number);
  EXPECT_EQ(last, StatusCode::kAborted);
}

TEST(PortTest, ANodeThatIsCutOffIsLost) {
  std::string why;
  std::unique_ptr<Network> network = Network::Create(3, &why);
  if (network == nullptr) GTEST_SKIP() << why;
  Cluster cluster = Start(3, 1, std::move(network), [](int, PortNodeOptions* options) {
    options->setup.set_silence_ms(1000);
  });
  ASSERT_TRUE(cluster.ok);
  PortRequester ring = cluster.nodes[1]->Requester(1);
  ASSERT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, kMiB))), StatusCode::kOk);
  ASSERT_EQ(ring.Wait(ring.Post(Put(2, 0, 0, kMiB))), StatusCode::kOk);
  cluster.network->Cut(2, true);
  const absl::Time cut = absl::Now();
  const auto state = cluster.nodes[0]->WaitForMessage<NodeState>(LinkType::kPortNode);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->node(), 2u);
  EXPECT_LE(absl::Now() - cut, absl::Seconds(10));
  const auto itself = cluster.nodes[2]->WaitForMessage<NodeState>(LinkType::kPortNode);
  ASSERT_TRUE(itself.has_value() && itself->lost());
  EXPECT_EQ(itself->node(), 0u);
  EXPECT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, kMiB))), StatusCode::kOk);
}

TEST(PortTest, RelaysMessagesOfNodesInOrder) {
  Cluster cluster = Start(3, 1);
  ASSERT_TRUE(cluster.ok);
  const std::string large((1 << 20) + (64 << 10), 'x');
  NodeMessage message;
  for (int i = 0; i < 50; ++i) {
    message.set_payload(i == 20 ? large : absl::StrCat("message ", i));
    cluster.nodes[1]->Send(LinkType::kPortToNode, message);
  }
  for (int i = 0; i < 50; ++i) {
    const auto got = cluster.nodes[0]->WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->node(), 1u);
    EXPECT_EQ(got->payload(), i == 20 ? large : absl::StrCat("message ", i));
  }
  message.set_all(true);
  message.set_payload("to all");
  cluster.nodes[0]->Send(LinkType::kPortToNode, message);
  message.set_all(false);
  message.set_node(2);
  message.set_payload("to one");
  cluster.nodes[0]->Send(LinkType::kPortToNode, message);
  for (int node : {1, 2}) {
    auto got = cluster.nodes[node]->WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->payload(), "to all");
    EXPECT_EQ(got->node(), 0u);
  }
  const auto got = cluster.nodes[2]->WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->payload(), "to one");
}

TEST(PortTest, ReportsItsConnectionsAndWhatItRefused) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  ASSERT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, kMiB))), StatusCode::kOk);
  std::optional<Report> report;
  for (int i = 0; i < 100; ++i) {  // earlier ones, too
    report = cluster.nodes[0]->WaitForMessage<Report>(server::LinkType::kPortReport);
    ASSERT_TRUE(report.has_value());
    if (report->peers_size() == 1 && report->peers(0).has_rtt_us() &&
        report->peers(0).sent_bytes() > kMiB && report->peers(0).received_bytes() > 0) {
      break;
    }
  }
  ASSERT_EQ(report->peers_size(), 1);
  const Report::Peer& peer = report->peers(0);
  EXPECT_EQ(peer.node(), 1u);
  EXPECT_TRUE(peer.connected());
  EXPECT_LE(peer.heard_ms(), 3000u);
  EXPECT_TRUE(peer.has_rtt_us());
  EXPECT_LT(peer.rtt_us(), 1'000'000u);
  // Both are processes of this machine, whose clock is one. Reports have microseconds of a round
  // trip, and the error adds a nanosecond.
  ASSERT_TRUE(peer.has_clock_ahead_ns());
  EXPECT_GT(peer.clock_error_ns(), 0u);
  EXPECT_LE(std::abs(peer.clock_ahead_ns()), static_cast<int64_t>(peer.clock_error_ns()));
  EXPECT_GT(peer.sent_bytes(), kMiB);
  EXPECT_GT(peer.received_bytes(), 0u) << "the answer";
  EXPECT_TRUE(absl::StrContains(peer.transport(), "tcp/")) << peer.transport();
  EXPECT_EQ(report->refused_connections(), 0u);
  cluster.nodes[1]->Signal(SIGKILL);
  ASSERT_TRUE(cluster.nodes[0]->WaitFor(server::LinkType::kPortNode).has_value());
  do {
    report = cluster.nodes[0]->WaitForMessage<Report>(server::LinkType::kPortReport);
    ASSERT_TRUE(report.has_value() && report->peers_size() == 1);
  } while (report->peers(0).connected());
  EXPECT_GT(report->peers(0).sent_bytes(), kMiB) << "of a lost node, too";
}

TEST(PortTest, EverybodySendsToEverybodyAtOnce) {
  constexpr uint32_t kNodes = 6;
  constexpr uint64_t kBytes = 3 * kMiB / 2;
  Cluster cluster = Start(kNodes, 1, nullptr,
                          [](int, PortNodeOptions* options) { options->heap_bytes = 40 * kMiB; });
  ASSERT_TRUE(cluster.ok);
  const auto heap = [&](uint32_t rank) { return cluster.nodes[rank]->heap(rank); };
  std::vector<PortRequester> rings;
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    memset(heap(rank), static_cast<int>(rank + 1), kBytes);
    rings.push_back(cluster.nodes[rank]->Requester(rank));
  }
  // Puts and gets in both directions, while the nodes meet.
  for (int round = 0; round < 3; ++round) {
    for (uint32_t rank = 0; rank < kNodes; ++rank) {
      for (uint32_t to = 0; to < kNodes; ++to) {
        if (to == rank) continue;
        PortRequest put = Put(to, (2 + 2 * rank) * kMiB, 0, kBytes);
        put.signal = 39 * kMiB;
        put.signal_op = static_cast<uint8_t>(SignalOp::kAdd);
        put.signal_value = 1;
        rings[rank].Post(put);
        rings[rank].Post(Get(to, (20 + 2 * to) * kMiB, 0, kBytes));
      }
    }
  }
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    ASSERT_TRUE(rings[rank].WaitAll()) << rank;
    EXPECT_EQ(cluster.nodes[rank]->memory(rank).words[0].failed, 0u);
  }
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    EXPECT_EQ(WordAt(heap(rank), 39 * kMiB), 3 * (kNodes - 1));
    for (uint32_t from = 0; from < kNodes; ++from) {
      if (from == rank) continue;
      for (const uint64_t base : {2, 20}) {
        const uint8_t* const at = heap(rank) + (base + 2 * from) * kMiB;
        EXPECT_EQ(at[0], from + 1);
        EXPECT_EQ(memcmp(at, at + 1, kBytes - 1), 0);
        EXPECT_EQ(at[kBytes], 0);
      }
    }
  }
}

// A client of the network, which sends what it likes. The address is ADDRESS:PORT.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : Stranger(static_cast<uint16_t>(atoi(address.substr(address.rfind(':') + 1).c_str()))) {}
  // With another address than the nodes', it does not wait for the connection.
  explicit Stranger(uint16_t port, bool other_address = false)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (other_address ? SOCK_NONBLOCK : 0), 0)) {
    struct sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    if (other_address) {
      EXPECT_EQ(bind(fd_.get(), reinterpret_cast<struct sockaddr*>(&at), sizeof(at)), 0);
    }
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    const struct timeval timeout = {10, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    connected_ = connect(fd_.get(), reinterpret_cast<struct sockaddr*>(&at), sizeof(at)) == 0;
  }
  bool connected() const { return connected_; }
  void Send(const std::string& bytes) {
    (void)send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // All until the port closes the connection.
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    ssize_t n = 0;
    while ((n = recv(fd_.get(), buffer, sizeof(buffer), 0)) > 0) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  wire::UniqueFd fd_;
  bool connected_ = false;
};

// The TCP ports on which a process listens.
std::vector<uint16_t> ListeningPorts(pid_t pid) {
  std::vector<uint16_t> ports;
  const std::string command = absl::StrCat("ss -Hltnp 2>/dev/null | grep pid=", pid, ",");
  FILE* const pipe = popen(command.c_str(), "r");
  char line[1024];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    char local[256] = {};
    if (sscanf(line, "%*s %*s %*s %255s", local) == 1) {
      ports.push_back(static_cast<uint16_t>(atoi(strrchr(local, ':') + 1)));
    }
  }
  pclose(pipe);
  return ports;
}

TEST(PortTest, GarbageFromTheNetworkHurtsNobody) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  std::mt19937_64 random(Seed());
  const std::vector<uint16_t> ports = ListeningPorts(cluster.nodes[0]->pid());
  ASSERT_GE(ports.size(), 2u) << "ours and UCX's";
  PortRequester ring = cluster.nodes[1]->Requester(1);
  std::vector<std::unique_ptr<Stranger>> kept;
  for (int i = 0; i < 300; ++i) {
    for (const uint16_t port : ports) {
      auto stranger = std::make_unique<Stranger>(port, i % 3 == 1);
      std::string bytes(random() % 3000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (i % 3 == 0) {
        bytes.clear();
        AppendFrame(static_cast<FrameType>(1 + random() % 20),
                    std::string(random() % 100, static_cast<char>(random())), &bytes);
      }
      if (i % 3 == 1) {
        // As UCX begins a connection, then a message with any id. UCX would believe it.
        const uint64_t magic = 0xCAFEBABE12345678;
        const uint32_t length = i % 2 == 0 ? random() % 600 : random();
        bytes.insert(0, reinterpret_cast<const char*>(&length), 4);
        bytes.insert(0, 1, static_cast<char>(random() % 34));
        bytes.insert(0, reinterpret_cast<const char*>(&magic), 8);
      }
      stranger->Send(bytes);
      if (i % 2 == 0) kept.push_back(std::move(stranger));
    }
    ASSERT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, i % 2 == 0 ? 8 : kMiB))), StatusCode::kOk) << i;
  }
  std::optional<Report> report;
  for (int i = 0; i < 60 && (i == 0 || report->refused_connections() == 0); ++i) {
    report = cluster.nodes[0]->WaitForMessage<Report>(server::LinkType::kPortReport);
    ASSERT_TRUE(report.has_value());
  }
  EXPECT_GT(report->refused_connections(), 0u);
}

TEST(PortTest, UcxHearsNoHostThatIsNoNode) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  const absl::Time start = absl::Now();
  const std::vector<uint16_t> ports = ListeningPorts(cluster.nodes[0]->pid());
  ASSERT_EQ(ports.size(), 2u) << "ours and UCX's";
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (const uint16_t port : ports) {
    for (int i = 0; i < 20; ++i) {
      strangers.push_back(std::make_unique<Stranger>(port, /*other_address=*/true));
    }
  }
  std::optional<Report> report;
  while (!report.has_value() || report->refused_connections() < 20) {
    report = cluster.nodes[0]->WaitForMessage<Report>(server::LinkType::kPortReport);
    ASSERT_TRUE(report.has_value());
    // The other port waits longer for a proof.
    ASSERT_LT(absl::Now() - start, absl::Seconds(4)) << report->refused_connections();
  }
  EXPECT_EQ(report->refused_connections(), 20u);
  PortRequester ring = cluster.nodes[1]->Requester(1);
  EXPECT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, kMiB))), StatusCode::kOk);
}

TEST(PortTest, AnotherVersionIsToldBothVersions) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  Stranger stranger(ListeningPorts(cluster.nodes[1]->pid()).at(0));
  std::string hello = "irisport", bytes;
  const uint32_t version = 99;
  hello.append(reinterpret_cast<const char*>(&version), sizeof(version));
  AppendFrame(FrameType::kHello, hello, &bytes);
  for (const uint16_t port : ListeningPorts(cluster.nodes[0]->pid())) {
    Stranger other(port);
    other.Send(bytes);
    const std::string answer = other.ReadAll();
    if (absl::StrContains(answer, "version 99") &&
        absl::StrContains(answer, absl::StrCat("version ", kProtocolVersion))) {
      return;
    }
  }
  FAIL() << "no port of node 0 named both versions";
}

std::string WhyFailed(PortNode* node) {
  const auto failed = node->WaitForMessage<Failed>(LinkType::kPortFailed);
  return failed.has_value() ? failed->reason() : "";
}

TEST(PortTest, ANodeWithAnotherSecretOrJobIsRefusedWithTheReason) {
  const std::string rendezvous = FreeLoopbackAddress();
  PortNode zero(NodeOf(0, 2, 1, rendezvous));
  ASSERT_TRUE(zero.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  struct {
    void (*change)(port::Setup*);
    const char* says;
    std::unique_ptr<PortNode> node;
  } wrong[] = {
      {[](port::Setup* setup) { setup->set_secret("another secret, as long"); },
       "different secrets"},
      {[](port::Setup* setup) { setup->set_job("other"); },
       "different jobs, \"test\" and \"other\""},
      {[](port::Setup* setup) { setup->set_uid(4711); }, "different numbers"},
      {[](port::Setup* setup) { setup->set_first_rank(0); },
       "another program or job listens there"},
  };
  // Each tries for some seconds, since an earlier job may still listen, and all at the same time.
  for (auto& each : wrong) {
    PortNodeOptions options = NodeOf(1, 2, 1, rendezvous);
    each.change(&options.setup);
    each.node = std::make_unique<PortNode>(options);
  }
  for (auto& each : wrong) {
    const std::string why = WhyFailed(each.node.get());
    EXPECT_TRUE(absl::StrContains(why, each.says)) << why;
    EXPECT_TRUE(WIFEXITED(each.node->WaitForEnd()));
  }
  // The right one is still welcome.
  PortNode one(NodeOf(1, 2, 1, rendezvous));
  EXPECT_TRUE(one.WaitForMessage<NodeState>(LinkType::kPortNode).has_value());
  EXPECT_TRUE(zero.WaitForMessage<NodeState>(LinkType::kPortNode).has_value());
}

TEST(PortTest, NodeZeroMayStartLaterAndItsAbsenceEndsInTime) {
  const std::string rendezvous = FreeLoopbackAddress();
  PortNode one(NodeOf(1, 2, 1, rendezvous));
  ASSERT_TRUE(one.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  PortNode zero(NodeOf(0, 2, 1, rendezvous));
  EXPECT_TRUE(one.WaitForMessage<NodeState>(LinkType::kPortNode).has_value());

  PortNodeOptions alone = NodeOf(1, 2, 1, FreeLoopbackAddress());
  alone.setup.set_connect_ms(300);
  PortNode late(alone);
  const auto failed = late.WaitForMessage<Failed>(LinkType::kPortFailed);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code(), static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(absl::StrContains(failed->reason(), "refused")) << failed->reason();
}

PortNodeOptions ByEtcd(int node, const std::string& etcd) {
  PortNodeOptions options = NodeOf(node, 2, 1, "");
  options.setup.add_etcd(etcd);
  options.setup.set_interface("lo");
  return options;
}

TEST(PortTest, NodesMeetByEtcdAndGoOnWithoutIt) {
  FakeEtcd etcd;
  const std::string key = Meeting::Key(getuid(), "test");
  {
    const auto tune = [&](int node, PortNodeOptions* options) {
      options->setup = ByEtcd(node, etcd.endpoint()).setup;
    };
    Cluster cluster = Start(2, 1, nullptr, tune);
    ASSERT_TRUE(cluster.ok);
    EXPECT_TRUE(absl::StartsWith(etcd.ValueOf(key), "127.0.0.1:")) << etcd.ValueOf(key);
    // Etcd is asked no more. A watch that goes on begins anew after five seconds.
    absl::SleepFor(absl::Milliseconds(500));
    EXPECT_TRUE(Eventually([&] { return etcd.watches() == 0; }, absl::Seconds(3)));

    // A job of the same name, whose leader has not come: its other node meets the one that runs.
    PortNode lost(ByEtcd(1, etcd.endpoint()));
    const auto connected = lost.WaitForMessage<NodeState>(LinkType::kPortNode);
    ASSERT_TRUE(connected.has_value());
    const auto refused = lost.WaitForMessage<NodeState>(LinkType::kPortNode);
    ASSERT_TRUE(refused.has_value() && refused->lost());
    EXPECT_TRUE(absl::StrContains(refused->reason(), "the node at rank 1 is connected already"))
        << refused->reason();
    PortNode second(ByEtcd(0, etcd.endpoint()));
    EXPECT_TRUE(absl::StrContains(WhyFailed(&second), "another job of this name and user runs"));

    etcd.End();
    absl::SleepFor(absl::Seconds(4));  // longer than from one beat to the next
    PortRequester ring = cluster.nodes[0]->Requester(0);
    EXPECT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, kMiB))), StatusCode::kOk);
    etcd.Start(etcd.endpoint());
    EXPECT_TRUE(Eventually([&] { return !etcd.ValueOf(key).empty(); }));
    cluster.nodes[0]->SendBytes(LinkType::kStop, "");
    EXPECT_TRUE(WIFEXITED(cluster.nodes[0]->WaitForEnd()));
  }
  EXPECT_EQ(etcd.ValueOf(key), "");
}

TEST(PortTest, SaysWhyNodesDoNotMeetByEtcd) {
  FakeEtcd etcd;
  const std::string key = Meeting::Key(getuid(), "test");
  const std::string nobody = FreeLoopbackAddress();
  for (const int node : {0, 1}) {
    PortNodeOptions options = ByEtcd(node, nobody);
    options.setup.set_connect_ms(500);
    PortNode away(options);
    const std::string why = WhyFailed(&away);
    EXPECT_TRUE(absl::StrContains(why, "500 ms")) << why;
    EXPECT_TRUE(absl::StrContains(why, nobody)) << why;
    EXPECT_TRUE(absl::StrContains(why, "refused")) << why;
    // Others would be told an address that means themselves.
    options.setup.clear_interface();
    PortNode loopback(options);
    EXPECT_TRUE(absl::StrContains(WhyFailed(&loopback), "set network.interface"));
  }
  PortNodeOptions options = ByEtcd(1, etcd.endpoint());
  options.setup.set_connect_ms(500);
  PortNode absent(options);
  EXPECT_TRUE(absl::StrContains(WhyFailed(&absent), key + " is not there"));
  // A hand has written it, or a node with another secret.
  etcd.Put(key, "127.0.0.1:5000 0123");
  PortNode foreign[] = {PortNode(ByEtcd(0, etcd.endpoint())), PortNode(ByEtcd(1, etcd.endpoint()))};
  for (PortNode& node : foreign) {
    const std::string why = WhyFailed(&node);
    EXPECT_TRUE(absl::StrContains(why, key)) << why;
    EXPECT_TRUE(absl::StrContains(why, "secret")) << why;
  }
}

TEST(PortTest, FollowsALeaderThatComesAfterOneThatIsGone) {
  FakeEtcd etcd;
  MeetingOptions gone;
  gone.job = "test";
  gone.uid = getuid();
  gone.secret = NodeOf(0, 2, 1, "").setup.secret();
  const std::string key = Meeting::Key(gone.uid, gone.job);
  const int64_t lease = etcd.NewLease();
  etcd.Put(key, Meeting::Value(gone, FreeLoopbackAddress()), lease);
  PortNode one(ByEtcd(1, etcd.endpoint()));
  PortNode zero(ByEtcd(0, etcd.endpoint()));
  ASSERT_TRUE(one.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  ASSERT_TRUE(Eventually([&] { return etcd.watches() == 1; }));
  etcd.LoseLeases();
  EXPECT_TRUE(one.WaitForMessage<NodeState>(LinkType::kPortNode).has_value());
  EXPECT_TRUE(zero.WaitForMessage<NodeState>(LinkType::kPortNode).has_value());
}

TEST(PortTest, TheEndOfTheLinkStopsTheRings) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  PortRequester zero = cluster.nodes[0]->Requester(0), one = cluster.nodes[1]->Requester(1);
  ASSERT_EQ(zero.Wait(zero.Post(Put(1, 0, 0, 8))), StatusCode::kOk);
  cluster.nodes[0]->CloseLink();
  const int status = cluster.nodes[0]->WaitForEnd();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(zero.Wait(zero.Post(Put(1, 0, 0, 8))), StatusCode::kUnavailable);
  cluster.nodes[1]->SendBytes(LinkType::kStop, "");
  EXPECT_EQ(cluster.nodes[1]->WaitForEnd(), 0);
  EXPECT_EQ(one.Wait(one.Post(Put(0, 0, 0, 8))), StatusCode::kAborted);
}

// Two nodes, whose irisds may be followed by others.
Cluster StartSurviving() {
  return Start(2, 1, nullptr, [](int, PortNodeOptions* options) { options->survives = true; });
}

Resume ResumeOf(const PortNode& node, uint64_t taken) {
  Resume resume;
  resume.set_taken(taken);
  for (const uint64_t part : {1, 2}) resume.add_segment_ids(2 * node.first_rank() + part);
  return resume;
}

NodeMessage Numbered(uint64_t number, const std::string& payload) {
  NodeMessage message;
  message.set_number(number);
  message.set_payload(payload);
  return message;
}

TEST(PortTest, OutlivesItsIrisdAndRepeatsWhatTheNextOneDoesNotHave) {
  Cluster cluster = StartSurviving();
  ASSERT_TRUE(cluster.ok);
  PortNode& first = *cluster.nodes[0];
  PortNode& second = *cluster.nodes[1];
  PortRequester ring = first.Requester(0), other = second.Requester(1);
  // The connection was number 1.
  for (uint64_t i = 1; i <= 3; ++i) {
    second.Send(LinkType::kPortToNode, Numbered(i, absl::StrCat("message ", i)));
  }
  for (uint64_t i = 1; i <= 3; ++i) {
    const auto got = first.WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->number(), i + 1);
  }
  first.CloseLink();
  second.CloseLink();
  absl::SleepFor(absl::Milliseconds(300));
  Fill(first.heap(0), kMiB, Seed());
  EXPECT_EQ(ring.Wait(ring.Post(Put(1, kMiB, 0, kMiB))), StatusCode::kOk);
  EXPECT_EQ(other.Wait(other.Post(Get(0, 2 * kMiB, 0, kMiB))), StatusCode::kOk);
  EXPECT_EQ(memcmp(second.heap(1) + kMiB, second.heap(1) + 2 * kMiB, kMiB), 0);

  // The state of the next irisd has two of its three messages. One of those that it sends again was
  // taken.
  second.Attach();
  second.Send(LinkType::kPortResume, ResumeOf(second, 1));
  auto ready = second.WaitForMessage<Ready>(LinkType::kPortReady);
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->taken(), 3u);
  EXPECT_FALSE(ready->address().empty());
  ASSERT_TRUE(second.AddMemory(1, 0, 3));  // which it has
  second.Send(LinkType::kPortLayout, LayoutOf(2, 1));
  for (uint64_t i = 3; i <= 4; ++i) {
    second.Send(LinkType::kPortToNode, Numbered(i, absl::StrCat("message ", i)));
  }
  first.Attach();
  first.Send(LinkType::kPortResume, ResumeOf(first, 3));
  ASSERT_TRUE(first.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  for (uint64_t i = 4; i <= 5; ++i) {
    const auto got = first.WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->number(), i);
    EXPECT_EQ(got->payload(), absl::StrCat("message ", i - 1));
  }
  // Nothing is repeated once it is acknowledged, alone or with a message.
  Took took;
  took.set_taken(4);
  first.Send(LinkType::kPortTook, took);
  NodeMessage last = Numbered(1, "to node 1");
  last.set_node(1);
  last.set_taken(5);
  first.Send(LinkType::kPortToNode, last);
  const auto got = second.WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->payload(), "to node 1");
  EXPECT_EQ(got->taken(), 4u);
  first.Attach();
  first.Send(LinkType::kPortResume, ResumeOf(first, 0));
  ready = first.WaitForMessage<Ready>(LinkType::kPortReady);
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->taken(), 1u);
  second.Send(LinkType::kPortToNode, Numbered(5, "message 5"));
  const auto next = first.WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->number(), 6u);
  EXPECT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, kMiB))), StatusCode::kOk);
}

TEST(PortTest, RepeatsBeforeItTellsWhatIsNew) {
  Cluster cluster = StartSurviving();
  ASSERT_TRUE(cluster.ok);
  PortNode& first = *cluster.nodes[0];
  PortNode& second = *cluster.nodes[1];
  first.CloseLink();
  second.Send(LinkType::kPortToNode, Numbered(1, "while nobody is there"));
  absl::SleepFor(absl::Milliseconds(200));
  first.Attach();
  absl::SleepFor(absl::Milliseconds(200));
  second.Send(LinkType::kPortToNode, Numbered(2, "before the next one resumes"));
  EXPECT_FALSE(first.WaitFor(LinkType::kPortFromNode, absl::Milliseconds(300)).has_value());
  first.Send(LinkType::kPortResume, ResumeOf(first, 1));
  ASSERT_TRUE(first.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  for (const uint64_t number : {2, 3}) {
    const auto got = first.WaitForMessage<NodeMessage>(LinkType::kPortFromNode);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->number(), number);
  }
}

TEST(PortTest, TellsWhatItHasTaken) {
  Cluster cluster = StartSurviving();
  ASSERT_TRUE(cluster.ok);
  PortNode& node = *cluster.nodes[1];
  for (uint64_t i = 1; i <= 100; ++i) node.Send(LinkType::kPortToNode, Numbered(i, "x"));
  auto took = node.WaitForMessage<Took>(LinkType::kPortTook);
  ASSERT_TRUE(took.has_value());
  EXPECT_EQ(took->taken(), 64u);
  node.Send(LinkType::kPortToNode, Numbered(101, std::string(300 << 10, 'x')));
  took = node.WaitForMessage<Took>(LinkType::kPortTook);
  ASSERT_TRUE(took.has_value());
  EXPECT_EQ(took->taken(), 101u);
  node.Send(LinkType::kPortToNode, Numbered(102, "x"));
  EXPECT_TRUE(Eventually([&] {
    const auto report = node.WaitForMessage<Report>(LinkType::kPortReport);
    return report.has_value() && report->taken() == 102;
  }));
}

TEST(PortTest, ForgetsMemoryThatTheNextIrisdDoesNotList) {
  Cluster cluster = StartSurviving();
  ASSERT_TRUE(cluster.ok);
  PortNode& node = *cluster.nodes[1];
  PortRequester ring = cluster.nodes[0]->Requester(0);
  const auto put = [&](uint64_t at) { return ring.Wait(ring.Post(Put(1, at, 0, 8))); };
  const uint64_t half = node.heap_bytes() / 2;
  ASSERT_EQ(put(half), StatusCode::kOk);
  Resume resume = ResumeOf(node, 0);
  resume.mutable_segment_ids()->RemoveLast();
  node.Attach();
  node.Send(LinkType::kPortResume, resume);
  ASSERT_TRUE(node.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  EXPECT_EQ(put(0), StatusCode::kOk);
  ASSERT_TRUE(Eventually([&] { return put(half) == StatusCode::kOutOfRange; }));
  ASSERT_TRUE(node.AddMemory(1, 1, 9));
  ASSERT_TRUE(Eventually([&] { return put(half) == StatusCode::kOk; }));
  // A job that has broken meanwhile.
  node.CloseLink();
  node.Attach();
  resume.add_segment_ids(9);
  node.Send(LinkType::kPortResume, resume);
  node.Send(LinkType::kPortLayout, Layout());
  PortRequester own = node.Requester(1);
  EXPECT_TRUE(
      Eventually([&] { return own.Wait(own.Post(Put(0, 0, 0, 8))) == StatusCode::kAborted; }));
}

TEST(PortTest, AttachesByALinkOfTheSameVersionAlone) {
  Cluster cluster = StartSurviving();
  ASSERT_TRUE(cluster.ok);
  PortNode& node = *cluster.nodes[1];
  // Nonsense changes nothing.
  node.SendToAttach("nonsense", -1);
  node.SendToAttach(std::string(sizeof(server::PortAttach), 'x'), STDERR_FILENO);
  node.SendToAttach(std::string(5000, 'x'), -1);
  const server::PortAttach right = {.node_version = kProtocolVersion};
  node.SendToAttach(std::string(reinterpret_cast<const char*>(&right), sizeof(right)), -1);
  PortRequester ring = node.Requester(1);
  ASSERT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, 8))), StatusCode::kOk);
  ASSERT_TRUE(node.WaitForMessage<Report>(LinkType::kPortReport).has_value());
  // Of two links, the second counts, whether or not the first has ended.
  node.Attach();
  node.Attach();
  node.Send(LinkType::kPortResume, ResumeOf(node, 0));
  ASSERT_TRUE(node.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  node.Attach({.version = server::kPortLinkVersion + 1, .node_version = kProtocolVersion});
  const auto failed = node.WaitForMessage<Failed>(LinkType::kPortFailed);
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(absl::StrContains(failed->reason(), "versions 2 and")) << failed->reason();
  EXPECT_EQ(WEXITSTATUS(node.WaitForEnd()), 1);
}

TEST(PortTest, EndsOnceNoIrisdCanComeOrNoneHasCome) {
  Cluster cluster = Start(2, 1, nullptr, [](int node, PortNodeOptions* options) {
    options->survives = true;
    if (node == 1) options->setup.set_attach_ms(500);
  });
  ASSERT_TRUE(cluster.ok);
  PortNode& first = *cluster.nodes[0];
  PortNode& second = *cluster.nodes[1];
  PortRequester ring = second.Requester(1);
  second.CloseLink();
  ASSERT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, 8))), StatusCode::kOk);
  second.Attach();  // in time
  second.Send(LinkType::kPortResume, ResumeOf(second, 0));
  ASSERT_TRUE(second.WaitForMessage<Ready>(LinkType::kPortReady).has_value());
  absl::SleepFor(absl::Milliseconds(700));
  ASSERT_EQ(ring.Wait(ring.Post(Put(0, 0, 0, 8))), StatusCode::kOk);
  second.CloseLink();
  EXPECT_EQ(WEXITSTATUS(second.WaitForEnd()), 1);
  const auto lost = first.WaitForMessage<NodeState>(LinkType::kPortNode);
  EXPECT_TRUE(lost.has_value() && lost->lost());
  // The end of the socket alone does not matter while there is a link.
  first.CloseAttach();
  EXPECT_EQ(first.WaitForEnd(absl::Milliseconds(300)), -1);
  first.CloseLink();
  EXPECT_EQ(first.WaitForEnd(), 0);
}

int MappedFiles(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  int n = 0;
  for (std::string line; std::getline(maps, line);) n += absl::StrContains(line, "memfd:");
  return n;
}

TEST(PortTest, SaysWhichMemoryItHasAndGoesOnWithoutWhatItCannotMap) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  PortNode& node = *cluster.nodes[1];
  PortRequester ring = node.Requester(1);
  const auto covers = [&](uint64_t at, uint64_t bytes, uint32_t of = 1) {
    PortRequest request = Put(of, at, 0, bytes);
    request.op = PortOp::kCovers;
    return ring.Wait(ring.Post(request));
  };
  const uint64_t heap_bytes = node.heap_bytes(), half = heap_bytes / 2, above = 256 << 20;
  EXPECT_EQ(covers(0, heap_bytes), StatusCode::kOk);
  EXPECT_EQ(covers(8, heap_bytes), StatusCode::kOutOfRange);
  EXPECT_EQ(covers(~uint64_t{0}, 2), StatusCode::kOutOfRange);
  EXPECT_EQ(covers(0, 8, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(covers(above, 8), StatusCode::kOutOfRange);
  ASSERT_TRUE(node.AddMemory(1, 1, 100, above));
  EXPECT_TRUE(Eventually([&] { return covers(above, half) == StatusCode::kOk; }));
  ASSERT_TRUE(node.AddMemory(1, 0, 101, above + 4096));  // it overlaps the other one
  PortRequester sender = cluster.nodes[0]->Requester(0);
  Fill(cluster.nodes[0]->heap(0), kMiB, Seed());
  EXPECT_EQ(sender.Wait(sender.Post(Put(1, above, 0, kMiB))), StatusCode::kOk);
  EXPECT_EQ(memcmp(node.heap(1) + half, cluster.nodes[0]->heap(0), kMiB), 0);
  EXPECT_EQ(covers(above, half + 1), StatusCode::kOutOfRange);
  node.ForgetMemory(100);
  EXPECT_TRUE(Eventually([&] { return covers(above, 1) == StatusCode::kOutOfRange; }));
}

TEST(PortTest, MemoryGoesWhileOthersWriteToIt) {
  Cluster cluster = Start(2, 1);
  ASSERT_TRUE(cluster.ok);
  PortNode& target = *cluster.nodes[1];
  const uint64_t half = cluster.nodes[0]->heap_bytes() / 2;
  Fill(cluster.nodes[0]->heap(0), kMiB, Seed());
  PortRequester ring = cluster.nodes[0]->Requester(0);
  const auto put = [&](uint64_t at) { return ring.Wait(ring.Post(Put(1, at, 0, kMiB))); };
  ASSERT_EQ(put(half), StatusCode::kOk);
  const int mapped = MappedFiles(target.pid());
  std::atomic<bool> over = false;
  std::string error;
  uint64_t written = 0, refused = 0;
  std::thread writer([&] {
    while (!over && error.empty()) {
      // Four at once, and one that must be there.
      std::vector<uint64_t> numbers;
      for (int i = 0; i < 4; ++i) numbers.push_back(ring.Post(Put(1, half + i * 8, 0, kMiB)));
      if (put(kMiB) != StatusCode::kOk) error = "the other half was lost";
      for (const uint64_t number : numbers) {
        const StatusCode code = ring.Wait(number);
        written += code == StatusCode::kOk;
        refused += code == StatusCode::kOutOfRange;
        if (code != StatusCode::kOk && code != StatusCode::kOutOfRange) error = "another code";
      }
    }
  });
  uint64_t id = 4;
  for (int i = 0; i < 60; ++i) {
    absl::SleepFor(absl::Milliseconds(4));
    target.ForgetMemory(id);
    if (i % 2 == 0) absl::SleepFor(absl::Milliseconds(4));
    EXPECT_TRUE(target.AddMemory(1, 1, id = 100 + i));
  }
  over = true;
  writer.join();
  EXPECT_EQ(error, "");
  EXPECT_GT(written, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(put(half), StatusCode::kOk);
  EXPECT_EQ(memcmp(target.heap(1) + half, cluster.nodes[0]->heap(0), kMiB), 0);
  EXPECT_TRUE(Eventually([&] { return MappedFiles(target.pid()) == mapped; }));
  target.ForgetMemory(id);
  EXPECT_TRUE(Eventually([&] { return put(half) == StatusCode::kOutOfRange; }));
  EXPECT_TRUE(Eventually([&] { return MappedFiles(target.pid()) == mapped - 1; }));
  EXPECT_TRUE(Eventually([&] {  // the first reports are from the start
    const auto report = cluster.nodes[0]->WaitForMessage<Report>(LinkType::kPortReport);
    return report.has_value() && report->peers_size() == 1 &&
           absl::StrContains(report->peers(0).transport(), ", direct") == kDirect;
  }));
}

TEST(PortTest, ListensInTheRangeOfPortsAndOnTheInterface) {
  const std::string rendezvous = FreeLoopbackAddress();
  Cluster cluster = Start(2, 1, nullptr, [&](int, PortNodeOptions* options) {
    options->setup.set_rendezvous(rendezvous);
    options->setup.set_interface("lo");
    options->setup.set_port_min(21'300);
    options->setup.set_port_max(21'339);
  });
  ASSERT_TRUE(cluster.ok);
  for (const auto& node : cluster.nodes) {
    const std::vector<uint16_t> ports = ListeningPorts(node->pid());
    EXPECT_GE(ports.size(), 2u);
    for (const uint16_t port : ports) {
      EXPECT_TRUE((port >= 21'300 && port <= 21'339) ||
                  absl::EndsWith(rendezvous, absl::StrCat(":", port)))
          << port;
    }
  }
  PortRequester ring = cluster.nodes[0]->Requester(0);
  EXPECT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, kMiB))), StatusCode::kOk);
}

TEST(PortTest, WorksOverIpv6) {
  const std::string rendezvous = FreeLoopbackAddress();
  const std::string port = rendezvous.substr(rendezvous.rfind(':'));
  if (!std::ifstream("/proc/net/if_inet6").good()) GTEST_SKIP() << "there is no IPv6 here";
  Cluster cluster = Start(2, 1, nullptr, [&](int, PortNodeOptions* options) {
    options->setup.set_rendezvous("[::1]" + port);
  });
  ASSERT_TRUE(cluster.ok);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  EXPECT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, kMiB))), StatusCode::kOk);
}

TEST(PortTest, RefusesAnInterfaceAndALibraryThatAreNotThere) {
  PortNodeOptions options = NodeOf(0, 2, 1, FreeLoopbackAddress());
  options.setup.set_interface("wrong0");
  PortNode interface(options);
  auto failed = interface.WaitForMessage<Failed>(LinkType::kPortFailed);
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(absl::StrContains(failed->reason(), "\"wrong0\"; there are: lo (127.0.0.1)"))
      << failed->reason();
  options.setup.clear_interface();
  options.setup.set_ucx("/usr/lib/x86_64-linux-gnu/libucp.so.0");
  PortNode library(options);
  failed = library.WaitForMessage<Failed>(LinkType::kPortFailed);
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(absl::StrContains(failed->reason(), "1.20 or newer")) << failed->reason();
  EXPECT_TRUE(absl::StrContains(failed->reason(), "deploy/setup.sh")) << failed->reason();
}

TEST(PortTest, RunsAsAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can change the user";
  Cluster cluster =
      Start(2, 1, nullptr, [](int, PortNodeOptions* options) { options->as_nobody = true; });
  ASSERT_TRUE(cluster.ok);
  std::ifstream status(absl::StrCat("/proc/", cluster.nodes[0]->pid(), "/status"));
  const std::string text((std::istreambuf_iterator<char>(status)),
                         std::istreambuf_iterator<char>());
  EXPECT_TRUE(absl::StrContains(text, "Uid:\t65534\t65534\t65534")) << text;
  EXPECT_TRUE(absl::StrContains(text, "CapEff:\t0000000000000000")) << text;
  PortRequester ring = cluster.nodes[0]->Requester(0);
  EXPECT_EQ(ring.Wait(ring.Post(Put(1, 0, 0, kMiB))), StatusCode::kOk);
}

}  // namespace
}  // namespace iris::port
