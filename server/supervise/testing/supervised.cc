// A program for a supervisor, which a test controls. It connects to the socket of its first
// argument, reports its descriptors and environment there, and takes commands, a line each, that it
// answers with a line each. It reports signals as lines that begin with "signal".
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace {

int control = -1;
int64_t sent_ns = 0;  // what the messages of the last store took

void Say(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(control, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) _exit(99);
    if (n > 0) at += static_cast<size_t>(n);
  }
}

std::string Identity(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return "bad";
  return std::to_string(info.st_dev) + "." + std::to_string(info.st_ino);
}

// "NAME=FILE" of each descriptor that was passed.
std::string Passed() {
  char** names = nullptr;
  const int n = sd_listen_fds_with_names(/*unset_environment=*/0, &names);
  std::string text = std::to_string(n);
  for (int i = 0; i < n; ++i) {
    text += std::string(" ") + names[i] + "=" + Identity(SD_LISTEN_FDS_START + i);
    free(names[i]);
  }
  free(names);
  return text;
}

// Returns the numbers of the descriptors open at the start.
std::string OpenNumbers() {
  std::vector<int> numbers;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int number = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != dirfd(folder)) numbers.push_back(number);
  }
  closedir(folder);
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

// Unusual handling of signals, which no child may inherit.
std::string Signals() {
  std::string text;
  sigset_t mask;
  sigprocmask(SIG_BLOCK, nullptr, &mask);
  for (int signal = 1; signal < 32; ++signal) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (sigismember(&mask, signal) == 1 || action.sa_handler == SIG_IGN) {
      text += " " + std::to_string(signal);
    }
  }
  return text;
}

std::vector<int> NewFiles(int n) {
  std::vector<int> fds;
  for (int i = 0; i < n; ++i) fds.push_back(memfd_create("kept", MFD_CLOEXEC));
  return fds;
}

std::string Identities(const std::vector<int>& fds) {
  std::string text;
  for (const int fd : fds) text += (text.empty() ? "" : " ") + Identity(fd);
  return text;
}

int64_t MonotonicNs() {
  struct timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

int Send(const std::string& text, const std::vector<int>& fds) {
  return sd_pid_notify_with_fds(0, 0, text.c_str(), fds.data(), static_cast<unsigned>(fds.size()));
}

// Stores `n` new files, `per_message` at a time. "FILE" of each; "failed" if one was not sent.
std::string Store(const std::string& name, int n, int per_message) {
  std::string text;
  sent_ns = 0;
  for (int i = 0; i < n; i += per_message) {
    const std::vector<int> fds = NewFiles(std::min(per_message, n - i));
    text += (text.empty() ? "" : " ") + Identities(fds);
    const int64_t before = MonotonicNs();
    const int sent = Send("FDSTORE=1\nFDNAME=" + name, fds);
    sent_ns += MonotonicNs() - before;
    for (const int fd : fds) close(fd);
    if (sent <= 0) return std::string("failed: ") + strerror(-sent);
  }
  return text;
}

std::string Do(const std::string& line) {
  std::istringstream words(line);
  std::string verb, name, text;
  int n = 0, m = 1;
  words >> verb;
  if (verb == "store") {
    words >> name >> n >> m;
    return Store(name, n, m);
  }
  if (verb == "store_and_die") {  // "NAME N REMOVED", a message for each and one for the removal
    words >> name >> n >> text;
    const std::vector<int> fds = NewFiles(n);
    Say(Identities(fds));
    pollfd go = {control, POLLIN, 0};
    (void)poll(&go, 1, -1);
    for (const int fd : fds) Send("FDSTORE=1\nFDNAME=" + name, {fd});
    Send("FDSTOREREMOVE=1\nFDNAME=" + text, {});
    kill(getpid(), SIGKILL);
  }
  if (verb == "notify") {  // '|' between its lines
    std::getline(words >> std::ws, text);
    std::replace(text.begin(), text.end(), '|', '\n');
    return std::to_string(sd_notify(0, text.c_str()));
  }
  if (verb == "notify_fd") {
    std::getline(words >> std::ws, text);
    std::replace(text.begin(), text.end(), '|', '\n');
    return std::to_string(Send(text, NewFiles(1)));
  }
  if (verb == "flood") {
    words >> n;
    const std::string junk(4000, 'x');
    for (int i = 0; i < n; ++i) sd_notify(0, i % 2 == 0 ? junk.c_str() : "\n=\n\xff=\nFDSTORE=1");
    return "done";
  }
  if (verb == "sent_ns") return std::to_string(sent_ns);
  if (verb == "env") {
    words >> name;
    const char* const value = getenv(name.c_str());
    return value == nullptr ? "none" : value;
  }
  if (verb == "watchdog") {
    uint64_t usec = 0;
    const int enabled = sd_watchdog_enabled(0, &usec);
    return std::to_string(enabled) + " " + std::to_string(usec);
  }
  if (verb == "passed") return Passed();
  if (verb == "exe") {
    struct stat info = {};
    stat("/proc/self/exe", &info);
    return std::to_string(info.st_ino);
  }
  if (verb == "exit") {
    words >> n;
    _exit(n);
  }
  if (verb == "die") kill(getpid(), SIGKILL);
  if (verb == "stop") kill(getpid(), SIGSTOP);
  return "?";
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t started = MonotonicNs();
  if (argc < 2) return 98;
  const std::string open_numbers = OpenNumbers();
  const std::string signals = Signals();
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", argv[1]);
  control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(control, reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) != 0) {
    return 97;
  }
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const int arriving = signalfd(-1, &set, SFD_CLOEXEC);
  Say(std::to_string(getpid()) + " " + std::to_string(started));
  Say(open_numbers);
  Say(signals);

  std::string pending;
  while (true) {
    struct pollfd sources[] = {{control, POLLIN, 0}, {arriving, POLLIN, 0}};
    if (poll(sources, 2, -1) < 0) continue;
    if (sources[1].revents != 0) {
      struct signalfd_siginfo info = {};
      if (read(arriving, &info, sizeof(info)) > 0) {
        const int signal = static_cast<int>(info.ssi_signo);
        const bool heeds = argc < 3 || strcmp(argv[2], "stubborn") != 0;
        if (signal == SIGTERM) _exit(75);
        if (signal == SIGINT && heeds) _exit(argc < 3 ? 0 : atoi(argv[2]));
        Say("signal " + std::to_string(signal));
      }
    }
    if (sources[0].revents == 0) continue;
    char piece[4096];
    const ssize_t n = read(control, piece, sizeof(piece));
    if (n <= 0) return 96;  // the test is gone
    pending.append(piece, static_cast<size_t>(n));
    for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      Say(Do(line));
    }
  }
}
