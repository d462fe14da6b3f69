// iris_fill, and the checks that it and tensors make before anything starts.
#include "client/abi/fill.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "client/abi/objects.h"
#include "client/backend/device_status.h"
#include "device/base/bytes.h"

namespace iris::abi {
namespace {

constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();

constexpr const char* kNames[] = {"fill",    "arange", "linspace", "rand",
                                  "uniform", "randn",  "randint"};
static_assert(std::size(kNames) == fill::kKindCount);

bool IsFloat(DType type) {
  constexpr DType kFloats[] = {DType::kF32,  DType::kF64,    DType::kF16,
                               DType::kBf16, DType::kF8E4M3, DType::kF8E5M2};
  return absl::c_linear_search(kFloats, type);
}

bool IsSigned(DType type) {
  return type == DType::kI8 || type == DType::kI16 || type == DType::kI32 || type == DType::kI64;
}

// The integers that a type holds; for floats, those that doubles hold exactly.
struct Range {
  absl::int128 low, high;
};
Range RangeOf(DType type) {
  if (IsFloat(type)) return {-(absl::int128(1) << 53), absl::int128(1) << 53};
  if (type == DType::kBool) return {0, 1};
  const int bits = static_cast<int>(8 * DTypeBytes(type));
  if (IsSigned(type))
    return {-(absl::int128(1) << (bits - 1)), (absl::int128(1) << (bits - 1)) - 1};
  return {0, (absl::int128(1) << bits) - 1};
}

// Returns the integer of an option. Numbers of kU64 are given as the bits of an int64_t.
absl::int128 WholeOf(int64_t bits, DType type) {
  return type == DType::kU64 ? absl::int128(static_cast<uint64_t>(bits)) : absl::int128(bits);
}

std::string Text(absl::int128 value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

class Check {
 public:
  Check(const iris_fill_options& options, uint64_t count)
      : options_(options),
        count_(count),
        kind_(static_cast<fill::Kind>(options.kind)),
        type_(static_cast<DType>(options.dtype)) {}

  absl::Status All() const {
    if (options_.kind < 0 || options_.kind >= static_cast<int32_t>(fill::kKindCount)) {
      return Invalid("fill: ", options_.kind, " is no iris_fill_kind");
    }
    if (options_.dtype <= 0 || options_.dtype >= static_cast<int>(kDTypeCount)) {
      return Wrong(absl::StrCat(options_.dtype, " is no type of elements"));
    }
    if (!fill::Fits(kind_, type_)) {
      const bool random = kind_ != fill::Kind::kArange && kind_ != fill::Kind::kLinspace;
      return Wrong(absl::StrCat("there are no such numbers of ", DTypeName(type_), ": use ",
                                random ? "f32, f64, f16 or bf16, or randint" : "another type"));
    }
    const uint64_t most = kMost / DTypeBytes(type_);
    if (options_.first > most || count_ > most - options_.first) {
      return Wrong(absl::StrCat(count_, " elements of ", DTypeName(type_), " from element ",
                                options_.first, " on overflow what can be counted"));
    }
    return Numbers();
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return Invalid(kNames[static_cast<size_t>(kind_)], ": ", what);
  }
  absl::Status Finite(double value, absl::string_view name) const {
    if (std::isfinite(value)) return absl::OkStatus();
    return Wrong(absl::StrCat(name, " is ", value, ": it must be finite"));
  }
  absl::Status InType(absl::int128 low, absl::int128 high) const {
    const Range range = RangeOf(type_);
    if (range.low <= low && low <= range.high && range.low <= high && high <= range.high) {
      return absl::OkStatus();
    }
    return Wrong(absl::StrCat(low == high ? Text(low) : absl::StrCat(Text(low), " to ", Text(high)),
                              " does not fit ", DTypeName(type_), ", which holds ", Text(range.low),
                              " to ", Text(range.high)));
  }
  absl::Status FiniteRange() const {
    IRIS_ABI_TRY(Finite(options_.start, "start"));
    IRIS_ABI_TRY(Finite(options_.end, "end"));
    if (std::isfinite(options_.end - options_.start)) return absl::OkStatus();
    return Wrong(absl::StrCat("from ", options_.start, " to ", options_.end,
                              " is more than a double holds: give a smaller range"));
  }

  absl::Status Numbers() const {
    const absl::int128 start = WholeOf(options_.whole_start, type_);
    switch (kind_) {
      case fill::Kind::kValue:
        return IsFloat(type_) ? absl::OkStatus() : InType(start, start);
      case fill::Kind::kArange:
        return Arange(start);
      case fill::Kind::kLinspace:
        return Linspace();
      case fill::Kind::kUniform:
        IRIS_ABI_TRY(FiniteRange());
        if (options_.start <= options_.end) return absl::OkStatus();
        return Wrong(absl::StrCat("from ", options_.start, " to ", options_.end,
                                  " is no range: the start must not be above the end"));
      case fill::Kind::kRandint: {
        const absl::int128 end = WholeOf(options_.whole_end, type_);
        if (start > end) {
          return Wrong(absl::StrCat("there is no number from ", Text(start), " to ", Text(end),
                                    ": the end must not be below the start"));
        }
        return InType(start, end);
      }
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Arange(absl::int128 start) const {
    if (IsFloat(type_)) {
      IRIS_ABI_TRY(Finite(options_.start, "start"));
      IRIS_ABI_TRY(Finite(options_.step, "step"));
      return options_.step != 0 ? absl::OkStatus() : Wrong("the step must not be 0");
    }
    if (options_.whole_step == 0) return Wrong("the step must not be 0");
    if (count_ == 0) return absl::OkStatus();
    const absl::int128 step = options_.whole_step;
    return InType(start + absl::int128(options_.first) * step,
                  start + absl::int128(options_.first + count_ - 1) * step);
  }

  absl::Status Linspace() const {
    IRIS_ABI_TRY(FiniteRange());
    if (options_.first + count_ > options_.steps) {
      return Wrong(absl::StrCat("elements ", options_.first, " to ", options_.first + count_,
                                " are not all in a range of ", options_.steps, " steps"));
    }
    if (IsFloat(type_)) return absl::OkStatus();
    const Range range = RangeOf(type_);
    for (const double end : {options_.start, options_.end}) {
      if (!(end >= static_cast<double>(range.low) && end <= static_cast<double>(range.high))) {
        return Wrong(absl::StrCat(end, " does not fit ", DTypeName(type_), ", which holds ",
                                  Text(range.low), " to ", Text(range.high)));
      }
    }
    return absl::OkStatus();
  }

  const iris_fill_options& options_;
  const uint64_t count_;
  const fill::Kind kind_;
  const DType type_;
};

}  // namespace

absl::StatusOr<fill::Description> DescribeFill(const iris_fill_options& options, uint64_t count) {
  IRIS_ABI_TRY(Check(options, count).All());
  fill::Description out;
  out.kind = static_cast<fill::Kind>(options.kind);
  out.dtype = static_cast<DType>(options.dtype);
  out.start = options.start;
  out.end = options.end;
  out.step = options.step;
  out.whole_start = options.whole_start;
  out.whole_end = options.whole_end;
  out.whole_step = options.whole_step;
  // Without elements any sequence is valid.
  out.steps = options.steps == 0 ? 1 : options.steps;
  out.seed = options.seed;
  out.call = options.call;
  return out;
}

fill::Place PlaceOf(const View& view, void* address) {
  fill::Place place;
  place.address = address;
  place.n_dims = view.n_dims;
  for (uint32_t dim = 0; dim < view.n_dims; ++dim) {
    place.shape[dim] = static_cast<uint64_t>(view.shape[dim]);
    place.strides[dim] = view.strides[dim];
  }
  return place;
}

namespace {

absl::StatusOr<View> ViewOf(const iris_fill_options& given) {
  const auto type = static_cast<DType>(given.dtype);
  if (given.n_dims == 0) {
    const int64_t count = static_cast<int64_t>(given.count);
    return MakeView(type, {&count, 1});
  }
  IRIS_ABI_TRY(NotNull(given.shape, "fill: the shape"));
  IRIS_ABI_TRY(NotNull(given.strides, "fill: the strides"));
  const size_t n = std::min(given.n_dims, kMaxDims + 1);
  auto view = MakeStridedView(type, {given.shape, n}, {given.strides, n});
  if (view.ok() && view->count() != given.count) {
    return Invalid("fill: the shape ", ShapeText(*view), " has ", view->count(),
                   " elements, and not ", given.count, " as the count says");
  }
  return view;
}

// Returns kInvalidArgument if the memory is not aligned, or begins in a heap and is not all in it.
absl::Status CheckMemory(const internal::HostContext& host, const View& view, void* address) {
  IRIS_ABI_TRY(NotNull(address, "fill: the address"));
  const uint64_t width = DTypeBytes(view.dtype);
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  if (at % width != 0) {
    return Invalid("fill: the address 0x", absl::Hex(at), " is not aligned to the ", width,
                   " bytes of an element");
  }
  const ByteSpan span = SpanOf(view);
  const uint64_t low = at + static_cast<uint64_t>(span.low);
  const uint64_t bytes = static_cast<uint64_t>(span.high - span.low);
  // Locate refuses memory outside of heaps, which is the caller's.
  const auto begin = host.Locate(reinterpret_cast<void*>(low));
  const auto end = host.Locate(reinterpret_cast<void*>(low + bytes - 1));
  if (!begin.ok() && !end.ok() && !host.Locate(address).ok()) return absl::OkStatus();
  if (host.IsMapped(reinterpret_cast<void*>(low), bytes)) return absl::OkStatus();
  return Invalid("fill: ", base::SizeText(bytes), " at 0x", absl::Hex(low),
                 " are not all in one heap, which has ", base::SizeText(host.heap_bytes()));
}

}  // namespace
}  // namespace iris::abi

using namespace iris::abi;  // functions in C have no namespace of their own
using iris::internal::FromDevice;

iris_code iris_fill(iris_context* context, void* address, const iris_fill_options* options,
                    iris_stream* stream) {
  return WithStream<ContextObject>(
      context, stream, [&](ContextObject& object, StreamObject& on) -> absl::Status {
        IRIS_ASSIGN_OR_RETURN(const auto given,
                              ReadStruct(options, kFillOptionsBytes, "iris_fill_options"));
        IRIS_ASSIGN_OR_RETURN(const auto described, DescribeFill(given, given.count));
        IRIS_ASSIGN_OR_RETURN(const auto view, ViewOf(given));
        if (given.count == 0) return absl::OkStatus();
        IRIS_ABI_TRY(CheckMemory(object.host(), view, address));
        iris::fill::Sequence sequence;
        IRIS_ABI_TRY(FromDevice(on.backend->MakeSequence(described, &sequence), "fill"));
        return FromDevice(on.backend->Fill(sequence, given.first, PlaceOf(view, address), *on),
                          "fill");
      });
}
