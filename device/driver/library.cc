#include "device/driver/library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace iris::driver {

absl::StatusOr<Library> Library::Open(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
      return Library(handle, name);
    }
  }
  std::string first_error;
  for (const std::string& name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return Library(handle, name);
    }
    const char* const error = dlerror();
    if (first_error.empty() && error != nullptr) first_error = error;
  }
  return absl::NotFoundError(
      absl::StrCat("cannot load ", absl::StrJoin(names, " or "), " (", first_error, ")"));
}

void* Library::Find(const char* symbol) {
  void* const found = FindOptional(symbol);
  if (found == nullptr) missing_.push_back(symbol);
  return found;
}

void* Library::FindOptional(const char* symbol) const { return dlsym(handle_, symbol); }

absl::Status Library::missing() const {
  if (missing_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name_, " has no ", absl::StrJoin(missing_, ", "),
                   ": it is too old, or not the vendor's library; install a newer driver"));
}

}  // namespace iris::driver
