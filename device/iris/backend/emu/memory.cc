// Copies and fills, which are instrumented kernels, memory outside any heap, and wake-ups.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "iris/backend/emu/backend.h"
#include "iris/backend/host.h"

namespace iris::backend {
namespace {

constexpr uint64_t kChunkBytes = 256 * 1024;  // the worker runs its other blocks between chunks
constexpr uint64_t kAlignmentBytes = 256;

void CopyKernel(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t at = BlockIndex() * kChunkBytes; at < bytes; at += GridSize() * kChunkBytes) {
    memcpy(to + at, from + at, bytes - at < kChunkBytes ? bytes - at : kChunkBytes);
    emu::MarkStored();
    Pause();
  }
}

// Copies rows in chunks, each of one row.
void CopyRowsKernel(uint8_t* to, const uint8_t* from, RowsToCopy rows) {
  const uint64_t chunks = (rows.row_bytes + kChunkBytes - 1) / kChunkBytes;
  for (uint64_t i = BlockIndex(); i < rows.rows * chunks; i += GridSize()) {
    const uint64_t row = i / chunks;
    const uint64_t at = i % chunks * kChunkBytes;
    const uint64_t left = rows.row_bytes - at;
    memcpy(to + row * rows.dst_pitch_bytes + at, from + row * rows.src_pitch_bytes + at,
           left < kChunkBytes ? left : kChunkBytes);
    emu::MarkStored();
    Pause();
  }
}

void FillKernel(uint8_t* to, uint8_t value, uint64_t bytes) {
  for (uint64_t at = BlockIndex() * kChunkBytes; at < bytes; at += GridSize() * kChunkBytes) {
    memset(to + at, value, bytes - at < kChunkBytes ? bytes - at : kChunkBytes);
    emu::MarkStored();
    Pause();
  }
}

LaunchConfig ConfigFor(uint64_t bytes) {
  const uint64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  LaunchConfig config;
  config.grid = chunks < 2 ? 1
                           : (chunks < MultiprocessorCount() ? static_cast<uint32_t>(chunks)
                                                             : MultiprocessorCount());
  return config;
}

template <typename... Params>
Result LaunchOver(uint64_t bytes, const raw::StreamHandle& stream, void (*kernel)(Params...),
                  Params... params) {
  std::tuple<Params...> values(params...);
  return raw::Launch(ConfigFor(bytes), stream, kernel, values);
}

}  // namespace

Result raw::PrepareKernel(const void* kernel, uint32_t shared_bytes) {
  if (shared_bytes <= Traits::kMaxDynamicSharedBytes) return {};
  return {StatusCode::kInvalidArgument,
          "kernel with too much shared memory: at most 163,840 bytes"};
}

Result raw::CopyAsync(void* to, const void* from, uint64_t bytes, const StreamHandle& stream) {
  return LaunchOver(bytes, stream, &CopyKernel, static_cast<uint8_t*>(to),
                    static_cast<const uint8_t*>(from), bytes);
}

Result raw::CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows,
                          const StreamHandle& stream) {
  return LaunchOver(rows.rows * rows.row_bytes, stream, &CopyRowsKernel, static_cast<uint8_t*>(to),
                    static_cast<const uint8_t*>(from), rows);
}

Result raw::FillAsync(void* to, uint8_t value, uint64_t bytes, const StreamHandle& stream) {
  return LaunchOver(bytes, stream, &FillKernel, static_cast<uint8_t*>(to), value, bytes);
}

void* raw::MallocDevice(uint64_t bytes) {
  // The C++ library would round such a size up to 0.
  if (bytes > ~uint64_t{0} - kAlignmentBytes) return nullptr;
  return ::operator new(bytes, std::align_val_t(kAlignmentBytes), std::nothrow);
}
void raw::FreeDevice(void* p) { ::operator delete(p, std::align_val_t(kAlignmentBytes)); }
void* raw::MallocHost(uint64_t bytes) { return MallocDevice(bytes); }
void raw::FreeHost(void* p) { FreeDevice(p); }
bool raw::KernelsReach(const void*) { return true; }  // kernels are threads

void WakeHost(uint32_t* asleep, int32_t wake_fd) {
  Fence<Scope::kSystem, Order::kSeqCst>();
  if (Load<Scope::kSystem, Order::kRelaxed>(asleep) == 0) return;
  if (FetchOp<AtomicOp::kExchange, Scope::kSystem, Order::kAcqRel>(asleep, 0u) == 0) return;
  const uint64_t one = 1;
  (void)!write(wake_fd, &one, sizeof(one));
}

uint32_t DeviceCount() { return 1; }
Result SetDevice(uint32_t) { return {}; }

uint32_t CurrentDevice() { return 0; }

StreamQueues CountQueues() { return {}; }

}  // namespace iris::backend
