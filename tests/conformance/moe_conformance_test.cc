// Dispatch and combine of a mixture of experts, against a plain reference.
//
// What experts make of a row is a small multiple of it that all types have, and weights are
// sixteenths, so that all sums are exact in f32: what comes back is compared bit by bit, with one
// rounding for each member's sum and one for the whole. Rows of f8e4m3 are compared with the bound
// that iris/moe/moe.h states.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/moe/call_record.h"
#include "iris/moe/moe.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Operation;
using conformance::Mix;
using moe::Combine;
using moe::Config;
using moe::Dispatch;
using moe::Sizes;

uint32_t Mix(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
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

uint32_t TokensOf(const Case& c, uint32_t m) {
  if (m < c.tokens.size()) return c.tokens[m];
  return Mix(c.seed, m, 1, 0) % (c.config.max_tokens + 1);
}

std::string Name(const Case& c, uint32_t members) {
  const Config& g = c.config;
  return std::to_string(members) + " members, " + std::to_string(g.n_experts) + " experts, top " +
         std::to_string(g.top_k) + ", hidden " + std::to_string(g.hidden) + ", capacity " +
         std::to_string(g.capacity) + ", " + DTypeName(g.in) + " as " + DTypeName(g.rows) +
         ", back as " + DTypeName(g.partials) + ", routing " +
         std::to_string(static_cast<int>(c.routing)) + ", seed " + std::to_string(c.seed);
}

// The choices of a token.
std::vector<int64_t> ChoicesOf(const Case& c, uint32_t m, uint32_t t) {
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

float XAt(const Case& c, uint32_t m, uint32_t t, uint32_t column) {
  const uint32_t bits = Mix(c.seed, m, t, 1000 + column);
  const float value = static_cast<float>(static_cast<int32_t>(bits % 33) - 16) / 8;
  // Where rows are rounded, other numbers than such as need no rounding, and very different ones.
  if (c.config.rows != DType::kF8E4M3) return value;
  return value * (1.0f + static_cast<float>(bits >> 16 & 255) / 256) *
         std::ldexp(1.0f, -static_cast<int>(bits >> 24 & 15));
}
float WeightAt(const Case& c, uint32_t m, uint32_t t, uint32_t j) {
  if (!c.weights) return 1;
  return static_cast<float>(Mix(c.seed, m, t, 500 + j) % 17) / 16;
}
// What expert e makes of a row.
float YAt(const Case& c, uint32_t m, uint32_t t, uint32_t column, int64_t e) {
  const uint32_t bits = Mix(c.seed, m, t, 1000 + column);
  const float value = static_cast<float>(static_cast<int32_t>(bits % 33) - 16) / 8;
  return value * static_cast<float>(e % 5 + 1) + static_cast<float>(e % 64) / 8;
}

uint32_t BitsOf(DType type, float value) {
  if (type == DType::kF16) return backend::HalfBitsOf(value);
  if (type == DType::kBf16) return backend::BfloatBitsOf(value);
  return backend::BitCast<uint32_t>(value);
}
float FloatOf(DType type, uint32_t bits) {
  if (type == DType::kF16) return backend::FloatOfHalf(static_cast<uint16_t>(bits));
  if (type == DType::kBf16) return backend::BitCast<float>(bits << 16);
  return backend::BitCast<float>(bits);
}
float Rounded(DType type, float value) { return FloatOf(type, BitsOf(type, value)); }
float FloatOf8(uint8_t bits) {
  const float sign = (bits & 0x80) != 0 ? -1 : 1;
  const int exponent = bits >> 3 & 15;
  const float mantissa = static_cast<float>(bits & 7);
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

void Put(std::vector<uint8_t>* bytes, uint64_t i, DType type, float value) {
  const uint32_t bits = BitsOf(type, value);
  std::memcpy(bytes->data() + i * DTypeBytes(type), &bits, DTypeBytes(type));
}
// A row that an expert gets.
struct RowOf {
  uint32_t member;
  uint32_t token;
};
// Of each expert, in order; the capacity not looked at.
std::vector<std::vector<RowOf>> RowsOf(const Case& c, uint32_t members) {
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
      : rank_(rank), case_(c), members_(team.size), comm(its_comm) {
    uint64_t most_rows = 0;
    for (uint32_t m = 0; m < members_; ++m) {
      Sizes each;
      ExpectOk(moe::SizesOf(members_, m, c.config, &each));
      // A rank that is no member allocates as the first one.
      if (m == (team.index < team.size ? team.index : 0)) sizes = each;
      if (each.max_rows > most_rows) most_rows = each.max_rows;
    }
    me_ = team.index;
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
    return moe::LaunchDispatch(comm, case_.config, workspace, MakeDispatch(), rank_.stream);
  }
  Result Combine() {
    return moe::LaunchCombine(comm, case_.config, workspace, MakeCombine(), rank_.stream);
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
    ExpectOk(ccl::CheckError(comm));
    CheckRows();
    ExpectOk(Combine());
    rank_.Synchronize();
    ExpectOk(ccl::CheckError(comm));
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
  Sizes sizes;
  uint8_t* workspace;
};

constexpr uint64_t kHeapBytes = backend::Traits::kEmulated ? 64 << 20 : 1024 << 20;

Config ConfigOf(uint32_t experts, uint32_t top_k, uint32_t hidden, uint32_t max_tokens, DType in) {
  Config config;
  config.n_experts = experts;
  config.top_k = top_k;
  config.hidden = hidden;
  config.max_tokens = max_tokens;
  config.in = in;
  return config;
}

// Of 2 ranks, and of 9, each has half of the cases: together they have all.
void RunAll(uint32_t ranks, std::vector<Case> cases) {
  if (ranks == 2 || ranks == 9) {
    std::vector<Case> half;
    for (size_t i = ranks == 2 ? 1 : 0; i < cases.size(); i += 2) half.push_back(cases[i]);
    cases = half;
  }
  World world(ranks, kHeapBytes);
  world.Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    for (const Case& c : cases) {
      SCOPED_TRACE(Name(c, ranks));
      Member member(rank, rank.ctx.world, c, comm);
      rank.HostBarrier();
      member.Run(c);
      rank.HostBarrier();
    }
  });
}

class MoeTest : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MoeTest, ::testing::Values(1, 2, 3, 9));

TEST_P(MoeTest, IsWhatAPlainReferenceSays) {
  const uint32_t ranks = GetParam();
  std::vector<Case> cases;
  // Each type, each way; hidden that is not a multiple of anything; unaligned buffers.
  for (const DType in : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3}) {
    for (const bool small : {false, true}) {
      if (small && in == DType::kF8E4M3) continue;
      Case c;
      c.config = ConfigOf(2 * ranks + 1, 3, small ? 150 : 37, 9, in);
      if (small) c.config.rows = DType::kF8E4M3;
      c.seed = 10 + static_cast<uint32_t>(cases.size());
      c.y_type = in == DType::kF16 ? DType::kF16 : DType::kBf16;
      c.out_type = in == DType::kF8E4M3 ? DType::kF32 : in;
      c.shift = static_cast<uint32_t>(cases.size()) % 3;
      c.sources = cases.size() % 2 == 1;
      c.ids_type = cases.size() % 2 == 0 ? DType::kI32 : DType::kI64;
      cases.push_back(c);
    }
  }
  // As models have it: all choices taken, rows of whole packs, sums back in f32.
  for (const uint32_t top_k : {1u, 2u, 12u}) {
    Case c;
    c.config = ConfigOf(12 * ranks, top_k, 64, 9, DType::kBf16);
    c.config.partials = DType::kF32;
    c.routing = Routing::kOften;
    c.weights = top_k != 2;
    c.sources = top_k == 2;
    c.seed = 30 + top_k;
    cases.push_back(c);
  }
  RunAll(ranks, cases);
}

