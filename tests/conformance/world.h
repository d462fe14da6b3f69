// World: ranks that are threads, as in device/local/world.h, for tests. What cannot be done fails
// the test, so a test has no errors to look at; without its memory or communicator a rank's body
// ends there, and the test with it.
//
// Rank r is on device r modulo the devices of the machine, of which the environment's
// IRIS_TEST_DEVICES may leave fewer. Without any device all tests are skipped.
//
//   World(4).Run([](Rank& rank) {                   // on a thread per rank
//     int* x = rank.New<int>(1);                     // the same offset on every rank; zero
//     rank.Launch({1, 32}, Kernel, rank.ctx, x);
//     rank.Synchronize();
//     EXPECT_EQ(rank.Read(x), 7);
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/local/world.h"
#include "gtest/gtest.h"
#include "iris/backend/select.h"
#include "iris/device.h"

namespace iris::conformance {

// Repeats are divided by this where a sanitizer makes everything slower.
#if defined(IRIS_ASAN)
inline constexpr uint32_t kSlower = 4;
#elif defined(IRIS_TSAN)
inline constexpr uint32_t kSlower = 16;
#else
inline constexpr uint32_t kSlower = 1;
#endif

// Long enough that only a hang reaches it, on a machine that is busy with other things too.
inline constexpr uint64_t kTestTimeoutNs = 120ull * 1000 * 1000 * 1000;

// Thrown where a test has nothing to go on with. Run catches that of a rank's body, and googletest
// that of a World's constructor.
struct SetUpFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Fails the test, and ends the body of the rank that calls.
[[noreturn]] void FailSetUp(const std::string& why);
inline void RequireOk(const Result& result) {
  if (!result.ok()) FailSetUp(result.what);
}

// One rank. Used by its own thread only.
class Rank {
 public:
  Rank(const local::World* world, local::Rank* rank)
      : ctx(rank->ctx), stream(rank->stream), world_(*world), rank_(*rank) {}

  DeviceContext& ctx;
  backend::Stream& stream;

  uint32_t rank() const { return ctx.rank; }
  uint32_t device() const { return rank_.device(); }
  uint32_t n() const { return ctx.n_ranks; }
  uint32_t next() const { return (rank() + 1) % n(); }

  // `count` elements of the symmetric heap. All ranks call it in the same order with the same
  // arguments.
  template <typename T>
  T* New(uint64_t count, uint64_t alignment_bytes = 256) {
    T* p = rank_.New<T>(count, alignment_bytes);
    if (p == nullptr) FailSetUp("the heap of the test is too small");
    return p;
  }

  template <typename... Params, typename... Args>
  void Launch(const LaunchConfig& config, void (*kernel)(Params...), Args... args) {
    const Result result = backend::Launch(config, stream, kernel, args...);
    ASSERT_TRUE(result.ok()) << result.what;
  }

  void Synchronize() {
    const Result result = stream.Synchronize();
    ASSERT_TRUE(result.ok()) << result.what;
  }

  // The `count` elements at `p`, device memory, once the stream has come here.
  template <typename T>
  std::vector<T> Read(const T* p, uint64_t count) {
    std::vector<T> values(count);
    const Result result = rank_.ReadBytes(values.data(), p, count * sizeof(T));
    EXPECT_TRUE(result.ok()) << result.what;
    return values;
  }
  template <typename T>
  T Read(const T* p) {
    return Read(p, 1)[0];
  }

  template <typename T>
  void Write(T* p, const std::vector<T>& values) {
    WriteBytes(p, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  void Write(T* p, T value) {
    WriteBytes(p, &value, sizeof(T));
  }

  // All ranks of the world, on the host.
  void HostBarrier() { rank_.HostBarrier(); }

  // A team of these world ranks, with a barrier area of its own. Called by all ranks alike; index
  // is of use to members.
  DeviceTeam NewTeam(const std::vector<uint32_t>& ranks);

  // A collective communicator over `team`. Called by all ranks alike, members or not. For targets
  // that link :world_comm.
  ccl::Comm NewComm(const DeviceTeam& team, const ccl::Config& config);
  ccl::Comm NewComm(const DeviceTeam& team);

  // A communicator's limits where ranks of this world share devices: blocks that wait for each
  // other must all have room. For targets that link :world_comm.
  ccl::Config SharedConfig() const;

 private:
  void WriteBytes(void* to, const void* from, uint64_t bytes);

  const local::World& world_;
  local::Rank& rank_;
};

class World {
 public:
  explicit World(uint32_t n_ranks, uint64_t heap_bytes = 1 << 20,
                 uint64_t timeout_ns = kTestTimeoutNs);
  explicit World(local::WorldOptions options);

  // Calls `body` for every rank, each on a thread, and joins them. May be called again: heaps and
  // allocations stay.
  void Run(const std::function<void(Rank&)>& body);

  Rank& rank(uint32_t r) { return *ranks_[r]; }
  uint32_t n() const { return world_->n_ranks(); }

  // Null if the world has one node.
  local::PortThread* port_thread() { return world_->port_thread(); }

  // What DeviceContext::abort_word points to. Host memory.
  void Abort(uint32_t value = 1) { world_->Abort(value); }

 private:
  std::unique_ptr<local::World> world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace iris::conformance
