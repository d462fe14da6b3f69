// SharedBytes: immutable bytes with several holders, as the value of a broadcast: copying them
// copies a pointer. Thread-safe as a shared_ptr is: each holder has its own.
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

  // Valid as long as any holder of the same bytes.
  absl::string_view view() const { return bytes_ == nullptr ? absl::string_view() : *bytes_; }
  size_t size() const { return view().size(); }
  bool empty() const { return view().empty(); }
  // Returns them for holders that keep them alive by other means; null if they are empty.
  const std::shared_ptr<const std::string>& share() const { return bytes_; }

  friend bool operator==(const SharedBytes& a, const SharedBytes& b) {
    return a.view() == b.view();
  }

 private:
  std::shared_ptr<const std::string> bytes_;
};

}  // namespace iris::server
