// Cases of products of matrices with their communication, and their results by sums in double.
//
// The bound, stated once: sums are in f32, in any order over k and the members, so that an element
// is off by at most (k of all members + members + 8) * 2^-23 times the sum of the magnitudes;
// activations are nowhere steeper than 1.13; and D is rounded once. kPair rounds the part of each
// member to the type of D, too, and once before it adds the bias; on several nodes it also rounds
// the sum of each node.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/nodes/nodes.h"
#include "iris/ops/ops.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {

using ccl::Comm;
using ccl::Operation;
using ops::Activation;
using ops::Matmul;
using ops::Problem;
using ops::Share;
using ops::ShareOf;
using ops::Variant;

inline constexpr Operation kOperations[] = {
    Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter, Operation::kAllGatherMatmul,
    Operation::kMatmulAllGather, Operation::kMatmulAllScatter};

inline bool Reduces(Operation operation) {
  return operation == Operation::kMatmulAllReduce || operation == Operation::kMatmulReduceScatter;
}
inline bool ToAll(Operation operation) {
  return operation != Operation::kMatmulReduceScatter && operation != Operation::kAllGatherMatmul;
}

// A case as all members make it. k and n of a member may be its own.
struct Case {
  Problem problem;
  uint32_t seed = 1;
  uint64_t pad = 0;    // of leading dimensions
  uint64_t shift = 0;  // elements by which matrices begin behind a multiple of 256 bytes
  bool alike = false;  // all members' k and n are, so that auto takes one variant on all of them
};

struct Local {
  Problem problem;  // of this member
  uint64_t a_rows, columns, d_rows;
  uint64_t first_row, first_column;  // of what this member has, in the whole
};

inline Local LocalOf(const Case& c, uint32_t members, uint32_t m) {
  Local local;
  local.problem = c.problem;
  if (Reduces(c.problem.operation) && !c.alike) local.problem.k += 3 * m;
  if (c.problem.operation == Operation::kAllGatherMatmul && !c.alike) local.problem.n += 5 * m;
  const Problem& p = local.problem;
  const Share rows = ShareOf(p.m, members, m);
  const Share columns = ShareOf(p.n, members, m);
  const bool own_rows =
      p.operation == Operation::kAllGatherMatmul || p.operation == Operation::kMatmulAllGather;
  const bool own_columns = p.operation == Operation::kMatmulAllScatter;
  local.a_rows = own_rows ? rows.count : p.m;
  local.first_row = own_rows || p.operation == Operation::kMatmulReduceScatter ? rows.begin : 0;
  local.columns = own_columns ? columns.count : p.n;
  local.first_column = own_columns ? columns.begin : 0;
  local.d_rows = p.operation == Operation::kMatmulReduceScatter ? rows.count : p.m;
  return local;
}

// Seeds of what members have: the same where the operation says that they are parts of one matrix.
inline uint32_t SeedA(const Case& c, uint32_t m) {
  return c.seed * 8 + (Reduces(c.problem.operation) ? 1000 * (m + 1) : 0);
}
inline uint32_t SeedB(const Case& c, uint32_t m) {
  const Operation operation = c.problem.operation;
  const bool own = Reduces(operation) || operation == Operation::kAllGatherMatmul;
  return c.seed * 8 + 1 + (own ? 1000 * (m + 1) : 0);
}
inline uint32_t SeedBias(const Case& c) { return c.seed * 8 + 2; }

