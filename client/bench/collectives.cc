#include "client/bench/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "client/bench/local_run.h"
#include "client/bench/report.h"
#include "client/comm/rules.h"
#include "iris/collective/collective.h"
#include "iris/trace_area.h"

namespace iris::bench {
namespace {

using ccl::Comm;
using ccl::Operation;
using ccl::Variant;
using local::World;

// The use of buffers by an operation. A row is the part of one rank.
struct Traits {
  Operation operation;
  bool whole = false;     // a call counts all elements, rather than those of a row
  bool sums = false;      // the result has sums
  bool all_rows = false;  // the result has a row of each rank, if it is not whole
  bool at_root = false;   // only rank 0 has a result
};
constexpr Traits kOperations[] = {{Operation::kAllReduce, true, true},
                                  {Operation::kAllGather, false, false, true},
                                  {Operation::kReduceScatter, false, true},
                                  {Operation::kAllToAll, false, false, true},
                                  {Operation::kBroadcast, true},
                                  {Operation::kReduce, true, true, false, true},
                                  {Operation::kGather, false, false, true, true},
                                  {Operation::kScatter},
                                  {Operation::kBarrier}};

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kLeastRoomBytes = 4096;

constexpr bool Emulated() { return backend::Traits::kEmulated; }

struct Case {
  CollectiveCase what;
  Traits traits = {Operation::kNone};
  Variant variant = Variant::kAuto;

  uint64_t count() const { return std::max<uint64_t>(1, what.bytes / kElementBytes); }
  // Elements of one rank's row.
  uint64_t row(uint32_t n) const { return std::max<uint64_t>(1, count() / n); }
};

absl::StatusOr<Case> Resolve(const CollectiveCase& what) {
  Case c;
  c.what = what;
  for (const Traits& traits : kOperations) {
    if (what.operation == ccl::OperationName(traits.operation)) c.traits = traits;
  }
  if (c.traits.operation == Operation::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", what.operation, "\" is no operation such as all_reduce"));
  }
  c.variant = internal::VariantNamed(what.variant);
  if (what.variant != ccl::VariantName(Variant::kAuto) &&
      !ccl::HasVariant(c.traits.operation, c.variant)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what.operation, " has no variant \"", what.variant, "\""));
  }
  if (c.traits.operation != Operation::kBarrier &&
      (what.bytes < kElementBytes || what.bytes > kMaxCollectiveBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(what.operation, " of ", what.bytes,
                                                   " bytes: from ", kElementBytes,
                                                   " bytes to 64 GiB can be measured"));
  }
  return c;
}

// The call that is measured. A rule decides as it does for a user who leaves the variant to the
// table.
ccl::Shape ShapeOf(const Case& c, uint32_t n_ranks) {
  return {c.traits.operation, c.traits.whole ? c.count() : c.row(n_ranks), DType::kBf16,
          ccl::ReduceOp::kSum, c.what.as_rule ? Variant::kAuto : c.variant};
}

// Returns the number of elements of `out` that the operation writes at this rank.
uint64_t OutCount(const local::Rank& rank, const Case& c) {
  if (c.traits.operation == Operation::kBarrier || (c.traits.at_root && rank.rank() != 0)) return 0;
  if (c.traits.whole) return c.count();
  return c.row(rank.n_ranks()) * (c.traits.all_rows ? rank.n_ranks() : 1);
}

// Returns the events of a trace: 1 MiB as in jobs, or enough for all measurements if it is on.
constexpr uint32_t TraceEvents(bool on) {
  return on ? (backend::Traits::kEmulated ? 1 << 17 : 1 << 22) : 1 << 14;
}
constexpr uint64_t TraceBytes(bool on) { return TraceAreaBytes(TraceEvents(on)) + 4096; }

class RankRun : public LocalRun {
 public:
  RankRun(World* world, local::Rank* rank, Failure* failure)
      : LocalRun(world, rank, failure, "collectives") {}

