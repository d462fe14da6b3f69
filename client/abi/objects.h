// The objects of the handles of the C API, and the frame of its functions. Inside client/abi.
//
// Contexts and streams are thread-safe; a communicator takes one call at a time and refuses a
// second.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/abi/handles.h"
#include "client/backend/operations.h"
#include "client/comm/communicator.h"
#include "client/context/host_context.h"
#include "iris/c_api.h"
#include "iris/status.h"

// Returns from the function with the error of `expression`, if it has one.
#define IRIS_ABI_TRY(expression) \
  if (absl::Status iris_abi_status = (expression); !iris_abi_status.ok()) return iris_abi_status

namespace iris::abi {

// Returns kInvalidArgument with the concatenated parts as message.
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A context and the objects made with it. The objects hold the context, so that it ends after them.
class ContextState {
 public:
  explicit ContextState(internal::HostContext::Owned context) : host(std::move(context)) {}

  // Returns the backend's functions, which the first call loads.
  absl::StatusOr<const backend::BackendOperations*> Backend() ABSL_LOCKS_EXCLUDED(mu_);

  // Makes a handle of an object that ends with the context.
  template <typename T, typename Handle>
  absl::Status Give(std::unique_ptr<T> object, Handle** out) ABSL_LOCKS_EXCLUDED(mu_) {
    IRIS_ASSIGN_OR_RETURN(void* const handle, Adopt(T::kKind, std::move(object)));
    *out = static_cast<Handle*>(handle);
    return absl::OkStatus();
  }
  absl::StatusOr<void*> Adopt(Kind kind, std::unique_ptr<Object> object) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the handle. Returns false if the context has no such handle.
  bool Disown(Kind kind, const void* handle) ABSL_LOCKS_EXCLUDED(mu_);
  void DisownAll() ABSL_LOCKS_EXCLUDED(mu_);

  const internal::HostContext::Owned host;

 private:
  absl::Mutex mu_;
  const backend::BackendOperations* backend_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // `objects_` is ordered by creation number; `numbers_` maps each handle to that number.
  std::map<uint64_t, std::pair<Kind, const void*>> objects_ ABSL_GUARDED_BY(mu_);
  std::map<const void*, uint64_t> numbers_ ABSL_GUARDED_BY(mu_);
  uint64_t n_made_ ABSL_GUARDED_BY(mu_) = 0;
};

struct ContextObject : Object {
  static constexpr Kind kKind = Kind::kContext;
  explicit ContextObject(std::shared_ptr<ContextState> s) : state(std::move(s)) {}
  internal::HostContext& host() const { return *state->host; }
  const std::shared_ptr<ContextState> state;
};

struct TeamObject : Object {
  static constexpr Kind kKind = Kind::kTeam;
  TeamObject(std::shared_ptr<ContextState> s, Team t) : state(std::move(s)), team(std::move(t)) {}
  const std::shared_ptr<ContextState> state;
  const Team team;
};

// An object that the backend makes and destroys.
template <typename T, Kind kOf>
struct BackendObject : Object {
  static constexpr Kind kKind = kOf;
  using Destroy = void (*)(T*);
  BackendObject(std::shared_ptr<ContextState> s, const backend::BackendOperations* b, T* o,
                Destroy d)
      : state(std::move(s)), backend(b), object(o), destroy(d) {}
  ~BackendObject() override {
    // A forked child lacks the threads for which `destroy` may wait.
    if (state->host->OwnProcess()) destroy(object);
  }
  T& operator*() const { return *object; }

