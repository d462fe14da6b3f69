// irisd: builds its parts, runs until SIGTERM or SIGINT, and stops the parts in an order in which
// every client gets an answer. SIGHUP reloads the settings that can change. Exit codes: 0 stopped
// as requested, 1 could not run, 2 bad flags or configuration.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "device/driver/open.h"
#include "device/driver/pair_check.h"
#include "proto/wire/frame.h"
#include "proto/wire/version.h"
#include "server/account/core_memory.h"
#include "server/config/config.h"
#include "server/events/log.h"
#include "server/host/daemon.h"
#include "server/host/limits.h"
#include "server/job/clock.h"
#include "server/keep/descriptor_keeper.h"
#include "server/keep/inherited.h"
#include "server/keep/kept_name.h"
#include "server/port/ports.h"
#include "server/recording/recorder.h"
#include "server/rpc/services.h"
#include "server/sandbox/sanitizers.h"
#include "server/sandbox/seccomp_filter.h"
#include "server/sandbox/syscall_tables.h"
#include "server/session/runtime_dir.h"
#include "server/session/session_server.h"
#include "server/state/journal.h"
#include "server/state/state_command.h"
#include "server/supervise/child_program.h"
#include "server/supervise/supervisor.h"
#include "server/tenant/worker_program.h"
#include "server/tenant/worker_table.h"
#include "server/worker/helper_work.h"

namespace iris::server {
namespace {

constexpr auto kCallsEndWithin = absl::Seconds(2);
constexpr auto kLogLeavesWithin = absl::Seconds(1);
constexpr auto kWorkerReadyWithin = absl::Seconds(10);
constexpr auto kTellTroubleEvery = absl::Seconds(10);
// More memory than one input of the job machine can take.
constexpr size_t kReserveBytes = 32 << 20;

int Fail(const Logger& logger, const absl::Status& status) {
  logger.Error("irisd cannot run", {{"error", status.ToString()}});
  logger.Plain(absl::StrCat("irisd: ", status.message()));
  return 1;
}

// Returns pairs of devices that Iris cannot use; none without self_check. Emulated devices are all
// alike, so only the first two are checked.
UnusablePairs SelfCheck(const Config& config, const driver::OpenOptions& open,
                        driver::GpuDriver& driver, const Logger& logger) {
  UnusablePairs unusable;
  if (!config.self_check) return unusable;
  driver::PairCheckOptions options;
  options.open = open;
  options.open.backend = std::string(driver.backend());
  options.open.fabric = false;
  if (driver.kind() == driver::BackendKind::kEmu) options.max_devices = 2;
  options.stop = [] {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
  };
  const absl::Time start = absl::Now();
  const driver::PairTable table = driver::CheckPairs(driver, options);
  for (const driver::PairResult& pair : table.pairs) {
    if (pair.ok) continue;
    logger.Warn("a pair of devices fails", {{"from", pair.from},
                                            {"to", pair.to},
                                            {"step", pair.step},
                                            {"cause", pair.cause},
                                            {"remedy", pair.remedy}});
    if (!pair.conclusive) continue;
    unusable[{pair.from, pair.to}] =
        absl::FailedPreconditionError(absl::StrCat(pair.step, ": ", pair.cause, ": ", pair.remedy));
  }
  logger.Info(
      "self-check done",
      {{"pairs", table.pairs.size()},
       {"failed", table.n_failed()},
       {"took", absl::FormatDuration(absl::Trunc(absl::Now() - start, absl::Milliseconds(1)))}});
  return unusable;
}

// Counts and texts for GetStatus. Thread-safe.
struct SharedCounts {
  void NoteWorkerTrouble(absl::string_view what) {
    absl::MutexLock lock(&mu);
    ++counts.worker_troubles;
    counts.last_worker_trouble = std::string(what);
  }
  DaemonFacts::Counts Copy() {
    absl::MutexLock lock(&mu);
    return counts;
  }

