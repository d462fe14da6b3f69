// The launcher of collectives between nodes: it checks a call, chooses its path, and puts its
// kernels and the operations of the local Comm on the stream.
#include "iris/collective/operations.h"

#include <algorithm>
#include <cstdint>

#include "iris/collective/impl/select_kernel.h"
#include "iris/nodes/impl/kernels.h"
#include "iris/nodes/impl/launch.h"
#include "iris/nodes/impl/layout.h"
#include "iris/nodes/nodes.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

using impl::Invalid;
using impl::kNoMark;
using impl::kNotInHeap;
using impl::kRailStages;
using impl::LeaderStep;
using impl::NodesCall;
using impl::NodesRows;
using impl::Request;
using impl::RoundUp;
using impl::TurnStep;
using impl::UseStep;

IRIS_REDUCTION_KERNELS(LeaderKernels, impl::LeaderKernel<T>);
IRIS_REDUCTION_KERNELS(UseKernels, impl::UseKernel<T>);

bool IsReduction(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter ||
         operation == Operation::kReduce;
}

// An average of u8 is that of a sum that does not wrap, so no sums of nodes can be made of u8.
bool NeedsRows(const Shape& shape) {
  return IsReduction(shape.operation) && shape.type == DType::kU8 && shape.op == ReduceOp::kAvg;
}

// Returns the rows of the larger of in and out.
uint64_t RowsOf(Operation operation, uint32_t size) {
  switch (operation) {
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kGather:
    case Operation::kScatter:
      return size;
    default:
      return 1;
  }
}

// Returns p + bytes, or null for a buffer that a rank does not have.
template <typename T>
T* Plus(T* p, uint64_t bytes) {
  return p == nullptr ? nullptr : p + bytes;
}

// One call on its way onto the stream. Its methods put one kernel or operation there, and do
// nothing once something has failed, which `result` then is.
class Driver {
 public:
  Driver(const NodesComm& comm, const Call& call, NodesPath path, backend::Stream& stream)
      : comm_(comm), call_(call), stream_(stream), args_(impl::CallOf(comm, call, path)) {
    element_bytes_ = DTypeBytes(call.type);
    row_bytes_ = call.count * element_bytes_;
    in_ = static_cast<const uint8_t*>(call.in);
    out_ = static_cast<uint8_t*>(call.out);
    if (HasRoot(call.operation)) {
      root_node_ = comm.nodes[call.root];
      for (uint32_t m = 0; m < call.root; ++m) root_place_ += comm.nodes[m] == root_node_ ? 1 : 0;
    }
  }

  Result Barrier() {
    Local({{Operation::kBarrier}});
    LeaderStep step = {};
    step.mode = LeaderStep::kMeet;
    Lead(step, DType::kU8, true);
    return result_;
  }

  Result RunByLeaders();
  Result RunByRails();

 private:
  const NodesConfig& config() const { return comm_.config; }
  uint32_t n_local() const { return comm_.local.team.size; }
  uint32_t place() const { return comm_.local.team.index; }
  bool at_root() const { return comm_.index == call_.root; }
  bool on_root_node() const { return comm_.node == root_node_; }
  template <typename T = uint8_t>
  T* At(uint64_t offset_bytes) const {
    return AtOffset<T>(comm_.context, comm_.context.rank,
                       comm_.workspace_offset_bytes + offset_bytes);
  }
  uint8_t* Block() const { return At(args_.at.block); }
  uint8_t* Temp(uint32_t which) const {
    return At(args_.at.temps + which * uint64_t{comm_.n_nodes} * config().piece_bytes);
  }
  uint64_t StageOffset(uint64_t chunk) const {
    return args_.at.stages + chunk % kRailStages * comm_.n_nodes * config().piece_bytes;
  }
  uint64_t ResultOffset(uint64_t chunk) const {
    return args_.at.results + chunk % kRailStages * config().piece_bytes;
  }

