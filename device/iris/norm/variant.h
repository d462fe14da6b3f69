// VariantRow describes a variant to the launcher. Each row is in the variant's own file. Host code.
//
// A new variant needs a line in the list of iris/norm_types.h, and a file that defines the row
// k<Name>Row.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/nodes/nodes.h"
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
  uint32_t kept;  // the most units of 16 bytes of a row that a thread has
  // Returns the most bytes of a row of `in` that a block can have, for a valid problem. Returns 0
  // and sets `*why` if the variant does not support the problem.
  uint64_t (*part_bytes)(const ccl::Comm& comm, const Problem& problem, const char** why);
  // Returns the most blocks of a launch.
  uint32_t (*max_blocks)(const ccl::Comm& comm);
  // Returns the rows that the blocks divide among themselves.
  uint64_t (*rows)(const ccl::Comm& comm, const Problem& problem);
  Result (*launch)(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                   backend::Stream& stream);
  Result (*prepare)();
  // Makes the plan of a valid problem. If this function is set, the fields between `variant` and
  // `launch` are not. Returns false and sets `*why` if the variant does not support the problem.
  // Blocks of such a plan wait for no other block, so not all of them must fit on the device.
  bool (*plan)(const ccl::Comm& comm, const Problem& problem, Plan* plan,
               const char** why) = nullptr;
  backend::HostOnly host_only = {};
};

IRIS_VARIANT_ROWS(IRIS_NORM_VARIANTS);

// kPair, the only variant for ranks on several nodes.
Result PlanPair(const ccl::NodesComm& comm, const Problem& problem, Plan* plan);
// `call` is checked, and has its strides and at least a row.
Result LaunchPair(const ccl::NodesComm& comm, const Norm& call, backend::Stream& stream);

// Returns the arguments of the kernels of a call that has its strides, without those of a Comm.
NormCall ArgumentsOf(const Norm& call, const Plan& plan);

// Returns true if the Comm supports kLines and kTwoLines.
inline bool HasLines(const ccl::Comm& comm) {
  return ccl::impl::kHasLines && !comm.config.without_lines && comm.team.size >= 2 &&
         comm.team.size <= ccl::impl::kMaxLineMembers;
}

// Launches the kernel for the type of `in`.
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
// Launches a kernel of `Whole` if the call's units are all complete, otherwise one of `Kernels`.
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
