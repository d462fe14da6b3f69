// The kernels of a NodesComm: LeaderKernel, TurnKernel and UseKernel. layout.h has the protocol.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce.h"
#include "iris/impl/port.h"
#include "iris/impl/wait.h"
#include "iris/nodes/impl/layout.h"
#include "iris/signal.h"
#include "iris/translate.h"

namespace iris::ccl::impl {

// Returns the limit of waits for other nodes. It is longer than the timeout, because the other node
// may itself wait for one of its ranks, and then says which one is missing.
IRIS_DEVICE inline uint64_t NodesTimeout(const DeviceContext& ctx) {
  const uint64_t timeout_ns = iris::impl::TimeoutOf(ctx, 0);
  return timeout_ns + timeout_ns / 4 + 50 * 1000 * 1000;
}
// How long a rank that has found calls to differ waits for the other call.
inline constexpr uint64_t kOtherCallNs = 1000ull * 1000 * 1000;

template <typename T>
IRIS_DEVICE inline T* MineAt(const NodesCall& call, uint64_t offset_bytes) {
  return AtOffset<T>(call.context, call.context.rank, call.workspace_bytes + offset_bytes);
}
IRIS_DEVICE inline NodesState* StateOf(const NodesCall& call) {
  return MineAt<NodesState>(call, call.at.state);
}
IRIS_DEVICE inline const uint32_t* FirstsOf(const NodesCall& call) {
  return MineAt<const uint32_t>(call, 0);
}
IRIS_DEVICE inline const uint32_t* RanksOf(const NodesCall& call) {
  return FirstsOf(call) + call.n_nodes + 1;
}
IRIS_DEVICE inline const uint32_t* PlacesOf(const NodesCall& call) {
  return RanksOf(call) + call.size;
}
// Returns true if this rank exchanges data with a rank of each other node.
IRIS_DEVICE inline bool HasPeers(const NodesCall& call) {
  return call.even != 0 || call.place == 0;
}
// Return the rank of node b with which this one exchanges data, or its leader if there is none: its
// world rank, and its index in the team.
IRIS_DEVICE inline uint32_t PeerEntry(const NodesCall& call, uint32_t b) {
  return FirstsOf(call)[b] + (call.even != 0 ? call.place : 0);
}
IRIS_DEVICE inline uint32_t PeerOf(const NodesCall& call, uint32_t b) {
  return RanksOf(call)[PeerEntry(call, b)];
}
IRIS_DEVICE inline uint32_t LeaderOf(const NodesCall& call, uint32_t b) {
  return RanksOf(call)[FirstsOf(call)[b]];
}

IRIS_DEVICE inline bool HasFailed(const NodesCall& call) {
  return backend::Load<Scope::kDevice, Order::kRelaxed>(&StateOf(call)->failed) != 0;
}
IRIS_DEVICE inline bool LocalHasFailed(const NodesCall& call) {
  const Header* const header =
      AtOffset<Header>(call.context, call.context.rank, call.local_header_bytes);
  return backend::Load<Scope::kDevice, Order::kRelaxed>(&header->failed) != 0;
}
IRIS_DEVICE inline void SetFailed(const NodesCall& call) {
  backend::Store<Scope::kDevice, Order::kRelaxed>(&StateOf(call)->failed, 1u);
}

// Records the first failure for the host.
IRIS_COLD void RecordFailure(const NodesCall& call, uint64_t code, uint32_t member) {
  (void)backend::CompareExchange<Scope::kSystem, Order::kAcqRel>(
      &call.report->word, uint64_t{0},
      PackNodesError(code, call.operation, member, StateOf(call)->sequence));
  SetFailed(call);
}
// `entry` is a place in the table of ranks, or ~0u.
IRIS_COLD void FailNodes(const NodesCall& call, StatusCode code, uint32_t entry) {
  RecordFailure(call, static_cast<uint64_t>(code), entry == ~0u ? ~0u : PlacesOf(call)[entry]);
}
// Records the failure of the local Comm, whose word has another layout.
IRIS_COLD void FailLocally(const NodesCall& call) {
  const uint64_t word = backend::Load<Scope::kSystem, Order::kAcquire>(call.local_word);
  const uint32_t member = static_cast<uint32_t>(word >> 16 & 0xff);
  const uint32_t entry = FirstsOf(call)[call.node] + (member == 0 ? call.place : member - 1);
  const uint64_t code = word == 0 ? static_cast<uint64_t>(StatusCode::kAborted) : word & 0xff;
  RecordFailure(call, code | kWithinNode, PlacesOf(call)[entry]);
}

// Tells the other nodes once that this rank has failed, with its error and its call.
IRIS_COLD void TellNodes(const NodesCall& call) {
  NodesState* const state = StateOf(call);
  if (state->told != 0 || !HasPeers(call)) return;
  state->told = 1;
  const uint64_t word = backend::Load<Scope::kSystem, Order::kAcquire>(&call.report->word);
  if (FoundByAll(word)) return;
  state->call = call.call;
  for (uint32_t b = 0; b < call.n_nodes; ++b) {
    if (b == call.node) continue;
    iris::impl::PortPut(call.context, PeerOf(call, b),
                        &MineAt<NodesCallSlot>(call, call.at.calls)[call.node].call, &state->call,
                        sizeof(PackedCall), MineAt<uint64_t>(call, call.at.notices) + call.node,
                        word, SignalOp::kSet, "a collective between nodes");
  }
}

// Returns the notice of node b to `reader`, a rank of this node: its error word, or 0.
IRIS_DEVICE inline uint64_t NoticeOf(const NodesCall& call, uint32_t reader, uint32_t b) {
  if (b == call.node) return 0;
  const uint64_t* const words =
      AtOffset<uint64_t>(call.context, reader, call.workspace_bytes + call.at.notices);
  return backend::Load<Scope::kSystem, Order::kAcquire>(words + b);
}
// Returns true if each two ranks compare their part of an operation alone.
IRIS_HOST_DEVICE constexpr bool OfPairs(Operation operation) {
  return operation == Operation::kSendRecv || operation == Operation::kAllToAllV;
}
// Returns true if the calls of nodes differ.
IRIS_HOST_DEVICE constexpr bool IsMismatch(uint64_t word) {
  return (word & 0xff) == static_cast<uint64_t>(StatusCode::kInvalidArgument);
}

// Records the failure of which a node has told `reader`. Returns false if none has.
IRIS_COLD bool TakeNotice(const NodesCall& call, uint32_t reader) {
  for (uint32_t b = 0; b < call.n_nodes; ++b) {
    const uint64_t word = NoticeOf(call, reader, b);
    if (word == 0) continue;
    RecordFailure(call, word & 0xff, static_cast<uint32_t>(word >> 16 & 0xffffff) - 1);
    return true;
  }
  return false;
}

// Tells of a failure, and adds the other call to this rank's report. One thread calls it at the end
// of a kernel of one block.
IRIS_COLD void ConcludeFailure(const NodesCall& call, uint32_t reader) {
  TellNodes(call);
  NodesReport* const report = call.report;
  if (!IsMismatch(backend::Load<Scope::kSystem, Order::kAcquire>(&report->word)) ||
      report->has_calls != 0 || OfPairs(call.operation)) {
    return;
  }
  const NodesCallSlot* const slots =
      AtOffset<NodesCallSlot>(call.context, reader, call.workspace_bytes + call.at.calls);
  const auto differs = [&call, reader, slots](uint32_t b) {
    if (!IsMismatch(NoticeOf(call, reader, b))) return false;
    for (uint32_t k = 0; k < PackedCall::kWords; ++k) {
      if (slots[b].call.words[k] != call.call.words[k]) return true;
    }
    return false;
  };
  uint32_t other = 0;
  const WaitResult result = iris::impl::BoundedWait<iris::impl::Polls::kSmall>(
      call.context, Min(iris::impl::TimeoutOf(call.context, 0), kOtherCallNs),
      [&] {
        for (other = 0; other < call.n_nodes; ++other) {
          if (differs(other)) return true;
        }
        return false;
      },
      [] { return false; });
  if (result != WaitResult::kOk) return;
  report->mine = call.call;
  report->theirs = slots[other].call;
  backend::Store<Scope::kSystem, Order::kRelease>(&report->has_calls, uint64_t{1});
}

// How long a wait lasts until its rank compares its call with those of the other nodes.
inline constexpr uint64_t kAnnounceNs = 20 * 1000 * 1000;

// Tells the other nodes once that this rank waits for long in this call, and compares the call with
// theirs. Calls that differ may use other inboxes, where nobody would see the difference. Returns
// false after it has recorded a difference.
IRIS_COLD bool CompareCalls(const NodesCall& call) {
  if (!HasPeers(call) || OfPairs(call.operation)) return true;
  NodesState* const state = StateOf(call);
  const uint32_t tag = state->sequence + 1;
  const uint64_t mine = static_cast<uint64_t>(call.signature) << 32 | tag;
  uint64_t* const words = MineAt<uint64_t>(call, call.at.callings);
  if (backend::FetchOp<AtomicOp::kExchange, Scope::kDevice, Order::kRelaxed>(
          &state->announced, uint64_t{tag}) != tag) {
    for (uint32_t b = 0; b < call.n_nodes; ++b) {
      if (b != call.node) iris::SignalSet(call.context, PeerOf(call, b), words + call.node, mine);
    }
  }
  for (uint32_t b = 0; b < call.n_nodes; ++b) {
    const uint64_t theirs = backend::Load<Scope::kSystem, Order::kRelaxed>(words + b);
    if (b == call.node || static_cast<uint32_t>(theirs) != tag || theirs == mine) continue;
    FailNodes(call, StatusCode::kInvalidArgument, PeerEntry(call, b));
    return false;
  }
  return true;
}

// Waits until done(*word), where a rank writes the word. Records a failure, and then returns false.
// `reader` is the rank of this node to which nodes tell their failures. `member` is the index in
// the team of the rank that is awaited.
template <typename Done>
IRIS_DEVICE inline bool AwaitRank(const NodesCall& call, uint32_t reader, uint32_t rank,
                                  uint32_t member, const uint64_t* word, Done done) {
  iris::impl::NotedWait noted(call.context, rank);
  const WaitResult result = iris::impl::BoundedWait<iris::impl::Polls::kSmall>(
      call.context, NodesTimeout(call.context),
      [&] { return done(backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word)); },
      [&](uint64_t waited_ns) {
        noted.Look(waited_ns, word, 0);
        if (HasFailed(call)) return true;
        for (uint32_t k = 0; k < call.n_nodes; ++k) {
          if (NoticeOf(call, reader, k) != 0) return true;
        }
        return waited_ns >= kAnnounceNs && !CompareCalls(call);
      });
  if (result == WaitResult::kOk) return true;
  if (HasFailed(call) || TakeNotice(call, reader)) return false;
  RecordFailure(call,
                static_cast<uint64_t>(result == WaitResult::kTimeout ? StatusCode::kDeadlineExceeded
                                                                     : StatusCode::kAborted),
                member);
  return false;
}
// Waits likewise for the rank of node b with which this rank, or its leader, exchanges data.
template <typename Done>
IRIS_DEVICE inline bool AwaitNode(const NodesCall& call, uint32_t reader, uint32_t b,
                                  const uint64_t* word, Done done) {
  const uint32_t entry = reader == call.context.rank ? PeerEntry(call, b) : FirstsOf(call)[b];
  return AwaitRank(call, reader, RanksOf(call)[entry], PlacesOf(call)[entry], word, done);
}

