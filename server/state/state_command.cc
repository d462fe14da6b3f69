#include "server/state/state_command.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/text_format.h"
#include "proto/wire/version.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"

namespace iris::server {
namespace {

bool IsOfThisBoot(const StoredState& stored) { return stored.boot_id == BootId().value_or(""); }

std::string PathUnder(const std::string& directory) {
  return absl::StrCat(directory, "/", Journal::kFolder, "/", Journal::kFile);
}

absl::Status Naming(const std::string& directory, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(PathUnder(directory), ": ", status.message()));
}

std::string Describe(const StoredState& stored) {
  std::string text =
      absl::StrCat(stored.n_changes, " changes in ", stored.bytes, " bytes, by irisd ",
                   stored.writer, ", generation ", stored.owner.generation, ", in ",
                   IsOfThisBoot(stored) ? "this boot" : "another boot", "\n");
  if (stored.torn_bytes > 0) {
    absl::StrAppend(&text, "its last change is left out: only ", stored.torn_bytes,
                    " bytes of it were written\n");
  }
  return text;
}

std::string Numbers(const StoredState& stored) {
  const state::MachineState& state = *stored.state;
  size_t n_ranks = 0, n_allocations = 0;
  for (const state::Job& job : state.jobs()) {
    n_ranks += static_cast<size_t>(job.ranks_size());
    n_allocations += static_cast<size_t>(job.allocations_size());
  }
  std::string text;
  const auto add = [&text](absl::string_view key, const auto& value) {
    absl::StrAppend(&text, key, ": ", value, "\n");
  };
  add("writer", stored.writer);
  add("daemon_id", absl::StrFormat("%016x", stored.owner.daemon_id));
  add("generation", stored.owner.generation);
  add("boot", IsOfThisBoot(stored) ? "this" : "another");
  add("bytes", stored.bytes);
  add("changes", stored.n_changes);
  add("torn_bytes", stored.torn_bytes);
  add("devices", state.devices_size());
  add("jobs", state.jobs_size());
  add("ranks", n_ranks);
  add("allocations", n_allocations);
  add("segments", state.segments_size());
  add("sessions", state.sessions_size());
  return text;
}

}  // namespace

absl::StatusOr<std::string> RunStateCommand(absl::string_view command,
                                            const std::string& directory) {
  const absl::StatusOr<StoredState> stored = ReadJournal(directory);
  if (!stored.ok()) return stored.status();
  if (command == "check") {
    // With a quota, Check also checks released memory that may still be mapped.
    JobLimits limits;
    limits.max_heap_bytes_per_uid = 1ull << 60;
    if (absl::Status s = MachineState::Check(*stored->state, limits); !s.ok()) {
      return Naming(directory, s);
    }
    return absl::StrCat(PathUnder(directory), " is whole: ", Describe(*stored));
  }
  if (command == "stat") return Numbers(*stored);
  if (command != "dump") {
    return absl::InvalidArgumentError(absl::StrCat("state ", command, " is not known"));
  }
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(*stored->state, &text)) {
    return Naming(directory, absl::DataLossError("the state cannot be printed"));
  }
  return text;
}

absl::StatusOr<std::string> CheckStoredState(const std::string& directory,
                                             const JobLimits& limits) {
  const absl::StatusOr<StoredState> stored = ReadJournal(directory);
  if (absl::IsNotFound(stored.status())) {
    return absl::StrCat("irisd ", wire::kIrisVersion,
                        " would begin with nothing: ", stored.status().message(), "\n");
  }
  if (!stored.ok()) return stored.status();
  if (!IsOfThisBoot(*stored)) {
    return absl::FailedPreconditionError(absl::StrCat(
        PathUnder(directory), ": it is of an earlier boot, with which its heaps have ended"));
  }
  if (absl::Status s = MachineState::Check(*stored->state, limits); !s.ok()) {
    return Naming(directory, s);
  }
  return absl::StrCat("irisd ", wire::kIrisVersion, " can go on with ", PathUnder(directory), ": ",
                      Describe(*stored));
}

}  // namespace iris::server
