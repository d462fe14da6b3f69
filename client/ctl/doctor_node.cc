#include "client/ctl/doctor_node.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/ctl/remote_ranks.h"
#include "device/base/process.h"

namespace iris::ctl {
namespace {

constexpr absl::Duration kConnectTime = absl::Seconds(20);
constexpr absl::Duration kAllTime = absl::Seconds(80);
constexpr size_t kMaxOutputBytes = 1 << 20;
constexpr char kRankPrefixes[][5] = {"[0] ", "[1] "};

// The ranks of the job, whose output is kept.
class NodeRanks : public RemoteRanks {
 public:
  using RemoteRanks::RemoteRanks;
  const std::string& out() const { return out_; }
  const std::string& errors() const { return errors_; }

 protected:
  void Write(int fd, const std::string& text) override {
    std::string& to = fd == 1 ? out_ : errors_;
    to.append(text, 0, kMaxOutputBytes - std::min(to.size(), kMaxOutputBytes));
  }

 private:
  std::string out_, errors_;
};

// Returns the address of the host as a number; the name itself if none is found here, since the
// remote shell may know it otherwise.
std::string NumberOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return host;
  char number[NI_MAXHOST] = {};
  const bool ok = getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof(number), nullptr, 0,
                              NI_NUMERICHOST) == 0;
  freeaddrinfo(found);
  return ok ? number : host;
}

// Returns the lines without what iris-run puts before them.
std::string WithoutPrefixes(const std::string& lines) {
  std::vector<absl::string_view> texts;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipWhitespace())) {
    absl::ConsumePrefix(&line, "iris-run: ");
    texts.push_back(line);
  }
  return absl::StrJoin(texts, "; ");
}

std::string RemedyOf(int code, const NodeWish& wish, const std::string& rsh) {
  switch (code) {
    case kExitHostFailed:
      return absl::StrCat("make '", rsh, " ", wish.host,
                          " true' work without a password (or name another remote shell with "
                          "--rsh), and install the same version of iris at the same path there");
    case kExitCannotExecute:
    case kExitNotFound:
      return "install the remote shell here (or name another one with --rsh), and the same version "
             "of iris at the same path on both nodes";
    case kExitTimeout:
      return "look at irisd's log and at iris-ctl events of both nodes";
    default:
      return code > 128 ? "ask again, and let it end"
                        : "look at irisd's log and at iris-ctl events of both nodes";
  }
}

}  // namespace

std::vector<Finding> ReadFindings(absl::string_view lines, const std::string& suffix,
                                  std::string* noise) {
  std::vector<Finding> findings;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    std::optional<Finding> finding = FindingOf(line);
    if (!finding.has_value()) {
      absl::StrAppend(noise, line, "\n");
      continue;
    }
    finding->check += suffix;
    findings.push_back(*std::move(finding));
  }
  return findings;
}

std::vector<Finding> CheckNode(const NodeWish& wish) {
  const std::string start = absl::StrCat("start on ", wish.host);
  const absl::StatusOr<std::vector<std::string>> rsh = ReadRemoteShell(wish.rsh);
  if (!rsh.ok()) return {Fail(start, std::string(rsh.status().message()), "name a program")};
  const std::string number = NumberOf(wish.host.substr(wish.host.find('@') + 1));
  if (IsLoopback(number)) {
    return {Fail(start, absl::StrCat("the name means ", number, " here, which is this node"),
                 "name the address of another node")};
  }
  RunOptions options;
  options.command = {base::ProgramFile(), kNodeRankFlag};
  options.n_ranks = 2;
  std::random_device random;
  options.job = absl::StrFormat("doctor-node-%d-%08x", getpid(), random());
  options.runtime_dir = wish.runtime_dir;
  options.timeout = kAllTime;
  options.grace = options.kill_after = absl::Seconds(1);
  RemoteOptions remote;
  remote.hosts = {{wish.host, 1}, {"this node", 1, /*here=*/true}};
  remote.rsh = *rsh;
  remote.agent = base::ProgramFolder() + "iris-run";
  remote.folder = "/";
  remote.rendezvous = wish.rendezvous;
  remote.rendezvous_host = number;
  remote.connect_timeout = kConnectTime;
  NodeRanks ranks(std::move(options), std::move(remote));
  const int code = ranks.Run();

  // The rank on this node sees most.
  std::string of_rank[2], noise;
  for (absl::string_view line : absl::StrSplit(ranks.out(), '\n', absl::SkipEmpty())) {
    const bool here = absl::ConsumePrefix(&line, kRankPrefixes[1]);
    if (here || absl::ConsumePrefix(&line, kRankPrefixes[0])) {
      absl::StrAppend(&of_rank[here], line, "\n");
    } else {
      absl::StrAppend(&noise, line, "\n");
    }
  }
  std::vector<Finding> findings = ReadFindings(of_rank[1], "", &noise);
  std::vector<Finding> there = ReadFindings(of_rank[0], absl::StrCat(" on ", wish.host), &noise);
  std::move(there.begin(), there.end(), std::back_inserter(findings));
  if (code != 0 && !AnyFailed(findings)) {
    const bool started =
        code != kExitHostFailed && code != kExitCannotExecute && code != kExitNotFound;
    std::string detail = WithoutPrefixes(absl::StrCat(noise, ranks.errors()));
    if (detail.empty()) detail = absl::StrCat("ended with code ", code);
    findings.push_back(Fail(started ? "job" : start, std::move(detail),
                            RemedyOf(code, wish, absl::StrJoin(*rsh, " "))));
  }
  return findings;
}

}  // namespace iris::ctl
