// Measures MoE dispatch and combine, in bf16 and as f8e4m3.
#include "iris/moe.h"

#include <chrono>
#include <future>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/base/absl_status.h"
#include "client/bench/compare.h"
#include "client/bench/sections.h"
#include "iris/dtype.h"

namespace iris::bench {
namespace {

using base::ToAbsl;

uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// Returns `top_k` random experts for each token, the same as in tests/bench/moe_peer.py.
std::vector<int32_t> Choices(uint32_t rank, uint32_t tokens, uint32_t n_experts, uint32_t top_k) {
  std::vector<int32_t> ids;
  std::vector<int32_t> all(n_experts);
  for (uint32_t t = 0; t < tokens; ++t) {
    std::iota(all.begin(), all.end(), 0);
    for (uint32_t j = 0; j < top_k; ++j) {
      const uint32_t bits = Mix(rank * 1000003u + t * 131u + j);
      std::swap(all[j], all[j + bits % (n_experts - j)]);
      ids.push_back(all[j]);
    }
  }
  return ids;
}

// One exchange and its buffers, on one rank.
struct Layer {
  moe::Config config;
  moe::Exchange exchange;
  DeviceArray<uint8_t> x, out, rows, y;
  DeviceArray<int32_t> ids, offsets;
  DeviceArray<float> weights, scales;

