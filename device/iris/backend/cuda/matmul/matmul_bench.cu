// Checks and times the fused matrix kernels on the GPUs of one machine: one process plays all
// ranks.
//
// Built by nvcc alone, in the root of the repository:
//   nvcc -x cu -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Idevice -o matmul_bench
//     device/iris/backend/cuda/matmul/{matmul_bench.cu,matmul.cc,plan.cc} -ldl
// Cases come from standard input, one a line, as words `name=value` (see Case). Each is checked
// against dot products in float at one place of every 32 x 32 block, and, with pairs=N, timed: the
// operation and the library's product of the same shape are replayed in turns as graphs, N times
// each, and medians of the slowest rank's times are compared. The libraries are opened at run time:
// IRIS_CUBLAS and IRIS_NCCL say where they are.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "iris/backend/cuda/matmul/matmul.h"

namespace {

namespace mm = iris::backend::cuda::matmul;

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(2);                                                                          \
    }                                                                                        \
  } while (0)

struct Case {
  std::string kind = "plain";  // plain, rs, ar, ag, as
  uint64_t m = 0;
  uint64_t n = 0;  // of all ranks together: ag and as split it
  uint64_t k = 0;  // of all ranks together: rs and ar split it
  uint32_t ranks = 1;
  bool half = false;  // float16 instead of bfloat16
  bool wide = false;  // D is float
  bool tb = false;    // B lies as [n, k]
  bool bias = false;
  uint32_t act = 0;
  uint32_t tile = 0;
  uint32_t blocks = 0;
  uint32_t push = 0;
  uint32_t group = 0;
  uint32_t segments = 0;
  bool copies = false;  // all-gather by the copy engine
  uint32_t shift = 0;   // elements by which D is off its alignment
  uint32_t pairs = 0;   // timed pairs; 0: only checked
  uint32_t nccl = 0;    // 1: also the library's product and NCCL's collective
  // 1: the last rank does not come; 2: nor does it, and all are told to give up; 3: it calls
  // something else. The others must give up, and say why.
  uint32_t absent = 0;
};

bool Parse(const std::string& line, Case* c) {
  std::istringstream words(line);
  std::string word;
  while (words >> word) {
    const size_t at = word.find('=');
    if (at == std::string::npos) return false;
    const std::string name = word.substr(0, at);
    const std::string text = word.substr(at + 1);
    if (name == "kind") {
      c->kind = text;
      continue;
    }
    const uint64_t value = std::strtoull(text.c_str(), nullptr, 10);
    const uint32_t small = static_cast<uint32_t>(value);
    if (name == "m")
      c->m = value;
    else if (name == "n")
      c->n = value;
    else if (name == "k")
      c->k = value;
    else if (name == "ranks")
      c->ranks = small;
    else if (name == "half")
      c->half = value != 0;
    else if (name == "wide")
      c->wide = value != 0;
    else if (name == "tb")
      c->tb = value != 0;
    else if (name == "bias")
      c->bias = value != 0;
    else if (name == "act")
      c->act = small;
    else if (name == "tile")
      c->tile = small;
    else if (name == "blocks")
      c->blocks = small;
    else if (name == "push")
      c->push = small;
    else if (name == "group")
      c->group = small;
    else if (name == "segments")
      c->segments = small;
    else if (name == "copies")
      c->copies = value != 0;
    else if (name == "shift")
      c->shift = small;
    else if (name == "pairs")
      c->pairs = small;
    else if (name == "nccl")
      c->nccl = small;
    else if (name == "absent")
      c->absent = small;
    else
      return false;
  }
  return true;
}

// Data: uniform in [-1, 1), by place.

__host__ __device__ uint32_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return static_cast<uint32_t>(x);
}

__global__ void FillRandom(uint16_t* to, uint64_t count, uint64_t seed, bool half) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const float value = static_cast<float>(Mix(seed << 40 ^ i)) * (2.0f / 4294967296.0f) - 1.0f;
    if (half) {
      reinterpret_cast<__half*>(to)[i] = __float2half(value);
    } else {
      reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(value);
    }
  }
}

