// A rank of a job that registers memory of its own, and puts into that of the next one. Under a
// launcher: iris-run -n 2 -- registered. Prints what does not hold; exit code 0 if all does.
#include <cstdio>

#include "tests/integration/registered_buffers.h"

namespace iris {
namespace {

// What the platform's plain allocation gave is refused, and the error says what to do.
int PlainMemory() {
  auto context = Context::Create(testing::SmallHeap());
  REQUIRE_OK(context);
  auto plain = DeviceArray<uint8_t>::Create(*context, 4096);
  REQUIRE_OK(plain);
  REQUIRE_FAILS(context->Register<uint8_t>(plain->get(), 4096, "plain"),
                StatusCode::kInvalidArgument, "register 4096 bytes", "copy it into the heap");
  REQUIRE_OK(context->Barrier());
  return 0;
}

}  // namespace
}  // namespace iris

int main() {
  if (const int code = iris::testing::RegisteredBuffers(); code != 0) return code;
  if (const int code = iris::PlainMemory(); code != 0) return code;
  std::printf("registered memory: all as it should be\n");
  return 0;
}
