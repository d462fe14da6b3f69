// What an irisd is given when it starts: descriptors under names, a stored state, and limits of who
// keeps descriptors. Whoever starts irisd can give it anything. It says what is wrong, serves, and
// tells the ranks of a job whose memory is gone.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/restart/frame_session.h"
#include "tests/restart/restart_fixture.h"

extern char** environ;

namespace iris::testing {
namespace {

using absl::StatusCode;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::CallMethod;

struct Named {
  std::string name;
  wire::UniqueFd fd;
};

wire::UniqueFd Copy(int fd) { return wire::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 100)); }

// What manages irisd in these tests: it keeps what irisd asks it to, as systemd does.
class Manager {
 public:
  Manager() {
    path_ = folder_.path() + "/notify";
    socket_.Reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.data(), path_.size());
    const struct timeval turn = {0, 20'000};
    if (bind(socket_.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) != 0 ||
        setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &turn, sizeof(turn)) != 0) {
      abort();
    }
    thread_ = std::thread([this] {
      while (!stop_) ReadOne();
    });
  }
  ~Manager() {
    Kill();
    stop_ = true;
    thread_.join();
  }

  const std::string& runtime_dir() const { return runtime_dir_; }
  std::string log() const {
    std::ifstream file(folder_.path() + "/log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string journal() const { return runtime_dir_ + "/state/journal"; }

  struct Given {
    std::string fdstore = "512";
    int n_more = 0;          // LISTEN_FDS says so many more than there are
    std::string more_names;  // appended to LISTEN_FDNAMES
    std::map<std::string, std::string> environment;
    std::vector<std::string> flags;
  };
  // Starts irisd with what is kept. True once it is ready; false: it has ended.
  bool Start(const Given& given) {
    ready_ = false;
    std::vector<Named> kept;
    {
      absl::MutexLock lock(&mu_);
      for (const Named& each : kept_) kept.push_back({each.name, Copy(each.fd.get())});
    }
    std::vector<std::string> argv = {ProgramPath("server/irisd"),
                                     "--runtime-dir",
                                     runtime_dir_,
                                     "--backend",
                                     "emu",
                                     "--emu-devices",
                                     "2",
                                     "--no-self-check"};
    argv.insert(argv.end(), given.flags.begin(), given.flags.end());
    std::map<std::string, std::string> environment = {{"NOTIFY_SOCKET", path_},
                                                      {"FDSTORE", given.fdstore}};
    std::string names;
    for (const Named& each : kept) absl::StrAppend(&names, names.empty() ? "" : ":", each.name);
    names += given.more_names;
    if (!kept.empty() || given.n_more != 0) {
      environment["LISTEN_FDS"] = absl::StrCat(static_cast<int>(kept.size()) + given.n_more);
      environment["LISTEN_FDNAMES"] = names;
    }
    for (const auto& [name, value] : given.environment) environment[name] = value;
    std::vector<char*> words;
    for (std::string& each : argv) words.push_back(each.data());
    words.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      setenv("LISTEN_PID", absl::StrCat(getpid()).c_str(), 1);
      const int log = open((folder_.path() + "/log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      dup2(log, 1);
      dup2(log, 2);
      int next = 3;
      for (const Named& each : kept) {
        if (dup2(each.fd.get(), next++) < 0) _exit(126);
      }
      close_range(static_cast<unsigned>(next), ~0u, 0);
      execv(words[0], words.data());
      _exit(127);
    }
    return Eventually([&] {
             if (waitpid(pid_, &status_, WNOHANG) == pid_) {
               pid_ = -1;
               return true;
             }
             return ready_.load();
           }) &&
           pid_ > 0;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    pid_ = -1;
    // What it said comes before this.
    read_all_ = false;
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.data(), path_.size());
    const wire::UniqueFd own(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_GT(sendto(own.get(), kReadAll, strlen(kReadAll), 0,
                     reinterpret_cast<struct sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_TRUE(Eventually([this] { return read_all_.load(); }));
  }
  bool alive() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ > 0;
  }
  pid_t pid() const { return pid_; }
  int exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1; }

  // Sorted.
  std::vector<std::string> Names() {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> names;
    for (const Named& each : kept_) names.push_back(each.name);
    std::sort(names.begin(), names.end());
    return names;
  }
  // Changes what is kept.
  void Change(const std::function<void(std::vector<Named>*)>& change) {
    absl::MutexLock lock(&mu_);
    change(&kept_);
  }

 private:
  static constexpr char kReadAll[] = "READ_ALL=1";

  void ReadOne() {
    char text[4096];
    char control[CMSG_SPACE(253 * sizeof(int))];
    struct iovec part = {text, sizeof(text)};
    struct msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (n < 0) return;
    std::vector<wire::UniqueFd> fds;
    for (struct cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
         each = CMSG_NXTHDR(&message, each)) {
      for (size_t i = 0; i < (each->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(fd));
        fds.emplace_back(fd);
      }
    }
    const std::string said(text, static_cast<size_t>(n));
    std::string name;
    for (absl::string_view line : absl::StrSplit(said, '\n')) {
      if (absl::ConsumePrefix(&line, "FDNAME=")) name = std::string(line);
    }
    absl::MutexLock lock(&mu_);
    if (absl::StrContains(said, "FDSTOREREMOVE=1")) {
      std::erase_if(kept_, [&name](const Named& each) { return each.name == name; });
    } else if (absl::StrContains(said, "FDSTORE=1")) {
      for (wire::UniqueFd& fd : fds) kept_.push_back({name, std::move(fd)});
    }
    if (absl::StrContains(said, "READY=1")) ready_ = true;
    if (said == kReadAll) read_all_ = true;
  }

  TempDir folder_;
  std::string runtime_dir_ = folder_.path() + "/run";
  std::string path_;
  wire::UniqueFd socket_;
  std::thread thread_;
  std::atomic<bool> stop_{false}, ready_{false}, read_all_{false};
  pid_t pid_ = -1;
  int status_ = 0;
  absl::Mutex mu_;
  std::vector<Named> kept_ ABSL_GUARDED_BY(mu_);
};

class GivenTest : public ::testing::Test {
 protected:
  // A job of one rank, with 2 MiB of memory that says what it is.
  void Begin(const Manager::Given& given = {}) {
    ASSERT_TRUE(manager_.Start(given)) << manager_.log();
    rank_ = Require(FrameSession::Open(socket()));
    const auto joined =
        Require(rank_->Call<v1::JoinReply>(CallMethod::kJoin, rank_->JoinRequest("given", 0, 1)));
    joined_ = joined;
    ASSERT_TRUE(rank_->AwaitDescriptors(3).ok());
    Require(rank_->Call<v1::MappedReply>(CallMethod::kMapped, rank_->MappedRequest(joined_)));
  }
  std::string socket() const { return manager_.runtime_dir() + "/session.sock"; }

  // The first that is kept under a name that begins so; 'l': the listener of sessions.
  static Named* Find(std::vector<Named>* all, char kind) {
    for (Named& each : *all) {
      if (each.name[0] == kind && each.name != "ladmin") return &each;
    }
    return nullptr;
  }

  // irisd serves whoever comes, and keeps what it has to: for the next one, too.
  void ExpectServes() {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(manager_.alive()) << manager_.log();
      auto session = FrameSession::Open(socket());
      ASSERT_TRUE(session.ok()) << session.status() << manager_.log();
      FrameSession& next = **session;
      const auto joined =
          Require(next.Call<v1::JoinReply>(CallMethod::kJoin, next.JoinRequest("next", 0, 1)));
      ASSERT_TRUE(next.AwaitDescriptors(3).ok());
      ASSERT_TRUE(next.Call<v1::MappedReply>(CallMethod::kMapped, next.MappedRequest(joined)).ok());
      const auto allocated = Require(next.Call<v1::OperateReply>(
          CallMethod::kOperate, next.AllocateRequest(joined, 0, 4096, "x")));
      EXPECT_EQ(allocated.outcome().code(), 0u);
      if (i == 0) {
        manager_.Kill();
        ASSERT_TRUE(manager_.Start({})) << manager_.log();
        ASSERT_TRUE(next.FollowRestart().ok());
      }
      EXPECT_TRUE(next.Leave(joined).ok());
    }
  }
  // The rank goes on: its next allocation succeeds.
  void ExpectGoesOn() {
    ASSERT_TRUE(rank_->FollowRestart().ok()) << manager_.log();
    const auto allocated = Require(rank_->Call<v1::OperateReply>(
        CallMethod::kOperate, rank_->AllocateRequest(joined_, 0, 4096, "x")));
    EXPECT_EQ(allocated.outcome().code(), 0u) << allocated.outcome().text();
    EXPECT_TRUE(rank_->Leave(joined_).ok());
  }
  void ExpectToldOfItsMemory() {
    ASSERT_TRUE(rank_->FollowRestart().ok()) << manager_.log();
    const auto allocated = rank_->Call<v1::OperateReply>(
        CallMethod::kOperate, rank_->AllocateRequest(joined_, 0, 4096, "x"));
    const std::string text =
        allocated.ok() ? allocated->outcome().text() : std::string(allocated.status().message());
    EXPECT_THAT(text, HasSubstr("was lost when irisd was restarted"));
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(manager_.log(), "kind=memory_lost"); }));
    EXPECT_TRUE(rank_->Leave(joined_).ok());
  }
  // Nothing is kept but what every irisd has.
  void ExpectNothingLeft() {
    rank_.reset();
    EXPECT_TRUE(Eventually(
        [&] {
          const std::vector<std::string> names = manager_.Names();
          return names == std::vector<std::string>{"ladmin", "lsession"};
        },
        absl::Seconds(20)))
        << absl::StrJoin(manager_.Names(), " ") << "\n"
        << manager_.log();
  }
  // Lines are written by a thread of their own.
  void ExpectLog(const std::string& text) {
    EXPECT_TRUE(
        Eventually([&] { return absl::StrContains(manager_.log(), text); }, absl::Seconds(10)))
        << text << " is not in:\n"
        << manager_.log();
  }
  // Changes what is kept between two irisds.
  void Change(const std::function<void(std::vector<Named>*)>& change,
              const Manager::Given& given = {}) {
    manager_.Kill();
    manager_.Change(change);
    ASSERT_TRUE(manager_.Start(given)) << manager_.log();
  }

  Manager manager_;
  std::unique_ptr<FrameSession> rank_;
  v1::JoinReply joined_;
};

