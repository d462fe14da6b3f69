#include "device/driver/testing/fake_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "device/driver/hip_api.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

// Hides entry points that libraries may lack from the old one.
#ifdef IRIS_FAKE_GPU_IS_OLD
#define NEWER __attribute__((visibility("hidden")))
#else
#define NEWER
#endif

namespace iris::driver::testing {
namespace {

constexpr uint64_t kGranule = 2 << 20;
constexpr uint64_t kMostInTurn = 32 << 10;
constexpr uint64_t kHipGranule = 4096;
constexpr int kUnknown = 999;
constexpr int kNotPermitted = 800;
constexpr size_t kFabricBytes = 64;
constexpr int kHostNuma = 3;  // a location type

struct Handle {
  int fd = -1;        // of its own
  int noted_fd = -1;  // hip: the importer's, looked at when access is set
  ino_t inode = 0;
  uint64_t bytes = 0;
  int device = -1;
  bool imported = false;
  int requested_types = 0;  // of export
  int location_type = hipMemLocationTypeDevice;
  int n_exports = 0;
  int n_holds = 0;  // of the handle
  int n_uses = 0;   // these and each mapping
};
struct Mapped {
  uint64_t bytes = 0;
  uint64_t handle = 0;
  std::set<int> devices;
};
struct Range {
  uint64_t bytes = 0;
  void* map = nullptr;
  uint64_t map_bytes = 0;
  std::vector<uint64_t> mappings;  // addresses, in the order of creation
};

std::recursive_mutex mu;
FakeGpu fake;
bool initialized = false;
bool is_hip = false;
std::vector<int> visible;
std::map<uint64_t, Handle> handles;
std::map<uint64_t, Mapped> mapped;
std::map<uint64_t, Range> ranges;
std::map<uint64_t, uint64_t> plain;  // of cudaMalloc and hipMalloc: address and size
std::map<void*, int> streams;
std::set<void*> by_engine;  // streams whose last copy was a copy engine's
std::set<void*> registered;
std::map<int, uint64_t> used;
std::map<std::string, int> calls;
uint64_t next_number = 1;
thread_local std::vector<int> current;  // a stack, as libcuda has
thread_local int hip_current = 0;
thread_local int capture_mode = 0;  // of this thread: global, as at first, thread-local or relaxed

// Returns true if the call could wait for captured work, or change memory that it uses.
bool EndsCaptures(const std::string& name) {
  for (const char* part : {"Mem", "Stream", "Host", "Malloc", "Free"}) {
    if (name.find(part) != std::string::npos) return name.find("Async") == std::string::npos;
  }
  return false;
}
int ExchangeCaptureMode(int* mode) {
  if (*mode < 0 || *mode > 2) return hipErrorInvalidValue;
  std::swap(*mode, capture_mode);
  return hipSuccess;
}

constexpr int kStreamCaptureUnsupported = 900;

// Every entry point begins so: a planned failure, or a call too early.
int Enter(const char* name, bool needs_init = true) {
  const int n = calls[name]++;
  if (name == fake.fail_call && n >= fake.fail_after) return fake.fail_error;
  if (fake.capturing && capture_mode != hipStreamCaptureModeRelaxed && EndsCaptures(name)) {
    ++fake.n_refused_for_capture;
    return kStreamCaptureUnsupported;
  }
  return needs_init && !initialized ? hipErrorNotInitialized : hipSuccess;
}
#define ENTER(name)                                     \
  const std::lock_guard<std::recursive_mutex> lock(mu); \
  if (const int failed = Enter(name)) return failed

int Device(int visible_index) {
  return visible_index >= 0 && visible_index < static_cast<int>(visible.size())
             ? visible[static_cast<size_t>(visible_index)]
             : -1;
}
int CurrentDevice() {
  if (is_hip) return hip_current;
  return current.empty() ? -1 : current.back();
}
int Violation(const std::string& text) {
  fake.violations.push_back(text);
  return hipErrorInvalidValue;
}

int Init(bool hip) {
  if (const int failed = Enter(hip ? "hipInit" : "cuInit", false)) return failed;
  is_hip = hip;
  visible.clear();
  const char* const list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int i = 0; i < fake.n_devices; ++i) visible.push_back(i);
  } else {
    std::stringstream text(list);
    for (std::string number; std::getline(text, number, ',');) visible.push_back(std::stoi(number));
  }
  if (visible.empty()) return hipErrorNoDevice;
  // Another driver of this process may hold some already.
  fake.retained.resize(visible.size(), 0);
  initialized = true;
  return hipSuccess;
}

