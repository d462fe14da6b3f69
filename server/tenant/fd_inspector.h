// FdInspector: has another process inspect descriptors that sessions have sent, before irisd
// receives them (server/worker/helper_work.h). That process may hang on them; irisd never receives
// one that can hang. If the process ends or hangs, another one inspects again, since no process
// takes anything out of a socket.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/account/party.h"
#include "server/session/poller.h"
#include "server/tenant/helper_processes.h"
#include "server/worker/worker_options.h"

namespace iris::server {

class FdInspector {
 public:
  struct Setup {
    HelperProcesses::Setup processes;
    // Gets the number of all tenants' descriptors that the process has not closed yet. May be null.
    std::function<void(uint32_t n_closing)> closing;
    // Returns OK if irisd may receive more memory of the tenant; good answers are delayed until
    // then. Null means always.
    std::function<absl::Status(const Party&)> room;
    absl::Duration answers_within = absl::Seconds(5);  // otherwise it counts as hung
    absl::Duration gives_up_after = absl::Seconds(15);
    absl::Duration room_within = absl::Seconds(60);
  };
  FdInspector(Poller* poller, Setup setup)
      : poller_(poller),
        setup_(std::move(setup)),
        processes_(poller, setup_.processes, "looks at descriptors") {}

  // Receives OK if irisd may receive the descriptors of the next packet. Runs once, later, on this
  // thread, and may call Look.
  using Answer = std::function<void(const absl::Status&)>;
  // Starts an inspection of the next packet of a session's socket, and returns its number. Borrows
  // the socket until the answer, or until Forget. The answer is kInvalidArgument if irisd may not
  // receive the descriptors; kResourceExhausted if too many of the tenant's do not close, or irisd
  // had no room in time; kUnavailable if no process inspects, or it did not get all descriptors.
  uint64_t Look(int socket, const Party& tenant, Answer answer);
  // Drops the answer of an inspection. No-op if it has been answered.
  void Forget(uint64_t look) { looks_.erase(look); }

  // Returns when to call RunDeadlines next.
  absl::Time deadline() const;
  void RunDeadlines(absl::Time now);

 private:
  struct Pending {
    int socket = -1;
    Party tenant;
    Answer answer;
    absl::Time give_up_at;
    absl::Time hangs_at = absl::InfiniteFuture();  // set when the look is passed on
    bool good = false;                             // only room is missing
  };

  // Returns the link of the working process; starts one if there is none.
  absl::StatusOr<int> LinkToPassOn();
  // Passes on all looks that were not passed on.
  void PassOn();
  void OnLink();
  absl::Status RoomFor(const Party& tenant) const {
    return setup_.room == nullptr ? absl::OkStatus() : setup_.room(tenant);
  }
  // Answers the looks that are good and have room, the oldest first.
  void AnswerGood();
  // Marks all looks to be passed on again.
  void Unanswered();
  // Stops using the process, and asks another one.
  void Drop(bool hangs);

  Poller* const poller_;
  const Setup setup_;
  std::map<uint64_t, Pending> looks_;
  uint64_t next_look_ = 1;
  absl::Time pass_on_at_ = absl::InfiniteFuture();
  absl::Time ask_for_room_at_ = absl::InfiniteFuture();
  HelperProcesses processes_;
  Poller::Watched link_;  // a duplicate of the working process's
};

}  // namespace iris::server