TEST_P(MoeTest, HasOddTeamsOfTokens) {
  const uint32_t ranks = GetParam();
  std::vector<Case> cases;
  for (const uint32_t capacity : {0u, 1u, 5u, 1000u}) {
    for (const Routing routing :
         {Routing::kAnywhere, Routing::kOneExpert, Routing::kEvenExperts, Routing::kNowhere}) {
      Case c;
      c.config = ConfigOf(ranks + 2, 2, 24, 12, DType::kBf16);
      c.config.capacity = capacity;
      c.routing = routing;
      c.seed = capacity + 40;
      // One token, none, and as many as there may be.
      c.tokens = {1, 0, 12, 7};
      c.out_type = DType::kBf16;
      c.sources = cases.size() % 3 != 0;
      cases.push_back(c);
    }
  }
  // Fewer experts than members: some have none.
  Case c;
  c.config = ConfigOf(1, 1, 16, 70, DType::kF32);
  c.routing = Routing::kOneExpert;
  cases.push_back(c);
  c.tokens = std::vector<uint32_t>(ranks, 0);
  cases.push_back(c);
  RunAll(ranks, cases);
}

TEST(MoeRandomTest, AnythingAfterAnything) {
  const uint32_t rounds = kSlower > 1 ? 3 : 8;
  for (const uint32_t ranks : {3u, 4u}) {
    World world(ranks, 2 * kHeapBytes);
    world.Run([&](Rank& rank) {
      const Comm comm = rank.NewComm(rank.ctx.world);
      const DType types[] = {DType::kF32, DType::kF16, DType::kBf16};
      for (uint32_t round = 0; round < rounds; ++round) {
        const auto pick = [&](uint32_t what, uint32_t from, uint32_t to) {
          return from + Mix(77, ranks, round, what) % (to - from + 1);
        };
        Case c;
        const uint32_t experts = pick(0, 1, 20);
        c.config = ConfigOf(experts, pick(1, 1, std::min(experts, 8u)), pick(2, 1, 140),
                            pick(3, 1, 20), types[pick(4, 0, 2)]);
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
        SCOPED_TRACE(Name(c, ranks));
        Member member(rank, rank.ctx.world, c, comm);
        rank.HostBarrier();
        for (uint32_t again = 0; again < 2; ++again) {
          c.seed = 1000 * round + again;
          member.Run(c);
        }
        rank.HostBarrier();
      }
    });
  }
}

