// Residency: how many blocks the kernels of each Comm may have on a device at once, so that Comms
// on different streams never stop each other.
//
// A block of a collective stays on the device while it waits for other ranks. If the blocks of some
// Comms fill a device, and those of another Comm fill the device of a peer, neither can continue.
// So each Comm of this process has a share of its device, and a call with more blocks is launched
// in pieces, one after another on the stream. A share only concerns this rank: pieces change
// neither the plan of a call, nor the words that ranks exchange. Shares become smaller when a Comm
// is made, and larger when one is released. docs/decisions/043 has the proof.
//
// Thread-safe. Host code, C++17.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "iris/backend/select.h"
#include "iris/rounds/comm.h"

namespace iris::ccl {

// The room that a Comm needs on a device, in blocks that each fill a multiprocessor.
struct Claim {
  uint32_t most = 1;  // blocks of its largest launch
  // The blocks that wait for each other, all in one piece; 0 before the first launch.
  uint32_t together = 1;
  uint32_t kept = 0;   // blocks captured in graphs, which may run again at any time
  bool whole = false;  // blocks of a launch wait for each other in any order
  // Its blocks wait for no other rank, so the `together` blocks that have room finish by
  // themselves.
  bool own = false;
};

// Divides `slots` among claims. `*share` is the largest number that all of them can have, each at
// most its `most` and at least its `together`, so that each has room for `together` blocks whatever
// the others do. `spare` slots stay free if possible. Returns false if there is no such number.
// docs/decisions/043 has the proof.
bool DivideSlots(uint32_t slots, uint32_t spare, const std::vector<Claim>& claims, uint32_t* share);

// Returns the blocks of a claim for this share.
uint32_t PieceOf(const Claim& claim, uint32_t share);

// The share of one Comm: made and released by Residency, used by the Comm's launchers.
class DeviceShare {
 public:
  // The room of a launch that Begin has admitted.
  struct Room {
    uint32_t piece;  // most blocks of a launch
    uint32_t all;    // most blocks of this Comm on the device
    bool alone;      // no other Comm is on the device
  };

  // Admits a call of `blocks` to the stream, in pieces that are multiples of `together`, the number
  // of blocks that wait for each other. If `together` is 0, all blocks wait for each other, so
  // there is one piece; if `blocks` is 0, too, the piece has as many blocks as there is room for.
  // With `early`, a launch may begin before the previous one ends. The share does not change until
  // End. kResourceExhausted if the device has no room for the blocks that wait for each other; do
  // not call End then.
  Result Begin(uint32_t blocks, uint32_t together, bool early, const backend::Stream& stream,
               Room* room);
  void End() { mu_.unlock(); }
  void unlock() { End(); }  // for std::unique_lock with std::adopt_lock

 private:
  friend class Residency;
  DeviceShare(const Claim& claim, const ShareInfo& info, uint32_t device)
      : device_(device), info_(info), claim_(claim) {}

  const uint32_t device_;
  const ShareInfo info_;  // without numbers of blocks
  std::mutex mu_;         // taken after that of Residency
  // Guarded by mu_; `claim_` changes under both.
  Claim claim_;
  uint32_t room_ = 0;
  bool alone_ = true;
  uint32_t launched_ = 0;  // most blocks since the device was last known to be idle
};

class Residency {
 public:
  // Returns the process's Residency.
  static Residency& Get();

  // Makes a share of the current device, which runs `slots` blocks at once. If other Comms have
  // more blocks in flight than they keep, waits until the device is idle. kResourceExhausted if no
  // blocks are left. kDeadlineExceeded if the device was not idle for `timeout_ns`. After an error
  // the shares of the other Comms are unchanged.
  Result Make(const Claim& claim, const ShareInfo& info, uint32_t slots, uint64_t timeout_ns,
              DeviceShare** out);
  void Release(DeviceShare* share);
  // Implements ListShares.
  uint32_t List(ShareInfo* out, uint32_t capacity);

 private:
  friend class DeviceShare;
  struct Device {
    uint32_t index = 0;
    uint32_t slots = 0;
    std::vector<DeviceShare*> shares;
  };
  // Makes room for launches in which `together` blocks wait for each other.
  Result Raise(DeviceShare* share, uint32_t together);
  Device* Find(uint32_t index);
  // Divides the device among its shares. Returns false, with nothing changed, if there is not
  // enough room. Sets `*busy` if some shares may have more blocks in flight than they keep.
  static bool Divide(Device* device, bool* busy);
  static Result Await(Device* device, uint64_t timeout_ns);

  std::mutex mu_;
  std::vector<Device> devices_;
};

}  // namespace iris::ccl
