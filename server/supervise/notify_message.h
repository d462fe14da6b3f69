// What a child says to its service manager by sd_notify(3). Pure; thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

namespace iris::server {

// The part of the protocol that the supervisor acts on. Other assignments mean nothing to it, such
// as STATUS=, MAINPID= and RELOADING=1, behind which READY=1 comes; neither does BARRIER=1, whose
// descriptor is closed like every other that is not to be kept.
struct NotifyMessage {
  bool ready = false;
  bool stopping = false;
  bool alive = false;     // WATCHDOG=1
  bool store = false;     // FDSTORE=1
  bool remove = false;    // FDSTOREREMOVE=1
  std::string_view name;  // FDNAME=, the first one; of the text that was parsed
};

// Lines of `text` that are no assignments are passed over.
NotifyMessage ParseNotifyMessage(std::string_view text);

// All names travel in one string of the child's environment, of at most 128 KiB.
inline constexpr size_t kMaxKeptNameBytes = 10;
// Whether descriptors can be kept under `name`: 1 to 10 characters of [A-Za-z0-9_-].
bool IsKeptName(std::string_view name);

}  // namespace iris::server
