// Cases of norms of sums, and their results by sums in double.
//
// The bounds, stated once. r is off by one rounding to its type and by (members + 1) * 2^-24 times
// the sum of the magnitudes, for the sums in f32. A normed value y is off by what r is off, by the
// factor and the weight; by (hidden + 16) * 2^-24 |y| for the mean, and by a rounding of r in the
// mean, 2 steps at most; and by one rounding to its type. fp8 adds half a unit of its last place.
//
// On several nodes, the sum of each node and that of all nodes are rounded, too: r is off by two
// more roundings of the sum of the magnitudes, and the factor by what the root mean square of r is
// off.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/host.h"
#include "iris/collective/collective.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/impl/fp8.h"
#include "iris/norm/norm.h"
#include "iris/share.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance::norm_cases {

using ccl::Comm;
using ccl::Operation;
using norm::Norm;
using norm::Plan;
using norm::Problem;
using norm::Scaling;
using norm::Variant;

inline constexpr Operation kAll = Operation::kAllReduceRmsNorm;
inline constexpr Operation kSharded = Operation::kReduceScatterRmsNormAllGather;

// A case as all members make it.
struct Case {
  Problem problem;
  uint32_t seed = 1;
  uint64_t shift = 0;     // elements by which buffers begin behind a multiple of 16 bytes
  uint64_t gap = 0;       // columns between rows, of all members but one of three; 0: none at all
  bool in_place = false;  // residual_out is the residual, and `out` is `in` where it can be
  bool apart = false;     // buffers of the odd members are not in the heap
  float scale = 0.0625f;  // kStatic
};

inline std::string Name(const Case& c) {
  const Problem& p = c.problem;
  return std::string(ccl::OperationName(p.operation)) + " " + norm::VariantName(p.variant) +
         " rows " + std::to_string(p.rows) + " hidden " + std::to_string(p.hidden) + " " +
         DTypeName(p.in) + " to " + DTypeName(p.out) + " weight " + DTypeName(p.weight) +
         (p.residual ? " residual " : " ") + norm::ScalingName(p.scaling) + " shift " +
         std::to_string(c.shift) + " gap " + std::to_string(c.gap) +
         (c.in_place ? " in place" : "") + (c.apart ? " apart" : "") + " seed " +
         std::to_string(c.seed);
}

inline constexpr uint32_t kResidualSeed = 77;
inline constexpr uint32_t kWeightSeed = 78;
inline constexpr uint8_t kGuard = 0xa5;
inline constexpr uint64_t kRoomBytes = 640 << 10;  // of each buffer
inline constexpr uint64_t kHeapBytes = backend::Traits::kEmulated ? 24 << 20 : 512 << 20;

inline uint64_t Groups(const Problem& p) {
  return p.scaling == Scaling::kPerRow ? 1
         : p.scaling == Scaling::kPerGroup
             ? (p.hidden + norm::kGroupColumns - 1) / norm::kGroupColumns
             : 0;
}

// A rank with a Comm and room for buffers, in its heap and outside.
class Member {
 public:
  Member(Rank& rank, const DeviceTeam& team, const ccl::Config& config) : rank_(rank) {
    ccl::CommOptions options;
    options.context = rank.ctx;
    options.team = team;
    options.config = config;
    options.workspace_bytes = ccl::WorkspaceBytes(team.size, config);
    options.workspace = rank.New<uint8_t>(options.workspace_bytes);
    report_ = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
    *report_ = {};
    options.report = report_;
    if (team.index < team.size) {
      RequireOk(ccl::CreateComm(options, &comm));
      ExpectOk(norm::Prepare());
    }
    for (uint32_t b = 0; b < kBuffers; ++b) {
      // At another offset on each member.
      in_heap_[b] = rank.New<uint8_t>(kRoomBytes + 4096) + team.index % 8 * 512;
      outside_[b] = static_cast<uint8_t*>(backend::MallocDevice(kRoomBytes));
    }
    rank.HostBarrier();
  }
  ~Member() {
    ccl::ReleaseComm(&comm);
    backend::FreeHost(report_);
    for (uint8_t* p : outside_) backend::FreeDevice(p);
  }

  Comm comm;
  const ccl::NodesComm* nodes = nullptr;  // over `comm`, if the team has ranks on several nodes

