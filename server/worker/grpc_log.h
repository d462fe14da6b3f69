// What gRPC logs, in the form of irisd's log.
#pragma once

#include <string>
#include <string_view>

#include "server/events/log.h"

namespace iris::server {

// Lets gRPC log by `logger`, with the field `key`=`name` in each line. gRPC logs mistakes of the
// other side, which thus determines the number of lines: some lines of each minute are logged, and
// the others are dropped. Call it once, before there are threads; `logger` has to outlive them.
void LogForGrpc(const Logger* logger, std::string_view key, const std::string& name);

}  // namespace iris::server
