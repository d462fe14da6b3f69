#include "device/ucx/find.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"

namespace iris::ucx {
namespace {

// The error names the place, what was wrong with it, and the remedy.
TEST(FindTest, SaysWhatWasFoundAndWhatToDo) {
  for (const auto& [path, found] :
       {std::pair("/nowhere/libucp.so.0", "No such file"), std::pair("libm.so.6", "not UCX")}) {
    const absl::Status status = Find(path).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    for (const char* text : {path, found, "deploy/setup.sh", "IRIS_UCX"}) {
      EXPECT_TRUE(absl::StrContains(status.message(), text)) << text << ": " << status;
    }
  }
}

TEST(FindTest, FindsTheFileAndItsVersion) {
  const auto found = Find("");
  if (!found.ok()) GTEST_SKIP() << found.status();
  EXPECT_TRUE(std::filesystem::is_regular_file(found->path)) << found->path;
  EXPECT_TRUE(absl::StartsWith(found->version, "1.")) << found->version;
  EXPECT_EQ(Find(found->path)->version, found->version);
}

}  // namespace
}  // namespace iris::ucx