  void Keep(const Result& result) {
    if (result_.ok()) result_ = result;
  }
  // An operation of the local Comm.
  void Local(const Call& call) {
    if (result_.ok()) Keep(Run(comm_.local, call, stream_));
  }
  void LocalReduction(Operation operation, const void* in, void* out, uint64_t count,
                      uint32_t root = 0) {
    const ReduceOp op = call_.op == ReduceOp::kAvg ? ReduceOp::kSum : call_.op;
    Local({{operation, count, call_.type, op}, in, out, root});
  }
  void LocalMove(Operation operation, const void* in, void* out, uint64_t count,
                 uint32_t root = 0) {
    Local({{operation, count, call_.type}, in, out, root});
  }
  void Copy(void* to, const void* from, uint64_t bytes) {
    if (result_.ok() && to != from && bytes != 0) {
      Keep(backend::CopyAsync(to, from, bytes, stream_));
    }
  }
  void CopyRows(void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t rows,
                uint64_t bytes) {
    if (result_.ok() && rows != 0 && bytes != 0) {
      Keep(backend::CopyRowsAsync(to, from, {rows, bytes, to_pitch, from_pitch}, stream_));
    }
  }

  template <typename Launch>
  void InPieces(uint32_t blocks, Launch launch) {
    if (result_.ok()) Keep(impl::LaunchPieces(comm_, blocks, 1, stream_, launch));
  }
  void Lead(const LeaderStep& step, DType type, bool ends) {
    args_.ends = ends ? 1 : 0;
    InPieces(1, [&](const LaunchConfig& launch, uint32_t) {
      return backend::Launch(launch, stream_, impl::SelectGeneral<LeaderKernels>(type), args_,
                             step);
    });
  }
  void Turn(TurnStep step, bool ends = false) {
    step.consumed = used_;
    used_ = 0;
    args_.ends = ends ? 1 : 0;
    if (result_.ok()) Keep(impl::LaunchTurn(comm_, args_, step, stream_));
  }
  void Use(UseStep step, DType type, uint64_t bytes) {
    step.ahead = used_++;
    args_.ends = 0;
    const uint64_t per_block = uint64_t{config().threads} * 64;
    const uint32_t blocks = static_cast<uint32_t>(
        std::clamp<uint64_t>((bytes + per_block - 1) / per_block, 1, config().blocks));
    InPieces(blocks, [&](const LaunchConfig& launch, uint32_t first) {
      return backend::Launch(launch, stream_, impl::SelectGeneral<UseKernels>(type), args_, step,
                             first, blocks);
    });
  }
  // Puts a round of the rail. `source` is an offset in the workspace, unless `in_heap`.
  void PutRound(uint32_t to, uint64_t source, uint64_t stride, uint64_t bytes, uint64_t limit,
                uint32_t mark, uint32_t await, bool in_heap = false) {
    TurnStep step = {};
    step.takes = 1;
    step.to = to;
    step.mark = mark;
    step.await = await;
    step.source = in_heap ? source : comm_.workspace_offset_bytes + source;
    step.stride = stride;
    step.bytes = bytes;
    step.limit = limit;
    Turn(step);
  }
  void EndRounds() {
    TurnStep step = {};
    step.to = TurnStep::kNobody;
    step.mark = step.await = kNoMark;
    step.await_all = 1;
    Turn(step, true);
  }
  // A round that this rank does not read.
  void SkipRound() { ++used_; }

  // Parts of operations by leaders. `bytes` fit into the room of leaders.
  void LeadReduction(const uint8_t* in, uint64_t count, uint8_t* out, uint64_t offset,
                     uint64_t out_count, bool ends);
  void LeadRows(const uint8_t* in, uint64_t bytes, const NodesRows& rows, bool ends);
  void LeadBroadcast(const uint8_t* in, uint64_t bytes, uint8_t* out, uint64_t offset,
                     uint64_t out_bytes, bool ends);
  // Reductions of any length by leaders; `out` is null on ranks that do not want the result.
  void ReduceByLeaders(const uint8_t* in, uint64_t count, uint8_t* out, bool ends);

  // Calls prepare(k), which puts round k, and use(k), which reads it, for k chunks, so that a chunk
  // travels while the one before is read.
  template <typename Prepare, typename UseChunk>
  void Pipeline(uint64_t chunks, Prepare prepare, UseChunk use) {
    for (uint64_t k = 0; k <= chunks; ++k) {
      if (k < chunks) prepare(k);
      if (k > 0) use(k - 1);
    }
  }
  // Returns the elements of a chunk of `count`, of which a rank has at most `most` bytes: large
  // enough for the network, small enough that chunks overlap.
  uint64_t ChunkOf(uint64_t count, uint64_t most_bytes) const {
    const uint64_t least = std::max<uint64_t>(most_bytes / 8, 1);
    const uint64_t bytes = std::clamp((count * element_bytes_ + 3) / 4, least, most_bytes);
    const uint64_t elements = std::max<uint64_t>(bytes / element_bytes_, 1);
    const uint64_t per_16 = std::max<uint64_t>(16 / element_bytes_, 1);
    return elements > per_16 ? elements / per_16 * per_16 : elements;
  }
  void RailAllReduce();
  void RailAllReduceBySlices(uint64_t share);
  void RailReduceScatter();
  void RailAllGather();
  void RailGather();
  void RailScatter();
  void RailBroadcast();
  void RailAllToAll();
  uint32_t Await(uint64_t chunk) const { return static_cast<uint32_t>((chunk + 1) % kRailStages); }

