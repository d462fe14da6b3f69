// Diagnoses calls that differ between ranks, with the same result on every rank.
//
// A rank detects the difference in the first round of an operation (protocol.h). At the end of its
// kernel, one thread calls Diagnose. Diagnose records this rank's call, and marks the operation as
// called off for all others, so that their waits end and they call Diagnose, too. One rank, the
// judge, waits until all have recorded their calls, for a second at most; compares the calls; and
// sends every rank the same verdict. Each rank puts the verdict into its host's report, even if it
// comes later.
//
// All words are relaxed and carry the operation's number, the tag, so that only the verdict has to
// be ordered. An operation that all ranks call alike never gets here.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/rounds/layout.h"
#include "iris/translate.h"

namespace iris::ccl::impl {

// The judge waits for the ranks' calls for this long, or half of the timeout if that is less.
// Others wait twice as long for the judge.
inline constexpr uint64_t kJudgeWaitNs = 1000ull * 1000 * 1000;

// A row of AllToAllV on which its two ranks disagree, as in Verdict.
struct DisputedRow {
  uint64_t code;
  uint64_t sent;
  uint64_t expected;
};

// Returns the tag of an operation. It is never 0, which unwritten words contain. Numbers wrap: the
// last one before the wrap shares its tag with an operation long past.
IRIS_HOST_DEVICE constexpr uint32_t TagOf(uint32_t sequence) {
  return sequence == ~0u ? 1u << 31 : sequence + 1;
}

// Returns the index in the team of a rank. A kSendRecv numbers its two ranks 0 and 1.
IRIS_DEVICE inline uint32_t PlaceInTeam(const Common& common, uint32_t member) {
  return common.operation == Operation::kSendRecv ? common.pair[member] : member;
}

// Records the first failure for the host. `place` is an index in the team, or ~0u if unknown.
IRIS_DEVICE inline void RecordError(const Common& common, StatusCode code, Operation operation,
                                    uint32_t place, uint32_t sequence) {
  (void)backend::CompareExchange<Scope::kSystem, Order::kAcqRel>(
      &common.report->word, uint64_t{0}, PackError(code, operation, place, sequence));
}

IRIS_DEVICE inline Header* HeaderAt(const Common& common, uint32_t member) {
  return iris::AtOffset<Header>(common.context, common.members[member], common.header_offset_bytes);
}

// Reads a word that rank m has recorded. Returns false if the word is not of this operation.
IRIS_DEVICE inline bool Written(const Common& common, uint32_t m, uint32_t k, uint32_t tag,
                                uint32_t* word) {
  const uint64_t value =
      backend::Load<Scope::kSystem, Order::kRelaxed>(&HeaderAt(common, m)->record[k]);
  *word = static_cast<uint32_t>(value >> 32);
  return static_cast<uint32_t>(value) == tag;
}
IRIS_DEVICE inline uint32_t SignatureOf(const Common& common, uint32_t m, uint32_t tag) {
  uint32_t signature = 0;
  (void)Written(common, m, PackedCall::kWords, tag, &signature);
  return signature;
}

// Returns those of `come` that made the same call as rank m, as a mask of indexes in `common`.
IRIS_DEVICE inline uint64_t SameCall(const Common& common, uint64_t come, uint32_t m,
                                     uint32_t tag) {
  const uint32_t signature = SignatureOf(common, m, tag);
  uint64_t same = 0;
  for (uint32_t k = 0; k < common.size; ++k) {
    if ((come >> k & 1) != 0 && SignatureOf(common, k, tag) == signature) same |= uint64_t{1} << k;
  }
  return same;
}

IRIS_DEVICE inline uint32_t CountOf(uint64_t mask) {
  uint32_t count = 0;
  for (; mask != 0; mask &= mask - 1) ++count;
  return count;
}
IRIS_DEVICE inline uint32_t FirstOf(uint64_t mask) {
  uint32_t k = 0;
  while (k < kMaxTeamRanks - 1 && (mask >> k & 1) == 0) ++k;
  return k;
}

// Converts a mask of indexes in `common` to indexes in the team.
IRIS_DEVICE inline uint64_t InTeam(const Common& common, uint64_t mask) {
  if (common.operation != Operation::kSendRecv) return mask;
  return (mask & 1) << common.pair[0] | (mask >> 1 & 1) << common.pair[1];
}

// Sends word k of the verdict to every rank.
IRIS_DEVICE inline void Announce(const Common& common, uint32_t k, uint64_t value) {
  for (uint32_t m = 0; m < common.size; ++m) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(&HeaderAt(common, m)->verdict[k], value);
  }
}

