// kTwoShot: each member reduces its share of the rows, and gives sums or normed rows to all.
//
// Rows go chunk by chunk through a block. A chunk has as many rows of each member's share as the
// block's stage has room for; all rows if nothing is staged. The steps for a chunk:
//
//   rows of `in`, for all members -> the stage, if any member's are not in the heap; a round
//   own rows: sums, residual      -> r
//     if sums are given: r        -> residual_out, or stages, of all; a round; all norm all rows
//     otherwise: normed rows      -> out, or stages, of all; a round
//   the stage                     -> residual_out and out, if they were staged
//
// Sums are given if each member has to write r of all rows. Normed rows also go through the stages
// if scales are written, because the members do not know the addresses of each other's scales.
#include <cstdint>

#include "iris/norm/impl/row.h"
#include "iris/norm/variant.h"

namespace iris::norm::impl {

template <typename T>
class TwoShot {
 public:
  static constexpr uint32_t kKept = kKeptTwoShot;
  using Part = RowPart<T, PlainUnits, kKept>;
  using Sum = typename Part::Sum;
  using Pack = typename Part::Pack;

  IRIS_DEVICE TwoShot(const Common& common, const NormCall& call, Rounds* rounds,
                      NormShared* shared)
      : common_(common),
        call_(call),
        rounds_(rounds),
        part_(call, common, rounds, shared, units_),
        gives_sums_(common.operation == Operation::kAllReduceRmsNorm && call.residual != nullptr),
        slot_bytes_(SlotBytes(part_.columns(), sizeof(T))) {}

  IRIS_DEVICE void Run() {
    if (rounds_->broken() || !rounds_->Exchange(false)) return;
    const uint32_t n = common_.size;
    const bool writes_scales =
        call_.scaling == Scaling::kPerRow || call_.scaling == Scaling::kPerGroup;
    staged_in_ = !rounds_->in_direct();
    staged_out_ = !rounds_->out_direct() || (!gives_sums_ && writes_scales);
    const uint64_t most = iris::ShareOf(call_.rows, n, 0).count;
    const uint64_t at_once =
        staged_in_ || staged_out_ ? common_.stage_bytes / (n * slot_bytes_) : most;
    bool first = true;
    for (uint64_t begin = part_.group(); begin < most; begin += at_once * part_.groups()) {
      begin_ = begin;
      count_ = Min(at_once, (most - begin + part_.groups() - 1) / part_.groups());
      if (staged_in_) StageIn();
      // After this round all members' rows have arrived, and none reads a stage of the last chunk.
      if ((staged_in_ || !first) && !rounds_->Meet()) return;
      first = false;
      if (!ReduceOwn()) return;
      if (!rounds_->Meet()) return;
      if (gives_sums_) {
        if (!NormAll()) return;
      } else if (staged_out_) {
        StageOut();
      }
    }
    rounds_->Finish();
  }

 private:
  // Finds the number of row c of the chunk of `owner`, and the row's index in the owner's share.
  // Returns false if there is no such row.
  IRIS_DEVICE bool RowOf(uint64_t c, uint32_t owner, uint64_t* row, uint64_t* local) const {
    const iris::Share own = iris::ShareOf(call_.rows, common_.size, owner);
    *local = begin_ + c * part_.groups();
    *row = own.begin + *local;
    return *local < own.count;
  }
  IRIS_DEVICE uint64_t Slot(uint64_t c, uint32_t owner) const {
    return (c * common_.size + owner) * slot_bytes_;
  }
  IRIS_DEVICE float* ScalesOf(uint8_t* slot) const {
    return reinterpret_cast<float*>(slot + RoundUp(part_.columns() * sizeof(T), 16));
  }

  IRIS_DEVICE void StageIn() {
    uint8_t* const stage = rounds_->StageIn(common_.index);
    for (uint64_t i = 0; i < count_ * common_.size; ++i) {
      const uint32_t owner = static_cast<uint32_t>(i % common_.size);
      uint64_t row = 0;
      uint64_t local = 0;
      if (!RowOf(i / common_.size, owner, &row, &local)) continue;
      CopyPart(stage + Slot(i / common_.size, owner),
               call_.in + part_.At(row, call_.in_stride, sizeof(T)));
    }
  }
  IRIS_DEVICE void CopyPart(uint8_t* to, const uint8_t* from) const {
    for (uint32_t k = 0; k < kKept; ++k) {
      const UnitPlace place = part_.Place(k);
      if (place.bytes == 0) continue;
      StoreUnit<T>(to + place.at, place.bytes, LoadUnit<T>(from + place.at, place.bytes));
    }
  }

