// Times of the collectives, replayed from graphs: operations x sizes x variants x blocks x threads.
// Ranks are threads of this process, one device each.
//
//   bazel run --config=opt //tests/bench:collective_sweep -- [--ranks N] [--ops all_reduce,...]
//       [--min BYTES] [--max BYTES] [--sizes B,B,...] [--variants auto|all|packets,...]
//       [--blocks 1,2,...] [--threads 128,...] [--rows] [--tune] [--json] [--reps N]
//       [--stage BYTES] [--packet_blocks N]
//
// Bytes are those of the larger of in and out, bf16. A figure is the largest of the ranks' medians
// of a replay, divided by the operations in the graph. --rows prints "op bytes us" of kAuto and
// nothing else; --tune prints the best of each size as rows of a table of rules.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "device/backend/numeric.h"
#include "device/collective/collective.h"
#include "nlohmann/json.hpp"
#include "tests/conformance/world.h"

namespace iris::bench {
namespace {

using ccl::Comm;
using ccl::Operation;
using ccl::Variant;
using conformance::Rank;
using conformance::World;

struct Options {
  uint32_t ranks = 0;
  std::vector<Operation> ops;
  std::vector<uint64_t> sizes;
  std::vector<Variant> variants;
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> threads;
  bool rows = false;
  bool tune = false;
  bool json = false;
  uint32_t reps = 11;
  uint64_t stage_bytes = 0;
  uint32_t packet_blocks = 0;
};

struct Case {
  Operation operation;
  uint64_t bytes;
  Variant variant;
  uint32_t blocks;   // 0: as the plan says
  uint32_t threads;  // likewise
};

struct Figure {
  Case what;
  ccl::Plan plan;
  double us;
  bool right;
};

Result Start(Rank& rank, const Comm& comm, const Case& c, uint8_t* in, uint8_t* out) {
  const uint64_t n = rank.n();
  const uint64_t count = c.bytes / sizeof(Bfloat16);
  const uint64_t row = std::max<uint64_t>(1, count / n);
  const ccl::DataType type = ccl::DataType::kBf16;
  const ccl::ReduceOp sum = ccl::ReduceOp::kSum;
  switch (c.operation) {
    case Operation::kAllReduce:
      return ccl::AllReduce(comm, in, out, count, type, sum, rank.stream, c.variant);
    case Operation::kReduceScatter:
      return ccl::ReduceScatter(comm, in, out, row, type, sum, rank.stream, c.variant);
    case Operation::kReduce:
      return ccl::Reduce(comm, in, out, count, type, sum, 0, rank.stream, c.variant);
    case Operation::kAllGather:
      return ccl::AllGather(comm, in, out, row, type, rank.stream, c.variant);
    case Operation::kAllToAll:
      return ccl::AllToAll(comm, in, out, row, type, rank.stream, c.variant);
    case Operation::kBroadcast:
      return ccl::Broadcast(comm, in, out, count, type, 0, rank.stream, c.variant);
    case Operation::kGather:
      return ccl::Gather(comm, in, out, row, type, 0, rank.stream, c.variant);
    case Operation::kScatter:
      return ccl::Scatter(comm, in, out, row, type, 0, rank.stream, c.variant);
    default:
      return ccl::Barrier(comm, rank.stream);
  }
}

void Require(const Result& result, const char* what) {
  if (result.ok()) return;
  std::fprintf(stderr, "collective_sweep: %s: %s\n", what, result.what);
  std::exit(1);
}

// A few elements of what all_reduce or reduce_scatter made of ones.
bool IsRight(Rank& rank, const Case& c, const uint8_t* out) {
  if (c.operation != Operation::kAllReduce && c.operation != Operation::kReduceScatter) return true;
  const uint64_t count = c.operation == Operation::kAllReduce
                             ? c.bytes / sizeof(Bfloat16)
                             : std::max<uint64_t>(1, c.bytes / sizeof(Bfloat16) / rank.n());
  const uint64_t some = std::min<uint64_t>(count, 4096);
  for (uint64_t at : {uint64_t{0}, (count - some) / 2, count - some}) {
    for (Bfloat16 x : rank.Read(reinterpret_cast<const Bfloat16*>(out) + at, some)) {
      if (static_cast<float>(x) != static_cast<float>(rank.n())) return false;
    }
  }
  return true;
}

// This rank's median, in µs.
double Measure(Rank& rank, const Comm& comm, const Case& c, uint32_t reps, uint8_t* in,
               uint8_t* out) {
  const uint32_t per = c.bytes <= (4 << 20) ? 50 : c.bytes <= (64 << 20) ? 10 : 3;
  backend::Graph graph;
  backend::Event begin;
  backend::Event end;
  Require(backend::Event::Create(&begin), "make an event");
  Require(backend::Event::Create(&end), "make an event");
  // An old result must not be taken for a new one.
  Require(backend::FillAsync(out, 0, c.bytes, rank.stream), "clear");
  Require(rank.stream.Synchronize(), "clear");
  rank.HostBarrier();
  Require(Start(rank, comm, c, in, out), "start");
  Require(rank.stream.Synchronize(), "synchronize");
  Require(backend::BeginCapture(rank.stream), "begin a capture");
  for (uint32_t k = 0; k < per; ++k) Require(Start(rank, comm, c, in, out), "capture");
  Require(backend::EndCapture(rank.stream, &graph), "end a capture");
  std::vector<double> us;
  for (uint32_t k = 0; k < reps + 2; ++k) {
    rank.HostBarrier();
    Require(backend::Record(begin, rank.stream), "record");
    Require(backend::LaunchGraph(graph, rank.stream), "launch a graph");
    Require(backend::Record(end, rank.stream), "record");
    uint64_t ns = 0;
    Require(backend::ElapsedNanoseconds(begin, end, &ns), "take the time");
    if (k >= 2) us.push_back(static_cast<double>(ns) / 1000 / per);
  }
  Require(rank.stream.Synchronize(), "synchronize");
  Require(ccl::CheckError(comm), "check");
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
    Operation::kAllToAll,  Operation::kBroadcast, Operation::kReduce,
    Operation::kGather,    Operation::kScatter,   Operation::kBarrier};

std::vector<Variant> VariantsOf(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return {Variant::kPackets,    Variant::kDirect,   Variant::kTwoShot,   Variant::kPipeline,
              Variant::kTwoPackets, Variant::kTwoPhase, Variant::kCopyEngine};
    case Operation::kReduceScatter:
      return {Variant::kPackets, Variant::kDirect, Variant::kPipeline};
    case Operation::kBroadcast:
      return {Variant::kPackets, Variant::kDirect, Variant::kTwoShot};
    case Operation::kReduce:
      return {Variant::kPackets, Variant::kTwoShot};
    case Operation::kBarrier:
      return {Variant::kAuto};
    case Operation::kAllGather:
    case Operation::kAllToAll:
      return {Variant::kPackets, Variant::kDirect, Variant::kCopyEngine};
    default:
      return {Variant::kPackets, Variant::kDirect};
  }
}

// Not worth the time: packets of megabytes.
bool Sensible(const Case& c, uint32_t n) {
  if (c.variant == Variant::kPackets) return c.bytes <= (n <= 2 ? 1 << 20 : 512 << 10);
  if (c.variant == Variant::kDirect && c.operation == Operation::kAllReduce) {
    return c.bytes <= (4 << 20);
  }
  if (c.variant == Variant::kTwoPackets) return c.bytes <= (4 << 20);
  if (c.variant == Variant::kCopyEngine) return c.bytes >= (4 << 20);
  if (c.variant == Variant::kPipeline || c.variant == Variant::kTwoPhase) {
    return c.bytes >= (1 << 20);
  }
  return true;
}

// As in the source of a table.
const char* RuleVariant(Variant variant) {
  switch (variant) {
    case Variant::kPackets:
      return "kPackets";
    case Variant::kTwoShot:
      return "kTwoShot";
    case Variant::kPipeline:
      return "kPipeline";
    case Variant::kTwoPackets:
      return "kTwoPackets";
    case Variant::kTwoPhase:
      return "kTwoPhase";
    case Variant::kCopyEngine:
      return "kCopyEngine";
    default:
      return "kDirect";
  }
}

const char* RuleOperation(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "kAllReduce";
    case Operation::kReduceScatter:
      return "kReduceScatter";
    case Operation::kReduce:
      return "kReduce";
    case Operation::kAllGather:
      return "kAllGather";
    case Operation::kAllToAll:
      return "kAllToAll";
    case Operation::kBroadcast:
      return "kBroadcast";
    case Operation::kGather:
      return "kGather";
    case Operation::kScatter:
      return "kScatter";
    default:
      return "kBarrier";
  }
}

