#include "client/ctl/borrowed_heap.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/backend/local_devices.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/wire/job.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {
namespace {

using internal::Annotate;
using internal::SessionClient;

// The segments that irisd has lent, in order of offset, and their descriptors.
struct Loan {
  std::shared_ptr<SessionClient> session;
  v1::BorrowReply reply;
  std::vector<wire::UniqueFd> descriptors;
  std::shared_ptr<driver::GpuDriver> driver;
};

// Asks irisd for the memory. *generation becomes that of the irisd that has answered.
absl::StatusOr<v1::BorrowReply> Ask(SessionClient& session, const HeapPlace& place,
                                    bool for_writing, absl::Time deadline, uint64_t* generation) {
  v1::BorrowRequest request;
  request.set_session_id(session.session_id());
  request.set_job(place.job);
  request.set_rank(place.rank);
  request.set_offset_bytes(place.offset_bytes);
  request.set_bytes(place.bytes);
  request.set_for_writing(for_writing);
  const SessionClient::Answer answer =
      session.Call(wire::CallMethod::kBorrow, request.SerializeAsString(), deadline,
                   SessionClient::Caller::kMember);
  if (!answer.status.ok()) return answer.status;
  *generation = answer.generation;
  v1::BorrowReply reply;
  if (!reply.ParseFromString(answer.message)) {
    return absl::DataLossError("irisd's answer cannot be read: install matching versions");
  }
  return reply;
}

// Returns the driver's device of that name, else its first one: each can read the memory. Null on
// emu, which has no devices to choose from.
const driver::DeviceInfo* DeviceOf(driver::GpuDriver& driver, const std::string& uuid) {
  const absl::Span<const driver::DeviceInfo> devices = driver.devices();
  const auto own = std::find_if(devices.begin(), devices.end(), [&](const auto& device) {
    return absl::EqualsIgnoreCase(device.uuid, uuid);
  });
  if (own != devices.end()) return &*own;
  return devices.empty() ? nullptr : &devices.front();
}

absl::Status MakeCurrent(driver::GpuDriver& driver, const driver::DeviceInfo* device) {
  return device == nullptr ? absl::OkStatus() : driver.MakeCurrent(device->index);
}

absl::StatusOr<Loan> Borrow(const std::string& runtime_dir, const HeapPlace& place,
                            bool for_writing, absl::Duration timeout) {
  const absl::Time deadline = internal::DeadlineIn(timeout);
  internal::SessionOptions options;
  options.runtime_dirs = {runtime_dir};
  absl::StatusOr<std::shared_ptr<SessionClient>> session =
      SessionClient::Connect(std::move(options));
  if (!session.ok()) return session.status();
  Loan loan;
  loan.session = *std::move(session);
  for (bool lent = false; !lent;) {
    uint64_t generation = 0;
    absl::StatusOr<v1::BorrowReply> reply =
        Ask(*loan.session, place, for_writing, deadline, &generation);
    if (!reply.ok()) return reply.status();
    loan.reply = *std::move(reply);
    std::vector<internal::DescriptorKey> keys;
    for (const v1::Segment& segment : loan.reply.segments()) {
      keys.push_back({wire::DescriptorKind::kSegment, loan.reply.job_id(), loan.reply.epoch(), 0,
                      segment.segment_id()});
    }
    absl::StatusOr<std::vector<wire::UniqueFd>> descriptors =
        loan.session->TakeDescriptors(keys, deadline, generation);
    lent = descriptors.ok();
    if (lent) {
      loan.descriptors = *std::move(descriptors);
    } else if (!absl::IsUnavailable(descriptors.status()) || !loan.session->status().ok()) {
      return Annotate(descriptors.status(), "borrow the memory");
    }
    // Otherwise another irisd has taken the session over and does not know this loan: ask again.
  }
  auto driver = internal::ProcessDriver(loan.session->backend());
  if (!driver.ok()) return driver.status();
  loan.driver = *std::move(driver);
  absl::Status status = MakeCurrent(*loan.driver, DeviceOf(*loan.driver, loan.reply.device_uuid()));
  if (!status.ok()) return Annotate(status, "use the device of the heap");
  return loan;
}

absl::Status NotAll(uint64_t done, uint64_t bytes) {
  return absl::DataLossError(
      absl::StrCat("irisd has lent ", done, " of ", bytes, " bytes: install matching versions"));
}

}  // namespace

