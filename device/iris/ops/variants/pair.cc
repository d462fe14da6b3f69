// kPair: a GEMM and a collective, one after the other. The collective is one of the Comm, or, for
// ranks on several nodes, of the NodesComm.
//
// First a round of the team compares the calls; on several nodes, a round of the ranks of each, and
// the collective compares the calls of nodes. Then it runs these steps, where R is the number of
// rows, or columns, of the member that has most of them, and "product" is a GEMM:
//
//   all_reduce      product -> part[m, n]; all_reduce of the part; finish -> D
//   reduce_scatter  products -> parts[members][R, n]; reduce_scatter; finish -> D
//   all_gather_     rows -> parts[members][R, k]; all_gather; products -> D
//   _all_gather     product, finish -> parts[members][R, n]; all_gather; copies -> D
//   _all_scatter    product, finish -> parts[members][m, R]; all_gather; copies -> D
//
// If D has the layout of the parts, it replaces them. Parts of sums have the type of D.
#include <cstdint>
#include <optional>

#include "iris/backend/library_product.h"
#include "iris/collective/collective.h"
#include "iris/nodes/nodes.h"
#include "iris/ops/impl/fused.h"
#include "iris/ops/variant.h"
#include "iris/rounds/launch.h"

namespace iris::ops::impl {

// A GEMM by the tiles of kFused, without communication.
template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product<T>::kThreads,
                               1) void LocalMatmul(IRIS_PARAM MatmulCall call) {
  IRIS_SHARED(uint8_t* [1], places);
  IRIS_SHARED(Bytes16[Product<T>::kSharedBytes / sizeof(Bytes16)], slices);
  if (backend::ThreadIndex() == 0) places[0] = call.d;
  Maker<T> maker(call, slices);
  const Area area = {call.m, call.n, 0, 0, 0, 0};
  const uint32_t tiles = CountTiles(area);
  for (uint64_t t = backend::BlockIndex(); t < tiles; t += backend::GridSize()) {
    const Area tile = TileOf(area, static_cast<uint32_t>(t));
    maker.Make(reinterpret_cast<const T*>(call.a), call.lda, tile);
    maker.Emit(tile, places, 1);
  }
}

// Arguments of FinishRows, which copies rows and applies bias and activation, perhaps in place.
struct FinishCall {
  const uint8_t* from;
  uint8_t* to;
  const uint8_t* bias;  // null: none
  uint64_t from_ld;
  uint64_t to_ld;
  uint64_t rows;
  uint32_t columns;
  DType from_type;
  DType to_type;
  DType bias_type;
  Activation activation;
};

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(256, 1) void FinishRows(IRIS_PARAM FinishCall call) {
  const uint32_t each = PackOf(call.to_type);
  const uint64_t packs = (call.columns + each - 1) / each;
  IRIS_SHARED(uint8_t* [1], places);
  if (backend::ThreadIndex() == 0) places[0] = call.to;
  iris::impl::SyncInsideBlock();
  const uint64_t step = uint64_t{backend::GridSize()} * backend::BlockSize();
  const bool narrow = call.from_type != DType::kF32;
  for (uint64_t i = uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
       i < call.rows * packs; i += step) {
    const uint64_t row = i / packs;
    const uint32_t column = static_cast<uint32_t>(i % packs) * each;
    const uint32_t rest = call.columns - column;
    const uint32_t count = rest < each ? rest : each;
    const uint64_t at = row * call.from_ld + column;
    float values[8] = {};
    const uint8_t* const first = call.from + at * (narrow ? 2 : 4);
    if (narrow && count == 8 && (reinterpret_cast<uint64_t>(first) & 15) == 0) {
      const Bytes16 pack = backend::Load16<CacheHint::kDefault>(first);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < 8; ++e) {
        values[e] = call.from_type == DType::kF16
                        ? static_cast<float>(ElementOf<Half>(pack, e))
                        : static_cast<float>(ElementOf<Bfloat16>(pack, e));
      }
    } else {
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < 8; ++e) {
        if (e < count) values[e] = LoadFloat(call.from, call.from_type, at + e);
      }
    }
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < 8; ++e) {
      if (e >= count) continue;
      float x = values[e];
      if (call.bias != nullptr) x += LoadFloat(call.bias, call.bias_type, uint64_t{column} + e);
      values[e] = Activate(call.activation, x);
    }
    StoreToAll(places, 1, row * call.to_ld + column, call.to_type, values, count);
  }
}

