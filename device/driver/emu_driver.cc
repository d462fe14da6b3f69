#include "device/driver/emu_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "device/base/unique_fd.h"
#include "device/driver/emu_share.h"
#include "device/driver/fabric.h"

namespace iris::driver {
namespace {

// Translates errno here, because this folder depends on nothing else of Iris.
absl::Status SystemError(int error, absl::string_view what) {
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC) {
    code = absl::StatusCode::kResourceExhausted;
  }
  return absl::Status(code, absl::StrCat(what, ": ", std::generic_category().message(error)));
}

// The emulated fabric handle is the text PID/FD/NAME: a memfd that process PID has open as FD, and
// whose name nobody can guess. Whoever has the handle, and may look into the process, opens it.

absl::StatusOr<std::string> UnguessableName() {
  char random[16];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
    return SystemError(errno, "name emulated memory for its fabric domain");
  }
  return absl::StrCat("iris-fabric-",
                      absl::BytesToHexString(absl::string_view(random, sizeof(random))));
}

absl::StatusOr<base::UniqueFd> OpenFabricHandle(const std::string& handle) {
  constexpr char kWhat[] = "import emulated memory of another node";
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(handle.c_str()), absl::MaxSplits('/', 2));
  uint32_t pid = 0, number = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &number)) {
    return absl::InvalidArgumentError(absl::StrCat(kWhat, ": its handle is malformed"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", number);
  base::UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return SystemError(errno, absl::StrCat(kWhat, ": open ", path,
                                           " (emulated fabric domains are of one machine and user, "
                                           "and irisd of that node must run)"));
  }
  // Another file may have this number by now.
  char name[128] = {};
  const std::string own = absl::StrCat("/proc/self/fd/", fd.get());
  const std::string expected = absl::StrCat("/memfd:", parts[2], " (deleted)");
  if (readlink(own.c_str(), name, sizeof(name) - 1) < 0 || expected != name) {
    return absl::NotFoundError(absl::StrCat(kWhat, ": it has been given back"));
  }
  return fd;
}

class EmuMemory : public PhysicalMemory {
 public:
  EmuMemory(int fd, uint64_t bytes, bool created, std::string fabric_name = "")
      : PhysicalMemory(bytes), fd_(fd), created_(created), fabric_name_(std::move(fabric_name)) {}
  int fd() const { return fd_.get(); }

  absl::StatusOr<std::string> ExportFabric() override {
    if (fabric_name_.empty()) return PhysicalMemory::ExportFabric();
    std::string handle = absl::StrCat(getpid(), "/", fd_.get(), "/", fabric_name_);
    handle.resize(kFabricHandleBytes);
    return handle;
  }

  absl::StatusOr<int> ExportFd(Access access) override {
    if (!created_) {
      return absl::FailedPreconditionError(
          "export emulated memory: imported memory cannot be exported again; ask its creator");
    }
    if (access == Access::kReadWrite) {
      const int fd = fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3);
      if (fd < 0) return SystemError(errno, "duplicate the descriptor of emulated memory");
      return fd;
    }
    // A duplicate would share the descriptor's read-write mode; only a new open makes it read-only.
    const std::string path = absl::StrCat("/proc/self/fd/", fd_.get());
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) return fd;
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return SystemError(
          error,
          absl::StrCat("open ", path, " to export emulated memory read-only (is /proc mounted?)"));
    }
    return SystemError(error, absl::StrCat("open ", path, " to export emulated memory read-only"));
  }

  absl::Status Read(uint64_t offset_bytes, absl::Span<uint8_t> out) override {
    if (offset_bytes > bytes() || out.size() > bytes() - offset_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("read %d bytes at offset %d of emulated memory of %d bytes: out of range",
                          out.size(), offset_bytes, bytes()));
    }
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = base::Retry([&] {
        return pread(fd_.get(), out.data() + done, out.size() - done,
                     static_cast<off_t>(offset_bytes + done));
      });
      if (n < 0) return SystemError(errno, "read emulated memory");
      if (n == 0) return absl::DataLossError("read emulated memory: it ended early");
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  const base::UniqueFd fd_;
  const bool created_;
  const std::string fabric_name_;  // of the memfd; empty: not for other nodes
};

class EmuReservation : public Reservation {
 public:
  // mmap returned [map, map + map_bytes); `base` is the first aligned address in it.
  EmuReservation(void* map, uint64_t map_bytes, uint64_t base, uint64_t bytes, uint64_t piece_bytes)
      : Reservation(base, bytes, piece_bytes), map_(map), map_bytes_(map_bytes) {}
  ~EmuReservation() override { munmap(map_, map_bytes_); }

