#include "device/local/port_thread.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "iris/port_atomic.h"
#include "iris/status_code.h"
#include "iris/types.h"

namespace iris::local {
namespace {

// A sleep ends after this, so that the destructor waits for no requester.
constexpr int kSleepMs = 2;
// How long the thread looks for requests before it sleeps.
constexpr std::chrono::microseconds kIdle(50);

}  // namespace

PortThread::PortThread(std::vector<Rank> ranks, Options options)
    : ranks_(std::move(ranks)), options_(std::move(options)), random_(options_.seed) {
  for (Rank& rank : ranks_) {
    for (uint32_t r = 0; rank.memory != nullptr && r < kPortRings; ++r) {
      Ring& ring = rings_.emplace_back();
      ring.rank = &rank;
      ring.words = &rank.memory->words[r];
      ring.ring = &rank.memory->rings[r];
    }
  }
  thread_ = std::thread([this] { Run(); });
}

PortThread::~PortThread() {
  ends_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void PortThread::Fail(uint32_t code) {
  for (const Rank& rank : ranks_) {
    if (rank.memory == nullptr) continue;
    for (PortRingWords& words : rank.memory->words) {
      __atomic_store_n(&words.stopped, code, __ATOMIC_RELEASE);
    }
  }
}

void PortThread::Run() {
  auto worked = std::chrono::steady_clock::now();
  while (!ends_.load(std::memory_order_relaxed)) {
    if (paused_.load(std::memory_order_relaxed)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    bool took = false;
    for (Ring& ring : rings_) took = Take(ring) || took;
    if (Step() || took) {
      worked = std::chrono::steady_clock::now();
    } else if (std::chrono::steady_clock::now() - worked < kIdle) {
      std::this_thread::yield();
    } else {
      Sleep();
    }
  }
}

void PortThread::Sleep() {
  std::vector<pollfd> polled;
  for (const Rank& rank : ranks_) {
    if (rank.memory == nullptr) continue;
    __atomic_store_n(&rank.memory->asleep, 1u, __ATOMIC_SEQ_CST);
    polled.push_back({rank.wake_fd, POLLIN, 0});
  }
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  bool found = false;
  for (Ring& ring : rings_) found = Take(ring) || found;
  if (!found) (void)poll(polled.data(), polled.size(), kSleepMs);
  for (const pollfd& fd : polled) {
    uint64_t count = 0;
    if ((fd.revents & POLLIN) != 0 && read(fd.fd, &count, sizeof(count)) == sizeof(count)) {
      wakes_.fetch_add(count, std::memory_order_relaxed);
    }
  }
  for (const Rank& rank : ranks_) {
    if (rank.memory != nullptr) __atomic_store_n(&rank.memory->asleep, 0u, __ATOMIC_SEQ_CST);
  }
}

uint8_t* PortThread::Place(const Rank& rank, uint64_t offset, uint64_t bytes) const {
  if (rank.heap == nullptr || offset > rank.heap_bytes || bytes > rank.heap_bytes - offset) {
    return nullptr;
  }
  return rank.heap + offset;
}

uint8_t* PortThread::Local(Ring& ring, const PortRequest& request, uint64_t offset,
                           uint64_t bytes) const {
  if (request.space == PortSpace::kHeap) return Place(*ring.rank, offset, bytes);
  if (request.space != PortSpace::kValues || offset > kPortValueBytes ||
      bytes > kPortValueBytes - offset) {
    return nullptr;
  }
  return ring.rank->memory->values + offset;
}

bool PortThread::Take(Ring& ring) {
  bool took = false;
  for (;;) {
    PortRequest* const slot = &ring.ring->slots[ring.next % kPortSlots];
    if (__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) != ring.next + 1) break;
    Taken taken;
    taken.number = ring.next;
    const auto copy = [](const void* from, void* to) {
      for (int k = 0; k < 8; ++k) {
        static_cast<uint64_t*>(to)[k] =
            __atomic_load_n(static_cast<const uint64_t*>(from) + k, __ATOMIC_RELAXED);
      }
    };
    uint64_t words[8];
    copy(slot, words);
    std::memcpy(&taken.request, words, sizeof(words));
    const PortRequest& request = taken.request;
    const bool has_rows = request.op == PortOp::kPutRows || request.op == PortOp::kGetRows;
    taken.rows.rows = 1;
    taken.rows.dst_stride = taken.rows.src_stride = request.bytes;
    if (has_rows) {
      PortRequest* const second = &ring.ring->slots[(ring.next + 1) % kPortSlots];
      if (__atomic_load_n(&second->sequence, __ATOMIC_ACQUIRE) != ring.next + 2) break;
      copy(second, words);
      std::memcpy(&taken.rows, words, sizeof(words));
      taken.places = 2;
    }
    const bool puts = request.op == PortOp::kPut || request.op == PortOp::kPutRows;
    if (puts && request.space == PortSpace::kInline) {
      taken.data.resize(request.bytes <= 8 ? request.bytes : 0);
      if (!taken.data.empty()) {
        std::memcpy(taken.data.data(), &request.src, taken.data.size());
      }
    } else if (puts) {
      for (uint64_t row = 0; row < taken.rows.rows && taken.code == 0; ++row) {
        const uint8_t* const from =
            Local(ring, request, request.src + row * taken.rows.src_stride, request.bytes);
        if (from == nullptr) {
          taken.code = static_cast<uint32_t>(StatusCode::kInvalidArgument);
          break;
        }
        const size_t at = taken.data.size();
        taken.data.resize(at + request.bytes);
        if (!Copy(taken.data.data() + at, from, request.bytes)) {
          taken.code = static_cast<uint32_t>(StatusCode::kInternal);
        }
      }
    }
    ring.next += taken.places;
    ring.queues[request.to].push_back(std::move(taken));
    took = true;
  }
  if (took) __atomic_store_n(&ring.words->read, ring.next, __ATOMIC_RELEASE);
  return took;
}

bool PortThread::Step() {
  std::vector<std::pair<Ring*, std::deque<Taken>*>> waiting;
  for (Ring& ring : rings_) {
    for (auto& [to, queue] : ring.queues) {
      if (!queue.empty()) waiting.push_back({&ring, &queue});
    }
  }
  if (waiting.empty()) return false;
  auto [ring, queue] = waiting[options_.seed == 0 ? 0 : random_() % waiting.size()];
  if (options_.delay_us_max > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % options_.delay_us_max));
  }
  Taken taken = std::move(queue->front());
  queue->pop_front();
  Do(*ring, taken);
  return true;
}

