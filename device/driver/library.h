// Library: a vendor's shared library, opened at run time and never closed. Thread-safe once open.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace iris::driver {

class Library {
 public:
  // Opens the first of `names` that is already loaded, because a program must not have two copies
  // of a run-time library, otherwise the first that can be loaded. The library is never closed:
  // vendors' libraries do not survive that. kNotFound, with the names, if none can be opened.
  static absl::StatusOr<Library> Open(const std::vector<std::string>& names);

  const std::string& name() const { return name_; }

  template <typename F>
  void Load(F** function, const char* symbol) {
    *function = reinterpret_cast<F*>(Find(symbol));
  }
  // Like Load, but leaves `*function` unchanged if the library lacks it.
  template <typename F>
  void LoadOptional(F** function, const char* symbol) {
    if (void* const found = FindOptional(symbol)) *function = reinterpret_cast<F*>(found);
  }
  // Returns kFailedPrecondition, with the missing names, unless every Load found its entry point.
  absl::Status missing() const;

 private:
  Library(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* Find(const char* symbol);
  void* FindOptional(const char* symbol) const;

  void* handle_;
  std::string name_;
  std::vector<std::string> missing_;
};

}  // namespace iris::driver
