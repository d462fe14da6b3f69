#include "tests/integration/daemon_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "device/base/descriptors.h"
#include "device/base/process.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/security/credentials.h"

extern char** environ;

namespace iris::testing {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(60);

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout = kCallTimeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// fork, limits, exec. Only async-signal-safe calls between fork and exec.
pid_t Spawn(const std::vector<std::string>& argv, const std::string& output_path,
            const std::map<std::string, std::string>& environment, uint64_t max_open_files,
            int stderr_fd = -1) {
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  std::vector<std::string> env_text;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    if (environment.count(entry.substr(0, entry.find('='))) == 0) env_text.push_back(entry);
  }
  for (const auto& [key, value] : environment) env_text.push_back(absl::StrCat(key, "=", value));
  std::vector<char*> env;
  for (std::string& entry : env_text) env.push_back(entry.data());
  env.push_back(nullptr);
  const int output = ::open(output_path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (output < 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(stderr_fd >= 0 ? stderr_fd : output, STDERR_FILENO);
    if (max_open_files > 0) {
      struct rlimit limit = {max_open_files, max_open_files};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    ::execve(args[0], args.data(), env.data());
    ::_exit(127);
  }
  ::close(output);
  return pid;
}

// The exit code, 128 + signal, or -1 if the deadline came first.
int WaitExit(pid_t pid, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    int status = 0;
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (got < 0 || absl::Now() > deadline) return -1;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace

std::string ProgramPath(const std::string& path_from_root) {
  if (const char* dir = ::getenv("IRIS_TEST_BIN_DIR"); dir != nullptr) {
    return absl::StrCat(dir, "/", path_from_root);
  }
  if (::access(path_from_root.c_str(), X_OK) == 0) {
    return std::filesystem::absolute(path_from_root).string();
  }
  // Not under `bazel test`: beside this program's own runfiles.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return absl::StrCat(self, ".runfiles/iris/", path_from_root);
}

TempDir::TempDir() {
  char path[] = "/tmp/iris-test-XXXXXX";
  if (::mkdtemp(path) != nullptr) path_ = path;
}

TempDir::~TempDir() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon);
  daemon->log_dir_ = std::make_unique<TempDir>();
  if (options.runtime_dir.empty()) {
    daemon->own_dir_ = std::make_unique<TempDir>();
    daemon->runtime_dir_ = daemon->own_dir_->path() + "/run";
  } else {
    daemon->runtime_dir_ = options.runtime_dir;
  }
  std::vector<std::string> argv = {ProgramPath("server/irisd"),
                                   "--runtime-dir",
                                   daemon->runtime_dir_,
                                   "--backend",
                                   options.backend,
                                   "--emu-devices",
                                   absl::StrCat(options.n_devices),
                                   "--emu-memory",
                                   options.device_memory};
  daemon->supervises_ = options.supervised;
  if (options.supervised) argv.push_back("--supervise");
  if (!options.self_check) argv.push_back("--no-self-check");
  argv.insert(argv.end(), options.flags.begin(), options.flags.end());
  std::map<std::string, std::string> environment = options.environment;
  environment.emplace("NOTIFY_SOCKET", "");
  daemon->pid_ = Spawn(argv, daemon->log_dir_->path() + "/log", environment, options.max_open_files,
                       options.stderr_fd);
  if (daemon->pid_ < 0) return wire::ErrnoStatus(errno, "start irisd");

  const absl::Time deadline = absl::Now() + options.ready_timeout;
  while (absl::Now() < deadline) {
    if (!daemon->alive()) break;
    auto socket = Connect(daemon->admin_socket(), SOCK_STREAM);
    if (socket.ok()) {
      socket->Reset();
      if (daemon->GetStatus().ok()) return daemon;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::UnavailableError(
      absl::StrCat("irisd did not become ready; its log:\n", daemon->Log()));
}

Daemon::~Daemon() {
  admin_.reset();
  Kill();
}

bool Daemon::alive() {
  if (pid_ <= 0) return false;
  const int code = WaitExit(pid_, absl::ZeroDuration());
  if (code == -1 && ::kill(pid_, 0) == 0) return true;
  pid_ = -1;
  return false;
}

pid_t Daemon::Supervised() const {
  // Workers and port processes of an irisd that has ended are children, too.
  std::istringstream children(ReadFile(absl::StrCat("/proc/", pid_, "/task/", pid_, "/children")));
  for (pid_t child = -1; children >> child;) {
    const auto process = base::ReadProcess(child);
    if (process.has_value() && process->name == "irisd" && !process->exiting()) return child;
  }
  return -1;
}

absl::StatusOr<int> Daemon::Stop(absl::Duration timeout) {
  if (pid_ <= 0) return absl::FailedPreconditionError("irisd does not run");
  ::kill(pid_, SIGTERM);
  const int code = WaitExit(pid_, timeout);
  if (code == -1) {
    return absl::DeadlineExceededError(absl::StrCat("irisd did not stop; its log:\n", Log()));
  }
  pid_ = -1;
  return code;
}

void Daemon::Kill() {
  if (pid_ <= 0) return;
  if (supervises_) {  // what it supervises would stay
    ::kill(pid_, SIGSTOP);
    if (const pid_t child = Supervised(); child > 0) ::kill(child, SIGKILL);
  }
  ::kill(pid_, SIGKILL);
  WaitExit(pid_, absl::Seconds(30));
  pid_ = -1;
}

absl::Status Daemon::Suspend(absl::Duration timeout) {
  if (::kill(pid_, SIGSTOP) != 0) return absl::ErrnoToStatus(errno, "cannot stop irisd");
  const absl::Time deadline = absl::Now() + timeout;
  // The kernel tells the parent when the last thread has stopped.
  for (int status = 0; ::waitpid(pid_, &status, WUNTRACED | WNOHANG) != pid_;) {
    if (absl::Now() > deadline) return absl::DeadlineExceededError("irisd does not stop");
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

absl::Status Daemon::Resume() {
  if (::kill(pid_, SIGCONT) != 0) return absl::ErrnoToStatus(errno, "cannot resume irisd");
  return absl::OkStatus();
}

std::string Daemon::Log() const { return ReadFile(log_dir_->path() + "/log"); }

int Daemon::OpenFds() const { return base::CountDescriptors(pid_); }

uint64_t Daemon::RssBytes() const {
  for (absl::string_view line :
       absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid_, "/status")), '\n')) {
    if (!absl::ConsumePrefix(&line, "VmRSS:")) continue;
    line = absl::StripAsciiWhitespace(line);
    uint64_t kib = 0;
    if (absl::SimpleAtoi(line.substr(0, line.find(' ')), &kib)) return kib << 10;
  }
  return 0;
}

iris::v1::AdminService::Stub& Daemon::admin() {
  if (admin_ == nullptr) {
    admin_ = iris::v1::AdminService::NewStub(
        grpc::CreateChannel("unix:" + admin_socket(), grpc::InsecureChannelCredentials()));
  }
  return *admin_;
}

absl::StatusOr<iris::v1::GetStatusReply> Daemon::GetStatus() {
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(10));
  iris::v1::GetStatusReply reply;
  const grpc::Status status = admin().GetStatus(&context, iris::v1::GetStatusRequest(), &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::StatusOr<iris::v1::ListJobsReply> Daemon::ListJobs() {
  grpc::ClientContext context;
  SetDeadline(context);
  iris::v1::ListJobsReply reply;
  const grpc::Status status = admin().ListJobs(&context, iris::v1::ListJobsRequest(), &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::StatusOr<iris::v1::ListSessionsReply> Daemon::ListSessions() {
  grpc::ClientContext context;
  SetDeadline(context);
  iris::v1::ListSessionsReply reply;
  const grpc::Status status =
      admin().ListSessions(&context, iris::v1::ListSessionsRequest(), &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::Status Daemon::WaitIdle(int fds, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    auto status = GetStatus();
    if (!status.ok()) return status.status();
    const int open = OpenFds();
    if (status->n_sessions() == 0 && status->n_jobs() == 0 && status->heap_bytes() == 0 &&
        open <= fds) {
      return absl::OkStatus();
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "irisd still holds ", status->n_sessions(), " sessions, ", status->n_jobs(), " jobs, ",
          status->heap_bytes(), " heap bytes, ", open, " descriptors (wanted at most ", fds, ")"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

RunResult RunProgram(const std::vector<std::string>& argv, absl::Duration timeout,
                     const std::map<std::string, std::string>& environment) {
  TempDir dir;
  RunResult result;
  const pid_t pid = Spawn(argv, dir.path() + "/out", environment, 0);
  result.exit_code = WaitExit(pid, timeout);
  if (result.exit_code == -1) {
    ::kill(pid, SIGKILL);
    WaitExit(pid, absl::Seconds(30));
  }
  result.output = ReadFile(dir.path() + "/out");
  return result;
}

absl::StatusOr<wire::UniqueFd> Connect(const std::string& socket_path, int type) {
  wire::UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return wire::ErrnoStatus(errno, "make a socket");
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("socket path is too long: " + socket_path);
  }
  ::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  while (::connect(fd.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    return wire::ErrnoStatus(errno, "connect to " + socket_path);
  }
  return fd;
}

absl::StatusOr<wire::Frame> ReceiveFrameBefore(int socket, absl::Time deadline) {
  while (true) {
    auto frame = wire::ReceiveFrame(socket);
    if (frame.ok() || !wire::IsNoFrameYet(frame.status())) return frame;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no frame came");
    struct pollfd wait = {socket, POLLIN, 0};
    ::poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
}

bool WaitClosed(int socket, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    auto frame = ReceiveFrameBefore(socket, deadline);
    if (!frame.ok() && absl::IsUnavailable(frame.status())) return true;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<RawSession>> RawSession::Open(const std::string& session_socket) {
  auto socket = Connect(session_socket, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  return Handshake(*std::move(socket));
}

absl::StatusOr<std::unique_ptr<RawSession>> RawSession::Handshake(wire::UniqueFd socket) {
  auto session = std::make_unique<RawSession>();
  session->socket_ = std::move(socket);
  const int fd = session->socket_.get();
  // irisd may have refused and closed already: its reason is then there to be read.
  const absl::Status greeted = wire::SendFrame(fd, wire::FrameType::kHello, wire::HelloPayload{});
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (true) {
    auto frame = ReceiveFrameBefore(fd, deadline);
    if (!frame.ok()) return greeted.ok() ? frame.status() : greeted;
    switch (frame->type) {
      case wire::FrameType::kChallenge: {
        auto nonce = frame->As<wire::NoncePayload>();
        if (!nonce.ok()) return nonce.status();
        if (absl::Status sent = wire::SendFrame(fd, wire::FrameType::kChallengeReply, *nonce);
            !sent.ok()) {
          return sent;
        }
        break;
      }
      case wire::FrameType::kWelcome: {
        auto welcome = frame->As<wire::WelcomePayload>();
        if (!welcome.ok()) return welcome.status();
        if (frame->fds.size() != 1) return absl::InternalError("kWelcome without a socket");
        session->id_ = welcome->session_id;
        const int channel_fd = frame->fds[0].Release();
        ::fcntl(channel_fd, F_SETFL, ::fcntl(channel_fd, F_GETFL) | O_NONBLOCK);
        session->channel_ = grpc::CreateInsecureChannelFromFd("irisd", channel_fd);
        session->stub_ = iris::v1::HeapService::NewStub(session->channel_);
        return session;
      }
      case wire::FrameType::kError: {
        auto error = frame->As<wire::ErrorPayload>();
        if (!error.ok()) return error.status();
        return wire::StatusFromErrorPayload(*error);
      }
      default:
        return absl::InternalError("unexpected frame in the handshake");
    }
  }
}

iris::v1::JoinRequest JoinRequestOf(uint64_t session, const std::string& job, int rank, int n_ranks,
                                    uint64_t heap_bytes) {
  iris::v1::JoinRequest request;
  request.set_session_id(session);
  request.set_job(job);
  request.set_rank(rank);
  request.set_n_ranks(n_ranks);
  request.set_local_rank(rank);
  request.set_heap_bytes(heap_bytes);
  request.set_timeout_ms(20'000);
  return request;
}

iris::v1::MappedRequest MappedRequestOf(uint64_t session, const iris::v1::JoinReply& joined,
                                        uint64_t base) {
  iris::v1::MappedRequest request;
  request.set_session_id(session);
  request.set_job_id(joined.job_id());
  request.set_epoch(joined.epoch());
  request.set_base(base);
  return request;
}

iris::v1::OperateRequest OperateRequestOf(uint64_t session, const iris::v1::JoinReply& joined,
                                          uint64_t k) {
  iris::v1::OperateRequest request;
  request.set_session_id(session);
  request.set_job_id(joined.job_id());
  request.set_k(k);
  request.set_timeout_ms(20'000);
  return request;
}

iris::v1::OperateRequest AllocateRequestOf(uint64_t session, const iris::v1::JoinReply& joined,
                                           uint64_t k, uint64_t bytes, const std::string& name) {
  iris::v1::OperateRequest request = OperateRequestOf(session, joined, k);
  request.mutable_allocate()->set_bytes(bytes);
  request.mutable_allocate()->set_alignment_bytes(1024);
  request.mutable_allocate()->set_name(name);
  return request;
}

iris::v1::LeaveRequest LeaveRequestOf(uint64_t session, const iris::v1::JoinReply& joined) {
  iris::v1::LeaveRequest request;
  request.set_session_id(session);
  request.set_job_id(joined.job_id());
  return request;
}

absl::StatusOr<iris::v1::JoinReply> RawSession::Join(const iris::v1::JoinRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  iris::v1::JoinReply reply;
  const grpc::Status status = stub_->Join(&context, request, &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::StatusOr<iris::v1::MappedReply> RawSession::Mapped(const iris::v1::JoinReply& joined,
                                                         uint64_t base, const std::string& error) {
  grpc::ClientContext context;
  SetDeadline(context);
  iris::v1::MappedRequest request = MappedRequestOf(id_, joined, base);
  request.set_error(error);
  iris::v1::MappedReply reply;
  const grpc::Status status = stub_->Mapped(&context, request, &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::StatusOr<iris::v1::OperationResult> RawSession::Operate(
    const iris::v1::OperateRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  iris::v1::OperateReply reply;
  const grpc::Status status = stub_->Operate(&context, request, &reply);
  if (!status.ok()) return FromGrpc(status);
  const iris::v1::Outcome& outcome = reply.outcome();
  if (outcome.code() != 0) {
    return absl::Status(proto::CodeOf(outcome.code()), outcome.text());
  }
  return outcome.result();
}

absl::StatusOr<iris::v1::OperationResult> RawSession::Allocate(const iris::v1::JoinReply& joined,
                                                               uint64_t k, uint64_t bytes,
                                                               const std::string& name) {
  return Operate(AllocateRequestOf(id_, joined, k, bytes, name));
}

absl::Status RawSession::Leave(const iris::v1::JoinReply& joined) {
  grpc::ClientContext context;
  SetDeadline(context);
  iris::v1::LeaveReply reply;
  return FromGrpc(stub_->Leave(&context, LeaveRequestOf(id_, joined), &reply));
}

absl::StatusOr<std::vector<std::pair<wire::DescriptorRecord, wire::UniqueFd>>>
RawSession::ReceiveDescriptors(size_t n, absl::Duration timeout) {
  std::vector<std::pair<wire::DescriptorRecord, wire::UniqueFd>> received;
  const absl::Time deadline = absl::Now() + timeout;
  for (size_t counted = 0; counted < n;) {
    auto frame = ReceiveFrameBefore(socket(), deadline);
    if (!frame.ok()) return frame.status();
    if (frame->type == wire::FrameType::kError) {
      auto error = frame->As<wire::ErrorPayload>();
      return error.ok() ? wire::StatusFromErrorPayload(*error) : error.status();
    }
    if (frame->type != wire::FrameType::kDescriptors) continue;
    auto payload = frame->As<wire::DescriptorsPayload>();
    if (!payload.ok()) return payload.status();
    if (payload->count != frame->fds.size()) {
      return absl::InternalError(
          absl::StrCat("kDescriptors says ", payload->count, ", carries ", frame->fds.size()));
    }
    for (uint32_t i = 0; i < payload->count; ++i) {
      counted += payload->records[i].kind != static_cast<uint32_t>(wire::DescriptorKind::kLink);
      received.emplace_back(payload->records[i], std::move(frame->fds[i]));
    }
    if (absl::Status sent =
            wire::SendFrame(socket(), wire::FrameType::kAck, wire::AckPayload{payload->count});
        !sent.ok()) {
      return sent;
    }
  }
  return received;
}

}  // namespace iris::testing