namespace {

constexpr uint64_t kAlignment = ccl::kWorkspaceAlignmentBytes;

uint64_t MostOf(uint64_t dimension, uint32_t members) {
  return ShareOf(dimension, members, 0).count;
}

uint64_t PartBytes(const Problem& problem, uint32_t members) {
  const uint64_t out = DTypeBytes(problem.out);
  switch (problem.operation) {
    case Operation::kMatmulAllReduce:
      return problem.m * problem.n * out;
    case Operation::kAllGatherMatmul:
      return members * MostOf(problem.m, members) *
             GatheredStride(static_cast<uint32_t>(problem.k)) * DTypeBytes(problem.in);
    case Operation::kMatmulAllScatter:
      return members * MostOf(problem.n, members) * problem.m * out;
    default:
      return members * MostOf(problem.m, members) * problem.n * out;
  }
}

uint64_t LibraryBytes() {
  return backend::LibraryProductName() != nullptr ? backend::kLibraryWorkspaceBytes : 0;
}

uint64_t Bytes(uint32_t members, const ccl::Config&, const Problem& problem) {
  return ccl::impl::RoundUp(members == 1 ? 0 : PartBytes(problem, members), kAlignment) +
         LibraryBytes();
}

uint32_t BlocksFor(uint64_t work) {
  const uint64_t most = backend::Traits::kEmulated ? 8 : backend::MultiprocessorCount();
  return static_cast<uint32_t>(work < 1 ? 1 : ccl::impl::Min(work, most < 1 ? 1 : most));
}

// Returns the name of the vendor's library if this Comm's GEMMs use it; null if they use Iris's own
// kernel, which was loaded when the Comm was made. The library loads a kernel at the first call of
// each shape, whatever the environment says, and loading waits for this process's work on the
// device: not allowed while a collective of another rank of this process waits for this rank.
const char* LibraryFor(const ccl::Comm& comm) {
  return ccl::SharesProcess(comm) ? nullptr : backend::LibraryProductName();
}

void Complete(const ccl::Comm& comm, const Problem&, const Matmul*, LaunchPlan* plan) {
  const char* const library = LibraryFor(comm);
  plan->multiplier = library != nullptr ? library : "iris";
  // The round has one block.
  plan->blocks = 1;
  plan->threads = backend::Traits::kWarpThreads;
  plan->tile_rows = kTile.rows;
  plan->tile_columns = kTile.columns;
}

// The steps of one call.
class Pair {
 public:
  // `packed` is the call as ranks compare it.
  Pair(const Ranks& ranks, const Matmul& call, const ccl::PackedCall& packed,
       backend::Stream& stream)
      : ranks_(ranks),
        packed_(packed),
        call_(call),
        problem_(call.problem),
        stream_(stream),
        library_(LibraryFor(ranks.comm) != nullptr) {
    // The workspace of the collectives ends before the parts, which are the collectives' buffers.
    const ccl::Comm& comm = ranks.comm;
    const uint64_t begin = WorkspaceOffset(comm);
    plain_ = comm;
    plain_.workspace_bytes = begin - comm.workspace_offset_bytes;
    if (ranks.nodes != nullptr) nodes_.emplace(*ranks.nodes).local = plain_;
    parts_ = iris::AtOffset<uint8_t>(comm.context, comm.context.rank, begin + kArrivalBytes);
    library_workspace_ = parts_;
    if (members() > 1) {
      library_workspace_ += ccl::impl::RoundUp(PartBytes(problem_, members()), kAlignment);
    }
  }

