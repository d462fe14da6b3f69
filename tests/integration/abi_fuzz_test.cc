// The C API under random calls: every function, with handles that are there, that were, of another
// kind, or random bits; with null where it is allowed; with random numbers, and structs of random
// sizes. Whatever it is given, it answers with a code and a text, and nothing ends the process.
//
// What it is not given is what no library can find out: addresses that are none, and lengths of
// what is shorter.
//
// The calls follow from a seed, which is printed. Again: IRIS_FUZZ_SEED=N; more: IRIS_FUZZ_CALLS=N;
// which call it was: IRIS_FUZZ_TRACE=1 prints each before it is made.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/abi/dlpack.h"
#include "iris/c_api.h"
#include "tests/integration/daemon_harness.h"

namespace iris {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kArenaBytes = 4 * kMiB;
constexpr uint64_t kReachBytes = 64 << 10;  // at most so much behind an address is touched
constexpr uint64_t kStructBytes = 70'000;   // more than any size that is taken
constexpr uint64_t kPieceBytes = 16 << 10;  // of each buffer of one call
constexpr uint64_t kMoeBytes = 256 << 10;   // of a workspace of moe
constexpr int kMaxThreads = 3;
constexpr int64_t kMillisecond = 1'000'000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Handles of one kind, for all threads.
class Handles {
 public:
  void Add(void* handle) {
    const absl::MutexLock lock(&mu_);
    live_.push_back(handle);
  }
  // Returns null if no handle is live.
  void* Live(uint64_t random) const {
    const absl::MutexLock lock(&mu_);
    return live_.empty() ? nullptr : live_[random % live_.size()];
  }
  void* Gone(uint64_t random) const {
    const absl::MutexLock lock(&mu_);
    return gone_.empty() ? nullptr : gone_[random % gone_.size()];
  }
  // From now on it is one that was.
  void End(void* handle) {
    const absl::MutexLock lock(&mu_);
    const auto found = std::find(live_.begin(), live_.end(), handle);
    if (found == live_.end()) return;
    live_.erase(found);
    gone_.push_back(handle);
  }
  size_t size() const {
    const absl::MutexLock lock(&mu_);
    return live_.size();
  }
  void ForEach(const std::function<void(void*)>& body) const {
    const absl::MutexLock lock(&mu_);
    for (void* const handle : live_) body(handle);
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<void*> live_ ABSL_GUARDED_BY(mu_), gone_ ABSL_GUARDED_BY(mu_);
};

// What the threads have together.
struct World {
  std::string runtime_dir;
  bool threads = false;           // more than one makes calls
  iris_context* main = nullptr;   // never given up
  iris_comm* comm = nullptr;      // likewise, of main
  iris_tensor* tensor = nullptr;  // likewise
  void* native = nullptr;         // of a stream that is never given up
  uint8_t* playground = nullptr;  // in the heap, kReachBytes of it
  // A communicator is for one stream at a time, and what its kernels find in a workspace is theirs
  // alone: what two streams do at once may wait for as long as its timeout. So operations that are
  // kernels also for one member have these, one of each for a thread, which are never given up.
  uint8_t* moe_workspaces[kMaxThreads] = {};  // in the heap
  iris_stream* kernel_streams[kMaxThreads] = {};
  iris_comm* kernel_comms[kMaxThreads] = {};
  uint8_t* shareable = nullptr;  // memory of this process that can be registered
  std::vector<uint8_t> arena = std::vector<uint8_t>(kArenaBytes, 1);
  bool IsKept(const void* handle) const {
    return handle == main || handle == comm || handle == tensor ||
           std::count(std::begin(kernel_streams), std::end(kernel_streams), handle) != 0 ||
           std::count(std::begin(kernel_comms), std::end(kernel_comms), handle) != 0;
  }
  enum Kind { kContext, kTeam, kStream, kEvent, kGraph, kComm, kTensor, kKinds };
  Handles handles[kKinds];

  absl::Mutex mu;
  uint64_t n_jobs ABSL_GUARDED_BY(mu) = 0;
  // The choices of tokens, which kernels read after the call.
  std::deque<std::vector<int64_t>> ids ABSL_GUARDED_BY(mu);
  std::map<std::string, uint64_t> n_ok ABSL_GUARDED_BY(mu), n_all ABSL_GUARDED_BY(mu);
};

// A struct in memory that is larger than any size that it may say, with zeros behind it or not.
template <typename T>
class Padded {
 public:
  Padded() : bytes_(kStructBytes, 0) {}
  T* get() { return reinterpret_cast<T*>(bytes_.data()); }
  T* operator->() { return get(); }
  void FillTail(uint8_t value) { std::fill(bytes_.begin() + sizeof(T), bytes_.end(), value); }

 private:
  std::vector<uint8_t> bytes_;
};

class Fuzzer {
 public:
  Fuzzer(World* world, int thread, uint64_t seed)
      : world_(*world),
        thread_(thread),
        random_(seed),
        trace_(FromEnvironment("IRIS_FUZZ_TRACE", 0) != 0) {
    AddContextCalls();
    AddMemoryCalls();
    AddTorchCalls();
    AddStreamCalls();
    AddTraceCalls();
    AddCommCalls();
    AddMatmulCalls();
    AddNormCalls();
    AddMoeCalls();
    AddTensorCalls();
    AddViewCalls();
  }

  void Run(uint64_t n_calls, absl::Time end) {
    for (uint64_t i = 0; i < n_calls && absl::Now() < end && !::testing::Test::HasFailure(); ++i) {
      const Call& call = calls_[random_() % calls_.size()];
      if (trace_) std::fprintf(stderr, "%llu %s\n", static_cast<unsigned long long>(i), call.name);
      texts_.clear();
      const iris_code code = call.body();
      EXPECT_TRUE(code >= 0 && code <= 16) << call.name << " gave " << code;
      if (code != IRIS_OK) {
        EXPECT_STRNE(iris_error_message(), "") << call.name << ": " << iris_code_name(code);
        EXPECT_NE(code, IRIS_INTERNAL) << call.name << ": " << iris_error_message();
      }
      const absl::MutexLock lock(&world_.mu);
      ++world_.n_all[call.name];
      if (code == IRIS_OK) ++world_.n_ok[call.name];
    }
  }

 private:
  struct Call {
    const char* name;
    std::function<iris_code()> body;
  };
  void Add(const char* name, std::function<iris_code()> body) {
    calls_.push_back({name, std::move(body)});
  }

  bool OneIn(uint64_t n) { return random_() % n == 0; }

  // Numbers that are small, at an edge, or anything.
  uint64_t Number() {
    switch (random_() % 6) {
      case 0:
        return 0;
      case 1:
        return uint64_t{1} << random_() % 64;
      case 2:
        return (uint64_t{1} << random_() % 64) - 1;
      case 3:
        return random_();
      default:
        return random_() % 100;
    }
  }
  template <typename T>
  T NumberAs() {
    return static_cast<T>(Number());
  }
  // What a copy may touch, or so much that it must be refused.
  uint64_t Bytes() { return OneIn(4) ? random_() | uint64_t{1} << 62 : random_() % 4096; }
  uint64_t Count() { return OneIn(8) ? random_() | uint64_t{1} << 62 : random_() % 256; }

