// GEMMs by cuBLASLt, which is opened at run time. The library's interface, stable since version 11,
// is declared here.
#include "iris/backend/library_product.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <mutex>

#include "iris/backend/select.h"

namespace iris::backend {
namespace {

constexpr uint32_t kMaxDevices = 64;
constexpr int kCompute32F = 68;
constexpr int kTranspose = 1;
constexpr int kDescTransA = 3;
constexpr int kPreferWorkspaceBytes = 1;
constexpr int kPreferAlignmentA = 5;  // then those of B, C and D

struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

struct Functions {
  int (*create)(void** handle);
  int (*desc_create)(void** desc, int compute, int scale_type);
  int (*desc_destroy)(void* desc);
  int (*desc_set)(void* desc, int attribute, const void* value, size_t bytes);
  int (*layout_create)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*layout_destroy)(void* layout);
  int (*preference_create)(void** preference);
  int (*preference_destroy)(void* preference);
  int (*preference_set)(void* preference, int attribute, const void* value, size_t bytes);
  int (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                   int wanted, Heuristic* results, int* found);
  int (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,
                const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                void* d, void* d_layout, const uint64_t* algorithm, void* workspace, size_t bytes,
                cudaStream_t stream);
};

template <typename F>
bool Find(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

// The library's functions, and a handle for each device. Opened once, never closed.
class Library {
 public:
  static Library& Get() {
    static Library* const library = new Library();
    return *library;
  }

  const Functions* functions() const { return open_ ? &functions_ : nullptr; }

  // Returns null if the library makes no handle for the device.
  void* HandleOf(int device) {
    if (device < 0 || device >= static_cast<int>(kMaxDevices)) return nullptr;
    const std::lock_guard<std::mutex> lock(mu_);
    void*& handle = handles_[device];
    if (handle == nullptr && functions_.create(&handle) != 0) handle = nullptr;
    return handle;
  }

 private:
  Library() {
    void* library = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return;
    Functions& f = functions_;
    open_ = Find(library, "cublasLtCreate", &f.create) &&
            Find(library, "cublasLtMatmulDescCreate", &f.desc_create) &&
            Find(library, "cublasLtMatmulDescDestroy", &f.desc_destroy) &&
            Find(library, "cublasLtMatmulDescSetAttribute", &f.desc_set) &&
            Find(library, "cublasLtMatrixLayoutCreate", &f.layout_create) &&
            Find(library, "cublasLtMatrixLayoutDestroy", &f.layout_destroy) &&
            Find(library, "cublasLtMatmulPreferenceCreate", &f.preference_create) &&
            Find(library, "cublasLtMatmulPreferenceDestroy", &f.preference_destroy) &&
            Find(library, "cublasLtMatmulPreferenceSetAttribute", &f.preference_set) &&
            Find(library, "cublasLtMatmulAlgoGetHeuristic", &f.heuristic) &&
            Find(library, "cublasLtMatmul", &f.matmul);
  }

  Functions functions_ = {};
  bool open_ = false;
  std::mutex mu_;
  void* handles_[kMaxDevices] = {};
};

int TypeOf(DType type) { return type == DType::kF32 ? 0 : type == DType::kF16 ? 2 : 14; }

// Returns the alignment of an address, at most 256, by which the library chooses.
uint32_t AlignmentOf(const void* p) {
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// Owns the library's objects of one call.
struct Objects {
  explicit Objects(const Functions& from) : f(from) {}
  ~Objects() {
    if (desc != nullptr) (void)f.desc_destroy(desc);
    for (void* layout : {a, b, d}) {
      if (layout != nullptr) (void)f.layout_destroy(layout);
    }
    if (preference != nullptr) (void)f.preference_destroy(preference);
  }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;

  const Functions& f;
  void* desc = nullptr;
  void* a = nullptr;
  void* b = nullptr;
  void* d = nullptr;
  void* preference = nullptr;
};

// The library stores matrices by columns: it makes the transposed D of the transposed B and A.
Result Multiply(const Functions& f, void* handle, const LibraryProduct& p, cudaStream_t stream) {
  constexpr Result kFailed = {StatusCode::kInternal, "the library of products failed"};
  Objects made(f);
  const int in = TypeOf(p.in);
  if (f.desc_create(&made.desc, kCompute32F, 0) != 0 ||
      f.preference_create(&made.preference) != 0) {
    return kFailed;
  }
  const int transposed = kTranspose;
  bool ok =
      !p.transposed_b || f.desc_set(made.desc, kDescTransA, &transposed, sizeof(transposed)) == 0;
  ok = ok && f.layout_create(&made.b, in, p.transposed_b ? p.k : p.n, p.transposed_b ? p.n : p.k,
                             static_cast<int64_t>(p.ldb)) == 0;
  ok = ok && f.layout_create(&made.a, in, p.k, p.m, static_cast<int64_t>(p.lda)) == 0;
  ok = ok && f.layout_create(&made.d, TypeOf(p.out), p.n, p.m, static_cast<int64_t>(p.ldd)) == 0;
  const uint64_t workspace_bytes = kLibraryWorkspaceBytes;
  ok = ok && f.preference_set(made.preference, kPreferWorkspaceBytes, &workspace_bytes,
                              sizeof(workspace_bytes)) == 0;
  const void* const buffers[] = {p.b, p.a, p.d, p.d};
  for (int i = 0; i < 4; ++i) {
    const uint32_t alignment = AlignmentOf(buffers[i]);
    ok = ok && f.preference_set(made.preference, kPreferAlignmentA + i, &alignment,
                                sizeof(alignment)) == 0;
  }
  if (!ok) return kFailed;
  Heuristic best = {};
  int found = 0;
  if (f.heuristic(handle, made.desc, made.b, made.a, made.d, made.d, made.preference, 1, &best,
                  &found) != 0 ||
      found < 1 || best.state != 0 || best.workspace_bytes > workspace_bytes) {
    return {StatusCode::kUnimplemented, "the library of products does not have this one"};
  }
  const float alpha = 1;
  const float beta = 0;
  const int error =
      f.matmul(handle, made.desc, &alpha, p.b, made.b, p.a, made.a, &beta, p.d, made.d, p.d, made.d,
               best.algorithm, p.workspace, workspace_bytes, stream);
  return error == 0 ? Result{} : kFailed;
}

}  // namespace

const char* LibraryProductName() {
  return Library::Get().functions() != nullptr ? "cublasLt" : nullptr;
}

Result MultiplyByLibrary(const LibraryProduct& product, Stream& stream) {
  Library& library = Library::Get();
  if (library.functions() == nullptr) {
    return {StatusCode::kUnavailable, "there is no library of products on this machine"};
  }
  const raw::StreamHandle on = stream.handle();
  const raw::CurrentDevice device_scope(on.device);
  int device = 0;
  void* const handle = cudaGetDevice(&device) == cudaSuccess ? library.HandleOf(device) : nullptr;
  if (handle == nullptr) {
    return {StatusCode::kInternal, "the library of products cannot be used on this device"};
  }
  return Multiply(*library.functions(), handle, product, static_cast<cudaStream_t>(on.native));
}

}  // namespace iris::backend
