#include "client/bench/compare.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/base/annotate.h"
#include "client/base/whole_file.h"
#include "device/base/posix.h"

extern char** environ;

namespace iris::bench {
namespace {

constexpr uint64_t kMaxDimension = (uint64_t{1} << 31) - 1;
constexpr uint64_t kStep = 64;  // of random shapes
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxPeersBytes = 64 << 20;
constexpr char kFigureHelp[] =
    R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})";

// Returns a name that is valid in a table: not empty, not long, without control characters.
std::optional<std::string> NameOf(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return std::nullopt;
  const std::string& name = it->get_ref<const std::string&>();
  if (name.empty() || name.size() > kMaxNameBytes) return std::nullopt;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
  }
  return name;
}

std::optional<uint64_t> CountOf(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned() || it->get<uint64_t>() == 0) {
    return std::nullopt;
  }
  return it->get<uint64_t>();
}

std::optional<PeerFigure> ParsePeer(const std::string& line) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto lib = NameOf(object, "lib");
  const auto operation = NameOf(object, "op");
  const auto ranks = CountOf(object, "n");
  const auto us = object.find("us");
  if (!lib || !operation || !ranks || *ranks > UINT32_MAX) return std::nullopt;
  if (us == object.end() || !us->is_number()) return std::nullopt;
  PeerFigure figure;
  figure.name = *lib;
  if (const auto variant = object.find("variant");
      variant != object.end() && !variant->is_null() && *variant != "") {
    const auto name = NameOf(object, "variant");
    if (!name) return std::nullopt;
    absl::StrAppend(&figure.name, " ", *name);
  }
  figure.operation = *operation;
  figure.ranks = static_cast<uint32_t>(*ranks);
  figure.us = us->get<double>();
  if (!std::isfinite(figure.us) || figure.us <= 0) return std::nullopt;
  if (const auto shape = object.find("shape"); shape != object.end()) {
    if (!shape->is_array() || shape->size() != 3) return std::nullopt;
    for (const nlohmann::json& dimension : *shape) {
      if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() == 0) return std::nullopt;
    }
    figure.shape = {(*shape)[0], (*shape)[1], (*shape)[2]};
  } else if (figure.operation != kBarrier) {
    const auto bytes = CountOf(object, "bytes");
    if (!bytes) return std::nullopt;
    figure.bytes = *bytes;
  }
  return figure;
}

using Key = std::tuple<std::string, uint32_t, uint64_t, uint64_t, uint64_t, uint64_t>;

Key KeyOf(const PeerFigure& figure) {
  const ProductShape& shape = figure.shape;
  return {figure.operation, figure.ranks, figure.bytes, shape.m, shape.n, shape.k};
}

PeerFigure WhatOf(const CollectiveFigure& figure) {
  return {"", figure.what.operation, figure.what.bytes, figure.ranks, figure.us};
}

// Figures of peers by row and name. Of several figures the smallest counts, in favour of the peer.
class Peers {
 public:
  void AddRow(const PeerFigure& what) { rows_[KeyOf(what)]; }
  // Adds figures to the rows. Call it after AddRow of all rows.
  void AddFigures(const std::vector<PeerFigure>& figures) {
    for (const PeerFigure& figure : figures) {
      const auto row = rows_.find(KeyOf(figure));
      if (row == rows_.end()) {
        ++n_elsewhere_;
        continue;
      }
      if (std::find(names_.begin(), names_.end(), figure.name) == names_.end()) {
        names_.push_back(figure.name);
      }
      const auto [cell, fresh] = row->second.emplace(figure.name, figure.us);
      if (!fresh) cell->second = std::min(cell->second, figure.us);
    }
  }

  const std::vector<std::string>& names() const { return names_; }  // as they came
  size_t n_elsewhere() const { return n_elsewhere_; }

