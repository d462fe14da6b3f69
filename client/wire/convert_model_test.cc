// The client's translation of messages against protobuf's generated classes: the same bytes for
// every request, the same values for every answer, whether it is whole, cut or damaged.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/wire/convert.h"
#include "client/wire/testing/proto_reference.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/iris/v1/heap.pb.h"

namespace iris::internal {
namespace {

namespace v1 = iris::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Random messages, and everything that the seed decides.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  uint64_t Below(uint64_t n) { return engine_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Small, large and the extremes.
  uint64_t Number() {
    switch (Below(4)) {
      case 0:
        return 0;
      case 1:
        return Below(300);
      case 2:
        return ~uint64_t{0} >> Below(64);
      default:
        return engine_() >> Below(64);
    }
  }
  std::string Text(uint64_t max_bytes = 20) {
    std::string text;
    for (uint64_t n = Below(max_bytes + 1); n > 0; --n) {
      text += static_cast<char>(' ' + Below(95));
    }
    if (OneIn(4)) text += "\xc3\xa4\xe2\x82\xac";
    return text;
  }

  void Fill(Message* message) {
    const Reflection& of = *message->GetReflection();
    const google::protobuf::Descriptor& type = *message->GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* field = type.field(i);
      if (OneIn(4)) continue;
      for (uint64_t n = field->is_repeated() ? Below(5) : 1; n > 0; --n) Set(of, field, message);
    }
  }

 private:
  void Set(const Reflection& of, const FieldDescriptor* field, Message* to) {
    const uint64_t n = Number();
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT64:
        return many ? of.AddUInt64(to, field, n) : of.SetUInt64(to, field, n);
      case FieldDescriptor::CPPTYPE_INT64:
        return of.SetInt64(to, field, static_cast<int64_t>(n));
      case FieldDescriptor::CPPTYPE_UINT32:
        return many ? of.AddUInt32(to, field, static_cast<uint32_t>(n))
                    : of.SetUInt32(to, field, static_cast<uint32_t>(n));
      case FieldDescriptor::CPPTYPE_INT32:
        return of.SetInt32(to, field, static_cast<int32_t>(n));
      case FieldDescriptor::CPPTYPE_BOOL:
        return of.SetBool(to, field, n % 2 == 1);
      case FieldDescriptor::CPPTYPE_ENUM:
        return of.SetEnumValue(to, field, static_cast<int>(n % 12));
      case FieldDescriptor::CPPTYPE_STRING:
        return of.SetString(to, field, Text());
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Fill(many ? of.AddMessage(to, field) : of.MutableMessage(to, field));
      default:
        FAIL() << "no message of the heap service has a " << field->cpp_type_name();
    }
  }

  std::mt19937_64 engine_;
};

constexpr int kRounds = 2000;

