// The device protocols with ranks as threads of one process, for ThreadSanitizer. mutation_test.py
// builds this file once as it is and once for each mistake of device/iris/impl/mutation.h, and
// counts the reports.
//
//   protocols SCENARIO      barrier | put_signal_block | put_signal_warp | all_reduce | packets |
//                           lines | two_lines | push | push_scatter
//
// Exit code 0: every rank got the data that it had to get. 1: wrong data (a mistake may show that
// way as well). 2: usage. ThreadSanitizer's own exit code wins over 0.
//
// All heaps lie in one mapping, made once: ThreadSanitizer keeps its notes by virtual address, so
// that a second mapping of the same memory would hide every race.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce_direct.h"
#include "iris/collective/variants/lines.h"
#include "iris/collective/variants/packets.h"
#include "iris/collective/variants/push.h"
#include "iris/device.h"
#include "iris/rounds/layout.h"

namespace {

using iris::DeviceContext;
using iris::WaitResult;

constexpr uint32_t kRanks = 4;
constexpr uint32_t kBlocks = 2;
constexpr uint32_t kThreads = 48;  // the last warp is a partial one
constexpr uint32_t kRounds = 6;
constexpr uint64_t kStrideBytes = 1 << 20;
// A mistake may make a wait hopeless; there, nothing is learnt from waiting for long.
constexpr uint64_t kSecondNs = 1000ull * 1000 * 1000;
constexpr uint64_t kTimeoutNs =
    iris::impl::kMutation == iris::impl::Mutation::kNone ? 60 * kSecondNs : kSecondNs;

constexpr uint32_t kCount = 600;  // of an all-reduce

// One rank's heap. Every word that a round writes is written again in the next, so that both
// directions are tested: data read before it is there, and data overwritten before it was read.
struct Heap {
  iris::SyncArea sync;
  uint32_t board[kBlocks][kRanks][kThreads];      // barrier: [block][writer][thread]
  alignas(16) uint32_t inbox[kBlocks][kThreads];  // put_signal
  alignas(16) uint32_t outbox[kBlocks][kThreads];
  uint64_t full[kBlocks][kThreads];           // signals: data is there
  uint64_t empty[kBlocks][kThreads];          // signals: data has been read
  alignas(256) uint8_t workspace[128 << 10];  // of the collectives
  alignas(16) uint32_t x[kCount];
};
static_assert(sizeof(Heap) <= kStrideBytes);

IRIS_DEVICE uint32_t Word(uint32_t writer, uint32_t round, uint32_t thread) {
  return (round + 1) * 1000003u + writer * 1009u + thread;
}

IRIS_DEVICE void Note(uint32_t* wrong, bool right) {
  if (right) return;
  iris::backend::FetchOp<iris::AtomicOp::kAdd, iris::Scope::kDevice, iris::Order::kRelaxed>(wrong,
                                                                                            1u);
}

IRIS_DEVICE Heap* HeapOf(const DeviceContext& ctx, uint32_t rank) {
  return iris::AtOffset<Heap>(ctx, rank, 0);
}

// Each block writes to every rank, meets the others, reads what all have written to it, and meets
// them again. Each thread reads the words of other threads.
IRIS_KERNEL void BarrierKernel(DeviceContext ctx, uint32_t* wrong) {
  const uint32_t block = iris::backend::BlockIndex();
  const uint32_t thread = iris::backend::ThreadIndex();
  const uint32_t other = (thread + 7) % kThreads;
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      iris::backend::StorePlain(&HeapOf(ctx, rank)->board[block][ctx.rank][thread],
                                Word(ctx.rank, round, thread));
    }
    Note(wrong, iris::Barrier(ctx, ctx.world) == WaitResult::kOk);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Note(wrong, iris::backend::LoadPlain(&HeapOf(ctx, ctx.rank)->board[block][rank][other]) ==
                      Word(rank, round, other));
    }
    Note(wrong, iris::Barrier(ctx, ctx.world) == WaitResult::kOk);
  }
}

