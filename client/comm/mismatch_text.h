// The message for ranks that made different calls. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "iris/collective/collective.h"

namespace iris::internal {

// Returns one sentence about a kInvalidArgument of CheckError, the same text on every rank.
// ranks[m] is the world rank of the team's member m.
//
//   all_reduce #5: rank 2 called all_gather(count=1024, type=f32, variant=packets, blocks=1), ranks
//   0, 1 and 3 called all_reduce(count=1024, type=i32, op=max, variant=packets, blocks=1)
std::string MismatchText(const ccl::ErrorInfo& info, absl::Span<const uint32_t> ranks);

// Returns "rank 0 called ..., rank 4 called ..." for two calls that differ between nodes.
std::string CallsText(const ccl::PackedCall& mine, uint32_t rank, const ccl::PackedCall& theirs,
                      uint32_t other, absl::Span<const uint32_t> ranks);

}  // namespace iris::internal
