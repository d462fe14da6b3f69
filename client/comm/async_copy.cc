#include "client/comm/async_copy.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/backend/device_status.h"
#include "device/base/bytes.h"

namespace iris::internal {
namespace {

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const uint64_t x = reinterpret_cast<uint64_t>(a), y = reinterpret_cast<uint64_t>(b);
  return x < y ? y - x < a_bytes : x - y < b_bytes;
}

std::string Amount(const RowsToCopy& rows) {
  if (rows.rows == 1) return base::SizeText(rows.row_bytes);
  return absl::StrCat(rows.rows, " rows of ", base::SizeText(rows.row_bytes));
}

// One call, which makes its checks first, then its work, and its texts on errors alone.
class AsyncCopy {
 public:
  AsyncCopy(const HostContext& context, const backend::BackendOperations& backend, CopyKind kind,
            const RowsToCopy& rows, uint32_t peer)
      : context_(context),
        backend_(backend),
        puts_(kind == CopyKind::kPut),
        rows_(rows),
        peer_(peer),
        mapped_(peer >= context.n_ranks() || context.Maps(peer)) {
    if (rows.rows == 0 || rows.row_bytes == 0) return;
    dst_bytes_ = Span("the destination's", rows.dst_pitch_bytes);
    src_bytes_ = Span("the source's", rows.src_pitch_bytes);
  }

  // Returns the bytes from the first row's beginning to the last one's end.
  uint64_t dst_bytes() const { return dst_bytes_; }
  uint64_t src_bytes() const { return src_bytes_; }

  // Returns null, and status() an error, if `mine` is no such address of this rank's heap.
  template <typename T>
  T* OfPeer(absl::string_view name, T* mine, uint64_t bytes) {
    if (peer_ >= context_.n_ranks()) {
      Fail(absl::StrCat("there is no rank ", peer_, " in a job of ", context_.n_ranks()));
      return nullptr;
    }
    FailIf(context_.RefusalOfPeerSide(name, peer_, mine, bytes));
    if (!status_.ok()) return nullptr;
    return mapped_ ? context_.Translate(peer_, mine) : mine;
  }

  // Checks the other side, which is memory of any kind, but no hole of the window.
  void CheckLocal(absl::string_view name, const void* at, uint64_t bytes) {
    if (bytes == 0 || !status_.ok()) return;
    FailIf(context_.RefusalOfOwnSide(name, at, bytes));
    if (!status_.ok()) return;
    const auto place = context_.Find(at);
    staged_ = !place.has_value() || place->rank != context_.rank() ||
              bytes > context_.heap_bytes() - std::min(place->offset_bytes, context_.heap_bytes());
    if (!place.has_value() && !mapped_ && !backend_.KernelsReach(at)) {
      Fail(absl::StrCat(name, " (", RangeText(at, bytes),
                        ") is memory that kernels of the device do not reach, and a kernel copies "
                        "to ranks of other nodes: take memory of the heap, of iris_malloc_host() "
                        "or of the device, or call iris_put() or iris_get(), which copy without "
                        "a stream"));
    }
  }

  void CheckApart(const void* dst, const void* src) {
    if (!mapped_ || !status_.ok() || dst_bytes_ == 0) return;
    if (!Overlap(dst, dst_bytes_, src, src_bytes_)) return;
    Fail(absl::StrCat("source (", RangeText(src, src_bytes_), ") and destination (",
                      RangeText(dst, dst_bytes_), ") overlap"));
  }

  // Returns the word in the peer's heap; null without a signal.
  uint64_t* CheckSignal(const SignalOptions& options) {
    if (!status_.ok() || options.signal == nullptr) return nullptr;
    if (reinterpret_cast<uint64_t>(options.signal) % sizeof(uint64_t) != 0) {
      Fail(absl::StrCat("the signal at 0x", absl::Hex(reinterpret_cast<uint64_t>(options.signal)),
                        " is not aligned to 8 bytes"));
      return nullptr;
    }
    return OfPeer("the signal", options.signal, sizeof(uint64_t));
  }

  void CheckSignalApart(const uint64_t* word, const void* dst) {
    if (!status_.ok() || word == nullptr || dst_bytes_ == 0) return;
    if (Overlap(dst, dst_bytes_, word, sizeof(*word))) {
      Fail("the signal lies in the range that the copy overwrites");
    }
  }

