#include "iris/nodes/copies.h"

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/copy.h"
#include "iris/impl/port.h"
#include "iris/status_code.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

// The threads that move bytes between the local side and a stage.
constexpr uint32_t kThreads = backend::Traits::kEmulated ? 64 : 512;
constexpr uint32_t kNoStage = ~0u;
constexpr uint64_t kInlineBytes = sizeof(PortRequest::src);

// Rows that one request moves, or a part of a row.
struct Piece {
  uint64_t row;  // the first one
  uint64_t rows;
  uint64_t at;     // in the row
  uint64_t bytes;  // of each row
};

// The bytes that the block copies between the local side and a stage. No rows: the copy has ended.
struct Move {
  void* dst = nullptr;
  const void* src = nullptr;
  Strided rows = {0, 0, 0, 0};
};

// A copy, as one thread carries it out, but for the moves.
class Copier {
 public:
  IRIS_DEVICE explicit Copier(const NodesCopy& copy)
      : copy_(copy),
        port_(copy.context.port),
        state_(iris::impl::PortState(copy.context)),
        wait_(iris::impl::WaitContext(copy.context.timeout_ns, copy.context.abort_word)),
        local_pitch_(copy.puts ? copy.rows.src_pitch_bytes : copy.rows.dst_pitch_bytes),
        remote_pitch_(copy.puts ? copy.rows.dst_pitch_bytes : copy.rows.src_pitch_bytes) {
    const uint64_t rows = copy.rows.rows, bytes = copy.rows.row_bytes;
    if (rows == 0 || bytes == 0) return;
    if (!copy.staged) {
      n_pieces_ = 1;
    } else if (bytes <= kPortStageBytes) {
      rows_each_ = kPortStageBytes / bytes;
      n_pieces_ = (rows + rows_each_ - 1) / rows_each_;
    } else {
      each_row_ = (bytes + kPortStageBytes - 1) / kPortStageBytes;
      n_pieces_ = rows * each_row_;
    }
  }

  // Goes on until the block has to move bytes, after the move of the call before.
  IRIS_DEVICE Move Next() {
    if (moving_) {
      moving_ = false;
      if (copy_.puts) {
        Post(moved_.stage, moved_.piece);
      } else {
        iris::impl::FreeStage(state_, moved_.stage);
      }
    }
    for (;;) {
      while (MayBegin()) {
        uint32_t stage = kNoStage;
        if (copy_.staged && !iris::impl::TryClaimStage(port_, state_, &stage)) {
          if (n_under_way_ > 0) break;
          const WaitResult result = iris::impl::BoundedWait<iris::impl::Polls::kSmall>(
              wait_, 0, [&] { return iris::impl::TryClaimStage(port_, state_, &stage); },
              iris::impl::PortStopped{port_->words});
          if (result != WaitResult::kOk) {
            GiveUp(result);
            break;
          }
        }
        const uint64_t piece = next_++;
        if (copy_.staged && copy_.puts) return MoveOf(stage, piece);
        Post(stage, piece);
      }
      if (n_under_way_ == 0) {
        Finish();
        return Move();
      }
      const UnderWay oldest = under_way_[0];
      --n_under_way_;
      for (uint32_t i = 0; i < n_under_way_; ++i) under_way_[i] = under_way_[i + 1];
      if (Await(oldest) && copy_.staged && !copy_.puts) return MoveOf(oldest.stage, oldest.piece);
    }
  }

 private:
  struct UnderWay {
    uint32_t stage = kNoStage;
    uint64_t piece = 0;
    uint64_t number = 0;  // of the request
  };

  // Returns true if the next piece may be taken. The last one of a put has the signal, which says
  // that all others have arrived.
  IRIS_DEVICE bool MayBegin() const {
    if (code_ != 0 || next_ == n_pieces_) return false;
    const bool signals = copy_.puts && copy_.signal.word != nullptr && next_ + 1 == n_pieces_;
    return n_under_way_ < kPortStages && !(signals && n_under_way_ > 0);
  }

