// Compares Iris's collectives and GEMMs with those of other libraries (peers): reads figures that
// peers print, and makes tables of both. Host only; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/bench/figures.h"
#include "client/bench/report.h"

namespace iris::bench {

struct PeerFigure {
  std::string name;  // "lib", or "lib variant"
  std::string operation;
  uint64_t bytes = 0;  // 0: of barrier, and of GEMMs
  uint32_t ranks = 0;
  double us = 0;
  ProductShape shape = {};  // of GEMMs
};

// Returns the figures in the lines of `text`:
//   {"lib": "other", "op": "all_reduce", "variant": "tree", "bytes": 1024, "n": 4, "us": 9.5}
// "variant" may be missing, "bytes" of "barrier" too; GEMMs have "shape": [m, n, k] instead.
// Other keys and other lines are ignored.
std::vector<PeerFigure> ParsePeers(const std::string& text);

// Applies ParsePeers to a file. kInvalidArgument if the file has no figure. Other errors say why it
// cannot be read.
absl::StatusOr<std::vector<PeerFigure>> ReadPeers(const std::string& path);

// Applies ParsePeers to the output of `command`, run by /bin/sh with "{ranks}" replaced. Its stderr
// is this process's. When the call returns, every process of its process group has ended.
// kInvalidArgument if there is no figure, kAborted if the command failed, kDeadlineExceeded.
// Messages quote the command.
absl::StatusOr<std::vector<PeerFigure>> RunPeers(const std::string& command, uint32_t ranks,
                                                 absl::Duration timeout);

// OurRow is a row of PeerTable before peers' figures are added. A figure belongs to the row whose
// operation, ranks, bytes and shape it has.
struct OurRow {
  std::vector<nlohmann::json> cells;
  PeerFigure what;         // without a name; `us` is our time, or 0
  std::string words;       // name the row in the list of rows that are slower than a peer
  bool is_counted = true;  // in that list
};

struct PeerWords {
  std::string name, title;  // of the table
  std::string ratio;        // names the column of the best peer's time to ours
  int decimals = 2;         // of that column
  std::string rows_below;   // "Ratio", in the note that counts the rows below 1.0
  std::string noun;         // distinguishes rows of an operation and ranks: "bytes"
};

// Makes a table of `columns`, which the cells of the rows fill, a column for each peer that has
// figures of the rows, the best peer and the ratio. *slower, if it is not null, gets a text for
// each row that is slower than the best peer.
Table PeerTable(const PeerWords& words, std::vector<Table::Column> columns,
                const std::vector<OurRow>& ours, const std::vector<PeerFigure>& peers,
                std::vector<std::string>* slower);

// Makes a table: a row for each of `ours`, a column for each peer that has figures of such rows.
Table CompareTable(const std::vector<CollectiveFigure>& ours, const std::vector<PeerFigure>& peers);

// Parses m, n and k from "8192x4096x14336". kInvalidArgument if it is no such text, or if a
// dimension is not from 1 to 2^31 - 1.
absl::StatusOr<ProductShape> ParseShape(const std::string& text);
std::string ShapeText(const ProductShape& shape);

// Returns `count` shapes such as layers have, always the same for a seed: multiples of 64
// (`largest` at least 64) whose logarithms are spread evenly from 64 to `largest`.
std::vector<ProductShape> RandomShapes(uint32_t count, uint64_t seed, uint64_t largest);

// Makes a table with a row for each of `ours`, and a column for each peer with figures of such
// rows, which are times in graphs. *behind, if not null, gets a text for each row in which the
// choice of "auto" is slower in a graph than the best peer.
Table ProductTable(const std::vector<ProductFigure>& ours, const std::vector<PeerFigure>& peers,
                   std::vector<std::string>* behind);

// Plots time against size, ours and the best peer's, for each operation.
std::vector<Plot> ComparePlots(const std::vector<CollectiveFigure>& ours,
                               const std::vector<PeerFigure>& peers);

}  // namespace iris::bench