// Two workspaces: the second dispatch comes before the first combine. No wait between operations.
TEST(MoeSequenceTest, TwoAreUnderWayAtOnce) {
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(7, 3, 40, 10, DType::kBf16);
    Case d = c;
    d.seed = 2;
    Member first(rank, rank.ctx.world, c);
    Member second(rank, rank.ctx.world, d);
    second.comm = first.comm;
    first.Fill(c);
    second.Fill(d);
    ExpectOk(first.Dispatch());
    ExpectOk(second.Dispatch());
    rank.Synchronize();
    first.CheckRows();
    second.CheckRows();
    ExpectOk(first.Combine());
    ExpectOk(second.Combine());
    // Nothing is used up: the same again.
    ExpectOk(first.Combine());
    rank.Synchronize();
    ExpectOk(ccl::CheckError(first.comm));
    first.CheckOut();
    second.CheckOut();
    const std::vector<uint8_t> out = first.ReadOut();
    for (uint32_t again = 0; again < 3; ++again) {
      ExpectOk(first.Dispatch());
      ExpectOk(first.Combine());
      rank.Synchronize();
      EXPECT_EQ(first.ReadOut(), out);
    }
    rank.HostBarrier();
  });
}

TEST(MoeGraphTest, ReplaysWithFreshIdsAndData) {
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(7, 3, 40, 10, DType::kBf16);
    c.tokens = {10, 6, 1};
    Member member(rank, rank.ctx.world, c);
    member.Fill(c);
    backend::Graph there;
    ExpectOk(backend::BeginCapture(rank.stream));
    ExpectOk(member.Dispatch());
    ExpectOk(backend::EndCapture(rank.stream, &there));
    backend::Graph back;
    ExpectOk(backend::BeginCapture(rank.stream));
    ExpectOk(member.Combine());
    ExpectOk(backend::EndCapture(rank.stream, &back));
    for (uint32_t replay = 0; replay < 3; ++replay) {
      c.seed = 100 + replay;
      c.routing = replay % 2 == 0 ? Routing::kAnywhere : Routing::kOneExpert;
      member.Fill(c);
      ExpectOk(backend::LaunchGraph(there, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      member.CheckRows();
      ExpectOk(backend::LaunchGraph(back, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      member.CheckOut();
    }
    rank.HostBarrier();
  });
}

TEST(MoeTeamTest, AnyRanksInAnyOrder) {
  World world(4, kHeapBytes);
  world.Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(5, 2, 40, 10, DType::kF16);
    const DeviceTeam team = rank.NewTeam({3, 0, 2});
    DeviceTeam as = team;
    if (rank.rank() == 1) as.index = as.size;
    Member member(rank, as, c);
    rank.HostBarrier();
    if (rank.rank() != 1) member.Run(c);
    rank.HostBarrier();
  });
}

