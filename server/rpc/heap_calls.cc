#include "server/rpc/heap_calls.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "server/host/registered_memory.h"
#include "server/job/text.h"
#include "server/rpc/convert.h"
#include "server/rpc/listings.h"
#include "server/rpc/message.h"

namespace iris::server {

IRIS_FIELDS(PeerInfo, v1::Peer, rank, pid, device_index);
// Without what names devices.
IRIS_FIELDS(JoinResult, v1::JoinReply, (job, job_id), epoch, proposed_base, stride_bytes,
            granularity_bytes, heap_bytes, segments, peers, (map_timeout, map_timeout_ms, ms));
IRIS_FIELDS(OpenedInfo, v1::Opened, offset_bytes, bytes, dtype, registered);
IRIS_FIELDS(OperationResult, v1::OperationResult, offset_bytes, team, heap_bytes, opened);

namespace {

constexpr size_t kMaxWatchQueue = 256;

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

using google::protobuf::io::CodedOutputStream;

// A field of messages, texts and bytes on the wire: this tag, a length, then the content.
constexpr uint32_t LengthDelimited(int field) { return static_cast<uint32_t>(field) << 3 | 2; }

size_t BytesBefore(int field, size_t content_bytes) {
  return CodedOutputStream::VarintSize32(LengthDelimited(field)) +
         CodedOutputStream::VarintSize32(static_cast<uint32_t>(content_bytes));
}

void WriteBefore(int field, size_t content_bytes, CodedOutputStream* out) {
  out->WriteTag(LengthDelimited(field));
  out->WriteVarint32(static_cast<uint32_t>(content_bytes));
}

}  // namespace

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

absl::StatusOr<HeapPart> FindHeapPart(const Daemon& daemon, const CallerInfo& caller,
                                      const HeapPartQuery& query) {
  if (query.job.empty())
    return absl::InvalidArgumentError(absl::StrCat(query.what, ": name a job"));
  if (query.bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(query.what, ": 0 bytes asked for"));
  }
  const std::vector<JobSnapshot> jobs = daemon.Inspect(
      [&](const JobMachine& machine) { return machine.Jobs(QueryOf(caller, query.job)); });
  if (jobs.empty()) return NoSuchJob(caller, query.job);
  if (jobs.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(query.what, ": ", jobs.size(),
                     " users have a job of that name; ask as the user who owns it"));
  }
  const JobSnapshot& job = jobs.front();
  const auto rank = std::find_if(job.ranks.begin(), job.ranks.end(),
                                 [&](const RankSnapshot& r) { return r.rank == query.rank; });
  if (rank == job.ranks.end() || rank->segments.empty()) {
    return absl::NotFoundError(absl::StrCat(query.what, ": job \"", EscapeForLog(job.name),
                                            "\" has no rank ", query.rank, " with memory"));
  }
  HeapPart part{job.id, job.epoch, rank->device_index, rank->segments};
  part.of_member = std::any_of(job.ranks.begin(), job.ranks.end(), [&](const RankSnapshot& r) {
    return r.pid == caller.pid && job.party == caller.party;
  });
  std::sort(
      part.segments.begin(), part.segments.end(),
      [](const SegmentInfo& a, const SegmentInfo& b) { return a.offset_bytes < b.offset_bytes; });
  const uint64_t heap_bytes = part.segments.back().offset_bytes + part.segments.back().bytes;
  // Only registered memory is above the heap.
  const bool above = query.offset_bytes >= heap_bytes && query.offset_bytes < job.stride_bytes &&
                     query.bytes <= job.stride_bytes - query.offset_bytes &&
                     !rank->registered.empty();
  if (above) part.segments = rank->registered;
  if (!above &&
      (query.offset_bytes > heap_bytes || query.bytes > heap_bytes - query.offset_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.what, ": ", base::SizeText(query.bytes), " at offset ",
                     query.offset_bytes, " leave the heap of ", base::SizeText(heap_bytes)));
  }
  const uint64_t end = query.offset_bytes + query.bytes;
  std::erase_if(part.segments, [&](const SegmentInfo& segment) {
    return segment.offset_bytes >= end ||
           segment.offset_bytes + segment.bytes <= query.offset_bytes;
  });
  uint64_t covered = query.offset_bytes;
  for (const SegmentInfo& segment : part.segments) {
    if (segment.offset_bytes <= covered) covered = segment.offset_bytes + segment.bytes;
  }
  if (covered < end) {
    return absl::NotFoundError(absl::StrCat(query.what, ": the heap has no memory there now"));
  }
  return part;
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
  message.set_link_bytes(daemon.descriptors().link_bytes());
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
  // the reply, so that everything else stands before it. Protobuf's fields may come in any order.
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

}  // namespace iris::server
