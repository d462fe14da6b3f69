#include "client/context/host_rma.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/base/bytes.h"
#include "iris/port_atomic.h"

namespace iris::internal {
namespace {

// One call, whose texts are made on errors alone.
class Rma {
 public:
  Rma(const HostContext& context, const char* verb, uint32_t peer)
      : context_(context), verb_(verb), peer_(peer) {}

  absl::Status Fail(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat(verb_, peer_, ": ", why));
  }

  absl::Status Begin() const {
    if (absl::Status status = context_.Usable(); !status.ok()) return status;
    if (peer_ < context_.n_ranks()) return absl::OkStatus();
    return Fail(absl::StrCat("there is no such rank in a job of ", context_.n_ranks()));
  }

  // Finds the offset of the peer's side. An error if `mine` is no such address of this rank's heap.
  absl::Status OfPeer(absl::string_view name, const void* mine, uint64_t bytes,
                      uint64_t* offset) const {
    *offset = reinterpret_cast<uint64_t>(mine) - context_.window().address(context_.rank(), 0);
    return FailIf(context_.RefusalOfPeerSide(name, peer_, mine, bytes));
  }

  // Checks the other side, which may be any memory of the host, but no hole of the window.
  absl::Status CheckLocal(absl::string_view name, const void* at, uint64_t bytes) const {
    absl::Status status = FailIf(context_.RefusalOfOwnSide(name, at, bytes));
    if (!status.ok() || context_.Maps(peer_) || Emulated()) return status;
    const auto place = context_.Find(at);
    if (!place.has_value() || place->rank == context_.rank()) return status;
    return Fail(absl::StrCat(name, " is in the heap of rank ", place->rank,
                             ", which the port does not reach: copy it into this rank's heap"));
  }

  // Finds the bytes from the first row's beginning to the last one's end.
  absl::Status Span(const RowsToCopy& rows, uint64_t pitch_bytes, uint64_t* bytes) const {
    *bytes = rows.row_bytes;
    if (rows.rows == 1) return absl::OkStatus();
    if (pitch_bytes >= rows.row_bytes &&
        !__builtin_mul_overflow(rows.rows - 1, pitch_bytes, bytes) &&
        !__builtin_add_overflow(*bytes, rows.row_bytes, bytes)) {
      return absl::OkStatus();
    }
    return Fail(absl::StrCat(rows.rows, " rows of ", rows.row_bytes, " bytes with a pitch of ",
                             pitch_bytes,
                             ": the pitch is less than a row, or 64 bits do not count "
                             "the bytes"));
  }

  bool Emulated() const { return context_.driver().kind() == driver::BackendKind::kEmu; }

