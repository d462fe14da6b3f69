#include "device/driver/testing/own_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "device/driver/emu_share.h"
#include "device/driver/hip_api.h"

namespace iris::driver::testing {

absl::StatusOr<std::unique_ptr<OwnMemory>> OwnMemory::Create(BackendKind kind,
                                                             const std::string& library_path,
                                                             uint32_t device, uint32_t n_pieces,
                                                             uint64_t piece_bytes) {
  std::unique_ptr<OwnMemory> memory(new OwnMemory(n_pieces, piece_bytes));
  const absl::Status mapped = kind == BackendKind::kEmu
                                  ? memory->MapMemfds()
                                  : memory->MapDevice(kind, library_path, device);
  if (!mapped.ok()) return mapped;
  return memory;
}

OwnMemory::~OwnMemory() {
  for (const int fd : fds_) close(fd);
  if (base_ == 0) return;
  if (api_ == nullptr) {
    munmap(at(0), n_pieces_ * piece_bytes_);
    return;
  }
  for (size_t i = 0; i < handles_.size(); ++i) {
    api_->hipMemUnmap(at(i * piece_bytes_), piece_bytes_);
    api_->hipMemRelease(handles_[i]);
  }
  api_->hipMemAddressFree(at(0), n_pieces_ * piece_bytes_);
}

absl::Status OwnMemory::MapMemfds() {
  void* const range = mmap(nullptr, n_pieces_ * piece_bytes_, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return absl::ErrnoToStatus(errno, "reserve address space");
  base_ = reinterpret_cast<uint64_t>(range);
  for (uint64_t i = 0; i < n_pieces_; ++i) {
    const int fd = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return absl::ErrnoToStatus(errno, "create a memfd");
    fds_.push_back(fd);
    if (ftruncate(fd, static_cast<off_t>(piece_bytes_)) != 0 ||
        fcntl(fd, F_ADD_SEALS, kResizeSeals) != 0 ||
        mmap(at(i * piece_bytes_), piece_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             0) == MAP_FAILED) {
      return absl::ErrnoToStatus(errno, "map a memfd");
    }
  }
  return absl::OkStatus();
}

absl::Status OwnMemory::MapDevice(BackendKind kind, const std::string& library_path,
                                  uint32_t device) {
  const auto keep = [this](auto api) -> absl::Status {
    if (!api.ok()) return api.status();
    api_ = *std::move(api);
    return absl::OkStatus();
  };
  const absl::Status opened = kind == BackendKind::kCuda ? keep(OpenHipOnCuda(library_path))
                                                         : keep(OpenHipNative(library_path));
  if (!opened.ok()) return opened;
  void* base = nullptr;
  const uint64_t bytes = n_pieces_ * piece_bytes_;
  hipError_t error = api_->hipMemAddressReserve(&base, bytes, 0, nullptr, 0);
  base_ = reinterpret_cast<uint64_t>(base);
  hipMemAllocationProp prop;
  prop.type = hipMemAllocationTypePinned;
  prop.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
  prop.location = {hipMemLocationTypeDevice, static_cast<int>(device)};
  for (uint64_t i = 0; i < n_pieces_ && error == hipSuccess; ++i) {
    hipMemGenericAllocationHandle_t handle = 0;
    error = api_->hipMemCreate(&handle, piece_bytes_, &prop, 0);
    if (error != hipSuccess) break;
    error = api_->hipMemMap(at(i * piece_bytes_), piece_bytes_, 0, handle, 0);
    handles_.push_back(handle);
  }
  hipMemAccessDesc desc;
  desc.location = prop.location;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  if (error == hipSuccess) error = api_->hipMemSetAccess(base, bytes, &desc, 1);
  if (error == hipSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("make memory by the platform's own calls: ", api_->ErrorName(error)));
}

}  // namespace iris::driver::testing
