#include "client/ctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/permission.h"
#include "client/ctl/text.h"
#include "device/driver/device_nodes.h"
#include "device/driver/open.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"

namespace iris::ctl {
namespace {

// A rank holds a few descriptors per peer while it joins.
constexpr rlim_t kWantedFiles = 1024;
constexpr rlim_t kNeededFiles = 256;

constexpr absl::string_view kWords[] = {"ok", "warn", "fail"};  // of verdicts

Finding CheckVersion(const v1::GetStatusReply& status) {
  const std::string found =
      absl::StrCat("iris-ctl ", wire::kIrisVersion, ", irisd ", status.version());
  if (status.version() == wire::kIrisVersion) return Ok("versions", found);
  return Warn("versions", found, "install the same version of both, then restart irisd");
}

Finding CheckDevices(const absl::StatusOr<v1::ListDevicesReply>& reply) {
  if (!reply.ok()) {
    return Fail("devices", std::string(reply.status().message()), "look at irisd's log");
  }
  if (reply->devices().empty()) {
    return Fail("devices", "irisd has none", "give it devices: see docs/operations.md, Configure");
  }
  uint64_t free_bytes = 0;
  for (const auto& device : reply->devices()) {
    free_bytes += device.memory_bytes() - std::min(device.memory_bytes(), device.used_bytes());
  }
  const std::string found =
      absl::StrCat(reply->devices_size(), ", ", HumanBytes(free_bytes), " free");
  if (free_bytes == 0) return Warn("devices", found, "end a job that holds memory: iris-ctl heaps");
  return Ok("devices", found);
}

Finding CheckDescriptorsOfIrisd(const v1::GetStatusReply& status) {
  const std::string found = absl::StrCat(status.open_fds(), " of ", status.fd_limit(), " in use");
  if (uint64_t{status.open_fds()} * 10 > status.fd_limit() * 9) {
    return Warn("irisd's open files", found,
                "raise LimitNOFILE of irisd's unit, or ulimit -n before it starts");
  }
  return Ok("irisd's open files", found);
}

// Checks irisd's devices as this process sees them, or without irisd all that this process sees.
void CheckDevicePairs(const v1::ListDevicesReply& of_irisd, std::vector<Finding>& findings) {
  driver::PairCheckOptions options;
  if (!of_irisd.devices().empty()) {
    const auto& first = of_irisd.devices(0);
    options.open.backend = first.backend();
    if (driver::KindOf(first.backend()) == driver::BackendKind::kEmu) {
      options.open.emu.n_devices = static_cast<uint32_t>(of_irisd.devices_size());
      options.open.emu.memory_bytes_per_device = first.memory_bytes();
    }
  }
  const auto opened = driver::OpenDriver(options.open);
  if (!opened.ok()) {
    findings.push_back(Fail("device pairs", std::string(opened.status().message()),
                            "make irisd's devices visible to this process, too"));
    return;
  }
  options.open.backend = std::string(opened->driver->backend());
  if (opened->driver->devices().empty()) return;  // no irisd, and none here
  for (Finding& finding : PairFindings(driver::CheckPairs(*opened->driver, options))) {
    findings.push_back(std::move(finding));
  }
}

std::optional<Finding> Closed(const std::string& check, const std::string& path) {
  const auto problem = FindAccessProblem(path, kAskForSocket);
  if (!problem.has_value()) return std::nullopt;
  return Fail(check, absl::StrCat("permission denied: ", problem->what), problem->remedy);
}

// Returns Ok with the mode and the owner of the file, if it exists and is open to this user.
Finding CheckFile(const std::string& check, const std::string& path, const std::string& start,
                  struct stat* info) {
  if (auto closed = Closed(check, path); closed.has_value()) return *std::move(closed);
  if (stat(path.c_str(), info) != 0) {
    return Fail(check, absl::StrCat(path, ": ", strerror(errno)), start);
  }
  return Ok(check, absl::StrFormat("mode %04o, owner %s, group %s", info->st_mode & 07777,
                                   UserName(info->st_uid), GroupName(info->st_gid)));
}

Finding NoAnswer(const std::string& runtime_dir, const absl::Status& status) {
  const char* check = "irisd answers";
  if (absl::IsPermissionDenied(status)) {
    auto closed = Closed(check, absl::StrCat(runtime_dir, "/irisd.sock"));
    return closed.value_or(Fail(check, std::string(status.message()), kAskForSocket));
  }
  return Fail(check, std::string(status.message()),
              "start irisd, then ask again; its log says why it ended");
}

// Checks irisd. *emulated becomes true if irisd reports emulated devices.
void CheckIrisd(const absl::StatusOr<std::unique_ptr<AdminClient>>& client,
                const std::string& runtime_dir, std::vector<Finding>& findings, bool* emulated) {
  absl::StatusOr<v1::GetStatusReply> status =
      client.ok() ? (*client)->GetStatus() : absl::StatusOr<v1::GetStatusReply>(client.status());
  if (!status.ok()) {
    findings.push_back(NoAnswer(runtime_dir, status.status()));
    return CheckDevicePairs({}, findings);
  }
  findings.push_back(Ok("irisd answers", absl::StrCat("pid ", status->pid(), ", attestation ",
                                                      status->attestation())));
  const absl::StatusOr<bool> serving = (*client)->IsServing();
  if (serving.ok() && *serving && !status->stopping()) {
    findings.push_back(Ok("health", "SERVING"));
  } else {
    findings.push_back(Fail("health",
                            status->stopping() ? "irisd is stopping"
                            : serving.ok()     ? "not SERVING"
                                               : std::string(serving.status().message()),
                            "wait until irisd has started, or restart it; its log says more"));
  }
  findings.push_back(CheckVersion(*status));
  findings.push_back(CheckDescriptorsOfIrisd(*status));
  findings.push_back(WorkersFinding(*status));
  findings.push_back(
      NetworkFinding(status->network(), FindUcx(runtime_dir, status->network().ucx())));
  findings.push_back(FabricFinding(status->network()));
  const absl::StatusOr<v1::ListDevicesReply> devices =
      (*client)->All(&AdminClient::Stub::ListDevices);
  findings.push_back(CheckDevices(devices));
  *emulated = devices.ok() && devices->devices_size() > 0 &&
              driver::KindOf(devices->devices(0).backend()) == driver::BackendKind::kEmu;
  CheckDevicePairs(devices.value_or(v1::ListDevicesReply()), findings);

  const absl::Time start = absl::Now();
  const absl::Status trip = RoundTrip((*client)->runtime_dir());
  if (trip.ok()) {
    findings.push_back(
        Ok("job of two ranks", absl::StrCat("joined, allocated, wrote, read, left in ",
                                            absl::FormatDuration(absl::Trunc(
                                                absl::Now() - start, absl::Microseconds(100))))));
  } else {
    findings.push_back(
        Fail("job of two ranks", trip.ToString(), "look at irisd's log and at iris-ctl events"));
    return;
  }
  // Lines of emulated devices are released, and one device sends nothing over a link.
  if (!*emulated && devices.ok() && devices->devices_size() > 1) {
    findings.push_back(LineFinding(
        SearchTornLines((*client)->runtime_dir(), static_cast<uint32_t>(devices->devices_size()))));
  }
}

// False if all of UCX_TLS's transports are known to have no RDMA.
bool NamesRdma(const std::string& transports) {
  for (const absl::string_view each : absl::StrSplit(transports, ',', absl::SkipEmpty())) {
    if (each != "tcp" && each != "self" && !absl::EndsWith(each, "_copy") &&
        !absl::EndsWith(each, "_ipc")) {
      return true;
    }
  }
  return false;
}

}  // namespace

Finding WorkersFinding(const v1::GetStatusReply& status) {
  const char* check = "irisd's workers";
  if (status.worker_troubles_total() == 0) return Ok(check, "no trouble since irisd's start");
  return Warn(check,
              absl::StrCat(status.worker_troubles_total(), " ended or did not start; the last: ",
                           EscapeName(status.last_worker_trouble())),
              "look for worker_ended in iris-ctl events and in irisd's log");
}

absl::StatusOr<ucx::Library> FindUcx(const std::string& runtime_dir, const std::string& named) {
  struct stat info;
  const bool trusted =
      named.empty() || (stat(absl::StrCat(runtime_dir, "/irisd.sock").c_str(), &info) == 0 &&
                        (info.st_uid == 0 || info.st_uid == geteuid()));
  if (trusted) return ucx::Find(named);
  return absl::PermissionDeniedError(
      absl::StrCat("irisd, which another user runs, uses the UCX at ", EscapeName(named),
                   ": it was not loaded here"));
}

Finding NetworkFinding(const v1::NetworkSettings& settings,
                       const absl::StatusOr<ucx::Library>& found) {
  const char* check = "network";
  if (absl::IsPermissionDenied(found.status())) {
    return Warn(check, std::string(found.status().message()),
                "run iris-ctl doctor as the user who runs irisd");
  }
  if (!found.ok()) {
    // A site whose jobs have one node needs no UCX, unless irisd is set to use one.
    const bool wanted = !settings.ucx().empty();
    return {check, wanted ? Verdict::kFail : Verdict::kWarn, std::string(found.status().message()),
            wanted ? "correct network.ucx of irisd's configuration, or IRIS_UCX where irisd starts"
                   : "run deploy/setup.sh for jobs that span nodes; jobs of one node need nothing"};
  }
  const std::string ports = settings.port_min() == 0 ? "any ports"
                                                     : absl::StrCat("ports ", settings.port_min(),
                                                                    "-", settings.port_max());
  const std::string seen = absl::StrCat(
      "UCX ", found->version, " (", found->path, "), transports ",
      settings.transports().empty() ? "tcp" : EscapeName(settings.transports()),
      settings.devices().empty() ? "" : absl::StrCat(" by ", EscapeName(settings.devices())),
      settings.direct() ? ", nodes copy directly" : "",
      settings.interface().empty() ? " on the interface to the rendezvous"
                                   : absl::StrCat(" on ", EscapeName(settings.interface())),
      ", ", ports, ", a node is lost after ",
      absl::FormatDuration(absl::Milliseconds(settings.silence_ms())), ", ",
      settings.has_secret() ? "irisd has a secret for jobs that bring none"
                            : "jobs bring their secret",
      settings.etcd().empty()
          ? ""
          : absl::StrCat(", jobs without a rendezvous meet by etcd (", EscapeName(settings.etcd()),
                         ")", settings.etcd_tls() ? " with TLS" : "",
                         settings.etcd_certificate() ? " and a certificate" : ""));
  if (settings.direct() && !NamesRdma(settings.transports())) {
    return Warn(check, absl::StrCat(seen, ", although no transport is RDMA: UCX emulates copies"),
                "add rc, or the network's own, to network.transports, or turn network.direct off, "
                "which is faster then");
  }
  return Ok(check, seen);
}

Finding FabricFinding(const v1::NetworkSettings& settings) {
  const char* check = "fabric";
  if (settings.fabric().empty()) {
    return Ok(check, absl::StrCat("none: ranks of other nodes are reached by the network (",
                                  EscapeName(settings.no_fabric()), ")"));
  }
  return Ok(check, absl::StrCat("domain \"", EscapeName(settings.fabric()),
                                "\": ranks map the memory of those of its other nodes"));
}

Finding LineFinding(const absl::StatusOr<TornLines>& found) {
  const char* check = "whole lines";
  // Without lines, collectives of middle sizes are slower, but correct.
  const char* remedy =
      "set IRIS_CCL_LINES=0 for all ranks of every job: collectives then do without lines";
  if (!found.ok()) {
    return Warn(check, absl::StrCat("not tested: ", found.status().message()),
                absl::StrCat("run iris-ctl doctor again when the devices are idle, or ", remedy));
  }
  const std::string seen = absl::StrFormat(
      "%u torn of %u read, %u of them new, while %u were written between %u devices",
      found->seen.torn, found->seen.read, found->seen.changed, found->seen.written,
      found->n_devices);
  if (found->seen.torn != 0) return Fail(check, seen, remedy);
  if (found->seen.changed == 0) {
    return Warn(check, absl::StrCat("not tested: ", seen), remedy);
  }
  return Ok(check, seen);
}

Finding CheckRuntimeDir(const std::string& dir) {
  struct stat info;
  const std::string start = absl::StrCat("start irisd (irisd --runtime-dir ", dir,
                                         "), or name the directory of the one that runs with "
                                         "--runtime-dir");
  Finding finding = CheckFile("runtime directory", dir, start, &info);
  if (finding.verdict != Verdict::kOk) return finding;
  if (!S_ISDIR(info.st_mode)) {
    return Fail(finding.check, absl::StrCat(dir, " is no directory"),
                "remove it, or choose another one");
  }
  finding.detail = absl::StrCat(dir, ", ", finding.detail);
  if ((info.st_mode & S_IWOTH) == 0) return finding;
  return Fail(finding.check, finding.detail + ": anybody can replace irisd's sockets",
              absl::StrCat("chmod o-w ", dir, ", then restart irisd"));
}

Finding CheckSocket(const std::string& path) {
  struct stat info;
  Finding finding = CheckFile(absl::StrCat("socket ", path.substr(path.rfind('/') + 1)), path,
                              "start irisd", &info);
  if (finding.verdict != Verdict::kOk || S_ISSOCK(info.st_mode)) return finding;
  return Fail(finding.check, absl::StrCat(path, " is no socket"), "remove it, then restart irisd");
}

Finding CheckOpenFileLimit() {
  const char* check = "open files";
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found =
      limit.rlim_cur == RLIM_INFINITY ? "no limit" : absl::StrCat("at most ", limit.rlim_cur);
  const std::string remedy = absl::StrCat("ulimit -n ", kWantedFiles,
                                          " before a job starts, or raise nofile in limits.conf");
  if (limit.rlim_cur < kNeededFiles) return Fail(check, found, remedy);
  if (limit.rlim_cur < kWantedFiles) return Warn(check, found, remedy);
  return Ok(check, found);
}

// Checks that the kernel has futex_waitv, which returns EINVAL if there is nothing to wait for.
Finding CheckFutexWaitv() {
  const long result = syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC);
  if (result < 0 && errno == ENOSYS) {
    return Warn("futex_waitv", "this kernel lacks it: barriers wait for one peer after the other",
                "use Linux 5.16 or newer");
  }
  if (result < 0 && errno == EPERM) {
    return Warn("futex_waitv", "forbidden here",
                "allow futex_waitv in the container's seccomp profile");
  }
  return Ok("futex_waitv", "there");
}

