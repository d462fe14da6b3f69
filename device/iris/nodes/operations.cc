// The launcher of collectives between nodes: it checks a call, chooses its path, and puts its
// kernels and the operations of the local Comm on the stream.
#include "iris/collective/operations.h"

#include <algorithm>
#include <cstdint>
#include <utility>

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
IRIS_REDUCTION_KERNELS(UseKernels, impl::UseKernel<T, Op, N>);

// An average of u8 is that of a sum that does not wrap, so no sums of nodes can be made of u8.
bool NeedsRows(const Shape& shape) {
  return impl::IsReduction(shape.operation) && shape.type == DType::kU8 &&
         shape.op == ReduceOp::kAvg;
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
  // If `whole` is not null, nodes compare it instead of the call, which counts if it `ends` it.
  Driver(const NodesComm& comm, const Call& call, NodesPath path, backend::Stream& stream,
         const PackedCall* whole = nullptr, bool ends = true)
      : comm_(comm),
        call_(call),
        stream_(stream),
        counts_(ends),
        args_(whole != nullptr ? impl::CallOf(comm, *whole) : impl::CallOf(comm, call, path)) {
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

  Result RunBy(NodesPath path) { return path == NodesPath::kRails ? RunByRails() : RunByLeaders(); }
  Result TellOfFailure() { return impl::LaunchIdleTurn(comm_, args_, stream_); }

 private:
  Result RunByLeaders();
  Result RunByRails();

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
  uint64_t ResultOffset(uint64_t chunk) const {
    return comm_.workspace_offset_bytes + args_.at.results +
           chunk % kRailStages * config().piece_bytes;
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
    args_.ends = ends && counts_ ? 1 : 0;
    InPieces(1, [&](const LaunchConfig& launch, uint32_t) {
      return backend::Launch(launch, stream_, impl::SelectGeneral<LeaderKernels>(type), args_,
                             step);
    });
  }
  void Turn(TurnStep step, bool ends = false) {
    step.consumed = used_;
    used_ = 0;
    args_.ends = ends && counts_ ? 1 : 0;
    if (result_.ok()) Keep(impl::LaunchTurn(comm_, args_, step, stream_));
  }
  void Use(UseStep step, DType type, uint64_t bytes) {
    step.ahead = used_++;
    args_.ends = 0;
    const uint64_t per_block = uint64_t{config().threads} * 64;
    const uint32_t blocks = static_cast<uint32_t>(
        std::clamp<uint64_t>((bytes + per_block - 1) / per_block, 1, config().blocks));
    const bool fixed = step.reduces != 0 && (step.divide & (step.divide - 1)) == 0 &&
                       impl::HasFixedKernel(type, step.op, comm_.n_nodes);
    const auto kernel = fixed ? impl::SelectFixed<UseKernels>(type, comm_.n_nodes)
                              : impl::SelectGeneral<UseKernels>(type);
    InPieces(blocks, [&](const LaunchConfig& launch, uint32_t first) {
      return backend::Launch(launch, stream_, kernel, args_, step, first, blocks);
    });
  }
  // Puts a round of the rail: node b gets `bytes` bytes from `source` + b * stride on, and none
  // beyond `limit`. `source` is an offset in the heap.
  void PutRound(uint32_t to, uint64_t source, uint64_t stride, uint64_t bytes, uint64_t limit,
                uint32_t mark, uint32_t await) {
    TurnStep step = {};
    step.takes = 1;
    step.to = to;
    step.mark = mark;
    step.await = await;
    step.source = source;
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

  // A part of a call by rails, which travels in a round of its own.
  struct Chunk {
    uint64_t index;
    uint64_t count;  // elements of each row
    uint64_t bytes;  // of each row
    uint64_t begin;  // in a row, in bytes
    uint64_t stage;  // offset in the heap of the memory from which it is put
  };
  // Chunks of rows of `count` elements.
  struct Chunks {
    const Driver& driver;
    uint64_t count;
    uint64_t each;
    uint64_t n() const { return (count + each - 1) / each; }
    Chunk operator[](uint64_t k) const {
      const uint64_t size = std::min(each, count - k * each);
      const uint64_t stage = driver.args_.at.stages +
                             k % kRailStages * driver.comm_.n_nodes * driver.config().piece_bytes;
      return {k, size, size * driver.element_bytes_, k * each * driver.element_bytes_,
              driver.comm_.workspace_offset_bytes + stage};
    }
  };
  // Returns chunks of which a rank has at most `most_bytes`: large enough for the network, small
  // enough that they overlap.
  Chunks ChunksOf(uint64_t count, uint64_t most_bytes) const {
    const uint64_t least = std::max<uint64_t>(most_bytes / 8, 1);
    const uint64_t bytes = std::clamp((count * element_bytes_ + 3) / 4, least, most_bytes);
    const uint64_t elements = std::max<uint64_t>(bytes / element_bytes_, 1);
    const uint64_t per_16 = std::max<uint64_t>(16 / element_bytes_, 1);
    return {*this, count, elements > per_16 ? elements / per_16 * per_16 : elements};
  }
  // Calls prepare(chunk), which puts a round, and use(chunk), which reads it, so that a chunk
  // travels while the one before is read.
  template <typename Prepare, typename UseChunk>
  void Pipeline(const Chunks& chunks, Prepare prepare, UseChunk use) {
    for (uint64_t k = 0; k <= chunks.n(); ++k) {
      if (k < chunks.n()) prepare(chunks[k]);
      if (k > 0) use(chunks[k - 1]);
    }
  }
  // Calls Pipeline with chunks of the call's rows. A piece has one for each rank of a node.
  template <typename Prepare, typename UseChunk>
  void PipelineRows(Prepare prepare, UseChunk use) {
    Pipeline(ChunksOf(call_.count, config().piece_bytes / n_local() / 16 * 16), prepare, use);
  }

  static uint32_t MarkOf(const Chunk& c) { return static_cast<uint32_t>(c.index % kRailStages); }
  static uint32_t AwaitOf(const Chunk& c) {
    return static_cast<uint32_t>((c.index + 1) % kRailStages);
  }
  uint8_t* Stage(const Chunk& c) const {
    return AtOffset<uint8_t>(comm_.context, comm_.context.rank, c.stage);
  }
  // Put the stage of a chunk: to each node the same bytes, or its slice of `total_bytes`.
  void PutStage(const Chunk& c, uint32_t to) {
    PutRound(to, c.stage, 0, c.bytes, c.bytes, MarkOf(c), AwaitOf(c));
  }
  void PutSlices(const Chunk& c, uint32_t to, uint64_t slice_bytes, uint64_t total_bytes) {
    PutRound(to, c.stage, slice_bytes, slice_bytes, total_bytes, MarkOf(c), AwaitOf(c));
  }
  // Return to whom this node puts if data goes to the root, or comes from it.
  uint32_t ToRoot() const { return on_root_node() ? uint32_t{TurnStep::kNobody} : root_node_; }
  uint32_t FromRoot() const { return on_root_node() ? TurnStep::kEach : TurnStep::kNobody; }

  // Reduces a round, in which this node's term is `own`, into `to`, and into `also` if not null.
  void UseTerms(const uint8_t* own, uint64_t count, uint8_t* to, uint8_t* also = nullptr) {
    UseStep step = {};
    step.reduces = 1;
    step.own = own;
    step.to[0] = to;
    step.to[1] = also;
    step.count = count;
    step.divide = call_.op == ReduceOp::kAvg ? comm_.size : 1;
    step.op = call_.op;
    Use(step, call_.type, count * element_bytes_);
  }
  // Copies the rows of a round, in which this node's part is `own`; see UseStep.
  void UseRows(const uint8_t* own, const NodesRows& rows, uint64_t node_stride,
               uint64_t limit = ~0ull) {
    UseStep step = {};
    step.own = own;
    step.rows = rows;
    step.node_stride = node_stride;
    step.limit = limit;
    const uint64_t parts = rows.only == NodesRows::kAll ? comm_.n_nodes : 1;
    Use(step, DType::kU8, std::min(limit, parts * rows.rows * rows.bytes));
  }

  // The distances between rows of nodes, and between those of a node's ranks.
  struct Pitch {
    uint64_t node;
    uint64_t place;
  };
  // Copies a row of each rank, with as few copies as possible.
  void CopyRanks(uint8_t* to, Pitch to_pitch, const uint8_t* from, Pitch from_pitch,
                 uint64_t bytes) {
    uint32_t copies = comm_.n_nodes;
    uint32_t rows = n_local();
    if (copies > rows) {
      std::swap(copies, rows);
      std::swap(to_pitch.node, to_pitch.place);
      std::swap(from_pitch.node, from_pitch.place);
    }
    for (uint32_t i = 0; i < copies; ++i) {
      CopyRows(to + i * to_pitch.node, to_pitch.place, from + i * from_pitch.node, from_pitch.place,
               rows, bytes);
    }
  }
  Pitch CallPitch() const { return {n_local() * row_bytes_, row_bytes_}; }
  Pitch TempPitch(const Chunk& c) const { return {c.bytes, comm_.n_nodes * c.bytes}; }
  // temp 0 [place][node] <- in[node][place]
  void InToTemp(const Chunk& c) {
    CopyRanks(Temp(0), TempPitch(c), in_ + c.begin, CallPitch(), c.bytes);
  }
  // out[node][place] <- temp 1 [place][node]
  void TempToOut(const Chunk& c) {
    CopyRanks(out_ + c.begin, CallPitch(), Temp(1), TempPitch(c), c.bytes);
  }

  void RailAllReduce();
  void RailAllReduceBySlices(uint64_t share);
  void RailReduceScatter();
  void RailAllGather();
  void RailGather();
  void RailScatter();
  void RailBroadcast();
  void RailAllToAll();

  const NodesComm& comm_;
  const Call& call_;
  backend::Stream& stream_;
  const bool counts_;
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
  LeaderStep step = {};
  step.posts = 1;
  step.bytes = count * element_bytes_;
  if (NeedsRows(call_)) {
    Local({{Operation::kAllGather, count}, in, Block()});
    step.mode = LeaderStep::kReduceRows;
    step.bytes *= n_local();
    step.rows.part_stride = count;
  } else {
    LocalReduction(Operation::kAllReduce, in, Block(), count);
    step.mode = LeaderStep::kReduce;
  }
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
  const uint64_t rows = NeedsRows(call_) ? comm_.most_local : 1;
  const uint64_t room = config().leader_bytes / rows / 16 * 16 / element_bytes_;
  for (uint64_t j = 0; j < count; j += room) {
    const uint64_t part = std::min(room, count - j);
    LeadReduction(in + j * element_bytes_, part, Plus(out, j * element_bytes_), 0, part,
                  ends && j + part == count);
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
  Pipeline(
      ChunksOf(share, config().piece_bytes),
      [&](const Chunk& c) {
        LocalReduction(Operation::kReduceScatter, in_ + n * c.begin, Stage(c), c.count);
        PutStage(c, reduce ? ToRoot() : uint32_t{TurnStep::kEach});
      },
      [&](const Chunk& c) {
        if (!reduce) {
          uint8_t* const out = out_ + n * c.begin;
          UseTerms(Stage(c), c.count, out + place() * c.bytes);
          LocalMove(Operation::kAllGather, out + place() * c.bytes, out, c.count);
        } else if (on_root_node()) {
          UseTerms(Stage(c), c.count, Temp(0));
          LocalMove(Operation::kGather, Temp(0), Plus(out_, n * c.begin), c.count, root_place_);
        } else {
          SkipRound();
        }
      });
}

void Driver::RailAllReduceBySlices(uint64_t share) {
  const uint32_t n = n_local();
  const uint32_t nodes = comm_.n_nodes;
  const Chunks chunks = ChunksOf(share, nodes * config().piece_bytes);
  // The slice of each node in a chunk of a rank, and where that of this node begins.
  const auto slice = [&](const Chunk& c) {
    return std::min(RoundUp((c.bytes + nodes - 1) / nodes, 16), config().piece_bytes);
  };
  const auto from = [&](const Chunk& c) { return std::min(comm_.node * slice(c), c.bytes); };
  const auto out = [&](const Chunk& c) { return out_ + n * c.begin + place() * c.bytes; };
  for (uint64_t k = 0; k < chunks.n() + 2; ++k) {
    if (k < chunks.n()) {
      const Chunk c = chunks[k];
      LocalReduction(Operation::kReduceScatter, in_ + n * c.begin, Stage(c), c.count);
      PutSlices(c, TurnStep::kEach, slice(c), c.bytes);
    }
    if (k >= 1 && k - 1 < chunks.n()) {
      const Chunk c = chunks[k - 1];
      const uint64_t bytes = std::min(slice(c), c.bytes - from(c));
      const uint64_t result = ResultOffset(c.index);
      UseTerms(Stage(c) + comm_.node * slice(c), bytes / element_bytes_,
               AtOffset<uint8_t>(comm_.context, comm_.context.rank, result), out(c) + from(c));
      PutRound(TurnStep::kEach, result, 0, bytes, bytes, kRailStages + MarkOf(c),
               kRailStages + AwaitOf(c));
    }
    if (k >= 2) {
      const Chunk c = chunks[k - 2];
      UseRows(nullptr, {out(c), slice(c), 0, 0, 0, NodesRows::kAll, 1}, slice(c), c.bytes);
      LocalMove(Operation::kAllGather, out(c), out_ + n * c.begin, c.count);
    }
  }
}

void Driver::RailReduceScatter() {
  PipelineRows(
      [&](const Chunk& c) {
        InToTemp(c);
        LocalReduction(Operation::kReduceScatter, Temp(0), Stage(c), comm_.n_nodes * c.count);
        PutSlices(c, TurnStep::kEach, c.bytes, comm_.n_nodes * c.bytes);
      },
      [&](const Chunk& c) { UseTerms(Stage(c) + comm_.node * c.bytes, c.count, out_ + c.begin); });
}

void Driver::RailAllGather() {
  const uint32_t n = n_local();
  const bool from_in = impl::PortReads(comm_, in_, row_bytes_);
  Copy(out_ + comm_.index * row_bytes_, in_, row_bytes_);
  const auto gather_node = [&](uint32_t b) {
    uint8_t* const rows = out_ + b * n * row_bytes_;
    LocalMove(Operation::kAllGather, rows + place() * row_bytes_, rows, call_.count);
  };
  Pipeline(
      ChunksOf(call_.count, config().piece_bytes),
      [&](const Chunk& c) {
        if (from_in) {
          PutRound(TurnStep::kEach, OffsetBytes(comm_.context, in_) + c.begin, 0, c.bytes, c.bytes,
                   kNoMark, kNoMark);
        } else {
          Copy(Stage(c), in_ + c.begin, c.bytes);
          PutStage(c, TurnStep::kEach);
        }
        if (c.index == 0) gather_node(comm_.node);
      },
      [&](const Chunk& c) {
        uint8_t* const out = out_ + place() * row_bytes_ + c.begin;
        UseRows(nullptr, {out, c.bytes, 0, 0, 0, NodesRows::kAll, 1}, n * row_bytes_);
      });
  for (uint32_t b = 0; b < comm_.n_nodes; ++b) {
    if (b != comm_.node) gather_node(b);
  }
}

void Driver::RailGather() {
  PipelineRows(
      [&](const Chunk& c) {
        Copy(Stage(c), in_ + c.begin, c.bytes);
        PutStage(c, ToRoot());
      },
      [&](const Chunk& c) {
        if (!on_root_node()) return SkipRound();
        UseRows(Stage(c), {Temp(0), c.bytes, 0, 0, 0, NodesRows::kAll, 1}, c.bytes);
        LocalMove(Operation::kGather, Temp(0), Temp(1), comm_.n_nodes * c.count, root_place_);
        if (at_root()) TempToOut(c);
      });
}

void Driver::RailScatter() {
  PipelineRows(
      [&](const Chunk& c) {
        if (at_root()) InToTemp(c);
        if (on_root_node()) {
          LocalMove(Operation::kScatter, Temp(0), Stage(c), comm_.n_nodes * c.count, root_place_);
        }
        PutSlices(c, FromRoot(), c.bytes, comm_.n_nodes * c.bytes);
      },
      [&](const Chunk& c) {
        UseRows(Stage(c) + comm_.node * c.bytes, {out_ + c.begin, c.bytes, 0, 0, 0, root_node_, 1},
                0);
      });
}

void Driver::RailBroadcast() {
  const uint32_t n = n_local();
  const uint64_t share = call_.count / n;
  const uint64_t tail = (call_.count - share * n) * element_bytes_;
  if (tail != 0) {
    const uint64_t from = share * n * element_bytes_;
    LeadBroadcast(Plus(in_, from), tail, out_ + from, 0, tail, false);
  }
  Pipeline(
      ChunksOf(share, config().piece_bytes),
      [&](const Chunk& c) {
        if (on_root_node()) {
          LocalMove(Operation::kScatter, Plus(in_, n * c.begin), Stage(c), c.count, root_place_);
        }
        PutStage(c, FromRoot());
      },
      [&](const Chunk& c) {
        uint8_t* const out = out_ + n * c.begin;
        UseRows(Stage(c), {out + place() * c.bytes, c.bytes, 0, 0, 0, root_node_, 1}, 0);
        LocalMove(Operation::kAllGather, out + place() * c.bytes, out, c.count);
      });
}

void Driver::RailAllToAll() {
  const uint32_t n = n_local();
  PipelineRows(
      [&](const Chunk& c) {
        // stage[node][place] <- in[node][place]
        CopyRows(Stage(c), c.bytes, in_ + c.begin, row_bytes_, comm_.size, c.bytes);
        PutSlices(c, TurnStep::kEach, n * c.bytes, comm_.size * c.bytes);
      },
      [&](const Chunk& c) {
        // temp 0 [place][node] <- piece of the node[place]
        const Pitch pitch = TempPitch(c);
        UseRows(Stage(c) + comm_.node * n * c.bytes,
                {Temp(0), c.bytes, pitch.place, c.bytes, 0, NodesRows::kAll, n}, pitch.node);
        LocalMove(Operation::kAllToAll, Temp(0), Temp(1), comm_.n_nodes * c.count);
        TempToOut(c);
      });
}

Result Driver::RunByRails() {
  constexpr std::pair<Operation, void (Driver::*)()> kRails[] = {
      {Operation::kAllReduce, &Driver::RailAllReduce},
      {Operation::kReduce, &Driver::RailAllReduce},
      {Operation::kReduceScatter, &Driver::RailReduceScatter},
      {Operation::kAllGather, &Driver::RailAllGather},
      {Operation::kGather, &Driver::RailGather},
      {Operation::kScatter, &Driver::RailScatter},
      {Operation::kBroadcast, &Driver::RailBroadcast},
      {Operation::kAllToAll, &Driver::RailAllToAll}};
  for (const auto& [operation, run] : kRails) {
    if (operation == call_.operation) (this->*run)();
  }
  EndRounds();
  return result_;
}

// Checks the buffers of a call. Sets `*nothing` if there is nothing to do.
Result CheckNodesCall(const NodesComm& comm, const Call& call, bool* nothing) {
  if (call.operation > Operation::kAllToAllV || call.operation == Operation::kSendRecv) {
    return {StatusCode::kUnimplemented,
            "this operation needs a team whose ranks are all on one node"};
  }
  Request request = {call};
  Result completed = impl::CompleteRequest(comm.size, comm.index, &request);
  if (!completed.ok()) return completed;
  if (Result result = impl::CheckRequest(comm.local, &request, nothing); !result.ok() || *nothing) {
    return result;
  }
  const uint64_t bytes = call.count * DTypeBytes(call.type);
  if (bytes > (1ull << 46) / comm.size) return Invalid("the count is too large");
  for (const auto& [buffer, rows] :
       {std::pair{call.in, request.in_rows},
        std::pair{static_cast<const void*>(call.out), request.out_rows}}) {
    if (impl::OverlapsWorkspace(comm, buffer, rows * bytes)) {
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
  const uint64_t most = comm.config.leaders_most_bytes_of[static_cast<uint32_t>(shape.operation)];
  return impl::LargerBytes(shape, comm.size) <= most ? NodesPath::kLeaders : NodesPath::kRails;
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
  return Driver(comm, call, path, stream).RunBy(path);
}

Result RunPartOnNodes(const NodesComm& comm, const PackedCall& whole, const Call& call,
                      backend::Stream& stream, bool ends) {
  bool nothing = false;
  const NodesPath path = ChoosePath(comm, call);
  Driver driver(comm, call, path, stream, &whole, ends);
  Result result = CheckNodesCall(comm, call, &nothing);
  if (result.ok() && !nothing) result = driver.RunBy(path);
  // Ranks of this node have failed together. The other nodes wait for it.
  if (result.code == StatusCode::kFailedPrecondition) (void)driver.TellOfFailure();
  return result;
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
  if (Result result = PrepareAll<UseKernels>(); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&TurnKernel<>); !result.ok()) return result;
  return backend::PrepareKernel(&QuietKernel<>);
}

}  // namespace iris::ccl
