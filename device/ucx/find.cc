#include "device/ucx/find.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "device/base/posix.h"
#include "device/base/unique_fd.h"

namespace iris::ucx {
namespace {

constexpr unsigned kMajor = 1, kMinMinor = 20;
constexpr char kUnpacked[] = "/usr/local/lib/iris/ucx";  // deploy/setup.sh
constexpr auto kProbeWithin = absl::Seconds(10);

struct Version {
  unsigned major = 0, minor = 0, patch = 0;
};

// What a child answers: whether it found a version, the version, and the path of the library or an
// error.
struct Answer {
  bool found = false;
  Version version;
  char text[1024] = {};
};

[[noreturn]] void AnswerFor(const char* name, int to) {
  Answer answer;
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  const char* text = library == nullptr ? dlerror() : "it is not UCX";
  const auto get = library == nullptr ? nullptr
                                      : reinterpret_cast<void (*)(unsigned*, unsigned*, unsigned*)>(
                                            dlsym(library, "ucp_get_version"));
  struct link_map* map = nullptr;
  if (get != nullptr) {
    answer.found = true;
    get(&answer.version.major, &answer.version.minor, &answer.version.patch);
    text = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
  }
  strncpy(answer.text, text, sizeof(answer.text) - 1);
  (void)!write(to, &answer, sizeof(answer));
  _exit(0);
}

// Loads the library in a child, because a library that was loaded once does not always go.
Answer Probe(const std::string& name) {
  Answer answer;
  strncpy(answer.text, "it is not UCX, or did not load in time", sizeof(answer.text) - 1);
  int ends[2];
  if (pipe(ends) != 0) return answer;
  base::UniqueFd reading(ends[0]), writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) return answer;
  if (child == 0) AnswerFor(name.c_str(), writing.get());
  writing.Reset();
  Answer got;
  size_t n = 0;
  const absl::Time until = absl::Now() + kProbeWithin;
  while (n < sizeof(got)) {
    const int64_t left_ms = absl::ToInt64Milliseconds(until - absl::Now());
    struct pollfd readable = {reading.get(), POLLIN, 0};
    if (left_ms <= 0 ||
        base::Retry([&] { return poll(&readable, 1, static_cast<int>(left_ms)); }) != 1) {
      break;
    }
    const ssize_t more = base::Retry(
        [&] { return read(reading.get(), reinterpret_cast<char*>(&got) + n, sizeof(got) - n); });
    if (more <= 0) break;
    n += static_cast<size_t>(more);
  }
  kill(child, SIGKILL);
  int status = 0;
  (void)base::Retry([&] { return waitpid(child, &status, 0); });
  return n == sizeof(got) ? got : answer;
}

std::vector<std::string> Places(const std::string& path) {
  if (!path.empty()) return {path};
  std::vector<std::string> places = {"libucp.so.0"};
  for (const char* pattern : {"/lib/libucp.so.0", "/*/lib/libucp.so.0"}) {
    glob_t found = {};
    if (glob(absl::StrCat(kUnpacked, pattern).c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; ++i) places.push_back(found.gl_pathv[i]);
    }
    globfree(&found);
  }
  if (places.back() == "libucp.so.0") places.push_back(absl::StrCat(kUnpacked, "/lib/libucp.so.0"));
  return places;
}

}  // namespace

absl::StatusOr<Library> Find(const std::string& path) {
  std::string tried;
  for (const std::string& place : Places(path)) {
    const Answer answer = Probe(place);
    if (!answer.found) {
      absl::StrAppend(&tried, "; ", place, ": ", answer.text);
      continue;
    }
    const auto& [major, minor, patch] = answer.version;
    const std::string version = absl::StrCat(major, ".", minor, ".", patch);
    if (major == kMajor && minor >= kMinMinor) return Library{place, answer.text, version};
    absl::StrAppend(&tried, "; ", place, ": version ", version);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("jobs of several nodes need UCX ", kMajor, ".", kMinMinor,
                   " or newer, and none was found", tried, ". Run deploy/setup.sh, which installs ",
                   "it in ", kUnpacked, ", or name the path of libucp.so.0 in IRIS_UCX"));
}

}  // namespace iris::ucx