absl::StatusOr<std::string> ReadHeap(const std::string& runtime_dir, const HeapPlace& place,
                                     absl::Duration timeout) {
  absl::StatusOr<Loan> loan = Borrow(runtime_dir, place, /*for_writing=*/false, timeout);
  if (!loan.ok()) return loan.status();
  const v1::BorrowReply& lent = loan->reply;
  std::string data(place.bytes, '\0');
  uint64_t done = 0;
  for (int i = 0; i < lent.segments_size(); ++i) {
    const v1::Segment& segment = lent.segments(i);
    const uint64_t at = place.offset_bytes + done;
    if (at < segment.offset_bytes() || at - segment.offset_bytes() >= segment.bytes()) break;
    const uint64_t inside = at - segment.offset_bytes();
    const uint64_t n = std::min<uint64_t>(data.size() - done, segment.bytes() - inside);
    absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
        loan->driver->Import(loan->descriptors[static_cast<size_t>(i)].Release(), segment.bytes());
    if (!memory.ok()) return Annotate(memory.status(), "import the borrowed memory");
    const absl::Status read = (*memory)->Read(
        inside,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(data.data()) + done, static_cast<size_t>(n)));
    if (!read.ok()) return Annotate(read, "read the borrowed memory");
    done += n;
  }
  if (done < data.size()) return NotAll(done, data.size());
  return data;
}

absl::StatusOr<BorrowedHeap> BorrowedHeap::Map(const std::string& runtime_dir,
                                               const HeapPlace& place, absl::Duration timeout) {
  absl::StatusOr<Loan> loan = Borrow(runtime_dir, place, /*for_writing=*/true, timeout);
  if (!loan.ok()) return loan.status();
  const v1::BorrowReply& lent = loan->reply;
  BorrowedHeap heap;
  heap.driver_ = loan->driver;
  heap.backend_ = loan->session->backend();
  heap.device_uuid_ = lent.device_uuid();
  uint64_t bytes = 0;  // of the segments, which follow each other
  for (const v1::Segment& segment : lent.segments()) bytes += segment.bytes();
  const uint64_t first = lent.segments_size() == 0 ? 0 : lent.segments(0).offset_bytes();
  if (bytes == 0 || place.offset_bytes < first ||
      place.bytes > bytes - std::min(bytes, place.offset_bytes - first)) {
    return NotAll(bytes, place.bytes);
  }
  auto reserved = heap.driver_->Reserve(bytes, 1, 0);
  if (!reserved.ok()) return Annotate(reserved.status(), "map the borrowed memory");
  heap.reservation_ = *std::move(reserved);
  std::vector<uint32_t> devices;
  if (const auto* device = DeviceOf(*heap.driver_, heap.device_uuid_); device != nullptr) {
    devices.push_back(device->index);
  }
  uint64_t done = 0;
  for (int i = 0; i < lent.segments_size(); ++i) {
    const uint64_t n = lent.segments(i).bytes();
    auto memory = heap.driver_->Import(loan->descriptors[static_cast<size_t>(i)].Release(), n);
    if (!memory.ok()) return Annotate(memory.status(), "import the borrowed memory");
    heap.memory_.push_back(*std::move(memory));
    auto mapping = heap.driver_->Map(*heap.reservation_, done, *heap.memory_.back(),
                                     driver::Access::kReadWrite, devices);
    if (!mapping.ok()) {
      return Annotate(mapping.status(),
                      "map the borrowed memory for writing, which an older irisd does not lend");
    }
    heap.mappings_.push_back(*std::move(mapping));
    done += n;
  }
  heap.address_ = heap.reservation_->base() + (place.offset_bytes - first);
  return heap;
}

BorrowedHeap::~BorrowedHeap() {
  mappings_.clear();
  reservation_.reset();
}

absl::Status BorrowedHeap::UseDevice() const {
  const driver::DeviceInfo* const device = DeviceOf(*driver_, device_uuid_);
  if (device != nullptr && !absl::EqualsIgnoreCase(device->uuid, device_uuid_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process does not see device ", device_uuid_,
                     ", which the heap is on: let it see all devices that irisd has"));
  }
  return MakeCurrent(*driver_, device);
}

}  // namespace iris::ctl