// Waits for the arrival of a round from node b, and compares the calls.
IRIS_DEVICE inline bool AwaitArrival(const NodesCall& call, uint32_t reader, uint32_t b,
                                     const uint64_t* word, uint32_t number) {
  uint64_t seen = 0;
  if (!AwaitNode(call, reader, b, word, [&seen, number](uint64_t value) {
        seen = value;
        return static_cast<uint32_t>(value) == number;
      })) {
    return false;
  }
  if (static_cast<uint32_t>(seen >> 32) == call.signature) return true;
  FailNodes(call, StatusCode::kInvalidArgument,
            reader == call.context.rank ? PeerEntry(call, b) : FirstsOf(call)[b]);
  return false;
}

// Puts bytes, or a signal alone, to a rank of another node, and does not wait until the source has
// been read. Offsets are in heaps; kNoPortSignal: there is no signal. Waits for room in the ring
// end like other waits, and then the rank misses what was put.
IRIS_DEVICE inline bool PutTo(const NodesCall& call, uint32_t rank, uint32_t member,
                              uint64_t dst_offset_bytes, uint64_t src_offset_bytes, uint64_t bytes,
                              uint64_t word_offset_bytes, uint64_t value) {
  const DeviceContext& ctx = call.context;
  (void)iris::impl::CallPort(ctx.port, iris::impl::PortState(ctx), ctx.timeout_ns, ctx.abort_word,
                             iris::impl::PortUntil::kPosted,
                             iris::impl::PortHead(PortOp::kPut, PortSpace::kHeap, SignalOp::kSet),
                             rank, bytes == 0 ? 0 : dst_offset_bytes, src_offset_bytes, bytes,
                             word_offset_bytes, value, 0, 0, 0);
  if (backend::Load<Scope::kSystem, Order::kRelaxed>(&ctx.port->words->stopped) == 0) return true;
  RecordFailure(call, static_cast<uint64_t>(StatusCode::kAborted), member);
  return false;
}
// Puts a piece likewise, with a signal, to the rank of node b with which this one exchanges data.
// The destination and the word are in the workspace.
IRIS_DEVICE inline bool PutPiece(const NodesCall& call, uint32_t b, uint64_t dst_offset_bytes,
                                 uint64_t src_offset_bytes, uint64_t bytes,
                                 uint64_t word_offset_bytes, uint64_t value) {
  const uint32_t entry = PeerEntry(call, b);
  return PutTo(call, RanksOf(call)[entry], PlacesOf(call)[entry],
               call.workspace_bytes + dst_offset_bytes, src_offset_bytes, bytes,
               call.workspace_bytes + word_offset_bytes, value);
}

