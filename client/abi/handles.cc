#include "client/abi/handles.h"

namespace iris::abi {
namespace {

// A handle: 1 | kind (4 bits) | index (20 bits) | generation (32 bits), from bit 0 up, so that no
// handle is null and none looks like an aligned address.
struct Name {
  uint32_t index = 0;
  uint32_t generation = 0;
  Kind kind = Kind::kNone;
  bool good = false;
};

constexpr uint32_t kKindShift = 1, kIndexShift = 5, kGenerationShift = 25;

void* Pack(const Name& name) {
  return reinterpret_cast<void*>(
      uint64_t{1} | uint64_t{static_cast<uint8_t>(name.kind)} << kKindShift |
      uint64_t{name.index} << kIndexShift | uint64_t{name.generation} << kGenerationShift);
}

Name Unpack(const void* handle) {
  const uint64_t bits = reinterpret_cast<uint64_t>(handle);
  Name name;
  name.kind = static_cast<Kind>(bits >> kKindShift & 0xf);
  name.index = static_cast<uint32_t>(bits >> kIndexShift & (HandleTable::kMaxObjects - 1));
  name.generation = static_cast<uint32_t>(bits >> kGenerationShift);
  name.good = (bits & 1) != 0 && bits >> 57 == 0;
  return name;
}

// A slot's state: generation (32 bits) | kind (4) | known (1) | holders (27), from the top down.
constexpr uint64_t kKnown = uint64_t{1} << 27;
constexpr uint64_t kHolders = kKnown - 1;

constexpr uint64_t Tag(uint32_t generation, Kind kind) {
  return uint64_t{generation} << 32 | uint64_t{static_cast<uint8_t>(kind)} << 28;
}
constexpr uint64_t TagOf(uint64_t state) { return state & ~(kKnown | kHolders); }

}  // namespace

const char* KindName(Kind kind) {
  constexpr const char* kNames[] = {"nothing", "context", "team",         "stream",
                                    "event",   "graph",   "communicator", "tensor"};
  return kNames[static_cast<size_t>(kind)];
}

HandleTable& HandleTable::Get() {
  static HandleTable* const table = new HandleTable();
  return *table;
}

HandleTable::Slot* HandleTable::At(uint32_t index) const {
  Chunk* const chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &chunk->slots[index % kChunkSlots];
}

void* HandleTable::Add(Kind kind, std::unique_ptr<Object> object) {
  Name name;
  name.kind = kind;
  Slot* slot = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (free_ == nullptr) free_ = std::make_unique<uint32_t[]>(kMaxObjects);
    // New slots are preferred to used ones, so that a stale handle is detected for a long time.
    if (n_slots_ < kMaxObjects && (n_slots_ % kChunkSlots != 0 || n_free_ < kChunkSlots / 2)) {
      name.index = n_slots_;
      std::atomic<Chunk*>& chunk = chunks_[name.index / kChunkSlots];
      if (chunk.load(std::memory_order_relaxed) == nullptr) {
        chunk.store(new Chunk(), std::memory_order_release);
      }
      ++n_slots_;
    } else if (n_free_ > 0) {
      name.index = free_[first_free_];
      first_free_ = (first_free_ + 1) % kMaxObjects;
      --n_free_;
    } else {
      return nullptr;
    }
    slot = At(name.index);
    name.generation = ++slot->generation;
  }
  slot->object = std::move(object);
  slot->state.store(Tag(name.generation, kind) | kKnown, std::memory_order_release);
  return Pack(name);
}

Object* HandleTable::Acquire(Kind kind, const void* handle) {
  const Name name = Unpack(handle);
  if (!name.good || name.kind != kind) return nullptr;
  Slot* const slot = At(name.index);
  if (slot == nullptr) return nullptr;
  uint64_t state = slot->state.load(std::memory_order_relaxed);
  do {
    const bool held_by_all = (state & kHolders) == kHolders;
    if (TagOf(state) != Tag(name.generation, kind) || (state & kKnown) == 0 || held_by_all) {
      return nullptr;
    }
  } while (!slot->state.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                              std::memory_order_relaxed));
  return slot->object.get();
}

void HandleTable::Release(const void* handle) {
  const Name name = Unpack(handle);
  Slot* const slot = At(name.index);
  const uint64_t before = slot->state.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & kKnown) == 0 && (before & kHolders) == 1) Drop(slot, name.index);
}

bool HandleTable::Remove(Kind kind, const void* handle) {
  const Name name = Unpack(handle);
  if (!name.good || name.kind != kind) return false;
  Slot* const slot = At(name.index);
  if (slot == nullptr) return false;
  uint64_t state = slot->state.load(std::memory_order_relaxed);
  do {
    if (TagOf(state) != Tag(name.generation, kind) || (state & kKnown) == 0) return false;
  } while (!slot->state.compare_exchange_weak(state, state & ~kKnown, std::memory_order_acq_rel,
                                              std::memory_order_relaxed));
  if ((state & kHolders) == 0) Drop(slot, name.index);
  return true;
}

void HandleTable::Drop(Slot* slot, uint32_t index) {
  slot->object.reset();
  slot->state.store(0, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  free_[(first_free_ + n_free_) % kMaxObjects] = index;
  ++n_free_;
}

const char* HandleTable::Describe(Kind wanted, const void* handle) {
  if (handle == nullptr) return "is null";
  const Name name = Unpack(handle);
  if (!name.good || name.kind == Kind::kNone || name.kind > Kind::kTensor) {
    return "is no handle that Iris made";
  }
  if (name.kind != wanted) return "is a handle of another kind of object";
  return "was destroyed, or never made";
}

}  // namespace iris::abi
