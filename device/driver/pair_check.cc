#include "device/driver/pair_check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "device/base/posix.h"
#include "device/base/unique_fd.h"

namespace iris::driver {
namespace {

constexpr char kChildFlag[] = "--iris-pair-check-child";
constexpr int kChildSocket = 3;
constexpr uint64_t kGpuBytes = 128 << 20;
constexpr uint64_t kPatternBytes = 1 << 20;
constexpr int kCopies = 4;  // the first warms up
constexpr absl::Duration kReapTimeout = absl::Seconds(2);
constexpr absl::Duration kMercy = absl::Milliseconds(500);

using SteadyTime = std::chrono::steady_clock::time_point;
SteadyTime Now() { return std::chrono::steady_clock::now(); }
SteadyTime After(absl::Duration timeout) { return Now() + absl::ToChronoNanoseconds(timeout); }

std::string ErrnoText(int error) { return std::generic_category().message(error); }

// Messages between parent and child, one a packet.

enum class Kind : uint32_t { kCreate, kUse, kStep, kDone };
enum class Step : uint32_t {
  // A child that fails in one of these two steps is useless.
  kStart,
  kOpen,
  kCreate,
  kExport,
  kContext,
  kImport,
  kMap,
  kWrite,
  kRead,
  kCopy,
};

struct Message {
  Kind kind = Kind::kDone;
  Step step = Step::kStart;  // in kStep the step that begins, in kDone the step that failed
  uint32_t from = 0;
  uint32_t to = 0;
  uint64_t bytes = 0;
  double bytes_per_second = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  char text[1020] = {};
};

const char* NameOf(Step step) {
  constexpr const char* kNames[] = {"start",  "open", "create", "export",    "context",
                                    "import", "map",  "write",  "read back", "copy"};
  return kNames[static_cast<uint32_t>(step)];
}

const char* RemedyOf(Step step, absl::StatusCode code) {
  if (code == absl::StatusCode::kResourceExhausted) {
    return "end what uses the device's memory, or raise the limit of open files (ulimit -n)";
  }
  switch (step) {
    case Step::kStart:
      return "allow this user one more process (ulimit -u), and the program to be executed again";
    case Step::kOpen:
      return "install or update the device driver; in a container, pass the devices to it";
    case Step::kCreate:
    case Step::kExport:
      return "update the device driver: it must export memory as a descriptor";
    case Step::kContext:
      return "look at the kernel's log (dmesg); end what has the device for itself, or reset it";
    case Step::kImport:
    case Step::kMap:
      return "check the links (fabric manager, IOMMU, P2P settings) and, in containers, that both "
             "processes see both devices";
    case Step::kWrite:
    case Step::kRead:
    case Step::kCopy:
      return "look at the kernel's log (dmesg); take the device out of service if it goes on";
  }
  return "look at the kernel's log (dmesg)";
}

bool Send(int socket, const Message& message, int fd = -1) {
  iovec data = {const_cast<Message*>(&message), sizeof(message)};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  const ssize_t n = base::Retry([&] { return sendmsg(socket, &header, MSG_NOSIGNAL); });
  return n == static_cast<ssize_t>(sizeof(message));
}

// Blocks. Returns false if the other end is closed, or sent something else. *fd is empty if the
// message had no descriptor.
bool Receive(int socket, Message* message, base::UniqueFd* fd) {
  iovec data = {message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t n = base::Retry([&] { return recvmsg(socket, &header, MSG_CMSG_CLOEXEC); });
  fd->Reset();
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); n > 0 && c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      int received = -1;
      memcpy(&received, CMSG_DATA(c), sizeof(int));
      fd->Reset(received);
    }
  }
  return n == static_cast<ssize_t>(sizeof(*message));
}

struct Failure {
  Step step = Step::kStart;
  absl::Status status;
};

