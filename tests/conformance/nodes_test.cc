// Collectives of teams with ranks on several nodes, which a PortThread simulates: all operations,
// types, sizes and paths against a reference on the host, and failures.
#include "iris/nodes/nodes.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/collective_reference.h"
#include "tests/conformance/nodes_team.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Call;
using ccl::NodesConfig;
using ccl::NodesErrorInfo;
using ccl::NodesPath;
using ccl::Operation;

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kReduceScatter, Operation::kReduce, Operation::kAllGather,
    Operation::kAllToAll,  Operation::kBroadcast,     Operation::kGather, Operation::kScatter};
constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                                   ReduceOp::kAvg};

struct Case {
  Operation operation;
  uint64_t count;
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = 0;
  bool in_place = false;
  bool outside = false;  // of the heap
};

// The contract: the sum of each node, rounded to T, then the sum of those.
template <typename T>
T NodesReference(ReduceOp op, const std::vector<std::vector<T>>& by_node, uint32_t n) {
  std::vector<T> all;
  std::vector<T> parts;
  const ReduceOp inner = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  for (const std::vector<T>& values : by_node) {
    all.insert(all.end(), values.begin(), values.end());
    parts.push_back(Reference(inner, values));
  }
  if (op != ReduceOp::kAvg) return Reference(op, parts);
  if constexpr (std::is_same_v<T, uint8_t>) {
    return Reference(op, all);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(Reference(ReduceOp::kSum, parts) / static_cast<T>(n));
  } else {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    A sum = static_cast<A>(parts[0]);
    for (size_t b = 1; b < parts.size(); ++b) sum = sum + static_cast<A>(parts[b]);
    return static_cast<T>(sum / static_cast<A>(n));
  }
}

// Row `row` of the input of rank m.
template <typename T>
T Input(uint64_t seed, uint32_t m, uint64_t i) {
  return ValueOf<T>(seed * 64 + m, i);
}

template <typename T>
T Reduced(const Team& team, const Case& c, uint64_t seed, uint64_t i) {
  std::vector<std::vector<T>> by_node(team.comm.n_nodes);
  for (uint32_t m = 0; m < team.n(); ++m) by_node[team.nodes[m]].push_back(Input<T>(seed, m, i));
  return NodesReference(c.op, by_node, team.n());
}

template <typename T>
std::vector<T> ExpectedOf(const Team& team, const Case& c, uint64_t seed) {
  std::vector<T> out;
  const uint64_t n = c.count;
  const auto row = [&](uint32_t m, uint64_t r) {
    for (uint64_t i = 0; i < n; ++i) out.push_back(Input<T>(seed, m, r * n + i));
  };
  const bool at_root = team.index == c.root;
  switch (c.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
      for (uint64_t i = 0; i < n && (c.operation != Operation::kReduce || at_root); ++i) {
        out.push_back(Reduced<T>(team, c, seed, i));
      }
      break;
    case Operation::kReduceScatter:
      for (uint64_t i = 0; i < n; ++i) out.push_back(Reduced<T>(team, c, seed, team.index * n + i));
      break;
    case Operation::kAllGather:
    case Operation::kGather:
      for (uint32_t m = 0; m < team.n() && (c.operation != Operation::kGather || at_root); ++m) {
        row(m, 0);
      }
      break;
    case Operation::kBroadcast:
      row(c.root, 0);
      break;
    case Operation::kScatter:
      row(c.root, team.index);
      break;
    default:
      for (uint32_t m = 0; m < team.n(); ++m) row(m, team.index);
  }
  return out;
}

uint32_t InRows(Operation operation, uint32_t n) {
  return operation == Operation::kReduceScatter || operation == Operation::kScatter ||
                 operation == Operation::kAllToAll
             ? n
             : 1;
}
uint32_t OutRows(Operation operation, uint32_t n) {
  return operation == Operation::kAllGather || operation == Operation::kGather ||
                 operation == Operation::kAllToAll
             ? n
             : 1;
}

