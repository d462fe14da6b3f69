// ChangeTable: what a MachineState is after a series of changes (MachineState::EncodeChange). For
// whoever reads a store that was written change by change.
//
// Bytes that are no change are refused; whether the state makes sense is MachineState::Decode's to
// check. Not thread-safe.
#pragma once

#include <cstddef>
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

  // Begins with what MachineState::Encode has written. kDataLoss: these bytes are no such state.
  // kFailedPrecondition: they are one of another version.
  absl::Status Begin(absl::string_view state);

  // kDataLoss: these bytes are no change, or one of something that is not there. The table can then
  // only begin again.
  absl::Status Apply(absl::string_view change);

  // The whole state, for MachineState::Decode. The table is empty afterwards.
  std::shared_ptr<const state::MachineState> Take();

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace iris::server