  absl::Status Start(void* dst, const void* src, uint64_t* word, const SignalOptions& options,
                     backend::Stream& stream) {
    if (!status_.ok()) return status_;
    if (!mapped_) {
      if (dst_bytes_ == 0 && word == nullptr) return status_;
      ccl::NodesCopy copy;
      copy.context = context_.device_context();
      copy.peer = peer_;
      copy.puts = puts_;
      copy.staged = staged_;
      copy.remote = copy.puts ? dst : const_cast<void*>(src);
      copy.local = copy.puts ? const_cast<void*>(src) : dst;
      copy.rows = rows_;
      copy.signal = {word, options.value, options.op};
      copy.failures = context_.port()->failures();
      return Done(backend_.CopyOnNodes(copy, stream));
    }
    if (dst_bytes_ > 0) status_.Update(Done(backend_.CopyRowsAsync(dst, src, rows_, stream)));
    if (status_.ok() && word != nullptr) {
      status_.Update(
          Done(backend_.SignalAfter(word, options.value, options.op, stream), ": signal"));
    }
    return status_;
  }

  // Returns false after Leave and in a forked child, and for a rank of another node if the job is
  // broken. A dead peer's heap stays mapped.
  bool Usable() {
    const absl::Status health = context_.Health();
    if (health.code() == absl::StatusCode::kFailedPrecondition ||
        (!mapped_ && context_.window().status().aborted())) {
      status_.Update(absl::Status(health.code(), absl::StrCat(What(), ": ", health.message())));
    }
    return status_.ok();
  }

  const absl::Status& status() const { return status_; }

 private:
  // Returns 0, and lets the call fail, if the rows have no span.
  uint64_t Span(absl::string_view whose, uint64_t pitch_bytes) {
    const uint64_t steps = rows_.rows - 1;
    if (steps > 0 && pitch_bytes < rows_.row_bytes) {
      Fail(absl::StrCat(whose, " pitch of ", base::SizeText(pitch_bytes),
                        " is less than a row, which has ", base::SizeText(rows_.row_bytes)));
      return 0;
    }
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(steps, pitch_bytes, &bytes) ||
        __builtin_add_overflow(bytes, rows_.row_bytes, &bytes)) {
      Fail(absl::StrCat(whose, " ", rows_.rows, " rows with a pitch of ", pitch_bytes,
                        " bytes are more than 64 bits count"));
      return 0;
    }
    return bytes;
  }

  std::string What() const {
    return absl::StrCat(puts_ ? "put " : "get ", Amount(rows_), puts_ ? " to rank " : " from rank ",
                        peer_);
  }
  absl::Status Done(const Result& result, absl::string_view part = "") const {
    return result.ok() ? absl::OkStatus() : FromDevice(result, absl::StrCat(What(), part));
  }
  void Fail(absl::string_view why) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(What(), ": ", why)));
  }
  void FailIf(const std::optional<std::string>& refusal) {
    if (refusal.has_value()) Fail(*refusal);
  }

  const HostContext& context_;
  const backend::BackendOperations& backend_;
  const bool puts_;
  const RowsToCopy rows_;
  uint64_t dst_bytes_ = 0, src_bytes_ = 0;
  const uint32_t peer_;
  const bool mapped_;    // the peer's heap is mapped here, or there is no such peer
  bool staged_ = false;  // the local side is not in this rank's heap
  absl::Status status_;
};

}  // namespace

absl::Status CopyAsync(const HostContext& context, const backend::BackendOperations& backend,
                       CopyKind kind, void* dst, const void* src, const RowsToCopy& rows,
                       uint32_t peer, backend::Stream& stream, const SignalOptions& signal) {
  const bool puts = kind == CopyKind::kPut;
  AsyncCopy copy(context, backend, kind, rows, peer);
  if (!copy.Usable()) return copy.status();
  if (puts) {
    dst = copy.OfPeer("the destination", dst, copy.dst_bytes());
    copy.CheckLocal("the source", src, copy.src_bytes());
  } else {
    src = copy.OfPeer("the source", src, copy.src_bytes());
    copy.CheckLocal("the destination", dst, copy.dst_bytes());
  }
  copy.CheckApart(dst, src);
  uint64_t* const word = copy.CheckSignal(signal);
  copy.CheckSignalApart(word, dst);
  return copy.Start(dst, src, word, signal, stream);
}

}  // namespace iris::internal
