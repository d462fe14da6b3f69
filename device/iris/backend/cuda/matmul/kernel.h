// The matrix kernel of Hopper: one persistent grid whose warps have roles.
//
//   load warp      loads tiles of A and B into a ring of stages by TMA
//   matrix groups  accumulate 64 rows of each tile, or full tiles alternately, by wgmma; add the
//                  seed, which the previous rank sent; put the result into staging memory
//   store warps    one for each group. seed: loads the previous rank's data into staging memory.
//                  emit: sends the staged tile to the next rank, or stores it into D
//   poll warp      polls in advance for rows of A that others send (kAllGather)
//
// Data that travels around a ring has the order in which the registers of a group hold it. So
// staging needs no layout and has no bank conflicts, and a tile is one piece of the workspace.
//
// Launches on a workspace are numbered (the epoch, kept in the workspace). A flag is the epoch and
// a signature of the call, in one word. Flags and data have two halves, for even and odd epochs: a
// rank that has finished epoch e - 1 has received from every rank in e - 1, so all have finished
// e - 2, and the rank may overwrite the half of e - 2 without a barrier.
//
// Waits between the roles of a block are unbounded, because waits for other ranks are bounded, and
// a role that has given up waits for no rank.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"
#include "iris/backend/cuda/matmul/ptx.h"
#include "iris/backend/cuda/matmul/schedule.h"
#include "iris/backend/cuda/matmul/wgmma.h"
#include "iris/trace_area.h"

namespace iris::backend::cuda::matmul {

// The beginning of each rank's workspace.
struct Header {
  uint32_t epoch;     // launches finished
  uint32_t finished;  // store warps that are done with this launch
  uint64_t failure;   // why the rank gave up; nonzero: the workspace is broken
  uint64_t flag;      // the copy engine copies this word after each piece
  uint64_t entered[2][kMaxRanks];
  uint64_t left[2][kMaxRanks];
};
static_assert(sizeof(Header) <= kHeaderBytes);
// backend/product_ledger.h also defines this offset.
static_assert(offsetof(Header, failure) == kProductFailureAtBytes);
static_assert(kProductStopped == static_cast<uint64_t>(Failure::kAborted) &&
              kProductStoppedByShift == 8);  // as Fail writes it

struct Arguments {
  CUtensorMap a;
  CUtensorMap b;
  CUtensorMap d;         // of this rank
  CUtensorMap gathered;  // A as others send it, by parity
  // D of the later ranks, from 1 on; for kAllGather, this rank's rows in the A that they gather.
  CUtensorMap peers[kMaxRanks];
  Schedule schedule;
  Half half[2];
  uint8_t* workspace[kMaxRanks];  // by rank
  uint8_t* out[kMaxRanks];        // D of this rank first, then of the ranks after it
  const void* bias;
  const uint32_t* abort;
  uint64_t ldd;
  uint64_t timeout_ns;
  uint32_t signature;
  uint32_t m_tensor;  // rows that the maps of D have
  uint32_t n_out;     // columns
  uint32_t finishers;
  uint32_t push_blocks;
  uint32_t bias_type;
  uint32_t activation;
  uint32_t wide;         // sums travel, and are stored, as float
  uint32_t by_tile;      // D is stored by the copy engine
  uint32_t pairs_align;  // two elements of D are one aligned word
  uint32_t opened;       // the kernel before this one is an opening
  ProductLedger ledger;
};

// The most blocks that share a small tile's k.
inline constexpr uint32_t kMostSplit = 4;

#if defined(__CUDACC__)

template <uint32_t kTileM, uint32_t kTileN, uint32_t kStageCount, uint32_t kClusterBlocks,
          uint32_t kStagingElementBytes, bool kTurns, bool kIsBfloat16, bool kIsTransposed>
struct Config {
  static constexpr uint32_t kM = kTileM;
  static constexpr uint32_t kN = kTileN;
  static constexpr uint32_t kStages = kStageCount;
  static constexpr uint32_t kCluster = kClusterBlocks;
  static constexpr bool kBfloat16 = kIsBfloat16;
  static constexpr bool kTransposed = kIsTransposed;  // B is [n, k]
  static constexpr uint32_t kGroups = kM / 64;
  static constexpr uint32_t kThreads = (kGroups + 1) * 128;
  static constexpr uint32_t kABytes = kM * 128;
  static constexpr uint32_t kBBytes = kN * 128;
  // True: the groups alternate, and one multiplies a tile while the other finishes one. False: each
  // has 64 rows of a tile.
  static constexpr bool kAlternates = kTurns;
  static constexpr uint32_t kHalves = kAlternates ? 2 : 1;  // 64 rows each, of a group
  static constexpr uint32_t kStagingBytes = kHalves * 64 * kN * kStagingElementBytes;
  static constexpr bool kPackets = kM == 64;
  // The partial sums of the other blocks of a tile, for their parts of k.
  static constexpr uint32_t kPartialBytes = kPackets ? (kMostSplit - 1) * 64 * kN * 4 : 0;
  static constexpr uint32_t kSharedBytes =
      1024 + kStages * (kABytes + kBBytes) + kGroups * kStagingBytes + kPartialBytes + 512;
};

#if !defined(__CUDA_ARCH__) || defined(IRIS_MATMUL_HOPPER)

// One of this many polls also reads the abort word.
inline constexpr uint32_t kAbortLooks = 16;

// The bytes that a store warp sends at a time.
inline constexpr uint32_t kSendBytes = 2048;

// The most boxes of A that a sending block has in flight.
inline constexpr uint32_t kPushStages = 12;

template <typename C>
struct Shared {
  uint64_t full[C::kStages];
  uint64_t empty[C::kStages];
  uint64_t seeded[C::kGroups];
  uint64_t staged[C::kGroups];
  uint64_t partial;
  uint64_t turn[2];
  uint64_t push[kPushStages];
  uint32_t failed;
  uint32_t arrived;
  uint32_t epoch;
  uint64_t began_ns;   // for the trace: when the block began
  uint64_t opened_ns;  // for the trace: when the block had passed the opening; 0: there was none
};

IRIS_MATMUL_DEVICE uint64_t LoadAcquire(const uint64_t* p) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
// Publishes all stores before the last FenceSystem. A release would fence for every receiver.
IRIS_MATMUL_DEVICE void StoreFlag(uint64_t* p, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(p), "l"(value) : "memory");
}
IRIS_MATMUL_DEVICE uint64_t LoadRelaxed(const uint64_t* p) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
IRIS_MATMUL_DEVICE uint32_t LoadRelaxed(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
IRIS_MATMUL_DEVICE void FenceSystem() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
IRIS_MATMUL_DEVICE uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
IRIS_MATMUL_DEVICE uint32_t LoadShared(const uint32_t* p) {
  return *static_cast<const volatile uint32_t*>(p);
}
IRIS_MATMUL_DEVICE void StoreShared(uint32_t* p, uint32_t value) {
  *static_cast<volatile uint32_t*>(p) = value;
}

IRIS_MATMUL_DEVICE Header* HeaderOf(const Arguments& a, uint32_t rank) {
  return reinterpret_cast<Header*>(a.workspace[rank]);
}
IRIS_MATMUL_DEVICE uint64_t* FlagsOf(const Arguments& a, uint32_t rank, uint32_t epoch) {
  return reinterpret_cast<uint64_t*>(a.workspace[rank] + a.half[epoch & 1].flags_offset_bytes);
}
IRIS_MATMUL_DEVICE uint64_t FlagWord(const Arguments& a, uint32_t epoch) {
  return FlagOf(a.signature, epoch);
}

// Records why this rank gives up; the first record stands.
IRIS_MATMUL_DEVICE void Fail(const Arguments& a, Failure why, uint32_t member, uint32_t epoch) {
  const uint64_t word =
      static_cast<uint64_t>(epoch) << 32 | member << 8 | static_cast<uint32_t>(why);
  uint64_t* failure = &HeaderOf(a, a.schedule.rank)->failure;
  atomicCAS(reinterpret_cast<unsigned long long*>(failure), 0ull,
            static_cast<unsigned long long>(word));
}

// Ends returns true if a wait for `member` has to end, and records the reason.
struct Patience {
  uint64_t since_ns = 0;
  uint32_t looks = 0;

  IRIS_MATMUL_DEVICE bool Ends(const Arguments& a, uint32_t member, uint32_t epoch) {
    const uint64_t now = Nanoseconds();
    if (since_ns == 0) since_ns = now;
    if (LoadRelaxed(&HeaderOf(a, a.schedule.rank)->failure) != 0) return true;
    // The abort word may be in host memory, where a read takes as long as a message.
    if (++looks % kAbortLooks == 0 && a.abort != nullptr && LoadRelaxed(a.abort) != 0) {
      Fail(a, Failure::kAborted, member, epoch);
      return true;
    }
    if (now - since_ns > a.timeout_ns) {
      Fail(a, Failure::kTimeout, member, epoch);
      return true;
    }
    return false;
  }
};

// Waits for the end of the opening, and reads whether the ranks have met. Every thread that sends
// to other ranks, or stores to D, calls it first.
IRIS_MATMUL_DEVICE void AwaitOpening(const Arguments& a, uint32_t* failed) {
  if (a.opened == 0) return;
  asm volatile("griddepcontrol.wait;" : : : "memory");
  if (LoadRelaxed(a.ledger.failed) != 0) StoreShared(failed, 1);
}

// The trace, as WriteTraceEvent (iris/impl/trace.h) writes it, without the device API.

IRIS_MATMUL_DEVICE void LoadPair(const void* p, uint64_t* low, uint64_t* high) {
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(*low), "=l"(*high)
               : "l"(p)
               : "memory");
}
IRIS_MATMUL_DEVICE void StorePair(void* p, uint64_t low, uint64_t high) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" : : "l"(p), "l"(low), "l"(high) : "memory");
}

