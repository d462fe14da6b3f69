#include "client/ctl/admin_client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/permission.h"
#include "client/internal/runtime_dir.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/status/status.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {
namespace {

constexpr char kSocketName[] = "irisd.sock";
constexpr absl::Duration kTryEvery = absl::Milliseconds(20);
// Of a listing; a page of irisd's has 64 KiB (wire::kMaxListBytes). So much describes some five
// million allocations.
constexpr size_t kListPagesMax = 16384;
constexpr size_t kListBytesMax = kListPagesMax * wire::kMaxListBytes;

// gRPC's answers become ours, and say what to do about a silent irisd.
absl::Status FromGrpc(const grpc::Status& grpc_status) {
  const absl::Status status = proto::FromGrpc(grpc_status);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "irisd did not answer in time; is it stopped or overloaded? (", status.message(), ")"));
  }
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(absl::StrCat(
        "irisd closed the connection: it is stopping, or at its limit of connections; try again (",
        status.message(), ")"));
  }
  return status;
}

// A connected socket, or invalid with errno.
wire::UniqueFd ConnectSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return wire::UniqueFd();
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  wire::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  const int result = base::Retry([&] {
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  });
  if (result != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
    return fd;
  }
  fcntl(fd.get(), F_SETFL, O_NONBLOCK);  // as gRPC wants it
  return fd;
}

}  // namespace

AdminClient::AdminClient(std::string runtime_dir, wire::UniqueFd socket, absl::Duration timeout)
    : runtime_dir_(std::move(runtime_dir)),
      timeout_(timeout),
      connection_(MakeConnection(std::move(socket))) {}

std::shared_ptr<AdminClient::Connection> AdminClient::MakeConnection(wire::UniqueFd socket) {
  auto made = std::make_shared<Connection>();
  made->channel = grpc::CreateInsecureChannelFromFd("irisd", socket.Release());
  made->stub = v1::AdminService::NewStub(made->channel);
  return made;
}

std::shared_ptr<AdminClient::Connection> AdminClient::Present() const {
  absl::MutexLock lock(&mu_);
  return connection_;
}

grpc::Status AdminClient::Try(const std::function<grpc::Status(Connection&)>& attempt) {
  const std::shared_ptr<Connection> present = Present();
  grpc::Status status = attempt(*present);
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return status;
  wire::UniqueFd socket = ConnectSocket(absl::StrCat(runtime_dir_, "/", kSocketName));
  if (!socket.valid()) return status;
  std::shared_ptr<Connection> next = MakeConnection(std::move(socket));
  {
    absl::MutexLock lock(&mu_);
    if (connection_ == present) connection_ = next;
  }
  return attempt(*next);
}

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Connect(
    const std::vector<std::string>& runtime_dirs, absl::Duration timeout, absl::Duration wait) {
  const absl::Time give_up = absl::Now() + wait;
  int first_error = 0;
  std::string closed_dir;  // the first that has an irisd perhaps, closed to this user
  for (;;) {
    first_error = 0;
    for (const std::string& dir : runtime_dirs) {
      wire::UniqueFd fd = ConnectSocket(absl::StrCat(dir, "/", kSocketName));
      if (fd.valid()) {
        return std::unique_ptr<AdminClient>(new AdminClient(dir, std::move(fd), timeout));
      }
      if (first_error == 0) first_error = errno;
      if (closed_dir.empty() && (errno == EACCES || errno == EPERM)) closed_dir = dir;
    }
    const bool may_come = first_error == ENOENT || first_error == ECONNREFUSED;
    if (!may_come || !closed_dir.empty() || absl::Now() + kTryEvery > give_up) break;
    absl::SleepFor(kTryEvery);
  }
  if (closed_dir.empty()) return internal::CannotReach(runtime_dirs, kSocketName, first_error);
  const std::string path = absl::StrCat(closed_dir, "/", kSocketName);
  const auto problem = FindAccessProblem(path, kAskForSocket);
  if (!problem.has_value()) return internal::CannotReach({closed_dir}, kSocketName, EACCES);
  return absl::PermissionDeniedError(absl::StrCat("cannot reach irisd at ", path,
                                                  ": Permission denied: ", problem->what,
                                                  ". What to do: ", problem->remedy));
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> AdminClient::Call(
    grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
    const Request& request) {
  Reply reply;
  const grpc::Status status = Try([&](Connection& connection) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    reply.Clear();
    return (connection.stub.get()->*method)(&context, request, &reply);
  });
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::StatusOr<v1::GetStatusReply> AdminClient::GetStatus() {
  return Call(&v1::AdminService::Stub::GetStatus, v1::GetStatusRequest());
}

template <typename Request, typename Reply>
absl::Status AdminClient::List(grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&,
                                                                              Reply*),
                               Request request, TakePage<Reply> take) {
  request.set_page_size(wire::kListPageMax);
  std::set<std::string> tokens;
  size_t bytes = 0;
  while (tokens.size() < kListPagesMax) {
    const absl::StatusOr<Reply> page = Call(method, request);
    if (!page.ok()) return page.status();
    bytes += page->ByteSizeLong();
    if (bytes > kListBytesMax) break;
    if (!take(*page) || page->next_page_token().empty()) return absl::OkStatus();
    if (!tokens.insert(page->next_page_token()).second) {
      return absl::DataLossError("irisd gives the same page of a listing again and again");
    }
    request.set_page_token(page->next_page_token());
  }
  return absl::DataLossError(absl::StrCat("irisd's listing does not end: after ", tokens.size(),
                                          " pages of ", base::SizeText(bytes),
                                          " together, the rest is not asked for"));
}