  uint32_t n() const { return nodes != nullptr ? nodes->size : comm.team.size; }
  uint32_t index() const { return nodes != nullptr ? nodes->index : comm.team.index; }
  Result Launch(const Norm& call) {
    return nodes != nullptr ? norm::LaunchOnNodes(*nodes, call, rank_.stream)
                            : norm::Launch(comm, call, rank_.stream);
  }
  Result CheckError() const {
    return nodes != nullptr ? ccl::CheckNodesError(*nodes) : ccl::CheckError(comm);
  }

  // Writes the buffers of a case, and says the call.
  Norm Fill(const Case& c) {
    const Problem& p = c.problem;
    const iris::Share own = Own(c);
    const uint64_t each = DTypeBytes(p.in);
    Norm call;
    call.problem = p;
    for (uint32_t b = 0; b < kBuffers; ++b) {
      rank_.Write(Room(c, b), std::vector<uint8_t>(RoomBytes(c), kGuard));
    }
    Write(At(c, kIn, each), p.in, p.rows, p.hidden, Stride(c),
          [&](uint64_t i, uint64_t j) { return ValueAt(c.seed * 8 + index(), i, j); });
    call.in_stride = call.out_stride = call.residual_stride = call.residual_out_stride = Stride(c);
    call.in = At(c, kIn, each);
    call.out = OutIsIn(c) ? At(c, kIn, each) : At(c, kOut, DTypeBytes(p.out));
    if (p.residual) {
      Write(At(c, kResidual, each), p.in, own.count, p.hidden, Stride(c),
            [&](uint64_t i, uint64_t j) {
              return ValueAt(c.seed + kResidualSeed, own.begin + i, j);
            });
      call.residual = At(c, kResidual, each);
      call.residual_out = c.in_place ? At(c, kResidual, each) : At(c, kResidualOut, each);
    }
    if (p.weight != DType::kNone) {
      Write(At(c, kWeight, DTypeBytes(p.weight)), p.weight, 1, p.hidden, p.hidden,
            [&](uint64_t, uint64_t j) { return ValueAt(c.seed + kWeightSeed, 0, j); });
      call.weight = At(c, kWeight, DTypeBytes(p.weight));
    }
    call.scales = reinterpret_cast<float*>(At(c, kScales, sizeof(float)));
    if (p.scaling == Scaling::kStatic) {
      rank_.Write(call.scales, c.scale);
      call.scale = call.scales;
    }
    return call;
  }

  void Run(const Case& c, const std::string& what) {
    const Norm call = Fill(c);
    rank_.HostBarrier();  // nobody writes to what is being filled
    const Result result = Launch(call);
    EXPECT_TRUE(result.ok()) << what << ": " << result.what;
    rank_.Synchronize();
    const Result error = CheckError();
    EXPECT_TRUE(error.ok()) << what << ": " << error.what;
    rank_.HostBarrier();
  }

  // What the operation has written and all members get: out, residual_out and the scales.
  std::vector<uint8_t> ReadAll(const Case& c) {
    const Problem& p = c.problem;
    std::vector<uint8_t> all = rank_.Read(Room(c, kScales), RoomBytes(c));
    const auto add = [&](uint32_t buffer, DType type) {
      const std::vector<uint8_t> bytes = rank_.Read(Room(c, buffer), RoomBytes(c));
      const uint64_t each = DTypeBytes(type);
      for (uint64_t i = 0; i < p.rows; ++i) {
        const auto row =
            bytes.begin() + static_cast<int64_t>(Begin(c, each) + i * Stride(c) * each);
        all.insert(all.end(), row, row + static_cast<int64_t>(p.hidden * each));
      }
    };
    add(OutIsIn(c) ? kIn : kOut, p.out);
    if (p.operation == kAll && p.residual) add(c.in_place ? kResidual : kResidualOut, p.in);
    return all;
  }