Finding CheckMemfdSeals() {
  const char* check = "memfd seals";
  const char* remedy =
      "use Linux 3.17 or newer, and allow memfd_create in the container's seccomp profile";
  const wire::UniqueFd fd(memfd_create("iris-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Fail(check, absl::StrCat("memfd_create: ", strerror(errno)), remedy);
  if (ftruncate(fd.get(), 4096) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Fail(check, absl::StrCat("sealing: ", strerror(errno)), remedy);
  }
  if (ftruncate(fd.get(), 0) == 0) {
    return Fail(check, "a sealed memfd was truncated",
                "use another kernel: clients could crash each other");
  }
  return Ok(check, "hold");
}

Finding CheckPidfd() {
  const wire::UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (fd.valid()) return Ok("pidfd", "there");
  return Fail("pidfd", absl::StrCat("pidfd_open: ", strerror(errno)),
              "use Linux 5.3 or newer, and allow pidfd_open in the container's seccomp profile");
}

Finding CheckProc() {
  std::ifstream file("/proc/self/stat");
  pid_t pid = 0;
  if (!(file >> pid)) {
    return Fail("/proc", "cannot be read", "mount it: mount -t proc proc /proc");
  }
  if (pid != getpid()) {
    return Fail("/proc", absl::StrCat("shows pid ", pid, " for ", getpid()),
                "mount the /proc of this pid namespace");
  }
  return Ok("/proc", "there");
}

Finding CheckDeviceNodes(const std::string& dev, bool emulated) {
  const char* check = "device nodes";
  std::vector<std::string> found, denied, broken;
  int error = 0;  // of the first that is broken
  for (const driver::DeviceNode& node : driver::ProbeDeviceNodes(dev)) {
    found.push_back(node.path);
    if (node.error == EACCES || node.error == EPERM) {
      denied.push_back(node.path);
    } else if (node.error != 0) {
      if (error == 0) error = node.error;
      broken.push_back(node.path);
    }
  }
  if (found.empty()) return Ok(check, "none of a GPU's driver");
  if (denied.empty() && broken.empty()) return Ok(check, absl::StrJoin(found, ", "));
  Finding finding = Fail(check, "", "");
  if (!denied.empty()) {
    const auto problem = FindAccessProblem(
        denied[0], "have an administrator open the device nodes to this user (a udev rule)");
    finding.detail =
        absl::StrCat("permission denied: ", absl::StrJoin(denied, ", "), ": ",
                     problem.has_value() ? problem->what
                                         : "the modes let this user in, something else does not");
    finding.remedy = problem.has_value()
                         ? problem->remedy
                         : "give the container these devices, or the unit DeviceAllow for them";
  } else {
    finding.detail = absl::StrCat(absl::StrJoin(broken, ", "), ": ", strerror(error));
    finding.remedy = "see the kernel's log (dmesg): the driver does not serve this device";
  }
  // An irisd that emulates its devices needs no device nodes.
  if (emulated) finding.verdict = Verdict::kWarn;
  return finding;
}

std::vector<Finding> RunDoctor(const std::vector<std::string>& runtime_dirs) {
  // Connects first, so that every check sees an irisd that has just been started.
  const absl::StatusOr<std::unique_ptr<AdminClient>> client = AdminClient::Connect(runtime_dirs);
  // The first directory with a socket, else the first that is closed to this user: it may have one.
  std::string dir = runtime_dirs.front();
  bool is_closed = false;
  for (const std::string& each : runtime_dirs) {
    const bool there = access(absl::StrCat(each, "/irisd.sock").c_str(), F_OK) == 0;
    if (!there && (is_closed || errno != EACCES)) continue;
    dir = each;
    is_closed = true;
    if (there) break;
  }
  if (client.ok()) dir = (*client)->runtime_dir();
  std::vector<Finding> findings = {CheckProc(), CheckPidfd(), CheckMemfdSeals(), CheckFutexWaitv(),
                                   CheckOpenFileLimit()};
  const auto nodes_at = static_cast<std::ptrdiff_t>(findings.size());
  findings.push_back(CheckRuntimeDir(dir));
  if (findings.back().verdict != Verdict::kFail) {
    findings.push_back(CheckSocket(absl::StrCat(dir, "/session.sock")));
    findings.push_back(CheckSocket(absl::StrCat(dir, "/irisd.sock")));
  }
  bool emulated = false;
  CheckIrisd(client, dir, findings, &emulated);
  findings.insert(findings.begin() + nodes_at, CheckDeviceNodes("/dev", emulated));
  return findings;
}

std::vector<Finding> PairFindings(const driver::PairTable& table) {
  const char* check = "device pairs";
  const size_t n_failed = table.n_failed();
  const std::string proven =
      absl::StrCat(table.pairs.size() - n_failed, " of ", table.pairs.size(), " proven");
  double slowest = 0, fastest = 0;
  // Step, cause and remedy: pairs.
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<std::string>> failures;
  for (const driver::PairResult& pair : table.pairs) {
    if (!pair.ok) {
      failures[{pair.step, pair.cause, pair.remedy}].push_back(
          absl::StrCat(pair.from, "->", pair.to));
      continue;
    }
    slowest = slowest == 0 ? pair.bytes_per_second : std::min(slowest, pair.bytes_per_second);
    fastest = std::max(fastest, pair.bytes_per_second);
  }
  std::vector<Finding> findings;
  if (n_failed == 0) {
    findings.push_back(
        Ok(check, absl::StrFormat("%s, %.1f to %.1f GB/s", proven, slowest / 1e9, fastest / 1e9)));
  } else {
    findings.push_back(Fail(check, proven, "see the causes below"));
  }
  findings.back().pairs = table;
  for (const auto& [why, pairs] : failures) {
    const auto& [step, cause, remedy] = why;
    constexpr size_t kShown = 8;
    std::string which =
        absl::StrJoin(pairs.begin(), pairs.begin() + std::min(pairs.size(), kShown), ", ");
    if (pairs.size() > kShown) absl::StrAppend(&which, " and ", pairs.size() - kShown, " more");
    findings.push_back(
        Fail(absl::StrCat("pairs: ", step), absl::StrCat(which, ": ", cause), remedy));
  }
  return findings;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-4s  %-*s  %s\n", kWords[static_cast<size_t>(finding.verdict)],
                          static_cast<int>(width), finding.check, EscapeName(finding.detail));
    if (!finding.remedy.empty()) {
      absl::StrAppendFormat(&text, "      %-*s  remedy: %s\n", static_cast<int>(width), "",
                            EscapeName(finding.remedy));
    }
  }
  for (const Finding& finding : findings) {
    if (finding.pairs.has_value()) {
      absl::StrAppend(&text, "\n", PairTableText(*finding.pairs), "\n");
    }
  }
  const auto count = [&](Verdict verdict) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& finding) { return finding.verdict == verdict; });
  };
  absl::StrAppend(&text, count(Verdict::kOk), " ok, ", count(Verdict::kWarn), " warnings, ",
                  count(Verdict::kFail), " failed\n");
  return text;
}

nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json result = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    result.push_back({{"check", finding.check},
                      {"verdict", kWords[static_cast<size_t>(finding.verdict)]},
                      {"detail", finding.detail},
                      {"remedy", finding.remedy}});
    for (const auto& [name, number] : finding.numbers) result.back()[name] = number;
    if (!finding.pairs.has_value()) continue;
    auto pairs = nlohmann::ordered_json::array();
    for (const driver::PairResult& pair : finding.pairs->pairs) {
      pairs.push_back({{"from", pair.from},
                       {"to", pair.to},
                       {"ok", pair.ok},
                       {"step", pair.step},
                       {"cause", pair.cause},
                       {"remedy", pair.remedy},
                       {"bytes_per_second", pair.bytes_per_second}});
    }
    result.back()["pairs"] = std::move(pairs);
  }
  return result;
}

std::optional<Finding> FindingOf(absl::string_view json) {
  const auto read = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!read.is_object()) return std::nullopt;
  Finding finding;
  std::string word;
  for (const auto& [name, to] :
       {std::pair("check", &finding.check), std::pair("verdict", &word),
        std::pair("detail", &finding.detail), std::pair("remedy", &finding.remedy)}) {
    const auto found = read.find(name);
    if (found == read.end() || !found->is_string()) return std::nullopt;
    *to = *found;
  }
  const auto* const verdict = std::find(std::begin(kWords), std::end(kWords), word);
  if (verdict == std::end(kWords)) return std::nullopt;
  finding.verdict = static_cast<Verdict>(verdict - kWords);
  for (const auto& [name, value] : read.items()) {
    if (value.is_number()) finding.numbers.emplace_back(name, value);
  }
  return finding;
}

bool AnyFailed(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == Verdict::kFail; });
}

}  // namespace iris::ctl
