// FakeAtomics: a device that carries out atomics when the test says so, by this CPU, or that fails.
// One at a time.
#pragma once

#include <vector>

#include "device/iris/port/device_atomics.h"
#include "device/iris/port_atomic.h"

namespace iris::port {

class FakeAtomics {
 public:
  FakeAtomics() { device_ = this; }
  ~FakeAtomics() { device_ = nullptr; }
  FakeAtomics(const FakeAtomics&) = delete;
  FakeAtomics& operator=(const FakeAtomics&) = delete;

  const DeviceAtomicsTable* table() const {
    static constexpr DeviceAtomicsTable kTable = {
        sizeof(DeviceAtomicsTable), "fake", Create, Destroy, Start, Poll};
    return &kTable;
  }

  bool runs = false;                   // it carries out what was started
  Result creates, starts, polls;       // what the functions return
  std::vector<uint32_t> list_lengths;  // of all lists that were started

 private:
  static Result Create(DeviceAtomics** out) {
    *out = reinterpret_cast<DeviceAtomics*>(device_);
    return device_->creates;
  }
  static void Destroy(DeviceAtomics*) {}
  static Result Start(DeviceAtomics*, const DeviceAtomic* list, uint32_t n) {
    if (!device_->starts.ok()) return device_->starts;
    device_->list_.assign(list, list + n);
    device_->list_lengths.push_back(n);
    return {};
  }
  static Result Poll(DeviceAtomics*, uint64_t* old, bool* done) {
    *done = device_->runs;
    if (!device_->polls.ok() || !*done) return device_->polls;
    for (const DeviceAtomic& each : device_->list_) {
      *old++ = DoPortAtomic(reinterpret_cast<void*>(each.address), each.op, each.type, each.value,
                            each.compare);
    }
    return {};
  }

  static inline FakeAtomics* device_ = nullptr;
  std::vector<DeviceAtomic> list_;
};

}  // namespace iris::port