  // Returns false, on all ranks alike, if nothing can be measured.
  bool Prepare(uint64_t room_bytes, const ccl::Config& config, const std::string& trace) {
    if (trace != "none") MakeTrace(trace == "on");
    // Not by Do, because NewComm is collective: all ranks call it, also after a failure.
    const Result made = rank_.NewComm(rank_.ctx.world, config, &comm_);
    if (!made.ok()) Fail("make a communicator", made);
    in_ = rank_.New<uint8_t>(room_bytes);
    out_ = rank_.New<uint8_t>(room_bytes);
    if (in_ == nullptr || out_ == nullptr) {
      Fail("allocate", {StatusCode::kInvalidArgument, "the heap has no more room"});
    }
    FillWithOnes(in_, room_bytes);
    rank_.HostBarrier();
    const bool good = !failure_.any.load();
    rank_.HostBarrier();
    return good;
  }

  // Makes the rank's trace, which has room for all measurements if it is on.
  void MakeTrace(bool on) {
    auto* const area = static_cast<TraceArea*>(
        static_cast<void*>(rank_.New<uint8_t>(TraceBytes(on), /*alignment_bytes=*/4096)));
    if (area == nullptr) {
      return Fail("allocate", {StatusCode::kInvalidArgument, "the heap has no room for a trace"});
    }
    TraceArea header = {};
    header.magic = TraceArea::kMagic;
    header.version = TraceArea::kVersion;
    header.event_bytes = sizeof(TraceEvent);
    header.capacity = TraceEvents(on);
    header.until_ns = on ? ~uint64_t{0} : 0;
    header.generation = 1;
    Do("make a trace", [&] { return rank_.WriteBytes(area, &header, sizeof(header)); });
    rank_.ctx.trace = area;
  }

  ccl::Plan PlanOf(const Case& c) { return ccl::Choose(CommFor(c), ShapeOf(c, rank_.n_ranks())); }

  struct Times {
    double us = 0;
    double host_us = 0;
  };
  Times Measure(const Case& c, uint32_t samples) {
    context_ = absl::StrCat(ccl::OperationName(c.traits.operation), " of ", c.what.bytes,
                            " bytes, variant ", ccl::VariantName(c.variant), ", ", c.what.blocks,
                            " blocks of ", c.what.threads, " threads, ", rank_.n_ranks(), " ranks");
    const Comm comm = CommFor(c);
    const uint32_t per = Emulated()                  ? 5
                         : c.what.bytes <= 4 * kMiB  ? 50
                         : c.what.bytes <= 64 * kMiB ? 10
                                                     : 3;
    const ccl::Call call = {ShapeOf(c, rank_.n_ranks()), in_, out_};
    const auto start = [&] { return ccl::Run(comm, call, rank_.stream); };
    Clear(out_, std::max(c.what.bytes, kLeastRoomBytes));
    rank_.HostBarrier();
    Do("start", start);
    Synchronize();
    backend::Graph graph;
    Capture(per, &graph, start);
    std::vector<double> us;
    for (uint32_t k = 0; k < samples + kWarmups; ++k) {
      const double took_us = TimeGraph(graph);
      if (k >= kWarmups) us.push_back(took_us / per);
    }
    std::vector<double> host_us;
    for (uint32_t k = 0; k < samples + kWarmups; ++k) {
      Synchronize();
      rank_.HostBarrier();
      const double spent_us = HostTime(start);
      if (k >= kWarmups) host_us.push_back(spent_us);
    }
    Synchronize();
    Do("check", [&] { return ccl::CheckError(comm_); });
    const float wanted = c.traits.sums ? static_cast<float>(rank_.n_ranks()) : 1.0f;
    Do("check", [&] { return CheckOut(out_, OutCount(rank_, c), wanted, /*tolerance=*/0); });
    return {SpreadOf(us).p50, SpreadOf(host_us).p50};
  }

 private:
  Comm CommFor(const Case& c) const {
    Comm comm = comm_;
    if (c.what.as_rule) {
      const ccl::Rule rule = {c.traits.operation, kMaxTeamRanks,  ccl::kAnyBytes, c.variant,
                              c.what.blocks,      c.what.threads, c.what.unroll};
      if (!ccl::UseRules(&rule, 1, &comm).ok()) std::abort();  // one always fits
    } else {
      comm.config.blocks = c.what.blocks;
      comm.config.block_threads = c.what.threads;
      comm.config.unroll = c.what.unroll;
    }
    return comm;
  }

  // Returns the µs of a call of `start`. The calls are so few that the device's queue has room.
  template <typename F>
  double HostTime(const F& start) {
    constexpr uint32_t kCalls = 16;
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t k = 0; k < kCalls; ++k) Do("start", start);
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    return spent.count() / kCalls;
  }

  Comm comm_;
  uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
};