  absl::Mutex mu;
  DaemonFacts::Counts counts ABSL_GUARDED_BY(mu);
};

// Returns a function that counts troubles, and logs one in each kTellTroubleEvery.
std::function<void(uint64_t, const absl::Status&)> Trouble(std::string_view text,
                                                           SharedCounts* shared,
                                                           const Logger* logger) {
  return [text, shared, logger, told = absl::InfinitePast()](uint64_t times,
                                                             const absl::Status& why) mutable {
    {
      absl::MutexLock lock(&shared->mu);
      ++shared->counts.closing_troubles;
    }
    const absl::Time now = SteadyNow();
    if (now - told < kTellTroubleEvery) return;
    told = now;
    logger->Warn(text, {{"reason", why.ToString()}, {"times", times}});
  };
}

// Returns the kind of file of device memory, which has no seals. Returns nothing for emulated
// devices, whose memory is in memfds.
absl::StatusOr<std::optional<FileKind>> KindOfDeviceMemory(driver::GpuDriver& driver) {
  if (driver.kind() == driver::BackendKind::kEmu || driver.devices().empty()) return std::nullopt;
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
      driver.Create(0, driver.devices()[0].granularity_bytes, /*prealloc=*/false);
  if (!memory.ok()) return memory.status();
  const absl::StatusOr<int> exported = (*memory)->ExportFd(driver::Access::kReadWrite);
  if (!exported.ok()) return exported.status();
  const wire::UniqueFd fd(*exported);
  std::optional<FileKind> kind = KindOf(fd.get());
  if (!kind.has_value()) return absl::InternalError("the kernel does not say what file it is");
  return kind;
}

WorkerTable::Setup WorkerSetup(const Config& config, const WorkerProgram* program,
                               const std::unique_ptr<Services>* services, Daemon* daemon,
                               const Logger* logger, const LookingLimits& looking,
                               SharedCounts* shared) {
  WorkerTable::Setup setup;
  setup.start = [program, shared](const Party& tenant) {
    WorkerProgram::Started started = program->Start(tenant.Text());
    if (!started.ok()) shared->NoteWorkerTrouble(started.status().message());
    return started;
  };
  setup.closing.start = [program] { return program->StartClosing(); };
  setup.closing.trouble = Trouble("connections of clients are slow to close", shared, logger);
  setup.looking.processes.start = [program, looking] { return program->StartLooking(looking); };
  setup.looking.processes.trouble =
      Trouble("descriptors of clients are slow to look at", shared, logger);
  setup.looking.closing = [shared, logger, told = absl::InfinitePast()](uint32_t n) mutable {
    {
      absl::MutexLock lock(&shared->mu);
      shared->counts.descriptors_closing = n;
    }
    const absl::Time now = SteadyNow();
    if (n == 0 || now - told < kTellTroubleEvery) return;
    told = now;
    logger->Warn("descriptors of clients do not close; irisd has not received them",
                 {{"descriptors", n}});
  };
  setup.serve = [services](const IncomingCall& call) { return (*services)->Serve(call); };
  setup.died = [daemon, shared](const Party& tenant, pid_t pid, const absl::Status& reason) {
    shared->NoteWorkerTrouble(reason.message());
    Event event;
    event.pid = pid;
    event.party = tenant;
    event.detail = event::WorkerEnded{tenant.Text(), std::string(reason.message())};
    daemon->Submit(Noted{std::move(event)});
  };
  setup.limits.idle_timeout = config.worker_idle_timeout;
  setup.is_operator = [finder = PartyFinder()](const Party& tenant) {
    return finder.IsOperator(tenant);
  };
  return setup;
}

// Reads the file at `path` that the setting `key` names; returns nothing without a path. With
// `is_secret`, nobody but irisd's user may have access to the file.
absl::StatusOr<std::string> ReadSettingsFile(absl::string_view key, const std::string& path,
                                             bool is_secret, size_t max_bytes) {
  if (path.empty()) return std::string();
  const std::string what = absl::StrCat(key, " ", path);
  const int no_link = is_secret ? O_NOFOLLOW : 0;
  // O_NONBLOCK: it waits for no pipe.
  const wire::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | no_link));
  struct stat info = {};
  if (!file.valid() || fstat(file.get(), &info) != 0) {
    return wire::ErrnoStatus(
        errno, absl::StrCat("read ", what, is_secret ? ", which may be no link" : ""));
  }
  if (is_secret && (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_mode & 077)) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, " must be a file of irisd's user, with mode 0600"));
  }
  std::string text(max_bytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = read(file.get(), &text[size], text.size() - size);
    if (n < 0) return wire::ErrnoStatus(errno, absl::StrCat("read ", what));
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has more than ", max_bytes, " bytes"));
  }
  text.resize(size);
  return text;
}

// Reads the secret of jobs that bring none.
absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  absl::StatusOr<std::string> text =
      ReadSettingsFile("network.secret_file", path, /*is_secret=*/true, /*max_bytes=*/1024);
  if (!text.ok() || path.empty()) return text;
  const absl::string_view secret = absl::StripTrailingAsciiWhitespace(*text);
  if (secret.size() >= 16 && secret.size() <= 64) return std::string(secret);
  return absl::InvalidArgumentError(absl::StrCat("network.secret_file ", path, " has ",
                                                 text->size(), " bytes: 16 to 64 are needed"));
}

