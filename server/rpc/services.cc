#include "server/rpc/services.h"

#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "server/host/registered_memory.h"
#include "server/rpc/convert.h"
#include "server/rpc/heap_part.h"
#include "server/rpc/listings.h"

namespace iris::server {

namespace {

// Large enough for names, numbers and page tokens.
constexpr size_t kMaxLookRequestBytes = 16 << 10;

constexpr size_t kMaxWatchQueue = 256;

// Returns true if the call copies data of jobs, so that it must not run on the session thread.
// kListTenants must run on it: only that thread may read the counts of connections.
bool Looks(Method method) {
  return (IsAdmin(method) && method != Method::kEvents && method != Method::kListTenants) ||
         method == Method::kBorrow;
}

// Returns the session of the call's connection. Returns kPermissionDenied on an admin connection,
// or if the request names another session.
absl::StatusOr<SessionId> SessionOf(const IncomingCall& incoming, uint64_t session_id) {
  if (incoming.session.value == 0) {
    return absl::PermissionDeniedError(
        "heap calls need a session: connect to session.sock, and call on the socket that its "
        "handshake returns");
  }
  if (incoming.session.value != session_id) {
    return absl::PermissionDeniedError(
        absl::StrCat("the request names session ", session_id, ", which is not this connection's"));
  }
  return incoming.session;
}

absl::StatusOr<Daemon::Registered> KeepAll(driver::BackendKind kind,
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

// Returns the memory of a register operation, whose descriptors came with the call. Returns
// kInvalidArgument unless each piece has exactly one descriptor. For a register of several ranks,
// which wait for this one, puts the error into `request` instead.
absl::StatusOr<Daemon::Registered> TakeRegistered(const Daemon& daemon, const IncomingCall& call,
                                                  v1::OperateRequest* request) {
  auto registered = KeepAll(daemon.driver().kind(), *request, call);
  if (registered.ok() || !request->has_register_() || IsOwnTeam(request->team_id())) {
    return registered;
  }
  request->mutable_register_()->clear_piece_bytes();
  request->mutable_register_()->set_error(std::string(registered.status().message()));
  return Daemon::Registered();
}

template <typename R, typename Message>
LinkPayload Convert(const Result& result) {
  Message reply;
  Write(std::get<R>(result), &reply);
  return SerializeMessage(reply);
}

LinkPayload JoinReplyOf(const Daemon& daemon, const JoinResult& joined) {
  const auto devices = daemon.driver().devices();
  v1::JoinReply message;
  Write(joined, &message);
  for (v1::Peer& peer : *message.mutable_peers()) {
    peer.set_device_uuid(UuidOf(devices, peer.device_index()));
  }
  if (joined.device_index < devices.size()) {
    Write(devices[joined.device_index], message.mutable_device());
  }
  message.set_link_bytes(daemon.segments().link_bytes());
  driver::CreateTimes times;
  for (const SegmentInfo& segment : joined.segments) {
    if (segment.rank != joined.rank) continue;
    const driver::CreateTimes one = daemon.segments().TimesOf(segment.id);
    times.create += one.create;
    times.export_fd += one.export_fd;
  }
  message.set_create_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(times.create)));
  message.set_export_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(times.export_fd)));
  return SerializeMessage(message);
}

using google::protobuf::io::CodedOutputStream;

// Returns the tag of a field of messages, texts or bytes. A length and the content follow the tag.
constexpr uint32_t LengthDelimited(int field) { return static_cast<uint32_t>(field) << 3 | 2; }

size_t BytesBefore(int field, size_t content_bytes) {
  return CodedOutputStream::VarintSize32(LengthDelimited(field)) +
         CodedOutputStream::VarintSize32(static_cast<uint32_t>(content_bytes));
}

void WriteBefore(int field, size_t content_bytes, CodedOutputStream* out) {
  out->WriteTag(LengthDelimited(field));
  out->WriteVarint32(static_cast<uint32_t>(content_bytes));
}

// Writes a session's watch stream. The daemon shares it until the stream is closed.
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