// Called after AwaitOpening by the thread that later calls TellTrace.
template <typename S>
IRIS_MATMUL_DEVICE void NoteOpened(const Arguments& a, S* shared) {
  if (a.opened == 0 || a.ledger.trace == nullptr) return;
  *static_cast<volatile uint64_t*>(&shared->opened_ns) = Nanoseconds();
}

// Called by one thread of a block before the block counts itself as finished. All its inputs are in
// memory, so the preceding loops spend no registers on it.
template <typename S>
IRIS_MATMUL_DEVICE void TellTrace(const Arguments& a, const S* shared) {
  TraceArea* const area = a.ledger.trace;
  if (area == nullptr) return;
  uint64_t until_ns;
  uint64_t head;
  LoadPair(&area->until_ns, &until_ns, &head);
  const uint64_t began_ns = *static_cast<const volatile uint64_t*>(&shared->began_ns);
  if (began_ns >= until_ns) return;
  const uint64_t opened_ns = *static_cast<const volatile uint64_t*>(&shared->opened_ns);
  const uint64_t opening_ns = opened_ns == 0 ? 0 : opened_ns - began_ns;
  const uint64_t most = ~uint32_t{0};
  const uint64_t first_ns = opening_ns < most ? opening_ns : most;
  const uint64_t slot =
      atomicAdd_system(reinterpret_cast<unsigned long long*>(&area->position), 1ull);
  if (slot >= head >> 32) return;  // the capacity
  uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  const uint64_t words[7] = {began_ns,
                             Nanoseconds(),
                             a.ledger.trace_bytes,
                             a.ledger.trace_detail,
                             first_ns,
                             first_ns | static_cast<uint64_t>(LoadRelaxed(a.ledger.finished)) << 32,
                             a.ledger.trace_op | uint64_t{kNoTracePeer} << 16 |
                                 static_cast<uint64_t>(multiprocessor & 0xffff) << 32 |
                                 static_cast<uint64_t>(threadIdx.x) << 48};
  uint64_t folded = blockIdx.x;
#pragma unroll
  for (uint32_t k = 0; k < 7; ++k) folded ^= words[k];
  const uint32_t ready = static_cast<uint32_t>(head) ^ static_cast<uint32_t>(folded) ^
                         static_cast<uint32_t>(folded >> 32);
  uint64_t* const to = reinterpret_cast<uint64_t*>(area + 1) + slot * (sizeof(TraceEvent) / 8);
#pragma unroll
  for (uint32_t k = 0; k < 6; k += 2) StorePair(to + k, words[k], words[k + 1]);
  StorePair(to + 6, words[6], blockIdx.x | static_cast<uint64_t>(ready) << 32);
}

// Waits until `*flag` has this launch's word. Returns false if the block has given up.
IRIS_MATMUL_DEVICE bool Await(const Arguments& a, uint32_t* failed, const uint64_t* flag,
                              uint32_t member, uint32_t epoch) {
  if (LoadShared(failed) != 0) return false;
  const uint64_t wanted = FlagWord(a, epoch);
  Patience patience;
  for (uint32_t polls = 1;; ++polls) {
    const uint64_t seen = LoadAcquire(flag);
    if (seen == wanted) return true;
    if (polls % 32 != 0) continue;
    if (seen != 0 && IsOfAnotherCall(static_cast<uint32_t>(seen), epoch, a.opened != 0)) {
      Fail(a, Failure::kCallsDiffer, member, epoch);
    }
    if (patience.Ends(a, member, epoch)) break;
  }
  StoreShared(failed, 1);
  return false;
}

// Reports to the ledger that the launch has failed.
IRIS_MATMUL_DEVICE void TellFailure(const ProductLedger& ledger, uint64_t failure) {
  const uint64_t member = failure >> 8 & 0xff;
  const uint64_t number = *static_cast<const volatile uint32_t*>(ledger.finished);
  const bool aborted =
      static_cast<uint32_t>(failure & 0xff) == static_cast<uint32_t>(Failure::kAborted);
  const uint64_t word =
      (aborted ? ledger.aborted_word : ledger.timeout_word) + (member << 16 | number << 32);
  atomicCAS_system(reinterpret_cast<unsigned long long*>(ledger.report), 0ull,
                   static_cast<unsigned long long>(word));
  atomicOr(reinterpret_cast<unsigned long long*>(ledger.missing), 1ull << member);
  for (uint32_t i = 0; i < ledger.n_blocks; ++i) {
    *reinterpret_cast<volatile uint32_t*>(ledger.blocks + i * ledger.block_bytes) = 1;
  }
  *static_cast<volatile uint32_t*>(ledger.failed) = 1;
}