// Each rank sends to the next one, and may send again when that one has said that it has read.
template <typename Coop>
IRIS_DEVICE void PutSignalRounds(const DeviceContext& ctx, uint32_t first, uint32_t n, Coop coop,
                                 uint32_t* wrong) {
  const uint32_t block = iris::backend::BlockIndex();
  const uint32_t thread = iris::backend::ThreadIndex();
  const uint32_t next = (ctx.rank + 1) % kRanks;
  const uint32_t previous = (ctx.rank + kRanks - 1) % kRanks;
  const uint32_t other = first + (thread - first + 5) % n;
  Heap* mine = HeapOf(ctx, ctx.rank);
  for (uint32_t round = 0; round < kRounds; ++round) {
    mine->outbox[block][thread] = Word(ctx.rank, round, thread);
    // The copy gives each unit to whichever thread: what the set has written, the set must see.
    if constexpr (std::is_same_v<Coop, iris::Block>) {
      iris::backend::BlockSync();
    } else {
      iris::backend::WarpSync();
    }
    Note(wrong, iris::WaitUntil(ctx, &mine->empty[block][first], iris::Compare::kGe, round, coop) ==
                    WaitResult::kOk);
    // Two waits with nothing between them: the second one passes its answer where the first one
    // did.
    Note(wrong, iris::WaitUntil(ctx, &mine->full[block][first], iris::Compare::kGe, round, coop) ==
                    WaitResult::kOk);
    iris::PutSignal(ctx, next, &mine->inbox[block][first], &mine->outbox[block][first], n,
                    {&mine->full[block][first], round + 1}, coop);
    Note(wrong, iris::WaitUntil(ctx, &mine->full[block][first], iris::Compare::kGe, round + 1,
                                coop) == WaitResult::kOk);
    Note(wrong,
         iris::backend::LoadPlain(&mine->inbox[block][other]) == Word(previous, round, other));
    // An empty put with a signal: all have read.
    iris::PutSignal(ctx, previous, &mine->inbox[block][first], &mine->inbox[block][first], 0,
                    {&mine->empty[block][first], round + 1}, coop);
    if constexpr (std::is_same_v<Coop, iris::Block>) {
      iris::backend::BlockSync();
    } else {
      iris::backend::WarpSync();
    }
  }
}

IRIS_KERNEL void PutSignalBlockKernel(DeviceContext ctx, uint32_t* wrong) {
  PutSignalRounds(ctx, 0, kThreads, iris::Block{}, wrong);
}

IRIS_KERNEL void PutSignalWarpKernel(DeviceContext ctx, uint32_t* wrong) {
  const uint32_t first = iris::backend::WarpIndex() * iris::backend::WarpSize();
  PutSignalRounds(ctx, first, iris::impl::CoopSize(iris::Warp{}), iris::Warp{}, wrong);
}

// An all-reduce in place, in several chunks: of memory outside the heaps, so that it goes through
// the workspace, or in the heap. kPushScatter: a reduce-scatter.
IRIS_KERNEL void FillInput(uint32_t* x, uint32_t rank, uint32_t round) {
  const uint32_t first = iris::backend::ThreadIndex();
  for (uint32_t i = first; i < kCount; i += iris::backend::BlockSize()) {
    iris::backend::StorePlain(x + i, Word(rank, round, i));
  }
}

IRIS_KERNEL void CheckSum(const uint32_t* x, uint32_t begin, uint32_t end, uint32_t round,
                          uint32_t* wrong) {
  const uint32_t first = begin + iris::backend::ThreadIndex();
  for (uint32_t i = first; i < end; i += iris::backend::BlockSize()) {
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) sum += Word(rank, round, i);
    Note(wrong, iris::backend::LoadPlain(x + i) == sum);
  }
}

enum class Way { kDirect, kPackets, kLines, kTwoLines, kPush, kPushScatter };

