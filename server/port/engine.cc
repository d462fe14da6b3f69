#include "server/port/engine.h"

#include <string.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "device/iris/types.h"
#include "server/port/engine_state.h"

namespace iris::port {
namespace {

// Of messages that UCX has not finished sending to one peer.
constexpr uint64_t kMaxSendingBytes = 2 << 20;
constexpr uint32_t kMaxSendingMessages = 16;
constexpr int kProgressesAtOnce = 64;
constexpr uint32_t kTakenAtOnce = 512;
// The answer to a put with a signal lets the rank go first that has waited for the signal: what it
// sends back takes the answer along. A few microseconds at most.
constexpr uint32_t kPollsForSignals = 8;
// Of messages that arrived before their turn, or before the layout.
constexpr size_t kMaxHeldBytes = 4 * kMaxUnansweredBytes;
constexpr size_t kMaxHeldMessages = 16384;
// A peer that keeps the rules is below half of these.
constexpr size_t kMaxAnswers = 2 * kMaxUnansweredRecords;
constexpr uint64_t kMaxAnswerBytes = 2 * kMaxUnansweredBytes;

}  // namespace

Engine::Engine(const RequestLimits& limits, HeapMemory* memory) : limits_(limits), memory_(memory) {
  for (uint32_t i = 0; i < limits.n_local * kPortRings; ++i) {
    rings_.push_back(std::make_unique<Ring>(limits.first_rank + i / kPortRings, i % kPortRings, i));
  }
}

Engine::~Engine() = default;

absl::Status Engine::SetLayout(uint64_t epoch, const std::vector<NodeRange>& nodes) {
  if (has_layout()) return absl::FailedPreconditionError("the layout is known already");
  std::vector<uint32_t> node_of;
  bool has_self = false;
  for (const NodeRange& node : nodes) {
    if (node.first_rank != node_of.size() || node.n_ranks == 0 ||
        node.n_ranks > limits_.n_ranks - node.first_rank) {
      return absl::InvalidArgumentError(absl::StrCat("the layout's node at rank ", node.first_rank,
                                                     " with ", node.n_ranks,
                                                     " ranks does not follow the one before it"));
    }
    node_of.insert(node_of.end(), node.n_ranks, node.first_rank);
    has_self |= node.first_rank == limits_.first_rank && node.n_ranks == limits_.n_local;
  }
  if (node_of.size() != limits_.n_ranks || !has_self) {
    return absl::InvalidArgumentError(absl::StrCat("the layout has ", node_of.size(), " ranks of ",
                                                   limits_.n_ranks,
                                                   has_self ? "" : ", and this node is not in it"));
  }
  epoch_ = epoch;
  node_of_ = std::move(node_of);
  for (auto& [node, peer] : peers_) {
    if (node_of_[node] != node) {
      Break(peer.get(), "it is not a node of the job's layout");
      continue;
    }
    Activate(peer.get());
    auto held = std::exchange(peer->held, {});
    peer->held_bytes = 0;
    for (const auto& [sequence, message] : held) OnMessage(message.first, message.second);
  }
  return absl::OkStatus();
}

void Engine::Attach(uint32_t rank, std::shared_ptr<PortMapping> mapping) {
  for (uint32_t i = 0; i < kPortRings; ++i) {
    rings_[(rank - limits_.first_rank) * kPortRings + i]->Attach(mapping);
  }
}

Engine::Peer* Engine::PeerOf(uint32_t node) {
  if (last_peer_ != nullptr && last_peer_->node == node) return last_peer_;
  std::unique_ptr<Peer>& peer = peers_[node];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->node = node;
  }
  return last_peer_ = peer.get();
}

absl::Status Engine::Connect(uint32_t node, std::string_view address, const Tags& tags, Turn turn) {
  if (has_layout() && (node >= limits_.n_ranks || node_of_[node] != node)) {
    return absl::InvalidArgumentError(absl::StrCat("the job has no node at rank ", node));
  }
  Peer* const peer = PeerOf(node);
  if (peer->state != Peer::State::kUnconnected) {
    return absl::AlreadyExistsError(absl::StrCat("node ", node, " was connected before"));
  }
  peer->address = address;
  peer->tags = tags;
  peer->may_send = peer->is_heard = turn != Turn::kSecond;
  peer->greets = turn == Turn::kFirst;
  if (absl::Status status = MakeEndpoint(peer); !status.ok()) return status;
  peer->state = Peer::State::kConnected;
  for (const auto& [id, window] : windows_) peer->offers.emplace_back(RecordKind::kOffer, window);
  Activate(peer);
  return absl::OkStatus();
}

absl::Status Engine::MakeEndpoint(Peer* peer) {
  if (!peer->is_heard || peer->endpoint != nullptr) return absl::OkStatus();
  absl::StatusOr<ucp_ep_h> endpoint = worker_->Connect(peer->address, peer);
  if (endpoint.ok()) peer->endpoint = *endpoint;
  return endpoint.status();
}

void Engine::AllowSending(uint32_t node) {
  Peer* const peer = PeerOf(node);
  if (!std::exchange(peer->may_send, true)) Activate(peer);
}

