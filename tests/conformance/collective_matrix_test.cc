// Collectives: every operation x type x reduction x variant x number of members x size, in and out
// of place, aligned and not, against a reference on the host. Guards on both sides of the output.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "tests/conformance/collective_reference.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Config;
using ccl::Operation;

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kReduceScatter, Operation::kReduce, Operation::kAllGather,
    Operation::kAllToAll,  Operation::kBroadcast,     Operation::kGather, Operation::kScatter};
constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                                   ReduceOp::kAvg};
constexpr Variant kVariants[] = {Variant::kPackets,    Variant::kDirect,   Variant::kTwoShot,
                                 Variant::kTwoPackets, Variant::kTwoPhase, Variant::kCopyEngine,
                                 Variant::kRing,       Variant::kAtomic,   Variant::kSpinlock,
                                 Variant::kLines,      Variant::kTwoLines, Variant::kPush};

constexpr uint64_t kGuard = 8;  // elements on each side of an output

bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter ||
         operation == Operation::kReduce;
}

struct Case {
  Operation operation;
  DType type;
  ReduceOp op;
  Variant variant;
  uint64_t count;  // of a row
  uint32_t root;
  bool in_place;
  bool aligned;
  bool outside;  // of the heap
};

std::string Text(const Case& c, uint32_t n) {
  return std::string(ccl::OperationName(c.operation)) + " by " + ccl::VariantName(c.variant) +
         ", type " + std::to_string(static_cast<int>(c.type)) + ", op " +
         std::to_string(static_cast<int>(c.op)) + ", " + std::to_string(c.count) +
         " elements, root " + std::to_string(c.root) + " of " + std::to_string(n) +
         (c.in_place ? ", in place" : "") + (c.aligned ? "" : ", not aligned") +
         (c.outside ? ", outside the heap" : "");
}

// What all ranks have, and what sums have to be: the same for all counts.
template <typename T>
struct Values {
  Values(uint32_t n, uint64_t count, uint32_t n_ops = std::size(kReduceOps)) {
    for (uint32_t m = 0; m < n; ++m) {
      seeds.push_back(m);
      data.push_back(Data<T>(m, count));
    }
    for (uint32_t k = 0; k < n_ops; ++k) {
      reduced.push_back(ReferenceAll<T>(static_cast<ReduceOp>(k), seeds, count));
    }
  }
  std::vector<uint64_t> seeds;
  std::vector<std::vector<T>> data;
  std::vector<std::vector<T>> reduced;  // by ReduceOp
};