// Reads what connections to etcd need for TLS.
absl::StatusOr<port::EtcdTls> ReadEtcdTls(const NetworkSettings& network) {
  constexpr size_t kMaxBytes = 1 << 20;  // a system's list of authorities has a quarter of this
  port::EtcdTls tls;
  const auto read = [](absl::string_view key, const std::string& path, absl::string_view begin,
                       std::string* to) {
    absl::StatusOr<std::string> text =
        ReadSettingsFile(key, path, key == "network.etcd_key", kMaxBytes);
    if (!text.ok()) return text.status();
    if (!path.empty() && !absl::StrContains(*text, begin)) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " ", path, " is not PEM: it has no line \"", begin, "\""));
    }
    *to = *std::move(text);
    return absl::OkStatus();
  };
  constexpr absl::string_view kCertificate = "-----BEGIN CERTIFICATE-----";
  absl::Status status = read("network.etcd_ca", network.etcd_ca, kCertificate, tls.mutable_ca());
  status.Update(read("network.etcd_certificate", network.etcd_certificate, kCertificate,
                     tls.mutable_certificate()));
  status.Update(read("network.etcd_key", network.etcd_key, " PRIVATE KEY-----", tls.mutable_key()));
  if (!status.ok()) return status;
  return tls;
}

absl::StatusOr<Ports::Setup> PortSetup(const Config& config, const WorkerProgram* program,
                                       const driver::GpuDriver& driver, DescriptorKeeper* keeper,
                                       Daemon* daemon) {
  absl::StatusOr<std::string> secret = ReadSecret(config.network.secret_file);
  if (!secret.ok()) return secret.status();
  const NetworkSettings& network = config.network;
  std::function<absl::StatusOr<port::EtcdTls>()> etcd_tls;
  if (!network.etcd_ca.empty()) {
    etcd_tls = [network] { return ReadEtcdTls(network); };
    if (const auto tls = etcd_tls(); !tls.ok()) return tls.status();  // better now than with a job
  }
  const absl::StatusOr<std::string> fabric = driver.FabricDomain();
  const char* const ucx = getenv("IRIS_UCX");
  return Ports::Setup{
      .start =
          [program](const StartPort& port) { return program->StartPort(port.name, port.caller); },
      .submit = [daemon](const Input& input) { daemon->Submit(input); },
      .backend = std::string(driver.backend()),
      .interface = network.interface,
      .port_min = network.ports.min,
      .port_max = network.ports.max,
      .ucx = network.ucx.empty() && ucx != nullptr ? ucx : network.ucx,
      .transports = network.transports,
      .devices = network.devices,
      .direct = network.direct,
      .etcd = network.etcd,
      .etcd_tls = std::move(etcd_tls),
      .fabric = !network.fabric ? "network.fabric is off"
                : fabric.ok()   ? *fabric
                                : std::string(fabric.status().message()),
      .secret = *std::move(secret),
      .silence = network.silence,
      .connect = config.jobs.join_timeout_max,
      .keeper = keeper};
}

// Returns kResourceExhausted if the service manager keeps too few descriptors for the smallest job.
absl::Status CheckKept(const DescriptorKeeper* keeper) {
  constexpr size_t kLeast = 16;
  if (keeper == nullptr || keeper->capacity() >= kLeast) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the service manager keeps ", keeper->capacity(), " descriptors (FDSTORE), and irisd needs ",
      kLeast,
      ", better thousands: raise FileDescriptorStoreMax= of irisd's unit, or keep none (0)"));
}

// Applies `limits` of the configuration to a process of `fd_limit` descriptors.
struct FittedLimits {
  // Descriptors that are kept for the next irisd are also limited by `keeper`, unless it is null.
  FittedLimits(const Config& config, uint64_t fd_limit, const DescriptorKeeper* keeper)
      : sessions(FitToDescriptors(config.sessions.limits, fd_limit)), jobs(config.jobs) {
    jobs.max_descriptors = DescriptorsForMemory(sessions, fd_limit);
    if (keeper == nullptr) return;
    constexpr uint64_t kListeners = 2;
    const uint64_t kept = keeper->capacity() - kListeners;
    sessions.max_sessions =
        static_cast<uint32_t>(std::min<uint64_t>(sessions.max_sessions, kept / 2));
    jobs.max_descriptors = std::min<uint64_t>(jobs.max_descriptors, kept - sessions.max_sessions);
  }
  AdmissionLimits sessions;
  JobLimits jobs;
};

// Returns the part of core.memory that fits. Half of the free memory is for other uses than heap.
uint64_t FittingCoreMemory(const Config& config) {
  return CoreMemory::Fitting(
      std::min<uint64_t>(config.core_memory_bytes, TightestMemory().left_bytes / 2));
}