// The memory of a rank for cases of up to so many bytes of input or output, with a guard.
class Memory {
 public:
  static constexpr uint64_t kGuardBytes = 64;
  Memory(Rank& rank, uint64_t bytes) : rank_(rank) {
    for (uint8_t*& area : areas_[0]) area = rank.New<uint8_t>(bytes + kGuardBytes);
    for (uint8_t*& area : areas_[1]) {
      area = static_cast<uint8_t*>(backend::MallocDevice(bytes + kGuardBytes));
    }
  }
  ~Memory() {
    for (uint8_t* area : areas_[1]) backend::FreeDevice(area);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Runs a case of type T and compares the result with the reference.
  template <typename T>
  void Try(const Team& team, const Case& c, uint64_t seed) {
    const uint32_t n = team.n();
    T* in = reinterpret_cast<T*>(areas_[c.outside][0]);
    T* out = reinterpret_cast<T*>(areas_[c.outside][1]);
    const uint64_t in_count = InRows(c.operation, n) * c.count;
    const uint64_t out_count = OutRows(c.operation, n) * c.count;
    if (c.in_place) {
      if (InRows(c.operation, n) > 1) out = in + team.index * c.count;
      if (OutRows(c.operation, n) > 1) in = out + team.index * c.count;
      if (InRows(c.operation, n) == 1 && OutRows(c.operation, n) == 1) out = in;
    }
    std::vector<T> guard(kGuardBytes / sizeof(T), T{});
    std::vector<T> values;
    for (uint64_t i = 0; i < in_count; ++i) values.push_back(Input<T>(seed, team.index, i));
    rank_.Write(out, std::vector<T>(out_count, T{}));
    if (!c.in_place) rank_.Write(out + out_count, guard);
    rank_.Write(in, values);
    Call call;
    call.operation = c.operation;
    call.count = c.count;
    call.type = DTypeOf<T>();
    call.op = c.op;
    call.in = in;
    call.out = out;
    call.root = c.root;
    ExpectOk(ccl::RunOnNodes(team.comm, call, rank_.stream));
    const std::vector<T> expected = ExpectedOf<T>(team, c, seed);
    EXPECT_TRUE(SameBits(rank_.Read(out, expected.size()), expected))
        << ccl::OperationName(c.operation) << " of " << c.count << " " << DTypeName(DTypeOf<T>())
        << ", " << ccl::ReduceOpName(c.op) << ", root " << c.root
        << (c.in_place ? ", in place" : "") << (c.outside ? ", outside the heap" : "") << ", rank "
        << rank_.rank() << " of " << team.comm.n_nodes << " nodes";
    if (!c.in_place) {
      EXPECT_TRUE(SameBits(rank_.Read(out + out_count, guard.size()), guard));
    }
    ExpectOk(ccl::CheckNodesError(team.comm));
  }

  void* in(bool outside = false) { return areas_[outside][0]; }
  void* out(bool outside = false) { return areas_[outside][1]; }

 private:
  Rank& rank_;
  uint8_t* areas_[2][2];
};

// Runs body(rank, team, memory) on all ranks of the team.
template <typename Body>
void OnTeam(const Shape& shape, const NodesConfig& config, Body body, uint64_t bytes = 256 << 10) {
  World(OptionsOf(shape)).Run([&](Rank& rank) {
    Team team(rank, shape, config);
    Memory memory(rank, bytes);
    if (team.index != ~0u) body(rank, team, memory);
    rank.HostBarrier();
  });
}

// All operations with one type, of sizes up to several pieces.
template <typename T>
void TryAll(const Shape& shape, const NodesConfig& config, const std::vector<uint64_t>& counts) {
  OnTeam(shape, config, [&](Rank&, const Team& team, Memory& memory) {
    uint64_t seed = 0;
    for (const Operation operation : kOperations) {
      for (const uint64_t count : counts) {
        Case c = {operation, count};
        c.root = static_cast<uint32_t>(++seed % team.n());
        c.in_place = operation != Operation::kAllToAll && seed % 2 == 0;
        c.outside = seed / 2 % 2 == 0;
        c.op = kReduceOps[seed % std::size(kReduceOps)];
        memory.Try<T>(team, c, seed);
      }
    }
  });
}

const std::vector<uint64_t> kCounts = kSlower > 4
                                          ? std::vector<uint64_t>{37, 1025}
                                          : std::vector<uint64_t>{0, 1, 3, 37, 1024, 1025, 2500};

TEST(NodesTest, LeadersOfTwoNodes) {
  TryAll<float>({2, 2}, SmallPieces(NodesPath::kLeaders), kCounts);
  TryAll<uint8_t>({2, 3}, SmallPieces(NodesPath::kLeaders), {1, 37, 5000});
}
TEST(NodesTest, LeadersOfThreeNodes) {
  TryAll<Half>({3, 2}, SmallPieces(NodesPath::kLeaders), kCounts);
  TryAll<int64_t>({3, 1}, SmallPieces(NodesPath::kLeaders), kCounts);
}
TEST(NodesTest, RailsOfTwoNodes) {
  TryAll<float>({2, 2}, SmallPieces(NodesPath::kRails), kCounts);
  TryAll<Bfloat16>({2, 3}, SmallPieces(NodesPath::kRails), kCounts);
  TryAll<double>({2, 1}, SmallPieces(NodesPath::kRails), kCounts);
}
TEST(NodesTest, RailsOfThreeNodes) {
  TryAll<int32_t>({3, 2}, SmallPieces(NodesPath::kRails), kCounts);
  TryAll<Half>({3, 1, {}, 9, 30}, SmallPieces(NodesPath::kRails), kCounts);
  TryAll<uint8_t>({3, 2}, SmallPieces(NodesPath::kRails), {1, 37, 4097});
}

TEST(NodesTest, AllReduceOfManyPieces) {
  for (const uint32_t direct_nodes : {1u, 8u}) {
    OnTeam({3, 2}, SmallPieces(NodesPath::kRails, direct_nodes),
           [](Rank&, const Team& team, Memory& memory) {
             for (const ReduceOp op : kReduceOps) {
               if (kSlower > 4 && op != ReduceOp::kAvg) continue;
               for (const uint64_t count :
                    {uint64_t{6}, uint64_t{8191 / kSlower}, uint64_t{30000 / kSlower + 8}}) {
                 Case c = {Operation::kAllReduce, count, op};
                 c.in_place = op == ReduceOp::kMin;
                 memory.Try<float>(team, c, count);
                 memory.Try<Bfloat16>(team, c, count);
               }
             }
           });
  }
}

TEST(NodesTest, UnevenTeams) {
  const NodesConfig config = SmallPieces(NodesPath::kAuto);
  TryAll<float>({2, 3, {0, 1, 2, 4}}, config, {1, 37, 1100});
  TryAll<int32_t>({3, 2, {5, 0, 1, 3}}, config, {1, 37, 1100});
}

TEST(NodesTest, TeamsOfSomeRanks) {
  TryAll<float>({3, 2, {1, 3, 5}}, SmallPieces(NodesPath::kAuto), {1, 37, 1100});
  TryAll<float>({3, 2, {2, 3, 4, 5}}, SmallPieces(NodesPath::kAuto), {1, 37, 1100});
}

TEST(NodesTest, TheChoiceOfPaths) {
  NodesConfig config;
  config.leaders_most_bytes = 4096;
  config.leaders_most_bytes_of[static_cast<uint32_t>(Operation::kBroadcast)] = 8192;
  config.piece_bytes = 64 << 10;
  OnTeam({2, 2}, config, [](Rank&, const Team& team, Memory& memory) {
    EXPECT_EQ(ccl::ChoosePath(team.comm, {Operation::kAllReduce, 1024, DType::kF32}),
              NodesPath::kLeaders);
    EXPECT_EQ(ccl::ChoosePath(team.comm, {Operation::kAllReduce, 1025, DType::kF32}),
              NodesPath::kRails);
    EXPECT_EQ(ccl::ChoosePath(team.comm, {Operation::kAllGather, 257, DType::kF32}),
              NodesPath::kRails);
    EXPECT_EQ(ccl::ChoosePath(team.comm, {Operation::kBroadcast, 2048, DType::kF32}),
              NodesPath::kLeaders);
    EXPECT_EQ(ccl::ChoosePath(team.comm, {Operation::kBroadcast, 2049, DType::kF32}),
              NodesPath::kRails);
    for (const Operation operation : kOperations) {
      for (const uint64_t count : {uint64_t{50}, uint64_t{7000}}) {
        memory.Try<float>(team, {operation, count}, count);
      }
    }
  });
}

// Inboxes are used again and again, while ranks are apart by as much as they may be.
TEST(NodesTest, ManyCallsWithoutABarrier) {
  OnTeam({2, 2, {}, 11, 20}, SmallPieces(NodesPath::kAuto),
         [](Rank& rank, const Team& team, Memory& memory) {
           constexpr uint32_t kMost = 3000;
           const uint32_t n_calls = 1000 / kSlower;
           auto* const x = static_cast<uint32_t*>(memory.in());
           auto* const all = static_cast<uint32_t*>(memory.out());
           rank.Write(x, std::vector<uint32_t>(kMost, rank.rank() + 1));
           // Each sum multiplies all elements by four times their mean.
           uint32_t expected = 0;
           for (uint32_t k = 0; k < n_calls; ++k) {
             const uint64_t count = k % 7 == 0 ? kMost : k % 3 + 1;
             Call call = {{Operation::kAllReduce, count, DType::kI32}, x, x};
             if (k % 5 == 4) call = {{Operation::kAllGather, count / 8 + 1, DType::kI32}, x, all};
             if (k % 11 == 5) call = {{Operation::kBarrier}};
             if (k % 13 == 7) {
               call = {{Operation::kBroadcast, count, DType::kI32}, x, x, k % team.n()};
             }
             ExpectOk(ccl::RunOnNodes(team.comm, call, rank.stream));
             if (call.operation == Operation::kAllReduce) {
               expected = k == 0 ? 1 + 2 + 3 + 4 : expected * 4;
             }
           }
           EXPECT_EQ(rank.Read(x), expected);
           ExpectOk(ccl::CheckNodesError(team.comm));
         });
}

TEST(NodesTest, GraphsReplay) {
  OnTeam({2, 2}, SmallPieces(NodesPath::kAuto), [](Rank& rank, const Team& team, Memory& memory) {
    auto* const x = static_cast<uint32_t*>(memory.in());
    rank.Write(x, std::vector<uint32_t>(5000, 1));
    rank.Synchronize();
    backend::Graph graph;
    ExpectOk(backend::BeginCapture(rank.stream));
    for (const uint64_t count : {uint64_t{5000}, uint64_t{5}}) {
      ExpectOk(ccl::RunOnNodes(team.comm, {{Operation::kAllReduce, count, DType::kI32}, x, x},
                               rank.stream));
    }
    ExpectOk(backend::EndCapture(rank.stream, &graph));
    uint32_t expected = 1;
    for (uint32_t k = 0; k < 5; ++k) {
      ExpectOk(backend::LaunchGraph(graph, rank.stream));
      expected *= 16;
    }
    EXPECT_EQ(rank.Read(x), expected);
    EXPECT_EQ(rank.Read(x + 4999), 1024u);
    ExpectOk(ccl::CheckNodesError(team.comm));
  });
}

// Messages.

// Each rank sends to each, itself included, two messages of other lengths, in one call.
TEST(NodesTest, MessagesBetweenAllRanks) {
  for (const bool outside : {false, true}) {
    OnTeam(
        {2, 2, {}, 3, 10}, SmallPieces(NodesPath::kAuto),
        [&](Rank& rank, const Team& team, Memory& memory) {
          auto* const in = static_cast<uint32_t*>(memory.in(outside));
          auto* const out = static_cast<uint32_t*>(memory.out(outside));
          const uint32_t n = team.n();
          const auto length = [](uint32_t from, uint32_t to, uint32_t k) {
            return 1 + (from * 7 + to * 3 + k) % 5 * 1200;
          };
          constexpr uint32_t kRoom = 6000;
          std::vector<uint32_t> values(2 * n * kRoom);
          for (uint32_t i = 0; i < values.size(); ++i) values[i] = rank.rank() << 24 | i;
          rank.Write(in, values);
          rank.Write(out, std::vector<uint32_t>(values.size(), 0));
          for (int round = 0; round < 3; ++round) {
            std::vector<ccl::Message> messages;
            for (uint32_t m = 0; m < n; ++m) {
              for (uint32_t k = 0; k < 2; ++k) {
                messages.push_back(
                    {in + (2 * m + k) * kRoom, nullptr, length(team.index, m, k), DType::kI32, m});
              }
            }
            for (uint32_t m = 0; m < n; ++m) {
              for (uint32_t k = 0; k < 2; ++k) {
                messages.push_back(
                    {nullptr, out + (2 * m + k) * kRoom, length(m, team.index, k), DType::kI32, m});
              }
            }
            ExpectOk(ccl::ExchangeOnNodes(team.comm, messages.data(),
                                          static_cast<uint32_t>(messages.size()), rank.stream));
          }
          const std::vector<uint32_t> got = rank.Read(out, values.size());
          ExpectOk(ccl::CheckNodesError(team.comm));
          for (uint32_t m = 0; m < n; ++m) {
            for (uint32_t k = 0; k < 2; ++k) {
              for (uint32_t i = 0; i < kRoom; ++i) {
                const uint32_t sent = team.ranks[m] << 24 | ((2 * team.index + k) * kRoom + i);
                ASSERT_EQ(got[(2 * m + k) * kRoom + i], i < length(m, team.index, k) ? sent : 0)
                    << m << " " << k << " " << i;
              }
            }
          }
        },
        2 * 4 * 6000 * sizeof(uint32_t));
  }
}

// Pairs of ranks send without the others, and collectives follow.
TEST(NodesTest, SendsAndCollectivesMix) {
  OnTeam({2, 3, {5, 0, 1, 3}}, SmallPieces(NodesPath::kAuto),
         [](Rank& rank, const Team& team, Memory& memory) {
           auto* const x = static_cast<uint32_t*>(memory.in());
           rank.Write(x, std::vector<uint32_t>(5000, team.index));
           for (uint32_t k = 0; k < 20; ++k) {
             const uint32_t from = k % team.n();
             const uint32_t to = (from + 1 + k / team.n() % (team.n() - 1)) % team.n();
             ccl::Message message = {nullptr, nullptr, 5000, DType::kI32, 0};
             if (team.index == from) message.in = x, message.peer_index = to;
             if (team.index == to) message.out = x, message.peer_index = from;
             if (team.index == from || team.index == to) {
               ExpectOk(ccl::ExchangeOnNodes(team.comm, &message, 1, rank.stream));
             }
             if (k % 4 == 3)
               ExpectOk(ccl::RunOnNodes(team.comm, {{Operation::kBarrier}}, rank.stream));
           }
           std::vector<uint32_t> values = {0, 1, 2, 3};
           for (uint32_t k = 0; k < 20; ++k) {
             const uint32_t from = k % team.n();
             values[(from + 1 + k / team.n() % (team.n() - 1)) % team.n()] = values[from];
           }
           EXPECT_EQ(rank.Read(x + 4999), values[team.index]);
           ExpectOk(ccl::CheckNodesError(team.comm));
         });
}

TEST(NodesTest, RowsOfAnyLength) {
  OnTeam({3, 2}, SmallPieces(NodesPath::kAuto), [](Rank& rank, const Team& team, Memory& memory) {
    const uint32_t n = team.n();
    auto* const in = static_cast<uint16_t*>(memory.in());
    auto* const out = static_cast<uint16_t*>(memory.out());
    constexpr uint64_t kRoom = 4096;
    const auto length = [](uint32_t from, uint32_t to) { return (from * 5 + to * 3) % 4 * 1365; };
    std::vector<uint16_t> values(n * kRoom);
    for (uint32_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint16_t>(team.index * 10007 + i);
    }
    rank.Write(in, values);
    std::vector<uint64_t> to_counts, to_offsets, from_counts, from_offsets;
    for (uint32_t m = 0; m < n; ++m) {
      to_counts.push_back(length(team.index, m));
      to_offsets.push_back(m * kRoom);
      from_counts.push_back(length(m, team.index));
      from_offsets.push_back((n - 1 - m) * kRoom);
    }
    Call call = {{Operation::kAllToAllV, 0, DType::kU16}, in, out};
    call.to = {to_counts.data(), to_offsets.data()};
    call.from = {from_counts.data(), from_offsets.data()};
    ExpectOk(ccl::RunOnNodes(team.comm, call, rank.stream));
    ExpectOk(ccl::RunOnNodes(team.comm, call, rank.stream));
    const std::vector<uint16_t> got = rank.Read(out, n * kRoom);
    ExpectOk(ccl::CheckNodesError(team.comm));
    for (uint32_t m = 0; m < n; ++m) {
      for (uint32_t i = 0; i < length(m, team.index); ++i) {
        ASSERT_EQ(got[from_offsets[m] + i],
                  static_cast<uint16_t>(m * 10007 + team.index * kRoom + i));
      }
    }
  });
}

// Failures.

TEST(NodesTest, MessagesOfOtherLengthsAreNamed) {
  OnTeam({2, 2}, SmallPieces(NodesPath::kAuto), [](Rank& rank, const Team& team, Memory& memory) {
    if (team.index == 1 || team.index == 2) return;
    ccl::Message message = {nullptr, nullptr, 5, DType::kI32, 3 - team.index};
    if (team.index == 0) message.out = memory.out();
    if (team.index == 3) message.in = memory.in(), message.count = 6;
    ExpectOk(ccl::ExchangeOnNodes(team.comm, &message, 1, rank.stream));
    rank.Synchronize();
    if (team.index != 0) return;  // the sender has done its part
    NodesErrorInfo info;
    EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kInvalidArgument);
    EXPECT_EQ(info.member_index, 3u);
  });
}

