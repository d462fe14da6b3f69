// What irisd sent, field by field. In this file a wrong message is an exception; none leaves it.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/convert.h"
#include "client/internal/heap_fields.h"
#include "client/internal/message_reader.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"

namespace iris::internal {
namespace {

constexpr size_t kMaxSegments = size_t{wire::kMaxRanks} * wire::kMaxSegmentsPerHeap;

void Read(absl::string_view bytes, Segment* to) {
  using Field = field::Segment;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kSegmentId):
        to->segment_id = message.get_uint64();
        break;
      case Varint(Field::kRank):
        to->rank = message.get_uint32();
        break;
      case Varint(Field::kOffsetBytes):
        to->offset_bytes = message.get_uint64();
        break;
      case Varint(Field::kBytes):
        to->bytes = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
}

void AddSegment(absl::string_view bytes, std::vector<Segment>* to) {
  Read(bytes, &Add(to, kMaxSegments, "it has more segments than a job can have"));
}

void Read(absl::string_view bytes, Peer* to) {
  using Field = field::Peer;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kPid):
        to->pid = message.get_int64();
        break;
      case Bytes(Field::kDeviceUuid):
        to->device_uuid = message.Text();
        break;
      case Varint(Field::kDeviceIndex):
        to->device_index = message.get_uint32();
        break;
      default:
        message.skip();
    }
  }
}

void ReadDevice(absl::string_view bytes, JoinedJob* to) {
  using Field = field::Device;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Bytes(Field::kUuid):
        to->device_uuid = message.Text();
        break;
      case Varint(Field::kIndex):
        to->device_index = message.get_uint32();
        break;
      case Bytes(Field::kBackend):
        to->backend = message.Text();
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, JoinedJob* to) {
  using Field = field::JoinReply;
  uint64_t map_timeout_ms = 0, create_ns = 0, export_ns = 0;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Fixed64(Field::kJobId):
        to->job_id = message.get_fixed64();
        break;
      case Varint(Field::kEpoch):
        to->epoch = message.get_uint64();
        break;
      case Varint(Field::kProposedBase):
        to->proposed_base = message.get_uint64();
        break;
      case Varint(Field::kStrideBytes):
        to->stride_bytes = message.get_uint64();
        break;
      case Varint(Field::kHeapBytes):
        to->heap_bytes = message.get_uint64();
        break;
      case Bytes(Field::kSegments):
        AddSegment(message.View(), &to->segments);
        break;
      case Bytes(Field::kPeers):
        Read(message.View(), &Add(&to->peers, wire::kMaxRanks, "it has more peers than a job"));
        break;
      case Bytes(Field::kDevice):
        ReadDevice(message.View(), to);
        break;
      case Varint(Field::kMapTimeoutMs):
        map_timeout_ms = message.get_uint64();
        break;
      case Varint(Field::kLinkBytes):
        to->link_bytes = message.get_uint64();
        break;
      case Varint(Field::kCreateNs):
        create_ns = message.get_uint64();
        break;
      case Varint(Field::kExportNs):
        export_ns = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
  to->map_timeout = MillisecondsOf(map_timeout_ms);
  to->create = NanosecondsOf(create_ns);
  to->export_fds = NanosecondsOf(export_ns);
}

void Read(absl::string_view bytes, TeamInfo* to) {
  using Field = field::TeamInfo;
  const auto add_rank = [to](uint32_t rank) {
    Add(&to->ranks, wire::kMaxRanks, "a team has more ranks than a job") = rank;
  };
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kTeamId):
        to->team_id = message.get_uint32();
        break;
      // A list of numbers comes as one field or as many.
      case Bytes(Field::kRanks):
        for (const uint32_t rank : message.get_packed_uint32()) add_rank(rank);
        break;
      case Varint(Field::kRanks):
        add_rank(message.get_uint32());
        break;
      case Varint(Field::kBarrierSlot):
        to->barrier_slot = message.get_uint32();
        break;
      case Varint(Field::kBarrierStartEpoch):
        to->barrier_start_epoch = message.get_uint32();
        break;
      case Varint(Field::kSyncOffsetBytes):
        to->sync_offset_bytes = message.get_uint64();
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, CommittedJob* to) {
  using Field = field::MappedReply;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kSameAddress):
        to->same_address = message.Bool();
        break;
      case Bytes(Field::kWorld):
        Read(message.View(), &to->world);
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, OpenedRange* to) {
  using Field = field::Opened;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kOffsetBytes):
        to->offset_bytes = message.get_uint64();
        break;
      case Varint(Field::kBytes):
        to->bytes = message.get_uint64();
        break;
      case Bytes(Field::kDtype):
        to->dtype = message.Text();
        break;
      case Varint(Field::kRegistered):
        to->registered = message.Bool();
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, OperationResult* to) {
  using Field = field::OperationResult;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kOffsetBytes):
        to->offset_bytes = message.get_uint64();
        break;
      case Bytes(Field::kValue):
        to->value = std::string(message.View());
        break;
      case Bytes(Field::kTeam):
        if (!to->team.has_value()) to->team.emplace();
        Read(message.View(), &*to->team);
        break;
      case Varint(Field::kHeapBytes):
        to->heap_bytes = message.get_uint64();
        break;
      case Bytes(Field::kOpened):
        if (!to->opened.has_value()) to->opened.emplace();
        Read(message.View(), &*to->opened);
        break;
      default:
        message.skip();
    }
  }
}

// An outcome before it is known to be of one piece.
struct OutcomeFields {
  uint64_t k = 0;
  uint32_t code = 0;
  std::string text;
  OperationResult result;
};

