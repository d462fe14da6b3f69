#include "device/driver/vmm_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "device/base/bytes.h"
#include "device/base/unique_fd.h"
#include "device/driver/fabric.h"
#include "device/driver/hip_api.h"
#include "device/driver/quirks.h"
#include "device/driver/vmm_copies.h"
#include "device/driver/vmm_share.h"

namespace iris::driver {
namespace {

// The number of attempts to reserve adjacent pieces while other threads reserve memory, too.
constexpr int kReserveTries = 4;

void* Address(uint64_t address) { return reinterpret_cast<void*>(address); }

// The part of the driver that memory, ranges and mappings use.
class VmmPlatform {
 public:
  VmmPlatform(BackendKind kind, std::unique_ptr<HipApi> api, const Quirks& quirks)
      : kind_(kind), api_(std::move(api)), quirks_(quirks) {}

  const CaptureSafeApi& api() const { return api_; }
  const Quirks& quirks() const { return quirks_; }
  absl::Status Error(hipError_t error, absl::string_view what) const {
    return HipStatus(*api_, error, what);
  }
  absl::Status CheckDevice(uint32_t index, absl::string_view what) const {
    if (index < devices_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": device ", index, " does not exist; this process sees ", devices_.size()));
  }

 protected:
  const BackendKind kind_;
  const CaptureSafeApi api_;
  const Quirks quirks_;
  std::vector<DeviceInfo> devices_;
};

class VmmMemory : public PhysicalMemory {
 public:
  // `device` is -1 if not known (imported memory).
  VmmMemory(VmmPlatform* driver, hipMemGenericAllocationHandle_t handle, int device, uint64_t bytes)
      : PhysicalMemory(bytes), driver_(driver), handle_(handle), device_(device) {}
  ~VmmMemory() override { driver_->api()->hipMemRelease(handle_); }
  absl::StatusOr<int> ExportFd(Access access) override {
    if (!exportable_) {
      return absl::FailedPreconditionError(
          "export device memory: imported memory cannot be exported again; ask its creator");
    }
    if (absl::Status s = CheckDescriptors(fd_.get(), "export device memory"); !s.ok()) return s;
    const int fd = fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3);
    if (fd >= 0) return fd;
    return absl::Status(
        errno == EMFILE ? absl::StatusCode::kResourceExhausted : absl::ErrnoToStatusCode(errno),
        absl::StrCat("duplicate the descriptor of device memory: ",
                     std::generic_category().message(errno)));
  }
  absl::StatusOr<std::string> ExportFabric() override {
    if (!for_fabric_) return PhysicalMemory::ExportFabric();
    std::string exported(kFabricHandleBytes, '\0');
    const hipError_t error = driver_->api()->hipMemExportToShareableHandle(
        exported.data(), handle_, hipMemHandleTypeFabric, 0);
    if (error == hipSuccess) return exported;
    return driver_->Error(error, "export device memory to other nodes of the fabric");
  }
  absl::Status Read(uint64_t offset_bytes, absl::Span<uint8_t> out) override;

  VmmPlatform* driver() const { return driver_; }
  hipMemGenericAllocationHandle_t handle() const { return handle_; }
  int device() const { return device_; }
  // ExportFd duplicates the descriptor if `exportable`; for imported memory the library reads it.
  void set_fd(base::UniqueFd fd, bool exportable) {
    fd_ = std::move(fd);
    exportable_ = exportable;
  }
  void set_for_fabric(bool is) { for_fabric_ = is; }

 private:
  VmmPlatform* const driver_;
  const hipMemGenericAllocationHandle_t handle_;
  const int device_;
  base::UniqueFd fd_;
  bool exportable_ = false;
  bool for_fabric_ = false;  // created with both types of handles
};

class VmmReservation : public Reservation {
 public:
  VmmReservation(VmmPlatform* driver, uint64_t base, uint64_t piece_bytes, uint32_t n_pieces,
                 uint64_t vendor_bytes)
      : Reservation(base, piece_bytes * n_pieces, piece_bytes),
        driver_(driver),
        vendor_bytes_(vendor_bytes) {}
  ~VmmReservation() override {
    for (uint64_t at = 0; at < bytes(); at += vendor_bytes_) {
      driver_->api()->hipMemAddressFree(Address(base() + at), vendor_bytes_);
    }
  }

 private:
  VmmPlatform* const driver_;
  const uint64_t vendor_bytes_;  // of each of the vendor's reservations
};

