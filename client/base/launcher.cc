#include "client/base/launcher.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/base/meeting_place.h"
#include "client/base/printable.h"
#include "device/base/process.h"
#include "proto/wire/limits.h"

namespace iris::base {
namespace {

using internal::Getter;
using Starter = std::function<int(const std::string&)>;

// MPICH and Intel MPI start the ranks of a node by a process whose name begins so.
constexpr char kHydra[] = "hydra_";

// The names of one launcher's variables. Null if the launcher has no such variable.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* n_ranks;
  const char* n_ranks_else;  // read when n_ranks is not set
  const char* local_rank;
  const char* n_local_ranks;  // ranks of this node
  // n_ranks without rank is a mistake, not another launcher's leftover.
  bool size_alone_is_an_error;
};

// The limit of the search. More distant ancestors have started something else.
constexpr int kMaxAncestors = 64;

constexpr Variables kLaunchers[] = {
    {"iris", "IRIS_RANK", "IRIS_N_RANKS", nullptr, "IRIS_LOCAL_RANK", "IRIS_N_LOCAL", true},
    {"torchrun", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"mpich", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"pmix", "PMIX_RANK", "PMIX_SIZE", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, false},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_LOCALID", nullptr, false},
};

absl::StatusOr<int> ParseNumber(const char* variable, const std::string& text, int min) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return internal::WrongVariable(
        variable, text, absl::StrCat("a number; set it to a whole number of at least ", min));
  }
  if (value < min) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", variable, "=", value,
                                                   " is out of range; it must be at least ", min));
  }
  return value;
}

absl::Status Missing(const char* variable, const char* fellow) {
  return absl::InvalidArgumentError(absl::StrCat(
      "environment variable ", variable, " is missing beside ", fellow, "; set both, or neither"));
}

// Cuts a job name to the length that irisd accepts, because names of launchers may be long.
std::string Clip(std::string name) {
  if (name.size() > wire::kMaxJobNameBytes) name.resize(wire::kMaxJobNameBytes);
  return name;
}

std::optional<std::string> NonEmpty(const Getter& get, const char* variable) {
  std::optional<std::string> value = get(variable);
  if (value.has_value() && value->empty()) return std::nullopt;
  return value;
}

// Returns the number of tasks on each node, from a text such as "2(x3),1".
absl::StatusOr<std::vector<int>> ParseTasks(const char* variable, const std::string& text) {
  std::vector<int> tasks;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int count = 0, repeat = 1;
    const size_t open = part.find("(x");
    bool good = absl::SimpleAtoi(part.substr(0, open), &count) && count > 0;
    if (good && open != part.npos) {
      part.remove_prefix(open + 2);
      good = absl::ConsumeSuffix(&part, ")") && absl::SimpleAtoi(part, &repeat) && repeat > 0 &&
             repeat <= static_cast<int>(wire::kMaxWorldRanks);
    }
    if (!good || tasks.size() > wire::kMaxWorldRanks) {
      return internal::WrongVariable(variable, text, "a list of tasks per node, such as 2(x3),1");
    }
    tasks.insert(tasks.end(), repeat, count);
  }
  return tasks;
}

// The tasks of each node of a Slurm step, and the number of this node; no tasks if they are not
// known.
struct SlurmNodes {
  std::vector<int> tasks;
  size_t here = 0;
};
absl::StatusOr<SlurmNodes> ReadSlurmNodes(const Getter& get) {
  SlurmNodes nodes;
  const auto node_text = get("SLURM_NODEID");
  if (!node_text.has_value()) return nodes;
  const absl::StatusOr<int> here = ParseNumber("SLURM_NODEID", *node_text, 0);
  if (!here.ok()) return here.status();
  for (const char* const variable : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto text = NonEmpty(get, variable);
    if (!text.has_value()) continue;
    auto tasks = ParseTasks(variable, *text);
    if (!tasks.ok()) return tasks.status();
    if (static_cast<size_t>(*here) >= tasks->size()) continue;  // of the job, and not of this step
    nodes.tasks = *std::move(tasks);
    nodes.here = static_cast<size_t>(*here);
    return nodes;
  }
  return nodes;
}

