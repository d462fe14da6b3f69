// fill: measures how fast a device makes the values of tensors, and its own fill of bytes.
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/base/absl_status.h"
#include "client/bench/sections.h"
#include "iris/dtype.h"

namespace iris::bench {
namespace {

using base::ToAbsl;

struct Case {
  const char* name;
  iris_fill_kind kind;
  DType dtype;
  double start;  // of a value
};
constexpr Case kCases[] = {
    {"zeros", IRIS_FILL_VALUE, DType::kF32, 0},
    {"ones", IRIS_FILL_VALUE, DType::kF32, 1},
    {"arange", IRIS_FILL_ARANGE, DType::kF32, 0},
    {"linspace", IRIS_FILL_LINSPACE, DType::kF32, 0},
    {"rand", IRIS_FILL_RAND, DType::kF32, 0},
    {"rand", IRIS_FILL_RAND, DType::kF64, 0},
    {"rand", IRIS_FILL_RAND, DType::kF16, 0},
    {"rand", IRIS_FILL_RAND, DType::kBf16, 0},
    {"uniform", IRIS_FILL_UNIFORM, DType::kF32, 0},
    {"uniform", IRIS_FILL_UNIFORM, DType::kF64, 0},
    {"uniform", IRIS_FILL_UNIFORM, DType::kF16, 0},
    {"uniform", IRIS_FILL_UNIFORM, DType::kBf16, 0},
    {"randn", IRIS_FILL_RANDN, DType::kF32, 0},
    {"randn", IRIS_FILL_RANDN, DType::kF64, 0},
    {"randn", IRIS_FILL_RANDN, DType::kF16, 0},
    {"randn", IRIS_FILL_RANDN, DType::kBf16, 0},
    {"randint", IRIS_FILL_RANDINT, DType::kI64, 0},
    {"randint", IRIS_FILL_RANDINT, DType::kU8, 0},
};

iris_fill_options OptionsFor(const Case& c, uint64_t bytes) {
  auto fill = impl::Sized<iris_fill_options>();
  fill.kind = c.kind;
  fill.dtype = static_cast<iris_dtype>(c.dtype);
  fill.count = bytes / DTypeBytes(c.dtype);
  fill.start = c.start;
  fill.end = c.start + 3;
  fill.step = 0.5;
  fill.whole_end = 99;
  fill.steps = fill.count;
  fill.seed = 42;
  return fill;
}

}  // namespace

absl::Status Fill(const Run& run) {
  Context& context = *run.rank.context();
  IRIS_ASSIGN_OR_RETURN(Stream stream, ToAbsl(Stream::Create(context)));
  uint8_t* const memory = run.areas.target;
  const uint64_t bytes = run.options.bytes;
  Table table("fill",
              absl::StrFormat("GB/s of %s in the heap, each rank its own; medians over %u ranks",
                              BytesText(bytes), run.rank.n_ranks()),
              {{"what"}, {"type"}, {"p50", 1}, {"min", 1}, {"max", 1}, {"of fill %", 0}, {"n"}});
  double fill_rate = 0;
  const auto add = [&](const char* what, const char* type,
                       const std::function<Status()>& put) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto mine, TimeOnStream(run.rank, run.options.samples,
                                                        /*comm=*/nullptr, stream, put));
    IRIS_ASSIGN_OR_RETURN(std::vector<double> rates, AllSamples(run.rank, mine));
    for (double& rate : rates) rate = static_cast<double>(bytes) / rate;
    const Spread spread = SpreadOf(rates);
    if (fill_rate == 0) fill_rate = spread.p50;
    table.Add({what, type, spread.p50, spread.min, spread.max, 100 * spread.p50 / fill_rate,
               rates.size()});
    return absl::OkStatus();
  };
  absl::Status status = add("fill of bytes", "", [&] { return stream.Fill(memory, 0, bytes); });
  for (const Case& c : kCases) {
    if (!status.ok()) return status;
    IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
    if (!time_left) {
      table.Note("The rest was left out: the time was over.");
      break;
    }
    const iris_fill_options options = OptionsFor(c, bytes);
    status = add(c.name, DTypeName(c.dtype), [&] {
      return impl::FromC(iris_fill(context.get(), memory, &options, stream.get()));
    });
  }
  if (!status.ok()) return status;
  table.Note("fill of bytes: by the device's own function, which zeros use.");
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

}  // namespace iris::bench