TEST(NodesTest, AbortEndsTheWaits) {
  World world(OptionsOf({2, 2}));
  world.Run([&](Rank& rank) {
    Team team(rank, {2, 2}, SmallPieces(NodesPath::kAuto));
    Memory memory(rank, 64 << 10);
    // The other node does not come. It frees nothing meanwhile: that would wait for all kernels.
    if (rank.rank() >= 2) return rank.HostBarrier();
    for (const uint64_t count : {uint64_t{9000}, uint64_t{5}}) {
      ExpectOk(ccl::RunOnNodes(
          team.comm, {{Operation::kAllReduce, count, DType::kF32}, memory.in(), memory.out()},
          rank.stream));
    }
    world.Abort();
    (void)rank.stream.Synchronize();
    NodesErrorInfo info;
    EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kAborted);
    EXPECT_EQ(info.operation, Operation::kAllReduce);
    EXPECT_EQ(ccl::RunOnNodes(team.comm, {{Operation::kBarrier}}, rank.stream).code,
              StatusCode::kFailedPrecondition);
    rank.HostBarrier();
  });
}

void MissRanks(const std::vector<uint32_t>& missing, const Call& what,
               const std::vector<uint32_t>& named) {
  local::WorldOptions options = OptionsOf({2, 2});
  options.timeout_ns = 600 * 1000 * 1000;
  World(options).Run([&](Rank& rank) {
    Team team(rank, {2, 2}, SmallPieces(NodesPath::kAuto));
    Memory memory(rank, 64 << 10);
    rank.HostBarrier();
    if (std::find(missing.begin(), missing.end(), rank.rank()) != missing.end()) {
      return rank.HostBarrier();
    }
    Call call = what;
    call.in = memory.in();
    call.out = memory.out();
    ExpectOk(ccl::RunOnNodes(team.comm, call, rank.stream));
    rank.Synchronize();
    NodesErrorInfo info;
    EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kDeadlineExceeded);
    EXPECT_NE(std::find(named.begin(), named.end(), info.member_index), named.end())
        << "rank " << rank.rank() << " names " << info.member_index;
    rank.HostBarrier();
  });
}