TEST_F(GivenTest, AllThatWasKept) {
  Begin();
  Change([](std::vector<Named>* kept) {
    EXPECT_EQ(kept->size(), 6u);  // 2 listeners, a session, a segment, 2 pages
  });
  ExpectGoesOn();
  ExpectServes();
  ExpectNothingLeft();
}

TEST_F(GivenTest, UnknownNamesAreGivenBack) {
  Begin();
  Change([](std::vector<Named>* kept) {
    for (const char* name : {"stored", "g", "gA", "g!", "x1", "unknown", "s99999999999"}) {
      kept->push_back({name, Copy((*kept)[0].fd.get())});
    }
  });
  ExpectLog("which no irisd gives");
  ExpectGoesOn();
  ExpectServes();
  ExpectNothingLeft();
}

TEST_F(GivenTest, OrphansAreGivenBack) {
  Begin();
  Change([](std::vector<Named>* kept) {
    for (const char* name : {"g999", "p999", "s999"}) {
      kept->push_back({name, Copy(Find(kept, name[0])->fd.get())});
    }
  });
  ExpectLog("which no job has");
  ExpectGoesOn();
  ExpectServes();
  ExpectNothingLeft();
}

TEST_F(GivenTest, ASecondOneOfANameIsNoted) {
  for (const char kind : {'g', 's', 'p', 'l'}) {
    SCOPED_TRACE(kind);
    Begin();
    Change([kind](std::vector<Named>* kept) {
      kept->push_back({Find(kept, kind)->name, Copy(Find(kept, kind)->fd.get())});
    });
    if (HasFatalFailure()) return;
    if (kind != 'p') {
      ExpectLog("a second descriptor named");
    }
    ExpectGoesOn();
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
    if (HasFailure()) return;
  }
}

