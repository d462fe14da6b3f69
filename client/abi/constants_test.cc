// The numbers of variants in c_api.h are those of the enumerators in C++.
#include <gtest/gtest.h>

#include "iris/c_api.h"
#include "iris/ccl_types.h"
#include "iris/norm_types.h"
#include "iris/ops_types.h"

namespace ccl = iris::ccl;
namespace norm = iris::norm;
namespace ops = iris::ops;

namespace {

struct Constant {
  int number;
  const char* name;
};

template <typename Variant, size_t N>
void Check(const Constant (&constants)[N], const char* (*name_of)(Variant)) {
  for (const auto& [number, name] : constants) {
    EXPECT_STREQ(name_of(static_cast<Variant>(number)), name) << number;
  }
}

TEST(ConstantsTest, VariantsOfCollectives) {
  Check<ccl::Variant>({{IRIS_VARIANT_AUTO, "auto"},
                       {IRIS_VARIANT_PACKETS, "packets"},
                       {IRIS_VARIANT_DIRECT, "direct"},
                       {IRIS_VARIANT_TWO_SHOT, "two_shot"},
                       {IRIS_VARIANT_TWO_PACKETS, "two_packets"},
                       {IRIS_VARIANT_TWO_PHASE, "two_phase"},
                       {IRIS_VARIANT_COPY_ENGINE, "copy_engine"},
                       {IRIS_VARIANT_RING, "ring"},
                       {IRIS_VARIANT_ATOMIC, "atomic"},
                       {IRIS_VARIANT_SPINLOCK, "spinlock"},
                       {IRIS_VARIANT_LINES, "lines"},
                       {IRIS_VARIANT_TWO_LINES, "two_lines"},
                       {IRIS_VARIANT_PUSH, "push"}},
                      &ccl::VariantName);
}

TEST(ConstantsTest, VariantsOfGemms) {
  Check<ops::Variant>({{IRIS_MATMUL_AUTO, "auto"},
                       {IRIS_MATMUL_FUSED, "fused"},
                       {IRIS_MATMUL_PAIR, "pair"},
                       {IRIS_MATMUL_PERSISTENT, "persistent"},
                       {IRIS_MATMUL_COPY_ENGINE, "copy_engine"}},
                      &ops::VariantName);
}

TEST(ConstantsTest, VariantsOfNorms) {
  Check<norm::Variant>({{IRIS_NORM_AUTO, "auto"},
                        {IRIS_NORM_PACKETS, "packets"},
                        {IRIS_NORM_LINES, "lines"},
                        {IRIS_NORM_TWO_SHOT, "two_shot"},
                        {IRIS_NORM_ALONE, "alone"},
                        {IRIS_NORM_TWO_LINES, "two_lines"},
                        {IRIS_NORM_PAIR, "pair"}},
                       &norm::VariantName);
}

}  // namespace