  // Held during calls on events and graphs, which take one call at a time; streams take several.
  absl::Mutex turn;
  const std::shared_ptr<ContextState> state;
  const backend::BackendOperations* const backend;
  T* const object;
  const Destroy destroy;
};
struct StreamObject : BackendObject<backend::Stream, Kind::kStream> {
  StreamObject(std::shared_ptr<ContextState> s, const backend::BackendOperations* b,
               backend::Stream* o, Destroy d)
      : BackendObject(std::move(s), b, o, d) {
    if (const internal::HostPort* port = state->host->port(); port != nullptr) {
      told = port->n_failures();
    }
  }
  std::atomic<uint64_t> told{0};  // failed copies between nodes that the stream has told of
};
using EventObject = BackendObject<backend::Event, Kind::kEvent>;
using GraphObject = BackendObject<backend::Graph, Kind::kGraph>;

struct CommObject : Object {
  static constexpr Kind kKind = Kind::kComm;
  explicit CommObject(std::shared_ptr<ContextState> s) : state(std::move(s)) {}
  const std::shared_ptr<ContextState> state;
  std::unique_ptr<internal::Communicator> comm;
  std::atomic<bool> busy{false};  // a call is under way
  // The stream of the open group, given by the group's first call. Used by the call under way.
  iris_stream* group_stream = nullptr;
};

// Returns the code of a status, and keeps the text of an error for iris_error_message, escaped by
// base::Printable because parts may come from the environment and from irisd.
iris_code Tell(const absl::Status& status) noexcept;

// Runs the body of an API function, which returns a status. No exception leaves Run.
template <typename Body>
iris_code Run(Body body) noexcept {
  try {
    return Tell(body());
  } catch (const std::bad_alloc&) {
    return Tell(absl::ResourceExhaustedError("out of host memory"));
  } catch (...) {
    return Tell(absl::InternalError("an exception inside of Iris: please report it"));
  }
}

template <typename T>
absl::Status Unknown(const void* handle) {
  return Invalid("the ", KindName(T::kKind), " handle ",
                 HandleTable::Get().Describe(T::kKind, handle), ": give one that iris_",
                 T::kKind == Kind::kComm ? "comm" : KindName(T::kKind),
                 "_create gave and that was not destroyed");
}

// Like Run, with the object of a handle.
template <typename T, typename Body>
iris_code With(const void* handle, Body body) noexcept {
  return Run([&]() -> absl::Status {
    const Held<T> held(handle);
    return held ? body(*held) : Unknown<T>(handle);
  });
}

// Removes the handle of an object that belongs to a context.
template <typename T>
iris_code Destroy(const void* handle) noexcept {
  return With<T>(handle, [&](T& object) -> absl::Status {
    if (!object.state->host->OwnProcess()) return absl::OkStatus();  // belongs to the parent
    return object.state->Disown(T::kKind, handle) ? absl::OkStatus() : Unknown<T>(handle);
  });
}

// Like With, with an object and a stream. Work on the heap uses a stream of the same context, which
// waits for its streams before it unmaps the heap; events connect any two streams.
template <typename T, typename Body>
iris_code WithStream(const void* handle, const void* stream, Body body) noexcept {
  return With<T>(handle, [&](T& object) -> absl::Status {
    const Held<StreamObject> held(stream);
    if (!held) return Unknown<StreamObject>(stream);
    IRIS_ABI_TRY(object.state->host->Usable());
    if (T::kKind != Kind::kEvent && held->state != object.state) {
      return Invalid("the stream and the ", KindName(T::kKind),
                     " belong to different contexts: make or wrap the stream with the context ",
                     "whose memory it works on");
    }
    return body(object, *held);
  });
}

// Like With, with a context and one of its teams, or the world for a null team.
template <typename Body>
iris_code WithTeam(const void* context, const iris_team* team, Body body) noexcept {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    if (team == nullptr) return body(object, object.host().world());
    const Held<TeamObject> held(team);
    if (!held) return Unknown<TeamObject>(team);
    if (held->state != object.state) return Invalid("the team belongs to another context");
    return body(object, held->team);
  });
}

// The sizes of structs in 0.2, the first version of the C API. Headers of later versions only add
// fields, so these numbers never change.
inline constexpr size_t kContextOptionsBytes = 104;
inline constexpr size_t kAllocateOptionsBytes = 48;
inline constexpr size_t kAllocationBytes = 40;
inline constexpr size_t kSignalBytes = 32;
inline constexpr size_t kRowsBytes = 40;
inline constexpr size_t kCommOptionsBytes = 72;
inline constexpr size_t kMatmulBytes = 120;
inline constexpr size_t kMoeConfigBytes = 40;
inline constexpr size_t kMoeDispatchCallBytes = 104;
inline constexpr size_t kMoeCombineCallBytes = 48;
inline constexpr size_t kNormBytes = 120;
inline constexpr size_t kOpenedBytes = 48;
inline constexpr size_t kFillOptionsBytes = 128;
inline constexpr size_t kTensorOptionsBytes = 48;
inline constexpr size_t kAtomicBytes = 48;

inline absl::Status NotNull(const void* p, absl::string_view name) {
  if (p != nullptr) return absl::OkStatus();
  return Invalid(name, " is null");
}

// Reads as much of a struct as the caller's header knows: at least `least` bytes, the size in the
// first version of the C API that has this struct.
template <typename T>
absl::StatusOr<T> ReadStruct(const T* given, size_t least, absl::string_view name) {
  constexpr size_t kMostBytes = 1 << 16;  // larger sizes are errors
  IRIS_ABI_TRY(NotNull(given, name));
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < least || size > kMostBytes) {
    return Invalid(name, ": its size is ", size, ", and at least ", least,
                   " is expected: set it to sizeof, as the function ..._init does");
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return Invalid(name, ": it has a field at byte ", i, " that this libiris.so (",
                     iris_version_string(),
                     ") does not know: use a newer libiris.so, or leave the field at 0");
    }
  }
  T out = {};
  std::memcpy(&out, given, std::min(size, sizeof(T)));
  return out;
}

// Fills in the fields of the caller's struct that the caller's header has.
template <typename T>
absl::Status WriteStruct(T from, absl::string_view name, T* to) {
  IRIS_ABI_TRY(NotNull(to, name));
  size_t size = 0;
  std::memcpy(&size, to, sizeof(size));
  if (size < sizeof(size) || size > (1 << 16)) {
    return Invalid(name, ": its size is ", size, ": set it to sizeof before the call");
  }
  from.size = size;
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<char*>(to) + sizeof(T), 0, size - sizeof(T));
  return absl::OkStatus();
}

inline absl::Status CheckTime(int64_t nanoseconds, absl::string_view name) {
  if (nanoseconds >= 0) return absl::OkStatus();
  return Invalid(name, "=", nanoseconds, " is negative");
}

inline std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

}  // namespace iris::abi