int Create(uint64_t* out, uint64_t bytes, const hipMemAllocationProp* prop) {
  const bool on_host = prop->location.type == kHostNuma;
  const int device = Device(prop->location.id);
  const bool type_ok =
      prop->type == hipMemAllocationTypePinned ||
      (is_hip && fake.hip_version >= 70'200'000 && prop->type == hipMemAllocationTypeUncached);
  const uint64_t granule = is_hip ? kHipGranule : kGranule;
  if (device < 0 || !type_ok || (prop->location.type != 1 && !on_host) || bytes == 0 ||
      bytes % granule != 0) {
    return hipErrorInvalidValue;
  }
  if ((prop->requestedHandleTypes & hipMemHandleTypeFabric) != 0 && !fake.channel) {
    return kNotPermitted;
  }
  if (used[device] + bytes > fake.device_bytes) return hipErrorOutOfMemory;
  Handle handle;
  handle.fd = memfd_create("fake-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (handle.fd < 0 || ftruncate(handle.fd, static_cast<off_t>(bytes)) != 0) {
    return hipErrorOutOfMemory;
  }
  if (is_hip) {
    // The memory has bytes of its last owner.
    const std::vector<char> dirt(4096, 0x5a);
    for (uint64_t at = 0; at < bytes; at += kGranule / 2) {
      if (pwrite(handle.fd, dirt.data(), dirt.size(), static_cast<off_t>(at)) < 0) return kUnknown;
    }
  }
  struct stat info = {};
  fstat(handle.fd, &info);
  handle.inode = info.st_ino;
  handle.bytes = bytes;
  handle.device = device;
  handle.requested_types = prop->requestedHandleTypes;
  handle.location_type = prop->location.type;
  handle.n_holds = 1;
  handle.n_uses = 1;
  used[device] += bytes;
  *out = next_number++;
  handles[*out] = handle;
  fake.n_handles = static_cast<int>(handles.size());
  return hipSuccess;
}

int Unuse(uint64_t number) {
  Handle& handle = handles[number];
  if (--handle.n_uses > 0) return hipSuccess;
  close(handle.fd);
  if (!handle.imported) used[handle.device] -= handle.bytes;
  handles.erase(number);
  fake.n_handles = static_cast<int>(handles.size());
  return hipSuccess;
}

int Release(uint64_t number) {
  const auto it = handles.find(number);
  if (it == handles.end()) return hipErrorInvalidValue;
  if (it->second.n_holds == 0) return Violation("a handle is released once more than it was held");
  --it->second.n_holds;
  return Unuse(number);
}

int Export(void* out, uint64_t number, int type) {
  const auto it = handles.find(number);
  if (it == handles.end() || it->second.imported || (type != 1 && type != hipMemHandleTypeFabric) ||
      (it->second.requested_types & type) == 0) {
    return hipErrorInvalidValue;
  }
  if (type == hipMemHandleTypeFabric) {
    memset(out, 0, kFabricBytes);
    memcpy(out, &number, sizeof(number));
    return hipSuccess;
  }
  if (is_hip && it->second.n_exports++ > 0) return Violation("memory is exported twice");
  const int fd = dup(it->second.fd);  // not close-on-exec, as some versions
  if (fd < 0) return hipErrorOutOfMemory;
  *static_cast<int*>(out) = fd;
  return hipSuccess;
}

void ImportOf(uint64_t* out, int fd, int noted_fd, int type) {
  struct stat info = {};
  fstat(fd, &info);
  Handle handle;
  handle.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  handle.noted_fd = noted_fd;
  handle.inode = info.st_ino;
  handle.bytes = static_cast<uint64_t>(info.st_size);
  handle.imported = true;
  handle.requested_types = type;
  handle.n_holds = 1;
  handle.n_uses = 1;
  *out = next_number++;
  handles[*out] = handle;
  fake.n_handles = static_cast<int>(handles.size());
}

int Import(uint64_t* out, void* os_handle, int type) {
  if (type == hipMemHandleTypeFabric && !is_hip) {
    if (!fake.channel) return kNotPermitted;
    uint64_t number = 0;
    memcpy(&number, os_handle, sizeof(number));
    const auto exported = handles.find(number);
    if (exported == handles.end()) return hipErrorInvalidValue;
    ImportOf(out, exported->second.fd, -1, type);
    return hipSuccess;
  }
  if (type != 1) return hipErrorInvalidValue;
  const bool is_pointer = reinterpret_cast<uint64_t>(os_handle) > 1 << 20;
  const bool wants_pointer = is_hip && fake.hip_version < 70'100'000;
  if (is_pointer != wants_pointer) {
    return Violation(wants_pointer ? "import of a value where a pointer is wanted: a crash"
                                   : "import of a pointer where a value is wanted: a crash");
  }
  const int fd = is_pointer ? *static_cast<int*>(os_handle)
                            : static_cast<int>(reinterpret_cast<uint64_t>(os_handle));
  struct stat info = {};
  if (fstat(fd, &info) != 0 || fcntl(fd, F_GET_SEALS) < 0) return kUnknown;
  ImportOf(out, fd, fd, type);
  return hipSuccess;
}