// What failed can be mended: it runs then, and the next operation is the first one again.
void Mend(Rank& rank, Member& member, const Case& c) {
  const auto prepare = [&] {
    ExpectOk(ccl::PrepareWorkspace(member.comm, rank.stream));
    rank.Synchronize();
  };
  rank.HostBarrier();
  prepare();
  ccl::ResetError(member.comm);
  rank.HostBarrier();
  member.Run(c);
  rank.HostBarrier();
  prepare();
  rank.HostBarrier();
}

TEST(MoeFailureTest, AllMembersAreToldOfABadId) {
  struct Bad {
    int32_t value;
    bool repeated;
  };
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    for (const Bad bad : {Bad{7, false}, Bad{-2, false}, Bad{0x7fffffff, false}, Bad{3, true}}) {
      Case c;
      c.config = ConfigOf(7, 2, 16, 5, DType::kF32);
      c.config.capacity = bad.repeated ? 2 : 0;
      c.tokens = {5, 5, 5};
      Member member(rank, rank.ctx.world, c, comm);
      member.Fill(c);
      if (rank.rank() == 1) {
        member.WriteIds({0, 1, 2, 3, -1, -1, 3, bad.value, 99, 5});
      }
      rank.HostBarrier();
      ExpectOk(member.Dispatch());
      // Is on the stream before the other has failed, most often; then it ends at once.
      const Result behind = member.Combine();
      EXPECT_TRUE(behind.ok() || behind.code == StatusCode::kFailedPrecondition) << behind.what;
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kOutOfRange);
      EXPECT_EQ(info.operation, Operation::kMoeDispatch);
      EXPECT_EQ(info.sequence, 0u);
      EXPECT_EQ(info.member_index, 1u);
      EXPECT_EQ(moe::BadChoiceOf(info).token, 3u);
      EXPECT_EQ(moe::BadChoiceOf(info).value, bad.value);
      EXPECT_EQ(moe::BadChoiceOf(info).why,
                bad.repeated ? moe::BadExpert::kRepeated : moe::BadExpert::kNoSuchExpert);
      EXPECT_EQ(member.Dispatch().code, StatusCode::kFailedPrecondition);
      Mend(rank, member, c);
    }
  });
}

// One member alone is wrong: all of them are told, at once and alike.
TEST(MoeFailureTest, ACombineBelongsToADispatch) {
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    c.tokens = {3, 4, 5};
    for (const bool other_tokens : {false, true}) {
      Member member(rank, rank.ctx.world, c, comm);
      uint8_t* const fresh = rank.New<uint8_t>(member.sizes.workspace_bytes);
      member.Fill(c);
      rank.HostBarrier();
      ExpectOk(member.Dispatch());
      moe::Combine call = member.MakeCombine();
      const bool wrong = rank.rank() == 1;
      if (wrong && other_tokens) call.tokens -= 2;
      if (wrong && !other_tokens) {
        // As of a member that has not dispatched.
        ExpectOk(backend::CopyAsync(member.workspace, fresh, 256, rank.stream));
      }
      ExpectOk(moe::LaunchCombine(member.comm, c.config, member.workspace, call, rank.stream));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kFailedPrecondition);
      EXPECT_EQ(info.operation, Operation::kMoeCombine);
      EXPECT_EQ(info.sequence, 1u);
      EXPECT_EQ(info.member_index, 1u);
      EXPECT_EQ(moe::OtherTokensOf(info).differ, other_tokens);
      if (other_tokens) {
        EXPECT_EQ(moe::OtherTokensOf(info).dispatched, 4u);
        EXPECT_EQ(moe::OtherTokensOf(info).combined, 2u);
      }
      EXPECT_EQ(member.Dispatch().code, StatusCode::kFailedPrecondition);
      Mend(rank, member, c);
    }
  });
}