// Returns the bytes that each link carries, relative to the larger of in and out.
double BusFactor(Operation operation, double n) {
  switch (operation) {
    case Operation::kBarrier:
      return 0;
    case Operation::kAllReduce:
      return 2 * (n - 1) / n;
    case Operation::kBroadcast:
    case Operation::kReduce:
      return 1;
    default:
      return (n - 1) / n;
  }
}

// Returns the rules of collectives, or none if the text has only lines of GEMMs.
absl::StatusOr<std::vector<ccl::Rule>> ParseTable(const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a table of rules is text, and here is a zero byte");
  }
  absl::StatusOr<internal::Rules> rules = internal::ParseRules(text, ccl::HasVariant);
  if (!rules.ok()) return rules.status();
  if (rules->collectives.empty() && rules->gemms.empty() && rules->nodes.empty()) {
    return absl::InvalidArgumentError("there is no rule");
  }
  return std::move(rules->collectives);
}

}  // namespace

uint32_t MostCollectiveRanks() {
  return Emulated() ? kMaxTeamRanks : std::min(backend::DeviceCount(), kMaxTeamRanks);
}

std::vector<std::string> CollectiveOperations() {
  std::vector<std::string> names;
  for (const Traits& traits : kOperations) {
    names.push_back(ccl::OperationName(traits.operation));
  }
  return names;
}

std::vector<std::string> CollectiveVariants(const std::string& operation) {
  std::vector<std::string> names;
  const Operation parsed = internal::OperationNamed(operation);
  for (uint32_t v = 0; v < ccl::kVariantCount; ++v) {
    const Variant variant = static_cast<Variant>(v);
    if (ccl::HasVariant(parsed, variant)) names.push_back(ccl::VariantName(variant));
  }
  return names;
}

bool IsUnrolled(const std::string& operation, const std::string& variant) {
  const Variant v = internal::VariantNamed(variant);
  switch (internal::OperationNamed(operation)) {
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
    case Operation::kReduce:
      return v == Variant::kDirect || v == Variant::kTwoShot || v == Variant::kTwoPhase ||
             v == Variant::kCopyEngine || v == Variant::kPush;
    case Operation::kAllGather:
    case Operation::kBroadcast:
      return v == Variant::kDirect || v == Variant::kTwoShot;
    default:
      return false;
  }
}

bool IsWorthMeasuring(const CollectiveCase& what, uint32_t ranks) {
  const absl::StatusOr<Case> c = Resolve(what);
  if (!c.ok()) return false;
  switch (c->variant) {
    case Variant::kPackets:
      return c->what.bytes <= (ranks <= 2 ? kMiB : 512 * kKiB);
    case Variant::kTwoPackets:
      return c->what.bytes <= 4 * kMiB;
    case Variant::kLines:
      return c->what.bytes <= (c->traits.operation == Operation::kAllReduce ? 4 : 16) * kMiB;
    case Variant::kTwoLines:
      return c->what.bytes <= 16 * kMiB;
    case Variant::kDirect:
      return c->traits.operation != Operation::kAllReduce || c->what.bytes <= 4 * kMiB;
    case Variant::kCopyEngine:
      return c->what.bytes >= 4 * kMiB;
    case Variant::kPush:
    case Variant::kTwoPhase:
    case Variant::kRing:
      return c->what.bytes >= kMiB;
    case Variant::kAtomic:
    case Variant::kSpinlock:  // every element by itself, twice through the links
      return c->what.bytes <= 16 * kMiB;
    default:
      return true;
  }
}

absl::StatusOr<std::string> RuleText(const CollectiveRule& rule) {
  const std::optional<std::string> line = internal::FormatRule(
      {internal::OperationNamed(rule.operation), rule.max_members, rule.max_bytes,
       internal::VariantNamed(rule.variant), rule.blocks, rule.threads, rule.unroll},
      ccl::HasVariant);
  if (line.has_value()) return *line;
  return absl::InvalidArgumentError(absl::StrCat(
      "no table can have the rule ", rule.operation, " ", rule.max_members, " ", rule.max_bytes,
      " ", rule.variant, " ", rule.blocks, " ", rule.threads, " ", rule.unroll));
}