  const NodesComm& comm_;
  const Call& call_;
  backend::Stream& stream_;
  NodesCall args_;
  Result result_;
  uint64_t element_bytes_ = 0;
  uint64_t row_bytes_ = 0;
  const uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  uint32_t root_node_ = 0;
  uint32_t root_place_ = 0;
  uint32_t used_ = 0;  // rounds of the rail read since the last turn
};

void Driver::LeadReduction(const uint8_t* in, uint64_t count, uint8_t* out, uint64_t offset,
                           uint64_t out_count, bool ends) {
  LocalReduction(Operation::kAllReduce, in, Block(), count);
  LeaderStep step = {};
  step.mode = LeaderStep::kReduce;
  step.posts = 1;
  step.bytes = count * element_bytes_;
  step.rows.out = out;
  step.rows.offset = offset;
  step.count = out_count;
  step.op = call_.op;
  Lead(step, call_.type, ends);
}

void Driver::LeadRows(const uint8_t* in, uint64_t bytes, const NodesRows& rows, bool ends) {
  Local({{Operation::kAllGather, bytes}, in, Block()});
  LeaderStep step = {};
  step.mode = LeaderStep::kCopy;
  step.posts = 1;
  step.bytes = n_local() * bytes;
  step.rows = rows;
  Lead(step, DType::kU8, ends);
}

void Driver::LeadBroadcast(const uint8_t* in, uint64_t bytes, uint8_t* out, uint64_t offset,
                           uint64_t out_bytes, bool ends) {
  if (on_root_node()) {
    Local({{Operation::kBroadcast, bytes}, in, Block(), root_place_});
  } else {
    Local({{Operation::kBarrier}});
  }
  LeaderStep step = {};
  step.mode = LeaderStep::kCopy;
  step.posts = on_root_node() ? 1 : 0;
  step.bytes = bytes;
  step.rows = {out, out_bytes, 0, 0, offset, root_node_, 1};
  Lead(step, DType::kU8, ends);
}

void Driver::ReduceByLeaders(const uint8_t* in, uint64_t count, uint8_t* out, bool ends) {
  const bool rows = NeedsRows(call_);
  const uint64_t most = config().leader_bytes / (rows ? comm_.most_local : 1) / 16 * 16;
  const uint64_t room = most / element_bytes_;
  for (uint64_t j = 0; j < count; j += room) {
    const uint64_t part = std::min(room, count - j);
    const bool last = ends && j + part == count;
    uint8_t* const to = Plus(out, j * element_bytes_);
    if (!rows) {
      LeadReduction(in + j * element_bytes_, part, to, 0, part, last);
      continue;
    }
    Local({{Operation::kAllGather, part}, in + j, Block()});
    LeaderStep step = {};
    step.mode = LeaderStep::kReduceRows;
    step.posts = 1;
    step.bytes = n_local() * part;
    step.rows.out = to;
    step.rows.part_stride = part;
    step.count = part;
    step.op = call_.op;
    Lead(step, DType::kU8, last);
  }
}

