// Pages of listings: each thing exactly once, also while others come and go; no reply beyond its
// limits; nothing of others; tokens that nobody gave.
#include "server/rpc/listings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "device/driver/emu_driver.h"
#include "proto/wire/limits.h"
#include "server/rpc/admin_calls.h"

namespace iris::server {
namespace {

constexpr Party kAlice{3001};
constexpr Party kBob{3002};

// The items of a listing, and its pages.
template <typename Item>
struct Listed {
  std::vector<Item> items;
  std::vector<size_t> page_sizes;
  size_t page_bytes_max = 0;
};

class ListingsTest : public testing::Test {
 protected:
  ListingsTest()
      : driver_(driver::CreateEmuDriver({.n_devices = 40, .memory_bytes_per_device = 1ull << 30})),
        logger_(LogLevel::kError, LogFormat::kKeyValue),
        daemon_(std::make_unique<Daemon>(DaemonOptions(), driver_.get(), &clock_, &logger_)) {}

  static CallerInfo Caller(const Party& party) {
    return {.pid = getpid(), .party = party, .gid = party.uid};
  }
  static CallerInfo Root() { return Caller({}); }

  SessionId Open(const Party& party) {
    const SessionId id{next_session_++};
    daemon_->Submit(SessionOpened{id, Caller(party)});
    return id;
  }
  void Close(SessionId session) { daemon_->Submit(ProcessGone{session}); }