IRIS_DEVICE inline uint64_t PostedRequests(const NodesCall& call) {
  return backend::Load<Scope::kDevice, Order::kRelaxed>(
      &iris::impl::PortState(call.context)->port_posted);
}
// Waits until the port process has read the sources of the requests before this number.
IRIS_DEVICE inline bool AwaitRead(const NodesCall& call, uint64_t number) {
  const PortRingWords* const words = call.context.port->words;
  const WaitResult result = iris::impl::BoundedWait<iris::impl::Polls::kSmall>(
      call.context, NodesTimeout(call.context),
      [&] { return backend::Load<Scope::kSystem, Order::kAcquire>(&words->read) >= number; },
      [words] { return backend::Load<Scope::kSystem, Order::kAcquire>(&words->stopped) != 0; });
  if (result == WaitResult::kOk) return true;
  FailNodes(call,
            result == WaitResult::kTimeout ? StatusCode::kDeadlineExceeded : StatusCode::kAborted,
            ~0u);
  return false;
}

// A decision of a block that all its threads take alike: whether none of them has stopped.
class Going {
 public:
  // `stopped` is in shared memory. All threads of the block make it.
  IRIS_DEVICE explicit Going(uint32_t* stopped) : stopped_(stopped) {
    if (backend::ThreadIndex() == 0) {
      backend::Store<Scope::kBlock, Order::kRelaxed>(stopped_, 0u);
    }
    backend::BlockSync();
  }
  IRIS_DEVICE void Stop() { backend::Store<Scope::kBlock, Order::kRelaxed>(stopped_, 1u); }
  // All threads of the block call it together.
  IRIS_DEVICE bool Sync() {
    backend::BlockSync();
    const bool go = backend::Load<Scope::kBlock, Order::kRelaxed>(stopped_) == 0;
    backend::BlockSync();
    return go;
  }

