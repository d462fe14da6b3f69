// Party: the unit of isolation: a user, and the container that the user is in. PartyFinder
// (server/session) finds it. Plain data.
//
// A job is accessible only to processes of its own party. Shares of irisd belong to the party's
// account: users of a user namespace that an ordinary user made share that user's account, because
// anybody can make any number of them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace iris::server {

struct Party {
  // Stands for a container that irisd may not look into. It is no inode number of a namespace.
  static constexpr uint64_t kUnknownContainer = 1;

  uint32_t uid = 0;        // as seen in irisd's own user namespace
  uint64_t container = 0;  // inode number of the namespace that stands for it; 0: irisd's own
  // The ordinary user who made the processes' user namespace, if it is another user; 0: none.
  uint32_t maker = 0;

  // Returns the party whose share of irisd this party uses.
  Party Account() const { return maker == 0 ? *this : Party{maker, container}; }

  // Returns true for root and irisd's own user, in irisd's own namespaces. An operator may do
  // everything.
  bool IsOperator(uint32_t irisds_uid) const {
    return container == 0 && maker == 0 && (uid == 0 || uid == irisds_uid);
  }

  // Returns for example "uid 1000", "uid 0 of container 4026532512", or "uid 165536 (of uid 1000)".
  std::string Text() const {
    std::string text = absl::StrCat("uid ", uid);
    if (maker != 0) absl::StrAppend(&text, " (of uid ", maker, ")");
    if (container == kUnknownContainer) return text + " of an unknown container";
    if (container != 0) absl::StrAppend(&text, " of container ", container);
    return text;
  }

  friend auto operator<=>(const Party&, const Party&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Party& party) {
    return H::combine(std::move(h), party.uid, party.container, party.maker);
  }
};

}  // namespace iris::server
