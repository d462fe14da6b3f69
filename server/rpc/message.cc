#include "server/rpc/message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace iris::server {

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message) {
  // The reader changes nothing, but its constructor takes no const buffer.
  grpc::ProtoBufferReader reader(const_cast<grpc::ByteBuffer*>(&bytes));
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request of ", bytes.Length(),
                                                 " bytes is not a message of type ",
                                                 message->GetTypeName()));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Slice SharedSlice(std::shared_ptr<const std::string> value) {
  using Holder = std::shared_ptr<const std::string>;
  auto* const holder = new Holder(std::move(value));
  return grpc::Slice(
      const_cast<char*>((*holder)->data()), (*holder)->size(),
      [](void* held) { delete static_cast<Holder*>(held); }, holder);
}

}  // namespace iris::server
