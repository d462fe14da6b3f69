#include "server/supervise/notify_message.h"

#include <algorithm>

namespace iris::server {

NotifyMessage ParseNotifyMessage(std::string_view text) {
  constexpr std::string_view kName = "FDNAME=";
  NotifyMessage message;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line == "READY=1") message.ready = true;
    if (line == "STOPPING=1") message.stopping = true;
    if (line == "WATCHDOG=1") message.alive = true;
    if (line == "FDSTORE=1") message.store = true;
    if (line == "FDSTOREREMOVE=1") message.remove = true;
    if (message.name.empty() && line.substr(0, kName.size()) == kName) {
      message.name = line.substr(kName.size());
    }
  }
  return message;
}

bool IsKeptName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxKeptNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

}  // namespace iris::server
