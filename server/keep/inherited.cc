#include "server/keep/inherited.h"

#include <errno.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "server/keep/kept_name.h"

namespace iris::server {

absl::StatusOr<std::vector<NamedDescriptor>> TakeInherited() {
  char** names = nullptr;
  const int n = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  if (n < 0) {
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
    bool known = true;
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
        case KeptName::Kind::kSession:
          taken = only(inherited.sessions[SessionId{name->id}]);
          break;
      }
    } else {
      known = false;
    }
    if (!known) {
      inherited.unknown.push_back(each.name);
    } else if (!taken) {
      inherited.twice.push_back(each.name);
    }
  }
  return inherited;
}

}  // namespace iris::server
