#include "client/backend/line_search.h"

#include "absl/status/status.h"
#include "client/backend/device_status.h"
#include "client/backend/load.h"
#include "client/backend/local_devices.h"
#include "iris/collective/whole_lines.h"

namespace iris::internal {

absl::StatusOr<uint64_t> LineSearchBytes(const std::string& backend, uint32_t n_ranks) {
  const auto table = backend::LoadBackend(backend);
  if (!table.ok()) return table.status();
  return (*table)->LineSearchBytes(n_ranks);
}

absl::StatusOr<LinesSeen> SearchTornLines(const std::string& backend, const DeviceContext& context,
                                          const std::string& device_uuid, void* area,
                                          uint64_t duration_ns) {
  const auto table = backend::LoadBackend(backend);
  if (!table.ok()) return table.status();
  const auto driver = ProcessDriver(backend);
  if (!driver.ok()) return driver.status();
  const auto device = ChooseDevice(**driver, device_uuid, static_cast<int>(context.rank));
  if (!device.ok()) return device.status();
  for (uint32_t index : device->indices) {
    if (absl::Status status = (*driver)->MakeCurrent(index); !status.ok()) return status;
  }
  backend::Stream* stream = nullptr;
  absl::Status status = FromDevice((*table)->CreateStream(&stream), "make a stream");
  if (!status.ok()) return status;
  auto* copy = static_cast<ccl::LinesSeen*>((*table)->MallocHost(sizeof(ccl::LinesSeen)));
  if (copy == nullptr) status = absl::ResourceExhaustedError("no host memory");
  ccl::LineSearch search;
  search.context = context;
  search.team = context.world;
  search.area = area;
  search.duration_ns = duration_ns;
  if (status.ok()) {
    status = FromDevice((*table)->SearchTornLines(search, *stream), "search for torn lines");
  }
  if (status.ok()) {
    status = FromDevice((*table)->CopyAsync(copy, area, sizeof(ccl::LinesSeen), *stream),
                        "read what was seen");
  }
  // Also where something failed: what is on the stream uses the memory.
  const absl::Status done = FromDevice((*table)->Synchronize(*stream), "search for torn lines");
  if (status.ok()) status = done;
  LinesSeen seen;
  if (status.ok()) seen = {copy->written, copy->read, copy->changed, copy->torn};
  (*table)->DestroyStream(stream);
  (*table)->FreeHost(copy);
  if (!status.ok()) return status;
  return seen;
}

}  // namespace iris::internal