Result Driver::RunByLeaders() {
  const uint64_t room = config().leader_bytes;
  const uint64_t rows_room = room / comm_.most_local / 16 * 16;
  const uint64_t whole = comm_.size * row_bytes_;
  const uint32_t n = comm_.size;
  // Calls step(j, bytes, last) for chunks of a row.
  const auto chunks = [&](uint64_t most, bool ends, auto step) {
    for (uint64_t j = 0; j < row_bytes_; j += most) {
      const uint64_t bytes = std::min(most, row_bytes_ - j);
      step(j, bytes, ends && j + bytes == row_bytes_);
    }
  };
  const auto all_rows = [&](uint64_t j, uint64_t bytes, bool wanted) {
    return NodesRows{wanted ? out_ + j : nullptr, bytes, row_bytes_, bytes, 0, NodesRows::kAll,
                     NodesRows::kPlaces};
  };
  switch (call_.operation) {
    case Operation::kAllReduce:
      ReduceByLeaders(in_, call_.count, out_, true);
      break;
    case Operation::kReduce:
      ReduceByLeaders(in_, call_.count, at_root() ? out_ : nullptr, true);
      break;
    case Operation::kReduceScatter:
      if (whole <= room && !NeedsRows(call_)) {
        LeadReduction(in_, n * call_.count, out_, comm_.index * row_bytes_, call_.count, true);
        break;
      }
      for (uint32_t m = 0; m < n; ++m) {
        // In place, `out` is the row of `in` that no other rank reads.
        ReduceByLeaders(in_ + m * row_bytes_, call_.count, m == comm_.index ? out_ : nullptr,
                        m + 1 == n);
      }
      break;
    case Operation::kAllGather:
    case Operation::kGather: {
      const bool wanted = call_.operation == Operation::kAllGather || at_root();
      chunks(rows_room, true, [&](uint64_t j, uint64_t bytes, bool last) {
        LeadRows(in_ + j, bytes, all_rows(j, bytes, wanted), last);
      });
      break;
    }
    case Operation::kBroadcast:
      chunks(room, true, [&](uint64_t j, uint64_t bytes, bool last) {
        LeadBroadcast(Plus(in_, j), bytes, out_ + j, 0, bytes, last);
      });
      break;
    case Operation::kScatter:
      if (whole <= room) {
        LeadBroadcast(in_, whole, out_, comm_.index * row_bytes_, row_bytes_, true);
        break;
      }
      for (uint32_t m = 0; m < n; ++m) {
        chunks(room, m + 1 == n, [&](uint64_t j, uint64_t bytes, bool last) {
          LeadBroadcast(Plus(in_, m * row_bytes_ + j), bytes, m == comm_.index ? out_ + j : nullptr,
                        0, bytes, last);
        });
      }
      break;
    case Operation::kAllToAll:
      if (whole <= rows_room) {
        NodesRows rows = all_rows(0, row_bytes_, true);
        rows.part_stride = whole;
        rows.offset = comm_.index * row_bytes_;
        LeadRows(in_, whole, rows, true);
        break;
      }
      for (uint32_t m = 0; m < n; ++m) {
        chunks(rows_room, m + 1 == n, [&](uint64_t j, uint64_t bytes, bool last) {
          LeadRows(in_ + m * row_bytes_ + j, bytes, all_rows(j, bytes, m == comm_.index), last);
        });
      }
      break;
    default:
      return Invalid("no such collective");
  }
  return result_;
}

void Driver::RailAllReduce() {
  const bool reduce = call_.operation == Operation::kReduce;
  const uint32_t n = n_local();
  const uint64_t share = call_.count / n;  // elements of each rank of the node
  const uint64_t tail = call_.count - share * n;
  if (tail != 0) {
    const uint64_t from = share * n * element_bytes_;
    uint8_t* const out = reduce && !at_root() ? nullptr : out_ + from;
    ReduceByLeaders(in_ + from, tail, out, false);
  }
  if (comm_.n_nodes > config().direct_nodes && !reduce) return RailAllReduceBySlices(share);
  const uint64_t chunk = ChunkOf(share, config().piece_bytes);
  const uint64_t chunks = (share + chunk - 1) / chunk;
  const auto begin = [&](uint64_t k) { return k * chunk * n * element_bytes_; };
  const auto size = [&](uint64_t k) { return std::min(chunk, share - k * chunk); };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        LocalReduction(Operation::kReduceScatter, in_ + begin(k), At(StageOffset(k)), size(k));
        const uint64_t bytes = size(k) * element_bytes_;
        uint32_t to = TurnStep::kEach;
        if (reduce) to = on_root_node() ? uint32_t{TurnStep::kNobody} : root_node_;
        PutRound(to, StageOffset(k), 0, bytes, bytes, k % kRailStages, Await(k));
      },
      [&](uint64_t k) {
        if (reduce && !on_root_node()) return SkipRound();
        const uint64_t bytes = size(k) * element_bytes_;
        UseStep step = {};
        step.reduces = 1;
        step.own = At(StageOffset(k));
        step.to[0] = reduce ? Temp(0) : out_ + begin(k) + place() * bytes;
        step.count = size(k);
        step.divide = call_.op == ReduceOp::kAvg ? comm_.size : 1;
        step.op = call_.op;
        Use(step, call_.type, bytes);
        if (reduce) {
          LocalMove(Operation::kGather, Temp(0), Plus(out_, begin(k)), size(k), root_place_);
        } else {
          LocalMove(Operation::kAllGather, step.to[0], out_ + begin(k), size(k));
        }
      });
  EndRounds();
}

