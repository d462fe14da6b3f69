// KernelTable: a constant table of numbers in host memory that kernels read. Borrows the driver.
#pragma once

#include <errno.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/driver/gpu_driver.h"
#include "proto/wire/pages.h"

namespace iris::internal {

class KernelTable {
 public:
  static absl::StatusOr<std::unique_ptr<KernelTable>> Make(driver::GpuDriver* driver,
                                                           absl::Span<const uint32_t> numbers) {
    const size_t bytes = (numbers.size() * sizeof(uint32_t) + wire::kPageBytes - 1) /
                         wire::kPageBytes * wire::kPageBytes;
    void* const pages =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return absl::ErrnoToStatus(errno, "make a table of ranks");
    std::unique_ptr<KernelTable> table(new KernelTable(driver, pages, bytes));
    std::memcpy(pages, numbers.data(), numbers.size() * sizeof(uint32_t));
    const auto registered = driver->RegisterHost(pages, bytes, driver::Access::kReadOnly);
    if (!registered.ok()) return registered.status();
    table->numbers_ = static_cast<const uint32_t*>(*registered);
    return table;
  }
  ~KernelTable() {
    if (numbers_ != nullptr) (void)driver_->UnregisterHost(pages_);
    munmap(pages_, bytes_);
  }
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Returns the address that kernels use.
  const uint32_t* numbers() const { return numbers_; }

 private:
  KernelTable(driver::GpuDriver* driver, void* pages, size_t bytes)
      : driver_(driver), pages_(pages), bytes_(bytes) {}

  driver::GpuDriver* const driver_;
  void* const pages_;
  const size_t bytes_;
  const uint32_t* numbers_ = nullptr;
};

}  // namespace iris::internal
