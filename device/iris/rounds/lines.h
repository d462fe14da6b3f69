// A line is 128 bytes that eight lanes of a warp store at once: 120 bytes of data, and a flag of
// eight that marks the data as arrived.
//
// There are two protocols. If the platform stores whole lines, all lanes of a warp store a line by
// one instruction and load it by one, so a load that has the flag has the data too. A warp whose
// lanes with flags have waited alone may stay diverged, and no sync converges it, so each access
// asks if the warp is converged. If it is not, Send takes the second protocol: every lane stores
// its data, the warp syncs, and the lanes with flags release them; and Look loads nothing, so that
// the receiver waits for the flags, fences, and loads the data afterwards. Emulation only has the
// second protocol.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

inline constexpr bool kWholeLines = backend::Traits::kStoresWholeLines;
// With a release for each line, lines would be slower than packets, and only useful in emulation.
inline constexpr bool kHasLines = kWholeLines || backend::Traits::kEmulated;

// A step is the data that a warp sends one rank at once: one line by every eight lanes. The lanes
// with flags have the last bytes of the step, eight each, so that all loads are aligned if the row
// is.
struct LineLane {
  static constexpr uint32_t kLines = backend::Traits::kWarpThreads / kLineLanes;
  static constexpr uint32_t kStepBytes = kLines * kLineDataBytes;
  static constexpr uint32_t kStoredBytes = kLines * kLineBytes;

  uint32_t offset_bytes;
  uint32_t stored_bytes;  // the same in the step's lines
  bool has_flag;

  IRIS_DEVICE LineLane() {
    const uint32_t lane = backend::LaneIndex();
    const uint32_t line = lane / kLineLanes;
    const uint32_t part = lane % kLineLanes;
    has_flag = part == kLineLanes - 1;
    offset_bytes =
        has_flag ? kLines * (kLineDataBytes - 8) + line * 8 : (line * (kLineLanes - 1) + part) * 16;
    stored_bytes = lane * 16;
  }

  // Loads this lane's part of the step at byte `at` of a row, with zeros past the row's end.
  template <typename T>
  IRIS_DEVICE Bytes16 Load(const uint8_t* row, uint64_t at, uint64_t row_bytes) const {
    const uint64_t begin = at + offset_bytes;
    const uint64_t left = begin < row_bytes ? row_bytes - begin : 0;
    const uint8_t* p = row + begin;
    if (!has_flag && left >= 16 && (reinterpret_cast<uint64_t>(p) & 15) == 0) {
      return backend::Load16<CacheHint::kDefault>(p);
    }
    Bytes16 value;
    if (left != 0) value.lo = LoadWord<T>(p, left);
    if (!has_flag && left > 8) value.hi = LoadWord<T>(p + 8, left - 8);
    return value;
  }
  template <typename T>
  IRIS_DEVICE void Store(uint8_t* row, uint64_t at, uint64_t row_bytes, Bytes16 value) const {
    const uint64_t begin = at + offset_bytes;
    const uint64_t left = begin < row_bytes ? row_bytes - begin : 0;
    uint8_t* p = row + begin;
    if (!has_flag && left >= 16 && (reinterpret_cast<uint64_t>(p) & 15) == 0) {
      backend::Store16<CacheHint::kDefault>(p, value);
      return;
    }
    if (left != 0) StoreWord<T>(p, left, value.lo);
    if (!has_flag && left > 8) StoreWord<T>(p + 8, left - 8, value.hi);
  }

  // Stores this lane's part of a step into an inbox. All lanes of the warp call it.
  IRIS_DEVICE void Send(uint8_t* lines, Bytes16 value, uint64_t flag) const {
    uint8_t* p = lines + stored_bytes;
    if constexpr (kWholeLines) {
      const Bytes16 whole = {value.lo, has_flag ? flag : value.hi};
      if (backend::WarpIsTogether()) {
        backend::Store16<CacheHint::kVolatile>(p, whole);
        return;
      }
    }
    auto* words = reinterpret_cast<uint64_t*>(p);
    backend::StorePlain(words, value.lo);
    if (!has_flag) backend::StorePlain(words + 1, value.hi);
    iris::impl::SyncWarp();
    if (has_flag) backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(words + 1, flag);
  }

  // Loads this lane's part of a step's lines, which may not have come yet. If the warp is diverged,
  // returns zeros, which are no flag. All lanes of the warp call it.
  IRIS_DEVICE Bytes16 Look(const uint8_t* lines) const {
    if constexpr (kWholeLines) {
      // The load depends on the answer: otherwise the compiler would move it before the question,
      // and the warp may converge between the two.
      if (backend::WarpIsTogether()) {
        return backend::Load16<CacheHint::kVolatile>(lines + stored_bytes);
      }
    }
    return {};
  }

