// Errors, versions, the launcher, and contexts; what ranks do together on the host.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "absl/time/time.h"
#include "client/abi/objects.h"
#include "client/backend/load.h"
#include "client/base/launcher.h"
#include "client/base/printable.h"
#include "iris/dtype.h"
#include "iris/types.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace iris::abi {
namespace {

static_assert(IRIS_DEVICE_ABI == kDeviceAbi);
static_assert(IRIS_F8E5M2 == static_cast<int>(DType::kF8E5M2));

// The text of the calling thread's last error, and the last value returned to that thread.
struct Texts {
  ~Texts();
  std::string message;
  std::string value;
};
// Destructors of statics may call when the main thread's texts have gone; nothing is kept then.
thread_local bool t_ended = false;
Texts::~Texts() { t_ended = true; }

Texts* ThreadTexts() {
  thread_local Texts texts;
  return t_ended ? nullptr : &texts;
}

absl::Status CheckVersions(const iris_context_options& options) {
  const uint32_t major = options.header_version / 1000;
  if (options.header_version == 0 || major != IRIS_VERSION_MAJOR) {
    return absl::FailedPreconditionError(
        absl::StrCat("this program was built with the headers of Iris ", major, ".",
                     options.header_version % 1000, ", which libiris.so ", iris_version_string(),
                     " cannot serve: build it with the headers of this libiris.so"));
  }
  if (options.kernels != nullptr && options.device_abi != IRIS_DEVICE_ABI) {
    return absl::FailedPreconditionError(
        absl::StrCat("the kernels of this program were built for device ABI ", options.device_abi,
                     ", and libiris.so ", iris_version_string(), " serves ", IRIS_DEVICE_ABI,
                     ": build the program with the headers of this libiris.so"));
  }
  return absl::OkStatus();
}

// Copies a text into a field of fixed size, and cuts it if it does not fit.
template <size_t kBytes>
void CopyText(const std::string& from, char (&to)[kBytes]) {
  std::snprintf(to, kBytes, "%s", from.c_str());
}

}  // namespace

iris_code Tell(const absl::Status& status) noexcept {
  if (status.ok()) return IRIS_OK;
  Texts* const texts = ThreadTexts();
  if (texts != nullptr) {
    try {
      texts->message = base::Printable(status.message());
    } catch (...) {
      texts->message.clear();
    }
  }
  return static_cast<iris_code>(status.code());
}

absl::StatusOr<const backend::BackendOperations*> ContextState::Backend() {
  absl::MutexLock lock(&mu_);
  if (backend_ == nullptr) {
    IRIS_ASSIGN_OR_RETURN(auto loaded, backend::LoadBackend(host->backend()));
    backend_ = loaded;
  }
  return backend_;
}

absl::StatusOr<void*> ContextState::Adopt(Kind kind, std::unique_ptr<Object> object) {
  absl::MutexLock lock(&mu_);
  if (ended_) return absl::FailedPreconditionError("this context was destroyed");
  void* const handle = HandleTable::Get().Add(kind, std::move(object));
  if (handle == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this process has ", HandleTable::kMaxObjects,
                     " objects of Iris already: destroy those that it does not use"));
  }
  numbers_[handle] = n_made_;
  objects_[n_made_++] = {kind, handle};
  return handle;
}

bool ContextState::Disown(Kind kind, const void* handle) {
  {
    absl::MutexLock lock(&mu_);
    const auto number = numbers_.find(handle);
    if (number != numbers_.end()) {
      objects_.erase(number->second);
      numbers_.erase(number);
    }
  }
  return HandleTable::Get().Remove(kind, handle);
}

void ContextState::DisownAll() {
  decltype(objects_) objects;
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
    objects.swap(objects_);
    numbers_.clear();
  }
  // In reverse order, because an object may use earlier ones.
  for (auto it = objects.rbegin(); it != objects.rend(); ++it) {
    HandleTable::Get().Remove(it->second.first, it->second.second);
  }
}

}  // namespace iris::abi

using namespace iris::abi;  // functions in C have no namespace of their own
namespace internal = iris::internal;

const char* iris_error_message(void) {
  const Texts* const texts = ThreadTexts();
  return texts == nullptr ? "" : texts->message.c_str();
}

const char* iris_code_name(iris_code code) {
  return iris::StatusCodeName(static_cast<iris::StatusCode>(code));
}