// Reads the settings as at the start, and applies those that can change. On a mistake applies none.
void ReloadSettings(const std::vector<std::string>& args, uint64_t fd_limit,
                    const DescriptorKeeper* keeper, Config* running, Daemon* daemon,
                    SessionServer* sessions, const Logger& logger) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(args);
  if (!line.ok()) {
    for (const absl::string_view mistake : absl::StrSplit(line.status().message(), '\n')) {
      logger.Error("the settings stay as they are, because of a mistake", {{"mistake", mistake}});
    }
    return;
  }
  Reload reload = PlanReload(*running, line->config);
  *running = std::move(reload.config);
  logger.SetLevel(running->log_level);
  const FittedLimits limits(*running, fd_limit, keeper);
  daemon->Submit(LimitsChanged{limits.jobs});
  daemon->accounts().SetLimit(FittingCoreMemory(*running));
  sessions->SetLimits(limits.sessions);
  for (const std::string& key : reload.kept) {
    logger.Warn("a changed setting keeps its value until irisd is restarted", {{"setting", key}});
  }
  logger.Info("the settings are reloaded", {{"changed", absl::StrJoin(reload.changed, " ")}});
}

// Warns of the jobs that end with this irisd.
void WarnOfJobs(const Daemon& daemon, const Logger& logger) {
  size_t n_jobs = 0, n_ranks = 0;
  uint64_t heap_bytes = 0;
  daemon.Inspect([&](const JobMachine& machine) {
    n_jobs = machine.n_jobs();
    heap_bytes = machine.ledger().used_bytes_total();
    machine.VisitRanks({}, {}, [&n_ranks](const JobSnapshot&, const RankSnapshot& rank) {
      n_ranks += rank.session.value != 0 ? 1 : 0;
      return true;
    });
  });
  if (n_jobs == 0) return;
  logger.Warn(
      "jobs live: their ranks are told, and keep what they have mapped, so that kernels and host "
      "barriers go on; calls of irisd fail, and no later irisd has their heaps",
      {{"jobs", n_jobs}, {"ranks", n_ranks}, {"heap_bytes", heap_bytes}});
}

constexpr char kBeginsWithNothing[] =
    "irisd begins with nothing: what an earlier irisd had is lost";

// Returns the state of an earlier irisd if this one can continue with it. `goes_on` means that its
// descriptors were kept, `had_jobs` that some of them belonged to jobs. An error means that another
// irisd may be able to read the file.
absl::StatusOr<std::optional<StoredState>> ReadStoredState(bool goes_on, bool had_jobs,
                                                           const std::string& directory,
                                                           const Logger& logger) {
  absl::StatusOr<StoredState> stored = ReadJournal(directory);
  if (absl::IsNotFound(stored.status()) && !had_jobs) return std::nullopt;
  const absl::StatusOr<std::string> boot_id = BootId();
  if (!boot_id.ok()) return boot_id.status();
  std::string why;
  if (absl::IsDataLoss(stored.status()) || absl::IsNotFound(stored.status())) {
    why = stored.status().ToString();
  } else if (!stored.ok()) {
    return stored.status();
  } else if (stored->boot_id != *boot_id) {
    why = "its state is of an earlier boot";
  } else if (!goes_on) {
    why = "none of its descriptors were kept";
  } else {
    return *std::move(stored);
  }
  logger.Warn(kBeginsWithNothing, {{"reason", why}});
  return std::nullopt;
}

// Makes the daemon begin with the stored state, unless it is damaged. An error means that another
// irisd, or this one with other devices, may be able to continue with it.
absl::Status GoOnWith(const StoredState& stored, const std::string& directory,
                      driver::GpuDriver* driver, const Logger& logger, DaemonOptions* options) {
  absl::StatusOr<std::unique_ptr<JobMachine>> machine =
      Daemon::MachineOf(*stored.state, *options, driver);
  if (absl::IsDataLoss(machine.status())) {
    logger.Warn(kBeginsWithNothing, {{"reason", machine.status().ToString()}});
    return absl::OkStatus();
  }
  if (!machine.ok()) {
    return absl::Status(machine.status().code(),
                        absl::StrCat("go on where irisd ", stored.writer, " ended: ",
                                     machine.status().message(), ": mend that, or remove ",
                                     directory, "/", Journal::kFolder, " to give up its jobs"));
  }
  logger.Info("irisd goes on where an earlier one ended", {{"version", stored.writer},
                                                           {"generation", stored.owner.generation},
                                                           {"changes", stored.n_changes},
                                                           {"bytes", stored.bytes},
                                                           {"torn_bytes", stored.torn_bytes}});
  options->machine = *std::move(machine);
  return absl::OkStatus();
}

