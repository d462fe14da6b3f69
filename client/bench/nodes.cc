// Runs tune and collectives in a job whose ranks are on several nodes: with the Communicator of
// programs, under texts of rules. All ranks get the same times, so they decide the same.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/base/absl_status.h"
#include "client/bench/collectives.h"
#include "client/bench/commands.h"
#include "client/bench/rules.h"
#include "client/bench/sections.h"
#include "client/comm/rules.h"
#include "iris/ccl.h"

namespace iris::bench {
namespace {

using base::ToAbsl;
using ccl::Communicator;
using internal::NodesPieces;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kSizes[] = {kKiB,       4 * kKiB, 16 * kKiB, 64 * kKiB,
                               256 * kKiB, kMiB,     4 * kMiB,  16 * kMiB};
constexpr uint64_t kMostPieceBytes = kMiB;  // TCP carries larger ones more slowly
constexpr uint64_t kLeastPieceBytes = 256 * kKiB;
constexpr uint64_t kLargeBytes = 256 * kKiB;
constexpr uint64_t kLeastLeaderBytes = 128 * kKiB;
constexpr uint64_t kLeaderBytesOfAll = 2 * kMiB;  // of the inboxes from all nodes, to try
// Candidates are measured in so many turns, so that the load of the machine hits all of them.
constexpr uint32_t kTurns = 7;
constexpr absl::Duration kPatience = absl::Minutes(10);
constexpr char kLeaders[] = "nodes any any leaders_most_bytes any\n";
constexpr char kRails[] = "nodes any any leaders_most_bytes 1\n";

constexpr DType kType = DType::kBf16;
constexpr ccl::ReduceOp kSum = ccl::ReduceOp::kSum;

// A call of `count` elements of the larger buffer, or of `row` elements of each rank.
struct Buffers {
  uint8_t* in;
  uint8_t* out;
  uint64_t count;
  uint64_t row;
};
struct Operation {
  const char* name;
  Status (*call)(Communicator& comm, const Buffers& b, Stream& stream);
};
constexpr Operation kOperations[] = {
    {"all_reduce",
     [](Communicator& comm, const Buffers& b, Stream& stream) {
       return comm.AllReduce(b.in, b.out, b.count, kType, kSum, stream);
     }},
    {"all_gather",
     [](Communicator& comm, const Buffers& b, Stream& stream) {
       return comm.AllGather(b.in, b.out, b.row, kType, stream);
     }},
    {"reduce_scatter",
     [](Communicator& comm, const Buffers& b, Stream& stream) {
       return comm.ReduceScatter(b.in, b.out, b.row, kType, kSum, stream);
     }},
    {"all_to_all", [](Communicator& comm, const Buffers& b,
                      Stream& stream) { return comm.AllToAll(b.in, b.out, b.row, kType, stream); }},
    {"broadcast",
     [](Communicator& comm, const Buffers& b, Stream& stream) {
       return comm.Broadcast(b.in, b.out, b.count, kType, 0, stream);
     }},
    {"reduce",
     [](Communicator& comm, const Buffers& b, Stream& stream) {
       return comm.Reduce(b.in, b.out, b.count, kType, kSum, 0, stream);
     }},
    {"gather", [](Communicator& comm, const Buffers& b,
                  Stream& stream) { return comm.Gather(b.in, b.out, b.row, kType, 0, stream); }},
    {"scatter", [](Communicator& comm, const Buffers& b,
                   Stream& stream) { return comm.Scatter(b.in, b.out, b.row, kType, 0, stream); }},
    {kBarrier,
     [](Communicator& comm, const Buffers&, Stream& stream) { return comm.Barrier(stream); }}};

// Measures operations of all ranks of the job.
class Meter {
 public:
  static absl::StatusOr<std::unique_ptr<Meter>> Create(Rank& rank, uint64_t most_bytes,
                                                       uint32_t samples) {
    std::unique_ptr<Meter> made(new Meter(rank, samples));
    IRIS_ASSIGN_OR_RETURN(made->in_, rank.Allocate(most_bytes));
    IRIS_ASSIGN_OR_RETURN(made->out_, rank.Allocate(most_bytes));
    IRIS_ASSIGN_OR_RETURN(made->stream_, ToAbsl(Stream::Create(*rank.context())));
    return made;
  }

