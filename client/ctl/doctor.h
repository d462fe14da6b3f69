// iris-ctl doctor: checks the requirements of a job, from the socket's permissions and every pair
// of devices to a small real job, and gives a remedy for each one that is not met. Checks are
// independent; one thread. The program's main must serve driver::IsPairCheckChild.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/driver/pair_check.h"
#include "device/ucx/find.h"
#include "iris/collective/whole_lines.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

enum class Verdict { kOk, kWarn, kFail };

struct Finding {
  std::string check;  // a few words: "runtime directory"
  Verdict verdict = Verdict::kOk;
  std::string detail;  // what was found
  std::string remedy;  // what to do; empty if ok
  std::optional<driver::PairTable> pairs = std::nullopt;
  std::vector<std::pair<std::string, double>> numbers = {};  // fields of the JSON; units in names
};

inline Finding Ok(std::string check, std::string detail) {
  return {std::move(check), Verdict::kOk, std::move(detail), ""};
}
inline Finding Warn(std::string check, std::string detail, std::string remedy) {
  return {std::move(check), Verdict::kWarn, std::move(detail), std::move(remedy)};
}
inline Finding Fail(std::string check, std::string detail, std::string remedy) {
  return {std::move(check), Verdict::kFail, std::move(detail), std::move(remedy)};
}

// Runs a job of two ranks, threads of this process, which allocate, write and read through the
// peer's window, call barriers, and leave. The job takes a few MiB of the first two devices for a
// few milliseconds. An error says which step failed.
absl::Status RoundTrip(const std::string& runtime_dir);

// The sums of the counts of all ranks.
struct TornLines {
  uint32_t n_devices = 0;
  ccl::LinesSeen seen;
};

// Checks that the devices of this machine store lines of 128 bytes in each other's memory without
// tearing them: a rank on each of `n_devices` devices, at most eight, writes to all others for
// about a second. See iris/collective/whole_lines.h.
absl::StatusOr<TornLines> SearchTornLines(const std::string& runtime_dir, uint32_t n_devices);

// Runs all checks against irisd in the first of `runtime_dirs` that has one.
std::vector<Finding> RunDoctor(const std::vector<std::string>& runtime_dirs);

// The checks of the machine, which tests call separately.
Finding CheckOpenFileLimit();
Finding CheckFutexWaitv();
Finding CheckMemfdSeals();
Finding CheckPidfd();
Finding CheckProc();
Finding CheckRuntimeDir(const std::string& dir);
Finding CheckSocket(const std::string& path);
// Checks that this process may open the device nodes in the folder `dev`. If irisd's devices are
// emulated, a failure is only a warning.
Finding CheckDeviceNodes(const std::string& dev, bool emulated);

// Finds the UCX that an irisd uses: `named` is its setting. A library that the irisd of another
// user names is not loaded, since it would run code of that user here: kPermissionDenied, unless
// that user is root.
absl::StatusOr<ucx::Library> FindUcx(const std::string& runtime_dir, const std::string& named);

// Return the findings for irisd's report about its workers, for UCX with irisd's settings of the
// network, for the fabric between nodes, and for a search for torn lines.
Finding WorkersFinding(const v1::GetStatusReply& status);
Finding NetworkFinding(const v1::NetworkSettings& settings,
                       const absl::StatusOr<ucx::Library>& found);
Finding FabricFinding(const v1::NetworkSettings& settings);
Finding LineFinding(const absl::StatusOr<TornLines>& found);
// Returns one finding with the table, then one for each cause of failures.
std::vector<Finding> PairFindings(const driver::PairTable& table);

std::string FindingsText(const std::vector<Finding>& findings);
nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings);
// Returns the finding that is an element of FindingsJson, without pairs; none if the text is
// anything else.
std::optional<Finding> FindingOf(absl::string_view json);
bool AnyFailed(const std::vector<Finding>& findings);

}  // namespace iris::ctl
