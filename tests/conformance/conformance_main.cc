// One program of all conformance tests, as the bundle carries them: by the name that it is called
// by, NAME_test, it runs the tests of that file, and those of the files that belong to it.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

namespace {

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The files that make up a test, as in BUILD.bazel.
std::set<std::string> FilesOf(const std::string& test) {
  std::set<std::string> files = {test + ".cc"};
  if (test == "collective_conformance_test") files.insert("collective_matrix_test.cc");
  if (test == "ops_conformance_test") files.insert("ops_layers_test.cc");
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string name = FileName(argv[0]);
  if (name == "conformance") return RUN_ALL_TESTS();  // of all files
  const std::set<std::string> files = FilesOf(name);
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string others;
  bool found = false;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    const char* path = suite.total_test_count() > 0 ? suite.GetTestInfo(0)->file() : "";
    if (files.count(FileName(path)) != 0) {
      found = true;
    } else {
      others += (others.empty() ? "" : ":") + std::string(suite.name()) + ".*";
    }
  }
  if (!found) {
    std::fprintf(stderr, "%s: no conformance test is called so\n", name.c_str());
    return 2;
  }
  std::string filter = GTEST_FLAG_GET(filter);
  filter += filter.find('-') == std::string::npos ? "-" : ":";
  GTEST_FLAG_SET(filter, filter + others);
  return RUN_ALL_TESTS();
}
