#include "server/port/etcd.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/job/text.h"
#include "server/port/connection.h"
#include "server/port/etcd.grpc.pb.h"

namespace iris::port {
namespace {

// A healthy etcd answers in some ms, and one that elects a leader in two or three seconds.
constexpr auto kAnswersWithin = absl::Seconds(3);
// At the end of a job, whose port process irisd kills after two seconds.
constexpr auto kRevokesWithin = absl::Milliseconds(800);
constexpr size_t kMaxErrorBytes = 300;

// What gRPC says of a channel without an address, which one with damaged credentials is.
constexpr absl::string_view kDamagedTls = "empty address list";

// Returns what to do about an error of gRPC or etcd, for people; empty if nobody knows.
absl::string_view RemedyFor(absl::string_view why, bool tls) {
  static constexpr struct {
    bool tls;  // the connection is TLS
    absl::string_view begin, part, remedy;
  } kRemedies[] = {
      {true, "", "certificate verify failed",
       "its certificate is of no authority in network.etcd_ca, or is not valid now: openssl "
       "s_client -connect HOST:PORT -CAfile FILE says which"},
      {true, "", "is not in peer certificate",
       "its certificate has other names: name it in network.etcd by one of them, or give it a "
       "certificate with this one"},
      {true, "", "wrong version number",
       "it speaks no TLS: start it with a certificate, or leave network.etcd_ca out"},
      {true, kDamagedTls, "",
       "network.etcd_ca, network.etcd_certificate or network.etcd_key is damaged, or the key is "
       "not that of the certificate"},
      {true, "etcdserver: permission denied", "",
       "its user, the common name of network.etcd_certificate, needs a role with readwrite on the "
       "prefix /iris/jobs/"},
      {true, "etcdserver: user name is empty", "",
       "it knows users by the common name of network.etcd_certificate"},
      {false, "etcdserver: user name is empty", "",
       "it knows users by certificates: set network.etcd_ca, network.etcd_certificate and "
       "network.etcd_key"},
  };
  for (const auto& each : kRemedies) {
    if (each.tls == tls && absl::StartsWith(why, each.begin) && absl::StrContains(why, each.part)) {
      return each.remedy;
    }
  }
  // A new connection was closed by the other side.
  const bool closed =
      absl::StartsWith(why, "failed to connect") &&
      (absl::StrContains(why, "Socket closed") || absl::StrContains(why, "read failed") ||
       absl::StrContains(why, "reset by peer"));
  if (!closed) return "";
  return tls ? "it may want another certificate of its clients: network.etcd_certificate, "
               "network.etcd_key"
             : "it may want TLS: set network.etcd_ca";
}

}  // namespace

Etcd::Etcd(std::vector<std::string> endpoints,
           const std::optional<grpc::SslCredentialsOptions>& tls)
    : endpoints_(std::move(endpoints)),
      tls_(tls.has_value()),
      credentials_(tls_ ? grpc::SslCredentials(*tls) : grpc::InsecureChannelCredentials()) {}

Etcd::~Etcd() = default;

absl::Status Etcd::Connect() {
  // A name is resolved again for each connection, since it may mean another host later.
  const absl::StatusOr<Address> address = Resolve(endpoints_[endpoint_]);
  if (!address.ok()) return address.status();
  grpc::ChannelArguments arguments;
  // gRPC would keep the failed connections of other channels, and the time until it tries again.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The certificate is for the name in the configuration.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, endpoints_[endpoint_]);
  channel_ = grpc::CreateCustomChannel(
      absl::StrCat(address->ipv6 ? "ipv6:" : "ipv4:", address->Text()), credentials_, arguments);
  return absl::OkStatus();
}

absl::Status Etcd::Failed(absl::string_view why) {
  channel_.reset();
  const std::string at = endpoints_[endpoint_];
  const absl::string_view remedy = RemedyFor(why, tls_);
  endpoint_ = (endpoint_ + 1) % endpoints_.size();
  const bool never = tls_ && absl::StartsWith(why, kDamagedTls);
  return absl::Status(
      never ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable,
      absl::StrCat("etcd failed (network.etcd: ", absl::StrJoin(endpoints_, ", "),
                   "); the last error, of ", at, ": ", server::CleanText(why, kMaxErrorBytes),
                   remedy.empty() ? "" : ": ", remedy));
}

absl::Status Etcd::Call(absl::Duration timeout,
                        const std::function<grpc::Status(grpc::ClientContext*)>& call,
                        bool after_stop) {
  while (true) {
    const bool is_new = channel_ == nullptr;
    const absl::Status connected = is_new ? Connect() : absl::OkStatus();
    if (!connected.ok()) return Failed(connected.message());
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    // A member that has lost the others says so, in place of nothing.
    context.AddMetadata("hasleader", "true");
    {
      absl::MutexLock lock(&mu_);
      if (stopped_ && !after_stop) return absl::CancelledError("stopped");
      under_way_ = &context;
    }
    const grpc::Status status = call(&context);
    absl::MutexLock lock(&mu_);
    under_way_ = nullptr;
    if (status.ok()) return absl::OkStatus();
    if (stopped_ && !after_stop) return absl::CancelledError("stopped");
    // Between calls nobody sees the end of a connection.
    if (!is_new && status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      channel_.reset();
      continue;
    }
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    return Failed(late ? absl::StrCat("no answer within ", absl::FormatDuration(timeout))
                       : status.error_message());
  }
}

void Etcd::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  if (under_way_ != nullptr) under_way_->TryCancel();
}

