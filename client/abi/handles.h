// Handles: numbers that name objects, for programs that may pass invalid ones.
//
// A handle is a number and never an address: the place of a slot, the number of earlier uses of the
// slot, and the kind of object. So a handle of an object that is gone, of another kind, or made of
// random bytes is detected, and nothing is read through it. An object stays alive as long as a call
// holds it, even if another thread removes the handle meanwhile.
//
// Thread-safe and, once an object exists, without a lock. The process has one table: handles mean
// the same on every thread. It is never destroyed, because destructors of statics may make calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace iris::abi {

enum class Kind : uint8_t { kNone, kContext, kTeam, kStream, kEvent, kGraph, kComm, kTensor };

// Returns the name of a kind for messages, such as "context".
const char* KindName(Kind kind);

// The base class of the objects that have handles.
class Object {
 public:
  virtual ~Object() = default;
};

class HandleTable {
 public:
  static constexpr uint32_t kMaxObjects = 1 << 20;

  static HandleTable& Get();

  // Adds an object and returns its handle, or null if there are kMaxObjects already.
  void* Add(Kind kind, std::unique_ptr<Object> object) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the object for the duration of a call, or null if there is none of that kind. Every
  // Acquire that returned an object is followed by a Release.
  Object* Acquire(Kind kind, const void* handle);
  void Release(const void* handle);

  // Removes the handle; the object ends once no call holds it any more. Returns false if there is
  // no such object.
  bool Remove(Kind kind, const void* handle) ABSL_LOCKS_EXCLUDED(mu_);

  // Says for messages why a handle is invalid: "is null", "was destroyed, or never made", ...
  const char* Describe(Kind wanted, const void* handle);

 private:
  // `state` packs the generation and kind of the object, whether its handle is still valid, and the
  // number of calls that use it.
  struct Slot {
    std::atomic<uint64_t> state{0};
    std::unique_ptr<Object> object;  // written while nobody can hold it
    uint32_t generation = 0;         // under mu_
  };
  static constexpr uint32_t kChunkSlots = 1024;
  struct Chunk {
    Slot slots[kChunkSlots];
  };

  HandleTable() = default;
  Slot* At(uint32_t index) const;
  void Drop(Slot* slot, uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);

  std::atomic<Chunk*> chunks_[kMaxObjects / kChunkSlots] = {};
  absl::Mutex mu_;
  uint32_t n_slots_ ABSL_GUARDED_BY(mu_) = 0;
  // A ring of the free slots: the slot that was freed last is reused last.
  uint32_t first_free_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t n_free_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<uint32_t[]> free_ ABSL_GUARDED_BY(mu_);
};

// A held object, released at the end of its scope.
template <typename T>
class Held {
 public:
  explicit Held(const void* handle)
      : handle_(handle), object_(static_cast<T*>(HandleTable::Get().Acquire(T::kKind, handle))) {}
  ~Held() {
    if (object_ != nullptr) HandleTable::Get().Release(handle_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  const void* const handle_;
  T* const object_;
};

}  // namespace iris::abi
