// Protocol buffers to and from the bytes that workers relay. Pure; thread-safe.
//
// A service takes and gives bytes, for two reasons: a request that does not parse is answered with
// a text, and a large value of a reply is shared instead of copied.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "server/link/link.h"

namespace iris::server {

// Reads `bytes`; fields of type bytes are copied out of them, once. kInvalidArgument if they are no
// such message.
absl::Status ParseMessage(std::string_view bytes, google::protobuf::MessageLite* message);

LinkPayload SerializeMessage(const google::protobuf::MessageLite& message);

}  // namespace iris::server
