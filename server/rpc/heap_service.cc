#include "server/rpc/heap_service.h"

#include <memory>
#include <utility>

#include "server/rpc/convert.h"
#include "server/rpc/operate_reply.h"
#include "server/rpc/stream_writer.h"

namespace iris::server {
namespace {

constexpr size_t kMaxWatchQueue = 256;

// The reply of a call whose result is an R and whose reply is a Message.
template <typename R, typename Message>
grpc::ByteBuffer Convert(const Result& result) {
  Message reply;
  ToProto(std::get<R>(result), &reply);
  return SerializeMessage(reply);
}

// The reply of a call whose success says everything.
template <typename Message>
grpc::ByteBuffer Nothing(const Result& /*result*/) {
  return SerializeMessage(Message());
}

// A session's watch stream. The daemon shares it until it is closed.
class WatchStream : public StreamWriter, public WatchSink {
 public:
  WatchStream(Daemon* daemon, CallCounter* calls, SessionId session)
      : StreamWriter(calls), daemon_(daemon), session_(session) {}

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

grpc::ServerUnaryReactor* HeapService::Join(Context* context, const Bytes* request, Bytes* reply) {
  return calls_->Ask<v1::JoinRequest>(
      context, request, reply, [daemon = daemon_](const Result& result) {
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

grpc::ServerUnaryReactor* HeapService::Mapped(Context* context, const Bytes* request,
                                              Bytes* reply) {
  return calls_->Ask<v1::MappedRequest>(context, request, reply,
                                        Convert<MappedResult, v1::MappedReply>);
}

grpc::ServerUnaryReactor* HeapService::Operate(Context* context, const Bytes* request,
                                               Bytes* reply) {
  return calls_->Ask<v1::OperateRequest>(context, request, reply, [](const Result& result) {
    return SerializeOperateReply(std::get<Outcome>(result));
  });
}

grpc::ServerUnaryReactor* HeapService::GrowMapped(Context* context, const Bytes* request,
                                                  Bytes* reply) {
  return calls_->Ask<v1::GrowMappedRequest>(context, request, reply, Nothing<v1::GrowMappedReply>);
}

grpc::ServerUnaryReactor* HeapService::Leave(Context* context, const Bytes* request, Bytes* reply) {
  return calls_->Ask<v1::LeaveRequest>(context, request, reply, Nothing<v1::LeaveReply>);
}

grpc::ServerUnaryReactor* HeapService::Resume(Context* context, const Bytes* request,
                                              Bytes* reply) {
  return calls_->Ask<v1::ResumeRequest>(context, request, reply,
                                        Convert<ResumeResult, v1::ResumeReply>);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HeapService::Watch(Context* context,
                                                               const Bytes* request) {
  v1::WatchRequest message;
  const absl::Status parsed = ParseMessage(*request, &message);
  const absl::StatusOr<SessionId> session =
      parsed.ok() ? calls_->SessionOf(*context, message.session_id()) : parsed;
  const auto stream = std::make_shared<WatchStream>(daemon_, calls_->counter(),
                                                    session.ok() ? *session : SessionId());
  if (session.ok()) {
    daemon_->Watch({*session, daemon_->NewCall(), JobId{message.job_id()}}, stream);
  } else {
    stream->Close(session.status());
  }
  return StreamWriter::GiveToGrpc(stream);
}

}  // namespace iris::server