 private:
  void* const map_;
  const uint64_t map_bytes_;
};

class EmuMapping : public Mapping {
 public:
  EmuMapping(uint64_t address, uint64_t bytes, absl::Duration time) : Mapping(address, bytes) {
    set_times({time, absl::ZeroDuration()});
  }
  ~EmuMapping() override {
    // Replace the memory with an empty reservation, so that no other thread's mmap gets the range.
    void* const at = reinterpret_cast<void*>(address());
    void* const back = mmap(at, bytes(), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (back != MAP_FAILED) {
      madvise(at, bytes(), MADV_DONTFORK);
    } else {
      // The process has too many mappings. At least release the pages and make accesses fail.
      mprotect(at, bytes(), PROT_NONE);
    }
  }
  absl::Status Allow(uint32_t device_index) override { return absl::OkStatus(); }
};

class EmuDriver : public GpuDriver {
 public:
  explicit EmuDriver(const EmuOptions& options)
      : link_bytes_(options.link_bytes),
        fabric_domain_(options.fabric_domain),
        denied_(options.denied) {
    for (uint32_t i = 0; i < options.n_devices; ++i) {
      DeviceInfo info;
      info.uuid = absl::StrFormat("EMU-00000000-0000-0000-0000-%012x", i);
      info.name = absl::StrCat("emulated device ", i);
      info.backend = std::string(backend());
      info.index = i;
      info.memory_bytes = options.memory_bytes_per_device;
      info.granularity_bytes = kEmuGranularityBytes;
      devices_.push_back(std::move(info));
    }
  }

  BackendKind kind() const override { return BackendKind::kEmu; }
  absl::Span<const DeviceInfo> devices() const override { return devices_; }
  uint64_t link_bytes() const override { return link_bytes_; }

  absl::StatusOr<std::string> FabricDomain() const override {
    if (!fabric_domain_.empty()) return absl::StrCat("emulated ", fabric_domain_);
    return absl::FailedPreconditionError(
        "emulated devices have no fabric; emu.fabric of irisd's configuration emulates one");
  }

  // Does nothing: kernels of this process run on the CPU, whatever the device.
  absl::Status MakeCurrent(uint32_t device_index) override { return absl::OkStatus(); }

  absl::Status CanAccessPeer(uint32_t from, uint32_t to) override {
    for (const uint32_t index : {from, to}) {
      if (absl::Status s = CheckDevice(index, "ask for access between devices"); !s.ok()) return s;
    }
    if (std::find(denied_.begin(), denied_.end(), std::pair(from, to)) == denied_.end()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "emulated device ", from, " has no access to memory of device ", to, ": use others"));
  }

  absl::StatusOr<MemoryInfo> DeviceMemory(uint32_t device_index) override {
    return absl::UnimplementedError("emulated devices have no memory of their own to ask about");
  }

