// Variants that load and store the buffers themselves. impl/ has the kernels that others share.
//
// kDirect: one-shot. Reductions pull everything, movements push it.
// kTwoShot: each rank reduces its slice and stores it to all, or to the root; in a broadcast it
// fetches its slice from the root and stores it to the others.
// kTwoPhase: all-reduces as kTwoShot, but each thread reads all its data before it stores to other
// ranks.
#include <cstdint>

#include "iris/collective/impl/move_direct.h"
#include "iris/collective/impl/patterns.h"
#include "iris/collective/impl/reduce.h"
#include "iris/collective/impl/reduce_direct.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"
#include "iris/memory.h"
#include "iris/rounds/protocol.h"

namespace iris::ccl::impl {

// Does what PushRows does, with rows of any length.
IRIS_DEVICE inline void PushRowsOfAnyLength(const Common& common, const VectorCall& call,
                                            Rounds& rounds) {
  const Vector& vector = call.rows;
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], outs);
  if (rounds.broken()) return;
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const uint32_t block = BlockOf(common);
  const uint32_t grid = GridOf(common);
  const uint64_t room = common.stage_bytes / n / 16 * 16;
  if (!rounds.Exchange(false)) return;
  // Sets the place for this rank's row at each rank; null if the row goes to that rank's stage.
  for (uint32_t m = backend::ThreadIndex(); m < n; m += backend::BlockSize()) {
    outs[m] = m == me ? call.out + vector.receive_offset_bytes[me] : rounds.Out(m);
  }
  iris::impl::SyncInsideBlock();
  const bool direct = rounds.out_direct();
  const Jobs jobs = direct ? JobsOf(block, grid, n) : JobsOf(0, 1, n);
  for (uint64_t base = 0;; base += grid * room) {
    const uint64_t j = direct ? 0 : base + block * room;
    bool more = false;
    for (uint32_t m = 0; m < n; ++m) {
      more = more || vector.send_bytes[m] > base + grid * room ||
             vector.receive_bytes[m] > base + grid * room;
    }
    for (uint32_t job = jobs.job; job < n; job += jobs.step) {
      const uint32_t peer = rounds.Rotated(job);
      const uint64_t all = vector.send_bytes[peer];
      if (j >= all) continue;
      uint8_t* to = outs[peer] != nullptr ? outs[peer] + j : rounds.StageOut(peer) + me * room;
      iris::impl::CopyBytes<CacheHint::kDefault>(to, call.in + vector.send_offset_bytes[peer] + j,
                                                 direct ? all : Min(room, all - j), jobs.share);
    }
    if (direct) break;
    if (!rounds.Meet()) return;
    for (uint32_t step = 1; common.out_offset_bytes == kNotInHeap && step < n; ++step) {
      const uint32_t m = rounds.Rotated(step);
      const uint64_t all = vector.receive_bytes[m];
      if (j >= all) continue;
      Copy(call.out + vector.receive_offset_bytes[m] + j, rounds.StageOut(me) + m * room,
           Min(room, all - j), Block{});
    }
    bool any = false;
    if (!rounds.MeetMore(more, &any)) return;
    if (!any) break;
  }
  if (direct) {
    rounds.MeetLast(true);
  } else {
    rounds.Finish();
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MoveVector(IRIS_PARAM Common common,
                                                               IRIS_PARAM VectorCall call) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, BlockOf(common), &call.rows);
  PushRowsOfAnyLength(common, call, rounds);
  rounds.Conclude();
}