  // Waits for the lines from `from`. All lanes of the warp call it. `*value` has the result of
  // Look, and gets this lane's part. Returns false, in all lanes, on failure, which is recorded.
  IRIS_DEVICE bool Receive(Rounds* rounds, const uint8_t* lines, uint32_t from,
                           Bytes16* value) const {
    const uint64_t flag = rounds->LineFlag();
    if constexpr (kWholeLines) {
      for (uint32_t k = 0; k < kEagerPolls; ++k) {
        if (backend::WarpAll(!has_flag || value->hi == flag)) return true;
        *value = Look(lines);
      }
    }
    const uint64_t since_ns = rounds->WaitBegins();
    bool there = true;
    if (has_flag) {
      const auto* word = reinterpret_cast<const uint64_t*>(lines + stored_bytes) + 1;
      // The first warp of a block always has lines to wait for.
      there = rounds->AwaitFlag(word, from, backend::ThreadIndex() == kLineLanes - 1);
    }
    there = backend::WarpAll(there);
    FenceBehindFlags();
    rounds->WaitEnds(since_ns);
    if (!there) return false;
    *value = Read(lines);
    return true;
  }

  // Orders the loads of flags by some lanes before the loads of data by all lanes of the warp.
  // AwaitFlag does not acquire if lines are whole; without this fence a GPU has read data older
  // than the flags.
  IRIS_DEVICE static void FenceBehindFlags() {
    if constexpr (kWholeLines) backend::Fence<Scope::kSystem, iris::impl::kConsumeOrder>();
    iris::impl::SyncWarp();
  }

  // Loads this lane's part of lines whose flags have all been seen.
  IRIS_DEVICE Bytes16 Read(const uint8_t* lines) const {
    if constexpr (kWholeLines) {
      return backend::Load16<CacheHint::kVolatile>(lines + stored_bytes);
    }
    const auto* words = reinterpret_cast<const uint64_t*>(lines + stored_bytes);
    Bytes16 value;
    value.lo = backend::LoadPlain(words);
    if (!has_flag) value.hi = backend::LoadPlain(words + 1);
    return value;
  }
};

// Waits for a step's lines from several ranks. All lanes of the warp call it. got[k] becomes this
// lane's part of the step from rank `first + k` if `waits(k)`, and is unchanged otherwise. All
// ranks are polled together, since one after another would each add the latency of a load. For a
// warp with nothing else to do; collectives, whose warps go through many steps, are slower with it.
// `box` has the lines of rank `first`. Fails as Receive does.
template <Polls kPolls = Polls::kFast, uint32_t kCount, typename Waits>
IRIS_INLINED bool ReceiveTogether(const LineLane& lane, Rounds* rounds, const uint8_t* box,
                                  uint64_t line_bytes, uint32_t first, Waits waits,
                                  Bytes16 (&got)[kCount]) {
  bool there = false;
  if constexpr (kWholeLines) {
    const uint64_t flag = rounds->LineFlag();
    const uint64_t since_ns = rounds->WaitBegins();
    there = iris::impl::PollSome<kPolls, kEagerPolls>([&] {
      IRIS_UNROLL(8)
      for (uint32_t k = 0; k < kCount; ++k) {
        if (waits(k)) got[k] = lane.Look(box + k * line_bytes);
      }
      bool mine = true;
      IRIS_UNROLL(8)
      for (uint32_t k = 0; k < kCount; ++k) {
        if (waits(k) && lane.has_flag) mine = mine && got[k].hi == flag;
      }
      return backend::WarpAll(mine);
    });
    rounds->WaitEnds(since_ns);
  }
  if (there) return true;
  const uint64_t since_ns = rounds->WaitBegins();
  bool came = true;
  IRIS_UNROLL(1)
  for (uint32_t k = 0; k < kCount; ++k) {
    if (!waits(k) || !lane.has_flag || !came) continue;
    const auto* word =
        reinterpret_cast<const uint64_t*>(box + k * line_bytes + lane.stored_bytes) + 1;
    // The first warp of a block always has lines to wait for.
    came = rounds->AwaitFlag<kPolls>(word, first + k, backend::ThreadIndex() == kLineLanes - 1);
  }
  came = backend::WarpAll(came);
  LineLane::FenceBehindFlags();
  rounds->WaitEnds(since_ns);
  if (!came) return false;
  IRIS_UNROLL(8)
  for (uint32_t k = 0; k < kCount; ++k) {
    if (waits(k)) got[k] = lane.Read(box + k * line_bytes);
  }
  return true;
}

// The steps of rows of `row_bytes` that this block sends, `at_once` at a time.
struct LineSteps {
  uint64_t begin;
  uint64_t end;
  uint64_t at_once;

  IRIS_DEVICE LineSteps(const Common& common, uint64_t row_bytes) {
    const uint64_t steps = (row_bytes + LineLane::kStepBytes - 1) / LineLane::kStepBytes;
    const uint64_t per_block = (steps + GridOf(common) - 1) / GridOf(common);
    begin = Min(steps, BlockOf(common) * per_block);
    end = Min(steps, begin + per_block);
    at_once = common.line_bytes / LineLane::kStoredBytes;
  }
};

IRIS_DEVICE inline uint32_t Warps() { return backend::BlockSize() / backend::WarpSize(); }

}  // namespace iris::ccl::impl
