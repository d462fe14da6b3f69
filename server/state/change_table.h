// ChangeTable: a MachineState after a series of changes (MachineState::EncodeChange), for reading a
// journal. It refuses bytes that are no change; MachineState::Decode checks the state itself. Not
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

  // Begins with the bytes of MachineState::Encode. kDataLoss if they are no such state.
  // kFailedPrecondition if they are a state of another version.
  absl::Status Begin(absl::string_view state);

  // kDataLoss if the bytes are no change, or change something that is not there. The table must
  // then begin again.
  absl::Status Apply(absl::string_view change);

  // The whole state, for MachineState::Decode. The table is empty afterwards.
  std::shared_ptr<const state::MachineState> Take();

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace iris::server
