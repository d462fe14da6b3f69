// The part that all collective kernels share: rounds between blocks of the same index, and failure.
//
// A round e of a block: it stores words that carry e to the block of the same index of each rank,
// and waits for theirs. After that, all of them have finished everything before their round e.
// - Memory that alternates by the parity of e (calls, packets) may be written for e by a block that
//   has passed e - 1: its last reader, of e - 2, is done. So words are compared for equality, and
//   packets need no second round. A kernel of packets is a round, too: it waits for all ranks.
// - Memory that does not alternate (stages, the user's buffers) is written only after a round at
//   which its readers arrive when they are done.
// The epoch skips 0 and 1 when it wraps, keeping its parity: fresh workspace has zeros.
//
// The first round of an operation is passed only if all ranks made the same call: words carry the
// call's signature, and so does one of the two flags of a packet. If calls differ, some rank finds
// another signature in a round, or waits for words that never come. A rank that has waited for long
// puts its signature into its header and reads the other ranks' signatures; see diagnosis.h.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/impl/trace.h"
#include "iris/impl/wait.h"
#include "iris/rounds/diagnosis.h"
#include "iris/rounds/layout.h"
#include "iris/translate.h"

namespace iris::ccl::impl {

// The order of words which announce that earlier operations of the stream have written and read
// this rank's memory. It does not publish the stores of these operations to other ranks: the round
// of a barrier does, whose words are released.
inline constexpr Order kArriveOrder =
    backend::Traits::kLaunchPublishes ? Order::kRelaxed : iris::impl::kPublishOrder;

// The polls before a read of the clock, which is slow on GPUs: some microseconds.
inline constexpr uint32_t kEagerPolls = backend::Traits::kLaunchPublishes ? 32 : 1;

IRIS_HOST_DEVICE constexpr uint32_t NextEpoch(uint32_t epoch) {
  return epoch == ~0u ? 2 : epoch + 1;
}

using iris::impl::Polls;

// Call it first in a kernel that is launched early. It waits for the previous kernel and only then
// lets the next one begin, so at most two of a stream are on the device, however short they are.
IRIS_DEVICE inline void Enter(const Common& call) {
  backend::AwaitKernelBefore();
  if (call.early != 0) backend::LetNextBegin();
}

// Says why a wait ended early, if not by the abort word or the timeout.
enum class Trouble : uint32_t {
  kNone,
  kFailedElsewhere,  // another thread of this rank has recorded the failure
  kCallsDiffer,
  kCrossed,  // two ranks wait for each other to receive, or to send
};

// Returns why a thread waits for long, if known. With `looks`, also compares the ranks' calls.
IRIS_COLD Trouble LookAround(const Common& call, uint32_t sequence, bool looks) {
  Header* mine = HeaderAt(call, call.index);
  const uint32_t tag = TagOf(sequence);
  if (backend::Load<Scope::kSystem, Order::kRelaxed>(&mine->called_off) == tag) {
    return Trouble::kCallsDiffer;
  }
  if (backend::Load<Scope::kDevice, Order::kRelaxed>(&mine->failed) != 0) {
    return Trouble::kFailedElsewhere;
  }
  if (!looks) return Trouble::kNone;
  // A rank in an operation of the team announces its call. A rank in a message checks whether the
  // other rank is in an operation of the team, which then cannot end.
  const bool pair = call.operation == Operation::kSendRecv;
  const uint64_t own = static_cast<uint64_t>(call.signature) << 32 | tag;
  if (!pair) backend::Store<Scope::kSystem, Order::kRelaxed>(&mine->calling, own);
  for (uint32_t m = 0; m < call.size; ++m) {
    if (m == call.index) continue;
    const uint64_t seen =
        backend::Load<Scope::kSystem, Order::kRelaxed>(&HeaderAt(call, m)->calling);
    if (static_cast<uint32_t>(seen) == tag && (pair || seen != own)) return Trouble::kCallsDiffer;
  }
  if (!pair || call.alone == 0) return Trouble::kNone;
  // Detects that the other rank waits, also for a single message, for a message that this rank will
  // not begin, because it waits here. Epochs never repeat, so no word has to be reset.
  const auto state = [&call](uint32_t m, uint64_t offset_bytes) {
    return iris::AtOffset<BlockState>(call.context, call.members[m], offset_bytes);
  };
  BlockState* waits = state(call.index, call.sync_offset_bytes);
  backend::Store<Scope::kSystem, Order::kRelaxed>(&waits->awaited,
                                                  NextEpoch(backend::LoadPlain(&waits->epoch)));
  const uint32_t awaited = backend::Load<Scope::kSystem, Order::kRelaxed>(
      &state(1 - call.index, call.answer_offset_bytes)->awaited);
  const uint32_t next =
      NextEpoch(backend::LoadPlain(&state(call.index, call.answer_offset_bytes)->epoch));
  return awaited == next ? Trouble::kCrossed : Trouble::kNone;
}

// The threads of a block share this state.
struct SharedState {
  uint32_t failure;   // 0, or code | rank << 8
  uint32_t in_apart;  // 1: some rank's `in` is not in the heap
  uint32_t out_apart;
  uint32_t more;  // the epoch of the last MeetMore at which a rank had more
  uint32_t words[kMaxTeamRanks * CallWords::kCount];
};

// The state that a block's first thread keeps for the trace of its operation; see TraceEvent. It is
// in registers, because shared memory would need a wait.
struct BlockTrace {
  bool on = false;  // the operation is traced
  iris::impl::TraceHead head;
  uint64_t slot = 0;
  uint64_t start_ns = 0;
  uint32_t first_ns = 0;
  uint32_t wait_ns = 0;
};

// Ends this operation and all later ones of the stream at this rank, because `member` is missing,
// or made another call. Records `code`, unless it is kOk, which means that another thread does.
IRIS_COLD void EndOperation(const Common& call, StatusCode code, uint32_t member, uint32_t sequence,
                            BlockState* state, SharedState* shared) {
  const uint32_t place = PlaceInTeam(call, member);
  if (code != StatusCode::kOk) RecordError(call, code, call.operation, place, sequence);
  Header* header = HeaderAt(call, call.index);
  (void)backend::FetchOp<AtomicOp::kOr, Scope::kDevice, Order::kRelaxed>(&header->missing,
                                                                         uint64_t{1} << place);
  backend::Store<Scope::kDevice, Order::kRelaxed>(&header->failed, 1u);
  backend::Store<Scope::kDevice, Order::kRelaxed>(&state->failed, 1u);
  backend::Store<Scope::kBlock, Order::kRelaxed>(&shared->failure, 1u);
}

// Writes a block's part of an operation to the trace. `last_ns` is the start of its last round, or
// 0 if it had none. Not IRIS_COLD: a function placed elsewhere is fetched from memory when it is
// called, and the end of the kernel would wait for that longer than for everything else.
IRIS_DEVICE inline void TellTrace(const Common& call, const BlockTrace& trace, uint32_t block,
                                  uint32_t sequence, uint64_t last_ns) {
  TraceEvent event = {};
  event.op = static_cast<uint16_t>(call.traced);
  event.peer = static_cast<uint16_t>(call.traced >> 16);
  event.bytes = call.call.words[1] | static_cast<uint64_t>(call.call.words[2]) << 32;
  event.detail = call.call.words[0];
  event.number = sequence;
  event.block = block;
  event.multiprocessor = static_cast<uint16_t>(backend::MultiprocessorIndex());
  event.start_ns = trace.start_ns;
  event.first_ns = trace.first_ns;
  event.wait_ns = trace.wait_ns;
  event.end_ns = backend::ClockNanoseconds();
  if (last_ns != 0) {
    event.last_ns = iris::impl::TraceTimeBetween(event.start_ns, last_ns);
    event.wait_ns = iris::impl::TraceTimeBetween(last_ns, event.end_ns + trace.wait_ns);
  }
  iris::impl::WriteTraceEvent(call.context.trace, trace.head, trace.slot, event);
}

// The state of one block in one operation. All threads have the same state, but for `trace_`.
class Rounds {
 public:
  // Makes the rounds of block `block` of a call. The block owns `shared`.
  IRIS_DEVICE Rounds(const Common& call, SharedState* shared, uint32_t block,
                     const Vector* vector = nullptr)
      : call_(&call),
        vector_(vector),
        shared_(shared),
        sync_offset_bytes_(call.sync_offset_bytes + block * SyncBytes(call.size)),
        block_(block),
        trouble_(Trouble::kNone),
        suspect_(0) {
    // These loads, all that the operation needs to begin and to end, are issued together.
    const bool tells = iris::impl::kTraces && backend::ThreadIndex() == 0;
    if (tells) trace_.head = iris::impl::ReadTraceHead(call.context);
    epoch_ = backend::LoadPlain(&State()->epoch);
    const Header* header = HeaderOf();
    // The block reads its own word, not the header's, which another block may set at any time: no
    // thread of this block sets the word before all have read it here, so all take the same path.
    broken_ = backend::Load<Scope::kDevice, Order::kRelaxed>(&State()->failed) != 0;
    sequence_ = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->sequence);
    if (backend::ThreadIndex() == 0) {
      shared_->failure = 0;
      shared_->in_apart = 0;
      shared_->out_apart = 0;
      shared_->more = 0;
    }
    if (tells) BeginTrace();
  }

