// MachineState: the whole state of a JobMachine as bytes, and a machine made of them that goes on
// as if it were the same one. For an irisd that starts where another one stopped.
//
// Pure: bytes in, bytes out (a protocol buffer, machine_state.proto). Not thread-safe: the
// machine's owner locks.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/heap/ledger.h"
#include "server/job/job_machine.h"
#include "server/job/limits.h"

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

  // A machine in the state that Encode wrote: to the same inputs it has the same effects. Limits
  // and unusable pairs are configuration and not part of the state. `devices` is a ledger with
  // nothing booked, of the same devices in the same order. kFailedPrecondition: other devices.
  // kDataLoss, saying where: these bytes are no state; hostile ones included, for which every
  // invariant is checked.
  static absl::StatusOr<std::unique_ptr<JobMachine>> Decode(absl::string_view bytes,
                                                            const JobLimits& limits, Ledger devices,
                                                            UnusablePairs unusable = {});
  // The same of bytes that were parsed, and these bytes.
  static absl::StatusOr<std::unique_ptr<JobMachine>> Decode(const state::MachineState& from,
                                                            const JobLimits& limits, Ledger devices,
                                                            UnusablePairs unusable = {});
  static std::string BytesOf(const state::MachineState& state);

  // Whether Decode would take it where there are the devices that it names: for programs that open
  // none. The same errors, and kDataLoss for devices that there cannot be.
  static absl::Status Check(const state::MachineState& from, const JobLimits& limits);

 private:
  class Encoder;
  class Decoder;
};

}  // namespace iris::server
