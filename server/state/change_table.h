// ChangeTable: applies a series of changes (MachineState::EncodeChange) to a MachineState, to read
// a journal. It refuses bytes that are no change; MachineState::Decode checks the state itself. Not
// thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace iris::server {
namespace state {
class MachineState;
}

class ChangeTable {
 public:
  ChangeTable();
  ~ChangeTable();
  ChangeTable(const ChangeTable&) = delete;
  ChangeTable& operator=(const ChangeTable&) = delete;

  // Begins with a result of MachineState::Encode. Returns kDataLoss if the bytes are no such state,
  // and kFailedPrecondition if they are a state of another version.
  absl::Status Begin(absl::string_view state);

  // Applies a change. Returns kDataLoss if the bytes are no change, or change something that does
  // not exist. The table must then begin again.
  absl::Status Apply(absl::string_view change);

  // Returns the entire state, for MachineState::Decode. The table is empty afterwards.
  std::shared_ptr<const state::MachineState> Take();

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace iris::server
