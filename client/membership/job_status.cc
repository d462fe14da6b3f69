#include "client/membership/job_status.h"

#include <unistd.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/process.h"

namespace iris::internal {

std::string JobStatus::Name(uint32_t rank) const {
  if (!IsLocal(rank)) return absl::StrCat("rank ", rank, " (on another node)");
  const int64_t its_pid = pid(rank);
  if (its_pid == 0) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (pid ", its_pid, ")");
}

std::string JobStatus::Names(absl::Span<const uint32_t> ranks) const {
  return absl::StrJoin(ranks, ", ",
                       [this](std::string* out, uint32_t rank) { *out += Name(rank); });
}

bool JobStatus::ProcReadable() const {
  for (uint32_t i = 0; i < n_local_; ++i) {
    if (pid(first_ + i) == getpid()) return true;
  }
  return false;
}

std::string JobStatus::MissingNames(absl::Span<const uint32_t> ranks) const {
  return absl::StrJoin(
      ranks, ", ", [this, readable = ProcReadable()](std::string* out, uint32_t rank) {
        *out += Name(rank);
        const auto process =
            readable && IsLocal(rank) ? base::ReadProcess(pid(rank)) : std::nullopt;
        if (process.has_value() && process->stopped()) out->insert(out->size() - 1, ", stopped");
      });
}

absl::Status JobStatus::Broken() const {
  if (!aborted()) return absl::OkStatus();
  const std::optional<uint32_t> culprit = broken_by();
  if (!culprit.has_value()) return absl::AbortedError("the job was aborted by irisd");
  if (!IsLocal(*culprit)) {
    return absl::AbortedError(
        absl::StrCat(Name(*culprit), " died, hung up or was lost; make a new Context"));
  }
  bool died = state(*culprit) == wire::PageRankState::kDead;
  if (!died && ProcReadable()) {
    // irisd learns of the death once the process is gone, which on GPUs includes the driver's work.
    const auto process = base::ReadProcess(pid(*culprit));
    died = !process.has_value() || process->exiting();
  }
  return absl::AbortedError(absl::StrCat(Name(*culprit),
                                         died ? " died" : " hung up (its process may still run)",
                                         "; make a new Context"));
}

absl::Status JobStatus::Left(absl::Span<const uint32_t> ranks) const {
  std::vector<uint32_t> left;
  for (const uint32_t rank : ranks) {
    if (state(rank) == wire::PageRankState::kLeft) left.push_back(rank);
  }
  if (left.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(Names(left), " left the job"));
}

}  // namespace iris::internal
