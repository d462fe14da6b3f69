// Stands for libamdhip64.so.7 in library_test: a few of its functions, which tell what they were
// given.
#include <cstddef>

extern "C" {

int hipGetDeviceCount(int* count) {
  *count = 3;
  return 0;
}

int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  return to == nullptr && from == stream && bytes == 4096 && kind == 4 ? 0 : 1;
}

const char* hipGetErrorString(int error) { return error == 1 ? "one" : "another"; }

void** __hipRegisterFatBinary(const void* code) {
  static const void* registered = nullptr;
  registered = code;
  return const_cast<void**>(&registered);
}

}  // extern "C"
