// Checks of a call's arguments.
#include "iris/collective/impl/request.h"

#include <cstdint>

namespace iris::ccl::impl {

Result CheckRequest(const Comm& comm, Request* request, bool* nothing) {
  *nothing = false;
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = DTypeBytes(request->type);
  if (element_bytes == 0) return Invalid("no such data type");
  const bool reduces = request->operation == Operation::kAllReduce ||
                       request->operation == Operation::kReduceScatter ||
                       request->operation == Operation::kReduce;
  if (reduces && request->type > DType::kU8) {
    return {StatusCode::kUnimplemented,
            "reductions know the types f32, f64, f16, bf16, i32, i64 and u8"};
  }
  if (request->op > ReduceOp::kAvg) return Invalid("no such reduce op");
  if (!IsVariant(static_cast<uint32_t>(request->variant))) return Invalid("no such variant");
  constexpr uint64_t kLimit = 1ull << 47;
  if (request->count > kLimit / element_bytes / comm.team.size) {
    return Invalid("the count is too large");
  }
  if (request->count == 0) {
    *nothing = true;
    return {};
  }
  const uint64_t row_bytes = request->count * element_bytes;
  // Offsets of what nobody reads or writes do not matter, but are in the heap.
  request->in_offset_bytes = 0;
  request->out_offset_bytes = 0;
  if (request->in_rows != 0) {
    const Result result = CheckBuffer(comm, request->in, request->in_rows * row_bytes,
                                      element_bytes, &request->in_offset_bytes);
    if (!result.ok()) return result;
  }
  if (request->out_rows != 0) {
    const Result result = CheckBuffer(comm, request->out, request->out_rows * row_bytes,
                                      element_bytes, &request->out_offset_bytes);
    if (!result.ok()) return result;
  }
  if (request->in_rows != 0 && request->out_rows != 0 &&
      Overlap(request->in, request->in_rows * row_bytes, request->out,
              request->out_rows * row_bytes)) {
    const uint64_t in = reinterpret_cast<uint64_t>(request->in);
    const uint64_t out = reinterpret_cast<uint64_t>(request->out);
    if (!request->in_place_ok ||
        in != out + static_cast<uint64_t>(request->in_place_rows) * row_bytes) {
      return Invalid("in and out overlap otherwise than in place");
    }
  }
  return {};
}

}  // namespace iris::ccl::impl
