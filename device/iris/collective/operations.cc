// The launchers: what each operation is. How it goes, the plan says; what is launched, the plan's
// variant.
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/collective/impl/layout.h"
#include "iris/collective/impl/request.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl {
namespace impl {

Result LaunchRequest(const Comm& comm, const Request& request, backend::Stream& stream) {
  const Plan plan =
      Choose(comm, {request.operation, request.count, request.type, request.op, request.variant});
  return FindVariant(plan.variant)->launch({comm, request, plan}, stream);
}

}  // namespace impl
namespace {

using impl::Invalid;
using impl::Request;

// Checks a call and launches it.
Result Run(const Comm& comm, Request* request, backend::Stream& stream) {
  bool nothing = false;
  const Result result = impl::CheckRequest(comm, request, &nothing);
  if (!result.ok() || nothing) return result;
  if (comm.team.size != 1) return impl::LaunchRequest(comm, *request, stream);
  if (request->in == request->out) return {};
  return backend::CopyAsync(request->out, request->in, request->count * DTypeBytes(request->type),
                            stream);
}

}  // namespace

Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                 ReduceOp op, backend::Stream& stream, Variant variant) {
  Request request = {.operation = Operation::kAllReduce,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .op = op,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result ReduceScatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                     DType type, ReduceOp op, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  Request request = {.operation = Operation::kReduceScatter,
                     .in = in,
                     .out = out,
                     .count = count_per_member,
                     .type = type,
                     .in_rows = n,
                     .in_place_rows = -static_cast<int64_t>(comm.team.index),
                     .op = op,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result Reduce(const Comm& comm, const void* in, void* out, uint64_t count, DType type, ReduceOp op,
              uint32_t root_index, backend::Stream& stream, Variant variant) {
  Request request = {.operation = Operation::kReduce,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .out_rows = comm.team.index == root_index ? 1u : 0u,
                     .op = op,
                     .root = root_index,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member, DType type,
                 backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  Request request = {.operation = Operation::kAllGather,
                     .in = in,
                     .out = out,
                     .count = count_per_member,
                     .type = type,
                     .out_rows = n,
                     .in_place_rows = static_cast<int64_t>(comm.team.index),
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result Gather(const Comm& comm, const void* in, void* out, uint64_t count_per_member, DType type,
              uint32_t root_index, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  Request request = {.operation = Operation::kGather,
                     .in = in,
                     .out = out,
                     .count = count_per_member,
                     .type = type,
                     .out_rows = comm.team.index == root_index ? n : 0,
                     .in_place_rows = static_cast<int64_t>(comm.team.index),
                     .root = root_index,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result Scatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member, DType type,
               uint32_t root_index, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  Request request = {.operation = Operation::kScatter,
                     .in = in,
                     .out = out,
                     .count = count_per_member,
                     .type = type,
                     .in_rows = comm.team.index == root_index ? n : 0,
                     .in_place_rows = -static_cast<int64_t>(comm.team.index),
                     .root = root_index,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result AllToAll(const Comm& comm, const void* in, void* out, uint64_t count_per_member, DType type,
                backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  Request request = {.operation = Operation::kAllToAll,
                     .in = in,
                     .out = out,
                     .count = count_per_member,
                     .type = type,
                     .in_rows = n,
                     .out_rows = n,
                     .in_place_ok = n == 1,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                 uint32_t root_index, backend::Stream& stream, Variant variant) {
  Request request = {.operation = Operation::kBroadcast,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .in_rows = comm.team.index == root_index ? 1u : 0u,
                     .root = root_index,
                     .variant = variant};
  return Run(comm, &request, stream);
}

Result AllToAllV(const Comm& comm, const void* in, const Layout& to, void* out, const Layout& from,
                 DType type, backend::Stream& stream) {
  if (Result result = impl::CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = DTypeBytes(type);
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
  // What a member sends and receives differs from the others', so that no count is compared, but
  // each pair's.
  Request request = {.operation = Operation::kAllToAllV,
                     .in = in,
                     .out = out,
                     .count = 0,
                     .type = type,
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

Result Barrier(const Comm& comm, backend::Stream& stream) {
  if (Result result = impl::CheckComm(comm); !result.ok()) return result;
  const Request request = {.operation = Operation::kBarrier,
                           .in = nullptr,
                           .out = nullptr,
                           .count = 0,
                           .type = DType::kU8};
  return impl::LaunchRequest(comm, request, stream);
}

}  // namespace iris::ccl