// Reports readiness to the service manager, which otherwise ends irisd.
void TellReady(const Logger& logger) {
  constexpr int kAttempts = 10;
  const char* const manager = getenv("NOTIFY_SOCKET");
  if (manager == nullptr || manager[0] == '\0') return;
  int said = 0;
  for (int i = 0; i < kAttempts; ++i) {
    said = sd_notify(0, "READY=1");
    if (said >= 0) return;
    absl::SleepFor(absl::Milliseconds(20));
  }
  logger.Error("the service manager cannot be told that irisd is ready",
               {{"error", wire::ErrnoStatus(-said, "send READY=1").ToString()}});
}

// Keeps the listening sockets, so that new clients wait for the next irisd.
void KeepListeners(RuntimeDir& directory, const Inherited& inherited, DescriptorKeeper* keeper) {
  const auto keep = [&inherited, keeper](const char* name, const RuntimeDir::Listener& listener) {
    keeper->Count(name, 1);
    const auto& twice = inherited.twice;
    if (!listener.made && std::find(twice.begin(), twice.end(), name) == twice.end()) return;
    keeper->Remove(name);  // descriptors of an earlier irisd
    (void)keeper->Store(name, {listener.fd.get()});
  };
  keep(kKeptSessionListener, directory.session_listener());
  keep(kKeptAdminListener, directory.admin_listener());
}

