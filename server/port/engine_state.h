// The parts of an Engine, for engine.cc and direct_copies.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/port/engine.h"

namespace iris::port {

struct Engine::Lane {
  Ring* ring = nullptr;
  uint32_t head = 0, tail = 0;  // slots, a list through Ring::Slot::next
  bool empty = true;
  bool in_turn = false;
  // Gets whose data the peer sends from where it lies. Puts and atomics wait for them, so that they
  // do not overtake the peer's reads.
  uint32_t large_gets = 0;
  uint32_t messages = 0;      // records without an answer
  std::vector<Copy*> copies;  // direct ones, underway
};

// A record whose answer has not come.
struct Engine::Unanswered {
  Lane* lane = nullptr;  // null: of this node itself, an offer or the end of one
  uint32_t index = 0;
  RecordKind kind{};
  bool large_get = false;
  uint64_t place = 0;  // of gets: in the request's space; of withdrawals: the id
  uint64_t bytes = 0;  // of a row
  uint64_t rows = 1;
  uint64_t stride = 0;
};

// An answer that is not sent yet.
struct Engine::Answer {
  RecordKind kind{};
  uint32_t rank = 0;  // kData without `data`: it is sent from this place
  uint64_t offset = 0;
  uint64_t bytes = 0;  // kDone: records
  uint64_t value = 0;
  std::string data;
  HeapMemory::Later
      later;  // not null: it is sent when the device has done it; several may share it
};

// Memory of this node that other nodes may access directly.
struct Engine::Window {
  std::shared_ptr<const HeapMemory::Segment> segment;
  std::unique_ptr<UcxWorker::Region> region;
};

// Memory that a peer has offered.
struct Engine::Remote {
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t address = 0;
  std::unique_ptr<UcxWorker::RemoteRegion> region;
  uint32_t copies = 0;                              // underway
  std::shared_ptr<DeviceQueue::Outcome> withdrawn;  // done when there are none
};

// What comes next of a request, in its current row.
struct Engine::Part {
  uint64_t total = 0;   // of the request
  uint64_t row = 0;     // number of the row
  uint64_t within = 0;  // the row: where
  uint64_t left = 0;    // of the row; 0: nothing of the request
  uint64_t local = 0, remote = 0;
};

struct Engine::Peer {
  enum class State { kUnconnected, kConnected, kLost };

  uint32_t node = 0;
  State state = State::kUnconnected;
  bool may_send = true;
  bool greets = false;   // an empty message goes first
  std::string address;   // of the worker, until there is an endpoint
  bool is_heard = true;  // so that an endpoint may be made
  bool wanted = false;
  bool active = false;
  ucp_ep_h endpoint = nullptr;
  Tags tags;
  uint64_t next_sent = 0;
  uint64_t next_received = 0;
  std::unordered_map<uint32_t, std::unique_ptr<Lane>> lanes;  // by Ring::id
  std::deque<Lane*> turn;                                     // those with requests that may go
  std::deque<Unanswered> unanswered;
  uint64_t unanswered_bytes = 0;
  std::deque<Answer> answers;
  uint64_t answer_bytes = 0;
  uint32_t patience = 0;  // for so many polls the answers wait for requests to go with
  Message* batch = nullptr;
  uint64_t sending_bytes = 0;
  uint32_t sending_messages = 0;
  std::deque<std::pair<RecordKind, std::shared_ptr<const Window>>> offers;  // to be sent
  std::map<uint64_t, std::shared_ptr<const Window>> withdrawn;  // by id, until the peer answers
  std::map<std::pair<uint32_t, uint64_t>, std::shared_ptr<Remote>> remotes;  // by rank and offset
  uint64_t copying_bytes = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;                   // in all
  std::map<uint64_t, std::pair<std::string, std::string>> held;  // by sequence
  size_t held_bytes = 0;
  // The last atomic that a device has not done, by rank. Other requests to the rank wait for it,
  // and with them all that this peer has sent later: then the first one held is what is left of a
  // message.
  std::map<uint32_t, HeapMemory::Later> later;
  bool waits = false;
};

struct Engine::Sending : UcxWorker::SendTag {
  Peer* peer = nullptr;
  bool is_copy = false;
};

// A direct copy.
struct Engine::Copy : Sending {
  Lane* lane = nullptr;  // null: the peer is lost, and the request over
  uint32_t index = 0;
  bool is_get = false;
  uint32_t rank = 0;
  uint64_t offset = 0, bytes = 0;  // in the heap of `rank`
  uint64_t address = 0;            // in this process
  uint64_t remote_address = 0;
  std::shared_ptr<const Window> window;
  std::shared_ptr<Remote> remote;

  bool Excludes(const Copy& other) const {
    return rank == other.rank && !(is_get && other.is_get) && offset < other.offset + other.bytes &&
           other.offset < offset + bytes;
  }
};

struct Engine::Message : Sending {
  struct {
    MessageHeader header;
    Record record;
  } head;
  std::unique_ptr<char[]> body;
  size_t capacity = 0;
  size_t body_bytes = 0;
  uint64_t sending_bytes = 0;
  // The source of the data, if it is not the body.
  std::shared_ptr<const void> pin;
  Ring* ring = nullptr;
  uint32_t index = 0;
  uint64_t request = 0;  // PortRequest::sequence
};

}  // namespace iris::port
