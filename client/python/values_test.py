"""The numbers behind tensors: Philox's bits against Random123's answers, the normal distribution, rounding, types."""

import random
import statistics
import sys
import unittest

sys.path.insert(0, "client/python")

# pylint: disable=wrong-import-position
from tests.python import junit  # noqa: E402

try:
    import numpy as np
    from iris import _fill, factories
    from iris._shapes import bytes_of, common_rows, contiguous_strides, parse_shape
    from iris.dtypes import DType
    from iris.errors import InvalidArgumentError
    from iris.run import split
    from tests.bundle.python import fill_reference
except ImportError as error:
    if error.name != "numpy":
        raise
    np = None

# Random123's kat_vectors, philox4x32 of 10 rounds: counter, key, answer.
KNOWN_ANSWERS = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


def words(text):
    return [int(word, 16) for word in text.split()]


@unittest.skipIf(np is None, "numpy is not installed")
class Philox(unittest.TestCase):

    def test_known_answers(self):
        for counter, key, answer in KNOWN_ANSWERS:
            got = fill_reference.philox4x32(np.array([words(counter)], np.uint64), tuple(words(key)))
            self.assertEqual([int(word) for word in got[0]], words(answer))

    def test_words_are_those_of_the_documented_counter(self):
        seed, call = 0x299f31d0a4093822, 0x0370734413198a2e
        draw = fill_reference.Draw(seed, call)
        for block in (0, 1, 7):
            wanted = fill_reference.philox4x32(np.array([[block, 0, 0x13198a2e, 0x03707344]], np.uint64),
                                        (0xa4093822, 0x299f31d0))[0]
            self.assertEqual(list(draw.words(4, 4 * block)), list(wanted))
        # A word does not depend on where the range begins, even if the block's number needs two words.
        all_words = draw.words(100)
        for first, count in ((0, 1), (3, 5), (50, 50), (99, 1), (4, 0)):
            self.assertEqual(list(draw.words(count, first)), list(all_words[first:first + count]))
        far = draw.words(1, 4 << 32)
        self.assertEqual(far[0], fill_reference.philox4x32(np.array([[0, 1, 0x13198a2e, 0x03707344]], np.uint64),
                                                    (0xa4093822, 0x299f31d0))[0][0])
        self.assertEqual(int(draw.longs(3)[2]), int(all_words[4]) + (int(all_words[5]) << 32))

    def test_randint_is_the_product_s_upper_half(self):
        draw = fill_reference.Draw(1, 2)
        for low, high in ((0, 7), (-3, 2**33), (0, 2**63), (1, 2**64 - 1), (-2**63, 2**63), (5, 6)):
            got = draw.randint(200, low, high)
            for word, value in zip(draw.longs(200), got):
                self.assertEqual(int(value), (low + (int(word) * (high - low) >> 64)) % 2**64)

    def test_rand_is_exact(self):
        draw = fill_reference.Draw(3, 4)
        self.assertEqual([float(x) for x in draw.rand(50, 24)],
                         [int(w >> np.uint64(8)) / 2**24 for w in draw.words(50)])
        self.assertEqual([float(x) for x in draw.rand(50, 53)],
                         [int(w >> np.uint64(11)) / 2**53 for w in draw.longs(50)])

    def test_inverse_normal(self):
        normal = statistics.NormalDist()
        chances = [1e-300, 1e-20, 2**-54, 1e-10, 1e-4, 0.0749, 0.0751, 0.3, 0.5, 0.6, 0.9249, 0.9251, 1 - 1e-10]
        chances += [random.Random(5).random() or 0.5 for _ in range(2000)]
        for chance, got in zip(chances, fill_reference.inverse_normal(np.array(chances))):
            self.assertAlmostEqual(float(got), normal.inv_cdf(chance), delta=4e-15 * max(1, abs(got)), msg=chance)

    def test_randn_has_the_bits_that_other_implementations_must_give(self):
        """Of seed 0: pinned, because every backend has to give them."""
        draw = fill_reference.Draw(0, 0)
        p = [(w + 0.5) / 2**32 for w in words("6627e8d5 e169c58d bc57ac4c 9b00dbd8")]
        normal = statistics.NormalDist()
        for got, chance in zip(draw.randn(4, 24), p):
            self.assertAlmostEqual(float(got), normal.inv_cdf(chance), delta=5e-7 * abs(got))
        self.assertEqual([float(x).hex() for x in draw.randn(4, 24)], PINNED)
        self.assertEqual([x.hex() for x in draw.randn(2, 53)], PINNED_DOUBLES)

    def test_normal_is_near_the_inverse_everywhere(self):
        ends = np.arange(3000, dtype=np.uint64)
        sample = np.random.default_rng(3).integers(0, 2**32, 300_000, dtype=np.uint64)
        for words_ in (ends, np.uint64(2**31) - ends - np.uint64(1), np.uint64(2**31) + ends,
                       np.uint64(2**32 - 1) - ends, sample):
            got = fill_reference.normal(words_)
            self.assertEqual(got.dtype, np.float32)
            exact = fill_reference.inverse_normal((words_.astype(np.float64) + 0.5) * 2.0**-32)
            self.assertLess(np.max(np.abs(got - exact) / np.abs(exact)), 5e-7)
            # Symmetric, to the bit.
            self.assertTrue((fill_reference.normal(np.uint64(2**32 - 1) - words_) == -got).all())

    def test_no_chance_is_0_or_1(self):

        class Extreme(fill_reference.Draw):

            def longs(self, count, first=0):
                return np.array([0, 2**64 - 1], np.uint64)

        low, high = Extreme(0, 0).randn(2, 53)
        self.assertEqual(low, -high)
        self.assertAlmostEqual(low, statistics.NormalDist().inv_cdf(2**-53), delta=1e-13)

    def test_halves(self):
        draw = fill_reference.Draw(5, 6)
        all_words = [int(word) for word in draw.words(50)]
        wanted = [word >> shift & 0xFFFF for word in all_words for shift in (0, 16)]
        for first, count in ((0, 100), (1, 1), (3, 8), (4, 5), (99, 1), (7, 0)):
            self.assertEqual([int(half) for half in draw.halves(count, first)], wanted[first:first + count])
        self.assertEqual([float(x) for x in draw.rand(5, 11, 3)], [(half >> 5) / 2**11 for half in wanted[3:8]])

    def test_generators(self):
        one, other = factories.Generator(7), factories.Generator(7)
        self.assertEqual(one.next_call(), other.next_call())
        self.assertEqual(one.next_call(), (7, 1))
        state = one.get_state()
        self.assertEqual(state, (7, 2))
        a = one.next_call()
        one.set_state(state)
        self.assertEqual(one.next_call(), a)
        self.assertEqual(factories.Generator(-1).initial_seed(), 2**64 - 1)
        for seed in (2**64, -2**63 - 1):
            self.assertRaises(InvalidArgumentError, factories.Generator, seed)