int Run(const std::vector<std::string>& args, Config config) {
  // Threads inherit the mask, so only sigwait below receives these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // the write fails instead

  const absl::Time started = absl::Now();
  const Logger logger(config.log_level, config.log_format);
  const uint64_t fd_limit = RaiseDescriptorLimit();
  const SystemClock clock;
  const absl::Status limited = CheckLimits(fd_limit);
  if (!limited.ok()) return Fail(logger, limited);

  // This precedes the start of any program, which would inherit the descriptors.
  std::vector<NamedDescriptor> lost;
  absl::StatusOr<std::vector<NamedDescriptor>> given = TakeInherited(&lost);
  if (!given.ok()) {
    logger.Error("what an earlier irisd kept is lost", {{"error", given.status().ToString()}});
    given = std::vector<NamedDescriptor>();
  }
  Inherited inherited = SortInherited(*std::move(given));
  const absl::StatusOr<std::unique_ptr<DescriptorKeeper>> opened_keeper =
      DescriptorKeeper::FromEnvironment();
  if (!opened_keeper.ok()) return Fail(logger, opened_keeper.status());
  DescriptorKeeper* const keeper = opened_keeper->get();
  if (const absl::Status enough = CheckKept(keeper); !enough.ok()) return Fail(logger, enough);
  const bool goes_on = keeper != nullptr && !inherited.empty();
  GiveUp(std::move(lost), keeper);
  if (keeper == nullptr) {
    std::vector<NamedDescriptor> sessions;
    for (auto& [id, fd] : std::exchange(inherited.sessions, {})) {
      sessions.push_back({"", std::move(fd)});
    }
    GiveUp(std::move(sessions), nullptr);
    inherited.segments.clear();
    inherited.pages.clear();
  }

  absl::StatusOr<std::unique_ptr<RuntimeDir>> runtime_dir = RuntimeDir::Create(
      config.runtime_dir,
      {std::move(inherited.session_listener), std::move(inherited.admin_listener)}, goes_on);
  if (!runtime_dir.ok()) return Fail(logger, runtime_dir.status());

  WorkerSettings worker_settings = config.workers;
  worker_settings.json_log = config.log_format == LogFormat::kJson;
  const absl::StatusOr<WorkerProgram> worker_program = WorkerProgram::Open(worker_settings);
  if (!worker_program.ok()) return Fail(logger, worker_program.status());

  absl::StatusOr<std::optional<StoredState>> stored = std::nullopt;
  if (keeper != nullptr) {
    const bool had_jobs =
        !inherited.segments.empty() || !inherited.pages.empty() || !inherited.sessions.empty();
    stored = ReadStoredState(goes_on, had_jobs, (*runtime_dir)->path(), logger);
  }
  if (!stored.ok()) return Fail(logger, stored.status());

  const bool daemon_goes_on = stored->has_value();
  // An irisd that continues tries a worker later, since clients wait for irisd.
  SharedCounts shared;
  const auto try_worker = [&] {
    absl::Status tried = worker_program->Try(kWorkerReadyWithin);
    if (tried.ok()) return tried;
    shared.NoteWorkerTrouble(tried.message());
    logger.Warn("a worker is slow to start, or does not: gRPC clients will wait",
                {{"error", tried.ToString()}});
    return absl::IsDeadlineExceeded(tried) ? absl::OkStatus() : tried;
  };
  if (!daemon_goes_on) {
    if (const absl::Status tried = try_worker(); !tried.ok()) return Fail(logger, tried);
  }

  driver::OpenOptions open;
  open.backend = config.backend;
  open.emu.n_devices = config.emu_devices;
  open.emu.memory_bytes_per_device = config.emu_memory_bytes;
  open.emu.link_bytes = driver::kEmuGranularityBytes;
  open.fabric = config.network.fabric;
  if (config.network.fabric) open.emu.fabric_domain = config.emu_fabric;
  absl::StatusOr<driver::OpenedDriver> opened = driver::OpenDriver(open);
  if (!opened.ok()) return Fail(logger, opened.status());
  driver::GpuDriver* const driver = opened->driver.get();
  if (config.backend == "auto" && driver->kind() == driver::BackendKind::kEmu) {
    for (const driver::BackendReport& report : opened->reports) {
      if (report.available) continue;
      logger.Warn("no device of a backend, so devices are emulated on CPUs",
                  {{"backend", report.backend}, {"reason", report.detail}});
    }
  }

  DaemonOptions daemon_options;
  const FittedLimits limits(config, fd_limit, keeper);
  daemon_options.limits = limits.jobs;
  daemon_options.core_memory_bytes = FittingCoreMemory(config);
  CoreMemory::KeepReserve(std::min<size_t>(kReserveBytes, daemon_options.core_memory_bytes / 8));
  const bool pairs_checked = daemon_goes_on && (*stored)->owner.pairs_checked;
  if (!pairs_checked) daemon_options.unusable = SelfCheck(config, open, *driver, logger);
  SessionOptions session_options = config.sessions;
  session_options.limits = limits.sessions;
  if (!config.record_file.empty()) {
    absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Create(config.record_file);
    if (!recorder.ok()) return Fail(logger, recorder.status());
    daemon_options.recorder = *std::move(recorder);
    logger.Info("every input is recorded", {{"file", config.record_file}});
  }
  LookingLimits looking;
  looking.max_closing = session_options.limits.max_closing;
  looking.max_closing_per_tenant = session_options.limits.max_closing_per_tenant;
  const absl::StatusOr<std::optional<FileKind>> device_memory = KindOfDeviceMemory(*driver);
  if (!device_memory.ok()) {
    logger.Warn("ranks cannot register memory of devices: none could be made to see what it is",
                {{"error", device_memory.status().ToString()}});
  } else {
    looking.device_memory = *device_memory;
  }
  Keeping keeping{keeper, (*runtime_dir)->path(), {SessionServer::RandomNumber(), 1, false}};
  if (daemon_goes_on) {
    const absl::Status gone_on =
        GoOnWith(**stored, keeping.directory, driver, logger, &daemon_options);
    if (!gone_on.ok()) return Fail(logger, gone_on);
    if (daemon_options.machine != nullptr) {
      keeping.owner = (*stored)->owner;
      ++keeping.owner.generation;
    }
    stored = std::nullopt;
  }
  keeping.owner.pairs_checked =
      pairs_checked || (config.self_check && daemon_options.unusable.empty());
  if (keeper != nullptr) {
    session_options.keeper = keeper;
    session_options.daemon_id = keeping.owner.daemon_id;
    session_options.generation = keeping.owner.generation;
  }
  std::unique_ptr<Services> services;  // the daemon's answers use it until the end
  Daemon daemon(std::move(daemon_options), driver, &clock, &logger);
  // From now on the daemon has jobs. If this irisd cannot continue, the next one may: leave
  // everything in place.
  const auto cannot_go_on = [&](const absl::Status& why) {
    const int code = Fail(logger, why);
    if (goes_on) {
      (void)logger.Flush(kLogLeavesWithin);
      _exit(code);
    }
    daemon.SetSessionOutput(nullptr);
    daemon.SetPortOutput(nullptr);
    return code;
  };
  if (uint64_t watchdog_us = 0; sd_watchdog_enabled(0, &watchdog_us) > 0) {
    session_options.heartbeat_every = absl::Microseconds(watchdog_us) / 4;
    // The session thread sends it after locking the machine, which shows that neither hangs.
    session_options.heartbeat = [&daemon] {
      daemon.Inspect([](const JobMachine& /*machine*/) {});
      sd_notify(0, "WATCHDOG=1");
    };
  }
  if (keeper != nullptr) KeepListeners(**runtime_dir, inherited, keeper);
  absl::StatusOr<std::unique_ptr<SessionServer>> sessions = SessionServer::Create(
      session_options, std::move((*runtime_dir)->session_listener().fd),
      std::move((*runtime_dir)->admin_listener().fd), &daemon,
      [&](Poller* poller, const DeferredClose& closer) {
        WorkerTable::Setup setup =
            WorkerSetup(config, &*worker_program, &services, &daemon, &logger, looking, &shared);
        setup.closer = closer;
        return std::make_unique<WorkerTable>(poller, std::move(setup));
      },
      [&services](const IncomingCall& call) { return services->Serve(call); }, &logger);
  if (!sessions.ok()) return cannot_go_on(sessions.status());
  SessionServer* const session_server = sessions->get();

  DaemonFacts facts;
  facts.runtime_dir = (*runtime_dir)->path();
  facts.attestation = session_server->attestation_in_use();
  facts.started = started;
  for (const driver::BackendReport& report : opened->reports) {
    facts.backends.push_back({report.backend, report.available, report.detail});
  }
  facts.counts = [session_server, &shared, &logger] {
    DaemonFacts::Counts counts = shared.Copy();
    counts.sessions_total = session_server->sessions_total();
    counts.sessions_refused = session_server->sessions_refused();
    counts.descriptors_closing += session_server->n_closing();
    counts.log_lines_left_out = logger.lines_left_out();
    return counts;
  };
  facts.door_use = [session_server](const Account& account) {
    return session_server->UseOf(account);
  };
  facts.door_limits_of_one = [session_server] { return session_server->LimitsOfOne(); };
  facts.door_limits_of_all = [session_server] { return session_server->LimitsOfAll(); };
  absl::StatusOr<Ports::Setup> port_setup =
      PortSetup(config, &*worker_program, *driver, keeper, &daemon);
  if (!port_setup.ok()) return cannot_go_on(port_setup.status());
  facts.network = {port_setup->interface,
                   port_setup->port_min,
                   port_setup->port_max,
                   port_setup->ucx,
                   port_setup->transports,
                   port_setup->devices,
                   port_setup->direct,
                   port_setup->silence,
                   !port_setup->secret.empty(),
                   absl::StrJoin(port_setup->etcd, ","),
                   !config.network.etcd_ca.empty(),
                   !config.network.etcd_certificate.empty(),
                   "",
                   ""};
  (driver->FabricDomain().ok() ? facts.network.fabric : facts.network.no_fabric) =
      port_setup->fabric;
  services = std::make_unique<Services>(&daemon, std::move(facts));
  const absl::StatusOr<std::unique_ptr<Ports>> ports =
      Ports::Create(*std::move(port_setup), &logger);
  if (!ports.ok()) return cannot_go_on(ports.status());

  if (config.workers.seccomp && !kSanitized) {
    // The devices are open and checked; no client is connected yet.
    const absl::Status confined =
        InstallFilter(CoreSyscalls(worker_program->fd(), worker_program->port_fd()));
    if (!confined.ok()) return cannot_go_on(confined);
  }
  daemon.SetSessionOutput(session_server);
  daemon.SetPortOutput(ports->get());
  if (keeper != nullptr) {
    session_server->DropForeign(&inherited.sessions);
    const absl::Status kept = daemon.Keep(keeping, &inherited, session_server->CloseOf());
    if (!kept.ok()) return cannot_go_on(kept);
    (*runtime_dir)->Leave(true);
    const absl::Status restored = session_server->Restore(&inherited.sessions);
    if (!restored.ok()) return cannot_go_on(restored);
    daemon.CloseOrphans(keeper, &inherited);
  }
  session_server->Start();
  TellReady(logger);
  logger.Info("irisd serves", {{"version", wire::kIrisVersion},
                               {"pid", getpid()},
                               {"runtime_dir", (*runtime_dir)->path()},
                               {"backend", std::string(driver->backend())},
                               {"devices", driver->devices().size()},
                               {"attestation", session_server->attestation_in_use()},
                               {"fd_limit", fd_limit},
                               {"max_sessions", session_server->options().limits.max_sessions}});

  if (daemon_goes_on) (void)try_worker();
  int number = 0;
  for (sigwait(&signals, &number); number == SIGHUP; sigwait(&signals, &number)) {
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%lld",
               static_cast<long long>(absl::ToUnixMicros(SteadyNow())));
    ReloadSettings(args, fd_limit, keeper, &config, &daemon, session_server, logger);
    TellReady(logger);
  }
  sd_notify(0, "STOPPING=1");
  if (number == SIGTERM && keeper != nullptr && keeper->Retry().ok()) {
    // Nothing is closed or reported: the next irisd continues.
    logger.Info("irisd hands over to the next irisd", {{"kept", keeper->n_kept()}});
    (void)logger.Flush(kLogLeavesWithin);
    _exit(EX_TEMPFAIL);
  }
  const std::string reason = number == SIGINT ? "SIGINT" : "SIGTERM";
  logger.Info("irisd stops", {{"reason", reason}});
  WarnOfJobs(daemon, logger);
  (*runtime_dir)->RemoveSockets();
  (*runtime_dir)->Leave(false);
  daemon.StopKeeping();
  daemon.Stop(reason);
  // Delivers answers first, then ends connections: a client that does not read cannot delay this.
  services->Drain(kCallsEndWithin);
  session_server->Stop();
  services->Stop();
  daemon.SetSessionOutput(nullptr);
  daemon.SetPortOutput(nullptr);
  logger.Info("irisd has stopped");
  return 0;
}

