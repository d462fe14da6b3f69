// What fills tensors: Philox's known answers, and the values of every kind and type against those
// that numpy computes (fill_golden.h), at every alignment, in rows and with strides.
#include "iris/fill/fill.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/random.h"
#include "tests/conformance/fill_golden.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using fill::Kind;

constexpr uint64_t kRoomBytes = 1 << 20;

#if defined(__FMA__)
// Built for processors that multiply and add in one operation: others cannot run it.
class FusedProcessor : public testing::Environment {
 public:
  void SetUp() override {
    if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this processor has no fused operations";
  }
};
const auto* const kFusedProcessor = testing::AddGlobalTestEnvironment(new FusedProcessor);
#endif

// A World of one rank is memory and a stream.
void OnOneRank(const std::function<void(Rank&)>& body) { World(1, 8 << 20).Run(body); }

std::string NameOf(const fill::Description& d) {
  return "kind " + std::to_string(static_cast<int>(d.kind)) + " of " + DTypeName(d.dtype);
}

uint64_t BitsAt(const std::vector<uint8_t>& bytes, uint64_t at, uint64_t width) {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < width; ++i) bits |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  return bits;
}

fill::Place Row(void* address, uint64_t count) {
  fill::Place row;
  row.address = address;
  row.n_dims = 1;
  row.shape[0] = count;
  row.strides[0] = 1;
  return row;
}

