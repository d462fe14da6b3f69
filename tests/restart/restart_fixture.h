// What tests of restarts share: an irisd under its supervisor, ways to kill it, a rank that
// measures for how long nobody answers, and what has to be as before when all is over.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "device/base/descriptors.h"
#include "iris/context.h"
#include "tests/cc/require.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"
#include "tests/restart/kill_points.h"

namespace iris::testing {

// How often `text` is in `log`.
inline int CountOf(const std::string& log, const std::string& text) {
  int n = 0;
  for (size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++n;
  return n;
}

// Descriptors of memfds that a process has.
inline int CountMemfds(pid_t pid) {
  int n = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    n += absl::StartsWith(target, "/memfd:") ? 1 : 0;
  }
  return n;
}

// The end of irisd at a system call, or the failure of one: see kill_points.h.
class KillPoints {
 public:
  explicit KillPoints(const std::string& folder) : path_(folder + "/kill-points") {
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(KillPointsPage)) != 0) abort();
    void* const mapped =
        mmap(nullptr, sizeof(KillPointsPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) abort();
    close(fd);
    page_ = new (mapped) KillPointsPage;
  }
  ~KillPoints() { munmap(page_, sizeof(KillPointsPage)); }
  KillPoints(const KillPoints&) = delete;
  KillPoints& operator=(const KillPoints&) = delete;

  std::map<std::string, std::string> Environment() const {
    return {{"LD_PRELOAD", ProgramPath("tests/restart/libkill_points.so")},
            {kKillPointsVariable, path_}};
  }
  // The n-th call from now on is the last, and then the next-th one of the next irisd; 0: none is.
  void Arm(int64_t n, bool after, int64_t next = 0) {
    page_->after = after;
    page_->next = next;
    page_->left = n;
  }
  void Disarm() { page_->next = page_->left = 0; }
  bool armed() const { return page_->left > 0; }
  uint32_t killed() const { return page_->killed; }

  // The n-th call from now on of `call`, an index into kFailingCalls, fails with `error`.
  void Fail(uint32_t call, int64_t n, int error) {
    page_->until_failure = 0;
    page_->fails = call;
    page_->error = static_cast<uint32_t>(error);
    page_->until_failure = n;
  }
  // Ends what Fail has begun. True: the call has failed.
  bool StopFailing() { return page_->until_failure.exchange(0) <= 0; }
  // How often each of kFailingCalls was made since the last time that this was asked.
  std::vector<uint32_t> TakeCounts() {
    std::vector<uint32_t> counts;
    for (std::atomic<uint32_t>& each : page_->counts) counts.push_back(each.exchange(0));
    return counts;
  }
  std::string last() const { return page_->last; }

 private:
  const std::string path_;
  KillPointsPage* page_ = nullptr;
};

// A rank of a job of its own that allocates and frees all the time.
class Prober {
 public:
  static constexpr uint64_t kHeapBytes = 2 << 20;

  explicit Prober(const std::string& runtime_dir) {
    ContextOptions options;
    options.job = "prober";
    options.rank = 0;
    options.n_ranks = 1;
    options.heap_bytes = kHeapBytes;
    options.runtime_dir = runtime_dir;
    StatusOr<Context> context = Context::Create(options);
    EXPECT_TRUE(context.ok()) << context.status().ToString();
    if (!context.ok()) return;
    context_ = std::make_unique<Context>(*std::move(context));
    thread_ = std::thread([this] { Run(); });
  }
  ~Prober() { Stop(); }

  void Stop() {
    stop_ = true;
    if (!thread_.joinable()) return;
    thread_.join();
    const Status left = context_->Leave();
    EXPECT_TRUE(left.ok()) << left.ToString();
    context_.reset();
  }

  // irisd was just killed. What is answered later ends the wait.
  void Killed() {
    absl::MutexLock lock(&mu_);
    since_ = absl::Now();
  }
  // Waits until a call was answered that was made, or made again, after the last kill.
  bool AwaitAnswer() {
    absl::MutexLock lock(&mu_);
    const auto answered = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return since_ == absl::InfiniteFuture();
    };
    return mu_.AwaitWithTimeout(absl::Condition(&answered), absl::Seconds(60));
  }

  // From each kill to the first answer.
  void Print(const char* what) {
    absl::MutexLock lock(&mu_);
    if (blackouts_.empty()) return;
    std::sort(blackouts_.begin(), blackouts_.end());
    const auto ms = [this](double part) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      const size_t i = static_cast<size_t>(part * static_cast<double>(blackouts_.size() - 1));
      return absl::ToInt64Milliseconds(blackouts_[i]);
    };
    std::printf("%s: blackout of %zu kills: p50 %lld ms, p99 %lld ms, max %lld ms\n", what,
                blackouts_.size(), static_cast<long long>(ms(0.5)),
                static_cast<long long>(ms(0.99)), static_cast<long long>(ms(1)));
  }

 private:
  // An answer that the killed irisd gave is read so soon.
  static constexpr absl::Duration kEarlier = absl::Milliseconds(1);

  void Run() {
    while (!stop_) {
      const auto allocated = context_->Allocate<uint64_t>(16);
      Answered(allocated.status());
      if (!allocated.ok()) return;
      const Status freed = context_->Free(*allocated);
      Answered(freed);
      if (!freed.ok()) return;
    }
  }
  void Answered(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    absl::MutexLock lock(&mu_);
    const absl::Time now = absl::Now();
    if (now < since_ + kEarlier) return;
    blackouts_.push_back(now - since_);
    since_ = absl::InfiniteFuture();
  }

  std::unique_ptr<Context> context_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  absl::Mutex mu_;
  absl::Time since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::vector<absl::Duration> blackouts_ ABSL_GUARDED_BY(mu_);
};

