// ProductLedger: words, shared with the team's collectives, by which a persistent GEMM learns
// if its team has failed, and reports its own result. Uses only the standard library. C++17.
#pragma once

#include <cstdint>

namespace iris {
struct TraceArea;
}

namespace iris::backend {

// All words belong to this rank and are on its device, except the report. If none is set, the
// launch has no opening, and signals no rank.
struct ProductLedger {
  // Nonzero after the kernel before the launch if the ranks have not met. The launch then neither
  // sends nor waits. A launch that fails sets this word.
  uint32_t* failed = nullptr;
  uint32_t* finished = nullptr;  // operations; a launch that succeeds counts itself
  uint64_t* missing = nullptr;   // a bit for each rank for which a wait failed
  uint64_t* report = nullptr;    // the first failure, made of one of the words below
  uint64_t timeout_word = 0;     // a launch adds rank << 16 and `*finished` << 32 to either word
  uint64_t aborted_word = 0;
  // `n_blocks` words that repeat `failed`, `block_bytes` apart.
  uint32_t n_blocks = 0;
  uint8_t* blocks = nullptr;
  uint64_t block_bytes = 0;
  // Blocks record their work here during a trace (iris/trace_area.h), with the fields below of
  // TraceEvent, and `*finished` as the operation's number. Null if there is no trace.
  TraceArea* trace = nullptr;
  uint64_t trace_bytes = 0;
  uint64_t trace_detail = 0;
  uint32_t trace_op = 0;
};

// The offset of the failure word in the bytes that launches keep: nonzero once the rank has failed.
// A launch checks the word after all of its reads, and reports to the ledger. So a rank that is
// about to overwrite data which the launch may still read first writes kProductStopped |
// rank << kProductStoppedByShift, as if the launch had been stopped while it waited for that rank.
// (Numbers, because a function for host and device would need a backend's macro.)
inline constexpr uint64_t kProductFailureAtBytes = 8;
inline constexpr uint64_t kProductStopped = 2;
inline constexpr uint32_t kProductStoppedByShift = 8;

}  // namespace iris::backend