  struct Figure {
    std::string operation;
    uint64_t bytes = 0;
    // Under each text: the median of the slowest rank's times, and the median of its share of the
    // time of a turn. Load that lasts for a turn changes times, and not shares.
    std::vector<double> us;
    std::vector<double> share;
  };
  // Measures each operation and size under each text of rules. With `skip_slow`, a text that took
  // several times as long as the best has infinite figures for larger sizes. Collective.
  absl::StatusOr<std::vector<Figure>> Measure(const Names& texts, const Names& operations,
                                              const std::vector<uint64_t>& sizes, bool skip_slow) {
    std::vector<Communicator> comms;
    for (const std::string& text : texts) {
      ccl::CommunicatorOptions options;
      options.rules = text;
      IRIS_ASSIGN_OR_RETURN(Communicator comm,
                            ToAbsl(Communicator::Create(*rank_.context(), options)));
      comms.push_back(std::move(comm));
    }
    std::vector<Figure> figures;
    for (const Operation& operation : kOperations) {
      if (!Has(operations, operation.name)) continue;
      std::vector<bool> skipped(texts.size());
      for (const uint64_t bytes :
           operation.name == std::string(kBarrier) ? std::vector<uint64_t>{0} : sizes) {
        IRIS_ASSIGN_OR_RETURN(Figure figure, MeasureOne(operation, bytes, skipped, &comms));
        const double best = *std::min_element(figure.share.begin(), figure.share.end());
        for (size_t i = 0; skip_slow && bytes >= kLargeBytes && i < skipped.size(); ++i) {
          skipped[i] = figure.share[i] > 4 * best;
        }
        figures.push_back(std::move(figure));
      }
    }
    for (Communicator& comm : comms) {
      if (Status status = comm.Destroy(); !status.ok()) return ToAbsl(status);
    }
    return figures;
  }

 private:
  Meter(Rank& rank, uint32_t samples) : rank_(rank), samples_(samples) {}

  absl::StatusOr<Figure> MeasureOne(const Operation& operation, uint64_t bytes,
                                    const std::vector<bool>& skipped,
                                    std::vector<Communicator>* comms) {
    const uint64_t count = std::max<uint64_t>(bytes / kElementBytes, 1);
    const Buffers buffers = {in_, out_, count, std::max<uint64_t>(count / rank_.n_ranks(), 1)};
    const uint32_t calls = bytes <= 64 * kKiB ? 10 : bytes <= kMiB ? 4 : 1;
    std::vector<std::vector<double>> ns(comms->size()), shares(comms->size());
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      std::vector<double> medians(comms->size());
      for (size_t i = 0; i < comms->size(); ++i) {
        if (skipped[i]) continue;
        Communicator& comm = (*comms)[i];
        IRIS_ASSIGN_OR_RETURN(const auto mine, TimeOnStream(rank_, samples_, &comm, stream_, [&] {
                                for (uint32_t k = 1; k < calls; ++k) {
                                  IRIS_RETURN_IF_ERROR(operation.call(comm, buffers, stream_));
                                }
                                return operation.call(comm, buffers, stream_);
                              }));
        IRIS_ASSIGN_OR_RETURN(const auto slowest, SlowestSamples(rank_, mine));
        ns[i].insert(ns[i].end(), slowest.begin(), slowest.end());
        medians[i] = SpreadOf(slowest).p50;
      }
      const double whole = std::accumulate(medians.begin(), medians.end(), 0.0);
      for (size_t i = 0; i < comms->size(); ++i) shares[i].push_back(medians[i] / whole);
    }
    Figure figure = {operation.name, bytes, {}, {}};
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < comms->size(); ++i) {
      figure.us.push_back(skipped[i] ? kInfinite : SpreadOf(ns[i]).p50 / 1e3 / calls);
      figure.share.push_back(skipped[i] ? kInfinite : SpreadOf(shares[i]).p50);
    }
    return figure;
  }

  static constexpr uint64_t kElementBytes = 2;
  Rank& rank_;
  const uint32_t samples_;
  uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  Stream stream_;
};

// Returns the number of nodes of the job; those that map each other's memory count as one.
// kFailedPrecondition if there is one, or if they have different numbers of ranks. Collective.
absl::StatusOr<uint32_t> CountNodes(Rank& rank) {
  uint32_t first = 0;
  while (!rank.Reaches(first)) ++first;
  IRIS_ASSIGN_OR_RETURN(const auto firsts, rank.AllGather({static_cast<double>(first)}));
  std::map<double, uint32_t> sizes;
  for (const std::vector<double>& of_rank : firsts) ++sizes[of_rank[0]];
  if (sizes.size() < 2) {
    return absl::FailedPreconditionError(
        "the nodes of this job map each other's memory, so its collectives run as on one node: "
        "start this once, on one of them, without a launcher");
  }
  for (const auto& [node, size] : sizes) {
    if (size == sizes.begin()->second) continue;
    return absl::FailedPreconditionError(
        "the nodes have different numbers of ranks, and then all calls go by leaders: start as "
        "many ranks on each");
  }
  return static_cast<uint32_t>(sizes.size());
}

