// Meeting: where the ports of a job meet if the job has no rendezvous: a key of etcd with the
// address where the leader's port listens. The leader creates it with a lease, keeps that alive,
// and deletes it at the end; the others wait for it.
//
// etcd is not trusted. The value has an HMAC by the job's secret, and leads to a connection whose
// handshake proves the secret again, so that whoever can write to etcd can keep a job from meeting,
// and nothing else.
//
// A thread of its own talks to etcd. The other functions never wait, except End and the
// destructor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/port/connection.h"
#include "server/port/etcd.h"

namespace iris::port {

// How long the key outlives a leader that dies without a word.
inline constexpr int64_t kMeetingTtlSeconds = 10;

struct MeetingOptions {
  std::vector<std::string> endpoints;              // of etcd, each HOST:PORT
  std::optional<grpc::SslCredentialsOptions> tls;  // as of Etcd
  std::string job;
  uint32_t uid = 0;    // of the job's user
  std::string secret;  // of the job
  std::string leader;  // of the leader: the address where it listens. Else empty
  // What this side takes for a second of etcd's leases. Tests have less time.
  absl::Duration second = absl::Seconds(1);
};

class Meeting {
 public:
  explicit Meeting(MeetingOptions options);
  // As End.
  ~Meeting();

  // Readable when there is news.
  int event_fd() const { return event_.get(); }

  struct News {
    // Of a port that is not the leader's: where the leader listens. It may change, since the key
    // of a leader that is gone stays for a while.
    std::optional<Address> leader;
    // Without a leader. OK: the leader's key is there. kUnavailable: why that is not so yet, or no
    // longer. Other codes: it will never be.
    absl::Status status;
  };
  // Returns the latest news; nothing if there is none since the last call.
  std::optional<News> Take();

  // Lets the thread end soon. The leader's key stays until End.
  void Stop();
  // Ends the thread, and deletes the leader's key. This takes a second if etcd does not answer, and
  // longer while the resolver looks for a name of etcd. The error says why the key stays, until its
  // lease ends.
  absl::Status End();

  // The key of a job, and its value for a leader that listens at `address`.
  static std::string Key(uint32_t uid, std::string_view job);
  static std::string Value(const MeetingOptions& options, const std::string& address);

 private:
  void Run();
  // Do what can be done now. They return when to do more; an error: soon; nothing: never.
  absl::StatusOr<std::optional<absl::Duration>> Lead();
  absl::StatusOr<std::optional<absl::Duration>> Follow();
  // True if somebody who lives holds the key with this value, which is not the wanted one. It takes
  // some calls to know.
  absl::StatusOr<bool> IsHeld(const Etcd::Value& value);
  absl::StatusOr<Address> Check(const std::string& value) const;
  // Unless that was the last news.
  void Tell(const News& news);
  bool Wait(absl::Duration time);

  const MeetingOptions options_;
  const std::string key_, value_;
  const wire::UniqueFd event_;
  Etcd etcd_;
  // Of the thread.
  int64_t lease_ = 0;  // 0: none
  bool holds_ = false;
  struct Other {
    Etcd::Value value;
    absl::Time since;
    absl::Duration left = absl::InfiniteDuration();  // of its lease
    bool renewed = false;
  };
  std::optional<Other> other_;
  std::string told_;  // the last news, as text

  absl::Mutex mu_;
  std::optional<News> news_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace iris::port
