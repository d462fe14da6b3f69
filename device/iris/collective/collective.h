// iris::ccl: operations that all ranks of a team make together, on a stream, over the symmetric
// heap.
//
//   CommOptions options;                      // once, on every rank
//   options.context = ctx;
//   options.team = ctx.world;
//   options.workspace = workspace;            // in the heap, WorkspaceBytes() of it
//   options.workspace_bytes = bytes;
//   options.report = report;
//   Comm comm;
//   CreateComm(options, &comm);
//
//   AllReduce(comm, x, x, n, DType::kF32, ReduceOp::kSum, stream);   // asynchronous
//   stream.Synchronize();
//   CheckError(comm);                         // reports a rank that did not come
//
// Rules of all operations
//
// Every rank of the team calls the same operations in the same order, with the same count, type, op
// and root, on a Comm with the same Config. The device detects calls that differ within a fraction
// of a second; CheckError then returns kInvalidArgument, on every rank, with both calls in full. A
// call of zero elements does nothing: it is neither counted nor compared.
//
// `in` and `out` are any memory that the device can read and write, aligned to the element. A
// buffer in the symmetric heap is used directly, at any offset on each rank; any other buffer goes
// through the workspace, in chunks. `out` may be `in` ("in place", see each operation); otherwise
// the two must not overlap, nor touch the workspace.
//
// A launcher checks its arguments, starts kernels on the stream and returns. It neither allocates
// nor waits; it may be captured in a graph and replayed without limit. When the stream has passed
// the operation, `out` is complete on this rank, but perhaps not on others, and `in` may be
// changed. Operations of one Comm follow each other on one stream at a time. Any number of Comms
// over overlapping teams may be in use, each with its own workspace, also at the same time on
// different streams, in any order on any rank: each has a share of the device's room for blocks,
// and larger launches go in pieces.
//
// Sums go in the order of the team's ranks, f16 and bf16 in fp32 with one rounding at the end: the
// bits are the same on all ranks, in every run, in each variant. Two variants are exceptions: kRing
// begins slice m with rank m, and rounds at each rank; kAtomic adds floats in any order, so that
// its sums and products are the same on all ranks, but not in every run. Integers wrap. kAvg is the
// sum divided by the number of ranks (integers: towards zero; u8: of the sum that does not wrap).
// kMin and kMax give NaN if any element is NaN.
//
// A rank that does not come within the timeout, or the abort word, ends the kernel and is recorded
// in the report. `out` is then undefined. The Comm has failed for good: later operations fail at
// once, also those already on the stream. To recover, let all ranks synchronize, PrepareWorkspace,
// synchronize, make a host barrier, and ResetError.
//
// Thread-safety: a Comm is a plain value; the launchers may be called from any thread, one at a
// time per Comm.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ccl_types.h"
#include "iris/collective/call_record.h"
#include "iris/dtype.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/errors.h"
#include "iris/types.h"