int Reserve(uint64_t* out, uint64_t bytes, uint64_t wanted) {
  const uint64_t granule = is_hip ? kHipGranule : kGranule;
  if (bytes == 0 || bytes % granule != 0 || bytes > 1ull << 46) return hipErrorInvalidValue;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  Range range;
  range.bytes = bytes;
  range.map_bytes = bytes;
  void* at = MAP_FAILED;
  if (wanted != 0) {
    at = mmap(reinterpret_cast<void*>(wanted), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1,
              0);
  }
  uint64_t base = wanted;
  if (at == MAP_FAILED) {
    range.map_bytes = bytes + kGranule;
    at = mmap(nullptr, range.map_bytes, PROT_NONE, kFlags, -1, 0);
    if (at == MAP_FAILED) return hipErrorOutOfMemory;
    base = (reinterpret_cast<uint64_t>(at) + kGranule - 1) / kGranule * kGranule;
  }
  range.map = at;
  ranges[base] = range;
  fake.n_reservations = static_cast<int>(ranges.size());
  *out = base;
  return hipSuccess;
}

int FreeRange(uint64_t base, uint64_t bytes) {
  const auto it = ranges.find(base);
  if (it == ranges.end() || it->second.bytes != bytes || !it->second.mappings.empty()) {
    return hipErrorInvalidValue;
  }
  munmap(it->second.map, it->second.map_bytes);
  ranges.erase(it);
  fake.n_reservations = static_cast<int>(ranges.size());
  return hipSuccess;
}

Range* RangeOf(uint64_t address, uint64_t bytes) {
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return nullptr;
  --it;
  return address + bytes <= it->first + it->second.bytes ? &it->second : nullptr;
}

int Map(uint64_t address, uint64_t bytes, uint64_t offset, uint64_t number) {
  const auto it = handles.find(number);
  Range* const range = RangeOf(address, bytes);
  if (it == handles.end() || range == nullptr || offset != 0 || bytes != it->second.bytes ||
      address % (is_hip ? kHipGranule : kGranule) != 0) {
    return hipErrorInvalidValue;
  }
  for (const auto& [at, m] : mapped) {
    if (address < at + m.bytes && at < address + bytes) return hipErrorInvalidValue;
  }
  mapped[address] = {bytes, number, {}};
  range->mappings.push_back(address);
  ++it->second.n_uses;
  fake.n_mappings = static_cast<int>(mapped.size());
  return hipSuccess;
}

int Unmap(uint64_t address, uint64_t bytes) {
  const auto it = mapped.find(address);
  if (it == mapped.end() || it->second.bytes != bytes) return hipErrorInvalidValue;
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  std::vector<uint64_t>& in_range = RangeOf(address, bytes)->mappings;
  in_range.erase(std::find(in_range.begin(), in_range.end(), address));
  const uint64_t handle = it->second.handle;
  mapped.erase(it);
  fake.n_mappings = static_cast<int>(mapped.size());
  return Unuse(handle);
}

int SetAccess(uint64_t address, uint64_t bytes, const hipMemAccessDesc* descs, size_t n) {
  const Range* const range = RangeOf(address, bytes);
  if (range == nullptr || n == 0) return hipErrorInvalidValue;
  if (is_hip && fake.hip_version >= 70'000'000 && fake.hip_version < 71'400'000) {
    // Whatever address is given: whole mappings from the first on.
    uint64_t sum = 0;
    for (const uint64_t at : range->mappings) {
      if (sum < bytes) sum += mapped[at].bytes;
    }
    if (sum != bytes) return hipErrorInvalidValue;
  }
  for (uint64_t at = address; at < address + bytes;) {
    const auto it = mapped.find(at);
    if (it == mapped.end() || at + it->second.bytes > address + bytes) return hipErrorInvalidValue;
    const Handle& handle = handles[it->second.handle];
    if (is_hip && handle.imported) {
      struct stat info = {};
      if (fstat(handle.noted_fd, &info) != 0 || info.st_ino != handle.inode) {
        return Violation("the descriptor of imported memory is closed before access is set");
      }
    }
    int protection = PROT_NONE;
    bool owner_granted = false;
    for (size_t i = 0; i < n; ++i) {
      const int device = Device(descs[i].location.id);
      if (device < 0 || descs[i].location.type != 1) return hipErrorInvalidDevice;
      if (is_hip && owner_granted && device != handle.device) {
        Violation("a peer is granted after the device that has the memory");
      }
      owner_granted = owner_granted || device == handle.device;
      it->second.devices.insert(device);
      protection = descs[i].flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ;
    }
    if (mmap(reinterpret_cast<void*>(at), it->second.bytes, protection, MAP_SHARED | MAP_FIXED,
             handle.fd, 0) == MAP_FAILED) {
      return hipErrorOperatingSystem;
    }
    at += it->second.bytes;
  }
  return hipSuccess;
}