__device__ float ValueAt(const void* p, uint64_t i, bool half) {
  return half ? __half2float(static_cast<const __half*>(p)[i])
              : __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
}

// What a check needs to know of one product: D[row, column] = sum over parts of a row times a
// column.
struct Reference {
  uint32_t parts;
  const void* a[mm::kMaxRanks];  // of part p
  const void* b[mm::kMaxRanks];
  uint64_t k[mm::kMaxRanks];
  uint64_t lda[mm::kMaxRanks];
  uint64_t ldb[mm::kMaxRanks];
  bool tb;
  bool half;
  bool wide;
  uint32_t act;
  const void* bias;  // at the columns of D, or null
  const void* d;
  uint64_t ldd;
  uint64_t row0;  // of the whole result, where D begins
  uint64_t rows;
  uint64_t columns;
  // A's rows in shares, for all-gather: share s is at a[s], and there is one part.
  uint32_t shares;
  uint64_t m;
  uint64_t seed;
};

// errors: sum of squares of differences, of the reference, and the largest difference.
__global__ void Compare(Reference r, double* errors) {
  const uint64_t blocks_n = (r.columns + 31) / 32;
  const uint64_t samples = (r.rows + 31) / 32 * blocks_n;
  const uint32_t lane = threadIdx.x % 32;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x / 32} + threadIdx.x / 32; i < samples;
       i += uint64_t{gridDim.x} * (blockDim.x / 32)) {
    const uint32_t random = Mix(i ^ r.seed << 32);
    const uint64_t top = i / blocks_n * 32;
    const uint64_t left = i % blocks_n * 32;
    const uint64_t row = top + (random & 0xffff) % min(uint64_t{32}, r.rows - top);
    const uint64_t column = left + (random >> 16) % min(uint64_t{32}, r.columns - left);
    uint64_t at_row = r.row0 + row;
    uint32_t share = 0;
    if (r.shares > 1) {
      const auto begin = [&](uint64_t s) { return s * (r.m / r.shares) + min(s, r.m % r.shares); };
      while (share + 1 < r.shares && at_row >= begin(share + 1)) ++share;
      at_row -= begin(share);
    }
    float sum = 0;
    for (uint32_t p = 0; p < r.parts; ++p) {
      const void* a = r.a[r.shares > 1 ? share : p];
      for (uint64_t k = lane; k < r.k[p]; k += 32) {
        const uint64_t at = r.tb ? column * r.ldb[p] + k : k * r.ldb[p] + column;
        sum += ValueAt(a, at_row * r.lda[p] + k, r.half) * ValueAt(r.b[p], at, r.half);
      }
    }
    for (uint32_t step = 16; step != 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane != 0) continue;
    if (r.bias != nullptr) sum += ValueAt(r.bias, column, r.half);
    if (r.act == 1) sum = fmaxf(sum, 0.0f);
    if (r.act == 2) sum = sum / (1 + expf(-1.5957691216f * (sum + 0.044715f * sum * sum * sum)));
    if (r.act == 3) sum = sum / (1 + expf(-sum));
    const uint64_t at = row * r.ldd + column;
    const float got = r.wide ? static_cast<const float*>(r.d)[at] : ValueAt(r.d, at, r.half);
    const double off = isfinite(got) ? fabs(static_cast<double>(got) - sum) : 1e30;
    atomicAdd(&errors[0], off * off);
    atomicAdd(&errors[1], static_cast<double>(sum) * sum);
    atomicMax(reinterpret_cast<unsigned long long*>(&errors[2]),
              static_cast<unsigned long long>(__double_as_longlong(off)));
  }
}

// The elements around D, and between its rows, must stay as they were.
__global__ void CountChanged(const uint8_t* bytes, uint64_t rows, uint64_t row_bytes,
                             uint64_t pitch, uint64_t before, uint64_t total,
                             unsigned long long* changed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < total;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const bool inside =
        i >= before && (i - before) / pitch < rows && (i - before) % pitch < row_bytes;
    if (!inside && bytes[i] != 0xff) atomicAdd(changed, 1ull);
  }
}