  // Whether all is what it has to be, and nothing around it was written. False after a failure.
  bool Check(const Case& c, const std::string& what) {
    const Problem& p = c.problem;
    const uint32_t members = n();
    const iris::Share own = Own(c);
    const uint64_t each = DTypeBytes(p.in);
    const auto step_of = [](DType type) {
      return type == DType::kF32 ? 0x1p-24 : type == DType::kF16 ? 0x1p-11 : 0x1p-8;
    };
    const double step = step_of(p.in);
    const uint64_t stride = Stride(c);
    std::vector<uint8_t> room[kBuffers];
    for (uint32_t b = 0; b < kBuffers; ++b) room[b] = rank_.Read(Room(c, b), RoomBytes(c));
    const auto fail = [&](const std::string& text) {
      ADD_FAILURE() << what << ": member " << index() << " of " << members << ": " << text;
      return false;
    };
    const uint8_t* const out =
        room[OutIsIn(c) ? kIn : kOut].data() + Begin(c, OutIsIn(c) ? each : DTypeBytes(p.out));
    const uint8_t* const residual_out =
        room[c.in_place ? kResidual : kResidualOut].data() + Begin(c, each);
    const uint8_t* const scales = room[kScales].data() + Begin(c, sizeof(float));
    std::vector<double> r(p.hidden), r_bound(p.hidden), y(p.hidden), y_bound(p.hidden);
    for (uint64_t i = 0; i < p.rows; ++i) {
      double squares = 0;
      double wrong_squares = 0;
      for (uint64_t j = 0; j < p.hidden; ++j) {
        double sum = 0, magnitude = 0;
        for (uint32_t m = 0; m < members; ++m) {
          const double value = ValueAt(c.seed * 8 + m, i, j);
          sum += value;
          magnitude += std::fabs(value);
        }
        if (p.residual) {
          const double value = ValueAt(c.seed + kResidualSeed, i, j);
          sum += value;
          magnitude += std::fabs(value);
        }
        r[j] = sum;
        r_bound[j] = step * std::fabs(sum) + (members + 1) * 0x1p-24 * magnitude;
        if (nodes != nullptr) r_bound[j] += 2.1 * step * magnitude;
        squares += sum * sum;
        wrong_squares += r_bound[j] * r_bound[j];
      }
      const double factor =
          1 / std::sqrt(squares / static_cast<double>(p.hidden) + double{p.epsilon});
      const double off =
          nodes == nullptr
              ? 0
              : 1.1 * factor * std::sqrt(wrong_squares / static_cast<double>(p.hidden));
      double most = 0;
      for (uint64_t j = 0; j < p.hidden; ++j) {
        const double weight =
            p.weight == DType::kNone
                ? 1
                : double{ValueAt(c.seed + kWeightSeed, 0, j)} + double{p.weight_offset};
        y[j] = r[j] * factor * weight;
        y_bound[j] =
            r_bound[j] * factor * std::fabs(weight) +
            std::fabs(y[j]) * (off + 2 * step + static_cast<double>(p.hidden + 16) * 0x1p-24);
        most = std::max(most, std::fabs(y[j]));
        if (p.residual && (p.operation == kAll || (i >= own.begin && i < own.begin + own.count))) {
          const uint64_t row = p.operation == kAll ? i : i - own.begin;
          const double got = ReadAs(p.in, residual_out + (row * stride + j) * each);
          if (!(std::fabs(got - r[j]) <= r_bound[j])) {
            return fail("r[" + std::to_string(i) + ", " + std::to_string(j) + "] is " +
                        std::to_string(got) + ", not " + std::to_string(r[j]));
          }
        }
      }
      for (uint64_t j = 0; j < p.hidden; ++j) {
        double scale = 1;
        double bound = y_bound[j];
        double value = y[j];
        if (p.scaling == Scaling::kNone) {
          // Behind the last number of f16 the next one is as far away as everywhere.
          bound += step_of(p.out) * std::fabs(value) + (p.out == DType::kF16 ? 0x1p-25 : 0);
        } else {
          const double largest = double{norm::impl::LargestOf(p.out)};
          scale = double{c.scale};
          if (p.scaling != Scaling::kStatic) {
            const uint64_t group = p.scaling == Scaling::kPerRow ? 0 : j / norm::kGroupColumns;
            scale = ReadAs(DType::kF32, scales + (i * Groups(p) + group) * sizeof(float));
            double in_group = most;
            double wrong = 0;
            const uint64_t first = p.scaling == Scaling::kPerRow ? 0 : group * norm::kGroupColumns;
            const uint64_t last = p.scaling == Scaling::kPerRow
                                      ? p.hidden
                                      : std::min<uint64_t>(p.hidden, first + norm::kGroupColumns);
            if (j == first) {
              in_group = 0;
              for (uint64_t e = first; e < last; ++e) {
                in_group = std::max(in_group, std::fabs(y[e]));
                wrong = std::max(wrong, y_bound[e]);
              }
              const double expected = in_group < 0x1p-100 ? 1 : in_group / largest;
              if (!(std::fabs(scale - expected) <= wrong / largest + expected * 0x1p-22)) {
                return fail("scale " + std::to_string(group) + " of row " + std::to_string(i) +
                            " is " + std::to_string(scale) + ", not " + std::to_string(expected));
              }
            }
          }
          value = std::max(-largest * scale, std::min(largest * scale, value));
          const bool e4m3 = p.out == DType::kF8E4M3;
          bound = bound * 1.2 + std::fabs(value) * (e4m3 ? 0x1.01p-4 : 0x1.01p-3) +
                  scale * (e4m3 ? 0x1p-10 : 0x1p-17);
        }
        const double got = ReadAs(p.out, out + (i * stride + j) * DTypeBytes(p.out)) * scale;
        if (!(std::fabs(got - value) <= bound)) {
          return fail("out[" + std::to_string(i) + ", " + std::to_string(j) + "] is " +
                      std::to_string(got) + ", not " + std::to_string(value) + " within " +
                      std::to_string(bound));
        }
      }
    }
    // What nobody may have written.
    struct Written {
      uint64_t rows, columns, stride, each;
    };
    const uint64_t narrow = DTypeBytes(p.out);
    const Written sizes[kBuffers] = {
        {p.rows, p.hidden, stride, each},
        {own.count, p.hidden, stride, each},
        {c.in_place ? 0 : own.count, p.hidden, stride, each},
        {1, p.weight == DType::kNone ? 0 : p.hidden, p.hidden,
         p.weight == DType::kNone ? 1 : DTypeBytes(p.weight)},
        {OutIsIn(c) ? 0 : p.rows, p.hidden, stride, narrow},
        {1, p.scaling == Scaling::kStatic ? 1 : p.rows * Groups(p), 0, sizeof(float)}};
    for (uint32_t b = 0; b < kBuffers; ++b) {
      const Written& size = sizes[b];
      const bool used = p.residual || (b != kResidual && b != kResidualOut);
      const uint64_t begin = Begin(c, size.each);
      for (uint64_t k = 0, row = 0; k < room[b].size(); ++k) {
        if (used && row < size.rows && k == begin + row * size.stride * size.each) {
          ++row;
          k += size.columns * size.each;
          // No gap: the next row is here.
          for (; row < size.rows && k == begin + row * size.stride * size.each; ++row) {
            k += size.columns * size.each;
          }
        }
        if (room[b][k] != kGuard) {
          return fail("byte " + std::to_string(k) + " of buffer " + std::to_string(b) +
                      " was written");
        }
      }
    }
    return true;
  }