  Result Run() {
    if (members() == 1)
      return MultiplyAndFinish(call_.a, call_.d, call_.ldd, problem_.m, problem_.n);
    switch (problem_.operation) {
      case Operation::kMatmulAllReduce:
        return AllReduce();
      case Operation::kMatmulReduceScatter:
        return ReduceScatter();
      case Operation::kAllGatherMatmul:
        return GatherAndMultiply();
      case Operation::kMatmulAllGather:
        return AllGather();
      default:
        return AllScatter();
    }
  }

 private:
  uint32_t members() const { return ranks_.size(); }
  uint32_t me() const { return ranks_.index(); }
  uint64_t out_bytes() const { return DTypeBytes(problem_.out); }
  bool finishes() const {
    return problem_.bias != DType::kNone || problem_.activation != Activation::kNone;
  }

  Result Collect(Operation operation, const void* in, void* out, uint64_t count, DType type) {
    const ccl::Call call = {{operation, count, type}, in, out};
    return nodes_ ? ccl::RunPartOnNodes(*nodes_, packed_, call, stream_)
                  : ccl::Run(plain_, call, stream_);
  }

  // Multiplies `a` by B. If `whole`, Iris's kernel also applies bias and activation; the library
  // does not. `*finished` is false if they are still to be applied.
  Result Multiply(const void* a, uint64_t lda, void* d, uint64_t ldd, uint64_t rows,
                  uint64_t columns, bool whole, bool* finished) {
    *finished = true;
    if (rows == 0 || columns == 0) return {};
    if (library_) {
      const Result result = backend::MultiplyByLibrary(
          {rows, columns, problem_.k, problem_.in, problem_.out, problem_.transposed_b, a, lda,
           call_.b, call_.ldb, d, ldd, library_workspace_},
          stream_);
      *finished = !finishes();
      if (result.code != StatusCode::kUnimplemented) return result;
    }
    *finished = whole || !finishes();
    MatmulCall matmul = {};
    matmul.a = static_cast<const uint8_t*>(a);
    matmul.b = static_cast<const uint8_t*>(call_.b);
    if (whole && problem_.bias != DType::kNone) {
      matmul.bias = static_cast<const uint8_t*>(call_.bias);
    }
    matmul.d = static_cast<uint8_t*>(d);
    matmul.lda = lda;
    matmul.ldb = call_.ldb;
    matmul.ldd = ldd;
    matmul.m = static_cast<uint32_t>(rows);
    matmul.n = static_cast<uint32_t>(columns);
    matmul.k = static_cast<uint32_t>(problem_.k);
    matmul.out = problem_.out;
    matmul.bias_type = problem_.bias;
    matmul.activation = whole ? problem_.activation : Activation::kNone;
    matmul.transposed_b = problem_.transposed_b ? 1 : 0;
    const Area area = {matmul.m, matmul.n, 0, 0, 0, 0};
    const LaunchConfig config = {BlocksFor(CountTiles(area)), kTile.threads, 0};
    return problem_.in == DType::kF16
               ? backend::Launch(config, stream_, &LocalMatmul<Half>, matmul)
               : backend::Launch(config, stream_, &LocalMatmul<Bfloat16>, matmul);
  }
  Result MultiplyAndFinish(const void* a, void* d, uint64_t ldd, uint64_t rows, uint64_t columns) {
    bool finished = false;
    Result result = Multiply(a, call_.lda, d, ldd, rows, columns, true, &finished);
    if (!result.ok() || finished) return result;
    return Move(d, ldd, problem_.out, d, ldd, rows, columns, true);
  }