struct Blas {
  int (*create)(void**) = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;
  int (*set_workspace)(void*, void*, size_t) = nullptr;
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
              int, const void*, void*, int, int, int, int) = nullptr;
  bool Open() {
    const char* path = std::getenv("IRIS_CUBLAS");
    void* library = dlopen(path != nullptr ? path : "libcublas.so.13", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      std::printf("no cuBLAS: %s\n", dlerror());
      return false;
    }
    create = reinterpret_cast<decltype(create)>(dlsym(library, "cublasCreate_v2"));
    set_stream = reinterpret_cast<decltype(set_stream)>(dlsym(library, "cublasSetStream_v2"));
    set_workspace =
        reinterpret_cast<decltype(set_workspace)>(dlsym(library, "cublasSetWorkspace_v2"));
    gemm = reinterpret_cast<decltype(gemm)>(dlsym(library, "cublasGemmEx"));
    return create != nullptr && set_stream != nullptr && set_workspace != nullptr &&
           gemm != nullptr;
  }
};

struct Nccl {
  int (*init)(void**, int, const int*) = nullptr;
  int (*start)() = nullptr;
  int (*end)() = nullptr;
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, void*, cudaStream_t) = nullptr;
  std::vector<void*> comms;
  bool Open(int devices) {
    const char* path = std::getenv("IRIS_NCCL");
    void* library = dlopen(path != nullptr ? path : "libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      std::printf("no NCCL: %s\n", dlerror());
      return false;
    }
    init = reinterpret_cast<decltype(init)>(dlsym(library, "ncclCommInitAll"));
    start = reinterpret_cast<decltype(start)>(dlsym(library, "ncclGroupStart"));
    end = reinterpret_cast<decltype(end)>(dlsym(library, "ncclGroupEnd"));
    reduce_scatter =
        reinterpret_cast<decltype(reduce_scatter)>(dlsym(library, "ncclReduceScatter"));
    all_reduce = reinterpret_cast<decltype(all_reduce)>(dlsym(library, "ncclAllReduce"));
    all_gather = reinterpret_cast<decltype(all_gather)>(dlsym(library, "ncclAllGather"));
    comms.resize(devices);
    return init != nullptr && init(comms.data(), devices, nullptr) == 0;
  }
};

struct Rank {
  int device = 0;
  cudaStream_t stream = nullptr;
  void* blas = nullptr;
  uint64_t k = 0;
  uint64_t n = 0;
  uint64_t rows_a = 0;
  uint64_t rows_d = 0;
  uint16_t* a = nullptr;
  uint16_t* b = nullptr;
  uint16_t* bias = nullptr;
  uint8_t* d_memory = nullptr;
  uint64_t d_bytes = 0;
  uint8_t* d = nullptr;
  uint8_t* other = nullptr;     // the library's D
  uint8_t* gathered = nullptr;  // NCCL's output
  uint8_t* workspace = nullptr;
  uint64_t* report = nullptr;
  double* errors = nullptr;
  mm::Problem problem;
  cudaGraphExec_t op = nullptr;
  cudaGraphExec_t product = nullptr;
  cudaGraphExec_t pair = nullptr;
  cudaStream_t copies = nullptr;
  cudaEvent_t events[2] = {};
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

uint64_t Begin(uint64_t m, uint64_t slices, uint64_t s) {
  return s * (m / slices) + std::min(s, m % slices);
}

class Bench {
 public:
  explicit Bench(int devices) : devices_(devices) {
    has_blas_ = blas_.Open();
    for (int i = 0; i < devices; ++i) {
      CHECK(cudaSetDevice(i));
      for (int j = 0; j < devices; ++j) {
        if (i != j) CHECK(cudaDeviceEnablePeerAccess(j, 0));
      }
    }
  }

  bool Run(const Case& c) {
    case_ = c;
    Prepare();
    bool ok = true;
    const char* why = nullptr;
    for (Rank& r : ranks_) {
      if (!mm::Supports(r.problem, &why)) {
        std::printf("%-60s NOT SUPPORTED: %s\n", Name().c_str(), why);
        Release();
        return false;
      }
    }
    if (c.absent != 0) {
      ok = RunAbsent();
    } else {
      ok = Check();
      if (ok && c.pairs != 0) Time();
    }
    Release();
    return ok;
  }