 private:
  enum : uint32_t { kIn, kResidual, kResidualOut, kWeight, kOut, kScales, kBuffers };

  // Of each buffer, with guards around it.
  static uint64_t RoomBytes(const Case& c) {
    return 640 + c.problem.rows * (c.problem.hidden + c.gap) * sizeof(float);
  }
  uint64_t Stride(const Case& c) const { return c.problem.hidden + (index() % 3 == 1 ? 0 : c.gap); }
  static bool OutIsIn(const Case& c) { return c.in_place && c.problem.out == c.problem.in; }
  iris::Share Own(const Case& c) const {
    if (c.problem.operation == kAll) return {0, c.problem.rows};
    return iris::ShareOf(c.problem.rows, n(), index());
  }
  uint8_t* Room(const Case& c, uint32_t buffer) const {
    return c.apart && index() % 2 == 1 ? outside_[buffer] : in_heap_[buffer];
  }
  static uint64_t Begin(const Case& c, uint64_t element_bytes) {
    return 256 + c.shift * element_bytes;
  }
  uint8_t* At(const Case& c, uint32_t buffer, uint64_t element_bytes) const {
    return Room(c, buffer) + Begin(c, element_bytes);
  }
  void Write(uint8_t* to, DType type, uint64_t rows, uint64_t columns, uint64_t stride,
             const std::function<float(uint64_t, uint64_t)>& value) {
    const uint64_t each = DTypeBytes(type);
    if (rows == 0) return;
    std::vector<uint8_t> bytes(((rows - 1) * stride + columns) * each, kGuard);
    EXPECT_LE(bytes.size() + 640, kRoomBytes);
    for (uint64_t i = 0; i < rows; ++i) {
      for (uint64_t j = 0; j < columns; ++j) {
        Put(type, value(i, j), bytes.data() + (i * stride + j) * each);
      }
    }
    if (!bytes.empty()) rank_.Write(to, bytes);
  }

  Rank& rank_;
  ccl::ErrorReport* report_;
  uint8_t* in_heap_[kBuffers];
  uint8_t* outside_[kBuffers];
};

}  // namespace iris::conformance::norm_cases
