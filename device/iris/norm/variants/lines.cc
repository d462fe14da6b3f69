// The row of kLines, whose kernels are in impl/one_shot.h.
#include <cstdint>

#include "iris/norm/impl/one_shot.h"
#include "iris/norm/impl/whole_rows.h"
#include "iris/norm/variant.h"

namespace iris::norm::impl {
namespace {

using ccl::impl::LineLane;

struct Kernels {
  template <typename T>
  static auto Of() {
    return &NormLines<T>;
  }
};
struct WholeKernels {
  template <typename T>
  static auto Of() {
    return &NormWholeLines<T>;
  }
};

Result LaunchIt(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                backend::Stream& stream) {
  const bool whole = HasWholeRows(
      common, call, in, LineLane::kStepBytes / backend::Traits::kWarpThreads, config.block);
  return LaunchOfEither<WholeKernels, Kernels>(whole, common, call, in, config, stream);
}

uint64_t PartBytes(const ccl::Comm& comm, const Problem& problem, const char** why) {
  if (problem.operation != Operation::kAllReduceRmsNorm) {
    *why = "only all_reduce_rms_norm has the variant lines";
    return 0;
  }
  if (!HasLines(comm)) {
    *why = "the variant lines is for 2 to 8 members, on devices that store whole lines";
    return 0;
  }
  const uint64_t inbox = ccl::impl::LineInboxBytes(comm.team.size, comm.config.line_bytes);
  return Min(uint64_t{kKeptOneShot} * kMaxThreads / backend::Traits::kWarpThreads,
             inbox / LineLane::kStoredBytes) *
         LineLane::kStepBytes;
}
uint32_t MaxBlocks(const ccl::Comm& comm) { return comm.config.line_blocks; }
uint64_t Rows(const ccl::Comm&, const Problem& problem) { return problem.rows; }

Result Prepare() {
  if (!ccl::impl::kHasLines) return {};
  const Result result = PrepareOf<Kernels>();
  return result.ok() ? PrepareOf<WholeKernels>() : result;
}

}  // namespace

const VariantRow kLinesRow = {
    Variant::kLines, kKeptOneShot, &PartBytes, &MaxBlocks, &Rows, &LaunchIt, &Prepare,
};

}  // namespace iris::norm::impl