TEST(ConvertModelTest, RequestsAreProtobufsBytes) {
  for (uint64_t seed = 1; seed <= kRounds && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Dice dice(seed);
    const uint64_t session_id = dice.Number();
    HostContextOptions options = {{.job = dice.Text(200),
                                   .rank = static_cast<int>(dice.Number()),
                                   .n_ranks = static_cast<int>(dice.Number()),
                                   .local_rank = static_cast<int>(dice.Number()),
                                   .heap_bytes = dice.Number(),
                                   .max_heap_bytes = dice.Number(),
                                   .prealloc = dice.OneIn(2),
                                   .device_uuid = dice.Text(),
                                   .n_local = static_cast<int>(dice.Number()),
                                   .rendezvous = dice.Text(),
                                   .secret = dice.Text()}};
    options.by_launcher = {dice.Text(), dice.Text()};
    const absl::Duration timeout = absl::Milliseconds(dice.Below(1 << 20));
    EXPECT_EQ(EncodeJoin(session_id, options, timeout),
              reference::ToProto(session_id, options, timeout).SerializeAsString());

    OperationCall call;
    call.job_id = dice.Number();
    call.team_id = static_cast<uint32_t>(dice.Number());
    call.k = dice.Number();
    call.only_thread = dice.OneIn(2);
    const std::string value = dice.Text(3000);
    AllocateOptions allocate = {.bytes = dice.Number(),
                                .alignment_bytes = dice.Number(),
                                .name = dice.Text(200),
                                .dtype = static_cast<DType>(dice.Below(kDTypeCount))};
    for (uint64_t n = dice.Below(30); n > 0; --n) allocate.shape.push_back(dice.Number());
    CreateTeamOp create;
    for (uint64_t n = dice.Below(100); n > 0; --n) {
      create.ranks.push_back(static_cast<uint32_t>(dice.Number()));
    }
    RegisterOp registers;
    registers.options = allocate;
    registers.lead_bytes = dice.Number();
    for (uint64_t n = dice.Below(140); n > 0; --n) registers.piece_bytes.push_back(dice.Number());
    const auto maybe = [&](absl::StatusCode code) {
      return dice.Below(2) == 0 ? absl::OkStatus() : absl::Status(code, dice.Text(1200));
    };
    registers.error = maybe(absl::StatusCode::kInvalidArgument);
    const std::vector<Operation> operations = {
        allocate,
        registers,
        FreeOp{dice.Number()},
        BroadcastOp{static_cast<uint32_t>(dice.Number()), value},
        create,
        DestroyTeamOp{static_cast<uint32_t>(dice.Number())},
        GrowOp{dice.Number()},
        OpenOp{static_cast<uint32_t>(dice.Number()), dice.Text(200)},
        PublishOp{dice.Number(), dice.Text(200)},
        ConfirmOp{dice.Number(), maybe(absl::StatusCode::kInternal)},
        SplitOp{static_cast<uint32_t>(dice.Number()), static_cast<int32_t>(dice.Number()),
                static_cast<int32_t>(dice.Number())}};
    for (const Operation& op : operations) {
      call.op = op;
      EXPECT_EQ(EncodeOperate(session_id, call, timeout),
                reference::ToProto(session_id, call, timeout).SerializeAsString());
    }

    const Asker asker = {session_id, dice.Number()};
    const uint64_t number = dice.Number();
    v1::MappedRequest mapped;
    mapped.set_session_id(asker.session_id);
    mapped.set_job_id(asker.job_id);
    mapped.set_epoch(number);
    mapped.set_base(call.k);
    EXPECT_EQ(EncodeMapped(asker, number, call.k), mapped.SerializeAsString());
    mapped.clear_base();
    mapped.set_error("why");
    EXPECT_EQ(EncodeMapped(asker, number, absl::InternalError("why")), mapped.SerializeAsString());
    v1::GrowMappedRequest grown;
    grown.set_session_id(asker.session_id);
    grown.set_job_id(asker.job_id);
    grown.set_grow_id(number);
    EXPECT_EQ(EncodeGrowMapped(asker, number, absl::OkStatus()), grown.SerializeAsString());
    grown.set_error("why");
    EXPECT_EQ(EncodeGrowMapped(asker, number, absl::InternalError("why")),
              grown.SerializeAsString());
    v1::LeaveRequest leave;
    leave.set_session_id(asker.session_id);
    leave.set_job_id(asker.job_id);
    EXPECT_EQ(EncodeLeave(asker), leave.SerializeAsString());
    EXPECT_EQ(EncodeWatch(asker), leave.SerializeAsString());
    v1::BorrowRequest borrow;
    borrow.set_session_id(session_id);
    borrow.set_job("job");
    borrow.set_rank(call.team_id);
    borrow.set_offset_bytes(number);
    borrow.set_bytes(call.k);
    EXPECT_EQ(EncodeBorrow(session_id, {"job", call.team_id, number, call.k}),
              borrow.SerializeAsString());
    v1::AwaitBarrierRequest barrier;
    barrier.set_session_id(session_id);
    barrier.set_job_id(asker.job_id);
    barrier.set_team_id(call.team_id);
    barrier.set_epoch(static_cast<uint32_t>(number));
    barrier.add_missing(3);
    barrier.add_missing(7);
    barrier.set_only_thread(call.only_thread);
    barrier.set_moment(call.k);
    barrier.set_time_is_up(!call.only_thread);
    EXPECT_EQ(EncodeAwaitBarrier(session_id, {asker.job_id,
                                              call.team_id,
                                              static_cast<uint32_t>(number),
                                              {3, 7},
                                              call.only_thread,
                                              call.k,
                                              !call.only_thread}),
              barrier.SerializeAsString());
    v1::ResumeRequest resume;
    resume.set_session_id(session_id);
    resume.set_job_id(asker.job_id);
    resume.set_job("job");
    resume.set_rank(static_cast<int32_t>(number % 64));
    resume.set_epoch(call.k);
    EXPECT_EQ(
        EncodeResume(session_id, {asker.job_id, call.k, "job", static_cast<uint32_t>(number % 64)}),
        resume.SerializeAsString());
  }
}

