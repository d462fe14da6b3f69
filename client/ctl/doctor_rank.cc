#include <string.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/base/absl_status.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/runtime_dir.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/doctor.h"
#include "client/ctl/doctor_node.h"
#include "client/ctl/path_mtu.h"
#include "client/ctl/text.h"
#include "iris/context.h"
#include "proto/wire/version.h"

namespace iris::ctl {
namespace {

using internal::Now;

constexpr uint32_t kThere = 0, kHere = 1;  // ranks
constexpr uint64_t kLargeBytes = 1 << 20;
constexpr uint64_t kHeapBytes = 8 << 20;
constexpr auto kWaitTime = std::chrono::seconds(20);
constexpr absl::Duration kMtuTime = absl::Seconds(40);
constexpr absl::Duration kReportTime = absl::Seconds(5);
constexpr absl::Duration kMeasureTime = absl::Milliseconds(700);  // of each operation
constexpr size_t kRunsMax = 3000;

// What a rank tells the other one of its node. Texts end with a zero or fill their field.
struct NodeFacts {
  std::array<char, 64> version, backend, ucx, transports, address;
  uint64_t n_devices;
  int64_t wall_ahead_ns;  // the time of day minus CLOCK_MONOTONIC
  uint64_t mtu_port;      // of the server of the path's MTU; 0: there is none
  PathMtuToken mtu_token;
  double bytes_per_second;  // from this node to the other
};

void Keep(const std::string& text, std::array<char, 64>* field) {
  field->fill('\0');
  memcpy(field->data(), text.data(), std::min(text.size(), field->size()));
}
std::string TextOf(const std::array<char, 64>& field) {
  return std::string(field.data(), strnlen(field.data(), field.size()));
}

int64_t WallAheadNs() {
  timespec steady;
  clock_gettime(CLOCK_MONOTONIC, &steady);
  return absl::GetCurrentTimeNanos() - absl::ToInt64Nanoseconds(absl::DurationFromTimespec(steady));
}

// Returns the host of HOST:PORT or [HOST]:PORT.
std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  return host;
}

void Tell(const Finding& finding) {
  std::printf("%s\n", FindingsJson({finding})[0]
                          .dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)
                          .c_str());
  std::fflush(stdout);
}

constexpr char kLookAtLogs[] = "look at irisd's log and at iris-ctl events of both nodes";

// Returns the remedy for an error of the job.
std::string RemedyOf(absl::string_view text) {
  const auto has = [&](const char* part) { return absl::StrContains(text, part); };
  if (has("its connection failed") || has("a message could not be sent")) {
    return "open network.ports of both nodes (any port, if it is not set) in the firewalls between "
           "them: UCX connects to these ports";
  }
  if (has("no connection to the node")) {
    return "open the port in the firewall of the other node, or name one that is open with "
           "--rendezvous HOST:PORT, and set network.ports; look at the way there (ip route get) "
           "and at network.interface";
  }
  if (has("listen at") || has("find the address of")) {
    return "name an address of the other node and a free port with --rendezvous HOST:PORT";
  }
  if (has("secret")) {
    return "give both nodes one secret: unset IRIS_JOB_SECRET here, or correct it";
  }
  if (has("version")) return "install the same version on both nodes, and restart irisd";
  if (has("libucp") || has("UCX")) {
    return "install UCX 1.20 or newer on that node (deploy/setup.sh), or correct network.ucx; "
           "iris-ctl doctor there says more";
  }
  return kLookAtLogs;
}

struct Times {
  double median_us = 0, p99_us = 0;
};

// Repeats `once` for a while, and does not count the first times.
absl::StatusOr<Times> Measure(absl::FunctionRef<Status()> once, size_t n_first) {
  std::vector<double> times_us;
  const absl::Time end = Now() + kMeasureTime;
  for (size_t i = 0; i < n_first + kRunsMax && (i <= n_first || Now() < end); ++i) {
    const absl::Time begun = Now();
    if (const Status status = once(); !status.ok()) return base::ToAbsl(status);
    if (i >= n_first) times_us.push_back(absl::ToDoubleMicroseconds(Now() - begun));
  }
  std::sort(times_us.begin(), times_us.end());
  return Times{times_us[times_us.size() / 2], times_us[times_us.size() * 99 / 100]};
}

class NodeRank {
 public:
  int Run();

 private:
  bool here() const { return context_.rank() == kHere; }
  uint32_t other() const { return 1 - context_.rank(); }
  bool Failed(const char* check, const absl::Status& status, const std::string& remedy = "");
  bool Prepare();
  bool Exchange();
  std::optional<v1::JobNode> Node(bool here);
  // The parts of the check return false if no more can be tested.
  bool TestPathMtu();
  bool MeasureTimes();
  bool MeasureBandwidth();
  void TellNodes();
  void TellClocks(const v1::JobNode& there);

