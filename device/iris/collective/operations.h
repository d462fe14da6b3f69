// The interface between the launcher of collectives and its variants. A Request is a call on its
// way to its variant, and a VariantRow describes a variant to the launcher. Host code. A new
// variant needs its line in the list of iris/ccl_types.h, and a file in variants/ that defines the
// row k<Name>Row.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/collective.h"
#include "iris/collective/impl/calls.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"

namespace iris::ccl::impl {

// Returns a set of one operation.
constexpr uint32_t Bit(Operation operation) { return 1u << static_cast<uint32_t>(operation); }
inline constexpr uint32_t kAllReduceBit = Bit(Operation::kAllReduce);
inline constexpr uint32_t kReduceBit = Bit(Operation::kReduce);
inline constexpr uint32_t kReduceScatterBit = Bit(Operation::kReduceScatter);
inline constexpr uint32_t kMovementBits = Bit(Operation::kAllGather) | Bit(Operation::kAllToAll) |
                                          Bit(Operation::kBroadcast) | Bit(Operation::kGather) |
                                          Bit(Operation::kScatter);

inline constexpr uint32_t kReductionBits = kAllReduceBit | kReduceBit | kReduceScatterBit;
constexpr bool IsReduction(Operation operation) { return (Bit(operation) & kReductionBits) != 0; }

// Returns the bytes of the larger of in and out.
uint64_t LargerBytes(const Shape& shape, uint32_t members);

// A call on its way to the launch of its variant.
struct Request : Call {
  uint32_t in_rows = 1;   // of `in` on this rank; 0: it is not read here
  uint32_t out_rows = 1;  // likewise
  bool in_place_ok = true;
  int64_t in_place_rows = 0;                // in place: in == out + this many rows
  uint32_t receiver = CallRecord::kNobody;  // kSendRecv; `root` sends
  const Vector* vector = nullptr;           // kAllToAllV

  // Offsets of the buffers in this rank's heap, set by CheckRequest; or kNotInHeap.
  uint64_t in_offset_bytes = 0;
  uint64_t out_offset_bytes = 0;
};

// Returns the distance in the team from a message's sender to its receiver, 1 to n - 1.
inline uint32_t MessageDistance(const Request& message, uint32_t n) {
  return (message.receiver + n - message.root) % n;
}

// Sets the rows of the buffers that the rank at `index` of a team of n ranks uses, and the distance
// of `in` and `out` in place.
Result CompleteRequest(uint32_t n, int64_t index, Request* request);
// Checks the arguments of a call and sets its offsets. Sets `*nothing` if there is nothing to do.
Result CheckRequest(const Comm& comm, Request* request, bool* nothing);
// Checks the arguments of an all_to_all_v of the rank at `index` of a team of n ranks, and sets its
// offsets. Sets `*in_bytes` and `*out_bytes` to what it uses of `in` and `out`.
Result CheckLayouts(const Comm& comm, uint32_t n, uint32_t index, Request* request,
                    uint64_t* in_bytes, uint64_t* out_bytes);
// Checks the messages of an Exchange likewise.
Result CheckMessages(const Comm& comm, uint32_t n, uint32_t index, const Message* messages,
                     uint32_t n_messages);
// Copies what the rank at `index` sends to itself. The messages have been checked.
Result CopyOwnMessages(uint32_t index, const Message* messages, uint32_t n_messages,
                       backend::Stream& stream);

// A call with its plan.
struct Start {
  const Comm& comm;
  const Request& request;
  const Plan& plan;
};

struct VariantRow {
  Variant variant;
  // The operations that the variant supports for some type, op and team.
  uint32_t operations;
  // Returns true if the variant supports a call of one of these operations. Null: it supports all.
  bool (*supports)(const Shape& shape, uint32_t members);
  // Completes a plan whose blocks and threads may be 0. `bytes`: of the larger of in and out.
  void (*fit)(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan);
  // Loads the variant's kernels onto the current device.
  Result (*prepare)();
  // Puts a call that the variant supports on the stream, as the plan says.
  Result (*launch)(const Start& start, backend::Stream& stream);
  backend::HostOnly host_only = {};
};

IRIS_VARIANT_ROWS(IRIS_CCL_VARIANTS);

// Complete a plan: FitWords for `words` words of eight bytes to each rank, FitUnits for units of 16
// bytes of a rank's share.
void FitWords(const Comm& comm, uint64_t words, Plan* plan);
void FitUnits(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan);
// Completes a plan for lines, with `row_bytes` to each rank. Blocks have full warps, and no block
// is without data unless `row_bytes` is 0.
void FitLines(const Comm& comm, uint64_t row_bytes, Plan* plan);
// Completes a plan for one block that makes a round of the team.
void FitRound(const Comm& comm, Plan* plan);

inline bool BeginsEarly(const Start& start) {
  return start.plan.variant != Variant::kCopyEngine && BeginsEarly(start.comm, start.plan.blocks);
}

Common CommonOf(const Start& start);
ReduceCall WholeRows(const Start& start);  // the rows of the call
ReduceCall Slices(const Start& start);     // one row as a slice for each rank
MoveCall Rows(const Start& start);

inline uint32_t UnrollOf(const ReduceCall& call) { return call.unroll; }
inline uint32_t UnrollOf(const MoveCall& call) { return call.unroll; }
template <typename T>
uint32_t UnrollOf(const T&) {
  return 0;
}

// Launches a kernel as the plan says, and notes it. An `early` one begins with impl::Enter.
template <typename... Params, typename... Args>
Result LaunchPlanned(const Start& start, bool early, const char* name, backend::Stream& stream,
                     void (*kernel)(Params...), const Common& common, const Args&... args) {
  const LaunchConfig config = {start.plan.blocks, start.plan.threads, 0, early};
  uint32_t unroll = 0;
  ((unroll = UnrollOf(args) != 0 ? UnrollOf(args) : unroll), ...);
  Note(start.comm, {{start.plan.variant, config.grid, config.block, unroll}, name});
  return InPieces(start.comm, config, 1, common, stream,
                  [&](const LaunchConfig& piece, const Common& its) {
                    return backend::Launch(piece, stream, kernel, its, args...);
                  });
}
template <typename... Args>
Result LaunchKernel(const Start& start, const char* name, backend::Stream& stream,
                    const Args&... args) {
  return LaunchPlanned(start, false, name, stream, args...);
}
template <typename... Args>
Result LaunchEarly(const Start& start, const char* name, backend::Stream& stream,
                   const Args&... args) {
  return LaunchPlanned(start, BeginsEarly(start), name, stream, args...);
}

// Launches a reduction of a slice or row by ReduceDirect; see impl/reduce_direct.h.
Result LaunchReduceDirect(const Start& start, const Common& common, const ReduceCall& call,
                          bool two_phases, backend::Stream& stream);
// Launches a round of the team on behalf of the plan's variant.
Result LaunchRound(const Start& start, bool ends, backend::Stream& stream);
// Plans a checked call, of a team of several ranks or a barrier, and launches it.
Result LaunchRequest(const Comm& comm, const Request& request, backend::Stream& stream);
// Launches at most kMaxMessages messages at once. Their requests have been checked.
Result LaunchMessages(const Comm& comm, const Request* const* requests, uint32_t n,
                      backend::Stream& stream);

}  // namespace iris::ccl::impl
