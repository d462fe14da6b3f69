#include "server/account/core_memory.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace iris::server {
namespace {

// Constant-initialised, because the first allocations precede any constructor.
constinit std::atomic<int64_t> g_bytes[kMemorySlots];
constinit std::atomic<int64_t> g_total{0};

constinit std::atomic<size_t> g_reserve_bytes{0};
constinit std::atomic<void*> g_reserve{nullptr};

uint64_t NotNegative(int64_t bytes) { return static_cast<uint64_t>(std::max<int64_t>(bytes, 0)); }

void* MapReserve(size_t bytes) {
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

// Frees the reserve, or throws if there is none. operator new calls this if memory ran out.
void GiveUpReserve() {
  void* const reserve = g_reserve.exchange(nullptr);
  if (reserve == nullptr) throw std::bad_alloc();
  munmap(reserve, g_reserve_bytes.load());
}

}  // namespace

thread_local constinit MemorySlot OnBehalfOf::current_ = kIrisdsSlot;

uint64_t CoreMemory::Of(MemorySlot slot) {
  return NotNegative(g_bytes[slot].load(std::memory_order_relaxed));
}

uint64_t CoreMemory::Total() { return NotNegative(g_total.load(std::memory_order_relaxed)); }

void CoreMemory::Count(MemorySlot slot, int64_t bytes) {
  g_bytes[slot].fetch_add(bytes, std::memory_order_relaxed);
  g_total.fetch_add(bytes, std::memory_order_relaxed);
}

uint64_t CoreMemory::Fitting(uint64_t wanted_bytes) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted_bytes;
  unsigned long long pages = 0;
  FILE* const statm = fopen("/proc/self/statm", "re");
  if (statm == nullptr) return wanted_bytes;
  const bool read = fscanf(statm, "%llu", &pages) == 1;
  fclose(statm);
  const uint64_t taken = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t left = limit.rlim_cur > taken ? limit.rlim_cur - taken : 0;
  // A third is left for memory outside the heap, and for gaps of the heap.
  return read ? std::min(wanted_bytes, left / 3 * 2) : wanted_bytes;
}

void CoreMemory::KeepReserve(size_t bytes) {
  g_reserve_bytes = bytes;
  RestoreReserve();
  std::set_new_handler(GiveUpReserve);
}

bool CoreMemory::InReserve() {
  return g_reserve_bytes.load(std::memory_order_relaxed) != 0 &&
         g_reserve.load(std::memory_order_relaxed) == nullptr;
}

void CoreMemory::RestoreReserve() {
  if (!InReserve()) return;
  void* const pages = MapReserve(g_reserve_bytes);
  void* expected = nullptr;
  if (pages != nullptr && !g_reserve.compare_exchange_strong(expected, pages)) {
    munmap(pages, g_reserve_bytes);  // another thread was first
  }
}

}  // namespace iris::server
