#include "client/ctl/peek.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/text.h"
#include "device/base/bytes.h"
#include "device/base/suggest.h"

namespace iris::ctl {
namespace {

constexpr uint64_t kDefaultElements = 64;
constexpr uint64_t kDefaultBytes = 256;
constexpr char kHex[] = "hex";
constexpr size_t kShownNames = 8;

absl::StatusOr<const v1::Allocation*> FindAllocation(const PeekWish& wish,
                                                     const v1::ListAllocationsReply& allocations) {
  std::vector<const v1::Allocation*> found;
  std::vector<std::string> names, owners;
  for (const v1::Allocation& allocation : allocations.allocations()) {
    const bool named = allocation.name() == wish.place;
    if (named && allocation.has_owner() && allocation.owner() != wish.rank) {
      owners.push_back(absl::StrCat(allocation.owner()));
      continue;
    }
    if (named) found.push_back(&allocation);
    if (!allocation.name().empty()) names.push_back(allocation.name());
  }
  if (found.size() == 1) return found[0];
  const std::string job = absl::StrCat("job '", wish.job, "'");
  if (found.size() > 1) {
    std::vector<std::string> offsets;
    for (const v1::Allocation* each : found) {
      offsets.push_back(absl::StrFormat("0x%x", each->offset_bytes()));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(job, " has ", found.size(), " allocations named '", wish.place,
                     "'; name one by its offset instead: ", absl::StrJoin(offsets, ", ")));
  }
  if (!owners.empty()) {
    return absl::NotFoundError(absl::StrCat("rank ", wish.rank, " of ", job,
                                            " has no allocation named '", wish.place,
                                            "': what has this name was allocated alone by rank ",
                                            absl::StrJoin(owners, ", rank "), "; give that rank"));
  }
  std::string text = absl::StrCat(job, " has no allocation named '", wish.place, "'");
  const std::vector<std::string> near = base::NearNames(wish.place, names, kShownNames);
  if (near.size() == 1) {
    absl::StrAppend(&text, "; did you mean '", near[0], "'?");
  } else if (!near.empty()) {
    absl::StrAppend(&text, "; did you mean one of '", absl::StrJoin(near, "', '"), "'?");
  } else if (names.empty()) {
    absl::StrAppend(&text, ", and none that has a name; give an offset");
  } else {
    const size_t shown = std::min(names.size(), kShownNames);
    absl::StrAppend(&text, "; it has '",
                    absl::StrJoin(names.begin(), names.begin() + static_cast<long>(shown), "', '"),
                    "'", shown < names.size() ? " and more" : "", ": see iris-ctl allocations");
  }
  return absl::NotFoundError(text);
}

std::string Times(uint64_t n, const char* what) {
  return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
}

}  // namespace

bool NamesAllocation(const PeekWish& wish) {
  uint64_t offset = 0;
  return !base::ParseBytes(wish.place, &offset);
}

absl::StatusOr<PeekPlan> PlanPeek(const PeekWish& wish,
                                  const v1::ListAllocationsReply& allocations) {
  PeekPlan plan;
  std::string dtype = wish.dtype;
  uint64_t room_bytes = std::numeric_limits<uint64_t>::max();  // from the place on
  if (NamesAllocation(wish)) {
    const absl::StatusOr<const v1::Allocation*> found = FindAllocation(wish, allocations);
    if (!found.ok()) return found.status();
    const v1::Allocation& allocation = **found;
    plan.name = allocation.name();
    plan.offset_bytes = allocation.offset_bytes();
    room_bytes = allocation.bytes();
    if (dtype.empty()) dtype = allocation.tensor().dtype();
    const std::string& type = allocation.tensor().dtype();
    const std::string shape = absl::StrJoin(allocation.tensor().shape(), "x");
    plan.what = absl::StrCat(type, type.empty() || shape.empty() ? "" : " ", shape,
                             type.empty() && shape.empty() ? "" : ", ", HumanBytes(room_bytes));
  } else {
    base::ParseBytes(wish.place, &plan.offset_bytes);
    room_bytes -= plan.offset_bytes;
  }
  // If the type of an allocation is unknown here, its bytes are shown.
  plan.type = FindElementType(dtype);
  if (wish.count.has_value() && wish.bytes.has_value()) {
    return absl::InvalidArgumentError("--count and --bytes both say how much; give one");
  }
  if (plan.type == nullptr && wish.count.has_value()) {
    return absl::InvalidArgumentError(
        "--count counts elements, and nothing says of which type; give --dtype, or --bytes");
  }
  const uint64_t unit = plan.type == nullptr ? 1 : plan.type->bytes;
  const char* const things = plan.type == nullptr ? "byte" : "element";
  if (wish.bytes.has_value() && *wish.bytes % unit != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--bytes ", *wish.bytes,
                                                   " is no whole number of ", plan.type->name,
                                                   ", which have ", unit, " bytes each"));
  }
  const uint64_t room = room_bytes / unit;
  const std::string of_what =
      plan.name.empty() ? std::string("the largest heap")
                        : absl::StrCat("allocation '", plan.name, "' of ", Times(room, things));
  if (wish.first_element > room || (room > 0 && wish.first_element == room)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--from ", wish.first_element, " is behind ", of_what));
  }
  uint64_t n =
      std::min(plan.type == nullptr ? kDefaultBytes : kDefaultElements, room - wish.first_element);
  if (wish.count.has_value()) n = *wish.count;
  if (wish.bytes.has_value()) n = *wish.bytes / unit;
  if (n == 0) {
    return absl::InvalidArgumentError(absl::StrCat("nothing to show: 0 ", things, "s"));
  }
  if (n > room - wish.first_element) {
    return absl::InvalidArgumentError(absl::StrCat(Times(n, things), " from number ",
                                                   wish.first_element, " on go beyond ", of_what));
  }
  plan.first_element = wish.first_element;
  plan.offset_bytes += wish.first_element * unit;
  plan.bytes = n * unit;
  return plan;
}

std::string PeekText(const PeekWish& wish, const PeekPlan& plan, const std::string& data) {
  std::string text;
  if (!plan.name.empty()) {
    absl::StrAppendFormat(
        &text, "%s of rank %d: %s; %s %d to %d, at offset 0x%x\n", EscapeName(plan.name), wish.rank,
        EscapeName(plan.what), plan.type == nullptr ? "bytes" : plan.type->name, plan.first_element,
        plan.first_element + data.size() / (plan.type == nullptr ? 1 : plan.type->bytes) - 1,
        plan.offset_bytes);
  }
  if (plan.type == nullptr) return text + HexDump(data, plan.offset_bytes);
  return text + ValueDump(*plan.type, data, plan.first_element);
}

nlohmann::ordered_json PeekJson(const PeekWish& wish, const PeekPlan& plan,
                                const std::string& data) {
  nlohmann::ordered_json json = {
      {"job", wish.job},      {"rank", wish.rank},
      {"name", plan.name},    {"offset_bytes", plan.offset_bytes},
      {"bytes", data.size()}, {"dtype", plan.type == nullptr ? kHex : plan.type->name}};
  if (plan.type != nullptr) {
    json["first_element"] = plan.first_element;
    json["values"] = nlohmann::ordered_json::array();
    for (size_t at = 0; at < data.size(); at += plan.type->bytes) {
      json["values"].push_back(plan.type->json(data.data() + at));
    }
  }
  json["data_hex"] = absl::BytesToHexString(data);
  return json;
}

}  // namespace iris::ctl
