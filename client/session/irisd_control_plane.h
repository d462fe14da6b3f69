// IrisdControlPlane: a rank's calls to irisd, over a session that is replaced when it breaks.
//
// Until StartWatching, a broken session ends every call. After StartWatching the watch thread reads
// the watch stream, and when the session breaks it connects with back-off and resumes the rank;
// calls wait for the new session, until their deadline:
//   connected ──session ends──► broken ──resumed──► connected
//                                  └──irisd does not know the job any more──► lost (final: calls
//                                  fail at once)
// A session that another irisd has taken over is not broken: calls on it continue.
//
// Thread-safe. Nothing waits without a deadline except the watch thread in its back-off.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/session/control_plane.h"
#include "client/session/session_client.h"

namespace iris::internal {

class IrisdControlPlane : public ControlPlane {
 public:
  // Opens the first session; see SessionClient::Connect. `options` has no on_end.
  static absl::StatusOr<std::unique_ptr<IrisdControlPlane>> Connect(SessionOptions options);
  // Stops watching and closes the session. To irisd, a rank that did not Leave has hung up.
  ~IrisdControlPlane() override;
  IrisdControlPlane(const IrisdControlPlane&) = delete;
  IrisdControlPlane& operator=(const IrisdControlPlane&) = delete;

  const std::string& runtime_dir() const { return runtime_dir_; }
  uint64_t daemon_id() const override { return daemon_id_; }
  const std::string& backend() const override { return backend_; }
  // A call that irisd does not answer by its deadline fails with kDeadlineExceeded.
  absl::StatusOr<JoinedJob> Join(const HostContextOptions& options, absl::Time deadline) override;
  absl::StatusOr<CommittedJob> Mapped(uint64_t job_id, uint64_t epoch,
                                      const absl::StatusOr<uint64_t>& base,
                                      absl::Time deadline) override;
  absl::Status Leave(uint64_t job_id, absl::Time deadline) override;
  absl::StatusOr<Outcome> Operate(const OperationCall& call, absl::Time reach_deadline,
                                  absl::Time answer_deadline, bool* unanswered) override;
  absl::StatusOr<std::vector<Lent>> Borrow(const HeapPart& part, absl::Time deadline) override;
  BarrierQuestion AskOfBarrier(const BarrierWait& wait) override;
  absl::StatusOr<BarrierAnswer> WhereAreMissing(const BarrierWait& wait,
                                                absl::Time deadline) override;
  absl::Status GrowMapped(uint64_t job_id, uint64_t grow_id, const absl::Status& mapped,
                          absl::Time deadline) override;
  absl::StatusOr<std::vector<wire::UniqueFd>> TakeDescriptors(absl::Span<const DescriptorKey> keys,
                                                              absl::Time deadline) override;
  void DropDescriptors() override;
  void DropDescriptors(absl::Span<const DescriptorKey> keys) override;
  void StartWatching(const RankIdentity& identity, WatchHandler handler,
                     std::function<void()> name_thread) override;
  void StopWatching() override;

  // Returns OK while irisd knows the rank, also while the session is broken; afterwards the reason.
  absl::Status lost() const;

 private:
  explicit IrisdControlPlane(SessionOptions options) : options_(std::move(options)) {}
  absl::StatusOr<std::shared_ptr<SessionClient>> OpenSession(absl::Duration timeout);
  void UseSession(std::shared_ptr<SessionClient> session);
  std::shared_ptr<SessionClient> CurrentSession() const;
  // Waits for a session that has not ended.
  absl::StatusOr<std::shared_ptr<SessionClient>> WaitForSession(absl::Time deadline);
  // Connects a rank that has not joined to the irisd that follows the one whose session `ended`, or
  // returns the reason why there is none until `deadline`.
  absl::Status ConnectToNext(const absl::Status& ended, absl::Time deadline);
  // Calls CallOn on the present session, with the request that `encode` makes from its id.
  template <typename Encode>
  SessionClient::Answer CallNow(wire::CallMethod method, const Encode& encode, absl::Time deadline,
                                SessionClient::Caller caller = SessionClient::Caller::kMember);
  // Decodes an answer. An error of `decode` names the irisd.
  template <typename T>
  absl::StatusOr<T> Parsed(const SessionClient::Answer& answer,
                           absl::StatusOr<T> (*decode)(absl::string_view)) const;
  void WatchLoop();
  // Reads one watch stream until it ends. Returns true if the session has ended, too.
  bool WatchSession(SessionClient& session);
  // Attempts once to connect and to resume the rank.
  absl::Status Reconnect();
  // Sleeps. Returns true if the control plane is stopping.
  bool SleepOrStop(absl::Duration duration);

  const SessionOptions options_;
  std::string runtime_dir_;
  uint64_t daemon_id_ = 0;
  std::string backend_;
  RankIdentity identity_;  // constant once the watch thread runs
  WatchHandler handler_;
  std::function<void()> name_thread_;
  std::thread watcher_;

  mutable absl::Mutex mu_;
  std::shared_ptr<SessionClient> session_ ABSL_GUARDED_BY(mu_);
  bool broken_ ABSL_GUARDED_BY(mu_) = false;    // session_ has ended
  bool watching_ ABSL_GUARDED_BY(mu_) = false;  // the watch thread reconnects
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);        // not OK: final
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);  // why the last reconnect failed
};

}  // namespace iris::internal
