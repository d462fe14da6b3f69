#include "client/ctl/borrowed_heap.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/internal/annotate.h"
#include "client/internal/clock.h"
#include "client/internal/descriptor_key.h"
#include "client/internal/local_devices.h"
#include "client/internal/session_client.h"
#include "device/driver/gpu_driver.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {
namespace {

using internal::Annotate;
using internal::FrameCalls;
using internal::SessionClient;

absl::StatusOr<v1::BorrowReply> Borrow(SessionClient& session, const HeapPlace& place,
                                       absl::Time deadline) {
  v1::BorrowRequest request;
  request.set_session_id(session.session_id());
  request.set_job(place.job);
  request.set_rank(place.rank);
  request.set_offset_bytes(place.offset_bytes);
  request.set_bytes(place.bytes);
  const FrameCalls::Answer answer =
      session.calls().Call(wire::CallMethod::kBorrow, request.SerializeAsString(), deadline,
                           FrameCalls::Caller::kMember);
  if (!answer.status.ok()) return answer.status;
  v1::BorrowReply reply;
  if (!reply.ParseFromString(answer.message)) {
    return absl::DataLossError("irisd's answer cannot be read: install matching versions");
  }
  return reply;
}

// Makes a device current that can read the memory: its own, if this process sees that. On emu there
// is none to choose.
absl::Status UseDevice(driver::GpuDriver& driver, const std::string& uuid) {
  const absl::Span<const driver::DeviceInfo> devices = driver.devices();
  if (devices.empty()) return absl::OkStatus();
  const auto own = std::find_if(devices.begin(), devices.end(), [&](const auto& device) {
    return absl::EqualsIgnoreCase(device.uuid, uuid);
  });
  return driver.MakeCurrent(own == devices.end() ? devices.front().index : own->index);
}

}  // namespace

absl::StatusOr<std::string> ReadHeap(const std::string& runtime_dir, const HeapPlace& place,
                                     absl::Duration timeout) {
  const absl::Time deadline = internal::DeadlineIn(timeout);
  internal::SessionOptions options;
  options.runtime_dirs = {runtime_dir};
  const absl::StatusOr<std::shared_ptr<SessionClient>> session =
      SessionClient::Connect(std::move(options));
  if (!session.ok()) return session.status();
  const absl::StatusOr<v1::BorrowReply> lent = Borrow(**session, place, deadline);
  if (!lent.ok()) return lent.status();

  std::vector<internal::DescriptorKey> keys;
  for (const v1::Segment& segment : lent->segments()) {
    keys.push_back(
        {wire::DescriptorKind::kSegment, lent->job_id(), lent->epoch(), 0, segment.segment_id()});
  }
  absl::StatusOr<std::vector<wire::UniqueFd>> descriptors =
      (*session)->TakeDescriptors(keys, deadline);
  if (!descriptors.ok()) return Annotate(descriptors.status(), "borrow the memory");

  const auto driver = internal::ProcessDriver((*session)->backend());
  if (!driver.ok()) return driver.status();
  if (absl::Status status = UseDevice(**driver, lent->device_uuid()); !status.ok()) {
    return Annotate(status, "use the device of the heap");
  }
  std::string data(place.bytes, '\0');
  uint64_t done = 0;
  for (int i = 0; i < lent->segments_size(); ++i) {
    const v1::Segment& segment = lent->segments(i);
    const uint64_t at = place.offset_bytes + done;
    if (at < segment.offset_bytes() || at - segment.offset_bytes() >= segment.bytes()) break;
    const uint64_t inside = at - segment.offset_bytes();
    const uint64_t n = std::min<uint64_t>(data.size() - done, segment.bytes() - inside);
    absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
        (*driver)->Import((*descriptors)[static_cast<size_t>(i)].Release(), segment.bytes());
    if (!memory.ok()) return Annotate(memory.status(), "import the borrowed memory");
    const absl::Status read = (*memory)->Read(
        inside,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(data.data()) + done, static_cast<size_t>(n)));
    if (!read.ok()) return Annotate(read, "read the borrowed memory");
    done += n;
  }
  if (done < data.size()) {
    return absl::DataLossError(absl::StrCat("irisd has lent ", done, " of ", data.size(),
                                            " bytes: install matching versions"));
  }
  return data;
}

}  // namespace iris::ctl
