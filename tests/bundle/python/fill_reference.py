"""The values of iris_fill, by numpy.

The bits of random numbers are a function of (seed, call, element), the same wherever they are computed.

Bits. Philox4x32-10 of Salmon, Moraes, Dror and Shaw ("Parallel Random Numbers: As Easy as 1, 2, 3", 2011), as
Random123 has it. The key is the seed: its low 32 bits, then its high ones. Every call of a factory has a number, from
0, of its Generator. The block `b` of the call `c` has the counter (b low, b high, c low, c high) and gives four words.

    word(i)  of 32 bits: word i mod 4 of block i div 4.
    half(i)  of 16 bits: the low half of word(i div 2) for an even i, the high half for an odd one.
    long(i)  of 64 bits: word(2 i) + 2^32 word(2 i + 1).

Values, element i in row-major order; all arithmetic is of IEEE doubles or of IEEE floats, each operation rounded by
itself:

    rand     f64: (long(i) div 2^11) 2^-53. f32: (word(i) div 2^8) 2^-24. f16: (half(i) div 2^5) 2^-11.
             bf16: (half(i) div 2^8) 2^-8. So each is in [0, 1) and exact.
    uniform  low + r (high - low), r as rand has it, rounded to the type; what rounds to high or more becomes the
             largest number of the type below it. f64 and f32: in doubles. f16 and bf16: in floats, low and the double
             high - low rounded to floats first; where a float holds one of low, high and high - low not, in doubles.
    randn    f64: the inverse of the normal distribution at p = ((long(i) div 2^12) + 0.5) 2^-52, by Wichura's AS 241
             (PPND16) with the logarithm below. Others: that at (word(i) + 0.5) 2^-32 in floats, as `normal` has it,
             rounded to the type.
    randint  low + (long(i) (high - low)) div 2^64, the product in 128 bits.

The library's kernels compute the same (iris/random.h, iris_fill). This file is their definition, and the reference of
their tests.

log(x): x = m 2^e with m in [sqrt(1/2), sqrt(2)), s = (m - 1) / (m + 1), z = s s; the sum of z^k / (2 k + 1) for k
from 10 down to 0 by Horner's rule, times 2 s, plus e log(2). Only + - * / and square roots: no library's functions
differ.
"""

from typing import Any, Tuple

import numpy as np
from iris._fill import as_numbers, round_to
from iris.dtypes import DType

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = np.uint64(0xFFFFFFFF)
_ROUNDS = 10
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
# Random bits of an element in [0, 1).
RANDOM_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}


