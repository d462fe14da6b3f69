#include "server/keep/inherited.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/frame.h"
#include "server/keep/kept_name.h"

namespace iris::server {

namespace {

constexpr int kMost = 100'000;  // more descriptors than a process is given

struct Announced {
  std::string name;  // empty: no name
  int fd = -1;       // -1: not open
};

// Returns all that the environment names, valid or not. Descriptors that this program has opened
// have FD_CLOEXEC; those that were passed to it have not.
std::vector<Announced> LookAtEnvironment() {
  const char* const count = getenv("LISTEN_FDS");
  const char* const text = getenv("LISTEN_FDNAMES");
  std::vector<Announced> all;
  int n = 0;
  if (count != nullptr && absl::SimpleAtoi(count, &n)) {
    all.resize(static_cast<size_t>(std::clamp(n, 0, kMost)));
  }
  if (text != nullptr) {
    const std::vector<absl::string_view> names = absl::StrSplit(text, ':');
    all.resize(std::max(all.size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) all[i].name = std::string(names[i]);
  }
  int fd = SD_LISTEN_FDS_START;
  for (Announced& each : all) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) each.fd = fd;
    ++fd;
  }
  return all;
}

}  // namespace

absl::StatusOr<std::vector<NamedDescriptor>> TakeInherited(std::vector<NamedDescriptor>* lost) {
  const std::vector<Announced> announced = LookAtEnvironment();
  char** names = nullptr;
  const int n = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  if (n < 0) {
    for (const Announced& each : announced) lost->push_back({each.name, wire::UniqueFd(each.fd)});
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptors that the environment tells of (LISTEN_FDS): ",
                     wire::ErrnoStatus(-n, "take them").message()));
  }
  std::vector<NamedDescriptor> all;
  for (int i = 0; i < n; ++i) {
    all.push_back({names[i], wire::UniqueFd(SD_LISTEN_FDS_START + i)});
    free(names[i]);
  }
  free(names);
  return all;
}

Inherited SortInherited(std::vector<NamedDescriptor> all) {
  Inherited inherited;
  for (NamedDescriptor& each : all) {
    const auto only = [&each](wire::UniqueFd& place) {
      if (place.valid()) return false;
      place = std::move(each.fd);
      return true;
    };
    bool taken = false;
    if (each.name == kKeptSessionListener) {
      taken = only(inherited.session_listener);
    } else if (each.name == kKeptAdminListener) {
      taken = only(inherited.admin_listener);
    } else if (const std::optional<KeptName> name = KeptName::Parse(each.name)) {
      switch (name->kind) {
        case KeptName::Kind::kSegment:
          taken = only(inherited.segments[SegmentId{name->id}]);
          break;
        case KeptName::Kind::kPages:
          inherited.pages[JobId{name->id}].push_back(std::move(each.fd));
          taken = true;
          break;
        case KeptName::Kind::kPort:
          inherited.ports[JobId{name->id}].push_back(std::move(each.fd));
          taken = true;
          break;
        case KeptName::Kind::kSession:
          taken = only(inherited.sessions[SessionId{name->id}]);
          break;
      }
    } else {
      inherited.unknown.push_back(each.name);
      continue;
    }
    if (!taken) inherited.twice.push_back(each.name);
  }
  return inherited;
}

void GiveUp(std::vector<NamedDescriptor> all, DescriptorKeeper* keeper) {
  for (const NamedDescriptor& each : all) {
    if (each.fd.valid()) (void)shutdown(each.fd.get(), SHUT_RDWR);  // if it is a socket
    if (keeper == nullptr || each.name.empty()) continue;
    keeper->Count(each.name, 1);
    keeper->Remove(each.name);
  }
}

}  // namespace iris::server
