// Checks of a call's arguments.
#include "iris/collective/impl/request.h"

#include <cstdint>

#include "iris/backend/heap_map.h"
#include "iris/translate.h"

namespace iris::ccl::impl {

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const uint64_t x = reinterpret_cast<uint64_t>(a);
  const uint64_t y = reinterpret_cast<uint64_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

Result CheckBuffer(const Comm& comm, const void* p, uint64_t bytes, uint64_t element_bytes,
                   uint64_t* offset_bytes) {
  if (p == nullptr) return Invalid("a buffer is null");
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  if (address % element_bytes != 0) return Invalid("a buffer is not aligned to its element type");
  if (address + bytes < address) return Invalid("a buffer reaches beyond the address space");
  const void* workspace =
      iris::AtOffset<void>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  if (Overlap(p, bytes, workspace, comm.workspace_bytes)) {
    return Invalid("a buffer overlaps the workspace");
  }
  *offset_bytes = kNotInHeap;
  if (InHeap(comm.context, p)) {
    *offset_bytes = OffsetBytes(comm.context, p);
    if (bytes > comm.context.stride_bytes - *offset_bytes) {
      return Invalid("a buffer begins in the heap and reaches beyond it");
    }
    // The heap may be smaller than the stride, into which it can grow.
    const backend::HeapMap* const map = comm.context.heap_map;
    if (map != nullptr && map->struct_bytes >= sizeof(backend::HeapMap) && map->mapped != nullptr &&
        !map->mapped(map, comm.context.rank, *offset_bytes, bytes)) {
      return Invalid(
          "a buffer begins in the heap and reaches beyond the part of it that is mapped: give "
          "fewer "
          "elements, or let the heap grow first");
    }
  }
  return {};
}

Result CheckComm(const Comm& comm) {
  if (comm.team.size == 0 || comm.report == nullptr) {
    return Invalid("the Comm was not made by CreateComm");
  }
  if (!CheckError(comm).ok()) {
    return {
        StatusCode::kFailedPrecondition,
        "an earlier operation of this communicator failed: iris_comm_check() says which and why, "
        "iris_comm_reset() makes it usable again"};
  }
  return {};
}

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