bool AllReduceRounds(const DeviceContext& ctx, Way way, iris::backend::Stream& stream,
                     uint32_t* wrong) {
  namespace ccl = iris::ccl;
  ccl::Config config;
  config.max_blocks = kBlocks;
  config.packet_blocks = kBlocks;
  config.packet_bytes = 256;
  config.line_blocks = kBlocks;
  config.line_bytes = 8192;
  config.push_blocks = kBlocks;
  config.push_bytes = 4096;
  config.stage_bytes = 1024;
  const ccl::impl::Offsets offsets = ccl::impl::OffsetsOf(kRanks, config);
  if (offsets.total_bytes > sizeof(Heap::workspace)) return false;
  // These need it in the heap.
  const bool in_heap = way == Way::kPush || way == Way::kPushScatter;
  std::vector<uint32_t> outside(kCount);
  uint32_t* const x = in_heap ? HeapOf(ctx, ctx.rank)->x : outside.data();
  ccl::ErrorReport report;
  constexpr uint64_t kWorkspace = offsetof(Heap, workspace);
  ccl::impl::Common common = {};
  ccl::impl::ReduceCall call = {};
  common.context = ctx;
  common.report = &report;
  common.header_offset_bytes = kWorkspace;
  common.sync_offset_bytes = kWorkspace + offsets.sync_bytes;
  common.packet_offset_bytes = kWorkspace + offsets.packet_bytes;
  common.stage_offset_bytes = kWorkspace + offsets.stage_bytes;
  common.line_offset_bytes = kWorkspace + offsets.line_bytes;
  common.push_offset_bytes = kWorkspace + offsets.push_bytes;
  common.packet_bytes = config.packet_bytes;
  common.line_bytes = 1024;  // so that there are two chunks
  common.push_bytes = 64;    // so that there are more than slots
  common.push_block_bytes = config.push_bytes;
  common.stage_bytes = config.stage_bytes;
  common.size = kRanks;
  common.index = ctx.rank;
  for (uint32_t i = 0; i < kRanks; ++i) common.members[i] = static_cast<uint8_t>(i);
  common.ends = 1;
  common.blocks = kBlocks;
  common.operation = ccl::Operation::kAllReduce;
  call.in = reinterpret_cast<const uint8_t*>(x);
  call.out = reinterpret_cast<uint8_t*>(x);
  common.in_offset_bytes = in_heap ? offsetof(Heap, x) : ccl::impl::kNotInHeap;
  common.out_offset_bytes = common.in_offset_bytes;
  const bool whole = way == Way::kPackets || way == Way::kLines;
  call.count = whole ? kCount : kCount / kRanks;
  if (way == Way::kTwoLines || in_heap) call.count = ccl::impl::RoundUp(call.count, 4);
  call.limit = kCount;
  call.rows = whole ? 1 : kRanks;
  call.row = whole ? 0 : ctx.rank;
  call.target = ccl::impl::ReduceCall::kAll;
  uint32_t begin = 0;
  uint32_t end = kCount;
  if (way == Way::kPushScatter) {
    call.target = ccl::impl::ReduceCall::kSelf;
    begin = static_cast<uint32_t>(ctx.rank * call.count);
    end = std::min(kCount, begin + static_cast<uint32_t>(call.count));
    call.out += begin * sizeof(uint32_t);
  }
  call.divide = 1;
  call.op = ccl::ReduceOp::kSum;
  using Op = ccl::impl::AnyOp<int32_t>;
  bool ok = true;
  for (uint32_t round = 0; round < kRounds; ++round) {
    ok = ok && iris::backend::Launch({1, kThreads, 0}, stream, FillInput, x, ctx.rank, round).ok();
    const iris::LaunchConfig launch = {kBlocks, kThreads, 0};
    const iris::LaunchConfig warps = {kBlocks, 64, 0};  // lines take whole ones
    iris::Result launched;
    switch (way) {
      case Way::kDirect:
        launched = iris::backend::Launch(launch, stream, &ccl::impl::ReduceDirect<int32_t, Op, 0>,
                                         common, call, uint32_t{0});
        break;
      case Way::kPackets:
        launched = iris::backend::Launch(launch, stream, &ccl::impl::ReducePackets<int32_t, Op, 0>,
                                         common, call);
        break;
      case Way::kLines:
        launched = iris::backend::Launch(
            warps, stream, &ccl::impl::ReduceLines<int32_t, Op, kRanks>, common, call);
        break;
      case Way::kTwoLines:
        launched = iris::backend::Launch(
            warps, stream, &ccl::impl::ReduceTwoLines<int32_t, Op, kRanks>, common, call);
        break;
      case Way::kPush:
      case Way::kPushScatter:
        launched = iris::backend::Launch(warps, stream, &ccl::impl::ReducePush<int32_t, Op, 0>,
                                         common, call);
        break;
    }
    ok = ok && launched.ok();
    ok = ok && iris::backend::Launch({1, kThreads, 0}, stream, CheckSum,
                                     static_cast<const uint32_t*>(x), begin, end, round, wrong)
                   .ok();
  }
  return stream.Synchronize().ok() && ok && report.word == 0;
}

