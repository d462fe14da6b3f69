// MachineState: the whole state of a JobMachine as bytes (machine_state.proto), and back, for an
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
  // Between two inputs. Equal states give equal bytes.
  static std::string Encode(const JobMachine& machine);
  // Appends what the machine's last input has changed: a message state::Change, for ChangeTable.
  static void EncodeChange(const JobMachine& machine, std::string* to);

  // Returns a machine in the state that Encode wrote: the same inputs have the same effects. Limits
  // and unusable pairs are configuration and not part of the state. `devices` is a ledger with
  // nothing booked, of the same devices in the same order. kFailedPrecondition for other devices.
  // kDataLoss, with the place, if the bytes are no state. Every invariant is checked, so they may
  // be hostile.
  static absl::StatusOr<std::unique_ptr<JobMachine>> Decode(absl::string_view bytes,
                                                            const JobLimits& limits, Ledger devices,
                                                            UnusablePairs unusable = {});
  static absl::StatusOr<std::unique_ptr<JobMachine>> Decode(const state::MachineState& from,
                                                            const JobLimits& limits, Ledger devices,
                                                            UnusablePairs unusable = {});
  static std::string BytesOf(const state::MachineState& state);

  // Returns the error that Decode would have with the devices that the state names, for programs
  // that open none. kDataLoss also for impossible devices.
  static absl::Status Check(const state::MachineState& from, const JobLimits& limits);

 private:
  class Encoder;
  class Decoder;
};

}  // namespace iris::server