// Ends the launch; called by the last thread of the grid.
IRIS_MATMUL_DEVICE void EndLaunch(const Arguments& a, Header* header, uint32_t epoch) {
  if (a.opened != 0 && LoadRelaxed(a.ledger.failed) == 0) {
    const uint64_t failure = LoadRelaxed(&header->failure);
    volatile uint32_t* finished = a.ledger.finished;
    if (failure == 0) {
      *finished = *finished + 1;
    } else {
      TellFailure(a.ledger, failure);
    }
  }
  *static_cast<volatile uint32_t*>(&header->epoch) = epoch;
}

template <bool kBfloat16>
IRIS_MATMUL_DEVICE uint32_t Pack(float low, float high) {
  uint32_t word;
  if constexpr (kBfloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}
template <bool kBfloat16>
IRIS_MATMUL_DEVICE float Widen(uint32_t half) {
  if constexpr (kBfloat16) return __uint_as_float(half << 16);
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }"
      : "=f"(value)
      : "r"(half));
  return value;
}
template <bool kBfloat16>
IRIS_MATMUL_DEVICE float LowOf(uint32_t word) {
  return Widen<kBfloat16>(word & 0xffff);
}
template <bool kBfloat16>
IRIS_MATMUL_DEVICE float HighOf(uint32_t word) {
  return Widen<kBfloat16>(word >> 16);
}

IRIS_MATMUL_DEVICE float BiasAt(const Arguments& a, uint32_t column) {
  switch (static_cast<DType>(a.bias_type)) {
    case DType::kF32:
      return static_cast<const float*>(a.bias)[column];
    case DType::kBf16:
      return Widen<true>(static_cast<const uint16_t*>(a.bias)[column]);
    default:
      return Widen<false>(static_cast<const uint16_t*>(a.bias)[column]);
  }
}

// Applies bias and activation to a thread's values of 64 rows, in columns from `column` on.
template <uint32_t kValues>
IRIS_MATMUL_DEVICE void Finish(const Arguments& a, uint32_t column, float (&d)[kValues]) {
  if (a.bias != nullptr) {
#pragma unroll
    for (uint32_t i = 0; i < kValues / 4; ++i) {
      const uint32_t at = column + 8 * i;
      const float first = at < a.n_out ? BiasAt(a, at) : 0.0f;
      const float second = at + 1 < a.n_out ? BiasAt(a, at + 1) : 0.0f;
      d[4 * i] += first;
      d[4 * i + 1] += second;
      d[4 * i + 2] += first;
      d[4 * i + 3] += second;
    }
  }
  switch (static_cast<Activation>(a.activation)) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      // Not fmaxf, which would hide a NaN.
#pragma unroll
      for (uint32_t i = 0; i < kValues; ++i) d[i] = d[i] < 0.0f ? 0.0f : d[i];
      break;
    case Activation::kGelu:
#pragma unroll
      for (uint32_t i = 0; i < kValues; ++i) {
        // The form with tanh of iris/ops_types.h. For large |x| the exponential is 0 or infinite.
        const float cube = 0.044715f * d[i] * d[i] * d[i];
        const float scale = 1.0f + __expf(-1.5957691216057308f * (d[i] + cube));
        d[i] = fabsf(d[i]) > 16.0f ? fmaxf(d[i], 0.0f) : __fdividef(d[i], scale);
      }
      break;
    case Activation::kSilu:
#pragma unroll
      for (uint32_t i = 0; i < kValues; ++i) d[i] = __fdividef(d[i], 1.0f + __expf(-d[i]));
      break;
  }
}

template <bool kBfloat16>
IRIS_MATMUL_DEVICE void StorePair(const Arguments& a, uint8_t* out, uint64_t row, uint32_t column,
                                  float first, float second) {
  if (column >= a.n_out) return;
  const bool both = column + 1 < a.n_out;
  const uint64_t at = row * a.ldd + column;
  if (a.wide != 0) {
    float* to = reinterpret_cast<float*>(out) + at;
    if (both && a.pairs_align != 0) {
      *reinterpret_cast<float2*>(to) = make_float2(first, second);
    } else {
      to[0] = first;
      if (both) to[1] = second;
    }
  } else {
    const uint32_t word = Pack<kBfloat16>(first, second);
    uint16_t* to = reinterpret_cast<uint16_t*>(out) + at;
    if (both && a.pairs_align != 0) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      to[0] = static_cast<uint16_t>(word);
      if (both) to[1] = static_cast<uint16_t>(word >> 16);
    }
  }
}

// Stores a thread's values of the 64 rows of D from `row` on. Rows from `end` on do not exist.
template <bool kBfloat16, uint32_t kValues>
IRIS_MATMUL_DEVICE void StoreDirect(const Arguments& a, uint8_t* out, uint32_t row, uint32_t end,
                                    uint32_t shift, uint32_t column, const float (&d)[kValues]) {
  const uint32_t thread = threadIdx.x % 128;
  const uint32_t first = row + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    if (first + 8 * h >= end) continue;
#pragma unroll
    for (uint32_t i = 0; i < kValues / 4; ++i) {
      StorePair<kBfloat16>(a, out, first + 8 * h - shift, column + 8 * i, d[4 * i + 2 * h],
                           d[4 * i + 2 * h + 1]);
    }
  }
}

// The steps of the roles, as functions that another backend could define.

// Returns the row of the complete result that is row 0 of D.
IRIS_MATMUL_DEVICE uint32_t ShiftOf(const Schedule& s) {
  return s.kind == Kind::kReduceScatter ? SliceBegin(s.m, s.n_ranks, s.rank) : 0;
}
IRIS_MATMUL_DEVICE bool IsLastStep(const Schedule& s, const Work& work) {
  return !IsRing(s) || work.step == s.n_ranks - 1;
}
IRIS_MATMUL_DEVICE bool IsSeeded(const Schedule& s, const Work& work) {
  return IsRing(s) && work.step != 0;
}
// Returns the half of the workspace in which the rows of A are gathered.
IRIS_MATMUL_DEVICE uint32_t HalfOf(const Schedule& s, uint32_t epoch) {
  // The launch's host code, which does not know the epoch, copies to half 0.
  return s.copied != 0 ? 0 : epoch & 1;
}
// Returns true if the tile's rows of A come through the workspace.
IRIS_MATMUL_DEVICE bool IsGathered(const Schedule& s, const Work& work) {
  return s.kind == Kind::kAllGather && s.n_ranks > 1 && (s.slices == 1 || work.slice != s.rank);
}
// Returns how many of `out` get a finished tile.
IRIS_MATMUL_DEVICE uint32_t Receivers(const Schedule& s) {
  return s.kind == Kind::kAllReduce || s.kind == Kind::kAllScatter ? s.n_ranks : 1;
}
// Returns true if the copy engine can store the group's rows: its map ends with D, not a slice.
IRIS_MATMUL_DEVICE bool StoresByTile(const Arguments& a, const Work& work, uint32_t row) {
  return a.by_tile != 0 && (row + 64 <= work.end || work.end - ShiftOf(a.schedule) == a.m_tensor);
}

// Sums small problems, in which all rows are one tile. Every thread sends its values of another
// rank's rows to the corresponding thread of that rank, as packets of 8 bytes and two flags, and
// adds the values that it receives.
template <typename C, bool kWide>
struct Packets {
  static constexpr uint32_t kEach = kWide ? C::kN / 8 : C::kN / 16;  // packets of a thread and row

