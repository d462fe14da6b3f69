// What sessions cost irisd: resident memory idle, with 1,000 idle sessions, and after they have
// ended, in six rounds; the handshake's time; descriptors and heap bytes that are left.
//
//   session_bench [--json]
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon_harness.h"

namespace iris::bench {
namespace {

constexpr int kSessions = 1000;
constexpr int kRounds = 6;

int Main(int argc, char** argv) {
  Report report("session_bench", argc, argv);
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);

  auto started = testing::Daemon::Start({.flags = {"--log-level", "warn"}});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", std::string(started.status().message()).c_str());
    return 1;
  }
  testing::Daemon& daemon = **started;
  const double idle_kib = static_cast<double>(daemon.RssBytes()) / 1024;
  const int idle_fds = daemon.OpenFds();
  report.AddValue("irisd RSS, idle", idle_kib / 1024, "MiB");

  std::vector<double> handshake_us;
  for (int round = 1; round <= kRounds; ++round) {
    std::vector<std::unique_ptr<testing::RawSession>> sessions;
    for (int i = 0; i < kSessions; ++i) {
      const absl::Time start = absl::Now();
      auto session = testing::RawSession::Open(daemon.session_socket());
      if (!session.ok()) {
        std::fprintf(stderr, "session %d: %s\n", i,
                     std::string(session.status().message()).c_str());
        return 1;
      }
      handshake_us.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
      sessions.push_back(*std::move(session));
    }
    // A call on each, so that every gRPC connection really stands.
    for (const auto& session : sessions) {
      session->Leave(iris::v1::JoinReply()).IgnoreError();
    }
    const double held_kib = static_cast<double>(daemon.RssBytes()) / 1024;
    report.AddValue(absl::StrCat("round ", round, ": RSS a session"),
                    (held_kib - idle_kib) / kSessions, "KiB");
    report.AddValue(absl::StrCat("round ", round, ": descriptors a session"),
                    static_cast<double>(daemon.OpenFds() - idle_fds) / kSessions, "fds");
    sessions.clear();
    // The process lives on, so its sessions are over when their sockets are; nothing of them may
    // stay.
    if (const absl::Status idle = daemon.WaitIdle(idle_fds + 4); !idle.ok()) {
      std::fprintf(stderr, "%s\n", std::string(idle.message()).c_str());
      return 1;
    }
    report.AddValue(absl::StrCat("round ", round, ": RSS after all have ended"),
                    static_cast<double>(daemon.RssBytes()) / (1 << 20), "MiB");
    report.AddValue(absl::StrCat("round ", round, ": descriptors left"),
                    daemon.OpenFds() - idle_fds, "fds");
    report.AddValue(absl::StrCat("round ", round, ": heap bytes left"),
                    static_cast<double>(daemon.GetStatus()->heap_bytes()), "bytes");
  }
  report.Add("handshake until kWelcome", handshake_us, "us");
  return report.Print();
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
