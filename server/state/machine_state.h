// MachineState: converts all state of a JobMachine to bytes (machine_state.proto) and back, for an
// irisd that starts where another one stopped. Pure. Not thread-safe: the machine's owner locks.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/heap/ledger.h"
#include "server/job/inputs.h"
#include "server/job/job_machine.h"

namespace iris::server {
namespace state {
class MachineState;
}

class MachineState {
 public:
  // Returns the state. Call it between two inputs. Equal states give equal bytes.
  static std::string Encode(const JobMachine& machine);
  // Appends the changes of the machine's last input: a message state::Change, for ChangeTable.
  static void EncodeChange(const JobMachine& machine, std::string* to);

  // Returns a machine in the state that Encode wrote: the same inputs have the same effects. Limits
  // and unusable pairs are configuration and not part of the state. `devices` is a ledger with
  // nothing booked, of the same devices in the same order. Returns kFailedPrecondition for other
  // devices. Returns kDataLoss, with the place, if the bytes are no state. The bytes may be
  // hostile: every invariant is checked.
  static absl::StatusOr<std::unique_ptr<JobMachine>> Decode(absl::string_view bytes,
                                                            const JobLimits& limits, Ledger devices,
                                                            UnusablePairs unusable = {});
  static absl::StatusOr<std::unique_ptr<JobMachine>> Decode(const state::MachineState& from,
                                                            const JobLimits& limits, Ledger devices,
                                                            UnusablePairs unusable = {});
  static std::string BytesOf(const state::MachineState& state);

  // Returns the error that Decode would return with the devices that the state names, for programs
  // that open no devices. Returns kDataLoss also for impossible devices.
  static absl::Status Check(const state::MachineState& from, const JobLimits& limits);

 private:
  class Encoder;
  class Decoder;
};

}  // namespace iris::server
