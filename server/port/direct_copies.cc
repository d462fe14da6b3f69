// Direct copies: data that UCX's put and get move between the heaps of two nodes.
#include <string.h>

#include <algorithm>
#include <iterator>

#include "device/driver/ucx_memory.h"
#include "server/port/engine_state.h"

namespace iris::port {
namespace {

constexpr size_t kMaxOffers = 4096;  // of one node; messages reach the rest of its memory

}  // namespace

std::optional<Engine::Copy> Engine::FindDirect(Peer* peer, Lane* lane) {
  if (peer->remotes.empty()) return std::nullopt;
  const Ring::Slot& slot = lane->ring->slot(lane->head);
  const PortRequest& request = slot.request;
  if (request.op == PortOp::kAtomic || request.space != PortSpace::kHeap ||
      request.bytes <= kCopiedBytes) {
    return std::nullopt;
  }
  const Part part = NextPart(slot);
  const auto segment = memory_->At(lane->ring->rank(), part.local);
  if (part.left == 0 || segment == nullptr) return std::nullopt;
  const auto window = windows_.find(segment->id);
  auto remote = peer->remotes.upper_bound({request.to, part.remote});
  if (window == windows_.end() || remote == peer->remotes.begin()) return std::nullopt;
  --remote;
  const auto& [rank, offset] = remote->first;
  const uint64_t from = part.local - segment->offset_bytes, to = part.remote - offset;
  if (rank != request.to || to >= remote->second->bytes) return std::nullopt;
  Copy copy;
  copy.peer = peer;
  copy.is_copy = true;
  copy.lane = lane;
  copy.index = lane->head;
  copy.is_get = !IsPut(request.op);
  copy.rank = rank;
  copy.offset = part.remote;
  copy.bytes =
      std::min({part.left, kDirectPieceBytes, segment->bytes - from, remote->second->bytes - to});
  copy.address = segment->address + from;
  copy.remote_address = remote->second->address + to;
  copy.window = window->second;
  copy.remote = remote->second;
  return copy;
}

bool Engine::IssueDirect(const Copy& found) {
  Peer* const peer = found.peer;
  Lane* const lane = found.lane;
  if (peer->copying_bytes >= kMaxUnansweredBytes) return false;
  Ring::Slot& slot = lane->ring->slot(found.index);
  slot.issued += found.bytes;
  slot.all_issued =
      slot.issued == NextPart(slot).total && (found.is_get || !HasSignal(slot.request));
  ++slot.unanswered;
  if (!found.is_get) ++slot.sending;
  ++found.remote->copies;
  peer->copying_bytes += found.bytes;
  (found.is_get ? peer->received_bytes : peer->sent_bytes) += found.bytes;
  if (free_copies_.empty()) {
    copies_.push_back(std::make_unique<Copy>());
    free_copies_.push_back(copies_.back().get());
  }
  Copy* const copy = free_copies_.back();
  free_copies_.pop_back();
  *copy = found;
  lane->copies.push_back(copy);
  const UcxWorker::Region& region = *copy->window->region;
  const UcxWorker::RemoteRegion& remote = *copy->remote->region;
  const auto sent = copy->is_get ? worker_->Get(peer->endpoint, region, copy->address, copy->bytes,
                                                remote, copy->remote_address, copy)
                                 : worker_->Put(peer->endpoint, region, copy->address, copy->bytes,
                                                remote, copy->remote_address, copy);
  if (sent != UcxWorker::Sent::kLater) OnCopied(copy, sent == UcxWorker::Sent::kNow);
  return true;
}

void Engine::OnCopied(Copy* copy, bool ok) {
  Peer* const peer = copy->peer;
  Lane* const lane = copy->lane;
  peer->copying_bytes -= copy->bytes;
  if (--copy->remote->copies == 0 && copy->remote->withdrawn != nullptr) {
    copy->remote->withdrawn->done = true;
  }
  Activate(peer);
  if (!ok) failing_.emplace_back(peer, "a direct copy failed");
  if (lane != nullptr) {
    std::erase(lane->copies, copy);
    Ring::Slot& slot = lane->ring->slot(copy->index);
    if (!ok && slot.status == StatusCode::kOk) slot.status = StatusCode::kAborted;
    --slot.unanswered;
    if (!copy->is_get) --slot.sending;
    Settle(lane->ring, copy->index);
    Resume(peer, lane);
  }
  copy->window.reset();
  copy->remote.reset();
  free_copies_.push_back(copy);
}

void Engine::Offer(uint32_t rank, uint64_t offset_bytes) {
  if (!worker_->direct() || stopped_ || windows_.size() >= kMaxOffers) return;
  auto window = std::make_shared<Window>();
  window->segment = memory_->At(rank, offset_bytes);
  if (window->segment == nullptr) return;
  const HeapMemory::Segment& segment = *window->segment;
  absl::StatusOr<std::unique_ptr<UcxWorker::Region>> region =
      worker_->Register(segment.address, segment.bytes, driver::UcxMemoryOf(memory_->kind()));
  if (!region.ok()) {
    if (!std::exchange(has_failed_, true)) failure_ = region.status();
    return;
  }
  window->region = *std::move(region);
  for (auto& [node, peer] : peers_) {
    if (peer->state != Peer::State::kConnected) continue;
    peer->offers.emplace_back(RecordKind::kOffer, window);
    Activate(peer.get());
  }
  windows_[segment.id] = std::move(window);
}

void Engine::Withdraw(uint64_t segment_id) {
  const auto found = windows_.extract(segment_id);
  if (found.empty()) return;
  const std::shared_ptr<const Window>& window = found.mapped();
  for (auto& [node, peer] : peers_) {
    if (peer->state != Peer::State::kConnected) continue;
    const size_t unsent =
        std::erase_if(peer->offers, [&](const auto& each) { return each.second == window; });
    if (unsent == 0) peer->offers.emplace_back(RecordKind::kWithdraw, window);
    Activate(peer.get());
  }
}

bool Engine::SendOffer(Peer* peer) {
  if (peer->offers.empty() || peer->unanswered.size() >= kMaxUnansweredRecords) return false;
  Message* const message = Batch(peer);
  if (message == nullptr) return false;
  const auto [kind, window] = std::move(peer->offers.front());
  peer->offers.pop_front();
  const HeapMemory::Segment& segment = *window->segment;
  Record record;
  record.kind = kind;
  if (kind == RecordKind::kOffer) {
    const std::string& key = window->region->key();
    const port::Offer offer = {segment.id, segment.address};
    record.rank = segment.rank;
    record.offset = segment.offset_bytes;
    record.bytes = segment.bytes;
    record.value = sizeof(offer) + key.size();
    char* const data = AddRecord(message, record);
    memcpy(data, &offer, sizeof(offer));
    memcpy(data + sizeof(offer), key.data(), key.size());
  } else {
    record.value = segment.id;
    (void)AddRecord(message, record);
    peer->withdrawn[segment.id] = window;
  }
  Expect(peer, {.kind = kind, .place = segment.id});
  return true;
}

absl::Status Engine::OnOffer(Peer* peer, const Record& record, const char* data) {
  if (!worker_->direct()) return absl::OkStatus();  // this node goes on with messages
  if (record.value < sizeof(port::Offer) || record.rank >= limits_.n_ranks ||
      node_of_[record.rank] != peer->node || record.bytes == 0 ||
      record.offset > limits_.max_heap_bytes ||
      record.bytes > limits_.max_heap_bytes - record.offset) {
    return absl::InvalidArgumentError("it offers memory that it has not");
  }
  port::Offer offer;
  memcpy(&offer, data, sizeof(offer));
  const auto after = peer->remotes.lower_bound({record.rank, record.offset});
  bool overlaps = after != peer->remotes.end() && after->first.first == record.rank &&
                  after->first.second < record.offset + record.bytes;
  if (after != peer->remotes.begin()) {
    const auto& [place, before] = *std::prev(after);
    overlaps |= place.first == record.rank && place.second + before->bytes > record.offset;
  }
  overlaps |= std::any_of(peer->remotes.begin(), peer->remotes.end(),
                          [&](const auto& each) { return each.second->id == offer.id; });
  if (overlaps) return absl::InvalidArgumentError("it offers memory for the second time");
  if (peer->remotes.size() >= kMaxOffers) {
    return absl::ResourceExhaustedError("it offers more than is allowed");
  }
  if (const absl::Status made = MakeEndpoint(peer); !made.ok()) return made;
  auto region = worker_->UseKey(
      peer->endpoint, {data + sizeof(offer), static_cast<size_t>(record.value) - sizeof(offer)});
  if (!region.ok()) {  // other devices, for example
    if (!std::exchange(has_failed_, true)) failure_ = region.status();
    return absl::OkStatus();
  }
  auto remote = std::make_shared<Remote>();
  remote->id = offer.id;
  remote->bytes = record.bytes;
  remote->address = offer.address;
  remote->region = *std::move(region);
  peer->remotes.emplace(std::make_pair(record.rank, record.offset), std::move(remote));
  return absl::OkStatus();
}

std::shared_ptr<const DeviceQueue::Outcome> Engine::OnWithdraw(Peer* peer, uint64_t id) {
  const auto found = std::find_if(peer->remotes.begin(), peer->remotes.end(),
                                  [id](const auto& each) { return each.second->id == id; });
  if (found == peer->remotes.end()) return nullptr;
  const std::shared_ptr<Remote> remote = found->second;
  peer->remotes.erase(found);
  if (remote->copies > 0) remote->withdrawn = std::make_shared<DeviceQueue::Outcome>();
  return remote->withdrawn;
}

}  // namespace iris::port