// Sets the tunable that disables malloc's thread caches in programs started from now on. Returns
// false if it was already set.
bool WantNoThreadCaches() {
  constexpr char kName[] = "GLIBC_TUNABLES";
  constexpr absl::string_view kTunable = "glibc.malloc.tcache_count";
  const char* const value = getenv(kName);
  const std::string others = value == nullptr ? "" : value;
  if (absl::StrContains(others, kTunable)) return false;
  setenv(kName, absl::StrCat(others, others.empty() ? "" : ":", kTunable, "=0").c_str(), 1);
  return true;
}

// Executes this program again, with the same arguments, if malloc has thread caches: each would
// hold up to 230 KiB that clients made irisd allocate, and the pages around it. They can be
// disabled only before a program starts. Returns if there are none, or if the execution fails:
// irisd then takes more memory.
void LeaveOutThreadCaches(char** argv) {
  // The C library ignores tunables in a program whose file gives it privileges.
  if (kSanitized || getauxval(AT_SECURE) != 0 || !WantNoThreadCaches()) return;
  // Lists of processes show the name of this path.
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (n <= 0) return;
  path[n] = '\0';
  execv(path, argv);
}

absl::StatusOr<std::string> RuntimeDirOf(const Config& config) {
  if (!config.runtime_dir.path.empty()) return config.runtime_dir.path;
  return DefaultRuntimeDir();
}

