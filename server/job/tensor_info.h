// What a client says an allocation is, for people to read. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace iris::server {

struct TensorInfo {
  std::string dtype;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

}  // namespace iris::server