uint32_t iris_version(void) { return IRIS_VERSION; }
const char* iris_version_string(void) { return iris::wire::kIrisVersion; }

iris_code iris_launcher_read(iris_launcher* out) {
  return Run([&]() -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(auto read, iris::base::ReadLauncher());
    iris_launcher launcher = {};
    launcher.rank = read.rank;
    launcher.n_ranks = read.n_ranks;
    launcher.local_rank = read.local_rank;
    launcher.n_local = read.n_local;
    CopyText(read.launcher, launcher.name);
    CopyText(read.job, launcher.job);
    return WriteStruct(launcher, "iris_launcher", out);
  });
}

void iris_context_options_init_sized(iris_context_options* options, size_t size) {
  if (options == nullptr || size < sizeof(size_t) || size > (1 << 16)) return;
  iris_context_options fresh = {};
  fresh.size = size;
  fresh.header_version = IRIS_VERSION;
  fresh.rank = fresh.n_ranks = fresh.local_rank = -1;
  std::memset(options, 0, size);
  std::memcpy(options, &fresh, size < sizeof(fresh) ? size : sizeof(fresh));
}

iris_code iris_context_create(const iris_context_options* options, iris_context** out) {
  return Run([&]() -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "create a context: the place for the handle"));
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(options, kContextOptionsBytes, "iris_context_options"));
    IRIS_ABI_TRY(CheckVersions(given));
    IRIS_ABI_TRY(CheckTime(given.join_timeout_ns, "join_timeout_ns"));
    IRIS_ABI_TRY(CheckTime(given.timeout_ns, "timeout_ns"));
    IRIS_ABI_TRY(CheckTime(given.connect_timeout_ns, "connect_timeout_ns"));
    internal::HostContextOptions wanted;
    wanted.job = TextOf(given.job);
    wanted.rank = given.rank;
    wanted.n_ranks = given.n_ranks;
    wanted.local_rank = given.local_rank;
    if (given.n_local != 0) wanted.n_local = given.n_local;
    wanted.rendezvous = TextOf(given.rendezvous);
    wanted.secret = TextOf(given.secret);
    wanted.heap_bytes = given.heap_bytes;
    wanted.max_heap_bytes = given.max_heap_bytes;
    wanted.prealloc = given.prealloc != 0;
    wanted.device_uuid = TextOf(given.device_uuid);
    wanted.runtime_dir = TextOf(given.runtime_dir);
    wanted.kernels = TextOf(given.kernels);
    wanted.join_timeout = std::chrono::nanoseconds(given.join_timeout_ns);
    wanted.timeout = std::chrono::nanoseconds(given.timeout_ns);
    wanted.connect_timeout = std::chrono::nanoseconds(given.connect_timeout_ns);
    IRIS_ASSIGN_OR_RETURN(auto created, internal::HostContext::Create(wanted));
    auto state = std::make_shared<ContextState>(std::move(created));
    void* const handle =
        HandleTable::Get().Add(Kind::kContext, std::make_unique<ContextObject>(std::move(state)));
    if (handle == nullptr) return absl::ResourceExhaustedError("too many objects of Iris");
    *out = static_cast<iris_context*>(handle);
    return absl::OkStatus();
  });
}

iris_code iris_context_destroy(iris_context* context) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    if (!object.host().OwnProcess()) return absl::OkStatus();  // the parent's
    if (!HandleTable::Get().Remove(Kind::kContext, context)) {
      return absl::FailedPreconditionError("another thread destroys this context");
    }
    object.state->DisownAll();
    return absl::OkStatus();  // leaves when the last call that holds it has ended
  });
}

iris_code iris_context_leave(iris_context* context) {
  return With<ContextObject>(context, [](ContextObject& object) { return object.host().Leave(); });
}

iris_code iris_context_get_info(iris_context* context, iris_context_info* out) {
  return With<ContextObject>(context, [&](ContextObject& object) {
    const internal::HostContext& host = object.host();
    const internal::JoinedJob& job = host.job();
    iris_context_info info = {};
    info.rank = host.rank();
    info.n_ranks = host.n_ranks();
    info.job_id = job.job_id;
    info.epoch = job.epoch;
    info.device_index = job.device_index;
    info.ranks_per_device = host.ranks_per_device();
    info.heap_bytes = host.heap_bytes();
    info.stride_bytes = host.stride_bytes();
    info.base = host.device_context().base;
    info.same_address = host.committed().same_address ? 1 : 0;
    info.job = host.options().job.c_str();
    info.device_uuid = job.device_uuid.c_str();
    info.backend = host.backend().c_str();
    info.first_local = host.first_local();
    info.n_local = host.n_local();
    return WriteStruct(info, "iris_context_info", out);
  });
}

