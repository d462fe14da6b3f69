// A rank for tests of iris-ctl: joins, allocates, writes something to look at, says "ready", and
// stays until the file that its first argument names exists. The second, if any, is how many more
// allocations it makes.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "iris/context.h"

namespace {

int Fail(const iris::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  iris::StatusOr<iris::Context> context = iris::Context::Create({.heap_bytes = 4 << 20});
  if (!context.ok()) return Fail(context.status());
  iris::StatusOr<iris::Allocation> weights = context->Allocate(
      {.bytes = 64 * 64 * 4, .name = "weights", .dtype = iris::DType::kF32, .shape = {64, 64}});
  if (!weights.ok()) return Fail(weights.status());
  iris::StatusOr<iris::Allocation> unnamed = context->Allocate({.bytes = 100});
  if (!unnamed.ok()) return Fail(unnamed.status());
  for (int i = argc == 3 ? std::atoi(argv[2]) : 0; i > 0; --i) {
    const auto more = context->Allocate({.bytes = 1024, .name = "more" + std::to_string(i)});
    if (!more.ok()) return Fail(more.status());
  }
  std::snprintf(weights->As<char>(), 64, "Hello from rank %u!", context->rank());
  if (iris::Status status = context->Barrier(); !status.ok()) return Fail(status);
  std::printf("ready offset=%llu\n", static_cast<unsigned long long>(weights->offset_bytes));
  std::fflush(stdout);
  while (access(argv[1], F_OK) != 0) usleep(10000);
  if (iris::Status status = context->Free(*weights); !status.ok()) return Fail(status);
  if (iris::Status status = context->Barrier(); !status.ok()) return Fail(status);
  return 0;
}