void Engine::Lose(uint32_t node) {
  Peer* const peer = PeerOf(node);
  if (peer->state == Peer::State::kLost) return;
  peer->state = Peer::State::kLost;
  if (peer->endpoint != nullptr) closing_.push_back(std::exchange(peer->endpoint, nullptr));
  if (peer->batch != nullptr) Recycle(std::exchange(peer->batch, nullptr));
  peer->answers.clear();
  peer->later.clear();
  peer->waits = false;
  peer->held.clear();
  peer->held_bytes = 0;
  peer->turn.clear();
  peer->offers.clear();
  peer->withdrawn.clear();
  peer->remotes.clear();
  for (const Unanswered& each : std::exchange(peer->unanswered, {})) {
    if (each.lane == nullptr) continue;
    Ring::Slot& slot = each.lane->ring->slot(each.index);
    slot.status = StatusCode::kAborted;
    slot.all_issued = true;
    --slot.unanswered;
    Settle(each.lane->ring, each.index);
  }
  for (auto& [id, lane] : peer->lanes) {
    for (Copy* const copy : std::exchange(lane->copies, {})) {
      Ring::Slot& slot = lane->ring->slot(copy->index);
      slot.status = StatusCode::kAborted;
      slot.all_issued = true;
      --slot.unanswered;
      if (!copy->is_get) --slot.sending;
      copy->lane = nullptr;
      Settle(lane->ring, copy->index);
    }
    while (!lane->empty) {
      Ring::Slot& slot = lane->ring->slot(lane->head);
      const uint32_t index = lane->head;
      lane->empty = lane->head == lane->tail;
      lane->head = slot.next;
      slot.status = StatusCode::kAborted;
      slot.all_issued = true;
      if (!slot.done) Settle(lane->ring, index);
    }
  }
  for (const std::unique_ptr<Ring>& ring : rings_) ring->Publish();
}

void Engine::Break(Peer* peer, std::string reason) {
  if (peer->state == Peer::State::kLost) return;
  broken_.emplace_back(peer->node, std::move(reason));
  Lose(peer->node);
}

void Engine::OnFailed(void* tag, const char* reason) {
  failing_.emplace_back(static_cast<Peer*>(tag), absl::StrCat("its connection failed: ", reason));
}

void Engine::Activate(Peer* peer) {
  if (std::exchange(peer->active, true)) return;
  active_.push_back(peer);
}

bool Engine::Poll() {
  bool any = false;
  // Answers go out before more is looked for.
  for (int i = 0; i < kProgressesAtOnce && worker_->Progress(); ++i) {
    any = true;
    if (!active_.empty()) break;
  }
  if (has_layout()) {
    for (const std::unique_ptr<Ring>& ring : rings_) {
      uint32_t index = 0;
      for (uint32_t i = 0; i < kTakenAtOnce && ring->Take(&index); ++i) {
        Queue(ring.get(), index);
        any = true;
      }
    }
  }
  any |= memory_->Poll();
  std::vector<Peer*> active;
  active.swap(active_);
  for (Peer* const peer : active) {
    peer->active = false;
    if (!peer->later.empty()) GoOn(peer);
    Pump(peer);
  }
  any |= !active_.empty();
  for (auto& [peer, reason] : std::exchange(failing_, {})) Break(peer, std::move(reason));
  for (const ucp_ep_h endpoint : std::exchange(closing_, {})) worker_->Close(endpoint);
  for (const std::unique_ptr<Ring>& ring : rings_) ring->Publish();
  return any;
}

bool Engine::HasRequests() const {
  if (!has_layout()) return false;
  return std::any_of(rings_.begin(), rings_.end(),
                     [](const std::unique_ptr<Ring>& ring) { return ring->HasNext(); });
}

