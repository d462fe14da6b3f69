"""Prints fill_golden.h: what the kernels that fill tensors must give, by the reference in numpy.

From the root: python3 tests/conformance/fill_golden.py > tests/conformance/fill_golden.h
"""

import sys

sys.path.insert(0, "client/python")

# pylint: disable=wrong-import-position
import numpy as np  # noqa: E402
from tests.bundle.python import fill_reference  # noqa: E402
from iris.dtypes import DType  # noqa: E402

COUNT = 20
HEAD = """// Made by fill_golden.py, with numpy: do not edit.
#pragma once

#include <cstdint>

#include "iris/fill/fill.h"

namespace iris::conformance {

// clang-format off

inline constexpr uint64_t kGoldenCount = %d;

// Elements `first` and on of what is described, as their bits.
struct Golden {
  fill::Description description;
  uint64_t first;
  uint64_t elements[kGoldenCount];
};

inline constexpr Golden kGolden[] = {
"""
NORMALS = """};

// RandomNormal of words: the bits of the float.
struct GoldenNormal {
  uint32_t word;
  uint32_t bits;
};

inline constexpr GoldenNormal kGoldenNormals[] = {
"""
INVERSES = """};

// InverseNormal of the double with the bits p: the bits of the double.
struct GoldenInverse {
  uint64_t p;
  uint64_t bits;
};

inline constexpr GoldenInverse kGoldenInverses[] = {
"""
END = """};
// clang-format on

}  // namespace iris::conformance
"""
FIELDS = ("start", "end", "step", "whole_start", "whole_end", "whole_step", "steps", "seed", "call")
NAMES = {DType.BOOL: "kBool", DType.BF16: "kBf16"}
FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)


def cases():
    """(kind, dtype, first, numbers)."""
    big = {"seed": 0x299F31D0A4093822, "call": 0x0370734413198A2E}
    for dtype in list(DType)[1:]:
        whole = 1 if dtype is DType.BOOL else 2**64 - 2 if dtype is DType.U64 else 100
        yield "value", dtype, 0, {"start": -2.7182818284590452, "whole_start": whole}
        last = 1 if dtype is DType.BOOL else 2**63 + 5 if dtype is DType.U64 else 77
        low = -33 if dtype.is_signed else 0
        yield "randint", dtype, 2**33, {"whole_start": low, "whole_end": last, **big}
        if dtype is DType.BOOL:
            continue
        yield "arange", dtype, 4, {"start": 0.7, "step": -0.3, "whole_start": 3, "whole_step": 2}
        if dtype.is_signed:
            yield "arange", dtype, 1, {"start": 1e-3, "step": 1.0625, "whole_start": 20, "whole_step": -3}
        yield "linspace", dtype, 12, {"start": 0.1 if dtype.is_floating_point else 1.0, "end": 97.0, "steps": 101}
        if dtype in FLOATS:
            yield "rand", dtype, 0, {"seed": 0, "call": 0}
            yield "rand", dtype, 2**34 - 8, big
            yield "uniform", dtype, 4, {"start": -1.5, "end": 2.25, **big}
            yield "uniform", dtype, 8, {"start": 100.0, "end": 100.3, "seed": 5}
            yield "randn", dtype, 0, {"seed": 0, "call": 0}
            yield "randn", dtype, 2**34 - 8, big
    # Just above the middle of two numbers, by less than float32 holds: rounding twice would round down.
    for dtype, tie in ((DType.BF16, 2.0**-8), (DType.F16, 2.0**-11), (DType.F8E4M3, 2.0**-4), (DType.F8E5M2, 2.0**-3)):
        yield "arange", dtype, 0, {"start": 1 + tie + 2.0**-40, "step": 1.0}
    # The largest number, the middle between it and what would come next, and what is a little less or more.
    for dtype, tie in ((DType.F8E4M3, 464.0), (DType.F8E5M2, 61440.0)):
        for value in (tie, tie - 2.0**-30, tie + 2.0**-30, -tie):
            yield "value", dtype, 0, {"start": value}
    # Wider than a float holds; between neighbours of the type; nothing but one number.
    yield "uniform", DType.BF16, 0, {"start": -3e38, "end": 3e38, "seed": 6}
    yield "uniform", DType.F16, 0, {"start": 1.0, "end": 1.0 + 2.0**-10, "seed": 7}
    yield "uniform", DType.F16, 16, {"start": 0.1, "end": 0.1, "seed": 8}
    # Both tails of the normal distribution, and the whole of a type.
    yield "randint", DType.I64, 0, {"whole_start": -2**63, "whole_end": 2**63 - 1, "seed": 1}
    yield "randint", DType.U64, 0, {"whole_start": 0, "whole_end": 2**64 - 1, "seed": 1}
    yield "arange", DType.U64, 0, {"whole_start": 2**64 - 100, "whole_step": 2}