// Returns the number of ranks on this node; 0 if it is not known, and there is no sign of another
// node.
absl::StatusOr<int> LocalSize(const Getter& get, const Variables& v, const LauncherInfo& info) {
  for (const char* const variable : {kLaunchers[0].n_local_ranks, v.n_local_ranks}) {
    const auto text = variable == nullptr ? std::nullopt : get(variable);
    if (!text.has_value()) continue;
    const absl::StatusOr<int> here = ParseNumber(variable, *text, 1);
    // A launcher may know more ranks here than this job has.
    return here.ok() ? std::min(*here, info.n_ranks) : here;
  }
  if (info.launcher != "slurm" && info.launcher != "pmix") return 0;
  for (const char* const variable : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) {
    const auto text = get(variable);
    if (!text.has_value()) continue;
    const absl::StatusOr<int> n_nodes = ParseNumber(variable, *text, 1);
    if (!n_nodes.ok()) return n_nodes.status();
    // A step of one rank may be on one of many nodes of its allocation.
    if (*n_nodes == 1 || info.n_ranks == 1) return info.n_ranks;
    const absl::StatusOr<SlurmNodes> nodes = ReadSlurmNodes(get);
    if (!nodes.ok()) return nodes.status();
    if (!nodes->tasks.empty()) return std::min(nodes->tasks[nodes->here], info.n_ranks);
    if (const auto each = get("SLURM_NTASKS_PER_NODE"); each.has_value()) {
      return ParseNumber("SLURM_NTASKS_PER_NODE", *each, 1);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        info.launcher, " has started ", info.n_ranks, " ranks on ", *n_nodes, " nodes (", variable,
        "), and no variable says how many of them are here: set IRIS_N_LOCAL"));
  }
  return 0;
}

// `spans`: the job has ranks on several nodes, all of which must find the same name.
std::string JobName(const Getter& get, const Starter& starter, const std::string& launcher,
                    bool spans = false) {
  if (auto job = NamedJob(get)) return *job;
  if (launcher == "torchrun") {
    // A standalone torchrun calls every run "none": the address of its store tells runs apart.
    const auto run_id = NonEmpty(get, "TORCHELASTIC_RUN_ID");
    if (run_id.has_value() && *run_id != "none") return Clip(absl::StrCat("torchrun-", *run_id));
    const auto address = NonEmpty(get, "MASTER_ADDR");
    const auto port = NonEmpty(get, "MASTER_PORT");
    if (address.has_value() && port.has_value()) {
      return Clip(absl::StrCat("torchrun-", *address, ":", *port));
    }
  } else if (launcher == "openmpi") {
    for (const char* const variable : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (auto id = NonEmpty(get, variable)) return Clip(absl::StrCat("openmpi-", *id));
    }
  } else if (launcher == "mpich") {
    // Two runs at once have different starters on each node, and different places to meet.
    if (spans) {
      const auto rendezvous = ReadRendezvous(get);
      return rendezvous.ok() && !rendezvous->empty() ? Clip(absl::StrCat("mpich-", *rendezvous))
                                                     : LauncherInfo().job;
    }
    if (const int pid = starter(kHydra); pid > 0) return Clip(absl::StrCat("mpich-", pid));
  } else if (launcher == "pmix") {
    if (auto id = NonEmpty(get, "PMIX_NAMESPACE")) return Clip(absl::StrCat("pmix-", *id));
  } else if (launcher == "slurm") {
    if (const auto job = NonEmpty(get, "SLURM_JOB_ID")) {
      const auto step = NonEmpty(get, "SLURM_STEP_ID");
      return Clip(absl::StrCat("slurm-", *job, step.has_value() ? "." : "", step.value_or("")));
    }
  }
  return LauncherInfo().job;
}

// Returns the first host of a list such as "a[01-03,7]-x,b".
std::string FirstHost(absl::string_view list) {
  const size_t open = list.find_first_of("[,");
  std::string host(list.substr(0, open));
  if (open == list.npos || list[open] == ',') return host;
  const size_t close = list.find(']', open);
  if (close == list.npos) return "";
  const absl::string_view numbers = list.substr(open + 1, close - open - 1);
  absl::StrAppend(&host, numbers.substr(0, numbers.find_first_of(",-")));
  const absl::string_view rest = list.substr(close + 1);
  return absl::StrCat(host, rest.substr(0, rest.find(',')));
}

constexpr int kMaxPort = 65535;

}  // namespace

bool HasPmix(const LauncherInfo& launcher, const Getter& get) {
  return (launcher.launcher == "openmpi" || launcher.launcher == "pmix") &&
         NonEmpty(get, "PMIX_NAMESPACE").has_value();
}

