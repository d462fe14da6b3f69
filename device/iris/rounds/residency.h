// Residency: how many blocks the kernels of each Comm may have on a device at once, so that Comms
// on different streams never stop each other.
//
// A block of a collective holds its place on the device while it waits for other members. Where the
// blocks of some Comms fill a device, and those of another Comm fill the device of a peer, neither
// goes on. So each Comm of this process has a share of its device; what a call has more than that
// is launched in pieces, one after another on the stream. A share is this rank's own matter: pieces
// change neither the plan of a call, nor what members tell each other. Shares become smaller when a
// Comm is made, and larger when one is released. docs/decisions/043 has the proof.
//
// Thread-safe. Host code, C++17.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "iris/backend/select.h"
#include "iris/rounds/comm.h"

namespace iris::ccl {

// What a Comm wants of a device, in blocks that fill a multiprocessor each.
struct Claim {
  uint32_t most = 1;      // what its largest launch has
  uint32_t together = 1;  // that wait for each other: of those one piece has to have all. 0: none
                          // has been launched so far
  uint32_t kept = 0;      // what was captured in graphs, which may run again at any time
  bool whole = false;     // its launches have blocks that wait for each other, in any order
  // Its blocks wait for none of another rank, so that those end by themselves which `together` has
  // room for.
  bool own = false;
};

// Divides `slots` among claims: `*share` is the largest number that all of them can have, each no
// more than its `most`, and no less than its `together`, so that each has room for `together`
// blocks whatever the others do; `spare`: for so many, if it can be. False if there is no number.
// Why that is enough: docs/decisions/043.
bool DivideSlots(uint32_t slots, uint32_t spare, const std::vector<Claim>& claims, uint32_t* share);

// What a claim has when the share is that.
uint32_t PieceOf(const Claim& claim, uint32_t share);

// The share of one Comm. Made and released by Residency; used by its launchers.
class DeviceShare {
 public:
  // What a launch that was let begin may have.
  struct Room {
    uint32_t piece;  // blocks of a launch, at most
    uint32_t all;    // blocks of this Comm on the device, at most
    bool alone;      // no other Comm is on the device
  };

  // Lets a call of `blocks` go on the stream, in pieces that are multiples of `together`, of which
  // the blocks wait for each other. together == 0: all of them do, and there is one piece. blocks
  // == 0, too: as many as there is room for. `early`: a launch may begin beside the one before it.
  // Until End, nobody changes the share. kResourceExhausted: so many blocks that wait for each
  // other have no room on the device; End is not called then.
  Result Begin(uint32_t blocks, uint32_t together, bool early, const backend::Stream& stream,
               Room* room);
  void End() { mu_.unlock(); }
  void unlock() { End(); }  // as a mutex that a launcher holds: std::adopt_lock

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
  uint32_t launched_ = 0;  // the most that it had since the device was last known to be idle
};

class Residency {
 public:
  // Of the process.
  static Residency& Get();

  // A share of the current device, which takes `slots` blocks at once. Where other Comms have more
  // under way than they are left with, this waits until the device is idle. kResourceExhausted:
  // nothing is left. kDeadlineExceeded: the device was not idle for `timeout_ns`. The shares of the
  // others are then what they were.
  Result Make(const Claim& claim, const ShareInfo& info, uint32_t slots, uint64_t timeout_ns,
              DeviceShare** out);
  void Release(DeviceShare* share);
  // As ListShares.
  uint32_t List(ShareInfo* out, uint32_t capacity);

 private:
  friend class DeviceShare;
  struct Device {
    uint32_t index = 0;
    uint32_t slots = 0;
    std::vector<DeviceShare*> shares;
  };
  // Makes room for launches with so many blocks that wait for each other.
  Result Raise(DeviceShare* share, uint32_t together);
  Device* Find(uint32_t index);
  // Gives all shares of a device their room. False, with nothing changed, if it is not enough.
  // *busy: some may have more under way.
  static bool Divide(Device* device, bool* busy);
  static Result Await(Device* device, uint64_t timeout_ns);

  std::mutex mu_;
  std::vector<Device> devices_;
};

}  // namespace iris::ccl
