// A rank's heap from outside its job, with this process's own means: irisd lends the memory
// (Borrow), and the driver of its devices reads it, or maps it here. On GPUs this is what irisd
// cannot do, because it keeps no context there.
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

// A part of a rank's heap, mapped here for reading and writing until this is destroyed. The
// segments that it lies in are held as long, also after irisd or the ranks have gone.
class BorrowedHeap {
 public:
  // Errors are those of ReadHeap; kPermissionDenied, or the system's own error: an irisd that lends
  // nothing for writing.
  static absl::StatusOr<BorrowedHeap> Map(const std::string& runtime_dir, const HeapPlace& place,
                                          absl::Duration timeout = absl::Seconds(10));
  BorrowedHeap(BorrowedHeap&&) = default;
  BorrowedHeap& operator=(BorrowedHeap&&) = delete;
  ~BorrowedHeap();

  // The address of the part for the driver's copies.
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
