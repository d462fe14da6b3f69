// Matrix products fused with communication, by Hopper's own instructions: TMA, wgmma, bulk copies.
//
// One launch multiplies A [m, k] by B [k, n] at one rank, and exchanges with the other ranks inside
// the same kernel. Plain structs and functions, so that launchers need no header of the vendor.
// Thread-safe. Nothing is allocated, and nothing is synchronised: a launch can be captured into a
// graph. C++17.
//
// What the kinds compute, with W ranks, f the activation and matrices in row-major order:
//   kPlain          D = f(A B + bias).
//   kReduceScatter  D = the rank's rows of f(sum over ranks of A_r B_r + bias).
//   kAllReduce      D = f(sum over ranks of A_r B_r + bias), the same bits on all ranks.
//   kAllGather      D = f(A B + bias); A's rows lie with the ranks, one share after another.
//   kAllScatter     every rank's D gets this rank's f(A B + bias), at d[rank].
// Rows are dealt out by schedule.h: as evenly as can be, the first ranks get one more.
// Sums over k and over ranks have one order: the same bits run after run.
//
// Failure: every wait for another rank is bounded by `timeout_ns` and by the abort word. A rank
// that gives up writes its report, finishes without waiting for anything more, and tells nobody
// that its results are there. D is then undefined. The workspace is broken until all ranks have
// cleared it together: until then later launches on it wait for nobody, and leave D undefined as
// well.
#pragma once

#include <cstdint>

#include "iris/backend/product_ledger.h"

namespace iris::backend::cuda::matmul {

inline constexpr uint32_t kMaxRanks = 16;

enum class Kind : uint32_t { kPlain, kReduceScatter, kAllReduce, kAllGather, kAllScatter };
enum class Type : uint32_t { kFloat16, kBfloat16, kFloat32 };
enum class Activation : uint32_t { kNone, kRelu, kGelu, kSilu };

// The tiles of D that a thread block makes, rows x columns. In turns: two at a time, so that one is
// multiplied while another is finished; not for sums that travel as float32.
enum class Tile : uint32_t { kAny, k128x256, k128x128, k64x64, k128x128InTurns };

// How it is done, never what comes out of it, but for rounding. 0: as the kernel finds best. The
// same on all ranks, but for the numbers of blocks.
struct Tuning {
  Tile tile = Tile::kAny;
  uint32_t blocks = 0;       // at most so many, where several ranks share a device
  uint32_t push_blocks = 0;  // of them, for sending A's rows (kAllGather)
  uint32_t group = 0;        // rows of tiles that are done together, so that the cache holds them
  uint32_t segments = 0;     // parts of a rank's rows that go around one after another
                             // (kAllReduce), or that are copied at a time (kAllGather)
  bool no_copies = false;    // kAllGather: blocks send A's rows, although there is a copy stream
};

// Why a rank gave up. In a report word: the code, the rank it waited for in bits 8 to 15, the low
// half of the launch's number above bit 32.
enum class Failure : uint32_t { kNone, kTimeout, kAborted, kCallsDiffer };

struct Problem {
  Kind kind = Kind::kPlain;
  Type in = Type::kBfloat16;   // of A and B; not kFloat32
  Type out = Type::kBfloat16;  // of D: that of A, or kFloat32. Sums travel between ranks as this
  uint64_t m = 0;              // rows of A; of all ranks' A together for kAllGather
  uint64_t n = 0;              // columns of B, at this rank; the same at all ranks that add up
  uint64_t k = 0;              // at this rank
  const void* a = nullptr;     // leading dimensions in elements
  uint64_t lda = 0;
  const void* b = nullptr;
  uint64_t ldb = 0;
  bool transposed_b = false;  // B lies as [n, k]
  uint64_t ldd = 0;
  const void* bias = nullptr;  // n elements, added to each row; or null
  Type bias_type = Type::kBfloat16;
  Activation activation = Activation::kNone;

  uint32_t rank = 0;
  uint32_t n_ranks = 1;
  // As this process maps them. d[rank] is this rank's D; those of others are for kAllReduce and, as
  // the place of this rank's block in the D of each, for kAllScatter.
  void* d[kMaxRanks] = {};
  // Of `workspace_bytes` each, the same at all ranks; zeros before the first launch. All launches
  // on a workspace are in one order, the same at all ranks.
  void* workspace[kMaxRanks] = {};
  uint64_t workspace_bytes = 0;

  uint64_t timeout_ns = 0;
  const uint32_t* abort = nullptr;  // not 0: give up. On this device, or mapped; or null
  uint64_t* report = nullptr;       // where the first failure is told; or null
  // If it is set, the kernel right before this one on the stream is an opening, in which all ranks
  // of the workspace meet and compare their calls. The launch may begin while that one runs. It
  // waits for its end before it sends anything, or writes to D, and does neither where
  // `ledger.failed` is then not 0. Failures go to the ledger's report instead of `report`.
  ProductLedger ledger;
  // For kAllGather: a stream of this device that nothing else uses meanwhile, and two events made
  // without timing. Large rows then travel by the copy engine, and no block is spent on them. Null,
  // or all three, at all ranks alike. Where ranks share a device, Tuning::blocks must leave some
  // multiprocessors free: copies within a device are kernels.
  void* copy_stream = nullptr;
  void* copy_events[2] = {};
  Tuning tuning;
};

// Whether Launch can do it. If not, `*why` says what is in the way, as a string that lives for
// ever. Looks at nothing but the problem.
bool Supports(const Problem& problem, const char** why);

// The least `workspace_bytes` of a problem that Supports accepts but for its workspace. 0 for
// kPlain.
uint64_t WorkspaceBytes(const Problem& problem);

// A problem that Supports accepts, on the current device, which must be a Hopper GPU; `stream` is a
// cudaStream_t. Null, or what went wrong, as a string that lives for ever.
const char* Launch(const Problem& problem, void* stream);

// Loads all kernels onto the current device, a Hopper GPU, so that no launch has to, which might
// wait for kernels that run. Null, or what went wrong.
const char* Prepare();

}  // namespace iris::backend::cuda::matmul
