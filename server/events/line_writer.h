// LineWriter: writes lines to a descriptor from a thread of its own, so that logging never waits
// for a reader. Lines that do not fit into its queue are counted and left out; once the descriptor
// takes bytes again, a line in their place has the count.
//
// Thread-safe. Borrows the descriptor, whose flags it does not change: other processes may share
// it. The thread starts with the first line, and inherits the signal mask of that line's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace iris::server {

class LineWriter {
 public:
  static constexpr size_t kMaxQueuedBytes = 1 << 20;
  // The destructor waits for lines to be written. Later ones are lost.
  static constexpr absl::Duration kEndWithin = absl::Seconds(1);

  // `left_out` makes the line that stands for `lines` missing ones. It is called on the writer's
  // thread, which may outlive *this: it must own what it uses.
  LineWriter(int fd, std::function<std::string(uint64_t lines)> left_out);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Queues a line, which ends with '\n'. Never waits for the descriptor.
  void Write(std::string line);

  // Waits until all lines are written. False: time is up.
  bool Flush(absl::Duration within) const;

  uint64_t n_left_out() const;

 private:
  struct Shared;
  // Shared with the thread, which stays in write(2) while nobody reads.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace iris::server
