// The page tokens of listings. A token is a position and no right: whoever makes one up sees what
// he may see anyway, from there on. Pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/job/snapshots.h"

namespace iris::server {

// `listing` names the listing and `filter` what the request filters by: another listing, or the
// same one with another filter, does not take the token.
std::string MakePageToken(absl::string_view listing, absl::string_view filter, ListPosition last);

// The position that MakePageToken was given; the beginning, if the token is empty.
// kInvalidArgument: it is no such token.
absl::StatusOr<ListPosition> ReadPageToken(absl::string_view listing, absl::string_view filter,
                                           absl::string_view token);

}  // namespace iris::server
