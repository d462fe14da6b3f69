// Fills memory with one value, ranges or random numbers, by the device that has the memory, with
// the same bits on every backend: `fill_reference.py` of the tests and `iris/random.h` document
// those of random numbers. Host functions. Thread-safe. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/host.h"
#include "iris/backend/types.h"
#include "iris/dtype.h"

namespace iris::fill {

enum class Kind : uint8_t {
  kValue = 0,     // every element is one value
  kArange = 1,    // start + i step
  kLinspace = 2,  // `steps` numbers from start to end, computed from both ends
  kRand = 3,      // evenly distributed in [0, 1)
  kUniform = 4,   // evenly distributed in [start, end)
  kRandn = 5,     // normally distributed
  kRandint = 6,   // integers, evenly distributed
};
inline constexpr uint32_t kKindCount = 7;

// A sequence, from which alone each element follows. MakeSequence makes it.
struct Sequence {
  Kind kind = Kind::kValue;
  DType dtype = DType::kNone;
  uint64_t bits = 0;  // bits of kValue's element, or of kUniform's largest number of the type below
                      // `end`
  double start = 0, end = 0;
  double step = 0;  // kUniform: end - start
  // kUniform of 16-bit types: start, step and `bits` as floats; unused if a float cannot hold them.
  float float_start = 0, float_step = 0, float_cap = 0;
  bool in_floats = false;
  uint64_t whole_start = 0;  // of integers, modulo 2^64
  uint64_t whole_step = 0;   // kRandint: the number of possible values; 0: 2^64
  uint64_t steps = 0;
  uint64_t seed = 0, call = 0;
};

// The description of a Sequence. Integer types use the int64s, other types the doubles. kU64 has
// the bits of its numbers in the int64s.
struct Description {
  Kind kind = Kind::kValue;
  DType dtype = DType::kNone;
  // kValue: start. kArange: start, step. kLinspace: start, end, of all types. kUniform: start, end.
  double start = 0, end = 0, step = 0;
  // kValue: start; kBool 0 or 1. kArange: start, step. kRandint, of all types: the lowest and the
  // highest number, both included.
  int64_t whole_start = 0, whole_end = 0, whole_step = 0;
  uint64_t steps = 0;  // kLinspace: of all of the sequence
  uint64_t seed = 0, call = 0;
};

// Returns true if a kind has numbers of a type: kRand, kUniform and kRandn of floats with 16 bits
// and more; kArange and kLinspace of all types but kBool.
constexpr bool Fits(Kind kind, DType type) {
  if (DTypeBytes(type) == 0 || static_cast<uint32_t>(kind) >= kKindCount) return false;
  switch (kind) {
    case Kind::kArange:
    case Kind::kLinspace:
      return type != DType::kBool;
    case Kind::kRand:
    case Kind::kUniform:
    case Kind::kRandn:
      return type == DType::kF32 || type == DType::kF64 || type == DType::kF16 ||
             type == DType::kBf16;
    default:
      return true;
  }
}

// Makes a Sequence. kInvalidArgument if the kind has no numbers of the type, or if the description
// is not valid. The caller checks that numbers fit the type.
Result MakeSequence(const Description& from, Sequence* out);

// Returns element i of a sequence, in the low bits. The kernels compute the same.
uint64_t ElementAt(const Sequence& sequence, uint64_t i);

inline constexpr uint32_t kMaxDims = 8;

// The memory of `shape` elements, with strides in elements. `address` is aligned to the element;
// elements do not overlap.
struct Place {
  void* address = nullptr;
  uint32_t n_dims = 0;
  uint64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};
};

// Writes the elements of the sequence from `first` on, in row-major order. Asynchronous.
// kInvalidArgument for more than kMaxDims dimensions, or an address that is not aligned.
Result Fill(const Sequence& sequence, uint64_t first, const Place& place, backend::Stream& stream);

// Loads all kernels of this library onto the current device, which may wait for kernels that run.
Result Prepare();

}  // namespace iris::fill