  absl::StatusOr<std::unique_ptr<PhysicalMemory>> Create(uint32_t device_index, uint64_t bytes,
                                                         bool prealloc) override {
    if (absl::Status s = CheckDevice(device_index, "create emulated memory"); !s.ok()) return s;
    const absl::Time start = absl::Now();
    if (bytes == 0 || bytes % kEmuGranularityBytes != 0 ||
        bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("create emulated memory: %d bytes is not a positive multiple of %d",
                          bytes, kEmuGranularityBytes));
    }
    std::string fabric_name;
    if (!fabric_domain_.empty()) {
      absl::StatusOr<std::string> named = UnguessableName();
      if (!named.ok()) return named.status();
      fabric_name = *std::move(named);
    }
    const std::string name =
        fabric_name.empty() ? absl::StrCat("iris-emu-", device_index) : fabric_name;
    const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return SystemError(errno, "create a memfd for emulated memory");
    auto memory = std::make_unique<EmuMemory>(fd, bytes, /*created=*/true, std::move(fabric_name));
    // A new memfd has mode 0777: any uid could reopen a read-only descriptor for writing.
    if (fchmod(fd, 0600) != 0) return SystemError(errno, "set the mode of emulated memory");
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      return SystemError(errno, absl::StrCat("size emulated memory to ", base::SizeText(bytes)));
    }
    if (prealloc) {
      const int result =
          base::Retry([&] { return fallocate(fd, 0, 0, static_cast<off_t>(bytes)); });
      if (result != 0) {
        return SystemError(errno,
                           absl::StrCat("reserve ", base::SizeText(bytes), " for emulated memory"));
      }
    }
    if (fcntl(fd, F_ADD_SEALS, kResizeSeals | F_SEAL_SEAL) != 0) {
      return SystemError(errno, "seal emulated memory against resizing");
    }
    memory->set_times({absl::Now() - start, absl::ZeroDuration()});
    return memory;
  }

  absl::StatusOr<std::unique_ptr<PhysicalMemory>> Adopt(uint32_t device_index, int fd,
                                                        uint64_t bytes) override {
    constexpr char kWhat[] = "adopt emulated memory";
    auto memory = std::make_unique<EmuMemory>(fd, bytes, /*created=*/true);
    if (absl::Status s = CheckDevice(device_index, kWhat); !s.ok()) return s;
    if (bytes % kEmuGranularityBytes != 0) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %d bytes is not a multiple of %d",
                                                        kWhat, bytes, kEmuGranularityBytes));
    }
    const absl::StatusOr<struct stat> info = CheckMemory(fd, bytes, kWhat);
    if (!info.ok()) return info.status();
    // The seals must be those that Create set: no seal can be added, and none prevents writes.
    const int seals = fcntl(fd, F_GET_SEALS);
    if ((seals & F_SEAL_SEAL) == 0 || (seals & kWriteSeals) != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: its seals are %#x, which are not those that this program puts on memory", kWhat,
          seals));
    }
    if (info->st_uid != geteuid() || (info->st_mode & 07777) != 0600) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: it belongs to uid %d and has mode %#o, and this program's memory "
                          "belongs to uid %d and has mode 0600",
                          kWhat, info->st_uid, info->st_mode & 07777, geteuid()));
    }
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhat, ": descriptor ", fd, " is not open for reading and writing"));
    }
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return SystemError(errno, kWhat);
    return memory;
  }

  absl::StatusOr<std::unique_ptr<PhysicalMemory>> Import(int fd, uint64_t bytes) override {
    base::UniqueFd owned(fd);
    const absl::StatusOr<std::optional<std::string>> handle = UnwrapFabricHandle(kind(), fd);
    if (!handle.ok()) return handle.status();
    if (handle->has_value()) {
      absl::StatusOr<base::UniqueFd> opened = OpenFabricHandle(**handle);
      if (!opened.ok()) return opened.status();
      owned = *std::move(opened);
    }
    const absl::StatusOr<struct stat> info =
        CheckMemory(owned.get(), bytes, "import emulated memory");
    if (!info.ok()) return info.status();
    return std::make_unique<EmuMemory>(owned.Release(), bytes, /*created=*/false);
  }

  absl::StatusOr<std::vector<SharedPiece>> Share(uint32_t device_index, uint64_t address,
                                                 uint64_t bytes, size_t max_pieces) override {
    return ShareMemfds(address, bytes, max_pieces);
  }

  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t piece_bytes, uint32_t n_pieces,
                                                       uint64_t wanted_base) override {
    if (piece_bytes == 0 || piece_bytes % kEmuGranularityBytes != 0 || n_pieces == 0 ||
        piece_bytes > std::numeric_limits<uint64_t>::max() / 2 / n_pieces) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "reserve address space: %d times %d bytes is not a positive multiple of %d", n_pieces,
          piece_bytes, kEmuGranularityBytes));
    }
    const uint64_t bytes = piece_bytes * n_pieces;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (wanted_base != 0 && wanted_base % kEmuGranularityBytes == 0 &&
        wanted_base < std::numeric_limits<uint64_t>::max() - bytes) {
      void* const wanted = reinterpret_cast<void*>(wanted_base);
      void* const got = mmap(wanted, bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
      if (got == wanted) return Reserved(got, bytes, bytes, piece_bytes);
      // Linux before 4.17 treats the address as a hint.
      if (got != MAP_FAILED) munmap(got, bytes);
    }
    // At any address, with one granule more, so that the mapping contains an aligned range.
    const uint64_t map_bytes = bytes + kEmuGranularityBytes;
    void* const got = mmap(nullptr, map_bytes, PROT_NONE, kFlags, -1, 0);
    if (got == MAP_FAILED) {
      return SystemError(errno, absl::StrCat("reserve ", base::SizeText(bytes),
                                             " of address space (see ulimit -v)"));
    }
    return Reserved(got, map_bytes, bytes, piece_bytes);
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(Reservation& reservation, uint64_t offset_bytes,
                                               PhysicalMemory& memory, Access access,
                                               absl::Span<const uint32_t> devices) override {
    auto* const emu = dynamic_cast<EmuMemory*>(&memory);
    if (emu == nullptr) {
      return absl::InvalidArgumentError("map emulated memory: the memory is another driver's");
    }
    if (offset_bytes % kEmuGranularityBytes != 0 || offset_bytes >= reservation.bytes() ||
        memory.bytes() > reservation.piece_bytes() - offset_bytes % reservation.piece_bytes()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "map %d bytes at offset %d of a reservation of %d bytes in pieces of %d: out of range or "
          "not a multiple of %d",
          memory.bytes(), offset_bytes, reservation.bytes(), reservation.piece_bytes(),
          kEmuGranularityBytes));
    }
    const absl::Time start = absl::Now();
    const uint64_t address = reservation.base() + offset_bytes;
    void* const at = reinterpret_cast<void*>(address);
    const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(at, memory.bytes(), protection, MAP_SHARED | MAP_FIXED, emu->fd(), 0) == MAP_FAILED) {
      return SystemError(errno, absl::StrFormat("map %d bytes of emulated memory at %#x",
                                                memory.bytes(), address));
    }
    auto mapping = std::make_unique<EmuMapping>(address, memory.bytes(), absl::Now() - start);
    if (madvise(at, memory.bytes(), MADV_DONTFORK) != 0) {
      return SystemError(errno, "keep mapped emulated memory out of forked children");
    }
    return mapping;
  }

  absl::Status Fill(uint64_t address, uint8_t value, uint64_t bytes) override {
    if (bytes > 0) std::memset(reinterpret_cast<void*>(address), value, bytes);
    return absl::OkStatus();
  }

  absl::Status Copy(void* to, const void* from, uint64_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<const void*> RegisterHost(const void* page, uint64_t bytes, Access) override {
    if (page == nullptr || bytes == 0) {
      return absl::InvalidArgumentError("register host memory: no page");
    }
    return page;  // kernels run on this CPU
  }

  absl::Status UnregisterHost(const void* page) override {
    if (page == nullptr) return absl::InvalidArgumentError("unregister host memory: no page");
    return absl::OkStatus();
  }

 private:
  // Returns kInvalidArgument unless `fd` is a memfd of `bytes` bytes that cannot be resized.
  static absl::StatusOr<struct stat> CheckMemory(int fd, uint64_t bytes, absl::string_view what) {
    if (fd < 0) return absl::InvalidArgumentError(absl::StrCat(what, ": not a descriptor"));
    struct stat info = {};
    if (fstat(fd, &info) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": descriptor ", fd, ": ", std::generic_category().message(errno)));
    }
    const int seals = S_ISREG(info.st_mode) ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals < 0) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": descriptor ", fd, " is not a memfd"));
    }
    if ((seals & kResizeSeals) != kResizeSeals) {
      return absl::InvalidArgumentError(absl::StrCat(
          what,
          ": its holder could still resize it, and a truncation would kill this process with "
          "SIGBUS"));
    }
    if (bytes == 0 || static_cast<uint64_t>(info.st_size) != bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: it has %d bytes, expected were %d", what, info.st_size, bytes));
    }
    return info;
  }

  absl::Status CheckDevice(uint32_t index, absl::string_view what) const {
    if (index < devices_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": device ", index, " does not exist; there are ", devices_.size()));
  }

  static absl::StatusOr<std::unique_ptr<Reservation>> Reserved(void* map, uint64_t map_bytes,
                                                               uint64_t bytes,
                                                               uint64_t piece_bytes) {
    const uint64_t address = reinterpret_cast<uint64_t>(map);
    const uint64_t base = (address + kEmuGranularityBytes - 1) & ~(kEmuGranularityBytes - 1);
    auto reservation = std::make_unique<EmuReservation>(map, map_bytes, base, bytes, piece_bytes);
    if (madvise(map, map_bytes, MADV_DONTFORK) != 0) {
      return SystemError(errno, "keep reserved address space out of forked children");
    }
    return reservation;
  }

  const uint64_t link_bytes_;
  const std::string fabric_domain_;
  std::vector<DeviceInfo> devices_;
  const std::vector<std::pair<uint32_t, uint32_t>> denied_;
};

}  // namespace

std::unique_ptr<GpuDriver> CreateEmuDriver(const EmuOptions& options) {
  return std::make_unique<EmuDriver>(options);
}

}  // namespace iris::driver
