// Element types and operators of reductions, and the inner loop over the parts of n ranks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/collective/impl/calls.h"
#include "iris/impl/copy.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

template <ReduceOp Op, typename A>
IRIS_HOST_DEVICE inline A Combine(A a, A b) {
  if constexpr (std::is_integral_v<A> && (Op == ReduceOp::kSum || Op == ReduceOp::kProd)) {
    using U = std::make_unsigned_t<A>;
    const U x = static_cast<U>(a);
    const U y = static_cast<U>(b);
    return static_cast<A>(Op == ReduceOp::kSum ? static_cast<U>(x + y) : static_cast<U>(x * y));
  } else if constexpr (Op == ReduceOp::kSum) {
    return a + b;
  } else if constexpr (Op == ReduceOp::kProd) {
    return a * b;
  } else if constexpr (Op == ReduceOp::kMin) {
    return b < a || b != b ? b : a;  // b != b: NaN, which stays
  } else {
    return b > a || b != b ? b : a;
  }
}

template <ReduceOp Op, typename T, uint32_t K>
IRIS_DEVICE inline void AddPack(Sum<T, K>* sum, const Pack<T, K>& pack) {
  using A = typename Accumulator<T>::Type;
  IRIS_UNROLL(16)
  for (uint32_t k = 0; k < K; ++k) {
    sum->values[k] = Combine<Op, A>(sum->values[k], static_cast<A>(pack.values[k]));
  }
}

// One operator, for 2, 4 or 8 terms. What it divides by is a power of two, so that a multiplication
// divides exactly.
template <typename T, ReduceOp Op>
struct FixedOp {
  using A = typename Accumulator<T>::Type;
  A scale;
  IRIS_DEVICE explicit FixedOp(const ReduceCall& call)
      : scale(static_cast<A>(1) / static_cast<A>(call.divide)) {}
  IRIS_DEVICE FixedOp(ReduceOp /*op*/, uint32_t divide)
      : scale(static_cast<A>(1) / static_cast<A>(divide)) {}

  template <uint32_t K>
  IRIS_DEVICE void Add(Sum<T, K>* sum, const Pack<T, K>& pack) const {
    AddPack<Op>(sum, pack);
  }
  template <uint32_t K>
  IRIS_DEVICE Pack<T, K> Finish(const Sum<T, K>& sum) const {
    Pack<T, K> pack;
    IRIS_UNROLL(16)
    for (uint32_t k = 0; k < K; ++k) pack.values[k] = static_cast<T>(sum.values[k] * scale);
    return pack;
  }
};

// Any operator, for any number of ranks.
template <typename T>
struct AnyOp {
  using A = typename Accumulator<T>::Type;
  ReduceOp op;
  uint32_t divide;
  IRIS_DEVICE explicit AnyOp(const ReduceCall& call) : op(call.op), divide(call.divide) {}
  // `members` is the size of the team, for kAvg.
  IRIS_DEVICE AnyOp(ReduceOp reduce_op, uint32_t members)
      : op(reduce_op), divide(reduce_op == ReduceOp::kAvg ? members : 1) {}

  template <uint32_t K>
  IRIS_DEVICE void Add(Sum<T, K>* sum, const Pack<T, K>& pack) const {
    switch (op) {
      case ReduceOp::kProd:
        return AddPack<ReduceOp::kProd>(sum, pack);
      case ReduceOp::kMin:
        return AddPack<ReduceOp::kMin>(sum, pack);
      case ReduceOp::kMax:
        return AddPack<ReduceOp::kMax>(sum, pack);
      default:
        return AddPack<ReduceOp::kSum>(sum, pack);
    }
  }
  template <uint32_t K>
  IRIS_DEVICE Pack<T, K> Finish(const Sum<T, K>& sum) const {
    Pack<T, K> pack;
    if (divide == 1) {
      IRIS_UNROLL(16)
      for (uint32_t k = 0; k < K; ++k) pack.values[k] = static_cast<T>(sum.values[k]);
    } else {
      const A by = static_cast<A>(divide);
      IRIS_UNROLL(1)
      for (uint32_t k = 0; k < K; ++k) pack.values[k] = static_cast<T>(sum.values[k] / by);
    }
    return pack;
  }
};

template <typename T, uint32_t K>
IRIS_DEVICE inline Sum<T, K> Begin(const Pack<T, K>& pack) {
  Sum<T, K> sum;
  IRIS_UNROLL(16)
  for (uint32_t k = 0; k < K; ++k) {
    sum.values[k] = static_cast<typename Accumulator<T>::Type>(pack.values[k]);
  }
  return sum;
}

