// SharedBytes: immutable bytes with several holders, for example the value of a broadcast. A copy
// copies only a pointer. As thread-safe as a shared_ptr: each holder has its own object.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace iris::server {

class SharedBytes {
 public:
  SharedBytes() = default;  // empty
  SharedBytes(std::string bytes) : bytes_(std::make_shared<const std::string>(std::move(bytes))) {}
  SharedBytes(const char* text) : SharedBytes(std::string(text)) {}

  // The view is valid while a holder of the same bytes lives.
  absl::string_view view() const { return bytes_ == nullptr ? absl::string_view() : *bytes_; }
  size_t size() const { return view().size(); }
  bool empty() const { return view().empty(); }
  // Returns the shared bytes, for holders other than SharedBytes; null if there are none.
  const std::shared_ptr<const std::string>& share() const { return bytes_; }

  friend bool operator==(const SharedBytes& a, const SharedBytes& b) {
    return a.view() == b.view();
  }

 private:
  std::shared_ptr<const std::string> bytes_;
};

}  // namespace iris::server