void Driver::RailAllReduceBySlices(uint64_t share) {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const uint64_t chunk = ChunkOf(share, nodes * config().piece_bytes);
  const uint64_t chunks = (share + chunk - 1) / chunk;
  const auto begin = [&](uint64_t k) { return k * chunk * n * element_bytes_; };
  const auto size = [&](uint64_t k) { return std::min(chunk, share - k * chunk); };
  // The slice of node b in a chunk of a rank.
  const auto slice = [&](uint64_t k) {
    const uint64_t bytes = size(k) * element_bytes_;
    return std::min(RoundUp((bytes + nodes - 1) / nodes, 16), config().piece_bytes);
  };
  const auto own = [&](uint64_t k) {
    const uint64_t bytes = size(k) * element_bytes_;
    const uint64_t from = std::min(comm_.node * slice(k), bytes);
    return std::min(slice(k), bytes - from);
  };
  const auto out = [&](uint64_t k) { return out_ + begin(k) + place() * size(k) * element_bytes_; };
  for (uint64_t k = 0; k < chunks + 2; ++k) {
    if (k < chunks) {
      LocalReduction(Operation::kReduceScatter, in_ + begin(k), At(StageOffset(k)), size(k));
      PutRound(TurnStep::kEach, StageOffset(k), slice(k), slice(k), size(k) * element_bytes_,
               k % kRailStages, Await(k));
    }
    if (k >= 1 && k - 1 < chunks) {
      const uint64_t c = k - 1;
      UseStep step = {};
      step.reduces = 1;
      step.own = At(StageOffset(c)) + comm_.node * slice(c);
      step.to[0] = At(ResultOffset(c));
      step.to[1] = out(c) + std::min(comm_.node * slice(c), size(c) * element_bytes_);
      step.count = own(c) / element_bytes_;
      step.divide = call_.op == ReduceOp::kAvg ? comm_.size : 1;
      step.op = call_.op;
      Use(step, call_.type, slice(c));
      PutRound(TurnStep::kEach, ResultOffset(c), 0, own(c), own(c),
               kRailStages + static_cast<uint32_t>(c % kRailStages), kRailStages + Await(c));
    }
    if (k >= 2) {
      const uint64_t c = k - 2;
      UseStep step = {};
      step.rows = {out(c), slice(c), 0, 0, 0, NodesRows::kAll, 1};
      step.node_stride = slice(c);
      step.limit = size(c) * element_bytes_;
      Use(step, DType::kU8, size(c) * element_bytes_);
      LocalMove(Operation::kAllGather, out(c), out_ + begin(c), size(c));
    }
  }
  EndRounds();
}

void Driver::RailReduceScatter() {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const uint64_t chunk = ChunkOf(call_.count, config().piece_bytes / n / 16 * 16);
  const uint64_t chunks = (call_.count + chunk - 1) / chunk;
  const auto size = [&](uint64_t k) { return std::min(chunk, call_.count - k * chunk); };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        // temp[place][node] <- in[node][place]
        const uint64_t bytes = size(k) * element_bytes_;
        for (uint32_t b = 0; b < nodes; ++b) {
          CopyRows(Temp(0) + b * bytes, nodes * bytes,
                   in_ + b * n * row_bytes_ + k * chunk * element_bytes_, row_bytes_, n, bytes);
        }
        LocalReduction(Operation::kReduceScatter, Temp(0), At(StageOffset(k)), nodes * size(k));
        PutRound(TurnStep::kEach, StageOffset(k), bytes, bytes, nodes * bytes, k % kRailStages,
                 Await(k));
      },
      [&](uint64_t k) {
        UseStep step = {};
        step.reduces = 1;
        step.own = At(StageOffset(k)) + comm_.node * size(k) * element_bytes_;
        step.to[0] = out_ + k * chunk * element_bytes_;
        step.count = size(k);
        step.divide = call_.op == ReduceOp::kAvg ? comm_.size : 1;
        step.op = call_.op;
        Use(step, call_.type, size(k) * element_bytes_);
      });
  EndRounds();
}