TEST(NodesTest, AMissingNodeIsNamed) {
  MissRanks({2, 3}, {{Operation::kBarrier}}, {2, 3});
  MissRanks({2, 3}, {{Operation::kAllReduce, 3000, DType::kF32}}, {2, 3});
}

// A rank of node 1 is missing: its own node says so, and tells the others.
TEST(NodesTest, AMissingRankOfAnotherNodeIsNamed) {
  MissRanks({3}, {{Operation::kAllReduce, 5, DType::kF32}}, {3});
  MissRanks({3}, {{Operation::kAllReduce, 3000, DType::kF32}}, {3});
}

TEST(NodesTest, CallsThatDifferBetweenNodesAreNamed) {
  for (const uint64_t count : {uint64_t{5}, uint64_t{3000}}) {
    OnTeam({2, 2}, SmallPieces(NodesPath::kAuto),
           [&](Rank& rank, const Team& team, Memory& memory) {
             const uint64_t mine = count + team.comm.node;
             ExpectOk(ccl::RunOnNodes(
                 team.comm, {{Operation::kAllReduce, mine, DType::kF32}, memory.in(), memory.out()},
                 rank.stream));
             rank.Synchronize();
             NodesErrorInfo info;
             EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kInvalidArgument);
             EXPECT_TRUE(info.has_calls);
             EXPECT_EQ(ccl::Unpack(info.mine).count, mine);
             EXPECT_EQ(ccl::Unpack(info.theirs).count, 2 * count + 1 - mine);
           });
  }
}

