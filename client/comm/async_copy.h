// PutAsync and GetAsync: copies by the device's copy engine between this rank and a peer, in the
// order of a stream, with a signal behind them.
//
// `dst` (of a put) and `src` (of a get) are addresses in this rank's heap and mean the peer's copy,
// as in kernels; the other side is any memory that the stream's device can use. They return at
// once: the memory must stay until the stream has come there. The signal is set in the peer's heap
// once all bytes are there (put), or have been read (get), and releases them.
//
// What is copied are rows, each side with a pitch of its own. What lies between them is neither
// read nor written, but counts as part of the range.
//
// kInvalidArgument: a rank or a range outside the job's heaps, ranges that overlap, a pitch less
// than a row, a signal that is not aligned to 8 bytes or lies in what the copy overwrites. Nothing
// was put on the stream then. Thread-safe, as the context and the backend that are borrowed.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "client/backend/operations.h"
#include "client/context/host_context.h"

namespace iris::internal {

struct CopyEngine {
  const HostContext* context = nullptr;
  const backend::BackendOperations* backend = nullptr;
};

struct SignalOptions {
  uint64_t* signal = nullptr;  // in this rank's heap; means its copy in the peer's. Null: no signal
  uint64_t value = 1;
  SignalOp op = SignalOp::kSet;
};

absl::Status PutAsync(const CopyEngine& engine, void* dst, const void* src, const RowsToCopy& rows,
                      uint32_t to, backend::Stream& stream, const SignalOptions& signal);
absl::Status GetAsync(const CopyEngine& engine, void* dst, const void* src, const RowsToCopy& rows,
                      uint32_t from, backend::Stream& stream, const SignalOptions& signal);

// All in one row.
inline RowsToCopy OneRow(uint64_t bytes) { return {1, bytes, bytes, bytes}; }

}  // namespace iris::internal