// Returns the mapping at an address, with its begin, or null if there is none.
const std::pair<const uint64_t, Mapped>* MappedAt(uint64_t address) {
  auto it = mapped.upper_bound(address);
  if (it == mapped.begin()) return nullptr;
  --it;
  return address < it->first + it->second.bytes ? &*it : nullptr;
}
const std::pair<const uint64_t, uint64_t>* PlainAt(uint64_t address) {
  auto it = plain.upper_bound(address);
  if (it == plain.begin()) return nullptr;
  --it;
  return address < it->first + it->second ? &*it : nullptr;
}

int Retain(uint64_t* out, uint64_t address) {
  const auto* const found = MappedAt(address);
  if (found == nullptr && PlainAt(address) != nullptr && is_hip) {
    return Violation("asked for the handle of memory that has none: a crash");
  }
  if (found == nullptr) return hipErrorInvalidValue;
  *out = found->second.handle;
  if (is_hip && fake.hip_version < 71'260'540) return hipSuccess;  // counts nothing
  ++handles[*out].n_holds;
  ++handles[*out].n_uses;
  return hipSuccess;
}

int Properties(hipMemAllocationProp* prop, uint64_t number) {
  const auto it = handles.find(number);
  if (it == handles.end()) return hipErrorInvalidValue;
  const auto device = std::find(visible.begin(), visible.end(), it->second.device);
  prop->type = hipMemAllocationTypePinned;
  // For imported memory, cuda gives nothing, and hip the current device.
  prop->requestedHandleTypes = it->second.imported && !is_hip ? 0 : it->second.requested_types;
  prop->location = {it->second.location_type, it->second.imported
                                                  ? std::max(CurrentDevice(), 0)
                                                  : static_cast<int>(device - visible.begin())};
  return hipSuccess;
}

int AddressRange(uint64_t* base, size_t* bytes, uint64_t address) {
  if (CurrentDevice() < 0) return hipErrorInvalidContext;
  if (base == nullptr || bytes == nullptr) return Violation("nowhere to answer to: a crash");
  const auto* found = MappedAt(address);
  // cuda does not know what no device may use.
  if (found != nullptr && found->second.devices.empty() && !is_hip) found = nullptr;
  const auto* const other = PlainAt(address);
  if (found == nullptr && other == nullptr) return hipErrorNotFound;
  *base = found != nullptr ? found->first : other->first;
  *bytes = found != nullptr ? found->second.bytes : other->second;
  return hipSuccess;
}

int AccessRights(unsigned long long* rights, const hipMemLocation* location, uint64_t address) {
  const auto* const found = MappedAt(address);
  if (found == nullptr) return hipErrorInvalidValue;
  *rights = found->second.devices.count(Device(location->id)) != 0 ? 3 : 0;
  return hipSuccess;
}

int AllocatePlain(uint64_t* out, size_t bytes) {
  if (CurrentDevice() < 0) return hipErrorInvalidContext;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return hipErrorOutOfMemory;
  *out = reinterpret_cast<uint64_t>(at);
  plain[*out] = bytes;
  return hipSuccess;
}

int FreePlain(uint64_t address) {
  const auto it = plain.find(address);
  if (it == plain.end()) return hipErrorInvalidValue;
  munmap(reinterpret_cast<void*>(address), it->second);
  plain.erase(it);
  return hipSuccess;
}

// May the current device touch it? Host memory always, device memory if it was granted.
int CheckTouch(uint64_t address, uint64_t bytes) {
  if (RangeOf(address, 1) == nullptr) return hipSuccess;
  const auto* const found = MappedAt(address);
  if (found == nullptr) return hipErrorIllegalAddress;
  const auto& [base, m] = *found;
  const bool inside = address + bytes <= base + m.bytes;
  return inside && m.devices.count(Device(CurrentDevice())) != 0 ? hipSuccess
                                                                 : hipErrorIllegalAddress;
}

int CheckStream(void* stream) {
  ++fake.calls_needing_context;
  if (CurrentDevice() < 0) return hipErrorInvalidContext;
  const auto it = streams.find(stream);
  if (stream == nullptr) return Violation("the default stream would wait for kernels that spin");
  return it != streams.end() && it->second == CurrentDevice() ? hipSuccess : hipErrorInvalidHandle;
}

int CopyAsync(uint64_t to, uint64_t from, uint64_t bytes, void* stream) {
  int error = CheckStream(stream);
  if (error == hipSuccess) error = CheckTouch(to, bytes);
  if (error == hipSuccess) error = CheckTouch(from, bytes);
  if (error != hipSuccess) return error;
  memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return hipSuccess;
}

int SetAsync(uint64_t to, int value, uint64_t bytes, void* stream) {
  int error = CheckStream(stream);
  if (error == hipSuccess) error = CheckTouch(to, bytes);
  if (error != hipSuccess) return error;
  memset(reinterpret_cast<void*>(to), value, bytes);
  return hipSuccess;
}

