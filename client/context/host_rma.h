// Puts, gets, signals and atomics that the host makes itself, without a stream: to ranks of this
// node in their mapped heaps, and to ranks of other nodes through the port. client/iris/context.h
// has the contracts. Addresses of the peer's side are those of this rank's own copy. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/context/host_context.h"
#include "iris/port_types.h"
#include "iris/types.h"

namespace iris::internal {

absl::Status HostPut(const HostContext& context, uint32_t to, void* dst, const void* src,
                     const RowsToCopy& rows, const SignalTo& signal = {nullptr, 0});
absl::Status HostGet(const HostContext& context, uint32_t from, void* dst, const void* src,
                     const RowsToCopy& rows);

struct HostAtomic {
  uint32_t peer = 0;
  void* word = nullptr;
  PortAtomic op = PortAtomic::kLoad;
  PortType type = PortType::kUint64;
  uint64_t value = 0;  // in the lowest bytes, as the next
  uint64_t compare = 0;
};
absl::StatusOr<uint64_t> HostFetch(const HostContext& context, const HostAtomic& call);

// A timeout of 0 is the context's.
absl::Status HostQuiet(const HostContext& context, absl::Duration timeout);

}  // namespace iris::internal