  // Returns true if an earlier operation failed: the kernel then returns at once.
  IRIS_DEVICE bool broken() const { return broken_; }
  IRIS_DEVICE uint32_t epoch() const { return epoch_; }
  IRIS_DEVICE uint32_t size() const { return call_->size; }
  IRIS_DEVICE uint32_t index() const { return call_->index; }

  // Returns the rank `step` places after this one, so that ranks begin with different ones.
  IRIS_DEVICE uint32_t Rotated(uint32_t step) const {
    const uint32_t member = call_->index + step;
    return member < call_->size ? member : member - call_->size;
  }

  // Makes the first round of an operation: sends this rank's call to the others and receives
  // theirs. `wrote` says that this block has written data that the others will read, or that
  // earlier operations of the stream have stored data to other ranks that must be visible after
  // this round. Returns false, in all threads, on failure, which is recorded. The kernel then
  // returns.
  IRIS_DEVICE bool Exchange(bool wrote) {
    Advance();
    iris::impl::SyncBeforePublish();  // shared_ is cleared
    SendCalls(wrote);
    return ReceiveCalls();
  }

  // Begins a round. After it and a block sync, call SendCalls and ReceiveCalls, the halves of
  // Exchange, in kernels that send something in between.
  IRIS_DEVICE void Advance() {
    epoch_ = NextEpoch(epoch_);
    if constexpr (backend::Traits::kEmulated) {
      if (backend::ThreadIndex() == 0) {
        backend::Store<Scope::kSystem, Order::kRelease>(&State()->begun, epoch_);
      }
    }
  }
  IRIS_DEVICE void SendCalls(bool wrote) {
    const uint32_t n = call_->size * CallWords::kCount;
    for (uint32_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) {
      const uint32_t peer = i / CallWords::kCount;
      const uint32_t w = i % CallWords::kCount;
      uint64_t* word = &Calls(peer)[call_->index].words[w];
      const uint64_t value = static_cast<uint64_t>(Payload(w, peer)) << 32 | epoch_;
      if (wrote) {
        backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(word, value);
      } else {
        backend::Store<Scope::kSystem, kArriveOrder>(word, value);
      }
    }
  }
  template <Polls kPolls = Polls::kFast>
  IRIS_DEVICE bool ReceiveCalls() {
    const uint64_t trace_ns = TraceTime();
    const uint32_t n = call_->size * CallWords::kCount;
    const CallWords* mine = Calls(call_->index);
    for (uint32_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) {
      const uint32_t peer = i / CallWords::kCount;
      const uint32_t w = i % CallWords::kCount;
      uint64_t value = 0;
      // Only threads that wait for a signature watch for trouble; if threads alternate between
      // words, all do.
      const bool watches =
          w == CallWords::kSignature || backend::BlockSize() % CallWords::kCount != 0;
      if (!Wait<kPolls>(&mine[peer].words[w], peer, watches, &value)) break;
      const uint32_t payload = static_cast<uint32_t>(value >> 32);
      shared_->words[i] = payload;
      if (w == CallWords::kSignature) {
        if (payload != call_->signature) Differ(peer);
      } else if (w == CallWords::kIn && vector_ != nullptr) {
        // This is the size that the peer expects. 32 bits are enough to detect a mistake.
        if (payload != static_cast<uint32_t>(vector_->send_bytes[peer])) Differ(peer);
      } else if (w == CallWords::kHigh) {
        if ((payload & 0xffff) == 0xffff) Set(&shared_->in_apart);
        if (payload >> 16 == 0xffff) Set(&shared_->out_apart);
      }
    }
    iris::impl::SyncAfterConsume();
    TraceFirstRound(trace_ns);
    return Settle();
  }