TEST(MoeFailureTest, NamesTheMemberThatDoesNotCome) {
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    ccl::Config config;
    config.timeout_ns = 300ull * 1000 * 1000;
    for (const bool back : {false, true}) {
      Member member(rank, rank.ctx.world, c, config);
      member.Fill(c);
      rank.HostBarrier();
      if (back) {
        ExpectOk(member.Dispatch());
        rank.Synchronize();
        rank.HostBarrier();
      }
      if (rank.rank() != 1) {
        ExpectOk(back ? member.Combine() : member.Dispatch());
        rank.Synchronize();
        ccl::ErrorInfo info;
        EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kDeadlineExceeded);
        EXPECT_EQ(info.operation, back ? Operation::kMoeCombine : Operation::kMoeDispatch);
        EXPECT_EQ(info.member_index, 1u);
      }
      rank.HostBarrier();
    }
  });
}

TEST(MoeFailureTest, AllMembersAreToldBothCalls) {
  const std::function<void(Config*)> mistakes[] = {
      [](Config* g) { g->hidden = 17; },
      [](Config* g) { g->n_experts = 5; },
      [](Config* g) { g->top_k = 1; },
      [](Config* g) { g->max_tokens = 4; },
      [](Config* g) { g->capacity = 3; },
      [](Config* g) { g->in = DType::kF16; },
      [](Config* g) { g->rows = DType::kF8E4M3; },
      [](Config* g) { g->partials = DType::kBf16; },
  };
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    for (size_t i = 0; i <= std::size(mistakes); ++i) {
      Case c;
      c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
      c.tokens = {3, 4, 0};
      Member member(rank, rank.ctx.world, c);
      uint8_t* const other = rank.New<uint8_t>(member.sizes.workspace_bytes);
      member.Fill(c);
      rank.HostBarrier();
      Config config = c.config;
      moe::Dispatch call = member.MakeDispatch();
      call.rows = nullptr;
      uint8_t* workspace = member.workspace;
      if (rank.rank() == 2) {
        if (i < std::size(mistakes)) {
          mistakes[i](&config);
        } else {
          workspace = other;
        }
      }
      ExpectOk(moe::LaunchDispatch(member.comm, config, workspace, call, rank.stream));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kInvalidArgument) << i;
      EXPECT_EQ(info.member_index, 2u);
      EXPECT_EQ(info.mismatch.most, 3u);
      EXPECT_EQ(info.mismatch.other, 4u);
      const moe::CallRecord most = moe::Unpack(info.mismatch.most_call);
      EXPECT_EQ(most.operation, Operation::kMoeDispatch);
      EXPECT_EQ(most.setup.hidden, 16u);
      EXPECT_EQ(most.setup.n_experts, 4u);
      EXPECT_EQ(most.setup.top_k, 2u);
      EXPECT_EQ(most.setup.max_tokens, 5u);
      EXPECT_EQ(most.setup.capacity, 0u);
      EXPECT_EQ(most.type, DType::kF32);
      EXPECT_EQ(most.travels, DType::kF32);
      EXPECT_EQ(most.out_type, DType::kF32);
      rank.HostBarrier();
    }
  });
}

