// Fuzzes what a starting irisd is given in its environment: LISTEN_FDS, LISTEN_FDNAMES, and the
// names in them. Each descriptor that they speak of is taken and closed exactly once, and nothing
// but names comes to who keeps descriptors.
//
// An input: a byte for how many descriptors are open (3 bits), whether LISTEN_PID is this process
// (2 bits); LISTEN_FDS up to the first line feed, and LISTEN_FDNAMES.
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/wire/unique_fd.h"
#include "server/keep/descriptor_keeper.h"
#include "server/keep/inherited.h"
#include "server/keep/kept_name.h"
#include "tests/fuzz/require.h"

namespace iris::fuzz {
namespace {

using server::DescriptorKeeper;
using server::KeptName;
using server::NamedDescriptor;
using wire::UniqueFd;

constexpr int kFirst = 3;  // of the descriptors that are given
constexpr int kMostGiven = 7;

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

// The manager that keeps descriptors.
class Manager {
 public:
  Manager() {
    // Descriptors of this program lie above those that are given, and are nobody's gift. Whoever
    // started it may have left some open.
    Require(close_range(kFirst + kMostGiven, ~0u, CLOSE_RANGE_CLOEXEC) == 0, "close_range");
    for (int i = 0; i < kMostGiven; ++i) {
      Require(dup3(STDERR_FILENO, kFirst + i, O_CLOEXEC) >= 0, "take a number");
    }
    const std::string path = absl::StrCat("@iris-given-fuzzer-", getpid());
    socket_ = UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, path.data() + 1, path.size() - 1);
    const socklen_t length =
        static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + path.size());
    Require(bind(socket_.get(), reinterpret_cast<const struct sockaddr*>(&address), length) == 0,
            "bind ", path);
    auto keeper = DescriptorKeeper::Connect(path, 100);
    Require(keeper.ok(), keeper.status().ToString());
    keeper_ = *std::move(keeper);
    memory_ = UniqueFd(memfd_create("given", MFD_CLOEXEC));
    Require(memory_.valid(), "make memory");
    for (int i = 0; i < kMostGiven; ++i) close(kFirst + i);
  }

  DescriptorKeeper* keeper() { return keeper_.get(); }
  int memory() const { return memory_.get(); }

  // What comes is the end of a name, and nothing else.
  void CheckTold() const {
    char text[4096];
    ssize_t n;
    while ((n = recv(socket_.get(), text, sizeof(text), MSG_DONTWAIT)) >= 0) {
      absl::string_view told(text, static_cast<size_t>(n));
      Require(absl::ConsumePrefix(&told, "FDSTOREREMOVE=1\nFDNAME="), "the manager is told ", told);
      Require(told.find('\n') == told.npos, "the manager is told more than a name: ", told);
    }
  }

 private:
  UniqueFd socket_, memory_;
  std::unique_ptr<DescriptorKeeper> keeper_;
};

// putenv keeps the text itself; setenv would keep a copy of each for ever.
class Variable {
 public:
  void Set(const char* name, absl::string_view value) {
    value = value.substr(0, value.find('\0'));
    text_ = absl::StrCat(name, "=", value);
    putenv(text_.data());
  }

 private:
  std::string text_;
};

void CheckName(const std::string& text) {
  const std::optional<KeptName> name = KeptName::Parse(text);
  if (!name.has_value()) return;
  Require(name->Text() == text, "a name is read, and written otherwise: ", text);
  Require(name->id >= 1 && name->id <= KeptName::kMaxId, "the id in ", text);
}

void Run(uint8_t what, absl::string_view count, absl::string_view names) {
  static auto* const manager = new Manager;  // leaked: it lasts as long as the program
  const int n_given = what % (kMostGiven + 1);
  for (int i = 0; i < n_given; ++i) {
    Require(dup3(manager->memory(), kFirst + i, i == 5 ? O_CLOEXEC : 0) >= 0, "give a descriptor");
  }
  static Variable pid, fds, fd_names;
  const int whose = what / 8 % 4;
  if (whose != 0) pid.Set("LISTEN_PID", absl::StrCat(whose == 1 ? 1 : getpid()));
  if (whose != 3 || !count.empty()) fds.Set("LISTEN_FDS", count);
  if (whose != 3 || !names.empty()) fd_names.Set("LISTEN_FDNAMES", names);

  std::vector<NamedDescriptor> lost;
  absl::StatusOr<std::vector<NamedDescriptor>> given = server::TakeInherited(&lost);
  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) {
    Require(getenv(variable) == nullptr, variable, " stays in the environment");
  }
  Require(given.ok() ? lost.empty() : absl::IsInvalidArgument(given.status()),
          given.status().ToString());
  size_t n_told = lost.size();
  for (const NamedDescriptor& each : lost) {
    CheckName(each.name);
    Require(!each.fd.valid() || each.fd.get() < kFirst + n_given, "a descriptor that none gave");
  }
  if (given.ok()) {
    n_told = given->size();
    for (size_t i = 0; i < n_told; ++i) {
      const NamedDescriptor& each = (*given)[i];
      CheckName(each.name);
      Require(each.fd.get() == kFirst + static_cast<int>(i), "a descriptor of another number");
      const int flags = fcntl(each.fd.get(), F_GETFD);
      Require(flags >= 0 && (flags & FD_CLOEXEC) != 0, "a descriptor stays open for programs");
    }
    const server::Inherited inherited = server::SortInherited(*std::move(given));
    size_t n_sorted = inherited.unknown.size() + inherited.twice.size() +
                      inherited.segments.size() + inherited.sessions.size() +
                      inherited.session_listener.valid() + inherited.admin_listener.valid();
    for (const auto* several : {&inherited.pages, &inherited.ports}) {
      for (const auto& [job, all] : *several) n_sorted += all.size();
    }
    Require(n_sorted == n_told, n_told, " descriptors, of which ", n_sorted, " are sorted");
  }
  server::GiveUp(std::move(lost), manager->keeper());
  manager->CheckTold();
  for (int i = 0; i < n_given; ++i) {
    const bool is_told = static_cast<size_t>(i) < n_told;
    Require(i == 5 || IsOpen(kFirst + i) != is_told,
            is_told ? "a descriptor stays open" : "a descriptor is closed that nobody told of");
    close(kFirst + i);
  }
}

}  // namespace
}  // namespace iris::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  if (n_bytes == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, n_bytes - 1);
  const size_t end = text.find('\n');
  // So many take a while, and are all alike: one number of the corpus stands for them.
  int n = 0;
  if (absl::SimpleAtoi(text.substr(0, end), &n) && n > 300 && n != 1'000'000) return 0;
  iris::fuzz::Run(data[0], text.substr(0, end),
                  end == text.npos ? absl::string_view() : text.substr(end + 1));
  return 0;
}
