// Includes every public header of the host library: for the test that they need neither gRPC nor
// protobuf.
#include "client/iris/collectives.h"
#include "client/iris/context.h"
#include "client/iris/launcher.h"
#include "client/iris/log.h"

int main() {
  iris::ContextOptions options;
  return options.rank == -1 ? 0 : 1;
}
