// iris::ccl::Communicator: collectives of a team on a stream, over the symmetric heap. It allocates
// a workspace in the heap, and its errors name the failed operation, the missing rank and its
// process.
//
//   auto comm = iris::ccl::Communicator::Create(context);              // collective
//   iris::Status status = comm->AllReduce(x, x, n, iris::ccl::ReduceOp::kSum, stream);
//   status = comm->Synchronize(stream);  // waits; names the missing ranks
//   status = comm->Destroy();            // collective: frees the workspace
//
// Every rank of the team calls the same operations in the same order, with the same count, type,
// operator and root, on a communicator with the same options. The device notices a difference
// within a fraction of a second, and Check then returns kInvalidArgument on every rank, with both
// calls in full. A call of zero elements does nothing.
//
// `in` and `out` are any memory that the device can read and write, aligned to the element. Buffers
// in the symmetric heap are used in place, at whatever offset each rank has them; other memory is
// copied through the workspace. `out` may be `in` ("in place", see each operation); otherwise the
// two must not overlap.
//
// An operation checks its arguments, starts kernels on the stream and returns: it allocates
// nothing, does not wait, and may be captured in a graph. Once the stream has passed it, `out` is
// complete and `in` may be changed. Operations of one communicator follow each other on one stream
// at a time. Any number of communicators over overlapping teams may be in use.
//
// Sums are made in the order of the ranks in the team, of f16 and bf16 in fp32 with one rounding at
// the end: the bits are the same on all ranks and in every run, but for kRing and kAtomic. Integers
// wrap. kAvg is the sum divided by the number of ranks. kMin and kMax give NaN if any element is
// NaN.
//
// Counts are elements. `root`, `to` and `from` are world ranks. One thread at a time may call a
// communicator: a call of a second thread is refused with kFailedPrecondition. Header-only over
// <iris/c_api.h>. C++17.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "iris/c_api.h"
#include "iris/ccl_types.h"
#include "iris/context.h"
#include "iris/dtype.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::ccl {

// Options, the same on all ranks of the team. 0 means a value that suits the device.
struct CommunicatorOptions {
  std::string name{};          // of the workspace, as iris-ctl shows it; unique, or empty
  uint32_t blocks = 0;         // of each operation, instead of the table's
  uint32_t block_threads = 0;  // of each block, instead of the table's
  uint32_t max_blocks = 0;     // the most blocks, reserved in the workspace and on the device
  uint32_t packet_blocks = 0;  // the most for kPackets
  uint64_t packet_bytes = 0;   // at a time, for each block and rank; a multiple of 16
  uint64_t stage_bytes = 0;    // of each block, twice
  std::chrono::nanoseconds timeout{0};  // 0: the context's
  // Compares the calls of all ranks before any data moves, at the cost of a round, instead of only
  // after a rank has waited for long. IRIS_CCL_CHECK=1 in the environment does so, too.
  bool check_calls = false;
  bool symmetric = false;  // a promise: buffers in the heap have the same offset on all ranks
  // A table of variants for collectives and GEMMs (iris/ops.h), as iris_bench tune writes it.
  // Collectives use the built-in table if this one has no lines for collectives. For teams with
  // ranks on several nodes, lines that begin with `nodes` have settings between nodes; those of the
  // team's first rank hold for all ranks.
  std::string rules{};
  uint64_t matmul_bytes = 0;  // of workspace for GEMMs: see iris/ops.h
  // For Barrier alone: the workspace has a few words for each rank, and sizes are ignored. A team
  // with ranks of several nodes has the whole workspace nevertheless.
  bool barriers_only = false;
};

class Communicator {
 public:
  // Makes an empty communicator: every call fails.
  Communicator() = default;

