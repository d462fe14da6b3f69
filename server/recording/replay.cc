#include "server/recording/replay.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/wire/frame.h"
#include "server/recording/codec.h"
#include "server/recording/record.h"
#include "server/state/machine_state.h"

namespace iris::server {
namespace {

struct FileCloser {
  void operator()(FILE* file) const { fclose(file); }
};

// Reads a length and that many bytes. Returns false at the end of the file; sets `*cut` if the file
// ends within them.
bool ReadPayload(FILE* file, std::string* payload, bool* cut) {
  uint32_t n = 0;
  const size_t got = fread(&n, 1, sizeof(n), file);
  *cut = got != 0 && got != sizeof(n);
  if (got != sizeof(n)) return false;
  payload->clear();
  // The length may be hostile, so this allocates no more memory than the file has bytes.
  char chunk[1 << 16];
  while (payload->size() < n) {
    const size_t want = std::min<size_t>(sizeof(chunk), n - payload->size());
    const size_t have = fread(chunk, 1, want, file);
    payload->append(chunk, have);
    if (have < want) {
      *cut = true;
      return false;
    }
  }
  return true;
}

std::string Difference(absl::string_view recorded, absl::string_view now) {
  const auto at = std::mismatch(recorded.begin(), recorded.end(), now.begin(), now.end());
  const size_t from = static_cast<size_t>(at.first - recorded.begin());
  const size_t begin = from < 200 ? 0 : from - 200;
  return absl::StrCat("at byte ", from, ": recorded: ...", recorded.substr(begin, 600),
                      "\nreplayed: ...", now.substr(std::min(begin, now.size()), 600));
}

}  // namespace

absl::StatusOr<ReplayReport> Replay(const std::string& file, const AfterInput& after) {
  const std::unique_ptr<FILE, FileCloser> in(fopen(file.c_str(), "rbe"));
  if (in == nullptr) return wire::ErrnoStatus(errno, absl::StrCat("open the recording ", file));
  ReplayReport report;
  std::string payload;
  recording::Header header;
  if (!ReadPayload(in.get(), &payload, &report.cut)) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is no recording: it has no header"));
  }
  recording::Decoder first(payload);
  if (!first.Get(&header.magic) || header.magic != recording::kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is no recording"));
  }
  if (!first.Get(&header.layout) || header.layout != recording::FileLayout()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " was written by another build of irisd: replay it with that one"));
  }
  if (!first.Get(&header.setup) || !first.done()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": its header is damaged"));
  }
  auto machine = std::make_unique<JobMachine>(header.setup.limits, header.setup.MakeLedger(),
                                              header.setup.unusable);
  if (!header.setup.state.empty()) {
    auto decoded = MachineState::Decode(header.setup.state, header.setup.limits,
                                        header.setup.MakeLedger(), header.setup.unusable);
    if (!decoded.ok()) return decoded.status();
    machine = *std::move(decoded);
  }
  while (ReadPayload(in.get(), &payload, &report.cut)) {
    const auto where = [&] { return absl::StrCat(file, ": input ", report.n_inputs, ": "); };
    recording::Record record;
    recording::Decoder decoder(payload);
    if (!decoder.Get(&record) || !decoder.done()) {
      return absl::InvalidArgumentError(absl::StrCat(where(), "the record is damaged"));
    }
    const std::string effects = recording::ValueText(machine->Apply(record.input, record.now));
    if (effects != record.effects) {
      return absl::DataLossError(absl::StrCat(where(), recording::ValueText(record.input),
                                              " has other effects, ",
                                              Difference(record.effects, effects)));
    }
    ++report.n_inputs;
    report.n_effect_bytes += effects.size();
    if (after == nullptr) continue;
    if (absl::Status s = after(header.setup, &machine); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(where(), s.message()));
    }
  }
  const absl::Status sound = machine->CheckInvariants();
  if (!sound.ok()) return absl::DataLossError(absl::StrCat(file, ": ", sound.message()));
  return report;
}

}  // namespace iris::server
