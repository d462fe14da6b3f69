#include "server/host/descriptor_source.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/pages.h"

namespace iris::server {
namespace {

wire::DescriptorRecord Record(const SendDescriptors& wanted, wire::DescriptorKind kind, Rank rank,
                              uint64_t bytes) {
  wire::DescriptorRecord record;
  record.job_id = wanted.job.value;
  record.epoch = wanted.epoch;
  record.bytes = bytes;
  record.rank = rank;
  record.kind = static_cast<uint32_t>(kind);
  return record;
}

void AddPages(const SendDescriptors& wanted, const JobPages& pages,
              std::vector<OutgoingDescriptor>* out) {
  out->push_back({Record(wanted, wire::DescriptorKind::kStatusPage, 0, wire::kPageBytes),
                  [file = pages.status_page()] { return file->Open(/*read_only=*/true); }});
  for (Rank rank = 0; rank < pages.n_ranks(); ++rank) {
    const bool read_only = rank != wanted.receiver;
    out->push_back(
        {Record(wanted, wire::DescriptorKind::kControlPage, rank, wire::kPageBytes),
         [file = pages.control_page(rank), read_only] { return file->Open(read_only); }});
  }
}

}  // namespace

DescriptorSource::DescriptorSource(driver::GpuDriver* driver, const SegmentStore* segments,
                                   const Logger* logger)
    : driver_(driver), segments_(segments) {
  if (driver_->link_bytes() == 0) return;
  for (const driver::DeviceInfo& device : driver_->devices()) {
    auto link = driver_->Create(device.index, driver_->link_bytes(), /*prealloc=*/false);
    if (!link.ok()) {
      logger->Warn("no links between devices: joins will be slower",
                   {{"device", device.uuid}, {"error", link.status().ToString()}});
      links_.clear();
      return;
    }
    links_.push_back(*std::move(link));
  }
}

absl::StatusOr<std::vector<OutgoingDescriptor>> DescriptorSource::BuildSegments(
    const SendDescriptors& wanted, driver::Access access) const {
  std::vector<OutgoingDescriptor> out;
  for (const SegmentInfo& segment : wanted.segments) {
    std::shared_ptr<SegmentStore::Held> held = segments_->Find(segment.id);
    if (held == nullptr) {
      return absl::NotFoundError(absl::StrCat("segment ", segment.id.value, " has no memory"));
    }
    OutgoingDescriptor item;
    item.record = Record(wanted, wire::DescriptorKind::kSegment, segment.rank, segment.bytes);
    item.record.segment_id = segment.id.value;
    item.open = [held = std::move(held), access] { return held->memory().ExportFd(access); };
    out.push_back(std::move(item));
  }
  return out;
}

absl::StatusOr<std::vector<OutgoingDescriptor>> DescriptorSource::Build(
    const SendDescriptors& wanted, const absl::StatusOr<JobPages*>& pages) const {
  std::vector<OutgoingDescriptor> out;
  if (wanted.pages) {
    if (!pages.ok()) return pages.status();
    AddPages(wanted, **pages, &out);
  }
  absl::StatusOr<std::vector<OutgoingDescriptor>> segments =
      BuildSegments(wanted, driver::Access::kReadWrite);
  if (!segments.ok()) return absl::InternalError(segments.status().message());
  std::move(segments->begin(), segments->end(), std::back_inserter(out));
  if (!wanted.pages || links_.empty()) return out;
  std::set<uint32_t> devices;
  for (const SegmentInfo& segment : wanted.segments) {
    const std::shared_ptr<SegmentStore::Held> held = segments_->Find(segment.id);
    if (held != nullptr) devices.insert(held->device_index());
  }
  for (const uint32_t device : devices) {
    out.push_back({Record(wanted, wire::DescriptorKind::kLink, device, driver_->link_bytes()),
                   [link = links_[device]] { return link->ExportFd(driver::Access::kReadOnly); }});
  }
  return out;
}

}  // namespace iris::server