  const std::map<std::string, double>& Row(const PeerFigure& what) const {
    return rows_.at(KeyOf(what));
  }
  // Returns null if no peer has this row.
  const std::pair<const std::string, double>* Best(const PeerFigure& what) const {
    const std::map<std::string, double>& row = Row(what);
    const auto best = std::min_element(
        row.begin(), row.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return best == row.end() ? nullptr : &*best;
  }

 private:
  std::map<Key, std::map<std::string, double>> rows_;
  std::vector<std::string> names_;
  size_t n_elsewhere_ = 0;
};

// The process group of the running command. It is not the terminal's foreground group, so a signal
// that ends this process must end the group, too.
std::atomic<pid_t> g_group{0};

void EndGroup(int signal_number) {
  const pid_t group = g_group.load();
  if (group > 0) kill(-group, SIGKILL);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

class EndGroupOnSignals {
 public:
  EndGroupOnSignals() {
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_IGN) continue;
      struct sigaction action = {};
      action.sa_handler = EndGroup;
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~EndGroupOnSignals() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  EndGroupOnSignals(const EndGroupOnSignals&) = delete;
  EndGroupOnSignals& operator=(const EndGroupOnSignals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3];
};

// Starts `command` as the leader of a process group, with /dev/null as stdin and a pipe as stdout.
absl::StatusOr<pid_t> Spawn(const std::string& command, int* output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::string text = command;
  char shell[] = "/bin/sh", option[] = "-c";
  char* arguments[] = {shell, option, text.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, shell, &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return absl::ErrnoToStatus(error, "cannot start /bin/sh");
  }
  *output = ends[0];
  return pid;
}

// Returns true if the process has ended. It stays a zombie, so that no other process gets its pid.
bool HasEnded(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == pid;
}

// Appends the bytes that have arrived. Returns false if there are none now, or at the end.
bool ReadSome(int fd, std::string* text) {
  char buffer[65536];
  const ssize_t n = read(fd, buffer, sizeof(buffer));
  if (n <= 0) return n < 0 && errno == EINTR;
  text->append(buffer, static_cast<size_t>(n));
  return true;
}

}  // namespace

std::vector<PeerFigure> ParsePeers(const std::string& text) {
  std::vector<PeerFigure> figures;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (auto figure = ParsePeer(std::string(line))) figures.push_back(*std::move(figure));
  }
  return figures;
}

absl::StatusOr<std::vector<PeerFigure>> ReadPeers(const std::string& path) {
  const auto text = internal::ReadFile(path, kMaxPeersBytes);
  if (!text.ok()) return internal::Annotate(text.status(), "cannot read");
  std::vector<PeerFigure> figures = ParsePeers(*text);
  if (figures.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no line of ", path, " is a peer's figure such as ", kFigureHelp));
  }
  return figures;
}

absl::StatusOr<std::vector<PeerFigure>> RunPeers(const std::string& command, uint32_t ranks,
                                                 absl::Duration timeout) {
  const std::string filled = absl::StrReplaceAll(command, {{"{ranks}", absl::StrCat(ranks)}});
  const absl::Time deadline = absl::Now() + timeout;
  const EndGroupOnSignals guard;
  int output = -1;
  const auto pid = Spawn(filled, &output);
  if (!pid.ok()) return pid.status();
  g_group.store(*pid);
  fcntl(output, F_SETFL, O_NONBLOCK);

  // The output may end before the command, and a process that the command has left may write more.
  std::string text;
  bool ended = false, late = false, long_winded = false;
  while (!ended && !late && !long_winded) {
    pollfd waits = {output, POLLIN, 0};
    const bool hung_up = poll(&waits, 1, 20) > 0 && !ReadSome(output, &text);
    if (hung_up) absl::SleepFor(absl::Milliseconds(5));
    ended = HasEnded(*pid);
    late = absl::Now() > deadline;
    long_winded = text.size() > kMaxPeersBytes;
  }
  // No process of the command may run during the next measurement.
  kill(-*pid, SIGKILL);
  int status = 0;
  base::Retry([&] { return waitpid(*pid, &status, 0); });
  g_group.store(0);
  while (text.size() <= kMaxPeersBytes && ReadSome(output, &text)) {
  }
  close(output);

  if (long_winded || text.size() > kMaxPeersBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peers' command printed more than 64 MiB: ", filled));
  }
  if (!ended) {
    return absl::DeadlineExceededError(absl::StrCat("the peers' command did not end within ",
                                                    absl::FormatDuration(timeout),
                                                    ", which --peers-timeout changes: ", filled));
  }
  if (WIFSIGNALED(status)) {
    return absl::AbortedError(
        absl::StrCat("signal ", WTERMSIG(status), " ended the peers' command: ", filled));
  }
  if (WEXITSTATUS(status) != 0) {
    return absl::AbortedError(absl::StrCat("the peers' command failed with exit code ",
                                           WEXITSTATUS(status), ": ", filled));
  }
  std::vector<PeerFigure> figures = ParsePeers(text);
  if (figures.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peers' command printed no figure such as ", kFigureHelp, ": ", filled));
  }
  return figures;
}