  // Returns the place of a packet. The results follow the sums of the ranks.
  IRIS_MATMUL_DEVICE static ulonglong2* At(const Arguments& a, uint32_t to, uint32_t from,
                                           uint32_t tile, uint32_t h, uint32_t epoch) {
    const uint64_t place = (static_cast<uint64_t>(from) * a.schedule.tiles_n + tile) * 2 + h;
    return reinterpret_cast<ulonglong2*>(a.workspace[to] + a.half[epoch & 1].packets_offset_bytes) +
           place * kEach * 128 + threadIdx.x % 128;
  }
  IRIS_MATMUL_DEVICE static void Send(const Arguments& a, ulonglong2* to, const float* d,
                                      uint32_t h, uint32_t epoch) {
    const uint32_t high_flag = epoch ^ a.signature;
#pragma unroll
    for (uint32_t p = 0; p < kEach; ++p) {
      uint32_t low;
      uint32_t high;
      if constexpr (kWide) {
        low = __float_as_uint(d[4 * p + 2 * h]);
        high = __float_as_uint(d[4 * p + 2 * h + 1]);
      } else {
        low = Pack<C::kBfloat16>(d[8 * p + 2 * h], d[8 * p + 2 * h + 1]);
        high = Pack<C::kBfloat16>(d[8 * p + 4 + 2 * h], d[8 * p + 4 + 2 * h + 1]);
      }
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
                   :
                   : "l"(to + p * 128), "r"(epoch), "r"(low), "r"(high_flag), "r"(high)
                   : "memory");
    }
  }
  // Receives values into `d`, or adds them to `d` if `adds`. Returns false on failure.
  IRIS_MATMUL_DEVICE static bool Receive(const Arguments& a, uint32_t* failed,
                                         const ulonglong2* from, uint32_t member, float* d,
                                         uint32_t h, bool adds, uint32_t epoch) {
    if (LoadShared(failed) != 0) return false;
    const uint32_t high_flag = epoch ^ a.signature;
    uint32_t word[kEach][4];
    Patience patience;
    for (uint32_t polls = 1;; ++polls) {
      bool all = true;
#pragma unroll
      for (uint32_t p = 0; p < kEach; ++p) {
        asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[p][0]), "=r"(word[p][1]), "=r"(word[p][2]), "=r"(word[p][3])
                     : "l"(from + p * 128)
                     : "memory");
      }
#pragma unroll
      for (uint32_t p = 0; p < kEach; ++p) {
        all = all && word[p][0] == epoch && word[p][2] == high_flag;
      }
      if (all) break;
      if (polls % 32 != 0) continue;
      if (word[0][2] != high_flag && IsOfAnotherCall(word[0][0], epoch, a.opened != 0)) {
        Fail(a, Failure::kCallsDiffer, member, epoch);
      }
      if (patience.Ends(a, member, epoch)) {
        StoreShared(failed, 1);
        return false;
      }
    }
#pragma unroll
    for (uint32_t p = 0; p < kEach; ++p) {
      if constexpr (kWide) {
        Put(&d[4 * p + 2 * h], __uint_as_float(word[p][1]), adds);
        Put(&d[4 * p + 2 * h + 1], __uint_as_float(word[p][3]), adds);
      } else {
        Put(&d[8 * p + 2 * h], LowOf<C::kBfloat16>(word[p][1]), adds);
        Put(&d[8 * p + 2 * h + 1], HighOf<C::kBfloat16>(word[p][1]), adds);
        Put(&d[8 * p + 4 + 2 * h], LowOf<C::kBfloat16>(word[p][3]), adds);
        Put(&d[8 * p + 4 + 2 * h + 1], HighOf<C::kBfloat16>(word[p][3]), adds);
      }
    }
    return true;
  }
  IRIS_MATMUL_DEVICE static void Put(float* to, float value, bool adds) {
    *to = adds ? *to + value : value;
  }

  IRIS_MATMUL_DEVICE static void Exchange(const Arguments& a, uint32_t* failed, const Work& work,
                                          float (&d)[C::kN / 2], uint32_t epoch) {
    if (LoadShared(failed) != 0) return;
    const Schedule& s = a.schedule;
    const uint32_t thread = threadIdx.x % 128;
    const uint32_t tile = work.column / C::kN;
    const uint32_t first = thread / 32 * 16 + thread % 32 / 4;
    const uint32_t column = work.column + thread % 4 * 2;
    uint32_t owner[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      owner[h] = 0;
      while (owner[h] + 1 < s.n_ranks &&
             first + 8 * h >= SliceBegin(s.m, s.n_ranks, owner[h] + 1)) {
        ++owner[h];
      }
      if (first + 8 * h < s.m && owner[h] != s.rank) {
        Send(a, At(a, owner[h], s.rank, tile, h, epoch), d, h, epoch);
      }
    }
    // The owner has one order: this rank's values first, then those of the next ranks.
    bool ok = true;
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      if (first + 8 * h >= s.m || owner[h] != s.rank) continue;
      for (uint32_t p = 1; p < s.n_ranks; ++p) {
        const uint32_t from = (s.rank + p) % s.n_ranks;
        ok = Receive(a, failed, At(a, s.rank, from, tile, h, epoch), from, d, h, true, epoch) && ok;
      }
    }
    Finish(a, column, d);
    uint8_t* out = a.out[0];
    const uint32_t shift = ShiftOf(s);
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t row = first + 8 * h;
      if (row >= s.m) continue;
      if (s.kind == Kind::kAllReduce) {
        // The owner of a row sends the result, to the place after the sums.
        if (owner[h] == s.rank) {
          for (uint32_t p = 1; ok && p < s.n_ranks; ++p) {
            const uint32_t to = (s.rank + p) % s.n_ranks;
            Send(a, At(a, to, s.n_ranks, tile, h, epoch), d, h, epoch);
          }
        } else {
          Receive(a, failed, At(a, s.rank, s.n_ranks, tile, h, epoch), owner[h], d, h, false,
                  epoch);
        }
      } else if (owner[h] != s.rank) {
        continue;
      }
#pragma unroll
      for (uint32_t i = 0; i < C::kN / 8; ++i) {
        StorePair<C::kBfloat16>(a, out, row - shift, column + 8 * i, d[4 * i + 2 * h],
                                d[4 * i + 2 * h + 1]);
      }
    }
  }
};