// In place of memory.
TEST_F(GivenTest, WhatIsNoMemoryIsLost) {
  TempDir folder;
  const std::string file = folder.path() + "/file";
  const auto of_size = [](uint64_t bytes) {
    wire::UniqueFd fd(memfd_create("iris-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return fd;
  };
  const std::map<std::string, std::function<wire::UniqueFd()>> cases = {
      {"a file",
       [&] {
         wire::UniqueFd fd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
         EXPECT_EQ(ftruncate(fd.get(), 2 << 20), 0);
         return fd;
       }},
      {"a socket", [] { return wire::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }},
      {"a folder", [&] { return wire::UniqueFd(open(folder.path().c_str(), O_RDONLY)); }},
      {"less memory", [&] { return of_size(4096); }},
      {"no memory", [&] { return of_size(0); }},
      {"more memory", [&] { return of_size(64 << 20); }},
      {"a null device", [] { return wire::UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)); }},
  };
  for (const auto& [what, make] : cases) {
    SCOPED_TRACE(what);
    Begin();
    if (HasFatalFailure()) return;
    Change([&](std::vector<Named>* kept) { Find(kept, 'g')->fd = make(); });
    if (HasFatalFailure()) return;
    ExpectLog("is not usable");
    ExpectToldOfItsMemory();
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
  }
}

