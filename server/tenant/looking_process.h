// LookingProcess: a process that looks at descriptors which sessions have sent, before irisd
// receives them (server/worker/look_at_descriptors.h). It may hang over them; irisd never has one
// that could.
//
// It is started when there is something to look at. What it leaves unanswered, because it ended or
// hung, another one is asked again: it takes nothing out of a socket.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller.
#pragma once

#include <sys/types.h>

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
#include "server/worker/looking.h"

namespace iris::server {

class LookingProcess {
 public:
  struct Setup {
    HelperProcesses::Setup processes;
    // So many descriptors, of all tenants, it has not closed yet; null: nobody wants to know.
    std::function<void(uint32_t n_closing)> closing;
    // OK: irisd may receive more memory of the tenant's; as long as not, good answers wait. Null:
    // always.
    std::function<absl::Status(const Party&)> room;
    absl::Duration answers_within = absl::Seconds(5);  // else it hangs
    absl::Duration gives_up_after = absl::Seconds(15);
    absl::Duration room_within = absl::Seconds(60);
  };
  LookingProcess(Poller* poller, Setup setup)
      : poller_(poller),
        setup_(std::move(setup)),
        processes_(poller, setup_.processes, "looks at descriptors") {}

  // OK: the descriptors of the next packet may be received. Runs once, later, on this thread, and
  // may call Look.
  using Answer = std::function<void(const absl::Status&)>;
  // Has the next packet of a session's socket looked at; the look's number. The socket is borrowed
  // until the answer, or until Forget. The answer is kInvalidArgument: they may not be received;
  // kResourceExhausted: too many of the tenant's do not close, or irisd had no room in time;
  // kUnavailable: no process looks, or it did not get them all.
  uint64_t Look(int socket, const Party& tenant, Answer answer);
  // Its answer will not run. No-op for one that has been answered.
  void Forget(uint64_t look) { looks_.erase(look); }

  // When RunDeadlines is to be called next.
  absl::Time deadline() const;
  void RunDeadlines(absl::Time now);

  // For tests: those that have not ended.
  size_t n_processes() const { return processes_.n_processes(); }

 private:
  struct Pending {
    int socket = -1;
    Party tenant;
    Answer answer;
    absl::Time give_up_at;
    absl::Time hangs_at = absl::InfiniteFuture();  // once it is passed on
    bool good = false;                             // only room is missing
  };

  // The link of the process that works; starts one if none does.
  absl::StatusOr<int> LinkToPassOn();
  // Passes on what has not been.
  void PassOn();
  void OnLink();
  absl::Status RoomFor(const Party& tenant) const {
    return setup_.room == nullptr ? absl::OkStatus() : setup_.room(tenant);
  }
  // Answers the looks that are good and have room, the oldest first.
  void AnswerGood();
  // What was passed on is to be passed on again.
  void Unanswered();
  // The process takes and answers nothing more; another one is asked.
  void Drop(bool hangs);

  Poller* const poller_;
  const Setup setup_;
  std::map<uint64_t, Pending> looks_;
  uint64_t next_look_ = 1;
  absl::Time pass_on_at_ = absl::InfiniteFuture();
  absl::Time ask_for_room_at_ = absl::InfiniteFuture();
  HelperProcesses processes_;
  Poller::Watched link_;  // a duplicate, of the one that works
};

}  // namespace iris::server
