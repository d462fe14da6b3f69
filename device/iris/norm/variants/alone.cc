// The row of kAlone, whose kernels are in impl/alone.h.
#include "iris/norm/impl/alone.h"

#include <cstdint>

#include "iris/norm/variant.h"

namespace iris::norm::impl {
namespace {

template <uint32_t kKept, bool kScaled>
struct Kernels {
  template <typename T>
  static auto Of() {
    return &NormAlone<T, kKept, kScaled>;
  }
};

uint64_t Ceil(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
uint64_t UnitsOf(uint64_t hidden, DType in) { return Ceil(hidden * DTypeBytes(in), 16); }

// Returns the threads that a block should have to keep a row. A few rows take as long as a thread
// needs for its units, and fp8 makes these slower; many rows take as long as the memory needs,
// which requires many loads in flight. Measured: docs/benchmarks.md.
uint64_t WantedThreads(const ccl::Config& config, const Problem& problem) {
  if (backend::Traits::kEmulated) return 64;
  const bool scaled = problem.scaling != Scaling::kNone;
  if (problem.rows <= config.max_blocks) return scaled ? 1024 : 512;
  return scaled || problem.rows <= 8 * uint64_t{config.max_blocks} ? 512 : 256;
}

bool MakePlan(const ccl::Comm& comm, const Problem& problem, Plan* plan, const char** why) {
  if (comm.team.size != 1) {
    *why = "the variant alone is for a team of one member";
    return false;
  }
  const ccl::Config& config = comm.config;
  const uint64_t warp = backend::WarpSize();
  const auto most = [&](uint64_t kept) {
    const uint64_t ours = MaxAloneThreads(static_cast<uint32_t>(kept));
    return config.block_threads == 0 ? ours : Min(ours, RoundUp(config.block_threads, warp));
  };
  const uint64_t units = UnitsOf(problem.hidden, problem.in);
  const uint64_t rows = problem.rows == 0 ? 1 : problem.rows;
  uint64_t at_once = 1;
  uint64_t threads = warp;
  if (RowThreads(units, rows, 0) == warp) {
    // One warp for each row; several rows to a block if there are more rows than blocks at once.
    constexpr uint64_t kMostWarps = 8;
    at_once = Min(Ceil(rows, config.max_blocks), Min(kMostWarps, most(kKeptAlone) / warp));
    threads = at_once * warp;
  } else {
    uint64_t kept = 1;
    while (kept <= kKeptAlone && units > kept * Min(WantedThreads(config, problem), most(kept))) {
      kept *= 2;
    }
    // Longer rows need more threads.
    if (kept > kKeptAlone) kept = units <= 2 * most(2) ? 2 : kKeptAlone;
    if (units > kept * most(kept)) {
      *why =
          "the variant alone keeps a row in the registers of a block: it is for rows of up to 32 "
          "KiB, or of 64 bytes for each of block_threads";
      return false;
    }
    threads = RoundUp(Ceil(units, kept), warp);
  }
  // The packed call has 16 bits for the blocks. Emulated devices run all blocks at once.
  uint64_t blocks = Min(Ceil(rows, at_once), 1 << 15);
  if (backend::Traits::kEmulated || config.max_multiprocessors != 0) {
    blocks = Min(blocks, config.max_blocks);
  }
  if (config.blocks != 0) blocks = Min(blocks, config.blocks);
  *plan = {Variant::kAlone, static_cast<uint32_t>(blocks), static_cast<uint32_t>(threads), 1};
  return true;
}

template <bool kScaled>
Result LaunchKept(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                  backend::Stream& stream) {
  const uint64_t units = UnitsOf(call.hidden, in);
  const uint64_t kept = Ceil(units, RowThreads(units, call.rows, config.block));
  if (kept == 1) return LaunchOf<Kernels<1, kScaled>>(common, call, in, config, stream);
  if (kept == 2) return LaunchOf<Kernels<2, kScaled>>(common, call, in, config, stream);
  return LaunchOf<Kernels<kKeptAlone, kScaled>>(common, call, in, config, stream);
}
Result LaunchIt(const Common& common, const NormCall& call, DType in, const LaunchConfig& config,
                backend::Stream& stream) {
  return call.scaling == Scaling::kNone ? LaunchKept<false>(common, call, in, config, stream)
                                        : LaunchKept<true>(common, call, in, config, stream);
}

template <bool kScaled>
Result PrepareKept() {
  if (Result result = PrepareOf<Kernels<1, kScaled>>(); !result.ok()) return result;
  if (Result result = PrepareOf<Kernels<2, kScaled>>(); !result.ok()) return result;
  return PrepareOf<Kernels<kKeptAlone, kScaled>>();
}
Result Prepare() {
  const Result result = PrepareKept<false>();
  return result.ok() ? PrepareKept<true>() : result;
}

}  // namespace

const VariantRow kAloneRow = {
    Variant::kAlone, kKeptAlone, nullptr, nullptr, nullptr, &LaunchIt, &Prepare, &MakePlan,
};

}  // namespace iris::norm::impl