template <typename C>
IRIS_DEVICE inline uint64_t RowCount(const C& call, uint32_t r) {
  const uint64_t begin = r * call.count;
  return begin < call.limit ? Min(call.count, call.limit - begin) : 0;
}

// Reduces one unit of type U at byte `at`. The table, in shared memory, has the addresses of
// element 0 of the n sources, by rank, and then of the n_to destinations. All loads precede the
// first addition.
template <typename T, typename Op, typename U>
IRIS_DEVICE inline void ReduceUnit(const Op& op, uint8_t* const* table, uint32_t n, uint32_t n_to,
                                   uint64_t at) {
  using P = Pack<T, sizeof(U) / sizeof(T)>;
  Sum<T, sizeof(U) / sizeof(T)> sum;
  constexpr uint32_t kAhead = 4;
  for (uint32_t first = 0; first < n; first += kAhead) {
    U units[kAhead] = {};
    IRIS_UNROLL(4)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (first + k < n) {
        units[k] = iris::impl::LoadValue<CacheHint::kDefault>(
            reinterpret_cast<const U*>(table[first + k] + at));
      }
    }
    IRIS_UNROLL(4)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (first + k >= n) break;
      const P pack = iris::impl::BitCast<P>(units[k]);
      if (first + k == 0) {
        sum = Begin(pack);
      } else {
        op.Add(&sum, pack);
      }
    }
  }
  const U result = iris::impl::BitCast<U>(op.Finish(sum));
  for (uint32_t k = 0; k < n_to; ++k) {
    iris::impl::StoreValue<CacheHint::kDefault>(reinterpret_cast<U*>(table[n + k] + at), result);
  }
}

// Handles batches of kUnroll units, `step` apart from byte `*at` on, while a full batch is left
// for this thread. All loads of a batch come before its first addition.
template <typename T, typename Op, uint32_t N, uint32_t kUnroll>
IRIS_DEVICE inline void ReduceUnrolled(const Op& op, uint8_t* const* table, uint32_t n_to,
                                       uint64_t* at, uint64_t end, uint64_t step) {
  using P = Pack<T, 16 / sizeof(T)>;
  const uint8_t* from[N];
  IRIS_UNROLL(8)
  for (uint32_t m = 0; m < N; ++m) from[m] = table[m];
  for (; *at + (kUnroll - 1) * step < end; *at += kUnroll * step) {
    Bytes16 units[kUnroll][N];
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kUnroll; ++u) {
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        units[u][m] = backend::Load16<CacheHint::kDefault>(from[m] + *at + u * step);
      }
    }
    Bytes16 results[kUnroll];
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kUnroll; ++u) {
      auto sum = Begin(iris::impl::BitCast<P>(units[u][0]));
      IRIS_UNROLL(8)
      for (uint32_t m = 1; m < N; ++m) op.Add(&sum, iris::impl::BitCast<P>(units[u][m]));
      results[u] = iris::impl::BitCast<Bytes16>(op.Finish(sum));
    }
    for (uint32_t k = 0; k < n_to; ++k) {
      uint8_t* to = table[N + k] + *at;
      IRIS_UNROLL(8)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        backend::Store16<CacheHint::kDefault>(to + u * step, results[u]);
      }
    }
  }
}

// Reduces units of 16 bytes at offsets [begin, end), a multiple of 16, from the table's addresses.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceUnits(const Op& op, uint8_t* const* table, uint32_t n, uint32_t n_to,
                                    uint64_t begin, uint64_t end, Share share) {
  const iris::impl::Units mine = iris::impl::UnitsOf((end - begin) / 16, share.index, share.n);
  const uint64_t step = 16 * mine.step;
  uint64_t at = begin + 16 * mine.first;
  end = begin + 16 * mine.end;
  if constexpr (N != 0) {
    constexpr uint32_t kUnroll = N >= 8 ? 1 : 8 / N;
    if (share.unroll > 1) {
      ReduceUnrolled<T, Op, N, 2 * kUnroll>(op, table, n_to, &at, end, step);
    }
    ReduceUnrolled<T, Op, N, kUnroll>(op, table, n_to, &at, end, step);
  }
  if constexpr (N < 8) {
    for (; at < end; at += step) ReduceUnit<T, Op, Bytes16>(op, table, n, n_to, at);
  }
}

