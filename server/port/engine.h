// Engine: carries out the requests of local ranks at other nodes, and the requests of other nodes
// here. It has the rings, the peers and their queues. One thread calls it; it never waits.
//
// Requests of one ring to one node keep their order; so do messages between two nodes. What is
// underway to a node is bounded; the rest stays in the rings. A slow node delays only requests to
// itself, and later ones of a ring that is full.
//
// Where the worker has direct access, a node offers its memory to the others, and large data is
// written and read by UCX's put and get, without the other node's CPU. A lane has either messages
// or direct copies underway, so that they do not overtake each other, and no two direct copies of
// one place.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/port/memory.h"
#include "server/port/records.h"
#include "server/port/ring.h"
#include "server/port/ucx.h"

namespace iris::port {

struct NodeRange {
  uint32_t first_rank = 0;
  uint32_t n_ranks = 0;
};

// The values that authenticate the data of a connection, in each direction.
struct Tags {
  uint64_t sent = 0;
  uint64_t received = 0;
};

class Engine {
 public:
  // `memory` is borrowed, and so is the worker that SetWorker names.
  Engine(const RequestLimits& limits, HeapMemory* memory);
  ~Engine();

  // Memory was added, respectively is about to be forgotten.
  void Offer(uint32_t rank, uint64_t offset_bytes);
  void Withdraw(uint64_t segment_id);
  // Why memory could not be offered, for a log; OK if there is nothing new.
  absl::Status TakeFailure() { return std::exchange(failure_, absl::OkStatus()); }

  // The handlers of the worker.
  void OnMessage(std::string_view header, std::string_view data);
  void OnSent(UcxWorker::SendTag* tag, bool ok);
  void OnFailed(void* tag, const char* reason);
  void SetWorker(UcxWorker* worker) { worker_ = worker; }

  // The job's nodes, this one included. Data flows from now on. kInvalidArgument if the nodes are
  // not those of this job; call it once.
  absl::Status SetLayout(uint64_t epoch, const std::vector<NodeRange>& nodes);
  bool has_layout() const { return !node_of_.empty(); }

  void Attach(uint32_t rank, std::shared_ptr<PortMapping> mapping);

  // Of two nodes, kFirst makes UCX's connection, and sends an empty message over it; kSecond does
  // not know yet whether the other has its tags, and sends nothing before AllowSending and that
  // message. If both connected at once, UCX would close one of the two connections, which on a
  // network that loses frames can end the other one.
  enum class Turn { kFirst, kSecond };
  // A node can be reached, by the worker with this address. Before or after SetLayout. Messages of
  // the node are taken from now on.
  absl::Status Connect(uint32_t node, std::string_view address, const Tags& tags, Turn turn);
  void AllowSending(uint32_t node);
  // A node is lost: requests to it end with kAborted, now and later.
  void Lose(uint32_t node);

  // Takes requests, sends and receives. Returns true if anything happened.
  bool Poll();
  // True if a ring has a request to take.
  bool HasRequests() const;
  // Writes PortMemory::asleep of all ranks.
  void SetAsleep(bool asleep);
  // Ends all requests, and tells the ranks with `code` that no more are taken. What other nodes
  // still send is refused.
  void Stop(StatusCode code);

  // Nodes to which a connection is needed, since the last call.
  std::vector<uint32_t> TakeWanted() { return std::exchange(wanted_, {}); }
  // Nodes whose connection failed or that broke the protocol, and the reasons, since the last call.
  std::vector<std::pair<uint32_t, std::string>> TakeBroken() { return std::exchange(broken_, {}); }
  // What was exchanged with a node, in messages and by this node's direct copies, and how.
  struct Traffic {
    uint64_t sent_bytes = 0;
    uint64_t received_bytes = 0;
    std::string transport;  // what UCX uses for messages
    bool direct = false;    // the node has offered memory
  };
  Traffic TrafficWith(uint32_t node) const;
  // Messages that came from no peer of this job.
  uint64_t refused() const { return refused_; }

 private:
  struct Peer;
  struct Sending;
  struct Message;
  struct Copy;
  struct Window;
  struct Remote;
  struct Part;
  struct Lane;
  struct Unanswered;
  struct Answer;

  Peer* PeerOf(uint32_t node);
  void Activate(Peer* peer);
  // Puts a request that was taken into its lane, or ends it.
  void Queue(Ring* ring, uint32_t index);
  // Ends a request if nothing of it is underway.
  void Settle(Ring* ring, uint32_t index);
  void Resume(Peer* peer, Lane* lane);