  // Makes a communicator. Collective over the team. kInvalidArgument if the options are not valid.
  // kFailedPrecondition if this rank is not in the team, or if there is no library for irisd's
  // backend. kResourceExhausted if the other communicators of this process leave no blocks of the
  // device; the message lists those communicators. kDeadlineExceeded if their running operations
  // wait for another rank, so let all ranks make their communicators first. Other errors are those
  // of Context::Allocate.
  static StatusOr<Communicator> Create(const Context& context,
                                       const CommunicatorOptions& options = {}) {
    return Create(context, context.world(), options);
  }
  static StatusOr<Communicator> Create(const Context& context, const Team& team,
                                       const CommunicatorOptions& from = {}) {
    auto options = iris::impl::Sized<iris_comm_options>();
    options.name = from.name.c_str();
    options.blocks = from.blocks;
    options.block_threads = from.block_threads;
    options.max_blocks = from.max_blocks;
    options.packet_blocks = from.packet_blocks;
    options.packet_bytes = from.packet_bytes;
    options.stage_bytes = from.stage_bytes;
    options.timeout_ns = from.timeout.count();
    options.check_calls = from.check_calls ? 1 : 0;
    options.symmetric = from.symmetric ? 1 : 0;
    options.rules = from.rules.empty() ? nullptr : from.rules.c_str();
    options.matmul_bytes = from.matmul_bytes;
    options.barriers_only = from.barriers_only ? 1 : 0;
    iris_comm* handle = nullptr;
    IRIS_RETURN_IF_ERROR(
        iris::impl::FromC(iris_comm_create(context.get(), team.handle, &options, &handle)));
    Communicator comm;
    comm.handle_ = iris::impl::Handle<iris_comm, iris_comm_destroy>(handle);
    comm.team_ = team;
    return comm;
  }

  // The destructor frees nothing in the heap: freeing the workspace is collective, and a destructor
  // that waits for peers would hang on an error path. Without Destroy, the workspace stays until
  // the job ends.

  // Frees the workspace. Collective over the team. Synchronize streams first. Every later call
  // fails.
  Status Destroy() { return iris::impl::FromC(iris_comm_release(get())); }

  const Team& team() const { return team_; }

