// RpcChannels: the gRPC channel of one session, and those that come after it. A channel lives on a
// socket that irisd handed over. When that socket hangs up, irisd is asked for another one, and
// calls wait for it here: nothing of the session is lost with a channel.
//
// Thread-safe, but for what is the session's thread's own. It owns the channels, with whoever holds
// one.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

struct RpcChannel {
  uint64_t number = 0;  // of its kind in the session, from 1
  std::unique_ptr<iris::v1::HeapService::Stub> stub;
};

class RpcChannels {
 public:
  // Whom Cancel concerns.
  enum class Waiter {
    kMember,  // a call of a rank: it is of no use any more once the rank leaves
    kLeaver,  // the call by which it leaves
  };
  enum class Loss { kNone, kChannel, kSession };

  RpcChannels() = default;
  RpcChannels(const RpcChannels&) = delete;
  RpcChannels& operator=(const RpcChannels&) = delete;

  // The present channel, unless its number is at most `after`: then the next one, once it is there.
  // Pass the number of a channel that failed, or 0. The session's status, if that has ended;
  // kCancelled; kDeadlineExceeded.
  absl::StatusOr<std::shared_ptr<RpcChannel>> Wait(uint64_t after, Waiter waiter,
                                                   absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether channel `number` is lost, or the session has ended; waits so long for either.
  Loss WaitForLoss(uint64_t number, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends waits for a channel, now and later.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  // The session's thread, or whoever sets the session up.

  // A socket that irisd handed over: the channel on it is the present one from now on. Not OK: it
  // cannot be set up.
  absl::Status Use(wire::UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Its hang-up (POLLRDHUP) says that the present channel is lost. -1 while there is none.
  int socket() const { return socket_.get(); }
  void Lose() ABSL_LOCKS_EXCLUDED(mu_);
  // The session has ended; `status` says why.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  wire::UniqueFd socket_;  // a duplicate of gRPC's; the session thread's

  absl::Mutex mu_;
  std::shared_ptr<RpcChannel> present_ ABSL_GUARDED_BY(mu_);  // null: lost
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
