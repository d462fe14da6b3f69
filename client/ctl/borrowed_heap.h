// Access to a rank's heap from outside its job: irisd lends the memory (Borrow), and the driver of
// irisd's devices reads it, or maps it in this process. On GPUs irisd cannot read memory itself,
// because it keeps no context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session_client.h"
#include "device/driver/gpu_driver.h"

namespace iris::ctl {

struct HeapPlace {
  std::string job;
  uint32_t rank = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;  // not 0
};

// Reads the bytes as they are now; the ranks may change them meanwhile. Nothing stays mapped.
// Thread-safe. `timeout` bounds irisd's answers. kNotFound if there is no such job, rank or memory.
// kFailedPrecondition if this process finds no device of irisd's kind. Other errors are those of
// internal::SessionClient::Connect.
absl::StatusOr<std::string> ReadHeap(const std::string& runtime_dir, const HeapPlace& place,
                                     absl::Duration timeout = absl::Seconds(10));

// A part of a rank's heap, mapped here for reading and writing until this object is destroyed. Its
// segments are held until then, also after irisd or the ranks have gone.
class BorrowedHeap {
 public:
  // Maps the part. Errors are those of ReadHeap, and kPermissionDenied, or the system's own error,
  // if irisd lends nothing for writing.
  static absl::StatusOr<BorrowedHeap> Map(const std::string& runtime_dir, const HeapPlace& place,
                                          absl::Duration timeout = absl::Seconds(10));
  BorrowedHeap(BorrowedHeap&&) = default;
  BorrowedHeap& operator=(BorrowedHeap&&) = delete;
  ~BorrowedHeap();

  // Returns the address of the part for the driver's copies.
  uint64_t address() const { return address_; }
  driver::GpuDriver& driver() const { return *driver_; }
  // Makes the memory's device current, as GpuDriver::MakeCurrent does. kFailedPrecondition if this
  // process does not see that device.
  absl::Status UseDevice() const;
  // Return irisd's name for the kind of devices, and for this one.
  const std::string& backend() const { return backend_; }
  const std::string& device_uuid() const { return device_uuid_; }

 private:
  BorrowedHeap() = default;

  std::string backend_;
  std::string device_uuid_;
  std::shared_ptr<driver::GpuDriver> driver_;
  std::vector<std::unique_ptr<driver::PhysicalMemory>> memory_;
  std::unique_ptr<driver::Reservation> reservation_;
  std::vector<std::unique_ptr<driver::Mapping>> mappings_;
  uint64_t address_ = 0;
};

}  // namespace iris::ctl
