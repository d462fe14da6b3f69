#include "client/base/environment.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/base/printable.h"

namespace iris::internal {
namespace {

constexpr size_t kShownBytes = 64;

absl::Status ReadSwitch(const Getter& get, const char* variable, std::optional<bool>* out) {
  const std::string text = get(variable).value_or("");
  if (text.empty()) return absl::OkStatus();
  if (text != "0" && text != "1") return WrongVariable(variable, text, "0 or 1");
  *out = text == "1";
  return absl::OkStatus();
}

}  // namespace

absl::Status WrongVariable(absl::string_view variable, absl::string_view text,
                           absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("environment variable ", variable, "=\"",
                                                 base::Printable(text.substr(0, kShownBytes)),
                                                 "\" is not ", wanted));
}

absl::StatusOr<std::optional<uint64_t>> ReadNumber(const Getter& get, const char* variable,
                                                   uint64_t min, uint64_t max) {
  const std::string text = get(variable).value_or("");
  if (text.empty()) return std::nullopt;
  uint64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= min && number <= max) return number;
  return WrongVariable(variable, text, absl::StrCat("a number from ", min, " to ", max));
}

absl::StatusOr<Switches> ReadSwitches(const Getter& get) {
  Switches read;
  absl::Status status = ReadSwitch(get, kCheckAccess, &read.check_access);
  status.Update(ReadSwitch(get, "IRIS_CCL_CHECK", &read.ccl_check));
  status.Update(ReadSwitch(get, "IRIS_CCL_LINES", &read.ccl_lines));
  if (!status.ok()) return status;
  return read;
}

absl::Status CheckVariables(const Getter& get) {
  absl::Status status = ReadSwitches(get).status();
  // The emulator reads the same variables: iris/backend/emu/scheduler.cc.
  if (status.ok()) status = ReadNumber(get, "IRIS_EMU_WORKERS", 1, 64).status();
  if (status.ok()) status = ReadNumber(get, "IRIS_EMU_RESIDENT_BLOCKS", 1, 1 << 20).status();
  return status;
}

}  // namespace iris::internal