  Status Make(Context& context, ccl::Communicator& comm, Stream& stream) {
    IRIS_ASSIGN_OR_RETURN(exchange, moe::Exchange::Create(context, comm, config));
    const moe::Sizes& sizes = exchange.sizes();
    const uint64_t tokens = config.max_tokens, row_bytes = uint64_t{config.hidden} * 2;
    IRIS_ASSIGN_OR_RETURN(x, DeviceArray<uint8_t>::Create(context, tokens * row_bytes));
    IRIS_ASSIGN_OR_RETURN(out, DeviceArray<uint8_t>::Create(context, tokens * row_bytes));
    IRIS_ASSIGN_OR_RETURN(rows, DeviceArray<uint8_t>::Create(context, sizes.max_rows * row_bytes));
    IRIS_ASSIGN_OR_RETURN(y, DeviceArray<uint8_t>::Create(context, sizes.max_rows * row_bytes));
    IRIS_ASSIGN_OR_RETURN(
        scales, DeviceArray<float>::Create(context, sizes.max_rows * sizes.scale_columns + 1));
    IRIS_ASSIGN_OR_RETURN(offsets, DeviceArray<int32_t>::Create(context, sizes.local_experts + 1));
    const std::vector<int32_t> chosen =
        Choices(context.rank(), config.max_tokens, config.n_experts, config.top_k);
    IRIS_ASSIGN_OR_RETURN(ids, DeviceArray<int32_t>::Create(context, chosen, stream));
    IRIS_ASSIGN_OR_RETURN(weights, DeviceArray<float>::Create(
                                       context, std::vector<float>(chosen.size(), 0.125f), stream));
    // The bytes give numbers of bf16 other than zero, different in x and y.
    IRIS_RETURN_IF_ERROR(stream.Fill(x, 0x3e, x.bytes()));
    IRIS_RETURN_IF_ERROR(stream.Fill(y, 0x3d, y.bytes()));
    return stream.Synchronize();
  }
  Status Dispatch(Stream& stream) {
    moe::Dispatch call;
    call.tokens = config.max_tokens;
    call.x = x;
    call.ids = ids;
    call.weights = weights;
    call.rows = rows;
    if (exchange.sizes().scale_columns != 0) call.scales = scales;
    call.offsets = offsets;
    return exchange.Dispatch(call, stream);
  }
  Status Combine(Stream& stream) {
    return exchange.Combine({config.max_tokens, y, DType::kBf16, out, DType::kBf16}, stream);
  }
};

// A part that is measured. Peers call it `operation`.
struct Part {
  const char* name;
  const char* operation;
  bool there, back;
};
constexpr Part kParts[] = {{"dispatch", "moe_dispatch", true, false},
                           {"combine", "moe_combine", false, true},
                           {"dispatch + combine", "moe_dispatch_combine", true, true}};

// Returns the best peer's microseconds for each part; 0: none has it. Rank 0 runs the command, and
// the others wait for it by many short calls, because no call may take long.
absl::StatusOr<std::vector<double>> BestPeers(const Run& run, const moe::Config& config) {
  std::vector<double> best(std::size(kParts));
  const BenchOptions& options = run.options;
  if (options.moe_peers_command.empty()) return best;
  std::future<absl::StatusOr<std::vector<PeerFigure>>> running;
  if (run.rank.rank() == 0) {
    running = std::async(std::launch::async, [&options, ranks = run.rank.n_ranks()] {
      return RunPeers(options.moe_peers_command, ranks,
                      absl::Seconds(options.moe_peers_timeout_seconds));
    });
  }
  for (bool over = false; !over;) {
    const bool ready = running.valid() && running.wait_for(std::chrono::milliseconds(200)) ==
                                              std::future_status::ready;
    IRIS_ASSIGN_OR_RETURN(over, run.rank.Agree(ready));
  }
  absl::Status failed;
  if (running.valid()) {
    const auto figures = running.get();
    failed = figures.status();
    const ProductShape shape = {config.max_tokens, config.hidden, config.top_k};
    for (size_t i = 0; figures.ok() && i < best.size(); ++i) {
      for (const PeerFigure& figure : *figures) {
        if (figure.operation != kParts[i].operation || figure.ranks != run.rank.n_ranks() ||
            figure.shape != shape) {
          continue;
        }
        if (best[i] == 0 || figure.us < best[i]) best[i] = figure.us;
      }
    }
  }
  IRIS_ASSIGN_OR_RETURN(const bool went, run.rank.Agree(failed.ok()));
  if (!failed.ok()) return failed;
  if (!went) return absl::AbortedError("the peers' command failed: rank 0 says how");
  IRIS_ASSIGN_OR_RETURN(const auto all, run.rank.AllGather(best));
  return all[0];
}

}  // namespace

absl::Status Moe(const Run& run) {
  Context& context = *run.rank.context();
  const bool small = Device::Emulated();
  moe::Config config;
  config.max_tokens = run.options.moe_tokens != 0 ? run.options.moe_tokens : small ? 16 : 4096;
  config.hidden = run.options.moe_hidden != 0 ? run.options.moe_hidden : small ? 256 : 7168;
  config.n_experts = run.options.moe_experts;
  config.top_k = run.options.moe_top_k;
  IRIS_ASSIGN_OR_RETURN(Stream stream, ToAbsl(Stream::Create(context)));
  IRIS_ASSIGN_OR_RETURN(auto comm, ToAbsl(ccl::Communicator::Create(context)));
  IRIS_ASSIGN_OR_RETURN(const std::vector<double> peers, BestPeers(run, config));
  const bool compares = !run.options.moe_peers_command.empty();
  std::vector<Table::Column> columns = {{"what"},   {"rows as"}, {"p50", 1},
                                        {"min", 1}, {"max", 1},  {"n"}};
  if (compares) {
    columns.push_back({"best peer", 1});
    columns.push_back({"peer / p50", 2});
  }
  Table table("moe",
              absl::StrFormat("us of the slowest of %u ranks; each %u tokens x %u of bf16, top %u "
                              "of %u experts at random, dropless",
                              run.rank.n_ranks(), config.max_tokens, config.hidden, config.top_k,
                              config.n_experts),
              std::move(columns));
  for (const DType rows : {DType::kBf16, DType::kF8E4M3}) {
    IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
    if (!time_left) {
      table.Note("The rest was left out: the time was over.");
      break;
    }
    Layer layer;
    layer.config = config;
    layer.config.rows = rows;
    Status made = layer.Make(context, comm, stream);
    if (made.ok()) made = context.Barrier();
    if (!made.ok()) return ToAbsl(made);
    for (size_t i = 0; i < std::size(kParts); ++i) {
      const Part& part = kParts[i];
      IRIS_ASSIGN_OR_RETURN(const auto mine,
                            TimeOnStream(run.rank, run.options.samples, &comm, stream, [&] {
                              if (part.there) IRIS_RETURN_IF_ERROR(layer.Dispatch(stream));
                              return part.back ? layer.Combine(stream) : Status();
                            }));
      IRIS_ASSIGN_OR_RETURN(std::vector<double> samples, SlowestSamples(run.rank, mine));
      for (double& sample : samples) sample /= 1e3;
      const Spread spread = SpreadOf(samples);
      std::vector<nlohmann::json> cells = {part.name,  DTypeName(rows), spread.p50,
                                           spread.min, spread.max,      samples.size()};
      if (compares) {
        cells.push_back(CellIf(peers[i] != 0, peers[i]));
        cells.push_back(CellIf(peers[i] != 0, peers[i] / spread.p50));
      }
      table.Add(std::move(cells));
    }
    if (Status freed = layer.exchange.Destroy(); !freed.ok()) return ToAbsl(freed);
  }
  if (Status freed = comm.Destroy(); !freed.ok()) return ToAbsl(freed);
  table.Note("Sums come back as bf16 in both.");
  table.Note(compares ? "The peers' rows are not of fp8: both of ours are compared with theirs."
                      : "No peers: --moe-peers-command adds theirs to the table, such as those of "
                        "tests/bench/moe_peer.py.");
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

}  // namespace iris::bench
