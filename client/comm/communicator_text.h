// Texts for the errors of a communicator. Pure functions, but for those that ask a backend.
#pragma once

#include <cstdint>
#include <string>

#include "client/backend/operations.h"
#include "iris/collective/collective.h"
#include "iris/moe/moe.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"

namespace iris::internal {

// Returns a call with its shape: "matmul_all_reduce(m=64, n=8192, k=1024, bf16 to bf16)".
std::string CallText(const ops::Problem& problem);
std::string CallText(const norm::Problem& problem);
std::string CallText(const char* name, const moe::Config& config);

// Describes an error that a kernel of MoE found at a rank: kOutOfRange, kFailedPrecondition.
std::string MoeFailureText(const ccl::ErrorInfo& info, StatusCode code, uint32_t rank);

// Returns a warning if the communicators of this process may have more streams than the device has
// queues; otherwise an empty text.
std::string QueuesText(const backend::BackendOperations& backend);

// Lists the communicators of this process that have blocks of the device.
std::string SharesText(const backend::BackendOperations& backend);

}  // namespace iris::internal
