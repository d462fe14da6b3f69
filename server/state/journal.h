// Journal: the state of the JobMachine in a file, for the irisd that comes after this one. It
// begins with the whole state, and each input adds what it has changed, before anybody is told of
// it. It outlives the process, and not the machine: it lies on tmpfs, and nothing is flushed.
//
// Format: a Head, then records, each a RecordHead and its bytes; checksums are zlib's CRC-32.
// Writing ends in the middle only where the process was killed. So a record of which the end is
// missing is left out, and anything else that is wrong is damage, with which nothing is served.
//
// Not thread-safe: the daemon locks.
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

// Whose state a journal is.
struct JournalOwner {
  uint64_t daemon_id = 0;   // what clients know irisd by: the same in every generation
  uint64_t generation = 1;  // counts the irisds that one state has had
  // Every pair of devices passed the self-check of one of them: it need not be made again.
  bool pairs_checked = false;
};

class Journal {
 public:
  static constexpr char kFolder[] = "state";
  static constexpr char kFile[] = "journal";
  // A journal is written anew once its changes are as long as this and as twice the state.
  static constexpr uint64_t kSlackBytes = 4ull << 20;
  static constexpr uint64_t kMaxBytes = 8ull << 30;

  // `whole` gives MachineState::Encode of the machine, whenever the journal is written anew.
  using Whole = std::function<std::string()>;

  // Makes the folder `directory`/state (0700) if it is missing, and writes a journal in the place
  // of any that is there. kPermissionDenied: the folder is a link, another user's, or open to
  // others. kResourceExhausted: the file system is full, or the process lacks something. On an
  // error, an earlier journal is as it was.
  //
  // `goes_on`: this irisd has the state of the earlier journal. It serves on a full file system,
  // too: then the earlier journal is removed first, to make room. Where that is not enough there is
  // none, as stored() says, and Append tries again.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(const std::string& directory,
                                                         const JournalOwner& owner, Whole whole,
                                                         bool goes_on = false);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Adds MachineState::EncodeChange of the last input. Where that fails, the journal is removed, so
  // that no later irisd takes an old state for the present one, and is written anew, for which
  // there may be room then. Not OK: that failed, too, and there is none; a later Append tries
  // again. All this at most once in a second. A long journal that cannot be written anew takes
  // further changes.
  absl::Status Append(absl::string_view change);

  // Removes the file, when nothing of it lives any more, or when a later irisd must not go on with
  // it. A later Append writes it anew.
  void Remove();

  bool stored() const { return file_.valid(); }

  uint64_t bytes() const { return bytes_; }
  uint64_t n_rewrites() const { return n_rewrites_; }

 private:
  Journal(std::string folder, const JournalOwner& owner, Whole whole)
      : folder_(std::move(folder)), owner_(owner), whole_(std::move(whole)) {}
  absl::Status Rewrite();
  // Undoes what a Rewrite that fails has begun, and returns why it fails: `why`, or an errno.
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
  int64_t retry_ns_ = 0;  // after a failure: when to try again, on the steady clock
  std::string failure_;   // the last one
  bool is_full_ = false;  // the last Rewrite failed for want of room in the file system
};

// What a journal says.
struct StoredState {
  JournalOwner owner;
  std::string writer;   // irisd's version
  std::string boot_id;  // of the machine's life in which it was written
  std::shared_ptr<const state::MachineState> state;
  uint64_t n_changes = 0;
  uint64_t bytes = 0;
  uint64_t torn_bytes = 0;  // of a last change that was not written to its end
};

// Reads the journal under `directory`, also while irisd writes it. kNotFound: there is none.
// kPermissionDenied: it or its folder is a link, another user's, or open to others.
// kFailedPrecondition: its format, or the version of the state, is not this irisd's. kDataLoss: it
// is damaged; the message says what is wrong, and where.
absl::StatusOr<StoredState> ReadJournal(const std::string& directory);

// The same from bytes, for tests: whatever they are, it ends with a state or an error.
absl::StatusOr<StoredState> ParseJournal(absl::string_view bytes);

// The name of the machine's present life; empty if the kernel does not say. An error: it could not
// be asked now.
absl::StatusOr<std::string> BootId();

}  // namespace iris::server
