// What a job that spans several nodes does more: its nodes join together, follow the leader's
// decisions, and are told when others are lost.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/rendezvous.h"

namespace iris::server {
namespace {

using Node = JobNodes::Node;

constexpr size_t kMaxFabricText = 300;

bool IsOver(RankState state) {
  return state == RankState::kEnding || state == RankState::kDead || state == RankState::kLeft;
}

std::string NameOf(NodeId node, absl::string_view host) {
  return absl::StrCat("node ", CleanText(host, 64), " (from rank ", node, ")");
}

void MarkLost(Node& node, const std::string& because) {
  if (node.state == Node::State::kLost) return;
  node.state = Node::State::kLost;
  node.lost_because = because;
}

// Lets nodes that follow each other in one fabric domain map each other, as far as there is room in
// a window.
void JoinDomains(JobNodes& nodes, uint64_t stride_bytes) {
  const uint64_t most = std::min<uint64_t>(wire::kMaxRanks, wire::kMaxWindowBytes / stride_bytes);
  uint64_t n_mapped = 0;
  const Node* before = nullptr;
  for (auto& [id, node] : nodes.all) {
    node.with_previous = before != nullptr && !node.handles.empty() && !before->handles.empty() &&
                         node.fabric == before->fabric && n_mapped + node.n_ranks <= most;
    n_mapped = node.with_previous ? n_mapped + node.n_ranks : node.n_ranks;
    before = &node;
  }
}

// Returns an error unless there are handles of `n` ranks.
absl::Status CheckHandles(const std::vector<std::string>& handles, uint64_t n) {
  const bool good =
      handles.size() == n && std::all_of(handles.begin(), handles.end(), [](const auto& handle) {
        return handle.size() == wire::kFabricHandleBytes;
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(handles.size(), " fabric handles, or malformed ones, for ", n, " ranks"));
}

// Returns how many handles the messages for a node have: of all ranks that its ranks map, if some
// are of another node.
uint64_t NumberOfHandles(const Job& job) {
  return job.nodes->MapsOthers(job.nodes->own) ? job.end_mapped() - job.first_mapped() : 0;
}

// Returns an error if the parts are not those of a job of `n_ranks`, in order, with this node.
absl::Status CheckParts(const std::vector<NodePart>& parts, const JobNodes& nodes,
                        uint32_t n_ranks) {
  uint64_t next = 0, n_mapped = 0;
  bool has_own = false;
  std::string fabric;  // of the node before
  for (const NodePart& part : parts) {
    if (part.node != next || part.n_ranks == 0 || part.n_ranks > wire::kMaxRanks) {
      return absl::InvalidArgumentError("the ranks of the nodes do not follow each other");
    }
    n_mapped = part.with_previous ? n_mapped + part.n_ranks : part.n_ranks;
    if (n_mapped > wire::kMaxRanks ||
        (part.with_previous && (next == 0 || part.fabric != fabric))) {
      return absl::InvalidArgumentError("ranks would map each other that cannot");
    }
    fabric = part.fabric;
    has_own |= part.node == nodes.own && part.n_ranks == nodes.n_local;
    next += part.n_ranks;
  }
  if (has_own && next == n_ranks) return absl::OkStatus();
  return absl::InvalidArgumentError("the layout is of another job");
}

// Returns how many ranks of this node are on the device that most of them share.
uint32_t RanksPerDevice(const Job& job) {
  std::map<uint32_t, uint32_t> ranks;
  uint32_t most = 0;
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    most = std::max(most, ++ranks[job.ranks[rank].device_index]);
  }
  return most;
}

absl::Status Misplaced() { return absl::FailedPreconditionError("it grows the heap out of turn"); }

}  // namespace

void Rendezvous::On(const PortReady& in) {
  Job* const job = FindJob(in.job);
  if (job == nullptr || !job->nodes.has_value()) return;
  job->nodes->random = in.random;
  Node& own = job->nodes->all[job->nodes->own];
  own.name = CleanText(in.host, 64);
  own.fabric = CleanText(in.fabric, kMaxFabricText);
  if (job->state == JobState::kForming) LayOutIfComplete(*job);
}

void Rendezvous::On(const PortFailed& in) {
  Job* const job = FindJob(in.job);
  if (job == nullptr || !job->nodes.has_value()) return;
  const std::string reason =
      absl::StrCat("the port process of this node ended: ", CleanText(in.reason, 512));
  MarkLost(job->nodes->all[job->nodes->own], reason);
  job->nodes->outbox.clear();
  LoseRanks(
      *job, reason, [](const JobNodes&, Rank, NodeId) { return true; }, 0);
}

void Rendezvous::DropTaken(JobNodes& nodes, uint64_t taken) {
  while (!nodes.outbox.empty() && nodes.outbox.front().number <= taken) nodes.outbox.pop_front();
}

bool Rendezvous::Hear(JobNodes& nodes, uint64_t number) {
  if (number != 0 && number <= nodes.heard) return false;
  nodes.heard = std::max(nodes.heard, number);
  return true;
}

void Rendezvous::On(const PortTook& in) {
  Job* const job = FindJob(in.job);
  if (job != nullptr && job->nodes.has_value()) DropTaken(*job->nodes, in.taken);
}

void Rendezvous::On(const NodeConnected& in) {
  Job* const job = FindJob(in.job);
  if (job == nullptr || !job->nodes.has_value() || !Hear(*job->nodes, in.number)) return;
  if (job->nodes->epoch != 0) return;
  // The port process belongs to the job's user, and may name any node.
  const bool may =
      job->nodes->leads() ? in.node < job->n_ranks() && !job->IsLocal(in.node) : in.node == kLeader;
  if (!may) return;
  Node& node = job->nodes->all[in.node];
  node.name = CleanText(in.name, 64);
  Note(*job, event::NodeConnected{in.node, node.name});
  if (!job->nodes->leads() &&
      std::as_const(*job).nodes->all.at(job->nodes->own).state == Node::State::kJoined) {
    TellJoined(*job);
  }
}

void Rendezvous::On(const NodeLost& in) {
  Job* const job = FindJob(in.job);
  if (job == nullptr || !job->nodes.has_value() || !Hear(*job->nodes, in.number)) return;
  JobNodes& nodes = *job->nodes;
  const auto found = nodes.all.find(in.node);
  if (in.node == nodes.own || found == nodes.all.end()) return;
  const std::string host = found->second.name;
  const std::string reason = absl::StrCat(
      nodes.leads() ? "" : "the connection to ", NameOf(in.node, host),
      nodes.leads() ? " is lost: " : ", which leads the job, is lost: ", CleanText(in.reason, 512));
  Note(*job, event::NodeLost{in.node, host, CleanText(in.reason, 512)});
  if (job->state == JobState::kForming) {
    // The node may come again, or its ranks time out.
    nodes.all.erase(found);
    if (!nodes.leads()) FailJob(*job, ErrorOf(*job, Code::kAborted, "join", reason), false);
    return;
  }
  MarkLost(found->second, CleanText(in.reason, 512));
  if (nodes.leads()) TellNodes(*job, NodeIsLost{in.node, reason});
  LoseRanks(
      *job, reason,
      [](const JobNodes& of, Rank rank, NodeId node) {
        const auto* const has = of.NodeOf(rank);
        return !of.leads() || (has != nullptr && has->first == node);
      },
      in.node);
}

void Rendezvous::LoseRanks(Job& job, const std::string& reason,
                           bool (*lost)(const JobNodes&, Rank, NodeId), NodeId node) {
  if (job.is_starting()) return FailJob(job, ErrorOf(job, Code::kAborted, "join", reason), false);
  bool breaks = false;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const RankState state = std::as_const(job).ranks[rank].state;
    if (job.IsLocal(rank) || state == RankState::kDead || state == RankState::kLeft ||
        !lost(*job.nodes, rank, node)) {
      continue;
    }
    SetState(job, rank, RankState::kDead, true);
    NotifyPeers(job, rank, reason);
    breaks = true;
  }
  if (breaks && job.state == JobState::kReady) Break(job, reason);
  EndIfEmpty(job);
}

