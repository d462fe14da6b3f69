// What it costs to store what an input has changed: a job of 8 ranks allocates and frees, and of
// each allocation the input that decides it is measured. The journal lies in /dev/shm.
//
//   bazel run -c opt //tests/bench:journal_bench [-- ALLOCATIONS]
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/heap/ledger.h"
#include "server/job/clock.h"
#include "server/job/job_machine.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"
#include "tests/bench/report.h"

namespace iris::server {
namespace {

constexpr uint32_t kRanks = 8;
constexpr uint64_t kLive = 200;  // allocations of the job at a time

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "journal_bench: %s\n", what.c_str());
  std::_Exit(1);
}

class Bench {
 public:
  explicit Bench(const std::string& directory)
      : machine_(JobLimits(), Ledger({{"dev-0", 1ull << 40, 2 << 20, 0}})) {
    auto journal =
        Journal::Create(directory, {1, 1}, [this] { return MachineState::Encode(machine_); });
    if (!journal.ok()) Fail(journal.status().ToString());
    journal_ = *std::move(journal);
  }

  // The job is ready.
  void Join() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Do(SessionOpened{SessionId{rank + 1}, {.pid = 100 + rank, .party = {1000}, .gid = 1000}});
      JoinSpec spec;
      spec.job = "train";
      spec.rank = static_cast<int32_t>(rank);
      spec.n_ranks = kRanks;
      spec.heap_bytes = 64 << 20;
      spec.team_sync_bytes = 8 << 10;
      Do(JoinCall{SessionId{rank + 1}, NextCall(), spec});
    }
    for (const SegmentId id : std::exchange(to_create_, {})) {
      Do(SegmentCreated{id, absl::OkStatus()});
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Do(MappedCall{SessionId{rank + 1}, NextCall(), job_, 1, 0x400000000000, ""});
    }
  }

  // Every rank asks; the last one's call decides it, and is measured.
  void Allocate(uint64_t i) {
    AllocateOp op{.bytes = 4096, .name = absl::StrCat("layers.", i, ".mlp.weight")};
    op.tensor = {"bf16", {32, 64}};
    Ask(op);
    apply_us.push_back(apply_us_);
    encode_us.push_back(encode_us_);
    append_us.push_back(append_us_);
    change_bytes.push_back(static_cast<double>(change_.size()));
    live_.push_back(offset_);
    if (live_.size() <= kLive) return;
    const size_t victim = i * 7919 % live_.size();
    Ask(FreeOp{.offset_bytes = std::exchange(live_[victim], live_.back())});
    live_.pop_back();
  }

  // Reads it as the next irisd does.
  double ReadUs(const std::string& directory) {
    const auto begin = std::chrono::steady_clock::now();
    const auto stored = ReadJournal(directory);
    const double us = Since(begin);
    if (!stored.ok()) Fail(stored.status().ToString());
    if (MachineState::BytesOf(*stored->state) != MachineState::Encode(machine_))
      Fail("another state is read");
    return us;
  }

  std::vector<double> apply_us, encode_us, append_us, change_bytes, rewrite_us;
  uint64_t journal_bytes() const { return journal_->bytes(); }
  size_t state_bytes() const { return MachineState::Encode(machine_).size(); }

 private:
  static double Since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
  }
  CallId NextCall() { return CallId{next_call_++}; }

  void Ask(const Operation& op) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Do(OperateCall{
          SessionId{rank + 1}, NextCall(), {job_, kWorldTeam, k_, absl::ZeroDuration(), op}});
    }
    ++k_;
  }

  void Do(const Input& input) {
    const auto apply = std::chrono::steady_clock::now();
    const Effects effects = machine_.Apply(input, {clock_.Now(), clock_.Wall()});
    apply_us_ = Since(apply);
    const auto encode = std::chrono::steady_clock::now();
    change_.clear();
    MachineState::EncodeChange(machine_, &change_);
    encode_us_ = Since(encode);
    const uint64_t n_rewrites = journal_->n_rewrites();
    const auto append = std::chrono::steady_clock::now();
    const absl::Status stored = journal_->Append(change_);
    append_us_ = Since(append);
    if (!stored.ok()) Fail(stored.ToString());
    if (journal_->n_rewrites() != n_rewrites) rewrite_us.push_back(append_us_);
    for (const Effect& effect : effects) Learn(effect);
  }

  void Learn(const Effect& effect) {
    if (const auto* create = std::get_if<CreateSegment>(&effect)) to_create_.push_back(create->id);
    const auto* reply = std::get_if<Reply>(&effect);
    if (reply == nullptr) return;
    if (!reply->status.ok()) Fail(reply->status.ToString());
    if (const auto* joined = std::get_if<JoinResult>(&reply->result)) job_ = joined->job;
    if (const auto* outcome = std::get_if<Outcome>(&reply->result)) {
      if (!outcome->status.ok()) Fail(outcome->status.ToString());
      offset_ = outcome->result.offset_bytes;
    }
  }

  const SystemClock clock_;
  JobMachine machine_;
  std::unique_ptr<Journal> journal_;
  std::string change_;
  std::vector<SegmentId> to_create_;
  std::vector<uint64_t> live_;
  JobId job_;
  uint64_t offset_ = 0;  // of the last allocation
  uint64_t next_call_ = 1;
  uint64_t k_ = 0;
  double apply_us_ = 0, encode_us_ = 0, append_us_ = 0;  // of the last input
};

int Main(int argc, char** argv) {
  uint64_t n_allocations = 20000;
  if (argc > 1 && argv[1][0] != '-') n_allocations = std::strtoull(argv[1], nullptr, 10);
  char directory[] = "/dev/shm/iris-journal-bench-XXXXXX";
  if (mkdtemp(directory) == nullptr) Fail("no directory can be made in /dev/shm");
  {
    Bench bench(directory);
    bench.Join();
    for (uint64_t i = 0; i < n_allocations; ++i) bench.Allocate(i);
    bench::Report report("journal_bench", argc, argv);
    report.Add("decide an allocation", bench.apply_us, "us");
    report.Add("encode what it has changed", bench.encode_us, "us");
    report.Add("append it to the journal", bench.append_us, "us");
    report.Add("of that, where it is written anew", bench.rewrite_us, "us");
    report.Add("length of the change", bench.change_bytes, "bytes");
    report.AddValue("length of the state", static_cast<double>(bench.state_bytes()), "bytes");
    report.AddValue("length of the journal", static_cast<double>(bench.journal_bytes()), "bytes");
    report.AddValue("read it", bench.ReadUs(directory), "us");
    report.Print();
  }
  std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace
}  // namespace iris::server

int main(int argc, char** argv) { return iris::server::Main(argc, argv); }