// A rank's memory: room for the rows of all members, in and out, in the heap and outside.
class Memory {
 public:
  Memory(Rank& rank, uint64_t elements) : bytes_((elements + 4 * kGuard) * sizeof(double)) {
    for (uint8_t*& area : areas_[0]) area = rank.New<uint8_t>(bytes_);
    for (uint8_t*& area : areas_[1]) area = static_cast<uint8_t*>(backend::MallocDevice(bytes_));
  }
  ~Memory() {
    for (uint8_t* area : areas_[1]) backend::FreeDevice(area);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T>
  T* At(bool outside, bool out) {
    return reinterpret_cast<T*>(areas_[outside ? 1 : 0][out ? 1 : 0]);
  }

 private:
  uint64_t bytes_;
  uint8_t* areas_[2][2];
};

template <typename T>
std::vector<T> Part(const std::vector<T>& values, uint64_t begin, uint64_t count) {
  return std::vector<T>(values.begin() + static_cast<int64_t>(begin),
                        values.begin() + static_cast<int64_t>(begin + count));
}

Result Start(const Comm& comm, const Case& c, const void* in, void* out, backend::Stream& stream) {
  switch (c.operation) {
    case Operation::kAllReduce:
      return ccl::AllReduce(comm, in, out, c.count, c.type, c.op, stream, c.variant);
    case Operation::kReduceScatter:
      return ccl::ReduceScatter(comm, in, out, c.count, c.type, c.op, stream, c.variant);
    case Operation::kReduce:
      return ccl::Reduce(comm, in, out, c.count, c.type, c.op, c.root, stream, c.variant);
    case Operation::kAllGather:
      return ccl::AllGather(comm, in, out, c.count, c.type, stream, c.variant);
    case Operation::kAllToAll:
      return ccl::AllToAll(comm, in, out, c.count, c.type, stream, c.variant);
    case Operation::kBroadcast:
      return ccl::Broadcast(comm, in, out, c.count, c.type, c.root, stream, c.variant);
    case Operation::kGather:
      return ccl::Gather(comm, in, out, c.count, c.type, c.root, stream, c.variant);
    default:
      return ccl::Scatter(comm, in, out, c.count, c.type, c.root, stream, c.variant);
  }
}

// What this rank has to have in `out`; nothing if it gets nothing.
template <typename T>
std::vector<T> Expected(const Case& c, const Values<T>& values, uint32_t n, uint32_t me) {
  const std::vector<T>& reduced = values.reduced[static_cast<size_t>(c.op)];
  std::vector<T> rows;
  switch (c.operation) {
    case Operation::kAllReduce:
      // Where nothing is rounded, the order does not show.
      if (c.variant != Variant::kRing || std::is_integral_v<T>) return Part(reduced, 0, c.count);
      return ExpectedOf<T>(c.variant, c.op, values.seeds, c.count);
    case Operation::kReduceScatter:
      return Part(reduced, me * c.count, c.count);
    case Operation::kReduce:
      return me == c.root ? Part(reduced, 0, c.count) : rows;
    case Operation::kBroadcast:
      return Part(values.data[c.root], 0, c.count);
    case Operation::kScatter:
      return Part(values.data[c.root], me * c.count, c.count);
    default:
      break;
  }
  if (c.operation == Operation::kGather && me != c.root) return rows;
  for (uint32_t m = 0; m < n; ++m) {
    const uint64_t from = c.operation == Operation::kAllToAll ? me * c.count : 0;
    const std::vector<T> row = Part(values.data[m], from, c.count);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

template <typename T>
void Check(Rank& rank, const Comm& comm, Memory& memory, const Case& c, const Values<T>& values) {
  const uint32_t n = rank.n();
  const uint32_t me = rank.rank();
  const bool is_root = me == c.root;
  // Rows of `in` that this rank has. In place, `out` is row `place` of it (out_is_part), or it is
  // row `place` of `out`.
  uint64_t in_rows = 1;
  uint64_t place = 0;
  bool out_is_part = false;
  switch (c.operation) {
    case Operation::kReduceScatter:
      in_rows = n;
      out_is_part = true;
      place = me;
      break;
    case Operation::kAllToAll:
      in_rows = n;
      break;
    case Operation::kScatter:
      in_rows = is_root ? n : 0;
      out_is_part = true;
      place = me;
      break;
    case Operation::kAllGather:
    case Operation::kGather:
      place = me;
      break;
    case Operation::kBroadcast:
      in_rows = is_root ? 1 : 0;
      break;
    default:
      break;
  }
  const std::vector<T> expected = Expected(c, values, n, me);
  // The copy engine's buffers are at the same place on all members.
  const uint64_t off = c.aligned ? 0 : c.variant == Variant::kCopyEngine ? 1 : 1 + me % 2;
  // In place the smaller lies in the larger one, which has the guards.
  const bool in_place = c.in_place && in_rows != 0 && !expected.empty();
  T* out = memory.At<T>(c.outside, true) + kGuard + off;
  T* in = memory.At<T>(c.outside, false) + kGuard + off;
  T* base = out;  // of what is guarded
  uint64_t guarded = expected.size();
  if (in_place && out_is_part) {
    base = in;
    guarded = in_rows * c.count;
    out = in + place * c.count;
  } else if (in_place) {
    in = out + place * c.count;
  }
  const T canary = T(77);
  rank.Write(base - kGuard, std::vector<T>(guarded + 2 * kGuard, canary));
  if (in_rows != 0) rank.Write(in, Part(values.data[me], 0, in_rows * c.count));
  const Result started = Start(comm, c, in_rows == 0 ? nullptr : in,
                               expected.empty() && c.count != 0 ? nullptr : out, rank.stream);
  EXPECT_TRUE(started.ok()) << Text(c, n) << ": " << started.what;
  const std::vector<T> got = rank.Read(base - kGuard, guarded + 2 * kGuard);
  // Nobody stops at a mistake: the others would wait for it.
  if (testing::Test::HasFailure()) return;
  const std::vector<T> made =
      Part(got, kGuard + static_cast<uint64_t>(out - base), expected.size());
  if (c.operation == Operation::kAllReduce && c.variant == Variant::kAtomic) {
    EXPECT_TRUE(Near(c.op, values.seeds, made, expected)) << Text(c, n);
  } else {
    EXPECT_TRUE(SameBits(made, expected)) << Text(c, n);
  }
  const std::vector<T> canaries(kGuard, canary);
  EXPECT_TRUE(SameBits(Part(got, 0, kGuard), canaries)) << "before: " << Text(c, n);
  EXPECT_TRUE(SameBits(Part(got, kGuard + guarded, kGuard), canaries)) << "behind: " << Text(c, n);
}

// Small, so that modest sizes use several blocks and several chunks.
Config SmallConfig() {
  Config config;
  config.max_blocks = 3;
  config.block_threads = 32;
  config.packet_bytes = 256;
  config.line_bytes = 8192;
  config.push_bytes = 4096;
  config.stage_bytes = 1024;
  return config;
}

class MatrixTest : public testing::TestWithParam<uint32_t> {};
// Races show with three ranks, and eight take minutes there.
#if defined(IRIS_TSAN)
INSTANTIATE_TEST_SUITE_P(Ranks, MatrixTest, testing::Values(3));
#else
INSTANTIATE_TEST_SUITE_P(Ranks, MatrixTest, testing::Values(1, 2, 3, 4, 5, 8));
#endif

template <typename T>
void CheckType(uint32_t n, DType type) {
  const uint64_t counts[] = {0, 1, 7, 1023, 1025};
  const uint64_t most = n * counts[std::size(counts) - 1];
  const Values<T> values(n, most);
  World(n, (1 << 20) + ccl::WorkspaceBytes(n, SmallConfig()) + 2 * most * sizeof(double))
      .Run([&](Rank& rank) {
        const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
        Memory memory(rank, most);
        rank.HostBarrier();
        uint32_t k = 0;
        for (Operation operation : kOperations) {
          for (Variant variant : kVariants) {
            if (!ccl::HasVariant(operation, variant)) continue;
            for (ReduceOp op : kReduceOps) {
              if (!Reduces(operation) && op != ReduceOp::kSum) continue;
              for (uint64_t count : counts) {
                for (bool in_place : {false, true}) {
                  if (in_place && operation == Operation::kAllToAll) continue;
                  for (bool aligned : {true, false}) {
                    if (count == 0 && !(aligned && in_place)) continue;
                    // Where it is slow, some of them.
                    if (++k % kSlower != 0) continue;
                    const bool outside = k / kSlower % 4 == 3 && variant != Variant::kCopyEngine;
                    const Case c = {operation, type,     op,      variant, count,
                                    k % n,     in_place, aligned, outside};
                    Check<T>(rank, comm, memory, c, values);
                  }
                }
              }
            }
          }
        }
        const Result checked = ccl::CheckError(comm);
        EXPECT_TRUE(checked.ok()) << checked.what;
      });
}

TEST_P(MatrixTest, F32) { CheckType<float>(GetParam(), DType::kF32); }
TEST_P(MatrixTest, F64) { CheckType<double>(GetParam(), DType::kF64); }
TEST_P(MatrixTest, F16) { CheckType<Half>(GetParam(), DType::kF16); }
TEST_P(MatrixTest, Bf16) { CheckType<Bfloat16>(GetParam(), DType::kBf16); }
TEST_P(MatrixTest, I32) { CheckType<int32_t>(GetParam(), DType::kI32); }
TEST_P(MatrixTest, I64) { CheckType<int64_t>(GetParam(), DType::kI64); }
TEST_P(MatrixTest, U8) { CheckType<uint8_t>(GetParam(), DType::kU8); }

// Twice as many loads at a time: rows of which a thread has several such turns, a usual one, and a
// rest; in the chunks of a pipeline one turn of two members.
template <typename T>
void CheckUnrolled(uint32_t n, DType type) {
  Config config = SmallConfig();
  config.max_blocks = 1;
  config.stage_bytes = 16 << 10;
  config.unroll = 2;
  constexpr uint64_t kRow = (3 * 4096 + 2048 + 3 * 16) / sizeof(T) + 1;
  const Values<T> values(n, n * kRow, /*n_ops=*/1);
  World(n, (1 << 20) + ccl::WorkspaceBytes(n, config) + 4 * n * kRow * sizeof(T))
      .Run([&](Rank& rank) {
        const Comm comm = rank.NewComm(rank.ctx.world, config);
        Memory memory(rank, n * kRow);
        rank.HostBarrier();
        uint32_t k = 0;
        for (Operation operation :
             {Operation::kAllReduce, Operation::kReduceScatter, Operation::kReduce,
              Operation::kAllGather, Operation::kBroadcast}) {
          const bool rows =
              operation == Operation::kReduceScatter || operation == Operation::kAllGather;
          for (Variant variant : kVariants) {
            if (!ccl::HasVariant(operation, variant)) continue;
            ++k;
            const Case c = {
                operation, type,       ReduceOp::kSum, variant,          rows ? kRow : n * kRow,
                k % n,     k % 2 == 0, k % 3 != 0,     /*outside=*/false};
            Check<T>(rank, comm, memory, c, values);
          }
        }
        const Result checked = ccl::CheckError(comm);
        EXPECT_TRUE(checked.ok()) << checked.what;
      });
}

TEST_P(MatrixTest, UnrolledF32) { CheckUnrolled<float>(GetParam(), DType::kF32); }
TEST_P(MatrixTest, UnrolledF16) { CheckUnrolled<Half>(GetParam(), DType::kF16); }
TEST_P(MatrixTest, UnrolledBf16) { CheckUnrolled<Bfloat16>(GetParam(), DType::kBf16); }

// 1 MiB and three bytes, with the workspace that a user has.
TEST_P(MatrixTest, AMebibyteAndABit) {
  const uint32_t n = GetParam();
  constexpr uint64_t kBytes = (1 << 20) + 3;
  const Values<uint8_t> values(n, kBytes, /*n_ops=*/1);
  World(n, (1 << 20) + ccl::WorkspaceBytes(n) + 2 * 8 * (kBytes + 4 * kGuard)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    Memory memory(rank, kBytes);
    rank.HostBarrier();
    uint32_t k = 0;
    for (Operation operation : kOperations) {
      const bool rows = operation != Operation::kAllReduce && operation != Operation::kReduce &&
                        operation != Operation::kBroadcast;
      for (Variant variant : kVariants) {
        if (!ccl::HasVariant(operation, variant)) continue;
        ++k;
        const Case c = {operation,
                        DType::kU8,
                        ReduceOp::kSum,
                        variant,
                        rows ? kBytes / n : kBytes,
                        k % n,
                        k % 2 == 0 && operation != Operation::kAllToAll,
                        k % 3 != 0,
                        k % 4 == 3 && variant != Variant::kCopyEngine};
        Check<uint8_t>(rank, comm, memory, c, values);
      }
    }
    const Result checked = ccl::CheckError(comm);
    EXPECT_TRUE(checked.ok()) << checked.what;
  });
}

}  // namespace
}  // namespace iris::conformance
