// Where a persistent product (persistent_product.h) learns whether its team goes on, and tells how
// it went: words that the collectives of the team keep, too. The standard library alone. C++17.
#pragma once

#include <cstdint>

namespace iris {
struct TraceArea;
}

namespace iris::backend {

// All words are this rank's, on its device except the report. If none is set, the launch has no
// opening, and signals no rank.
struct ProductLedger {
  // Not 0, after the kernel before the launch, if the ranks have not met. The launch then neither
  // sends nor waits. A launch that fails sets it.
  uint32_t* failed = nullptr;
  uint32_t* finished = nullptr;  // operations; a launch that succeeds counts itself
  uint64_t* missing = nullptr;   // a bit for each rank that did not come
  uint64_t* report = nullptr;    // the first failure of all, in the words below
  uint64_t timeout_word = 0;     // with the rank added above bit 16, and `finished` above bit 32
  uint64_t aborted_word = 0;
  // `n_blocks` words that repeat `failed`, `block_bytes` apart.
  uint32_t n_blocks = 0;
  uint8_t* blocks = nullptr;
  uint64_t block_bytes = 0;
  // Blocks record their work here while a trace is on (iris/trace_area.h), with these fields of
  // TraceEvent for the operation. `finished` is the number. Null if there is no trace.
  TraceArea* trace = nullptr;
  uint64_t trace_bytes = 0;
  uint64_t trace_detail = 0;
  uint32_t trace_op = 0;
};

// The offset of the failure word in the bytes that launches keep: not 0 once the rank has failed. A
// launch checks it after all of its reads, and reports to the ledger. So a rank that is about to
// overwrite data which the launch may still read first writes kProductStopped here, with its rank
// kProductStoppedByShift bits up, as if this rank had been stopped while it waited for that one.
// (Numbers, because a function for host and device would need a backend's macro.)
inline constexpr uint64_t kProductFailureAtBytes = 8;
inline constexpr uint64_t kProductStopped = 2;
inline constexpr uint32_t kProductStoppedByShift = 8;

}  // namespace iris::backend
