#include "server/host/limits.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "device/base/bytes.h"

namespace iris::server {
namespace {

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* cache[2];  // keys of memory.stat: file pages, which can be dropped
};
constexpr CgroupFiles kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr CgroupFiles kVersion2 = {
    "memory.max", "memory.current", {"inactive_file", "active_file"}};

struct Mount {
  std::string root;   // the mounted part of the file system
  std::string point;  // the path where it is mounted
};

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Returns nothing if the file cannot be read, or has no number ("max").
std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream in(path);
  uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// Returns the number after the key in a file with lines "key number" or "key: number kB".
std::optional<uint64_t> NumberOf(const std::string& path, absl::string_view key) {
  for (const std::string& line : LinesOf(path)) {
    std::istringstream in(line);
    std::string name;
    uint64_t number = 0;
    if (in >> name >> number && absl::StripSuffix(name, ":") == key) return number;
  }
  return std::nullopt;
}

std::optional<Mount> FindMount(const std::string& root, bool version2) {
  for (const std::string& line : LinesOf(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> mount = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> system = absl::StrSplit(halves[1], ' ');
    if (mount.size() < 5 || system.size() < 3) continue;
    const std::vector<std::string> options = absl::StrSplit(system[2], ',');
    const bool found = version2 ? system[0] == "cgroup2"
                                : system[0] == "cgroup" && std::find(options.begin(), options.end(),
                                                                     "memory") != options.end();
    if (found) return Mount{mount[3], mount[4]};
  }
  return std::nullopt;
}

void TakeTighter(const MemoryLeft& other, MemoryLeft* tightest) {
  if (other.left_bytes < tightest->left_bytes) *tightest = other;
}

void LookAtCgroups(const std::string& root, absl::string_view path, bool version2,
                   MemoryLeft* tightest) {
  const std::optional<Mount> mount = FindMount(root, version2);
  if (!mount.has_value()) return;
  // A container may see only its own cgroup, mounted as if it were the root.
  if (mount->root != "/" && !absl::ConsumePrefix(&path, mount->root)) path = "";
  if (absl::StrContains(path, "..")) path = "";
  const CgroupFiles& files = version2 ? kVersion2 : kVersion1;
  while (true) {
    while (absl::ConsumeSuffix(&path, "/")) {
    }
    const std::string folder = absl::StrCat(root, mount->point, path, "/");
    const std::optional<uint64_t> limit = NumberIn(folder + files.limit);
    const std::optional<uint64_t> usage = NumberIn(folder + files.usage);
    if (limit.has_value() && usage.has_value()) {
      uint64_t cache = 0;
      for (const char* key : files.cache)
        cache += NumberOf(folder + "memory.stat", key).value_or(0);
      const uint64_t used = *usage - std::min(cache, *usage);
      TakeTighter({*limit - std::min(used, *limit), *limit,
                   absl::StrCat("cgroup ", path.empty() ? "/" : path, " (", files.limit, ")")},
                  tightest);
    }
    if (path.empty()) return;
    path = path.substr(0, path.rfind('/'));
  }
}

}  // namespace

uint64_t RaiseDescriptorLimit() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    struct rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur;
}

absl::Status CheckLimits(uint64_t fd_limit) {
  // With fewer than 176 descriptors no two ranks can have a session each, nor can a worker have a
  // connection; with less than 72 MiB of address space threads cannot be started.
  constexpr uint64_t kMinDescriptors = 192, kMinAddressSpaceBytes = 128 << 20;
  if (fd_limit < kMinDescriptors) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this process may have ", fd_limit, " descriptors (RLIMIT_NOFILE), and irisd needs ",
        kMinDescriptors, " at least: set LimitNOFILE= of its unit, or ulimit -n before it starts"));
  }
  struct rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < kMinAddressSpaceBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this process may have ", base::SizeText(space.rlim_cur),
        " of address space (RLIMIT_AS), and irisd needs ", base::SizeText(kMinAddressSpaceBytes),
        " at least, more where GPUs' drivers are loaded: set LimitAS=infinity of its unit, or "
        "ulimit -v unlimited before it starts"));
  }
  return absl::OkStatus();
}

void EndForWant() {
  const char* text = nullptr;
  char buffer[512];
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    text =
        "irisd: cannot run: no memory is left: look at LimitAS= and MemoryMax= of its unit, or "
        "ulimit -v, and at what else runs on this machine\n";
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      text =
          "irisd: cannot run: the kernel starts no more threads: look at LimitNPROC=, TasksMax= "
          "and LimitAS= of its unit, or ulimit -u and -v\n";
    } else {
      snprintf(buffer, sizeof(buffer),
               "irisd: cannot run: %s: look at LimitNOFILE= of its unit, or ulimit -n\n",
               error.what());
      text = buffer;
    }
  } catch (...) {
  }
  if (text == nullptr) abort();
  struct pollfd takes = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&takes, 1, 0) == 1) (void)!write(STDERR_FILENO, text, strlen(text));
  _exit(1);
}

MemoryLeft TightestMemory(const std::string& root) {
  MemoryLeft tightest;
  const std::string meminfo = root + "/proc/meminfo";
  const std::optional<uint64_t> available_kib = NumberOf(meminfo, "MemAvailable");
  if (available_kib.has_value()) {
    tightest = {*available_kib << 10, NumberOf(meminfo, "MemTotal").value_or(0) << 10,
                "this machine (MemAvailable)"};
  }
  for (const std::string& line : LinesOf(root + "/proc/self/cgroup")) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool version1 =
        std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (parts[1].empty() || version1) LookAtCgroups(root, parts[2], !version1, &tightest);
  }
  return tightest;
}

absl::Status HostMemory::Promise(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto fits = [this, bytes](const MemoryLeft& memory) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const uint64_t taken = kKeptBytes + promised_bytes_;
    return memory.left_bytes >= taken && memory.left_bytes - taken >= bytes;
  };
  MemoryLeft memory = TightestMemory(root_);
  if (!fits(memory) && promised_bytes_ > 0) {
    // Memory of other promises may count twice, until all of it is taken.
    const auto all_taken = [this]()
                               ABSL_SHARED_LOCKS_REQUIRED(mu_) { return promised_bytes_ == 0; };
    mu_.Await(absl::Condition(&all_taken));
    memory = TightestMemory(root_);
  }
  if (!fits(memory)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        base::SizeText(bytes), " of the host's memory asked for, since devices are emulated: ",
        base::SizeText(memory.left_bytes), " of ", base::SizeText(memory.limit_bytes),
        " are left of ", memory.whose, ", of which irisd keeps ", base::SizeText(kKeptBytes),
        " free: take a smaller heap, do not preallocate it, or give irisd more (MemoryMax= of its "
        "unit, or the container's limit)"));
  }
  promised_bytes_ += bytes;
  return absl::OkStatus();
}

void HostMemory::Taken(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  promised_bytes_ -= bytes;
}

}  // namespace iris::server
