#include "server/heap/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

// More jobs than these are reported as a sum.
constexpr size_t kJobsNamed = 8;

}  // namespace

Ledger::Ledger(std::vector<DeviceAccount> devices, uint32_t operator_uid)
    : devices_(std::move(devices)), operator_uid_(operator_uid), holders_(devices_.size()) {}

absl::Status Ledger::Reserve(uint32_t device_index, uint64_t bytes, const Holder& holder) {
  IRIS_CHECK(device_index < devices_.size(), "a ledger is asked for a device that it has");
  DeviceAccount& device = devices_[device_index];
  // used_bytes may exceed memory_bytes only if the account began that way.
  const uint64_t free_bytes =
      device.used_bytes < device.memory_bytes ? device.memory_bytes - device.used_bytes : 0;
  if (bytes > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("reserve ", base::SizeText(bytes),
                                                     " for rank ", holder.rank, ": ",
                                                     Describe(device_index, holder.party)));
  }
  device.used_bytes += bytes;
  holders_[device_index][holder] += bytes;
  return absl::OkStatus();
}

void Ledger::Release(uint32_t device_index, uint64_t bytes, const Holder& holder) {
  IRIS_CHECK(device_index < devices_.size(), "a ledger is asked for a device that it has");
  auto& holders = holders_[device_index];
  const auto found = holders.find(holder);
  IRIS_CHECK(found != holders.end() && found->second >= bytes,
             "memory is released by who booked it");
  found->second -= bytes;
  if (found->second == 0) holders.erase(found);
  IRIS_CHECK(devices_[device_index].used_bytes >= bytes, "what is released was used");
  devices_[device_index].used_bytes -= bytes;
}

std::string Ledger::Describe(uint32_t device_index, const Party& viewer) const {
  IRIS_CHECK(device_index < devices_.size(), "a ledger is asked for a device that it has");
  const DeviceAccount& device = devices_[device_index];
  const uint64_t free_bytes =
      device.used_bytes < device.memory_bytes ? device.memory_bytes - device.used_bytes : 0;
  std::string text =
      absl::StrCat("device ", device_index, " (", device.uuid, "): ", base::SizeText(free_bytes),
                   " of ", base::SizeText(device.memory_bytes), " are free");
  if (device.driver_free_bytes.has_value()) {
    absl::StrAppend(&text, ", ", base::SizeText(*device.driver_free_bytes),
                    " by the driver's count");
  }
  const bool sees_all = viewer.IsOperator(operator_uid_);
  std::map<std::pair<std::string, Party>, uint64_t> by_job;
  uint64_t others = 0;
  for (const auto& [holder, bytes] : holders_[device_index]) {
    if (sees_all || holder.party == viewer) {
      by_job[{holder.job, holder.party}] += bytes;
    } else {
      others += bytes;
    }
  }
  std::vector<std::pair<uint64_t, std::string>> held;
  for (const auto& [job, bytes] : by_job) {
    const std::string whose =
        job.second == viewer ? std::string() : absl::StrCat(" of ", job.second.Text());
    held.emplace_back(bytes, absl::StrCat("job '", job.first, "'", whose));
  }
  // Sorts by size, the largest first, then by name.
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  uint64_t more = 0;
  for (size_t i = kJobsNamed; i < held.size(); ++i) more += held[i].first;
  const size_t n_more = held.size() > kJobsNamed ? held.size() - kJobsNamed : 0;
  held.resize(held.size() - n_more);
  if (n_more > 0) held.emplace_back(more, absl::StrCat(n_more, " more jobs"));
  if (others > 0) held.emplace_back(others, "jobs of other users");
  absl::string_view separator = "; held: ";
  for (const auto& [bytes, who] : held) {
    absl::StrAppend(&text, std::exchange(separator, ", "), base::SizeText(bytes), " by ", who);
  }
  return text;
}

void Ledger::SetDriverFree(uint32_t device_index, uint64_t bytes) {
  IRIS_CHECK(device_index < devices_.size(), "a ledger is told of a device that it has");
  devices_[device_index].driver_free_bytes = bytes;
}

int Ledger::IndexOf(absl::string_view uuid) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].uuid == uuid) return static_cast<int>(i);
  }
  return -1;
}

uint64_t Ledger::used_bytes_total() const {
  uint64_t total = 0;
  for (const DeviceAccount& device : devices_) total += device.used_bytes;
  return total;
}

}  // namespace iris::server