 private:
  uint32_t* stopped_;
};

// Begins a kernel: all threads of the block go on, unless this rank or its local Comm has failed,
// or another node has told this rank of a failure.
IRIS_DEVICE inline bool MayGoOn(const NodesCall& call, Going& going) {
  if (backend::ThreadIndex() == 0) {
    if (HasFailed(call)) {
      going.Stop();
    } else if (LocalHasFailed(call)) {
      FailLocally(call);
      going.Stop();
    }
  }
  for (uint32_t b = backend::ThreadIndex(); b < call.n_nodes; b += backend::BlockSize()) {
    if (NoticeOf(call, call.context.rank, b) != 0) {
      (void)TakeNotice(call, call.context.rank);
      going.Stop();
    }
  }
  return going.Sync();
}

// Copies rows from the part of each node that has them. part(b) is its address, or null.
template <typename Part>
IRIS_DEVICE inline void CopyParts(const NodesCall& call, const NodesRows& rows,
                                  uint64_t node_stride, uint64_t limit, Part part, Share share) {
  if (rows.out == nullptr) return;
  const uint32_t* const firsts = FirstsOf(call);
  for (uint32_t b = 0; b < call.n_nodes; ++b) {
    if (rows.only != NodesRows::kAll && rows.only != b) continue;
    const uint8_t* const from = part(b);
    if (from == nullptr) continue;
    const bool places = rows.rows == NodesRows::kPlaces;
    const uint32_t n = places ? firsts[b + 1] - firsts[b] : rows.rows;
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t to = places ? PlacesOf(call)[firsts[b] + r] * rows.out_stride
                                 : b * node_stride + r * rows.out_stride;
      if (to >= limit) continue;
      const uint8_t* const row = from + rows.offset + r * rows.part_stride;
      if (row == rows.out + to) continue;
      iris::impl::CopyBytes<CacheHint::kDefault>(rows.out + to, row, Min(rows.bytes, limit - to),
                                                 share);
    }
  }
}