void Rendezvous::NodeHasJoined(Job& job) {
  JobNodes& nodes = *job.nodes;
  Node& own = nodes.all[nodes.own];
  if (own.state == Node::State::kJoined) return;
  own.state = Node::State::kJoined;
  if (nodes.leads()) return LayOutIfComplete(job);
  // Messages are lost before there is a connection.
  if (nodes.all.contains(kLeader)) TellJoined(job);
}

void Rendezvous::TellJoined(Job& job) {
  NodeJoined joined{.n_ranks = job.n_ranks(),
                    .heap_bytes = job.heap_bytes,
                    .stride_bytes = job.stride_bytes,
                    .team_sync_bytes = job.team_sync_bytes,
                    .pids = {},
                    .fabric = job.nodes->all.at(job.nodes->own).fabric,
                    .ranks_per_device = RanksPerDevice(job),
                    .handles = OwnHandles(OwnSegmentsOf(job))};
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    joined.pids.push_back(std::as_const(job).ranks[rank].lease.process.pid);
  }
  TellNodes(job, std::move(joined));
}

void Rendezvous::NodeWithdraws(Job& job) {
  if (!job.nodes.has_value()) return;
  Node& own = job.nodes->all[job.nodes->own];
  if (std::exchange(own.state, Node::State::kConnected) != Node::State::kJoined) return;
  if (!job.nodes->leads()) TellNodes(job, NodeWithdrawn{});
}

