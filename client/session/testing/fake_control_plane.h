// FakeControlPlane: an irisd that a test plays, in this process. It answers at once with the test's
// answers, and records its calls. For tests only.
//
// Thread-safe, but for the plain members, which a test sets before others use them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/session/control_plane.h"
#include "device/driver/emu_driver.h"
#include "proto/wire/pages.h"

namespace iris::internal {

// The memory that irisd makes for one job: segments of emulated memory and sealed pages.
class FakeMemory {
 public:
  static constexpr uint64_t kGranule = driver::kEmuGranularityBytes;

  wire::UniqueFd NewSegment(uint64_t bytes = kGranule) {
    auto memory = driver_->Create(0, bytes, false);
    if (!memory.ok()) return wire::UniqueFd();
    memories_.push_back(*std::move(memory));
    return wire::UniqueFd(memories_.back()->ExportFd(driver::Access::kReadWrite).value());
  }
  static wire::UniqueFd NewPage() {
    wire::UniqueFd fd(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (ftruncate(fd.get(), wire::kPageBytes) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return wire::UniqueFd();
    }
    return fd;
  }

 private:
  const std::unique_ptr<driver::GpuDriver> driver_ = driver::CreateEmuDriver({1, 1ull << 30});
  std::vector<std::unique_ptr<driver::PhysicalMemory>> memories_;
};

class FakeControlPlane : public ControlPlane {
 public:
  // Called first by the destructor.
  std::function<void()> on_destroy = [] {};
  ~FakeControlPlane() override { on_destroy(); }

  // The result of one Operate, and what becomes of `unanswered`.
  struct Answer {
    absl::StatusOr<Outcome> outcome;
    bool unanswered = false;
  };
  // An outcome of whatever k is asked for.
  static Answer Decided(absl::Status status = absl::OkStatus(), OperationResult result = {}) {
    return {Outcome{kThisK, std::move(status), std::move(result)}};
  }
  static Answer Refused(absl::Status status) { return {std::move(status)}; }
  static Answer Lost(absl::Status status = absl::UnavailableError("the session broke")) {
    return {std::move(status), true};
  }
  static constexpr uint64_t kThisK = ~0ull;

  // Operate gives these, one after the other, then Decided().
  void Script(std::deque<Answer> answers) {
    absl::MutexLock lock(&mu_);
    answers_ = std::move(answers);
  }
  // Called inside every Operate, unlocked.
  std::function<void(const OperationCall&)> on_operate = [](const OperationCall&) {};
  // Called inside every Mapped and GrowMapped, before it is answered.
  std::function<void()> on_mapped = [] {};
  std::vector<uint64_t> ks() const {
    absl::MutexLock lock(&mu_);
    return ks_;
  }

  // The other calls.
  JoinedJob joined;
  CommittedJob committed;
  absl::Status join_answer;
  absl::Status mapped_answer;
  absl::Status leave_answer;
  std::map<DescriptorKey, wire::UniqueFd> descriptors;
  std::vector<Lent> lent;                                  // what the next Borrow gives
  std::function<std::vector<Lent>(const HeapPart&)> lend;  // in its place, if set
  absl::Status borrow_answer;
  // The arguments of all calls.
  std::vector<HostContextOptions> joins;
  std::vector<absl::StatusOr<uint64_t>> mapped;
  std::vector<std::pair<uint64_t, absl::Status>> grow_mapped;
  std::vector<HeapPart> borrowed;
  RankIdentity watched;
  int leaves = 0;
  int stops = 0;

  uint64_t daemon_id() const override { return 77; }
  const std::string& backend() const override { return backend_; }
  absl::StatusOr<JoinedJob> Join(const HostContextOptions& options, absl::Time) override {
    joins.push_back(options);
    if (!join_answer.ok()) return join_answer;
    return joined;
  }
  absl::StatusOr<CommittedJob> Mapped(uint64_t, uint64_t, const absl::StatusOr<uint64_t>& base,
                                      absl::Time) override {
    mapped.push_back(base);
    on_mapped();
    if (!mapped_answer.ok()) return mapped_answer;
    return committed;
  }
  absl::Status Leave(uint64_t, absl::Time) override {
    ++leaves;
    return leave_answer;
  }
  absl::StatusOr<Outcome> Operate(const OperationCall& call, absl::Time, absl::Time,
                                  bool* unanswered) override {
    on_operate(call);
    absl::MutexLock lock(&mu_);
    ks_.push_back(call.k);
    Answer answer = Decided();
    if (!answers_.empty()) {
      answer = std::move(answers_.front());
      answers_.pop_front();
    }
    if (!answer.outcome.ok()) {
      *unanswered |= answer.unanswered;
      return answer.outcome.status();
    }
    *unanswered = false;
    if (answer.outcome->k == kThisK) answer.outcome->k = call.k;
    return std::move(answer.outcome);
  }
  absl::StatusOr<std::vector<Lent>> Borrow(const HeapPart& part, absl::Time) override {
    borrowed.push_back(part);
    if (!borrow_answer.ok()) return borrow_answer;
    return lend ? lend(part) : std::exchange(lent, {});
  }
  BarrierQuestion AskOfBarrier(const BarrierWait&) override { return nullptr; }
  absl::StatusOr<BarrierAnswer> WhereAreMissing(const BarrierWait&, absl::Time) override {
    return absl::UnimplementedError("this irisd knows nothing");
  }
  absl::Status GrowMapped(uint64_t, uint64_t grow_id, const absl::Status& status,
                          absl::Time) override {
    grow_mapped.push_back({grow_id, status});
    on_mapped();
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<wire::UniqueFd>> TakeDescriptors(absl::Span<const DescriptorKey> keys,
                                                              absl::Time) override {
    std::vector<wire::UniqueFd> fds;
    for (const DescriptorKey& key : keys) {
      const auto it = descriptors.find(key);
      if (it == descriptors.end()) return absl::DeadlineExceededError("descriptors did not come");
      fds.push_back(std::move(it->second));
      descriptors.erase(it);
    }
    return fds;
  }
  void DropDescriptors() override { descriptors.clear(); }
  void DropDescriptors(absl::Span<const DescriptorKey> keys) override {
    for (const DescriptorKey& key : keys) descriptors.erase(key);
  }
  void StartWatching(const RankIdentity& identity, WatchHandler, std::function<void()>) override {
    watched = identity;
  }
  void StopWatching() override { ++stops; }

 private:
  const std::string backend_ = "emu";
  mutable absl::Mutex mu_;
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> ks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
