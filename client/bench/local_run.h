// LocalRun runs the measurements of collectives and matmul for one rank, a thread of this process.
// After a failure of any rank it only takes part in barriers, because no rank may miss one.
//
// Used by the thread of its rank only. Borrows the arguments of its constructor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "device/local/world.h"
#include "iris/backend/numeric.h"

namespace iris::bench {

inline constexpr uint32_t kWarmups = 2;
inline constexpr uint64_t kElementBytes = sizeof(Bfloat16);

// The first failure of any rank.
struct Failure {
  std::atomic<bool> any{false};
  std::mutex mu;
  absl::Status status;
};

class LocalRun {
 public:
  LocalRun(local::World* world, local::Rank* rank, Failure* failure, std::string context)
      : rank_(*rank), failure_(*failure), context_(std::move(context)), world_(*world) {}
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

 protected:
  // Calls f unless a rank has failed. A failure is recorded as "rank 3 cannot" with `what`.
  template <typename F>
  void Do(const char* what, const F& f) {
    if (failure_.any.load()) return;
    if (const Result result = f(); !result.ok()) Fail(what, result);
  }

  void Fail(const char* what, const Result& result) {
    {
      std::lock_guard<std::mutex> lock(failure_.mu);
      if (failure_.any.exchange(true)) return;
      failure_.status.Update(absl::InternalError(
          absl::StrCat(context_, ": rank ", rank_.rank(), " cannot ", what, ": ", result.what)));
    }
    world_.Abort();  // ends waits for this rank in kernels
  }

  void Synchronize() {
    Do("synchronize", [&] { return rank_.stream.Synchronize(); });
  }

  void FillWithOnes(uint8_t* to, uint64_t all_bytes) {
    const std::vector<Bfloat16> ones(1 << 20, Bfloat16(1.0f));
    for (uint64_t at = 0; at < all_bytes; at += ones.size() * kElementBytes) {
      const uint64_t bytes = std::min<uint64_t>(all_bytes - at, ones.size() * kElementBytes);
      Do("fill", [&] { return backend::CopyAsync(to + at, ones.data(), bytes, rank_.stream); });
    }
    Synchronize();
  }

  // Clears an output, so that an old result is not taken for a new one.
  void Clear(uint8_t* out, uint64_t bytes) {
    Do("clear", [&] { return backend::FillAsync(out, 0, bytes, rank_.stream); });
    Synchronize();
  }

  // Checks both ends and the middle of an output. `tolerance` is relative to `wanted`.
  Result CheckOut(const uint8_t* out, uint64_t count, float wanted, float tolerance) {
    const uint64_t some = std::min<uint64_t>(count, 4096);
    std::vector<Bfloat16> values(some);
    if (some == 0) return {};
    for (uint64_t at : {uint64_t{0}, (count - some) / 2, count - some}) {
      const Result result =
          rank_.ReadBytes(values.data(), out + at * kElementBytes, some * kElementBytes);
      if (!result.ok()) return result;
      for (const Bfloat16 x : values) {
        const float off = static_cast<float>(x) / wanted - 1;
        if (off > tolerance || off < -tolerance) {
          return {StatusCode::kInternal, "the result is wrong"};
        }
      }
    }
    return {};
  }

  template <typename F>
  void Capture(uint64_t n, backend::Graph* graph, const F& start) {
    bool capturing = false;
    Do("begin a capture", [&] {
      const Result result = backend::BeginCapture(rank_.stream);
      capturing = result.ok();
      return result;
    });
    for (uint64_t k = 0; k < n; ++k) Do("capture", start);
    if (!capturing) return;
    const Result result = backend::EndCapture(rank_.stream, graph);
    Do("end a capture", [&] { return result; });
  }

  // Returns the time, in µs, of the work that `put` puts on the stream. Ranks begin together.
  template <typename F>
  double Time(const F& put) {
    if (!has_events_) {
      Do("make an event", [&] { return backend::Event::Create(&begin_); });
      Do("make an event", [&] { return backend::Event::Create(&end_); });
      has_events_ = true;
    }
    rank_.HostBarrier();
    Do("record", [&] { return backend::Record(begin_, rank_.stream); });
    put();
    Do("record", [&] { return backend::Record(end_, rank_.stream); });
    uint64_t ns = 0;
    Do("take the time", [&] { return backend::ElapsedNanoseconds(begin_, end_, &ns); });
    return static_cast<double>(ns) / 1000;
  }

  double TimeGraph(backend::Graph& graph) {
    return Time(
        [&] { Do("launch a graph", [&] { return backend::LaunchGraph(graph, rank_.stream); }); });
  }

  local::Rank& rank_;
  Failure& failure_;
  std::string context_;  // begins the text of a failure

 private:
  local::World& world_;
  backend::Event begin_, end_;
  bool has_events_ = false;
};

}  // namespace iris::bench
