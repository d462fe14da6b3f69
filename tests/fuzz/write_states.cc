// write_states FOLDER NUMBER: writes so many inputs of state_fuzzer, each the journal of a random
// life of a machine. Those that tell a fuzzer nothing new are left out by libFuzzer's -merge=1.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/heap/ledger.h"
#include "server/job/job_machine.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"
#include "tests/fuzz/journal_text.h"
#include "tests/fuzz/life.h"
#include "tests/fuzz/require.h"

namespace iris::fuzz {
namespace {

void Write(const std::filesystem::path& folder, uint32_t seed) {
  server::JobMachine machine({}, server::Ledger(Devices()));
  std::unique_ptr<server::Journal> journal;
  Life life(&machine, seed, [&](const std::string& change) {
    if (journal != nullptr) Require(journal->Append(change).ok(), "append");
  });
  // The first part as the whole state, a few inputs as changes.
  for (uint32_t i = 0; i < 20 + seed * 7 % 400; ++i) life.Step();
  const std::string scratch = (folder / "scratch").string();
  std::filesystem::create_directories(scratch);
  auto created = server::Journal::Create(scratch, {seed, 1},
                                         [&] { return server::MachineState::Encode(machine); });
  Require(created.ok(), created.status().ToString());
  journal = *std::move(created);
  for (uint32_t i = 0; i < seed % 40; ++i) life.Step();
  std::ifstream in(
      absl::StrCat(scratch, "/", server::Journal::kFolder, "/", server::Journal::kFile),
      std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const Setting setting{.mode = static_cast<uint8_t>(seed % 16),
                        .n_steps = static_cast<uint8_t>(seed % 64),
                        .seed = static_cast<uint16_t>(seed)};
  std::ofstream out(folder / absl::StrCat("life", seed), std::ios::binary);
  out.write(reinterpret_cast<const char*>(&setting), sizeof(setting));
  out << bytes;
  std::filesystem::remove_all(scratch);
}

}  // namespace
}  // namespace iris::fuzz

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: write_states FOLDER NUMBER\n");
    return 2;
  }
  std::filesystem::create_directories(argv[1]);
  for (int seed = 0; seed < std::atoi(argv[2]); ++seed) {
    iris::fuzz::Write(argv[1], static_cast<uint32_t>(seed));
  }
  return 0;
}
