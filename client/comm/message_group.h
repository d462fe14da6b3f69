// MessageGroup: the messages between GroupStart and GroupEnd of a communicator. Not thread-safe.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/base/annotate.h"
#include "iris/collective/collective.h"

namespace iris::internal {

class MessageGroup {
 public:
  bool open() const { return open_; }

  void Start() {
    open_ = true;
    messages_.clear();
    status_ = absl::OkStatus();
  }
  void Add(const ccl::Message& message) { messages_.push_back(message); }
  // Records the first error of a call in the group, and returns `status`.
  absl::Status Fail(absl::Status status) {
    if (status_.ok()) status_ = status;
    return status;
  }
  // Closes the group and returns its first error. kFailedPrecondition if it is not open.
  absl::Status End() {
    if (!open_) {
      return absl::FailedPreconditionError(
          "group_end: no group of this communicator is open: begin it with iris_group_start()");
    }
    open_ = false;
    if (status_.ok()) return absl::OkStatus();
    return Annotate(status_,
                    "group_end: nothing of the group was started, for a call in it failed");
  }
  void Drop() { open_ = false; }
  // The messages of the last group.
  absl::Span<const ccl::Message> messages() const { return messages_; }

 private:
  bool open_ = false;
  std::vector<ccl::Message> messages_;
  absl::Status status_;
};

}  // namespace iris::internal
