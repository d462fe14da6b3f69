// CollectiveLog: records, in this rank's control page, the operations that this rank puts on its
// streams through one communicator, for iris-ctl waits. Each operation costs a read of the clock
// and some stores; operations that do not fit in the page are not recorded.
//
// Not thread-safe: one call at a time, as of its communicator. Others of the same page may be used
// at the same time. Borrows the page.
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
    // The field of wire::CollectiveRecord.
    uint16_t finished_at = 0;
    uint16_t waiting_at = 0;
  };

  // Belongs to no communicator, and records nothing.
  CollectiveLog() = default;
  // Takes a free record of the page, if there is one. A communicator of one member waits for nobody
  // and takes none.
  CollectiveLog(wire::ControlPage* page, const Communicator& communicator);
  // Gives the record back; its page is still mapped.
  ~CollectiveLog() { Close(); }
  CollectiveLog(CollectiveLog&& other) noexcept;
  CollectiveLog& operator=(CollectiveLog&& other) noexcept;

  // One more operation of the whole team is on a stream. `count`: elements; 0: each has its own.
  void Put(ccl::Operation call, uint64_t count, uint8_t dtype);
  // The workspace was cleared: numbers begin anew.
  void Clear();
  // Gives the record back. Tells nothing from then on.
  void Close();
  // Tells nothing from now on and leaves the page alone, which is not mapped in a forked child.
  void Forget() { record_ = nullptr; }

 private:
  wire::CollectiveRecord* record_ = nullptr;
};

}  // namespace iris::internal
