#include "server/rpc/message.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/rpc/convert.h"

namespace iris::server {
namespace {

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

absl::Status ParseMessage(std::string_view bytes, google::protobuf::MessageLite* message) {
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the request of ", bytes.size(), " bytes is not a message of type ", message->GetTypeName()));
}

LinkPayload SerializeMessage(const google::protobuf::MessageLite& message) {
  return {message.SerializeAsString(), nullptr};
}

LinkPayload SerializeOperateReply(const Outcome& outcome) {
  v1::OperateReply reply;
  ToProto(outcome, reply.mutable_outcome());
  const std::shared_ptr<const std::string>& value = outcome.result.value.share();
  if (!outcome.status.ok() || value == nullptr || value->empty()) return SerializeMessage(reply);

  // The value comes last in its message, that message last in the outcome, and the outcome last in
  // the reply, so that everything else stands before it. Protobuf's fields may come in any order.
  constexpr int kOutcome = v1::OperateReply::kOutcomeFieldNumber;
  constexpr int kResult = v1::Outcome::kResultFieldNumber;
  constexpr int kValue = v1::OperationResult::kValueFieldNumber;
  const std::string result = reply.outcome().result().SerializeAsString();
  reply.mutable_outcome()->clear_result();
  const std::string rest = reply.outcome().SerializeAsString();
  const size_t result_bytes = result.size() + BytesBefore(kValue, value->size()) + value->size();
  const size_t outcome_bytes = rest.size() + BytesBefore(kResult, result_bytes) + result_bytes;
  std::string head;
  {
    google::protobuf::io::StringOutputStream stream(&head);
    CodedOutputStream out(&stream);
    WriteBefore(kOutcome, outcome_bytes, &out);
    out.WriteString(rest);
    WriteBefore(kResult, result_bytes, &out);
    out.WriteString(result);
    WriteBefore(kValue, value->size(), &out);
  }
  return {std::move(head), value};
}

}  // namespace iris::server