// Whole messages, every beginning of some, and damaged ones: where protobuf reads something, the
// client reads the same or refuses it, and it never refuses what is whole.
template <typename Proto, typename Ours>
void CompareAnswers(absl::StatusOr<Ours> (*decode)(absl::string_view),
                    std::string (*modelled)(const Proto&)) {
  int n_refused = 0, n_damaged = 0;
  const auto compare = [&](const std::string& bytes, bool whole) {
    Proto message;
    const bool parses = message.ParseFromString(bytes);
    const absl::StatusOr<Ours> ours = decode(bytes);
    if (parses && ours.ok()) {
      ASSERT_EQ(reference::Text(*ours), modelled(message));
    } else {
      ASSERT_FALSE(whole) << ours.status();
    }
    ++n_damaged;
    n_refused += parses && !ours.ok();
  };
  for (uint64_t seed = 1; seed <= kRounds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Dice dice(seed);
    Proto message;
    dice.Fill(&message);
    std::string bytes = message.SerializeAsString();
    compare(bytes, /*whole=*/true);
    // Said twice: single values are replaced, messages merged, lists appended.
    Proto other;
    dice.Fill(&other);
    compare(bytes + other.SerializeAsString(), /*whole=*/true);
    if (seed % 50 == 0) {
      for (size_t n = 0; n < bytes.size(); ++n) {
        const std::string cut = bytes.substr(0, n);
        compare(cut, /*whole=*/false);
        ASSERT_EQ(Proto().ParseFromString(cut), decode(cut).ok()) << "cut at " << n;
      }
    }
    for (uint64_t n = 1 + dice.Below(4); n > 0 && !bytes.empty(); --n) {
      bytes[dice.Below(bytes.size())] = static_cast<char>(dice.Below(256));
      compare(bytes, /*whole=*/false);
    }
  }
  // Groups, tags of 19000 and numbers beyond 32 bits are what only protobuf takes: they are rare.
  EXPECT_LT(n_refused * 10, n_damaged);
}

TEST(ConvertModelTest, JoinRepliesAreReadAsByProtobuf) {
  CompareAnswers<v1::JoinReply, JoinedJob>(DecodeJoinReply, [](const v1::JoinReply& message) {
    return reference::Text(reference::FromProto(message));
  });
}

TEST(ConvertModelTest, AwaitBarrierRepliesAreReadAsByProtobuf) {
  CompareAnswers<v1::AwaitBarrierReply,
                 BarrierAnswer>(DecodeAwaitBarrierReply, [](const v1::AwaitBarrierReply& message) {
    return reference::Text(BarrierAnswer{message.moment(), message.cannot_end(), message.text()});
  });
}

TEST(ConvertModelTest, BorrowRepliesAreReadAsByProtobuf) {
  CompareAnswers<v1::BorrowReply, Borrowed>(DecodeBorrowReply, [](const v1::BorrowReply& message) {
    return reference::Text(reference::FromProto(message));
  });
}

TEST(ConvertModelTest, MappedRepliesAreReadAsByProtobuf) {
  CompareAnswers<v1::MappedReply, CommittedJob>(
      DecodeMappedReply, [](const v1::MappedReply& message) {
        return reference::Text(reference::FromProto(message));
      });
}

TEST(ConvertModelTest, OutcomesAreReadAsByProtobuf) {
  CompareAnswers<v1::OperateReply, Outcome>(
      DecodeOperateReply, [](const v1::OperateReply& message) {
        return reference::Text(reference::FromProto(v1::Outcome(message.outcome())));
      });
}

TEST(ConvertModelTest, EventsAreReadAsByProtobuf) {
  CompareAnswers<v1::WatchEvent, WatchEvent>(DecodeWatchEvent, [](const v1::WatchEvent& message) {
    return reference::Text(reference::FromProto(message));
  });
}

TEST(ConvertModelTest, NoiseIsNoCrash) {
  for (uint64_t seed = 1; seed <= 20 * kRounds; ++seed) {
    Dice dice(seed);
    std::string bytes;
    for (uint64_t n = dice.Below(60); n > 0; --n) bytes += static_cast<char>(dice.Below(256));
    (void)DecodeJoinReply(bytes);
    (void)DecodeMappedReply(bytes);
    (void)DecodeOperateReply(bytes);
    (void)DecodeWatchEvent(bytes);
  }
}

}  // namespace
}  // namespace iris::internal