// Adds the staged values to `d`. Pieces of 16 bytes of a group's threads are next to each other.
template <bool kBfloat16, uint32_t kValues>
IRIS_MATMUL_DEVICE void AddSeed(const uint8_t* staging, bool wide, float (&d)[kValues]) {
  const uint4* from = reinterpret_cast<const uint4*>(staging) + threadIdx.x % 128;
  if (wide) {
#pragma unroll
    for (uint32_t v = 0; v < kValues / 4; ++v) {
      const uint4 four = from[v * 128];
      d[4 * v] += __uint_as_float(four.x);
      d[4 * v + 1] += __uint_as_float(four.y);
      d[4 * v + 2] += __uint_as_float(four.z);
      d[4 * v + 3] += __uint_as_float(four.w);
    }
  } else {
#pragma unroll
    for (uint32_t v = 0; v < kValues / 8; ++v) {
      const uint4 eight = from[v * 128];
      d[8 * v] += LowOf<kBfloat16>(eight.x);
      d[8 * v + 1] += HighOf<kBfloat16>(eight.x);
      d[8 * v + 2] += LowOf<kBfloat16>(eight.y);
      d[8 * v + 3] += HighOf<kBfloat16>(eight.y);
      d[8 * v + 4] += LowOf<kBfloat16>(eight.z);
      d[8 * v + 5] += HighOf<kBfloat16>(eight.z);
      d[8 * v + 6] += LowOf<kBfloat16>(eight.w);
      d[8 * v + 7] += HighOf<kBfloat16>(eight.w);
    }
  }
}
template <bool kBfloat16, uint32_t kValues>
IRIS_MATMUL_DEVICE void StageForRing(uint8_t* staging, bool wide, const float (&d)[kValues]) {
  uint4* to = reinterpret_cast<uint4*>(staging) + threadIdx.x % 128;
  if (wide) {
#pragma unroll
    for (uint32_t v = 0; v < kValues / 4; ++v) {
      to[v * 128] = make_uint4(__float_as_uint(d[4 * v]), __float_as_uint(d[4 * v + 1]),
                               __float_as_uint(d[4 * v + 2]), __float_as_uint(d[4 * v + 3]));
    }
  } else {
#pragma unroll
    for (uint32_t v = 0; v < kValues / 8; ++v) {
      to[v * 128] = make_uint4(
          Pack<kBfloat16>(d[8 * v], d[8 * v + 1]), Pack<kBfloat16>(d[8 * v + 2], d[8 * v + 3]),
          Pack<kBfloat16>(d[8 * v + 4], d[8 * v + 5]), Pack<kBfloat16>(d[8 * v + 6], d[8 * v + 7]));
    }
  }
}
// Sends sums of a part of k to the block of the cluster that finishes the tile.
template <uint32_t kValues>
IRIS_MATMUL_DEVICE void SendPartial(const uint8_t* partial, const uint64_t* barrier,
                                    const float (&d)[kValues]) {
  const uint32_t to = AddressAt(SharedAddress(partial) + threadIdx.x % 128 * 16, 0);
#pragma unroll
  for (uint32_t v = 0; v < kValues / 4; ++v) {
    StoreAt(to + v * 2048, d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]);
  }
  FenceCluster();
  BarrierArriveAt(SharedAddress(barrier), 0);
}
// Stages a tile in the layout from which the copy engine stores it: boxes of 64 x 64, with 16-byte
// pieces swizzled by the row.
template <bool kBfloat16, uint32_t kValues>
IRIS_MATMUL_DEVICE void StageForTile(uint8_t* staging, const float (&d)[kValues]) {
  const uint32_t thread = threadIdx.x % 128;
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + 8 * h;
#pragma unroll
    for (uint32_t i = 0; i < kValues / 4; ++i) {
      uint8_t* to =
          staging + i / 8 * 8192 + row * 128 + ((i % 8) ^ (row % 8)) * 16 + thread % 4 * 4;
      *reinterpret_cast<uint32_t*>(to) = Pack<kBfloat16>(d[4 * i + 2 * h], d[4 * i + 2 * h + 1]);
    }
  }
}

// Keeps the compiler from moving uses of `d` across matrix instructions that still run.
template <uint32_t kValues>
IRIS_MATMUL_DEVICE void Pin(float (&d)[kValues]) {
#pragma unroll
  for (uint32_t i = 0; i < kValues; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}

// Returns wgmma's descriptor of a tile in shared memory with swizzled rows of 128 bytes. If columns
// are contiguous, `leading_bytes` is the distance from 64 columns to the next 64.
IRIS_MATMUL_DEVICE uint64_t MatrixAt(uint32_t address, uint32_t leading_bytes) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 | static_cast<uint64_t>(1024 >> 4) << 32 |
         1ull << 62;
}