// The all-reduces by their names. False: it is none of them.
bool FindWay(const char* name, Way* way) {
  const std::pair<const char*, Way> ways[] = {
      {"all_reduce", Way::kDirect}, {"packets", Way::kPackets},
      {"lines", Way::kLines},       {"two_lines", Way::kTwoLines},
      {"push", Way::kPush},         {"push_scatter", Way::kPushScatter}};
  for (const auto& [known, found] : ways) {
    if (std::strcmp(name, known) != 0) continue;
    *way = found;
    return true;
  }
  return false;
}

using Kernel = void (*)(DeviceContext, uint32_t*);

Kernel Find(const char* name) {
  if (std::strcmp(name, "barrier") == 0) return &BarrierKernel;
  if (std::strcmp(name, "put_signal_block") == 0) return &PutSignalBlockKernel;
  if (std::strcmp(name, "put_signal_warp") == 0) return &PutSignalWarpKernel;
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const Kernel kernel = argc == 2 ? Find(argv[1]) : nullptr;
  Way way = Way::kDirect;
  const bool all_reduce = argc == 2 && FindWay(argv[1], &way);
  if (kernel == nullptr && !all_reduce) {
    std::fprintf(
        stderr,
        "usage: protocols barrier | put_signal_block | put_signal_warp | all_reduce | packets | "
        "lines | two_lines | push | push_scatter\n");
    return 2;
  }
  void* window = mmap(nullptr, kRanks * kStrideBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (window == MAP_FAILED) {
    std::perror("protocols: mmap of the window");
    return 2;
  }
  std::vector<uint32_t> wrong(kRanks, 0);
  std::atomic<bool> failed = false;
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      DeviceContext ctx;
      ctx.rank = rank;
      ctx.n_ranks = kRanks;
      ctx.base = reinterpret_cast<uint64_t>(window);
      ctx.stride_bytes = kStrideBytes;
      ctx.timeout_ns = kTimeoutNs;
      ctx.world.size = kRanks;
      ctx.world.index = rank;
      ctx.world.sync_offset_bytes = offsetof(Heap, sync);
      for (uint32_t i = 0; i < kRanks; ++i) ctx.world.members[i] = static_cast<uint8_t>(i);
      iris::backend::Stream stream;
      if (all_reduce) {
        if (!iris::backend::Stream::Create(&stream).ok() ||
            !AllReduceRounds(ctx, way, stream, &wrong[rank])) {
          failed = true;
        }
        return;
      }
      if (!iris::backend::Stream::Create(&stream).ok() ||
          !iris::backend::Launch({kBlocks, kThreads, 0}, stream, kernel, ctx, &wrong[rank]).ok() ||
          !stream.Synchronize().ok()) {
        failed = true;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  uint32_t sum = 0;
  for (uint32_t n : wrong) sum += n;
  if (failed || sum > 0) {
    std::printf("%u wrong answers%s\n", sum, failed ? ", and a launch failed" : "");
    return 1;
  }
  return 0;
}