// Makes a large broadcast: each rank but the root fetches a slice from the root and stores it to
// the others, so that no link carries the data more than once. If some buffer is outside the heap,
// the root sends chunks to all.
IRIS_DEVICE inline void BroadcastBySlices(const Common& common, const MoveCall& call,
                                          Rounds& rounds) {
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], table);
  if (rounds.broken()) return;
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const uint32_t block = BlockOf(common);
  const uint32_t grid = GridOf(common);
  const bool root = me == call.root;
  if (!rounds.Exchange(false)) return;
  if (rounds.in_direct() && rounds.out_direct()) {
    const Share share = {block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
                         uint64_t{grid} * backend::BlockSize(), call.unroll};
    if (root) {
      if (call.out != call.in) {
        iris::impl::CopyBytes<CacheHint::kDefault>(call.out, call.in, call.count, share);
      }
    } else {
      const uint64_t slice = RoundUp((call.count + n - 2) / (n - 1), 16);
      const uint32_t place = (me + n - call.root) % n - 1;  // among the ranks without the root
      const uint64_t begin = Min(call.count, place * slice);
      const uint64_t bytes = Min(call.count - begin, slice);
      uint8_t* from = rounds.In(call.root) + begin;
      for (uint32_t k = backend::ThreadIndex(); k + 1 < n; k += backend::BlockSize()) {
        // All ranks but the root in a cycle, this rank first.
        const uint32_t other = (call.root + 1 + (place + k) % (n - 1)) % n;
        table[k] = rounds.Out(other) + begin;
      }
      iris::impl::SyncInsideBlock();
      CopyToAll(table, n - 1, from, bytes, share);
    }
    rounds.MeetLast(true);
    return;
  }
  // Ranks whose `out` is outside the heap receive the chunks in their stages.
  for (uint64_t base = 0; base < call.count; base += grid * common.stage_bytes) {
    const uint64_t j = base + block * common.stage_bytes;
    const uint64_t bytes = j < call.count ? Min(common.stage_bytes, call.count - j) : 0;
    if (base != 0 && !rounds.Meet()) return;
    if (root) {
      for (uint32_t k = backend::ThreadIndex(); k < n; k += backend::BlockSize()) {
        const uint32_t peer = rounds.Rotated(k);
        uint8_t* out = peer == me ? call.out : rounds.Out(peer);
        table[k] = out != nullptr ? out + j : rounds.StageOut(peer);
      }
      iris::impl::SyncInsideBlock();
      CopyToAll(table, n, call.in + j, bytes,
                Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll});
    }
    if (!rounds.Meet()) return;
    if (!root && common.out_offset_bytes == kNotInHeap) {
      Copy(call.out + j, rounds.StageOut(me), bytes, Block{});
    }
  }
  iris::impl::SyncInsideBlock();
  rounds.Finish();
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void BroadcastSlices(IRIS_PARAM Common common,
                                                                    IRIS_PARAM MoveCall call) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, BlockOf(common));
  BroadcastBySlices(common, call, rounds);
  rounds.Conclude();
}

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReduceDirect<T, Op, N>);

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  if (shape.operation == Operation::kBarrier) return FitRound(comm, plan);
  FitUnits(comm, shape, bytes, plan);
  // A message has only this many places for its rounds.
  const uint32_t places = PlacesOf(comm.config).blocks;
  if (shape.operation == Operation::kSendRecv && plan->blocks > places) plan->blocks = places;
}

Result Prepare() {
  if (Result result = PrepareAll<Kernels>(); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&MoveDirect<>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&MovePairs<2>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&MovePairs<kMaxMessages>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&BarrierKernel<>); !result.ok()) return result;
  return backend::PrepareKernel(&MoveVector<>);
}

Result LaunchReduction(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  Common common = CommonOf(start);
  // In place, a rank overwrites data that others may not have read yet, so they read a copy.
  if (request.operation == Operation::kAllReduce && request.in == request.out) {
    common.in_offset_bytes = kNotInHeap;
  }
  return LaunchReduceDirect(start, common, WholeRows(start), false, stream);
}

// Returns a message as a broadcast of its two ranks, with its own rounds and stages.
PairCall PairOf(const Start& start, bool alone) {
  const Comm& comm = start.comm;
  const Request& request = start.request;
  const uint32_t n = comm.team.size;
  const uint32_t me = comm.team.index;
  const bool sends = request.root == me;
  const uint32_t low = request.root < request.receiver ? request.root : request.receiver;
  const uint32_t high = request.root < request.receiver ? request.receiver : request.root;
  const MessagePlaces places = PlacesOf(comm.config);
  Common common = CommonOf(start);
  common.sync_offset_bytes =
      comm.workspace_offset_bytes + PairOffset(n, comm.config, request.root, request.receiver);
  common.answer_offset_bytes =
      comm.workspace_offset_bytes + PairOffset(n, comm.config, request.receiver, request.root);
  const uint64_t place = (MessageDistance(request, n) - 1) % places.distances;
  common.stage_offset_bytes += place * places.blocks * 2 * comm.config.stage_bytes;
  common.ends = 0;  // not an operation of the team
  common.alone = alone ? 1 : 0;
  common.size = 2;
  common.index = me == low ? 0 : 1;
  common.pair[0] = static_cast<uint8_t>(low);
  common.pair[1] = static_cast<uint8_t>(high);
  common.members[0] = comm.team.members[low];
  common.members[1] = comm.team.members[high];
  common.traced = TracedAs(request.operation, common.members[1 - common.index]);
  MoveCall call = Rows(start);
  call.root = sends ? common.index : 1 - common.index;
  if (sends) call.out = const_cast<uint8_t*>(call.in);  // the sender's data stays in place
  const auto blocks = static_cast<uint8_t>(start.plan.blocks);
  return {common, call, blocks, 0, blocks};
}