  IRIS_DEVICE Piece PieceOf(uint64_t number) const {
    const RowsToCopy& rows = copy_.rows;
    if (!copy_.staged) return {0, rows.rows, 0, rows.row_bytes};
    if (each_row_ == 1) {
      const uint64_t first = number * rows_each_;
      const uint64_t rest = rows.rows - first;
      return {first, rest < rows_each_ ? rest : rows_each_, 0, rows.row_bytes};
    }
    const uint64_t row = number / each_row_;
    const uint64_t at = (number - row * each_row_) * kPortStageBytes;
    const uint64_t rest = rows.row_bytes - at;
    return {row, 1, at, rest < kPortStageBytes ? rest : kPortStageBytes};
  }
  IRIS_DEVICE uint8_t* LocalOf(const Piece& piece) const {
    return static_cast<uint8_t*>(copy_.local) + piece.row * local_pitch_ + piece.at;
  }

  IRIS_DEVICE Move MoveOf(uint32_t stage, uint64_t number) {
    const Piece piece = PieceOf(number);
    uint8_t* const staged = port_->stages + stage * kPortStageBytes;
    moving_ = true;
    moved_ = {stage, number, 0};
    if (copy_.puts) {
      return {staged, LocalOf(piece), {piece.rows, piece.bytes, piece.bytes, local_pitch_}};
    }
    return {LocalOf(piece), staged, {piece.rows, piece.bytes, local_pitch_, piece.bytes}};
  }

  IRIS_DEVICE void Post(uint32_t stage, uint64_t number) {
    const Piece piece = PieceOf(number);
    const uint64_t remote =
        OffsetBytes(copy_.context, copy_.remote) + piece.row * remote_pitch_ + piece.at;
    PortSpace space = PortSpace::kHeap;
    uint64_t local = OffsetBytes(copy_.context, LocalOf(piece));
    uint64_t pitch = local_pitch_;
    if (copy_.staged) {
      space = PortSpace::kValues;
      local = kPortHostValueBytes + stage * kPortStageBytes;
      pitch = piece.bytes;
    } else if (copy_.puts && piece.rows == 1 && piece.bytes <= kInlineBytes) {
      space = PortSpace::kInline;
      local = reinterpret_cast<uint64_t>(LocalOf(piece));
    }
    const bool has_rows = piece.rows > 1;
    const bool last = number + 1 == n_pieces_;
    const PortOp op = copy_.puts ? (has_rows ? PortOp::kPutRows : PortOp::kPut)
                                 : (has_rows ? PortOp::kGetRows : PortOp::kGet);
    Send(stage, number, op, space, copy_.puts ? remote : local, copy_.puts ? local : remote,
         piece.bytes, copy_.puts && last, has_rows ? piece.rows : 0,
         copy_.puts ? remote_pitch_ : pitch, copy_.puts ? pitch : remote_pitch_);
  }

  IRIS_DEVICE void Send(uint32_t stage, uint64_t piece, PortOp op, PortSpace space, uint64_t dst,
                        uint64_t src, uint64_t bytes, bool signals, uint64_t n_rows,
                        uint64_t dst_pitch, uint64_t src_pitch) {
    const bool has_signal = signals && copy_.signal.word != nullptr;
    uint64_t number = 0;
    const WaitResult result = iris::impl::PostToPort(
        port_, state_, wait_, /*keeps_result=*/true,
        iris::impl::PortHead(op, space, has_signal ? copy_.signal.op : SignalOp::kSet), copy_.peer,
        dst, src, bytes, has_signal ? OffsetBytes(copy_.context, copy_.signal.word) : kNoPortSignal,
        has_signal ? copy_.signal.value : 0, n_rows, dst_pitch, src_pitch, &number);
    if (result == WaitResult::kOk) {
      under_way_[n_under_way_++] = {stage, piece, number};
      return;
    }
    if (stage != kNoStage) iris::impl::FreeStage(state_, stage);
    GiveUp(result);
  }

