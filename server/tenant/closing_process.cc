#include "server/tenant/closing_process.h"

#include "server/link/pass_descriptor.h"

namespace iris::server {

bool ClosingProcess::HandOver(int socket) {
  // One that has ended, or hangs, is followed by another; that one has room.
  for (int i = 0; i < 2; ++i) {
    int link = -1;
    if (!processes_.Work(&link).ok()) return false;
    constexpr char kByte = 0;
    const Passed passed = PassDescriptor(link, &kByte, sizeof(kByte), socket);
    if (passed == Passed::kYes) return true;
    if (passed == Passed::kNotNow) return false;
    processes_.Drop(/*hangs=*/passed == Passed::kFull);
  }
  return false;
}

}  // namespace iris::server