TEST(NodesTest, CallsThatDifferWithinANodeFailOnAllNodes) {
  OnTeam({2, 2}, SmallPieces(NodesPath::kAuto), [&](Rank& rank, const Team& team, Memory& memory) {
    const uint64_t mine = rank.rank() == 3 ? 3002 : 3000;
    ExpectOk(ccl::RunOnNodes(
        team.comm, {{Operation::kAllReduce, mine, DType::kF32}, memory.in(), memory.out()},
        rank.stream));
    rank.Synchronize();
    EXPECT_EQ(ccl::CheckNodesError(team.comm).code, StatusCode::kInvalidArgument);
  });
}

// The ranks of node 1 fail among themselves before the part of an operation between nodes.
TEST(NodesTest, AFailureBeforeAPartIsToldToAllNodes) {
  for (const uint64_t count : {uint64_t{5}, uint64_t{3000}}) {
    OnTeam(
        {2, 2}, SmallPieces(NodesPath::kAuto), [&](Rank& rank, const Team& team, Memory& memory) {
          const Call call = {
              {Operation::kAllReduce, count, DType::kF32}, memory.in(), memory.out()};
          Call other = call;
          other.count += rank.rank();
          const bool fails = team.comm.node == 1;
          if (fails) {
            ExpectOk(ccl::Run(team.comm.local, other, rank.stream));
            rank.Synchronize();
          }
          const ccl::PackedCall whole = {{static_cast<uint32_t>(Operation::kMatmulAllReduce), 7}};
          EXPECT_EQ(ccl::RunPartOnNodes(team.comm, whole, call, rank.stream).code,
                    fails ? StatusCode::kFailedPrecondition : StatusCode::kOk);
          rank.Synchronize();
          NodesErrorInfo info;
          EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kInvalidArgument);
          EXPECT_EQ(info.operation, Operation::kMatmulAllReduce);
          EXPECT_EQ(info.elsewhere, !fails);
        });
  }
}