class Child {
 public:
  explicit Child(const PairCheckOptions& options) : options_(options) {}
  ~Child() { End(kMercy); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Runs a request, in a new child if needed. Ends a child that hangs, is lost, or has no driver.
  std::optional<Failure> Do(const Message& request, int request_fd, Message* done,
                            base::UniqueFd* done_fd) {
    if (pid_ < 0) {
      if (auto failed = Start(); failed.has_value()) return failed;
    }
    if (!Send(socket_.get(), request, request_fd)) return Lost(Step::kStart);
    return Await(request.kind == Kind::kCreate ? Step::kCreate : Step::kContext,
                 options_.step_timeout, done, done_fd);
  }

 private:
  std::optional<Failure> Start() {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
      return Failure{Step::kStart,
                     absl::ResourceExhaustedError(absl::StrCat("socketpair: ", ErrnoText(errno)))};
    }
    const OpenOptions& open = options_.open;
    const std::string n_devices = absl::StrCat(open.emu.n_devices);
    const std::string memory = absl::StrCat(open.emu.memory_bytes_per_device);
    const std::string program = options_.program;
    const char* const argv[] = {program.c_str(),
                                kChildFlag,
                                open.backend.c_str(),
                                n_devices.c_str(),
                                memory.c_str(),
                                open.library_path.c_str(),
                                nullptr};
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      // In the fork of a process with threads, only async-signal-safe calls are allowed.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(126);
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      if (dup2(sockets[1], kChildSocket) < 0) _exit(126);
      if (sockets[1] == kChildSocket) fcntl(kChildSocket, F_SETFD, 0);
      syscall(SYS_close_range, kChildSocket + 1, ~0u, 0);
      execv(program.c_str(), const_cast<char* const*>(argv));
      _exit(127);
    }
    const int error = errno;
    close(sockets[1]);
    base::UniqueFd socket(sockets[0]);
    if (pid < 0) {
      return Failure{Step::kStart,
                     absl::ResourceExhaustedError(absl::StrCat("fork: ", ErrnoText(error)))};
    }
    pid_ = pid;
    socket_ = std::move(socket);
    Message opened;
    base::UniqueFd fd;
    return Await(Step::kStart, options_.start_timeout, &opened, &fd);
  }

  // Waits for kDone. Each step that begins has `timeout`.
  std::optional<Failure> Await(Step step, absl::Duration timeout, Message* done,
                               base::UniqueFd* done_fd) {
    SteadyTime deadline = After(timeout);
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Now()).count();
      pollfd ready = {socket_.get(), POLLIN, 0};
      const int n = left <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left));
      if (n < 0 && errno == EINTR) continue;
      if (n == 0 && left > 0) continue;
      if (n <= 0) {
        End();
        return Failure{step, absl::DeadlineExceededError(
                                 absl::StrCat("no end within ", absl::FormatDuration(timeout),
                                              ": the process that did it was killed"))};
      }
      if (!Receive(socket_.get(), done, done_fd)) return Lost(step);
      done->text[sizeof(done->text) - 1] = '\0';
      if (done->kind == Kind::kStep) {
        step = done->step;
        deadline = After(timeout);
        continue;
      }
      if (done->code == absl::StatusCode::kOk) return std::nullopt;
      const Failure failed{done->step, absl::Status(done->code, done->text)};
      // A child that could not open the driver is useless for the next request.
      if (failed.step == Step::kOpen) End();
      return failed;
    }
  }

  // Ends a child whose socket has failed, and returns the failure.
  std::optional<Failure> Lost(Step step) {
    const int status = End(kMercy);
    std::string how = "the process that did it has closed its socket";
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
      how = absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                         ") ended the process that did it");
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
      how = absl::StrCat("cannot execute ", options_.program);
    } else if (WIFEXITED(status)) {
      how = absl::StrCat("the process that did it ended with ", WEXITSTATUS(status));
    }
    return Failure{step, absl::UnavailableError(how)};
  }

  // Closes the child's socket and kills the child after `mercy`. Returns the wait status; SIGKILL
  // if the child does not end.
  int End(absl::Duration mercy = absl::ZeroDuration()) {
    if (pid_ < 0) return SIGKILL;
    socket_.Reset();
    const pid_t pid = std::exchange(pid_, -1);
    int status = SIGKILL;  // as a status of waitpid
    const SteadyTime kill_at = After(mercy);
    bool killed = false;
    const SteadyTime deadline = After(kReapTimeout);
    while (Now() < deadline) {
      if (waitpid(pid, &status, WNOHANG) == pid) return status;
      if (!killed && Now() >= kill_at) {
        kill(pid, SIGKILL);
        killed = true;
      }
      usleep(1000);
    }
    return SIGKILL;
  }

  const PairCheckOptions& options_;
  pid_t pid_ = -1;
  base::UniqueFd socket_;
};

