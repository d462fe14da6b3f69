// What a variant of the operations is: a row of the registry, in the variant's own file. Host code.
//
// A new variant: its line in the list of iris/norm_types.h, and a file that defines the row
// k<Name>Row.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/norm/impl/row.h"
#include "iris/norm/norm.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/lines.h"

namespace iris::norm::impl {

using ccl::impl::Invalid;

struct VariantRow {
  Variant variant;
  uint32_t kept;  // units of 16 bytes that a thread has of a row, at most
  // Bytes of a row of `in` that a block can have, of a problem that is valid. 0: it does not have
  // the problem at all, and `*why` says why.
  uint64_t (*part_bytes)(const ccl::Comm& comm, const Problem& problem, const char** why);
  // Blocks that a launch has, at most.
  uint32_t (*max_blocks)(const ccl::Comm& comm);
  // Rows that blocks have between them.
  uint64_t (*rows)(const ccl::Comm& comm, const Problem& problem);
  Result (*launch)(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                   backend::Stream& stream);
  // Loads its kernels onto the current device.
  Result (*prepare)();
  // Instead of what is made of the fields between `variant` and `launch`, which are then not there:
  // the plan of a valid problem. False: it does not have the problem, and `*why` says why. Blocks
  // of such a plan wait for nobody, so that there may be more of them than the device has room for.
  bool (*plan)(const ccl::Comm& comm, const Problem& problem, Plan* plan,
               const char** why) = nullptr;
  backend::HostOnly host_only = {};
};

#define IRIS_ROW(Name, number, text) extern const VariantRow k##Name##Row;
IRIS_NORM_VARIANTS(IRIS_ROW)
#undef IRIS_ROW

// All rows.
inline constexpr const VariantRow* kRows[] = {
#define IRIS_ROW(Name, number, text) &k##Name##Row,
    IRIS_NORM_VARIANTS(IRIS_ROW)
#undef IRIS_ROW
};

// Whether the Comm has kLines and kTwoLines at all.
inline bool HasLines(const ccl::Comm& comm) {
  return ccl::impl::kHasLines && !comm.config.without_lines && comm.team.size >= 2 &&
         comm.team.size <= ccl::impl::kMaxLineMembers;
}

// The kernel of the type that `in` has, launched.
template <typename Kernels>
Result LaunchOf(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                backend::Stream& stream) {
  switch (in) {
    case DType::kF32:
      return backend::Launch(config, stream, Kernels::template Of<float>(), common, call);
    case DType::kF16:
      return backend::Launch(config, stream, Kernels::template Of<Half>(), common, call);
    default:
      return backend::Launch(config, stream, Kernels::template Of<Bfloat16>(), common, call);
  }
}
// The same of two kinds of kernels: of `Whole`, where a call is such.
template <typename Whole, typename Kernels>
Result LaunchOfEither(bool whole, const Common& common, const NormCall& call, DType in,
                      const LaunchConfig& config, backend::Stream& stream) {
  return whole ? LaunchOf<Whole>(common, call, in, config, stream)
               : LaunchOf<Kernels>(common, call, in, config, stream);
}
template <typename Kernels>
Result PrepareOf() {
  if (Result result = backend::PrepareKernel(Kernels::template Of<float>()); !result.ok()) {
    return result;
  }
  if (Result result = backend::PrepareKernel(Kernels::template Of<Half>()); !result.ok()) {
    return result;
  }
  return backend::PrepareKernel(Kernels::template Of<Bfloat16>());
}

}  // namespace iris::norm::impl
