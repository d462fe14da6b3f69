#include "client/iris/collectives.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace iris::ccl {
namespace {

// The one translation from the device layer: its codes are absl's numbers.
absl::Status FromDevice(const Result& result, absl::string_view what) {
  if (result.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(result.code),
                      absl::StrCat(what, ": ", result.what));
}

absl::Status Annotate(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(
    Context& context, const Team& team, const CommunicatorOptions& options) {
  const std::string what = absl::StrCat("create a communicator of ", team.ranks.size(), " ranks");
  if (!team.member()) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": this rank is not one of them"));
  }
  std::unique_ptr<Communicator> made(new Communicator(context, team));
  const uint64_t bytes = WorkspaceBytes(team.device.size, options.config);
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the config is not valid; see iris::ccl::Config"));
  }
  auto workspace = context.Allocate(
      {.bytes = bytes, .alignment_bytes = kWorkspaceAlignmentBytes, .name = options.name}, team);
  if (!workspace.ok()) return Annotate(workspace.status(), what);
  made->workspace_ = *std::move(workspace);

  // From here on every member goes on to the barrier of Prepare, whatever fails, so that nobody
  // waits in vain.
  made->error_word_ = static_cast<uint64_t*>(backend::MallocHost(sizeof(uint64_t)));
  absl::Status status;
  if (made->error_word_ == nullptr) {
    status = absl::ResourceExhaustedError(absl::StrCat(what, ": no host memory"));
  } else {
    *made->error_word_ = 0;
    CommOptions comm;
    comm.context = context.device_context();
    comm.team = team.device;
    comm.workspace = made->workspace_.address;
    comm.workspace_bytes = bytes;
    comm.error_word = made->error_word_;
    comm.config = options.config;
    status = FromDevice(CreateComm(comm, &made->comm_), what);
  }
  const absl::Status prepared = status.ok() ? made->Prepare() : context.Barrier(team);
  if (status.ok()) status = Annotate(prepared, what);
  if (!status.ok()) return status;
  return made;
}

Communicator::~Communicator() {
  if (error_word_ != nullptr) backend::FreeHost(error_word_);
}

absl::Status Communicator::Prepare() {
  backend::Stream stream;
  absl::Status status = FromDevice(backend::Stream::Create(&stream), "make a stream");
  if (status.ok()) status = FromDevice(PrepareWorkspace(comm_, stream), "clear the workspace");
  if (status.ok()) status = FromDevice(stream.Synchronize(), "clear the workspace");
  const absl::Status met = context_.Barrier(team_);
  return status.ok() ? met : status;
}

absl::Status Communicator::Usable() const {
  if (destroyed_) return absl::FailedPreconditionError("this communicator was destroyed");
  return absl::OkStatus();
}

absl::Status Communicator::Destroy() {
  if (absl::Status status = Usable(); !status.ok()) return status;
  destroyed_ = true;
  return Annotate(context_.Free(workspace_), "destroy the communicator");
}

absl::Status Communicator::AllReduce(const void* in, void* out, uint64_t count, DataType type,
                                     ReduceOp op, backend::Stream& stream, Variant variant) {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "all_reduce");
  return FromDevice(ccl::AllReduce(comm_, in, out, count, type, op, stream, variant), "all_reduce");
}

absl::Status Communicator::AllGather(const void* in, void* out, uint64_t count_per_member,
                                     DataType type, backend::Stream& stream) {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "all_gather");
  return FromDevice(ccl::AllGather(comm_, in, out, count_per_member, type, stream), "all_gather");
}

absl::Status Communicator::Broadcast(const void* in, void* out, uint64_t count, DataType type,
                                     uint32_t root, backend::Stream& stream) {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "broadcast");
  const auto found = std::find(team_.ranks.begin(), team_.ranks.end(), root);
  if (found == team_.ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("broadcast: root ", root, " is not a rank of the team"));
  }
  return FromDevice(ccl::Broadcast(comm_, in, out, count, type,
                                   static_cast<uint32_t>(found - team_.ranks.begin()), stream),
                    "broadcast");
}

absl::Status Communicator::Barrier(backend::Stream& stream) {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "barrier");
  return FromDevice(ccl::Barrier(comm_, stream), "barrier");
}

absl::Status Communicator::Check() const {
  ErrorInfo info;
  const Result result = CheckError(comm_, &info);
  if (result.ok()) return absl::OkStatus();
  std::string text = absl::StrCat(OperationName(info.operation), " of ", team_.ranks.size(),
                                  " ranks: ", result.what);
  if (result.code == ErrorCode::kAborted) {
    // Who died is known to irisd, and on the status page.
    const absl::Status health = context_.Health();
    if (!health.ok()) absl::StrAppend(&text, "; ", health.message());
  } else if (info.member_index < team_.ranks.size()) {
    const uint32_t rank = team_.ranks[info.member_index];
    absl::StrAppend(&text, "; it was rank ", rank, " (pid ", context_.peer_pid(rank), ")");
  }
  return absl::Status(static_cast<absl::StatusCode>(result.code), text);
}

absl::Status Communicator::Synchronize(backend::Stream& stream) {
  const absl::Status status = FromDevice(stream.Synchronize(), "synchronize the stream");
  const absl::Status check = Check();
  return check.ok() ? status : check;
}

absl::Status Communicator::Reset() {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, "reset");
  if (absl::Status status = Prepare(); !status.ok()) {
    return Annotate(status, "reset the communicator");
  }
  ResetError(comm_);
  return absl::OkStatus();
}

}  // namespace iris::ccl