class VmmMapping : public Mapping {
 public:
  VmmMapping(VmmPlatform* driver, uint64_t address, uint64_t bytes, uint64_t access_from, int owner,
             int flags)
      : Mapping(address, bytes),
        driver_(driver),
        access_from_(access_from),
        owner_(owner),
        flags_(flags) {}
  ~VmmMapping() override { driver_->api()->hipMemUnmap(Address(address()), bytes()); }
  absl::Status Allow(uint32_t device_index) override {
    if (std::find(devices_.begin(), devices_.end(), device_index) != devices_.end()) {
      return absl::OkStatus();
    }
    if (absl::Status s = driver_->CheckDevice(device_index, "let a device use memory"); !s.ok()) {
      return s;
    }
    std::vector<uint32_t> all = devices_;
    all.push_back(device_index);
    // If the order matters, access is granted again to all devices, otherwise only to the new one.
    const absl::Span<const uint32_t> granted = driver_->quirks().grant_owner_last
                                                   ? absl::MakeConstSpan(all)
                                                   : absl::MakeConstSpan(all).last(1);
    if (absl::Status s = Grant(granted); !s.ok()) return s;
    devices_ = std::move(all);
    return absl::OkStatus();
  }

  // Grants access to `devices`. Called once, after the memory was mapped.
  absl::Status GrantFirst(absl::Span<const uint32_t> devices) {
    devices_.assign(devices.begin(), devices.end());
    return Grant(devices);
  }

 private:
  absl::Status Grant(absl::Span<const uint32_t> devices) {
    std::vector<hipMemAccessDesc> descs;
    descs.reserve(devices.size());
    for (const uint32_t device : devices) {
      hipMemAccessDesc desc;
      desc.location = {hipMemLocationTypeDevice, static_cast<int>(device)};
      desc.flags = flags_;
      descs.push_back(desc);
    }
    if (driver_->quirks().grant_owner_last) {
      std::partition(descs.begin(), descs.end(),
                     [this](const hipMemAccessDesc& desc) { return desc.location.id != owner_; });
    }
    const hipError_t error = driver_->api()->hipMemSetAccess(
        Address(access_from_), address() + bytes() - access_from_, descs.data(), descs.size());
    if (error == hipSuccess) return absl::OkStatus();
    return driver_->Error(error, absl::StrFormat("let device %s use %d bytes of memory at %#x",
                                                 absl::StrJoin(devices, ", "), bytes(), address()));
  }

  VmmPlatform* const driver_;
  const uint64_t access_from_;  // address(), or the start of the vendor's reservation
  const int owner_;             // the device that has the memory; -1: not known
  const int flags_;
  std::vector<uint32_t> devices_;
};