template <typename C>
__device__ __forceinline__ void Push(const Arguments& a, Shared<C>* shared, uint8_t* stages,
                                     uint32_t pusher);

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    MatmulKernel(const __grid_constant__ Arguments a) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* base = dynamic + ((1024 - (SharedAddress(dynamic) & 1023)) & 1023);
  uint8_t* stages_a = base;
  uint8_t* stages_b = stages_a + C::kStages * C::kABytes;
  uint8_t* stagings = stages_b + C::kStages * C::kBBytes;
  uint8_t* partials = stagings + C::kGroups * C::kStagingBytes;
  Shared<C>* shared = reinterpret_cast<Shared<C>*>(partials + C::kPartialBytes);
  static_assert(sizeof(Shared<C>) <= 512);
  const Schedule& s = a.schedule;
  const uint32_t place = C::kCluster > 1 ? PlaceInCluster() : 0;
  const uint32_t split = C::kPackets ? s.split : 1;
  const uint32_t share = split > 1 ? PlaceInCluster() : 0;  // of k; block 0 finishes the tile
  const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < C::kStages; ++i) {
      BarrierInit(SharedAddress(&shared->full[i]), 1);
      BarrierInit(SharedAddress(&shared->empty[i]),
                  (C::kAlternates ? 1 : C::kGroups) * 4 * C::kCluster);
    }
    for (uint32_t g = 0; g < C::kGroups; ++g) {
      BarrierInit(SharedAddress(&shared->seeded[g]), 1);
      BarrierInit(SharedAddress(&shared->staged[g]), 128);
    }
    for (uint64_t& turn : shared->turn) BarrierInit(SharedAddress(&turn), 4);
    BarrierInit(SharedAddress(&shared->partial), split > 1 ? (split - 1) * 128 : 1);
    for (uint32_t i = 0; i < kPushStages; ++i) BarrierInit(SharedAddress(&shared->push[i]), 1);
    BarrierInitFence();
    shared->failed = 0;
    shared->arrived = 0;
    shared->epoch = 0;
    shared->began_ns = Nanoseconds();
    shared->opened_ns = 0;
    if (s.n_ranks > 1) {
      const Header* header = HeaderOf(a, s.rank);
      shared->epoch = *static_cast<const volatile uint32_t*>(&header->epoch) + 1;
      // After a failure, the kernel neither waits nor signals.
      if (LoadRelaxed(&header->failure) != 0) shared->failed = 1;
    }
  }
  if (C::kCluster > 1 || split > 1) {
    ClusterSync();
  } else {
    __syncthreads();
  }
  const uint32_t epoch = shared->epoch;
  const uint32_t all_steps = CeilDiv(s.k, kTileK);
  const uint32_t first_step = all_steps * share / split;
  const uint32_t last_step = all_steps * (share + 1) / split;
  const uint32_t width = C::kCluster * split;  // of a cluster
  const uint32_t workers = (gridDim.x - a.push_blocks) / width;
  const uint32_t worker = blockIdx.x / width;

  if (worker >= workers) {
    Push<C>(a, shared, base, blockIdx.x - workers * width);
  } else if (warp >= C::kGroups * 4) {
    if constexpr (C::kGroups == 2) RegistersDown<40>();
    const uint32_t role = warp - C::kGroups * 4;
    const bool leads = threadIdx.x % 32 == 0;
    if (role == 0 && leads) {
      // Load.
      PrefetchMap(&a.a);
      PrefetchMap(&a.b);
      if (s.kind == Kind::kAllGather) PrefetchMap(&a.gathered);
      uint32_t stage = 0;
      uint32_t phase = 1;
      uint32_t seen = 0;
      for (uint32_t t = worker; t < s.total; t += workers) {
        Work work;
        if (!WorkAt(s, t, place, &work)) continue;
        const bool remote = IsGathered(s, work);
        // The map of the rank's own share of A begins at the share's first row.
        const uint32_t row = s.kind == Kind::kAllGather && !remote
                                 ? work.row - SliceBegin(s.m, s.slices, work.slice)
                                 : work.row;
        const auto load_b = [&](uint32_t step, uint32_t to_stage) {
          const uint32_t full = SharedAddress(&shared->full[to_stage]);
          BarrierWait(SharedAddress(&shared->empty[to_stage]), phase);
          BarrierExpect(full, C::kABytes + C::kBBytes);
          const uint32_t to = SharedAddress(stages_b + to_stage * C::kBBytes);
          if constexpr (C::kTransposed) {
            constexpr uint32_t kPart = C::kN / C::kCluster;
            const uint32_t y = work.column + place * kPart;
            if constexpr (C::kCluster > 1) {
              LoadTileToAll(to + place * kPart * 128, &a.b, step * kTileK, y, full, 3);
            } else {
              LoadTile(to, &a.b, step * kTileK, y, full);
            }
          } else {
            constexpr uint32_t kBoxes = C::kN / 64 / C::kCluster;
#pragma unroll
            for (uint32_t i = 0; i < kBoxes; ++i) {
              const uint32_t box = place * kBoxes + i;
              if constexpr (C::kCluster > 1) {
                LoadTileToAll(to + box * 8192, &a.b, work.column + box * 64, step * kTileK, full,
                              3);
              } else {
                LoadTile(to + box * 8192, &a.b, work.column + box * 64, step * kTileK, full);
              }
            }
          }
        };
        // The A of the block's first tile may arrive late, so its B is loaded in advance.
        uint32_t ahead = first_step;
        if (remote && t == worker) {
          ahead = first_step + C::kStages < last_step ? first_step + C::kStages : last_step;
          for (uint32_t step = first_step; step < ahead; ++step) load_b(step, step - first_step);
        }
        for (uint32_t step = first_step; step < last_step; ++step) {
          if (step >= ahead) load_b(step, stage);
          const uint32_t full = SharedAddress(&shared->full[stage]);
          const uint32_t to_a = SharedAddress(stages_a + stage * C::kABytes);
          if (!remote) {
            LoadTile(to_a, &a.a, step * kTileK, row, full);
          } else {
            if (step == first_step || step % (kPushK / kTileK) == 0) {
              ++seen;
              while (static_cast<int32_t>(LoadShared(&shared->arrived) - seen) < 0) {
              }
              __threadfence_block();
              ProxyFence();
            }
            LoadTile3(to_a, &a.gathered, step * kTileK, row, HalfOf(s, epoch), full);
          }
          if (++stage == C::kStages) {
            stage = 0;
            phase ^= 1;
          }
        }
      }
    } else if (role <= C::kGroups && role > 0 && leads) {
      // Seed and emit.
      const uint32_t group = role - 1;
      const uint32_t seeded = SharedAddress(&shared->seeded[group]);
      const uint32_t staged = SharedAddress(&shared->staged[group]);
      uint8_t* staging = stagings + group * C::kStagingBytes;
      const uint32_t bytes = 64 * C::kN * (a.wide != 0 ? 4 : 2);  // of 64 rows
      constexpr uint32_t half_bytes = C::kStagingBytes / C::kHalves;
      const uint32_t next = s.rank + 1 == s.n_ranks ? 0 : s.rank + 1;
      const uint32_t before = s.rank == 0 ? s.n_ranks - 1 : s.rank - 1;
      const uint32_t receivers = Receivers(s);
      uint32_t phase = 0;
      uint32_t turn = 0;
      AwaitOpening(a, &shared->failed);
      if (group == 0) NoteOpened(a, shared);
      // After an opening, all ranks have entered.
      bool entered = s.kind != Kind::kAllScatter || s.n_ranks == 1 || a.opened != 0;
      if (!entered && blockIdx.x == 0 && group == 0 && LoadShared(&shared->failed) == 0) {
        FenceSystem();
        for (uint32_t r = 0; r < s.n_ranks; ++r) {
          StoreFlag(&HeaderOf(a, r)->entered[epoch & 1][s.rank], FlagWord(a, epoch));
        }
      }
      for (uint32_t t = share == 0 ? worker : s.total; t < s.total; t += workers) {
        Work work;
        if (!WorkAt(s, t, place, &work)) continue;
        if (C::kAlternates && turn++ % 2 != group) continue;
        const uint64_t tiles = TilesOfSlice(s);
        const auto row_of = [&](uint32_t h) {
          return work.row + 64 * (C::kAlternates ? h : group);
        };
        const auto slot_of = [&](uint32_t step, uint32_t h) {
          return ((step - 1) * tiles + work.index) * C::kGroups + (C::kAlternates ? h : group);
        };
        WaitCopiesRead<0>();
        if (!entered) {
          // The tile goes to other ranks' D's, so their launches must have begun.
          for (uint32_t r = 0; r < s.n_ranks; ++r) {
            Await(a, &shared->failed, &HeaderOf(a, s.rank)->entered[epoch & 1][r], r, epoch);
          }
          entered = true;
        }
        bool comes[C::kHalves];
        uint32_t coming = 0;
#pragma unroll
        for (uint32_t h = 0; h < C::kHalves; ++h) {
          comes[h] = IsSeeded(s, work) && row_of(h) < work.end &&
                     Await(a, &shared->failed, FlagsOf(a, s.rank, epoch) + slot_of(work.step, h),
                           before, epoch);
          if (comes[h]) coming += bytes;
        }
        if (coming == 0) {
          BarrierArrive(seeded);
        } else {
          ProxyFence();
          BarrierExpect(seeded, coming);
#pragma unroll
          for (uint32_t h = 0; h < C::kHalves; ++h) {
            const uint8_t* from = a.workspace[s.rank] + a.half[epoch & 1].data_offset_bytes +
                                  slot_of(work.step, h) * bytes;
            for (uint32_t i = 0; comes[h] && i < bytes; i += 8192) {
              LoadBulk(SharedAddress(staging + h * half_bytes + i), from + i, 8192, seeded);
            }
          }
        }
        BarrierWait(staged, phase);
        phase ^= 1;
#pragma unroll
        for (uint32_t h = 0; h < C::kHalves; ++h) {
          const uint32_t row = row_of(h);
          const uint32_t half = SharedAddress(staging + h * half_bytes);
          if (row >= work.end) continue;
          if (!IsLastStep(s, work)) {
            const uint64_t slot = slot_of(work.step + 1, h);
            uint8_t* to = a.workspace[next] + a.half[epoch & 1].data_offset_bytes + slot * bytes;
            // Sends in parts, otherwise the loads of this multiprocessor would wait for all of it.
            for (uint32_t i = 0; i < bytes; i += kSendBytes) {
              StoreBulk(to + i, half + i, kSendBytes);
              CommitCopies();
              WaitCopies<0>();
            }
            ProxyFence();
            if (LoadShared(&shared->failed) == 0) {
              FenceSystem();
              StoreFlag(FlagsOf(a, next, epoch) + slot, FlagWord(a, epoch));
            }
          } else if (StoresByTile(a, work, row) && LoadShared(&shared->failed) == 0) {
            for (uint32_t r = 0; r < receivers; ++r) {
              for (uint32_t i = 0; i < C::kN / 64 && work.column + 64 * i < s.n; ++i) {
                StoreTile(r == 0 ? &a.d : &a.peers[r], work.column + 64 * i, row - ShiftOf(s),
                          half + i * 8192);
                CommitCopies();
                if (receivers > 1) WaitCopies<0>();
              }
            }
          }
        }
      }
      WaitCopies<0>();
      if (group == 0) TellTrace(a, shared);
      if (s.n_ranks > 1) {
        // The last finisher of the grid ends the launch.
        Header* header = HeaderOf(a, s.rank);
        ProxyFence();
        FenceSystem();
        if (atomicAdd(&header->finished, 1u) + 1 == a.finishers) {
          FenceSystem();
          header->finished = 0;
          if (s.kind == Kind::kAllScatter || s.copied != 0 ||
              (s.kind == Kind::kAllReduce && !C::kPackets)) {
            // Leave together: ranks stored into each other's D, or copies always go to half 0.
            if (LoadRelaxed(&header->failure) == 0) {
              for (uint32_t r = 0; r < s.n_ranks; ++r) {
                StoreFlag(&HeaderOf(a, r)->left[epoch & 1][s.rank], FlagWord(a, epoch));
              }
            }
            for (uint32_t r = 0; r < s.n_ranks; ++r) {
              Await(a, &shared->failed, &header->left[epoch & 1][r], r, epoch);
            }
          }
          EndLaunch(a, header, epoch);
        }
      }
    } else if (role == 3 && s.kind == Kind::kAllGather) {
      // Poll, with a thread for each rank whose rows the tile has.
      AwaitOpening(a, &shared->failed);
      constexpr uint32_t kSteps = kPushK / kTileK;
      const uint32_t lane = threadIdx.x % 32;
      uint32_t arrived = 0;
      for (uint32_t t = worker; t < s.total; t += workers) {
        Work work;
        if (!WorkAt(s, t, place, &work) || !IsGathered(s, work)) continue;
        const uint32_t begin = SliceBegin(s.m, s.slices, work.slice);
        const uint32_t block = (work.row - begin) / s.tile_m;
        // If there is one slice, its tile has the rows of all ranks.
        const uint32_t from = s.slices == 1 ? lane : work.slice;
        const bool waits = work.row < work.end && (s.slices == 1 ? lane < s.n_ranks : lane == 0);
        for (uint32_t part = first_step / kSteps; part * kSteps < last_step; ++part) {
          const bool begins = part % s.piece_parts == 0 || part == first_step / kSteps;
          if (waits && begins) {
            const uint64_t at = PieceOf(s, from, block, part);
            Await(a, &shared->failed, FlagsOf(a, s.rank, HalfOf(s, epoch)) + at, from, epoch);
          }
          __syncwarp();
          ++arrived;
          if (leads) {
            __threadfence_block();
            StoreShared(&shared->arrived, arrived);
          }
        }
      }
    }
  } else {
    // Multiply.
    if constexpr (C::kGroups == 2) RegistersUp<232>();
    const uint32_t group = warp / 4;
    const uint32_t lane = threadIdx.x % 32;
    uint8_t* staging = stagings + group * C::kStagingBytes;
    uint32_t stage = 0;
    uint32_t phase = 0;
    uint32_t seed_phase = 0;
    uint32_t turn = 0;
    float d[C::kHalves][C::kN / 2];
    // Releases a stage to all blocks that load into it.
    const auto release = [&](uint32_t of) {
      if (lane < C::kCluster) {
        if constexpr (C::kCluster > 1) {
          BarrierArriveAt(SharedAddress(&shared->empty[of]), lane);
        } else {
          BarrierArrive(SharedAddress(&shared->empty[of]));
        }
      }
    };
    for (uint32_t t = worker; t < s.total; t += workers) {
      Work work;
      if (!WorkAt(s, t, place, &work)) continue;
      if constexpr (C::kAlternates) {
        const uint32_t own = turn / 2;  // the number of earlier tiles of this group
        if (turn++ % 2 != group) {
          // Skips the stages of the other group.
          stage += last_step - first_step;
          phase ^= stage / C::kStages & 1;
          stage %= C::kStages;
          continue;
        }
        // Until the other group has finished its loads, the barriers may lag by phases.
        if (group == 1 || own != 0) {
          BarrierWait(SharedAddress(&shared->turn[group]), (own + (group == 0 ? 1 : 0)) & 1);
        }
      }
      uint32_t previous = 0;
#pragma unroll
      for (uint32_t h = 0; h < C::kHalves; ++h) {
#pragma unroll
        for (uint32_t i = 0; i < C::kN / 2; ++i) d[h][i] = 0.0f;
        Pin(d[h]);
      }
      uint32_t step = first_step;
      do {
        BarrierWait(SharedAddress(&shared->full[stage]), phase);
        const uint64_t at_a = MatrixAt(
            SharedAddress(stages_a + stage * C::kABytes) + (C::kAlternates ? 0 : group * 8192), 16);
        const uint64_t at_b =
            MatrixAt(SharedAddress(stages_b + stage * C::kBBytes), C::kTransposed ? 16 : 8192);
        MatrixFence();
#pragma unroll
        for (uint32_t i = 0; i < kTileK / 16; ++i) {
#pragma unroll
          for (uint32_t h = 0; h < C::kHalves; ++h) {
            Wgmma<C::kN, C::kBfloat16, C::kTransposed ? 0 : 1>(
                d[h], at_a + h * 512 + 2 * i, at_b + (C::kTransposed ? 2 : 128) * i, 1);
          }
        }
        MatrixCommit();
        MatrixWait<1>();
        if (step != first_step) release(previous);
        previous = stage;
        if (++stage == C::kStages) {
          stage = 0;
          phase ^= 1;
        }
      } while (++step != last_step);
      if constexpr (C::kAlternates) {
        if (lane == 0) BarrierArrive(SharedAddress(&shared->turn[1 - group]));
      }
      MatrixWait<0>();
#pragma unroll
      for (uint32_t h = 0; h < C::kHalves; ++h) Pin(d[h]);
      release(previous);
      if constexpr (C::kPackets) {
        if (share != 0) {
          SendPartial(partials + (share - 1) * 64 * C::kN * 4, &shared->partial, d[0]);
          continue;
        }
        if (split > 1) {
          // This worker has no other tile.
          BarrierWait(SharedAddress(&shared->partial), 0);
          FenceCluster();
          for (uint32_t i = 0; i + 1 < split; ++i) {
            AddSeed<C::kBfloat16>(partials + i * 64 * C::kN * 4, true, d[0]);
          }
        }
      }

      // Now the group owns the staging memory, which has the seed if there is one.
      BarrierWait(SharedAddress(&shared->seeded[group]), seed_phase);
      seed_phase ^= 1;
      const uint32_t column = work.column + threadIdx.x % 4 * 2;
      if constexpr (C::kPackets) {
        if (Sums(s)) {
          if (a.wide != 0) {
            Packets<C, true>::Exchange(a, &shared->failed, work, d[0], epoch);
          } else {
            Packets<C, false>::Exchange(a, &shared->failed, work, d[0], epoch);
          }
          BarrierArrive(SharedAddress(&shared->staged[group]));
          continue;
        }
      }
#pragma unroll
      for (uint32_t h = 0; h < C::kHalves; ++h) {
        const uint32_t row = work.row + 64 * (C::kAlternates ? h : group);
        uint8_t* half = staging + h * (C::kStagingBytes / C::kHalves);
        if (row >= work.end) continue;
        if constexpr (!C::kPackets) {
          if (IsSeeded(s, work)) AddSeed<C::kBfloat16>(half, a.wide != 0, d[h]);
        }
        if (!IsLastStep(s, work)) {
          if constexpr (!C::kPackets) StageForRing<C::kBfloat16>(half, a.wide != 0, d[h]);
        } else {
          Finish(a, column, d[h]);
          if (StoresByTile(a, work, row)) {
            // Waits until the other threads of the group have read their seeds.
            if (IsSeeded(s, work)) GroupSync(1 + group);
            StageForTile<C::kBfloat16>(half, d[h]);
          } else if (LoadShared(&shared->failed) == 0) {
            const uint32_t receivers = Receivers(s);
            for (uint32_t r = 0; r < receivers; ++r) {
              StoreDirect<C::kBfloat16>(a, a.out[r], row, work.end, ShiftOf(s), column, d[h]);
            }
          }
        }
      }
      ProxyFenceShared();
      BarrierArrive(SharedAddress(&shared->staged[group]));
    }
  }
  // No block ends while another block of the cluster may still write to its memory.
  if (C::kCluster > 1 || split > 1) ClusterSync();
}