Table PeerTable(const PeerWords& words, std::vector<Table::Column> columns,
                const std::vector<OurRow>& ours, const std::vector<PeerFigure>& figures,
                std::vector<std::string>* slower) {
  Peers peers;
  for (const OurRow& row : ours) peers.AddRow(row.what);
  peers.AddFigures(figures);
  const std::vector<Table::Column> last = {{"best peer"}, {words.ratio, words.decimals}};
  // JSON has cells by column: a peer with the name of another column would hide it.
  std::set<std::string> taken;
  for (const Table::Column& column : columns) taken.insert(column.name);
  for (const Table::Column& column : last) taken.insert(column.name);
  for (std::string name : peers.names()) {
    while (!taken.insert(name).second) name += " (peer)";
    columns.push_back({name, 2});
  }
  columns.insert(columns.end(), last.begin(), last.end());
  Table table(words.name, words.title, columns);
  std::vector<std::string> below;
  size_t n_compared = 0;
  for (const OurRow& row : ours) {
    std::vector<nlohmann::json> cells = row.cells;
    const std::map<std::string, double>& theirs = peers.Row(row.what);
    for (const std::string& name : peers.names()) {
      const auto it = theirs.find(name);
      cells.push_back(it == theirs.end() ? nlohmann::json() : nlohmann::json(it->second));
    }
    if (const auto* best = peers.Best(row.what); best != nullptr && row.what.us > 0) {
      const double ratio = best->second / row.what.us;
      cells.push_back(best->first);
      cells.push_back(ratio);
      if (row.is_counted) ++n_compared;
      if (row.is_counted && ratio < 1) {
        below.push_back(
            absl::StrCat(row.words, absl::StrFormat(" (%.3f, %s)", ratio, best->first)));
      }
    }
    table.Add(std::move(cells));
  }
  if (figures.empty()) {
    table.Note(
        "No peers: --peers FILE or --peers-command 'CMD {ranks}' adds theirs to the table; see "
        "--help.");
  } else {
    table.Note(absl::StrCat(words.rows_below, " below 1.0: ", below.size(), " of ", n_compared,
                            " rows", below.empty() ? "" : ": ", absl::StrJoin(below, "; "), "."));
  }
  if (peers.n_elsewhere() > 0) {
    table.Note(absl::StrCat(peers.n_elsewhere(), " figures of peers are of operations, ranks or ",
                            words.noun, " that were not measured here, and left out."));
  }
  if (slower != nullptr) *slower = std::move(below);
  return table;
}

Table CompareTable(const std::vector<CollectiveFigure>& ours,
                   const std::vector<PeerFigure>& figures) {
  std::vector<OurRow> rows;
  for (const CollectiveFigure& f : ours) {
    const bool sized = f.what.operation != kBarrier;
    rows.push_back({{f.what.operation, f.ranks, CellIf(sized, f.what.bytes), f.us,
                     CellIf(sized, f.variant), f.blocks, CellIf(sized, f.bus_gb_per_s)},
                    WhatOf(f),
                    absl::StrCat(f.what.operation, " on ", f.ranks, sized ? ", " : "",
                                 sized ? BytesText(f.what.bytes) : "")});
  }
  return PeerTable(
      {"compare", "us of collectives in bf16; bytes of the whole tensor; ratio: best peer / Iris",
       "ratio", 2, "Ratio", "bytes"},
      {{"operation"}, {"ranks"}, {"bytes"}, {"Iris us", 2}, {"variant"}, {"blocks"}, {"GB/s bus"}},
      rows, figures, /*slower=*/nullptr);
}

absl::StatusOr<ProductShape> ParseShape(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, 'x');
  uint64_t dimensions[3] = {};
  bool good = words.size() == 3;
  for (size_t i = 0; good && i < 3; ++i) {
    good = !words[i].empty() && words[i].size() <= 10 &&
           words[i].find_first_not_of("0123456789") == std::string::npos &&
           absl::SimpleAtoi(words[i], &dimensions[i]) && dimensions[i] >= 1 &&
           dimensions[i] <= kMaxDimension;
  }
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is no shape such as 8192x4096x14336 (m, n, k; each from 1 to 2^31 - 1)"));
  }
  return ProductShape{dimensions[0], dimensions[1], dimensions[2]};
}