TEST_F(GivenTest, WhatIsMissingIsLost) {
  for (const char kind : {'g', 'p'}) {
    SCOPED_TRACE(kind);
    Begin();
    if (HasFatalFailure()) return;
    Change([kind](std::vector<Named>* kept) {
      std::erase_if(*kept, [kind](const Named& each) { return each.name[0] == kind; });
    });
    if (HasFatalFailure()) return;
    ExpectToldOfItsMemory();
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
  }
}

TEST_F(GivenTest, PagesOfAnotherJobAreLost) {
  Begin();
  auto opened = Require(FrameSession::Open(socket()));
  FrameSession& other = *opened;
  const auto joined =
      Require(other.Call<v1::JoinReply>(CallMethod::kJoin, other.JoinRequest("other", 0, 1)));
  ASSERT_TRUE(other.AwaitDescriptors(3).ok());
  ASSERT_TRUE(other.Call<v1::MappedReply>(CallMethod::kMapped, other.MappedRequest(joined)).ok());
  Change([](std::vector<Named>* kept) {
    std::vector<std::string> names;
    for (const Named& each : *kept) {
      if (each.name[0] == 'p') names.push_back(each.name);
    }
    std::sort(names.begin(), names.end());
    ASSERT_EQ(names.size(), 4u);
    for (Named& each : *kept) {
      if (each.name[0] == 'p') each.name = each.name == names[0] ? names[3] : names[0];
    }
  });
  ExpectToldOfItsMemory();
  ASSERT_TRUE(other.FollowRestart().ok());
  const auto allocated = Require(other.Call<v1::OperateReply>(
      CallMethod::kOperate, other.AllocateRequest(joined, 0, 4096, "x")));
  EXPECT_THAT(allocated.outcome().text(), HasSubstr("was lost"));
  EXPECT_TRUE(other.Leave(joined).ok());
  opened.reset();
  ExpectServes();
  ExpectNothingLeft();
}