  std::unique_ptr<AdminClient> admin_;
  v1::GetStatusReply status_;
  Context context_;
  bool joined_ = false;
  Array<uint8_t> facts_at_, data_;
  NodeFacts mine_ = {}, theirs_ = {};
  std::unique_ptr<PathMtuServer> server_;
};

// Returns true if the status is an error, and tells it. If the other rank has only left, it tells
// why, and this one does not.
bool NodeRank::Failed(const char* check, const absl::Status& status, const std::string& remedy) {
  if (status.ok()) return false;
  std::string text(status.message());
  if (absl::IsAborted(status) && joined_) {
    const std::optional<v1::JobNode> there = Node(/*here=*/false);
    if (!there.has_value() || there->state() != v1::NODE_STATE_LOST) return true;
    text = absl::StrCat("the other node is lost: ", there->reason());
  }
  Tell(Fail(check, text, remedy.empty() ? RemedyOf(text) : remedy));
  return true;
}

// Finds irisd, and joins the job.
bool NodeRank::Prepare() {
  auto admin = AdminClient::Connect(internal::RuntimeDirs(""));
  absl::Status reached = admin.status();
  if (admin.ok()) {
    admin_ = *std::move(admin);
    auto status = admin_->GetStatus();
    reached = status.status();
    if (status.ok()) status_ = *std::move(status);
  }
  if (Failed("irisd", reached, "start irisd on that node, then call iris-ctl doctor there")) {
    return false;
  }
  ContextOptions options;
  options.heap_bytes = kHeapBytes;
  options.runtime_dir = admin_->runtime_dir();
  options.join_timeout = options.timeout = kWaitTime;
  StatusOr<Context> context = Context::Create(options);
  if (Failed("job", base::ToAbsl(context.status()))) return false;
  context_ = *std::move(context);
  joined_ = true;
  if (context_.n_ranks() != 2 || context_.n_local() != 1) {
    Tell(Fail("job", "it has other ranks than those of doctor", "ask again"));
    return false;
  }
  StatusOr<Array<uint8_t>> facts = context_.Allocate<uint8_t>(sizeof(NodeFacts), "facts");
  if (facts.ok()) {
    facts_at_ = *facts;
    facts = context_.Allocate<uint8_t>(kLargeBytes, "data");
  }
  if (Failed("job", base::ToAbsl(facts.status()))) return false;
  data_ = *facts;
  return true;
}

// Gives the other rank this one's facts, and takes its.
bool NodeRank::Exchange() {
  // The heap may be memory of a device, which this process cannot store to.
  Status status = context_.Put(context_.rank(), facts_at_.get(),
                               reinterpret_cast<const uint8_t*>(&mine_), sizeof(mine_));
  if (status.ok()) status = context_.Quiet();
  if (status.ok()) status = context_.Barrier();
  if (status.ok()) {
    status = context_.Get(other(), reinterpret_cast<uint8_t*>(&theirs_), facts_at_.get(),
                          sizeof(theirs_));
  }
  if (status.ok()) status = context_.Barrier();
  return !Failed("exchange of facts", base::ToAbsl(status));
}

// Returns what irisd knows of a node of this job.
std::optional<v1::JobNode> NodeRank::Node(bool here) {
  const auto nodes = admin_->All(&AdminClient::Stub::ListNodes, context_.job());
  if (!nodes.ok()) return std::nullopt;
  for (const v1::JobNode& node : nodes->nodes()) {
    if (node.here() == here) return node;
  }
  return std::nullopt;
}