  // The answer of a call.
  template <typename Make>
  Reply Call(Make make) {
    const CallId call = daemon_->NewCall();
    absl::Notification done;
    Reply answer;
    daemon_->Call(call, make(call), [&](const Reply& reply) {
      answer = reply;
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  // A job of one rank that is ready.
  struct OneRank {
    SessionId session;
    JobId job;
    uint64_t k = 0;
  };
  OneRank MakeJob(const Party& party, const std::string& name, uint64_t heap_bytes = 2 << 20) {
    OneRank one{.session = Open(party)};
    JoinSpec spec;
    spec.job = name;
    spec.n_ranks = 1;
    spec.heap_bytes = heap_bytes;
    const Reply joined = Call([&](CallId call) { return JoinCall{one.session, call, spec}; });
    EXPECT_TRUE(joined.status.ok()) << joined.status;
    const auto& result = std::get<JoinResult>(joined.result);
    one.job = result.job;
    const Reply mapped = Call([&](CallId call) {
      return MappedCall{one.session, call, one.job, result.epoch, result.proposed_base, ""};
    });
    EXPECT_TRUE(mapped.status.ok()) << mapped.status;
    return one;
  }
  uint64_t Operate(OneRank& one, Operation op) {
    const Reply reply = Call([&](CallId call) {
      return OperateCall{one.session, call, {one.job, kWorldTeam, one.k++, {}, std::move(op)}};
    });
    const auto& outcome = std::get<Outcome>(reply.result);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome.result.offset_bytes;
  }

  // Every page of a listing. `list(request, reply)` gets one; `between` runs after each but the
  // last.
  template <typename Request, typename Reply, typename Items, typename List, typename Between>
  static auto All(Request request, Items items, List list, Between between) {
    Listed<std::decay_t<decltype(items(Reply()).Get(0))>> listed;
    do {
      Reply reply;
      const absl::Status status = list(request, &reply);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) break;
      listed.page_sizes.push_back(static_cast<size_t>(items(reply).size()));
      listed.page_bytes_max = std::max(listed.page_bytes_max, reply.ByteSizeLong());
      for (const auto& item : items(reply)) listed.items.push_back(item);
      request.set_page_token(reply.next_page_token());
      if (!reply.next_page_token().empty()) between();
    } while (!request.page_token().empty());
    return listed;
  }

  template <typename Between>
  auto AllJobs(const CallerInfo& caller, uint32_t page_size, const std::string& job,
               Between between) {
    v1::ListJobsRequest request;
    request.set_page_size(page_size);
    request.set_job(job);
    return All<v1::ListJobsRequest, v1::ListJobsReply>(
        request, [](const auto& r) -> const auto& { return r.jobs(); },
        [&](const auto& r, auto* out) { return ListJobs(*daemon_, caller, r, out); }, between);
  }
  auto AllJobs(const CallerInfo& caller, uint32_t page_size = 0, const std::string& job = "") {
    return AllJobs(caller, page_size, job, [] {});
  }
  template <typename Between>
  auto AllAllocations(const CallerInfo& caller, uint32_t page_size, const std::string& job,
                      Between between) {
    v1::ListAllocationsRequest request;
    request.set_page_size(page_size);
    request.set_job(job);
    return All<v1::ListAllocationsRequest, v1::ListAllocationsReply>(
        request, [](const auto& r) -> const auto& { return r.allocations(); },
        [&](const auto& r, auto* out) { return ListAllocations(*daemon_, caller, r, out); },
        between);
  }
  auto Describe(const CallerInfo& caller, const std::string& job, uint32_t page_size = 0) {
    v1::DescribeJobsRequest request;
    request.set_page_size(page_size);
    request.set_job(job);
    return All<v1::DescribeJobsRequest, v1::DescribeJobsReply>(
        request, [](const auto& r) -> const auto& { return r.jobs(); },
        [&](const auto& r, auto* out) { return DescribeJobs(*daemon_, caller, r, out); }, [] {});
  }
  auto AllHeaps(const CallerInfo& caller, uint32_t page_size) {
    v1::ListHeapsRequest request;
    request.set_page_size(page_size);
    return All<v1::ListHeapsRequest, v1::ListHeapsReply>(
        request, [](const auto& r) -> const auto& { return r.heaps(); },
        [&](const auto& r, auto* out) { return ListHeaps(*daemon_, caller, r, out); }, [] {});
  }
  template <typename Between>
  auto AllSessions(const CallerInfo& caller, uint32_t page_size, Between between) {
    v1::ListSessionsRequest request;
    request.set_page_size(page_size);
    return All<v1::ListSessionsRequest, v1::ListSessionsReply>(
        request, [](const auto& r) -> const auto& { return r.sessions(); },
        [&](const auto& r, auto* out) { return ListSessions(*daemon_, caller, r, out); }, between);
  }

  const std::unique_ptr<driver::GpuDriver> driver_;
  const Logger logger_;
  const SystemClock clock_;
  std::unique_ptr<Daemon> daemon_;
  uint64_t next_session_ = 1;
};

template <typename Item, typename Key>
std::map<uint64_t, int> Count(const std::vector<Item>& items, Key key) {
  std::map<uint64_t, int> counts;
  for (const Item& item : items) ++counts[(item.*key)()];
  return counts;
}

TEST_F(ListingsTest, NothingIsOnePageWithoutAToken) {
  EXPECT_EQ(AllJobs(Root()).page_sizes, std::vector<size_t>{0});
  EXPECT_EQ(AllSessions(Root(), 0, [] {}).page_sizes, std::vector<size_t>{0});
  EXPECT_EQ(AllHeaps(Root(), 0).page_sizes, std::vector<size_t>{0});
  EXPECT_EQ(AllAllocations(Root(), 0, "", [] {}).page_sizes, std::vector<size_t>{0});
}

TEST_F(ListingsTest, PagesAreAsLargeAsWasAsked) {
  for (int i = 0; i < 7; ++i) MakeJob(kAlice, absl::StrCat("j", i));
  EXPECT_EQ(AllJobs(Root(), 3).page_sizes, (std::vector<size_t>{3, 3, 1}));
  EXPECT_EQ(AllJobs(Root(), 7).page_sizes, std::vector<size_t>{7});
  EXPECT_EQ(AllHeaps(Root(), 4).page_sizes, (std::vector<size_t>{4, 3}));
  EXPECT_EQ(AllSessions(Root(), 5, [] {}).page_sizes, (std::vector<size_t>{5, 2}));
  v1::ListDevicesRequest request;
  request.set_page_size(30);
  const auto devices = All<v1::ListDevicesRequest, v1::ListDevicesReply>(
      request, [](const auto& r) -> const auto& { return r.devices(); },
      [&](const auto& r, auto* out) { return ListDevices(*daemon_, Root(), r, out); }, [] {});
  EXPECT_EQ(devices.page_sizes, (std::vector<size_t>{30, 10}));
  EXPECT_EQ(devices.items[39].index(), 39u);
}

TEST_F(ListingsTest, APageHasADefaultAndALargestSize) {
  for (uint32_t i = 0; i < wire::kListPageMax + 10; ++i) Open(kAlice);
  const size_t by_default = wire::kListPageDefault, most = wire::kListPageMax;
  EXPECT_EQ(AllSessions(Root(), 0, [] {}).page_sizes[0], by_default);
  // So many may not fit into the bytes of a reply: that many at most.
  EXPECT_LE(AllSessions(Root(), 1'000'000, [] {}).page_sizes[0], most);
  EXPECT_EQ(AllSessions(Root(), 1'000'000, [] {}).items.size(), most + 10);
}

TEST_F(ListingsTest, NoReplyIsLargerThanTheProtocolSays) {
  OneRank one = MakeJob(kAlice, std::string(wire::kMaxJobNameBytes, 'j'), 64 << 20);
  constexpr int kAllocations = 3000;
  for (int i = 0; i < kAllocations; ++i) {
    AllocateOp op{.bytes = 1024, .name = absl::StrCat(std::string(120, 'n'), i)};
    op.tensor.dtype = std::string(wire::kMaxDtypeBytes, 'd');
    op.tensor.shape.assign(wire::kMaxDims, UINT64_MAX);
    Operate(one, op);
  }
  const auto listed = AllAllocations(Root(), 1'000'000, "", [] {});
  EXPECT_EQ(listed.items.size(), size_t{kAllocations});
  EXPECT_LE(listed.page_bytes_max, wire::kMaxListBytes);
  EXPECT_GT(listed.page_bytes_max, wire::kMaxListBytes / 2);
  for (const auto& [offset, n] : Count(listed.items, &v1::Allocation::offset_bytes)) {
    EXPECT_EQ(n, 1) << offset;
  }
}

TEST_F(ListingsTest, WhatStaysIsSeenOnceWhileOthersComeAndGo) {
  OneRank one = MakeJob(kAlice, "a", 8 << 20);
  std::vector<uint64_t> staying, going;
  for (int i = 0; i < 600; ++i) {
    (i % 3 == 0 ? going : staying).push_back(Operate(one, AllocateOp{.bytes = 1024}));
  }
  size_t round = 0;
  const auto listed = AllAllocations(Root(), 16, "", [&] {
    // One goes, from either end, and two come, in its place and elsewhere.
    const size_t i = round % 2 == 0 ? round / 2 : going.size() - 1 - round / 2;
    ++round;
    if (i < going.size()) Operate(one, FreeOp{going[i]});
    Operate(one, AllocateOp{.bytes = 1024});
    Operate(one, AllocateOp{.bytes = 3000});
  });
  const auto counts = Count(listed.items, &v1::Allocation::offset_bytes);
  for (const uint64_t offset : staying) EXPECT_EQ(counts.at(offset), 1) << offset;
}

TEST_F(ListingsTest, JobsAndSessionsThatStayAreSeenOnceWhileOthersComeAndGo) {
  std::vector<OneRank> jobs;
  for (int i = 0; i < 30; ++i) jobs.push_back(MakeJob(kAlice, absl::StrCat("j", i)));
  size_t next = 0;
  const auto turn = [&] {
    if (next < jobs.size()) Close(jobs[next].session);
    next += 3;
    MakeJob(kAlice, absl::StrCat("new", next));
  };
  const auto listed = AllJobs(Root(), 4, "", turn);
  next = 1;
  const auto sessions = AllSessions(Caller(kAlice), 4, turn);
  const auto by_job = Count(listed.items, &v1::Job::job_id);
  const auto by_session = Count(sessions.items, &v1::Session::session_id);
  for (size_t i = 2; i < jobs.size(); i += 3) {
    EXPECT_EQ(by_job.at(jobs[i].job.value), 1);
    EXPECT_EQ(by_session.at(jobs[i].session.value), 1);
  }
  for (const auto& [id, n] : by_job) EXPECT_EQ(n, 1) << id;
  for (const auto& [id, n] : by_session) EXPECT_EQ(n, 1) << id;
}

TEST_F(ListingsTest, OthersAreNotShownOnAnyPage) {
  for (int i = 0; i < 9; ++i) {
    OneRank one = MakeJob(i % 3 == 0 ? kAlice : kBob, absl::StrCat("j", i));
    Operate(one, AllocateOp{.bytes = 1024, .name = "x"});
  }
  EXPECT_EQ(AllJobs(Caller(kAlice), 1).page_sizes, (std::vector<size_t>{1, 1, 1}));
  for (const auto& job : AllJobs(Caller(kAlice), 2).items) EXPECT_EQ(job.uid(), kAlice.uid);
  for (const auto& session : AllSessions(Caller(kAlice), 2, [] {}).items) {
    EXPECT_EQ(session.uid(), kAlice.uid);
  }
  for (const auto& heap : AllHeaps(Caller(kBob), 2).items) EXPECT_EQ(heap.uid(), kBob.uid);
  EXPECT_EQ(AllAllocations(Caller(kAlice), 1, "", [] {}).items.size(), 3u);
  // A token that root got is a position, and no right.
  v1::ListJobsRequest request;
  request.set_page_size(1);
  v1::ListJobsReply reply;
  ASSERT_TRUE(ListJobs(*daemon_, Root(), request, &reply).ok());
  request.set_page_token(reply.next_page_token());
  request.set_page_size(100);
  v1::ListJobsReply hers;
  ASSERT_TRUE(ListJobs(*daemon_, Caller(kAlice), request, &hers).ok());
  EXPECT_EQ(hers.jobs_size(), 2);
  for (const auto& job : hers.jobs()) EXPECT_EQ(job.uid(), kAlice.uid);
}

// The ports of all jobs, which report what the test says.
class FakePorts : public PortOutput {
 public:
  explicit FakePorts(PortReport report) : report_(std::move(report)) {}
  void Start(const StartPort& /*wanted*/,
             std::vector<std::shared_ptr<const RankPort>> /*ports*/) override {}
  void Attach(const AttachPort& /*wanted*/, std::vector<wire::UniqueFd> /*kept*/) override {}
  void LayOut(const SetLayout& /*layout*/, std::vector<PortSegment> /*segments*/) override {}
  void Send(const SendToNode& /*message*/) override {}
  void Stop(JobId /*job*/) override {}
  std::optional<PortReport> ReportOf(JobId /*job*/) const override { return report_; }

 private:
  const PortReport report_;
};

TEST_F(ListingsTest, NodesAreShownWithWhatTheirPortReports) {
  PortReport report;
  report.at = daemon_->SteadyNow() - absl::Seconds(2);
  report.transports = "tcp on eth0";
  report.refused_messages = 3;
  report.peers[2] = {.connected = true,
                     .address = "10.0.0.2:5000",
                     .heard_ms = 400,
                     .rtt_us = 90,
                     .clock_ahead_ns = -7,
                     .clock_error_ns = 1000,
                     .transport = "tcp/eth0",
                     .sent_bytes = 8,
                     .received_bytes = 9};
  FakePorts ports(std::move(report));
  daemon_->SetPortOutput(&ports);
  std::vector<JobId> jobs;
  for (const Party& party : {kAlice, kBob}) {
    JoinSpec spec;
    spec.job = "train";
    spec.n_ranks = 6;
    spec.heap_bytes = 2 << 20;
    spec.nodes = JoinNodes{0, 1, "10.0.0.1:4711", "0123456789abcdef"};
    const CallId call = daemon_->NewCall();
    daemon_->Call(call, JoinCall{Open(party), call, spec}, [](const Reply&) {});
    jobs.push_back(daemon_->Inspect(
        [&](const JobMachine& machine) { return machine.Jobs({.party = party}).at(0).id; }));
  }
  MakeJob(kAlice, "of one node");
  daemon_->Submit(PortReady{jobs[0], 77, "host-a"});
  daemon_->Submit(NodeConnected{jobs[0], 2, "host-b"});
  daemon_->Submit(NodeConnected{jobs[0], 5, "host-\033c"});

  v1::ListNodesRequest request;
  v1::ListNodesReply all;
  ASSERT_TRUE(ListNodes(*daemon_, Caller(kAlice), request, &all).ok());
  ASSERT_EQ(all.nodes_size(), 4) << all.DebugString();
  const v1::JobNode& here = all.nodes(0);
  EXPECT_TRUE(here.here() && here.leads());
  EXPECT_EQ(here.name(), "host-a");
  EXPECT_EQ(here.n_ranks(), 1u);
  EXPECT_EQ(here.state(), v1::NODE_STATE_CONNECTED);
  EXPECT_EQ(here.transport(), "tcp on eth0");
  EXPECT_EQ(here.refused_messages(), 3u);
  EXPECT_GE(here.heard_ms(), 2000u);
  EXPECT_EQ(all.nodes(1).node(), 1u);
  EXPECT_EQ(all.nodes(1).state(), v1::NODE_STATE_AWAITED);
  const v1::JobNode& other = all.nodes(2);
  EXPECT_EQ(other.node(), 2u);
  EXPECT_FALSE(other.here() || other.leads());
  EXPECT_EQ(other.name(), "host-b");
  EXPECT_EQ(other.state(), v1::NODE_STATE_CONNECTED);
  EXPECT_EQ(other.address(), "10.0.0.2:5000");
  EXPECT_GE(other.heard_ms(), 2400u);
  EXPECT_LT(other.heard_ms(), 62400u);
  EXPECT_EQ(other.rtt_us(), 90u);
  EXPECT_EQ(other.clock_ahead_ns(), -7);
  EXPECT_GE(other.clock_error_ns(), 1000u + 2 * 30'000) << "clocks drift since the report";
  EXPECT_FALSE(here.has_clock_ahead_ns());
  EXPECT_EQ(other.transport(), "tcp/eth0");
  EXPECT_EQ(other.sent_bytes(), 8u);
  EXPECT_EQ(all.nodes(3).name(), "host-?c");
  EXPECT_FALSE(all.nodes(3).has_heard_ms()) << "its port says nothing of it";

  // Others see none of it; pages have each node once, and their token gives no right.
  v1::ListNodesReply his;
  ASSERT_TRUE(ListNodes(*daemon_, Caller(kBob), request, &his).ok());
  for (const v1::JobNode& node : his.nodes()) EXPECT_EQ(node.uid(), kBob.uid);
  ASSERT_TRUE(ListNodes(*daemon_, Root(), request, &all).ok());
  v1::ListNodesReply paged;
  request.set_page_size(1);
  for (v1::ListNodesReply page;; page.Clear()) {
    ASSERT_TRUE(ListNodes(*daemon_, Root(), request, &page).ok());
    paged.mutable_nodes()->MergeFrom(page.nodes());
    request.set_page_token(page.next_page_token());
    if (page.next_page_token().empty()) break;
  }
  EXPECT_EQ(paged.nodes_size(), 4 + his.nodes_size());
  request.Clear();
  request.set_job("of one node");
  v1::ListNodesReply none;
  EXPECT_TRUE(ListNodes(*daemon_, Caller(kAlice), request, &none).ok());
  EXPECT_EQ(none.nodes_size(), 0);
  EXPECT_EQ(ListNodes(*daemon_, Caller(kBob), request, &none).code(), absl::StatusCode::kNotFound);

  // Memory of other nodes is there.
  v1::PeekRequest peek;
  peek.set_job("train");
  peek.set_rank(2);
  peek.set_bytes(8);
  v1::PeekReply bytes;
  const absl::Status elsewhere = Peek(*daemon_, Caller(kAlice), peek, &bytes);
  EXPECT_EQ(elsewhere.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(elsewhere.message(), "is on node host-b: ask the irisd there"))
      << elsewhere;
  daemon_->SetPortOutput(nullptr);
}

TEST_F(ListingsTest, AFilterHoldsOnEveryPage) {
  for (const Party& party : {kAlice, kBob, Party{kBob.uid + 1}}) {
    MakeJob(party, "train");
    MakeJob(party, "other");
  }
  const auto listed = AllJobs(Root(), 1, "train");
  EXPECT_EQ(listed.page_sizes, (std::vector<size_t>{1, 1, 1}));
  for (const auto& job : listed.items) EXPECT_EQ(job.job(), "train");
  EXPECT_EQ(AllJobs(Caller(kBob), 1, "train").items.size(), 1u);
}

TEST_F(ListingsTest, AJobThatIsNotThereIsNotFound) {
  MakeJob(kAlice, "a");
  for (const auto& [party, job] : {std::pair(Party{}, "b"), std::pair(kBob, "a")}) {
    v1::ListAllocationsRequest request;
    request.set_job(job);
    v1::ListAllocationsReply reply;
    const absl::Status status = ListAllocations(*daemon_, Caller(party), request, &reply);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  }
  // One that is there and has none is another matter.
  EXPECT_TRUE(AllAllocations(Caller(kAlice), 0, "a", [] {}).items.empty());
}

TEST_F(ListingsTest, AJobThatEndsOnTheWayEndsTheListing) {
  OneRank one = MakeJob(kAlice, "a");
  for (int i = 0; i < 5; ++i) Operate(one, AllocateOp{.bytes = 1024});
  const auto listed = AllAllocations(Root(), 2, "a", [&] { Close(one.session); });
  EXPECT_EQ(listed.page_sizes, (std::vector<size_t>{2, 0}));
}

TEST_F(ListingsTest, TokensThatNobodyGaveAreRefused) {
  MakeJob(kAlice, "a");
  MakeJob(kAlice, "b");
  v1::ListJobsRequest jobs;
  jobs.set_page_size(1);
  v1::ListJobsReply first;
  ASSERT_TRUE(ListJobs(*daemon_, Root(), jobs, &first).ok());
  ASSERT_FALSE(first.next_page_token().empty());
  v1::ListHeapsRequest heaps;
  heaps.set_page_token(first.next_page_token());
  v1::ListHeapsReply no_heaps;
  EXPECT_TRUE(absl::IsInvalidArgument(ListHeaps(*daemon_, Root(), heaps, &no_heaps)));
  jobs.set_page_token(first.next_page_token());
  jobs.set_job("a");
  v1::ListJobsReply no_jobs;
  EXPECT_TRUE(absl::IsInvalidArgument(ListJobs(*daemon_, Root(), jobs, &no_jobs)));
  v1::ListSessionsRequest sessions;
  sessions.set_page_token("1");
  v1::ListSessionsReply no_sessions;
  EXPECT_TRUE(absl::IsInvalidArgument(ListSessions(*daemon_, Root(), sessions, &no_sessions)));
  v1::ListDevicesRequest devices;
  devices.set_page_token("x");
  v1::ListDevicesReply no_devices;
  EXPECT_TRUE(absl::IsInvalidArgument(ListDevices(*daemon_, Root(), devices, &no_devices)));
}

TEST_F(ListingsTest, WaitsAreSeenOnceByWhoMaySeeTheJob) {
  // Each job has two ranks, and one of them has joined.
  constexpr int kJobs = 150;  // more than a page looks at
  for (int i = 0; i < kJobs; ++i) {
    JoinSpec spec;
    spec.job = absl::StrCat("j", i);
    spec.rank = 1;
    spec.n_ranks = 2;
    spec.heap_bytes = 2 << 20;
    const SessionId session = Open(i % 3 == 0 ? kBob : kAlice);
    const CallId call = daemon_->NewCall();
    daemon_->Call(call, JoinCall{session, call, spec}, [](const Reply&) {});
    if (i % 50 == 0) MakeJob(kAlice, absl::StrCat("ready", i));
  }
  const auto all = [&](const Party& party, uint32_t page_size, const std::string& job) {
    v1::ListWaitsRequest request;
    request.set_page_size(page_size);
    request.set_job(job);
    return All<v1::ListWaitsRequest, v1::ListWaitsReply>(
        request, [](const auto& r) -> const auto& { return r.waits(); },
        [&](const auto& r, auto* out) { return ListWaits(*daemon_, Caller(party), r, out); },
        [] {});
  };
  for (const uint32_t page_size : {0u, 1u, 7u}) {
    const auto listed = all({}, page_size, "");
    EXPECT_EQ(listed.items.size(), size_t{kJobs});
    for (const auto& [id, n] : Count(listed.items, &v1::Wait::job_id)) EXPECT_EQ(n, 1) << id;
    for (const size_t size : listed.page_sizes) EXPECT_LE(size, page_size == 0 ? 64 : page_size);
  }
  EXPECT_EQ(all(kBob, 0, "").items.size(), size_t{kJobs / 3});
  EXPECT_EQ(all(kAlice, 0, "ready50").items.size(), 0u);
  const auto one = all(kAlice, 0, "j1");
  ASSERT_EQ(one.items.size(), 1u);
  EXPECT_EQ(one.items[0].kind(), v1::WAIT_KIND_JOIN);
  EXPECT_EQ(one.items[0].missing(0).rank(), 0u);
  EXPECT_EQ(one.items[0].waiting(0).pid(), getpid());
  v1::ListWaitsRequest request;
  v1::ListWaitsReply reply;
  request.set_job("j1");
  EXPECT_TRUE(absl::IsNotFound(ListWaits(*daemon_, Caller(kBob), request, &reply)));
  request.set_page_token("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(ListWaits(*daemon_, Caller(kAlice), request, &reply)));
}

TEST_F(ListingsTest, EachJobOfANameIsDescribedWithItsOwn) {
  OneRank alices = MakeJob(kAlice, "train");
  MakeJob(kAlice, "other");
  MakeJob(kBob, "train");
  Operate(alices, AllocateOp{.bytes = 10, .name = "weights"});
  const auto all = Describe(Root(), "train", /*page_size=*/1);
  ASSERT_EQ(all.items.size(), 2u);
  const v1::JobDescription& first = all.items[0];
  EXPECT_EQ(first.job().job_id(), alices.job.value);
  ASSERT_EQ(first.heaps_size(), 1);
  EXPECT_EQ(first.heaps(0).job_id(), alices.job.value);
  ASSERT_EQ(first.sessions_size(), 1);
  EXPECT_EQ(first.sessions(0).session_id(), alices.session.value);
  EXPECT_NE(first.sessions(0).command(), "");
  EXPECT_EQ(first.allocations(0).name(), "weights");
  EXPECT_GT(first.last_event(), 0u);
  EXPECT_EQ(Describe(Caller(kBob), "train").items.size(), 1u);
  v1::DescribeJobsRequest request;
  v1::DescribeJobsReply reply;
  request.set_job("other");
  EXPECT_TRUE(absl::IsNotFound(DescribeJobs(*daemon_, Caller(kBob), request, &reply)));
}

TEST_F(ListingsTest, ADescriptionIsOfOneMoment) {
  OneRank one = MakeJob(kAlice, "train");
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      const uint64_t offset = Operate(one, AllocateOp{.bytes = 4096});
      Operate(one, FreeOp{offset});
    }
  });
  std::set<int> seen;
  for (int i = 0; i < 20'000 && (i < 300 || seen.size() < 2); ++i) {
    const auto described = Describe(Root(), "train");
    ASSERT_EQ(described.items.size(), 1u);
    const v1::JobDescription& at = described.items[0];
    ASSERT_EQ(static_cast<uint32_t>(at.allocations_size()), at.job().n_allocations());
    ASSERT_EQ(at.heaps(0).allocated_bytes(), at.job().allocated_bytes());
    seen.insert(at.allocations_size());
  }
  stop = true;
  other.join();
  EXPECT_EQ(seen.size(), 2u) << "the job changed meanwhile";
}

TEST_F(ListingsTest, ADescriptionHasNoMoreAllocationsThanAPage) {
  OneRank one = MakeJob(kAlice, "train", 4 << 20);
  for (uint32_t i = 0; i < wire::kListPageMax + 5; ++i) Operate(one, AllocateOp{.bytes = 1});
  const auto described = Describe(Root(), "train");
  EXPECT_EQ(static_cast<uint32_t>(described.items[0].allocations_size()), wire::kListPageMax);
  EXPECT_GE(described.items[0].job().n_allocations(), wire::kListPageMax + 5);
}

}  // namespace
}  // namespace iris::server
