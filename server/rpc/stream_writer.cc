#include "server/rpc/stream_writer.h"

#include <utility>

#include "server/rpc/convert.h"
#include "server/rpc/message.h"

namespace iris::server {

StreamWriter* StreamWriter::GiveToGrpc(std::shared_ptr<StreamWriter> stream) {
  StreamWriter* const raw = stream.get();
  raw->self_ = std::move(stream);
  return raw;
}

bool StreamWriter::Queue(const google::protobuf::MessageLite& message, size_t max_queued) {
  absl::MutexLock lock(&mu_);
  if (ending_) return true;
  if (queue_.size() >= max_queued) return false;
  queue_.push_back(SerializeMessage(message));
  return true;
}

void StreamWriter::Flush() {
  absl::MutexLock lock(&mu_);
  Advance();
}

void StreamWriter::Finish(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (ending_) return;
  ending_ = true;
  status_ = status;
  Advance();
}

void StreamWriter::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) {  // the reader is gone
    queue_.clear();
    ending_ = true;
  } else if (!queue_.empty()) {
    queue_.pop_front();
  }
  Advance();
}

void StreamWriter::OnCancel() {
  OnReaderGone();
  Finish(absl::CancelledError("the reader is gone"));
}

void StreamWriter::OnDone() {
  OnReaderGone();
  self_.reset();  // may destroy this
}

void StreamWriter::Advance() {
  if (writing_ || ended_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
    return;
  }
  if (ending_) {
    ended_ = true;
    grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(ToGrpc(status_));
  }
}

}  // namespace iris::server
