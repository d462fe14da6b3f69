// CollectiveLog: records, in this rank's control page, the operations that this rank puts on its
// streams through one communicator, for iris-ctl waits. Each operation costs a read of the clock
// and some stores; operations that do not fit in the page are not recorded.
//
// Not thread-safe: one call at a time, as for its communicator. Other logs of the same page may be
// used at the same time. Borrows the page.
#pragma once

#include <cstdint>

#include "iris/ccl_types.h"
#include "proto/wire/pages.h"

namespace iris::internal {

class CollectiveLog {
 public:
  struct Communicator {
    uint32_t team_id = 0;
    uint32_t n_members = 0;
    uint64_t workspace_offset_bytes = 0;
    // These are the fields of wire::CollectiveRecord.
    uint16_t finished_at = 0;
    uint16_t waiting_at = 0;
  };

  // Makes a log of no communicator, which records nothing.
  CollectiveLog() = default;
  // Takes a free record of the page, if there is one. A communicator of one rank never waits, and
  // takes none.
  CollectiveLog(wire::ControlPage* page, const Communicator& communicator);
  // Releases the record; its page is still mapped.
  ~CollectiveLog() { Close(); }
  CollectiveLog(CollectiveLog&& other) noexcept;
  CollectiveLog& operator=(CollectiveLog&& other) noexcept;

  // Records that an operation of all ranks is on a stream. `count` is in elements; 0: ranks differ.
  void Put(ccl::Operation call, uint64_t count, uint8_t dtype);
  // Restarts the numbers, because the workspace was cleared.
  void Clear();
  // Releases the record, and records nothing from then on.
  void Close();
  // Records nothing from now on, without access to the page, which a forked child does not map.
  void Forget() { record_ = nullptr; }

 private:
  wire::CollectiveRecord* record_ = nullptr;
};

}  // namespace iris::internal
