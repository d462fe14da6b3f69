#include "client/comm/collective_log.h"

#include <utility>

#include "client/base/clock.h"

namespace iris::internal {
namespace {

constexpr uint32_t kNoTeam = ~0u;

template <typename T>
void Store(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

// While this object exists, readers know that the record is being written.
class Writing {
 public:
  explicit Writing(wire::CollectiveRecord* record) : record_(record) {
    Store(&record_->version, record_->version + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);  // the version before what follows
  }
  ~Writing() { __atomic_store_n(&record_->version, record_->version + 1, __ATOMIC_RELEASE); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  wire::CollectiveRecord* const record_;
};

}  // namespace

CollectiveLog::CollectiveLog(wire::ControlPage* page, const Communicator& communicator) {
  if (communicator.n_members < 2) return;
  for (wire::CollectiveRecord& record : page->collectives) {
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(&record.n_members, &none, communicator.n_members,
                                     /*weak=*/false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      continue;
    }
    record_ = &record;
    const Writing writing(record_);
    Store(&record_->n_put, 0u);
    Store(&record_->workspace_offset_bytes, communicator.workspace_offset_bytes);
    Store(&record_->finished_at, communicator.finished_at);
    Store(&record_->waiting_at, communicator.waiting_at);
    Store(&record_->team_id, communicator.team_id);
    return;
  }
}

CollectiveLog::CollectiveLog(CollectiveLog&& other) noexcept
    : record_(std::exchange(other.record_, nullptr)) {}

CollectiveLog& CollectiveLog::operator=(CollectiveLog&& other) noexcept {
  std::swap(record_, other.record_);
  return *this;
}

void CollectiveLog::Put(ccl::Operation call, uint64_t count, uint8_t dtype) {
  if (record_ == nullptr) return;
  const Writing writing(record_);
  wire::CollectiveEntry& entry = record_->last[record_->n_put % wire::kCollectiveEntries];
  Store(&entry.count, count);
  Store(&entry.put_ms, PageNow());
  Store(&entry.call, static_cast<uint8_t>(call));
  Store(&entry.dtype, dtype);
  Store(&record_->n_put, record_->n_put + 1);
}

void CollectiveLog::Clear() {
  if (record_ == nullptr) return;
  const Writing writing(record_);
  Store(&record_->n_put, 0u);
}

void CollectiveLog::Close() {
  if (record_ == nullptr) return;
  {
    const Writing writing(record_);
    Store(&record_->team_id, kNoTeam);
  }
  // Release: the next owner of the record writes after this.
  __atomic_store_n(&record_->n_members, 0u, __ATOMIC_RELEASE);
  record_ = nullptr;
}

}  // namespace iris::internal
