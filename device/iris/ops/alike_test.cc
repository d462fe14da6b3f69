// Tests that either all ranks of a team choose the persistent kernel, or none does, by what each of
// them sees alone: addresses and leading dimensions matter to that kernel, too.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/ops/ops.h"
#include "iris/ops/variant.h"

namespace iris::ops {
namespace {

using ccl::Operation;

// How the members have their parts of a dimension that is dealt out evenly.
enum class Parts {
  kOwn,       // each in a matrix of its own
  kPadded,    // likewise, with rows a multiple of 16 bytes apart
  kSlices,    // slices of the columns of one matrix, which has no others
  kWideRows,  // slices of the columns of one matrix with longer rows, a multiple of 16 bytes apart
};
constexpr Parts kParts[] = {Parts::kOwn, Parts::kPadded, Parts::kSlices, Parts::kWideRows};

uint64_t RoundUp8(uint64_t x) { return (x + 7) / 8 * 8; }

// Where a matrix begins whose columns are a member's part, as a multiple of two bytes, and how far
// its rows are apart.
struct Place {
  uint64_t at;
  uint64_t ld;
};
Place PlaceOf(Parts parts, uint64_t whole, const Share& share) {
  switch (parts) {
    case Parts::kOwn:
      return {0, share.count};
    case Parts::kPadded:
      return {0, RoundUp8(share.count)};
    case Parts::kSlices:
      return {share.begin, whole};
    default:
      return {share.begin, RoundUp8(whole) + 8};
  }
}

constexpr uint64_t kRows = 512;
constexpr uint64_t kOther = 256;  // the dimension that is not dealt out

alignas(128) char memory[1 << 16];
const void* At(uint64_t elements) { return memory + elements % (sizeof(memory) / 4) * 2; }

Matmul CallOf(Operation operation, bool transposed, Parts parts, uint64_t whole, uint32_t members,
              uint32_t member) {
  const Share share = ShareOf(whole, members, member);
  const Place place = PlaceOf(parts, whole, share);
  const Place rest = {0, kOther};
  const bool gathers = operation == Operation::kAllGatherMatmul;
  Matmul call;
  call.problem = {operation, {kRows, kOther, kOther, DType::kBf16, DType::kBf16}};
  call.problem.transposed_b = transposed;
  (gathers ? call.problem.n : call.problem.k) = share.count;
  const Place a = gathers ? rest : place;
  // The part is B's columns, or its rows.
  const Place b = gathers != transposed ? place : rest;
  call.a = At(a.at);
  call.lda = a.ld;
  call.b = At(b.at);
  call.ldb = b.ld;
  call.ldd = call.problem.n;
  return call;
}

// Returns true if the matrices' addresses and leading dimensions suit Variant::kPersistent.
bool IsAligned(const Matmul& call) {
  return (reinterpret_cast<uintptr_t>(call.a) | reinterpret_cast<uintptr_t>(call.b)) % 16 == 0 &&
         call.lda % 8 == 0 && call.ldb % 8 == 0;
}

// The case that a member alone cannot tell from another one.
bool IsUnknown(Parts parts, uint64_t whole, uint32_t members) {
  const uint64_t shorter = whole / members;
  const uint64_t longer_ones = whole % members;
  if (longer_ones == 0) return false;
  if (parts == Parts::kPadded) return false;
  // Their rows tell, but where they might as well be longer than the parts together.
  if (parts == Parts::kSlices) return shorter % 8 == 0 && longer_ones % 8 == 0;
  return shorter % 8 == 0 || (shorter + 1) % 8 == 0;
}

TEST(AlikeTest, MembersWithEvenPartsChooseAlike) {
  for (const Operation operation : {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter,
                                    Operation::kAllGatherMatmul}) {
    for (const bool transposed : {false, true}) {
      for (const Parts parts : kParts) {
        for (uint32_t members = 2; members <= 16; ++members) {
          std::vector<uint64_t> wholes = {4096, 5120, 8192, 11008, 14336, 28672};
          for (uint64_t whole = 40 * members; whole < 57 * members; ++whole) {
            wholes.push_back(whole);
          }
          for (const uint64_t whole : wholes) {
            uint32_t choose = 0;
            for (uint32_t m = 0; m < members; ++m) {
              const Matmul call = CallOf(operation, transposed, parts, whole, members, m);
              const bool has = IsAligned(call);
              if (impl::PartsAreAlignedAlike(call.problem, members, m, &call) && has) ++choose;
            }
            const std::string what =
                std::string(ccl::OperationName(operation)) +
                (transposed ? ", transposed B, " : ", ") + std::to_string(members) + " members, " +
                std::to_string(whole) + ", parts " + std::to_string(static_cast<int>(parts));
            if (whole % (8 * members) == 0) {
              EXPECT_EQ(choose, members) << what;
            } else if (!IsUnknown(parts, whole, members)) {
              EXPECT_TRUE(choose == 0 || choose == members) << what << ": " << choose;
            }
          }
        }
      }
    }
  }
}

TEST(AlikeTest, AShapeAloneIsTakenAsAligned) {
  const Matmul call = CallOf(Operation::kMatmulAllReduce, false, Parts::kOwn, 8192, 4, 1);
  EXPECT_TRUE(impl::PartsAreAlignedAlike(call.problem, 4, 1, nullptr));
  // All ranks know the whole number of columns.
  Matmul columns = CallOf(Operation::kMatmulAllScatter, false, Parts::kOwn, 8192, 4, 0);
  columns.problem.n = 8192;
  EXPECT_TRUE(impl::PartsAreAlignedAlike(columns.problem, 4, 0, nullptr));
  EXPECT_FALSE(impl::PartsAreAlignedAlike(columns.problem, 3, 0, nullptr));
}

}  // namespace
}  // namespace iris::ops
