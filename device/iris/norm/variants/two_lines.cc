// The row of kTwoLines, whose kernels are in impl/two_lines.h.
#include "iris/norm/impl/two_lines.h"

#include <cstdint>

#include "iris/norm/impl/whole_rows.h"
#include "iris/norm/variant.h"

namespace iris::norm::impl {
namespace {

using ccl::impl::LineLane;

constexpr uint32_t kMost = ccl::impl::kMaxLineMembers;

template <uint32_t N, bool kWhole>
struct Kernels {
  template <typename T>
  static auto Of() {
    return &NormTwoLines<T, N, kWhole>;
  }
};

// The kernel for the most members supports all calls; the others are faster.
Result LaunchIt(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                backend::Stream& stream) {
  const uint32_t rows = RowsOfTwoLines(common.size);
  if (!HasWholeUnits(call, in)) {
    return LaunchOf<Kernels<kMost, false>>(common, call, in, config, stream);
  }
  if (rows == 2) return LaunchOf<Kernels<2, true>>(common, call, in, config, stream);
  if (rows == 4) return LaunchOf<Kernels<4, true>>(common, call, in, config, stream);
  return LaunchOf<Kernels<kMost, true>>(common, call, in, config, stream);
}

uint64_t PartBytes(const ccl::Comm& comm, const Problem& problem, const char** why) {
  if (!HasLines(comm)) {
    *why = "the variant two_lines is for 2 to 8 members, on devices that store whole lines";
    return 0;
  }
  if (problem.scaling == Scaling::kPerRow || problem.scaling == Scaling::kPerGroup) {
    *why = "the variant two_lines writes no scales: use two_shot or lines, or a static scale";
    return 0;
  }
  // A thread has one unit, so a warp has one step of lines.
  const uint64_t inbox = ccl::impl::LineInboxBytes(comm.team.size, comm.config.line_bytes);
  return Min(uint64_t{kMaxThreads} / backend::Traits::kWarpThreads,
             inbox / LineLane::kStoredBytes) *
         LineLane::kStepBytes;
}
uint32_t MaxBlocks(const ccl::Comm& comm) { return comm.config.line_blocks; }
uint64_t Rows(const ccl::Comm& comm, const Problem& problem) {
  return iris::ShareOf(problem.rows, comm.team.size, 0).count;
}

Result Prepare() {
  if (!ccl::impl::kHasLines) return {};
  if (Result result = PrepareOf<Kernels<2, true>>(); !result.ok()) return result;
  if (Result result = PrepareOf<Kernels<4, true>>(); !result.ok()) return result;
  if (Result result = PrepareOf<Kernels<kMost, true>>(); !result.ok()) return result;
  return PrepareOf<Kernels<kMost, false>>();
}

}  // namespace

const VariantRow kTwoLinesRow = {
    Variant::kTwoLines, 1, &PartBytes, &MaxBlocks, &Rows, &LaunchIt, &Prepare,
};

}  // namespace iris::norm::impl
