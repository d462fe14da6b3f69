// Calls: the steps of every call, once: it is counted, its bytes are parsed, its connection says
// whose it is, it is answered or cancelled, and finished. Services is then a table of conversions.
// No thread waits for an answer.
//
// Thread-safe. Borrows the daemon.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "server/host/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/convert.h"
#include "server/rpc/message.h"

namespace iris::server {

// Counts the calls that are under way, so that a stopping irisd can let them finish. Thread-safe.
class CallCounter {
 public:
  // Counts for as long as it lives.
  class Hold {
   public:
    explicit Hold(CallCounter* counter) : counter_(counter) { counter_->Change(1); }
    ~Hold() { counter_->Change(-1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    CallCounter* const counter_;
  };

  // Returns true once there is none, and false on a timeout.
  bool WaitForNone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return n_ == 0; };
    return mu_.AwaitWithTimeout(absl::Condition(&none), timeout);
  }

 private:
  void Change(int by) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    n_ += by;
  }

  absl::Mutex mu_;
  int n_ ABSL_GUARDED_BY(mu_) = 0;
};

class Calls {
 public:
  explicit Calls(Daemon* daemon) : daemon_(daemon) {}

  struct NoMemory {
    absl::StatusOr<Daemon::Registered> operator()(const google::protobuf::MessageLite&) const {
      return Daemon::Registered();
    }
  };
  // A call of a session, which the machine answers now or later. Request names its session; Call is
  // the input that ToInput makes of it.
  //   to_reply(const Result&) -> LinkPayload
  //   to_registered(Request&) -> absl::StatusOr<Daemon::Registered>, memory that came with the call
  template <typename Call, typename Request, typename ToReply, typename ToRegistered = NoMemory>
  std::shared_ptr<ActiveCall> Ask(const IncomingCall& incoming, ToReply to_reply,
                                  ToRegistered to_registered = {}) {
    const auto call = std::make_shared<Unary>(daemon_, &counter_, incoming.reply);
    Daemon::Registered registered;
    const auto to_input = [&]() -> absl::StatusOr<Input> {
      Request message;
      const absl::Status parsed = ParseMessage(incoming.request, &message);
      if (!parsed.ok()) return parsed;
      const absl::StatusOr<SessionId> session = SessionOf(incoming, message.session_id());
      if (!session.ok()) return session.status();
      absl::StatusOr<Daemon::Registered> given = to_registered(message);
      if (!given.ok()) return given.status();
      registered = *std::move(given);
      return ToInput<Call>(*session, call->id(), std::move(message));
    };
    absl::StatusOr<Input> input;
    try {
      input = to_input();
    } catch (const std::bad_alloc&) {
      input = OutOfMemory();
    }
    if (!input.ok()) {
      call->Fail(input.status());
      return nullptr;
    }
    daemon_->Call(
        call->id(), *std::move(input),
        [call, to_reply](const Reply& answer) {
          if (answer.status.ok()) {
            call->Succeed(to_reply(answer.result));
          } else {
            call->Fail(answer.status);
          }
        },
        std::move(registered));
    return call;
  }

  // A call of any connection, answered at once.
  //   answer(const Request&, ReplyMessage*) -> absl::Status
  template <typename Request, typename ReplyMessage, typename Function>
  std::shared_ptr<ActiveCall> Answer(const IncomingCall& incoming, Function answer) {
    Unary call(daemon_, &counter_, incoming.reply);
    Request message;
    ReplyMessage out;
    absl::Status status = ParseMessage(incoming.request, &message);
    if (status.ok()) status = answer(message, &out);
    if (status.ok()) {
      call.Succeed(SerializeMessage(out));
    } else {
      call.Fail(status);
    }
    return nullptr;
  }
  // Makes a call whose caller a function finds by `source`.
  template <typename Source, typename Request, typename ReplyMessage>
  std::shared_ptr<ActiveCall> Answer(const IncomingCall& incoming, const Source& source,
                                     absl::Status (*answer)(const Source&, const CallerInfo&,
                                                            const Request&, ReplyMessage*)) {
    return Answer<Request, ReplyMessage>(incoming,
                                         [&](const Request& request, ReplyMessage* reply) {
                                           return answer(source, incoming.caller, request, reply);
                                         });
  }

  // A call that is answered by a stream.
  //   start(const Request&) -> absl::StatusOr<std::shared_ptr<ActiveCall>>
  template <typename Request, typename Start>
  std::shared_ptr<ActiveCall> Stream(const IncomingCall& incoming, Start start) {
    Request message;
    absl::Status status = ParseMessage(incoming.request, &message);
    if (status.ok()) {
      absl::StatusOr<std::shared_ptr<ActiveCall>> stream = start(message);
      if (stream.ok()) return *std::move(stream);
      status = stream.status();
    }
    incoming.reply->Finish(status);
    return nullptr;
  }

  // Returns the session of the call's connection. kPermissionDenied for an admin connection, or if
  // the request names another session.
  static absl::StatusOr<SessionId> SessionOf(const IncomingCall& incoming, uint64_t session_id);
  CallCounter* counter() { return &counter_; }

 private:
  // One unary call. Either its answer or its cancellation finishes it: the daemon decides.
  class Unary : public ActiveCall {
   public:
    Unary(Daemon* daemon, CallCounter* counter, std::shared_ptr<Replier> reply)
        : hold_(counter), daemon_(daemon), id_(daemon->NewCall()), reply_(std::move(reply)) {}
    CallId id() const { return id_; }

    // One of these, once.
    void Succeed(LinkPayload reply);
    void Fail(const absl::Status& status) { reply_->Finish(status); }

    void OnCancel() override;

   private:
    const CallCounter::Hold hold_;
    Daemon* const daemon_;
    const CallId id_;
    const std::shared_ptr<Replier> reply_;
  };

  static absl::Status OutOfMemory();

  Daemon* const daemon_;
  CallCounter counter_;
};

// One stream that irisd writes: a queue of messages, a few of them on their way, and an end that
// comes after everything queued. Thread-safe. It is shared by the relay, until it ends, and by its
// writer, which derives from it. kStreamCredits bounds what is on its way, Queue the rest.
class StreamWriter : public ActiveCall, public std::enable_shared_from_this<StreamWriter> {
 public:
  StreamWriter(CallCounter* calls, std::shared_ptr<Replier> reply)
      : hold_(calls), reply_(std::move(reply)) {}

  // Queues; sends nothing yet. Returns false if `max_queued` messages wait already. A stream that
  // has ended ignores everything.
  bool Queue(const google::protobuf::MessageLite& message, size_t max_queued)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream after what is queued. Idempotent: the first status counts.
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // The reader is gone. Called with no lock held.
  virtual void OnReaderGone() = 0;

 private:
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent() final ABSL_LOCKS_EXCLUDED(mu_);

  // Sends as much as the reader's credits allow, and ends the stream after the last message.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallCounter::Hold hold_;
  const std::shared_ptr<Replier> reply_;
  absl::Mutex mu_;
  std::deque<LinkPayload> queue_ ABSL_GUARDED_BY(mu_);
  uint32_t on_their_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