void Rendezvous::LayOutIfComplete(Job& job) {
  JobNodes& nodes = *job.nodes;
  if (!nodes.leads() || nodes.random == 0) return;
  uint64_t n_joined = 0;
  for (const auto& [id, node] : nodes.all) {
    if (node.state == Node::State::kJoined) n_joined += node.n_ranks;
  }
  if (n_joined < job.n_ranks()) return;
  std::erase_if(nodes.all,
                [](const auto& each) { return each.second.state != Node::State::kJoined; });
  nodes.all[nodes.own].handles = OwnHandles(OwnSegmentsOf(job));
  nodes.all[nodes.own].ranks_per_device = RanksPerDevice(job);
  JoinDomains(nodes, job.stride_bytes);
  if (absl::Status s = CheckParts(nodes.Parts(), nodes, job.n_ranks()); !s.ok()) {
    return FailJob(job, ErrorOf(job, Code::kInvalidArgument, "join", s.message()));
  }
  TellHandles(job, NodesJoined{nodes.random, nodes.Parts(), {}});
  LayOut(job, nodes.random, nodes.HandlesFor(nodes.own));
}

void Rendezvous::LayOut(Job& job, uint64_t epoch, const std::vector<std::string>& handles) {
  const uint64_t n_others = (job.end_mapped() - job.first_mapped()) - job.nodes->n_local;
  if (absl::Status s = CheckDescriptors(n_others, job.party); !s.ok()) {
    return FailJob(job, ErrorOf(job, Code::kResourceExhausted, "join",
                                "memory of other nodes of the fabric domain: ", s.message()));
  }
  job.nodes->epoch = epoch;
  for (size_t i = 0; i < handles.size(); ++i) {
    const Rank rank = job.first_mapped() + static_cast<Rank>(i);
    if (job.IsLocal(rank)) continue;
    const SegmentId id = Import(job, rank, 0, job.heap_bytes, handles[i]);
    job.ranks[rank].segments.push_back(id);
  }
  Emit(SetLayout{job.id, epoch, job.nodes->Parts(), OwnSegmentsOf(job)});
  StartMapping(job);
}

void Rendezvous::NodeHasMapped(Job& job) {
  JobNodes& nodes = *job.nodes;
  Node& own = nodes.all[nodes.own];
  own.state = Node::State::kMapped;
  own.same_address = true;
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    own.same_address &= std::as_const(job).ranks[rank].base == wire::kProposedBase;
  }
  if (nodes.leads()) return CommitIfMapped(job);
  TellNodes(job, NodeMapped{own.same_address});
}

