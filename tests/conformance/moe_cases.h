// Cases of MoE dispatch and combine, and a plain reference.
//
// What experts make of a row is a small multiple of it that all types have, and weights are
// sixteenths, so that all sums are exact in f32: what comes back is compared bit by bit, with one
// rounding for each member's sum and one for the whole. Rows of f8e4m3 are compared with the bound
// that iris/moe/moe.h states.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"
#include "iris/moe/moe.h"
#include "iris/nodes/nodes.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance::moe_cases {

using ccl::Comm;
using ccl::Operation;
using conformance::Mix;
using moe::Combine;
using moe::Config;
using moe::Dispatch;
using moe::Sizes;

inline uint32_t Mix(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return Mix(a ^ Mix(b ^ Mix(c ^ Mix(d + 0x9e3779b9u))));
}

enum class Routing { kAnywhere, kOneExpert, kEvenExperts, kOften, kNowhere };

struct Case {
  Config config;
  Routing routing = Routing::kAnywhere;
  uint32_t seed = 1;
  bool weights = true;
  bool sources = true;  // without them, what a member has for itself goes through no inbox
  DType ids_type = DType::kI32;
  DType y_type = DType::kF32;
  DType out_type = DType::kF32;
  uint32_t shift = 0;            // elements by which buffers begin behind a multiple of 256 bytes
  std::vector<uint32_t> tokens;  // of each member; from the seed where it has none
};

inline uint32_t TokensOf(const Case& c, uint32_t m) {
  if (m < c.tokens.size()) return c.tokens[m];
  return Mix(c.seed, m, 1, 0) % (c.config.max_tokens + 1);
}

inline std::string Name(const Case& c, uint32_t members) {
  const Config& g = c.config;
  return std::to_string(members) + " members, " + std::to_string(g.n_experts) + " experts, top " +
         std::to_string(g.top_k) + ", hidden " + std::to_string(g.hidden) + ", capacity " +
         std::to_string(g.capacity) + ", " + DTypeName(g.in) + " as " + DTypeName(g.rows) +
         ", back as " + DTypeName(g.partials) + ", routing " +
         std::to_string(static_cast<int>(c.routing)) + ", seed " + std::to_string(c.seed);
}

// The choices of a token.
inline std::vector<int64_t> ChoicesOf(const Case& c, uint32_t m, uint32_t t) {
  const uint32_t n = c.config.n_experts;
  std::vector<int64_t> all;
  for (uint32_t e = 0; e < n; ++e) {
    if (c.routing == Routing::kEvenExperts && e % 2 == 1 && n > 1) continue;
    all.push_back(e);
  }
  std::vector<int64_t> ids(c.config.top_k, -1);
  if (c.routing == Routing::kNowhere) return ids;
  if (c.routing == Routing::kOneExpert) {
    ids[Mix(c.seed, m, t, 3) % ids.size()] = n - 1;
    return ids;
  }
  for (uint32_t j = 0; j < ids.size() && !all.empty(); ++j) {
    const uint32_t bits = Mix(c.seed, m, t, 10 + j);
    if (c.routing == Routing::kAnywhere && bits % 7 == 0) continue;
    const size_t pick = (bits >> 8) % all.size();
    ids[j] = all[pick];
    all.erase(all.begin() + static_cast<int64_t>(pick));
  }
  return ids;
}

inline float XAt(const Case& c, uint32_t m, uint32_t t, uint32_t column) {
  const uint32_t bits = Mix(c.seed, m, t, 1000 + column);
  const float value = static_cast<float>(static_cast<int32_t>(bits % 33) - 16) / 8;
  // Where rows are rounded, other numbers than such as need no rounding, and very different ones.
  if (c.config.rows != DType::kF8E4M3) return value;
  return value * (1.0f + static_cast<float>(bits >> 16 & 255) / 256) *
         std::ldexp(1.0f, -static_cast<int>(bits >> 24 & 15));
}
inline float WeightAt(const Case& c, uint32_t m, uint32_t t, uint32_t j) {
  if (!c.weights) return 1;
  return static_cast<float>(Mix(c.seed, m, t, 500 + j) % 17) / 16;
}
// What expert e makes of a row.
inline float YAt(const Case& c, uint32_t m, uint32_t t, uint32_t column, int64_t e) {
  const uint32_t bits = Mix(c.seed, m, t, 1000 + column);
  const float value = static_cast<float>(static_cast<int32_t>(bits % 33) - 16) / 8;
  return value * static_cast<float>(e % 5 + 1) + static_cast<float>(e % 64) / 8;
}

