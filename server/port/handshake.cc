#include "server/port/handshake.h"

#include <string.h>

#include "absl/strings/str_cat.h"
#include "server/port/secret.h"

namespace iris::port {
namespace {

constexpr std::string_view kMagic = "irisport";
constexpr std::string_view kInitiator = "iris port: initiator", kOther = "iris port: other";

std::string Hello(std::string_view nonce) {
  std::string hello(kMagic);
  const uint32_t version = kProtocolVersion;
  hello.append(reinterpret_cast<const char*>(&version), sizeof(version));
  hello.append(nonce);
  return hello;
}

// Texts of another machine are shown to people.
std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text.substr(0, 512)) printable += c >= ' ' && c <= '~' ? c : '?';
  return printable;
}

uint64_t TagOf(std::string_view key) {
  const std::string mac = Hmac(key, {"tag"});
  uint64_t tag = 0;
  memcpy(&tag, mac.data(), sizeof(tag));
  return tag;
}

}  // namespace

void AppendFrame(FrameType type, std::string_view payload, std::string* out) {
  FrameHeader header;
  header.bytes = static_cast<uint32_t>(payload.size());
  header.type = type;
  out->append(reinterpret_cast<const char*>(&header), sizeof(header));
  out->append(payload);
}

Handshake::Handshake(const Identity* self, const std::string* secret, bool initiator)
    : self_(self),
      secret_(secret),
      initiator_(initiator),
      expected_(initiator ? FrameType::kChallenge : FrameType::kHello) {}

void Handshake::Begin(std::string* out) {
  if (!initiator_) return;
  const std::string hello = Hello(RandomBytes(kNonceBytes));
  transcript_ = hello;
  AppendFrame(FrameType::kHello, hello, out);
}

absl::StatusOr<bool> Handshake::Take(FrameType type, std::string_view payload, std::string* out) {
  if (type == FrameType::kRefused && initiator_) {
    return absl::PermissionDeniedError(absl::StrCat("it refuses: ", Printable(payload)));
  }
  if (type != expected_) {
    return absl::InvalidArgumentError(absl::StrCat("frame ", static_cast<int>(type), " came where ",
                                                   static_cast<int>(expected_),
                                                   " was expected: it is no port of an Iris job"));
  }
  absl::Status status;
  switch (type) {
    case FrameType::kHello:
      status = OnHello(payload, out);
      expected_ = FrameType::kProof;
      break;
    case FrameType::kChallenge: {
      if (payload.size() != kNonceBytes) {
        return absl::InvalidArgumentError("its challenge is malformed");
      }
      transcript_.append(payload);
      AppendFrame(FrameType::kProof, Prove(kInitiator), out);
      expected_ = FrameType::kWelcome;
      return false;
    }
    case FrameType::kProof:
      status = OnIdentity(kInitiator, payload);
      if (!status.ok()) break;
      AppendFrame(FrameType::kWelcome, Prove(kOther), out);
      MakeKeys();
      return true;
    case FrameType::kWelcome:
      status = OnIdentity(kOther, payload);
      if (!status.ok()) return status;
      MakeKeys();
      return true;
    default:
      return absl::InternalError("unreachable");
  }
  if (status.ok()) return false;
  AppendFrame(FrameType::kRefused, {status.message().data(), status.message().size()}, out);
  return status;
}

absl::Status Handshake::OnHello(std::string_view payload, std::string* out) {
  uint32_t version = 0;
  if (payload.size() < kMagic.size() + sizeof(version) ||
      payload.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("this is the port of an Iris job, and no port called it");
  }
  memcpy(&version, payload.data() + kMagic.size(), sizeof(version));
  if (version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the calling port speaks version ", version,
                                                      ", the called one version ", kProtocolVersion,
                                                      ": install the same Iris on all nodes"));
  }
  if (payload.size() != kMagic.size() + sizeof(version) + kNonceBytes) {
    return absl::InvalidArgumentError("its hello is malformed");
  }
  const std::string nonce = RandomBytes(kNonceBytes);
  transcript_.assign(payload);
  transcript_.append(nonce);
  AppendFrame(FrameType::kChallenge, nonce, out);
  return absl::OkStatus();
}

std::string Handshake::Prove(std::string_view label) {
  const std::string identity = self_->SerializeAsString();
  std::string proof = Hmac(*secret_, {label, transcript_, identity});
  proof += identity;
  transcript_ += proof;
  return proof;
}

absl::Status Handshake::OnIdentity(std::string_view label, std::string_view payload) {
  if (payload.size() < kMacBytes) return absl::InvalidArgumentError("its proof is malformed");
  const std::string_view identity = payload.substr(kMacBytes);
  if (!SameBytes(payload.substr(0, kMacBytes), Hmac(*secret_, {label, transcript_, identity}))) {
    return absl::PermissionDeniedError(
        "the two nodes have different secrets: give the job the same secret on every node");
  }
  transcript_.append(payload);
  if (!other_.ParseFromArray(identity.data(), static_cast<int>(identity.size()))) {
    return absl::InvalidArgumentError("its identity is malformed");
  }
  const Identity &a = *self_, &b = other_;
  if (a.job() != b.job()) {
    return absl::FailedPreconditionError(absl::StrCat("the nodes have different jobs, \"",
                                                      Printable(a.job()), "\" and \"",
                                                      Printable(b.job()), "\""));
  }
  if (a.uid() != b.uid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the job's user has different numbers on the nodes, ", a.uid(), " and ",
                     b.uid(), ": a job has one user"));
  }
  if (a.n_ranks() != b.n_ranks()) {
    return absl::FailedPreconditionError(absl::StrCat("the nodes have different sizes of the job, ",
                                                      a.n_ranks(), " and ", b.n_ranks(), " ranks"));
  }
  const uint64_t a_end = uint64_t{a.first_rank()} + a.n_local();
  const uint64_t b_end = uint64_t{b.first_rank()} + b.n_local();
  if (b.n_local() == 0 || b_end > b.n_ranks() ||
      (b.first_rank() < a_end && a.first_rank() < b_end)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the nodes have ranks ", a.first_rank(), " to ", a_end - 1, " and ", b.first_rank(), " to ",
        b_end - 1, " of ", a.n_ranks(), ": each rank is on one node"));
  }
  return absl::OkStatus();
}

void Handshake::MakeKeys() {
  const std::string session = Hmac(*secret_, {"iris port: session", transcript_});
  const std::string of_initiator = Hmac(session, {kInitiator}), of_other = Hmac(session, {kOther});
  keys_.sent = initiator_ ? of_initiator : of_other;
  keys_.received = initiator_ ? of_other : of_initiator;
  keys_.sent_tag = TagOf(keys_.sent);
  keys_.received_tag = TagOf(keys_.received);
}

}  // namespace iris::port