// Reduces the rows of all parts, in the order of nodes and places.
template <typename T, typename Part>
IRIS_DEVICE inline void ReduceParts(const NodesCall& call, const LeaderStep& step, Part part,
                                    Share share) {
  const AnyOp<T> op(step.op, call.size);
  const uint32_t* const firsts = FirstsOf(call);
  for (uint64_t i = share.index; i < step.count; i += share.n) {
    Sum<T, 1> sum = {};
    for (uint32_t b = 0; b < call.n_nodes; ++b) {
      for (uint32_t r = 0; r < firsts[b + 1] - firsts[b]; ++r) {
        const Pack<T, 1> value = {{iris::impl::LoadValue<CacheHint::kDefault>(
            reinterpret_cast<const T*>(part(b) + step.rows.offset + r * step.rows.part_stride) +
            i)}};
        if (b == 0 && r == 0) {
          sum = Begin(value);
        } else {
          op.Add(&sum, value);
        }
      }
    }
    iris::impl::StoreValue<CacheHint::kDefault>(reinterpret_cast<T*>(step.rows.out) + i,
                                                op.Finish(sum).values[0]);
  }
}

// Orders the reads of inboxes by the ranks of this node before puts of other nodes that the next
// signals permit. A round of the local Comm has done so, if perhaps by relaxed words, which C++
// wants to be acquired: see Rounds::AwaitReadersOfLines.
IRIS_DEVICE inline void AwaitReadersOfInboxes(const NodesCall& call) {
  if constexpr (backend::Traits::kEmulated) {
    const uint32_t* const firsts = FirstsOf(call);
    for (uint32_t k = firsts[call.node]; k < firsts[call.node + 1]; ++k) {
      const BlockState* const state = AtOffset<BlockState>(
          call.context, RanksOf(call)[k], call.local_header_bytes + sizeof(Header));
      (void)backend::Load<Scope::kSystem, Order::kAcquire>(&state->begun);
    }
  }
}

