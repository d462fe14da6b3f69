// Membership: a rank's place in a job, from the first connection until it leaves: the control
// plane, the device, the window with everything mapped into it, and what happened to the peers.
//
//   Join: connect ──► choose the device ──► join ──► map ──► mapped: the epoch is committed
//
// A failure at any step undoes those before it. Thread-safe once Join has returned.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/backend/local_devices.h"
#include "client/base/context_guard.h"
#include "client/base/options.h"
#include "client/membership/window.h"
#include "client/session/control_plane.h"
#include "client/wire/job.h"

namespace iris::internal {

class Membership {
 public:
  // Connects to irisd and joins. `options` has no field left that the environment fills.
  static absl::StatusOr<std::unique_ptr<Membership>> Join(HostContextOptions options);
  // Joins over a connection that is there.
  static absl::StatusOr<std::unique_ptr<Membership>> Join(HostContextOptions options,
                                                          std::unique_ptr<ControlPlane> plane,
                                                          absl::Duration connect_time);
  // To irisd, a rank that did not Leave has hung up.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Starts to listen to irisd, until Leave has returned. `handler` passes changes of ranks to
  // OnRankChange.
  void Watch(WatchHandler handler);
  void OnRankChange(const RankChange& change);

  // Ends the membership: no call goes out any more, nothing is mapped any more but the pages of
  // barriers, for threads that are in one. OK if it has ended before.
  absl::Status Leave();

  // OK while every rank is alive and none has left; else kAborted naming who and why. No call to
  // irisd.
  absl::Status Health() const;

  const HostContextOptions& options() const { return options_; }
  absl::Duration timeout() const { return absl::FromChrono(options_.timeout); }
  uint32_t rank() const { return static_cast<uint32_t>(options_.rank); }
  uint32_t n_ranks() const { return static_cast<uint32_t>(options_.n_ranks); }
  // The answer of irisd to the join.
  const JoinedJob& job() const { return job_; }
  const CommittedJob& committed() const { return committed_; }
  const LocalDevice& local_device() const { return local_device_; }
  uint32_t ranks_per_device() const { return ranks_per_device_; }
  const CreateTimings& timings() const { return timings_; }
  const ContextGuard& guard() const { return guard_; }
  ControlPlane& plane() const { return *plane_; }
  Window& window() const { return *window_; }

 private:
  Membership(HostContextOptions options, std::unique_ptr<ControlPlane> plane)
      : options_(std::move(options)), plane_(std::move(plane)) {}

  // The steps of Join.
  absl::Status ChooseDevice();
  absl::Status JoinJob();
  absl::Status MapAll();
  // The keys of a join's descriptors: segments, control pages, the status page, links.
  std::vector<DescriptorKey> KeysOfJoin() const;
  // Keeps a link to each device of the job; `fds` are of all of them in irisd's order, or none.
  void KeepLinks(absl::Span<wire::UniqueFd> fds);
  absl::Status ReportMapped(const absl::Status& mapped);

  // Set by Join, then constant.
  HostContextOptions options_;
  ContextGuard guard_;
  std::unique_ptr<ControlPlane> plane_;
  std::shared_ptr<Window> window_;
  LocalDevice local_device_;
  JoinedJob job_;
  CommittedJob committed_;
  uint32_t ranks_per_device_ = 1;
  CreateTimings timings_;

  mutable absl::Mutex mu_;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  // Ranks that are no longer there, with irisd's reason.
  std::map<uint32_t, RankChange> gone_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