class Worker {
 public:
  Worker(int socket, std::unique_ptr<GpuDriver> driver)
      : socket_(socket), driver_(std::move(driver)) {}

  int Run() {
    Message request;
    base::UniqueFd fd;
    while (Receive(socket_, &request, &fd)) {
      Message done;
      base::UniqueFd done_fd;
      const absl::Status status = request.kind == Kind::kCreate
                                      ? Create(request, &done_fd)
                                      : Use(request, std::move(fd), &done);
      done.kind = Kind::kDone;
      done.step = step_;
      done.code = status.code();
      absl::SNPrintF(done.text, sizeof(done.text), "%s", std::string(status.message()));
      if (!Send(socket_, done, done_fd.get())) return 1;
    }
    return 0;
  }

 private:
  void Begin(Step step) {
    step_ = step;
    Message message;
    message.kind = Kind::kStep;
    message.step = step;
    Send(socket_, message);
  }

  absl::Status Create(const Message& request, base::UniqueFd* fd) {
    created_.reset();
    Begin(Step::kCreate);
    auto memory = driver_->Create(request.to, request.bytes, /*prealloc=*/false);
    if (!memory.ok()) return memory.status();
    created_ = *std::move(memory);
    Begin(Step::kExport);
    const auto exported = created_->ExportFd(Access::kReadWrite);
    if (!exported.ok()) return exported.status();
    fd->Reset(*exported);
    return absl::OkStatus();
  }

  // Returns the address of memory of `device` that only this process uses, to copy from.
  absl::StatusOr<uint64_t> Source(uint32_t device, uint64_t bytes) {
    Local& local = sources_[device];
    if (local.mapping == nullptr) {
      auto memory = driver_->Create(device, bytes, /*prealloc=*/false);
      if (!memory.ok()) return memory.status();
      local.memory = *std::move(memory);
      auto reservation = driver_->Reserve(bytes, 1, 0);
      if (!reservation.ok()) return reservation.status();
      local.reservation = *std::move(reservation);
      auto mapping =
          driver_->Map(*local.reservation, 0, *local.memory, Access::kReadWrite, {device});
      if (!mapping.ok()) return mapping.status();
      local.mapping = *std::move(mapping);
      if (absl::Status s = driver_->Fill(local.mapping->address(), 1, bytes); !s.ok()) return s;
    }
    return local.mapping->address();
  }

