// Etcd: a client of etcd for one thread, with the few calls that a port process needs. Each call is
// bounded, and a call that fails continues at the next endpoint with a new connection, so that
// nothing depends on how gRPC reconnects.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace iris::port {

class Etcd {
 public:
  // `endpoints` are of members of one etcd, each HOST:PORT; at least one. With `tls`, connections
  // are TLS, and a member's certificate must be of one of its authorities and for HOST.
  Etcd(std::vector<std::string> endpoints, const std::optional<grpc::SslCredentialsOptions>& tls);
  ~Etcd();

  // Errors are for people, and name the endpoint. kUnavailable: etcd was not reached, or did not
  // answer in time. kInvalidArgument: `tls` cannot be used. kCancelled: Stop was called.

  // Makes a lease, and returns its number, which is not 0.
  absl::StatusOr<int64_t> Grant(absl::Duration ttl);
  // Renews a lease. False: the lease is gone, and its keys with it.
  absl::StatusOr<bool> KeepAlive(int64_t lease);
  // How long the lease lasts, in whole seconds; negative: it is gone.
  absl::StatusOr<absl::Duration> TimeToLive(int64_t lease);
  // Ends a lease, which deletes its keys. This alone may be called after Stop.
  absl::Status Revoke(int64_t lease);

  struct Value {
    std::string bytes;
    int64_t lease = 0;  // 0: none
  };
  // Creates a key. Returns nothing if it did not exist, else its value, which stays.
  absl::StatusOr<std::optional<Value>> Create(const std::string& key, const std::string& value,
                                              int64_t lease);

  struct Found {
    std::optional<Value> value;
    int64_t revision = 0;  // of etcd's store, for AwaitChange
  };
  absl::StatusOr<Found> Get(const std::string& key);
  // Waits until the key changes after `revision`, for `timeout` at most. The end of the time is no
  // error: a silent connection and a quiet key look the same, and the caller asks again.
  absl::Status AwaitChange(const std::string& key, int64_t revision, absl::Duration timeout);

  // Closes the connection; a later call makes a new one.
  void Disconnect() { channel_.reset(); }

  // Ends the call under way, and lets later ones fail. Any thread may call it.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Makes one call, by a new connection if there is none, or if it turns out to have ended.
  absl::Status Call(absl::Duration timeout,
                    const std::function<grpc::Status(grpc::ClientContext*)>& call,
                    bool after_stop = false) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Connect();
  // Drops the connection, and returns the error.
  absl::Status Failed(absl::string_view why);

  const std::vector<std::string> endpoints_;
  const bool tls_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  size_t endpoint_ = 0;  // of the connection, or of the next one
  std::shared_ptr<grpc::Channel> channel_;

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* under_way_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace iris::port