  void Pump(Peer* peer);
  // Makes the peer's endpoint, unless it has to be heard first.
  absl::Status MakeEndpoint(Peer* peer);
  // Send the next answer, respectively the next part of a request. False if there is none, or no
  // room for it.
  bool SendAnswer(Peer* peer);
  bool SendOffer(Peer* peer);
  bool SendRequest(Peer* peer);
  bool Issue(Peer* peer, Lane* lane, Ring::Slot* slot);
  bool IssuePut(Peer* peer, Lane* lane, Ring::Slot* slot);
  bool IssueGet(Peer* peer, Lane* lane, Ring::Slot* slot);
  void Expect(Peer* peer, const Unanswered& unanswered);
  static Part NextPart(const Ring::Slot& slot);
  // The next part of the lane's first request, if it can be copied directly.
  std::optional<Copy> FindDirect(Peer* peer, Lane* lane);
  // Starts it. False if too much is underway.
  bool IssueDirect(const Copy& found);
  void OnCopied(Copy* copy, bool ok);
  // Copy from and to the space of a request.
  StatusCode ReadLocal(Ring* ring, const PortRequest& request, uint64_t place, void* to,
                       uint64_t bytes);
  StatusCode WriteLocal(Ring* ring, const PortRequest& request, uint64_t place, const void* from,
                        uint64_t bytes);

  // The message to which records are added; null if too much is underway.
  Message* Batch(Peer* peer);
  // Returns the place for the record's data.
  char* AddRecord(Message* message, const Record& record);
  void SendBatch(Peer* peer);
  // False if too much is underway to start another message.
  bool HasRoom(const Peer* peer) const;
  // Sends one record with data that stays where it is. Needs room.
  void SendFrom(Peer* peer, const Record& record, const void* data, std::shared_ptr<const void> pin,
                Ring* ring, uint32_t index);
  void Send(Peer* peer, Message* message, const void* data, uint64_t bytes, bool empty = false);
  Message* NewMessage(Peer* peer);
  void Recycle(Message* message);

  // Keeps a message, or what is left of one, until it may be executed.
  void Hold(Peer* peer, uint64_t sequence, std::string_view header, std::string_view data);
  // After a message was executed with this result, executes those that are held and follow it.
  void ExecuteAll(Peer* peer, absl::Status status);
  // Looks whether a device has done what the peer waits for.
  void GoOn(Peer* peer);
  // False if the request has to wait until a device has done an earlier one of this peer.
  bool MayExecute(Peer* peer, const Record& record);
  absl::Status Execute(Peer* peer, std::string_view header, std::string_view data);
  absl::Status ExecuteOne(Peer* peer, const Record& record, const char* data);
  absl::Status OnAnswer(Peer* peer, const Record& record, const char* data);
  absl::Status OnOffer(Peer* peer, const Record& record, const char* data);
  // The answer is due when the result is done.
  std::shared_ptr<const DeviceQueue::Outcome> OnWithdraw(Peer* peer, uint64_t id);
  void AddAnswer(Peer* peer, Answer answer);
  void Break(Peer* peer, std::string reason);

  const RequestLimits limits_;
  HeapMemory* const memory_;
  UcxWorker* worker_ = nullptr;
  uint64_t epoch_ = 0;
  std::vector<uint32_t> node_of_;                    // by rank: first rank of its node
  std::vector<std::unique_ptr<Ring>> rings_;         // by local rank * kPortRings + ring
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;  // they stay until the end
  Peer* last_peer_ = nullptr;                        // that PeerOf returned
  std::vector<Peer*> active_;
  // Handled by Poll, since sends and callbacks of UCX are within loops over a peer's queues.
  std::vector<std::pair<Peer*, std::string>> failing_;
  std::vector<ucp_ep_h> closing_;
  std::vector<std::unique_ptr<Message>> messages_;  // all
  std::vector<Message*> free_;
  std::map<uint64_t, std::shared_ptr<const Window>> windows_;  // offered memory, by segment
  std::vector<std::unique_ptr<Copy>> copies_;                  // all
  std::vector<Copy*> free_copies_;
  absl::Status failure_;
  bool has_failed_ = false;
  std::vector<uint32_t> wanted_;
  std::vector<std::pair<uint32_t, std::string>> broken_;
  uint64_t refused_ = 0;
  bool stopped_ = false;
};

}  // namespace iris::port