// Returns the heap of each rank: for buffers, and so that 1/16 of it, which pieces of a workspace
// take at most, has room for those to try. Nothing in which ranks may differ decides.
uint64_t HeapBytes(uint64_t most_bytes) {
  return 64 * kMiB + 4 * most_bytes + 16 * NodesPieces(2) * std::min(most_bytes, kMostPieceBytes);
}

// Returns lines of the best settings. Collective.
absl::StatusOr<Names> TuneNodes(Meter& meter, uint32_t n_nodes, uint32_t n_local,
                                const Names& operations, const std::vector<uint64_t>& sizes,
                                BenchReport* report) {
  Names lines;
  const auto add = [&lines, n_nodes](const std::string& operation, const char* setting,
                                     uint64_t value) {
    lines.push_back(
        absl::StrFormat("nodes %3u %-14s %-18s %s", n_nodes, operation, setting, SizeWord(value)));
  };
  // The settings of rails, by calls that are not small.
  std::vector<uint64_t> large;
  for (const uint64_t bytes : sizes) {
    if (bytes >= kLargeBytes || bytes == sizes.back()) large.push_back(bytes);
  }
  std::string rails = kRails;
  const auto pick = [&](const char* setting, const std::vector<uint64_t>& values,
                        const Names& by) -> absl::Status {
    Names texts;
    for (const uint64_t value : values) {
      texts.push_back(
          value == 0 ? rails : absl::StrCat(rails, "nodes any any ", setting, " ", value, "\n"));
    }
    if (texts.size() < 2) return absl::OkStatus();
    IRIS_ASSIGN_OR_RETURN(const auto figures, meter.Measure(texts, by, large, /*skip_slow=*/true));
    std::vector<std::vector<double>> shares;
    for (const Meter::Figure& figure : figures) shares.push_back(figure.share);
    const size_t best = BestCandidate(shares);
    if (values[best] != 0) add(kAny, setting, values[best]);
    rails = texts[best];
    return absl::OkStatus();
  };
  // The default, 0, comes first, so that others are taken if they are clearly better.
  std::vector<uint64_t> pieces = {0};
  const uint64_t most_piece_bytes =
      std::min(sizes.back(), HeapBytes(sizes.back()) / 16 / NodesPieces(n_nodes));
  for (uint64_t bytes = kMostPieceBytes / 2; bytes >= kLeastPieceBytes; bytes /= 2) {
    if (bytes <= most_piece_bytes) pieces.push_back(bytes);
  }
  const std::vector<uint64_t> blocks =
      Device::Emulated() ? std::vector<uint64_t>{0, 1} : std::vector<uint64_t>{0, 16, 8};
  absl::Status status = pick("piece_bytes", pieces, operations);
  if (status.ok()) status = pick("blocks", blocks, operations);
  if (status.ok() && n_nodes > 2 && Has(operations, "all_reduce")) {
    status = pick("direct_nodes", {n_nodes - 1, n_nodes}, {"all_reduce"});
  }
  if (!status.ok()) return status;
  // The sizes up to which leaders are faster, where their room holds a whole call.
  const uint64_t most_leader_bytes =
      std::max(kLeaderBytesOfAll / n_nodes / 4096 * 4096, kLeastLeaderBytes);
  const std::string leaders =
      absl::StrCat(kLeaders, "nodes any any leader_bytes ", most_leader_bytes, "\n");
  IRIS_ASSIGN_OR_RETURN(const auto figures,
                        meter.Measure({leaders, rails}, operations, sizes, /*skip_slow=*/true));
  Table table("paths", "us by leaders and by rails; bytes of the larger of in and out",
              {{"operation"}, {"bytes"}, {"leaders"}, {"rails"}});
  uint64_t needed_bytes = kLeastLeaderBytes;
  for (const std::string& operation : operations) {
    std::vector<PathFigure> paths;
    for (const Meter::Figure& figure : figures) {
      if (figure.operation != operation) continue;
      paths.push_back({figure.bytes, figure.share[0], figure.share[1]});
      const auto cell = [&](size_t i) { return CellIf(std::isfinite(figure.us[i]), figure.us[i]); };
      table.Add({operation, figure.bytes, cell(0), cell(1)});
    }
    const uint64_t most = LeadersMostBytes(paths);
    add(operation, "leaders_most_bytes", most);
    needed_bytes = std::max(needed_bytes, operation == "all_to_all" ? most * n_local : most);
  }
  report->Add(std::move(table));
  add(kAny, "leader_bytes", std::min((needed_bytes + 255) / 256 * 256, most_leader_bytes));
  return lines;
}