inline double ActivationOf(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

// What member m's D has to be: its elements in double, each with the bound of its error.
struct Expected {
  std::vector<double> values;
  std::vector<double> bounds;
};

inline Expected ExpectedOf(const Case& c, uint32_t members, uint32_t m, bool on_nodes = false) {
  const Local local = LocalOf(c, members, m);
  const Problem& p = local.problem;
  const uint64_t first = p.operation == Operation::kMatmulReduceScatter ? local.first_row : 0;
  const uint64_t n = p.n;
  std::vector<double> sums(local.d_rows * n);
  std::vector<double> magnitudes(local.d_rows * n);
  uint64_t depth = 0;
  for (uint32_t from = 0; from < (Reduces(p.operation) ? members : 1); ++from) {
    const uint32_t who = Reduces(p.operation) ? from : m;
    const uint64_t k = LocalOf(c, members, who).problem.k;
    std::vector<double> row(k), columns(n * k);
    for (uint64_t j = 0; j < n; ++j) {
      for (uint64_t e = 0; e < k; ++e) columns[j * k + e] = ValueAt(SeedB(c, who), e, j);
    }
    for (uint64_t i = 0; i < local.d_rows; ++i) {
      for (uint64_t e = 0; e < k; ++e) row[e] = ValueAt(SeedA(c, who), first + i, e);
      for (uint64_t j = 0; j < n; ++j) {
        const double* const x = row.data();
        const double* const y = columns.data() + j * k;
        double sum = 0, magnitude = 0;
        for (uint64_t e = 0; e < k; ++e) {
          sum += x[e] * y[e];
          magnitude += std::fabs(x[e] * y[e]);
        }
        sums[i * n + j] += sum;
        magnitudes[i * n + j] += magnitude;
      }
    }
    depth += k;
  }
  const double step = p.out == DType::kF32 ? 0x1p-23 : p.out == DType::kF16 ? 0x1p-11 : 0x1p-8;
  Expected expected;
  for (uint64_t at = 0; at < sums.size(); ++at) {
    const double bias = p.bias == DType::kNone ? 0 : double{ValueAt(SeedBias(c), 0, at % n)};
    const double magnitude = magnitudes[at] + std::fabs(bias) + 1;
    const double value = ActivationOf(p.activation, sums[at] + bias);
    const double f32 = static_cast<double>(depth + members + 8) * 0x1p-23 * magnitude;
    // Sums travel in D's type: once between each two members.
    const double parts = p.variant == Variant::kFused || p.variant == Variant::kCopyEngine ? 0
                         : p.variant == Variant::kPair ? (on_nodes ? 3 : 2) * step * magnitude
                                                       : members * step * magnitude;
    expected.values.push_back(value);
    expected.bounds.push_back(1.13 * (f32 + parts) + step * std::fabs(value) + 0x1p-24);
  }
  return expected;
}

inline constexpr uint8_t kGuard = 0xa5;
inline constexpr uint64_t kRoomBytes = 1 << 20;  // of each matrix

// A rank with a Comm, its workspace, and room for matrices.
class Member {
 public:
  Member(Rank& rank, const DeviceTeam& team, uint64_t ops_bytes, const ccl::Config& config = {},
         bool places_differ = false)
      : rank_(rank) {
    ccl::CommOptions options;
    options.context = rank.ctx;
    options.team = team;
    options.config = config;
    const uint64_t plain = ccl::WorkspaceBytes(team.size, config);
    options.workspace_bytes = plain + ops_bytes;
    options.workspace = rank.New<uint8_t>(options.workspace_bytes);
    report_ = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
    *report_ = {};
    options.report = report_;
    ExpectOk(ops::CreateResources(&resources_));
    options.products = resources_.get();
    if (team.index < team.size) {
      RequireOk(ccl::CreateComm(options, &comm));
      ExpectOk(ops::Prepare());
    }
    a_ = rank.New<uint8_t>(kRoomBytes);
    b_ = rank.New<uint8_t>(kRoomBytes);
    bias_ = rank.New<uint8_t>(kRoomBytes);
    // At the same offset on each member, or at another one.
    d_ = rank.New<uint8_t>(kRoomBytes + 4096) + (places_differ ? team.index % 8 * 512 : 0);
    rank.HostBarrier();
  }
  ~Member() {
    ccl::ReleaseComm(&comm);
    backend::FreeHost(report_);
  }

  Comm comm;
  const ccl::NodesComm* nodes = nullptr;  // over `comm`: calls are those of its ranks

  uint32_t n() const { return nodes != nullptr ? nodes->size : comm.team.size; }
  uint32_t index() const { return nodes != nullptr ? nodes->index : comm.team.index; }

  // Writes the matrices of a case, and says the call.
  Matmul Fill(const Case& c) {
    const uint32_t m = index();
    const Local local = LocalOf(c, n(), m);
    const Problem& p = local.problem;
    Matmul call;
    call.problem = p;
    // A persistent product wants multiples of 8.
    const auto padded = [&](uint64_t row) {
      return p.variant == Variant::kPersistent ? (row + 7) / 8 * 8 + c.pad : row + c.pad;
    };
    call.lda = padded(p.k);
    call.ldb = padded(p.transposed_b ? p.k : local.columns);
    call.ldd = p.n + c.pad;
    // Rows of A: of a share they count from its begin.
    const uint64_t first = p.operation == Operation::kMatmulReduceScatter ? 0 : local.first_row;
    Write(a_, p.in, c.shift, local.a_rows, p.k, call.lda,
          [&](uint64_t i, uint64_t e) { return ValueAt(SeedA(c, m), first + i, e); });
    const auto b = [&](uint64_t e, uint64_t j) {
      return ValueAt(SeedB(c, m), e, local.first_column + j);
    };
    if (p.transposed_b) {
      Write(b_, p.in, c.shift, local.columns, p.k, call.ldb,
            [&](uint64_t j, uint64_t e) { return b(e, j); });
    } else {
      Write(b_, p.in, c.shift, p.k, local.columns, call.ldb, b);
    }
    if (p.bias != DType::kNone) {
      Write(bias_, p.bias, c.shift, 1, local.columns, local.columns,
            [&](uint64_t, uint64_t j) { return ValueAt(SeedBias(c), 0, local.first_column + j); });
    }
    rank_.Write(d_, std::vector<uint8_t>(DBytes(c), kGuard));
    call.a = a_ + c.shift * DTypeBytes(p.in);
    call.b = b_ + c.shift * DTypeBytes(p.in);
    call.bias = bias_ + c.shift * DTypeBytes(p.bias == DType::kNone ? p.in : p.bias);
    call.d = d_ + DBegin(c);
    return call;
  }

  std::vector<uint8_t> ReadD(const Case& c) { return rank_.Read(d_, DBytes(c)); }

  // Whether D is what it has to be, and nothing around it was written. False after a failure.
  bool Check(const Case& c, const std::vector<uint8_t>& bytes, const std::string& what) {
    const uint32_t members = n();
    const uint32_t m = index();
    const Local local = LocalOf(c, members, m);
    const Problem& p = local.problem;
    const uint64_t each = DTypeBytes(p.out);
    const uint64_t ldd = p.n + c.pad;
    std::vector<uint8_t> rest = bytes;
    const Expected expected = ExpectedOf(c, members, m, nodes != nullptr);
    for (uint64_t i = 0; i < local.d_rows; ++i) {
      for (uint64_t j = 0; j < p.n; ++j) {
        const uint64_t at = DBegin(c) + (i * ldd + j) * each;
        const double value = expected.values[i * p.n + j];
        const double bound = expected.bounds[i * p.n + j];
        const double got = ReadAs(p.out, bytes.data() + at);
        std::memset(rest.data() + at, kGuard, each);
        if (!(std::fabs(got - value) <= bound)) {
          ADD_FAILURE() << what << ": member " << m << " of " << members << ", D[" << i << ", " << j
                        << "] is " << got << ", not " << value << " within " << bound;
          return false;
        }
      }
    }
    for (uint64_t i = 0; i < rest.size(); ++i) {
      if (rest[i] == kGuard) continue;
      ADD_FAILURE() << what << ": member " << m << ": byte " << i << " around D was written";
      return false;
    }
    return true;
  }

  void Run(const Case& c, const std::string& what) {
    const Matmul call = Fill(c);
    rank_.HostBarrier();  // nobody writes to a D that is being filled
    const Result result = Launch(call);
    EXPECT_TRUE(result.ok()) << what << ": " << result.what;
    rank_.Synchronize();
    const Result error = CheckError();
    EXPECT_TRUE(error.ok()) << what << ": " << error.what;
    rank_.HostBarrier();
  }

  Result Launch(const Matmul& call) {
    return nodes != nullptr ? ops::LaunchOnNodes(*nodes, call, rank_.stream)
                            : ops::Launch(comm, call, rank_.stream);
  }
  Result CheckError() const {
    return nodes != nullptr ? ccl::CheckNodesError(*nodes) : ccl::CheckError(comm);
  }

 private:
  // D is in the middle of guards.
  static uint64_t DBegin(const Case& c) { return 256 + c.shift * DTypeBytes(c.problem.out); }
  uint64_t DBytes(const Case& c) const {
    const Local local = LocalOf(c, n(), index());
    const uint64_t bytes =
        DBegin(c) + 256 + local.d_rows * (local.problem.n + c.pad) * DTypeBytes(c.problem.out);
    EXPECT_LE(bytes, kRoomBytes);
    return bytes;
  }
  void Write(uint8_t* to, DType type, uint64_t shift, uint64_t rows, uint64_t columns, uint64_t ld,
             const std::function<float(uint64_t, uint64_t)>& value) {
    const uint64_t each = DTypeBytes(type);
    // What lies between rows is not a number: nobody may read it.
    std::vector<uint8_t> bytes((shift + rows * ld + 8) * each, 0xff);
    EXPECT_LE(bytes.size(), kRoomBytes);
    for (uint64_t i = 0; i < rows; ++i) {
      for (uint64_t j = 0; j < columns; ++j) {
        Put(type, value(i, j), bytes.data() + (shift + i * ld + j) * each);
      }
    }
    rank_.Write(to, bytes);
  }

  Rank& rank_;
  ccl::ErrorReport* report_;
  std::unique_ptr<ops::Resources> resources_;
  uint8_t* a_;
  uint8_t* b_;
  uint8_t* bias_;
  uint8_t* d_;
};

inline std::string Name(const Case& c) {
  const Problem& p = c.problem;
  return std::string(ccl::OperationName(p.operation)) + " " + ops::VariantName(p.variant) + " m " +
         std::to_string(p.m) + " n " + std::to_string(p.n) + " k " + std::to_string(p.k) + " " +
         DTypeName(p.in) + " to " + DTypeName(p.out) + " bias " + DTypeName(p.bias) +
         (p.transposed_b ? " transposed " : " ") + ops::ActivationName(p.activation) + " pad " +
         std::to_string(c.pad) + " shift " + std::to_string(c.shift);
}

}  // namespace iris::conformance
