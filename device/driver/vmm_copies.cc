#include "device/driver/vmm_copies.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace iris::driver {
namespace {

constexpr uint64_t kStagingBytes = 2 << 20;
constexpr uint64_t kLineBytes = 64;
constexpr size_t kBuffers = 31;

// Memory of the host: the staging of writes, a line of scratch, and the buffers of Fetch.
struct Memory {
  static constexpr uint64_t kBytes = kStagingBytes + (kBuffers + 1) * HostCopies::kFetchBytes;

  uint8_t* base = nullptr;
  std::vector<uint8_t*> free;

  ~Memory() {
    if (base != nullptr) munmap(base, kBytes);
  }
  uint8_t* scratch() const { return base + kStagingBytes; }
};

class VmmCopies final : public HostCopies {
 public:
  VmmCopies(HipApi& api, int device) : api_(api), device_(device) {}
  ~VmmCopies() override {
    if (stream_ == nullptr) return;
    const DeviceScope scope(api_, device_);
    if (scope.error() != hipSuccess) return;
    api_.hipStreamSynchronize(stream_);
    api_.hipStreamDestroy(stream_);
    if (registered_) api_.hipHostUnregister(memory_->base);
  }

  absl::Status Start() {
    void* const base = mmap(nullptr, Memory::kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("map ", Memory::kBytes, " bytes for copies of device ", device_, ": ",
                       std::generic_category().message(errno)));
    }
    memory_->base = static_cast<uint8_t*>(base);
    for (size_t i = 1; i <= kBuffers; ++i) {
      memory_->free.push_back(memory_->scratch() + i * kFetchBytes);
    }
    return Do("start copies", [&] {
      hipError_t error = api_.hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking);
      if (error == hipSuccess) error = api_.hipHostRegister(base, Memory::kBytes, kRegistered);
      registered_ = error == hipSuccess;
      return error;
    });
  }

  absl::Status Write(uint64_t address, const void* from, uint64_t bytes) override {
    const uint8_t* data = static_cast<const uint8_t*>(from);
    while (bytes > 0) {
      const uint64_t n = std::min(bytes, kFetchBytes);
      if (n > kStagingBytes - used_) {
        if (absl::Status status = Finish(); !status.ok()) return status;
      }
      uint8_t* const place = memory_->base + used_;
      void* const scratch = by_engine_ ? nullptr : memory_->scratch();
      used_ += (n + kLineBytes - 1) / kLineBytes * kLineBytes;
      memcpy(place, data, n);
      absl::Status status = Do(absl::StrFormat("write %d bytes at %#x", n, address), [&] {
        return api_.WriteAsync(Address(address), place, n, scratch, stream_);
      });
      if (!status.ok()) return status;
      by_engine_ = n > 2;
      data += n;
      address += n;
      bytes -= n;
    }
    return absl::OkStatus();
  }

  absl::Status Read(void* to, uint64_t address, uint64_t bytes) override {
    uint8_t* data = static_cast<uint8_t*>(to);
    while (bytes > 0) {
      const uint64_t n = std::min(bytes, kFetchBytes);
      // Writes stay in their order on the stream, so their staging is free afterwards.
      if (n > kStagingBytes - used_) used_ = 0;
      if (absl::Status status = ReadTo(memory_->base + used_, address, n); !status.ok()) {
        return status;
      }
      memcpy(data, memory_->base + used_, n);
      used_ = 0;
      data += n;
      address += n;
      bytes -= n;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const uint8_t>> Fetch(uint64_t address, uint64_t bytes) override {
    if (memory_->free.empty() || bytes > kFetchBytes) return nullptr;
    uint8_t* const buffer = memory_->free.back();
    memory_->free.pop_back();
    std::shared_ptr<const uint8_t> held(
        buffer, [memory = memory_](uint8_t* at) { memory->free.push_back(at); });
    if (absl::Status status = ReadTo(buffer, address, bytes); !status.ok()) return status;
    used_ = 0;
    return held;
  }

  absl::StatusOr<bool> Idle() override {
    if (used_ == 0) return true;
    bool idle = false;
    absl::Status status = Do("look whether copies are done", [&] {
      const hipError_t error = api_.hipStreamQuery(stream_);
      idle = error == hipSuccess;
      return error == hipErrorNotReady ? hipSuccess : error;
    });
    if (!status.ok()) return status;
    if (idle) used_ = 0;
    return idle;
  }

  absl::Status Finish() override {
    used_ = 0;
    return Do("wait for copies", [&] { return api_.hipStreamSynchronize(stream_); });
  }

 private:
  static constexpr unsigned kRegistered = hipHostRegisterPortable | hipHostRegisterMapped;
  static void* Address(uint64_t address) { return reinterpret_cast<void*>(address); }

  template <typename Call>
  absl::Status Do(absl::string_view what, Call call) {
    const DeviceScope scope(api_, device_);
    const hipError_t error = scope.error() == hipSuccess ? call() : scope.error();
    if (error == hipSuccess) return absl::OkStatus();
    return HipStatus(api_, error, absl::StrCat(what, " by device ", device_));
  }
  absl::Status ReadTo(uint8_t* to, uint64_t address, uint64_t bytes) {
    by_engine_ = true;
    return Do(absl::StrFormat("read %d bytes at %#x", bytes, address), [&] {
      const hipError_t error = api_.CopyAsync(to, Address(address), bytes, stream_);
      return error == hipSuccess ? api_.hipStreamSynchronize(stream_) : error;
    });
  }

  HipApi& api_;
  const int device_;
  hipStream_t stream_ = nullptr;
  bool registered_ = false;
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  uint64_t used_ = 0;       // of the staging, by what may be underway
  bool by_engine_ = false;  // the last copy on the stream: a copy engine did it
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostCopies>> MakeVmmCopies(HipApi& api, int device) {
  auto copies = std::make_unique<VmmCopies>(api, device);
  if (absl::Status status = copies->Start(); !status.ok()) return status;
  return copies;
}

}  // namespace iris::driver
