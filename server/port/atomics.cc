#include "server/port/atomics.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "device/base/process.h"

namespace iris::port {

absl::StatusOr<const DeviceAtomicsTable*> LoadDeviceAtomics(const std::string& backend) {
  const std::string file = absl::StrCat("libiris_", backend, ".so");
  if (backend.empty() || !std::all_of(backend.begin(), backend.end(), absl::ascii_isalnum)) {
    return absl::InvalidArgumentError(absl::StrCat(file, " cannot be the library of a backend"));
  }
  const std::string folder = base::ProgramFolder();
  // The bundle has this program in libexec/iris.
  std::string why;
  for (const char* const place : {"../../lib/", ""}) {
    const std::string path = absl::StrCat(folder, place, file);
    if (folder.empty() || access(path.c_str(), F_OK) != 0) {
      absl::StrAppend(&why, why.empty() ? "there is no " : ", nor ", path);
      continue;
    }
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::FailedPreconditionError(dlerror());
    const auto get =
        reinterpret_cast<decltype(&iris_device_atomics)>(dlsym(library, "iris_device_atomics"));
    const DeviceAtomicsTable* const table = get == nullptr ? nullptr : get();
    if (table == nullptr || table->size_bytes != sizeof(*table) || backend != table->name) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is of another build of Iris than this program: take both from one bundle"));
    }
    return table;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(why, ": put ", file, " of the bundle there, or start irisd from the bundle"));
}

absl::StatusOr<std::unique_ptr<DeviceQueue>> DeviceQueue::Create(const DeviceAtomicsTable* table,
                                                                 std::string name,
                                                                 absl::Duration give_up_after) {
  std::unique_ptr<DeviceQueue> made(new DeviceQueue(table, std::move(name), give_up_after));
  const Result result = table->Create(&made->atomics_);
  if (result.ok()) return made;
  return absl::Status(static_cast<absl::StatusCode>(result.code),
                      absl::StrCat(made->name_, " has no kernel of atomics: ", result.what));
}

DeviceQueue::~DeviceQueue() {
  if (atomics_ != nullptr) table_->Destroy(atomics_);
}

std::shared_ptr<const DeviceQueue::Outcome> DeviceQueue::Add(const DeviceAtomic& atomic,
                                                             std::shared_ptr<const void> pin) {
  auto outcome = std::make_shared<Outcome>();
  if (refuses_ != StatusCode::kOk) {
    outcome->done = true;
    outcome->code = refuses_;
    return outcome;
  }
  waiting_.push_back({atomic, outcome, std::move(pin)});
  return outcome;
}

bool DeviceQueue::Poll(absl::Time now) {
  if (waiting_.empty()) return false;
  if (n_started_ > 0) {
    uint64_t old[kMaxDeviceAtomics];
    bool done = false;
    const Result result = table_->Poll(atomics_, old, &done);
    if (!result.ok()) {
      Fail(StatusCode::kInternal,
           absl::InternalError(absl::StrCat(name_, " failed in an atomic: ", result.what)));
      return false;
    }
    if (!done) {
      if (now - started_at_ < give_up_after_) return true;
      if (refuses_ == StatusCode::kOk) {
        Fail(StatusCode::kDeadlineExceeded,
             absl::DeadlineExceededError(
                 absl::StrCat(name_, " did not come to atomics of other nodes within ",
                              absl::FormatDuration(give_up_after_),
                              ": kernels occupy it, or a debugger has stopped it")));
      }
      return false;
    }
    refuses_ = StatusCode::kOk;
    for (uint32_t i = 0; i < n_started_; ++i) {
      Outcome& outcome = *waiting_.front().outcome;
      if (!outcome.done) {
        outcome.old = old[i];
        outcome.done = true;
      }
      waiting_.pop_front();
    }
    n_started_ = 0;
    if (waiting_.empty()) return false;
  }
  DeviceAtomic list[kMaxDeviceAtomics];
  n_started_ = static_cast<uint32_t>(std::min<size_t>(waiting_.size(), kMaxDeviceAtomics));
  for (uint32_t i = 0; i < n_started_; ++i) list[i] = waiting_[i].atomic;
  started_at_ = now;
  const Result result = table_->Start(atomics_, list, n_started_);
  if (result.ok()) return true;
  Fail(StatusCode::kInternal, absl::InternalError(absl::StrCat(
                                  name_, " cannot start a kernel of atomics: ", result.what)));
  return false;
}

void DeviceQueue::Fail(StatusCode code, absl::Status why) {
  refuses_ = code;
  failure_ = std::move(why);
  for (Waiting& each : waiting_) {
    each.outcome->done = true;
    each.outcome->code = code;
  }
  // The device may still use the memory of what is under way.
  if (code != StatusCode::kDeadlineExceeded) n_started_ = 0;
  waiting_.erase(waiting_.begin() + n_started_, waiting_.end());
}

}  // namespace iris::port