namespace iris::ccl {

// Makes a Comm. kInvalidArgument says what is wrong. *out is unchanged on failure. Loads kernels,
// which may wait for running kernels: no rank starts an operation before all have returned from it.
//
// The Comm has a share of the current device, and the shares of this process's other Comms shrink.
// If those have more blocks in flight, this waits until the device is idle. kResourceExhausted: the
// others leave no room. kDeadlineExceeded: the device was not idle within the timeout, because it
// waits for a rank that has not launched. Let all ranks make their Comms first, or synchronize.
Result CreateComm(const CommOptions& options, Comm* out);

// Loads all kernels of this library onto the current device, as CreateComm does.
Result PrepareKernels();

// The rows of AllToAllV: counts[m] elements from offsets[m] on for each rank m, in host memory,
// read before the call returns.
struct Layout {
  const uint64_t* counts;
  const uint64_t* offsets;
};

// A collective, as each rank of the team calls it. `row` is count * DTypeBytes(type) bytes, n is
// the size of the team, m is the index of a rank in the team, and `index` is this rank's.
//
//   operation       result                              in       out      in place
//   all_reduce      out[i] = op over m of in[i]         row      row      out == in
//   reduce_scatter  out[i] = op of in[index][i]         n rows   row      out == in[index]
//   reduce          all_reduce, at the root alone       row      row      out == in
//   all_gather      out[m][i] = in[i] of m              row      n rows   in == out[index]
//   gather          all_gather, at the root alone       row      n rows   in == out[index]
//   scatter         out[i] = in[index][i] of the root   n rows   row      out == in[index]
//   all_to_all      out[m][i] = in[index][i] of m       n rows   n rows   only if n is 1
//   broadcast       out[i] = in[i] of the root          row      row      out == in
//   all_to_all_v    as all_to_all, with a count and an offset for each rank: to.counts[m] elements
//                   from in + to.offsets[m] go to m, and from.counts[m] from m go to out +
//                   from.offsets[m]. m must send as many as this rank expects. Not in place.
//   barrier         when the stream has passed it, the streams of all ranks have reached it
//
// A buffer that the operation does not use on this rank may be null: on ranks other than the root,
// `out` of reduce and gather, and `in` of scatter and broadcast.
struct Call : Shape {
  const void* in = nullptr;
  void* out = nullptr;
  uint32_t root = 0;  // index in the team; ignored by operations without a root
  Layout to = {};     // all_to_all_v
  Layout from = {};   // all_to_all_v
};

// Checks a call and puts it on the stream. kInvalidArgument and kUnimplemented say what is wrong
// with it. kFailedPrecondition: an earlier operation of this Comm failed.
Result Run(const Comm& comm, const Call& call, backend::Stream& stream);

// The functions below call Run with the fields of a call as arguments.
inline Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                        ReduceOp op, backend::Stream& stream, Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kAllReduce, count, type, op, variant}, in, out}, stream);
}
inline Result ReduceScatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                            DType type, ReduceOp op, backend::Stream& stream,
                            Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kReduceScatter, count_per_member, type, op, variant}, in, out},
             stream);
}
inline Result Reduce(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                     ReduceOp op, uint32_t root_index, backend::Stream& stream,
                     Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kReduce, count, type, op, variant}, in, out, root_index}, stream);
}
inline Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                        DType type, backend::Stream& stream, Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kAllGather, count_per_member, type, {}, variant}, in, out}, stream);
}
inline Result Gather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                     DType type, uint32_t root_index, backend::Stream& stream,
                     Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kGather, count_per_member, type, {}, variant}, in, out, root_index},
             stream);
}
inline Result Scatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                      DType type, uint32_t root_index, backend::Stream& stream,
                      Variant variant = Variant::kAuto) {
  return Run(comm,
             {{Operation::kScatter, count_per_member, type, {}, variant}, in, out, root_index},
             stream);
}
inline Result AllToAll(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                       DType type, backend::Stream& stream, Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kAllToAll, count_per_member, type, {}, variant}, in, out}, stream);
}
inline Result AllToAllV(const Comm& comm, const void* in, const Layout& to, void* out,
                        const Layout& from, DType type, backend::Stream& stream) {
  return Run(comm, {{Operation::kAllToAllV, 0, type}, in, out, 0, to, from}, stream);
}
inline Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                        uint32_t root_index, backend::Stream& stream,
                        Variant variant = Variant::kAuto) {
  return Run(comm, {{Operation::kBroadcast, count, type, {}, variant}, in, out, root_index},
             stream);
}
inline Result Barrier(const Comm& comm, backend::Stream& stream) {
  return Run(comm, {{Operation::kBarrier}}, stream);
}

// One side of a message between this rank and `peer_index`, which may be this rank, too.
struct Message {
  const void* in = nullptr;  // the data to send; null: this side receives
  void* out = nullptr;       // the buffer to receive into; null: this side sends
  uint64_t count = 0;
  DType type = DType::kU8;
  uint32_t peer_index = 0;
};

// Sends and receives any number of messages. A message waits only for its other side, and for
// earlier ones between the same ranks in the same direction. All ranks may send first if each makes
// all its messages in one Exchange. Otherwise, as with Send and Recv, calls must not wait in a
// circle. No receive buffer may overlap with another buffer of the call.
Result Exchange(const Comm& comm, const Message* messages, uint32_t n_messages,
                backend::Stream& stream);

// Only the two ranks of a message call Send and Recv. Send waits on its stream for Recv, so two
// ranks that both begin with Send fail. Messages arrive in the order in which they are sent.
inline Result Send(const Comm& comm, const void* in, uint64_t count, DType type, uint32_t to_index,
                   backend::Stream& stream) {
  const Message message = {in, nullptr, count, type, to_index};
  return Exchange(comm, &message, 1, stream);
}
inline Result Recv(const Comm& comm, void* out, uint64_t count, DType type, uint32_t from_index,
                   backend::Stream& stream) {
  const Message message = {nullptr, out, count, type, from_index};
  return Exchange(comm, &message, 1, stream);
}
// Sends and receives at once, so that all ranks of a ring may call it first. The rank `to_index`
// must receive as much by SendRecv, Recv or Exchange. Both peers may be the same rank, also the
// calling one. A count of 0 leaves out that message. `in` and `out` must not overlap.
inline Result SendRecv(const Comm& comm, const void* in, uint64_t count, uint32_t to_index,
                       void* out, uint64_t out_count, uint32_t from_index, DType type,
                       backend::Stream& stream) {
  const Message messages[2] = {{in, nullptr, count, type, to_index},
                               {nullptr, out, out_count, type, from_index}};
  return Exchange(comm, messages, 2, stream);
}

// Returns the plan that the launcher uses for this call, if it accepts the call.
Plan Choose(const Comm& comm, const Shape& shape);

// Returns true if a rule can name this variant for the operation.
bool HasVariant(Operation operation, Variant variant);

}  // namespace iris::ccl
