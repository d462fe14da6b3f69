// What every example needs though none is about it: to print an error and end.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/backend/select.h"

namespace example {

// Ends the process with an error of the host API or of the device layer. iris-run then ends the
// other ranks.
inline void Ok(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

inline void Ok(const iris::Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "error: %s\n", result.what);
  std::exit(1);
}

// The value, or the end of the process if there is none.
template <typename T>
T Ok(absl::StatusOr<T> value) {
  Ok(value.status());
  return *std::move(value);
}

// The verdict of an example on itself.
inline void Expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong result: %s\n", what);
  std::exit(1);
}

// Memory outside the heap, of this process alone; freed with its owner. Stands for its address in
// calls.
template <typename T>
class Array {
 public:
  // Device memory: kernels alone read and write it.
  static Array OnDevice(uint64_t n) {
    return Array(iris::backend::MallocDevice(n * sizeof(T)), iris::backend::FreeDevice);
  }
  // Host memory that kernels can use, too: for what a kernel has to tell. Zero at first.
  static Array OnHost(uint64_t n) {
    Array array(iris::backend::MallocHost(n * sizeof(T)), iris::backend::FreeHost);
    std::fill_n(array.get(), n, T{});
    return array;
  }
  // A copy of `values` in device memory.
  static Array OnDevice(const std::vector<T>& values, iris::backend::Stream& stream) {
    Array array = OnDevice(values.size());
    Ok(iris::backend::CopyAsync(array.get(), values.data(), values.size() * sizeof(T), stream));
    Ok(stream.Synchronize());
    return array;
  }

  T* get() const { return static_cast<T*>(memory_.get()); }
  operator T*() const { return get(); }  // NOLINT: stands for its address
  T* operator->() const { return get(); }

 private:
  Array(void* memory, void (*free)(void*)) : memory_(memory, free) {
    Expect(memory != nullptr, "out of memory");
  }
  std::unique_ptr<void, void (*)(void*)> memory_;
};

}  // namespace example