class RestartFixture : public ::testing::Test {
 protected:
  virtual DaemonOptions Options() {
    DaemonOptions options;
    options.supervised = true;
    return options;
  }

  void SetUp() override { daemon_ = Require(Daemon::Start(Options())); }
  void TearDown() override {
    if (daemon_ != nullptr) ExpectNoOtherEnd();
    if (HasFailure() && daemon_ != nullptr) {
      std::string log = daemon_->Log();
      constexpr size_t kEnd = 20'000;
      if (log.size() > kEnd) log = "..." + log.substr(log.size() - kEnd);
      std::printf("%s\n", log.c_str());
    }
  }

  RankProcesses::Options Ranks(const std::string& job) const {
    RankProcesses::Options options;
    options.runtime_dir = daemon_->runtime_dir();
    options.job = job;
    return options;
  }

  // The pid of the irisd that serves, once there is one other than `not_pid`; 0: none comes.
  pid_t Serving(pid_t not_pid = 0) {
    pid_t pid = 0;
    const bool serves = Eventually([&] {
      const auto status = daemon_->GetStatus();
      if (status.ok()) pid = static_cast<pid_t>(status->pid());
      return pid > 0 && pid != not_pid;
    });
    EXPECT_TRUE(serves) << "no irisd serves";
    return serves ? pid : 0;
  }

  // Kills irisd, and has none started until StartAgain.
  void EndIrisd() {
    ended_ = Serving();
    ASSERT_GT(ended_, 0);
    ASSERT_EQ(kill(daemon_->pid(), SIGSTOP), 0);
    ASSERT_EQ(kill(ended_, SIGKILL), 0);
    ASSERT_TRUE(Eventually(
        [&] { return !std::filesystem::exists(absl::StrCat("/proc/", ended_, "/fd/0")); }));
  }
  // Returns when the next irisd serves.
  void StartAgain() {
    ASSERT_EQ(kill(daemon_->pid(), SIGCONT), 0);
    ASSERT_GT(Serving(ended_), 0);
  }
  void Restart() {
    EndIrisd();
    StartAgain();
  }

  int InLog(const std::string& text) const { return CountOf(daemon_->Log(), text); }
  // irisd has ended by nothing but what the test did to it.
  virtual void ExpectNoOtherEnd() {
    const std::string log = daemon_->Log();
    for (const char* end : {"end=\"signal 6", "end=\"signal 11", "end=\"exit code 1\"", "Sanitizer",
                            "runtime error", "gives no sign of life", "is not ready in time"}) {
      EXPECT_FALSE(absl::StrContains(log, end)) << end;
    }
  }
  void ExpectNobodyWasTold() {
    const std::string log = daemon_->Log();
    for (const char* told :
         {"rank_hung_up", "rank_dead", "rank_resumed", "job_broken", "job_failed", "join_failed",
          "memory_lost", "session ended", "is not usable", "damaged"}) {
      EXPECT_FALSE(absl::StrContains(log, told)) << told;
    }
  }

  // What there is while nothing but probers and watchers lives.
  struct Held {
    uint64_t heap_bytes = 0;
    int irisd_fds = 0, irisd_memfds = 0, supervisor_fds = 0, supervisor_memfds = 0;

    bool operator<=(const Held& other) const {
      return heap_bytes <= other.heap_bytes && irisd_fds <= other.irisd_fds &&
             irisd_memfds <= other.irisd_memfds && supervisor_fds <= other.supervisor_fds &&
             supervisor_memfds <= other.supervisor_memfds;
    }
    std::string Text() const {
      return absl::StrCat(heap_bytes, " bytes of heaps; irisd ", irisd_fds,
                          " descriptors, of which ", irisd_memfds, " memfds; its supervisor ",
                          supervisor_fds, ", of which ", supervisor_memfds);
    }
  };
  Held NowHeld() {
    Held held;
    const auto status = daemon_->GetStatus();
    if (!status.ok()) return {.heap_bytes = ~0ull};
    const pid_t pid = static_cast<pid_t>(status->pid());
    held.heap_bytes = status->heap_bytes();
    held.irisd_fds = base::CountDescriptors(pid);
    held.irisd_memfds = CountMemfds(pid);
    held.supervisor_fds = daemon_->OpenFds();
    held.supervisor_memfds = CountMemfds(daemon_->pid());
    return held;
  }
  void ExpectNoMoreHeldThan(const Held& before) {
    Held now;
    EXPECT_TRUE(Eventually(
        [&] {
          now = NowHeld();
          return now <= before;
        },
        absl::Seconds(30)))
        << "before: " << before.Text() << "\nnow: " << now.Text();
  }

  std::unique_ptr<Daemon> daemon_;
  pid_t ended_ = 0;
};

}  // namespace iris::testing
