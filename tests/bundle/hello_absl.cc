// The same in a program that has an abseil of its own, and includes it first.
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cstdio>
#include <string>

#include "iris/context.h"

absl::Status Hello() {
  iris::ContextOptions options;
  options.heap_bytes = 64 << 20;
  auto context = iris::Context::Create(options);
  if (!context.ok()) return absl::InternalError(context.status().message());
  const auto told = context->Broadcast(absl::StrCat("rank ", context->rank(), " spoke"), 1);
  if (!told.ok()) return absl::InternalError(told.status().message());
  std::printf("%s\n", told->c_str());
  const iris::Status met = context->Barrier();
  return met.ok() ? absl::OkStatus() : absl::InternalError(met.message());
}

int main() {
  const absl::Status status = Hello();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