  // Copies between mapped memory and the host's.
  absl::Status Copy(void* dst, const void* src, const RowsToCopy& rows) const {
    for (uint64_t row = 0; row < rows.rows; ++row) {
      auto* const to = static_cast<uint8_t*>(dst) + row * rows.dst_pitch_bytes;
      const auto* const from = static_cast<const uint8_t*>(src) + row * rows.src_pitch_bytes;
      if (Emulated()) {
        std::memmove(to, from, rows.row_bytes);
        continue;
      }
      absl::Status status = context_.driver().Copy(to, from, rows.row_bytes);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Send(uint64_t* word, const SignalTo& signal) const {
    if (!Emulated()) {
      if (signal.op == SignalOp::kAdd) return NoAtomics();
      return context_.driver().Copy(word, &signal.value, sizeof(signal.value));
    }
    if (signal.op == SignalOp::kAdd) {
      __atomic_fetch_add(word, signal.value, __ATOMIC_RELEASE);
    } else {
      __atomic_store_n(word, signal.value, __ATOMIC_RELEASE);
    }
    return absl::OkStatus();
  }

  absl::Status NoAtomics() const {
    return absl::UnimplementedError(
        absl::StrCat(verb_, peer_,
                     ": the host makes no atomics in the memory of a GPU of its own node: use a "
                     "kernel, or a signal of a put on a stream"));
  }

 private:
  absl::Status FailIf(const std::optional<std::string>& refusal) const {
    return refusal.has_value() ? Fail(*refusal) : absl::OkStatus();
  }

  const HostContext& context_;
  const char* const verb_;
  const uint32_t peer_;
};

bool IsEmpty(const RowsToCopy& rows) { return rows.rows == 0 || rows.row_bytes == 0; }

}  // namespace

absl::Status HostPut(const HostContext& context, uint32_t to, void* dst, const void* src,
                     const RowsToCopy& rows, const SignalTo& signal) {
  const Rma rma(context, "put to rank ", to);
  if (absl::Status status = rma.Begin(); !status.ok()) return status;
  uint64_t offset = 0, bytes = 0, src_bytes = 0, signal_offset = 0;
  const bool empty = IsEmpty(rows);
  absl::Status status;
  if (!empty) {
    status = rma.Span(rows, rows.dst_pitch_bytes, &bytes);
    if (status.ok()) status = rma.Span(rows, rows.src_pitch_bytes, &src_bytes);
    if (status.ok()) status = rma.OfPeer("the destination", dst, bytes, &offset);
    if (status.ok()) status = rma.CheckLocal("the source", src, src_bytes);
  }
  if (status.ok() && signal.word != nullptr) {
    status = rma.OfPeer("the signal", signal.word, sizeof(uint64_t), &signal_offset);
    if (status.ok() && signal_offset % sizeof(uint64_t) != 0) {
      status = rma.Fail("the signal is not aligned to 8 bytes");
    }
  }
  if (!status.ok()) return status;
  if (context.Maps(to)) {
    if (!empty) status = rma.Copy(context.Translate(to, static_cast<uint8_t*>(dst)), src, rows);
    if (status.ok() && signal.word != nullptr) {
      status = rma.Send(context.Translate(to, signal.word), signal);
    }
    return status;
  }
  std::optional<HostPort::Signal> sent;
  if (signal.word != nullptr) sent = HostPort::Signal{signal_offset, signal.value, signal.op};
  if (empty || rows.rows == 1) {
    return context.port()->Put(to, offset, src, empty ? 0 : rows.row_bytes, sent);
  }
  return context.port()->PutRows(to, offset, src, rows, sent);
}

absl::Status HostGet(const HostContext& context, uint32_t from, void* dst, const void* src,
                     const RowsToCopy& rows) {
  const Rma rma(context, "get from rank ", from);
  absl::Status status = rma.Begin();
  if (!status.ok() || IsEmpty(rows)) return status;
  uint64_t offset = 0, bytes = 0, dst_bytes = 0;
  status = rma.Span(rows, rows.src_pitch_bytes, &bytes);
  if (status.ok()) status = rma.Span(rows, rows.dst_pitch_bytes, &dst_bytes);
  if (status.ok()) status = rma.OfPeer("the source", src, bytes, &offset);
  if (status.ok()) status = rma.CheckLocal("the destination", dst, dst_bytes);
  if (!status.ok()) return status;
  if (context.Maps(from)) {
    return rma.Copy(dst, context.Translate(from, static_cast<const uint8_t*>(src)), rows);
  }
  if (rows.rows == 1) return context.port()->Get(from, dst, offset, rows.row_bytes);
  return context.port()->GetRows(from, dst, offset, rows);
}

absl::StatusOr<uint64_t> HostFetch(const HostContext& context, const HostAtomic& call) {
  const Rma rma(context, "atomic at rank ", call.peer);
  if (absl::Status status = rma.Begin(); !status.ok()) return status;
  if (!IsPortAtomic(call.op, call.type)) {
    return rma.Fail("there is no such operation on words of this type");
  }
  uint64_t offset = 0;
  const uint64_t bytes = PortTypeBytes(call.type);
  if (absl::Status status = rma.OfPeer("the word", call.word, bytes, &offset); !status.ok()) {
    return status;
  }
  if (offset % bytes != 0) {
    return rma.Fail(absl::StrCat("the word is not aligned to ", bytes, " bytes"));
  }
  if (!context.Maps(call.peer)) {
    return context.port()->Atomic(call.peer, offset, call.op, call.type, call.value, call.compare);
  }
  if (!rma.Emulated()) return rma.NoAtomics();
  return DoPortAtomic(context.Translate(call.peer, static_cast<uint8_t*>(call.word)), call.op,
                      call.type, call.value, call.compare);
}

absl::Status HostQuiet(const HostContext& context, absl::Duration timeout) {
  if (absl::Status status = context.Usable(); !status.ok()) return status;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return context.port() == nullptr ? absl::OkStatus() : context.port()->Quiet(timeout);
}

}  // namespace iris::internal
