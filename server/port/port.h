// Port: the port process of a job on one node. It connects to the ports of the job's other nodes,
// relays messages between the irisds of these nodes, and has an Engine carry out requests of local
// ranks. One thread; it sleeps when there is nothing to do. Owns the link to irisd's core.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/events/log.h"
#include "server/link/link.h"
#include "server/port/connection.h"
#include "server/port/engine.h"
#include "server/port/meeting.h"
#include "server/port/memory.h"
#include "server/port/port.pb.h"
#include "server/port/ucx.h"

namespace iris::port {

class Port {
 public:
  // `logger` is borrowed.
  static absl::StatusOr<std::unique_ptr<Port>> Create(wire::UniqueFd link,
                                                      const server::Logger* logger);

  // Waits for irisd's Setup, then opens UCX and the listening socket, and says Ready; or says why
  // not, which is also the error returned. `confine` is called in between, when no file is opened
  // any more.
  absl::Status Start(const std::function<absl::Status()>& confine);

  // Serves until irisd stops this process. If the link ends without that, another irisd may attach
  // within Setup::attach_ms, as long as its socket for that is open. Returns an error, which irisd
  // was told, if the port cannot go on.
  absl::Status Run();

 private:
  // A connection that exists. Its node is known once it is the initiator's, or confirmed.
  struct Line {
    std::unique_ptr<Connection> connection;
    std::optional<uint32_t> node;
    bool initiator = false;
    bool confirmed = false;  // the handshake is over, and the node fits the others
    bool watches_writes = false;
  };
  struct Node {
    int fd = -1;  // of its line
    uint32_t n_ranks = 0;
    std::string name;
    std::string address;
    std::optional<Address> target;  // this side connects
    absl::Time connect_at = absl::InfiniteFuture();
    absl::Time connect_by = absl::InfiniteFuture();
    absl::Time refused_by = absl::InfiniteFuture();  // from its first refusal on
    absl::Status last_error;
    bool connected = false;
    bool lost = false;
  };

  Port(wire::UniqueFd link, wire::UniqueFd epoll, const server::Logger* logger);

  bool leads() const { return setup_.first_rank() == 0; }
  bool MeetsByEtcd() const { return setup_.rendezvous().empty(); }
  absl::Status Open();
  absl::Status Watch(int fd, uint32_t events, bool change = false);

  // Waits for events and handles them.
  absl::Status HandleEvents(absl::Duration timeout);
  absl::Status ReadLink();
  absl::Status OnLinkMessage(server::LinkMessage message);
  absl::Status OnMemory(const Memory& memory, wire::UniqueFd fd);
  void Forget(uint64_t segment_id);
  absl::Status OnRank(const RankRing& rank, wire::UniqueFd fd);
  absl::Status OnLayout(const Layout& layout);
  void OnToNode(const NodeMessage& message);
  template <typename Message>
  void Tell(server::LinkType type, const Message& message);
  // Tells it with a number, and to the next irisd until it is acknowledged.
  template <typename Message>
  void TellKept(server::LinkType type, Message message);
  void TellReady();
  // Returns the number to tell irisd as taken.
  uint64_t TellTaken();
  void Acknowledged(uint64_t number);
  absl::Status FlushLink();

  // Another irisd.
  void LinkEnds();
  void OnAttach();
  void OnResume(const Resume& resume);

  void Accept();
  void AddLine(wire::UniqueFd fd, std::optional<uint32_t> node);
  void OnLine(int fd, uint32_t events);
  void OnFrame(int fd, const Connection::Frame& frame);
  void Confirm(int fd);
  void SendTo(uint32_t node, FrameType type, std::string_view payload);
  void FlushLine(int fd);
  // Counts refused connections, and logs some of them.
  void Refused(uint64_t n, absl::string_view reason);
  // Ends a line, and what depended on it.
  void EndLine(int fd, const absl::Status& why);
  void LoseNode(uint32_t node, const std::string& reason);
  void StartLine(uint32_t node);
  // Acts on what etcd says of the leader.
  void OnMeeting();
  // Asks for connections that the engine wants.
  void Meet(uint32_t node);

  absl::Time OnTimer(absl::Time now);
  void TellReport(absl::Time now);

  const server::Logger* const logger_;
  const wire::UniqueFd epoll_;
  wire::UniqueFd link_;  // not valid: no irisd is attached
  server::LinkReader reader_{server::LinkSender::kCore};
  server::LinkWriter writer_;
  bool link_blocked_ = false;
  wire::UniqueFd attach_;  // not valid: the port ends with its link
  absl::Time attach_by_ = absl::InfiniteFuture();
  bool awaits_resume_ = false;           // what is kept goes first on a new link
  uint64_t taken_ = 0, taken_told_ = 0;  // the number of the last message from irisd
  size_t taken_bytes_ = 0;               // since irisd was told last
  uint64_t n_told_ = 0;                  // with numbers
  struct Kept {
    uint64_t number = 0;
    server::LinkType type{};
    std::string payload;
  };
  std::deque<Kept> kept_;  // that are not acknowledged
  size_t kept_bytes_ = 0;
  bool over_ = false;
  StatusCode over_code_ = StatusCode::kUnavailable;
  absl::Status failed_;

  Setup setup_;
  bool is_set_up_ = false;
  Identity self_;
  Address rendezvous_;                // else meeting_
  std::unique_ptr<Meeting> meeting_;  // not destroyed before the end: that waits
  bool has_met_ = false;              // of the leader: etcd has its address
  absl::Status meeting_error_;        // the last one
  absl::Time meet_by_ = absl::InfiniteFuture();
  Interface interface_;
  wire::UniqueFd listener_;
  std::unique_ptr<HeapMemory> memory_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<UcxWorker> worker_;
  std::map<int, Line> lines_;
  std::map<uint32_t, Node> nodes_;
  std::map<uint32_t, std::shared_ptr<PortMapping>> mappings_;  // that wait for their eventfd
  std::map<uint32_t, wire::UniqueFd> wakes_;                   // of ranks
  std::set<uint64_t> segments_;                                // ids of memory that was added
  std::optional<uint64_t> epoch_;                              // of the last layout
  absl::Time now_;
  absl::Time next_timer_ = absl::InfinitePast(), next_report_ = absl::InfinitePast();
  uint64_t refused_ = 0;
};

}  // namespace iris::port