TEST(NodesTest, ACommIsUsableAgainAfterAReset) {
  OnTeam({2, 2}, SmallPieces(NodesPath::kAuto), [&](Rank& rank, const Team& team, Memory& memory) {
    ExpectOk(ccl::RunOnNodes(
        team.comm,
        {{Operation::kAllReduce, 3000u + team.comm.node, DType::kF32}, memory.in(), memory.out()},
        rank.stream));
    rank.Synchronize();
    EXPECT_FALSE(ccl::CheckNodesError(team.comm).ok());
    Recover(rank, team.comm);
    for (const uint64_t count : {uint64_t{3000}, uint64_t{5}}) {
      memory.Try<float>(team, {Operation::kAllReduce, count}, count);
    }
  });
}

TEST(NodesTest, WrongArgumentsAreRefused) {
  OnTeam({2, 2}, SmallPieces(NodesPath::kAuto), [](Rank& rank, const Team& team, Memory& memory) {
    float* const x = static_cast<float*>(memory.in());
    const auto run = [&](Call call) { return ccl::RunOnNodes(team.comm, call, rank.stream).code; };
    EXPECT_EQ(run({{Operation::kBroadcast, 1, DType::kF32}, x, x, 4}),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(run({{Operation::kAllReduce, 1, DType::kF32}, nullptr, x}),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(run({{Operation::kAllReduce, 8, DType::kF32}, x, x + 1}),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(run({{Operation::kAllReduce, 1, DType::kF8E4M3}, x, x}), StatusCode::kUnimplemented);
    EXPECT_EQ(run({{Operation::kMoeDispatch, 1, DType::kF32}, x, x}), StatusCode::kUnimplemented);
    EXPECT_EQ(
        run({{Operation::kAllReduce, 1, DType::kF32},
             reinterpret_cast<const float*>(rank.ctx.base + rank.rank() * rank.ctx.stride_bytes +
                                            team.comm.workspace_offset_bytes),
             x}),
        StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace iris::conformance