absl::Status Borrow(Daemon* daemon, const IncomingCall& call, const v1::BorrowRequest& request,
                    v1::BorrowReply* reply) {
  const absl::StatusOr<SessionId> session = SessionOf(call, request.session_id());
  if (!session.ok()) return session.status();
  const absl::StatusOr<HeapPart> part = FindHeapPart(
      *daemon, call.caller,
      {"borrow", request.job(), request.rank(), request.offset_bytes(), request.bytes()});
  if (!part.ok()) return part.status();
  const bool writes = part->of_member || request.for_writing();
  const absl::Status sent =
      daemon->Lend(*session, part->job_id, part->epoch, part->segments,
                   writes ? driver::Access::kReadWrite : driver::Access::kReadOnly);
  if (!sent.ok()) return sent;
  reply->set_job_id(part->job_id.value);
  reply->set_epoch(part->epoch);
  reply->set_device_uuid(UuidOf(daemon->driver().devices(), part->device_index));
  for (const SegmentInfo& segment : part->segments) Write(segment, reply->add_segments());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ActiveCall>> Watch(Daemon* daemon, CallCounter* counter,
                                                  const IncomingCall& call,
                                                  const v1::WatchRequest& request) {
  const absl::StatusOr<SessionId> session = SessionOf(call, request.session_id());
  if (!session.ok()) return session.status();
  auto stream = std::make_shared<WatchStream>(daemon, counter, *session, call.reply);
  daemon->Watch({*session, daemon->NewCall(), JobId{request.job_id()}}, stream);
  return stream;
}

}  // namespace

LinkPayload OperateReplyOf(const Outcome& outcome) {
  v1::OperateReply reply;
  v1::Outcome& answer = *reply.mutable_outcome();
  answer.set_k(outcome.k);
  answer.set_code(proto::NumberOf(outcome.status.code()));
  if (!outcome.status.ok()) {
    answer.set_text(std::string(outcome.status.message().substr(0, wire::kMaxErrorTextBytes)));
    return SerializeMessage(reply);
  }
  Write(outcome.result, answer.mutable_result());
  const std::shared_ptr<const std::string>& value = outcome.result.value.share();
  if (value == nullptr || value->empty()) return SerializeMessage(reply);

  // The value comes last in its message, that message last in the outcome, and the outcome last in
  // the reply, so that everything else precedes the value. Protobuf's fields may come in any order.
  constexpr int kOutcome = v1::OperateReply::kOutcomeFieldNumber;
  constexpr int kResult = v1::Outcome::kResultFieldNumber;
  constexpr int kValue = v1::OperationResult::kValueFieldNumber;
  const std::string result = answer.result().SerializeAsString();
  answer.clear_result();
  const std::string rest = answer.SerializeAsString();
  const size_t result_bytes = result.size() + BytesBefore(kValue, value->size()) + value->size();
  const size_t outcome_bytes = rest.size() + BytesBefore(kResult, result_bytes) + result_bytes;
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    CodedOutputStream out(&stream);
    WriteBefore(kOutcome, outcome_bytes, &out);
    out.WriteString(rest);
    WriteBefore(kResult, result_bytes, &out);
    out.WriteString(result);
    WriteBefore(kValue, value->size(), &out);
  }
  return {std::move(bytes), value};
}

// One call that is answered by one message. Either its answer or its cancellation finishes the
// call, as the daemon decides.
class Services::Unary : public ActiveCall {
 public:
  Unary(Daemon* daemon, CallCounter* counter, std::shared_ptr<Replier> reply)
      : hold_(counter), daemon_(daemon), id_(daemon->NewCall()), reply_(std::move(reply)) {}
  CallId id() const { return id_; }

  // Either Succeed or Fail is called, once.
  void Succeed(LinkPayload reply) {
    if (reply.size() > wire::kMaxRpcBytes) {
      return Fail(absl::ResourceExhaustedError(absl::StrCat(
          "the answer has ", base::SizeText(reply.size()), "; irisd sends at most ",
          base::SizeText(wire::kMaxRpcBytes), " in a message: ask for less at a time")));
    }
    reply_->Send(std::move(reply));
    reply_->Finish(absl::OkStatus());
  }
  void Fail(const absl::Status& status) { reply_->Finish(status); }