bool NodeRank::TestPathMtu() {
  const char* check = "path MTU";
  if (!here()) {
    // An error is the other rank's finding, too.
    if (server_ != nullptr) (void)server_->Serve(kMtuTime);
    return true;
  }
  const std::string host = HostOf(TextOf(theirs_.address));
  if (theirs_.mtu_port == 0) {
    Tell(Warn(check, absl::StrCat("not tested: no port of ", host, " could be listened to"),
              "look for a free port in network.ports there"));
    return true;
  }
  const PathMtuRoute route = {HostOf(TextOf(mine_.address)), host,
                              static_cast<uint16_t>(theirs_.mtu_port), theirs_.mtu_token};
  const absl::StatusOr<PathMtu> found = MeasurePathMtu(route);
  const absl::Status ended = EndPathMtu(route);
  if (!found.ok() || !ended.ok()) {
    Tell(Warn(check, absl::StrCat("not tested: ", (found.ok() ? ended : found.status()).message()),
              "open network.ports (any port, if it is not set) of both nodes in the firewalls "
              "between them: UCX listens there, too"));
    return true;
  }
  const uint32_t passes = std::min(found->passes_to_bytes, found->passes_from_bytes);
  Finding finding = Ok(check, absl::StrCat(found->here_bytes, " bytes, which pass both ways"));
  finding.numbers = {{"here_bytes", found->here_bytes},
                     {"there_bytes", found->there_bytes},
                     {"passes_to_bytes", found->passes_to_bytes},
                     {"passes_from_bytes", found->passes_from_bytes}};
  if (passes < found->here_bytes) {
    const bool to = found->passes_to_bytes < found->here_bytes;
    const bool from = found->passes_from_bytes < found->here_bytes;
    finding.verdict = Verdict::kFail;
    finding.detail =
        absl::StrCat("packets of ", found->here_bytes, " bytes are lost ",
                     to && from ? "both ways"
                     : to       ? "on the way to the other node"
                                : "on the way to this node",
                     ", and nobody reports it (a black hole); ",
                     passes == 0 ? absl::StrCat("those of ", kPathMtuLeast, " are lost, too")
                                 : absl::StrCat("those of ", passes, " pass"));
    finding.remedy =
        passes == 0
            ? "look for what drops packets between the nodes: a firewall, a switch, a tunnel"
            : absl::StrCat("set the MTU of the interfaces of both nodes to ", passes,
                           " (ip link set DEVICE mtu ", passes,
                           "), raise that of the network between them, or let ICMP's "
                           "fragmentation-needed messages pass its firewalls");
  } else if (found->there_bytes != 0 && found->there_bytes != found->here_bytes) {
    finding.verdict = Verdict::kWarn;
    finding.detail = absl::StrCat(finding.detail, "; the other node's is ", found->there_bytes);
    finding.remedy = "give the interfaces of both nodes one MTU (ip link set DEVICE mtu BYTES)";
  }
  Tell(finding);
  return finding.verdict != Verdict::kFail;
}

bool NodeRank::MeasureTimes() {
  uint64_t word = 0;
  auto* const place = reinterpret_cast<uint64_t*>(data_.get());
  const auto put = [&] {
    const Status status = context_.Put(kThere, place, &word, 1);
    return status.ok() ? context_.Quiet() : status;
  };
  const auto get = [&] { return context_.Get(kThere, &word, place, 1); };
  const auto add = [&] { return context_.Atomic(AtomicOp::kAdd, kThere, place, 1).status(); };
  struct Test {
    const char* check;
    const char* what;
    absl::FunctionRef<Status()> once;
  };
  for (const Test& test : {Test{"round trip", "8 bytes got", get},
                           Test{"put", "8 bytes, until they are there and known here to be", put},
                           Test{"fetch-add", "on a word of the other node", add}}) {
    const absl::StatusOr<Times> times = Measure(test.once, /*n_first=*/20);
    if (absl::IsUnimplemented(times.status())) {
      Tell(Warn(test.check, std::string(times.status().message()),
                "see irisd's log on the other node"));
      continue;
    }
    if (Failed(test.check, times.status())) return false;
    Finding finding = Ok(test.check, absl::StrFormat("%s: median %.1f us, p99 %.1f us", test.what,
                                                     times->median_us, times->p99_us));
    finding.numbers = {{"median_us", times->median_us}, {"p99_us", times->p99_us}};
    Tell(finding);
  }
  return true;
}

// Puts to the other node from the one whose turn it is.
bool NodeRank::MeasureBandwidth() {
  constexpr uint64_t kPutsAtOnce = 8;
  for (const uint32_t turn : {kHere, kThere}) {
    absl::Status status;
    if (context_.rank() == turn) {
      const auto put = [&] {
        Status posted;
        for (uint64_t i = 0; posted.ok() && i < kPutsAtOnce; ++i) {
          posted = context_.Put(other(), data_.get(), data_.get(), kLargeBytes);
        }
        return posted.ok() ? context_.Quiet() : posted;
      };
      const absl::StatusOr<Times> times = Measure(put, /*n_first=*/1);
      status = times.status();
      if (times.ok()) mine_.bytes_per_second = kPutsAtOnce * kLargeBytes * 1e6 / times->median_us;
    }
    status.Update(base::ToAbsl(context_.Barrier()));
    if (Failed("puts of 1 MiB", status)) return false;
  }
  if (!Exchange()) return false;
  if (!here()) return true;
  Finding finding =
      Ok("puts of 1 MiB",
         absl::StrFormat("%.2f GB/s to the other node, %.2f GB/s from it",
                         mine_.bytes_per_second / 1e9, theirs_.bytes_per_second / 1e9));
  finding.numbers = {{"to_bytes_per_second", mine_.bytes_per_second},
                     {"from_bytes_per_second", theirs_.bytes_per_second}};
  Tell(finding);
  return true;
}

