// PortThread: a thread that does the work of port processes for ranks of one process, by copies
// between their heaps, for tests and benchmarks without a network.
//
// It keeps what iris/port_types.h promises and no more: requests of one ring to one rank take
// effect in order, and those to different ranks in any order, which a seed chooses.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "iris/port/device_atomics.h"
#include "iris/port_types.h"

namespace iris::local {

class PortThread {
 public:
  struct Rank {
    PortMemory* memory = nullptr;  // null: the rank posts nothing here
    uint8_t* heap = nullptr;       // null: requests to the rank fail
    uint64_t heap_bytes = 0;
    int wake_fd = -1;  // an eventfd
  };
  struct Options {
    uint64_t seed = 0;          // 0: requests take effect in the order in which they came
    uint32_t delay_us_max = 0;  // of each request, chosen by the seed
    // Copies between a heap and host memory, in either direction, and returns when it is done, or
    // false if it failed. Null if heaps are host memory.
    std::function<bool(void* to, const void* from, uint64_t bytes)> copy;
    // Carries out an atomic on a heap, likewise. *old becomes the word before it.
    std::function<bool(const DeviceAtomic& atomic, uint64_t* old)> atomic;
  };
  // `ranks` is by world rank. Borrows their memory.
  PortThread(std::vector<Rank> ranks, Options options);
  ~PortThread();
  PortThread(const PortThread&) = delete;
  PortThread& operator=(const PortThread&) = delete;

  // Lets the thread take no requests until Resume, as a port process that is stopped.
  void Pause() { paused_.store(true, std::memory_order_relaxed); }
  void Resume() { paused_.store(false, std::memory_order_relaxed); }
  // Tells all requesters, by a status code, that no more requests are taken.
  void Fail(uint32_t code);
  // Returns how often the thread was woken by a requester.
  uint64_t wakes() const { return wakes_.load(std::memory_order_relaxed); }

 private:
  struct Taken {
    uint64_t number = 0;
    uint32_t places = 1;
    PortRequest request;
    PortRows rows = {};
    std::vector<uint8_t> data;  // of a put
    uint32_t code = 0;          // not 0: the request fails
  };
  struct Ring {
    Rank* rank = nullptr;
    PortRingWords* words = nullptr;
    PortRing* ring = nullptr;
    uint64_t next = 0;                             // number of the next request
    std::map<uint32_t, std::deque<Taken>> queues;  // by target
    std::map<uint64_t, uint32_t> complete;         // places by number, beyond words->completed
  };

  void Run();
  // Takes all new requests of a ring. Returns true if there was one.
  bool Take(Ring& ring);
  // Lets one request take effect. Returns false if none waits.
  bool Step();
  void Do(Ring& ring, Taken& taken);
  bool Copy(void* to, const void* from, uint64_t bytes) const;
  bool Change(uint8_t* word, PortAtomic op, PortType type, uint64_t value, uint64_t compare,
              uint64_t* old) const;
  void Complete(Ring& ring, const Taken& taken, uint64_t value);
  // Returns the place for so many bytes, or null.
  uint8_t* Place(const Rank& rank, uint64_t offset, uint64_t bytes) const;
  uint8_t* Local(Ring& ring, const PortRequest& request, uint64_t offset, uint64_t bytes) const;
  void Sleep();

  std::vector<Rank> ranks_;
  const Options options_;
  std::mt19937_64 random_;
  std::deque<Ring> rings_;
  std::atomic<bool> paused_{false};
  std::atomic<bool> ends_{false};
  std::atomic<uint64_t> wakes_{0};
  std::thread thread_;
};

}  // namespace iris::local