 private:
  bool Ring() const { return case_.kind == "rs" || case_.kind == "ar"; }

  std::string Name() const {
    const Case& c = case_;
    char text[200];
    std::snprintf(text, sizeof(text), "%s %lu,%lu,%lu W%u %s%s%s%s act%u t%u g%u s%u c%u p%u b%u",
                  c.kind.c_str(), c.m, c.n, c.k, c.ranks, c.half ? "f16" : "bf16",
                  c.wide ? ">f32" : "", c.tb ? " NK" : " KN", c.bias ? " bias" : "", c.act, c.tile,
                  c.group, c.segments, c.copies ? 1 : 0, c.push, c.blocks);
    return text;
  }

  template <typename T>
  T* Allocate(uint64_t bytes) {
    void* p = nullptr;
    CHECK(cudaMalloc(&p, std::max<uint64_t>(bytes, 256)));
    allocated_.push_back(p);
    return static_cast<T*>(p);
  }

  void Prepare() {
    const Case& c = case_;
    ranks_.assign(c.ranks, Rank());
    const uint64_t w = c.ranks;
    const uint64_t element = c.wide ? 4 : 2;
    mm::Problem base;
    base.kind = c.kind == "rs"   ? mm::Kind::kReduceScatter
                : c.kind == "ar" ? mm::Kind::kAllReduce
                : c.kind == "ag" ? mm::Kind::kAllGather
                : c.kind == "as" ? mm::Kind::kAllScatter
                                 : mm::Kind::kPlain;
    base.in = c.half ? mm::Type::kFloat16 : mm::Type::kBfloat16;
    base.out = c.wide ? mm::Type::kFloat32 : base.in;
    base.m = c.m;
    base.n_ranks = c.ranks;
    base.transposed_b = c.tb;
    base.bias_type = base.in;
    base.activation = static_cast<mm::Activation>(c.act);
    base.timeout_ns = 1500000000;
    base.tuning.tile = static_cast<mm::Tile>(c.tile);
    base.tuning.blocks = c.blocks;
    base.tuning.push_blocks = c.push;
    base.tuning.group = c.group;
    base.tuning.segments = c.segments;
    for (uint32_t i = 0; i < c.ranks; ++i) {
      Rank& r = ranks_[i];
      r.device = static_cast<int>(i) % devices_;
      CHECK(cudaSetDevice(r.device));
      CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
      CHECK(cudaEventCreate(&r.begin));
      CHECK(cudaEventCreate(&r.end));
      if (has_blas_) {
        blas_.create(&r.blas);
        blas_.set_stream(r.blas, r.stream);
        blas_.set_workspace(r.blas, Allocate<uint8_t>(64 << 20), 64 << 20);
      }
      r.k = Ring() ? Begin(c.k, w, i + 1) - Begin(c.k, w, i) : c.k;
      const bool splits_n = c.kind == "ag" || c.kind == "as";
      r.n = splits_n ? Begin(c.n, w, i + 1) - Begin(c.n, w, i) : c.n;
      r.rows_a = c.kind == "ag" ? Begin(c.m, w, i + 1) - Begin(c.m, w, i) : c.m;
      r.rows_d = c.kind == "rs" ? Begin(c.m, w, i + 1) - Begin(c.m, w, i) : c.m;
      const uint64_t lda = (r.k + 7) / 8 * 8;
      const uint64_t ldb = ((c.tb ? r.k : r.n) + 7) / 8 * 8;
      const uint64_t columns_d = c.kind == "as" ? c.n : r.n;
      const uint64_t ldd = columns_d + (columns_d % 8 == 0 ? 0 : 3);
      const uint64_t rows_b = c.tb ? r.n : r.k;
      r.a = Allocate<uint16_t>(r.rows_a * lda * 2);
      r.b = Allocate<uint16_t>(rows_b * ldb * 2);
      r.bias = Allocate<uint16_t>(r.n * 2);
      r.d_bytes = (r.rows_d * ldd + 128) * element;
      r.d_memory = Allocate<uint8_t>(r.d_bytes);
      r.d = r.d_memory + (64 + c.shift) * element;
      r.report = Allocate<uint64_t>(8);
      r.errors = Allocate<double>(64);
      CHECK(cudaMemset(r.report, 0, 8));
      FillRandom<<<1024, 256, 0, r.stream>>>(r.a, r.rows_a * lda, 1 + 3 * i, c.half);
      FillRandom<<<1024, 256, 0, r.stream>>>(r.b, rows_b * ldb, 2 + 3 * i, c.half);
      FillRandom<<<64, 256, 0, r.stream>>>(r.bias, r.n, 3 + 3 * (Ring() ? 0 : i), c.half);
      CHECK(cudaGetLastError());
      mm::Problem& p = r.problem;
      p = base;
      p.rank = i;
      p.n = r.n;
      p.k = r.k;
      p.a = r.a;
      p.lda = lda;
      p.b = r.b;
      p.ldb = ldb;
      p.ldd = ldd;
      p.bias = c.bias ? r.bias : nullptr;
      p.report = r.report;
      if (c.copies) {
        CHECK(cudaStreamCreateWithFlags(&r.copies, cudaStreamNonBlocking));
        p.copy_stream = r.copies;
        for (uint32_t j = 0; j < 2; ++j) {
          CHECK(cudaEventCreateWithFlags(&r.events[j], cudaEventDisableTiming));
          p.copy_events[j] = r.events[j];
        }
      }
    }
    uint64_t bytes = 0;
    for (Rank& r : ranks_) bytes = std::max(bytes, mm::WorkspaceBytes(r.problem));
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      r.workspace = Allocate<uint8_t>(bytes);
      CHECK(cudaMemset(r.workspace, 0, bytes));
    }
    for (uint32_t i = 0; i < c.ranks; ++i) {
      mm::Problem& p = ranks_[i].problem;
      p.workspace_bytes = bytes;
      for (uint32_t j = 0; j < c.ranks; ++j) {
        p.workspace[j] = ranks_[j].workspace;
        p.d[j] = ranks_[j].d;
        if (c.kind == "as") p.d[j] = ranks_[j].d + Begin(c.n, w, i) * element;
      }
    }
    Synchronize();
  }

