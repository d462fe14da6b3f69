#include "iris/rounds/residency.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace iris::ccl {
namespace {

constexpr Result kNoRoom = {
    StatusCode::kResourceExhausted,
    "blocks that wait for each other have no room on the device beside what its other "
    "communicators may have there: destroy communicators that are not needed, make them with fewer "
    "max_blocks, and make all of them before graphs are captured"};
// One of this many slots is kept free for blocks that wait for each other. That costs nothing if
// two Comms have as many blocks as possible.
constexpr uint32_t kSlotsForOne = 32;
// The limit of a launcher's wait for room.
constexpr uint64_t kRaiseTimeoutNs = 30ull * 1000 * 1000 * 1000;

}  // namespace

uint32_t PieceOf(const Claim& claim, uint32_t share) {
  return std::max(claim.together, std::min(claim.most, share));
}

bool DivideSlots(uint32_t slots, uint32_t spare, const std::vector<Claim>& claims,
                 uint32_t* share) {
  const auto fits = [&](uint32_t each, uint32_t least) {
    uint64_t all = 0;
    for (const Claim& claim : claims) all += std::max(claim.kept, PieceOf(claim, each));
    for (const Claim& claim : claims) {
      if (claim.together == 0) continue;
      const uint64_t held = std::max(claim.kept, PieceOf(claim, each));
      if (all - held + (claim.whole ? held : std::max(claim.together, least)) > slots) return false;
    }
    return true;
  };
  const uint32_t least = fits(1, spare) ? spare : 1;
  if (!fits(1, least)) return false;
  uint32_t most = 1;
  for (const Claim& claim : claims) most = std::max(most, claim.most);
  // Every number below one that fits also fits.
  uint32_t low = 1;
  while (low < most) {
    const uint32_t middle = low + (most - low + 1) / 2;
    if (fits(middle, least)) {
      low = middle;
    } else {
      most = middle - 1;
    }
  }
  *share = low;
  return true;
}

Result DeviceShare::Begin(uint32_t blocks, uint32_t together, bool early,
                          const backend::Stream& stream, Room* room) {
  const bool whole = together == 0;
  mu_.lock();
  const bool own = claim_.own;
  if (!whole && together > claim_.together && !(own && together == 1)) {
    mu_.unlock();
    if (Result result = Residency::Get().Raise(this, together); !result.ok()) return result;
    mu_.lock();
  }
  if (whole && blocks > room_) {
    mu_.unlock();
    return kNoRoom;
  }
  if (own) {
    *room = {blocks, 2 * blocks, true};  // with those of a call that begins early
    return {};
  }
  const uint32_t most = whole ? room_ : room_ / together * together;
  room->piece = blocks == 0 ? most : std::min(blocks, most);
  room->all = room_;
  room->alone = alone_;
  const uint32_t held = early && 2 * room->piece <= room_ ? 2 * room->piece : room->piece;
  launched_ = std::max(launched_, held);
  if (held > claim_.kept && backend::raw::IsCapturing(stream.handle())) claim_.kept = held;
  return {};
}

Residency& Residency::Get() {
  static Residency* const residency = new Residency();
  return *residency;
}

Residency::Device* Residency::Find(uint32_t index) {
  for (Device& device : devices_) {
    if (device.index == index) return &device;
  }
  return nullptr;
}

bool Residency::Divide(Device* device, bool* busy) {
  *busy = false;
  // The locks are held while all shares are read, so that no launch begins with an old share.
  std::vector<std::unique_lock<std::mutex>> locks;
  std::vector<Claim> claims;
  for (DeviceShare* share : device->shares) {
    locks.emplace_back(share->mu_);
    claims.push_back(share->claim_);
  }
  const auto n_used = std::count_if(claims.begin(), claims.end(),
                                    [](const Claim& claim) { return claim.together != 0; });
  uint32_t each = 0;
  if (!DivideSlots(device->slots, device->slots / kSlotsForOne, claims, &each)) return false;
  for (DeviceShare* share : device->shares) {
    share->room_ = PieceOf(share->claim_, each);
    share->alone_ = n_used == 1;
    *busy = *busy || share->launched_ > std::max(share->room_, share->claim_.kept);
  }
  return true;
}

Result Residency::Await(Device* device, uint64_t timeout_ns) {
  const Result idle = backend::AwaitIdle(timeout_ns);
  if (!idle.ok()) return idle;
  for (DeviceShare* share : device->shares) {
    const std::lock_guard<std::mutex> lock(share->mu_);
    share->launched_ = 0;
  }
  return {};
}

Result Residency::Make(const Claim& claim, const ShareInfo& info, uint32_t slots,
                       uint64_t timeout_ns, DeviceShare** out) {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint32_t index = backend::CurrentDevice();
  Device* device = Find(index);
  if (device == nullptr) {
    devices_.push_back({index, slots, {}});
    device = &devices_.back();
  }
  std::unique_ptr<DeviceShare> share(new DeviceShare(claim, info, index));
  device->shares.push_back(share.get());
  bool busy = false;
  Result result;
  if (!Divide(device, &busy)) {
    result = kNoRoom;
  } else if (busy) {
    result = Await(device, timeout_ns);
  }
  if (!result.ok()) {
    device->shares.pop_back();
    (void)Divide(device, &busy);
    return result;
  }
  *out = share.release();
  return {};
}

void Residency::Release(DeviceShare* share) {
  const std::lock_guard<std::mutex> lock(mu_);
  Device* const device = Find(share->device_);
  device->shares.erase(std::find(device->shares.begin(), device->shares.end(), share));
  bool busy = false;
  if (!device->shares.empty()) (void)Divide(device, &busy);
  delete share;
}

uint32_t Residency::List(ShareInfo* out, uint32_t capacity) {
  const std::lock_guard<std::mutex> lock(mu_);
  const Device* const device = Find(backend::CurrentDevice());
  if (device == nullptr) return 0;
  uint32_t n = 0;
  for (DeviceShare* share : device->shares) {
    if (n < capacity) {
      out[n] = share->info_;
      const std::lock_guard<std::mutex> share_lock(share->mu_);
      out[n].blocks = share->room_;
      out[n].captured = share->claim_.kept;
    }
    ++n;
  }
  return n;
}

Result Residency::Raise(DeviceShare* share, uint32_t together) {
  const std::lock_guard<std::mutex> lock(mu_);
  Device* const device = Find(share->device_);
  const uint32_t before = share->claim_.together;
  const auto set = [share](uint32_t value) {
    const std::lock_guard<std::mutex> share_lock(share->mu_);
    share->claim_.together = value;
  };
  set(std::max(before, together));
  bool busy = false;
  Result result;
  if (!Divide(device, &busy)) {
    result = kNoRoom;
  } else if (busy) {
    result = Await(device, kRaiseTimeoutNs);
  }
  if (result.ok()) return {};
  set(before);
  (void)Divide(device, &busy);
  return result;
}

}  // namespace iris::ccl
