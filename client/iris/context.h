// iris::Context: a process's membership in a job and its window onto every peer's heap.
//
//   iris::StatusOr<iris::Context> context = iris::Context::Create();  // rank, size: the launcher's
//   if (!context.ok()) {
//     std::cerr << context.status() << "\n";
//     return 1;
//   }
//   iris::StatusOr<iris::Array<float>> x = context->Allocate<float>(1024, "x");  // collective
//   float* mine = x->get();
//   float* theirs = context->Translate(/*peer=*/1, mine);
//   iris::Status status = context->Barrier();
//
// A context needs irisd on this node. Every call that waits has a deadline. If it expires or a peer
// is gone, the error says which ranks are missing or which rank (and pid) left, hung up or died: a
// rank that hung up has lost its session with irisd, and its process may still run.
//
// Thread-safe, but for moves; calls that are collective (marked so) must be made by all ranks of
// the team in the same order. In a forked child every call fails with kFailedPrecondition, and the
// windows are not mapped. Mapped memory, barriers and kernels still work after irisd has gone;
// calls that need irisd retry with back-off until their deadline, then fail with kUnavailable.
//
// Header-only over <iris/c_api.h>, which libiris.so exports. C++17; uses only the standard library.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "iris/c_api.h"
#include "iris/context_types.h"
#include "iris/dtype.h"
#include "iris/status.h"
#include "iris/types.h"

// The backend that this program's kernels are compiled for. Linking a device library, such as
// Iris::device_emu, sets it.
#ifdef IRIS_KERNELS
#define IRIS_IMPL_TEXT_OF(x) #x
#define IRIS_IMPL_TEXT(x) IRIS_IMPL_TEXT_OF(x)
#define IRIS_IMPL_KERNELS IRIS_IMPL_TEXT(IRIS_KERNELS)
#else
#define IRIS_IMPL_KERNELS nullptr
#endif

namespace iris {

// An Allocation of `size` elements, which converts to its address in calls and launches.
template <typename T>
struct Array : Allocation {
  uint64_t size = 0;

  T* get() const { return As<T>(); }
  operator T*() const { return get(); }  // NOLINT: stands for its address
};

// An Opened of `size` elements.
template <typename T>
struct OpenedArray : Opened {
  uint64_t size = 0;

  T* get() const { return static_cast<T*>(address); }
  T* symmetric() const { return static_cast<T*>(symmetric_address); }
};

namespace impl {

// Replaces names of the C API in an error's text by those of C++: Reset() for iris_comm_reset().
inline std::string NamesOfCpp(std::string text) {
  constexpr std::string_view kComm = "iris_comm_", kAny = "iris_";
  for (size_t end = text.find("()"); end != text.npos; end = text.find("()", end + 1)) {
    size_t begin = end;
    while (begin > 0 &&
           (text[begin - 1] == '_' || (text[begin - 1] >= 'a' && text[begin - 1] <= 'z'))) {
      --begin;
    }
    const std::string_view name = std::string_view(text).substr(begin, end - begin);
    if (name.substr(0, kAny.size()) != kAny) continue;
    std::string camel;
    bool upper = true;
    for (char c : name.substr((name.substr(0, kComm.size()) == kComm ? kComm : kAny).size())) {
      if (c != '_') camel += upper ? static_cast<char>(c - 'a' + 'A') : c;
      upper = c == '_';
    }
    text.replace(begin, end - begin, camel);
    end = begin + camel.size();
  }
  return text;
}

// Makes a Status from the code of a C call and the thread's error message.
inline Status FromC(iris_code code) {
  if (code == IRIS_OK) return Status();
  return Status(static_cast<StatusCode>(code), NamesOfCpp(iris_error_message()));
}

// A struct of the C API with its size set.
template <typename T>
T Sized() {
  T made = {};
  made.size = sizeof(T);
  return made;
}

// T where the compiler must not deduce it.
template <typename T>
struct Same {
  using Type = T;
};

// Returns the bytes of so many elements; those of void are bytes.
template <typename T>
constexpr uint64_t ByteCount(uint64_t count) {
  if constexpr (std::is_void_v<T>) {
    return count;
  } else {
    static_assert(std::is_trivially_copyable_v<T>, "only plain data can be copied");
    return count * sizeof(T);
  }
}

// A handle of the C API that its owner destroys.
template <typename T, iris_code (*Destroy)(T*)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T* handle) : handle_(handle) {}
  ~Handle() { Reset(); }
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      Reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  T* get() const { return handle_; }