void Driver::RailAllGather() {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const uint64_t chunk = ChunkOf(call_.count, config().piece_bytes);
  const uint64_t chunks = (call_.count + chunk - 1) / chunk;
  const auto size = [&](uint64_t k) { return std::min(chunk, call_.count - k * chunk); };
  uint64_t in_offset = kNotInHeap;
  if (impl::PortReads(comm_, in_, row_bytes_)) in_offset = OffsetBytes(comm_.context, in_);
  Copy(out_ + comm_.index * row_bytes_, in_, row_bytes_);
  const auto gather_node = [&](uint32_t b) {
    uint8_t* const rows = out_ + b * n * row_bytes_;
    LocalMove(Operation::kAllGather, rows + place() * row_bytes_, rows, call_.count);
  };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        const uint64_t from = k * chunk * element_bytes_;
        const uint64_t bytes = size(k) * element_bytes_;
        if (in_offset != kNotInHeap) {
          PutRound(TurnStep::kEach, in_offset + from, 0, bytes, bytes, kNoMark, kNoMark, true);
        } else {
          Copy(At(StageOffset(k)), in_ + from, bytes);
          PutRound(TurnStep::kEach, StageOffset(k), 0, bytes, bytes, k % kRailStages, Await(k));
        }
        if (k == 0) gather_node(comm_.node);
      },
      [&](uint64_t k) {
        const uint64_t bytes = size(k) * element_bytes_;
        UseStep step = {};
        step.rows = {out_ + place() * row_bytes_ + k * chunk * element_bytes_,
                     bytes,
                     0,
                     0,
                     0,
                     NodesRows::kAll,
                     1};
        step.node_stride = n * row_bytes_;
        step.limit = ~0ull;
        Use(step, DType::kU8, nodes * bytes);
      });
  for (uint32_t b = 0; b < nodes; ++b) {
    if (b != comm_.node) gather_node(b);
  }
  EndRounds();
}

void Driver::RailGather() {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const uint64_t chunk = ChunkOf(call_.count, config().piece_bytes / n / 16 * 16);
  const uint64_t chunks = (call_.count + chunk - 1) / chunk;
  const auto size = [&](uint64_t k) { return std::min(chunk, call_.count - k * chunk); };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        const uint64_t bytes = size(k) * element_bytes_;
        Copy(At(StageOffset(k)), in_ + k * chunk * element_bytes_, bytes);
        PutRound(on_root_node() ? uint32_t{TurnStep::kNobody} : root_node_, StageOffset(k), 0,
                 bytes, bytes, k % kRailStages, Await(k));
      },
      [&](uint64_t k) {
        if (!on_root_node()) return SkipRound();
        const uint64_t bytes = size(k) * element_bytes_;
        UseStep step = {};
        step.own = At(StageOffset(k));
        step.rows = {Temp(0), bytes, 0, 0, 0, NodesRows::kAll, 1};
        step.node_stride = bytes;
        step.limit = ~0ull;
        Use(step, DType::kU8, nodes * bytes);
        LocalMove(Operation::kGather, Temp(0), Temp(1), nodes * size(k), root_place_);
        if (!at_root()) return;
        // out[node][place] <- temp[place][node]
        for (uint32_t l = 0; l < n; ++l) {
          CopyRows(out_ + l * row_bytes_ + k * chunk * element_bytes_, n * row_bytes_,
                   Temp(1) + l * nodes * bytes, bytes, nodes, bytes);
        }
      });
  EndRounds();
}

void Driver::RailScatter() {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const uint64_t chunk = ChunkOf(call_.count, config().piece_bytes / n / 16 * 16);
  const uint64_t chunks = (call_.count + chunk - 1) / chunk;
  const auto size = [&](uint64_t k) { return std::min(chunk, call_.count - k * chunk); };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        const uint64_t bytes = size(k) * element_bytes_;
        if (at_root()) {
          // temp[place][node] <- in[node][place]
          for (uint32_t l = 0; l < n; ++l) {
            CopyRows(Temp(0) + l * nodes * bytes, bytes,
                     in_ + l * row_bytes_ + k * chunk * element_bytes_, n * row_bytes_, nodes,
                     bytes);
          }
        }
        if (on_root_node()) {
          LocalMove(Operation::kScatter, Temp(0), At(StageOffset(k)), nodes * size(k), root_place_);
        }
        PutRound(on_root_node() ? TurnStep::kEach : TurnStep::kNobody, StageOffset(k), bytes, bytes,
                 nodes * bytes, k % kRailStages, Await(k));
      },
      [&](uint64_t k) {
        const uint64_t bytes = size(k) * element_bytes_;
        UseStep step = {};
        step.own = At(StageOffset(k)) + comm_.node * bytes;
        step.rows = {out_ + k * chunk * element_bytes_, bytes, 0, 0, 0, root_node_, 1};
        step.limit = ~0ull;
        Use(step, DType::kU8, bytes);
      });
  EndRounds();
}

