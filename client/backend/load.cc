#include "client/backend/load.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/version.h"

// Not null if a backend is linked into the program.
extern "C" __attribute__((weak)) const iris::backend::BackendOperations* iris_backend_operations();

namespace iris::backend {
namespace {

constexpr size_t kMaxNameBytes = 16;

bool GoodName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c); });
}

// Returns the folder of the library or program that contains this function, with a slash; empty if
// the loader does not know it.
std::string OwnFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&LoadBackend), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// Opens the library in the bundle's lib if this program lies in its bin, with the host library
// linked into it. Returns null if there is none.
void* OpenBesideProgram(const std::string& file) {
  std::string program(4096, '\0');
  const ssize_t n = readlink("/proc/self/exe", program.data(), program.size());
  const size_t slash = n <= 0 ? std::string::npos : program.rfind('/', static_cast<size_t>(n));
  if (slash == std::string::npos) return nullptr;
  const std::string path = program.substr(0, slash) + "/../lib/" + file;
  return access(path.c_str(), R_OK) == 0 ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
}

absl::Status Check(const BackendOperations* table, absl::string_view name, absl::string_view file) {
  if (table->size_bytes != sizeof(BackendOperations) || table->comm_bytes != sizeof(ccl::Comm) ||
      absl::string_view(table->version) != wire::kIrisVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " is of another build of Iris than libiris.so, which is ",
                     wire::kIrisVersion, ": take both from the same bundle"));
  }
  if (name != table->name) {
    return absl::FailedPreconditionError(absl::StrCat(file, " is the backend '", table->name,
                                                      "' and not '", name, "': take libiris_", name,
                                                      ".so from the bundle of this libiris.so"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const BackendOperations*> LoadBackend(absl::string_view name) {
  if (!GoodName(name)) {
    return absl::FailedPreconditionError(absl::StrCat("irisd names a backend that cannot be one (",
                                                      name.size(), " bytes): is it an irisd?"));
  }
  if (iris_backend_operations != nullptr) {
    const BackendOperations* const linked = iris_backend_operations();
    if (name == linked->name) {
      if (absl::Status s = Check(linked, name, "the backend in this program"); !s.ok()) return s;
      return linked;
    }
  }
  const std::string file = absl::StrCat("libiris_", name, ".so");
  const std::string path = OwnFolder() + file;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = library == nullptr ? dlerror() : nullptr;
  if (library == nullptr) library = OpenBesideProgram(file);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the heap is memory of '", name,
        "', but its library cannot be opened: ", why != nullptr ? why : path, ". Put ", file,
        " of the bundle beside libiris.so, or start irisd with another --backend"));
  }
  const auto get = reinterpret_cast<decltype(&iris_backend_operations)>(
      dlsym(library, "iris_backend_operations"));
  if (get == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is no backend of Iris: it lacks iris_backend_operations. Take it from the bundle"));
  }
  const BackendOperations* const table = get();
  if (absl::Status s = Check(table, name, path); !s.ok()) return s;
  return table;
}

}  // namespace iris::backend
