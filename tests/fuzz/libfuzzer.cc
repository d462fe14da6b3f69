// The arguments of a fuzz target that libFuzzer runs, whose main calls this first:
//
//   (none)         the corpus, then 12 s of fuzzing from a fixed seed: the test
//   --minutes N    the corpus, then N minutes from a random seed
//   anything else  libFuzzer's own: -help=1, -merge=1 TO FROM, files to be run again
//
// An input that fails is written where TEST_UNDECLARED_OUTPUTS_DIR says, or else into a folder of
// its own, which is printed.
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "tests/fuzz/require.h"

namespace {

std::string NewFolder() {
  const char* const parent = std::getenv("TEST_TMPDIR");
  std::string path = absl::StrCat(parent == nullptr ? "/tmp" : parent, "/iris-fuzz.XXXXXX");
  iris::fuzz::Require(mkdtemp(path.data()) != nullptr, "make the folder ", path);
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const bool is_campaign = *argc == 3 && std::strcmp((*argv)[1], "--minutes") == 0;
  if (*argc > 1 && !is_campaign) return 0;
  const int minutes = is_campaign ? std::atoi((*argv)[2]) : 0;
  if (is_campaign && minutes < 1) {
    std::fprintf(stderr, "--minutes is a number from 1 on\n");
    std::exit(2);
  }
  // What is found goes into the first folder, which must not be the repository's.
  const std::string found = NewFolder();
  const char* const outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string failed = outputs != nullptr && !is_campaign ? outputs : NewFolder();
  std::printf("an input that fails goes to %s\n", failed.c_str());
  std::fflush(stdout);
  // libFuzzer keeps the pointers.
  static std::deque<std::string> texts;
  texts = {
      (*argv)[0],
      is_campaign ? "-seed=0" : "-seed=20261127",
      absl::StrCat("-max_total_time=", is_campaign ? minutes * 60 : 12),
      "-max_len=65536",
      // Bounds of one input. AddressSanitizer keeps 256 MiB of freed memory back.
      "-timeout=20",
      "-rss_limit_mb=2048",
      "-malloc_limit_mb=64",
      // libFuzzer would start a process that names new functions. Its pipes would take the numbers
      // of the descriptors that given_fuzzer hands over.
      "-print_funcs=0",
      "-print_final_stats=1",
      absl::StrCat("-artifact_prefix=", failed, "/"),
      found,
      IRIS_FUZZ_CORPUS,
  };
  static std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  *argc = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  *argv = pointers.data();
  return 0;
}