// Blocks of the same index of all messages wait for each other: a piece has all of these or none.
template <uint32_t N>
Result LaunchPairPieces(const Comm& comm, const LaunchConfig& whole, uint32_t n,
                        PairCalls<N>* calls, backend::Stream& stream) {
  if (comm.share == nullptr) return backend::Launch(whole, stream, &MovePairs<N>, *calls);
  DeviceShare::Room room = {};
  Result result = comm.share->Begin(whole.grid, n, false, stream, &room);
  if (!result.ok()) return result;
  const uint32_t each = room.piece < n ? 1 : room.piece / n;
  LaunchConfig piece = whole;
  for (uint32_t first = 0; result.ok() && first < kPairBlocks; first += each) {
    piece.grid = 0;
    for (uint32_t k = 0; k < n; ++k) {
      PairCall& call = calls->each[k];
      const uint32_t rest = call.blocks > first ? call.blocks - first : 0;
      call.first = static_cast<uint8_t>(first);
      call.count = static_cast<uint8_t>(rest < each ? rest : each);
      piece.grid += call.count;
    }
    if (piece.grid != 0) result = backend::Launch(piece, stream, &MovePairs<N>, *calls);
  }
  comm.share->End();
  return result;
}

template <uint32_t N>
Result LaunchPairs(const Comm& comm, const Request* const* requests, uint32_t n,
                   backend::Stream& stream) {
  PairCalls<N> calls = {};
  Plan all = {Variant::kDirect, 0, 0, 1};
  for (uint32_t k = 0; k < n; ++k) {
    const Plan plan = Choose(comm, *requests[k]);
    calls.each[k] = PairOf({comm, *requests[k], plan}, false);
    all.blocks += plan.blocks;
    if (plan.threads > all.threads) all.threads = plan.threads;
  }
  Note(comm, {all, "MovePairs"});
  return LaunchPairPieces<N>(comm, {all.blocks, all.threads}, n, &calls, stream);
}

Result Launch(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  switch (request.operation) {
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      return LaunchReduction(start, stream);
    case Operation::kBarrier:
      return LaunchRound(start, /*ends=*/true, stream);
    case Operation::kSendRecv: {
      const PairCall pair = PairOf(start, true);
      return LaunchEarly(start, "MoveDirect", stream, &MoveDirect<>, pair.common, pair.move);
    }
    case Operation::kAllToAllV:
      return LaunchKernel(start, "MoveVector", stream, &MoveVector<>, CommonOf(start),
                          VectorCall{static_cast<const uint8_t*>(request.in),
                                     static_cast<uint8_t*>(request.out), *request.vector});
    default:
      return LaunchEarly(start, "MoveDirect", stream, &MoveDirect<>, CommonOf(start), Rows(start));
  }
}

bool HasSlices(const Shape& shape, uint32_t members) {
  return shape.operation != Operation::kBroadcast || members > 2;
}

// The reductions use the kernels of kDirect.
Result PrepareSlices() { return backend::PrepareKernel(&BroadcastSlices<>); }

Result LaunchSlices(const Start& start, backend::Stream& stream) {
  if (start.request.operation == Operation::kBroadcast) {
    return LaunchKernel(start, "BroadcastSlices", stream, &BroadcastSlices<>, CommonOf(start),
                        Rows(start));
  }
  return LaunchReduceDirect(start, CommonOf(start), Slices(start),
                            start.plan.variant == Variant::kTwoPhase, stream);
}

Result PrepareNothing() { return {}; }

}  // namespace

Result LaunchReduceDirect(const Start& start, const Common& common, const ReduceCall& call,
                          bool two_phases, backend::Stream& stream) {
  return LaunchEarly(start, "ReduceDirect", stream,
                     Select<Kernels>(start.request.type, start.request.op, common.size), common,
                     call, uint32_t{two_phases});
}

Result LaunchMessages(const Comm& comm, const Request* const* requests, uint32_t n,
                      backend::Stream& stream) {
  return n <= 2 ? LaunchPairs<2>(comm, requests, n, stream)
                : LaunchPairs<kMaxMessages>(comm, requests, n, stream);
}

Result LaunchRound(const Start& start, bool ends, backend::Stream& stream) {
  Common common = CommonOf(start);
  common.in_offset_bytes = 0;
  common.out_offset_bytes = 0;
  common.ends = ends ? 1 : 0;
  Plan round = {start.plan.variant};
  FitRound(start.comm, &round);
  return LaunchEarly({start.comm, start.request, round}, "BarrierKernel", stream, &BarrierKernel<>,
                     common);
}

const VariantRow kDirectRow = {
    Variant::kDirect,
    kAllReduceBit | kReduceScatterBit | kMovementBits | Bit(Operation::kSendRecv) |
        Bit(Operation::kAllToAllV) | Bit(Operation::kBarrier),
    nullptr,
    &Fit,
    &Prepare,
    &Launch,
};
const VariantRow kTwoShotRow = {
    Variant::kTwoShot, kAllReduceBit | kReduceBit | Bit(Operation::kBroadcast),
    &HasSlices,        &FitUnits,
    &PrepareSlices,    &LaunchSlices,
};
const VariantRow kTwoPhaseRow = {
    Variant::kTwoPhase, kAllReduceBit, nullptr, &FitUnits, &PrepareNothing, &LaunchSlices,
};

}  // namespace iris::ccl::impl
