#include "client/internal/async_copy.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/internal/device_status.h"

namespace iris::internal {
namespace {

std::string Range(const void* at, uint64_t bytes) {
  return absl::StrCat(bytes, " bytes at 0x", absl::Hex(reinterpret_cast<uint64_t>(at)));
}

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const uint64_t x = reinterpret_cast<uint64_t>(a), y = reinterpret_cast<uint64_t>(b);
  return x < y ? y - x < a_bytes : x - y < b_bytes;
}

// One call: its checks first, then its work.
class AsyncCopy {
 public:
  AsyncCopy(const CopyEngine& engine, std::string what, uint64_t bytes, uint32_t peer)
      : context_(*engine.context),
        backend_(*engine.backend),
        what_(std::move(what)),
        bytes_(bytes),
        peer_(peer) {}

  // Null: an address of this rank's heap that is not one; see status().
  template <typename T>
  T* OfPeer(absl::string_view name, T* mine, uint64_t bytes) {
    if (peer_ >= context_.n_ranks()) {
      Fail(absl::StrCat("there is no rank ", peer_, " in a job of ", context_.n_ranks()));
      return nullptr;
    }
    const auto place = context_.Locate(mine);
    if (!place.ok()) {
      Fail(absl::StrCat(
          name, " (", Range(mine, bytes),
          ") is not in this rank's heap: give the address of this rank's own copy. ",
          "Peers reach nothing but heaps: allocate the memory with Allocate or AllocateLocal, ",
          "register it, so that they can open it, or copy it there"));
    } else if (place->rank != context_.rank()) {
      Fail(absl::StrCat(name, " (", Range(mine, bytes), ") is in the heap of rank ", place->rank,
                        ": give the address of this rank's own copy (of what was opened, the ",
                        "symmetric one), and the peer as the rank"));
    } else if (!context_.Reaches(peer_, mine, bytes)) {
      Fail(absl::StrCat(name, " (", Range(mine, bytes), ", offset ", place->offset_bytes,
                        ") ends beyond the heap, which has ", context_.heap_bytes(),
                        " bytes, and is not of memory that rank ", peer_,
                        " has registered and this rank has open"));
    }
    return status_.ok() ? context_.Translate(peer_, mine) : nullptr;
  }

  // The other side: memory of any kind, but no hole of the window.
  void CheckLocal(absl::string_view name, const void* at) {
    if (bytes_ == 0 || !status_.ok()) return;
    if (at == nullptr) return Fail(absl::StrCat(name, " is null"));
    if (context_.Locate(at).ok() && !context_.IsMapped(at, bytes_)) {
      Fail(absl::StrCat(name, " (", Range(at, bytes_), ") ends beyond the heap that it lies in, ",
                        "which has ", context_.heap_bytes(), " bytes"));
    }
  }

  void CheckApart(const void* dst, const void* src) {
    if (!status_.ok() || bytes_ == 0 || !Overlap(dst, bytes_, src, bytes_)) return;
    Fail(absl::StrCat("source (", Range(src, bytes_), ") and destination (", Range(dst, bytes_),
                      ") overlap"));
  }

  // The word in the peer's heap; null without a signal.
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
    if (!status_.ok() || word == nullptr || bytes_ == 0) return;
    if (Overlap(dst, bytes_, word, sizeof(*word))) {
      Fail("the signal lies in the range that the copy overwrites");
    }
  }

  absl::Status Start(void* dst, const void* src, uint64_t* word, const SignalOptions& options,
                     backend::Stream& stream) {
    if (!status_.ok()) return status_;
    if (bytes_ > 0) {
      status_.Update(FromDevice(backend_.CopyAsync(dst, src, bytes_, stream), what_));
    }
    if (status_.ok() && word != nullptr) {
      status_.Update(FromDevice(backend_.SignalAfter(word, options.value, options.op, stream),
                                absl::StrCat(what_, ": signal")));
    }
    return status_;
  }

  // Left, or a forked child. A peer's death is no reason: its heap stays readable.
  bool Usable() {
    const absl::Status health = context_.Health();
    if (health.code() == absl::StatusCode::kFailedPrecondition) {
      status_.Update(absl::Status(health.code(), absl::StrCat(what_, ": ", health.message())));
    }
    return status_.ok();
  }

  const absl::Status& status() const { return status_; }

 private:
  void Fail(absl::string_view why) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(what_, ": ", why)));
  }

  const HostContext& context_;
  const backend::BackendOperations& backend_;
  const std::string what_;
  const uint64_t bytes_;
  const uint32_t peer_;
  absl::Status status_;
};

}  // namespace

absl::Status PutAsync(const CopyEngine& engine, void* dst, const void* src, uint64_t bytes,
                      uint32_t to, backend::Stream& stream, const SignalOptions& signal) {
  AsyncCopy copy(engine, absl::StrCat("put ", bytes, " bytes to rank ", to), bytes, to);
  if (!copy.Usable()) return copy.status();
  void* const theirs = copy.OfPeer("the destination", dst, bytes);
  copy.CheckLocal("the source", src);
  copy.CheckApart(theirs, src);
  uint64_t* const word = copy.CheckSignal(signal);
  copy.CheckSignalApart(word, theirs);
  return copy.Start(theirs, src, word, signal, stream);
}

absl::Status GetAsync(const CopyEngine& engine, void* dst, const void* src, uint64_t bytes,
                      uint32_t from, backend::Stream& stream, const SignalOptions& signal) {
  AsyncCopy copy(engine, absl::StrCat("get ", bytes, " bytes from rank ", from), bytes, from);
  if (!copy.Usable()) return copy.status();
  const void* const theirs = copy.OfPeer("the source", src, bytes);
  copy.CheckLocal("the destination", dst);
  copy.CheckApart(dst, theirs);
  uint64_t* const word = copy.CheckSignal(signal);
  copy.CheckSignalApart(word, dst);
  return copy.Start(dst, theirs, word, signal, stream);
}

}  // namespace iris::internal