def normal_words():
    """Both ends, the middle, where the polynomials meet, and what lies between."""
    words = [0, 1, 2, 3, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]
    words += [int(2.0**(k / 4)) for k in range(4, 126, 3)]
    # -log2(1 - (1 - 2 t)^2) is 8 at this t.
    meet = int((1 - (1 - 2.0**-8)**0.5) / 2 * 2**32)
    words += [meet + k for k in (-5000, -50, -1, 0, 1, 50, 5000)]
    return np.array(words + [2**32 - 1 - word for word in words[10:]], np.uint64)


def chances():
    """Of each of the three ranges of AS 241, both tails, and its ends."""
    near = [0.5, 0.25, 0.075, np.nextafter(0.075, 0), 0.925, np.nextafter(0.925, 1), 0.9, 0.01, 0.99]
    middle = [1e-5, 2.0**-35, 1e-10, 1.3887943864964021e-11]
    far = [1.3e-11, 1e-12, 2.0**-53, 1 - 2.0**-53, 1 - 1e-12, 1e-20, 1e-300]
    return np.array(near + middle + far)


def text():
    """The header."""
    lines = [HEAD % COUNT]
    for kind, dtype, first, numbers in cases():
        values = fill_reference.reference(kind, dtype, first, COUNT, **numbers)
        bits = [int(x) for x in values.view(f"uint{8 * dtype.itemsize}")]
        name = NAMES.get(dtype, f"k{dtype.name}")
        given = []
        for field in FIELDS:
            number = numbers.get(field, 0)
            if field in ("start", "end", "step"):
                given.append(float(number).hex() if number else "0")
            elif field.startswith("whole"):
                number = (number + 2**63) % 2**64 - 2**63
                given.append("INT64_MIN" if number == -2**63 else str(number))
            else:
                given.append(f"{number:#x}u" if number > 9 else str(number))
        lines.append(f"    {{{{fill::Kind::k{kind.title()}, DType::{name},\n      {', '.join(given[:3])},\n")
        lines.append(f"      {', '.join(given[3:6])},\n      {', '.join(given[6:])}}},\n")
        lines.append(f"     {first:#x}u,\n     {{")
        column, each = 0, []
        for value in bits:
            item = f"{value:#x},"
            if column + len(item) > 88:
                each.append("\n      ")
                column = 0
            elif each:
                each.append(" ")
            each.append(item)
            column += len(item) + 1
        lines.append("".join(each)[:-1] + "}},\n")
    lines.append(NORMALS)
    words = normal_words()
    lines += [f"    {{{int(word):#x}u, {int(bits):#x}u}},\n"
              for word, bits in zip(words, fill_reference.normal(words).view(np.uint32))]
    lines.append(INVERSES)
    p = chances()
    lines += [f"    {{{int(given):#x}u, {int(bits):#x}u}},\n"
              for given, bits in zip(p.view(np.uint64), fill_reference.inverse_normal(p).view(np.uint64))]
    lines.append(END)
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(text())