  // Copies rows of type `type` to a D, and if `whole`, applies bias and activation.
  Result Move(const void* from, uint64_t from_ld, DType type, void* to, uint64_t to_ld,
              uint64_t rows, uint64_t columns, bool whole) {
    if (rows == 0 || columns == 0) return {};
    FinishCall finish = {};
    finish.from = static_cast<const uint8_t*>(from);
    finish.to = static_cast<uint8_t*>(to);
    if (whole && problem_.bias != DType::kNone) {
      finish.bias = static_cast<const uint8_t*>(call_.bias);
    }
    finish.from_ld = from_ld;
    finish.to_ld = to_ld;
    finish.rows = rows;
    finish.columns = static_cast<uint32_t>(columns);
    finish.from_type = type;
    finish.to_type = type;
    finish.bias_type = problem_.bias;
    finish.activation = whole ? problem_.activation : Activation::kNone;
    const uint32_t threads = backend::Traits::kEmulated ? 32 : 256;
    return backend::Launch({BlocksFor(rows * columns / (threads * 8) + 1), threads, 0}, stream_,
                           &FinishRows<>, finish);
  }

  Result AllReduce() {
    const uint64_t n = problem_.n;
    bool finished = false;
    Result result = Multiply(call_.a, call_.lda, parts_, n, problem_.m, n, false, &finished);
    if (!result.ok()) return result;
    const bool direct = call_.ldd == n && !finishes();
    void* const sums = direct ? call_.d : parts_;
    result = Collect(Operation::kAllReduce, parts_, sums, problem_.m * n, problem_.out);
    if (!result.ok() || direct) return result;
    return Move(parts_, n, problem_.out, call_.d, call_.ldd, problem_.m, n, true);
  }

  Result ReduceScatter() {
    const uint64_t n = problem_.n;
    const uint64_t most = MostOf(problem_.m, members());
    const bool even = problem_.m % members() == 0;
    const uint64_t in_bytes = DTypeBytes(problem_.in);
    bool finished = false;
    Result result;
    for (uint32_t o = 0; result.ok() && o < (even ? 1 : members()); ++o) {
      const Share share = ShareOf(problem_.m, members(), o);
      result = Multiply(static_cast<const uint8_t*>(call_.a) + share.begin * call_.lda * in_bytes,
                        call_.lda, parts_ + o * most * n * out_bytes(), n,
                        even ? problem_.m : share.count, n, false, &finished);
    }
    if (!result.ok()) return result;
    const bool direct = even && call_.ldd == n && !finishes();
    uint8_t* const own = parts_ + me() * most * n * out_bytes();
    result =
        Collect(Operation::kReduceScatter, parts_, direct ? call_.d : own, most * n, problem_.out);
    if (!result.ok() || direct) return result;
    return Move(own, n, problem_.out, call_.d, call_.ldd,
                ShareOf(problem_.m, members(), me()).count, n, true);
  }

  Result GatherAndMultiply() {
    const uint64_t most = MostOf(problem_.m, members());
    const uint64_t ld = GatheredStride(static_cast<uint32_t>(problem_.k));
    const uint64_t in_bytes = DTypeBytes(problem_.in);
    uint8_t* const own = parts_ + me() * most * ld * in_bytes;
    Result result = Move(call_.a, call_.lda, problem_.in, own, ld,
                         ShareOf(problem_.m, members(), me()).count, problem_.k, false);
    if (result.ok()) {
      result = Collect(Operation::kAllGather, own, parts_, most * ld, problem_.in);
    }
    const bool even = problem_.m % members() == 0;
    for (uint32_t o = 0; result.ok() && o < (even ? 1 : members()); ++o) {
      const Share share = ShareOf(problem_.m, members(), o);
      uint8_t* const d = static_cast<uint8_t*>(call_.d) + share.begin * call_.ldd * out_bytes();
      const uint64_t rows = even ? problem_.m : share.count;
      bool finished = false;
      result = Multiply(parts_ + o * most * ld * in_bytes, ld, d, call_.ldd, rows, problem_.n, true,
                        &finished);
      if (result.ok() && !finished) {
        result = Move(d, call_.ldd, problem_.out, d, call_.ldd, rows, problem_.n, true);
      }
    }
    return result;
  }