void Read(absl::string_view bytes, OutcomeFields* to) {
  using Field = field::Outcome;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kK):
        to->k = message.get_uint64();
        break;
      case Varint(Field::kCode):
        to->code = message.get_uint32();
        break;
      case Bytes(Field::kText):
        to->text = message.Text();
        break;
      case Bytes(Field::kResult):
        Read(message.View(), &to->result);
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, Outcome* to) {
  using Field = field::OperateReply;
  OutcomeFields fields;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Bytes(Field::kOutcome):
        Read(message.View(), &fields);
        break;
      default:
        message.skip();
    }
  }
  to->k = fields.k;
  to->status = absl::Status(proto::CodeOf(fields.code), fields.text);
  if (to->status.ok()) to->result = std::move(fields.result);
}

void Read(absl::string_view bytes, Borrowed* to) {
  using Field = field::BorrowReply;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Fixed64(Field::kJobId):
        to->job_id = message.get_fixed64();
        break;
      case Varint(Field::kEpoch):
        to->epoch = message.get_uint64();
        break;
      case Bytes(Field::kSegments):
        AddSegment(message.View(), &to->segments);
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, BarrierAnswer* to) {
  using Field = field::AwaitBarrierReply;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kMoment):
        to->moment = message.get_uint64();
        break;
      case Varint(Field::kCannotEnd):
        to->cannot_end = message.get_bool();
        break;
      case Bytes(Field::kText):
        to->text = message.Text();
        break;
      default:
        message.skip();
    }
  }
}

wire::PageRankState StateOf(uint32_t number) {
  return number <= static_cast<uint32_t>(wire::PageRankState::kLeft)
             ? static_cast<wire::PageRankState>(number)
             : wire::PageRankState::kUnspecified;
}

void Read(absl::string_view bytes, RankChange* to) {
  using Field = field::RankChanged;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kRank):
        to->rank = message.get_uint32();
        break;
      case Varint(Field::kState):
        to->state = StateOf(message.get_uint32());
        break;
      case Varint(Field::kPid):
        to->pid = message.get_int64();
        break;
      case Bytes(Field::kReason):
        to->reason = message.Text();
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, SegmentsAdded* to) {
  using Field = field::SegmentsAdded;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kGrowId):
        to->grow_id = message.get_uint64();
        break;
      case Bytes(Field::kSegments):
        AddSegment(message.View(), &to->segments);
        break;
      case Varint(Field::kHeapBytes):
        to->heap_bytes = message.get_uint64();
        break;
      case Varint(Field::kTimeoutMs):
        to->timeout = MillisecondsOf(message.get_uint64());
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, GrowDone* to) {
  using Field = field::GrowDone;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Varint(Field::kGrowId):
        to->grow_id = message.get_uint64();
        break;
      case Varint(Field::kPublished):
        to->published = message.Bool();
        break;
      case Bytes(Field::kReason):
        to->reason = message.Text();
        break;
      default:
        message.skip();
    }
  }
}

void Read(absl::string_view bytes, Stopping* to) {
  using Field = field::Stopping;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Bytes(Field::kReason):
        to->reason = message.Text();
        break;
      default:
        message.skip();
    }
  }
}

// The last alternative that comes counts, and what came before it of the same kind is added to.
template <typename T>
void ReadAs(absl::string_view bytes, WatchEvent* to) {
  if (!std::holds_alternative<T>(*to)) to->emplace<T>();
  Read(bytes, &std::get<T>(*to));
}

void Read(absl::string_view bytes, WatchEvent* to) {
  using Field = field::WatchEvent;
  for (MessageReader<Field> message(bytes); message.next();) {
    switch (message.tag_and_type()) {
      case Bytes(Field::kRankChanged):
        ReadAs<RankChange>(message.View(), to);
        break;
      case Bytes(Field::kSegmentsAdded):
        ReadAs<SegmentsAdded>(message.View(), to);
        break;
      case Bytes(Field::kGrowDone):
        ReadAs<GrowDone>(message.View(), to);
        break;
      case Bytes(Field::kStopping):
        ReadAs<Stopping>(message.View(), to);
        break;
      case Varint(Field::kWatching):
        *to = std::monostate();
        message.skip();
        break;
      default:
        message.skip();
    }
  }
}

template <typename T>
absl::StatusOr<T> Decode(absl::string_view bytes, const char* name) {
  T value;
  try {
    Read(bytes, &value);
  } catch (const protozero::exception& wrong) {
    return absl::InternalError(absl::StrCat(name, " of ", bytes.size(), " bytes: ", wrong.what()));
  }
  return value;
}

}  // namespace

absl::StatusOr<JoinedJob> DecodeJoinReply(absl::string_view bytes) {
  return Decode<JoinedJob>(bytes, "JoinReply");
}
absl::StatusOr<CommittedJob> DecodeMappedReply(absl::string_view bytes) {
  return Decode<CommittedJob>(bytes, "MappedReply");
}
absl::StatusOr<Borrowed> DecodeBorrowReply(absl::string_view bytes) {
  return Decode<Borrowed>(bytes, "a BorrowReply");
}
absl::StatusOr<BarrierAnswer> DecodeAwaitBarrierReply(absl::string_view bytes) {
  return Decode<BarrierAnswer>(bytes, "an AwaitBarrierReply");
}
absl::StatusOr<Outcome> DecodeOperateReply(absl::string_view bytes) {
  return Decode<Outcome>(bytes, "OperateReply");
}
absl::StatusOr<WatchEvent> DecodeWatchEvent(absl::string_view bytes) {
  return Decode<WatchEvent>(bytes, "WatchEvent");
}

}  // namespace iris::internal
