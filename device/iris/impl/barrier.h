// Bodies of barrier.h.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/impl/port.h"
#include "iris/impl/wait.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris::impl {

// This block's slot of a team, at the same offset in every member's heap.
IRIS_DEVICE inline uint64_t BarrierSlotOffset(const DeviceTeam& team) {
  const uint32_t block = backend::BlockIndex();
  if (block >= SyncArea::kMaxBlocks) {
    backend::Trap("iris::Barrier: more blocks than SyncArea::kMaxBlocks");
  }
  return team.sync_offset_bytes + block * sizeof(SyncArea::Slot);
}

// The rank of the first member that this thread signals, looked up before time matters.
IRIS_DEVICE inline uint32_t FirstMemberRank(const DeviceTeam& team) {
  const uint32_t p = backend::ThreadIndex();
  return p < team.size ? MemberRank(team, p) : 0;
}

// A round of a team with ranks of several nodes, by dissemination: in step k, a rank signals to the
// one 2^k places after it, and waits for the one 2^k places before. A rank whose wait failed
// signals no more in this round, since it cannot answer for others. Called as MeetMembers; returns
// the result, and above 32 bits the index of a missing rank. The ranks of the team are given by
// first, step or a table, as the team has them.
//
// `inbox` is this block's, used as words of 8 bytes, one a step, each of which has one writer.
IRIS_COLD uint64_t MeetNodes(const DevicePort* port, SyncArea::Slot* state, uint64_t timeout_ns,
                             const uint32_t* abort_word, uint32_t rank, uint32_t first_mapped,
                             uint32_t n_mapped, uint64_t heap, uint64_t stride_bytes, uint32_t size,
                             uint32_t index, uint32_t first, uint32_t team_step, uint64_t table,
                             uint32_t* inbox, uint32_t epoch, uint32_t* keep) {
  IRIS_SHARED(uint32_t[2], answer);
  if (backend::ThreadIndex() == 0) {
    if (keep != nullptr) backend::StorePlain(keep, epoch);
    const DeviceContext ctx = WaitContext(timeout_ns, abort_word);
    uint32_t from = index;
    // Ranks that hear of this one by others see its puts.
    WaitResult result =
        port == nullptr ? WaitResult::kOk : QuietPort(port, state, timeout_ns, abort_word);
    uint32_t step = 0;
    for (uint32_t distance = 1; distance < size && result == WaitResult::kOk; distance *= 2) {
      const uint32_t* const word = inbox + 2 * step++;
      const uint32_t member = (index + distance) % size;
      const uint32_t to = team_step != DeviceTeam::kTable
                              ? first + member * team_step
                              : reinterpret_cast<const uint32_t*>(table)[member];
      from = (index + size - distance) % size;
      const uint64_t offset = reinterpret_cast<uint64_t>(word) - heap;
      if (n_mapped != 0 && to - first_mapped >= n_mapped) {
        (void)CallPort(port, state, timeout_ns, abort_word, PortUntil::kPosted,
                       PortHead(PortOp::kPut, PortSpace::kInline), to, 0, 0, 0, offset, epoch, 0, 0,
                       0);
      } else {
        backend::Store<Scope::kSystem, kPublishOrder>(
            reinterpret_cast<uint64_t*>(heap + (static_cast<uint64_t>(to) - rank) * stride_bytes +
                                        offset),
            uint64_t{epoch});
      }
      result = BoundedWait<Polls::kSmall>(
          ctx, 0,
          [word, epoch] {
            return Reached<uint32_t>(backend::Load<Scope::kSystem, kConsumeOrder>(word), epoch);
          },
          [] { return false; });
    }
    answer[0] = static_cast<uint32_t>(result);
    answer[1] = from;
  }
  SyncAfterConsume();
  const uint64_t result = answer[0] | uint64_t{answer[1]} << 32;
  SyncInsideBlock();  // the next round writes the words again
  return result;
}

