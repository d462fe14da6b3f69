// Life: random things happen to a JobMachine, as they happen to that of an irisd. After each input
// the invariants must hold, every call is answered at most once, and the change that irisd would
// store must lead to the state that the machine is in. Not thread-safe. Borrows the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/heap/ledger.h"
#include "server/job/job_machine.h"
#include "server/state/change_table.h"

namespace iris::fuzz {

// The devices of the irisd that reads the state: those of server/job/testing/job_machine_testing.h.
std::vector<server::Ledger::DeviceAccount> Devices();

class Life {
 public:
  // Called with each change, once it has been checked.
  using Stored = std::function<void(const std::string& change)>;

  Life(server::JobMachine* machine, uint32_t seed, Stored stored = nullptr);

  enum class Kept { kAll, kSome, kNothing };
  // Another irisd goes on with the machine, after so much was kept of what it had.
  void Restart(Kept kept);

  // One input.
  void Step();

  // Everything ends, and nothing may be left.
  void Finish();

 private:
  struct Member {
    server::JobId job;
    server::Rank rank = 0;
    server::SessionId session;
    server::JobState state = server::JobState::kForming;
  };

  void Apply(const server::Input& input);
  void Note(const server::Effect& effect);
  void CheckStored();

  void Join();
  void OfMember();
  server::Operation OperationOf(uint64_t seed, server::Rank rank);
  std::vector<Member> Members() const;
  template <typename T>
  T OneOf(const std::vector<T>& all) {
    return all[Below(all.size())];
  }
  server::SessionId SomeSession();
  uint64_t Below(uint64_t n) { return random_() % n; }
  server::CallId NewCall();

  server::JobMachine& machine_;
  const Stored stored_;
  std::minstd_rand random_;
  server::ChangeTable table_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t next_call_ = 1;
  uint64_t next_session_ = 1;
  std::set<server::CallId> waiting_;
  std::vector<server::SegmentId> to_create_, to_drop_;
  std::map<server::SessionId, server::GrowId> grows_;
  std::map<server::CallId, std::pair<server::SessionId, server::TeamId>> asked_;
  std::map<std::pair<server::SessionId, server::TeamId>, uint64_t> position_;
};

}  // namespace iris::fuzz
