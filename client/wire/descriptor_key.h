// DescriptorKey: the name of one descriptor that irisd sends over the session socket.
#pragma once

#include <cstdint>
#include <tuple>

#include "proto/wire/frame.h"

namespace iris::internal {

struct DescriptorKey {
  wire::DescriptorKind kind = wire::DescriptorKind::kSegment;
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;        // kLink: index of the device; 0 for other kinds but kControlPage
  uint64_t segment_id = 0;  // 0 unless kind is kSegment
  friend bool operator<(const DescriptorKey& a, const DescriptorKey& b) {
    return std::tie(a.kind, a.job_id, a.epoch, a.rank, a.segment_id) <
           std::tie(b.kind, b.job_id, b.epoch, b.rank, b.segment_id);
  }
};

}  // namespace iris::internal