absl::StatusOr<NamedNode> ReadNamedNode(const Getter& get) {
  NamedNode node;
  for (const auto& [variable, least, field] :
       {std::tuple(kLaunchers[0].n_local_ranks, 1, &node.n_local),
        std::tuple(kLaunchers[0].local_rank, 0, &node.local_rank)}) {
    const auto text = NonEmpty(get, variable);
    if (!text.has_value()) continue;
    const absl::StatusOr<int> number = ParseNumber(variable, *text, least);
    if (!number.ok()) return number.status();
    *field = *number;
  }
  return node;
}

absl::StatusOr<int> FirstLocalRank(const NodeOfRank& node, const Getter& get) {
  const int first = node.rank - node.local_rank;
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", node.rank, " of ", node.n_ranks, ", with local rank ", node.local_rank, " of ",
        node.n_local, " on this node: ", why, "; ", wire::kPlaceByBlock));
  };
  if (node.local_rank >= node.n_local) return refuse("there is no such local rank");
  if (first < 0) return refuse("the node would begin before rank 0");
  if (first > node.n_ranks - node.n_local) return refuse("the node would end beyond the last rank");
  if (node.n_local == 0 || node.n_local > static_cast<int>(wire::kMaxRanks)) {
    return refuse(absl::StrCat("a node has 1 to ", wire::kMaxRanks, " ranks"));
  }
  if (!get("SLURM_PROCID").has_value()) return first;
  const absl::StatusOr<SlurmNodes> nodes = ReadSlurmNodes(get);
  if (!nodes.ok() || nodes->tasks.empty()) return first;
  int before = 0, all = 0;
  for (size_t i = 0; i < nodes->tasks.size(); ++i) {
    if (i < nodes->here) before += nodes->tasks[i];
    all += nodes->tasks[i];
  }
  // If the numbers differ, the variables are of other tasks than the ranks.
  if (all != node.n_ranks) return first;
  if (before != first) {
    return refuse(absl::StrCat("Slurm has placed ", before, " ranks on the nodes before this one"));
  }
  // Otherwise those ranks alone would be refused that are not where they should be.
  std::vector<int> here;
  for (int rank = first; rank < first + node.n_local; ++rank) here.push_back(rank);
  const auto placed = NonEmpty(get, "SLURM_GTIDS");
  if (placed.has_value() && *placed != absl::StrJoin(here, ",")) {
    return refuse(
        absl::StrCat("Slurm has placed ranks ", Printable(placed->substr(0, 64)), " here"));
  }
  return first;
}

absl::Status CheckRendezvous(const std::string& what, const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  const absl::string_view host = absl::string_view(text).substr(0, colon);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (colon != text.npos && !host.empty() && text.size() <= 300 &&
      (bracketed || host.find(':') == host.npos) &&
      absl::SimpleAtoi(text.substr(colon + 1), &port) && port > 0 && port <= kMaxPort) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, "=\"", Printable(text.substr(0, 64)),
                   "\" is not the place where the nodes meet: HOST:PORT or [ADDRESS]:PORT, of the "
                   "node of rank 0"));
}

absl::StatusOr<std::string> ReadRendezvous(const Getter& get) {
  if (const auto given = NamedRendezvous(get); given.has_value()) {
    const absl::Status status = CheckRendezvous("environment variable IRIS_RENDEZVOUS", *given);
    return status.ok() ? absl::StatusOr<std::string>(*given) : status;
  }
  const auto address = NonEmpty(get, "MASTER_ADDR");
  const auto master_port = NonEmpty(get, "MASTER_PORT");
  if (address.has_value() && master_port.has_value()) {
    const auto port = ParseNumber("MASTER_PORT", *master_port, 1);
    if (!port.ok()) return port.status();
    if (*port >= kMaxPort) {
      return internal::WrongVariable("MASTER_PORT", *master_port,
                                     "a port that another one follows: set IRIS_RENDEZVOUS");
    }
    return HostAndPort(*address, *port + 1);
  }
  for (const char* const variable : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const auto list = NonEmpty(get, variable);
    const auto job = NonEmpty(get, "SLURM_JOB_ID");
    if (!list.has_value() || !job.has_value()) continue;
    const std::string host = FirstHost(*list);
    const auto job_id = ParseNumber("SLURM_JOB_ID", *job, 0);
    if (!job_id.ok()) return job_id.status();
    if (host.empty()) return internal::WrongVariable(variable, *list, "a list of hosts");
    int step = 0;
    (void)absl::SimpleAtoi(get("SLURM_STEP_ID").value_or(""), &step);
    // Below the ports that systems give to clients. Steps that run at once differ.
    constexpr int kFirst = 20000, kPorts = 10000, kStepsOfJob = 16;
    const int64_t number = int64_t{*job_id} * kStepsOfJob + step % kStepsOfJob;
    return HostAndPort(host, kFirst + static_cast<int>(number % kPorts));
  }
  return std::string();
}

