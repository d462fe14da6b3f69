// driver_smoke: goes once through everything that irisd and its clients ask of a driver, on the
// devices of this machine, and prints what worked and how long it took. A process of its own is the
// owner, as irisd is; the children are clients.
//
//   driver_smoke [--backend auto|cuda|hip|emu] [--mib 1024] [--rounds 3]
//
// Exit codes: 0 all worked, 1 something failed.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "device/driver/open.h"
#include "device/driver/testing/own_memory.h"

namespace iris::driver {
namespace {

constexpr uint64_t kWantedBase = 0x400000000000;
// The size of each of two allocations that a client makes itself and lends.
constexpr uint64_t kOwnBytes = 8 << 20;

struct Arguments {
  OpenOptions open;
  uint64_t mib = 1024;
  int rounds = 3;
  // These are for a child.
  int socket = -1;
  uint32_t rank = 0;
  uint32_t n_ranks = 0;
};

double Ms(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

bool Check(const absl::Status& status, const char* what) {
  if (!status.ok()) printf("FAILED %s: %s\n", what, status.ToString().c_str());
  fflush(stdout);
  return status.ok();
}

bool SendFd(int socket, int fd) {
  char byte = 1;
  struct iovec data = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  return sendmsg(socket, &message, 0) == 1;
}

int ReceiveFd(int socket) {
  char byte = 0;
  struct iovec data = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return fd;
}

bool Signal(int socket) { return send(socket, "x", 1, MSG_NOSIGNAL) == 1; }
bool Wait(int socket) {
  char byte = 0;
  return recv(socket, &byte, 1, 0) == 1;
}

absl::StatusOr<OpenedDriver> Open(const Arguments& arguments, bool print) {
  const absl::Time start = absl::Now();
  absl::StatusOr<OpenedDriver> opened = OpenDriver(arguments.open);
  if (opened.ok() && print) {
    printf("open: %.1f ms\n", Ms(absl::Now() - start));
    for (const BackendReport& report : opened->reports) {
      printf("  backend %s: %s, %s\n", report.backend.c_str(),
             report.available ? "available" : "not available", report.detail.c_str());
    }
  }
  return opened;
}

// Memory of malloc, cudaMalloc or hipMalloc cannot be lent, and the error says so.
bool CheckThatPlainMemoryIsRefused(GpuDriver& driver, const Arguments& arguments, uint32_t device) {
  constexpr size_t kBytes = 4 << 20;
  void* plain = nullptr;
  int (*release)(void*) = nullptr;
  std::vector<char> host(kBytes);
  if (driver.kind() == BackendKind::kEmu) {
    plain = host.data();
  } else {
    const bool cuda = driver.kind() == BackendKind::kCuda;
    std::string path = arguments.open.library_path;
    if (path.empty()) path = cuda ? "libcuda.so.1" : "libamdhip64.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr && cuda) {
      library = dlopen("/usr/local/nvidia/lib64/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      printf("FAILED to open the library as a program does: %s\n", dlerror());
      return false;
    }
    const auto allocate = reinterpret_cast<int (*)(void**, size_t)>(
        dlsym(library, cuda ? "cuMemAlloc_v2" : "hipMalloc"));
    release = reinterpret_cast<int (*)(void*)>(dlsym(library, cuda ? "cuMemFree_v2" : "hipFree"));
    if (allocate == nullptr || release == nullptr || allocate(&plain, kBytes) != 0) {
      printf("FAILED to allocate memory as a program does\n");
      return false;
    }
  }
  bool good = true;
  for (void* const memory : {plain, static_cast<void*>(host.data())}) {
    const absl::Status refused =
        driver.Share(device, reinterpret_cast<uint64_t>(memory), kBytes, 8).status();
    if (arguments.rank == 0) printf("share of other memory: %s\n", refused.ToString().c_str());
    good &= refused.code() == absl::StatusCode::kInvalidArgument;
  }
  if (release != nullptr) release(plain);
  return good;
}

// Lends memory of its own to the next rank, and uses what the one before has lent.
bool LendAndBorrow(GpuDriver& driver, const Arguments& arguments, uint32_t device) {
  const auto made =
      testing::OwnMemory::Create(driver.kind(), arguments.open.library_path, device, 2, kOwnBytes);
  if (!Check(made.status(), "memory by the platform's own calls")) return false;
  const testing::OwnMemory& own = **made;
  const uint8_t mark = static_cast<uint8_t>(0x60 + arguments.rank);
  for (uint64_t i = 0; i < 2; ++i) {
    const absl::Status filled = driver.Fill(own.base() + i * kOwnBytes, mark, kOwnBytes);
    if (!Check(filled, "Fill of own memory")) return false;
  }
  const absl::Time start = absl::Now();
  const auto pieces = driver.Share(device, own.base() + 1, 2 * kOwnBytes - 2, 2);
  const absl::Duration share = absl::Now() - start;
  if (!Check(pieces.status(), "Share")) return false;
  bool good = pieces->size() == 2;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const SharedPiece& piece = (*pieces)[i];
    good &= piece.address == own.base() + i * kOwnBytes && piece.bytes == kOwnBytes;
  }
  printf("rank %u: share of own memory %.2f ms, %zu pieces%s\n", arguments.rank, Ms(share),
         pieces->size(), good ? "" : " (FAILED: not those that were made)");
  fflush(stdout);
  // The second piece: its first byte is not the range's.
  good &= SendFd(arguments.socket, pieces->back().fd);
  for (const SharedPiece& piece : *pieces) close(piece.fd);
  const int fd = good ? ReceiveFd(arguments.socket) : -1;
  if (fd < 0) return false;
  const auto memory = driver.Import(fd, kOwnBytes);
  if (!Check(memory.status(), "Import of a peer's own memory")) return false;
  const auto range = driver.Reserve(kOwnBytes, 1, 0);
  if (!Check(range.status(), "Reserve")) return false;
  const auto mapping = driver.Map(**range, 0, **memory, Access::kReadWrite, {device});
  if (!Check(mapping.status(), "Map of a peer's own memory")) return false;
  const uint32_t n = arguments.n_ranks;
  const uint64_t theirs = (*mapping)->address();
  uint8_t seen = 0;
  const uint8_t wanted = static_cast<uint8_t>(0x60 + (arguments.rank + n - 1) % n);
  good &= Check(driver.Copy(&seen, reinterpret_cast<void*>(theirs + kOwnBytes - 1), 1),
                "Copy from a peer's own memory");
  if (seen != wanted) {
    printf("FAILED: rank %u reads %#x of lent memory\n", arguments.rank, seen);
    good = false;
  }
  good &= Check(driver.Fill(theirs, static_cast<uint8_t>(0x70 + arguments.rank), kOwnBytes / 2),
                "Fill of a peer's own memory");
  if (!Signal(arguments.socket) || !Wait(arguments.socket)) return false;
  const void* const written = reinterpret_cast<void*>(own.base() + kOwnBytes);
  good &= Check(driver.Copy(&seen, written, 1), "Copy from own memory");
  if (seen != 0x70 + (arguments.rank + 1) % n) {
    printf("FAILED: rank %u reads %#x of what it has lent\n", arguments.rank, seen);
    good = false;
  }
  return good && Signal(arguments.socket) && Wait(arguments.socket);
}

// One client: rounds of import, map, use, unmap of every rank's segment.
int Client(const Arguments& arguments) {
  const uint64_t bytes = arguments.mib << 20;
  absl::StatusOr<OpenedDriver> opened = Open(arguments, false);
  if (!Check(opened.status(), "open in a client")) return 1;
  GpuDriver& driver = *opened->driver;
  const bool emulated = driver.kind() == BackendKind::kEmu;
  const uint32_t device =
      emulated ? 0 : arguments.rank % static_cast<uint32_t>(driver.devices().size());
  absl::Time start = absl::Now();
  if (!Check(driver.MakeCurrent(device), "MakeCurrent")) return 1;
  printf("rank %u: device %u, context %.1f ms\n", arguments.rank, device, Ms(absl::Now() - start));
  fflush(stdout);
  bool good = true;
  for (int round = 0; round < arguments.rounds; ++round) {
    std::vector<int> fds;
    for (uint32_t r = 0; r < arguments.n_ranks; ++r) fds.push_back(ReceiveFd(arguments.socket));
    if (fds.back() < 0) return 1;
    start = absl::Now();
    auto range = driver.Reserve(2 * bytes, arguments.n_ranks, kWantedBase);
    if (!Check(range.status(), "Reserve")) return 1;
    const absl::Time reserved = absl::Now();
    absl::Duration import, map, access;
    std::vector<std::unique_ptr<PhysicalMemory>> memories;
    std::vector<std::unique_ptr<Mapping>> mappings;
    for (uint32_t i = 0; i < arguments.n_ranks; ++i) {
      const uint32_t r = (arguments.rank + i) % arguments.n_ranks;
      const absl::Time before = absl::Now();
      auto memory = driver.Import(fds[r], bytes);
      if (!Check(memory.status(), "Import")) return 1;
      import += absl::Now() - before;
      auto mapping = driver.Map(**range, r * 2 * bytes, **memory, Access::kReadWrite, {device});
      if (!Check(mapping.status(), "Map")) return 1;
      map += (*mapping)->times().map;
      access += (*mapping)->times().access;
      memories.push_back(*std::move(memory));
      mappings.push_back(*std::move(mapping));
    }
    const absl::Duration total = absl::Now() - start;
    printf(
        "rank %u round %d: base %#llx%s, reserve %.2f, import %.2f, map %.2f, access %.2f, "
        "total %.2f ms\n",
        arguments.rank, round, static_cast<unsigned long long>((*range)->base()),
        (*range)->base() == kWantedBase ? "" : " (not the wanted one)", Ms(reserved - start),
        Ms(import), Ms(map), Ms(access), Ms(total));
    // Fresh memory is zero. Then each rank writes its own, and reads all others'.
    const uint64_t mine = (*range)->base() + arguments.rank * 2 * bytes;
    std::vector<uint8_t> seen(4096, 1);
    good &= Check(driver.Copy(seen.data(), reinterpret_cast<void*>(mine + bytes - 4096), 4096),
                  "Copy of fresh memory");
    if (seen != std::vector<uint8_t>(4096, 0)) {
      printf("FAILED: fresh memory of rank %u is not zero\n", arguments.rank);
      good = false;
    }
    start = absl::Now();
    good &= Check(driver.Fill(mine, static_cast<uint8_t>(0x10 + arguments.rank), bytes), "Fill");
    const absl::Duration fill = absl::Now() - start;
    if (!Signal(arguments.socket) || !Wait(arguments.socket)) return 1;
    for (uint32_t r = 0; r < arguments.n_ranks; ++r) {
      uint8_t ends[2] = {0, 0};
      const uint64_t theirs = (*range)->base() + r * 2 * bytes;
      good &= Check(driver.Copy(&ends[0], reinterpret_cast<void*>(theirs), 1), "Copy from a peer");
      good &= Check(driver.Copy(&ends[1], reinterpret_cast<void*>(theirs + bytes - 1), 1),
                    "Copy from a peer");
      if (ends[0] != 0x10 + r || ends[1] != 0x10 + r) {
        printf("FAILED: rank %u reads %#x %#x of rank %u\n", arguments.rank, ends[0], ends[1], r);
        good = false;
      }
    }
    if (!Signal(arguments.socket) || !Wait(arguments.socket)) return 1;
    const uint64_t next = (*range)->base() + (arguments.rank + 1) % arguments.n_ranks * 2 * bytes;
    start = absl::Now();
    good &= Check(driver.Copy(reinterpret_cast<void*>(next), reinterpret_cast<void*>(mine), bytes),
                  "Copy to a peer");
    const absl::Duration copy = absl::Now() - start;
    uint8_t byte = 0;
    good &= Check(memories[0]->Read(bytes - 1, absl::MakeSpan(&byte, 1)), "Read");
    if (!Signal(arguments.socket) || !Wait(arguments.socket)) return 1;
    start = absl::Now();
    mappings.clear();
    memories.clear();
    range->reset();
    printf("rank %u round %d: fill %.1f GB/s, copy to a peer %.1f GB/s, unmap %.2f ms\n",
           arguments.rank, round, 1e-9 * static_cast<double>(bytes) / absl::ToDoubleSeconds(fill),
           1e-9 * static_cast<double>(bytes) / absl::ToDoubleSeconds(copy),
           Ms(absl::Now() - start));
    fflush(stdout);
    if (!Signal(arguments.socket) || !Wait(arguments.socket)) return 1;
  }
  good &= CheckThatPlainMemoryIsRefused(driver, arguments, device);
  good &= LendAndBorrow(driver, arguments, device);
  // A page as irisd makes it: mapped without write permission.
  const int page_fd = memfd_create("smoke-page", MFD_CLOEXEC);
  void* const page = page_fd >= 0 && ftruncate(page_fd, 4096) == 0
                         ? mmap(nullptr, 4096, PROT_READ, MAP_SHARED, page_fd, 0)
                         : MAP_FAILED;
  if (page == MAP_FAILED) return 1;
  auto registered = driver.RegisterHost(page, 4096, Access::kReadOnly);
  good &= Check(registered.status(), "RegisterHost");
  if (registered.ok()) {
    const uint32_t word = 0x1234;
    uint32_t seen = 0;
    good &= pwrite(page_fd, &word, sizeof(word), 64) == sizeof(word);
    good &= Check(driver.Copy(&seen, static_cast<const char*>(*registered) + 64, sizeof(seen)),
                  "Copy from a registered page");
    if (seen != word) good = false;
    if (arguments.rank == 0) {
      printf("registered page: kernels see it at %s address, reads %#x\n",
             *registered == page ? "the same" : "another", seen);
    }
    good &= Check(driver.UnregisterHost(page), "UnregisterHost");
  }
  const auto memory = driver.DeviceMemory(device);
  if (memory.ok()) {
    printf("rank %u: device has %llu of %llu MiB free\n", arguments.rank,
           static_cast<unsigned long long>(memory->free_bytes >> 20),
           static_cast<unsigned long long>(memory->total_bytes >> 20));
  }
  return good ? 0 : 1;
}

int Owner(const Arguments& arguments, char** argv) {
  const uint64_t bytes = arguments.mib << 20;
  absl::StatusOr<OpenedDriver> opened = Open(arguments, true);
  if (!Check(opened.status(), "open")) return 1;
  GpuDriver& driver = *opened->driver;
  const uint32_t n = static_cast<uint32_t>(driver.devices().size());
  for (const DeviceInfo& device : driver.devices()) {
    const auto memory = driver.DeviceMemory(device.index);
    printf("device %u: %s %s, %llu MiB, granularity %llu KiB, free: %s\n", device.index,
           device.uuid.c_str(), device.name.c_str(),
           static_cast<unsigned long long>(device.memory_bytes >> 20),
           static_cast<unsigned long long>(device.granularity_bytes >> 10),
           memory.ok() ? std::to_string(memory->free_bytes >> 20).append(" MiB").c_str()
                       : memory.status().ToString().c_str());
  }
  bool good = true;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = 0; j < n; ++j) good &= Check(driver.CanAccessPeer(i, j), "CanAccessPeer");
  }
  std::vector<int> sockets;
  std::vector<pid_t> children;
  for (uint32_t r = 0; r < n; ++r) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) return 1;
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      // A vendor's library does not work in a forked child: a new program does.
      std::vector<std::string> text = {argv[0],
                                       "--backend",
                                       std::string(driver.backend()),
                                       "--mib",
                                       std::to_string(arguments.mib),
                                       "--rounds",
                                       std::to_string(arguments.rounds),
                                       "--socket",
                                       std::to_string(pair[1]),
                                       "--rank",
                                       std::to_string(r),
                                       "--n-ranks",
                                       std::to_string(n),
                                       "--library",
                                       arguments.open.library_path};
      std::vector<char*> child_argv;
      for (std::string& t : text) child_argv.push_back(t.data());
      child_argv.push_back(nullptr);
      execv("/proc/self/exe", child_argv.data());
      _exit(127);
    }
    close(pair[1]);
    sockets.push_back(pair[0]);
    children.push_back(child);
  }
  for (int round = 0; round < arguments.rounds && good; ++round) {
    std::vector<std::unique_ptr<PhysicalMemory>> memories;
    absl::Duration create, export_fd;
    for (uint32_t r = 0; r < n; ++r) {
      auto memory = driver.Create(r, bytes, false);
      if (!Check(memory.status(), "Create")) {
        good = false;
        break;
      }
      create += (*memory)->times().create;
      export_fd += (*memory)->times().export_fd;
      memories.push_back(*std::move(memory));
    }
    if (!good) break;
    printf("owner round %d: %u x %llu MiB: create %.2f, export %.2f ms\n", round, n,
           static_cast<unsigned long long>(arguments.mib), Ms(create), Ms(export_fd));
    fflush(stdout);
    for (const int socket : sockets) {
      for (const auto& memory : memories) {
        auto fd = memory->ExportFd(Access::kReadWrite);
        good &= Check(fd.status(), "ExportFd") && SendFd(socket, *fd);
        if (fd.ok()) close(*fd);
      }
    }
    // Mapped and filled; read; copied; unmapped.
    for (int step = 0; step < 4; ++step) {
      for (const int socket : sockets) good &= Wait(socket);
      if (step == 3) {
        uint8_t byte = 0;
        const absl::Status read = memories[0]->Read(0, absl::MakeSpan(&byte, 1));
        if (round == 0) printf("owner: Read without a context: %s\n", read.ToString().c_str());
        const absl::Time start = absl::Now();
        memories.clear();
        printf("owner round %d: release %.2f ms\n", round, Ms(absl::Now() - start));
      }
      for (const int socket : sockets) good &= Signal(socket);
      if (!good) break;
    }
  }
  // Each rank's own memory goes to the next one; then steps as above.
  if (good) {
    std::vector<int> lent;
    for (const int socket : sockets) lent.push_back(ReceiveFd(socket));
    for (uint32_t r = 0; r < n; ++r) good &= SendFd(sockets[(r + 1) % n], lent[r]);
    for (const int fd : lent) close(fd);
  }
  for (int step = 0; step < 2 && good; ++step) {
    for (const int socket : sockets) good &= Wait(socket);
    for (const int socket : sockets) good &= Signal(socket);
  }
  for (const int socket : sockets) close(socket);
  for (const pid_t child : children) {
    int status = 0;
    good &= waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  auto bad = driver.Import(open("/dev/null", O_RDWR | O_CLOEXEC), 2 << 20);
  printf("import of something else: %s\n", bad.status().ToString().c_str());
  auto huge = driver.Create(0, 16ull << 40, false);
  printf("create of 16 TiB: %s\n", huge.status().ToString().c_str());
  if (driver.kind() != BackendKind::kEmu) good &= !bad.ok() && !huge.ok();
  printf(good ? "all worked\n" : "SOMETHING FAILED\n");
  return good ? 0 : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  arguments.open.emu = {4, 64ull << 30};
  uint64_t number = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    const bool is_number = absl::SimpleAtoi(value, &number);
    if (flag == "--backend") {
      arguments.open.backend = value;
    } else if (flag == "--library") {
      arguments.open.library_path = value;
    } else if (flag == "--mib" && is_number) {
      arguments.mib = number;
    } else if (flag == "--rounds" && is_number) {
      arguments.rounds = static_cast<int>(number);
    } else if (flag == "--socket" && is_number) {
      arguments.socket = static_cast<int>(number);
    } else if (flag == "--rank" && is_number) {
      arguments.rank = static_cast<uint32_t>(number);
    } else if (flag == "--n-ranks" && is_number) {
      arguments.n_ranks = static_cast<uint32_t>(number);
    } else {
      fprintf(stderr, "driver_smoke [--backend auto|cuda|hip|emu] [--mib 1024] [--rounds 3]\n");
      return 2;
    }
  }
  return arguments.socket >= 0 ? Client(arguments) : Owner(arguments, argv);
}

}  // namespace
}  // namespace iris::driver

int main(int argc, char** argv) { return iris::driver::Main(argc, argv); }
