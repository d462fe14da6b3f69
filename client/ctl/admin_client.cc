#include "client/ctl/admin_client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/base/runtime_dir.h"
#include "client/ctl/permission.h"
#include "device/base/posix.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/status/status.h"

namespace iris::ctl {
namespace {

constexpr char kSocketName[] = "irisd.sock";
constexpr absl::Duration kTryEvery = absl::Milliseconds(20);

// Converts a status. The error for a silent irisd says what to do.
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

// Returns a connected socket, or an invalid one with errno.
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

absl::Status AdminClient::CallInTime(
    absl::FunctionRef<grpc::Status(Connection&, grpc::ClientContext*)> attempt) {
  return FromGrpc(Try([&](Connection& connection) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
    return attempt(connection, &context);
  }));
}

absl::StatusOr<v1::ListAllocationsReply> AdminClient::AllocationsOfOne(const std::string& job) {
  absl::StatusOr<v1::ListAllocationsReply> all = All(&Stub::ListAllocations, job);
  if (!all.ok()) return all;
  std::set<uint64_t> jobs;
  for (const v1::Allocation& each : all->allocations()) jobs.insert(each.job_id());
  if (jobs.size() <= 1) return all;
  return absl::FailedPreconditionError(absl::StrCat(jobs.size(), " users have a job named '", job,
                                                    "'; ask as the user who owns it"));
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
  const absl::Status status = CallInTime([&](Connection& connection, grpc::ClientContext* context) {
    grpc::GenericStub stub(connection.channel);
    grpc::CompletionQueue queue;
    const grpc::Slice nothing("");
    const grpc::ByteBuffer request(&nothing, 1);
    auto call = stub.PrepareUnaryCall(context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    grpc::Status answer;
    reply.Clear();
    call->Finish(&reply, &answer, nullptr);
    void* tag = nullptr;
    bool done = false;
    queue.Next(&tag, &done);
    return answer;
  });
  if (!status.ok()) return status;
  std::vector<grpc::Slice> slices;
  if (!reply.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes == "\x08\x01";
}

}  // namespace iris::ctl