  absl::Status Use(const Message& request, base::UniqueFd fd, Message* done) {
    const uint64_t bytes = request.bytes;
    Begin(Step::kContext);
    for (const uint32_t device : {request.to, request.from}) {
      if (absl::Status s = driver_->MakeCurrent(device); !s.ok()) return s;
    }
    Begin(Step::kImport);
    auto memory = driver_->Import(fd.Release(), bytes);
    if (!memory.ok()) return memory.status();
    Begin(Step::kMap);
    auto reservation = driver_->Reserve(bytes, 1, 0);
    if (!reservation.ok()) return reservation.status();
    std::vector<uint32_t> devices = {request.to};
    if (request.from != request.to) devices.push_back(request.from);
    auto mapping = driver_->Map(**reservation, 0, **memory, Access::kReadWrite, devices);
    if (!mapping.ok()) return mapping.status();
    const uint64_t address = (*mapping)->address();

    // Write a pattern that no other pair writes to both ends of the memory.
    const uint64_t n = std::min(bytes, kPatternBytes);
    std::vector<uint64_t> pattern(n / sizeof(uint64_t)), back(pattern.size());
    uint64_t word = 0x9e3779b97f4a7c15ull * (1 + request.from * 64ull + request.to);
    for (uint64_t& each : pattern)
      each = word = word * 6364136223846793005ull + 1442695040888963407ull;
    Begin(Step::kWrite);
    for (const uint64_t at : {uint64_t{0}, bytes - n}) {
      if (absl::Status s = driver_->Copy(reinterpret_cast<void*>(address + at), pattern.data(), n);
          !s.ok()) {
        return s;
      }
    }
    Begin(Step::kRead);
    if (absl::Status s = driver_->MakeCurrent(request.to); !s.ok()) return s;
    for (const uint64_t at : {uint64_t{0}, bytes - n}) {
      std::fill(back.begin(), back.end(), 0);
      if (absl::Status s =
              driver_->Copy(back.data(), reinterpret_cast<const void*>(address + at), n);
          !s.ok()) {
        return s;
      }
      const auto wrong = std::mismatch(pattern.begin(), pattern.end(), back.begin());
      if (wrong.first == pattern.end()) continue;
      return absl::DataLossError(
          absl::StrFormat("byte %d: %016x was written by device %d, device %d reads %016x",
                          at + 8 * (wrong.first - pattern.begin()), *wrong.first, request.from,
                          request.to, *wrong.second));
    }
    Begin(Step::kCopy);
    if (absl::Status s = driver_->MakeCurrent(request.from); !s.ok()) return s;
    const auto source = Source(request.from, bytes);
    if (!source.ok()) return source.status();
    for (int i = 0; i < kCopies; ++i) {
      const SteadyTime start = Now();
      if (absl::Status s = driver_->Copy(reinterpret_cast<void*>(address),
                                         reinterpret_cast<const void*>(*source), bytes);
          !s.ok()) {
        return s;
      }
      const double seconds = std::chrono::duration<double>(Now() - start).count();
      if (i > 0 && seconds > 0) {
        done->bytes_per_second =
            std::max(done->bytes_per_second, static_cast<double>(bytes) / seconds);
      }
    }
    return absl::OkStatus();
  }

  struct Local {
    std::unique_ptr<PhysicalMemory> memory;
    std::unique_ptr<Reservation> reservation;
    std::unique_ptr<Mapping> mapping;
  };

  const int socket_;
  const std::unique_ptr<GpuDriver> driver_;
  Step step_ = Step::kOpen;
  std::unique_ptr<PhysicalMemory> created_;
  std::map<uint32_t, Local> sources_;
};

}  // namespace

size_t PairTable::n_failed() const {
  return static_cast<size_t>(
      std::count_if(pairs.begin(), pairs.end(), [](const PairResult& pair) { return !pair.ok; }));
}