// Sends this rank's rows of A to the others, by boxes of a tile's rows and kPushK elements, through
// this block's shared memory.
template <typename C>
__device__ __forceinline__ void Push(const Arguments& a, Shared<C>* shared, uint8_t* stages,
                                     uint32_t pusher) {
  static_assert(kPushStages * C::kABytes <=
                C::kStages * (C::kABytes + C::kBBytes) + C::kGroups * C::kStagingBytes);
  constexpr uint32_t kAhead = kPushStages / 2;
  constexpr uint32_t kBoxes = kPushK / kTileK;
  if (threadIdx.x != 0) return;
  AwaitOpening(a, &shared->failed);
  NoteOpened(a, shared);
  const Schedule& s = a.schedule;
  const uint32_t epoch = shared->epoch;
  const uint32_t rows = SliceBegin(s.m, s.n_ranks, s.rank + 1) - SliceBegin(s.m, s.n_ranks, s.rank);
  const uint32_t parts = CeilDiv(s.k, kPushK);
  const uint32_t units = CeilDiv(rows, C::kM) * parts;
  const uint32_t mine = units > pusher ? CeilDiv(units - pusher, a.push_blocks) : 0;
  const uint32_t first_peer = s.slices == 1 ? 0 : 1;
  // Boxes beyond the end of k are skipped, in all loops alike.
  const auto box = [&](uint32_t i, uint32_t* x, uint32_t* y, uint32_t* unit) {
    *unit = pusher + i / kBoxes * a.push_blocks;
    *x = *unit % parts * kPushK + i % kBoxes * kTileK;
    *y = *unit / parts * C::kM;
    return *x < s.k;
  };
  const auto load = [&](uint32_t i) {
    uint32_t x;
    uint32_t y;
    uint32_t unit;
    if (i >= mine * kBoxes || !box(i, &x, &y, &unit)) return;
    const uint32_t barrier = SharedAddress(&shared->push[i % kPushStages]);
    BarrierExpect(barrier, C::kABytes);
    LoadTile(SharedAddress(stages + i % kPushStages * C::kABytes), &a.a, x, y, barrier);
  };
  const auto tell = [&](uint32_t unit) {
    ProxyFence();
    if (LoadShared(&shared->failed) != 0) return;
    FenceSystem();
    for (uint32_t p = first_peer; p < s.n_ranks; ++p) {
      const uint32_t peer = (s.rank + p) % s.n_ranks;
      StoreFlag(FlagsOf(a, peer, epoch) + PieceOf(s, s.rank, unit / parts, unit % parts),
                FlagWord(a, epoch));
    }
  };
  for (uint32_t i = 0; i < kAhead; ++i) load(i);
  uint32_t phases = 0;  // a bit for each stage
  for (uint32_t i = 0; i < mine * kBoxes; ++i) {
    uint32_t x;
    uint32_t y;
    uint32_t unit;
    const uint32_t stage = i % kPushStages;
    if (box(i, &x, &y, &unit)) {
      BarrierWait(SharedAddress(&shared->push[stage]), phases >> stage & 1);
      phases ^= 1u << stage;
      for (uint32_t p = first_peer; p < s.n_ranks; ++p) {
        StoreTile3(&a.peers[p], x, y, epoch & 1, SharedAddress(stages + stage * C::kABytes));
      }
    }
    // Each box has a group, also a skipped one, so that the number of groups is that of boxes.
    CommitCopies();
    WaitCopiesRead<kPushStages - kAhead - 1>();
    load(i + kAhead);
    if (i % kBoxes == kBoxes - 1 && i >= kBoxes) {
      WaitCopies<kBoxes>();
      tell(unit - a.push_blocks);
    }
  }
  WaitCopies<0>();
  if (mine != 0) tell(pusher + (mine - 1) * a.push_blocks);
  TellTrace(a, shared);
  FenceSystem();
  Header* header = HeaderOf(a, s.rank);
  if (atomicAdd(&header->finished, 1u) + 1 == a.finishers) {
    header->finished = 0;
    EndLaunch(a, header, epoch);
  }
}

