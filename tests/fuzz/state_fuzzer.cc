// Fuzzes what a starting irisd reads of the one before: its journal, the machine that is made of
// it, and what the machine then does (Life). Whatever the bytes are, they are refused with a report
// or give a machine that is sound and goes on.
//
// The input is that of journal_text.h: as bytes of a file, or with its checksums made right, since
// these stop nobody who can compute them.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/heap/ledger.h"
#include "server/job/job_machine.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"
#include "tests/fuzz/journal_text.h"
#include "tests/fuzz/life.h"
#include "tests/fuzz/require.h"

namespace iris::fuzz {
namespace {

using server::JobMachine;
using server::MachineState;
using server::StoredState;

constexpr uint8_t kMaxSteps = 32;

void RequireReport(const absl::Status& told) {
  Require(absl::IsDataLoss(told) || absl::IsFailedPrecondition(told), told.ToString());
  Require(!told.message().empty(), "it is refused without a word");
}

// Without its torn end, the journal says the same.
void CheckTorn(absl::string_view journal, const StoredState& stored) {
  if (stored.torn_bytes == 0) return;
  Require(stored.torn_bytes < journal.size(), "more is torn than there is");
  journal.remove_suffix(stored.torn_bytes);
  const absl::StatusOr<StoredState> whole = server::ParseJournal(journal);
  Require(whole.ok(), "without its torn end: ", whole.status().ToString());
  Require(MachineState::BytesOf(*whole->state) == MachineState::BytesOf(*stored.state),
          "a torn end changes the state");
  Require(whole->n_changes == stored.n_changes && whole->torn_bytes == 0, "what is whole is torn");
}

void Run(const Setting& setting, absl::string_view journal) {
  const absl::StatusOr<StoredState> stored = server::ParseJournal(journal);
  if (!stored.ok()) return RequireReport(stored.status());
  CheckTorn(journal, *stored);

  server::JobLimits limits;
  if ((setting.mode & Setting::kQuota) != 0) limits.max_heap_bytes_per_uid = 1ull << 30;
  const absl::Status checked = MachineState::Check(*stored->state, limits);
  if (!checked.ok()) RequireReport(checked);
  auto machine = MachineState::Decode(*stored->state, limits, server::Ledger(Devices()));
  if (!machine.ok()) return RequireReport(machine.status());
  Require(checked.ok(), "irisd state check refuses what irisd takes: ", checked.ToString());

  const std::string written = MachineState::Encode(**machine);
  const auto again = MachineState::Decode(written, limits, server::Ledger(Devices()));
  Require(again.ok(), "what it writes is not read: ", again.status().ToString());
  Require(MachineState::Encode(**again) == written, "what is read is not what was written");

  Life life(machine->get(), setting.seed);
  life.Restart((setting.mode & Setting::kAllKept) != 0    ? Life::Kept::kAll
               : (setting.mode & Setting::kNoneKept) != 0 ? Life::Kept::kNothing
                                                          : Life::Kept::kSome);
  for (int i = 0; i < setting.n_steps % kMaxSteps; ++i) life.Step();
  life.Finish();
}

}  // namespace
}  // namespace iris::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  using iris::fuzz::Setting;
  Setting setting;
  if (n_bytes < sizeof(setting)) return 0;
  memcpy(&setting, data, sizeof(setting));
  std::string journal(reinterpret_cast<const char*>(data) + sizeof(setting),
                      n_bytes - sizeof(setting));
  if ((setting.mode & Setting::kSealed) != 0) {
    journal = iris::fuzz::Join(iris::fuzz::Split(journal));
  }
  iris::fuzz::Run(setting, journal);
  return 0;
}