iris_code iris_context_get_timings(iris_context* context, iris_create_timings* out) {
  return With<ContextObject>(context, [&](ContextObject& object) {
    const iris::CreateTimings& from = object.host().timings();
    iris_create_timings timings = {};
    timings.connect_ns = from.connect.count();
    timings.device_ns = from.device.count();
    timings.join_ns = from.join.count();
    timings.create_ns = from.create.count();
    timings.export_ns = from.export_fds.count();
    timings.map_ns = from.map.count();
    timings.import_ns = from.import.count();
    timings.map_memory_ns = from.map_memory.count();
    timings.set_access_ns = from.set_access.count();
    timings.commit_ns = from.commit.count();
    return WriteStruct(timings, "iris_create_timings", out);
  });
}

iris_code iris_context_health(iris_context* context) {
  return With<ContextObject>(context, [](ContextObject& object) { return object.host().Health(); });
}

iris_code iris_context_peer_pid(iris_context* context, uint32_t rank, int64_t* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "the place for the pid"));
    if (rank >= object.host().n_ranks()) {
      return Invalid("there is no rank ", rank, " in a job of ", object.host().n_ranks());
    }
    *out = object.host().peer_pid(rank);
    return absl::OkStatus();
  });
}

iris_code iris_context_reaches(iris_context* context, uint32_t rank, int32_t* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "the place for the answer"));
    *out = object.host().Maps(rank) ? 1 : 0;
    return absl::OkStatus();
  });
}

iris_code iris_context_get_device(iris_context* context, void* device_context, size_t bytes) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(device_context, "the place for the DeviceContext"));
    const iris::DeviceContext device = object.host().device_context();
    if (bytes > 1 << 16) return Invalid("no DeviceContext has so many bytes");
    std::memset(device_context, 0, bytes);
    std::memcpy(device_context, &device, bytes < sizeof(device) ? bytes : sizeof(device));
    return absl::OkStatus();
  });
}

iris_code iris_locate(iris_context* context, const void* address, uint32_t* rank,
                      uint64_t* offset_bytes) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(rank, "the place for the rank"));
    IRIS_ABI_TRY(NotNull(offset_bytes, "the place for the offset"));
    IRIS_ASSIGN_OR_RETURN(const auto location, object.host().Locate(address));
    *rank = location.rank;
    *offset_bytes = location.offset_bytes;
    return absl::OkStatus();
  });
}

iris_code iris_barrier(iris_context* context, iris_team* team, int64_t timeout_ns) {
  return WithTeam(context, team, [&](ContextObject& object, const iris::Team& members) {
    const absl::Status status = CheckTime(timeout_ns, "barrier: timeout_ns");
    if (!status.ok()) return status;
    return object.host().teams().Barrier(members, absl::Nanoseconds(timeout_ns));
  });
}

iris_code iris_broadcast_bytes(iris_context* context, iris_team* team, const void* data,
                               size_t bytes, uint32_t root, const void** out, size_t* out_bytes) {
  return WithTeam(context, team, [&](ContextObject& object, const auto& members) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "broadcast: the place for the address"));
    IRIS_ABI_TRY(NotNull(out_bytes, "broadcast: the place for the size"));
    const bool is_root = root == object.host().rank();
    if (is_root && bytes > 0) IRIS_ABI_TRY(NotNull(data, "broadcast: the data"));
    const absl::string_view value(static_cast<const char*>(data), is_root ? bytes : 0);
    IRIS_ASSIGN_OR_RETURN(auto came, object.host().teams().Broadcast(value, root, members));
    Texts* const texts = ThreadTexts();
    if (texts == nullptr) return absl::FailedPreconditionError("broadcast: this thread has ended");
    texts->value = std::move(came);
    *out = texts->value.data();
    *out_bytes = texts->value.size();
    return absl::OkStatus();
  });
}