std::string ShapeText(const ProductShape& shape) {
  return absl::StrCat(shape.m, "x", shape.n, "x", shape.k);
}

std::vector<ProductShape> RandomShapes(uint32_t count, uint64_t seed, uint64_t largest) {
  std::mt19937_64 random(seed);
  // Computed here, because the distributions of standard libraries differ.
  const auto dimension = [&] {
    const double part = static_cast<double>(random() >> 11) / static_cast<double>(1ull << 53);
    const double most = static_cast<double>(std::max(largest, kStep)) / kStep;
    const uint64_t steps = static_cast<uint64_t>(std::exp(part * std::log(most)) + 0.5);
    return std::max<uint64_t>(1, steps) * kStep;
  };
  std::vector<ProductShape> shapes;
  for (uint32_t i = 0; i < count; ++i) {
    ProductShape shape;
    shape.m = dimension();
    shape.n = dimension();
    shape.k = dimension();
    shapes.push_back(shape);
  }
  return shapes;
}

Table ProductTable(const std::vector<ProductFigure>& ours, const std::vector<PeerFigure>& peers,
                   std::vector<std::string>* behind) {
  std::vector<OurRow> rows;
  for (const ProductFigure& f : ours) {
    rows.push_back(
        {{f.operation, f.ranks, f.shape.m, f.shape.n, f.shape.k, f.wanted, f.variant, f.multiplier,
          f.eager.us, f.graph.us, f.eager.product_us, f.graph.product_us, f.eager.ratio,
          f.graph.ratio, f.graph.communication_us, f.graph.hidden, f.tflops},
         {"", f.operation, 0, f.ranks, f.graph.us, f.shape},
         absl::StrCat(f.operation, " on ", f.ranks, ", ", ShapeText(f.shape)),
         f.wanted == kAuto});
  }
  return PeerTable({"matmul",
                    "us of GEMMs with their communication in bf16; ratio: to the plain GEMM of one "
                    "rank; peer ratio: best peer / Iris, in graphs",
                    "peer ratio", 3, "Peer ratio of auto", "shapes"},
                   {{"operation"},
                    {"ranks"},
                    {"m"},
                    {"n"},
                    {"k"},
                    {"wanted"},
                    {"variant"},
                    {"multiplier"},
                    {"us", 2},
                    {"graph us", 2},
                    {"GEMM us", 2},
                    {"graph GEMM us", 2},
                    {"ratio", 3},
                    {"graph ratio", 3},
                    {"communication us", 2},
                    {"hidden", 3},
                    {"TFLOP/s", 1}},
                   rows, peers, behind);
}

std::vector<Plot> ComparePlots(const std::vector<CollectiveFigure>& ours,
                               const std::vector<PeerFigure>& figures) {
  Peers peers;
  for (const CollectiveFigure& figure : ours) peers.AddRow(WhatOf(figure));
  peers.AddFigures(figures);
  std::vector<std::string> operations;
  std::map<std::string, std::map<uint32_t, std::pair<Plot::Line, Plot::Line>>> lines;
  for (const CollectiveFigure& figure : ours) {
    const std::string& operation = figure.what.operation;
    if (operation == kBarrier) continue;
    if (lines.find(operation) == lines.end()) operations.push_back(operation);
    auto& [mine, theirs] = lines[operation][figure.ranks];
    mine.name = absl::StrCat("Iris, ", figure.ranks);
    theirs.name = absl::StrCat("best peer, ", figure.ranks);
    mine.points.emplace_back(figure.what.bytes, figure.us);
    if (const auto* best = peers.Best(WhatOf(figure)); best != nullptr) {
      theirs.points.emplace_back(figure.what.bytes, best->second);
    }
  }
  std::vector<Plot> plots;
  for (const std::string& operation : operations) {
    Plot plot;
    plot.title = operation;
    plot.y_title = "us";
    plot.log_y = true;
    for (auto& [ranks, pair] : lines[operation]) {
      for (Plot::Line* line : {&pair.first, &pair.second}) {
        std::sort(line->points.begin(), line->points.end());
        plot.lines.push_back(std::move(*line));
      }
    }
    plots.push_back(std::move(plot));
  }
  return plots;
}

}  // namespace iris::bench
