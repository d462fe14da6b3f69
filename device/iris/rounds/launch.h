// Launches kernels that synchronize with those of other ranks: argument checks, the arguments that
// all such kernels share, and pieces for which a Comm has room. Host code.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/residency.h"
#include "iris/trace_area.h"

namespace iris::ccl::impl {

static_assert(kMaxBlocks < kChecksCalls);

inline Result Invalid(const char* what) { return {StatusCode::kInvalidArgument, what}; }

// Returns the error of an operation that failed on the device with this code; OK for kOk.
Result ErrorOf(StatusCode code);

// Returns the config with all fields set but the rules.
Config Complete(Config config);

// Checks that a Comm can be used. kFailedPrecondition if an earlier operation failed, or if the
// Comm is for barriers alone and this is none.
Result CheckComm(const Comm& comm, bool barrier = false);

// Checks a buffer of a call. Sets `*offset_bytes` to its offset in the caller's heap, or
// kNotInHeap.
Result CheckBuffer(const Comm& comm, const void* p, uint64_t bytes, uint64_t element_bytes,
                   uint64_t* offset_bytes);
bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes);

// Returns true if the kernels of a call of `blocks` blocks begin early. At most two calls are then
// on the device at once, and fit there together, with those of other ranks that share it
// (Config::max_blocks). Kernels between copies do not: copies do not let the next kernel begin.
inline bool BeginsEarly(const Comm& comm, uint32_t blocks) {
  return comm.config.early && 2 * blocks <= comm.config.max_blocks;
}

// Returns the arguments of a call of `blocks` blocks. The caller sets the offsets of the buffers,
// which are 0.
Common CommonOf(const Comm& comm, const PackedCall& call, uint32_t blocks, bool early);
constexpr uint32_t TracedAs(Operation operation, uint32_t peer) {
  return (static_cast<uint32_t>(TraceOp::kCollective) + static_cast<uint32_t>(operation)) |
         peer << 16;
}

// Launches a round of the ranks in one block, which compares their calls and publishes no stores:
// the opening of an operation, whose later kernels announce what other ranks read. If `ends`, it
// counts as an operation of its own. If `early`, it may begin before the previous kernel ends; it
// waits for that end before it touches memory.
Result LaunchOpening(Common common, bool ends, bool early, backend::Stream& stream);
Result PrepareOpening();  // loads its kernel

// Records a launch for tests.
inline void Note(const Comm& comm, const LaunchNote& note) {
  LaunchTrace* const trace = comm.trace;
  if (trace == nullptr) return;
  if (trace->n < LaunchTrace::kMax) trace->notes[trace->n] = note;
  ++trace->n;
}

// Launches all blocks of a kernel that synchronizes with other ranks, by launch(config, common), in
// pieces for which the Comm has room on the device (residency.h). A piece is a multiple of
// `together`, the number of this rank's blocks that wait for each other. Kernels number their
// blocks by BlockOf.
template <typename Launch>
Result InPieces(const Comm& comm, const LaunchConfig& whole, uint32_t together, Common common,
                const backend::Stream& stream, Launch launch) {
  common.blocks = static_cast<uint8_t>(whole.grid);
  if (comm.share == nullptr) return launch(whole, common);
  DeviceShare::Room room = {};
  Result result = comm.share->Begin(whole.grid, together, whole.early, stream, &room);
  if (!result.ok()) return result;
  LaunchConfig piece = whole;
  // If the piece is early, two kernels of a stream are on the device at once.
  piece.early = whole.early && 2 * room.piece <= room.all;
  if (!piece.early) common.early = 0;
  const uint8_t ends = common.ends;
  for (uint32_t first = 0; result.ok() && first < whole.grid; first += room.piece) {
    piece.grid = whole.grid - first < room.piece ? whole.grid - first : room.piece;
    common.first_block = static_cast<uint8_t>(first);
    common.ends = first + piece.grid == whole.grid ? ends : 0;
    result = launch(piece, common);
  }
  comm.share->End();
  return result;
}

// The table of a family's variants has pointers to rows with a `variant`, and `prepare`, which
// loads the kernels of the row onto the current device.

// Declares the VariantRow of each variant in LIST, and kRows, which has the addresses of them all.
#define IRIS_VARIANT_ROWS(LIST) \
  LIST(IRIS_DECLARE_ROW)        \
  inline constexpr const VariantRow* kRows[] = {LIST(IRIS_ROW_ADDRESS)}
#define IRIS_DECLARE_ROW(Name, number, text) extern const VariantRow k##Name##Row;
#define IRIS_ROW_ADDRESS(Name, number, text) &k##Name##Row,

// Returns the row of a variant, or null for kAuto and for unknown numbers.
template <typename Row, size_t N, typename Variant>
const Row* FindRow(const Row* const (&rows)[N], Variant variant) {
  for (const Row* row : rows) {
    if (row->variant == variant) return row;
  }
  return nullptr;
}

template <typename Row, size_t N>
Result PrepareRows(const Row* const (&rows)[N]) {
  for (const Row* row : rows) {
    if (Result result = row->prepare(); !result.ok()) return result;
  }
  return {};
}

}  // namespace iris::ccl::impl