  Result AllGather() {
    const uint64_t n = problem_.n;
    const uint64_t most = MostOf(problem_.m, members());
    const bool direct = problem_.m % members() == 0 && call_.ldd == n;
    uint8_t* const all = direct ? static_cast<uint8_t*>(call_.d) : parts_;
    uint8_t* const own = all + me() * most * n * out_bytes();
    Result result =
        MultiplyAndFinish(call_.a, own, n, ShareOf(problem_.m, members(), me()).count, n);
    if (result.ok()) {
      result = Collect(Operation::kAllGather, own, all, most * n, problem_.out);
    }
    for (uint32_t o = 0; result.ok() && !direct && o < members(); ++o) {
      const Share share = ShareOf(problem_.m, members(), o);
      result = Move(parts_ + o * most * n * out_bytes(), n, problem_.out,
                    static_cast<uint8_t*>(call_.d) + share.begin * call_.ldd * out_bytes(),
                    call_.ldd, share.count, n, false);
    }
    return result;
  }

  Result AllScatter() {
    const uint64_t most = MostOf(problem_.n, members());
    const uint64_t part = problem_.m * most;
    uint8_t* const own = parts_ + me() * part * out_bytes();
    Result result = MultiplyAndFinish(call_.a, own, most, problem_.m,
                                      ShareOf(problem_.n, members(), me()).count);
    if (result.ok()) {
      result = Collect(Operation::kAllGather, own, parts_, part, problem_.out);
    }
    for (uint32_t o = 0; result.ok() && o < members(); ++o) {
      const Share share = ShareOf(problem_.n, members(), o);
      result = Move(parts_ + o * part * out_bytes(), most, problem_.out,
                    static_cast<uint8_t*>(call_.d) + share.begin * out_bytes(), call_.ldd,
                    problem_.m, share.count, false);
    }
    return result;
  }

  const Ranks& ranks_;
  const ccl::PackedCall& packed_;
  const Matmul& call_;
  const Problem& problem_;
  backend::Stream& stream_;
  const bool library_;  // true: the library multiplies
  ccl::Comm plain_;
  std::optional<ccl::NodesComm> nodes_;  // over plain_
  uint8_t* parts_;
  uint8_t* library_workspace_;
};

Result LaunchPairOn(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
                    backend::Stream& stream) {
  return LaunchPair({comm}, call, plan, stream);
}

Result PreparePair() {
  if (Result result = backend::PrepareKernel(&FinishRows<>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&LocalMatmul<Half>); !result.ok()) return result;
  return backend::PrepareKernel(&LocalMatmul<Bfloat16>);
}

bool SupportsAll(const ccl::Comm*, const Problem&, uint32_t, const Matmul*, const char**) {
  return true;
}

}  // namespace

const VariantRow kPairRow = {
    Variant::kPair, &SupportsAll, &Bytes, &Complete, &LaunchPairOn, &PreparePair,
};

Result LaunchPair(const Ranks& ranks, const Matmul& call, const LaunchPlan& plan,
                  backend::Stream& stream) {
  const ccl::Comm& comm = ranks.comm;
  const Common common = CommonOf(comm, call, plan);
  Result result;
  if (comm.team.size > 1) {
    // The round counts as an operation: a member that waits long shows its call with the
    // operation's number, and the collective that follows is another call.
    result = LaunchOpening(common, true, false, stream);
  }
  if (result.ok()) result = Pair(ranks, call, common.call, stream).Run();
  // The GEMM reads rows in the workspace after the last round, that of the collective. On several
  // nodes no copies disturb it.
  if (result.ok() && ranks.nodes == nullptr &&
      call.problem.operation == Operation::kAllGatherMatmul) {
    result = LaunchEndOfReads(comm, common, stream);
  }
  // The Comm was usable when the launch began. Later failures, such as one of the round, are
  // reported like any failure on the device.
  return result.code == StatusCode::kFailedPrecondition ? Result{} : result;
}

}  // namespace iris::ops::impl