  iris_dtype DType() {
    return OneIn(8) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 16);
  }
  iris_reduce_op Op() {
    return OneIn(8) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 5);
  }
  int32_t Variant() {
    return OneIn(8) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 12);
  }
  uint32_t Rank() { return OneIn(4) ? NumberAs<uint32_t>() : 0; }
  int64_t Time() { return OneIn(4) ? NumberAs<int64_t>() : 100 * kMillisecond; }

  // Texts of a caller's: null, empty, long, not UTF-8, with formats in them.
  const char* Text() {
    switch (random_() % 6) {
      case 0:
        return nullptr;
      case 1:
        return "";
      case 2:
        texts_.emplace_back(random_() % 5000, 'x');
        break;
      case 3:
        texts_.emplace_back("%s%n\xff\xfe\x01");
        break;
      default:
        texts_.push_back(absl::StrCat("name-", random_() % 50));
    }
    return texts_.back().c_str();
  }

  // Memory with kReachBytes behind it, or null.
  void* Memory(uint64_t alignment = 8) {
    if (OneIn(10)) return nullptr;
    if (OneIn(3)) return world_.playground;
    const uint64_t at = random_() % (kArenaBytes - kReachBytes);
    return world_.arena.data() + (OneIn(20) ? at : at / alignment * alignment);
  }
  // The memory of an array of counts and offsets.
  uint64_t* Numbers() {
    if (OneIn(20)) return nullptr;
    for (uint64_t& number : numbers_) number = Count();
    return numbers_;
  }

  void* Any(World::Kind kind) {
    const uint64_t random = random_();
    switch (random_() % 20) {
      case 0:
        return nullptr;
      case 1:
        return reinterpret_cast<void*>(random);
      case 2:
      case 3:
        return world_.handles[kind].Gone(random);
      case 4:
        return world_.handles[random_() % World::kKinds].Live(random);
      case 5: {
        // Nearly one, but none of those that nobody gives up.
        void* const nearly =
            reinterpret_cast<void*>(reinterpret_cast<uint64_t>(world_.handles[kind].Live(random)) ^
                                    uint64_t{1} << random_() % 64);
        return world_.IsKept(nearly) ? nullptr : nearly;
      }
      default:
        return world_.handles[kind].Live(random);
    }
  }
  iris_context* Context() {
    return OneIn(2) ? world_.main : static_cast<iris_context*>(Any(World::kContext));
  }
  iris_team* Team() { return OneIn(2) ? nullptr : static_cast<iris_team*>(Any(World::kTeam)); }
  iris_stream* Stream() { return static_cast<iris_stream*>(Any(World::kStream)); }
  iris_event* Event() { return static_cast<iris_event*>(Any(World::kEvent)); }
  iris_graph* Graph() { return static_cast<iris_graph*>(Any(World::kGraph)); }
  iris_comm* AnyComm() { return static_cast<iris_comm*>(Any(World::kComm)); }
  iris_comm* Comm() { return OneIn(2) ? world_.comm : AnyComm(); }

  // Where an answer goes: seldom nowhere.
  template <typename T>
  T* Place(T* place) {
    return OneIn(30) ? nullptr : place;
  }

  // A struct whose size is right, or of another header, or none.
  template <typename T>
  void SetSize(Padded<T>* padded) {
    (*padded)->size = OneIn(4) ? (OneIn(2) ? Number() : random_() % kStructBytes) : sizeof(T);
    if (OneIn(8)) padded->FillTail(1);
    // No struct of the caller's is shorter than it says.
    if ((*padded)->size > kStructBytes && (*padded)->size <= (1 << 16)) (*padded)->size = sizeof(T);
  }

  template <typename T>
  Padded<T> Sized() {
    Padded<T> padded;
    SetSize(&padded);
    return padded;
  }

  // A handle that came of a call, for later ones.
  template <typename T>
  iris_code Keep(iris_code code, T*& handle, World::Kind kind) {
    if (code == IRIS_OK) {
      EXPECT_NE(handle, nullptr);
      world_.handles[kind].Add(handle);
    }
    return code;
  }
  template <typename T>
  iris_code End(iris_code (*destroy)(T*), T* handle, World::Kind kind) {
    const iris_code code = destroy(handle);
    // It may have ended with its context before.
    if (code == IRIS_OK || code == IRIS_INVALID_ARGUMENT) world_.handles[kind].End(handle);
    return code;
  }

  void AddContextCalls() {
    Add("iris_code_name", [this] {
      EXPECT_NE(iris_code_name(NumberAs<int32_t>()), nullptr);
      return iris_version() == IRIS_VERSION && iris_version_string() != nullptr ? 0 : -1;
    });
    Add("iris_launcher_read", [this] {
      auto launcher = Sized<iris_launcher>();
      return iris_launcher_read(Place(launcher.get()));
    });
    Add("iris_context_options_init_sized", [this] {
      Padded<iris_context_options> options;
      iris_context_options_init_sized(Place(options.get()),
                                      OneIn(2) ? Number() | 1 << 17 : random_() % kStructBytes);
      return IRIS_OK;
    });
    Add("iris_context_create", [this] { return CreateContext(); });
    Add("iris_context_destroy", [this]() -> iris_code {
      auto* const context = static_cast<iris_context*>(Any(World::kContext));
      return End(iris_context_destroy, context, World::kContext);
    });
    if (!world_.threads) {
      // It unmaps the heap: whoever leaves has no call and no work under way.
      Add("iris_context_leave", [this] {
        world_.handles[World::kStream].ForEach(
            [](void* stream) { (void)iris_stream_synchronize(static_cast<iris_stream*>(stream)); });
        return iris_context_leave(static_cast<iris_context*>(Any(World::kContext)));
      });
    }
    Add("iris_context_get_info", [this] {
      auto info = Sized<iris_context_info>();
      return iris_context_get_info(Context(), Place(info.get()));
    });
    Add("iris_context_get_timings", [this] {
      auto timings = Sized<iris_create_timings>();
      return iris_context_get_timings(Context(), Place(timings.get()));
    });
    Add("iris_context_health", [this] { return iris_context_health(Context()); });
    Add("iris_context_peer_pid", [this] {
      int64_t pid = 0;
      return iris_context_peer_pid(Context(), Rank(), Place(&pid));
    });
    Add("iris_context_reaches", [this] {
      int32_t reaches = 0;
      return iris_context_reaches(Context(), Rank(), Place(&reaches));
    });
    for (const bool local : {true, false}) {
      Add(local ? "iris_team_local" : "iris_team_rail", [this, local] {
        iris_team* team = nullptr;  // the context's own
        return (local ? iris_team_local : iris_team_rail)(Context(), Place(&team));
      });
    }
    Add("iris_context_get_device", [this] {
      std::vector<char> bytes(kStructBytes);
      return iris_context_get_device(Context(), Place(bytes.data()),
                                     OneIn(4) ? Number() | 1 << 17 : random_() % kStructBytes);
    });
    Add("iris_team_get_info", [this] {
      auto info = Sized<iris_team_info>();
      return iris_team_get_info(Context(), Team(), Place(info.get()));
    });
    Add("iris_team_get_device", [this] {
      std::vector<char> bytes(kStructBytes);
      return iris_team_get_device(Context(), Team(), Place(bytes.data()),
                                  OneIn(4) ? Number() | 1 << 17 : random_() % kStructBytes);
    });
    Add("iris_team_create", [this] {
      std::vector<uint32_t> ranks(100);
      if (OneIn(3)) {
        for (uint32_t& rank : ranks) rank = NumberAs<uint32_t>();
      }
      iris_team* team = nullptr;
      const uint32_t n = OneIn(2) ? 1 : static_cast<uint32_t>(random_() % 100);
      return Keep(iris_team_create(Context(), Team(), ranks.data(), n, &team), team, World::kTeam);
    });
    Add("iris_team_split", [this] {
      iris_team* team = nullptr;
      return Keep(
          iris_team_split(Context(), Team(), NumberAs<int32_t>(), NumberAs<int32_t>(), &team), team,
          World::kTeam);
    });
    Add("iris_team_destroy", [this] {
      iris_team* const team = Team();
      const iris_code code = iris_team_destroy(Context(), team);
      if (code == IRIS_OK) world_.handles[World::kTeam].End(team);
      return code;
    });
    Add("iris_barrier", [this] { return iris_barrier(Context(), Team(), Time()); });
    Add("iris_broadcast_bytes", [this] {
      const void* value = nullptr;
      size_t n_bytes = 0;
      const size_t bytes = OneIn(8) ? kMiB + 1 : random_() % 4096;
      return iris_broadcast_bytes(Context(), Team(), Place(world_.arena.data()), bytes, Rank(),
                                  Place(&value), Place(&n_bytes));
    });
  }

  iris_code CreateContext() {
    Padded<iris_context_options> options;
    iris_context_options_init(options.get());
    SetSize(&options);
    if (OneIn(8)) options->header_version = NumberAs<uint32_t>();
    if (OneIn(4)) options->device_abi = NumberAs<uint32_t>();
    options->kernels = OneIn(3) ? Text() : nullptr;
    std::string job;
    {
      const absl::MutexLock lock(&world_.mu);
      job = absl::StrCat("fuzz-", ++world_.n_jobs);
    }
    options->job = OneIn(6) ? Text() : job.c_str();
    options->rank = OneIn(6) ? NumberAs<int32_t>() : 0;
    options->n_ranks = OneIn(6) ? NumberAs<int32_t>() : 1;
    options->local_rank = OneIn(6) ? NumberAs<int32_t>() : 0;
    options->prealloc = OneIn(4) ? 1 : 0;
    options->heap_bytes = OneIn(6) ? random_() | uint64_t{1} << 44 : kMiB + random_() % kMiB;
    options->max_heap_bytes = OneIn(4) ? Number() : 8 * kMiB;
    std::string uuid = "EMU-none";
    options->device_uuid = OneIn(8) ? uuid.c_str() : nullptr;
    options->runtime_dir = OneIn(10) ? "/nowhere" : world_.runtime_dir.c_str();
    options->join_timeout_ns = 20 * kMillisecond;
    options->timeout_ns = OneIn(8) ? NumberAs<int64_t>() : 2000 * kMillisecond;
    options->connect_timeout_ns = 20 * kMillisecond;
    if (world_.handles[World::kContext].size() >= 3) return IRIS_OK;
    iris_context* context = nullptr;
    return Keep(iris_context_create(Place(options.get()), &context), context, World::kContext);
  }

  void AddFree() {
    Add("iris_free", [this] {
      Padded<iris_allocation> range;
      if (!ranges_.empty()) {
        const size_t i = random_() % ranges_.size();
        *range.get() = ranges_[i];
        if (!OneIn(4)) {
          ranges_[i] = ranges_.back();
          ranges_.pop_back();
        }
      }
      SetSize(&range);
      if (OneIn(8)) range->offset_bytes ^= Number() | 1;  // an odd one is no range's
      if (OneIn(8)) range->team_id = NumberAs<uint32_t>();
      if (range->offset_bytes == playground_offset_) range->offset_bytes ^= 1;
      return iris_free(Context(), Place(range.get()));
    });
  }

  void AddMemoryCalls() {
    Add("iris_locate", [this] {
      uint32_t rank = 0;
      uint64_t offset = 0;
      const void* const at = OneIn(2) ? Memory() : reinterpret_cast<void*>(Number());
      return iris_locate(Context(), at, Place(&rank), Place(&offset));
    });
    Add("iris_allocate", [this] {
      auto options = Sized<iris_allocate_options>();
      options->bytes = OneIn(3) ? Number() : random_() % 10'000;
      options->alignment_bytes = OneIn(3) ? Number() : 0;
      options->name = Text();
      options->dtype = DType();
      options->n_dims = static_cast<uint32_t>(random_() % 20);
      options->shape = OneIn(4) ? nullptr : Numbers();
      auto range = Sized<iris_allocation>();
      const iris_code code =
          iris_allocate(Context(), Team(), Place(options.get()), Place(range.get()));
      if (code == IRIS_OK && range->size >= sizeof(iris_allocation))
        ranges_.push_back(*range.get());
      return code;
    });
    // As often as both kinds of allocations.
    for (int kind = 0; kind < 2; ++kind) AddFree();
    Add("iris_allocate_local", [this] {
      auto options = Sized<iris_allocate_options>();
      options->bytes = OneIn(3) ? Number() : random_() % 1000;
      options->alignment_bytes = OneIn(3) ? Number() : 0;
      options->name = Text();
      options->dtype = DType();
      auto range = Sized<iris_allocation>();
      const iris_code code =
          iris_allocate_local(Context(), Place(options.get()), Place(range.get()));
      if (code == IRIS_OK && range->size >= sizeof(iris_allocation))
        ranges_.push_back(*range.get());
      return code;
    });
    Add("iris_register", [this] {
      auto options = Sized<iris_allocate_options>();
      options->bytes = OneIn(3) ? Number() : random_() % 10'000;
      options->name = Text();
      options->dtype = DType();
      auto range = Sized<iris_allocation>();
      void* const memory = OneIn(2)   ? world_.shareable + random_() % 100'000
                           : OneIn(2) ? reinterpret_cast<void*>(Number())
                                      : Memory();
      iris_context* const context = Context();
      const iris_code code =
          iris_register(context, memory, Place(options.get()), Place(range.get()));
      if (code != IRIS_OK || range->size < sizeof(iris_allocation)) return code;
      // What stays takes room that the heap could grow into, and others need.
      if (OneIn(10)) {
        ranges_.push_back(*range.get());
      } else {
        (void)iris_free(context, range.get());  // another thread may have ended the context
      }
      return code;
    });
    Add("iris_register_symmetric", [this] {
      auto options = Sized<iris_allocate_options>();
      options->bytes = OneIn(3) ? Number() : random_() % 10'000;
      options->name = Text();
      auto range = Sized<iris_allocation>();
      void* const memory = OneIn(2) ? world_.shareable + random_() % 100'000 : Memory();
      iris_context* const context = Context();
      const iris_code code = iris_register_symmetric(context, Team(), memory, Place(options.get()),
                                                     Place(range.get()));
      if (code == IRIS_OK && range->size >= sizeof(iris_allocation)) {
        (void)iris_free(context, range.get());  // another thread may have ended the context
      }
      return code;
    });
    Add("iris_is_symmetric", [this] {
      int32_t is = 0;
      return iris_is_symmetric(Context(), Memory(), Number(), Place(&is));
    });
    Add("iris_publish_local", [this] {
      Padded<iris_allocation> range;
      if (!ranges_.empty()) *range.get() = ranges_[random_() % ranges_.size()];
      SetSize(&range);
      // What has no name yet and is this rank's alone.
      iris_allocate_options options = {};
      options.size = sizeof(options);
      options.bytes = 8;
      if (OneIn(8)) (void)iris_allocate_local(world_.main, &options, range.get());
      if (OneIn(8)) range->offset_bytes ^= Number() | 1;
      return iris_publish_local(Context(), Place(range.get()), Text());
    });
    Add("iris_open_local", [this] {
      auto opened = Sized<iris_opened>();
      // Of what is not there yet, it waits.
      const int64_t timeout_ns = OneIn(4) ? static_cast<int64_t>(Number() | uint64_t{1} << 63) : 1;
      const uint32_t rank = OneIn(2) ? 1 : Rank();
      return iris_open_local(Context(), rank, Text(), timeout_ns, Place(opened.get()));
    });
    Add("iris_close_local", [this] {
      auto opened = Sized<iris_opened>();
      opened->offset_bytes = Number();
      opened->rank = Rank();
      return iris_close_local(Context(), Place(opened.get()));
    });
    Add("iris_grow", [this] {
      return iris_grow(Context(), OneIn(2) ? random_() % kMiB : random_() | uint64_t{1} << 44);
    });
    for (const bool device : {true, false}) {
      const auto make = device ? iris_malloc_device : iris_malloc_host;
      const auto give_back = device ? iris_free_device : iris_free_host;
      Add(device ? "iris_malloc_device" : "iris_malloc_host", [this, make, give_back] {
        uint64_t bytes = random_() % kReachBytes;
#if !defined(IRIS_ASAN)
        // Sanitizers end the process where memory is asked for that cannot be.
        if (OneIn(4)) bytes = ~uint64_t{0} >> random_() % 8;
#endif
        void* memory = nullptr;
        const iris_code code = make(Context(), bytes, Place(&memory));
        if (code != IRIS_OK) return code;
        static_cast<uint8_t*>(memory)[0] = static_cast<uint8_t*>(memory)[bytes - 1] = 1;
        EXPECT_EQ(give_back(world_.main, memory), IRIS_OK);
        return code;
      });
      Add(device ? "iris_free_device" : "iris_free_host",
          [this, give_back] { return give_back(Context(), nullptr); });
    }
  }

  // torch has no codes: without memory there is a text.
  void AddTorchCalls() {
    Add("iris_torch_use", [this] {
      return iris_torch_use(OneIn(2) ? world_.main : Context(), OneIn(8) ? NumberAs<int32_t>() : 0);
    });
    Add("iris_torch_malloc", [this]() -> iris_code {
      const int64_t bytes = OneIn(4) ? NumberAs<int64_t>() : static_cast<int64_t>(random_() % 4096);
      void* const memory = iris_torch_malloc(bytes, OneIn(8) ? NumberAs<int32_t>() : 0, nullptr);
      if (memory == nullptr) return IRIS_RESOURCE_EXHAUSTED;
      torch_.push_back(memory);
      return IRIS_OK;
    });
    Add("iris_torch_free", [this]() -> iris_code {
      if (torch_.empty()) return IRIS_OK;
      const size_t i = random_() % torch_.size();
      void* const memory = OneIn(8) ? Memory() : torch_[i];
      iris_torch_free(memory, NumberAs<int64_t>(), NumberAs<int32_t>(),
                      OneIn(2) ? nullptr : world_.native);
      // Seldom it is given back twice.
      if (memory == torch_[i] && !OneIn(8)) torch_.erase(torch_.begin() + static_cast<long>(i));
      return IRIS_OK;
    });
  }

  // A file of a trace of this process, which may not be there yet.
  std::string TracePath() { return absl::StrCat(world_.runtime_dir, "/trace-", thread_); }
  void AddTraceCalls() {
    Add("iris_trace_start",
        [this] { return iris_trace_start(Context(), OneIn(2) ? 0 : NumberAs<int64_t>()); });
    Add("iris_trace_stop", [this] { return iris_trace_stop(Context()); });
    Add("iris_trace_write", [this] {
      const std::string path = OneIn(4) ? "/nowhere/trace" : TracePath();
      return iris_trace_write(OneIn(2) ? world_.main : Context(), Place(path.c_str()));
    });
    Add("iris_trace_span_begin",
        [this] { return iris_trace_span_begin(Context(), Place(&span_)); });
    Add("iris_trace_span_end",
        [this] { return iris_trace_span_end(Context(), OneIn(4) ? Number() : span_, Text()); });
    Add("iris_trace_merge", [this] {
      const std::string path = OneIn(4) ? "/nowhere/trace" : TracePath();
      const char* const paths[] = {OneIn(20) ? nullptr : path.c_str(), path.c_str()};
      const std::string out = TracePath() + "-merged";
      // Two of one rank are refused.
      const size_t n = OneIn(8) ? (OneIn(2) ? 2 : random_() | uint64_t{1} << 62) : 1;
      return iris_trace_merge(Place(paths), n, Place(out.c_str()));
    });
  }

  void AddStreamCalls() {
    Add("iris_stream_create", [this]() -> iris_code {
      if (world_.handles[World::kStream].size() >= 16) return IRIS_OK;
      iris_stream* stream = nullptr;
      return Keep(iris_stream_create(Context(), &stream), stream, World::kStream);
    });
    Add("iris_stream_wrap", [this] {
      iris_stream* stream = nullptr;
      // Work on a stream of the platform must end before the context: only that of main does.
      iris_context* const context = OneIn(4) ? nullptr : world_.main;
      const iris_code code =
          iris_stream_wrap(context, OneIn(3) ? nullptr : world_.native, Place(&stream));
      return Keep(code, stream, World::kStream);
    });
    Add("iris_stream_destroy",
        [this] { return End(iris_stream_destroy, Stream(), World::kStream); });
    Add("iris_stream_synchronize", [this] { return iris_stream_synchronize(Stream()); });
    Add("iris_stream_idle", [this] {
      int32_t idle = 0;
      return iris_stream_idle(Stream(), Place(&idle));
    });
    Add("iris_stream_native", [this] {
      void* native = nullptr;
      int32_t device = 0;
      return iris_stream_native(Stream(), Place(&native), Place(&device));
    });
    Add("iris_copy_async", [this] {
      auto* const to = static_cast<uint8_t*>(Memory());
      auto* from = static_cast<uint8_t*>(Memory());
      const uint64_t bytes = random_() % 4096;
      // What overlaps is not looked for: the caller must not give it.
      const auto x = reinterpret_cast<uint64_t>(to), y = reinterpret_cast<uint64_t>(from);
      if (from != nullptr && (x < y ? y - x : x - y) < bytes) from = to + 4096;
      return iris_copy_async(to, from, bytes, Stream());
    });
    Add("iris_fill_async", [this] {
      return iris_fill_async(Memory(), NumberAs<int32_t>(), random_() % 4096, Stream());
    });
    Add("iris_capture_begin", [this] { return iris_capture_begin(Stream()); });
    Add("iris_capture_end", [this] {
      iris_graph* graph = nullptr;
      iris_stream* const stream = Stream();
      if (OneIn(2)) (void)iris_capture_begin(stream);
      return Keep(iris_capture_end(stream, &graph), graph, World::kGraph);
    });
    Add("iris_graph_launch", [this] { return iris_graph_launch(Graph(), Stream()); });
    Add("iris_graph_destroy", [this] { return End(iris_graph_destroy, Graph(), World::kGraph); });
    Add("iris_event_create", [this] {
      iris_event* event = nullptr;
      return Keep(iris_event_create(Context(), &event), event, World::kEvent);
    });
    Add("iris_event_destroy", [this] { return End(iris_event_destroy, Event(), World::kEvent); });
    Add("iris_event_record", [this] { return iris_event_record(Event(), Stream()); });
    Add("iris_event_wait", [this] { return iris_event_wait(Stream(), Event()); });
    Add("iris_event_elapsed", [this] {
      uint64_t ns = 0;
      iris_event *const begin = Event(), *const end = Event();
      if (OneIn(2)) {
        iris_stream* const stream = Stream();
        for (iris_event* const event : {begin, end}) (void)iris_event_record(event, stream);
        (void)iris_stream_synchronize(stream);
      }
      return iris_event_elapsed(begin, end, Place(&ns));
    });
    for (const bool put : {true, false}) {
      const auto call =
          put ? [](iris_context* c, void* to, void* from, uint64_t n, uint32_t rank, iris_stream* s,
                   const iris_signal*
                       signal) { return iris_put_async(c, to, from, n, rank, s, signal); }
              : [](iris_context* c, void* to, void* from, uint64_t n, uint32_t rank, iris_stream* s,
                   const iris_signal* signal) {
                  return iris_get_async(c, to, from, n, rank, s, signal);
                };
      Add(put ? "iris_put_async" : "iris_get_async", [this, call] {
        auto signal = Sized<iris_signal>();
        signal->word = OneIn(3) ? nullptr : reinterpret_cast<uint64_t*>(Memory());
        signal->value = Number();
        signal->op = OneIn(6) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 2);
        auto* const to = static_cast<uint8_t*>(Memory());
        auto* const from = static_cast<uint8_t*>(Memory());
        // Apart from each other where both are in the heap.
        return call(Context(), to, from == to && from != nullptr ? from + 8192 : from, Bytes(),
                    Rank(), Stream(), OneIn(3) ? nullptr : signal.get());
      });
    }
    for (const bool put : {true, false}) {
      Add(put ? "iris_put_rows_async" : "iris_get_rows_async", [this, put] {
        auto rows = Sized<iris_rows>();
        // Right, or what no memory can have: the other side is any memory, which is not checked.
        const auto pitch = [this]() -> uint64_t { return OneIn(3) ? (OneIn(2) ? 0 : ~0ull) : 200; };
        rows->rows = OneIn(6) ? ~0ull : random_() % 20;
        rows->row_bytes = random_() % 200;
        rows->dst_pitch_bytes = pitch();
        rows->src_pitch_bytes = pitch();
        auto* const to = static_cast<uint8_t*>(Memory());
        auto* const from = static_cast<uint8_t*>(Memory());
        const auto call = put ? iris_put_rows_async : iris_get_rows_async;
        return call(Context(), to, from == to && from != nullptr ? from + 8192 : from,
                    OneIn(9) ? nullptr : rows.get(), Rank(), Stream(), nullptr);
      });
    }
    Add("iris_prepare_signals", [this] { return iris_prepare_signals(Context()); });
    AddHostTransfers();
  }

  // Puts, gets, signals and atomics of the host itself.
  void AddHostTransfers() {
    const auto signal = [this] {
      auto made = Sized<iris_signal>();
      made->word = OneIn(3) ? nullptr : reinterpret_cast<uint64_t*>(Memory());
      made->value = Number();
      made->op = OneIn(6) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 2);
      return made;
    };
    const auto rows = [this] {
      auto made = Sized<iris_rows>();
      made->rows = random_() % 20;
      made->row_bytes = random_() % 200;
      made->dst_pitch_bytes = OneIn(3) ? 0 : 200;
      made->src_pitch_bytes = OneIn(3) ? 0 : 200;
      return made;
    };
    Add("iris_put", [this, signal] {
      auto sent = signal();
      void* const to = Memory();
      return iris_put(Context(), to, Memory(), random_() % 4096, Rank(),
                      OneIn(2) ? nullptr : sent.get());
    });
    Add("iris_get", [this] {
      void* const to = Memory();
      return iris_get(Context(), to, Memory(), random_() % 4096, Rank());
    });
    Add("iris_put_rows", [this, rows] {
      auto strided = rows();
      void* const to = Memory();
      return iris_put_rows(Context(), to, Memory(), OneIn(9) ? nullptr : strided.get(), Rank(),
                           nullptr);
    });
    Add("iris_get_rows", [this, rows] {
      auto strided = rows();
      void* const to = Memory();
      return iris_get_rows(Context(), to, Memory(), OneIn(9) ? nullptr : strided.get(), Rank());
    });
    Add("iris_send_signal", [this, signal] {
      auto sent = signal();
      return iris_send_signal(Context(), Rank(), OneIn(9) ? nullptr : sent.get());
    });
    Add("iris_atomic_fetch", [this] {
      auto call = Sized<iris_atomic>();
      call->word = Memory();
      call->peer = Rank();
      call->op = OneIn(6) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 10);
      call->dtype = OneIn(6) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 20);
      call->value = Number();
      call->compare = Number();
      uint64_t old = 0;
      return iris_atomic_fetch(Context(), OneIn(9) ? nullptr : call.get(), Place(&old));
    });
    Add("iris_fence", [this] { return iris_fence(Context()); });
    Add("iris_quiet", [this] { return iris_quiet(Context(), Time()); });
  }

  void AddCommCalls() {
    Add("iris_comm_create", [this]() -> iris_code {
      if (world_.handles[World::kComm].size() >= 8) return IRIS_OK;
      auto options = Sized<iris_comm_options>();
      if (OneIn(2)) {
        options->name = Text();
        options->blocks = NumberAs<uint32_t>();
        options->block_threads = NumberAs<uint32_t>();
        options->max_blocks = NumberAs<uint32_t>();
        options->packet_blocks = NumberAs<uint32_t>();
        options->packet_bytes = Number();
        options->stage_bytes = Number();
        options->timeout_ns = Time();
        options->check_calls = NumberAs<int32_t>();
        options->symmetric = NumberAs<int32_t>();
        options->rules = Text();
      }
      options->matmul_bytes = OneIn(6) ? Number() : kMiB;
      iris_comm* comm = nullptr;
      return Keep(iris_comm_create(Context(), Team(), OneIn(3) ? nullptr : options.get(), &comm),
                  comm, World::kComm);
    });
    Add("iris_comm_release", [this] { return iris_comm_release(AnyComm()); });
    Add("iris_comm_destroy", [this] { return End(iris_comm_destroy, AnyComm(), World::kComm); });
    Add("iris_comm_check", [this] { return iris_comm_check(Comm()); });
    Add("iris_comm_error_word", [this] {
      const uint64_t* word = nullptr;
      return iris_comm_error_word(Comm(), Place(&word));
    });
    Add("iris_comm_synchronize", [this] { return iris_comm_synchronize(Comm(), Stream()); });
    Add("iris_comm_reset", [this] {
      if (OneIn(2)) return iris_comm_reset(Comm());
      (void)iris_stream_synchronize(world_.kernel_streams[thread_]);
      return iris_comm_reset(world_.kernel_comms[thread_]);
    });
    Add("iris_comm_barrier", [this] { return iris_comm_barrier(Comm(), Stream()); });
    Add("iris_all_reduce", [this] {
      return iris_all_reduce(Comm(), Memory(), Memory(), Count(), DType(), Op(), Stream(),
                             Variant());
    });
    Add("iris_reduce_scatter", [this] {
      return iris_reduce_scatter(Comm(), Memory(), Memory(), Count(), DType(), Op(), Stream(),
                                 Variant());
    });
    Add("iris_reduce", [this] {
      return iris_reduce(Comm(), Memory(), Memory(), Count(), DType(), Op(), Rank(), Stream(),
                         Variant());
    });
    Add("iris_all_gather", [this] {
      return iris_all_gather(Comm(), Memory(), Memory(), Count(), DType(), Stream(), Variant());
    });
    Add("iris_gather", [this] {
      return iris_gather(Comm(), Memory(), Memory(), Count(), DType(), Rank(), Stream(), Variant());
    });
    Add("iris_scatter", [this] {
      return iris_scatter(Comm(), Memory(), Memory(), Count(), DType(), Rank(), Stream(),
                          Variant());
    });
    Add("iris_all_to_all", [this] {
      return iris_all_to_all(Comm(), Memory(), Memory(), Count(), DType(), Stream(), Variant());
    });
    Add("iris_all_to_all_v", [this] {
      uint64_t* const numbers = Numbers();
      uint64_t* const second = numbers == nullptr || OneIn(2) ? numbers : numbers + 32;
      return iris_all_to_all_v(Comm(), Memory(), numbers, second, Memory(), numbers, second,
                               OneIn(3) ? NumberAs<uint32_t>() : 1, DType(), Stream());
    });
    Add("iris_broadcast", [this] {
      return iris_broadcast(Comm(), Memory(), Memory(), Count(), DType(), Rank(), Stream(),
                            Variant());
    });
    Add("iris_send",
        [this] { return iris_send(Comm(), Memory(), Count(), DType(), Rank(), Stream()); });
    Add("iris_recv",
        [this] { return iris_recv(Comm(), Memory(), Count(), DType(), Rank(), Stream()); });
    Add("iris_send_recv", [this] {
      const uint64_t count = Count();
      const uint64_t out_count = OneIn(4) ? Count() : count;
      return iris_send_recv(Comm(), Memory(), count, Rank(), Memory(), out_count, Rank(), DType(),
                            Stream());
    });
    Add("iris_group_start", [this] {
      iris_comm* const comm = Comm();
      const iris_code code = iris_group_start(comm);
      if (!OneIn(8)) iris_group_end(comm);
      return code;
    });
    Add("iris_group_end", [this] {
      iris_comm* const comm = Comm();
      if (!OneIn(4)) iris_group_start(comm);
      return iris_group_end(comm);
    });
  }

  // A dimension of a matrix: what its buffer has room for, or more than any has.
  uint64_t Dimension(uint64_t most) {
    return OneIn(40) ? random_() | uint64_t{1} << 62 : OneIn(40) ? 0 : 1 + random_() % most;
  }
  uint32_t Small(uint32_t most) {
    if (OneIn(40)) return static_cast<uint32_t>(random_() | uint32_t{1} << 31);
    return OneIn(40) || most == 0 ? 0 : 1 + static_cast<uint32_t>(random_() % most);
  }
  // One of the types that a call takes, or any.
  iris_dtype TypeOf(std::initializer_list<iris_dtype> types) {
    return OneIn(20) ? DType() : types.begin()[random_() % types.size()];
  }
  // From the number `first` on so many that are valid, or any.
  int32_t NumberOf(int32_t first, uint32_t n) {
    return OneIn(20) ? NumberAs<int32_t>() : first + static_cast<int32_t>(random_() % n);
  }
  // The i-th buffer of a call, of kPieceBytes: mostly apart from the others.
  void* Piece(uint64_t i) {
    return OneIn(40) ? Memory() : world_.arena.data() + (8 * thread_ + i) * kPieceBytes;
  }

  iris_stream* KernelStream() {
    return OneIn(20) ? static_cast<iris_stream*>(world_.handles[World::kStream].Gone(random_()))
                     : world_.kernel_streams[thread_];
  }
  iris_comm* KernelComm() {
    return OneIn(20) ? static_cast<iris_comm*>(world_.handles[World::kComm].Gone(random_()))
                     : world_.kernel_comms[thread_];
  }

  Padded<iris_matmul> Matmul() {
    auto call = Sized<iris_matmul>();
    iris_matmul& c = *call.get();
    c.operation = NumberOf(IRIS_MATMUL_ALL_REDUCE, 5);
    c.variant = OneIn(2) ? 0 : NumberOf(0, 4);
    c.m = Dimension(40);
    c.n = Dimension(40);
    c.k = Dimension(40);
    c.in_dtype = TypeOf({IRIS_F16, IRIS_BF16});
    c.out_dtype = TypeOf({IRIS_F16, IRIS_BF16, IRIS_F32});
    c.bias_dtype = TypeOf({IRIS_DTYPE_NONE, IRIS_F16, IRIS_BF16, IRIS_F32});
    c.transposed_b = OneIn(2);
    c.activation = NumberOf(0, 4);
    // Wide enough, or what no matrix has.
    const auto leading = [this](uint64_t columns) {
      return OneIn(20) ? (OneIn(2) ? 0 : random_() | uint64_t{1} << 62) : columns + random_() % 8;
    };
    c.lda = leading(c.k);
    c.ldb = leading(c.transposed_b != 0 ? c.k : c.n);
    c.ldd = leading(c.n);
    c.a = Piece(0);
    c.b = Piece(1);
    c.bias = Piece(2);
    c.d = OneIn(20) ? Piece(3) : world_.playground;
    return call;
  }
  void AddMatmulCalls() {
    Add("iris_matmul_bytes", [this] {
      auto call = Matmul();
      auto options = Sized<iris_comm_options>();
      uint64_t bytes = 0;
      return iris_matmul_bytes(Context(), Small(64), OneIn(2) ? nullptr : options.get(),
                               Place(call.get()), Place(&bytes));
    });
    Add("iris_matmul_choose", [this] {
      auto call = Matmul();
      auto plan = Sized<iris_matmul_plan>();
      return iris_matmul_choose(Comm(), Place(call.get()), Place(plan.get()));
    });
    Add("iris_matmul_launch", [this] {
      auto call = Matmul();
      return iris_matmul_launch(KernelComm(), Place(call.get()), KernelStream());
    });
  }

  Padded<iris_norm> Norm() {
    auto call = Sized<iris_norm>();
    iris_norm& c = *call.get();
    c.operation = NumberOf(IRIS_ALL_REDUCE_RMS_NORM, 2);
    c.variant = OneIn(2) ? 0 : NumberOf(0, 4);
    c.rows = Dimension(8);
    c.hidden = Dimension(300);
    c.in_dtype = TypeOf({IRIS_F32, IRIS_F16, IRIS_BF16});
    const bool fp8 = OneIn(2);
    c.out_dtype = fp8 ? TypeOf({IRIS_F8E4M3, IRIS_F8E5M2}) : OneIn(20) ? DType() : c.in_dtype;
    c.weight_dtype = TypeOf({IRIS_DTYPE_NONE, IRIS_F32, IRIS_F16, IRIS_BF16});
    c.scaling = fp8 ? NumberOf(1, 3) : OneIn(20) ? 1 : 0;
    c.epsilon = OneIn(20) ? -1.0f : 1e-6f;
    c.weight_offset = c.weight_dtype == IRIS_DTYPE_NONE && !OneIn(20) ? 0.0f : 1.0f;
    c.has_residual = OneIn(2);
    c.in = Piece(0);
    if (c.has_residual != 0 || OneIn(20)) {
      c.residual = Piece(1);
      c.residual_out = OneIn(2) ? Piece(1) : Piece(2);
    }
    if (c.weight_dtype != IRIS_DTYPE_NONE || OneIn(20)) c.weight = Piece(3);
    c.out = OneIn(4) ? Piece(0) : Piece(4);
    c.scale = Piece(5);
    c.scales = Piece(6);
    return call;
  }
  void AddNormCalls() {
    Add("iris_norm_choose", [this] {
      auto call = Norm();
      auto plan = Sized<iris_norm_plan>();
      return iris_norm_choose(Comm(), Place(call.get()), Place(plan.get()));
    });
    Add("iris_norm_launch", [this] {
      auto call = Norm();
      return iris_norm_launch(KernelComm(), Place(call.get()), KernelStream());
    });
  }

  Padded<iris_moe_config> MoeConfig() {
    auto config = Sized<iris_moe_config>();
    iris_moe_config& c = *config.get();
    c.n_experts = Small(8);
    c.top_k = Small(std::min(c.n_experts, uint32_t{4}));
    c.hidden = Small(40);
    c.max_tokens = Small(12);
    c.capacity = OneIn(2) ? 0 : Small(6);
    c.in_dtype = TypeOf({IRIS_F32, IRIS_F16, IRIS_BF16, IRIS_F8E4M3});
    c.row_dtype = TypeOf({IRIS_DTYPE_NONE, IRIS_F8E4M3});
    c.partial_dtype = TypeOf({IRIS_DTYPE_NONE, IRIS_F32, IRIS_F16, IRIS_BF16});
    return config;
  }
  uint32_t Tokens(const iris_moe_config& config) {
    return Small(std::min(config.max_tokens, uint32_t{12}));
  }
  // Choices of 12 tokens: right ones, or seldom any numbers.
  const void* Ids(const iris_moe_config& config) {
    std::vector<int64_t> ids(12 * 4, -1);
    if (OneIn(20)) {
      for (int64_t& id : ids) id = NumberAs<int64_t>();
    } else if (config.top_k > 0 && config.top_k <= 4) {
      for (uint64_t i = 0; i < ids.size(); ++i) {
        if (!OneIn(4)) ids[i] = static_cast<int64_t>(i % config.top_k);
      }
    }
    const absl::MutexLock lock(&world_.mu);
    world_.ids.push_back(std::move(ids));
    return world_.ids.back().data();
  }
  // A workspace of moe with room for this config, or what must be refused.
  void* MoeWorkspace(const iris_moe_config* config) {
    iris_moe_sizes sizes = {};
    sizes.size = sizeof(sizes);
    const bool known = iris_moe_get_sizes(world_.main, 1, 0, config, &sizes) == IRIS_OK;
    if (known && sizes.workspace_bytes > kMoeBytes) return nullptr;
    return OneIn(20) ? world_.arena.data() : world_.moe_workspaces[thread_];
  }
  iris_code Dispatch(iris_comm* comm, const iris_moe_config* config, uint32_t tokens,
                     iris_stream* stream) {
    auto call = Sized<iris_moe_dispatch_call>();
    iris_moe_dispatch_call& c = *call.get();
    c.workspace = MoeWorkspace(config);
    c.tokens = tokens;
    c.id_dtype = TypeOf({IRIS_I64});
    c.x = Piece(0);
    c.x_scales =
        (config == nullptr || config->in_dtype != IRIS_F8E4M3) && !OneIn(20) ? nullptr : Piece(1);
    c.ids = Ids(config == nullptr ? iris_moe_config() : *config);
    c.weights = OneIn(2) ? nullptr : Piece(2);
    c.rows = OneIn(4) ? nullptr : Piece(3);
    const bool narrow =
        config != nullptr && (config->row_dtype == IRIS_F8E4M3 || config->in_dtype == IRIS_F8E4M3);
    c.scales = (c.rows == nullptr || !narrow) && !OneIn(20) ? nullptr : Piece(4);
    // Up to 12 * 4 numbers in each.
    uint8_t* const numbers = static_cast<uint8_t*>(Piece(5));
    const auto part = [&](uint64_t i) {
      return numbers == nullptr || OneIn(4) ? nullptr : numbers + i * 1024;
    };
    c.counts = part(0);
    c.offsets = part(1);
    c.dropped = part(2);
    c.sources = part(3);
    return iris_moe_dispatch(comm, config, Place(call.get()), stream);
  }
  void AddMoeCalls() {
    Add("iris_moe_get_sizes", [this] {
      auto config = MoeConfig();
      auto sizes = Sized<iris_moe_sizes>();
      const uint32_t n = OneIn(2) ? 1 : Small(64);
      return iris_moe_get_sizes(Context(), n, OneIn(2) ? 0 : Small(64), Place(config.get()),
                                Place(sizes.get()));
    });
    Add("iris_moe_prepare", [this] { return iris_moe_prepare(Comm()); });
    Add("iris_moe_dispatch", [this] {
      auto config = MoeConfig();
      return Dispatch(KernelComm(), Place(config.get()), Tokens(*config.get()), KernelStream());
    });
    Add("iris_moe_combine", [this] {
      auto config = MoeConfig();
      auto call = Sized<iris_moe_combine_call>();
      iris_moe_combine_call& c = *call.get();
      c.workspace = MoeWorkspace(config.get());
      c.tokens = Tokens(*config.get());
      c.y_dtype = TypeOf({IRIS_F32, IRIS_F16, IRIS_BF16});
      c.out_dtype = TypeOf({IRIS_F32, IRIS_F16, IRIS_BF16});
      c.y = Piece(6);
      c.out = Piece(7);
      iris_comm* const comm = KernelComm();
      iris_stream* const stream = KernelStream();
      // Behind its dispatch, or seldom behind another one.
      if (!OneIn(10)) (void)Dispatch(comm, config.get(), c.tokens, stream);
      return iris_moe_combine(comm, Place(config.get()), Place(call.get()), stream);
    });
  }

  iris_tensor* AnyTensor() { return static_cast<iris_tensor*>(Any(World::kTensor)); }
  iris_tensor* Tensor() { return OneIn(2) ? world_.tensor : AnyTensor(); }

  // A view of the tensor that nobody gives up: whoever frees it, frees all.
  bool IsPartOfKept(iris_tensor* tensor) const {
    iris_tensor_info part = {}, kept = {};
    part.size = kept.size = sizeof(part);
    return iris_tensor_get_info(tensor, &part) == IRIS_OK &&
           iris_tensor_get_info(world_.tensor, &kept) == IRIS_OK &&
           reinterpret_cast<uint64_t>(part.address) - reinterpret_cast<uint64_t>(kept.address) <
               kept.bytes;
  }
  // Numbers of a fill that are right as often as wrong.
  Padded<iris_fill_options> Fill() {
    auto fill = Sized<iris_fill_options>();
    fill->kind = OneIn(8) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 7);
    fill->dtype = DType();
    fill->first = OneIn(4) ? Number() : 0;
    fill->count = Count();
    // What is large is too large for elements of one byte, too: other memory is not looked at.
    if (fill->count >= uint64_t{1} << 62) fill->count |= uint64_t{1} << 63;
    fill->start = OneIn(8) ? static_cast<double>(Number()) * 1e300 : 1;
    fill->end = OneIn(8) ? -fill->start : 9;
    fill->step = OneIn(8) ? 0 : 0.5;
    fill->whole_start = OneIn(4) ? NumberAs<int64_t>() : 0;
    fill->whole_end = OneIn(4) ? NumberAs<int64_t>() : 1;
    fill->whole_step = OneIn(4) ? NumberAs<int64_t>() : 0;
    fill->steps = OneIn(4) ? Number() : 10'000;
    fill->seed = random_();
    fill->call = random_();
    return fill;
  }
  // Up to 9 sizes, small or none.
  uint32_t Shape(int64_t* shape) {
    for (int i = 0; i < 9; ++i) {
      shape[i] = OneIn(12) ? NumberAs<int64_t>() : static_cast<int64_t>(random_() % 5);
    }
    return OneIn(30) ? NumberAs<uint32_t>() | 16 : static_cast<uint32_t>(random_() % 5);
  }

  void AddTensorCalls() {
    Add("iris_fill", [this] {
      auto fill = Fill();
      int64_t shape[9], strides[] = {10, 5, 1, 0, 1, 2, 3, 4, 5};
      // Else of `count` elements in a row.
      if (OneIn(3)) fill->n_dims = Shape(shape);
      fill->shape = Place(shape);
      fill->strides = Place(strides);
      return iris_fill(Context(), Memory(), Place(fill.get()), Stream());
    });
    Add("iris_tensor_create", [this]() -> iris_code {
      if (world_.handles[World::kTensor].size() >= 60) return IRIS_OK;
      auto fill = Fill();
      if (!OneIn(4)) fill->dtype = fill->count = 0;
      auto options = Sized<iris_tensor_options>();
      int64_t shape[9];
      options->n_dims = Shape(shape);
      options->shape = Place(shape);
      options->dtype = DType();
      options->name = OneIn(4) ? Text() : nullptr;
      options->fill = OneIn(2) ? nullptr : fill.get();
      options->stream = OneIn(2) ? nullptr : Stream();
      iris_tensor* tensor = nullptr;
      return Keep(iris_tensor_create(Context(), Team(), Place(options.get()), &tensor), tensor,
                  World::kTensor);
    });
    // As often as tensors come.
    for (int i = 0; i < 2; ++i) {
      Add("iris_tensor_free", [this]() -> iris_code {
        iris_tensor* const tensor = AnyTensor();
        return IsPartOfKept(tensor) ? IRIS_OK : iris_tensor_free(tensor);
      });
      Add("iris_tensor_destroy",
          [this] { return End(iris_tensor_destroy, AnyTensor(), World::kTensor); });
    }
    Add("iris_tensor_fill", [this] {
      auto fill = Fill();
      if (!OneIn(4)) fill->dtype = fill->count = 0;
      if (OneIn(3)) {
        *fill.get() = {};
        fill->size = sizeof(iris_fill_options);
      }
      return iris_tensor_fill(Tensor(), Place(fill.get()), OneIn(2) ? nullptr : Stream());
    });
    for (const bool to : {true, false}) {
      Add(to ? "iris_tensor_to_host" : "iris_tensor_from_host", [this, to] {
        iris_tensor* const tensor = Tensor();
        iris_tensor_info info = {};
        info.size = sizeof(info);
        const bool known =
            iris_tensor_get_info(tensor, &info) == IRIS_OK && info.bytes <= kReachBytes;
        const uint64_t bytes = known && !OneIn(4) ? info.bytes : Bytes();
        const iris_dtype dtype = known && !OneIn(4) ? info.dtype : DType();
        iris_stream* const stream = OneIn(2) ? nullptr : Stream();
        return to ? iris_tensor_to_host(tensor, Memory(), bytes, dtype, stream)
                  : iris_tensor_from_host(tensor, Memory(), bytes, dtype, stream);
      });
    }
    Add("iris_tensor_copy", [this] {
      iris_tensor* const from = Tensor();
      if (OneIn(3)) return iris_tensor_copy(Tensor(), from, OneIn(2) ? nullptr : Stream());
      // Two parts of one, of the same shape.
      iris_tensor *low = nullptr, *high = nullptr;
      iris_code code = iris_tensor_slice(from, 0, 0, 1, 1, &low);
      if (code == IRIS_OK) code = iris_tensor_slice(from, 0, 1, 2, 1, &high);
      if (code == IRIS_OK) code = iris_tensor_copy(low, high, nullptr);
      const std::string text = iris_error_message();
      (void)iris_tensor_destroy(low);
      (void)iris_tensor_destroy(high);
      EXPECT_TRUE(code == IRIS_OK || !text.empty());
      return code;
    });
  }

  void AddViewCalls() {
    const auto keep = [this](iris_code code, iris_tensor*& made) {
      // Many more views than tensors would keep their memory.
      if (code == IRIS_OK && OneIn(2)) return iris_tensor_destroy(made);
      return Keep(code, made, World::kTensor);
    };
    Add("iris_tensor_get_info", [this] {
      auto info = Sized<iris_tensor_info>();
      return iris_tensor_get_info(Tensor(), Place(info.get()));
    });
    Add("iris_tensor_at", [this, keep] {
      iris_tensor* made = nullptr;
      return keep(iris_tensor_at(Tensor(), Rank(), &made), made);
    });
    Add("iris_tensor_slice", [this, keep] {
      iris_tensor* made = nullptr;
      if (OneIn(3)) return keep(iris_tensor_slice(Tensor(), 0, 0, 1, 1, &made), made);
      return keep(iris_tensor_slice(Tensor(), NumberAs<uint32_t>() % 4, NumberAs<int64_t>(),
                                    NumberAs<int64_t>(), NumberAs<int64_t>(), &made),
                  made);
    });
    Add("iris_tensor_select", [this, keep] {
      iris_tensor* made = nullptr;
      const int64_t index = OneIn(2) ? 0 : NumberAs<int64_t>();
      return keep(iris_tensor_select(Tensor(), static_cast<uint32_t>(random_() % 3), index, &made),
                  made);
    });
    Add("iris_tensor_reshape", [this, keep] {
      iris_tensor* made = nullptr;
      int64_t shape[9];
      uint32_t n = Shape(shape);
      if (OneIn(2)) {
        shape[0] = -1;
        n = 1;
      }
      return keep(iris_tensor_reshape(Tensor(), n, Place(shape), &made), made);
    });
    Add("iris_tensor_permute", [this, keep] {
      iris_tensor* made = nullptr;
      uint32_t dims[] = {1, 0, 2, 3, 4, 5, 6, 7, 8};
      if (OneIn(4)) dims[random_() % 9] = NumberAs<uint32_t>();
      iris_tensor* const tensor = Tensor();
      iris_tensor_info info = {};
      info.size = sizeof(info);
      const bool known = iris_tensor_get_info(tensor, &info) == IRIS_OK && info.n_dims >= 2;
      const uint32_t n = known && !OneIn(4) ? info.n_dims : static_cast<uint32_t>(random_() % 4);
      return keep(iris_tensor_permute(tensor, n, Place(dims), &made), made);
    });
    Add("iris_tensor_to_dlpack", [this] {
      void* managed = nullptr;
      const iris_code code = iris_tensor_to_dlpack(Tensor(), Place(&managed));
      if (code != IRIS_OK) return code;
      auto* const lent = static_cast<abi::DLManagedTensor*>(managed);
      EXPECT_NE(lent->deleter, nullptr);
      iris_tensor* borrowed = nullptr;
      if (iris_tensor_from_dlpack(world_.main, managed, 0, &borrowed) == IRIS_OK) {
        EXPECT_EQ(iris_tensor_destroy(borrowed), IRIS_OK);
      } else {
        lent->deleter(lent);
      }
      return code;
    });
    Add("iris_tensor_from_dlpack", [this] {
      // With nothing to delete: what is behind it stays.
      static thread_local std::deque<abi::DLManagedTensor> given;
      static int64_t shape[] = {3, 2, 4, 1, 2, 3, 1, 1, 2}, strides[] = {8, 4, 1, 1, 1, 1, 1, 1, 1};
      abi::DLManagedTensor managed = {};
      managed.dl_tensor.data = Memory();
      managed.dl_tensor.device = {OneIn(8) ? NumberAs<int32_t>() : 1, 0};
      managed.dl_tensor.ndim = OneIn(8) ? NumberAs<int32_t>() : static_cast<int32_t>(random_() % 4);
      managed.dl_tensor.dtype = {static_cast<uint8_t>(random_() % 8), 32, 1};
      managed.dl_tensor.shape = Place(shape);
      managed.dl_tensor.strides = OneIn(2) ? nullptr : strides;
      given.push_back(managed);
      iris_tensor* tensor = nullptr;
      const iris_code code = iris_tensor_from_dlpack(Context(), &given.back(), 0, &tensor);
      return code == IRIS_OK ? iris_tensor_destroy(tensor) : code;
    });
  }

  World& world_;
  const int thread_;
  std::mt19937_64 random_;
  const bool trace_;
  std::vector<Call> calls_;
  std::deque<std::string> texts_;  // of the call that is being made
  uint64_t numbers_[64] = {};
  uint64_t span_ = 0;
  std::vector<iris_allocation> ranges_;
  std::vector<void*> torch_;  // what iris_torch_malloc gave

 public:
  uint64_t playground_offset_ = 0;
};

class AbiFuzzTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(IRIS_TSAN)
    GTEST_SKIP() << "random copies race with each other in the caller's memory";
#endif
    auto daemon = testing::Daemon::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    world_.runtime_dir = daemon_->runtime_dir();
    // Small heaps have room for a trace only if they are told so.
    setenv("IRIS_TRACE_EVENTS", "1024", 1);
    iris_context_options options;
    iris_context_options_init(&options);
    options.job = "fuzz";
    options.rank = 0;
    options.n_ranks = 1;
    options.heap_bytes = 8 * kMiB;
    options.max_heap_bytes = 64 * kMiB;
    options.timeout_ns = 2000 * kMillisecond;
    options.runtime_dir = world_.runtime_dir.c_str();
    ASSERT_EQ(iris_context_create(&options, &world_.main), IRIS_OK) << iris_error_message();
    iris_allocate_options wanted = {};
    wanted.size = sizeof(wanted);
    wanted.bytes = kReachBytes;
    playground_.size = sizeof(playground_);
    ASSERT_EQ(iris_allocate(world_.main, nullptr, &wanted, &playground_), IRIS_OK);
    world_.playground = static_cast<uint8_t*>(playground_.address);
    const int shared = memfd_create("shareable", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(shared, 2 * kMiB), 0);
    ASSERT_EQ(fcntl(shared, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    world_.shareable = static_cast<uint8_t*>(
        mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0));
    ASSERT_NE(world_.shareable, MAP_FAILED);
    iris_comm_options communication = {};
    communication.size = sizeof(communication);
    communication.matmul_bytes = kMiB;
    ASSERT_EQ(iris_comm_create(world_.main, nullptr, &communication, &world_.comm), IRIS_OK);
    for (int t = 0; t < kMaxThreads; ++t) {
      ASSERT_EQ(iris_comm_create(world_.main, nullptr, &communication, &world_.kernel_comms[t]),
                IRIS_OK);
      wanted.bytes = kMoeBytes;
      iris_allocation workspace = {};
      workspace.size = sizeof(workspace);
      ASSERT_EQ(iris_allocate(world_.main, nullptr, &wanted, &workspace), IRIS_OK);
      world_.moe_workspaces[t] = static_cast<uint8_t*>(workspace.address);
      ASSERT_EQ(iris_stream_create(world_.main, &world_.kernel_streams[t]), IRIS_OK);
    }
    iris_tensor_options shape = {};
    shape.size = sizeof(shape);
    const int64_t sizes[] = {4, 3};
    shape.n_dims = 2;
    shape.shape = sizes;
    shape.dtype = IRIS_F32;
    ASSERT_EQ(iris_tensor_create(world_.main, nullptr, &shape, &world_.tensor), IRIS_OK);
    iris_stream* stream = nullptr;
    int32_t device = 0;
    ASSERT_EQ(iris_stream_create(world_.main, &stream), IRIS_OK);
    ASSERT_EQ(iris_stream_native(stream, &world_.native, &device), IRIS_OK);
  }

  void Run(uint64_t seed, int n_threads, uint64_t n_calls) {
    seed = FromEnvironment("IRIS_FUZZ_SEED", seed);
    n_calls = FromEnvironment("IRIS_FUZZ_CALLS", n_calls);
    std::printf("seed %llu, %llu calls\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(n_calls));
    SCOPED_TRACE(absl::StrCat("IRIS_FUZZ_SEED=", seed));
    const absl::Time end = absl::Now() + absl::Seconds(40);
    world_.threads = n_threads > 1;
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t) {
      threads.emplace_back([&, t] {
        Fuzzer fuzzer(&world_, t, seed + static_cast<uint64_t>(t));
        fuzzer.playground_offset_ = playground_.offset_bytes;
        fuzzer.Run(n_calls / static_cast<uint64_t>(n_threads), end);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(iris_context_health(world_.main), IRIS_OK) << iris_error_message();
    EXPECT_EQ(iris_context_destroy(world_.main), IRIS_OK) << iris_error_message();
    while (void* const context = world_.handles[World::kContext].Live(0)) {
      EXPECT_EQ(iris_context_destroy(static_cast<iris_context*>(context)), IRIS_OK);
      world_.handles[World::kContext].End(context);
    }
  }

  std::unique_ptr<testing::Daemon> daemon_;
  World world_;
  iris_allocation playground_ = {};
};

// The functions that the header of the C API declares.
std::vector<std::string> Declared() {
  std::ifstream file(testing::ProgramPath("client/iris/c_api.h"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::regex declaration("IRIS_EXPORT[^;(]*\\b(iris_\\w+)\\(");
  std::vector<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    names.push_back((*it)[1]);
  }
  return names;
}

TEST_F(AbiFuzzTest, RandomCallsAreAnswered) {
  Run(20260401, 1, 40'000);
  const absl::MutexLock lock(&world_.mu);
  const std::vector<std::string> declared = Declared();
  EXPECT_FALSE(declared.empty());
  for (const std::string& name : declared) {
    // These are called with the others.
    const bool beside =
        name == "iris_version" || name == "iris_version_string" || name == "iris_error_message";
    EXPECT_TRUE(beside || world_.n_all.count(name) != 0) << name << " is never called";
  }
  uint64_t n_ok = 0, n_all = 0;
  for (const auto& [name, n] : world_.n_all) {
    n_ok += world_.n_ok[name];
    n_all += n;
    // Nobody sends to itself, or opens what is its own.
    const bool never = name == "iris_send" || name == "iris_recv" || name == "iris_open_local" ||
                       name == "iris_close_local";
    EXPECT_TRUE(never || n < 100 || world_.n_ok[name] > 0) << name << " never did its work";
  }
  std::printf("%llu of %llu calls did their work\n", static_cast<unsigned long long>(n_ok),
              static_cast<unsigned long long>(n_all));
}

TEST_F(AbiFuzzTest, RandomCallsOfThreadsAreAnswered) { Run(7, 3, 15'000); }

}  // namespace
}  // namespace iris