  void Synchronize() {
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      CHECK(cudaDeviceSynchronize());
    }
  }

  void Launch(Rank& r) {
    const char* wrong = mm::Launch(r.problem, r.stream);
    if (wrong != nullptr) {
      std::printf("launch: %s\n", wrong);
      std::exit(2);
    }
  }

  bool Check() {
    const Case& c = case_;
    const uint64_t element = c.wide ? 4 : 2;
    double worst = 0;
    double largest = 0;
    uint64_t reports = 0;
    unsigned long long changed = 0;
    // Three times: both halves of the workspace, and one of them again.
    for (uint32_t round = 0; round < 3; ++round) {
      for (Rank& r : ranks_) {
        CHECK(cudaSetDevice(r.device));
        CHECK(cudaMemset(r.d_memory, 0xff, r.d_bytes));
        CHECK(cudaMemset(r.errors, 0, 64));
      }
      Synchronize();
      for (Rank& r : ranks_) {
        CHECK(cudaSetDevice(r.device));
        Launch(r);
      }
      Synchronize();
      for (uint32_t i = 0; i < c.ranks; ++i) {
        Rank& r = ranks_[i];
        CHECK(cudaSetDevice(r.device));
        uint64_t report = 0;
        CHECK(cudaMemcpy(&report, r.report, 8, cudaMemcpyDefault));
        if (report != 0) {
          ++reports;
          std::printf("  rank %u reports %lx\n", i, report);
        }
        // All-scatter: the columns of every rank lie in this rank's D.
        const uint32_t blocks = c.kind == "as" ? c.ranks : 1;
        for (uint32_t block = 0; block < blocks; ++block) {
          const Rank& source = c.kind == "as" ? ranks_[block] : r;
          Reference f = {};
          f.parts = Ring() ? c.ranks : 1;
          f.shares = c.kind == "ag" ? c.ranks : 1;
          for (uint32_t j = 0; j < c.ranks; ++j) {
            const Rank& part = Ring() || c.kind == "ag" ? ranks_[j] : source;
            f.a[j] = part.a;
            f.b[j] = Ring() ? part.b : source.b;
            f.k[j] = part.k;
            f.lda[j] = part.problem.lda;
            f.ldb[j] = Ring() ? part.problem.ldb : source.problem.ldb;
          }
          f.tb = c.tb;
          f.half = c.half;
          f.wide = c.wide;
          f.act = c.act;
          f.bias = c.bias ? source.bias : nullptr;
          f.d = c.kind == "as" ? source.problem.d[i] : r.d;
          f.ldd = r.problem.ldd;
          f.row0 = c.kind == "rs" ? Begin(c.m, c.ranks, i) : 0;
          f.rows = r.rows_d;
          f.columns = source.n;
          f.m = c.m;
          f.seed = round * 131 + i * 17 + block;
          Compare<<<1024, 256>>>(f, r.errors);
        }
        const uint64_t columns_d = c.kind == "as" ? c.n : r.n;
        CountChanged<<<512, 256>>>(r.d_memory, r.rows_d, columns_d * element,
                                   r.problem.ldd * element, (64 + c.shift) * element, r.d_bytes,
                                   reinterpret_cast<unsigned long long*>(r.errors + 3));
        CHECK(cudaGetLastError());
        double errors[4];
        CHECK(cudaMemcpy(errors, r.errors, sizeof(errors), cudaMemcpyDefault));
        unsigned long long here = 0;
        std::memcpy(&here, &errors[3], 8);
        changed += here;
        worst = std::max(worst, std::sqrt(errors[0] / std::max(errors[1], 1e-30)));
        const double samples = ((r.rows_d + 31) / 32) * static_cast<double>((columns_d + 31) / 32);
        largest = std::max(largest, errors[2] / std::sqrt(std::max(errors[1], 1e-30) / samples));
      }
    }
    const bool ok = reports == 0 && changed == 0 && worst < 6e-3 && largest < 0.06;
    std::printf("%-62s %s error %.1e, largest %.1e%s\n", Name().c_str(), ok ? "ok  " : "FAIL",
                worst, largest, changed != 0 ? ", CHANGED OUTSIDE" : "");
    std::fflush(stdout);
    return ok;
  }

  // The others must say why they gave up, and finish.
  bool RunAbsent() {
    const uint32_t last = case_.ranks - 1;
    const uint32_t launched = case_.absent == 3 ? case_.ranks : last;
    for (uint32_t i = 0; i < launched; ++i) {
      Rank& r = ranks_[i];
      CHECK(cudaSetDevice(r.device));
      r.problem.timeout_ns = case_.absent == 2 ? 2000000000 : 100000000;
      if (case_.absent == 2) {
        uint32_t* word = Allocate<uint32_t>(4);
        CHECK(cudaMemset(word, 1, 4));
        r.problem.abort = word;
      }
      if (case_.absent == 3 && i == last) r.problem.m -= case_.ranks;
      Launch(r);
      Launch(r);
    }
    Synchronize();
    const mm::Failure expected = case_.absent == 1   ? mm::Failure::kTimeout
                                 : case_.absent == 2 ? mm::Failure::kAborted
                                                     : mm::Failure::kCallsDiffer;
    bool ok = true;
    for (uint32_t i = 0; i < last; ++i) {
      uint64_t report = 0;
      CHECK(cudaMemcpy(&report, ranks_[i].report, 8, cudaMemcpyDefault));
      // Where calls differ, one notices it, and others may miss that one first.
      const uint64_t code = report & 0xff;
      const bool right = code == static_cast<uint64_t>(expected) ||
                         (case_.absent == 3 && code != 0 && case_.ranks > 2);
      ok = ok && right;
      std::printf("%-62s %s absent=%u: rank %u of %u tells code %lu, waited for %lu, launch %lu\n",
                  Name().c_str(), right ? "ok  " : "FAIL", case_.absent, i, case_.ranks, code,
                  report >> 8 & 0xff, report >> 32);
    }
    std::fflush(stdout);
    return ok;
  }

  void Product(Rank& r) {
    const Case& c = case_;
    const float one = 1;
    const float zero = 0;
    const int type = c.half ? 2 : 14;
    const int out = c.wide ? 0 : type;
    const mm::Problem& p = r.problem;
    const uint8_t* a = c.kind == "ag" ? r.gathered : reinterpret_cast<const uint8_t*>(r.a);
    const int status =
        blas_.gemm(r.blas, c.tb ? 1 : 0, 0, static_cast<int>(r.n), static_cast<int>(c.m),
                   static_cast<int>(r.k), &one, r.b, type, static_cast<int>(p.ldb), a, type,
                   static_cast<int>(p.lda), &zero, r.other, out, static_cast<int>(r.n), 68, -1);
    if (status != 0) {
      std::printf("cuBLAS: %d\n", status);
      std::exit(2);
    }
  }

  void Collective(Rank& r, void* comm) {
    const Case& c = case_;
    const int type = c.wide ? 7 : c.half ? 6 : 9;
    const int in = c.half ? 6 : 9;
    const uint64_t all = c.m * r.n;
    if (c.kind == "rs") nccl_.reduce_scatter(r.other, r.d, all / c.ranks, type, 0, comm, r.stream);
    if (c.kind == "ar") nccl_.all_reduce(r.other, r.other, all, type, 0, comm, r.stream);
    if (c.kind == "ag") {
      nccl_.all_gather(r.a, r.gathered, r.rows_a * r.problem.lda, in, comm, r.stream);
    }
    if (c.kind == "as") nccl_.all_gather(r.other, r.gathered, all, type, comm, r.stream);
  }

  template <typename Body>
  void Capture(cudaGraphExec_t Rank::*graph, Body body) {
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      CHECK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeRelaxed));
    }
    body();
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      cudaGraph_t captured = nullptr;
      CHECK(cudaStreamEndCapture(r.stream, &captured));
      CHECK(cudaGraphInstantiate(&(r.*graph), captured, 0));
      CHECK(cudaGraphDestroy(captured));
      CHECK(cudaGraphUpload(r.*graph, r.stream));
    }
  }

  // Microseconds of one operation, at the slowest rank.
  double Replay(cudaGraphExec_t Rank::*graph, uint32_t repeats) {
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      CHECK(cudaEventRecord(r.begin, r.stream));
      CHECK(cudaGraphLaunch(r.*graph, r.stream));
      CHECK(cudaEventRecord(r.end, r.stream));
    }
    double slowest = 0;
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      CHECK(cudaStreamSynchronize(r.stream));
      float ms = 0;
      CHECK(cudaEventElapsedTime(&ms, r.begin, r.end));
      slowest = std::max(slowest, static_cast<double>(ms) * 1000 / repeats);
    }
    return slowest;
  }

  static double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  void Time() {
    const Case& c = case_;
    if (!has_blas_) return;
    const uint64_t element = c.wide ? 4 : 2;
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      r.other = Allocate<uint8_t>(c.m * r.n * element);
      r.gathered = Allocate<uint8_t>(c.kind == "ag" ? c.m * r.problem.lda * 2
                                                    : c.m * r.n * c.ranks * element);
      FillRandom<<<1024, 256, 0, r.stream>>>(reinterpret_cast<uint16_t*>(r.gathered),
                                             c.kind == "ag" ? c.m * r.problem.lda : c.m * r.n, 77,
                                             c.half);
    }
    Synchronize();
    const double flops = 2.0 * c.m * ranks_[0].n * ranks_[0].k;
    const uint32_t repeats =
        std::clamp<uint32_t>(static_cast<uint32_t>(5e-3 / (flops / 700e12 + 5e-6)), 2, 300);
    Capture(&Rank::op, [&] {
      for (uint32_t i = 0; i < repeats; ++i) {
        for (Rank& r : ranks_) {
          CHECK(cudaSetDevice(r.device));
          Launch(r);
        }
      }
    });
    Capture(&Rank::product, [&] {
      for (uint32_t i = 0; i < repeats; ++i) {
        for (Rank& r : ranks_) {
          CHECK(cudaSetDevice(r.device));
          Product(r);
        }
      }
    });
    bool with_nccl = c.nccl != 0 && static_cast<int>(c.ranks) == devices_;
    if (with_nccl && nccl_.comms.empty()) with_nccl = nccl_.Open(devices_);
    if (with_nccl) {
      Capture(&Rank::pair, [&] {
        for (uint32_t i = 0; i < repeats; ++i) {
          const bool first = c.kind == "ag";
          for (uint32_t half = 0; half < 2; ++half) {
            if ((half == 0) == first) {
              nccl_.start();
              for (uint32_t j = 0; j < c.ranks; ++j) {
                CHECK(cudaSetDevice(ranks_[j].device));
                Collective(ranks_[j], nccl_.comms[j]);
              }
              nccl_.end();
            } else {
              for (Rank& r : ranks_) {
                CHECK(cudaSetDevice(r.device));
                Product(r);
              }
            }
          }
        }
      });
    }
    std::vector<double> ops;
    std::vector<double> products;
    std::vector<double> ratios;
    std::vector<double> both;
    for (uint32_t i = 0; i < c.pairs + 3; ++i) {
      const double product = Replay(&Rank::product, repeats);
      const double op = Replay(&Rank::op, repeats);
      const double pair = with_nccl ? Replay(&Rank::pair, repeats) : 0;
      if (i < 3) continue;
      ops.push_back(op);
      products.push_back(product);
      ratios.push_back(op / product);
      both.push_back(pair);
    }
    const double op = Median(ops);
    const double product = Median(products);
    std::printf("%-62s TIME op %.1f us, mm %.1f us, ratio %.3f", Name().c_str(), op, product,
                Median(ratios));
    if (with_nccl) {
      std::printf(", mm + NCCL %.1f us (%.2f)", Median(both), Median(both) / product);
    }
    uint64_t report = 0;
    for (Rank& r : ranks_) {
      uint64_t here = 0;
      CHECK(cudaMemcpy(&here, r.report, 8, cudaMemcpyDefault));
      report |= here;
    }
    std::printf("%s\n", report != 0 ? " REPORTED A FAILURE" : "");
    std::fflush(stdout);
  }

  void Release() {
    Synchronize();
    for (Rank& r : ranks_) {
      CHECK(cudaSetDevice(r.device));
      for (cudaGraphExec_t graph : {r.op, r.product, r.pair}) {
        if (graph != nullptr) CHECK(cudaGraphExecDestroy(graph));
      }
      CHECK(cudaEventDestroy(r.begin));
      CHECK(cudaEventDestroy(r.end));
      CHECK(cudaStreamDestroy(r.stream));
      if (r.copies != nullptr) {
        CHECK(cudaStreamDestroy(r.copies));
        for (cudaEvent_t event : r.events) CHECK(cudaEventDestroy(event));
      }
    }
    for (void* p : allocated_) CHECK(cudaFree(p));
    allocated_.clear();
  }

  int devices_;
  Blas blas_;
  Nccl nccl_;
  bool has_blas_ = false;
  Case case_;
  std::vector<Rank> ranks_;
  std::vector<void*> allocated_;
};

}  // namespace

int main() {
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  Bench bench(devices);
  std::string line;
  bool ok = true;
  while (std::getline(std::cin, line)) {
    if (line.empty() || line[0] == '#') continue;
    Case c;
    if (!Parse(line, &c) || c.m == 0 || c.n == 0 || c.k == 0 || c.ranks == 0 ||
        c.ranks > mm::kMaxRanks) {
      std::printf("not a case: %s\n", line.c_str());
      return 2;
    }
    ok = bench.Run(c) && ok;
  }
  std::printf("%s\n", ok ? "ALL OK" : "SOME FAILED");
  return ok ? 0 : 1;
}