void Rendezvous::CommitIfMapped(Job& job) {
  const auto& all = job.nodes->all;
  const bool mapped = std::all_of(all.begin(), all.end(), [](const auto& each) {
    return each.second.state == Node::State::kMapped;
  });
  if (!mapped) return;
  const bool same_address = std::all_of(all.begin(), all.end(),
                                        [](const auto& each) { return each.second.same_address; });
  TellNodes(job, NodesMapped{same_address});
  CommitNodes(job, same_address);
}

void Rendezvous::CommitNodes(Job& job, bool same_address) {
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (!job.IsLocal(rank)) job.ranks[rank].base = same_address ? wire::kProposedBase : 0;
  }
  Commit(job);
}

void Rendezvous::On(const NodeSaid& in) {
  Job* const job = FindJob(in.job);
  if (job == nullptr || !job->nodes.has_value()) return;
  DropTaken(*job->nodes, in.taken);
  if (!Hear(*job->nodes, in.number)) return;
  const JobNodes& nodes = *job->nodes;
  const auto found = nodes.all.find(in.node);
  const bool may = in.node != nodes.own && found != nodes.all.end() &&
                   found->second.state != Node::State::kLost &&
                   (nodes.leads() || in.node == kLeader);
  if (!may) return;
  const std::string host = found->second.name;
  const absl::Status handled =
      std::visit([&](const auto& message) { return Handle(*job, in.node, message); }, in.message);
  if (handled.ok()) return;
  Job* const still = FindJob(in.job);
  if (still == nullptr) return;
  const std::string reason = absl::StrCat("the irisd of ", NameOf(in.node, host),
                                          " said what does not fit: ", handled.message());
  if (still->is_starting()) {
    return FailJob(*still, ErrorOf(*still, Code::kAborted, "join", reason));
  }
  On(NodeLost{in.job, in.node, reason});
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const NodeJoined& message) {
  JobNodes& nodes = *job.nodes;
  if (!nodes.leads() || job.state != JobState::kForming) {
    return absl::FailedPreconditionError("it joins a job that does not form");
  }
  const uint64_t n = message.pids.size();
  if (n == 0 || n > wire::kMaxRanks || from + n > job.n_ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(n, " ranks join from rank ", from, " on"));
  }
  const struct {
    absl::string_view field;
    uint64_t there;
    uint64_t here;
  } kFields[] = {{"n_ranks", message.n_ranks, job.n_ranks()},
                 {"heap_bytes", message.heap_bytes, job.heap_bytes},
                 {"max_heap_bytes", message.stride_bytes, job.stride_bytes},
                 {"team_sync_bytes", message.team_sync_bytes, job.team_sync_bytes}};
  for (const auto& [field, there, here] : kFields) {
    if (there == here) continue;
    FailJob(job, ErrorOf(job, Code::kInvalidArgument, "join", "ranks ", from, " to ", from + n - 1,
                         " on ", NameOf(from, nodes.all[from].name), " said ", field, "=", there,
                         ", but those of ", NameOf(nodes.own, nodes.all[nodes.own].name), " said ",
                         here));
    return absl::OkStatus();
  }
  if (!message.handles.empty()) {
    if (absl::Status s = CheckHandles(message.handles, n); !s.ok()) return s;
  }
  Node& node = nodes.all[from];
  node.state = Node::State::kJoined;
  node.n_ranks = static_cast<uint32_t>(n);
  node.fabric = CleanText(message.fabric, kMaxFabricText);
  node.ranks_per_device = message.ranks_per_device;
  node.handles = message.handles;
  for (uint32_t i = 0; i < n; ++i) {
    if (job.IsLocal(from + i)) return absl::InvalidArgumentError("it has ranks of this node");
    job.ranks[from + i].lease.process.pid = message.pids[i];
  }
  LayOutIfComplete(job);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const NodeWithdrawn& /*message*/) {
  if (job.state != JobState::kForming) {
    return absl::FailedPreconditionError("one of its ranks gave up while the others mapped");
  }
  job.nodes->all[from].state = Node::State::kConnected;
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const NodesJoined& message) {
  JobNodes& nodes = *job.nodes;
  if (nodes.leads() || nodes.epoch != 0 || message.epoch == 0) {
    return absl::FailedPreconditionError("it lays out a job that has its layout");
  }
  if (job.state != JobState::kForming || nodes.all[nodes.own].state != Node::State::kJoined) {
    return absl::FailedPreconditionError("a rank of this node gave up meanwhile");
  }
  if (absl::Status s = CheckParts(message.nodes, nodes, job.n_ranks()); !s.ok()) return s;
  for (const NodePart& part : message.nodes) {
    Node& node = nodes.all[part.node];
    node.n_ranks = part.n_ranks;
    node.name = CleanText(part.name, 64);
    node.with_previous = part.with_previous;
    node.fabric = CleanText(part.fabric, kMaxFabricText);
    node.ranks_per_device = part.ranks_per_device;
  }
  if (absl::Status s = CheckHandles(message.handles, NumberOfHandles(job)); !s.ok()) return s;
  if (!message.handles.empty() && OwnHandles(OwnSegmentsOf(job)).empty()) {
    return absl::InvalidArgumentError("it maps the memory of a node that is in no fabric");
  }
  LayOut(job, message.epoch, message.handles);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const NodeMapped& message) {
  Node& node = job.nodes->all[from];
  if (!job.nodes->leads() || job.state != JobState::kMapping ||
      node.state != Node::State::kJoined) {
    return absl::FailedPreconditionError("it has mapped what is not being mapped");
  }
  node.state = Node::State::kMapped;
  node.same_address = message.same_address;
  CommitIfMapped(job);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const NodesMapped& message) {
  const JobNodes& nodes = *job.nodes;
  if (nodes.leads() || job.state != JobState::kMapping ||
      nodes.all.at(nodes.own).state != Node::State::kMapped) {
    return absl::FailedPreconditionError("it commits what is not mapped");
  }
  CommitNodes(job, message.same_address);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const OperationAsked& message) {
  const auto* const has = job.nodes->NodeOf(message.rank);
  if (!job.nodes->leads() || has == nullptr || has->first != from || job.is_starting()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", message.rank, " asks, which is none of it, or before its time"));
  }
  Team* const team = job.TeamOfNodes(message.team);
  if (team == nullptr) return absl::OkStatus();  // destroyed: the node is being told
  const int index = team->IndexOf(message.rank);
  if (index < 0 || message.k > team->next_k || message.k < team->position[index]) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", message.rank, " asks for operation #",
                                                   message.k, " of ", TeamText(message.team)));
  }
  if (message.k < team->next_k) {  // it has an outcome, which is on its way
    team->position[index] = message.k + 1;
    return absl::OkStatus();
  }
  team->position[index] = message.k;
  Ask(job, *team, static_cast<size_t>(index), CallId(),
      {.job = job.id,
       .team = message.team,
       .k = message.k,
       .timeout = message.timeout,
       .op = message.op,
       .only_thread = message.only_thread});
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const OperationDecided& message) {
  if (job.nodes->leads() || job.is_starting()) {
    return absl::FailedPreconditionError("it decides before its time");
  }
  return WithPrefix("an operation's outcome: ", Follow(job, message));
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const JoinsFailed& message) {
  if (!job.is_starting()) return absl::FailedPreconditionError("a join failed that is over");
  if (message.status.ok()) return absl::InvalidArgumentError("a join failed without an error");
  const bool leads = job.nodes->leads();
  // The node of the message ends its part by itself; the leader tells the others.
  if (leads) job.nodes->all.erase(from);
  // Its other ranks, which may come yet, would wait for ranks that have ended.
  FailAllJoins({job.party, job.name}, job.n_ranks(),
               {CleanStatus(message.status),
                from,
                now_.steady,
                now_.steady + limits_.join_timeout_default,
                {}},
               leads);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const RankIs& message) {
  if (message.rank >= job.n_ranks() || job.is_starting() || !IsOver(message.state)) {
    return absl::InvalidArgumentError("a rank's state");
  }
  const JobNodes& nodes = *job.nodes;
  const Rank rank = message.rank;
  if (job.IsLocal(rank)) return absl::OkStatus();  // what this node told comes back
  const auto* const has = nodes.NodeOf(rank);
  if (nodes.leads() && (has == nullptr || has->first != from)) {
    return absl::InvalidArgumentError("a rank's state, which is none of it");
  }
  const RankState before = std::as_const(job).ranks[rank].state;
  if (before == RankState::kDead || before == RankState::kLeft) return absl::OkStatus();
  if (nodes.leads()) TellNodes(job, message);
  job.ranks[rank].lease.process.pid = message.pid;
  const std::string reason = CleanText(message.reason, wire::kMaxErrorTextBytes);
  const bool left = message.state == RankState::kLeft;
  SetState(job, rank, message.state, !left);
  NotifyPeers(job, rank, reason);
  if (left) {
    if (nodes.leads()) FailGrowth(job, absl::AbortedError(reason));
    job.CloseAllOf(rank);
    DropAll(std::exchange(job.given_back, {}));
  } else if (job.state == JobState::kReady) {
    Break(job, reason);
  }
  ConcludeDeadTeams(job);
  EndIfEmpty(job);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const NodeIsLost& message) {
  if (job.nodes->leads()) return absl::InvalidArgumentError("only the leader tells of nodes");
  std::string reason = CleanText(message.reason, wire::kMaxErrorTextBytes);
  if (message.node == job.nodes->own) {
    reason = absl::StrCat("the leader gave this node up: ", reason);
    MarkLost(job.nodes->all[kLeader], reason);
    LoseRanks(
        job, reason, [](const JobNodes&, Rank, NodeId) { return true; }, 0);
    return absl::OkStatus();
  }
  const auto lost = job.nodes->all.find(message.node);
  if (lost != job.nodes->all.end()) MarkLost(lost->second, reason);
  LoseRanks(
      job, reason,
      [](const JobNodes& of, Rank rank, NodeId node) {
        const auto* const has = of.NodeOf(rank);
        return has != nullptr && has->first == node;
      },
      message.node);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const GrowthBegun& message) {
  if (job.nodes->leads() || job.is_starting()) return Misplaced();
  if (job.state == JobState::kBroken) return absl::OkStatus();  // the leader is being told
  if (const absl::Status begun = FollowGrowth(job, message); !begun.ok()) {
    TellNodes(job, GrowthCreated{message.grow, std::string(begun.message())});
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const GrowthCreated& message) {
  if (!job.nodes->leads() || job.is_starting()) return Misplaced();
  Node& node = job.nodes->all[from];
  const bool present = job.growth.has_value() && job.growth->id == message.grow;
  if (present && message.error.empty() && job.nodes->MapsOthers(from)) {
    if (absl::Status s = CheckHandles(message.handles, node.n_ranks); !s.ok()) return s;
    node.handles = message.handles;
  }
  NodeGrew(job, from, message.grow, /*mapped=*/false, message.error);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const GrowthMaps& message) {
  if (job.state == JobState::kBroken) return absl::OkStatus();
  if (job.nodes->leads() || !job.growth.has_value() || job.growth->leaders_id != message.grow ||
      job.growth->mapping || !GrewHere(job)) {
    return Misplaced();
  }
  if (absl::Status s = CheckHandles(message.handles, NumberOfHandles(job)); !s.ok()) return s;
  MapGrowth(job, message.handles);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId from, const GrowthMapped& message) {
  if (!job.nodes->leads() || job.is_starting()) return Misplaced();
  NodeGrew(job, from, message.grow, /*mapped=*/true, message.error);
  return absl::OkStatus();
}

absl::Status Rendezvous::Handle(Job& job, NodeId /*from*/, const GrowthEnded& message) {
  if (job.state == JobState::kBroken) return absl::OkStatus();
  if (job.nodes->leads()) return Misplaced();
  // A node that could not begin has none.
  if (!job.growth.has_value()) return message.published ? Misplaced() : absl::OkStatus();
  if (job.growth->leaders_id != message.grow) return Misplaced();
  if (!message.published) {
    FailGrowth(job, absl::ResourceExhaustedError(CleanText(message.reason, 512)));
    return absl::OkStatus();
  }
  if (!job.growth->mapping || !GrewHere(job)) return Misplaced();
  PublishGrowth(job);
  return absl::OkStatus();
}

}  // namespace iris::server