// Waits before the copies until all ranks are in this launch, so that none still reads the rows of
// the last one.
__global__ void __launch_bounds__(32, 1) MeetKernel(const __grid_constant__ Arguments a) {
  __shared__ uint32_t failed;
  const Schedule& s = a.schedule;
  Header* header = HeaderOf(a, s.rank);
  const uint32_t epoch = *static_cast<const volatile uint32_t*>(&header->epoch) + 1;
  if (threadIdx.x == 0) {
    const bool opened = a.opened == 0 || LoadRelaxed(a.ledger.failed) == 0;
    failed = opened && LoadRelaxed(&header->failure) == 0 ? 0 : 1;
  }
  __syncwarp();
  if (a.opened == 0 && threadIdx.x < s.n_ranks) {
    if (LoadShared(&failed) == 0) {
      FenceSystem();
      StoreFlag(&HeaderOf(a, threadIdx.x)->entered[epoch & 1][s.rank], FlagWord(a, epoch));
    }
    Await(a, &failed, &header->entered[epoch & 1][threadIdx.x], threadIdx.x, epoch);
  }
  __syncwarp();
  // If a rank is missing, the copies signal nothing.
  if (threadIdx.x == 0) header->flag = LoadShared(&failed) == 0 ? FlagWord(a, epoch) : 0;
}

#else

__global__ void MeetKernel(const __grid_constant__ Arguments a) {}

template <typename C>
__global__ void MatmulKernel(const __grid_constant__ Arguments a) {}

#endif

#endif  // __CUDACC__

}  // namespace iris::backend::cuda::matmul
