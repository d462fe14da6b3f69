// The part that all collective kernels share: rounds between the blocks of the same index, notes,
// and failure.
//
// Why buffers can be used again without an acknowledgement. Let epoch e be a round of one block.
// Having passed round e means that the peer's block has arrived at e, so it has finished everything
// before its round e. Hence:
// - what alternates by the parity of e (notes, one-shot inboxes) may be written for e by whoever
// has passed e - 1: its last
//   reader, of e - 2, is done. A one-shot needs no second round.
// - what does not alternate (stages, the user's buffers) is written only after a round that its
// readers arrive at when they
//   are done: operations that use them end with a round, and start the next chunk with one.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/collective/impl/layout.h"
#include "device/iris/context.h"
#include "device/iris/impl/barrier.h"

namespace iris::ccl::impl {

// The state of one block in one operation. Every thread has the same.
class Session {
 public:
  IRIS_DEVICE explicit Session(const Call& call)
      : call_(call),
        region_offset_bytes_(call.workspace_offset_bytes +
                             backend::BlockIndex() *
                                 BlockRegionBytes(call.team.size, call.config)) {
    const SyncArea::Slot* slot = Mine<SyncArea::Slot>(0);
    epoch_ = backend::LoadPlain(&slot->epoch);
    const uint64_t failure = backend::Load<Scope::kBlock, Order::kRelaxed>(&slot->failure);
    broken_ = (failure & 0xff) != 0 && static_cast<uint32_t>(failure >> 32) == epoch_;
  }

  // True if an earlier operation failed in this block: the kernel returns at once.
  IRIS_DEVICE bool broken() const { return broken_; }

  IRIS_DEVICE uint32_t size() const { return call_.team.size; }
  IRIS_DEVICE uint32_t index() const { return call_.team.index; }

  // The member `step` places after this one: everybody begins with another.
  IRIS_DEVICE uint32_t Rotated(uint32_t step) const {
    const uint32_t member = index() + step;
    return member < size() ? member : member - size();
  }

  // One round: all writes of all members' blocks before it are visible after it. False on failure,
  // which is recorded; the same answer in all threads. The kernel then returns.
  IRIS_DEVICE bool Round() {
    ++epoch_;
    uint32_t missing = 0;
    const iris::impl::BarrierArea area = {region_offset_bytes_, size(), index(),
                                          call_.team.members};
    const WaitResult result =
        iris::impl::BlockBarrierAt(call_.context, area, epoch_, call_.config.timeout_ns, &missing);
    if (result == WaitResult::kOk) return true;
    Record(result == WaitResult::kAborted ? ErrorCode::kAborted : ErrorCode::kDeadlineExceeded,
           missing);
    return false;
  }

  // The first round of an operation: tells the others what this member calls and learns what they
  // do. False as Round, and if an earlier operation of this block failed or a member calls
  // something else.
  IRIS_DEVICE bool Open() {
    if (broken_) return false;
    notes_ = Mine<Note>(NotesOffset()) + ((epoch_ + 1) & 1) * size();
    for (uint32_t p = backend::ThreadIndex(); p < size(); p += backend::BlockSize()) {
      *iris::Translate(call_.context, call_.team.members[p], notes_ + index()) = call_.note;
    }
    if (!Round()) return false;
    all_direct_ = true;
    uint32_t differs = size();
    for (uint32_t p = 0; p < size(); ++p) {
      const Note& note = notes_[p];
      if (note.signature != call_.note.signature || note.count != call_.note.count) differs = p;
      if (note.in_offset_bytes == kNotInHeap || note.out_offset_bytes == kNotInHeap) {
        all_direct_ = false;
      }
    }
    if (differs == size()) return true;
    backend::BlockSync();  // all threads have read the failure word of this round
    if (backend::ThreadIndex() == 0) {
      SyncArea::Slot* slot = Mine<SyncArea::Slot>(0);
      backend::Store<Scope::kBlock, Order::kRelaxed>(
          &slot->failure, static_cast<uint64_t>(epoch_) << 32 | differs << 8 | 0xff);
    }
    Record(ErrorCode::kInvalidArgument, differs);
    return false;
  }

  // After Open. True if every member has every buffer in the heap.
  IRIS_DEVICE bool all_direct() const { return all_direct_; }

  // Where element 0 of member m's buffer is, or null if it is not in the heap. After Open, before
  // the operation's last round.
  IRIS_DEVICE uint8_t* In(uint32_t m) const { return InHeap(m, notes_[m].in_offset_bytes); }
  IRIS_DEVICE uint8_t* Out(uint32_t m) const { return InHeap(m, notes_[m].out_offset_bytes); }

  // This block's stages in the heap of member m.
  IRIS_DEVICE uint8_t* StageIn(uint32_t m) const {
    return Of<uint8_t>(m, StageOffset(size(), call_.config));
  }
  IRIS_DEVICE uint8_t* StageOut(uint32_t m) const { return StageIn(m) + call_.config.stage_bytes; }

  // Where member m takes what `from` pushes for the round that comes next (`rounds` = 1), or took
  // for the last one (0).
  IRIS_DEVICE uint8_t* Inbox(uint32_t m, uint32_t from, uint32_t rounds) const {
    const uint64_t slot = ((epoch_ + rounds) & 1) * static_cast<uint64_t>(size()) + from;
    return Of<uint8_t>(m, InboxOffset(size()) + slot * call_.config.one_shot_chunk_bytes);
  }

 private:
  template <typename T>
  IRIS_DEVICE T* Of(uint32_t member, uint64_t offset_bytes) const {
    return iris::AtOffset<T>(call_.context, call_.team.members[member],
                             region_offset_bytes_ + offset_bytes);
  }
  template <typename T>
  IRIS_DEVICE T* Mine(uint64_t offset_bytes) const {
    return Of<T>(index(), offset_bytes);
  }
  IRIS_DEVICE uint8_t* InHeap(uint32_t m, uint64_t offset_bytes) const {
    if (offset_bytes == kNotInHeap) return nullptr;
    return iris::AtOffset<uint8_t>(call_.context, call_.team.members[m], offset_bytes);
  }

  // Keeps the first failure.
  IRIS_DEVICE void Record(ErrorCode code, uint32_t member) {
    if (backend::ThreadIndex() != 0) return;
    (void)backend::CompareExchange<Scope::kSystem, Order::kAcqRel>(
        call_.error_word, uint64_t{0}, PackError(code, call_.operation, member));
  }

  const Call& call_;
  const uint64_t region_offset_bytes_;
  uint32_t epoch_;
  bool broken_;
  bool all_direct_ = false;
  Note* notes_ = nullptr;
};

}  // namespace iris::ccl::impl