int Main(int argc, char** argv) {
  Options options;
  uint64_t min = 1 << 10;
  uint64_t max = backend::MultiprocessorCount() < 32 ? 1 << 20 : 1 << 30;
  bool all_variants = false;
  std::vector<std::string> variants;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] { return std::string(++i < argc ? argv[i] : ""); };
    if (flag == "--ranks") {
      options.ranks = static_cast<uint32_t>(std::stoul(value()));
    } else if (flag == "--ops") {
      for (const std::string& name : Split(value())) {
        for (Operation op : kOperations) {
          if (name == ccl::OperationName(op)) options.ops.push_back(op);
        }
      }
    } else if (flag == "--min") {
      min = std::stoull(value());
    } else if (flag == "--max") {
      max = std::stoull(value());
    } else if (flag == "--sizes") {
      for (const std::string& size : Split(value())) options.sizes.push_back(std::stoull(size));
    } else if (flag == "--variants") {
      variants = Split(value());
      all_variants = variants.size() == 1 && variants[0] == "all";
    } else if (flag == "--blocks") {
      for (const std::string& n : Split(value())) {
        options.blocks.push_back(static_cast<uint32_t>(std::stoul(n)));
      }
    } else if (flag == "--threads") {
      for (const std::string& n : Split(value())) {
        options.threads.push_back(static_cast<uint32_t>(std::stoul(n)));
      }
    } else if (flag == "--reps") {
      options.reps = static_cast<uint32_t>(std::stoul(value()));
    } else if (flag == "--stage") {
      options.stage_bytes = std::stoull(value());
    } else if (flag == "--packet_blocks") {
      options.packet_blocks = static_cast<uint32_t>(std::stoul(value()));
    } else if (flag == "--rows") {
      options.rows = true;
    } else if (flag == "--tune") {
      options.tune = true;
      all_variants = true;
    } else if (flag == "--json") {
      options.json = true;
    } else {
      std::fprintf(stderr, "collective_sweep: unknown flag %s; see the top of its source\n",
                   flag.c_str());
      return 2;
    }
  }
  if (options.ranks == 0) options.ranks = std::max(2u, backend::DeviceCount());
  if (options.ops.empty()) {
    options.ops.assign(std::begin(kOperations), std::end(kOperations));
  }
  if (options.sizes.empty()) {
    for (uint64_t size = min; size <= max; size *= options.rows ? 2 : 4) {
      options.sizes.push_back(size);
    }
  }
  if (options.tune && options.blocks.empty()) options.blocks = {1, 2, 4, 8, 16, 24, 32, 64, 128};
  if (options.tune && options.threads.empty()) options.threads = {512};
  if (options.blocks.empty()) options.blocks = {0};
  if (options.threads.empty()) options.threads = {0};

  std::vector<Case> cases;
  for (Operation op : options.ops) {
    for (uint64_t bytes : options.sizes) {
      if (op == Operation::kBarrier && bytes != options.sizes.front()) continue;
      std::vector<Variant> of = {Variant::kAuto};
      if (all_variants) {
        of = VariantsOf(op);
      } else if (!variants.empty() && variants[0] != "auto") {
        of.clear();
        for (Variant v : VariantsOf(op)) {
          for (const std::string& name : variants) {
            if (name == ccl::VariantName(v)) of.push_back(v);
          }
        }
      }
      for (Variant variant : of) {
        for (uint32_t blocks : options.blocks) {
          for (uint32_t threads : options.threads) {
            const Case c = {op, bytes, variant, blocks, threads};
            if (variant == Variant::kAuto || Sensible(c, options.ranks)) cases.push_back(c);
          }
        }
      }
    }
  }
  const uint64_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  const uint64_t room = std::max<uint64_t>(largest, 4096);

  ccl::Config config;
  config.symmetric = true;
  config.stage_bytes = options.stage_bytes;
  config.packet_blocks = options.packet_blocks;

  World world(options.ranks, 2 * room + ccl::WorkspaceBytes(options.ranks, config) + (4 << 20));
  std::vector<Figure> figures(cases.size());
  std::mutex mu;
  world.Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    uint8_t* in = rank.New<uint8_t>(room);
    uint8_t* out = rank.New<uint8_t>(room);
    const std::vector<Bfloat16> ones(1 << 20, Bfloat16(1.0f));
    for (uint64_t at = 0; at < room; at += ones.size() * sizeof(Bfloat16)) {
      const uint64_t bytes = std::min<uint64_t>(room - at, ones.size() * sizeof(Bfloat16));
      Require(backend::CopyAsync(in + at, ones.data(), bytes, rank.stream), "fill");
    }
    Require(rank.stream.Synchronize(), "fill");
    rank.HostBarrier();
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      Comm mine = comm;
      mine.config.blocks = c.blocks;
      mine.config.block_threads = c.threads;
      const double us = Measure(rank, mine, c, options.reps, in, out);
      const bool right = IsRight(rank, c, out);
      std::lock_guard<std::mutex> lock(mu);
      Figure& figure = figures[i];
      if (rank.rank() == 0) {
        figure.what = c;
        figure.plan = c.operation == Operation::kBarrier
                          ? ccl::Plan{Variant::kAuto, 1, 0}
                          : ccl::Choose(mine, c.operation, c.bytes, c.variant);
      }
      figure.us = std::max(figure.us, us);
      figure.right = (figure.right || rank.rank() == 0 || figure.us == us) && right;
      if (!right) {
        std::fprintf(stderr, "collective_sweep: wrong result: %s %llu %s, %u blocks\n",
                     ccl::OperationName(c.operation), static_cast<unsigned long long>(c.bytes),
                     ccl::VariantName(c.variant), c.blocks);
        std::exit(1);
      }
    }
  });

  nlohmann::json rows = nlohmann::json::array();
  if (!options.rows && !options.tune && !options.json) {
    std::printf("%-14s %12s %-10s %7s %8s %12s %10s   %u ranks, %s\n", "operation", "bytes",
                "variant", "blocks", "threads", "us", "GB/s bus", options.ranks,
                backend::BackendName());
  }
  for (size_t i = 0; i < figures.size(); ++i) {
    const Figure& f = figures[i];
    const char* name = ccl::OperationName(f.what.operation);
    const unsigned long long bytes = f.what.bytes;
    const double n = options.ranks;
    const double factor =
        f.what.operation == Operation::kAllReduce ? 2 * (n - 1) / n
        : f.what.operation == Operation::kBroadcast || f.what.operation == Operation::kReduce
            ? 1
            : (n - 1) / n;
    const double gb_per_s = factor * static_cast<double>(bytes) / f.us / 1000;
    if (options.rows) {
      std::printf("%s %llu %.2f\n", name, bytes, f.us);
    } else if (options.json) {
      rows.push_back({{"operation", name},
                      {"bytes", bytes},
                      {"ranks", options.ranks},
                      {"variant", ccl::VariantName(f.plan.variant)},
                      {"blocks", f.plan.blocks},
                      {"threads", f.plan.threads},
                      {"us", f.us},
                      {"gb_per_s", gb_per_s}});
    } else if (!options.tune) {
      std::printf("%-14s %12llu %-10s %7u %8u %12.2f %10.1f\n", name, bytes,
                  ccl::VariantName(f.plan.variant), f.plan.blocks, f.plan.threads, f.us, gb_per_s);
    } else {
      // The best of the same operation and size; of nearly equal ones the one with fewer blocks.
      if (i != 0 && figures[i - 1].what.operation == f.what.operation &&
          figures[i - 1].what.bytes == f.what.bytes) {
        continue;
      }
      std::vector<Figure> same;
      for (const Figure& g : figures) {
        if (g.what.operation == f.what.operation && g.what.bytes == f.what.bytes) same.push_back(g);
      }
      double least = same[0].us;
      for (const Figure& g : same) least = std::min(least, g.us);
      const Figure* best = nullptr;
      for (const Figure& g : same) {
        if (g.us <= 1.02 * least && (best == nullptr || g.plan.blocks < best->plan.blocks)) {
          best = &g;
        }
      }
      std::printf("    {Operation::%s, %u, %llu, Variant::%s, %u, %u},  // %.2f us\n",
                  RuleOperation(f.what.operation), options.ranks, bytes,
                  RuleVariant(best->plan.variant), best->plan.blocks, best->plan.threads, best->us);
    }
  }
  if (options.json) std::printf("%s\n", rows.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