int StreamCreate(void** stream, unsigned flags) {
  if (CurrentDevice() < 0) return hipErrorInvalidContext;
  if (flags != 1) return Violation("a stream that waits for the default stream");
  *stream = reinterpret_cast<void*>(0x1000 + next_number++);
  streams[*stream] = CurrentDevice();
  fake.n_streams = static_cast<int>(streams.size());
  return hipSuccess;
}

int StreamDestroy(void* stream) {
  if (streams.erase(stream) == 0) return hipErrorInvalidHandle;
  fake.n_streams = static_cast<int>(streams.size());
  return hipSuccess;
}

bool IsWritable(void* page) {
  FILE* const maps = fopen("/proc/self/maps", "re");
  bool writable = false;
  char line[512];
  while (maps != nullptr && fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long from = 0, to = 0;
    char mode[5] = {};
    if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 &&
        from <= reinterpret_cast<uint64_t>(page) && reinterpret_cast<uint64_t>(page) < to) {
      writable = mode[1] == 'w';
    }
  }
  if (maps != nullptr) fclose(maps);
  return writable;
}

int HostRegister(void* host, size_t bytes, unsigned flags) {
  if (CurrentDevice() < 0) return hipErrorInvalidContext;
  if (is_hip && (flags & 8) != 0)
    return Violation("coarse-grained host memory hides the abort word");
  if (!is_hip && !IsWritable(host) && (flags & 8) == 0) return hipErrorInvalidValue;
  if ((flags & 3) != 3) return Violation("registered for one device only, or for none");
  if (!registered.insert(host).second) return hipErrorHostMemoryAlreadyRegistered;
  if ((flags & 8) != 0) ++fake.n_registered_read_only;
  fake.n_registered = static_cast<int>(registered.size());
  return bytes == 0 ? hipErrorInvalidValue : hipSuccess;
}

int HostUnregister(void* host) {
  if (registered.erase(host) == 0) return hipErrorHostMemoryNotRegistered;
  fake.n_registered = static_cast<int>(registered.size());
  return hipSuccess;
}

int HostPointer(uint64_t* out, void* host) {
  if (registered.count(host) == 0) return hipErrorInvalidValue;
  *out = reinterpret_cast<uint64_t>(host);
  return hipSuccess;
}

const char* NameOf(int error) {
  switch (error) {
    case hipErrorInvalidValue:
      return "FAKE_INVALID_VALUE";
    case hipErrorOutOfMemory:
      return "FAKE_OUT_OF_MEMORY";
    case hipErrorNoDevice:
      return "FAKE_NO_DEVICE";
    default:
      return "FAKE_ERROR";
  }
}

}  // namespace
}  // namespace iris::driver::testing

using namespace iris::driver;           // NOLINT: the vendors' names are global
using namespace iris::driver::testing;  // NOLINT

