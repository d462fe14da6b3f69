// 06: the bandwidth between all pairs of ranks, by loads and by stores of kernels.
//
//   iris-run -n 4 -- bazel-bin/examples/06_bandwidth_matrix load|store|all_load|all_store [MiB]
//
//   load       kernel on rank r:    out of r  <== Get ==  values of p      one pair (r, p) after
//   store      kernel on rank r:    values of r == Put ==> out of p        the other
//
//   all_load   all ranks at once, each from all others: values of p ==> part p of r's out
//   all_store  all ranks at once, each to all others:   values of r ==> part r of p's out
//
// What to see: the same call moves data within a rank and between ranks, so the matrix shows what
// the way between two devices is worth. Its rows are the ranks whose kernels run, its columns are
// those whose heaps they use. The figure is the least between two ranks. On the diagonal, and where
// ranks share a device, one memory is read and written: it moves twice what the figure says.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "examples/flags.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

constexpr uint32_t kRepeats = 5;

// What a kernel moves: `count` words between this rank and each of so many peers.
struct Move {
  bool store;
  uint32_t first_peer, n_peers;
  uint64_t count;
  uint64_t* out;           // [ranks, count]: row p has the values of rank p; symmetric
  const uint64_t* values;  // [count], symmetric
};

IRIS_KERNEL void MoveWords(iris::DeviceContext ctx, Move move) {
  const iris::Share mine =  // this block's share of the words
      iris::ShareOf(move.count, iris::backend::GridSize(), iris::backend::BlockIndex());
  for (uint32_t i = 0; i < move.n_peers; ++i) {
    const uint32_t peer = (move.first_peer + i) % ctx.n_ranks;
    const uint64_t from = move.store ? ctx.rank : peer;
    uint64_t* const to = move.out + from * move.count + mine.begin;
    if (move.store) {
      iris::Put(ctx, peer, to, move.values + mine.begin, mine.count, iris::Block{});
    } else {
      iris::Get(ctx, peer, to, move.values + mine.begin, mine.count, iris::Block{});
    }
  }
}

uint64_t Value(uint32_t rank, uint64_t i) { return (uint64_t{rank} + 1) << 40 | i; }

// Waits for all, then compares the values of rank `from` in this rank's `out`.
iris::Status Check(iris::Stream& stream, const Move& move, uint32_t from) {
  uint64_t* const out = move.out + from * move.count;
  IRIS_ASSIGN_OR_RETURN(const auto got, stream.Read(out, move.count));
  IRIS_RETURN_IF_ERROR(stream.Fill(out, 0, move.count * 8));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  for (uint64_t i = 0; i < move.count; ++i) {
    if (got[i] == Value(from, i)) continue;
    return {iris::StatusCode::kInternal,
            "word " + std::to_string(i) + " of rank " + std::to_string(from) + " is wrong"};
  }
  return iris::OkStatus();
}

// The best time of some launches, in nanoseconds.
iris::StatusOr<double> Measure(const iris::Context& context, iris::Stream& stream,
                               const Move& move) {
  IRIS_ASSIGN_OR_RETURN(iris::Event start, iris::Event::Create(context));
  IRIS_ASSIGN_OR_RETURN(iris::Event end, iris::Event::Create(context));
  const iris::LaunchConfig all = {2 * iris::backend::MultiprocessorCount(), 512};
  double best = 1e18;
  for (uint32_t repeat = 0; repeat < kRepeats; ++repeat) {
    IRIS_RETURN_IF_ERROR(start.Record(stream));
    IRIS_RETURN_IF_ERROR(iris::Launch(all, stream, MoveWords, context.device_context(), move));
    IRIS_RETURN_IF_ERROR(end.Record(stream));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    IRIS_ASSIGN_OR_RETURN(const std::chrono::nanoseconds took, end.Since(start));
    best = std::min(best, static_cast<double>(std::max<int64_t>(took.count(), 1)));
  }
  return best;
}

iris::Status Run(const std::string& mode, uint64_t bytes) {
  IRIS_ASSIGN_OR_RETURN(
      iris::Context context,
      iris::Context::Create({.heap_bytes = 16 << 20, .max_heap_bytes = 66 * bytes + (64 << 20)}));
  const uint32_t rank = context.rank(), n_ranks = context.n_ranks();
  IRIS_RETURN_IF_ERROR(context.Grow((n_ranks + 1) * bytes));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto values, context.Allocate<uint64_t>(bytes / 8, "values"));
  IRIS_ASSIGN_OR_RETURN(const auto out, context.Allocate<uint64_t>(n_ranks * (bytes / 8), "out"));
  std::vector<uint64_t> filled(bytes / 8);
  for (uint64_t i = 0; i < filled.size(); ++i) filled[i] = Value(rank, i);
  IRIS_RETURN_IF_ERROR(stream.Copy(values, filled.data(), bytes));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());

  const bool store = mode == "store" || mode == "all_store", at_once = mode[0] == 'a';
  const uint32_t others = n_ranks > 1 ? n_ranks - 1 : 1;  // one rank has itself alone
  double least = 1e18;
  const char* const shape = at_once ? "by rank" : "[rank, heap]";
  if (rank == 0) std::printf("GB/s of %s, %s\n", mode.c_str(), shape);
  for (uint32_t r = 0; r < (at_once ? 1 : n_ranks); ++r) {
    for (uint32_t p = 0; p < (at_once ? 1 : n_ranks); ++p) {
      const uint32_t first = at_once ? (rank + 1) % n_ranks : p, peers = at_once ? others : 1;
      const Move move = {store, first, peers, bytes / 8, out.get(), values.get()};
      double ns = 1;
      if (at_once || rank == r) {
        IRIS_ASSIGN_OR_RETURN(ns, Measure(context, stream, move));
      }
      IRIS_RETURN_IF_ERROR(context.Barrier());  // all is there
      for (uint32_t from = 0; from < n_ranks; ++from) {
        const bool came = at_once ? from != rank || n_ranks == 1 : from == (store ? r : p);
        if (came && (at_once || rank == (store ? p : r))) {
          IRIS_RETURN_IF_ERROR(Check(stream, move, from));
        }
      }
      for (uint32_t i = at_once ? 0 : r; i < (at_once ? n_ranks : r + 1); ++i) {
        IRIS_ASSIGN_OR_RETURN(const double took, context.BroadcastValue(ns, i));
        const double rate = static_cast<double>(move.n_peers * bytes) / took;
        if (at_once || r != p || n_ranks == 1) least = std::min(least, rate);
        if (rank == 0) std::printf("%10.2f", rate);
      }
    }
    if (rank == 0) std::printf("\n");
  }
  if (rank == 0) std::printf("result ok figure %.2f GB/s\n", least);
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string mode = argc > 1 ? argv[1] : "";
  const uint32_t mib = example::Number(argc, argv, 2, 1, 4096);
  const bool known = mode == "load" || mode == "store" || mode == "all_load" || mode == "all_store";
  example::Usage(argc, argv, !known || mib == 0, 2,
                 "load|store|all_load|all_store [MiB], a whole number from 1 to 4096; else 1");
  const iris::Status status = Run(mode, uint64_t{mib} << 20);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
