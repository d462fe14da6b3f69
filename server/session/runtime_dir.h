// RuntimeDir: irisd's directory, its lock and its two sockets. At most one irisd serves a
// directory, and it leaves nothing in it. Sockets are bound inside a private (0700) subdirectory,
// given their mode and group, then renamed into place, so nobody excluded by the mode can ever
// connect. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

inline constexpr char kSessionSocketName[] = "session.sock";
inline constexpr char kAdminSocketName[] = "irisd.sock";

struct RuntimeDirOptions {
  std::string path;                   // absolute; empty: DefaultRuntimeDir()
  mode_t socket_mode = 0660;          // of both sockets
  std::optional<gid_t> socket_group;  // owner group of both sockets; default: irisd's own
};

// Returns /run/iris for root, otherwise $XDG_RUNTIME_DIR/iris. Returns kFailedPrecondition, with
// advice, if there is neither.
absl::StatusOr<std::string> DefaultRuntimeDir();

// Makes the directory (not its parents), or checks an existing one: kPermissionDenied if others
// could replace its files, as for RuntimeDir::Create. Returns true if it was made.
absl::StatusOr<bool> MakeRuntimeDirectory(const std::string& path);

class RuntimeDir {
 public:
  // The listening sockets that an earlier irisd had in the directory. Clients may wait in them.
  struct Listeners {
    wire::UniqueFd session;
    wire::UniqueFd admin;
  };

  struct Listener {
    wire::UniqueFd fd;
    bool made = false;  // false: an earlier irisd made it
  };

  // Makes the directory (not its parents), takes its lock, and opens both sockets for listening,
  // the session socket with SO_PASSCRED. Returns kAlreadyExists if another irisd serves it; the
  // message has its pid. Returns kInvalidArgument if the path is too long or relative. Returns
  // kPermissionDenied or kResourceExhausted if the directory cannot be written, if others could
  // replace its files (if it is writable by all, or by another group than irisd's own, or if its
  // owner is neither irisd nor root), or if its lock is another user's.
  //
  // Sockets of `earlier` are used instead of new ones if they are listening, and still in place.
  // With `leave`, all stays for the next irisd when this object is destroyed, or cannot be made.
  static absl::StatusOr<std::unique_ptr<RuntimeDir>> Create(const RuntimeDirOptions& options,
                                                            Listeners earlier = {},
                                                            bool leave = false);
  // Removes the sockets, the lock, and the directory if Create made it and it is empty.
  ~RuntimeDir();
  RuntimeDir(const RuntimeDir&) = delete;
  RuntimeDir& operator=(const RuntimeDir&) = delete;

  const std::string& path() const { return path_; }
  // Returns a listener, whose descriptor the caller may move away.
  Listener& session_listener() { return session_listener_; }
  Listener& admin_listener() { return admin_listener_; }
  // Changes the argument `leave` of Create.
  void Leave(bool leave) { leave_ = leave; }

  // Removes the sockets now, so that nobody connects to an irisd that is stopping. The lock stays
  // until destruction.
  void RemoveSockets();

 private:
  RuntimeDir() = default;
  // Uses `earlier`, or closes it and makes a new listener.
  absl::StatusOr<Listener> Listen(const char* name, int type, const RuntimeDirOptions& options,
                                  wire::UniqueFd earlier);

  std::string path_;
  bool made_directory_ = false;
  bool made_private_ = false;
  bool leave_ = false;
  wire::UniqueFd lock_;
  Listener session_listener_;
  Listener admin_listener_;
};

}  // namespace iris::server
