// The row of kPackets, whose kernels are in impl/one_shot.h. It supports both operations in a team
// of one member.
#include <cstdint>

#include "iris/norm/impl/one_shot.h"
#include "iris/norm/impl/whole_rows.h"
#include "iris/norm/variant.h"

namespace iris::norm::impl {
namespace {

struct Kernels {
  template <typename T>
  static auto Of() {
    return &NormPackets<T>;
  }
};
struct WholeKernels {
  template <typename T>
  static auto Of() {
    return &NormWholePackets<T>;
  }
};

Result LaunchIt(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                backend::Stream& stream) {
  const bool whole = HasWholeRows(common, call, in, 16, config.block);
  return LaunchOfEither<WholeKernels, Kernels>(whole, common, call, in, config, stream);
}

uint64_t PartBytes(const ccl::Comm& comm, const Problem& problem, const char** why) {
  if (comm.team.size == 1) return MaxPartBytes(kKeptOneShot);
  if (problem.operation != Operation::kAllReduceRmsNorm) {
    *why = "only all_reduce_rms_norm has the variant packets";
    return 0;
  }
  return Min(MaxPartBytes(kKeptOneShot), comm.config.packet_bytes);
}
uint32_t MaxBlocks(const ccl::Comm& comm) {
  return comm.team.size == 1 ? comm.config.max_blocks : comm.config.packet_blocks;
}
uint64_t Rows(const ccl::Comm&, const Problem& problem) { return problem.rows; }

Result Prepare() {
  const Result result = PrepareOf<Kernels>();
  return result.ok() ? PrepareOf<WholeKernels>() : result;
}

}  // namespace

const VariantRow kPacketsRow = {
    Variant::kPackets, kKeptOneShot, &PartBytes, &MaxBlocks, &Rows, &LaunchIt, &Prepare,
};

}  // namespace iris::norm::impl
