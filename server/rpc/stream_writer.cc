#include "server/rpc/stream_writer.h"

#include <utility>

#include "server/rpc/convert.h"

namespace iris::server {

bool StreamWriter::Queue(const google::protobuf::MessageLite& message, size_t max_queued) {
  absl::MutexLock lock(&mu_);
  if (ending_) return true;
  if (queue_.size() >= max_queued) return false;
  queue_.push_back(SerializeMessage(message));
  return true;
}

// The end of a stream drops a reference to it; `self` keeps it alive until the lock is released.

void StreamWriter::Flush() {
  const auto self = weak_from_this().lock();
  absl::MutexLock lock(&mu_);
  Advance();
}

void StreamWriter::Finish(const absl::Status& status) {
  const auto self = weak_from_this().lock();
  absl::MutexLock lock(&mu_);
  if (ending_) return;
  ending_ = true;
  status_ = status;
  Advance();
}

void StreamWriter::OnSent() {
  const auto self = weak_from_this().lock();
  absl::MutexLock lock(&mu_);
  if (on_their_way_ > 0) --on_their_way_;
  Advance();
}

void StreamWriter::OnCancel() {
  const auto self = weak_from_this().lock();
  OnReaderGone();
  absl::MutexLock lock(&mu_);
  queue_.clear();
  if (!std::exchange(ending_, true)) status_ = absl::CancelledError("the reader is gone");
  Advance();
}

void StreamWriter::Advance() {
  if (ended_) return;
  for (; !queue_.empty() && on_their_way_ < kStreamCredits; ++on_their_way_) {
    reply_->Send(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (!queue_.empty() || !ending_) return;
  ended_ = true;
  reply_->Finish(status_);
}

}  // namespace iris::server