void Driver::RailBroadcast() {
  const uint32_t n = n_local();
  const uint64_t share = call_.count / n;
  const uint64_t tail = (call_.count - share * n) * element_bytes_;
  if (tail != 0) {
    const uint64_t from = share * n * element_bytes_;
    LeadBroadcast(Plus(in_, from), tail, out_ + from, 0, tail, false);
  }
  const uint64_t chunk = ChunkOf(share, config().piece_bytes);
  const uint64_t chunks = (share + chunk - 1) / chunk;
  const auto begin = [&](uint64_t k) { return k * chunk * n * element_bytes_; };
  const auto size = [&](uint64_t k) { return std::min(chunk, share - k * chunk); };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        if (on_root_node()) {
          LocalMove(Operation::kScatter, Plus(in_, begin(k)), At(StageOffset(k)), size(k),
                    root_place_);
        }
        const uint64_t bytes = size(k) * element_bytes_;
        PutRound(on_root_node() ? TurnStep::kEach : TurnStep::kNobody, StageOffset(k), 0, bytes,
                 bytes, k % kRailStages, Await(k));
      },
      [&](uint64_t k) {
        const uint64_t bytes = size(k) * element_bytes_;
        UseStep step = {};
        step.own = At(StageOffset(k));
        step.rows = {out_ + begin(k) + place() * bytes, bytes, 0, 0, 0, root_node_, 1};
        step.limit = ~0ull;
        Use(step, DType::kU8, bytes);
        LocalMove(Operation::kAllGather, step.rows.out, out_ + begin(k), size(k));
      });
  EndRounds();
}

void Driver::RailAllToAll() {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const uint64_t chunk = ChunkOf(call_.count, config().piece_bytes / n / 16 * 16);
  const uint64_t chunks = (call_.count + chunk - 1) / chunk;
  const auto size = [&](uint64_t k) { return std::min(chunk, call_.count - k * chunk); };
  Pipeline(
      chunks,
      [&](uint64_t k) {
        // stage[node][place] <- in[node][place]
        const uint64_t bytes = size(k) * element_bytes_;
        CopyRows(At(StageOffset(k)), bytes, in_ + k * chunk * element_bytes_, row_bytes_,
                 comm_.size, bytes);
        PutRound(TurnStep::kEach, StageOffset(k), n * bytes, n * bytes, comm_.size * bytes,
                 k % kRailStages, Await(k));
      },
      [&](uint64_t k) {
        // temp[place][node] <- piece of the node[place]
        const uint64_t bytes = size(k) * element_bytes_;
        UseStep step = {};
        step.own = At(StageOffset(k)) + comm_.node * n * bytes;
        step.rows = {Temp(0), bytes, nodes * bytes, bytes, 0, NodesRows::kAll, n};
        step.node_stride = bytes;
        step.limit = ~0ull;
        Use(step, DType::kU8, comm_.size * bytes);
        LocalMove(Operation::kAllToAll, Temp(0), Temp(1), nodes * size(k));
        // out[node][place] <- temp[place][node]
        for (uint32_t l = 0; l < n; ++l) {
          CopyRows(out_ + l * row_bytes_ + k * chunk * element_bytes_, n * row_bytes_,
                   Temp(1) + l * nodes * bytes, bytes, nodes, bytes);
        }
      });
  EndRounds();
}

Result Driver::RunByRails() {
  switch (call_.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
      RailAllReduce();
      break;
    case Operation::kReduceScatter:
      RailReduceScatter();
      break;
    case Operation::kAllGather:
      RailAllGather();
      break;
    case Operation::kGather:
      RailGather();
      break;
    case Operation::kScatter:
      RailScatter();
      break;
    case Operation::kBroadcast:
      RailBroadcast();
      break;
    case Operation::kAllToAll:
      RailAllToAll();
      break;
    default:
      return Invalid("no such collective");
  }
  return result_;
}