absl::Status AdminClient::ListDevices(TakePage<v1::ListDevicesReply> take) {
  return List(&v1::AdminService::Stub::ListDevices, v1::ListDevicesRequest(), take);
}

absl::Status AdminClient::ListJobs(const std::string& job, TakePage<v1::ListJobsReply> take) {
  v1::ListJobsRequest request;
  request.set_job(job);
  return List(&v1::AdminService::Stub::ListJobs, std::move(request), take);
}

absl::Status AdminClient::ListHeaps(const std::string& job, TakePage<v1::ListHeapsReply> take) {
  v1::ListHeapsRequest request;
  request.set_job(job);
  return List(&v1::AdminService::Stub::ListHeaps, std::move(request), take);
}

absl::Status AdminClient::ListAllocations(const std::string& job,
                                          TakePage<v1::ListAllocationsReply> take) {
  v1::ListAllocationsRequest request;
  request.set_job(job);
  return List(&v1::AdminService::Stub::ListAllocations, std::move(request), take);
}

absl::Status AdminClient::ListSessions(TakePage<v1::ListSessionsReply> take) {
  return List(&v1::AdminService::Stub::ListSessions, v1::ListSessionsRequest(), take);
}

absl::Status AdminClient::ListTenants(TakePage<v1::ListTenantsReply> take) {
  return List(&v1::AdminService::Stub::ListTenants, v1::ListTenantsRequest(), take);
}

absl::Status AdminClient::ListWaits(const std::string& job, TakePage<v1::ListWaitsReply> take) {
  v1::ListWaitsRequest request;
  request.set_job(job);
  return List(&v1::AdminService::Stub::ListWaits, std::move(request), take);
}

absl::Status AdminClient::DescribeJobs(const std::string& job,
                                       TakePage<v1::DescribeJobsReply> take) {
  v1::DescribeJobsRequest request;
  request.set_job(job);
  return List(&v1::AdminService::Stub::DescribeJobs, std::move(request), take);
}

absl::Status AdminClient::Events(bool follow, const std::function<bool(const v1::Event&)>& take) {
  v1::EventsRequest request;
  request.set_follow(follow);
  bool begun = false;
  grpc::Status end;  // of a stream that has begun, which is not repeated
  const grpc::Status status = Try([&](Connection& connection) {
    grpc::ClientContext context;
    if (!follow) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    const auto reader = connection.stub->Events(&context, request);
    v1::Event event;
    while (reader->Read(&event)) {
      begun = true;
      if (take(event)) continue;
      context.TryCancel();
      reader->Finish();
      return grpc::Status::OK;
    }
    end = reader->Finish();
    return begun ? grpc::Status::OK : end;
  });
  return FromGrpc(begun ? end : status);
}

// HealthCheckRequest with no service is no byte at all; HealthCheckResponse is field 1, an enum, 1
// is SERVING. That little needs no generated code.
absl::StatusOr<bool> AdminClient::IsServing() {
  grpc::ByteBuffer reply;
  const grpc::Status status = Try([&](Connection& connection) {
    grpc::GenericStub stub(connection.channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    grpc::CompletionQueue queue;
    const grpc::Slice nothing("");
    const grpc::ByteBuffer request(&nothing, 1);
    auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    grpc::Status answer;
    reply.Clear();
    call->Finish(&reply, &answer, nullptr);
    void* tag = nullptr;
    bool done = false;
    queue.Next(&tag, &done);
    return answer;
  });
  if (!status.ok()) return FromGrpc(status);
  std::vector<grpc::Slice> slices;
  if (!reply.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes == "\x08\x01";
}

}  // namespace iris::ctl
