// Journal: the state of the JobMachine in a file, for the next irisd. It begins with the entire
// state; the changes of each input are appended before they are reported. The file is on tmpfs and
// is not flushed: it outlives the process, but not the machine.
//
// Format: a Head, then records, each a RecordHead and its bytes; checksums are zlib's CRC-32. Only
// a killed process leaves an incomplete record at the end, so that record is ignored; anything else
// that is wrong is damage, and an error. Not thread-safe: the daemon locks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {
namespace state {
class MachineState;
}

struct JournalOwner {
  uint64_t daemon_id = 0;      // by which clients know irisd; the same in every generation
  uint64_t generation = 1;     // counts the irisds that one state has had
  bool pairs_checked = false;  // every pair of devices passed a self-check of one of these irisds
};

class Journal {
 public:
  static constexpr char kFolder[] = "state";
  static constexpr char kFile[] = "journal";
  // The journal is rewritten once its changes are longer than this and twice the state.
  static constexpr uint64_t kSlackBytes = 4ull << 20;
  static constexpr uint64_t kMaxBytes = 8ull << 30;

  // Returns MachineState::Encode of the machine, for each rewrite.
  using Whole = std::function<std::string()>;

  // Makes the folder `directory`/state (0700) if it does not exist, and replaces any journal in it.
  // Returns kPermissionDenied if the folder is a link, another user's, or open to others. Returns
  // kResourceExhausted if the file system is full, or if the process lacks something. On an error,
  // an earlier journal stays.
  //
  // With `goes_on`, this irisd has the state of the earlier journal, and serves even if the file
  // system is full: the earlier journal is then removed to make room. If that does not suffice,
  // stored() is false, and Append tries again.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(const std::string& directory,
                                                         const JournalOwner& owner, Whole whole,
                                                         bool goes_on = false);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Adds MachineState::EncodeChange of the last input. If that fails, the journal is removed, so
  // that no later irisd takes an old state for the present one, and rewritten, since there may be
  // room now. If that fails too, returns an error: there is then no journal, and a later Append
  // tries again, at most once a second. A long journal that cannot be rewritten takes further
  // changes.
  absl::Status Append(absl::string_view change);

  // Removes the file, so that no later irisd continues with it. A later Append rewrites it.
  void Remove();

  bool stored() const { return file_.valid(); }

  uint64_t bytes() const { return bytes_; }
  uint64_t n_rewrites() const { return n_rewrites_; }

 private:
  Journal(std::string folder, const JournalOwner& owner, Whole whole)
      : folder_(std::move(folder)), owner_(owner), whole_(std::move(whole)) {}
  absl::Status Rewrite();
  // Cleans up after a failed Rewrite, and returns the reason.
  absl::Status Failed(absl::Status why);
  absl::Status Failed(int error, const std::string& what);

  const std::string folder_;
  const JournalOwner owner_;
  const Whole whole_;
  wire::UniqueFd file_;
  std::string record_;  // reused
  uint64_t sequence_ = 0;
  uint64_t whole_bytes_ = 0;
  uint64_t bytes_ = 0;
  uint64_t n_rewrites_ = 0;
  int64_t retry_ns_ = 0;  // on the steady clock, after a failure
  std::string failure_;   // of the last failure
  bool is_full_ = false;  // the last Rewrite failed for lack of room in the file system
};

struct StoredState {
  JournalOwner owner;
  std::string writer;   // irisd's version
  std::string boot_id;  // of the boot in which the journal was written
  std::shared_ptr<const state::MachineState> state;
  uint64_t n_changes = 0;
  uint64_t bytes = 0;
  uint64_t torn_bytes = 0;  // bytes of an incomplete last change
};

// Reads the journal under `directory`, even while irisd writes it. Returns kNotFound if there is
// none, and kPermissionDenied if the journal or its folder is a link, another user's, or open to
// others. Returns kFailedPrecondition if this irisd has another format, or another version of the
// state, and kDataLoss if the journal is damaged; the message has the damage and its place.
absl::StatusOr<StoredState> ReadJournal(const std::string& directory);

// Reads a journal from bytes, for tests. The bytes may be hostile.
absl::StatusOr<StoredState> ParseJournal(absl::string_view bytes);

// Returns the id of the machine's present boot, empty if the kernel has none, or a read error.
absl::StatusOr<std::string> BootId();

}  // namespace iris::server