  // out[i] = op over the members of in[i]. In place: out == in.
  Status AllReduce(const void* in, void* out, uint64_t count, DType type, ReduceOp op,
                   Stream& stream, Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_all_reduce(get(), in, out, count, C(type), C(op), stream.get(), C(variant)));
  }
  // out[i] = op over the members of in[index * count_per_member + i]; `in` has count_per_member
  // elements for each member. In place: out == in + index * count_per_member.
  Status ReduceScatter(const void* in, void* out, uint64_t count_per_member, DType type,
                       ReduceOp op, Stream& stream, Variant variant = Variant::kAuto) {
    return iris::impl::FromC(iris_reduce_scatter(get(), in, out, count_per_member, C(type), C(op),
                                                 stream.get(), C(variant)));
  }
  // AllReduce, with the result at `root` alone. The others' `out` is not written and may be null.
  Status Reduce(const void* in, void* out, uint64_t count, DType type, ReduceOp op, uint32_t root,
                Stream& stream, Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_reduce(get(), in, out, count, C(type), C(op), root, stream.get(), C(variant)));
  }
  // out[m * count_per_member + i] = in[i] of member m. In place: in == out + index *
  // count_per_member.
  Status AllGather(const void* in, void* out, uint64_t count_per_member, DType type, Stream& stream,
                   Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_all_gather(get(), in, out, count_per_member, C(type), stream.get(), C(variant)));
  }
  // AllGather, with the result at `root` alone. The others' `out` is not written and may be null.
  Status Gather(const void* in, void* out, uint64_t count_per_member, DType type, uint32_t root,
                Stream& stream, Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_gather(get(), in, out, count_per_member, C(type), root, stream.get(), C(variant)));
  }
  // out[i] = in[index * count_per_member + i] of `root`. The others' `in` is not read and may be
  // null. In place at the root: out == in + index * count_per_member.
  Status Scatter(const void* in, void* out, uint64_t count_per_member, DType type, uint32_t root,
                 Stream& stream, Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_scatter(get(), in, out, count_per_member, C(type), root, stream.get(), C(variant)));
  }
  // out[m * count_per_member + i] = in[index * count_per_member + i] of member m. Not in place.
  Status AllToAll(const void* in, void* out, uint64_t count_per_member, DType type, Stream& stream,
                  Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_all_to_all(get(), in, out, count_per_member, C(type), stream.get(), C(variant)));
  }
  // Sends member m to_counts[m] elements from in + to_offsets[m], and receives from_counts[m]
  // elements from it at out + from_offsets[m]. One number for each member, in the order of the
  // team. The number that m sends must be the one expected here. Not in place.
  Status AllToAllV(const void* in, const std::vector<uint64_t>& to_counts,
                   const std::vector<uint64_t>& to_offsets, void* out,
                   const std::vector<uint64_t>& from_counts,
                   const std::vector<uint64_t>& from_offsets, DType type, Stream& stream) {
    const size_t n = team_.ranks.size();
    if (to_counts.size() != n || to_offsets.size() != n || from_counts.size() != n ||
        from_offsets.size() != n) {
      return Status(StatusCode::kInvalidArgument,
                    "all_to_all_v: each list of counts and offsets needs " + std::to_string(n) +
                        " numbers, one for each member of the team");
    }
    return iris::impl::FromC(iris_all_to_all_v(get(), in, to_counts.data(), to_offsets.data(), out,
                                               from_counts.data(), from_offsets.data(),
                                               static_cast<uint32_t>(n), C(type), stream.get()));
  }
  // out[i] = in[i] of `root`. The others' `in` is not read and may be null. In place: out == in.
  Status Broadcast(const void* in, void* out, uint64_t count, DType type, uint32_t root,
                   Stream& stream, Variant variant = Variant::kAuto) {
    return iris::impl::FromC(
        iris_broadcast(get(), in, out, count, C(type), root, stream.get(), C(variant)));
  }
  // Only the sender and the receiver call these. Send waits on its stream for Recv.
  Status Send(const void* in, uint64_t count, DType type, uint32_t to, Stream& stream) {
    return iris::impl::FromC(iris_send(get(), in, count, C(type), to, stream.get()));
  }
  Status Recv(void* out, uint64_t count, DType type, uint32_t from, Stream& stream) {
    return iris::impl::FromC(iris_recv(get(), out, count, C(type), from, stream.get()));
  }
  // Sends and receives at once, so that all ranks of a ring may call SendRecv first:
  //
  //   comm.SendRecv(in, n, next, out, n, previous, stream);
  //
  // The rank `to` must receive as many elements from this rank as `count`. `to` and `from` may be
  // the same rank, also this one. A count of 0 leaves out that message. `in` and `out` must not
  // overlap.
  Status SendRecv(const void* in, uint64_t count, uint32_t to, void* out, uint64_t out_count,
                  uint32_t from, DType type, Stream& stream) {
    return iris::impl::FromC(
        iris_send_recv(get(), in, count, to, out, out_count, from, C(type), stream.get()));
  }
  // Calls of Send and Recv on this communicator between GroupStart and GroupEnd, all on one stream,
  // are collected. GroupEnd starts them all at once, so that all ranks may send first:
  //
  //   comm.GroupStart();
  //   for (uint32_t peer : peers) {
  //     comm.Send(in[peer], n, peer, stream);
  //     comm.Recv(out[peer], n, peer, stream);
  //   }
  //   iris::Status status = comm.GroupEnd();
  //
  // Several messages from one rank to another arrive in the order of the calls. If a call of the
  // group failed, GroupEnd starts none and returns that error, so the other results need no check.
  // A receive buffer must not overlap with another buffer of the group. Other operations are
  // refused with kFailedPrecondition until GroupEnd.
  Status GroupStart() { return iris::impl::FromC(iris_group_start(get())); }
  Status GroupEnd() { return iris::impl::FromC(iris_group_end(get())); }
  // Once the stream has passed the barrier, the streams of all ranks of the team have reached it.
  Status Barrier(Stream& stream) {
    return iris::impl::FromC(iris_comm_barrier(get(), stream.get()));
  }

  // These overloads call the operations above with the element type of the pointers.
  template <typename T>
  Status AllReduce(const T* in, T* out, uint64_t count, ReduceOp op, Stream& stream,
                   Variant variant = Variant::kAuto) {
    return AllReduce(in, out, count, Typed<T>(), op, stream, variant);
  }
  template <typename T>
  Status ReduceScatter(const T* in, T* out, uint64_t count_per_member, ReduceOp op, Stream& stream,
                       Variant variant = Variant::kAuto) {
    return ReduceScatter(in, out, count_per_member, Typed<T>(), op, stream, variant);
  }
  template <typename T>
  Status Reduce(const T* in, T* out, uint64_t count, ReduceOp op, uint32_t root, Stream& stream,
                Variant variant = Variant::kAuto) {
    return Reduce(in, out, count, Typed<T>(), op, root, stream, variant);
  }
  template <typename T>
  Status AllGather(const T* in, T* out, uint64_t count_per_member, Stream& stream,
                   Variant variant = Variant::kAuto) {
    return AllGather(in, out, count_per_member, Typed<T>(), stream, variant);
  }
  template <typename T>
  Status Gather(const T* in, T* out, uint64_t count_per_member, uint32_t root, Stream& stream,
                Variant variant = Variant::kAuto) {
    return Gather(in, out, count_per_member, Typed<T>(), root, stream, variant);
  }
  template <typename T>
  Status Scatter(const T* in, T* out, uint64_t count_per_member, uint32_t root, Stream& stream,
                 Variant variant = Variant::kAuto) {
    return Scatter(in, out, count_per_member, Typed<T>(), root, stream, variant);
  }
  template <typename T>
  Status AllToAll(const T* in, T* out, uint64_t count_per_member, Stream& stream,
                  Variant variant = Variant::kAuto) {
    return AllToAll(in, out, count_per_member, Typed<T>(), stream, variant);
  }
  template <typename T>
  Status Broadcast(const T* in, T* out, uint64_t count, uint32_t root, Stream& stream,
                   Variant variant = Variant::kAuto) {
    return Broadcast(in, out, count, Typed<T>(), root, stream, variant);
  }
  template <typename T>
  Status Send(const T* in, uint64_t count, uint32_t to, Stream& stream) {
    return Send(in, count, Typed<T>(), to, stream);
  }
  template <typename T>
  Status Recv(T* out, uint64_t count, uint32_t from, Stream& stream) {
    return Recv(out, count, Typed<T>(), from, stream);
  }
  template <typename T>
  Status SendRecv(const T* in, uint64_t count, uint32_t to, T* out, uint64_t out_count,
                  uint32_t from, Stream& stream) {
    return SendRecv(in, count, to, out, out_count, from, Typed<T>(), stream);
  }

  // Returns the first failure among the operations that the streams have run. The message gives the
  // operation and its number. kDeadlineExceeded names the missing ranks, kAborted the rank and pid
  // that died, and kInvalidArgument a rank whose call differs from most others', with both calls in
  // full. All ranks get the same error, until Reset.
  Status Check() const { return iris::impl::FromC(iris_comm_check(get())); }
  // Returns a word that kernels can read, too. It is not 0 once an operation has failed, so that
  // later kernels can skip its results. Valid as long as the communicator; null if this is empty.
  const uint64_t* error_word() const {
    const uint64_t* word = nullptr;
    (void)iris_comm_error_word(get(), &word);
    return word;
  }
  // Waits for the stream, then returns what Check returns.
  Status Synchronize(Stream& stream) {
    return iris::impl::FromC(iris_comm_synchronize(get(), stream.get()));
  }
  // Makes a communicator that failed usable again. Collective over the team: each rank synchronizes
  // its own streams first, and Reset waits until all ranks have called it.
  Status Reset() { return iris::impl::FromC(iris_comm_reset(get())); }

  // The handle for the C API; null if this is empty.
  iris_comm* get() const { return handle_.get(); }

 private:
  static iris_dtype C(DType type) { return static_cast<iris_dtype>(type); }
  static iris_reduce_op C(ReduceOp op) { return static_cast<iris_reduce_op>(op); }
  static int32_t C(Variant variant) { return static_cast<int32_t>(variant); }
  template <typename T>
  static constexpr DType Typed() {
    static_assert(DTypeOf<T>() != DType::kNone, "name the DType of elements of this type");
    return DTypeOf<T>();
  }

  iris::impl::Handle<iris_comm, iris_comm_destroy> handle_;
  Team team_;
};

}  // namespace iris::ccl