absl::Status CheckOptions(const std::string& command, const AloneSettings& settings) {
  for (const auto& [given, option] : {std::pair{!settings.rank_counts.empty(), "--rank-counts"},
                                      {!settings.shapes.empty(), "--shapes"},
                                      {!settings.variants.empty(), "--variants"},
                                      {!settings.blocks.empty(), "--blocks"},
                                      {!settings.threads.empty(), "--threads"},
                                      {!settings.unrolls.empty(), "--unrolls"},
                                      {settings.stage_bytes != 0, "--stage"},
                                      {settings.packet_blocks != 0, "--packet-blocks"},
                                      {settings.trace != "none", "--trace"}}) {
    if (!given) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        command, " ", option, " is for one node: leave it out in a job of several nodes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOnNodes(const std::string& command, const AloneSettings& settings,
                        const Names& operations, BenchReport* report) {
  if (absl::Status status = CheckOptions(command, settings); !status.ok()) return status;
  for (const std::string& name : operations) {
    if (!Has(CollectiveOperations(), name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ops: ", name,
                       " runs on several nodes as a GEMM and a collective, and is "
                       "tuned on one node: leave it out"));
    }
  }
  IRIS_ASSIGN_OR_RETURN(const std::string rules, ReadRules(settings.rules_path));
  const std::set<uint64_t> wanted(settings.sizes.begin(), settings.sizes.end());
  std::vector<uint64_t> sizes(wanted.begin(), wanted.end());
  if (sizes.empty()) sizes.assign(std::begin(kSizes), std::end(kSizes));
  IRIS_ASSIGN_OR_RETURN(const auto rank, JoinAsProcess(HeapBytes(sizes.back()), kPatience));
  IRIS_ASSIGN_OR_RETURN(const uint32_t n_nodes, CountNodes(*rank));
  report->Fact("ranks", rank->n_ranks());
  report->Fact("nodes", n_nodes);
  report->Fact("samples", kTurns * settings.samples);
  IRIS_ASSIGN_OR_RETURN(const auto meter, Meter::Create(*rank, sizes.back(), settings.samples));
  std::string text;
  if (command == kTune) {
    IRIS_ASSIGN_OR_RETURN(const Names lines, TuneNodes(*meter, n_nodes, rank->n_ranks() / n_nodes,
                                                       operations, sizes, report));
    text = absl::StrCat(Comments(report->Text()),
                        "#\n# nodes  up to  operation  setting  value: the first that fits\n",
                        absl::StrJoin(lines, "\n"), "\n");
    if (absl::Status status = CheckRules(text); !status.ok()) {
      return absl::InternalError(absl::StrCat("tune made no table: ", status.message()));
    }
  } else {
    const Names texts = rules.empty() ? Names{""} : Names{rules, ""};
    IRIS_ASSIGN_OR_RETURN(const auto figures,
                          meter->Measure(texts, operations, sizes, /*skip_slow=*/false));
    Table table(kCollectives, "us of collectives in bf16; bytes of the larger of in and out",
                {{"operation"},
                 {"ranks"},
                 {"bytes"},
                 {"us", 2},
                 {"without rules", 2},
                 {"without/with", 2}});
    for (const Meter::Figure& f : figures) {
      table.Add({f.operation, rank->n_ranks(), CellIf(f.operation != kBarrier, f.bytes), f.us[0],
                 CellIf(!rules.empty(), f.us.back()),
                 CellIf(!rules.empty(), f.share.back() / f.share[0])});
    }
    table.Note(
        "Medians of the slowest rank's times. With and without rules take turns, and the ratio is "
        "of the median shares of a turn.");
    report->Add(std::move(table));
    text = settings.json ? report->Json() : report->Text();
  }
  absl::Status status = rank->rank() == 0 ? WriteText(text, settings.output) : absl::OkStatus();
  absl::Status met = rank->Barrier();
  return status.ok() ? met : status;
}

}  // namespace iris::bench