// In place of a session's socket. Its process lives, and its rank can be resumed.
TEST_F(GivenTest, WhatIsNoSessionHasHungUp) {
  for (const char* what : {"a pipe", "a file", "a closed socket", "a listener", "none"}) {
    SCOPED_TRACE(what);
    Begin();
    if (HasFatalFailure()) return;
    Change([what](std::vector<Named>* kept) {
      Named* const session = Find(kept, 's');
      int ends[2];
      if (what == std::string("a pipe")) {
        ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
        session->fd.Reset(ends[0]);
        close(ends[1]);
      } else if (what == std::string("a file")) {
        session->fd.Reset(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
      } else if (what == std::string("a closed socket")) {
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        session->fd.Reset(ends[0]);
        close(ends[1]);
      } else if (what == std::string("a listener")) {
        session->fd = Copy(Find(kept, 'l')->fd.get());
      } else {
        std::erase_if(*kept, [](const Named& each) { return each.name[0] == 's'; });
      }
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(rank_->AwaitEnd().code(), StatusCode::kUnavailable);
    auto next = Require(FrameSession::Open(socket()));
    const auto resumed =
        next->Call<v1::ResumeReply>(CallMethod::kResume, next->ResumeRequest(joined_, "given", 0));
    EXPECT_TRUE(resumed.ok()) << resumed.status() << manager_.log();
    EXPECT_TRUE(next->Leave(joined_).ok());
    next.reset();
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
  }
}

// A listener of another path, or nothing that listens: irisd listens anew.
TEST_F(GivenTest, AListenerElsewhereIsReplaced) {
  for (const char* what : {"elsewhere", "deaf", "a file", "none"}) {
    SCOPED_TRACE(what);
    TempDir folder;
    Begin();
    if (HasFatalFailure()) return;
    Change([&](std::vector<Named>* kept) {
      wire::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      struct sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      const std::string path = folder.path() + "/elsewhere";
      memcpy(address.sun_path, path.data(), path.size());
      if (what == std::string("elsewhere")) {
        ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
        ASSERT_EQ(listen(fd.get(), 5), 0);
      } else if (what == std::string("a file")) {
        fd.Reset(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
      }
      if (what == std::string("none")) {
        std::erase_if(*kept, [](const Named& each) { return each.name == "lsession"; });
      } else {
        Find(kept, 'l')->fd = std::move(fd);
      }
    });
    if (HasFatalFailure()) return;
    ExpectGoesOn();
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
  }
}

// An environment that is wrong: irisd begins with nothing, and the ranks see that.
TEST_F(GivenTest, AWrongEnvironmentEndsSessions) {
  Manager::Given cases[5];
  cases[3].environment = {{"LISTEN_FDNAMES", "lsession"}};
  cases[4].environment = {{"LISTEN_FDS", "2"}};
  cases[0].n_more = 5;
  cases[1].more_names = ":one:more";
  cases[2].environment = {{"LISTEN_FDS", "many"}};
  for (const Manager::Given& given : cases) {
    SCOPED_TRACE(absl::StrCat(given.n_more, " ", given.more_names));
    Begin();
    if (HasFatalFailure()) return;
    Change([](std::vector<Named>*) {}, given);
    if (HasFatalFailure()) return;
    ExpectLog("what an earlier irisd kept is lost");
    EXPECT_EQ(rank_->AwaitEnd().code(), StatusCode::kUnavailable) << manager_.log();
    ExpectServes();
    if (given.environment.empty()) ExpectNothingLeft();
    manager_.Kill();
    manager_.Change([](std::vector<Named>* kept) { kept->clear(); });
  }
}

// Nobody keeps descriptors for the irisd that they are given to.
TEST_F(GivenTest, WithoutAKeeperSessionsEnd) {
  Begin();
  if (HasFatalFailure()) return;
  manager_.Kill();
  ASSERT_TRUE(manager_.Start({.environment = {{"FDSTORE", "0"}}})) << manager_.log();
  EXPECT_EQ(rank_->AwaitEnd().code(), StatusCode::kUnavailable) << manager_.log();
  const auto next = FrameSession::Open(socket());
  EXPECT_TRUE(next.ok()) << next.status();
}

// The stored state.

class JournalGivenTest : public GivenTest {
 protected:
  static constexpr size_t kFormat = 8, kCrc = 12, kChecked = 16, kBootId = 72, kHead = 112;

  std::string Read() const {
    std::ifstream file(manager_.journal());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(manager_.journal(), std::ios::trunc) << bytes;
  }
  static void Seal(std::string* bytes) {
    const uint32_t crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(bytes->data()) + kChecked, kHead - kChecked));
    memcpy(bytes->data() + kCrc, &crc, sizeof(crc));
  }
};

TEST_F(JournalGivenTest, OneThatIsOfNoUseIsLeftAlone) {
  const std::map<std::string, std::function<void(std::string*)>> cases = {
      {"an earlier boot",
       [](std::string* bytes) {
         (*bytes)[kBootId] = (*bytes)[kBootId] == 'a' ? 'b' : 'a';
         Seal(bytes);
       }},
      {"a damaged head", [](std::string* bytes) { (*bytes)[20] ^= 1; }},
      {"damage", [](std::string* bytes) { (*bytes)[kHead + 40] ^= 1; }},
      {"damage at the end", [](std::string* bytes) { bytes->back() ^= 1; }},
      {"half of the head", [](std::string* bytes) { bytes->resize(kHead / 2); }},
      {"a head alone", [](std::string* bytes) { bytes->resize(kHead); }},
      {"nothing", [](std::string* bytes) { bytes->clear(); }},
      {"another file", [](std::string* bytes) { *bytes = std::string(100'000, 'x'); }},
  };
  for (const auto& [what, change] : cases) {
    SCOPED_TRACE(what);
    Begin();
    if (HasFatalFailure()) return;
    manager_.Kill();
    std::string bytes = Read();
    ASSERT_GT(bytes.size(), kHead);
    change(&bytes);
    Write(bytes);
    ASSERT_TRUE(manager_.Start({})) << manager_.log();
    ExpectLog("irisd begins with nothing");
    EXPECT_EQ(rank_->AwaitEnd().code(), StatusCode::kUnavailable) << manager_.log();
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
  }
}

TEST_F(JournalGivenTest, WithoutOneAnIrisdThatIsGivenDescriptorsSaysThatItBeginsWithNothing) {
  Begin();
  if (HasFatalFailure()) return;
  manager_.Kill();
  std::filesystem::remove_all(manager_.runtime_dir() + "/state");
  ASSERT_TRUE(manager_.Start({})) << manager_.log();
  ExpectLog("irisd begins with nothing");
  ExpectLog("there is no " + manager_.journal());
  EXPECT_EQ(rank_->AwaitEnd().code(), StatusCode::kUnavailable);
  ExpectServes();
  ExpectNothingLeft();
}

TEST_F(JournalGivenTest, OneWithoutItsEndGoesOn) {
  Begin();
  manager_.Kill();
  std::string bytes = Read();
  bytes += std::string("torn");
  Write(bytes);
  ASSERT_TRUE(manager_.Start({})) << manager_.log();
  ExpectGoesOn();
  ExpectServes();
  ExpectNothingLeft();
}

// What another irisd, or its owner, could still use is not touched: irisd says so and ends.
TEST_F(JournalGivenTest, OneOfAnotherOwnerOrFormatStaysAsItIs) {
  const std::map<std::string, std::function<void()>> cases = {
      {"open to others", [&] { ASSERT_EQ(chmod(manager_.journal().c_str(), 0666), 0); }},
      {"a later format",
       [&] {
         std::string bytes = Read();
         bytes[kFormat] = 99;
         Write(bytes);
       }},
      {"a link",
       [&] {
         const std::string path = manager_.journal();
         ASSERT_EQ(rename(path.c_str(), (path + "x").c_str()), 0);
         ASSERT_EQ(symlink((path + "x").c_str(), path.c_str()), 0);
       }},
      {"another user's",
       [&] {
         if (geteuid() == 0) {
           ASSERT_EQ(chown(manager_.journal().c_str(), 65534, 65534), 0);
         } else {
           ASSERT_EQ(chmod(manager_.journal().c_str(), 0644), 0);
         }
       }},
  };
  for (const auto& [what, change] : cases) {
    SCOPED_TRACE(what);
    Begin();
    if (HasFatalFailure()) return;
    manager_.Kill();
    const std::string before = Read();
    change();
    EXPECT_FALSE(manager_.Start({}));
    EXPECT_EQ(manager_.exit_code(), 1);
    ExpectLog("irisd cannot run");
    EXPECT_EQ(Read().size(), before.size());
    // An operator removes it: the next irisd begins with nothing.
    std::filesystem::remove_all(manager_.runtime_dir() + "/state");
    ASSERT_TRUE(manager_.Start({})) << manager_.log();
    EXPECT_EQ(rank_->AwaitEnd().code(), StatusCode::kUnavailable);
    ExpectServes();
    ExpectNothingLeft();
    manager_.Kill();
  }
}

// The limit of who keeps descriptors.

TEST_F(GivenTest, ALimitThatIsNoneIsAnError) {
  for (const char* fdstore : {"many", "-1", "", "1e3", "99999999999999999999999"}) {
    SCOPED_TRACE(fdstore);
    EXPECT_FALSE(manager_.Start({.fdstore = fdstore})) << manager_.log();
    EXPECT_EQ(manager_.exit_code(), 1);
    ExpectLog("is not a number of descriptors");
  }
}

// Whatever can be kept: who is more is refused, and who was let in is kept.
TEST_F(GivenTest, ASmallLimitRefusesInTime) {
  for (const int fdstore : {1, 2, 4, 15, 16, 17, 20, 40, 41}) {
    SCOPED_TRACE(fdstore);
    Manager manager;
    const Manager::Given given = {.fdstore = absl::StrCat(fdstore)};
    if (!manager.Start(given)) {
      EXPECT_LT(fdstore, 16) << manager.log();
      EXPECT_THAT(manager.log(), HasSubstr("FDSTORE"));
      continue;
    }
    const std::string path = manager.runtime_dir() + "/session.sock";
    std::vector<std::unique_ptr<FrameSession>> sessions;
    std::vector<v1::JoinReply> joined;
    for (int i = 0; i < 30; ++i) {
      auto session = FrameSession::Open(path);
      if (!session.ok()) {
        EXPECT_EQ(session.status().code(), StatusCode::kResourceExhausted) << session.status();
        break;
      }
      sessions.push_back(*std::move(session));
      FrameSession& each = *sessions.back();
      const auto reply = each.Call<v1::JoinReply>(CallMethod::kJoin,
                                                  each.JoinRequest(absl::StrCat("job-", i), 0, 1));
      joined.emplace_back();
      if (!reply.ok()) {
        EXPECT_EQ(reply.status().code(), StatusCode::kResourceExhausted) << reply.status();
        continue;
      }
      joined.back() = *reply;
      ASSERT_TRUE(each.AwaitDescriptors(3).ok());
      ASSERT_TRUE(each.Call<v1::MappedReply>(CallMethod::kMapped, each.MappedRequest(*reply)).ok());
    }
    EXPECT_THAT(manager.log(), Not(HasSubstr("can no longer be kept"))) << "of " << fdstore;
    EXPECT_LE(manager.Names().size(), static_cast<size_t>(fdstore));
    manager.Kill();
    ASSERT_TRUE(manager.Start(given)) << manager.log();
    EXPECT_THAT(manager.log(), Not(HasSubstr("memory_lost")));
    for (size_t i = 0; i < sessions.size(); ++i) {
      ASSERT_TRUE(sessions[i]->FollowRestart().ok()) << i << " of " << sessions.size() << "\n"
                                                     << manager.log();
      if (joined[i].job_id() == 0) continue;
      EXPECT_TRUE(sessions[i]->Leave(joined[i]).ok());
    }
  }
}

}  // namespace
}  // namespace iris::testing