class VmmDriver : public GpuDriver, public VmmPlatform {
 public:
  using VmmPlatform::VmmPlatform;
  ~VmmDriver() override {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (streams_[i] == nullptr) continue;
      const DeviceScope scope(*api_, static_cast<int>(i));
      if (scope.error() == hipSuccess) api_->hipStreamDestroy(streams_[i]);
    }
  }

  absl::Status FindDevices() {
    int count = 0;
    hipError_t error = api_->hipGetDeviceCount(&count);
    if (error == hipSuccess && count == 0) error = hipErrorNoDevice;
    if (error != hipSuccess) return Error(error, "look for devices");
    for (int i = 0; i < count; ++i) {
      const std::string what = absl::StrCat("look at device ", i);
      DeviceInfo info;
      info.backend = std::string(backend());
      info.index = static_cast<uint32_t>(i);
      char name[256] = {};
      size_t total_bytes = 0;
      error = api_->hipDeviceGetName(name, sizeof(name) - 1, i);
      if (error == hipSuccess) error = api_->DeviceUuid(i, &info.uuid);
      if (error == hipSuccess) error = api_->hipDeviceTotalMem(&total_bytes, i);
      if (error != hipSuccess) return Error(error, what);
      info.name = name;
      info.memory_bytes = total_bytes;
      if (!api_->HasExportableMemory(i)) {
        return absl::FailedPreconditionError(
            absl::StrCat(what, " (", info.name,
                         "): it has no virtual memory management with export by descriptor, which "
                         "shared heaps need"));
      }
      const hipMemAllocationProp prop = PropertiesOn(i);
      size_t granularity = 0;
      error = api_->hipMemGetAllocationGranularity(&granularity, &prop,
                                                   hipMemAllocationGranularityRecommended);
      if (error != hipSuccess) {
        return Error(error, absl::StrCat(what, ": granularity of its memory"));
      }
      info.granularity_bytes = std::max<uint64_t>(granularity, quirks_.granularity_floor_bytes);
      devices_.push_back(std::move(info));
    }
    // All devices get the same granularity, so that a heap has the same layout on each of them.
    uint64_t largest = 0;
    for (const DeviceInfo& info : devices_) largest = std::max(largest, info.granularity_bytes);
    for (DeviceInfo& info : devices_) info.granularity_bytes = largest;
    absl::MutexLock lock(&mu_);
    streams_.resize(devices_.size());
    return absl::OkStatus();
  }

  // Finds the devices' fabric domain, after FindDevices, if their memory is to be for it.
  void FindFabric() {
    std::string domain;
    for (const DeviceInfo& info : devices_) {
      const absl::StatusOr<std::string> one = api_->FabricDomain(static_cast<int>(info.index));
      if (!one.ok() || (info.index > 0 && *one != domain)) {
        fabric_domain_ =
            one.ok() ? absl::FailedPreconditionError(
                           absl::StrCat("the devices of this node are of several fabric domains (",
                                        domain, " and ", *one, "): show irisd those of one alone"))
                     : absl::Status(one.status().code(), absl::StrCat("device ", info.index, ": ",
                                                                      one.status().message()));
        return;
      }
      domain = *one;
    }
    // Only this shows whether this process has a channel to the other nodes.
    fabric_domain_ = domain;
    absl::Status works = Create(0, granularity(), /*prealloc=*/false).status();
    if (works.ok()) return;
    fabric_domain_ = absl::FailedPreconditionError(absl::StrCat(
        "no memory can be created for the fabric domain ", domain,
        ": is IMEX set up (nvidia-imex "
        "runs on all nodes, and this process sees /dev/nvidia-caps-imex-channels/channel0)? ",
        works.message()));
  }

  BackendKind kind() const override { return kind_; }
  absl::StatusOr<std::string> FabricDomain() const override { return fabric_domain_; }
  absl::Span<const DeviceInfo> devices() const override { return devices_; }
  uint64_t link_bytes() const override { return quirks_.links ? granularity() : 0; }
  absl::Status MakeCurrent(uint32_t device_index) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (absl::Status s = CheckDevice(device_index, "make a device current"); !s.ok()) return s;
    const int device = static_cast<int>(device_index);
    const std::string what =
        absl::StrCat("make device ", device_index, " (", devices_[device_index].name, ") current");
    if (const hipError_t error = api_->SetDevice(device); error != hipSuccess) {
      return Error(error, what);
    }
    absl::MutexLock lock(&mu_);
    if (streams_[device_index] == nullptr) {
      // Create a separate stream, because the default one would wait for kernels that spin.
      const hipError_t error =
          api_->hipStreamCreateWithFlags(&streams_[device_index], hipStreamNonBlocking);
      if (error != hipSuccess) {
        streams_[device_index] = nullptr;
        return Error(error, what);
      }
    }
    if (first_current_ < 0) first_current_ = device;
    return absl::OkStatus();
  }

  absl::Status CanAccessPeer(uint32_t from, uint32_t to) override {
    constexpr char kWhat[] = "ask for access between devices";
    if (absl::Status s = CheckDevice(from, kWhat); !s.ok()) return s;
    if (absl::Status s = CheckDevice(to, kWhat); !s.ok()) return s;
    if (from == to) return absl::OkStatus();
    int can = 0;
    const hipError_t error =
        api_->hipDeviceCanAccessPeer(&can, static_cast<int>(from), static_cast<int>(to));
    if (error != hipSuccess) {
      return Error(error, absl::StrCat(kWhat, " ", from, " and ", to));
    }
    if (can != 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("device ", from, " (", devices_[from].uuid,
                     ") cannot use the memory of device ", to, " (", devices_[to].uuid,
                     "): there is no peer-to-peer path between them; choose devices that have one "
                     "(the vendor's tool prints "
                     "the topology), or enable it (links, PCIe access control, virtualization)"));
  }

  absl::StatusOr<MemoryInfo> DeviceMemory(uint32_t device_index) override {
    constexpr char kWhat[] = "ask for a device's free memory";
    if (absl::Status s = CheckDevice(device_index, kWhat); !s.ok()) return s;
    size_t free_bytes = 0, total_bytes = 0;
    const hipError_t error =
        api_->DeviceMemGetInfo(static_cast<int>(device_index), &free_bytes, &total_bytes);
    if (error == hipErrorInvalidContext) {
      return absl::UnimplementedError(
          absl::StrCat(kWhat,
                       ": the library tells it to processes with a context on the device only, "
                       "and the vendor's management library is not here"));
    }
    if (error != hipSuccess) return Error(error, kWhat);
    return MemoryInfo{free_bytes, total_bytes};
  }

  absl::StatusOr<std::unique_ptr<PhysicalMemory>> Create(uint32_t device_index, uint64_t bytes,
                                                         bool prealloc) override {
    constexpr char kWhat[] = "create device memory";
    if (absl::Status s = CheckDevice(device_index, kWhat); !s.ok()) return s;
    if (absl::Status s = CheckBytes(bytes, kWhat); !s.ok()) return s;
    if (absl::Status s = CheckDescriptors(-1, kWhat); !s.ok()) return s;
    const int device = static_cast<int>(device_index);
    const hipMemAllocationProp prop = PropertiesOn(device);
    CreateTimes times;
    const absl::Time start = absl::Now();
    hipMemGenericAllocationHandle_t handle = 0;
    const hipError_t error = api_->hipMemCreate(&handle, bytes, &prop, 0);
    if (error != hipSuccess) {
      std::string what = absl::StrCat("create ", base::SizeText(bytes), " on device ",
                                      devices_[device_index].uuid);
      if (error == hipErrorOutOfMemory) {
        const absl::StatusOr<MemoryInfo> memory = DeviceMemory(device_index);
        if (memory.ok()) {
          absl::StrAppend(&what, ", which has ", base::SizeText(memory->free_bytes), " of ",
                          base::SizeText(memory->total_bytes), " free");
        }
      }
      return Error(error, what);
    }
    auto memory = std::make_unique<VmmMemory>(this, handle, device, bytes);
    const absl::Time created = absl::Now();
    times.create = created - start;
    // Exported once and kept: another export costs milliseconds, and fails with some versions.
    int fd = -1;
    const hipError_t exported =
        api_->hipMemExportToShareableHandle(&fd, handle, hipMemHandleTypePosixFileDescriptor, 0);
    if (exported != hipSuccess || fd < 0) {
      return Error(exported != hipSuccess ? exported : hipErrorUnknown,
                   absl::StrCat("export ", base::SizeText(bytes), " of device ",
                                devices_[device_index].uuid));
    }
    base::UniqueFd owned(fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InternalError(absl::StrCat("export device memory: descriptor ", fd, ": ",
                                              std::generic_category().message(errno)));
    }
    memory->set_fd(std::move(owned), /*exportable=*/true);
    memory->set_for_fabric(fabric_domain_.ok());
    times.export_fd = absl::Now() - created;
    if (quirks_.zero_new_memory) {
      const absl::Time before = absl::Now();
      if (absl::Status s = Zero(*memory); !s.ok()) return s;
      times.create += absl::Now() - before;
    }
    memory->set_times(times);
    return memory;
  }

  absl::StatusOr<std::unique_ptr<PhysicalMemory>> Adopt(uint32_t device_index, int fd,
                                                        uint64_t bytes) override {
    constexpr char kWhat[] = "adopt device memory";
    base::UniqueFd owned(fd);
    if (fd < 0) return absl::InvalidArgumentError(absl::StrCat(kWhat, ": not a descriptor"));
    if (absl::Status s = CheckDevice(device_index, kWhat); !s.ok()) return s;
    if (absl::Status s = CheckBytes(bytes, kWhat); !s.ok()) return s;
    if (absl::Status s = CheckDescriptors(fd, kWhat); !s.ok()) return s;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhat, ": descriptor ", fd, ": ", std::generic_category().message(errno)));
    }
    const std::string what =
        absl::StrCat("adopt ", base::SizeText(bytes), " on device ", devices_[device_index].uuid);
    const auto handle = ImportHandle(fd, what);
    if (!handle.ok()) return handle.status();
    auto memory = std::make_unique<VmmMemory>(this, *handle, static_cast<int>(device_index), bytes);
    // ExportFd duplicates this descriptor, because some versions cannot export imported memory.
    memory->set_fd(std::move(owned), /*exportable=*/true);
    if (absl::Status s = CheckThatItMaps(*memory, what); !s.ok()) return s;
    return memory;
  }

  absl::StatusOr<std::unique_ptr<PhysicalMemory>> Import(int fd, uint64_t bytes) override {
    base::UniqueFd owned(fd);
    if (fd < 0) return absl::InvalidArgumentError("import device memory: not a descriptor");
    if (absl::Status s = CheckBytes(bytes, "import device memory"); !s.ok()) return s;
    const std::string what = absl::StrCat("import ", base::SizeText(bytes), " of device memory");
    absl::StatusOr<std::optional<std::string>> fabric = UnwrapFabricHandle(kind_, fd);
    if (!fabric.ok()) return fabric.status();
    const auto handle =
        fabric->has_value() ? ImportFabricHandle(**fabric, what) : ImportHandle(fd, what);
    if (!handle.ok()) return handle.status();
    auto memory = std::make_unique<VmmMemory>(this, *handle, -1, bytes);
    // Without this quirk an open descriptor would only keep the memory allocated.
    if (quirks_.keep_imported_fd && !fabric->has_value())
      memory->set_fd(std::move(owned), /*exportable=*/false);
    return memory;
  }

  absl::StatusOr<std::vector<SharedPiece>> Share(uint32_t device_index, uint64_t address,
                                                 uint64_t bytes, size_t max_pieces) override {
    const std::string what = absl::StrFormat("share %s at %#x", base::SizeText(bytes), address);
    if (absl::Status s = CheckDevice(device_index, what); !s.ok()) return s;
    const OutsideCaptures outside(*api_);
    const DeviceScope scope(*api_, static_cast<int>(device_index));
    if (scope.error() != hipSuccess) return Error(scope.error(), what);
    return ShareMappedMemory({*api_, quirks_, kind_, static_cast<int>(device_index), granularity()},
                             address, bytes, max_pieces);
  }

  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t piece_bytes, uint32_t n_pieces,
                                                       uint64_t wanted_base) override {
    constexpr char kWhat[] = "reserve address space";
    if (absl::Status s = CheckBytes(piece_bytes, kWhat); !s.ok()) return s;
    if (n_pieces == 0 || piece_bytes > std::numeric_limits<uint64_t>::max() / 2 / n_pieces) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhat, ": ", n_pieces, " pieces of ", piece_bytes, " bytes"));
    }
    const uint64_t bytes = piece_bytes * n_pieces;
    if (wanted_base % granularity() != 0) wanted_base = 0;
    if (!quirks_.reservation_per_piece || n_pieces == 1) {
      absl::StatusOr<uint64_t> base = ReserveOnce(bytes, wanted_base);
      // If the wanted range is in use, most versions reserve another one, but some fail.
      if (!base.ok() && wanted_base != 0) base = ReserveOnce(bytes, 0);
      if (!base.ok()) return base.status();
      return std::make_unique<VmmReservation>(this, *base, piece_bytes, n_pieces, bytes);
    }
    for (int i = 0; i < kReserveTries; ++i) {
      // Find an address at which the complete range fits, then reserve its pieces one by one.
      absl::StatusOr<uint64_t> base = ReserveOnce(bytes, i == 0 ? wanted_base : 0);
      if (!base.ok() && i == 0 && wanted_base != 0) continue;
      if (!base.ok()) return base.status();
      api_->hipMemAddressFree(Address(*base), bytes);
      uint32_t n_done = 0;
      while (n_done < n_pieces) {
        const uint64_t wanted = *base + n_done * piece_bytes;
        const absl::StatusOr<uint64_t> piece = ReserveOnce(piece_bytes, wanted);
        if (!piece.ok()) break;
        if (*piece != wanted) {
          api_->hipMemAddressFree(Address(*piece), piece_bytes);
          break;
        }
        ++n_done;
      }
      if (n_done == n_pieces) {
        return std::make_unique<VmmReservation>(this, *base, piece_bytes, n_pieces, piece_bytes);
      }
      while (n_done > 0) {
        api_->hipMemAddressFree(Address(*base + --n_done * piece_bytes), piece_bytes);
      }
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "reserve address space: %d adjacent pieces of %s were not to be had in %d tries", n_pieces,
        base::SizeText(piece_bytes), kReserveTries));
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(Reservation& reservation, uint64_t offset_bytes,
                                               PhysicalMemory& memory, Access access,
                                               absl::Span<const uint32_t> devices) override {
    auto* const vmm = dynamic_cast<VmmMemory*>(&memory);
    if (vmm == nullptr || vmm->driver() != this) {
      return absl::InvalidArgumentError("map device memory: the memory is another driver's");
    }
    if (offset_bytes % granularity() != 0 || offset_bytes >= reservation.bytes() ||
        memory.bytes() > reservation.piece_bytes() - offset_bytes % reservation.piece_bytes()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "map %d bytes at offset %d of a reservation of %d bytes in pieces of %d: out of range or "
          "not a multiple of %d",
          memory.bytes(), offset_bytes, reservation.bytes(), reservation.piece_bytes(),
          granularity()));
    }
    if (devices.empty()) {
      return absl::InvalidArgumentError("map device memory: no device is to use it");
    }
    for (const uint32_t device : devices) {
      if (absl::Status s = CheckDevice(device, "map device memory"); !s.ok()) return s;
    }
    const uint64_t address = reservation.base() + offset_bytes;
    MapTimes times;
    const absl::Time start = absl::Now();
    const hipError_t error = api_->hipMemMap(Address(address), memory.bytes(), 0, vmm->handle(), 0);
    if (error != hipSuccess) {
      return Error(
          error, absl::StrFormat("map %d bytes of device memory at %#x", memory.bytes(), address));
    }
    const uint64_t access_from =
        quirks_.access_from_base ? address - offset_bytes % reservation.piece_bytes() : address;
    auto mapping = std::make_unique<VmmMapping>(
        this, address, memory.bytes(), access_from, vmm->device(),
        access == Access::kReadWrite ? hipMemAccessFlagsProtReadWrite : hipMemAccessFlagsProtRead);
    const absl::Time mapped = absl::Now();
    times.map = mapped - start;
    if (absl::Status s = mapping->GrantFirst(devices); !s.ok()) return s;
    times.access = absl::Now() - mapped;
    mapping->set_times(times);
    return mapping;
  }

  absl::Status Fill(uint64_t address, uint8_t value, uint64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return RunOnWorker(absl::StrFormat("set %d bytes at %#x", bytes, address),
                       [&](hipStream_t stream) {
                         return api_->FillAsync(Address(address), value, bytes, stream);
                       });
  }

  absl::Status Copy(void* to, const void* from, uint64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return RunOnWorker(
        absl::StrFormat("copy %d bytes from %p to %p", bytes, from, to),
        [&](hipStream_t stream) { return api_->CopyAsync(to, from, bytes, stream); });
  }

  absl::StatusOr<std::unique_ptr<HostCopies>> CopiesOf(uint32_t device_index) override {
    if (absl::Status s = MakeCurrent(device_index); !s.ok()) return s;
    return MakeVmmCopies(*api_, static_cast<int>(device_index));
  }

  absl::StatusOr<const void*> RegisterHost(const void* page, uint64_t bytes,
                                           Access access) override {
    constexpr char kWhat[] = "register host memory";
    if (page == nullptr || bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(kWhat, ": no page"));
    }
    const absl::StatusOr<Worker> worker = FindWorker(kWhat);
    if (!worker.ok()) return worker.status();
    const DeviceScope scope(*api_, worker->device);
    void* const host = const_cast<void*>(page);
    const bool read_only = access == Access::kReadOnly && quirks_.register_read_only;
    const unsigned flags =
        hipHostRegisterPortable | hipHostRegisterMapped | (read_only ? hipHostRegisterReadOnly : 0);
    hipError_t error = scope.error();
    if (error == hipSuccess) error = api_->hipHostRegister(host, bytes, flags);
    if (error != hipSuccess) {
      return Error(
          error, absl::StrFormat("register %s of host memory at %p", base::SizeText(bytes), page));
    }
    void* address = nullptr;
    error = api_->hipHostGetDevicePointer(&address, host, 0);
    if (error == hipSuccess) return address;
    api_->hipHostUnregister(host);
    return Error(error, absl::StrFormat("get the device's address of host memory at %p", page));
  }

  absl::Status UnregisterHost(const void* page) override {
    constexpr char kWhat[] = "unregister host memory";
    if (page == nullptr) return absl::InvalidArgumentError(absl::StrCat(kWhat, ": no page"));
    const absl::StatusOr<Worker> worker = FindWorker(kWhat);
    if (!worker.ok()) return worker.status();
    const DeviceScope scope(*api_, worker->device);
    hipError_t error = scope.error();
    if (error == hipSuccess) error = api_->hipHostUnregister(const_cast<void*>(page));
    return error == hipSuccess ? absl::OkStatus() : Error(error, kWhat);
  }

  // Reads memory through a temporary mapping, by the thread's device.
  absl::Status ReadMemory(VmmMemory& memory, uint64_t offset_bytes, absl::Span<uint8_t> out)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::StatusOr<Worker> worker = FindWorker("read device memory");
    if (!worker.ok()) {
      return absl::UnimplementedError(
          "read device memory: this process keeps no context on the device, which would cost "
          "memory "
          "there; read it in a process of the job");
    }
    absl::StatusOr<std::unique_ptr<Reservation>> range = Reserve(memory.bytes(), 1, 0);
    if (!range.ok()) return range.status();
    const uint32_t device = static_cast<uint32_t>(worker->device);
    absl::StatusOr<std::unique_ptr<Mapping>> mapping =
        Map(**range, 0, memory, Access::kReadOnly, {device});
    if (!mapping.ok()) return mapping.status();
    return Copy(out.data(), Address((*mapping)->address() + offset_bytes), out.size());
  }

 private:
  struct Worker {
    int device = -1;
    hipStream_t stream = nullptr;
  };

  hipMemAllocationProp PropertiesOn(int device) const {
    hipMemAllocationProp prop;
    prop.type = quirks_.allocation_type;
    prop.requestedHandleTypes =
        hipMemHandleTypePosixFileDescriptor | (fabric_domain_.ok() ? hipMemHandleTypeFabric : 0);
    prop.location = {hipMemLocationTypeDevice, device};
    return prop;
  }
  uint64_t granularity() const { return devices_.front().granularity_bytes; }
  absl::Status CheckBytes(uint64_t bytes, absl::string_view what) const {
    if (bytes != 0 && bytes % granularity() == 0 &&
        bytes < std::numeric_limits<uint64_t>::max() / 2) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes is not a positive multiple of %d", what, bytes, granularity()));
  }

  // Returns the thread's device and that device's stream if MakeCurrent was called for it,
  // otherwise those of the device that was first made current.
  absl::StatusOr<Worker> FindWorker(absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_) {
    int own = -1;
    if (api_->GetDevice(&own) != hipSuccess) own = -1;
    absl::MutexLock lock(&mu_);
    if (own < 0 || static_cast<size_t>(own) >= streams_.size() || streams_[own] == nullptr) {
      own = first_current_;
    }
    if (own < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": this process has made no device current (MakeCurrent)"));
    }
    return Worker{own, streams_[own]};
  }

  // Runs `submit(stream)` on the worker and waits for it.
  template <typename F>
  absl::Status RunOnWorker(absl::string_view what, F&& submit) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::StatusOr<Worker> worker = FindWorker(what);
    if (!worker.ok()) return worker.status();
    const DeviceScope scope(*api_, worker->device);
    hipError_t error = scope.error();
    if (error == hipSuccess) error = submit(worker->stream);
    if (error == hipSuccess) error = api_->hipStreamSynchronize(worker->stream);
    return error == hipSuccess ? absl::OkStatus() : Error(error, what);
  }

  // Returns the device to make current for calls that depend on it, or -1 if there is none.
  int DeviceForCalls() ABSL_LOCKS_EXCLUDED(mu_) {
    if (!quirks_.uses_current_device) return -1;
    absl::MutexLock lock(&mu_);
    return first_current_;
  }

  absl::Status Zero(VmmMemory& memory) {
    // The device itself does this. The range is released, so that nothing of it remains.
    const uint32_t device = static_cast<uint32_t>(memory.device());
    absl::StatusOr<std::unique_ptr<Reservation>> range = Reserve(memory.bytes(), 1, 0);
    if (!range.ok()) return range.status();
    absl::StatusOr<std::unique_ptr<Mapping>> mapping =
        Map(**range, 0, memory, Access::kReadWrite, {device});
    if (!mapping.ok()) return mapping.status();
    const DeviceScope scope(*api_, memory.device());
    hipError_t error = scope.error();
    hipStream_t stream = nullptr;
    if (error == hipSuccess) error = api_->hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
    if (error == hipSuccess) {
      error = api_->FillAsync(Address((*mapping)->address()), 0, memory.bytes(), stream);
      if (error == hipSuccess) error = api_->hipStreamSynchronize(stream);
      api_->hipStreamDestroy(stream);
    }
    return Error(error,
                 absl::StrCat("clear ", base::SizeText(memory.bytes()), " of new device memory"));
  }

  absl::StatusOr<hipMemGenericAllocationHandle_t> ImportHandle(int fd, absl::string_view what)
      ABSL_LOCKS_EXCLUDED(mu_) {
    hipMemGenericAllocationHandle_t handle = 0;
    void* const os_handle =
        quirks_.import_takes_pointer ? static_cast<void*>(&fd) : Address(static_cast<uint64_t>(fd));
    hipError_t error = hipSuccess;
    std::optional<DeviceScope> scope;
    if (const int current = DeviceForCalls(); current >= 0) {
      error = scope.emplace(*api_, current).error();
    }
    if (error == hipSuccess) {
      error = api_->hipMemImportFromShareableHandle(&handle, os_handle,
                                                    hipMemHandleTypePosixFileDescriptor);
    }
    if (error == hipSuccess) return handle;
    const absl::Status status = Error(error, what);
    // For a descriptor of another kind the library mostly returns an unspecific error.
    if (status.code() != absl::StatusCode::kInternal &&
        status.code() != absl::StatusCode::kInvalidArgument) {
      return status;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": ", HipErrorText(*api_, error),
        "; the descriptor is not of exported device memory, or of a device that this process "
        "cannot reach (container, partition, peer-to-peer path)"));
  }

  absl::StatusOr<hipMemGenericAllocationHandle_t> ImportFabricHandle(std::string& bytes,
                                                                     absl::string_view what) {
    hipMemGenericAllocationHandle_t handle = 0;
    const hipError_t error =
        api_->hipMemImportFromShareableHandle(&handle, bytes.data(), hipMemHandleTypeFabric);
    if (error == hipSuccess) return handle;
    const absl::Status status = Error(error, what);
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(),
                     "; it is of another node: its irisd must run, and IMEX on "
                     "both nodes, and this process must see a channel "
                     "(/dev/nvidia-caps-imex-channels); network.fabric = \"off\" of irisd does "
                     "without"));
  }

  // Returns an error unless all bytes can be mapped, because importing does not check the size.
  absl::Status CheckThatItMaps(VmmMemory& memory, absl::string_view what) {
    absl::StatusOr<std::unique_ptr<Reservation>> range = Reserve(memory.bytes(), 1, 0);
    if (!range.ok()) return range.status();
    absl::Status status;
    if (quirks_.keep_imported_fd) {
      // The library uses the descriptor only when access is set.
      const uint32_t device = static_cast<uint32_t>(memory.device());
      status = Map(**range, 0, memory, Access::kReadOnly, {device}).status();
    } else {
      void* const address = Address((*range)->base());
      const hipError_t error = api_->hipMemMap(address, memory.bytes(), 0, memory.handle(), 0);
      if (error != hipSuccess) {
        status = Error(error, what);
      } else {
        api_->hipMemUnmap(address, memory.bytes());
      }
    }
    if (status.ok() || status.code() == absl::StatusCode::kResourceExhausted) return status;
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": the descriptor is not of so much exported device memory: ", status.message()));
  }

  absl::StatusOr<uint64_t> ReserveOnce(uint64_t bytes, uint64_t wanted_base) {
    void* address = nullptr;
    const hipError_t error =
        api_->hipMemAddressReserve(&address, bytes, 0, Address(wanted_base), 0);
    if (error != hipSuccess) {
      return Error(error, absl::StrCat("reserve ", base::SizeText(bytes), " of address space"));
    }
    return reinterpret_cast<uint64_t>(address);
  }

  absl::StatusOr<std::string> fabric_domain_ = absl::FailedPreconditionError(
      "memory is not created for a fabric: network.fabric of irisd's configuration is off");
  absl::Mutex mu_;
  std::vector<hipStream_t> streams_ ABSL_GUARDED_BY(mu_);  // by device; null: not made current yet
  int first_current_ ABSL_GUARDED_BY(mu_) = -1;
};