bool PortThread::Copy(void* to, const void* from, uint64_t bytes) const {
  if (bytes == 0) return true;
  if (options_.copy) return options_.copy(to, from, bytes);
  std::memcpy(to, from, bytes);
  return true;
}

bool PortThread::Change(uint8_t* word, PortAtomic op, PortType type, uint64_t value,
                        uint64_t compare, uint64_t* old) const {
  if (options_.atomic) {
    return options_.atomic({reinterpret_cast<uint64_t>(word), value, compare, op, type}, old);
  }
  *old = DoPortAtomic(word, op, type, value, compare);
  return true;
}

void PortThread::Do(Ring& ring, Taken& taken) {
  const PortRequest& request = taken.request;
  uint64_t value = 0;
  const auto fails = [&taken] { taken.code = static_cast<uint32_t>(StatusCode::kOutOfRange); };
  if (request.to >= ranks_.size()) fails();
  for (uint64_t row = 0; row < taken.rows.rows && taken.code == 0; ++row) {
    const Rank& to = ranks_[request.to];
    const uint64_t dst = request.dst + row * taken.rows.dst_stride;
    const uint64_t src = request.src + row * taken.rows.src_stride;
    switch (request.op) {
      case PortOp::kPut:
      case PortOp::kPutRows: {
        uint8_t* const place = Place(to, dst, request.bytes);
        if (place == nullptr ||
            !Copy(place, taken.data.data() + row * request.bytes, request.bytes)) {
          fails();
        }
        break;
      }
      case PortOp::kGet:
      case PortOp::kGetRows: {
        const uint8_t* const from = Place(to, src, request.bytes);
        uint8_t* const place = Local(ring, request, dst, request.bytes);
        std::vector<uint8_t> data(from == nullptr ? 0 : request.bytes);
        if (from == nullptr || place == nullptr || !Copy(data.data(), from, request.bytes) ||
            !Copy(place, data.data(), request.bytes)) {
          fails();
        }
        break;
      }
      case PortOp::kAtomic: {
        const uint64_t bytes = PortTypeBytes(request.type);
        uint8_t* const place = Place(to, request.dst, bytes);
        if (place == nullptr || request.dst % bytes != 0 ||
            !IsPortAtomic(request.atomic, request.type) ||
            !Change(place, request.atomic, request.type, request.bytes, request.src, &value)) {
          fails();
        }
        break;
      }
      default:
        fails();
    }
  }
  if (taken.code == 0 && request.signal != kNoPortSignal) {
    uint8_t* const place = Place(ranks_[request.to], request.signal, sizeof(uint64_t));
    const bool adds = request.signal_op == static_cast<uint8_t>(SignalOp::kAdd);
    uint64_t old = 0;
    if (place == nullptr || request.signal % sizeof(uint64_t) != 0 ||
        !Change(place, adds ? PortAtomic::kAdd : PortAtomic::kExchange, PortType::kUint64,
                request.signal_value, 0, &old)) {
      fails();
    }
  }
  Complete(ring, taken, value);
}

void PortThread::Complete(Ring& ring, const Taken& taken, uint64_t value) {
  PortResult* const result = &ring.ring->results[taken.number % kPortSlots];
  const uint64_t done = (taken.number + 1) << 8 | taken.code;
  __atomic_store_n(&result->value, value, __ATOMIC_RELAXED);
  __atomic_store_n(&result->done, done, __ATOMIC_RELEASE);
  if (taken.code != 0) {
    if (ring.words->failed == 0) {
      __atomic_store_n(&ring.words->first_failed, done, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&ring.words->failed, ring.words->failed + 1, __ATOMIC_RELEASE);
  }
  ring.complete[taken.number] = taken.places;
  uint64_t completed = ring.words->completed;
  for (auto it = ring.complete.begin(); it != ring.complete.end() && it->first == completed;
       it = ring.complete.erase(it)) {
    completed += it->second;
  }
  __atomic_store_n(&ring.words->completed, completed, __ATOMIC_RELEASE);
}

}  // namespace iris::local