// One round of epoch `epoch`, which is used up whether it succeeds or not, so that calls stay
// paired. All threads of the block call it after a SyncBeforePublish.
//
// Order: the writes of all threads -> SyncBeforePublish -> thread p stores the epoch into member
// p's inbox (release) -> member p's thread polls it (acquire) -> SyncAfterConsume -> the reads of
// all threads of member p. The results of polls go through shared memory, which the next round's
// first sync protects. One word has the epoch of a failed round, since reading all results takes
// longer than a sync; the results decide, whatever it held at first.
//
// `first_rank`: FirstMemberRank(team). `keep`, if given, gets the epoch while flags travel.
IRIS_DEVICE inline WaitResult MeetMembers(const DeviceContext& ctx, const DeviceTeam& team,
                                          uint64_t slot_offset_bytes, uint32_t epoch,
                                          uint64_t timeout_ns, uint32_t* missing,
                                          uint32_t first_rank, uint32_t* keep) {
  if (__builtin_expect(team.step != DeviceTeam::kListed, 0)) {
    uint64_t table = 0;
    __builtin_memcpy(&table, team.members, sizeof(table));
    const uint64_t met = MeetNodes(
        ctx.port, PortState(ctx), timeout_ns != 0 ? timeout_ns : ctx.timeout_ns, ctx.abort_word,
        ctx.rank, ctx.first_mapped, ctx.n_mapped, ctx.base + ctx.rank * ctx.stride_bytes,
        ctx.stride_bytes, team.size, team.index, team.first, team.step, table,
        AtOffset<SyncArea::Slot>(ctx, ctx.rank, slot_offset_bytes)->inbox, epoch, keep);
    const WaitResult result = static_cast<WaitResult>(static_cast<uint32_t>(met));
    if (result != WaitResult::kOk && missing != nullptr) {
      *missing = static_cast<uint32_t>(met >> 32);
    }
    return result;
  }
  IRIS_SHARED(uint32_t[kMaxTeamRanks], results);
  IRIS_SHARED(uint32_t[1], failed_epoch);
  const uint32_t n_threads = backend::BlockSize();
  for (uint32_t p = backend::ThreadIndex(); p < team.size; p += n_threads) {
    const uint32_t rank = p < n_threads ? first_rank : MemberRank(team, p);
    SyncArea::Slot* theirs = AtOffset<SyncArea::Slot>(ctx, rank, slot_offset_bytes);
    backend::Store<Scope::kSystem, kPublishOrder>(&theirs->inbox[team.index], epoch);
  }
  if (keep != nullptr && backend::ThreadIndex() == 0) backend::StorePlain(keep, epoch);
  const SyncArea::Slot* mine = AtOffset<SyncArea::Slot>(ctx, ctx.rank, slot_offset_bytes);
  bool failed = false;  // then do not wait another full time for the next member
  for (uint32_t p = backend::ThreadIndex(); p < team.size; p += n_threads) {
    WaitResult result = WaitResult::kOk;
    if (!failed) {
      const uint32_t* word = &mine->inbox[p];
      result = BoundedWait(ctx, timeout_ns, [word, epoch] {
        return Reached<uint32_t>(backend::Load<Scope::kSystem, kConsumeOrder>(word), epoch);
      });
    }
    failed = failed || result != WaitResult::kOk;
    results[p] = static_cast<uint32_t>(result);
  }
  if (failed) backend::Store<Scope::kBlock, Order::kRelaxed>(failed_epoch, epoch);
  SyncAfterConsume();
  if (backend::Load<Scope::kBlock, Order::kRelaxed>(failed_epoch) != epoch) {
    return WaitResult::kOk;
  }
  for (uint32_t p = 0; p < team.size; ++p) {
    if (results[p] == 0) continue;
    if (missing != nullptr) *missing = p;
    return static_cast<WaitResult>(results[p]);
  }
  return WaitResult::kOk;
}

// All blocks of this rank's grid, at the first slot of `team`: a word counts the blocks that have
// arrived, and above them the rounds. A block that gives up takes its arrival back, unless all have
// come meanwhile.
//
// Order: the writes of all threads -> SyncBeforePublish -> the first one's exchange (release) ->
// the exchange that completes the round (acquire and release) -> the poll (acquire) ->
// SyncAfterConsume.
IRIS_DEVICE inline WaitResult MeetGrid(const DeviceContext& ctx, const DeviceTeam& team,
                                       uint64_t timeout_ns) {
  IRIS_SHARED(uint32_t[1], answer);
  SyncBeforePublish();
  if (backend::ThreadIndex() == 0) {
    uint64_t* const word = &AtOffset<SyncArea::Slot>(ctx, ctx.rank, team.sync_offset_bytes)->grid;
    constexpr uint64_t kRound = uint64_t{1} << 32;
    uint64_t seen = backend::Load<Scope::kDevice, Order::kRelaxed>(word);
    uint64_t round = 0;
    for (;;) {
      round = seen / kRound;
      const bool last = seen % kRound + 1 >= backend::GridSize();
      const uint64_t next = last ? (round + 1) * kRound : seen + 1;
      const uint64_t found =
          backend::CompareExchange<Scope::kDevice, Order::kAcqRel>(word, seen, next);
      if (found == seen) break;
      seen = found;
    }
    WaitResult result = BoundedWait(ctx, timeout_ns, [word, round] {
      return backend::Load<Scope::kDevice, Order::kAcquire>(word) / kRound != round;
    });
    seen = backend::Load<Scope::kDevice, Order::kRelaxed>(word);
    while (result != WaitResult::kOk) {
      if (seen / kRound != round) {
        result = WaitResult::kOk;
        break;
      }
      const uint64_t found =
          backend::CompareExchange<Scope::kDevice, Order::kAcqRel>(word, seen, seen - 1);
      if (found == seen) break;
      seen = found;
    }
    answer[0] = static_cast<uint32_t>(result);
  }
  SyncAfterConsume();
  const uint32_t result = answer[0];
  SyncInsideBlock();  // the next one writes the word again
  return static_cast<WaitResult>(result);
}

}  // namespace iris::impl
