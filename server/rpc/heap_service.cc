#include "server/rpc/heap_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/registered_memory.h"
#include "server/rpc/convert.h"
#include "server/rpc/heap_part.h"
#include "server/rpc/operate_reply.h"
#include "server/rpc/stream_writer.h"

namespace iris::server {
namespace {

constexpr size_t kMaxWatchQueue = 256;

// The reply of a call whose result is an R and whose reply is a Message.
template <typename R, typename Message>
LinkPayload Convert(const Result& result) {
  Message reply;
  ToProto(std::get<R>(result), &reply);
  return SerializeMessage(reply);
}

// The reply of a call whose success says everything.
template <typename Message>
LinkPayload Nothing(const Result& /*result*/) {
  return SerializeMessage(Message());
}

// The memory of a register, whose descriptors came with the call. kInvalidArgument: not one for
// each piece, or descriptors that are for nothing.
absl::StatusOr<Daemon::Registered> TakeRegistered(driver::BackendKind kind,
                                                  const v1::OperateRequest& request,
                                                  const IncomingCall& call) {
  const absl::Span<const wire::UniqueFd> descriptors = call.descriptors;
  const auto& pieces = request.register_().piece_bytes();
  if (descriptors.size() != static_cast<size_t>(pieces.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("register: ", descriptors.size(), " descriptors came for ", pieces.size(),
                     " allocations: a call by frames brings one for each, gRPC none"));
  }
  Daemon::Registered registered;
  for (size_t i = 0; i < descriptors.size(); ++i) {
    absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
        KeepRegistered(kind, descriptors[i], pieces.Get(static_cast<int>(i)), call.close);
    if (!memory.ok()) {
      return absl::Status(memory.status().code(),
                          absl::StrCat("register: ", memory.status().message()));
    }
    registered.push_back(*std::move(memory));
  }
  return registered;
}

// A session's watch stream. The daemon shares it until it is closed.
class WatchStream : public StreamWriter, public WatchSink {
 public:
  WatchStream(Daemon* daemon, CallCounter* calls, SessionId session, std::shared_ptr<Replier> reply)
      : StreamWriter(calls, std::move(reply)), daemon_(daemon), session_(session) {}

  bool Push(const WatchItem& item) override {
    v1::WatchEvent event;
    ToProto(item, &event);
    return Queue(event, kMaxWatchQueue);
  }
  void Kick() override { Flush(); }
  void Close(const absl::Status& status) override { Finish(status); }

 private:
  void OnReaderGone() override { daemon_->Unwatch(session_, this); }

  Daemon* const daemon_;
  const SessionId session_;
};

}  // namespace

std::shared_ptr<ActiveCall> HeapService::Join(const IncomingCall& call) {
  return calls_->Ask<v1::JoinRequest>(call, [daemon = daemon_](const Result& result) {
    const auto& joined = std::get<JoinResult>(result);
    v1::JoinReply message;
    ToProto(joined, daemon->driver().devices(), &message);
    message.set_link_bytes(daemon->descriptors().link_bytes());
    driver::CreateTimes times;
    for (const SegmentInfo& segment : joined.segments) {
      if (segment.rank != joined.rank) continue;
      const driver::CreateTimes one = daemon->segments().TimesOf(segment.id);
      times.create += one.create;
      times.export_fd += one.export_fd;
    }
    message.set_create_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(times.create)));
    message.set_export_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(times.export_fd)));
    return SerializeMessage(message);
  });
}

std::shared_ptr<ActiveCall> HeapService::Mapped(const IncomingCall& call) {
  return calls_->Ask<v1::MappedRequest>(call, Convert<MappedResult, v1::MappedReply>);
}

std::shared_ptr<ActiveCall> HeapService::Operate(const IncomingCall& call) {
  return calls_->Ask<v1::OperateRequest>(
      call, [](const Result& result) { return SerializeOperateReply(std::get<Outcome>(result)); },
      [this, &call](v1::OperateRequest& request) -> absl::StatusOr<Daemon::Registered> {
        auto registered = TakeRegistered(daemon_->driver().kind(), request, call);
        // Others wait for this member: they are told what is wrong with its memory.
        if (registered.ok() || !request.has_register_() || IsOwnTeam(request.team_id())) {
          return registered;
        }
        v1::RegisterOp& op = *request.mutable_register_();
        op.clear_piece_bytes();
        op.set_error(std::string(registered.status().message()));
        return Daemon::Registered();
      });
}

std::shared_ptr<ActiveCall> HeapService::GrowMapped(const IncomingCall& call) {
  return calls_->Ask<v1::GrowMappedRequest>(call, Nothing<v1::GrowMappedReply>);
}

std::shared_ptr<ActiveCall> HeapService::Leave(const IncomingCall& call) {
  return calls_->Ask<v1::LeaveRequest>(call, Nothing<v1::LeaveReply>);
}

std::shared_ptr<ActiveCall> HeapService::Resume(const IncomingCall& call) {
  return calls_->Ask<v1::ResumeRequest>(call, Convert<ResumeResult, v1::ResumeReply>);
}

std::shared_ptr<ActiveCall> HeapService::AwaitBarrier(const IncomingCall& call) {
  return calls_->Ask<v1::AwaitBarrierRequest>(call, Convert<BarrierAnswer, v1::AwaitBarrierReply>);
}

std::shared_ptr<ActiveCall> HeapService::Watch(const IncomingCall& call) {
  v1::WatchRequest message;
  const absl::Status parsed = ParseMessage(call.request, &message);
  const absl::StatusOr<SessionId> session =
      parsed.ok() ? Calls::SessionOf(call, message.session_id()) : parsed;
  if (!session.ok()) {
    call.reply->Finish(session.status());
    return nullptr;
  }
  auto stream = std::make_shared<WatchStream>(daemon_, calls_->counter(), *session, call.reply);
  daemon_->Watch({*session, daemon_->NewCall(), JobId{message.job_id()}}, stream);
  return stream;
}

std::shared_ptr<ActiveCall> HeapService::Borrow(const IncomingCall& call) {
  return calls_->Answer<v1::BorrowRequest, v1::BorrowReply>(
      call,
      [this, &call](const CallerInfo& caller, const v1::BorrowRequest& message,
                    v1::BorrowReply* reply) -> absl::Status {
        const absl::StatusOr<SessionId> session = Calls::SessionOf(call, message.session_id());
        if (!session.ok()) return session.status();
        const absl::StatusOr<HeapPart> part = FindHeapPart(
            *daemon_, caller,
            {"borrow", message.job(), message.rank(), message.offset_bytes(), message.bytes()});
        if (!part.ok()) return part.status();
        const bool writes = part->of_member || message.for_writing();
        const absl::Status sent =
            daemon_->Lend(*session, part->job_id, part->epoch, part->segments,
                          writes ? driver::Access::kReadWrite : driver::Access::kReadOnly);
        if (!sent.ok()) return sent;
        reply->set_job_id(part->job_id.value);
        reply->set_epoch(part->epoch);
        const auto devices = daemon_->driver().devices();
        if (part->device_index < devices.size()) {
          reply->set_device_uuid(devices[part->device_index].uuid);
        }
        for (const SegmentInfo& segment : part->segments) {
          ToProto(segment, reply->add_segments());
        }
        return absl::OkStatus();
      });
}

}  // namespace iris::server
