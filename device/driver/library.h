// Library: a vendor's shared library, opened at run time and kept for good. Thread-safe once open.
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
  // Opens the first of `names` that is loaded already (a program must not get two copies of a
  // run-time library), else the first that can be loaded. It is never closed: vendors' libraries do
  // not survive that. kNotFound if there is none; the message has the names.
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
  // OK if every Load found its entry point.
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