  void OnCancel() override {
    if (daemon_->Cancel(id_)) Fail(absl::CancelledError("the caller is gone"));
  }

 private:
  const CallCounter::Hold hold_;
  Daemon* const daemon_;
  const CallId id_;
  const std::shared_ptr<Replier> reply_;
};

// Uses what the launcher's ranks agreed on where neither the job nor irisd has anything else.
void UseLaunchers(const v1::Nodes& told, const DaemonFacts::Network& own, JoinNodes* nodes) {
  if (nodes->rendezvous.empty() && own.etcd.empty()) nodes->rendezvous = told.launcher_rendezvous();
  if (nodes->secret.empty() && !own.has_secret) nodes->secret = told.launcher_secret();
}

template <typename Call, typename Request, typename ToReply>
std::shared_ptr<ActiveCall> Services::Ask(const IncomingCall& incoming, ToReply to_reply) {
  const auto call = std::make_shared<Unary>(daemon_, &counter_, incoming.reply);
  Call input{{}, call->id()};
  Daemon::Registered registered;
  const auto read = [&]() -> absl::Status {
    Request message;
    const absl::Status parsed = ParseMessage(incoming.request, &message);
    if (!parsed.ok()) return parsed;
    const absl::StatusOr<SessionId> session = SessionOf(incoming, message.session_id());
    if (!session.ok()) return session.status();
    input.session = *session;
    Read(message, &input);
    if constexpr (std::is_same_v<Call, JoinCall>) {
      if (input.spec.nodes.has_value()) {
        UseLaunchers(message.nodes(), facts_.network, &*input.spec.nodes);
      }
    }
    if constexpr (std::is_same_v<Call, OperateCall>) {
      absl::StatusOr<Daemon::Registered> given = TakeRegistered(*daemon_, incoming, &message);
      if (!given.ok()) return given.status();
      registered = *std::move(given);
      absl::StatusOr<Operation> op = OperationOfRequest(std::move(message));
      if (!op.ok()) return op.status();
      input.spec.op = *std::move(op);
    }
    return absl::OkStatus();
  };
  absl::Status status;
  try {
    status = read();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError(
        "the system gives irisd no memory for this call; it is as if it had not been made: call "
        "again later, or have the operator see to the limits of irisd's unit");
  }
  if (!status.ok()) {
    call->Fail(status);
    return nullptr;
  }
  daemon_->Call(
      call->id(), std::move(input),
      [call, to_reply](const Reply& answer) {
        if (answer.status.ok()) {
          call->Succeed(to_reply(answer.result));
        } else {
          call->Fail(answer.status);
        }
      },
      std::move(registered));
  return call;
}

template <typename Request, typename ReplyMessage, typename Function>
std::shared_ptr<ActiveCall> Services::Answer(const IncomingCall& incoming, Function answer) {
  Unary call(daemon_, &counter_, incoming.reply);
  Request message;
  ReplyMessage out;
  absl::Status status = ParseMessage(incoming.request, &message);
  if (status.ok()) status = answer(message, &out);
  if (status.ok()) {
    call.Succeed(SerializeMessage(out));
  } else {
    call.Fail(status);
  }
  return nullptr;
}

template <typename Source, typename Request, typename ReplyMessage>
std::shared_ptr<ActiveCall> Services::Answer(
    const IncomingCall& incoming, const Source& source,
    absl::Status (*answer)(const Source&, const CallerInfo&, const Request&, ReplyMessage*)) {
  return Answer<Request, ReplyMessage>(incoming, [&](const Request& request, ReplyMessage* reply) {
    return answer(source, incoming.caller, request, reply);
  });
}