  // Waits for a request. Returns true if it has succeeded. Frees its stage, unless the bytes that a
  // get has brought are there.
  IRIS_DEVICE bool Await(const UnderWay& request) {
    uint32_t code = 0;
    uint64_t value = 0;
    WaitResult result = WaitResult::kAborted;
    if (gave_up_) {
      iris::impl::DropPort(state_, request.number);
    } else {
      result = iris::impl::AwaitPort(port_, state_, wait_, request.number, &code, &value);
      if (result != WaitResult::kOk) GiveUp(result);
    }
    const bool done = result == WaitResult::kOk;
    if (done && code != 0) Fail(code);
    const bool good = done && code == 0;
    if (request.stage != kNoStage && !(good && !copy_.puts)) {
      // The port process may still read or write the stage of a request that is not complete.
      iris::impl::FreeStage(state_, request.stage, done ? 0 : request.number + 1);
    }
    return good;
  }

  IRIS_DEVICE void Finish() {
    // A put with bytes has sent the signal with the last ones.
    if (code_ == 0 && copy_.signal.word != nullptr && !(copy_.puts && n_pieces_ > 0)) {
      Send(kNoStage, 0, PortOp::kPut, PortSpace::kInline, 0, 0, 0, true, 0, 0, 0);
      if (n_under_way_ > 0) (void)Await(under_way_[--n_under_way_]);
    }
    PortFailures* const failures = copy_.failures;
    if (code_ == 0 || failures == nullptr) return;
    (void)backend::CompareExchange<Scope::kSystem, Order::kRelaxed>(
        &failures->first, uint64_t{0},
        uint64_t{code_} | (copy_.puts ? 1u << 8 : 0) | uint64_t{copy_.peer} << 16);
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelease>(&failures->count,
                                                                            uint64_t{1});
  }

  IRIS_DEVICE void Fail(uint32_t code) {
    if (code_ == 0) code_ = code;
  }
  IRIS_DEVICE void GiveUp(WaitResult result) {
    gave_up_ = true;
    Fail(static_cast<uint32_t>(result == WaitResult::kTimeout ? StatusCode::kDeadlineExceeded
                                                              : StatusCode::kAborted));
  }

  const NodesCopy& copy_;
  const DevicePort* const port_;
  SyncArea::Slot* const state_;
  const DeviceContext wait_;
  const uint64_t local_pitch_;
  const uint64_t remote_pitch_;
  uint64_t rows_each_ = 0;  // rows of a piece, or
  uint64_t each_row_ = 1;   // pieces of a row
  uint64_t n_pieces_ = 0;
  uint64_t next_ = 0;
  UnderWay under_way_[kPortStages];
  uint32_t n_under_way_ = 0;
  bool moving_ = false;
  UnderWay moved_;  // what is being moved
  bool gave_up_ = false;
  uint32_t code_ = 0;  // of the first failure
};

IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void CopyKernel(IRIS_PARAM NodesCopy copy) {
  IRIS_SHARED(Move[1], move);
  Copier copier(copy);
  for (;;) {
    if (backend::ThreadIndex() == 0) move[0] = copier.Next();
    backend::BlockSync();
    const Move mine = move[0];
    if (mine.rows.rows == 0) return;
    iris::impl::CopyRows<CacheHint::kDefault>(
        static_cast<uint8_t*>(mine.dst), static_cast<const uint8_t*>(mine.src), mine.rows, Block{});
    backend::BlockSync();  // the stage is written, or read
  }
}

}  // namespace

Result CopyOnNodes(const NodesCopy& copy, backend::Stream& stream) {
  if (copy.context.port == nullptr) {
    return {StatusCode::kFailedPrecondition, "the DeviceContext has no port"};
  }
  NodesCopy args = copy;
  RowsToCopy& rows = args.rows;
  if (rows.rows > 1 && rows.dst_pitch_bytes == rows.row_bytes &&
      rows.src_pitch_bytes == rows.row_bytes) {
    rows = {1, rows.rows * rows.row_bytes, 0, 0};
  }
  // So few bytes travel in the request itself.
  const uint64_t bytes = rows.rows == 0 ? 0 : rows.row_bytes;
  if (bytes == 0 || (args.puts && rows.rows == 1 && bytes <= kInlineBytes)) args.staged = false;
  return backend::Launch({1, args.staged ? kThreads : 1}, stream, CopyKernel, args);
}

Result PrepareNodesCopies() { return backend::PrepareKernel(CopyKernel); }

}  // namespace iris::ccl