void Engine::SetAsleep(bool asleep) {
  for (size_t i = 0; i < rings_.size(); i += kPortRings) {
    if (!rings_[i]->attached()) continue;
    uint32_t* const word = &rings_[i]->mapping()->memory().asleep;
    __atomic_store_n(word, asleep ? 1u : 0u, __ATOMIC_SEQ_CST);
  }
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void Engine::Stop(StatusCode code) {
  stopped_ = true;
  for (auto& [node, peer] : peers_) {
    peer->offers.clear();
    peer->withdrawn.clear();
  }
  windows_.clear();
  for (const std::unique_ptr<Ring>& ring : rings_) {
    ring->Publish();
    ring->Stop(code);
  }
}

void Engine::Queue(Ring* ring, uint32_t index) {
  Ring::Slot& slot = ring->slot(index);
  PortRequest& request = slot.request;
  StatusCode code = CheckRequest(request, slot.rows, limits_);
  if (code == StatusCode::kOk && request.op != PortOp::kAtomic &&
      request.space == PortSpace::kHeap &&
      !memory_->Covers(ring->rank(), IsPut(request.op) ? request.src : request.dst,
                       LocalExtent(request, slot.rows))) {
    code = StatusCode::kOutOfRange;
  }
  if (code != StatusCode::kOk || request.op == PortOp::kCovers) {
    return ring->Complete(index, code, 0);
  }
  Peer* const peer = PeerOf(node_of_[request.to]);
  if (peer->state == Peer::State::kLost) {
    return ring->Complete(index, StatusCode::kAborted, 0);
  }
  // Rows without gaps are one range.
  const PortRows& rows = slot.rows;
  if (IsRows(request.op) &&
      (rows.rows <= 1 || (rows.src_stride == request.bytes && rows.dst_stride == request.bytes))) {
    request.op = IsPut(request.op) ? PortOp::kPut : PortOp::kGet;
    request.bytes *= rows.rows;
  }
  if (peer->state == Peer::State::kUnconnected && !std::exchange(peer->wanted, true)) {
    wanted_.push_back(peer->node);
  }
  std::unique_ptr<Lane>& lane = peer->lanes[ring->id()];
  if (lane == nullptr) {
    lane = std::make_unique<Lane>();
    lane->ring = ring;
  }
  if (lane->empty) {
    lane->head = index;
  } else {
    ring->slot(lane->tail).next = index;
  }
  lane->tail = index;
  lane->empty = false;
  Resume(peer, lane.get());
}

void Engine::Resume(Peer* peer, Lane* lane) {
  Activate(peer);
  if (lane->empty || lane->in_turn) return;
  lane->in_turn = true;
  peer->turn.push_back(lane);
}

void Engine::Settle(Ring* ring, uint32_t index) {
  Ring::Slot& slot = ring->slot(index);
  if (!slot.all_issued || slot.done) return;
  if (slot.sending == 0) ring->MarkRead(index);
  if (slot.unanswered == 0) ring->Complete(index, slot.status, slot.value);
}

// Sending.

void Engine::Pump(Peer* peer) {
  if (peer->state != Peer::State::kConnected) return;
  if (const absl::Status made = MakeEndpoint(peer); !made.ok()) {
    return Break(peer, std::string(made.message()));
  }
  if (peer->endpoint == nullptr || !peer->may_send || !has_layout()) return;
  if (std::exchange(peer->greets, false)) Send(peer, NewMessage(peer), nullptr, 0, /*empty=*/true);
  if (peer->patience > 0 && peer->turn.empty()) {
    // A rank sees the signal when its device has written it.
    const bool waits = !peer->answers.empty() && peer->answers.front().later != nullptr &&
                       !peer->answers.front().later->done;
    if (!waits) --peer->patience;
    return Activate(peer);
  }
  const bool patient = std::exchange(peer->patience, 0) > 0;
  while (!patient && SendAnswer(peer)) {
  }
  while (SendOffer(peer)) {
  }
  while (SendRequest(peer)) {
  }
  while (patient && SendAnswer(peer)) {
  }
  SendBatch(peer);
}

bool Engine::HasRoom(const Peer* peer) const {
  return peer->sending_bytes < kMaxSendingBytes && peer->sending_messages < kMaxSendingMessages;
}

Engine::Message* Engine::NewMessage(Peer* peer) {
  if (free_.empty()) {
    messages_.push_back(std::make_unique<Message>());
    free_.push_back(messages_.back().get());
  }
  Message* const message = free_.back();
  free_.pop_back();
  message->peer = peer;
  message->body_bytes = 0;
  message->ring = nullptr;
  return message;
}

void Engine::Recycle(Message* message) {
  message->pin.reset();
  free_.push_back(message);
}

Engine::Message* Engine::Batch(Peer* peer) {
  if (peer->batch != nullptr && peer->batch->body_bytes >= kBatchBytes) SendBatch(peer);
  if (peer->batch == nullptr && HasRoom(peer)) peer->batch = NewMessage(peer);
  return peer->batch;
}

char* Engine::AddRecord(Message* message, const Record& record) {
  const uint64_t data_bytes = DataBytes(record);
  const size_t needed = message->body_bytes + sizeof(record) + Padded(data_bytes);
  if (needed > message->capacity) {
    const size_t capacity = std::max<size_t>(needed, std::max<size_t>(4096, 2 * message->capacity));
    std::unique_ptr<char[]> body(new char[capacity]);
    if (message->body_bytes > 0) memcpy(body.get(), message->body.get(), message->body_bytes);
    message->body = std::move(body);
    message->capacity = capacity;
  }
  char* const at = message->body.get() + message->body_bytes;
  memcpy(at, &record, sizeof(record));
  // The padding is not left as it was: it would show other data.
  if (data_bytes % 8 != 0) memset(at + sizeof(record) + (data_bytes & ~7ull), 0, 8);
  message->body_bytes = needed;
  return at + sizeof(record);
}

void Engine::SendBatch(Peer* peer) {
  Message* const message = std::exchange(peer->batch, nullptr);
  if (message == nullptr) return;
  if (message->body_bytes == 0) return Recycle(message);
  Send(peer, message, message->body.get(), message->body_bytes);
}

void Engine::SendFrom(Peer* peer, const Record& record, const void* data,
                      std::shared_ptr<const void> pin, Ring* ring, uint32_t index) {
  Message* const message = NewMessage(peer);
  message->head.record = record;
  message->pin = std::move(pin);
  message->ring = ring;
  if (ring != nullptr) {
    Ring::Slot& slot = ring->slot(index);
    message->index = index;
    message->request = slot.request.sequence;
    ++slot.sending;
  }
  Send(peer, message, data, record.bytes);
}

void Engine::Send(Peer* peer, Message* message, const void* data, uint64_t bytes, bool empty) {
  message->head.header = {peer->tags.sent, epoch_, peer->next_sent++, limits_.first_rank, 0};
  message->sending_bytes = bytes;
  peer->sending_bytes += bytes;
  ++peer->sending_messages;
  const size_t head_bytes =
      sizeof(MessageHeader) + (message->body_bytes == 0 && !empty ? sizeof(Record) : 0);
  peer->sent_bytes += head_bytes + bytes;
  switch (worker_->Send(peer->endpoint, {reinterpret_cast<const char*>(&message->head), head_bytes},
                        data, bytes, message)) {
    case UcxWorker::Sent::kLater:
      break;
    case UcxWorker::Sent::kNow:
      OnSent(message, true);
      break;
    case UcxWorker::Sent::kFailed:
      OnSent(message, false);
      break;
  }
}

void Engine::OnSent(UcxWorker::SendTag* tag, bool ok) {
  Sending* const sending = static_cast<Sending*>(tag);
  if (sending->is_copy) return OnCopied(static_cast<Copy*>(sending), ok);
  Message* const message = static_cast<Message*>(sending);
  Peer* const peer = message->peer;
  peer->sending_bytes -= message->sending_bytes;
  --peer->sending_messages;
  if (message->ring != nullptr) {
    Ring::Slot& slot = message->ring->slot(message->index);
    // The request may be complete, and its slot reused, before UCX says that it was sent.
    if (slot.request.sequence == message->request && !slot.done) {
      --slot.sending;
      Settle(message->ring, message->index);
    }
  }
  Recycle(message);
  Activate(peer);
  if (!ok) failing_.emplace_back(peer, "a message could not be sent");
}

StatusCode Engine::ReadLocal(Ring* ring, const PortRequest& request, uint64_t place, void* to,
                             uint64_t bytes) {
  switch (request.space) {
    case PortSpace::kHeap:
      return memory_->Read(ring->rank(), place, to, bytes);
    case PortSpace::kValues:
      if (!ring->attached()) return StatusCode::kAborted;
      CopyShared(to, ring->mapping()->memory().values + place, bytes);
      return StatusCode::kOk;
    case PortSpace::kInline:
      memcpy(to, &request.src, bytes);
      return StatusCode::kOk;
  }
  return StatusCode::kInternal;
}

StatusCode Engine::WriteLocal(Ring* ring, const PortRequest& request, uint64_t place,
                              const void* from, uint64_t bytes) {
  if (!ring->attached()) return StatusCode::kAborted;
  if (request.space == PortSpace::kHeap) return memory_->Write(ring->rank(), place, from, bytes);
  CopyShared(ring->mapping()->memory().values + place, from, bytes);
  return StatusCode::kOk;
}

bool Engine::SendRequest(Peer* peer) {
  if (peer->turn.empty() || peer->unanswered.size() >= kMaxUnansweredRecords ||
      peer->unanswered_bytes >= kMaxUnansweredBytes) {
    return false;
  }
  Lane* const lane = peer->turn.front();
  Ring::Slot& slot = lane->ring->slot(lane->head);
  const bool is_get = slot.request.op == PortOp::kGet || slot.request.op == PortOp::kGetRows;
  const std::optional<Copy> direct = FindDirect(peer, lane);
  bool waits = !is_get && lane->large_gets > 0;
  if (direct.has_value()) {
    waits = lane->messages > 0 ||
            std::any_of(lane->copies.begin(), lane->copies.end(),
                        [&](const Copy* each) { return each->Excludes(*direct); });
  } else {
    waits |= !lane->copies.empty();
  }
  if (!waits && !(direct.has_value() ? IssueDirect(*direct) : Issue(peer, lane, &slot))) {
    return false;
  }
  peer->turn.pop_front();
  if (slot.all_issued) {
    const uint32_t index = lane->head;
    lane->empty = lane->head == lane->tail;
    lane->head = slot.next;
    Settle(lane->ring, index);
  }
  lane->in_turn = !waits && !lane->empty;
  if (lane->in_turn) peer->turn.push_back(lane);
  return true;
}

void Engine::Expect(Peer* peer, const Unanswered& unanswered) {
  peer->unanswered.push_back(unanswered);
  peer->unanswered_bytes += unanswered.bytes * unanswered.rows;
  Lane* const lane = unanswered.lane;
  if (lane == nullptr) return;
  ++lane->ring->slot(unanswered.index).unanswered;
  ++lane->messages;
  if (unanswered.large_get) ++lane->large_gets;
}

Engine::Part Engine::NextPart(const Ring::Slot& slot) {
  const PortRequest& request = slot.request;
  const uint64_t length = request.bytes;
  const bool rows = IsRows(request.op) && length > 0;
  Part part;
  part.total = IsRows(request.op) ? length * slot.rows.rows : length;
  part.row = rows ? slot.issued / length : 0;
  part.within = slot.issued - part.row * length;
  part.left = slot.issued == part.total ? 0 : length - part.within;
  const uint64_t source = request.src + part.row * slot.rows.src_stride + part.within;
  const uint64_t target = request.dst + part.row * slot.rows.dst_stride + part.within;
  part.local = IsPut(request.op) ? source : target;
  part.remote = IsPut(request.op) ? target : source;
  return part;
}

bool Engine::Issue(Peer* peer, Lane* lane, Ring::Slot* slot) {
  const PortRequest& request = slot->request;
  if (IsPut(request.op)) return IssuePut(peer, lane, slot);
  if (request.op != PortOp::kAtomic) return IssueGet(peer, lane, slot);
  Message* const message = Batch(peer);
  if (message == nullptr) return false;
  Record record;
  record.kind = RecordKind::kAtomic;
  record.atomic = static_cast<uint8_t>(request.atomic);
  record.type = static_cast<uint8_t>(request.type);
  record.rank = request.to;
  record.offset = request.dst;
  record.bytes = request.src;
  record.value = request.bytes;
  (void)AddRecord(message, record);
  Expect(peer, {.lane = lane, .index = lane->head, .kind = record.kind});
  slot->all_issued = true;
  return true;
}

bool Engine::IssuePut(Peer* peer, Lane* lane, Ring::Slot* slot) {
  const PortRequest& request = slot->request;
  const bool rows = request.op == PortOp::kPutRows;
  const uint64_t length = request.bytes;  // of a row
  const Part part = NextPart(*slot);
  const uint64_t total = part.total;
  Record record;
  record.kind = RecordKind::kPut;
  record.rank = request.to;
  record.signal_op = request.signal_op;
  Unanswered expected = {.lane = lane, .index = lane->head, .kind = record.kind};

  // Without data, or with the signal alone, there is no place.
  const uint64_t source = part.left == 0 || request.space == PortSpace::kInline ? 0 : part.local;
  record.offset = part.left == 0 ? 0 : part.remote;

  if (rows && part.left > 0 && length <= kBatchBytes) {
    Message* const message = Batch(peer);
    if (message == nullptr) return false;
    record.kind = expected.kind = RecordKind::kPutRows;
    record.bytes = length;
    record.value =
        std::min(slot->rows.rows - part.row, std::max<uint64_t>(1, kBatchBytes / length));
    record.other = slot->rows.dst_stride;
    char* data = AddRecord(message, record);
    for (uint64_t i = 0; i < record.value && slot->status == StatusCode::kOk; ++i) {
      slot->status = ReadLocal(lane->ring, request, source + i * slot->rows.src_stride,
                               data + i * length, length);
    }
    if (slot->status != StatusCode::kOk) {
      message->body_bytes -= sizeof(record) + Padded(length * record.value);
      slot->all_issued = true;
      return true;
    }
    expected.bytes = length;
    expected.rows = record.value;
    Expect(peer, expected);
    slot->issued += length * record.value;
    slot->all_issued = slot->issued == total && !HasSignal(request);
    return true;
  }

  uint64_t left = part.left;
  const auto finish_record = [&](uint64_t bytes) {
    record.bytes = expected.bytes = bytes;
    if (slot->issued + bytes < total) return;
    slot->all_issued = true;
    if (!HasSignal(request)) return;
    record.other = request.signal;
    record.value = request.signal_value;
  };
  if (left > kCopiedBytes) {
    SendBatch(peer);
    if (!HasRoom(peer)) return false;
    std::optional<HeapMemory::Place> place;
    const uint64_t bytes = std::min(left, kPieceBytes);
    if (request.space == PortSpace::kValues) {
      place = {lane->ring->mapping()->memory().values + source, bytes, lane->ring->mapping()};
    } else {
      place = memory_->Source(lane->ring->rank(), source, bytes);
    }
    if (place.has_value()) {
      finish_record(place->bytes);
      Expect(peer, expected);
      slot->issued += place->bytes;
      SendFrom(peer, record, place->data, std::move(place->pin), lane->ring, lane->head);
      return true;
    }
    left = std::min(left, kBatchBytes);
  }
  Message* const message = Batch(peer);
  if (message == nullptr) return false;
  finish_record(left);
  slot->status = ReadLocal(lane->ring, request, source, AddRecord(message, record), left);
  if (slot->status != StatusCode::kOk) {
    message->body_bytes -= sizeof(record) + Padded(left);
    slot->all_issued = true;
    return true;
  }
  Expect(peer, expected);
  slot->issued += left;
  return true;
}

bool Engine::IssueGet(Peer* peer, Lane* lane, Ring::Slot* slot) {
  const PortRequest& request = slot->request;
  const bool rows = request.op == PortOp::kGetRows;
  const uint64_t length = request.bytes;
  const Part part = NextPart(*slot);
  if (part.left == 0) {
    slot->all_issued = true;
    return true;
  }
  Message* const message = Batch(peer);
  if (message == nullptr) return false;
  Record record;
  record.kind = RecordKind::kGet;
  record.rank = request.to;
  record.offset = part.remote;
  Unanswered expected = {.lane = lane, .index = lane->head};
  expected.place = part.local;
  if (rows && length <= kBatchBytes) {
    record.kind = RecordKind::kGetRows;
    record.bytes = length;
    record.value =
        std::min(slot->rows.rows - part.row, std::max<uint64_t>(1, kBatchBytes / length));
    record.other = slot->rows.src_stride;
    expected.rows = record.value;
    expected.stride = slot->rows.dst_stride;
  } else {
    record.bytes = std::min(part.left, kPieceBytes);
    expected.large_get = record.bytes > kCopiedBytes;
  }
  expected.kind = record.kind;
  expected.bytes = record.bytes;
  (void)AddRecord(message, record);
  Expect(peer, expected);
  slot->issued += expected.bytes * expected.rows;
  slot->all_issued = slot->issued == part.total;
  return true;
}

bool Engine::SendAnswer(Peer* peer) {
  if (peer->answers.empty()) return false;
  Answer& answer = peer->answers.front();
  if (answer.later != nullptr) {
    const DeviceQueue::Outcome& outcome = *answer.later;
    if (!outcome.done) {
      Activate(peer);
      return false;
    }
    if (outcome.code != StatusCode::kOk) {
      // An error is the answer to one record.
      const uint64_t more = answer.kind == RecordKind::kDone ? answer.bytes - 1 : 0;
      if (more > 0) peer->answers.insert(peer->answers.begin() + 1, answer)->bytes = more;
      Answer& first = peer->answers.front();
      first.kind = RecordKind::kError;
      first.bytes = 0;
      first.value = static_cast<uint64_t>(outcome.code);
      first.later = nullptr;
      return SendAnswer(peer);
    }
    if (answer.kind == RecordKind::kValue) answer.value = outcome.old;
    answer.later = nullptr;
  }
  Record record;
  record.kind = answer.kind;
  record.bytes = answer.bytes;
  record.value = answer.value;
  if (answer.kind == RecordKind::kData && answer.data.empty()) {
    SendBatch(peer);
    if (!HasRoom(peer)) return false;
    auto place = memory_->Source(answer.rank, answer.offset, answer.bytes);
    if (place.has_value() && place->bytes == answer.bytes) {
      SendFrom(peer, record, place->data, std::move(place->pin), nullptr, 0);
    } else {
      Message* const message = Batch(peer);
      if (message == nullptr) return false;
      const size_t before = message->body_bytes;
      const StatusCode code =
          memory_->Read(answer.rank, answer.offset, AddRecord(message, record), answer.bytes);
      if (code != StatusCode::kOk) {
        message->body_bytes = before;
        record = Record();
        record.kind = RecordKind::kError;
        record.value = static_cast<uint64_t>(code);
        (void)AddRecord(message, record);
      }
    }
  } else {
    Message* const message = Batch(peer);
    if (message == nullptr) return false;
    char* const data = AddRecord(message, record);
    if (!answer.data.empty()) memcpy(data, answer.data.data(), answer.data.size());
  }
  if (answer.kind == RecordKind::kData) peer->answer_bytes -= answer.bytes;
  peer->answers.pop_front();
  return true;
}

Engine::Traffic Engine::TrafficWith(uint32_t node) const {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return {};
  const Peer& peer = *found->second;
  Traffic traffic{peer.sent_bytes, peer.received_bytes, "", !peer.remotes.empty()};
  if (peer.endpoint != nullptr) traffic.transport = worker_->TransportOf(peer.endpoint);
  return traffic;
}

// Receiving.

void Engine::OnMessage(std::string_view header, std::string_view data) {
  MessageHeader head;
  if (stopped_ ||
      (header.size() != sizeof(head) && header.size() != sizeof(head) + sizeof(Record))) {
    ++refused_;
    return;
  }
  memcpy(&head, header.data(), sizeof(head));
  // Anybody may send a message with any node's number; only its tag proves that it is from there.
  const auto found = peers_.find(head.from);
  Peer* const peer = found == peers_.end() ? nullptr : found->second.get();
  if (peer == nullptr || peer->state != Peer::State::kConnected ||
      head.tag != peer->tags.received || head.reserved != 0) {
    ++refused_;
    return;
  }
  if (!std::exchange(peer->is_heard, true)) Activate(peer);
  if (data.size() > kMaxPayloadBytes) return Break(peer, "it sent a message that is too long");
  peer->received_bytes += header.size() + data.size();
  if (has_layout() && head.epoch != epoch_) return Break(peer, "it is in another run of the job");
  if (head.sequence < peer->next_received ||
      (peer->waits && head.sequence == peer->next_received)) {
    return Break(peer, "it repeated a message");
  }
  if (!has_layout() || head.sequence > peer->next_received) {
    return Hold(peer, head.sequence, header, data);
  }
  ExecuteAll(peer, Execute(peer, header, data));
}

void Engine::Hold(Peer* peer, uint64_t sequence, std::string_view header, std::string_view data) {
  peer->held_bytes += data.size();
  peer->held[sequence] = {std::string(header), std::string(data)};
  if (peer->held_bytes > kMaxHeldBytes || peer->held.size() > kMaxHeldMessages) {
    Break(peer, "it sent more than is allowed");
  }
}

void Engine::ExecuteAll(Peer* peer, absl::Status status) {
  while (status.ok() && !peer->waits && !peer->held.empty() &&
         peer->held.begin()->first == peer->next_received) {
    const auto held = peer->held.extract(peer->held.begin());
    peer->held_bytes -= held.mapped().second.size();
    status = Execute(peer, held.mapped().first, held.mapped().second);
  }
  if (!status.ok()) Break(peer, absl::StrCat("it broke the protocol: ", status.message()));
}

void Engine::GoOn(Peer* peer) {
  Activate(peer);
  const size_t before = peer->later.size();
  std::erase_if(peer->later, [](const auto& each) { return each.second->done; });
  if (!peer->waits || peer->later.size() == before) return;
  peer->waits = false;
  ExecuteAll(peer, absl::OkStatus());
}

bool Engine::MayExecute(Peer* peer, const Record& record) {
  if (peer->later.empty()) return true;
  const auto later = peer->later.find(record.rank);
  if (later == peer->later.end()) return true;
  // The queue of the device keeps the order of those.
  if (record.kind == RecordKind::kAtomic) {
    return record.atomic != static_cast<uint8_t>(PortAtomic::kLoad);
  }
  return record.kind == RecordKind::kPut && record.bytes == 0 && record.other != kNoPortSignal &&
         record.signal_op == static_cast<uint8_t>(SignalOp::kAdd);
}

absl::Status Engine::Execute(Peer* peer, std::string_view header, std::string_view data) {
  ++peer->next_received;
  RecordReader reader(header, data);
  for (;;) {
    const std::string_view rest = reader.rest();
    Record record;
    const char* bytes = nullptr;
    switch (reader.Next(&record, &bytes)) {
      case RecordReader::Got::kEnd:
        return absl::OkStatus();
      case RecordReader::Got::kBad:
        return absl::InvalidArgumentError("a record is cut off");
      case RecordReader::Got::kRecord:
        break;
    }
    const bool asks = record.kind < RecordKind::kDone;
    if (asks && !MayExecute(peer, record)) {
      peer->waits = true;
      Hold(peer, --peer->next_received, header, rest);
      return absl::OkStatus();
    }
    const absl::Status status =
        asks ? ExecuteOne(peer, record, bytes) : OnAnswer(peer, record, bytes);
    if (!status.ok()) return status;
    if (peer->state != Peer::State::kConnected) return absl::OkStatus();
  }
}

absl::Status Engine::ExecuteOne(Peer* peer, const Record& record, const char* data) {
  StatusCode code = StatusCode::kOk;
  Answer answer;
  answer.kind = RecordKind::kDone;
  answer.bytes = 1;
  if (record.kind == RecordKind::kOffer || record.kind == RecordKind::kWithdraw) {
    if (record.kind == RecordKind::kOffer) {
      const absl::Status status = OnOffer(peer, record, data);
      if (!status.ok()) return status;
    } else {
      answer.later = OnWithdraw(peer, record.value);
    }
    AddAnswer(peer, std::move(answer));
    return absl::OkStatus();
  }
  switch (record.kind) {
    case RecordKind::kPut:
      if (record.other != kNoPortSignal && !memory_->Covers(record.rank, record.other, 8)) {
        code = StatusCode::kOutOfRange;
        break;
      }
      code = memory_->Write(record.rank, record.offset, data, record.bytes);
      if (code == StatusCode::kOk && record.other != kNoPortSignal) {
        code = memory_->Signal(record.rank, record.other, record.signal_op, record.value,
                               &answer.later);
      }
      break;
    case RecordKind::kPutRows:
      // The offset of no row overflows, since the one before it was within the heap.
      if (record.other > limits_.max_heap_bytes) code = StatusCode::kOutOfRange;
      for (uint64_t i = 0; i < record.value && code == StatusCode::kOk; ++i) {
        code = memory_->Write(record.rank, record.offset + i * record.other,
                              data + i * record.bytes, record.bytes);
      }
      break;
    case RecordKind::kGet:
      if (record.bytes > kPieceBytes) return absl::InvalidArgumentError("a get is too long");
      answer.kind = RecordKind::kData;
      answer.rank = record.rank;
      answer.offset = record.offset;
      answer.bytes = record.bytes;
      if (record.bytes > kCopiedBytes) {
        if (!memory_->Covers(record.rank, record.offset, record.bytes)) {
          code = StatusCode::kOutOfRange;
        }
        break;
      }
      answer.data.resize(record.bytes);
      code = memory_->Read(record.rank, record.offset, answer.data.data(), record.bytes);
      break;
    case RecordKind::kGetRows:
      if (record.bytes == 0 || record.bytes > kBatchBytes || record.value > kBatchBytes ||
          record.bytes * record.value > kBatchBytes) {
        return absl::InvalidArgumentError("a get of rows is too long");
      }
      answer.kind = RecordKind::kData;
      answer.bytes = record.bytes * record.value;
      answer.data.resize(answer.bytes);
      if (record.other > limits_.max_heap_bytes) code = StatusCode::kOutOfRange;
      for (uint64_t i = 0; i < record.value && code == StatusCode::kOk; ++i) {
        code = memory_->Read(record.rank, record.offset + i * record.other,
                             answer.data.data() + i * record.bytes, record.bytes);
      }
      break;
    case RecordKind::kAtomic:
      answer.kind = RecordKind::kValue;
      answer.bytes = 0;
      code = memory_->Atomic(record.rank, record.offset, static_cast<PortAtomic>(record.atomic),
                             static_cast<PortType>(record.type), record.value, record.bytes,
                             &answer.value, &answer.later);
      break;
    default:
      return absl::InvalidArgumentError("a record has no known kind");
  }
  if (code != StatusCode::kOk) {
    answer = Answer();
    answer.kind = RecordKind::kError;
    answer.value = static_cast<uint64_t>(code);
  }
  const bool signals = record.kind == RecordKind::kPut && record.other != kNoPortSignal;
  if (answer.later != nullptr) {
    peer->later[record.rank] = answer.later;
  } else if (answer.kind == RecordKind::kDone) {
    answer.later = memory_->Written(record.rank, signals ? record.other : record.offset);
  }
  if (!signals || code != StatusCode::kOk) {
    peer->patience = 0;
  } else if (peer->answers.empty()) {
    peer->patience = kPollsForSignals;
  }
  AddAnswer(peer, std::move(answer));
  if (peer->answers.size() > kMaxAnswers || peer->answer_bytes > kMaxAnswerBytes) {
    return absl::ResourceExhaustedError("it asks for more than is allowed at a time");
  }
  return absl::OkStatus();
}

void Engine::AddAnswer(Peer* peer, Answer answer) {
  Activate(peer);
  if (answer.kind == RecordKind::kDone && !peer->answers.empty() &&
      peer->answers.back().kind == RecordKind::kDone &&
      peer->answers.back().later == answer.later) {
    ++peer->answers.back().bytes;
    return;
  }
  if (answer.kind == RecordKind::kData) peer->answer_bytes += answer.bytes;
  peer->answers.push_back(std::move(answer));
}

absl::Status Engine::OnAnswer(Peer* peer, const Record& record, const char* data) {
  const uint64_t n = record.kind == RecordKind::kDone ? record.bytes : 1;
  if (n == 0 || n > peer->unanswered.size()) {
    return absl::InvalidArgumentError("it answered what nobody asked");
  }
  Activate(peer);
  for (uint64_t i = 0; i < n; ++i) {
    const Unanswered asked = peer->unanswered.front();
    peer->unanswered.pop_front();
    peer->unanswered_bytes -= asked.bytes * asked.rows;
    Lane* const lane = asked.lane;
    if (lane == nullptr) {
      if (record.kind != RecordKind::kDone) {
        return absl::InvalidArgumentError("its answer does not fit the offer");
      }
      if (asked.kind == RecordKind::kWithdraw) peer->withdrawn.erase(asked.place);
      continue;
    }
    Ring::Slot& slot = lane->ring->slot(asked.index);
    const bool is_put = asked.kind == RecordKind::kPut || asked.kind == RecordKind::kPutRows;
    bool fits = false;
    StatusCode code = StatusCode::kOk;
    switch (record.kind) {
      case RecordKind::kDone:
        fits = is_put;
        break;
      case RecordKind::kValue:
        fits = asked.kind == RecordKind::kAtomic;
        slot.value = record.value;
        break;
      case RecordKind::kError:
        fits =
            record.value > 0 && record.value <= static_cast<uint64_t>(StatusCode::kUnauthenticated);
        code = static_cast<StatusCode>(record.value);
        break;
      case RecordKind::kData:
        fits = !is_put && asked.kind != RecordKind::kAtomic &&
               record.bytes == asked.bytes * asked.rows;
        for (uint64_t r = 0; fits && r < asked.rows && code == StatusCode::kOk; ++r) {
          code = WriteLocal(lane->ring, slot.request, asked.place + r * asked.stride,
                            data + r * asked.bytes, asked.bytes);
        }
        if (fits && code == StatusCode::kOk && slot.request.space == PortSpace::kHeap) {
          code = memory_->Finish(lane->ring->rank(), asked.place);
        }
        break;
      default:
        break;
    }
    --slot.unanswered;
    --lane->messages;
    if (asked.large_get) --lane->large_gets;
    if (lane->messages == 0 || (asked.large_get && lane->large_gets == 0)) Resume(peer, lane);
    if (slot.status == StatusCode::kOk) slot.status = fits ? code : StatusCode::kInternal;
    Settle(lane->ring, asked.index);
    if (!fits) return absl::InvalidArgumentError("its answer does not fit the request");
  }
  return absl::OkStatus();
}

}  // namespace iris::port