// Checks the buffers of a call. Sets `*nothing` if there is nothing to do.
Result CheckNodesCall(const NodesComm& comm, const Call& call, bool* nothing) {
  const bool at_root = comm.index == call.root;
  if (HasRoot(call.operation) && call.root >= comm.size) return Invalid("the root is not a member");
  Request request = {call};
  const int64_t index = comm.index;
  switch (call.operation) {
    case Operation::kAllReduce:
      break;
    case Operation::kReduceScatter:
      request.in_rows = comm.size;
      request.in_place_rows = -index;
      break;
    case Operation::kReduce:
      request.out_rows = at_root ? 1 : 0;
      break;
    case Operation::kAllGather:
      request.out_rows = comm.size;
      request.in_place_rows = index;
      break;
    case Operation::kGather:
      request.out_rows = at_root ? comm.size : 0;
      request.in_place_rows = index;
      break;
    case Operation::kScatter:
      request.in_rows = at_root ? comm.size : 0;
      request.in_place_rows = -index;
      break;
    case Operation::kAllToAll:
      request.in_rows = request.out_rows = comm.size;
      request.in_place_ok = false;
      break;
    case Operation::kBroadcast:
      request.in_rows = at_root ? 1 : 0;
      break;
    default:
      return {StatusCode::kUnimplemented,
              "this operation needs a team whose ranks are all on one node"};
  }
  if (Result result = impl::CheckRequest(comm.local, &request, nothing); !result.ok() || *nothing) {
    return result;
  }
  const uint64_t bytes = call.count * DTypeBytes(call.type);
  if (bytes > (1ull << 46) / comm.size) return Invalid("the count is too large");
  for (const auto& [buffer, rows] :
       {std::pair{call.in, request.in_rows},
        std::pair{static_cast<const void*>(call.out), request.out_rows}}) {
    if (rows != 0 && impl::OverlapsWorkspace(comm, buffer, rows * bytes)) {
      return Invalid("a buffer overlaps the workspace");
    }
  }
  return {};
}

}  // namespace

NodesPath ChoosePath(const NodesComm& comm, const Shape& shape) {
  if (!comm.even || shape.operation == Operation::kBarrier || NeedsRows(shape)) {
    return NodesPath::kLeaders;
  }
  if (comm.config.path != NodesPath::kAuto) return comm.config.path;
  const uint64_t bytes = shape.count * DTypeBytes(shape.type) * RowsOf(shape.operation, comm.size);
  return bytes <= comm.config.leaders_most_bytes ? NodesPath::kLeaders : NodesPath::kRails;
}

Result RunOnNodes(const NodesComm& comm, const Call& call, backend::Stream& stream) {
  if (Result result = impl::CheckNodesComm(comm); !result.ok()) return result;
  if (call.operation == Operation::kBarrier) {
    return Driver(comm, {{Operation::kBarrier}}, NodesPath::kLeaders, stream).Barrier();
  }
  if (call.operation == Operation::kAllToAllV) {
    return impl::RunAllToAllVOnNodes(comm, call, stream);
  }
  bool nothing = false;
  if (Result result = CheckNodesCall(comm, call, &nothing); !result.ok() || nothing) {
    return result;
  }
  const NodesPath path = ChoosePath(comm, call);
  Driver driver(comm, call, path, stream);
  return path == NodesPath::kRails ? driver.RunByRails() : driver.RunByLeaders();
}

Result QuietNodes(const NodesComm& comm, backend::Stream& stream) {
  if (comm.report == nullptr) return Invalid("the NodesComm was not made by CreateNodesComm");
  NodesCall args = {};
  args.context = comm.context;
  return backend::Launch({1, 1}, stream, &impl::QuietKernel<>, args);
}

Result impl::LaunchTurn(const NodesComm& comm, const NodesCall& args, const TurnStep& step,
                        backend::Stream& stream) {
  return LaunchPieces(comm, 1, 1, stream, [&](LaunchConfig launch, uint32_t) {
    launch.block = std::min(launch.block, 128u);
    return backend::Launch(launch, stream, &TurnKernel<>, args, step);
  });
}

Result impl::PrepareNodesOperations() {
  if (Result result = PrepareGeneral<LeaderKernels>(); !result.ok()) return result;
  if (Result result = PrepareGeneral<UseKernels>(); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&TurnKernel<>); !result.ok()) return result;
  return backend::PrepareKernel(&QuietKernel<>);
}

}  // namespace iris::ccl
