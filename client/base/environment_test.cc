#include "client/base/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace iris::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Getter Of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  };
}

TEST(EnvironmentTest, ASwitchIsZeroOrOneOrNotSet) {
  const auto read = ReadSwitches(Of({{"IRIS_CCL_CHECK", "1"}, {"IRIS_CCL_LINES", "0"}}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ccl_check, true);
  EXPECT_EQ(read->ccl_lines, false);
  EXPECT_EQ(read->check_access, std::nullopt);
  EXPECT_EQ(ReadSwitches(Of({{"IRIS_CCL_CHECK", ""}}))->ccl_check, std::nullopt);
}

TEST(EnvironmentTest, AWrongValueIsNamedWithWhatIsAllowed) {
  for (const char* variable : {"IRIS_CHECK_ACCESS", "IRIS_CCL_CHECK", "IRIS_CCL_LINES"}) {
    for (const char* text : {"2", "yes", "01", " 1", "-1"}) {
      const absl::Status status = CheckVariables(Of({{variable, text}}));
      EXPECT_EQ(status.message(), std::string("environment variable ") + variable + "=\"" + text +
                                      "\" is not 0 or 1");
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
  }
  for (const auto& [variable, most] : std::map<std::string, std::string>{
           {"IRIS_EMU_WORKERS", "64"}, {"IRIS_EMU_RESIDENT_BLOCKS", "1048576"}}) {
    EXPECT_TRUE(CheckVariables(Of({{variable, "1"}})).ok());
    EXPECT_TRUE(CheckVariables(Of({{variable, most}})).ok());
    for (const char* text : {"0", "x", "4x", "-1", "1048577", "99999999999999999999"}) {
      EXPECT_THAT(CheckVariables(Of({{variable, text}})).message(),
                  HasSubstr(variable + "=\"" + text + "\" is not a number from 1 to " + most));
    }
  }
  EXPECT_TRUE(CheckVariables(Of({})).ok());
}

TEST(EnvironmentTest, AWrongValueCannotSteerATerminalAndIsCut) {
  const std::string text = "\x1b[2J\n" + std::string(1000, 'x');
  const absl::Status status = CheckVariables(Of({{"IRIS_CCL_CHECK", text}}));
  EXPECT_THAT(status.message(), HasSubstr("=\"\\x1b[2J\\nxx"));
  EXPECT_THAT(status.message(), Not(HasSubstr(std::string(100, 'x'))));
}

}  // namespace
}  // namespace iris::internal
