// A rank of a job that registers memory of its own, and puts into that of the next one; with the
// argument "together" all ranks register theirs together. Under a launcher: iris-run -n 2 --
// registered [together]. Prints what does not hold; exit code 0 if all does.
#include <cstring>

#include "tests/integration/registered_buffers.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "together") == 0) {
    return iris::testing::RegisteredTogether();
  }
  return iris::testing::RegisteredBuffers();
}
