// Converts messages between the irisds of a job's nodes to bytes and back. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/job/node_messages.h"

namespace iris::server {

std::string EncodeNodeMessage(const NodeMessage& message);

// Reads bytes that come from another node, and may be hostile. Returns kInvalidArgument if they are
// no message. Does not check what the machine checks.
absl::StatusOr<NodeMessage> DecodeNodeMessage(absl::string_view bytes);

}  // namespace iris::server