extern "C" {

FakeGpu* fake_gpu() { return &fake; }
void fake_gpu_reset() {
  const std::lock_guard<std::recursive_mutex> lock(mu);
  fake = FakeGpu();
  calls.clear();
  current.clear();
  hip_current = 0;
  initialized = false;
}

int cuInit(unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(mu);
  return Init(false);
}
int cuDriverGetVersion(int* version) {
  *version = fake.cuda_version;
  return hipSuccess;
}
int cuGetErrorName(int error, const char** name) {
  *name = NameOf(error);
  return hipSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "as the test wants it";
  return hipSuccess;
}
int cuDeviceGetCount(int* n) {
  ENTER("cuDeviceGetCount");
  *n = static_cast<int>(visible.size());
  return hipSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  ENTER("cuDeviceGet");
  if (Device(ordinal) < 0) return hipErrorInvalidDevice;
  *device = ordinal;
  return hipSuccess;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  ENTER("cuDeviceGetName");
  snprintf(name, static_cast<size_t>(bytes), "Fake %d", Device(device));
  return hipSuccess;
}
int cuDeviceGetUuid_v2(hipUUID* uuid, int device) {
  ENTER("cuDeviceGetUuid");
  memset(uuid, 0, sizeof(*uuid));
  uuid->bytes[0] = static_cast<char>(0xfa);
  uuid->bytes[15] = static_cast<char>(Device(device));
  return hipSuccess;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  ENTER("cuDeviceTotalMem");
  *bytes = fake.device_bytes;
  return hipSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER("cuDeviceGetAttribute");
  *value = fake.exportable && (attribute == 102 || attribute == 103) ? 1 : 0;
  if (attribute == kCudaHandleTypeFabricSupported) *value = fake.fabric ? 1 : 0;
  return hipSuccess;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER("cuDeviceCanAccessPeer");
  if (device == peer) return hipErrorInvalidDevice;
  *can = fake.peers ? 1 : 0;
  return hipSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  ++fake.retained[static_cast<size_t>(device)];
  *context = reinterpret_cast<void*>(0x100 + static_cast<uint64_t>(device));
  return hipSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER("cuDevicePrimaryCtxRelease");
  --fake.retained[static_cast<size_t>(device)];
  return hipSuccess;
}
static int DeviceOfContext(void* context) {
  return static_cast<int>(reinterpret_cast<uint64_t>(context) - 0x100);
}
int cuCtxSetCurrent(void* context) {
  ENTER("cuCtxSetCurrent");
  if (!current.empty()) current.pop_back();
  current.push_back(DeviceOfContext(context));
  return hipSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  ENTER("cuCtxPushCurrent");
  current.push_back(DeviceOfContext(context));
  return hipSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  ENTER("cuCtxPopCurrent");
  if (current.empty()) return hipErrorInvalidContext;
  *context = reinterpret_cast<void*>(0x100 + static_cast<uint64_t>(current.back()));
  current.pop_back();
  return hipSuccess;
}
int cuCtxGetDevice(int* device) {
  ENTER("cuCtxGetDevice");
  if (current.empty()) return hipErrorInvalidContext;
  *device = current.back();
  return hipSuccess;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  ENTER("cuMemGetInfo");
  if (current.empty()) return hipErrorInvalidContext;
  *total_bytes = fake.device_bytes;
  *free_bytes = fake.device_bytes - used[Device(current.back())];
  return hipSuccess;
}
int cuMemGetAllocationGranularity(size_t* granularity, const hipMemAllocationProp*, int) {
  ENTER("cuMemGetAllocationGranularity");
  *granularity = kGranule;
  return hipSuccess;
}
int cuMemCreate(unsigned long long* handle, size_t bytes, const hipMemAllocationProp* prop,
                unsigned long long) {
  ENTER("cuMemCreate");
  uint64_t number = 0;
  const int error = Create(&number, bytes, prop);
  *handle = number;
  return error;
}
int cuMemRelease(unsigned long long handle) {
  ENTER("cuMemRelease");
  return Release(handle);
}
int cuMemExportToShareableHandle(void* out, unsigned long long handle, int type,
                                 unsigned long long) {
  ENTER("cuMemExportToShareableHandle");
  return Export(out, handle, type);
}
int cuMemImportFromShareableHandle(unsigned long long* handle, void* os_handle, int type) {
  ENTER("cuMemImportFromShareableHandle");
  uint64_t number = 0;
  const int error = Import(&number, os_handle, type);
  *handle = number;
  return error;
}
int cuMemAddressReserve(unsigned long long* out, size_t bytes, size_t, unsigned long long wanted,
                        unsigned long long) {
  ENTER("cuMemAddressReserve");
  uint64_t base = 0;
  const int error = Reserve(&base, bytes, wanted);
  *out = base;
  return error;
}
int cuMemAddressFree(unsigned long long base, size_t bytes) {
  ENTER("cuMemAddressFree");
  return FreeRange(base, bytes);
}
int cuMemMap(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long) {
  ENTER("cuMemMap");
  return Map(address, bytes, offset, handle);
}
int cuMemUnmap(unsigned long long address, size_t bytes) {
  ENTER("cuMemUnmap");
  return Unmap(address, bytes);
}
int cuMemSetAccess(unsigned long long address, size_t bytes, const hipMemAccessDesc* descs,
                   size_t n) {
  ENTER("cuMemSetAccess");
  return SetAccess(address, bytes, descs, n);
}
int cuMemHostRegister_v2(void* host, size_t bytes, unsigned flags) {
  ENTER("cuMemHostRegister");
  return HostRegister(host, bytes, flags);
}
int cuMemHostUnregister(void* host) {
  ENTER("cuMemHostUnregister");
  return HostUnregister(host);
}
int cuMemHostGetDevicePointer_v2(unsigned long long* out, void* host, unsigned) {
  ENTER("cuMemHostGetDevicePointer");
  uint64_t address = 0;
  const int error = HostPointer(&address, host);
  *out = address;
  return error;
}
int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void* stream) {
  ENTER("cuMemcpyAsync");
  const int error = CopyAsync(to, from, bytes, stream);
  if (error != hipSuccess) return error;
  if (RangeOf(from, 1) == nullptr && bytes <= kMostInTurn) {
    ++fake.n_writes_in_turn;
    by_engine.erase(stream);
  } else {
    by_engine.insert(stream);
  }
  return hipSuccess;
}
int cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* rows, void* stream) {
  ENTER("cuMemcpy2DAsync");
  if (rows->srcMemoryType != kCudaMemoryTypeHost || rows->dstMemoryType != kCudaMemoryTypeDevice ||
      rows->srcPitch < rows->WidthInBytes || rows->dstPitch < rows->WidthInBytes) {
    return hipErrorInvalidValue;
  }
  for (size_t i = 0; i < rows->Height; ++i) {
    const int error = CopyAsync(rows->dstDevice + i * rows->dstPitch,
                                reinterpret_cast<uint64_t>(rows->srcHost) + i * rows->srcPitch,
                                rows->WidthInBytes, stream);
    if (error != hipSuccess) return error;
  }
  if (rows->Height < 2) ++fake.n_writes_in_turn;
  by_engine.insert(stream);
  return hipSuccess;
}
// A value goes by the engine of the copy before it.
int WriteValue(void* stream, uint64_t to, const void* value, uint64_t bytes) {
  const int error = CopyAsync(to, reinterpret_cast<uint64_t>(value), bytes, stream);
  if (error == hipSuccess && by_engine.count(stream) == 0) ++fake.n_writes_in_turn;
  return error;
}
NEWER int cuStreamWriteValue32_v2(void* stream, unsigned long long to, uint32_t value, unsigned) {
  ENTER("cuStreamWriteValue32");
  return WriteValue(stream, to, &value, sizeof(value));
}
NEWER int cuStreamWriteValue64_v2(void* stream, unsigned long long to, uint64_t value, unsigned) {
  ENTER("cuStreamWriteValue64");
  return WriteValue(stream, to, &value, sizeof(value));
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void* stream) {
  ENTER("cuMemsetD8Async");
  return SetAsync(to, value, bytes, stream);
}
int cuStreamCreate(void** stream, unsigned flags) {
  ENTER("cuStreamCreate");
  return StreamCreate(stream, flags);
}
int cuStreamDestroy_v2(void* stream) {
  ENTER("cuStreamDestroy");
  return StreamDestroy(stream);
}
int cuStreamQuery(void* stream) {
  ENTER("cuStreamQuery");
  return fake.busy ? hipErrorNotReady : CheckStream(stream);
}
int cuStreamSynchronize(void* stream) {
  ENTER("cuStreamSynchronize");
  return CheckStream(stream);
}
NEWER int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER("cuThreadExchangeCaptureMode");
  return ExchangeCaptureMode(mode);
}
int cuMemAlloc_v2(unsigned long long* out, size_t bytes) {
  ENTER("cuMemAlloc");
  uint64_t address = 0;
  const int error = AllocatePlain(&address, bytes);
  *out = address;
  return error;
}
int cuMemFree_v2(unsigned long long address) {
  ENTER("cuMemFree");
  return FreePlain(address);
}
NEWER int cuMemRetainAllocationHandle(unsigned long long* handle, void* address) {
  ENTER("cuMemRetainAllocationHandle");
  uint64_t number = 0;
  const int error = Retain(&number, reinterpret_cast<uint64_t>(address));
  *handle = number;
  return error;
}
NEWER int cuMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* prop,
                                                 unsigned long long handle) {
  ENTER("cuMemGetAllocationPropertiesFromHandle");
  return Properties(prop, handle);
}
NEWER int cuMemGetAddressRange_v2(unsigned long long* base, size_t* bytes,
                                  unsigned long long address) {
  ENTER("cuMemGetAddressRange");
  uint64_t from = 0;
  const int error = AddressRange(base != nullptr ? &from : nullptr, bytes, address);
  if (error == hipSuccess) *base = from;
  return error;
}