// A round of leaders, in one block.
template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void LeaderKernel(IRIS_PARAM NodesCall call,
                                                                 IRIS_PARAM LeaderStep step) {
  IRIS_SHARED(uint32_t, stopped);
  IRIS_SHARED(uint8_t * [kMaxNodes + 1], table);
  const uint32_t thread = backend::ThreadIndex();
  const uint32_t threads = backend::BlockSize();
  const uint32_t n = call.n_nodes;
  const uint32_t leader = LeaderOf(call, call.node);
  NodesState* const state = StateOf(call);
  const uint32_t number = state->round + 1;
  const uint32_t slot = number & 1;
  Going going(&stopped);
  const auto word_at = [&](uint32_t b) { return call.at.led + (slot * n + b) * sizeof(uint64_t); };
  const auto inbox_at = [&](uint32_t b) {
    return call.at.leaders + (slot * n + b) * call.leader_bytes;
  };
  const uint64_t block_bytes = call.workspace_bytes + call.at.block;
  bool go = MayGoOn(call, going);
  if (go && call.place == 0) {
    AwaitReadersOfInboxes(call);
    for (uint32_t b = thread; b < n; b += threads) {
      if (b == call.node) continue;
      if (!PutPiece(call, b, inbox_at(call.node), block_bytes, step.posts != 0 ? step.bytes : 0,
                    word_at(call.node), static_cast<uint64_t>(call.signature) << 32 | number)) {
        going.Stop();
      }
    }
  }
  if (go) {
    for (uint32_t b = thread; b < n; b += threads) {
      if (b == call.node) continue;
      const uint64_t* const word =
          AtOffset<uint64_t>(call.context, leader, call.workspace_bytes + word_at(b));
      if (!AwaitArrival(call, leader, b, word, number)) going.Stop();
    }
    go = going.Sync();
  }
  if (go) {
    const auto part = [&](uint32_t b) {
      return b == call.node
                 ? AtOffset<uint8_t>(call.context, call.context.rank, block_bytes)
                 : AtOffset<uint8_t>(call.context, leader, call.workspace_bytes + inbox_at(b));
    };
    const Share share = {thread, threads};
    if (step.mode == LeaderStep::kReduce && step.rows.out != nullptr) {
      for (uint32_t b = thread; b <= n; b += threads) {
        table[b] = b == n ? step.rows.out : part(b) + step.rows.offset;
      }
      backend::BlockSync();
      ReduceRange<T, AnyOp<T>, 0>(AnyOp<T>(step.op, call.size), table, n, 1, step.count, share);
    } else if (step.mode == LeaderStep::kReduceRows && step.rows.out != nullptr) {
      ReduceParts<T>(call, step, part, share);
    } else if (step.mode == LeaderStep::kCopy) {
      CopyParts(call, step.rows, 0, ~0ull, part, share);
    }
  }
  backend::BlockSync();
  if (thread != 0) return;
  state->round = number;
  // The next operation overwrites the source.
  if (go && call.place == 0 && step.posts != 0) go = AwaitRead(call, PostedRequests(call));
  if (call.ends != 0) ++state->sequence;
  if (!go) ConcludeFailure(call, leader);
}

