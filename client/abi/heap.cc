// The heap: allocations that the ranks of a team make together, and those of one rank.
#include <algorithm>
#include <optional>
#include <string>

#include "client/abi/objects.h"
#include "iris/dtype.h"
#include "proto/wire/limits.h"

using namespace iris::abi;  // functions in C have no namespace of their own

namespace {

absl::StatusOr<iris::AllocateOptions> ReadOptions(const iris_allocate_options* options) {
  IRIS_ASSIGN_OR_RETURN(const auto given,
                        ReadStruct(options, kAllocateOptionsBytes, "iris_allocate_options"));
  if (given.dtype < 0 || given.dtype >= static_cast<int>(iris::kDTypeCount)) {
    return Invalid("allocate: ", given.dtype, " is no iris_dtype");
  }
  if (given.n_dims > 0 && given.shape == nullptr) {
    return Invalid("allocate: a shape of ", given.n_dims, " dimensions is at null");
  }
  iris::AllocateOptions wanted;
  wanted.bytes = given.bytes;
  if (given.alignment_bytes != 0) wanted.alignment_bytes = given.alignment_bytes;
  wanted.name = TextOf(given.name);
  wanted.dtype = static_cast<iris::DType>(given.dtype);
  // One dimension more than irisd allows is enough for irisd to refuse, on every rank.
  const size_t n_dims = std::min(size_t{given.n_dims}, iris::wire::kMaxDims + 1);
  if (n_dims > 0) wanted.shape.assign(given.shape, given.shape + n_dims);
  return wanted;
}

// Reads the options, calls `allocate`, which may set its second argument to true if the memory is
// fresh, and writes the allocation to *out.
template <typename Allocate>
absl::Status AllocateBy(const iris_allocate_options* options, iris_allocation* out,
                        Allocate allocate) {
  IRIS_ABI_TRY(NotNull(out, "allocate: iris_allocation"));
  IRIS_ASSIGN_OR_RETURN(const auto wanted, ReadOptions(options));
  // `out` is checked before the allocation, which binds the other ranks.
  IRIS_ABI_TRY(WriteStruct(iris_allocation{}, "iris_allocation", out));
  bool fresh = false;
  IRIS_ASSIGN_OR_RETURN(const auto allocation, allocate(wanted, &fresh));
  iris_allocation answer = {};
  answer.offset_bytes = allocation.offset_bytes;
  answer.bytes = allocation.bytes;
  answer.address = allocation.address;
  answer.team_id = allocation.team_id;
  answer.fresh = fresh ? 1 : 0;
  return WriteStruct(answer, "iris_allocation", out);
}

}  // namespace

iris_code iris_allocate(iris_context* context, iris_team* team,
                        const iris_allocate_options* options, iris_allocation* out) {
  return WithTeam(context, team, [&](ContextObject& object, const iris::Team& members) {
    return AllocateBy(options, out, [&](const iris::AllocateOptions& wanted, bool* fresh) {
      return object.host().teams().Allocate(wanted, members, std::nullopt, fresh);
    });
  });
}

iris_code iris_allocate_local(iris_context* context, const iris_allocate_options* options,
                              iris_allocation* out) {
  return With<ContextObject>(context, [&](ContextObject& object) {
    return AllocateBy(options, out, [&](const iris::AllocateOptions& wanted, bool*) {
      return object.host().teams().AllocateLocal(wanted);
    });
  });
}

iris_code iris_register(iris_context* context, void* memory, const iris_allocate_options* options,
                        iris_allocation* out) {
  return With<ContextObject>(context, [&](ContextObject& object) {
    return AllocateBy(options, out, [&](const iris::AllocateOptions& wanted, bool*) {
      return object.host().teams().Register(memory, wanted);
    });
  });
}

iris_code iris_register_symmetric(iris_context* context, iris_team* team, void* memory,
                                  const iris_allocate_options* options, iris_allocation* out) {
  return WithTeam(context, team, [&](ContextObject& object, const iris::Team& members) {
    return AllocateBy(options, out, [&](const iris::AllocateOptions& wanted, bool*) {
      return object.host().teams().RegisterTogether(memory, wanted, members);
    });
  });
}

iris_code iris_is_symmetric(iris_context* context, const void* address, uint64_t bytes,
                            int32_t* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "is symmetric: out"));
    IRIS_ABI_TRY(object.host().Usable());
    *out = object.host().IsSymmetric(address, bytes) ? 1 : 0;
    return absl::OkStatus();
  });
}

iris_code iris_publish_local(iris_context* context, const iris_allocation* allocation,
                             const char* name) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(allocation, kAllocationBytes, "iris_allocation"));
    IRIS_ABI_TRY(NotNull(name, "publish: the name"));
    return object.host().teams().Publish({given.offset_bytes, given.bytes, nullptr, 0}, name);
  });
}

iris_code iris_free(iris_context* context, const iris_allocation* allocation) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(allocation, kAllocationBytes, "iris_allocation"));
    return object.host().teams().Free(
        {given.offset_bytes, given.bytes, given.address, given.team_id});
  });
}

iris_code iris_open_local(iris_context* context, uint32_t rank, const char* name,
                          int64_t timeout_ns, iris_opened* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(name, "open: the name"));
    IRIS_ABI_TRY(NotNull(out, "open: iris_opened"));
    IRIS_ABI_TRY(CheckTime(timeout_ns, "open: timeout_ns"));
    // `out` is checked before anything is opened.
    IRIS_ABI_TRY(WriteStruct(iris_opened{}, "iris_opened", out));
    IRIS_ASSIGN_OR_RETURN(const auto opened,
                          object.host().teams().Open(rank, name, absl::Nanoseconds(timeout_ns)));
    iris_opened answer = {};
    answer.offset_bytes = opened.offset_bytes;
    answer.bytes = opened.bytes;
    answer.address = opened.address;
    answer.symmetric = opened.symmetric_address;
    answer.rank = opened.rank;
    answer.dtype = static_cast<iris_dtype>(opened.dtype);
    return WriteStruct(answer, "iris_opened", out);
  });
}

iris_code iris_close_local(iris_context* context, const iris_opened* opened) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto given, ReadStruct(opened, kOpenedBytes, "iris_opened"));
    iris::Opened range;
    range.rank = given.rank;
    range.offset_bytes = given.offset_bytes;
    return object.host().teams().Close(range);
  });
}

iris_code iris_grow(iris_context* context, uint64_t bytes) {
  return With<ContextObject>(context, [&](ContextObject& object) {
    return object.host().teams().Grow(bytes, object.host().world());
  });
}