int hipInit(unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(mu);
  return Init(true);
}
int hipRuntimeGetVersion(int* version) {
  *version = fake.hip_version;
  return hipSuccess;
}
const char* hipGetErrorName(int error) { return NameOf(error); }
const char* hipGetErrorString(int) { return "as the test wants it"; }
int hipGetDeviceCount(int* n) { return cuDeviceGetCount(n); }
int hipDeviceGetName(char* name, int bytes, int device) {
  return cuDeviceGetName(name, bytes, device);
}
int hipDeviceGetUuid(hipUUID* uuid, int device) {
  ENTER("hipDeviceGetUuid");
  char text[17];
  snprintf(text, sizeof(text), "fa%014x", static_cast<unsigned>(Device(device)));
  memcpy(uuid->bytes, text, 16);
  return hipSuccess;
}
int hipDeviceTotalMem(size_t* bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }
int hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return cuDeviceCanAccessPeer(can, device, peer);
}
int hipSetDevice(int device) {
  ENTER("hipSetDevice");
  if (Device(device) < 0) return hipErrorInvalidDevice;
  hip_current = device;
  return hipSuccess;
}
int hipGetDevice(int* device) {
  ENTER("hipGetDevice");
  *device = hip_current;
  return hipSuccess;
}
int hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  ENTER("hipMemGetInfo");
  *total_bytes = fake.device_bytes;
  *free_bytes = fake.device_bytes - used[Device(hip_current)];
  return hipSuccess;
}
int hipMemGetAllocationGranularity(size_t* granularity, const hipMemAllocationProp*, int) {
  ENTER("hipMemGetAllocationGranularity");
  *granularity = 4096;  // as some devices say, whose kernels then fault
  return hipSuccess;
}
int hipMemCreate(uint64_t* handle, size_t bytes, const hipMemAllocationProp* prop,
                 unsigned long long) {
  ENTER("hipMemCreate");
  return Create(handle, bytes, prop);
}
int hipMemRelease(uint64_t handle) {
  ENTER("hipMemRelease");
  return Release(handle);
}
int hipMemExportToShareableHandle(void* out, uint64_t handle, int type, unsigned long long) {
  ENTER("hipMemExportToShareableHandle");
  return Export(out, handle, type);
}
int hipMemImportFromShareableHandle(uint64_t* handle, void* os_handle, int type) {
  ENTER("hipMemImportFromShareableHandle");
  return Import(handle, os_handle, type);
}
int hipMemAddressReserve(void** out, size_t bytes, size_t, void* wanted, unsigned long long) {
  ENTER("hipMemAddressReserve");
  uint64_t base = 0;
  const int error = Reserve(&base, bytes, reinterpret_cast<uint64_t>(wanted));
  *out = reinterpret_cast<void*>(base);
  return error;
}
int hipMemAddressFree(void* base, size_t bytes) {
  ENTER("hipMemAddressFree");
  return FreeRange(reinterpret_cast<uint64_t>(base), bytes);
}
int hipMemMap(void* address, size_t bytes, size_t offset, uint64_t handle, unsigned long long) {
  ENTER("hipMemMap");
  return Map(reinterpret_cast<uint64_t>(address), bytes, offset, handle);
}
int hipMemUnmap(void* address, size_t bytes) {
  ENTER("hipMemUnmap");
  return Unmap(reinterpret_cast<uint64_t>(address), bytes);
}
int hipMemSetAccess(void* address, size_t bytes, const hipMemAccessDesc* descs, size_t n) {
  ENTER("hipMemSetAccess");
  return SetAccess(reinterpret_cast<uint64_t>(address), bytes, descs, n);
}
int hipHostRegister(void* host, size_t bytes, unsigned flags) {
  ENTER("hipHostRegister");
  return HostRegister(host, bytes, flags);
}
int hipHostUnregister(void* host) {
  ENTER("hipHostUnregister");
  return HostUnregister(host);
}
int hipHostGetDevicePointer(void** out, void* host, unsigned) {
  ENTER("hipHostGetDevicePointer");
  uint64_t address = 0;
  const int error = HostPointer(&address, host);
  *out = reinterpret_cast<void*>(address);
  return error;
}
int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  ENTER("hipMemcpyAsync");
  if (kind != 4) return hipErrorInvalidValue;
  return CopyAsync(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream);
}
int hipMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  ENTER("hipMemsetAsync");
  return SetAsync(reinterpret_cast<uint64_t>(to), value, bytes, stream);
}
int hipStreamCreateWithFlags(void** stream, unsigned flags) {
  ENTER("hipStreamCreateWithFlags");
  return StreamCreate(stream, flags);
}
int hipStreamDestroy(void* stream) {
  ENTER("hipStreamDestroy");
  return StreamDestroy(stream);
}
int hipStreamQuery(void* stream) {
  ENTER("hipStreamQuery");
  return fake.busy ? hipErrorNotReady : CheckStream(stream);
}
int hipStreamSynchronize(void* stream) {
  ENTER("hipStreamSynchronize");
  return CheckStream(stream);
}
NEWER int hipThreadExchangeStreamCaptureMode(int* mode) {
  ENTER("hipThreadExchangeCaptureMode");
  return ExchangeCaptureMode(mode);
}
int hipMalloc(void** out, size_t bytes) {
  ENTER("hipMalloc");
  uint64_t address = 0;
  const int error = AllocatePlain(&address, bytes);
  *out = reinterpret_cast<void*>(address);
  return error;
}
int hipFree(void* address) {
  ENTER("hipFree");
  return FreePlain(reinterpret_cast<uint64_t>(address));
}
NEWER int hipMemRetainAllocationHandle(uint64_t* handle, void* address) {
  ENTER("hipMemRetainAllocationHandle");
  return Retain(handle, reinterpret_cast<uint64_t>(address));
}
NEWER int hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* prop, uint64_t handle) {
  ENTER("hipMemGetAllocationPropertiesFromHandle");
  return Properties(prop, handle);
}
NEWER int hipMemGetAddressRange(void** base, size_t* bytes, void* address) {
  ENTER("hipMemGetAddressRange");
  uint64_t from = 0;
  const int error =
      AddressRange(base != nullptr ? &from : nullptr, bytes, reinterpret_cast<uint64_t>(address));
  if (error == hipSuccess) *base = reinterpret_cast<void*>(from);
  return error;
}
NEWER int hipMemGetAccess(unsigned long long* rights, const hipMemLocation* location,
                          void* address) {
  ENTER("hipMemGetAccess");
  return AccessRights(rights, location, reinterpret_cast<uint64_t>(address));
}

}  // extern "C"
