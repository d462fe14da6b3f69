// One launch of persistent_product.h in plain words, for a kernel without a backend's headers.
#pragma once

#include <cstdint>

#include "iris/backend/product_ledger.h"
#include "iris/dtype.h"
#include "iris/ops_types.h"

namespace iris::backend {

// Each rank computes from A [m, k] and B [k, n], by rows, with f the activation:
//   kReduceScatter  D = its rows of f(sum over ranks of A_r B_r + bias).
//   kAllReduce      D = f(sum over ranks of A_r B_r + bias), the same bits on all ranks.
//   kAllGather      D = f(A B + bias); A's rows lie with the ranks, one share after another.
//   kAllScatter     every rank's D gets this rank's f(A B + bias), at d[rank].
// Shares of rows are as even as can be: the first ranks have one more.
struct PersistentProduct {
  static constexpr uint32_t kMaxRanks = 16;
  enum class Kind : uint32_t { kReduceScatter, kAllReduce, kAllGather, kAllScatter };

  Kind kind = Kind::kReduceScatter;
  DType in = DType::kNone;   // of A and B: kF16 or kBf16
  DType out = DType::kNone;  // of D: that of A, or kF32. Sums travel between ranks as this
  uint64_t m = 0;            // rows of A; of all ranks' A together for kAllGather
  uint64_t n = 0;            // columns of B, at this rank; the same at all ranks that add up
  uint64_t k = 0;            // at this rank
  const void* a = nullptr;   // leading dimensions in elements
  uint64_t lda = 0;
  const void* b = nullptr;
  uint64_t ldb = 0;
  bool transposed_b = false;  // B lies as [n, k]
  uint64_t ldd = 0;
  const void* bias = nullptr;  // n elements, added to each row; or null
  DType bias_type = DType::kNone;
  ops::Activation activation = ops::Activation::kNone;

  uint32_t rank = 0;
  uint32_t n_ranks = 1;
  // d[rank] is this rank's D; the others are for kAllReduce and kAllScatter.
  void* d[kMaxRanks] = {};
  // Each workspace has workspace_bytes and is zeroed before the first launch. Launches that use the
  // same workspace run one after another.
  void* workspace[kMaxRanks] = {};
  uint64_t workspace_bytes = 0;

  uint64_t timeout_ns = 0;               // 0: no limit
  const uint32_t* abort_word = nullptr;  // not 0: give up. On this device, or mapped; or null
  // The kernel right before this one on the stream is an opening, in which all ranks meet and
  // compare their calls. The launch may begin early; it sends, and writes D, after the opening's
  // end and unless `ledger.failed`.
  ProductLedger ledger;
  uint32_t max_blocks = 0;  // 0: as many as the device runs at once
  // kAllGather with m above 64: the copy engine sends A's rows, on a stream of this device that
  // nothing else uses, between two events without timing. All three are set, or none is, at all
  // ranks alike. Where ranks share a device, max_blocks leaves multiprocessors for the copies.
  void* copy_stream = nullptr;
  void* copy_events[2] = {};
};

// The bytes that launches keep at the beginning of the workspace. The rest is free between
// launches.
inline constexpr uint64_t kPersistentKeptBytes = 4096;

}  // namespace iris::backend