  // Makes another round: data that all ranks' blocks wrote before it is visible after it. Fails as
  // Exchange does.
  IRIS_DEVICE bool Meet() {
    Advance();
    iris::impl::SyncBeforePublish();
    const uint64_t trace_ns = TraceTime();
    Arrive<iris::impl::kPublishOrder>();
    iris::impl::SyncAfterConsume();
    TraceWait(trace_ns);
    return Settle();
  }

  // Makes a round. `*any` becomes true, on all ranks, if any rank has `more` to do.
  IRIS_DEVICE bool MeetMore(bool more, bool* any) {
    Advance();
    iris::impl::SyncBeforePublish();
    const uint64_t trace_ns = TraceTime();
    Arrive<iris::impl::kPublishOrder>(more ? 1 : 0);
    iris::impl::SyncAfterConsume();
    TraceWait(trace_ns);
    *any = backend::Load<Scope::kBlock, Order::kRelaxed>(&shared_->more) == epoch_;
    return Settle();
  }

  // In overlapping rounds, a rank may signal again before all have waited for its earlier signal.
  // Signals are counted in 64 bits, which never wrap. The calling thread signals after a sync of
  // the block, and waits only for itself. Call KeepSignals after the last signal.
  IRIS_DEVICE uint64_t Signals() const { return backend::LoadPlain(&State()->signals); }
  IRIS_DEVICE void SignalTo(uint32_t member, uint64_t value) {
    backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(SignalsOf(member) + call_->index,
                                                              value);
  }
  IRIS_DEVICE bool AwaitSignalOf(uint32_t member, uint64_t value) {
    const uint64_t* word = SignalsOf(call_->index) + member;
    return Await(member, [word, value] {
      return backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word) >= value;
    });
  }
  // Waits in the calling thread until `done`, which acquires, sees another action of `member`.
  template <Polls kPolls = Polls::kFast, typename Done>
  IRIS_DEVICE bool Await(uint32_t member, Done done) {
    const WaitResult result = Poll<kPolls>(false, done);
    if (result == WaitResult::kOk) return true;
    Fail(result, member);
    return false;
  }
  IRIS_DEVICE void KeepSignals(uint64_t value) {
    if (backend::ThreadIndex() == 0) backend::StorePlain(&State()->signals, value);
  }

  // The ranks take this lock in order: a ticket lock whose tickets are their indexes. Turns are
  // counted in 64 bits. Call Turns() after all earlier operations and before the first round. One
  // thread calls AwaitTurn, followed by a block sync, and PassTurn, preceded by one.
  IRIS_DEVICE uint64_t Turns() const {
    return backend::Load<Scope::kSystem, Order::kRelaxed>(&StateOf(call_->index)->turns);
  }
  IRIS_DEVICE bool AwaitTurn(uint32_t owner, uint64_t turns) {
    const uint64_t* word = &StateOf(owner)->turns;
    const uint64_t mine = turns + call_->index;
    uint64_t seen = 0;
    const WaitResult result = Poll(false, [word, mine, &seen] {
      seen = backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word);
      return seen == mine;
    });
    if (result == WaitResult::kOk) return true;
    Fail(result, static_cast<uint32_t>(seen - turns) % call_->size);  // the rank that has the lock
    return false;
  }
  IRIS_DEVICE void PassTurn(uint32_t owner, uint64_t turns) {
    backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(&StateOf(owner)->turns,
                                                              turns + call_->index + 1);
  }

  // Makes the last round. `wrote` says that this block wrote data that the others will read;
  // otherwise it only read.
  IRIS_DEVICE void MeetLast(bool wrote) {
    Advance();
    iris::impl::SyncBeforePublish();
    const uint64_t trace_ns = TraceTime();
    if (wrote) {
      Arrive<iris::impl::kPublishOrder>();
    } else {
      Arrive<kArriveOrder>();
    }
    Finish();
    if (trace_.on) EndTrace(trace_ns);
  }

  // Stores the epoch for the next operation. Call it after a block sync. In the last launch of the
  // operation, the first block counts the operation.
  IRIS_DEVICE void Finish() {
    if (backend::ThreadIndex() != 0) return;
    backend::StorePlain(&State()->epoch, epoch_);
    if (block_ == call_->first_block && call_->ends != 0) {
      backend::Store<Scope::kDevice, Order::kRelaxed>(&HeaderOf()->sequence, sequence_ + 1);
    }
  }

  // Return true if every rank's buffer is in the heap. Valid after Exchange.
  IRIS_DEVICE bool in_direct() const { return shared_->in_apart == 0; }
  IRIS_DEVICE bool out_direct() const { return shared_->out_apart == 0; }

  // Returns rank m's buffer, or null if it is not in the heap. Valid after Exchange, until the next
  // one.
  IRIS_DEVICE uint8_t* In(uint32_t m) const {
    const uint32_t* words = shared_->words + m * CallWords::kCount;
    return Buffer(m, words[CallWords::kIn], words[CallWords::kHigh] & 0xffff);
  }
  IRIS_DEVICE uint8_t* Out(uint32_t m) const {
    const uint32_t* words = shared_->words + m * CallWords::kCount;
    return Buffer(m, words[CallWords::kOut], words[CallWords::kHigh] >> 16);
  }

  // Return this block's stages in the heap of rank m.
  IRIS_DEVICE uint8_t* StageIn(uint32_t m) const {
    return At<uint8_t>(m, call_->stage_offset_bytes + 2 * block_ * call_->stage_bytes);
  }
  IRIS_DEVICE uint8_t* StageOut(uint32_t m) const { return StageIn(m) + call_->stage_bytes; }

  // Returns the inbox of rank m for packets of `from` in this block and epoch.
  IRIS_DEVICE Bytes16* Inbox(uint32_t m, uint32_t from) const {
    return At<Bytes16>(m, call_->packet_offset_bytes +
                              block_ * PacketBytes(call_->size, call_->packet_bytes) +
                              ((epoch_ & 1) * call_->size + from) * 2 * call_->packet_bytes);
  }

  // Polls for the packet of this epoch and reads its 8 bytes. Returns false on recorded failure.
  IRIS_DEVICE bool Receive(const Bytes16* slot, Bytes16 first, uint32_t from, uint64_t* data) {
    if (!Arrived(first)) {
      const uint64_t trace_ns = TraceTime();
      const uint32_t low = epoch_;
      const uint32_t high = HighFlag();
      // The first thread of a block always waits for a packet.
      const WaitResult result = Poll(backend::ThreadIndex() == 0, [&first, slot, low, high] {
        first = backend::Load16<CacheHint::kVolatile>(slot);
        return static_cast<uint32_t>(first.lo) == low && static_cast<uint32_t>(first.hi) == high;
      });
      TraceWait(trace_ns);
      if (result != WaitResult::kOk) {
        Fail(result, from);
        return false;
      }
    }
    *data = DataOf(first);
    return true;
  }
  IRIS_DEVICE static uint64_t DataOf(Bytes16 packet) {
    return packet.lo >> 32 | (packet.hi >> 32) << 32;
  }
  IRIS_DEVICE bool Arrived(Bytes16 packet) const {
    return static_cast<uint32_t>(packet.lo) == epoch_ &&
           static_cast<uint32_t>(packet.hi) == HighFlag();
  }
  IRIS_DEVICE Bytes16 Packet(uint64_t data) const {
    return {data << 32 | epoch_, (data >> 32) << 32 | HighFlag()};
  }

  // Return the inbox of rank m for lines of `from` in this block and epoch, and the flag of each
  // line. As with packets, lines of another call never match.
  IRIS_DEVICE uint8_t* LineBox(uint32_t m, uint32_t from) const {
    const uint64_t inbox = (block_ * 2 + (epoch_ & 1)) * call_->size + from;
    return At<uint8_t>(m, call_->line_offset_bytes + inbox * call_->line_bytes);
  }
  // Makes sure that the inboxes of lines were read before they are written again. Call it before
  // the first lines of an operation. The inboxes were read two rounds ago, and a rank that has
  // passed the round between knows that; after a round of packets, by relaxed loads only. In
  // emulation lines are plain memory (see lines.h), for which C++ requires an acquire between a
  // load and a store. The acquired word was stored before the packets that this block has received.
  IRIS_DEVICE void AwaitReadersOfLines() const {
    if constexpr (backend::Traits::kEmulated) {
      for (uint32_t m = 0; m < call_->size; ++m) {
        (void)backend::Load<Scope::kSystem, Order::kAcquire>(&StateOf(m)->begun);
      }
    }
  }
  IRIS_DEVICE uint64_t LineFlag() const { return static_cast<uint64_t>(HighFlag()) << 32 | epoch_; }
  // Returns the inbox of rank m for chunk `chunk` of `from`, another rank, for this block.
  IRIS_DEVICE uint8_t* PushBox(uint32_t m, uint64_t chunk, uint32_t from) const {
    const uint64_t slot = chunk % kPushSlots * (call_->size - 1) + (from < m ? from : from - 1);
    return At<uint8_t>(
        m, call_->push_offset_bytes + block_ * call_->push_block_bytes + slot * call_->push_bytes);
  }
  // Polls for the flag of a line from `from`. Returns false on failure, which is recorded.
  // `watches` is as in Poll, and true in one thread of a block.
  template <Polls kPolls = Polls::kFast>
  IRIS_DEVICE bool AwaitFlag(const uint64_t* word, uint32_t from, bool watches) {
    const uint64_t flag = LineFlag();
    const WaitResult result = Poll<kPolls>(watches, [word, flag] {
      return backend::Load < Scope::kSystem, backend::Traits::kStoresWholeLines
                                                 ? Order::kRelaxed
                                                 : iris::impl::kConsumeOrder > (word) == flag;
    });
    if (result == WaitResult::kOk) return true;
    Fail(result, from);
    return false;
  }
  // Record waits by other means for the trace: call them before and after such a wait.
  IRIS_DEVICE uint64_t WaitBegins() const { return TraceTime(); }
  IRIS_DEVICE void WaitEnds(uint64_t since_ns) { TraceWait(since_ns); }

  // Returns true unless a thread of the block has failed. Call it after a block sync.
  IRIS_DEVICE bool Settle() const {
    return backend::Load<Scope::kBlock, Order::kRelaxed>(&shared_->failure) == 0;
  }

  // Completes the trace and, if ranks made different calls, diagnoses them. Call it last in a
  // kernel.
  IRIS_DEVICE void Conclude() {
    if (trace_.on) EndTrace(0);
    if (trouble_ != Trouble::kCallsDiffer) return;
    DisputedRow rows = {};
    if (vector_ != nullptr && suspect_ != 0) {
      const uint32_t peer = suspect_ - 1;
      rows.code = 1 + (call_->index | peer << 8);
      rows.sent = vector_->send_bytes[peer];
      rows.expected = shared_->words[peer * CallWords::kCount + CallWords::kIn];
    }
    Diagnose(*call_, sequence_, suspect_ != 0, rows);
  }

 private:
  template <typename T>
  IRIS_DEVICE T* At(uint32_t member, uint64_t offset_bytes) const {
    return iris::AtOffset<T>(call_->context, call_->members[member], offset_bytes);
  }
  template <typename T>
  IRIS_DEVICE T* Mine(uint64_t offset_bytes) const {
    return iris::AtOffset<T>(call_->context, call_->context.rank, offset_bytes);
  }
  IRIS_DEVICE Header* HeaderOf() const { return Mine<Header>(call_->header_offset_bytes); }
  IRIS_DEVICE BlockState* State() const { return Mine<BlockState>(sync_offset_bytes_); }
  IRIS_DEVICE BlockState* StateOf(uint32_t m) const {
    return At<BlockState>(m, sync_offset_bytes_);
  }
  // Returns the words in which rank m receives the calls of this epoch.
  IRIS_DEVICE CallWords* Calls(uint32_t m) const {
    return At<CallWords>(m, sync_offset_bytes_ + sizeof(BlockState)) + (epoch_ & 1) * call_->size;
  }
  // Returns the signals of the ranks to rank m.
  IRIS_DEVICE uint64_t* SignalsOf(uint32_t m) const {
    return At<uint64_t>(
        m, sync_offset_bytes_ + sizeof(BlockState) + 2 * call_->size * sizeof(CallWords));
  }

  // Returns a word of this rank's call for `peer`.
  IRIS_DEVICE uint32_t Payload(uint32_t word, uint32_t peer) const {
    uint64_t in = call_->in_offset_bytes;
    uint64_t out = call_->out_offset_bytes;
    if (vector_ != nullptr) {
      in = vector_->receive_bytes[peer];
      if (out != kNotInHeap) out += vector_->receive_offset_bytes[peer];
    }
    switch (word) {
      case CallWords::kSignature:
        return call_->signature;
      case CallWords::kIn:
        return static_cast<uint32_t>(in);
      case CallWords::kOut:
        return static_cast<uint32_t>(out);
      default:
        return static_cast<uint32_t>(in >> 32 & 0xffff) | static_cast<uint32_t>(out >> 32 & 0xffff)
                                                              << 16;
    }
  }

  IRIS_DEVICE uint8_t* Buffer(uint32_t m, uint32_t low, uint32_t high) const {
    if (high == 0xffff) return nullptr;
    return At<uint8_t>(m, static_cast<uint64_t>(high) << 32 | low);
  }

  // Returns the flag in the upper half of a packet. The lower half identifies the epoch; this
  // flag also matches only if both ranks made the same call.
  IRIS_DEVICE uint32_t HighFlag() const { return epoch_ ^ call_->signature; }

  // Waits as iris::impl::BoundedWait does. With `watches`, in waits of the first round, this thread
  // also looks for calls that differ.
  template <Polls kPolls = Polls::kFast, typename Done>
  IRIS_DEVICE WaitResult Poll(bool watches, Done done) {
    if (iris::impl::PollSome<kPolls, kEagerPolls>(done)) return WaitResult::kOk;
    Trouble trouble = Trouble::kNone;
    const bool looks = watches && block_ == 0;
    const WaitResult result = iris::impl::BoundedWait<kPolls>(call_->context, 0, done, [&] {
      trouble = LookAround(*call_, sequence_, looks);
      return trouble != Trouble::kNone;
    });
    if (result == WaitResult::kAborted) {
      trouble_ = trouble;
      if (trouble == Trouble::kCrossed) {
        trouble_ = Trouble::kCallsDiffer;
        suspect_ = 2 - call_->index;
      }
    }
    return result;
  }

  template <Order O>
  IRIS_DEVICE void Arrive(uint32_t payload = 0) {
    const CallWords* mine = Calls(call_->index);
    for (uint32_t p = backend::ThreadIndex(); p < call_->size; p += backend::BlockSize()) {
      backend::Store<Scope::kSystem, O>(&Calls(p)[call_->index].words[0],
                                        static_cast<uint64_t>(payload) << 32 | epoch_);
    }
    for (uint32_t p = backend::ThreadIndex(); p < call_->size; p += backend::BlockSize()) {
      uint64_t value = 0;
      if (!Wait(&mine[p].words[0], p, false, &value)) break;
      if (value >> 32 != 0) {
        backend::Store<Scope::kBlock, Order::kRelaxed>(&shared_->more, epoch_);
      }
    }
  }

  template <Polls kPolls = Polls::kFast>
  IRIS_DEVICE bool Wait(const uint64_t* word, uint32_t peer, bool watches, uint64_t* value) {
    const uint32_t epoch = epoch_;
    const WaitResult result = Poll<kPolls>(watches, [value, word, epoch] {
      *value = backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word);
      return static_cast<uint32_t>(*value) == epoch;
    });
    if (result == WaitResult::kOk) return true;
    Fail(result, peer);
    return false;
  }

  IRIS_DEVICE static void Set(uint32_t* word) {
    backend::Store<Scope::kBlock, Order::kRelaxed>(word, 1u);
  }

  // Ends the operation because a wait for `member` ended early.
  IRIS_DEVICE void Fail(WaitResult result, uint32_t member) {
    StatusCode code = StatusCode::kOk;
    if (trouble_ == Trouble::kNone) {
      code = result == WaitResult::kAborted ? StatusCode::kAborted : StatusCode::kDeadlineExceeded;
    }
    EndOperation(*call_, code, member, sequence_, State(), shared_);
  }
  // Records that `peer` made another call, or expects a row of another size.
  IRIS_DEVICE void Differ(uint32_t peer) {
    trouble_ = Trouble::kCallsDiffer;
    suspect_ = peer + 1;
    EndOperation(*call_, StatusCode::kOk, peer, sequence_, State(), shared_);
  }

  // Times of the trace are 0 in all threads but the first, and everywhere if no trace is on. The
  // load of the slot is in flight during the operation, so nothing waits for it at the end.
  IRIS_DEVICE void BeginTrace() {
    if (trace_.head.until_ns == 0) return;
    trace_.start_ns = backend::ClockNanoseconds();
    if (trace_.start_ns >= trace_.head.until_ns) return;
    trace_.on = true;
    trace_.slot = iris::impl::ReserveTraceSlot(call_->context.trace);
  }
  IRIS_DEVICE uint64_t TraceTime() const {
    return iris::impl::kTraces && trace_.on ? backend::ClockNanoseconds() : 0;
  }
  IRIS_DEVICE void TraceWait(uint64_t since_ns) {
    if (since_ns == 0) return;
    trace_.wait_ns = iris::impl::TraceTimeBetween(since_ns, TraceTime() + trace_.wait_ns);
  }
  IRIS_DEVICE void TraceFirstRound(uint64_t since_ns) {
    if (since_ns == 0) return;
    TraceWait(since_ns);
    if (trace_.first_ns != 0) return;
    trace_.first_ns = iris::impl::TraceTimeBetween(trace_.start_ns, TraceTime());
  }
  IRIS_DEVICE void EndTrace(uint64_t last_ns) {
    TellTrace(*call_, trace_, block_, sequence_, last_ns);
    trace_.on = false;
  }

  const Common* call_;
  const Vector* vector_;
  SharedState* shared_;
  uint64_t sync_offset_bytes_;
  uint32_t block_;
  uint32_t epoch_;
  uint32_t sequence_;  // number of earlier operations
  bool broken_;
  Trouble trouble_;
  uint32_t suspect_;  // 1 + the rank whose words in the first round were unexpected
  BlockTrace trace_;  // only in the first thread
};

}  // namespace iris::ccl::impl