absl::Status VmmMemory::Read(uint64_t offset_bytes, absl::Span<uint8_t> out) {
  if (offset_bytes > bytes() || out.size() > bytes() - offset_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("read %d bytes at offset %d of device memory of %d bytes: out of range",
                        out.size(), offset_bytes, bytes()));
  }
  return out.empty() ? absl::OkStatus()
                     : static_cast<VmmDriver*>(driver_)->ReadMemory(*this, offset_bytes, out);
}

}  // namespace

absl::StatusOr<OpenedVmm> OpenVmmDriver(const VmmOptions& options) {
  absl::StatusOr<std::unique_ptr<HipApi>> api = options.kind == BackendKind::kCuda
                                                    ? OpenHipOnCuda(options.library_path)
                                                    : OpenHipNative(options.library_path);
  if (!api.ok()) return api.status();
  int version = 0;
  hipError_t error = (*api)->hipRuntimeGetVersion(&version);
  if (error != hipSuccess) return HipStatus(**api, error, "ask the driver for its version");
  if (absl::Status s = CheckVersion(options.kind, version); !s.ok()) return s;
  error = (*api)->hipInit(0);
  if (error != hipSuccess) {
    return HipStatus(
        **api, error,
        absl::StrCat("initialize the driver (version ", VersionText(options.kind, version), ")"));
  }
  auto driver =
      std::make_unique<VmmDriver>(options.kind, *std::move(api), QuirksOf(options.kind, version));
  if (absl::Status s = driver->FindDevices(); !s.ok()) return s;
  if (options.fabric) driver->FindFabric();
  OpenedVmm opened;
  const absl::Span<const DeviceInfo> devices = driver->devices();
  opened.detail = absl::StrCat(devices.size(), " x ", devices.front().name, ", driver ",
                               VersionText(options.kind, version));
  opened.driver = std::move(driver);
  return opened;
}

}  // namespace iris::driver
