#include "server/rpc/message.h"

#include "absl/strings/str_cat.h"

namespace iris::server {

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

}  // namespace iris::server