inline uint32_t BitsOf(DType type, float value) {
  if (type == DType::kF16) return backend::HalfBitsOf(value);
  if (type == DType::kBf16) return backend::BfloatBitsOf(value);
  return backend::BitCast<uint32_t>(value);
}
inline float FloatOf(DType type, uint32_t bits) {
  if (type == DType::kF16) return backend::FloatOfHalf(static_cast<uint16_t>(bits));
  if (type == DType::kBf16) return backend::BitCast<float>(bits << 16);
  return backend::BitCast<float>(bits);
}
inline float Rounded(DType type, float value) { return FloatOf(type, BitsOf(type, value)); }
inline float FloatOf8(uint8_t bits) {
  const float sign = (bits & 0x80) != 0 ? -1 : 1;
  const int exponent = bits >> 3 & 15;
  const float mantissa = static_cast<float>(bits & 7);
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

inline void Put(std::vector<uint8_t>* bytes, uint64_t i, DType type, float value) {
  const uint32_t bits = BitsOf(type, value);
  std::memcpy(bytes->data() + i * DTypeBytes(type), &bits, DTypeBytes(type));
}
// A row that an expert gets.
struct RowOf {
  uint32_t member;
  uint32_t token;
};
// Of each expert, in order; the capacity not looked at.
inline std::vector<std::vector<RowOf>> RowsOf(const Case& c, uint32_t members) {
  std::vector<std::vector<RowOf>> rows(c.config.n_experts);
  for (uint32_t m = 0; m < members; ++m) {
    for (uint32_t t = 0; t < TokensOf(c, m); ++t) {
      for (const int64_t id : ChoicesOf(c, m, t)) {
        if (id >= 0) rows[static_cast<size_t>(id)].push_back({m, t});
      }
    }
  }
  return rows;
}

// One member's side of cases of one config.
class Member {
 public:
  Member(Rank& rank, const DeviceTeam& team, const Case& c, const ccl::Config& config = {})
      : Member(rank, team, c, rank.NewComm(team, config)) {}
  Member(Rank& rank, const DeviceTeam& team, const Case& c, const Comm& its_comm)
      : Member(rank, team.size, team.index, c, its_comm) {}
  // `its_nodes` is over `its_comm`, if the team has ranks on several nodes.
  Member(Rank& rank, uint32_t size, uint32_t index, const Case& c, const Comm& its_comm,
         const ccl::NodesComm* its_nodes = nullptr)
      : rank_(rank), case_(c), members_(size), comm(its_comm), nodes(its_nodes) {
    uint64_t most_rows = 0;
    for (uint32_t m = 0; m < members_; ++m) {
      Sizes each;
      ExpectOk(moe::SizesOf(members_, m, c.config, &each, nodes != nullptr));
      // A rank that is no member allocates as the first one.
      if (m == (index < size ? index : 0)) sizes = each;
      if (each.max_rows > most_rows) most_rows = each.max_rows;
    }
    me_ = index;
    const Config& g = c.config;
    rows_type_ = g.rows == DType::kNone ? g.in : g.rows;
    // Every member allocates as much as any.
    const uint64_t pad = 4096;
    const uint64_t x_bytes = uint64_t{g.max_tokens} * g.hidden * 4 + pad;
    const uint64_t scale_columns = (g.hidden + 127) / 128;
    workspace = rank.New<uint8_t>(sizes.workspace_bytes);
    x_ = rank.New<uint8_t>(x_bytes);
    out_ = rank.New<uint8_t>(x_bytes);
    x_scales_ = rank.New<float>(g.max_tokens * scale_columns + 1);
    ids_ = rank.New<uint8_t>(uint64_t{g.max_tokens} * g.top_k * 8 + pad);
    weights_ = rank.New<float>(uint64_t{g.max_tokens} * g.top_k + 1);
    rows_ = rank.New<uint8_t>(most_rows * g.hidden * 4 + pad);
    y_ = rank.New<uint8_t>(most_rows * g.hidden * 4 + pad);
    scales_ = rank.New<float>(most_rows * scale_columns + 1);
    sources_ = rank.New<int32_t>(most_rows + 1);
    counts_ = rank.New<int32_t>(g.n_experts + 1);
    offsets_ = rank.New<int32_t>(g.n_experts + 1);
    dropped_ = rank.New<int32_t>(g.n_experts + 1);
  }

  // Writes what this member gives, and marks what it gets.
  void Fill(const Case& c) {
    case_ = c;
    const Config& g = c.config;
    const uint32_t tokens = TokensOf(c, me_);
    const uint64_t scale_columns = (g.hidden + 127) / 128;
    std::vector<uint8_t> x(uint64_t{tokens} * g.hidden * DTypeBytes(g.in));
    std::vector<float> x_scales(tokens * scale_columns);
    std::vector<int64_t> wide;
    std::vector<int32_t> narrow;
    std::vector<float> weights;
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t column = 0; column < g.hidden; ++column) {
        const uint64_t i = uint64_t{t} * g.hidden + column;
        if (g.in == DType::kF8E4M3) {
          x[i] = ByteAt(me_, t, column);
        } else {
          Put(&x, i, g.in, XAt(c, me_, t, column));
        }
      }
      for (uint32_t s = 0; s < scale_columns; ++s)
        x_scales[t * scale_columns + s] = ScaleAt(me_, t, s);
      uint32_t j = 0;
      for (const int64_t id : ChoicesOf(c, me_, t)) {
        wide.push_back(id);
        narrow.push_back(static_cast<int32_t>(id));
        weights.push_back(WeightAt(c, me_, t, j++));
      }
    }
    if (tokens != 0) {
      rank_.Write(XBegin(), x);
      rank_.Write(x_scales_, x_scales);
      if (c.ids_type == DType::kI64) {
        rank_.Write(reinterpret_cast<int64_t*>(ids_), wide);
      } else {
        rank_.Write(reinterpret_cast<int32_t*>(ids_), narrow);
      }
      rank_.Write(weights_, weights);
    }
    rank_.Write(rows_, std::vector<uint8_t>(RowsBytes(), kMark));
    rank_.Write(workspace + sizes.rows_at_bytes, std::vector<uint8_t>(InboxBytes(), kMark));
    rank_.Write(out_, std::vector<uint8_t>(OutBytes(), kMark));
    rank_.Write(sources_, std::vector<int32_t>(sizes.max_rows + 1, -7));
    rank_.Write(counts_, std::vector<int32_t>(sizes.local_experts + 1, -7));
    rank_.Write(dropped_, std::vector<int32_t>(sizes.local_experts + 1, -7));
  }

  moe::Dispatch MakeDispatch() const {
    moe::Dispatch call;
    call.tokens = TokensOf(case_, me_);
    call.x = XBegin();
    if (case_.config.in == DType::kF8E4M3) call.x_scales = x_scales_;
    call.ids = ids_;
    call.ids_type = case_.ids_type;
    if (case_.weights) call.weights = weights_;
    call.rows = RowsBegin();
    if (rows_type_ == DType::kF8E4M3) call.scales = scales_;
    call.counts = counts_;
    call.offsets = offsets_;
    call.dropped = dropped_;
    if (case_.sources) call.sources = sources_;
    return call;
  }
  moe::Combine MakeCombine() const {
    moe::Combine call;
    call.tokens = TokensOf(case_, me_);
    call.y = y_;
    call.y_type = case_.y_type;
    call.out = out_ + case_.shift * DTypeBytes(case_.out_type);
    call.out_type = case_.out_type;
    return call;
  }
  Result Dispatch() {
    const moe::Dispatch call = MakeDispatch();
    return nodes != nullptr
               ? moe::LaunchDispatchOnNodes(*nodes, case_.config, workspace, call, rank_.stream)
               : moe::LaunchDispatch(comm, case_.config, workspace, call, rank_.stream);
  }
  Result Combine() {
    const moe::Combine call = MakeCombine();
    return nodes != nullptr
               ? moe::LaunchCombineOnNodes(*nodes, case_.config, workspace, call, rank_.stream)
               : moe::LaunchCombine(comm, case_.config, workspace, call, rank_.stream);
  }

  Result CheckError() const {
    return nodes != nullptr ? ccl::CheckNodesError(*nodes) : ccl::CheckError(comm);
  }

  // Looks at what Dispatch gave, and writes what the experts make of it.
  void CheckRows() {
    const Case& c = case_;
    const Config& g = c.config;
    const auto wanted = RowsOf(c, members_);
    const std::vector<uint8_t> rows = rank_.Read(rows_, RowsBytes());
    const std::vector<float> scales = rank_.Read(scales_, sizes.max_rows * sizes.scale_columns + 1);
    const auto counts = rank_.Read(counts_, sizes.local_experts + 1);
    const auto dropped = rank_.Read(dropped_, sizes.local_experts + 1);
    const auto offsets = rank_.Read(offsets_, sizes.local_experts + 1);
    const auto sources = rank_.Read(sources_, sizes.max_rows + 1);
    EXPECT_EQ(counts.back(), -7);
    EXPECT_EQ(dropped.back(), -7);
    const uint64_t row_bytes = g.hidden * DTypeBytes(rows_type_);
    const uint64_t begin = c.shift * DTypeBytes(rows_type_);
    std::vector<bool> used(sizes.max_rows);
    std::vector<uint8_t> y(sizes.max_rows * g.hidden * DTypeBytes(c.y_type), 0x7f);
    int64_t at = 0;
    for (uint32_t e = 0; e < sizes.local_experts; ++e) {
      const auto& of_expert = wanted[sizes.first_expert + e];
      size_t kept = of_expert.size();
      if (g.capacity != 0 && kept > g.capacity) kept = g.capacity;
      if (g.capacity != 0) at = int64_t{e} * g.capacity;
      ASSERT_EQ(counts[e], static_cast<int32_t>(kept)) << "expert " << e;
      ASSERT_EQ(dropped[e], static_cast<int32_t>(of_expert.size() - kept)) << "expert " << e;
      ASSERT_EQ(offsets[e], at) << "expert " << e;
      for (size_t i = 0; i < kept; ++i, ++at) {
        used[static_cast<size_t>(at)] = true;
        const uint32_t m = of_expert[i].member;
        const uint32_t t = of_expert[i].token;
        if (c.sources) {
          EXPECT_EQ(sources[static_cast<size_t>(at)] / g.max_tokens, m);
        }
        for (uint32_t column = 0; column < g.hidden; ++column) {
          const uint64_t element = static_cast<uint64_t>(at) * g.hidden + column;
          Put(&y, element, c.y_type, YAt(c, m, t, column, sizes.first_expert + e));
          const uint8_t* const p = rows.data() + begin + element * DTypeBytes(rows_type_);
          if (g.in == DType::kF8E4M3) {
            ASSERT_EQ(*p, ByteAt(m, t, column));
          } else if (rows_type_ == DType::kF8E4M3) {
            const float x = Rounded(g.in, XAt(c, m, t, column));
            const float scale =
                scales[static_cast<uint64_t>(at) * sizes.scale_columns + column / 128];
            const float got = FloatOf8(*p) * scale;
            ASSERT_NEAR(got, x, std::fabs(x) / 16 * 1.00001f + scale / 1024)
                << "token " << t << " of " << m << ", column " << column;
          } else {
            uint32_t bits = 0;
            std::memcpy(&bits, p, DTypeBytes(rows_type_));
            ASSERT_EQ(bits, BitsOf(rows_type_, XAt(c, m, t, column)))
                << "expert " << e << ", token " << t << " of " << m << ", column " << column;
          }
        }
        for (uint32_t s = 0; s < sizes.scale_columns; ++s) {
          const float scale = scales[static_cast<uint64_t>(at) * sizes.scale_columns + s];
          if (g.in == DType::kF8E4M3) {
            ASSERT_EQ(scale, ScaleAt(m, t, s));
            continue;
          }
          float largest = 1e-30f;
          for (uint32_t k = s * 128; k < g.hidden && k < s * 128 + 128; ++k) {
            largest = std::max(largest, std::fabs(Rounded(g.in, XAt(c, m, t, k))));
          }
          ASSERT_EQ(scale, largest / 448.0f);
        }
      }
    }
    if (g.capacity != 0) at = int64_t{sizes.local_experts} * g.capacity;
    EXPECT_EQ(offsets[sizes.local_experts], at);
    // Nothing else was touched.
    for (uint64_t row = 0; row < sizes.max_rows; ++row) {
      if (used[row]) continue;
      ASSERT_EQ(sources[row], -7);
      for (uint64_t i = 0; i < row_bytes; ++i) ASSERT_EQ(rows[begin + row * row_bytes + i], kMark);
    }
    for (uint64_t i = 0; i < begin; ++i) ASSERT_EQ(rows[i], kMark);
    for (uint64_t i = begin + sizes.max_rows * row_bytes; i < rows.size(); ++i) {
      ASSERT_EQ(rows[i], kMark);
    }
    if (!y.empty()) rank_.Write(y_, y);
    CheckInbox(wanted);
  }

  // No more has travelled than what an expert here takes.
  void CheckInbox(const std::vector<std::vector<RowOf>>& wanted) {
    const Config& g = case_.config;
    std::vector<std::vector<bool>> takes(members_, std::vector<bool>(g.max_tokens));
    for (uint32_t e = 0; e < sizes.local_experts; ++e) {
      const auto& rows = wanted[sizes.first_expert + e];
      for (size_t i = 0; i < rows.size() && (g.capacity == 0 || i < g.capacity); ++i) {
        takes[rows[i].member][rows[i].token] = true;
      }
    }
    const std::vector<uint8_t> inbox = rank_.Read(workspace + sizes.rows_at_bytes, InboxBytes());
    for (uint32_t m = 0; m < members_; ++m) {
      uint64_t came = 0;
      for (uint32_t t = 0; t < g.max_tokens; ++t) {
        const auto begin = inbox.begin() + static_cast<int64_t>((uint64_t{m} * g.max_tokens + t) *
                                                                sizes.row_stride_bytes);
        const auto end = begin + static_cast<int64_t>(g.hidden * DTypeBytes(rows_type_));
        if (!std::all_of(begin, end, [](uint8_t byte) { return byte == kMark; })) ++came;
      }
      // What is over the capacity comes from other nodes as rows without data.
      if (nodes != nullptr && nodes->nodes[m] != nodes->node && g.capacity != 0) continue;
      const bool stays = m == me_ && !case_.sources && rows_type_ == g.in;
      const auto taken = std::count(takes[m].begin(), takes[m].end(), true);
      ASSERT_EQ(came, stays ? 0u : static_cast<uint64_t>(taken)) << "from member " << m;
    }
  }

  void CheckOut() {
    const Case& c = case_;
    const Config& g = c.config;
    const DType partials = g.partials != DType::kNone ? g.partials
                           : g.in == DType::kF8E4M3   ? DType::kBf16
                                                      : g.in;
    // Which rows an expert has taken.
    const auto wanted = RowsOf(c, members_);
    const auto taken = [&](int64_t e, uint32_t m, uint32_t t) {
      const auto& rows = wanted[static_cast<size_t>(e)];
      for (size_t i = 0; i < rows.size() && (g.capacity == 0 || i < g.capacity); ++i) {
        if (rows[i].member == m && rows[i].token == t) return true;
      }
      return false;
    };
    std::vector<Sizes> of_members(members_);
    for (uint32_t m = 0; m < members_; ++m) (void)moe::SizesOf(members_, m, g, &of_members[m]);
    const std::vector<uint8_t> out = rank_.Read(out_, OutBytes());
    const uint64_t begin = c.shift * DTypeBytes(c.out_type);
    const uint32_t tokens = TokensOf(c, me_);
    for (uint32_t t = 0; t < tokens; ++t) {
      const std::vector<int64_t> ids = ChoicesOf(c, me_, t);
      std::vector<bool> has(ids.size());
      for (size_t j = 0; j < ids.size(); ++j) has[j] = ids[j] >= 0 && taken(ids[j], me_, t);
      for (uint32_t column = 0; column < g.hidden; ++column) {
        float sum = 0;
        for (const Sizes& of : of_members) {
          float part = 0;
          for (uint32_t j = 0; j < ids.size(); ++j) {
            if (!has[j] || ids[j] < of.first_expert ||
                ids[j] >= of.first_expert + of.local_experts) {
              continue;
            }
            part += WeightAt(c, me_, t, j) * Rounded(c.y_type, YAt(c, me_, t, column, ids[j]));
          }
          sum += Rounded(partials, part);
        }
        uint32_t got = 0;
        std::memcpy(&got,
                    out.data() + begin + (uint64_t{t} * g.hidden + column) * DTypeBytes(c.out_type),
                    DTypeBytes(c.out_type));
        ASSERT_EQ(FloatOf(c.out_type, got), Rounded(c.out_type, sum))
            << "token " << t << ", column " << column;
      }
    }
    const uint64_t end = begin + uint64_t{tokens} * g.hidden * DTypeBytes(c.out_type);
    for (uint64_t i = 0; i < begin; ++i) ASSERT_EQ(out[i], kMark);
    for (uint64_t i = end; i < out.size(); ++i) ASSERT_EQ(out[i], kMark);
  }

  // A dispatch and its combine.
  void Run(const Case& c) {
    Fill(c);
    ExpectOk(Dispatch());
    rank_.Synchronize();
    ExpectOk(CheckError());
    CheckRows();
    ExpectOk(Combine());
    rank_.Synchronize();
    ExpectOk(CheckError());
    CheckOut();
  }

  std::vector<uint8_t> ReadOut() { return rank_.Read(out_, OutBytes()); }
  int32_t* ids() const { return reinterpret_cast<int32_t*>(ids_); }
  void WriteIds(const std::vector<int32_t>& ids) { rank_.Write(this->ids(), ids); }

 private:
  static constexpr uint8_t kMark = 0xa5;

  uint8_t ByteAt(uint32_t m, uint32_t t, uint32_t column) const {
    return static_cast<uint8_t>(Mix(case_.seed, m, t, 1000 + column));
  }
  float ScaleAt(uint32_t m, uint32_t t, uint32_t s) const {
    return static_cast<float>(Mix(case_.seed, m, t, 90000 + s) % 1000) / 64;
  }
  uint8_t* XBegin() const { return x_ + case_.shift * DTypeBytes(case_.config.in); }
  uint8_t* RowsBegin() const { return rows_ + case_.shift * DTypeBytes(rows_type_); }
  uint64_t RowsBytes() const {
    return sizes.max_rows * case_.config.hidden * DTypeBytes(rows_type_) + 128;
  }
  uint64_t InboxBytes() const {
    return uint64_t{members_} * case_.config.max_tokens * sizes.row_stride_bytes;
  }
  uint64_t OutBytes() const {
    return uint64_t{TokensOf(case_, me_)} * case_.config.hidden * DTypeBytes(case_.out_type) + 128;
  }

  Rank& rank_;
  Case case_;
  uint32_t members_;
  uint32_t me_;
  DType rows_type_;
  uint8_t *x_, *out_, *ids_, *rows_, *y_;
  float *x_scales_, *weights_, *scales_;
  int32_t *sources_, *counts_, *offsets_, *dropped_;

 public:
  Comm comm;
  const ccl::NodesComm* nodes;
  Sizes sizes;
  uint8_t* workspace;
};

