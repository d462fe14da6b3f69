// PersistentProduct: a launch of persistent_product.h, for kernels without a backend's headers.
#pragma once

#include <cstdint>

#include "iris/backend/product_ledger.h"
#include "iris/dtype.h"
#include "iris/ops_types.h"

namespace iris::backend {

// Each rank computes from A [m, k] and B [k, n], by rows, with f the activation:
//   kReduceScatter  D = this rank's rows of f(sum over ranks of A_r B_r + bias).
//   kAllReduce      D = f(sum over ranks of A_r B_r + bias), the same bits on all ranks.
//   kAllGather      D = f(A B + bias); each rank has a share of A's rows, in the order of ranks.
//   kAllScatter     f(A B + bias) of this rank is stored into every rank's D, at d[rank].
// Shares of rows differ by at most one: the first ranks have one row more.
struct PersistentProduct {
  static constexpr uint32_t kMaxRanks = 16;
  enum class Kind : uint32_t { kReduceScatter, kAllReduce, kAllGather, kAllScatter };

  Kind kind = Kind::kReduceScatter;
  DType in = DType::kNone;   // of A and B: kF16 or kBf16
  DType out = DType::kNone;  // of D and of sums between ranks: that of A, or kF32
  uint64_t m = 0;            // rows of A; of all ranks' A together for kAllGather
  uint64_t n = 0;            // columns of B at this rank; for sums the same at all ranks
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
  const uint32_t* abort_word = nullptr;  // nonzero: give up. On this device, or mapped; or null
  // If set, the kernel right before this one on the stream is an opening, in which all ranks meet
  // and compare their calls. The launch may begin early, but it sends, and writes D, only after the
  // opening's end, and only if `*ledger.failed` is 0.
  ProductLedger ledger;
  uint32_t max_blocks = 0;  // 0: as many as the device runs at once
  // For kAllGather with m above 64: a stream of this device without other users, and two events
  // without timing. All three are set, or none is, and alike on all ranks. If set, the copy engine
  // sends A's rows on that stream; where ranks share a device, max_blocks then leaves
  // multiprocessors to the copies.
  void* copy_stream = nullptr;
  void* copy_events[2] = {};
};

// The bytes at the beginning of the workspace whose contents must survive between launches. The
// rest is free between launches.
inline constexpr uint64_t kPersistentKeptBytes = 4096;

}  // namespace iris::backend
