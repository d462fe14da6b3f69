// CopyAsync: copies between this rank and a peer in stream order, with a signal after the bytes: by
// the device's copy engine, or by a kernel for ranks of other nodes. Stream::Put in
// client/iris/stream.h has the contract.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "client/backend/operations.h"
#include "client/context/host_context.h"

namespace iris::internal {

enum class CopyKind { kPut, kGet };

struct SignalOptions {
  uint64_t* signal = nullptr;  // in this rank's heap; stands for the peer's word. Null: no signal
  uint64_t value = 1;
  SignalOp op = SignalOp::kSet;
};

// Copies rows; each side has its own pitch. The bytes between rows are neither read nor written,
// but count as part of the range. Returns at once. kInvalidArgument for a rank or a range
// outside the job's heaps, ranges that overlap, a pitch less than a row, a signal that is not
// aligned to 8 bytes or lies in the overwritten range; for ranks of other nodes also for memory
// that kernels do not reach, and kAborted once the job is broken. Nothing was put on the stream
// then. Thread-safe.
absl::Status CopyAsync(const HostContext& context, const backend::BackendOperations& backend,
                       CopyKind kind, void* dst, const void* src, const RowsToCopy& rows,
                       uint32_t peer, backend::Stream& stream, const SignalOptions& signal);

}  // namespace iris::internal
