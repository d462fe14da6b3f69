// FakeEtcd: an etcd of a test, as far as ports use one: keys, leases and watches in memory, and the
// ways in which an etcd fails. Thread-safe, except Start and End.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/port/etcd.grpc.pb.h"
#include "server/port/meeting.h"

namespace iris::port {

class FakeEtcd : public etcdserverpb::KV::Service,
                 public etcdserverpb::Lease::Service,
                 public etcdserverpb::Watch::Service {
 public:
  // `second` is what it takes for a second of a lease.
  explicit FakeEtcd(
      absl::Duration second = absl::Seconds(1),
      std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials())
      : second_(second), credentials_(std::move(credentials)) {
    Start("127.0.0.1:0");
  }
  ~FakeEtcd() override { End(); }

  void Start(const std::string& at) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(at, credentials_, &port);
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Watch::Service*>(this));
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr) << at;
    endpoint_ = absl::StrCat("127.0.0.1:", port);
  }
  void End() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }
  const std::string& endpoint() const { return endpoint_; }

  // How it answers: kLosesAnswers carries out one transaction, and does not say so.
  enum class Mood { kGood, kUnavailable, kSilent, kLosesAnswers };
  void Set(Mood mood) {
    absl::MutexLock lock(&mu_);
    mood_ = mood;
  }
  void Put(const std::string& key, const std::string& value, int64_t lease = 0) {
    absl::MutexLock lock(&mu_);
    values_[key] = {value, lease};
    ++revision_;
  }
  int64_t NewLease() {
    absl::MutexLock lock(&mu_);
    leases_[++last_lease_] = absl::Now() + kMeetingTtlSeconds * second_;
    return last_lease_;
  }
  void LoseLeases() {
    absl::MutexLock lock(&mu_);
    for (auto& [id, end] : leases_) end = absl::InfinitePast();
    Expire();
  }
  std::string ValueOf(const std::string& key) {
    absl::MutexLock lock(&mu_);
    Expire();
    const auto found = values_.find(key);
    return found == values_.end() ? "" : found->second.first;
  }
  // The number of calls that have come; watches under way.
  int calls() {
    absl::MutexLock lock(&mu_);
    return calls_;
  }
  int watches() {
    absl::MutexLock lock(&mu_);
    return watches_;
  }

 private:
  // Returns how a call ends before it has an effect.
  grpc::Status Begin(grpc::ServerContext* context) {
    absl::MutexLock lock(&mu_);
    ++calls_;
    EXPECT_EQ(context->client_metadata().count("hasleader"), 1u);
    if (mood_ == Mood::kUnavailable) {
      return {grpc::StatusCode::UNAVAILABLE, "etcdserver: no\nleader"};
    }
    while (mood_ == Mood::kSilent && !context->IsCancelled()) {
      mu_.AwaitWithTimeout(absl::Condition(
                               +[](Mood* mood) { return *mood != Mood::kSilent; }, &mood_),
                           absl::Milliseconds(10));
    }
    Expire();
    return grpc::Status::OK;
  }
  grpc::Status Answer() {
    absl::MutexLock lock(&mu_);
    if (mood_ != Mood::kLosesAnswers) return grpc::Status::OK;
    mood_ = Mood::kGood;
    return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
  }
  void Expire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto each = values_.begin(); each != values_.end();) {
      const int64_t lease = each->second.second;
      const bool over = lease != 0 && (leases_.count(lease) == 0 || leases_[lease] < absl::Now());
      if (over) ++revision_;
      each = over ? values_.erase(each) : std::next(each);
    }
    for (auto each = leases_.begin(); each != leases_.end();) {
      each = each->second < absl::Now() ? leases_.erase(each) : std::next(each);
    }
  }
  void Fill(const std::string& key, etcdserverpb::RangeResponse* reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    reply->mutable_header()->set_revision(revision_);
    const auto found = values_.find(key);
    if (found == values_.end()) return;
    etcdserverpb::KeyValue* const value = reply->add_kvs();
    value->set_key(key);
    value->set_value(found->second.first);
    value->set_lease(found->second.second);
  }

  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* reply) override {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    Fill(request->key(), reply);
    return grpc::Status::OK;
  }
  grpc::Status Txn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* reply) override {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    {
      absl::MutexLock lock(&mu_);
      const etcdserverpb::Compare& compare = request->compare(0);
      EXPECT_EQ(compare.target(), etcdserverpb::Compare::CREATE);
      EXPECT_EQ(compare.target_union_case(), etcdserverpb::Compare::kCreateRevision);
      reply->set_succeeded(values_.count(compare.key()) == 0);
      if (reply->succeeded()) {
        const etcdserverpb::PutRequest& put = request->success(0).request_put();
        if (leases_.count(put.lease()) == 0) {
          return {grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
        }
        values_[put.key()] = {put.value(), put.lease()};
        ++revision_;
      } else {
        Fill(request->failure(0).request_range().key(),
             reply->add_responses()->mutable_response_range());
      }
    }
    return Answer();
  }
  grpc::Status LeaseGrant(grpc::ServerContext* context,
                          const etcdserverpb::LeaseGrantRequest* request,
                          etcdserverpb::LeaseGrantResponse* reply) override {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    EXPECT_EQ(request->ttl(), kMeetingTtlSeconds);
    reply->set_id(NewLease());
    return grpc::Status::OK;
  }
  grpc::Status LeaseRevoke(grpc::ServerContext* context,
                           const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse* /*reply*/) override {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    leases_.erase(request->id());
    Expire();
    return grpc::Status::OK;
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      if (const grpc::Status status = Begin(context); !status.ok()) return status;
      etcdserverpb::LeaseKeepAliveResponse reply;
      reply.set_id(request.id());
      {
        absl::MutexLock lock(&mu_);
        if (leases_.count(request.id()) != 0) {
          leases_[request.id()] = absl::Now() + kMeetingTtlSeconds * second_;
          reply.set_ttl(kMeetingTtlSeconds);
        }
      }
      stream->Write(reply);
    }
    return grpc::Status::OK;
  }
  grpc::Status LeaseTimeToLive(grpc::ServerContext* context,
                               const etcdserverpb::LeaseTimeToLiveRequest* request,
                               etcdserverpb::LeaseTimeToLiveResponse* reply) override {
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    const auto found = leases_.find(request->id());
    reply->set_ttl(found == leases_.end()
                       ? -1
                       : static_cast<int64_t>((found->second - absl::Now()) / second_));
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<etcdserverpb::WatchResponse,
                                              etcdserverpb::WatchRequest>* stream) override {
    etcdserverpb::WatchRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    if (const grpc::Status status = Begin(context); !status.ok()) return status;
    stream->Write(etcdserverpb::WatchResponse());  // that it watches
    const int64_t from = request.create_request().start_revision();
    bool changed = false;
    {
      absl::MutexLock lock(&mu_);
      ++watches_;
      while (!changed && !context->IsCancelled()) {
        mu_.AwaitWithTimeout(absl::Condition(
                                 +[](bool* never) { return *never; }, &never_),
                             absl::Milliseconds(2));
        Expire();
        changed = revision_ >= from;
      }
      --watches_;
    }
    etcdserverpb::WatchResponse reply;
    reply.add_events();
    if (changed) stream->Write(reply);
    return grpc::Status::OK;
  }

  const absl::Duration second_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::string endpoint_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  Mood mood_ ABSL_GUARDED_BY(mu_) = Mood::kGood;
  std::map<std::string, std::pair<std::string, int64_t>> values_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, absl::Time> leases_ ABSL_GUARDED_BY(mu_);
  int64_t last_lease_ ABSL_GUARDED_BY(mu_) = 100;
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 1;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  int watches_ ABSL_GUARDED_BY(mu_) = 0;
  bool never_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace iris::port