  IRIS_DEVICE bool ReduceOwn() {
    const uint32_t me = common_.index;
    for (uint64_t c = 0; c < count_; ++c) {
      uint64_t row = 0;
      uint64_t local = 0;
      if (!RowOf(c, me, &row, &local)) continue;
      const uint64_t slot = Slot(c, me);
      const bool whole_residual = common_.operation == Operation::kAllReduceRmsNorm;
      const uint64_t residual_row = whole_residual ? row : local;
      part_.Prefetch(call_.residual == nullptr
                         ? nullptr
                         : call_.residual +
                               part_.At(residual_row, call_.residual_stride, sizeof(T)));
      uint8_t* const residual_out =
          gives_sums_ || call_.residual_out == nullptr
              ? nullptr
              : call_.residual_out + part_.At(residual_row, call_.residual_out_stride, sizeof(T));
      // Rows that other members read or write have no gaps: see norm.cc.
      const uint64_t in_at = part_.At(row, call_.hidden, sizeof(T));
      part_.ForUnits([&](uint32_t, const UnitPlace& place) {
        if (place.bytes != 0) part_.Add(place, SumOf(place, slot, in_at), residual_out);
      });
      if (gives_sums_) {
        for (uint32_t step = 0; step < common_.size; ++step) {
          const uint32_t m = rounds_->Rotated(step);
          uint8_t* const to = staged_out_ ? rounds_->StageOut(m) + slot : rounds_->Out(m) + in_at;
          part_.ForUnits([&](uint32_t, const UnitPlace& place) {
            if (place.bytes != 0) StoreUnit<T>(to + place.at, place.bytes, part_.Unit());
          });
        }
        continue;
      }
      const uint64_t out_at = part_.At(row, call_.hidden, part_.OutBytes());
      const auto out = [&](uint32_t p) {
        const uint32_t m = rounds_->Rotated(p);
        return staged_out_ ? rounds_->StageOut(m) + slot : rounds_->Out(m) + out_at;
      };
      const auto scales = [&](uint32_t p) {
        return ScalesOf(rounds_->StageOut(rounds_->Rotated(p)) + slot);
      };
      if (!part_.Finish(common_.size, out, scales)) return false;
    }
    return true;
  }
  // Sums in the order of the members; loads from several are in flight at once.
  IRIS_DEVICE Sum SumOf(const UnitPlace& place, uint64_t slot, uint64_t in_at) const {
    Sum sum = {};
    constexpr uint32_t kAhead = 4;  // limited by registers
    IRIS_UNROLL(1)
    for (uint32_t first = 0; first < common_.size; first += kAhead) {
      const uint8_t* from[kAhead];
      uint64_t bits = place.bytes;
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kAhead; ++k) {
        const uint32_t m = first + k < common_.size ? first + k : first;
        from[k] = (staged_in_ ? rounds_->StageIn(m) + slot : rounds_->In(m) + in_at) + place.at;
        bits |= reinterpret_cast<uint64_t>(from[k]);
      }
      // One condition around all loads: see RowPart::Load.
      Bytes16 units[kAhead];
      if (bits % 16 == 0) {
        IRIS_UNROLL(4)
        for (uint32_t k = 0; k < kAhead; ++k) {
          units[k] = backend::Load16<CacheHint::kDefault>(from[k]);
        }
      } else {
        IRIS_UNROLL(4)
        for (uint32_t k = 0; k < kAhead; ++k) units[k] = LoadUnit<T>(from[k], place.bytes);
      }
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kAhead; ++k) {
        const uint32_t m = first + k;
        if (m >= common_.size) continue;
        const Pack pack = iris::impl::BitCast<Pack>(units[k]);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < Part::kElements; ++e) {
          sum.values[e] = m == 0 ? static_cast<float>(pack.values[e])
                                 : sum.values[e] + static_cast<float>(pack.values[e]);
        }
      }
    }
    return sum;
  }

  IRIS_DEVICE bool NormAll() {
    for (uint64_t i = 0; i < count_ * common_.size; ++i) {
      const uint32_t owner = static_cast<uint32_t>(i % common_.size);
      uint64_t row = 0;
      uint64_t local = 0;
      if (!RowOf(i / common_.size, owner, &row, &local)) continue;
      uint8_t* const r = call_.residual_out + part_.At(row, call_.residual_out_stride, sizeof(T));
      const uint8_t* const from =
          staged_out_ ? rounds_->StageOut(common_.index) + Slot(i / common_.size, owner) : r;
      // Prefetched like a residual, so that all units are loaded at once.
      part_.Prefetch(from);
      part_.ForUnits([&](uint32_t, const UnitPlace& place) {
        if (place.bytes == 0) return;
        const Bytes16 unit = part_.Unit();
        part_.Take(place, unit);
        if (staged_out_) StoreUnit<T>(r + place.at, place.bytes, unit);
      });
      uint8_t* const out = call_.out + part_.At(row, call_.out_stride, part_.OutBytes());
      if (!part_.Finish(
              1, [out](uint32_t) { return out; },
              [&](uint32_t) { return call_.scales + part_.ScaleAt(row); })) {
        return false;
      }
    }
    return true;
  }

  IRIS_DEVICE void StageOut() {
    uint8_t* const stage = rounds_->StageOut(common_.index);
    const uint64_t out_bytes = part_.OutBytes();
    const uint64_t n_scales =
        call_.scaling == Scaling::kPerRow || call_.scaling == Scaling::kPerGroup ? part_.OwnGroups()
                                                                                 : 0;
    for (uint64_t i = 0; i < count_ * common_.size; ++i) {
      const uint32_t owner = static_cast<uint32_t>(i % common_.size);
      uint64_t row = 0;
      uint64_t local = 0;
      if (!RowOf(i / common_.size, owner, &row, &local)) continue;
      uint8_t* const from = stage + Slot(i / common_.size, owner);
      uint8_t* const to = call_.out + part_.At(row, call_.out_stride, out_bytes);
      if (out_bytes == sizeof(T)) {
        CopyPart(to, from);
      } else {
        iris::impl::CopyBytes<CacheHint::kDefault>(
            to, from, part_.columns() * out_bytes,
            ccl::impl::Share{backend::ThreadIndex(), backend::BlockSize()});
      }
      for (uint64_t g = backend::ThreadIndex(); g < n_scales; g += backend::BlockSize()) {
        backend::StorePlain(call_.scales + part_.ScaleAt(row) + g,
                            backend::LoadPlain(ScalesOf(from) + g));
      }
    }
  }

  const Common& common_;
  const NormCall& call_;
  Rounds* rounds_;
  PlainUnits units_;
  Part part_;
  bool gives_sums_;
  bool staged_in_ = false;
  bool staged_out_ = false;
  uint64_t slot_bytes_;
  uint64_t begin_ = 0;  // the chunk's first row in each share
  uint64_t count_ = 0;  // the chunk's rows in a share
};

