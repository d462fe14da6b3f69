// The order of tiles, and the places in the workspace: arithmetic that all ranks share.
//
// If the ranks partition the rows of D, each rank has a slice of rows, otherwise there is one
// slice. Tiles of a slice come in pairs for the two blocks of a cluster; with clusters of one block
// a pair is one tile. Every rank goes through its items in order. An item is a segment of a slice,
// `per_segment` pairs. C++17, host and device.
#pragma once

#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"

#if defined(__CUDACC__)
#define IRIS_MATMUL_FUNCTION __host__ __device__ inline
#else
#define IRIS_MATMUL_FUNCTION inline
#endif

namespace iris::backend::cuda::matmul {

inline constexpr uint32_t kMaxSegments = 8;
// The elements of k in a step of a tile, and in a part that kAllGather sends and waits for at once.
inline constexpr uint32_t kTileK = 64;
inline constexpr uint32_t kPushK = 1024;
// The bytes that a rank keeps at the beginning of its workspace.
inline constexpr uint64_t kHeaderBytes = 4096;

struct Schedule {
  Kind kind;
  uint32_t rank;
  uint32_t n_ranks;
  uint32_t m;
  uint32_t n;
  uint32_t k;
  uint32_t tile_m;
  uint32_t tile_n;
  uint32_t cluster;  // blocks that share B's tile: 1 or 2
  uint32_t split;    // blocks of a cluster that share a small tile's k, each with one tile at most
  uint32_t tiles_n;
  uint32_t slices;
  uint32_t pairs_m;      // rows of pairs in the largest slice
  uint32_t group;        // rows of pairs that are processed together, column by column
  uint32_t segments;     // of a slice
  uint32_t per_segment;  // pairs
  uint32_t total;        // pairs, those of all items together
  // For kAllGather: the rows of tiles, and the parts of kPushK elements, in a piece that is sent at
  // once. `copied` is 1 if the copy engine sends them.
  uint32_t piece_rows;
  uint32_t piece_parts;
  uint32_t copied;
  uint8_t order[kMaxSegments * kMaxRanks];  // of a ring: segment << 4 | step
};

// The work of a block on one tile.
struct Work {
  uint32_t slice;
  uint32_t step;  // the slice's step around the ring; without a ring, 0 for the rank's own slice
  uint32_t row;   // of D, the first
  uint32_t end;   // the slice's end: the tile's rows from here on are another slice's
  uint32_t column;
  uint32_t index;  // of the tile in its slice, the same at all ranks
};

IRIS_MATMUL_FUNCTION uint32_t SliceBegin(uint32_t m, uint32_t slices, uint32_t slice) {
  const uint32_t more = m % slices;
  return slice * (m / slices) + (slice < more ? slice : more);
}

IRIS_MATMUL_FUNCTION constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Returns true if the ranks' results are summed: by a ring, whose last step is at the slice's
// owner, or, if all rows are one tile, by packets: every rank sends each row to the row's owner.
IRIS_MATMUL_FUNCTION bool Sums(const Schedule& s) {
  return (s.kind == Kind::kReduceScatter || s.kind == Kind::kAllReduce) && s.n_ranks > 1;
}
IRIS_MATMUL_FUNCTION bool IsRing(const Schedule& s) { return Sums(s) && s.slices > 1; }

// Finds the work on pair `t` of this rank for the block at place `in_cluster`. Returns false, in
// all blocks of the cluster, if there is no such pair. A tile may be past the slice's last row.
IRIS_MATMUL_FUNCTION bool WorkAt(const Schedule& s, uint32_t t, uint32_t in_cluster, Work* work) {
  const uint32_t item = t / s.per_segment;
  uint32_t segment = item;
  uint32_t step = 0;
  uint32_t slice = 0;
  if (IsRing(s)) {
    segment = s.order[item] >> 4;
    step = s.order[item] & 15;
    slice = (s.rank + 2 * s.n_ranks - 1 - step) % s.n_ranks;
  } else if (s.slices > 1) {
    // First the rank's own slice, then the others' slices, alternately, as they arrive.
    if (item >= s.segments) {
      const uint32_t later = item - s.segments;
      segment = later / (s.slices - 1);
      step = 1 + later % (s.slices - 1);
    }
    slice = (s.rank + step) % s.slices;
  }
  const uint32_t begin = SliceBegin(s.m, s.slices, slice);
  const uint32_t end = SliceBegin(s.m, s.slices, slice + 1);
  const uint32_t pairs_m = CeilDiv(end - begin, s.tile_m * s.cluster);
  const uint32_t pair = segment * s.per_segment + t % s.per_segment;
  if (pair >= pairs_m * s.tiles_n) return false;
  const uint32_t first = pair / (s.group * s.tiles_n) * s.group;
  const uint32_t rows = pairs_m - first < s.group ? pairs_m - first : s.group;
  const uint32_t within = pair - first * s.tiles_n;
  const uint32_t row_of_tiles = (first + within % rows) * s.cluster + in_cluster;
  work->slice = slice;
  work->step = step;
  work->row = begin + row_of_tiles * s.tile_m;
  work->end = end;
  work->column = within / rows * s.tile_n;
  work->index = pair * s.cluster + in_cluster;
  return true;
}

// Returns the number of the flag for the piece with this row of tiles and part of a rank's A.
IRIS_MATMUL_FUNCTION uint64_t PieceOf(const Schedule& s, uint32_t rank, uint32_t row_of_tiles,
                                      uint32_t part) {
  const uint64_t rows = CeilDiv(s.pairs_m * s.cluster, s.piece_rows);
  const uint64_t parts = CeilDiv(CeilDiv(s.k, kPushK), s.piece_parts);
  return (rank * rows + row_of_tiles / s.piece_rows) * parts + part / s.piece_parts;
}

// Returns the number of tiles of the largest slice, as counted by Work::index.
IRIS_MATMUL_FUNCTION uint32_t TilesOfSlice(const Schedule& s) {
  return s.pairs_m * s.tiles_n * s.cluster;
}

// Half of a workspace: flags, then data, then packets. Ranks may be one launch apart, so launches
// alternate between the halves, and the layout of the halves never changes.
struct Half {
  uint64_t flags_offset_bytes;
  uint64_t flags;
  uint64_t data_offset_bytes;
  uint64_t data_bytes;
  uint64_t packets_offset_bytes;
  uint64_t packets_bytes;
};
IRIS_MATMUL_FUNCTION Half HalfAt(uint64_t workspace_bytes, uint32_t parity) {
  const uint64_t unit = (workspace_bytes - kHeaderBytes) / 2 / 256 / 1024 * 1024;
  Half half = {};
  half.flags_offset_bytes = kHeaderBytes + parity * 256 * unit;
  half.flags = unit / sizeof(uint64_t);
  half.data_offset_bytes = half.flags_offset_bytes + unit;
  half.data_bytes = 191 * unit;
  half.packets_offset_bytes = half.data_offset_bytes + half.data_bytes;
  half.packets_bytes = 64 * unit;
  return half;
}

// Returns a flag: a launch's number and its signature in one word.
IRIS_MATMUL_FUNCTION uint64_t FlagOf(uint32_t signature, uint32_t epoch) {
  return static_cast<uint64_t>(signature) << 32 | epoch;
}

// Returns true if a word in place of an awaited flag is the flag of a call that differs, which its
// number shows. Never true with an opening: then calls have been compared, and the word may be
// anything, because other kernels may use the workspace between launches.
IRIS_MATMUL_FUNCTION bool IsOfAnotherCall(uint32_t number, uint32_t epoch, bool opened) {
  return !opened && number == epoch;
}

}  // namespace iris::backend::cuda::matmul