def philox4x32(counter: Any, key: Tuple[int, int]) -> Any:
    """The blocks of counters of shape (..., 4), 32 bits each in uint64, by a key of two words."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    shift = np.uint64(32)
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((second >> shift) ^ c1 ^ np.uint64(k0), second & _LOW32,
                          (first >> shift) ^ c3 ^ np.uint64(k1), first & _LOW32)
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


class Draw:
    """The bits of one call of a factory."""

    def __init__(self, seed: int, call: int) -> None:
        self.seed = seed
        """The generator's, of 64 bits."""
        self.call = call
        """The number of the call."""
        self._key = (seed & 0xFFFFFFFF, seed >> 32)

    def words(self, count: int, first: int = 0) -> Any:
        """word(first) to word(first + count - 1), as uint64."""
        begin, end = first // 4, (first + count + 3) // 4
        blocks = np.arange(begin, end, dtype=np.uint64)
        counter = np.empty((len(blocks), 4), np.uint64)
        counter[:, 0] = blocks & _LOW32
        counter[:, 1] = blocks >> np.uint64(32)
        counter[:, 2] = self.call & 0xFFFFFFFF
        counter[:, 3] = self.call >> 32
        return philox4x32(counter, self._key).reshape(-1)[first - 4 * begin:first - 4 * begin + count]

    def longs(self, count: int, first: int = 0) -> Any:
        """long(first) to long(first + count - 1), as uint64."""
        words = self.words(2 * count, 2 * first)
        return words[0::2] | words[1::2] << np.uint64(32)

    def halves(self, count: int, first: int = 0) -> Any:
        """half(first) to half(first + count - 1), as uint64."""
        begin = first // 2
        words = self.words((first + count + 1) // 2 - begin, begin)
        halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1).reshape(-1)
        return halves[first - 2 * begin:first - 2 * begin + count]

    def rand(self, count: int, bits: int, first: int = 0) -> Any:
        """In [0, 1), with so many random bits: 53, 24, 11 or 8. As float64, exact."""
        if bits == 53:
            return (self.longs(count, first) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        if bits == 24:
            return (self.words(count, first) >> np.uint64(8)).astype(np.float64) * 2.0**-24
        return (self.halves(count, first) >> np.uint64(16 - bits)).astype(np.float64) * 2.0**-bits

    def randn(self, count: int, bits: int, first: int = 0) -> Any:
        """Normally distributed, as float64 of 53 bits, as float32 of fewer."""
        if bits == 53:
            return inverse_normal(((self.longs(count, first) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
        return normal(self.words(count, first))

    def randint(self, count: int, low: int, high: int, first: int = 0) -> Any:
        """In [low, high), as the 64 bits of an int64, or of a uint64 where high needs it."""
        span = high - low
        words = self.words(2 * count, 2 * first)
        w0, w1 = words[0::2], words[1::2]
        if span == 2**64:
            product = w0 | w1 << np.uint64(32)
        else:
            # (w1 2^32 + w0) (s1 2^32 + s0) div 2^64.
            s0, s1 = np.uint64(span & 0xFFFFFFFF), np.uint64(span >> 32)
            shift = np.uint64(32)
            middle = w1 * s0 + (w0 * s0 >> shift)
            lower = w0 * s1 + (middle & _LOW32)
            product = w1 * s1 + (middle >> shift) + (lower >> shift)
        return product + np.uint64(low % 2**64)


def log(x: Any) -> Any:
    """The natural logarithm of positive doubles, by exactly rounded operations alone."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = np.where(small, exponent - 1, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    total = np.full_like(s, 1.0 / 21.0)
    for k in range(9, -1, -1):
        total = total * z + 1.0 / (2 * k + 1)
    return exponent * _LN2 + 2.0 * s * total


_CENTRE = ((2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4, 4.5921953931549871457e+4,
            1.3731693765509461125e+4, 1.9715909503065514427e+3, 1.3314166789178437745e+2, 3.3871328727963666080e+0),
           (5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4, 2.1213794301586595867e+4,
            5.3941960214247511077e+3, 6.8718700749205790830e+2, 4.2313330701600911252e+1, 1.0))
_MIDDLE = ((7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
            1.27045825245236838258e+0, 3.64784832476320460504e+0, 5.76949722146069140550e+0, 4.63033784615654529590e+0,
            1.42343711074968357734e+0),
           (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
            1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e+0, 2.05319162663775882187e+0,
            1.0))
_TAIL = ((2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
          2.96560571828504891230e-1, 1.78482653991729133580e+0, 5.46378491116411436990e+0, 6.65790464350110377720e+0),
         (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
          7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1,
          1.0))


def _ratio(polynomials: Any, r: Any) -> Any:
    results = []
    for coefficients in polynomials:
        value = np.full_like(r, coefficients[0])
        for coefficient in coefficients[1:]:
            value = value * r + coefficient
        results.append(value)
    return results


def inverse_normal(p: Any) -> Any:
    """The number below which a normally distributed one is with probability p, 0 < p < 1: AS 241, PPND16."""
    q = p - 0.5
    centre = np.abs(q) <= 0.425
    result = np.empty_like(p)
    inner = q[centre]
    numerator, denominator = _ratio(_CENTRE, 0.180625 - inner * inner)
    result[centre] = numerator * inner / denominator
    outer = q[~centre]
    r = np.sqrt(-log(np.where(outer <= 0.0, p[~centre], 1.0 - p[~centre])))
    near = r <= 5.0
    n1, d1 = _ratio(_MIDDLE, r - 1.6)
    n2, d2 = _ratio(_TAIL, r - 5.0)
    x = np.where(near, n1, n2) / np.where(near, d1, d2)
    result[~centre] = np.where(outer < 0.0, -x, x)
    return result


# Of float32, highest power first.
_LOG2 = (1.7162238e-1, -2.6931942e-1, 2.956998e-1, -3.5937172e-1, 4.8062676e-1, -7.2136354e-1, 1.4426965e0)
_NEAR = (8.907055e-10, 3.8384055e-8, -4.1959927e-7, -2.0643e-6, 6.810961e-5, -4.8094612e-4, -3.469732e-3,
         2.3928294e-1, 2.21792e0)
_FAR = (3.0948754e-6, -7.4939075e-5, 2.256801e-4, -3.4262796e-4, 6.171721e-4, -1.5491679e-3, 3.001461e-3, 1.1863711e0,
        4.77174e0)


def _polynomial(coefficients: Tuple[float, ...], r: Any) -> Any:
    value = np.full_like(r, np.float32(coefficients[0]))
    for coefficient in coefficients[1:]:
        value = value * r + np.float32(coefficient)
    return value


def normal(words: Any) -> Any:
    """The number below which a normally distributed one is with probability (word + 0.5) 2^-32, as float32, by
    operations on floats; with a relative error below 5e-7.

    Of the probability t of the nearer tail come z = 1 - 2 t and w = -log2(1 - z z), and the number is z P(w): P is a
    polynomial of w below 8, and of the root of w above. 1 - z z is computed as 2 t (1 + z), and its logarithm as
    e + f Q(f), where it is 2^e (1 + f), with 1 + f in [sqrt(1/2), sqrt(2)).
    """
    words = np.asarray(words).astype(np.uint32)
    negative = words < np.uint32(0x80000000)
    tail = np.where(negative, words, ~words)
    scale, one = np.float32(2.0**-32), np.float32(1.0)
    twice_t = (tail * np.uint32(2) + np.uint32(1)).astype(np.float32) * scale
    z = (np.uint32(0xFFFFFFFF) - tail * np.uint32(2)).astype(np.float32) * scale
    bits = (twice_t * (one + z)).view(np.uint32)
    exponent = (bits - np.uint32(0x3F3504F3)).view(np.int32) >> 23
    f = (bits - (exponent.view(np.uint32) << np.uint32(23))).view(np.float32) - one
    w = -(exponent.astype(np.float32) + f * _polynomial(_LOG2, f))
    near = _polynomial(_NEAR, w - np.float32(4.0))
    far = _polynomial(_FAR, np.sqrt(np.maximum(w, np.float32(0.0))) - np.float32(4.25))
    x = z * np.where(w < np.float32(8.0), near, far)
    return np.where(negative, -x, x)


def reference(kind: str, dtype: DType, first: int, count: int, **numbers: Any) -> Any:
    """The elements that iris_fill gives for these options, as an array of the type's bits or of the type."""
    draw = Draw(numbers.get("seed", 0), numbers.get("call", 0))
    bits = RANDOM_BITS.get(dtype, 0)
    start, end = numbers.get("start", 0.0), numbers.get("end", 0.0)
    whole_start = numbers.get("whole_start", 0)
    index = np.arange(first, first + count, dtype=np.float64)
    if kind == "value":
        return np.full(count, round_to(np.float64(start) if dtype.is_floating_point else whole_start, dtype))
    if kind == "arange":
        if dtype.is_floating_point:
            return round_to(start + index * numbers["step"], dtype)
        # Modulo 2^64, which is right for every type of integers that holds the ends.
        whole = np.arange(first, first + count, dtype=np.uint64) * np.uint64(numbers["whole_step"] % 2**64)
        return (np.uint64(whole_start % 2**64) + whole).astype(dtype.numpy_name)
    if kind == "linspace":
        steps = numbers["steps"]
        if steps == 1:
            return round_to(np.full(count, start), dtype)
        step = (end - start) / (steps - 1)
        # From both ends, so that both are exact.
        return round_to(np.where(index < steps / 2, start + step * index, end - step * (steps - 1 - index)), dtype)
    if kind == "rand":
        return round_to(draw.rand(count, bits, first), dtype)
    if kind == "uniform":
        exact = _uniform(draw.rand(count, bits, first), start, end, dtype)
        rounded = as_numbers(round_to(exact, dtype), dtype)
        below = max(largest_below(end, dtype), start) if end > start else start
        return round_to(np.where(rounded >= end, below, exact), dtype)
    if kind == "randn":
        return round_to(draw.randn(count, bits, first), dtype)
    words = draw.randint(count, whole_start, numbers["whole_end"] + 1, first)
    if dtype.is_floating_point:
        return round_to(words.view(np.int64).astype(np.float64), dtype)
    return words.astype(dtype.numpy_name)


def _uniform(unit: Any, start: float, end: float, dtype: DType) -> Any:
    """From [0, 1) to [start, end): in floats for the types with 16 bits, where floats hold the numbers."""
    step = end - start
    if dtype in (DType.F16, DType.BF16) and max(-start, end, step) <= float(np.finfo(np.float32).max):
        return np.float32(start) + unit.astype(np.float32) * np.float32(step)
    return start + unit * step


def largest_below(high: float, dtype: DType) -> float:
    """The largest number of the type below `high`, itself rounded down to the type."""
    if dtype is DType.F64:
        return float(np.nextafter(high, -np.inf))
    kind: Any = np.float16 if dtype is DType.F16 else np.float32
    near = kind(high)
    below = near if float(near) < high else np.nextafter(near, kind(-np.inf))
    if dtype is DType.BF16:
        bits = np.float32(below).view(np.uint32)
        cut = np.uint32(bits & np.uint32(0xFFFF0000)).view(np.float32)
        if float(cut) > float(below):  # negative numbers are cut towards 0
            cut = np.uint32((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
        return float(cut)
    return float(below)