// Random123's kat_vectors, philox4x32 of 10 rounds: counter, key, answer.
constexpr uint32_t kKnown[3][10] = {
    {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
    {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e,
     0xa20bc7c6, 0x6d5451fd},
    {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
     0x5001e420, 0x24126ea1}};

IRIS_KERNEL void KnownAnswer(PhiloxBlock counter, uint32_t low, uint32_t high, uint32_t* out) {
  const PhiloxBlock block = Philox4x32(counter, low, high);
  for (uint32_t i = 0; i < 4; ++i) out[i] = block.words[i];
}

TEST(PhiloxTest, KnownAnswersInKernelsAndOnTheHost) {
  OnOneRank([](Rank& rank) {
    uint32_t* const out = rank.New<uint32_t>(4);
    for (const auto& known : kKnown) {
      PhiloxBlock counter;
      for (uint32_t i = 0; i < 4; ++i) counter.words[i] = known[i];
      const PhiloxBlock here = Philox4x32(counter, known[4], known[5]);
      rank.Launch({1, 1}, KnownAnswer, counter, known[4], known[5], out);
      const std::vector<uint32_t> there = rank.Read(out, 4);
      for (uint32_t i = 0; i < 4; ++i) {
        EXPECT_EQ(here.words[i], known[6 + i]);
        EXPECT_EQ(there[i], known[6 + i]);
      }
    }
  });
}

TEST(PhiloxTest, WordsAreThoseOfTheDocumentedCounter) {
  const RandomDraw draw = {0x299f31d0a4093822, 0x0370734413198a2e};
  PhiloxBlock counter;
  counter.words[0] = 5;
  counter.words[1] = 1;
  counter.words[2] = 0x13198a2e;
  counter.words[3] = 0x03707344;
  const PhiloxBlock block = Philox4x32(counter, 0xa4093822, 0x299f31d0);
  const uint64_t b = (uint64_t{1} << 32) + 5;
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(draw.Word(4 * b + i), block.words[i]);
  for (uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(draw.Long(2 * b + i),
              block.words[2 * i] | static_cast<uint64_t>(block.words[2 * i + 1]) << 32);
  }
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(draw.Half(8 * b + i), block.words[i / 2] >> (i % 2 * 16) & 0xffffu);
  }
  EXPECT_EQ(RandomBelow(~uint64_t{0}, 10), 9u);
  EXPECT_EQ(RandomBelow(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{0} - 1);
  EXPECT_EQ(RandomBelow(1234, 0), 1234u);
  EXPECT_EQ(RandomUnit(~uint32_t{0}), 1.0f - 5.9604644775390625e-08f);
  EXPECT_EQ(RandomUnit(uint32_t{0xff}), 0.0f);
}

// Fills at `at` bytes behind an aligned address, between bytes that must stay, and compares.
template <typename Wanted>
void CheckRow(Rank& rank, uint8_t* room, const fill::Sequence& sequence, uint64_t first,
              uint64_t count, uint64_t at, Wanted wanted) {
  const uint64_t width = DTypeBytes(sequence.dtype);
  const uint64_t bytes = at + count * width + 32;
  ASSERT_LE(bytes, kRoomBytes);
  ASSERT_TRUE(backend::FillAsync(room, 0xa5, bytes, rank.stream).ok());
  const Result filled = fill::Fill(sequence, first, Row(room + at, count), rank.stream);
  ASSERT_TRUE(filled.ok()) << filled.what;
  const std::vector<uint8_t> got = rank.Read(room, bytes);
  for (uint64_t i = 0; i < at; ++i) ASSERT_EQ(got[i], 0xa5) << "before, at " << i;
  for (uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(BitsAt(got, at + i * width, width), wanted(i)) << "element " << first + i;
  }
  for (uint64_t i = at + count * width; i < bytes; ++i) ASSERT_EQ(got[i], 0xa5) << "behind";
}

TEST(FillTest, EveryKindAndTypeGivesTheBitsOfTheReference) {
  OnOneRank([](Rank& rank) {
    uint8_t* const room = rank.New<uint8_t>(kRoomBytes);
    for (const Golden& golden : kGolden) {
      SCOPED_TRACE(NameOf(golden.description));
      fill::Sequence sequence;
      ASSERT_TRUE(fill::MakeSequence(golden.description, &sequence).ok());
      const auto wanted = [&](uint64_t i) { return golden.elements[i]; };
      for (uint64_t i = 0; i < kGoldenCount; ++i) {
        ASSERT_EQ(fill::ElementAt(sequence, golden.first + i), wanted(i)) << "on the host: " << i;
      }
      CheckRow(rank, room, sequence, golden.first, kGoldenCount, 0, wanted);
      const uint64_t width = DTypeBytes(sequence.dtype);
      CheckRow(rank, room, sequence, golden.first, kGoldenCount, width, wanted);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

IRIS_KERNEL void Normals(const uint32_t* words, uint32_t* normals, uint32_t n_words,
                         const uint64_t* chances, uint64_t* inverses, uint32_t n_chances) {
  for (uint32_t i = 0; i < n_words; ++i) {
    normals[i] = backend::BitCast<uint32_t>(RandomNormal(words[i]));
  }
  for (uint32_t i = 0; i < n_chances; ++i) {
    inverses[i] = backend::BitCast<uint64_t>(InverseNormal(backend::BitCast<double>(chances[i])));
  }
}

// The tails, which random elements hardly ever reach, too.
TEST(NormalTest, BitsOfTheReferenceInKernelsAndOnTheHost) {
  OnOneRank([](Rank& rank) {
    std::vector<uint32_t> words;
    std::vector<uint64_t> chances;
    for (const GoldenNormal& golden : kGoldenNormals) words.push_back(golden.word);
    for (const GoldenInverse& golden : kGoldenInverses) chances.push_back(golden.p);
    uint32_t* const given = rank.New<uint32_t>(words.size());
    uint32_t* const normals = rank.New<uint32_t>(words.size());
    uint64_t* const given_chances = rank.New<uint64_t>(chances.size());
    uint64_t* const inverses = rank.New<uint64_t>(chances.size());
    rank.Write(given, words);
    rank.Write(given_chances, chances);
    rank.Launch({1, 1}, Normals, given, normals, static_cast<uint32_t>(words.size()), given_chances,
                inverses, static_cast<uint32_t>(chances.size()));
    const std::vector<uint32_t> floats = rank.Read(normals, words.size());
    const std::vector<uint64_t> doubles = rank.Read(inverses, chances.size());
    for (uint64_t i = 0; i < words.size(); ++i) {
      const uint32_t wanted = kGoldenNormals[i].bits;
      EXPECT_EQ(floats[i], wanted) << "word " << words[i];
      EXPECT_EQ(backend::BitCast<uint32_t>(RandomNormal(words[i])), wanted) << "word " << words[i];
    }
    for (uint64_t i = 0; i < chances.size(); ++i) {
      const double p = backend::BitCast<double>(chances[i]);
      EXPECT_EQ(doubles[i], kGoldenInverses[i].bits) << "p " << p;
      EXPECT_EQ(backend::BitCast<uint64_t>(InverseNormal(p)), kGoldenInverses[i].bits) << "p " << p;
    }
  });
}

TEST(NormalTest, FloatsAreNearTheInverseOfTheDistribution) {
  const auto check = [](uint32_t word) {
    const double exact = InverseNormal((static_cast<double>(word) + 0.5) / 4294967296.0);
    const double got = static_cast<double>(RandomNormal(word));
    ASSERT_LE(std::abs(got - exact), 5e-7 * std::abs(exact)) << "word " << word;
  };
  const uint32_t step = 9973 * kSlower;
  for (uint64_t word = 0; word <= 0xffffffffu; word += step) check(static_cast<uint32_t>(word));
  for (uint32_t word = 0; word < 5000; ++word) {
    for (const uint32_t base : {0x80000000u, 0u}) {
      check(base + word);
      check(base - 1 - word);
    }
  }
}

TEST(NormalTest, ChancesAreInside0And1) {
  EXPECT_EQ(NormalChance(~uint64_t{0}), 1.0 - 1.1102230246251565e-16);
  EXPECT_EQ(NormalChance(uint64_t{0}), 1.1102230246251565e-16);
  EXPECT_EQ(InverseNormal(NormalChance(~uint64_t{0})), -InverseNormal(NormalChance(uint64_t{0})));
}

// More than a unit of each thread, at alignments and first elements that take every way.
TEST(FillTest, LongRowsAreTheElementsOfTheSequence) {
  OnOneRank([](Rank& rank) {
    uint8_t* const room = rank.New<uint8_t>(kRoomBytes);
    const DType types[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBf16,
                           DType::kU8,  DType::kI64, DType::kI16};
    for (uint32_t kind = 0; kind < fill::kKindCount; ++kind) {
      for (const DType type : types) {
        fill::Description d;
        d.kind = static_cast<Kind>(kind);
        d.dtype = type;
        d.start = 1.5;
        d.end = 99.0;
        d.step = 0.25;
        d.whole_start = 3;
        d.whole_end = 90;
        d.whole_step = 1;
        d.steps = uint64_t{1} << 40;
        d.seed = 11;
        d.call = 12;
        if (!fill::Fits(d.kind, type)) continue;
        SCOPED_TRACE(NameOf(d));
        fill::Sequence sequence;
        ASSERT_TRUE(fill::MakeSequence(d, &sequence).ok());
        const uint64_t width = DTypeBytes(type);
        for (const uint64_t first : {uint64_t{0}, uint64_t{6}, (uint64_t{1} << 33) + 4}) {
          for (const uint64_t at : {uint64_t{0}, 4 * width, 2 * width, 3 * width}) {
            CheckRow(rank, room, sequence, first, 6007 / kSlower, at,
                     [&](uint64_t i) { return fill::ElementAt(sequence, first + i); });
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(FillTest, StridesLeaveWhatIsBetween) {
  OnOneRank([](Rank& rank) {
    uint32_t* const room = rank.New<uint32_t>(1000);
    fill::Description d;
    d.kind = Kind::kArange;
    d.dtype = DType::kU32;
    d.whole_start = 100;
    d.whole_step = 1;
    fill::Sequence sequence;
    ASSERT_TRUE(fill::MakeSequence(d, &sequence).ok());
    ASSERT_TRUE(backend::FillAsync(room, 0xff, 4000, rank.stream).ok());
    fill::Place place;
    place.address = room + 2;
    place.n_dims = 3;
    const uint64_t shape[] = {4, 1, 3};
    const int64_t strides[] = {50, 7, 2};
    for (uint32_t i = 0; i < 3; ++i) {
      place.shape[i] = shape[i];
      place.strides[i] = strides[i];
    }
    ASSERT_TRUE(fill::Fill(sequence, 5, place, rank.stream).ok());
    const std::vector<uint32_t> got = rank.Read(room, 1000);
    std::vector<uint32_t> wanted(1000, 0xffffffff);
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t j = 0; j < 3; ++j) wanted[2 + i * 50 + j * 2] = 105 + i * 3 + j;
    }
    EXPECT_EQ(got, wanted);
    // Backwards, as other libraries have it.
    place.address = room + 9;
    place.n_dims = 1;
    place.shape[0] = 10;
    place.strides[0] = -1;
    ASSERT_TRUE(fill::Fill(sequence, 0, place, rank.stream).ok());
    const std::vector<uint32_t> back = rank.Read(room, 10);
    for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(back[9 - i], 100 + i);
  });
}

TEST(FillTest, WhatIsNoPlaceIsRefused) {
  OnOneRank([](Rank& rank) {
    float* const room = rank.New<float>(64);
    fill::Description d;
    d.dtype = DType::kF32;
    fill::Sequence sequence;
    ASSERT_TRUE(fill::MakeSequence(d, &sequence).ok());
    char* const odd = reinterpret_cast<char*>(room) + 1;
    EXPECT_EQ(fill::Fill(sequence, 0, Row(odd, 3), rank.stream).code, StatusCode::kInvalidArgument);
    fill::Place place = Row(room, 3);
    place.n_dims = fill::kMaxDims + 1;
    EXPECT_EQ(fill::Fill(sequence, 0, place, rank.stream).code, StatusCode::kInvalidArgument);
    EXPECT_TRUE(fill::Fill(sequence, 0, Row(nullptr, 0), rank.stream).ok());
    d.kind = Kind::kRand;
    d.dtype = DType::kI32;
    EXPECT_EQ(fill::MakeSequence(d, &sequence).code, StatusCode::kInvalidArgument);
    rank.Synchronize();
  });
}

}  // namespace
}  // namespace iris::conformance
