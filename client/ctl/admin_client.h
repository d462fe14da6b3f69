// AdminClient: one connection to irisd's admin service. Thread-safe after Connect.
//
// It connects by itself and hands the socket to gRPC, so a missing irisd is one clear error at
// once. A call whose connection is lost is made once more on a new one: every call only reads.
// Streams of events that have begun are not.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/iris/v1/admin.grpc.pb.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {

class AdminClient {
 public:
  // Tries irisd.sock of each directory in turn, again for `wait` where there is none or nobody
  // listens: irisd may be starting. kUnavailable, kPermissionDenied: see internal::CannotReach.
  // `timeout` bounds each call except a followed stream.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(
      const std::vector<std::string>& runtime_dirs, absl::Duration timeout = absl::Seconds(5),
      absl::Duration wait = absl::Seconds(2));

  // The directory whose socket answered.
  const std::string& runtime_dir() const { return runtime_dir_; }

  absl::StatusOr<v1::GetStatusReply> GetStatus();

  // Listings come in pages, each of which is a call. `take` gets one after the other, until there
  // is none, it returns false, or one fails. kNotFound: no such job. kDataLoss: irisd goes in
  // circles, or the listing is longer than any can be.
  template <typename Reply>
  using TakePage = absl::FunctionRef<bool(const Reply&)>;
  // All pages as one: All<v1::ListJobsReply>([&](auto take) { return client.ListJobs("", take); }).
  template <typename Reply, typename List>
  static absl::StatusOr<Reply> All(List list) {
    Reply all;
    const absl::Status listed = list([&all](const Reply& page) {
      all.MergeFrom(page);
      return true;
    });
    if (!listed.ok()) return listed;
    return all;
  }
  absl::Status ListDevices(TakePage<v1::ListDevicesReply> take);
  absl::Status ListJobs(const std::string& job, TakePage<v1::ListJobsReply> take);
  absl::Status ListHeaps(const std::string& job, TakePage<v1::ListHeapsReply> take);
  absl::Status ListAllocations(const std::string& job, TakePage<v1::ListAllocationsReply> take);
  absl::Status ListSessions(TakePage<v1::ListSessionsReply> take);
  absl::Status ListTenants(TakePage<v1::ListTenantsReply> take);
  absl::Status ListWaits(const std::string& job, TakePage<v1::ListWaitsReply> take);

  absl::Status DescribeJobs(const std::string& job, TakePage<v1::DescribeJobsReply> take);

  // Calls `take` for each event until the stream ends, or `take` returns false.
  absl::Status Events(bool follow, const std::function<bool(const v1::Event&)>& take);

  // True if the standard health service says SERVING.
  absl::StatusOr<bool> IsServing();

 private:
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::AdminService::Stub> stub;
  };
  AdminClient(std::string runtime_dir, wire::UniqueFd socket, absl::Duration timeout);
  static std::shared_ptr<Connection> MakeConnection(wire::UniqueFd socket);
  std::shared_ptr<Connection> Present() const ABSL_LOCKS_EXCLUDED(mu_);
  // Makes `attempt` on the present connection, and, if it answers UNAVAILABLE and irisd can be
  // reached again, once more on a new one.
  grpc::Status Try(const std::function<grpc::Status(Connection&)>& attempt);
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                            const Request&, Reply*),
                             const Request& request);
  template <typename Request, typename Reply>
  absl::Status List(grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Reply*),
                    Request request, TakePage<Reply> take);

  const std::string runtime_dir_;
  const absl::Duration timeout_;
  mutable absl::Mutex mu_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::ctl