inline constexpr uint64_t kHeapBytes = backend::Traits::kEmulated ? 64 << 20 : 1024 << 20;

inline Config ConfigOf(uint32_t experts, uint32_t top_k, uint32_t hidden, uint32_t max_tokens,
                       DType in) {
  Config config;
  config.n_experts = experts;
  config.top_k = top_k;
  config.hidden = hidden;
  config.max_tokens = max_tokens;
  config.in = in;
  return config;
}

// Case number `round` of a series; only `seed` of the Case is left to set.
inline Case RandomCase(uint32_t seed, uint32_t round) {
  const DType types[] = {DType::kF32, DType::kF16, DType::kBf16};
  const auto pick = [&](uint32_t what, uint32_t from, uint32_t to) {
    return from + Mix(77, seed, round, what) % (to - from + 1);
  };
  Case c;
  const uint32_t experts = pick(0, 1, 20);
  c.config = ConfigOf(experts, pick(1, 1, std::min(experts, 8u)), pick(2, 1, 140), pick(3, 1, 20),
                      types[pick(4, 0, 2)]);
  if (pick(5, 0, 2) == 0) c.config.rows = DType::kF8E4M3;
  if (pick(6, 0, 1) == 0) c.config.partials = types[pick(7, 0, 2)];
  if (pick(8, 0, 1) == 0) c.config.capacity = pick(9, 1, 12);
  c.routing = static_cast<Routing>(pick(10, 0, 4));
  c.y_type = types[pick(11, 0, 2)];
  c.out_type = types[pick(12, 0, 2)];
  c.ids_type = pick(13, 0, 1) == 0 ? DType::kI32 : DType::kI64;
  c.weights = pick(14, 0, 3) != 0;
  c.shift = pick(15, 0, 9);
  c.sources = pick(16, 0, 1) == 0;
  return c;
}

}  // namespace iris::conformance::moe_cases
