// The same without kernels of its own, in C++17: the ranks sum their greetings. One program for
// every kind of device.
#include <cstdio>

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"

iris::Status Hello() {
  iris::ContextOptions options;
  options.heap_bytes = 64 << 20;
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create(options));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(auto comm, iris::ccl::Communicator::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto word, context.Allocate<int32_t>(1, "word"));
  int32_t value = 100 + static_cast<int32_t>(context.rank());
  IRIS_RETURN_IF_ERROR(stream.Copy(word, &value, sizeof(value)));
  IRIS_RETURN_IF_ERROR(
      comm.AllReduce(word.get(), word.get(), 1, iris::ccl::ReduceOp::kSum, stream));
  IRIS_RETURN_IF_ERROR(stream.Copy(&value, word, sizeof(value)));
  IRIS_RETURN_IF_ERROR(comm.Synchronize(stream));
  std::printf("rank %u got %d\n", context.rank(), value);
  return context.Barrier();
}

int main() {
  const iris::Status status = Hello();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
