// AdminClient: one connection to irisd's admin service. Thread-safe after Connect.
//
// AdminClient connects by itself and passes the socket to gRPC, so that a missing irisd gives one
// clear error at once. A call whose connection is lost is repeated once on a new one, because every
// call only reads. Streams of events that have begun are not repeated.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/base/bytes.h"
#include "grpcpp/grpcpp.h"
#include "proto/iris/v1/admin.grpc.pb.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {

class AdminClient {
 public:
  // Tries irisd.sock of each directory in order, and again for `wait` if there is no socket, or if
  // no process listens: irisd may be starting. internal::CannotReach describes kUnavailable and
  // kPermissionDenied. `timeout` bounds each call except a followed stream.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(
      const std::vector<std::string>& runtime_dirs, absl::Duration timeout = absl::Seconds(5),
      absl::Duration wait = absl::Seconds(2));

  // The directory whose socket answered.
  const std::string& runtime_dir() const { return runtime_dir_; }

  using Stub = v1::AdminService::Stub;
  template <typename Request, typename Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  absl::StatusOr<v1::GetStatusReply> GetStatus() {
    return Call(&Stub::GetStatus, v1::GetStatusRequest());
  }

  // Requests the pages of a listing, one call each. `take` gets each page as a Reply&, until there
  // is none, `take` returns false, or a call fails. `job` limits the listing to a job if it is not
  // empty. kNotFound if there is no such job. kDataLoss if irisd repeats pages, or if the listing
  // is longer than any can be.
  template <typename Request, typename Reply, typename Take>
  absl::Status List(Method<Request, Reply> method, const std::string& job, Take take) {
    Request request;
    if constexpr (requires { request.set_job(job); }) request.set_job(job);
    request.set_page_size(wire::kListPageMax);
    std::set<std::string> tokens;
    size_t bytes = 0;
    while (tokens.size() < kListPagesMax) {
      absl::StatusOr<Reply> page = Call(method, request);
      if (!page.ok()) return page.status();
      bytes += page->ByteSizeLong();
      if (bytes > kListBytesMax) break;
      request.set_page_token(page->next_page_token());
      if (!take(*page) || request.page_token().empty()) return absl::OkStatus();
      if (!tokens.insert(request.page_token()).second) {
        return absl::DataLossError("irisd gives the same page of a listing again and again");
      }
    }
    return absl::DataLossError(absl::StrCat("irisd's listing does not end: after ", tokens.size(),
                                            " pages of ", base::SizeText(bytes),
                                            " together, the rest is not asked for"));
  }
  // Returns all pages as one.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> All(Method<Request, Reply> method, const std::string& job = "") {
    Reply all;
    const absl::Status listed = List(method, job, [&all](const Reply& page) {
      all.MergeFrom(page);
      return true;
    });
    if (!listed.ok()) return listed;
    return all;
  }
  // Returns all allocations of the job. kFailedPrecondition if several users have a job of that
  // name.
  absl::StatusOr<v1::ListAllocationsReply> AllocationsOfOne(const std::string& job);

  // Calls `take` for each event until the stream ends, or `take` returns false.
  absl::Status Events(bool follow, const std::function<bool(const v1::Event&)>& take);

  // Returns true if the standard health service says SERVING.
  absl::StatusOr<bool> IsServing();

 private:
  // A page has 64 KiB. These limits suffice for some five million allocations.
  static constexpr size_t kListPagesMax = 16384;
  static constexpr size_t kListBytesMax = kListPagesMax * wire::kMaxListBytes;

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
  absl::Status CallInTime(
      absl::FunctionRef<grpc::Status(Connection&, grpc::ClientContext*)> attempt);
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Method<Request, Reply> method, const Request& request) {
    Reply reply;
    const absl::Status status =
        CallInTime([&](Connection& connection, grpc::ClientContext* context) {
          reply.Clear();
          return (connection.stub.get()->*method)(context, request, &reply);
        });
    if (!status.ok()) return status;
    return reply;
  }

  const std::string runtime_dir_;
  const absl::Duration timeout_;
  mutable absl::Mutex mu_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::ctl