// Runs `irisd state COMMAND` or `irisd --check-state`.
int LookAtState(const CommandLine& line) {
  const auto look = [&line]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<std::string> runtime_dir = RuntimeDirOf(line.config);
    if (!runtime_dir.ok()) return runtime_dir.status();
    if (line.state.empty()) return CheckStoredState(*runtime_dir, line.config.jobs);
    return RunStateCommand(line.state, *runtime_dir);
  };
  const absl::StatusOr<std::string> told = look();
  if (!told.ok()) {
    fprintf(stderr, "irisd: %s\n", std::string(told.status().message()).c_str());
    return 1;
  }
  if (fwrite(told->data(), 1, told->size(), stdout) == told->size() && fflush(stdout) == 0) {
    return 0;
  }
  perror("irisd: write to standard output");
  return 1;
}

// Runs `irisd --supervise`: starts irisd with the other flags, and restarts it when it dies.
int SuperviseIrisd(const std::string& argv0, std::vector<std::string> args, const Config& config) {
  const Logger logger(config.log_level, config.log_format);
  SupervisorOptions options;
  const char* const path = getenv("PATH");
  absl::StatusOr<std::string> program = FindProgram(argv0, path == nullptr ? "" : path);
  if (!program.ok()) return Fail(logger, program.status());
  options.program = *std::move(program);
  std::erase(args, "--supervise");
  options.arguments = std::move(args);
  absl::StatusOr<std::string> runtime_dir = RuntimeDirOf(config);
  if (!runtime_dir.ok()) return Fail(logger, runtime_dir.status());
  options.runtime_dir = *std::move(runtime_dir);
  options.most_kept = MostKept(RaiseDescriptorLimit());
  (void)WantNoThreadCaches();  // irisd would execute itself again
  return Supervise(options, logger);
}

int Main(int argc, char** argv) {
  std::set_terminate(EndForWant);
  // Few threads allocate: an arena for each would waste memory.
  mallopt(M_ARENA_MAX, 1);
  // Large blocks, such as messages, return to the kernel when they are freed. By default the C
  // library raises this threshold.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  // Smaller blocks stay: growth costs a page fault for each page.
  mallopt(M_TOP_PAD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  // Abseil's search for deadlocks takes time, and memory that is never freed. ThreadSanitizer looks
  // for them in tests.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const std::vector<std::string> args(argv + 1, argv + argc);
  absl::StatusOr<CommandLine> line = ParseCommandLine(args);
  if (!line.ok()) {
    for (const absl::string_view mistake : absl::StrSplit(line.status().message(), '\n')) {
      fprintf(stderr, "irisd: %s\n", std::string(mistake).c_str());
    }
    return 2;
  }
  if (line->exit) {
    fputs(line->output.c_str(), stdout);
    return 0;
  }
  if (!line->state.empty() || line->check_state) return LookAtState(*line);
  if (line->supervise) return SuperviseIrisd(argv[0], args, line->config);
  LeaveOutThreadCaches(argv);
  return Run(args, std::move(line->config));
}

}  // namespace
}  // namespace iris::server

int main(int argc, char** argv) {
  if (iris::driver::IsPairCheckChild(argc, argv)) return iris::driver::RunPairCheckChild(argv);
  return iris::server::Main(argc, argv);
}