# Draw(0, 0).randn(4, 24) and randn(2, 53), as hexadecimal floats.
PINNED = ["-0x1.05f4a00000000p-2", "0x1.2d769e0000000p+0", "0x1.42a7700000000p-1", "0x1.11fbd80000000p-2"]
PINNED_DOUBLES = ["0x1.2d769e93cb51fp+0", "0x1.11fbd69d8e301p-2"]


@unittest.skipIf(np is None, "numpy is not installed")
class Rounding(unittest.TestCase):

    def test_bfloat16_is_rounded_once(self):
        # One is a tie that only the bits after float32's decide: rounding twice would give another result.
        for value, bits in ((1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (-2.0, 0xC000),
                            (1.00390625 + 2**-40, 0x3F81), (float("inf"), 0x7F80), (3.5e38, 0x7F80), (0.0, 0),
                            (1.00390625 - 2**-40, 0x3F80)):
            self.assertEqual(int(_fill.round_to(np.float64(value), DType.BF16)), bits, value)
        self.assertTrue(np.isnan(_fill.as_numbers(_fill.round_to(np.array([np.nan]), DType.BF16), DType.BF16))[0])

    def test_8_bit_floats_give_their_own_values_back(self):
        for dtype in (DType.F8E4M3, DType.F8E5M2):
            codes = np.arange(256, dtype=np.uint8)
            values = _fill.as_numbers(codes, dtype)
            there = ~np.isnan(values)
            self.assertEqual(list(_fill.round_to(values[there], dtype)), list(codes[there]))
        for value, wanted in ((447.0, 448.0), (464.0, 448.0), (2.0**-10, 0.0), (1.0625, 1.0), (1.1875, 1.25)):
            got = _fill.as_numbers(_fill.round_to(np.array([value]), DType.F8E4M3), DType.F8E4M3)[0]
            self.assertEqual(got, wanted, value)
        self.assertTrue(np.isnan(_fill.as_numbers(_fill.round_to(np.array([465.0]), DType.F8E4M3), DType.F8E4M3))[0])
        # The middle between 57344 and what would be 65536 goes to the even one of both, which is infinity.
        for value, wanted in ((1e6, np.inf), (61440.0, np.inf), (-61440.0, -np.inf), (61439.99999, 57344.0)):
            got = _fill.as_numbers(_fill.round_to(np.array([value]), DType.F8E5M2), DType.F8E5M2)[0]
            self.assertEqual(got, wanted, value)

    def test_largest_below(self):
        for high, dtype, wanted in ((1.0, DType.F32, 1 - 2**-24), (1.0, DType.F16, 1 - 2**-11),
                                    (1.0, DType.BF16, 1 - 2**-8), (1.0, DType.F64, 1 - 2**-53),
                                    (-1.0, DType.BF16, -1 - 2**-7), (1e-3, DType.F32, None)):
            got = fill_reference.largest_below(high, dtype)
            self.assertLess(got, high)
            if wanted is not None:
                self.assertEqual(got, wanted)


@unittest.skipIf(np is None, "numpy is not installed")
class Shapes(unittest.TestCase):

    def test_two_layouts_as_rows(self):
        for shape, first, second, wanted in (
                ((4, 5), (10, 1), (12, 1), (4, 5, 10, 12)), ((4, 5), (5, 1), (12, 1), (4, 5, 5, 12)),
                ((4, 5), (5, 1), (5, 1), (1, 20, 20, 20)), ((3, 4, 5), (40, 10, 1), (20, 5, 1), (12, 5, 10, 5)),
                ((3, 4, 5), (50, 10, 1), (20, 5, 1), None), ((7,), (2,), (3,), (7, 1, 2, 3)),
                ((), (), (), (1, 1, 1, 1)),
                ((1, 5, 1), (9, 3, 7), (8, 1, 1), (5, 1, 3, 1)), ((4, 5), (1, 4), (5, 1), None),
                ((4, 5), (3, 1), (5, 1), None)):
            self.assertEqual(common_rows(shape, first, second), wanted, (shape, first, second))

    def test_limits(self):
        for dtype in list(DType)[1:]:
            if not dtype.is_floating_point and dtype is not DType.BOOL:
                info = np.iinfo(dtype.numpy_name)
                self.assertEqual(dtype.limits, (info.min, info.max))

    def test_types(self):
        for dtype in list(DType)[1:]:
            self.assertIs(DType.of(dtype.long_name), dtype)
            self.assertIs(DType.of(dtype.name.lower()), dtype)
            if dtype.numpy_name:
                self.assertIs(DType.of(np.dtype(dtype.numpy_name)), dtype)
                self.assertIs(DType.of(np.dtype(dtype.numpy_name).type), dtype)
                self.assertEqual(np.dtype(dtype.numpy_name).itemsize, dtype.itemsize)
        self.assertEqual([DType.of(t) for t in (float, int, bool)], [DType.F32, DType.I64, DType.BOOL])
        for wrong in ("x", np.complex64, np.dtype(">i4"), 17, None, object):
            self.assertRaises(InvalidArgumentError, DType.of, wrong)

    def test_shapes(self):
        self.assertEqual(parse_shape((2, 3)), (2, 3))
        self.assertEqual(parse_shape(([2, 3],)), (2, 3))
        self.assertEqual(parse_shape(((),)), ())
        self.assertEqual(parse_shape((np.int64(4),)), (4,))
        self.assertEqual(contiguous_strides((2, 0, 3)), (3, 3, 1))
        self.assertEqual(bytes_of((), DType.F64), 8)
        self.assertEqual(bytes_of((2, 0), DType.F64), 0)
        self.assertEqual(bytes_of((2**62,), DType.U8), 2**62)
        for shape, dtype in (((2**63,), DType.U8), ((2**61,), DType.F32), ((2**40, 0, 2**40), DType.U8)):
            self.assertRaises(InvalidArgumentError, bytes_of, shape, dtype)

    def test_where_a_program_begins(self):
        for arguments, options, command in (
                (["-n", "4", "p.py", "-n", "x"], ["-n", "4"], ["p.py", "-n", "x"]),
                (["--np=2", "--verbose", "-m", "mod", "a"], ["--np=2", "--verbose"], ["-m", "mod", "a"])):
            self.assertEqual(split(arguments), (options, [sys.executable, *command]))
        self.assertEqual(split(["-n", "2", "--", "sleep", "1"]), (["-n", "2"], ["sleep", "1"]))
        self.assertEqual(split(["--help"]), (["--help"], None))


if __name__ == "__main__":
    junit.main()