absl::StatusOr<int64_t> Etcd::Grant(absl::Duration ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl));
  etcdserverpb::LeaseGrantResponse reply;
  const absl::Status status = Call(kAnswersWithin, [&](grpc::ClientContext* context) {
    return etcdserverpb::Lease::NewStub(channel_)->LeaseGrant(context, request, &reply);
  });
  if (!status.ok()) return status;
  if (reply.id() != 0 && reply.error().empty()) return reply.id();
  return Failed(absl::StrCat("it grants no lease: ", reply.error()));
}

absl::StatusOr<bool> Etcd::KeepAlive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse reply;
  // The call is a stream; one for each beat is as good, and bounded.
  const absl::Status status = Call(kAnswersWithin, [&](grpc::ClientContext* context) {
    const auto stub = etcdserverpb::Lease::NewStub(channel_);
    const auto stream = stub->LeaseKeepAlive(context);
    if (stream->Write(request) && stream->Read(&reply)) {
      context->TryCancel();
      (void)stream->Finish();
      return grpc::Status::OK;
    }
    const grpc::Status ended = stream->Finish();
    return ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "it ends a call early") : ended;
  });
  if (!status.ok()) return status;
  return reply.id() == lease && reply.ttl() > 0;
}

absl::StatusOr<absl::Duration> Etcd::TimeToLive(int64_t lease) {
  etcdserverpb::LeaseTimeToLiveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseTimeToLiveResponse reply;
  const absl::Status status = Call(kAnswersWithin, [&](grpc::ClientContext* context) {
    return etcdserverpb::Lease::NewStub(channel_)->LeaseTimeToLive(context, request, &reply);
  });
  if (!status.ok()) return status;
  return absl::Seconds(reply.ttl());
}

absl::Status Etcd::Revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse reply;
  return Call(
      kRevokesWithin,
      [&](grpc::ClientContext* context) {
        return etcdserverpb::Lease::NewStub(channel_)->LeaseRevoke(context, request, &reply);
      },
      /*after_stop=*/true);
}

absl::StatusOr<std::optional<Etcd::Value>> Etcd::Create(const std::string& key,
                                                        const std::string& value, int64_t lease) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* const absent = request.add_compare();
  absent->set_target(etcdserverpb::Compare::CREATE);
  absent->set_key(key);
  absent->set_create_revision(0);
  etcdserverpb::PutRequest* const put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  put->set_lease(lease);
  request.add_failure()->mutable_request_range()->set_key(key);
  etcdserverpb::TxnResponse reply;
  const absl::Status status = Call(kAnswersWithin, [&](grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel_)->Txn(context, request, &reply);
  });
  if (!status.ok()) return status;
  if (reply.succeeded()) return std::optional<Value>();
  if (reply.responses_size() != 1 || reply.responses(0).response_range().kvs_size() != 1) {
    return Failed("its answer to a transaction is malformed");
  }
  const etcdserverpb::KeyValue& found = reply.responses(0).response_range().kvs(0);
  return std::optional<Value>({found.value(), found.lease()});
}

absl::StatusOr<Etcd::Found> Etcd::Get(const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  etcdserverpb::RangeResponse reply;
  const absl::Status status = Call(kAnswersWithin, [&](grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel_)->Range(context, request, &reply);
  });
  if (!status.ok()) return status;
  Found found;
  found.revision = reply.header().revision();
  if (reply.kvs_size() > 0) found.value = {reply.kvs(0).value(), reply.kvs(0).lease()};
  return found;
}

absl::Status Etcd::AwaitChange(const std::string& key, int64_t revision, absl::Duration timeout) {
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(revision + 1);
  return Call(timeout, [&](grpc::ClientContext* context) {
    const auto stub = etcdserverpb::Watch::NewStub(channel_);
    const auto stream = stub->Watch(context);
    etcdserverpb::WatchResponse reply;
    if (stream->Write(request)) {
      while (stream->Read(&reply)) {
        if (reply.events_size() == 0 && !reply.canceled()) continue;  // it says that it watches
        context->TryCancel();
        (void)stream->Finish();
        if (!reply.canceled()) return grpc::Status::OK;
        return grpc::Status(grpc::StatusCode::UNAVAILABLE,
                            absl::StrCat("it ends a watch: ", reply.cancel_reason()));
      }
    }
    const grpc::Status ended = stream->Finish();
    return ended.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ? grpc::Status::OK : ended;
  });
}

}  // namespace iris::port