// Frees read inboxes of the rail, and puts the next round, in one block.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void TurnKernel(IRIS_PARAM NodesCall call,
                                                               IRIS_PARAM TurnStep step) {
  IRIS_SHARED(uint32_t, stopped);
  const uint32_t thread = backend::ThreadIndex();
  const uint32_t threads = backend::BlockSize();
  const uint32_t n = call.n_nodes;
  const uint32_t me = call.context.rank;
  NodesState* const state = StateOf(call);
  const uint64_t consumed = state->consumed + step.consumed;
  const uint64_t number = state->posted + 1;
  const uint64_t slot = number % kRailSlots;
  Going going(&stopped);
  bool go = MayGoOn(call, going);
  for (uint32_t b = thread; go && b < n; b += threads) {
    if (b == call.node) continue;
    if (step.consumed != 0) {
      iris::SignalSet(call.context, PeerOf(call, b),
                      MineAt<uint64_t>(call, call.at.freed) + call.node, consumed);
    }
    if (step.takes == 0 || (step.to != TurnStep::kEach && step.to != b)) continue;
    const uint64_t* const freed = MineAt<uint64_t>(call, call.at.freed) + b;
    const uint64_t from = b * step.stride;
    const uint64_t bytes = from < step.limit ? Min(step.bytes, step.limit - from) : 0;
    if (!AwaitNode(call, me, b, freed,
                   [number](uint64_t value) { return value + kRailSlots >= number; }) ||
        !PutPiece(call, b, call.at.inboxes + (slot * n + call.node) * call.piece_bytes,
                  step.source + from, bytes,
                  call.at.arrived + (slot * n + call.node) * sizeof(uint64_t),
                  static_cast<uint64_t>(call.signature) << 32 | static_cast<uint32_t>(number))) {
      going.Stop();
    }
  }
  go = going.Sync() && go;
  if (thread != 0) return;
  state->consumed = consumed;
  if (step.takes != 0) state->posted = number;
  if (go && step.mark != kNoMark) state->marks[step.mark] = PostedRequests(call);
  if (go && step.await != kNoMark) go = AwaitRead(call, state->marks[step.await]);
  if (go && step.await_all != 0) go = AwaitRead(call, PostedRequests(call));
  if (call.ends != 0) ++state->sequence;
  if (!go) ConcludeFailure(call, me);
}

// Reads a round of the rail. Its blocks do not wait for each other. `N` is the number of nodes,
// whose terms `Op` combines, or 0 for any number.
template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads,
                               1) void UseKernel(IRIS_PARAM NodesCall call, IRIS_PARAM UseStep step,
                                                 uint32_t first_block, uint32_t blocks) {
  IRIS_SHARED(uint32_t, stopped);
  IRIS_SHARED(uint8_t * [kMaxNodes + 2], table);
  const uint32_t thread = backend::ThreadIndex();
  const uint32_t threads = backend::BlockSize();
  const uint32_t n = call.n_nodes;
  const uint32_t me = call.context.rank;
  const uint64_t number = StateOf(call)->consumed + step.ahead + 1;
  const uint64_t slot = number % kRailSlots;
  const uint32_t only = step.reduces != 0 ? uint32_t{NodesRows::kAll} : step.rows.only;
  Going going(&stopped);
  if (thread == 0 && HasFailed(call)) going.Stop();
  const bool go = going.Sync();
  for (uint32_t b = thread; go && b < n; b += threads) {
    if (b == call.node || (only != NodesRows::kAll && only != b)) continue;
    const uint64_t* const word = MineAt<uint64_t>(call, call.at.arrived) + slot * n + b;
    if (!AwaitArrival(call, me, b, word, static_cast<uint32_t>(number))) going.Stop();
  }
  if (!going.Sync() || !go) return;
  const auto part = [&](uint32_t b) -> uint8_t* {
    if (b == call.node) return const_cast<uint8_t*>(step.own);
    return MineAt<uint8_t>(call, call.at.inboxes + (slot * n + b) * call.piece_bytes);
  };
  const Share share = {(first_block + backend::BlockIndex()) * uint64_t{threads} + thread,
                       uint64_t{blocks} * threads};
  if (step.reduces == 0) {
    return CopyParts(call, step.rows, step.node_stride, step.limit, part, share);
  }
  const uint32_t n_to = step.to[1] != nullptr ? 2 : 1;
  for (uint32_t b = thread; b < n + n_to; b += threads) {
    table[b] = b < n ? part(b) : step.to[b - n];
  }
  backend::BlockSync();
  const Op op(step.divide > 1 ? ReduceOp::kAvg : step.op, step.divide);
  ReduceRange<T, Op, N>(op, table, n, n_to, step.count, share);
}

// Waits until the puts of this rank have ended, and cannot fail.
template <uint32_t = 0>
IRIS_KERNEL void QuietKernel(IRIS_PARAM NodesCall call) {
  if (backend::ThreadIndex() == 0) {
    const DeviceContext& ctx = call.context;
    (void)iris::impl::QuietPort(ctx.port, iris::impl::PortState(ctx), NodesTimeout(ctx),
                                ctx.abort_word);
  }
}

}  // namespace iris::ccl::impl