template <typename Request, typename Start>
std::shared_ptr<ActiveCall> Services::Stream(const IncomingCall& incoming, Start start) {
  Request message;
  absl::Status status = ParseMessage(incoming.request, &message);
  if (status.ok()) {
    absl::StatusOr<std::shared_ptr<ActiveCall>> stream = start(message);
    if (stream.ok()) return *std::move(stream);
    status = stream.status();
  }
  incoming.reply->Finish(status);
  return nullptr;
}

std::shared_ptr<ActiveCall> Services::Serve(const IncomingCall& call) {
  const bool admin = IsAdmin(call.method) || Looks(call.method);
  const size_t most = admin ? kMaxLookRequestBytes : wire::kMaxRequestBytes;
  if (call.request.size() > most) {
    call.reply->Finish(absl::ResourceExhaustedError(
        absl::StrCat("the request has ", base::SizeText(call.request.size()),
                     "; this call takes at most ", base::SizeText(most))));
    return nullptr;
  }
  if (!Looks(call.method)) return Dispatch(call);
  readers_.Post([this, call = IncomingCall(call), request = std::string(call.request)]() mutable {
    call.request = request;
    Dispatch(call);
  });
  return nullptr;
}

std::shared_ptr<ActiveCall> Services::Dispatch(const IncomingCall& call) {
  const AdminSources all{*daemon_, facts_};
  const Daemon& daemon = *daemon_;
  switch (call.method) {
    case Method::kJoin:
      return Ask<JoinCall, v1::JoinRequest>(call, [&daemon](const Result& result) {
        return JoinReplyOf(daemon, std::get<JoinResult>(result));
      });
    case Method::kMapped:
      return Ask<MappedCall, v1::MappedRequest>(call, Convert<MappedResult, v1::MappedReply>);
    case Method::kOperate:
      return Ask<OperateCall, v1::OperateRequest>(
          call, [](const Result& result) { return OperateReplyOf(std::get<Outcome>(result)); });
    case Method::kGrowMapped:
      return Ask<GrowMappedCall, v1::GrowMappedRequest>(call, Convert<Done, v1::GrowMappedReply>);
    case Method::kLeave:
      return Ask<LeaveCall, v1::LeaveRequest>(call, Convert<Done, v1::LeaveReply>);
    case Method::kResume:
      return Ask<ResumeCall, v1::ResumeRequest>(call, Convert<ResumeResult, v1::ResumeReply>);
    case Method::kAwaitBarrier:
      return Ask<AwaitBarrierCall, v1::AwaitBarrierRequest>(
          call, Convert<BarrierAnswer, v1::AwaitBarrierReply>);
    case Method::kWatch:
      return Stream<v1::WatchRequest>(call, [&](const v1::WatchRequest& request) {
        return Watch(daemon_, &counter_, call, request);
      });
    case Method::kBorrow:
      return Answer<v1::BorrowRequest, v1::BorrowReply>(
          call, [&](const v1::BorrowRequest& request, v1::BorrowReply* reply) {
            return Borrow(daemon_, call, request, reply);
          });
    case Method::kEvents:
      return Stream<v1::EventsRequest>(call, [&](const v1::EventsRequest& request) {
        return Events(&daemon_->events(), &counter_, call, request);
      });
    case Method::kGetStatus:
      return Answer(call, all, GetStatus);
    case Method::kListTenants:
      return Answer(call, all, ListTenants);
    case Method::kListDevices:
      return Answer(call, daemon, ListDevices);
    case Method::kListJobs:
      return Answer(call, daemon, ListJobs);
    case Method::kListHeaps:
      return Answer(call, daemon, ListHeaps);
    case Method::kListAllocations:
      return Answer(call, daemon, ListAllocations);
    case Method::kListSessions:
      return Answer(call, daemon, ListSessions);
    case Method::kListNodes:
      return Answer(call, daemon, ListNodes);
    case Method::kListWaits:
      return Answer(call, daemon, ListWaits);
    case Method::kDescribeJobs:
      return Answer(call, daemon, DescribeJobs);
    case Method::kPeek:
      return Answer(call, daemon, Peek);
  }
  call.reply->Finish(absl::UnimplementedError("no such method"));
  return nullptr;
}

}  // namespace iris::server