PairTable CheckPairs(GpuDriver& driver, const PairCheckOptions& options) {
  PairTable table;
  const size_t n = std::min<size_t>(driver.devices().size(), options.max_devices);
  table.devices.assign(driver.devices().begin(), driver.devices().begin() + n);
  table.pairs.resize(n * n);
  const SteadyTime deadline = After(options.timeout);
  Child owner(options), user(options);
  // A child that cannot be started, or cannot open the driver, would fail for the next pairs, too.
  std::optional<Failure> hopeless;
  for (const DeviceInfo& to : table.devices) {
    const uint64_t granularity = std::max<uint64_t>(to.granularity_bytes, 1);
    uint64_t bytes = options.bytes != 0                   ? options.bytes
                     : driver.kind() == BackendKind::kEmu ? to.granularity_bytes
                                                          : kGpuBytes;
    bytes = (bytes + granularity - 1) / granularity * granularity;
    base::UniqueFd fd;
    std::optional<Failure> not_created = hopeless;
    if (!not_created.has_value()) {
      Message create, done;
      create.kind = Kind::kCreate;
      create.to = to.index;
      create.bytes = bytes;
      not_created = owner.Do(create, -1, &done, &fd);
    }
    for (const DeviceInfo& from : table.devices) {
      PairResult& pair = table.pairs[from.index * n + to.index];
      pair.from = from.index;
      pair.to = to.index;
      const auto fail = [&pair](const char* step, absl::string_view cause, const char* remedy) {
        pair.step = step;
        pair.cause = std::string(cause);
        pair.remedy = remedy;
      };
      const auto failed_at = [&fail, &pair](const Failure& failed) {
        fail(NameOf(failed.step), failed.status.message(),
             RemedyOf(failed.step, failed.status.code()));
        pair.conclusive = failed.step != Step::kStart && !absl::IsResourceExhausted(failed.status);
      };
      if (Now() > deadline || (options.stop != nullptr && options.stop())) {
        fail("not tried", "the time of the whole check was up before",
             "remove the cause of the failures before it, then check again");
        continue;
      }
      if (from.index != to.index) {
        const absl::Status access = driver.CanAccessPeer(from.index, to.index);
        if (!access.ok()) {
          fail(
              "access", access.message(),
              "put ranks of a job on devices that are linked, or link these (P2P settings, IOMMU)");
          pair.conclusive = true;
          continue;
        }
      }
      if (not_created.has_value()) {
        failed_at(*not_created);
        continue;
      }
      Message use, done;
      use.kind = Kind::kUse;
      use.from = from.index;
      use.to = to.index;
      use.bytes = bytes;
      base::UniqueFd unused;
      std::optional<Failure> failed = hopeless;
      if (!failed.has_value()) failed = user.Do(use, fd.get(), &done, &unused);
      if (failed.has_value()) {
        failed_at(*failed);
        if (failed->step <= Step::kOpen) hopeless = failed;
        continue;
      }
      pair.ok = true;
      pair.bytes_per_second = done.bytes_per_second;
    }
    if (not_created.has_value() && not_created->step <= Step::kOpen) hopeless = not_created;
  }
  return table;
}

std::string PairTableText(const PairTable& table) {
  const size_t n = table.devices.size();
  std::string text = absl::StrFormat("%8s", "GB/s to");
  for (const DeviceInfo& to : table.devices) absl::StrAppendFormat(&text, " %7d", to.index);
  text += '\n';
  for (size_t from = 0; from < n; ++from) {
    absl::StrAppendFormat(&text, "%8s", absl::StrCat("from ", table.devices[from].index));
    for (size_t to = 0; to < n; ++to) {
      const PairResult& pair = table.pairs[from * n + to];
      absl::StrAppendFormat(
          &text, " %7s", pair.ok ? absl::StrFormat("%.1f", pair.bytes_per_second / 1e9) : "fail");
    }
    text += '\n';
  }
  return text;
}

bool IsPairCheckChild(int argc, char** argv) {
  return argc == 6 && strcmp(argv[1], kChildFlag) == 0;
}

int RunPairCheckChild(char** argv) {
  Message opening;
  opening.kind = Kind::kStep;
  opening.step = Step::kOpen;
  if (!Send(kChildSocket, opening)) return 1;
  OpenOptions open;
  open.backend = argv[2];
  open.emu.n_devices = static_cast<uint32_t>(strtoul(argv[3], nullptr, 10));
  open.emu.memory_bytes_per_device = strtoull(argv[4], nullptr, 10);
  open.library_path = argv[5];
  absl::StatusOr<OpenedDriver> opened = OpenDriver(open);
  Message done;
  done.step = Step::kOpen;
  done.code = opened.status().code();
  absl::SNPrintF(done.text, sizeof(done.text), "%s", std::string(opened.status().message()));
  if (!Send(kChildSocket, done) || !opened.ok()) return 1;
  return Worker(kChildSocket, std::move(opened->driver)).Run();
}

}  // namespace iris::driver