// Returns true if all addresses of a table have the same remainder modulo 16.
IRIS_DEVICE inline bool Straight(uint8_t* const* table, uint32_t n) {
  uint64_t differ = 0;
  for (uint32_t k = 1; k < n; ++k) {
    differ |= reinterpret_cast<uint64_t>(table[k]) ^ reinterpret_cast<uint64_t>(table[0]);
  }
  return (differ & 15) == 0;
}

// Reduces elements [0, count): by units of 16 bytes if all addresses agree modulo 16, else singly.
// One thread reads and writes an element, so a destination may be a source.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceRange(const Op& op, uint8_t* const* table, uint32_t n, uint32_t n_to,
                                    uint64_t count, Share share) {
  const uint64_t first = reinterpret_cast<uint64_t>(table[0]);
  uint64_t differ = 0;
  for (uint32_t k = 1; k < n + n_to; ++k) differ |= reinterpret_cast<uint64_t>(table[k]) ^ first;
  const uint64_t bytes = count * sizeof(T);
  uint64_t head = 0;
  uint64_t tail = 0;
  if ((differ & 15) == 0) {
    head = Min((0 - first) & 15, bytes);
    tail = head + (bytes - head) / 16 * 16;
    ReduceUnits<T, Op, N>(op, table, n, n_to, head, tail, share);
  }
  const uint64_t single = head + (bytes - tail);
  for (uint64_t i = share.index * sizeof(T); i < single; i += share.n * sizeof(T)) {
    ReduceUnit<T, Op, T>(op, table, n, n_to, i < head ? i : tail + i - head);
  }
}

// Like ReduceUnrolled, but copies units from `from` to each of table[0..n).
template <uint32_t kUnroll>
IRIS_DEVICE inline void CopyUnrolled(uint8_t* const* table, uint32_t n, const uint8_t* from,
                                     uint64_t* at, uint64_t end, uint64_t step) {
  for (; *at + (kUnroll - 1) * step < end; *at += kUnroll * step) {
    Bytes16 units[kUnroll];
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kUnroll; ++u) {
      units[u] = backend::Load16<CacheHint::kDefault>(from + *at + u * step);
    }
    for (uint32_t k = 0; k < n; ++k) {
      uint8_t* to = table[k] + *at;
      if (table[k] == from) continue;
      IRIS_UNROLL(8)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        backend::Store16<CacheHint::kDefault>(to + u * step, units[u]);
      }
    }
  }
}

// Copies `bytes` bytes from `from`, loaded once, to each of table[0..n).
IRIS_DEVICE inline void CopyToAll(uint8_t* const* table, uint32_t n, const uint8_t* from,
                                  uint64_t bytes, Share share) {
  uint64_t differ = 0;
  const uint64_t first = reinterpret_cast<uint64_t>(from);
  for (uint32_t k = 0; k < n; ++k) differ |= reinterpret_cast<uint64_t>(table[k]) ^ first;
  if ((differ & 15) != 0) {
    for (uint32_t k = 0; k < n; ++k) {
      if (table[k] != from) {
        iris::impl::CopyBytes<CacheHint::kDefault>(table[k], from, bytes, share);
      }
    }
    return;
  }
  const uint64_t head = Min((0 - first) & 15, bytes);
  const uint64_t tail = head + (bytes - head) / 16 * 16;
  const iris::impl::Units mine = iris::impl::UnitsOf((bytes - head) / 16, share.index, share.n);
  const uint64_t step = 16 * mine.step;
  const uint64_t end = head + 16 * mine.end;
  uint64_t at = head + 16 * mine.first;
  if (share.unroll > 1) CopyUnrolled<8>(table, n, from, &at, end, step);
  CopyUnrolled<4>(table, n, from, &at, end, step);
  for (; at < end; at += step) {
    const Bytes16 unit = backend::Load16<CacheHint::kDefault>(from + at);
    for (uint32_t k = 0; k < n; ++k) {
      if (table[k] != from) backend::Store16<CacheHint::kDefault>(table[k] + at, unit);
    }
  }
  for (uint64_t i = share.index; i < head + (bytes - tail); i += share.n) {
    const uint64_t b = i < head ? i : tail + i - head;
    const uint8_t byte = backend::LoadPlain(from + b);
    for (uint32_t k = 0; k < n; ++k) {
      if (table[k] != from) backend::StorePlain(table[k] + b, byte);
    }
  }
}

}  // namespace iris::ccl::impl