absl::Status CheckRules(const std::string& text) { return ParseTable(text).status(); }

absl::StatusOr<std::vector<CollectiveFigure>> MeasureCollectives(
    const CollectiveOptions& options, const std::vector<CollectiveCase>& cases) {
  if (MostCollectiveRanks() < options.ranks || options.ranks == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.ranks, " ranks need a device each: this machine has ",
                     backend::DeviceCount(), " of backend ", backend::BackendName()));
  }
  if (options.samples == 0) return absl::InvalidArgumentError("at least one sample is needed");
  uint64_t room_bytes = kLeastRoomBytes;
  std::vector<Case> resolved;
  for (const CollectiveCase& what : cases) {
    const absl::StatusOr<Case> c = Resolve(what);
    if (!c.ok()) return c.status();
    room_bytes = std::max(room_bytes, c->what.bytes);
    resolved.push_back(*c);
  }
  std::vector<ccl::Rule> rules;
  ccl::Config config;
  config.symmetric = true;
  config.stage_bytes = options.stage_bytes;
  config.packet_blocks = options.packet_blocks;
  if (!options.rules.empty()) {
    absl::StatusOr<std::vector<ccl::Rule>> parsed = ParseTable(options.rules);
    if (!parsed.ok()) return parsed.status();
    rules.swap(*parsed);
    config.rules = rules.empty() ? nullptr : rules.data();
    config.n_rules = static_cast<uint32_t>(rules.size());
  }
  const uint64_t workspace_bytes = ccl::WorkspaceBytes(options.ranks, config);
  if (workspace_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("no workspace can have stages of ",
                                                   options.stage_bytes, " bytes and ",
                                                   options.packet_blocks, " blocks of packets"));
  }

  local::WorldOptions world_options;
  world_options.n_ranks = options.ranks;
  world_options.heap_bytes = 2 * room_bytes + workspace_bytes + 4 * kMiB;
  if (options.trace != "none") world_options.heap_bytes += TraceBytes(options.trace == "on");
  absl::StatusOr<std::unique_ptr<World>> made = World::Create(world_options);
  if (!made.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for a heap of ", world_options.heap_bytes, " bytes on each of ", options.ranks,
        " ranks, which the largest size needs: see --sizes (", made.status().message(), ")"));
  }
  World& world = **made;
  std::vector<CollectiveFigure> figures(cases.size());
  std::vector<bool> repeated(cases.size());
  std::mutex mu;
  Failure failure;
  const absl::Status ran = world.Run([&](local::Rank& rank) {
    RankRun run(&world, &rank, &failure);
    if (!run.Prepare(room_bytes, config, options.trace)) return;
    std::set<std::tuple<Operation, uint64_t, Variant, uint32_t, uint32_t, uint32_t>> seen;
    for (size_t i = 0; i < resolved.size(); ++i) {
      const Case& c = resolved[i];
      const ccl::Plan plan = run.PlanOf(c);  // the same on every rank
      const bool again =
          c.what.as_rule && !seen.emplace(c.traits.operation, c.what.bytes, plan.variant,
                                          plan.blocks, plan.threads, plan.unroll)
                                 .second;
      const auto times = again ? RankRun::Times() : run.Measure(c, options.samples);
      std::lock_guard<std::mutex> lock(mu);
      CollectiveFigure& figure = figures[i];
      figure.us = std::max(figure.us, times.us);
      figure.host_us = std::max(figure.host_us, times.host_us);
      if (rank.rank() != 0) continue;
      repeated[i] = again;
      figure.what = cases[i];
      figure.ranks = options.ranks;
      figure.variant = ccl::VariantName(plan.variant);
      figure.blocks = plan.blocks;
      figure.threads = plan.threads;
      figure.unroll = plan.unroll;
    }
  });
  if (!ran.ok()) return ran;
  if (failure.any.load()) return failure.status;
  std::vector<CollectiveFigure> measured;
  for (size_t i = 0; i < figures.size(); ++i) {
    if (repeated[i]) continue;
    CollectiveFigure& figure = figures[i];
    if (figure.us > 0) {
      figure.bus_gb_per_s = BusFactor(resolved[i].traits.operation, options.ranks) *
                            static_cast<double>(figure.what.bytes) / figure.us / 1000;
    }
    measured.push_back(figure);
  }
  return measured;
}

}  // namespace iris::bench