absl::StatusOr<std::string> ReadSecret(const std::string& what, const std::string& text) {
  constexpr size_t kMin = 16, kMax = 64;
  std::string bytes = text;
  if (text.size() >= 2 * kMin && text.size() % 2 == 0 &&
      text.find_first_not_of("0123456789abcdefABCDEF") == text.npos) {
    bytes = absl::HexStringToBytes(text);
  }
  if (bytes.size() >= kMin && bytes.size() <= kMax) return bytes;
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", bytes.size(), " bytes: the secret of a job has ", kMin, " to ",
                   kMax, ", given as text or by twice as many hexadecimal digits"));
}

absl::StatusOr<std::string> FreshSecret() {
  char secret[32];
  if (getentropy(secret, sizeof(secret)) != 0) {
    return absl::ErrnoToStatus(errno, "no random numbers for the job's secret");
  }
  return absl::BytesToHexString(absl::string_view(secret, sizeof(secret)));
}

std::optional<std::string> NamedJob(const Getter& get) { return NonEmpty(get, "IRIS_JOB"); }

std::optional<std::string> NamedRendezvous(const Getter& get) {
  return NonEmpty(get, "IRIS_RENDEZVOUS");
}

absl::StatusOr<LauncherInfo> ReadLauncher(const Getter& get, const Starter& starter) {
  for (const Variables& v : kLaunchers) {
    const auto rank_text = get(v.rank);
    const char* size_variable = v.n_ranks;
    auto size_text = get(v.n_ranks);
    if (!rank_text.has_value()) {
      if (v.size_alone_is_an_error && size_text.has_value()) return Missing(v.rank, v.n_ranks);
      if (v.launcher == std::string("iris") && get(v.local_rank).has_value()) {
        return Missing(v.rank, v.local_rank);
      }
      continue;
    }
    // Slurm sets these as well, when it starts ranks by itself.
    const bool mpich = v.launcher == std::string("mpich");
    if (mpich && get("SLURM_PROCID").has_value() && starter(kHydra) <= 0) continue;
    if (!size_text.has_value() && v.n_ranks_else != nullptr) {
      size_variable = v.n_ranks_else;
      size_text = get(v.n_ranks_else);
    }
    if (!size_text.has_value()) return Missing(v.n_ranks, v.rank);

    LauncherInfo info;
    info.launcher = v.launcher;
    auto n_ranks = ParseNumber(size_variable, *size_text, 1);
    if (!n_ranks.ok()) return n_ranks.status();
    info.n_ranks = *n_ranks;
    auto rank = ParseNumber(v.rank, *rank_text, 0);
    if (!rank.ok()) return rank.status();
    info.rank = *rank;
    if (info.rank >= info.n_ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment variable ", v.rank, "=", info.rank, " is out of range: ", size_variable, "=",
          info.n_ranks, " allows 0 to ", info.n_ranks - 1));
    }
    info.local_rank = info.rank;
    if (const auto local_text = get(v.local_rank); local_text.has_value()) {
      auto local_rank = ParseNumber(v.local_rank, *local_text, 0);
      if (!local_rank.ok()) return local_rank.status();
      info.local_rank = *local_rank;
    }
    const auto n_local = LocalSize(get, v, info);
    if (!n_local.ok()) return n_local.status();
    info.n_local = *n_local;
    const bool spans = info.n_local > 0 && info.n_local < info.n_ranks;
    if (spans && !get(v.local_rank).has_value()) return Missing(v.local_rank, v.rank);
    info.job = JobName(get, starter, info.launcher, spans);
    return info;
  }
  LauncherInfo alone;
  alone.job = JobName(get, starter, alone.launcher);
  return alone;
}

int FindAncestor(const std::string& name) {
  int64_t pid = getppid();
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    const auto process = ReadProcess(pid);
    if (!process.has_value()) return 0;
    if (absl::StartsWith(process->name, name)) return static_cast<int>(pid);
    pid = process->parent;
  }
  return 0;
}

}  // namespace iris::base