void NodeRank::TellNodes() {
  const std::string versions =
      absl::StrCat("iris-ctl ", wire::kIrisVersion, " on both, irisd ", TextOf(mine_.version),
                   " here and ", TextOf(theirs_.version), " there");
  Tell(mine_.version == theirs_.version && TextOf(mine_.version) == wire::kIrisVersion
           ? Ok("versions", versions)
           : Warn("versions", versions, "install the same version on both, then restart irisd"));
  const std::string backends =
      absl::StrCat(TextOf(mine_.backend), " with ", mine_.n_devices, " devices here, ",
                   TextOf(theirs_.backend), " with ", theirs_.n_devices, " there");
  Tell(mine_.backend == theirs_.backend
           ? Ok("devices", backends)
           : Warn("devices", backends, "a job's kernels are compiled for one kind of device"));
}

void NodeRank::TellClocks(const v1::JobNode& there) {
  const int64_t wall_ns = there.clock_ahead_ns() + theirs_.wall_ahead_ns - mine_.wall_ahead_ns;
  const double seconds = static_cast<double>(wall_ns) / 1e9;
  const double error_seconds = static_cast<double>(there.clock_error_ns()) / 1e9;
  constexpr double kApart = 0.1;
  const bool apart = std::abs(seconds) > kApart + error_seconds;
  Finding finding =
      Ok("clocks",
         absl::StrFormat("the time of day there is %.6f s %s, within %.6f s", std::abs(seconds),
                         seconds < 0 ? "behind" : "ahead", error_seconds));
  if (apart) {
    finding.verdict = Verdict::kWarn;
    finding.remedy =
        "set the clocks of both nodes by NTP (chronyd): jobs do not care, and times in "
        "logs and events of the nodes do not match";
  }
  finding.numbers = {{"wall_ahead_us", static_cast<double>(wall_ns) / 1000},
                     {"monotonic_ahead_us", static_cast<double>(there.clock_ahead_ns()) / 1000},
                     {"error_us", static_cast<double>(there.clock_error_ns()) / 1000}};
  Tell(finding);
}

int NodeRank::Run() {
  if (!Prepare()) return 1;
  const std::optional<v1::JobNode> node = Node(/*here=*/true);
  if (!node.has_value()) {
    Failed("irisd", absl::NotFoundError("it does not list the node of the job"));
    return 1;
  }
  const auto devices = admin_->All(&AdminClient::Stub::ListDevices);
  Keep(status_.version(), &mine_.version);
  Keep(context_.backend(), &mine_.backend);
  Keep(node->ucx_version(), &mine_.ucx);
  Keep(node->transport(), &mine_.transports);
  Keep(node->address(), &mine_.address);
  mine_.n_devices = devices.ok() ? static_cast<uint64_t>(devices->devices_size()) : 0;
  mine_.wall_ahead_ns = WallAheadNs();
  if (!here()) {
    const v1::NetworkSettings& network = status_.network();
    auto server =
        PathMtuServer::Listen(HostOf(node->address()), network.port_min(), network.port_max());
    if (server.ok()) {
      server_ = *std::move(server);
      mine_.mtu_port = server_->port();
      mine_.mtu_token = server_->token();
    }
  }
  if (!Exchange()) return 1;
  if (here()) TellNodes();
  // Large puts would hang where packets get lost, so this rank leaves, and the other one is told.
  if (!TestPathMtu()) return 1;
  if (Failed("job", base::ToAbsl(context_.Barrier()))) return 1;
  if (here() && !MeasureTimes()) return 1;
  if (!MeasureBandwidth()) return 1;
  if (here()) {
    std::optional<v1::JobNode> there;
    for (const absl::Time end = Now() + kReportTime; Now() < end;
         absl::SleepFor(absl::Milliseconds(50))) {
      there = Node(/*here=*/false);
      if (there.has_value() && there->has_clock_ahead_ns() && !there->transport().empty()) break;
    }
    if (there.has_value() && !there->transport().empty()) {
      Tell(Ok("connection",
              absl::StrCat(there->transport(), " by UCX ", TextOf(mine_.ucx), " (there ",
                           TextOf(theirs_.ucx), "); here ", TextOf(mine_.address), ", ",
                           TextOf(mine_.transports), "; there ", TextOf(theirs_.address), ", ",
                           TextOf(theirs_.transports))));
    } else {
      Tell(Warn("connection", "irisd's port process does not report it", kLookAtLogs));
    }
    if (there.has_value() && there->has_clock_ahead_ns()) {
      TellClocks(*there);
    } else {
      Tell(Warn("clocks", "irisd's port process has not compared them", kLookAtLogs));
    }
  }
  if (Failed("job", base::ToAbsl(context_.Barrier()))) return 1;
  return Failed("job", base::ToAbsl(context_.Leave())) ? 1 : 0;
}

}  // namespace

int RunNodeRank() { return NodeRank().Run(); }

}  // namespace iris::ctl
