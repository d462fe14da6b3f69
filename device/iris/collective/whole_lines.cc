#include "iris/collective/whole_lines.h"

#include <cstdint>

#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlocks = backend::Traits::kEmulated ? 2 : 64;  // half of them write
constexpr uint32_t kWarps = kThreads / backend::Traits::kWarpThreads * (kBlocks / 2);
constexpr uint32_t kStepBytes = backend::Traits::kWarpThreads * sizeof(Bytes16);
constexpr uint64_t kCountersBytes = 256;
constexpr uint32_t kStepsPerClock = backend::Traits::kEmulated ? 4 : 256;
static_assert(sizeof(LinesSeen) <= kCountersBytes);

// Returns the address at rank `to` of the lines of warp `warp` of rank `from`.
IRIS_DEVICE inline uint8_t* LinesAt(const LineSearch& search, uint32_t to, uint32_t from,
                                    uint32_t warp) {
  uint8_t* area =
      iris::Translate(search.context, search.team.members[to], static_cast<uint8_t*>(search.area));
  return area + kCountersBytes + (uint64_t{from} * kWarps + warp) * kStepBytes +
         backend::LaneIndex() * sizeof(Bytes16);
}

IRIS_DEVICE inline void Count(uint64_t* counter, uint64_t value) {
  if (value == 0) return;
  (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(counter, value);
}

IRIS_DEVICE inline void WriteLines(const LineSearch& search, uint32_t warp, LinesSeen* seen) {
  const uint64_t start = backend::ClockNanoseconds();
  const uint32_t part = backend::LaneIndex() % impl::kLineLanes;
  const uint64_t wrong = search.tears && part == 3 ? 1 : 0;
  uint64_t number = 0;
  do {
    for (uint32_t k = 0; k < kStepsPerClock; ++k) {
      const uint64_t lo = ++number + wrong;
      for (uint32_t m = 0; m < search.team.size; ++m) {
        if (m == search.team.index) continue;
        backend::Store16<CacheHint::kVolatile>(LinesAt(search, m, search.team.index, warp),
                                               {lo, ~lo});
      }
    }
  } while (backend::WarpAll(backend::ClockNanoseconds() - start < search.duration_ns));
  if (part == 0) Count(&seen->written, number * (search.team.size - 1));
}

IRIS_DEVICE inline void ReadLines(const LineSearch& search, uint32_t warp, LinesSeen* seen) {
  const uint64_t start = backend::ClockNanoseconds();
  const uint32_t lane = backend::LaneIndex();
  const uint32_t last_lane = lane | (impl::kLineLanes - 1);
  uint64_t read = 0;
  uint64_t changed = 0;
  uint64_t torn = 0;
  do {
    for (uint32_t m = 0; m < search.team.size; ++m) {
      if (m == search.team.index) continue;
      const uint8_t* lines = LinesAt(search, search.team.index, m, warp);
      uint64_t before = 0;
      for (uint32_t k = 0; k < kStepsPerClock; ++k) {
        const Bytes16 part = backend::Load16<CacheHint::kVolatile>(lines);
        const uint64_t number = backend::Shuffle(part.lo, last_lane);
        // A line of fresh memory, which has zeros, fits too.
        const bool fits = part.lo == number && (part.hi == ~number || (part.hi | number) == 0);
        const uint64_t misfits = ~backend::Ballot(fits);
        const uint32_t first = lane / impl::kLineLanes * impl::kLineLanes;
        ++read;
        if ((misfits >> first & 0xff) != 0) ++torn;
        if (number != before) ++changed;
        before = number;
      }
    }
  } while (backend::WarpAll(backend::ClockNanoseconds() - start < search.duration_ns));
  if (lane % impl::kLineLanes != 0) return;
  Count(&seen->read, read);
  Count(&seen->changed, changed);
  Count(&seen->torn, torn);
}

IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void SearchLines(IRIS_PARAM LineSearch search) {
  auto* seen = static_cast<LinesSeen*>(search.area);
  const uint32_t warp =
      backend::BlockIndex() / 2 * (kThreads / backend::WarpSize()) + backend::WarpIndex();
  if (backend::BlockIndex() % 2 == 0) {
    if (search.writes) WriteLines(search, warp, seen);
  } else if (search.reads) {
    ReadLines(search, warp, seen);
  }
}

}  // namespace

uint64_t LineSearchBytes(uint32_t n_members) {
  return kCountersBytes + uint64_t{n_members} * kWarps * kStepBytes;
}

Result SearchTornLines(const LineSearch& search, backend::Stream& stream) {
  const DeviceContext& context = search.context;
  const DeviceTeam& team = search.team;
  if (team.size < 2 || team.size > kMaxTeamRanks || team.index >= team.size ||
      team.members[team.index] != context.rank) {
    return impl::Invalid("a search for torn lines needs a team of two or more with this rank");
  }
  if (search.duration_ns > kMaxLineSearchNs) {
    return impl::Invalid("a search for torn lines takes at most ten seconds");
  }
  if (!InHeap(context, search.area) || reinterpret_cast<uint64_t>(search.area) % 256 != 0 ||
      OffsetBytes(context, search.area) + LineSearchBytes(team.size) > context.stride_bytes) {
    return impl::Invalid("the area of a search for torn lines is not in the heap, or not aligned");
  }
  return backend::Launch({kBlocks, kThreads, 0}, stream, SearchLines, search);
}

}  // namespace iris::ccl