TEST(MoeCheckTest, RefusesBeforeAnythingStarts) {
  World world(2, kHeapBytes);
  world.Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    c.tokens = {5, 5};
    Member member(rank, rank.ctx.world, c);
    member.Fill(c);
    rank.HostBarrier();
    const auto expect = [&](const char* text, const std::function<void(Config*)>& change,
                            const std::function<void(moe::Dispatch*)>& change_call) {
      Config config = c.config;
      moe::Dispatch call = member.MakeDispatch();
      if (change) change(&config);
      if (change_call) change_call(&call);
      const Result result =
          moe::LaunchDispatch(member.comm, config, member.workspace, call, rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument) << text;
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    const auto bad = [&](const char* text, const std::function<void(Config*)>& change) {
      expect(text, change, nullptr);
      Config config = c.config;
      change(&config);
      Sizes sizes;
      EXPECT_EQ(moe::SizesOf(2, 0, config, &sizes).code, StatusCode::kInvalidArgument);
    };
    bad("n_experts", [](Config* g) { g->n_experts = 0; });
    bad("n_experts", [](Config* g) { g->n_experts = 4097; });
    bad("top_k", [](Config* g) { g->top_k = 0; });
    bad("top_k", [](Config* g) { g->top_k = 5; });
    bad("hidden", [](Config* g) { g->hidden = 0; });
    bad("hidden", [](Config* g) { g->hidden = (1 << 20) + 1; });
    bad("max_tokens", [](Config* g) { g->max_tokens = 0; });
    bad("2^31 - 1 rows", [](Config* g) { g->max_tokens = 1u << 31; });
    bad("smaller capacity", [](Config* g) { g->capacity = 1u << 31; });
    bad("x is of", [](Config* g) { g->in = DType::kF64; });
    bad("rows are of", [](Config* g) { g->rows = DType::kF16; });
    bad("partials are of", [](Config* g) { g->partials = DType::kF8E4M3; });
    const auto bad_call = [&](const char* text, const std::function<void(moe::Dispatch*)>& change) {
      expect(text, nullptr, change);
    };
    bad_call("more tokens", [](moe::Dispatch* d) { d->tokens = 6; });
    bad_call("x is null", [](moe::Dispatch* d) { d->x = nullptr; });
    bad_call("ids are null", [](moe::Dispatch* d) { d->ids = nullptr; });
    bad_call("ids are of", [](moe::Dispatch* d) { d->ids_type = DType::kF32; });
    bad_call("rows: it overlaps", [](moe::Dispatch* d) { d->rows = const_cast<void*>(d->x); });
    bad_call("dropped: it overlaps", [](moe::Dispatch* d) { d->dropped = d->counts + 1; });
    bad_call("rows: it overlaps with the workspace of moe",
             [&](moe::Dispatch* d) { d->rows = member.workspace + 64; });
    bad_call("x is not aligned",
             [](moe::Dispatch* d) { d->x = static_cast<const uint8_t*>(d->x) + 2; });
    bad_call("leave x_scales out", [&](moe::Dispatch* d) { d->x_scales = d->weights; });
    bad_call("rows have scales only", [&](moe::Dispatch* d) {
      d->scales = reinterpret_cast<float*>(static_cast<uint8_t*>(d->rows));
    });
    const auto bad_place = [&](const char* text, void* workspace) {
      const Result result =
          moe::LaunchDispatch(member.comm, c.config, workspace, member.MakeDispatch(), rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument);
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    bad_place("null", nullptr);
    bad_place("aligned", member.workspace + 16);
    static uint8_t elsewhere[512];
    bad_place("not in the symmetric heap",
              reinterpret_cast<void*>((reinterpret_cast<uint64_t>(elsewhere) + 255) / 256 * 256));
    const auto bad_combine = [&](const char* text,
                                 const std::function<void(moe::Combine*)>& change) {
      moe::Combine call = member.MakeCombine();
      change(&call);
      const Result result =
          moe::LaunchCombine(member.comm, c.config, member.workspace, call, rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument);
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    bad_combine("y is null", [](moe::Combine* d) { d->y = nullptr; });
    bad_combine("out is null", [](moe::Combine* d) { d->out = nullptr; });
    bad_combine("y is of", [](moe::Combine* d) { d->y_type = DType::kF8E4M3; });
    bad_combine("out is of", [](moe::Combine* d) { d->out_type = DType::kI32; });
    bad_combine("more tokens", [](moe::Combine* d) { d->tokens = 6; });
    bad_combine("overlap", [](moe::Combine* d) { d->out = const_cast<void*>(d->y); });
    // Nothing has started: all is well.
    rank.HostBarrier();
    member.Run(c);
    rank.HostBarrier();
  });
}

}  // namespace
}  // namespace iris::conformance