template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void NormTwoShot(IRIS_PARAM Common common,
                                                                IRIS_PARAM NormCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  IRIS_SHARED(NormShared, norm_shared);
  ccl::impl::Enter(common);
  Rounds rounds(common, &shared, ccl::impl::BlockOf(common));
  TwoShot<T>(common, call, &rounds, &norm_shared).Run();
  rounds.Conclude();
}

namespace {

struct Kernels {
  template <typename T>
  static auto Of() {
    return &NormTwoShot<T>;
  }
};

// Returns the most bytes of a row for a block: its stage must hold one row of each member.
uint64_t PartBytes(const ccl::Comm& comm, const Problem& problem, const char** why) {
  if (comm.team.size == 1) {
    *why = "a team of one member has the variants alone and packets";
    return 0;
  }
  const uint64_t element_bytes = DTypeBytes(problem.in);
  const uint64_t room = comm.config.stage_bytes / comm.team.size;
  uint64_t columns = Min(problem.hidden, MaxPartBytes(kKeptTwoShot) / element_bytes);
  while (columns > 1 && SlotBytes(columns, element_bytes) > room) {
    columns = columns > kGroupColumns ? (columns - 1) / kGroupColumns * kGroupColumns : columns / 2;
  }
  *why = "a row is too long for the stages of this Comm: make it with more stage_bytes";
  return SlotBytes(columns, element_bytes) > room ? 0 : columns * element_bytes;
}
uint32_t MaxBlocks(const ccl::Comm& comm) { return comm.config.max_blocks; }
uint64_t Rows(const ccl::Comm& comm, const Problem& problem) {
  return iris::ShareOf(problem.rows, comm.team.size, 0).count;
}

}  // namespace

const VariantRow kTwoShotRow = {
    Variant::kTwoShot,  kKeptTwoShot,        &PartBytes, &MaxBlocks, &Rows,
    &LaunchOf<Kernels>, &PrepareOf<Kernels>,
};

}  // namespace iris::norm::impl
