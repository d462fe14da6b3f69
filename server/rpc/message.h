// Protocol buffers to and from the bytes that gRPC carries. Pure; thread-safe.
//
// Our services take and give bytes (gRPC calls such methods raw), for two reasons: a request that
// does not parse is answered with a text, and a large value of a reply is shared instead of copied.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace iris::server {

// Reads `bytes`, which are left as they are; fields of type bytes are copied out of them, once.
// kInvalidArgument: they are no such message.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

// The bytes of `value`, not copied: the slice, and whatever gRPC makes of it, hold `value`.
grpc::Slice SharedSlice(std::shared_ptr<const std::string> value);

}  // namespace iris::server