 private:
  void Reset() {
    if (handle_ != nullptr) (void)Destroy(std::exchange(handle_, nullptr));
  }
  T* handle_ = nullptr;
};

}  // namespace impl

// A Context is move-only. A moved-from or default-constructed one is empty: every call fails.
class Context {
 public:
  Context() = default;

  // Connects to irisd, joins the job, maps every peer's heap, and makes the rank's device the
  // calling thread's current one. Collective over the job's ranks. kUnavailable names the socket
  // and says how to start irisd. kFailedPrecondition if this program's kernels or headers do not
  // fit irisd or libiris.so; the message says which ones. Leave `kernels` out: its default is the
  // calling program's backend.
  static StatusOr<Context> Create(const ContextOptions& from = {},
                                  const char* kernels = IRIS_IMPL_KERNELS) {
    iris_context_options options;
    iris_context_options_init(&options);
    options.kernels = kernels;
    options.device_abi = kernels == nullptr ? 0 : kDeviceAbi;
    options.job = from.job.c_str();
    options.rank = from.rank;
    options.n_ranks = from.n_ranks;
    options.local_rank = from.local_rank;
    options.heap_bytes = from.heap_bytes;
    options.max_heap_bytes = from.max_heap_bytes;
    options.prealloc = from.prealloc ? 1 : 0;
    options.device_uuid = from.device_uuid.c_str();
    options.runtime_dir = from.runtime_dir.c_str();
    options.join_timeout_ns = from.join_timeout.count();
    options.timeout_ns = from.timeout.count();
    options.connect_timeout_ns = from.connect_timeout.count();
    options.n_local = from.n_local == -1 ? 0 : from.n_local;
    options.rendezvous = from.rendezvous.c_str();
    options.secret = from.secret.c_str();
    iris_context* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_context_create(&options, &handle)));
    Context context;
    context.handle_ = impl::Handle<iris_context, iris_context_destroy>(handle);
    context.info_ = impl::Sized<iris_context_info>();
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_context_get_info(handle, &context.info_)));
    IRIS_RETURN_IF_ERROR(
        impl::FromC(iris_context_get_device(handle, &context.device_, sizeof(context.device_))));
    IRIS_ASSIGN_OR_RETURN(context.world_, context.TeamOf(nullptr));
    return context;
  }

  // The destructor leaves the job, unmaps in reverse order, and ends the streams and communicators
  // that were made with the context. Not collective: peers that still wait for this rank get
  // kAborted.

  uint32_t rank() const { return info_.rank; }
  uint32_t n_ranks() const { return info_.n_ranks; }
  std::string job() const { return Text(info_.job); }
  uint64_t job_id() const { return info_.job_id; }
  uint64_t epoch() const { return info_.epoch; }
  std::string device_uuid() const { return Text(info_.device_uuid); }
  uint32_t device_index() const { return info_.device_index; }  // irisd's number
  // Returns the number of ranks on the device that most ranks of the job share.
  uint32_t ranks_per_device() const { return info_.ranks_per_device; }
  // Returns the backend of the heap's memory: "emu", or the name of a GPU driver.
  std::string backend() const { return Text(info_.backend); }
  uint64_t heap_bytes() const { return Info().heap_bytes; }  // grows
  uint64_t stride_bytes() const { return info_.stride_bytes; }
  // Returns true if pointers mean the same on every rank.
  bool same_address() const { return info_.same_address != 0; }
  // Returns an address for each rank, which is null for ranks of other nodes.
  std::vector<void*> heap_bases() const {
    std::vector<void*> bases;
    for (uint32_t r = 0; r < info_.n_ranks; ++r) {
      bases.push_back(Reaches(r) ? reinterpret_cast<void*>(info_.base + r * info_.stride_bytes)
                                 : nullptr);
    }
    return bases;
  }
  // Returns the first rank of this node, and the number of its ranks, which are consecutive.
  uint32_t first_local() const { return info_.first_local; }
  uint32_t n_local() const { return info_.n_local; }
  // Returns true if the heap of `rank` is mapped here, because the rank is on this node, or on one
  // that shares a fabric with it. Loads and stores reach only such ranks; Put, Get, signals,
  // atomics and collectives reach all.
  bool Reaches(uint32_t rank) const {
    int32_t reaches = 0;
    return iris_context_reaches(get(), rank, &reaches) == IRIS_OK && reaches != 0;
  }
  // Returns the process id of a rank, or 0 if there is no such rank on this node.
  int64_t peer_pid(uint32_t rank) const {
    int64_t pid = 0;
    return iris_context_peer_pid(get(), rank, &pid) == IRIS_OK ? pid : 0;
  }
  CreateTimings create_timings() const {
    auto from = impl::Sized<iris_create_timings>();
    CreateTimings timings;
    if (iris_context_get_timings(get(), &from) != IRIS_OK) return timings;
    using std::chrono::nanoseconds;
    timings.connect = nanoseconds(from.connect_ns);
    timings.device = nanoseconds(from.device_ns);
    timings.join = nanoseconds(from.join_ns);
    timings.create = nanoseconds(from.create_ns);
    timings.export_fds = nanoseconds(from.export_ns);
    timings.map = nanoseconds(from.map_ns);
    timings.import = nanoseconds(from.import_ns);
    timings.map_memory = nanoseconds(from.map_memory_ns);
    timings.set_access = nanoseconds(from.set_access_ns);
    timings.commit = nanoseconds(from.commit_ns);
    return timings;
  }

  // Returns the value that kernels take. It is valid as long as the context, even if heaps grow.
  const DeviceContext& device_context() const { return device_; }
  const Team& world() const { return world_; }

  // Allocates a range at one offset of the team's heaps. Collective over the team. Memory is not
  // cleared: a fresh heap is zero, and a reused range holds its old bytes. kInvalidArgument if the
  // options of the ranks differ; the message says which rank asked for what. kResourceExhausted if
  // there is no room, even after growth. kDeadlineExceeded names the ranks that did not call.
  // kAborted if a rank died, hung up or left. Each error consumes the call on every rank, so ranks
  // stay in step.
  StatusOr<Allocation> Allocate(const AllocateOptions& options, const Team& team = {}) {
    return Make(InC(options), iris_allocate, team.handle);
  }
  // Allocates `size` elements of T, which iris-ctl shows with their type.
  template <typename T>
  StatusOr<Array<T>> Allocate(uint64_t size, const std::string& name = {}, const Team& team = {}) {
    return MakeArray<T>(size, name, iris_allocate, team.handle);
  }

  // Allocates a range of this rank's heap only. Not collective. The same offset stays unused in the
  // other heaps. The range ends with Free, or with the job. A range with a name is cleared, and
  // other ranks can open it; one without holds old bytes, and others can open it after Publish.
  // kAlreadyExists if this rank, or a team, has a live allocation of that name.
  StatusOr<Allocation> AllocateLocal(const AllocateOptions& options) {
    return Make(InC(options), iris_allocate_local);
  }
  template <typename T>
  StatusOr<Array<T>> AllocateLocal(uint64_t size, const std::string& name = {}) {
    return MakeArray<T>(size, name, iris_allocate_local);
  }

  // Makes this process's own memory available to other ranks, which open it and put into it as if
  // AllocateLocal had made it. Not collective. The owner uses the memory where it is: the result
  // has that address. Other ranks map the whole physical allocations that contain it. The memory
  // must be mapped from allocations of the platform's virtual memory management on the context's
  // device that can be exported as a POSIX descriptor; on emulated devices, it must be a shared
  // mapping of a memfd. The programming model names the calls. kInvalidArgument for other memory,
  // such as that of the platform's plain allocation function; the message says what to do.
  // kResourceExhausted if the address space that the heap may grow into is too small, since
  // registered memory takes a range there. Free ends the registration; keep the memory mapped until
  // then. The alignment in `options` is ignored.
  StatusOr<Allocation> Register(void* memory, const AllocateOptions& options) {
    return Make(InC(options), iris_register, memory);
  }
  template <typename T>
  StatusOr<Array<T>> Register(T* memory, uint64_t size, const std::string& name = {}) {
    return MakeArray<T>(size, name, iris_register, memory);
  }

  // Makes each rank's own memory, of the same size on all, symmetric: it gets one offset on all
  // ranks of the team, above the heap, as if Allocate had allocated it. Collective over the team.
  // The result has the address of a second mapping of the same memory: pass it to kernels, Put,
  // Get, signals, atomics, and collectives of this team or of a part of it. On a GPU, one kernel
  // that writes through one of the two addresses may read stale bytes through the other: use one
  // address within a kernel, or the fence that the programming model describes. Later kernels and
  // copies see every write. The same kinds of memory can be shared as in Register; the distance
  // from a multiple of the device's granularity must be the same on all ranks. An error is the same
  // on all ranks, and nothing is registered then. kInvalidArgument if the ranks differ, or if a
  // rank's memory cannot be shared; the message names the rank, the reason, and what to do.
  // kResourceExhausted if there is no room above the heap, or if a rank could not map the memory.
  // Free, which is collective, ends the registration; keep the memory mapped until then.
  StatusOr<Allocation> RegisterSymmetric(void* memory, const AllocateOptions& options,
                                         const Team& team) {
    return Make(InC(options), iris_register_symmetric, team.handle, memory);
  }
  template <typename T>
  StatusOr<Array<T>> RegisterSymmetric(T* memory, uint64_t size, const std::string& name = {},
                                       const Team& team = {}) {
    return MakeArray<T>(size, name, iris_register_symmetric, team.handle, memory);
  }

  // Names an allocation that AllocateLocal or Register made without a name, so that other ranks can
  // open it and see what this rank has written before. Not collective. kFailedPrecondition if the
  // allocation has a name already.
  Status Publish(const Allocation& allocation, const std::string& name) {
    const iris_allocation range = RangeOf(allocation);
    return impl::FromC(iris_publish_local(get(), &range, name.c_str()));
  }

  // Opens, by name, memory that `rank` has allocated with AllocateLocal or registered. Not
  // collective. Waits until that memory exists, for at most `timeout` (0: the context's):
  // kDeadlineExceeded names the rank and the name. kAborted if the job is broken, or if the rank
  // has left. The memory stays until Close, even if the owner frees it meanwhile: its range is not
  // reused before, and it cannot be opened again.
  StatusOr<Opened> Open(uint32_t rank, const std::string& name,
                        std::chrono::nanoseconds timeout = {}) {
    auto range = impl::Sized<iris_opened>();
    IRIS_RETURN_IF_ERROR(
        impl::FromC(iris_open_local(get(), rank, name.c_str(), timeout.count(), &range)));
    return Opened{range.rank,    range.offset_bytes, range.bytes,
                  range.address, range.symmetric,    static_cast<DType>(range.dtype)};
  }
  // Opens an array of T. kInvalidArgument if the owner gave another type.
  template <typename T>
  StatusOr<OpenedArray<T>> Open(uint32_t rank, const std::string& name,
                                std::chrono::nanoseconds timeout = {}) {
    IRIS_ASSIGN_OR_RETURN(const Opened opened, Open(rank, name, timeout));
    const DType wanted = DTypeOf<T>();
    if (wanted == opened.dtype || wanted == DType::kNone || opened.dtype == DType::kNone) {
      return OpenedArray<T>{opened, opened.bytes / sizeof(T)};
    }
    (void)Close(opened);
    return Status(StatusCode::kInvalidArgument,
                  "open \"" + name + "\" of rank " + std::to_string(rank) + ": it is of " +
                      DTypeName(opened.dtype) + ", and opened as " + DTypeName(wanted));
  }
  // Closes the memory; call it once for each Open. Not collective. No kernel may still use it.
  Status Close(const Opened& opened) {
    auto range = impl::Sized<iris_opened>();
    range.offset_bytes = opened.offset_bytes;
    range.rank = opened.rank;
    return impl::FromC(iris_close_local(get(), &range));
  }

  // Frees a range. Collective over the team that allocated or registered it; only the owner frees a
  // range of AllocateLocal or Register. The range is reused after every rank has freed it.
  Status Free(const Allocation& allocation) {
    const iris_allocation range = RangeOf(allocation);
    return impl::FromC(iris_free(get(), &range));
  }

  // Adds at least `bytes` bytes to every heap. Collective over all ranks. Mapped memory does not
  // move.
  Status Grow(uint64_t bytes) { return impl::FromC(iris_grow(get(), bytes)); }

  // Returns true if the range lies in any rank's heap, as mapped in this process, or in memory that
  // such a rank and this one have registered together.
  bool IsSymmetric(const void* address, uint64_t bytes = 1) const {
    int32_t is = 0;
    return impl::FromC(iris_is_symmetric(get(), address, bytes, &is)).ok() && is != 0;
  }
  // Finds the rank and the offset of an address. kInvalidArgument if it lies outside the window.
  struct Location {
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
  };
  StatusOr<Location> Locate(const void* address) const {
    Location location;
    IRIS_RETURN_IF_ERROR(
        impl::FromC(iris_locate(get(), address, &location.rank, &location.offset_bytes)));
    return location;
  }

  // Returns the address of the peer's copy of `mine`, which must be in this rank's heap. This is
  // address arithmetic, and checks nothing.
  template <typename T>
  T* Translate(uint32_t to, T* mine) const {
    // Unsigned arithmetic wraps: right for peers below this rank.
    return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(mine) +
                                (static_cast<uint64_t>(to) - info_.rank) * info_.stride_bytes);
  }

  // Waits in shared memory, without irisd, until all ranks of the team have called Barrier. It does
  // not wait for streams: synchronize them first. A timeout of 0 is the context's.
  Status Barrier(const Team& team = {}, std::chrono::nanoseconds timeout = {}) {
    return impl::FromC(iris_barrier(get(), team.handle, timeout.count()));
  }

  // Sends the root's value, of at most 1 MiB, to every rank of the team. Collective over the team.
  // `root` is a world rank.
  StatusOr<std::string> Broadcast(std::string_view value, uint32_t root, const Team& team = {}) {
    const void* bytes = nullptr;
    size_t n_bytes = 0;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_broadcast_bytes(get(), team.handle, value.data(),
                                                          value.size(), root, &bytes, &n_bytes)));
    return std::string(static_cast<const char*>(bytes), n_bytes);
  }
  template <typename T>
  StatusOr<T> BroadcastValue(const T& value, uint32_t root) {
    static_assert(std::is_trivially_copyable_v<T>);
    IRIS_ASSIGN_OR_RETURN(
        const std::string bytes,
        Broadcast(std::string_view(reinterpret_cast<const char*>(&value), sizeof(T)), root));
    if (bytes.size() != sizeof(T)) {
      return Status(StatusCode::kInvalidArgument,
                    "broadcast of a value: root sent a value of another size");
    }
    T came;
    std::memcpy(&came, bytes.data(), sizeof(T));
    return came;
  }

  // Makes a team of the listed world ranks, a subset of the parent in the wanted order. Collective
  // over the parent, with the same list everywhere. A rank outside the list gets a Team whose
  // member() is false.
  StatusOr<Team> CreateTeam(const std::vector<uint32_t>& ranks, const Team& parent = {}) {
    iris_team* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_team_create(
        get(), parent.handle, ranks.data(), static_cast<uint32_t>(ranks.size()), &handle)));
    return TeamOf(handle);
  }
  // Makes a team of the ranks that give the same color, ordered by key, then by their place in the
  // parent. Collective over the parent. A rank that gives a negative color is in no team.
  StatusOr<Team> Split(int color, int key = 0, const Team& parent = {}) {
    iris_team* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_team_split(get(), parent.handle, color, key, &handle)));
    return TeamOf(handle);
  }
  // Return the team of this node's ranks, and that of the ranks with this one's place on each node.
  // The first call of each is collective over the world, and later ones are not; in a job of one
  // node the first is the world.
  StatusOr<Team> local() {
    iris_team* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_team_local(get(), &handle)));
    return TeamOf(handle);
  }
  StatusOr<Team> rail() {
    iris_team* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_team_rail(get(), &handle)));
    return TeamOf(handle);
  }
  // Destroys a team. Collective over the team.
  Status DestroyTeam(const Team& team) {
    return impl::FromC(iris_team_destroy(get(), team.handle));
  }

  // Puts and gets of the host, at once and without a stream, to and from any rank of any node. Not
  // collective. The peer's side is given by the address of this rank's own copy, as in kernels; the
  // other side is memory of this rank's heap or of the host. `count` is of elements; those of void
  // are bytes.
  //
  // Put returns when `src` may be reused; the signal, if its word is not null, is visible after the
  // data. Puts to one rank arrive in their order. Quiet says when all have arrived. Get returns
  // when the data is here. kInvalidArgument for a place outside the heap, or beyond the end of an
  // allocation that this rank knows. kOutOfRange from Get, and later from Quiet for Put, if the
  // other node has no memory at the place. kDeadlineExceeded and kAborted as for other waits;
  // kUnavailable if the port process of this node has ended.
  template <typename T>
  Status Put(uint32_t to, T* dst, const typename impl::Same<T>::Type* src, uint64_t count,
             const SignalTo& signal = {nullptr, 0}) const {
    const iris_signal sent = InC(signal);
    return impl::FromC(iris_put(get(), dst, src, impl::ByteCount<T>(count), to,
                                signal.word == nullptr ? nullptr : &sent));
  }
  template <typename T>
  Status Put(uint32_t to, T* dst, const typename impl::Same<T>::Type* src, const Strided& rows,
             const SignalTo& signal = {nullptr, 0}) const {
    const iris_signal sent = InC(signal);
    const iris_rows strided = InC<T>(rows);
    return impl::FromC(
        iris_put_rows(get(), dst, src, &strided, to, signal.word == nullptr ? nullptr : &sent));
  }
  template <typename T>
  Status Get(uint32_t from, T* dst, const typename impl::Same<T>::Type* src, uint64_t count) const {
    return impl::FromC(iris_get(get(), dst, src, impl::ByteCount<T>(count), from));
  }
  template <typename T>
  Status Get(uint32_t from, T* dst, const typename impl::Same<T>::Type* src,
             const Strided& rows) const {
    const iris_rows strided = InC<T>(rows);
    return impl::FromC(iris_get_rows(get(), dst, src, &strided, from));
  }
  // Sends a signal, ordered after earlier puts to the same rank.
  Status Signal(uint32_t to, const SignalTo& signal) const {
    const iris_signal sent = InC(signal);
    return impl::FromC(iris_send_signal(get(), to, &sent));
  }

  // Atomics of the host on a word of any rank, which return the old value. T: int32_t, uint32_t,
  // int64_t, uint64_t, float or double. Bitwise operations are for integers. kUnimplemented for
  // ranks of this node if the heap is memory of a GPU. docs/memory_model.md says with which
  // accesses they are atomic.
  template <typename T>
  StatusOr<T> Atomic(AtomicOp op, uint32_t peer, T* word,
                     typename impl::Same<T>::Type value) const {
    constexpr int32_t kOps[] = {IRIS_ATOMIC_ADD, IRIS_ATOMIC_SUB, IRIS_ATOMIC_EXCHANGE,
                                IRIS_ATOMIC_AND, IRIS_ATOMIC_OR,  IRIS_ATOMIC_XOR,
                                IRIS_ATOMIC_MIN, IRIS_ATOMIC_MAX};
    return Fetch(kOps[static_cast<int>(op)], peer, word, value, T());
  }
  template <typename T>
  StatusOr<T> AtomicLoad(uint32_t peer, const T* word) const {
    return Fetch(IRIS_ATOMIC_LOAD, peer, const_cast<T*>(word), T(), T());
  }
  // Writes `desired` if the word is `expected`, compared by bits.
  template <typename T>
  StatusOr<T> AtomicCompareExchange(uint32_t peer, T* word, typename impl::Same<T>::Type expected,
                                    typename impl::Same<T>::Type desired) const {
    return Fetch(IRIS_ATOMIC_COMPARE_EXCHANGE, peer, word, desired, expected);
  }

  // Orders this thread's earlier puts to each rank before its later ones to the same rank.
  Status Fence() const { return impl::FromC(iris_fence(get())); }
  // Waits until all that the host, and kernels that have ended, have put to other ranks has
  // arrived. An error that no call has returned, of a put of the host or of a kernel's request to
  // another node, is returned once. A timeout of 0 is the context's.
  Status Quiet(std::chrono::nanoseconds timeout = {}) const {
    return impl::FromC(iris_quiet(get(), timeout.count()));
  }

  // Start, stop and write the trace of this rank: see iris_trace_start and the functions after it
  // in <iris/c_api.h>. HostSpan below records spans of the host. Not collective. A limit of 0 means
  // until StopTrace.
  Status StartTrace(std::chrono::nanoseconds limit = {}) {
    return impl::FromC(iris_trace_start(get(), limit.count()));
  }
  Status StopTrace() { return impl::FromC(iris_trace_stop(get())); }
  Status WriteTrace(const std::string& path) {
    return impl::FromC(iris_trace_write(get(), path.c_str()));
  }

  // Returns OK while every rank is alive and none has left; afterwards kAborted, whose message
  // names the rank and the reason. It does not call irisd.
  Status Health() const { return impl::FromC(iris_context_health(get())); }

  // Leaves the job now rather than in the destructor. The heaps are unmapped at once, so
  // synchronize streams first, and make no other call meanwhile. Every later call fails with
  // kFailedPrecondition.
  Status Leave() { return impl::FromC(iris_context_leave(get())); }

  // The handle for the C API; null if this is empty.
  iris_context* get() const { return handle_.get(); }

 private:
  static std::string Text(const char* text) { return text == nullptr ? "" : text; }

  iris_context_info Info() const {
    auto info = impl::Sized<iris_context_info>();
    (void)iris_context_get_info(get(), &info);
    return info;
  }

  static iris_signal InC(const SignalTo& from) {
    return {sizeof(iris_signal), from.word, from.value,
            from.op == SignalOp::kSet ? IRIS_SIGNAL_SET : IRIS_SIGNAL_ADD, 0};
  }
  template <typename T>
  static iris_rows InC(const Strided& rows) {
    return {sizeof(iris_rows), rows.rows, impl::ByteCount<T>(rows.length),
            impl::ByteCount<T>(rows.dst_stride), impl::ByteCount<T>(rows.src_stride)};
  }
  template <typename T>
  StatusOr<T> Fetch(int32_t op, uint32_t peer, T* word, T value, T compare) const {
    static_assert(
        std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && (sizeof(T) == 4 || sizeof(T) == 8),
        "no atomic of this type");
    auto call = impl::Sized<iris_atomic>();
    call.word = word;
    call.peer = peer;
    call.op = op;
    call.dtype = static_cast<iris_dtype>(DTypeOf<T>());
    std::memcpy(&call.value, &value, sizeof(value));
    std::memcpy(&call.compare, &compare, sizeof(compare));
    uint64_t bits = 0;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_atomic_fetch(get(), &call, &bits)));
    T old;
    std::memcpy(&old, &bits, sizeof(old));
    return old;
  }

  // Returns the options for the C API, which borrow from `from`.
  static iris_allocate_options InC(const AllocateOptions& from) {
    auto options = impl::Sized<iris_allocate_options>();
    options.bytes = from.bytes;
    options.alignment_bytes = from.alignment_bytes;
    options.name = from.name.c_str();
    options.dtype = static_cast<iris_dtype>(from.dtype);
    options.n_dims = static_cast<uint32_t>(from.shape.size());
    options.shape = from.shape.data();
    return options;
  }
  // Calls `make(context, args..., options, out)` of the C API, and returns the allocation.
  template <typename MakeInC, typename... Args>
  StatusOr<Allocation> Make(const iris_allocate_options& options, MakeInC make, Args... args) {
    auto range = impl::Sized<iris_allocation>();
    IRIS_RETURN_IF_ERROR(impl::FromC(make(get(), args..., &options, &range)));
    return Allocation{range.offset_bytes, range.bytes, range.address, range.team_id};
  }
  // Returns `size` elements of T, in the allocation that `make` returns.
  template <typename T, typename MakeInC, typename... Args>
  StatusOr<Array<T>> MakeArray(uint64_t size, const std::string& name, MakeInC make, Args... args) {
    if (size > ~uint64_t{0} / sizeof(T)) {
      return Status(StatusCode::kInvalidArgument, "allocate: so many elements have no size");
    }
    auto options = impl::Sized<iris_allocate_options>();
    options.bytes = size * sizeof(T);
    options.alignment_bytes = std::max<uint64_t>(alignof(T), AllocateOptions().alignment_bytes);
    options.name = name.c_str();
    options.dtype = static_cast<iris_dtype>(DTypeOf<T>());
    options.n_dims = 1;
    options.shape = &size;
    IRIS_ASSIGN_OR_RETURN(const Allocation made, Make(options, make, args...));
    return Array<T>{made, size};
  }

  static iris_allocation RangeOf(const Allocation& allocation) {
    return {sizeof(iris_allocation), allocation.offset_bytes, allocation.bytes,
            allocation.address,      allocation.team_id,      0};
  }

  StatusOr<Team> TeamOf(iris_team* handle) const {
    auto info = impl::Sized<iris_team_info>();
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_team_get_info(get(), handle, &info)));
    Team team;
    team.id = info.id;
    team.index = info.index;
    team.ranks.assign(info.ranks, info.ranks + info.n_ranks);
    team.handle = handle;
    IRIS_RETURN_IF_ERROR(
        impl::FromC(iris_team_get_device(get(), handle, &team.device, sizeof(team.device))));
    return team;
  }

  impl::Handle<iris_context, iris_context_destroy> handle_;
  iris_context_info info_ = {};
  DeviceContext device_;
  Team world_;
};

// Records a named span of the host in this rank's trace, from its construction to the end of the
// scope:
//
//   const iris::HostSpan span(context, "forward");
//
// Nothing is recorded while no trace of StartTrace or IRIS_TRACE is on, or if `name` is not 1 to
// 256 bytes of UTF-8. Borrows both arguments. It is constructed and destroyed on one thread.
class HostSpan {
 public:
  HostSpan(const Context& context, const char* name) : context_(context.get()), name_(name) {
    if (iris_trace_span_begin(context_, &begin_) != IRIS_OK) begin_ = 0;
  }
  ~HostSpan() {
    if (begin_ != 0) (void)iris_trace_span_end(context_, begin_, name_);
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  iris_context* const context_;
  const char* const name_;
  uint64_t begin_ = 0;
};

}  // namespace iris
