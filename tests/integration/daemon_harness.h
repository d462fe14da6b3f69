// What tests need of a real irisd: start it as a process in a directory of its own, speak to it by
// hand, look at what it holds, and end it. Also RawSession: a client that does only what it is
// told, so that a test can misbehave.
//
// Not thread-safe, except where said. Everything has a deadline of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.grpc.pb.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "proto/status/status.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::testing {

// Path of a program of this build: beside the test in its runfiles ("server/irisd"), or under
// $IRIS_TEST_BIN_DIR.
std::string ProgramPath(const std::string& path_from_root);

// A directory under /tmp with a short name (Unix sockets need short paths), removed with all in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns true once `done()` is, and false after `timeout`.
template <typename F>
bool Eventually(F done, absl::Duration timeout = absl::Seconds(60)) {
  const absl::Time end = absl::Now() + timeout;
  while (!done()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

struct DaemonOptions {
  std::string backend = "emu";
  uint32_t n_devices = 8;
  std::string device_memory = "4GiB";
  bool self_check = false;         // of every pair of devices before it serves
  std::vector<std::string> flags;  // after the ones above
  std::string runtime_dir;         // empty: one of its own, removed at the end
  bool supervised = false;         // by a parent process that starts it again
  uint64_t max_open_files = 0;     // RLIMIT_NOFILE of irisd; 0: as inherited
  int stderr_fd = -1;              // what irisd has as stderr; -1: a file, for Log()
  std::map<std::string, std::string> environment;  // added to this process's
  absl::Duration ready_timeout = absl::Seconds(30);
};

class Daemon {
 public:
  // Starts irisd and waits until it answers. The error has irisd's log.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options = {});
  // Kills what still runs.
  ~Daemon();

  pid_t pid() const { return pid_; }
  const std::string& runtime_dir() const { return runtime_dir_; }
  std::string session_socket() const { return runtime_dir_ + "/session.sock"; }
  std::string admin_socket() const { return runtime_dir_ + "/irisd.sock"; }
  bool alive();
  // The irisd that runs under this one, which supervises it; -1: none does now.
  pid_t Supervised() const;

  // SIGTERM, then waits. The exit code; 128 + signal if a signal ended it.
  absl::StatusOr<int> Stop(absl::Duration timeout = absl::Seconds(30));
  void Kill();
  // SIGSTOP; returns when every thread of it stands still, which is later than kill() returns.
  absl::Status Suspend(absl::Duration timeout = absl::Seconds(30));
  // SIGCONT.
  absl::Status Resume();

  // What it wrote to stderr so far.
  std::string Log() const;
  // From /proc.
  int OpenFds() const;
  uint64_t RssBytes() const;

  // A connection on irisd.sock, made when it is first used.
  iris::v1::AdminService::Stub& admin();
  // Closes it. The next use makes another.
  void Disconnect() { admin_.reset(); }
  absl::StatusOr<iris::v1::GetStatusReply> GetStatus();
  absl::StatusOr<iris::v1::ListJobsReply> ListJobs();
  absl::StatusOr<iris::v1::ListSessionsReply> ListSessions();

  // Waits until irisd holds no session, job and heap byte, and at most `fds` descriptors. The error
  // says what is left.
  absl::Status WaitIdle(int fds, absl::Duration timeout = absl::Seconds(30));

 private:
  Daemon() = default;
  pid_t pid_ = -1;
  bool supervises_ = false;
  std::unique_ptr<TempDir> own_dir_;
  std::string runtime_dir_;
  std::unique_ptr<TempDir> log_dir_;
  std::unique_ptr<iris::v1::AdminService::Stub> admin_;
};

// Runs irisd and waits for its end: for what must fail at once.
struct RunResult {
  int exit_code = -1;
  std::string output;  // stdout and stderr
};
RunResult RunProgram(const std::vector<std::string>& argv, absl::Duration timeout,
                     const std::map<std::string, std::string>& environment = {});

// A connected socket; no handshake yet.
absl::StatusOr<wire::UniqueFd> Connect(const std::string& socket_path, int type);

// Waits for a frame with a deadline.
absl::StatusOr<wire::Frame> ReceiveFrameBefore(int socket, absl::Time deadline);

// True once the other end has closed (what is still queued is read and thrown away).
bool WaitClosed(int socket, absl::Duration timeout);

// Requests of the session with this number. What they ask for may take 20 s.
iris::v1::JoinRequest JoinRequestOf(uint64_t session, const std::string& job, int rank, int n_ranks,
                                    uint64_t heap_bytes = 2 << 20);
iris::v1::MappedRequest MappedRequestOf(uint64_t session, const iris::v1::JoinReply& joined,
                                        uint64_t base = 0x400000000000ull);
// The caller adds what the operation is.
iris::v1::OperateRequest OperateRequestOf(uint64_t session, const iris::v1::JoinReply& joined,
                                          uint64_t k);
iris::v1::OperateRequest AllocateRequestOf(uint64_t session, const iris::v1::JoinReply& joined,
                                           uint64_t k, uint64_t bytes, const std::string& name);
iris::v1::LeaveRequest LeaveRequestOf(uint64_t session, const iris::v1::JoinReply& joined);

// One attested session and its gRPC channel.
class RawSession {
 public:
  static absl::StatusOr<std::unique_ptr<RawSession>> Open(const std::string& session_socket);
  // The client's half of the handshake on a connected socket.
  static absl::StatusOr<std::unique_ptr<RawSession>> Handshake(wire::UniqueFd socket);

  int socket() const { return socket_.get(); }
  uint64_t id() const { return id_; }
  iris::v1::HeapService::Stub& heap() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

  iris::v1::JoinRequest JoinRequest(const std::string& job, int rank, int n_ranks,
                                    uint64_t heap_bytes = 2 << 20) const {
    return JoinRequestOf(id_, job, rank, n_ranks, heap_bytes);
  }

  // Calls with a deadline; the status has the code and text of gRPC's.
  absl::StatusOr<iris::v1::JoinReply> Join(const iris::v1::JoinRequest& request);
  absl::StatusOr<iris::v1::MappedReply> Mapped(const iris::v1::JoinReply& joined,
                                               uint64_t base = 0x400000000000ull,
                                               const std::string& error = "");
  // The result of the operation, or the error of its outcome or of the call.
  absl::StatusOr<iris::v1::OperationResult> Operate(const iris::v1::OperateRequest& request);
  absl::StatusOr<iris::v1::OperationResult> Allocate(const iris::v1::JoinReply& joined, uint64_t k,
                                                     uint64_t bytes, const std::string& name = "");
  absl::Status Leave(const iris::v1::JoinReply& joined);

  // Receives n descriptors, and the links before them, and acknowledges them.
  absl::StatusOr<std::vector<std::pair<wire::DescriptorRecord, wire::UniqueFd>>> ReceiveDescriptors(
      size_t n, absl::Duration timeout = absl::Seconds(20));

 private:
  wire::UniqueFd socket_;
  uint64_t id_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<iris::v1::HeapService::Stub> stub_;
};

using proto::FromGrpc;

}  // namespace iris::testing
