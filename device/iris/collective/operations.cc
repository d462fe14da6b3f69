// The launchers. The plan decides how an operation goes, its variant what is launched.
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/collective/impl/request.h"
#include "iris/collective/table.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl {
namespace impl {

Result LaunchRequest(const Comm& comm, const Request& request, backend::Stream& stream) {
  const Plan plan =
      Choose(comm, {request.operation, request.count, request.type, request.op, request.variant});
  return FindRow(kRows, plan.variant)->launch({comm, request, plan}, stream);
}

}  // namespace impl
namespace {

using impl::Invalid;
using impl::Request;

// Fills in which rows of the buffers this member uses, and where they lie if the call is in place.
Result CompleteRequest(const Comm& comm, Request* request) {
  const uint32_t n = comm.team.size;
  const int64_t index = comm.team.index;
  const bool at_root = comm.team.index == request->root;
  switch (request->operation) {
    case Operation::kAllReduce:
      break;
    case Operation::kReduceScatter:
      request->in_rows = n;
      request->in_place_rows = -index;
      break;
    case Operation::kReduce:
      request->out_rows = at_root ? 1 : 0;
      break;
    case Operation::kAllGather:
      request->out_rows = n;
      request->in_place_rows = index;
      break;
    case Operation::kGather:
      request->out_rows = at_root ? n : 0;
      request->in_place_rows = index;
      break;
    case Operation::kScatter:
      request->in_rows = at_root ? n : 0;
      request->in_place_rows = -index;
      break;
    case Operation::kAllToAll:
      request->in_rows = n;
      request->out_rows = n;
      request->in_place_ok = n == 1;
      break;
    case Operation::kBroadcast:
      request->in_rows = at_root ? 1 : 0;
      break;
    default:
      return Invalid("no such collective");
  }
  if (!HasRoot(request->operation)) {
    request->root = impl::kNoRoot;
  } else if (request->root >= n) {
    return Invalid("the root is not a member");
  }
  return {};
}

Result RunAllToAllV(const Comm& comm, const Call& call, backend::Stream& stream) {
  const Layout& to = call.to;
  const Layout& from = call.from;
  const void* const in = call.in;
  void* const out = call.out;
  const uint64_t element_bytes = DTypeBytes(call.type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (to.counts == nullptr || to.offsets == nullptr || from.counts == nullptr ||
      from.offsets == nullptr) {
    return Invalid("an array of a Layout is null");
  }
  const uint32_t n = comm.team.size;
  impl::Vector vector = {};
  constexpr uint64_t kLimit = 1ull << 40;
  uint64_t in_bytes = 0;
  uint64_t out_bytes = 0;
  for (uint32_t m = 0; m < n; ++m) {
    if (to.counts[m] > kLimit || to.offsets[m] > kLimit || from.counts[m] > kLimit ||
        from.offsets[m] > kLimit) {
      return Invalid("the count is too large");
    }
    vector.send_bytes[m] = to.counts[m] * element_bytes;
    vector.send_offset_bytes[m] = to.offsets[m] * element_bytes;
    vector.receive_bytes[m] = from.counts[m] * element_bytes;
    vector.receive_offset_bytes[m] = from.offsets[m] * element_bytes;
    const uint64_t in_end = vector.send_bytes[m] + vector.send_offset_bytes[m];
    const uint64_t out_end = vector.receive_bytes[m] + vector.receive_offset_bytes[m];
    if (vector.send_bytes[m] != 0 && in_end > in_bytes) in_bytes = in_end;
    if (vector.receive_bytes[m] != 0 && out_end > out_bytes) out_bytes = out_end;
  }
  if (vector.send_bytes[comm.team.index] != vector.receive_bytes[comm.team.index]) {
    return Invalid("a member sends itself another count than it expects");
  }
  // Counts differ between members, so each pair compares its own.
  Request request = {.operation = Operation::kAllToAllV,
                     .in = in,
                     .out = out,
                     .count = 0,
                     .type = call.type,
                     .vector = &vector};
  if (in_bytes != 0) {
    const Result result =
        impl::CheckBuffer(comm, in, in_bytes, element_bytes, &request.in_offset_bytes);
    if (!result.ok()) return result;
  }
  if (out_bytes != 0) {
    const Result result =
        impl::CheckBuffer(comm, out, out_bytes, element_bytes, &request.out_offset_bytes);
    if (!result.ok()) return result;
  }
  if (in_bytes != 0 && out_bytes != 0 && impl::Overlap(in, in_bytes, out, out_bytes)) {
    return Invalid("in and out overlap");
  }
  request.in_offset_bytes = 0;  // nobody else reads it
  if (n != 1) return impl::LaunchRequest(comm, request, stream);
  if (vector.send_bytes[0] == 0) return {};
  return backend::CopyAsync(static_cast<uint8_t*>(out) + vector.receive_offset_bytes[0],
                            static_cast<const uint8_t*>(in) + vector.send_offset_bytes[0],
                            vector.send_bytes[0], stream);
}

}  // namespace

Result CreateComm(const CommOptions& options, Comm* out) {
  if (Result result = PrepareKernels(); !result.ok()) return result;
  CommOptions complete = options;
  complete.config = impl::WithRules(impl::Complete(options.config));
  return impl::MakeComm(complete, out);
}

Result PrepareKernels() { return impl::PrepareRows(impl::kRows); }

Result Run(const Comm& comm, const Call& call, backend::Stream& stream) {
  if (Result result = impl::CheckComm(comm); !result.ok()) return result;
  if (call.operation == Operation::kAllToAllV) return RunAllToAllV(comm, call, stream);
  Request request = {.operation = call.operation,
                     .in = call.in,
                     .out = call.out,
                     .count = call.count,
                     .type = call.type,
                     .op = call.op,
                     .root = call.root,
                     .variant = call.variant};
  if (call.operation == Operation::kBarrier) {
    return impl::LaunchRequest(comm, {call.operation, nullptr, nullptr, 0, DType::kU8}, stream);
  }
  if (Result result = CompleteRequest(comm, &request); !result.ok()) return result;
  bool nothing = false;
  const Result result = impl::CheckRequest(comm, &request, &nothing);
  if (!result.ok() || nothing) return result;
  if (comm.team.size != 1) return impl::LaunchRequest(comm, request, stream);
  if (request.in == request.out) return {};
  return backend::CopyAsync(request.out, request.in, request.count * DTypeBytes(request.type),
                            stream);
}

}  // namespace iris::ccl
