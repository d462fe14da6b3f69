// Fill: the choice of kernels, and those that fill one value, or any elements anywhere.
#include "iris/fill/fill.h"

#include <limits>

#include "iris/backend/select.h"
#include "iris/fill/impl/vectors.h"

namespace iris::fill {
namespace {

using impl::ConfigFor;
using impl::Vectors;

// A value whose bytes repeat every 16, for `bytes` bytes from `to`, aligned to the element.
struct Pattern {
  char* to = nullptr;
  uint64_t bytes = 0;
  Bytes16 pattern;
};

IRIS_KERNEL void FillPattern(IRIS_PARAM Pattern p) {
  const uint64_t threads = backend::ThreadsOfGrid();
  const uint64_t thread = backend::ThreadOfGrid();
  const uint64_t until_aligned = (16 - reinterpret_cast<uint64_t>(p.to) % 16) % 16;
  const uint64_t head = until_aligned < p.bytes ? until_aligned : p.bytes;
  const uint64_t units = (p.bytes - head) / 16;
  const uint64_t tail = p.bytes - head - units * 16;
  char* const middle = p.to + head;
  for (uint64_t unit = thread; unit < units; unit += threads) {
    backend::Store16<CacheHint::kDefault>(middle + unit * 16, p.pattern);
  }
  // One thread stores the bytes before and after the units. The pattern begins at multiples of 16.
  if (thread != 0) return;
  const auto byte = [&p](uint64_t at) {
    return static_cast<char>((at < 8 ? p.pattern.lo : p.pattern.hi) >> (at % 8 * 8));
  };
  for (uint64_t i = 0; i < head; ++i) {
    backend::StorePlain(p.to + i, byte(reinterpret_cast<uint64_t>(p.to + i) % 16));
  }
  for (uint64_t i = 0; i < tail; ++i) backend::StorePlain(middle + units * 16 + i, byte(i));
}

// Elements to fill one by one, at any place. The last dimension is the fastest.
struct Elements {
  Place place;
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t width = 0;  // bytes of an element
};

IRIS_KERNEL void FillElements(IRIS_PARAM Sequence s, IRIS_PARAM Elements e) {
  const uint64_t threads = uint64_t{backend::GridSize()} * backend::BlockSize();
  uint64_t j = uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  for (; j < e.count; j += threads) {
    int64_t offset = 0;
    uint64_t rest = j;
    for (uint32_t dim = e.place.n_dims; dim > 0; --dim) {
      const uint64_t extent = e.place.shape[dim - 1];
      offset += static_cast<int64_t>(rest % extent) * e.place.strides[dim - 1];
      rest /= extent;
    }
    char* const to = static_cast<char*>(e.place.address) + offset * static_cast<int64_t>(e.width);
    const uint64_t value = impl::ValueAt(s, e.first + j);
    switch (e.width) {
      case 1:
        backend::StorePlain(reinterpret_cast<uint8_t*>(to), static_cast<uint8_t>(value));
        break;
      case 2:
        backend::StorePlain(reinterpret_cast<uint16_t*>(to), static_cast<uint16_t>(value));
        break;
      case 4:
        backend::StorePlain(reinterpret_cast<uint32_t*>(to), static_cast<uint32_t>(value));
        break;
      default:
        backend::StorePlain(reinterpret_cast<uint64_t*>(to), value);
    }
  }
}

Result LaunchElements(const Sequence& s, uint64_t first, const Place& place, uint64_t count,
                      backend::Stream& stream) {
  if (count == 0) return {};
  Elements elements;
  elements.place = place;
  elements.first = first;
  elements.count = count;
  elements.width = DTypeBytes(s.dtype);
  return backend::Launch(ConfigFor(count), stream, FillElements, s, elements);
}

Place Row(void* address, uint64_t count) {
  Place row;
  row.address = address;
  row.n_dims = 1;
  row.shape[0] = count;
  row.strides[0] = 1;
  return row;
}

Result FillValue(const Sequence& s, char* to, uint64_t bytes, backend::Stream& stream) {
  const uint64_t width = DTypeBytes(s.dtype);
  uint64_t repeated = s.bits;
  for (uint64_t w = width; w < 8; w *= 2) {
    repeated = (repeated & ((uint64_t{1} << (8 * w)) - 1)) | repeated << (8 * w);
  }
  const uint8_t byte = static_cast<uint8_t>(repeated);
  // The device fills bytes at least as fast as a kernel.
  if (repeated == byte * uint64_t{0x0101010101010101}) {
    return backend::FillAsync(to, byte, bytes, stream);
  }
  Pattern pattern;
  pattern.to = to;
  pattern.bytes = bytes;
  pattern.pattern.lo = pattern.pattern.hi = repeated;
  return backend::Launch(ConfigFor(bytes / 16), stream, FillPattern, pattern);
}

Result FillVectors(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  switch (s.kind) {
    case Kind::kArange:
    case Kind::kLinspace:
      return impl::FillRange(s, v, stream);
    case Kind::kRand:
    case Kind::kUniform:
      return impl::FillUniform(s, v, stream);
    case Kind::kRandn:
      return impl::FillNormal(s, v, stream);
    case Kind::kRandint:
      return impl::FillWhole(s, v, stream);
    default:
      return {StatusCode::kUnimplemented, "no kernel"};
  }
}

// Fills consecutive elements.
Result FillRow(const Sequence& s, uint64_t first, char* to, uint64_t count,
               backend::Stream& stream) {
  const uint64_t width = DTypeBytes(s.dtype);
  if (s.kind == Kind::kValue) return FillValue(s, to, count * width, stream);
  const uint64_t head = (16 - reinterpret_cast<uint64_t>(to) % 16) % 16 / width;
  const bool one_by_one = (DTypeBytes(s.dtype) == 1 && impl::IsFloat(s.dtype)) ||
                          (s.kind == Kind::kUniform && width == 2 && !s.in_floats);
  // A unit begins with a complete block of random words.
  const bool aligned =
      !impl::IsRandom(s.kind) || (first + head) % impl::ElementsOfABlock(s.kind, s.dtype) == 0;
  if (head >= count || one_by_one || !aligned) {
    return LaunchElements(s, first, Row(to, count), count, stream);
  }
  if (const Result result = LaunchElements(s, first, Row(to, head), head, stream); !result.ok()) {
    return result;
  }
  Vectors vectors;
  vectors.to = to + head * width;
  vectors.first = first + head;
  vectors.units = (count - head) * width / 16;
  if (vectors.units > 0) {
    if (const Result result = FillVectors(s, vectors, stream); !result.ok()) return result;
  }
  const uint64_t done = head + vectors.units * 16 / width;
  return LaunchElements(s, first + done, Row(to + done * width, count - done), count - done,
                        stream);
}

// Returns the largest number of the type that is less than `high`.
double LargestBelow(double high, DType type) {
  const uint64_t sign = uint64_t{1} << (8 * DTypeBytes(type) - 1);
  uint64_t bits = impl::RoundTo(high, type);
  if (impl::NumberOf(bits, type) >= high) {
    if ((bits & ~sign) == 0) {
      bits = sign | 1;
    } else {
      bits += (bits & sign) != 0 ? 1 : -uint64_t{1};
    }
  }
  return impl::NumberOf(bits, type);
}

// Sets the constants of kUniform for 16-bit types, if floats represent them.
void SetFloats(Sequence& s) {
  const double largest = std::numeric_limits<float>::max();
  if (s.start < -largest || s.end > largest || s.step > largest) return;
  s.in_floats = true;
  s.float_start = static_cast<float>(s.start);
  s.float_step = static_cast<float>(s.step);
  s.float_cap = static_cast<float>(impl::NumberOf(s.bits, s.dtype));
}

}  // namespace

Result MakeSequence(const Description& from, Sequence* out) {
  if (!Fits(from.kind, from.dtype)) {
    return {StatusCode::kInvalidArgument, "the type has no such numbers"};
  }
  Sequence s;
  s.kind = from.kind;
  s.dtype = from.dtype;
  s.seed = from.seed;
  s.call = from.call;
  s.start = from.start;
  s.end = from.end;
  s.step = from.step;
  s.whole_start = static_cast<uint64_t>(from.whole_start);
  s.whole_step = static_cast<uint64_t>(from.whole_step);
  s.steps = from.steps;
  switch (from.kind) {
    case Kind::kValue:
      s.bits = impl::IsFloat(s.dtype) ? impl::RoundTo(from.start, s.dtype) : s.whole_start;
      break;
    case Kind::kLinspace:
      if (s.steps == 0) return {StatusCode::kInvalidArgument, "a range of no steps"};
      s.step = s.steps > 1 ? (s.end - s.start) / static_cast<double>(s.steps - 1) : 0;
      break;
    case Kind::kUniform: {
      if (!(s.start <= s.end)) return {StatusCode::kInvalidArgument, "a range that is none"};
      s.step = s.end - s.start;
      const double below = s.start < s.end ? LargestBelow(s.end, s.dtype) : s.start;
      s.bits = impl::RoundTo(below < s.start ? s.start : below, s.dtype);
      SetFloats(s);
      break;
    }
    case Kind::kRandint:
      s.whole_step = static_cast<uint64_t>(from.whole_end) - s.whole_start + 1;
      break;
    default:
      break;
  }
  *out = s;
  return {};
}

uint64_t ElementAt(const Sequence& sequence, uint64_t i) {
  const uint64_t value = impl::ValueAt(sequence, i);
  const uint64_t width = DTypeBytes(sequence.dtype);
  return width >= 8 ? value : value & ((uint64_t{1} << (8 * width)) - 1);
}

Result Fill(const Sequence& sequence, uint64_t first, const Place& place, backend::Stream& stream) {
  const uint64_t width = DTypeBytes(sequence.dtype);
  if (width == 0) return {StatusCode::kInvalidArgument, "elements of no type"};
  if (place.n_dims > kMaxDims) {
    return {StatusCode::kInvalidArgument, "a place has at most 8 dimensions"};
  }
  uint64_t count = 1;
  int64_t contiguous = 1;
  bool in_a_row = true;
  for (uint32_t dim = place.n_dims; dim > 0; --dim) {
    const uint64_t extent = place.shape[dim - 1];
    if (extent != 1 && place.strides[dim - 1] != contiguous) in_a_row = false;
    count *= extent;
    contiguous *= static_cast<int64_t>(extent);
  }
  if (count == 0) return {};
  if (reinterpret_cast<uint64_t>(place.address) % width != 0) {
    return {StatusCode::kInvalidArgument, "the address is not aligned to the element"};
  }
  char* const to = static_cast<char*>(place.address);
  return in_a_row ? FillRow(sequence, first, to, count, stream)
                  : LaunchElements(sequence, first, place, count, stream);
}

Result Prepare() {
  Result result = backend::PrepareKernel(FillPattern);
  if (result.ok()) result = backend::PrepareKernel(FillElements);
  backend::Stream none;
  for (uint32_t kind = 1; kind < kKindCount; ++kind) {
    for (uint32_t type = 1; type < kDTypeCount; ++type) {
      Sequence sequence;
      sequence.kind = static_cast<Kind>(kind);
      sequence.dtype = static_cast<DType>(type);
      if (!result.ok()) return result;
      if (!Fits(sequence.kind, sequence.dtype)) continue;
      result = FillVectors(sequence, Vectors(), none);
      // Elements of this type are filled one by one.
      if (result.code == StatusCode::kUnimplemented) result = {};
    }
  }
  return result;
}

}  // namespace iris::fill