// Compares the calls and sends the verdict to every rank.
IRIS_DEVICE inline void Judge(const Common& common, uint32_t tag, uint64_t wait_ns,
                              const DisputedRow& disputed) {
  const uint64_t start = backend::ClockNanoseconds();
  uint64_t come = 0;
  for (uint32_t m = 0; m < common.size; ++m) {
    for (;;) {
      bool whole = true;
      uint32_t word = 0;
      for (uint32_t k = 0; k <= PackedCall::kWords; ++k) {
        whole = whole && Written(common, m, k, tag, &word);
      }
      if (whole) {
        come |= uint64_t{1} << m;
        break;
      }
      if (backend::ClockNanoseconds() - start > wait_ns) break;
      backend::Pause();
    }
  }
  // If two calls are equally frequent, that of the first rank counts as the most frequent.
  uint64_t most = 0;
  for (uint32_t m = 0; m < common.size; ++m) {
    if ((come >> m & 1) == 0) continue;
    const uint64_t same = SameCall(common, come, m, tag);
    if (CountOf(same) > CountOf(most)) most = same;
  }
  const uint64_t rest = come & ~most;
  const uint64_t other = rest == 0 ? 0 : SameCall(common, come, FirstOf(rest), tag);
  const uint64_t all = common.size == 64 ? ~uint64_t{0} : (uint64_t{1} << common.size) - 1;
  Announce(common, Verdict::kMost, InTeam(common, most));
  Announce(common, Verdict::kOther, InTeam(common, other));
  Announce(common, Verdict::kRest, InTeam(common, rest & ~other));
  Announce(common, Verdict::kAbsent, InTeam(common, all & ~come));
  for (uint32_t k = 0; k < PackedCall::kWords; ++k) {
    uint32_t word = 0;
    (void)Written(common, FirstOf(most), k, tag, &word);
    Announce(common, Verdict::kMostCall + k, word);
    word = 0;
    if (other != 0) (void)Written(common, FirstOf(other), k, tag, &word);
    Announce(common, Verdict::kOtherCall + k, word);
  }
  Announce(common, Verdict::kRows, other == 0 ? disputed.code : 0);
  Announce(common, Verdict::kSent, disputed.sent);
  Announce(common, Verdict::kExpected, disputed.expected);
  for (uint32_t m = 0; m < common.size; ++m) {
    backend::Store<Scope::kSystem, Order::kRelease>(&HeaderAt(common, m)->verdict_tag, tag);
  }
}

// Runs the protocol at the top of this file. `found` says that this rank has seen a word of another
// call in the round, so both ranks are in the same kind of operation. If a rank of a pair has seen
// none, the other rank is in an operation of the team, and that team judges.
IRIS_COLD void Diagnose(const Common& common, uint32_t sequence, bool found, DisputedRow disputed) {
  Header* mine = HeaderAt(common, common.index);
  if (backend::CompareExchange<Scope::kDevice, Order::kRelaxed>(&mine->diagnosing, 0u, 1u) != 0) {
    return;
  }
  const uint32_t tag = TagOf(sequence);
  for (uint32_t k = 0; k <= PackedCall::kWords; ++k) {
    const uint64_t word = k < PackedCall::kWords ? common.call.words[k] : common.signature;
    backend::Store<Scope::kSystem, Order::kRelaxed>(&mine->record[k], word << 32 | tag);
  }
  for (uint32_t m = 0; m < common.size; ++m) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(&HeaderAt(common, m)->called_off, tag);
  }
  const uint64_t timeout_ns = common.context.timeout_ns;
  const uint64_t wait_ns =
      timeout_ns != 0 ? Min(timeout_ns / 2, kJudgeWaitNs) : uint64_t{kJudgeWaitNs};
  const bool may_judge = found || common.operation != Operation::kSendRecv;
  const auto given = [&] {
    return backend::Load<Scope::kSystem, Order::kAcquire>(&mine->verdict_tag) == tag;
  };
  if (!given() && may_judge &&
      backend::CompareExchange<Scope::kSystem, Order::kAcqRel>(&HeaderAt(common, 0)->judge, 0u,
                                                               common.index + 1) == 0) {
    Judge(common, tag, wait_ns, disputed);
  }
  const uint64_t start = backend::ClockNanoseconds();
  while (!given() && backend::ClockNanoseconds() - start <= 2 * wait_ns) backend::Pause();
  uint32_t place = ~0u;
  if (given()) {
    for (uint32_t k = 0; k < Verdict::kWords; ++k) {
      backend::Store<Scope::kSystem, Order::kRelaxed>(
          &common.report->mismatch[k],
          backend::Load<Scope::kSystem, Order::kRelaxed>(&mine->verdict[k]));
    }
    const uint64_t other =
        backend::Load<Scope::kSystem, Order::kRelaxed>(&mine->verdict[Verdict::kOther]);
    if (other != 0) place = FirstOf(other);
  }
  RecordError(common, StatusCode::kInvalidArgument, common.operation, place, sequence);
}

}  // namespace iris::ccl::impl
