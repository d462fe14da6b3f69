// A product of matrices and its communication in one persistent kernel, written for one kind of
// device in its own instructions. Most backends have none.
//
// Host code. Thread-safe. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/product_ledger.h"
#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/ops_types.h"

namespace iris::backend {

// What each rank computes, of A [m, k] and B [k, n], by rows:
//   kReduceScatter  D = its rows of f(sum over ranks of A_r B_r + bias).
//   kAllReduce      D = f(sum over ranks of A_r B_r + bias).
//   kAllGather      D = f(A B + bias); A's rows lie with the ranks, one share after another.
//   kAllScatter     every rank's D gets this rank's f(A B + bias), at d[rank].
struct PersistentProduct {
  static constexpr uint32_t kMaxRanks = 16;
  enum class Kind : uint32_t { kReduceScatter, kAllReduce, kAllGather, kAllScatter };

  Kind kind = Kind::kReduceScatter;
  DType in = DType::kNone;
  DType out = DType::kNone;
  DType bias_type = DType::kNone;
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  const void* a = nullptr;
  uint64_t lda = 0;  // elements
  const void* b = nullptr;
  uint64_t ldb = 0;
  bool transposed_b = false;
  uint64_t ldd = 0;
  const void* bias = nullptr;
  ops::Activation activation = ops::Activation::kNone;

  uint32_t rank = 0;
  uint32_t n_ranks = 1;
  void* d[kMaxRanks] = {};          // as this process maps them
  void* workspace[kMaxRanks] = {};  // likewise; zeros before the first launch
  uint64_t workspace_bytes = 0;     // of each
  uint64_t timeout_ns = 0;          // 0: no limit
  const uint32_t* abort_word = nullptr;
  ProductLedger ledger;
  uint32_t max_blocks = 0;  // 0: as many as the device runs at once
  // kAllGather with m above 64: the copy engine sends A's rows, on a stream of this device that
  // nothing else uses meanwhile, between two events. All three are set, or none is, at all ranks
  // alike. Where ranks share a device, max_blocks leaves multiprocessors free for the copies.
  Stream* copies = nullptr;
  Event* copies_begin = nullptr;
  Event* copies_end = nullptr;
};

// What a launch keeps at the beginning of its workspace, from one launch to the next. Nothing else
// may write there; the rest is free between launches.
inline constexpr uint64_t kPersistentKeptBytes = 4096;

// Whether the current device has such a kernel.
bool HasPersistentProduct();

// Whether it can do the problem, addresses, leading dimensions and the workspace included. If not,
// `*why` says what is in the way, as a string that lives for ever.
bool SupportsPersistentProduct(const PersistentProduct& product, const char** why);

// The least workspace_bytes for a shape that is supported. 0: it is not.
uint64_t PersistentProductBytes(const PersistentProduct& product);

// Puts it on the stream, where the kernel right before it is the opening: the launch may begin
// while that one runs, and waits for its end before it sends anything, or writes to D. Allocates
// nothing, and may be captured.
Result LaunchPersistentProduct(const PersistentProduct& product, Stream& stream);

// Loads the kernels onto the current device.
Result PreparePersistentProduct();

}  // namespace iris::backend
