#include "server/port/handshake.h"

#include <gtest/gtest.h>
#include <string.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "server/port/secret.h"

namespace iris::port {
namespace {

Identity IdentityOf(uint32_t first_rank) {
  Identity identity;
  identity.set_job("train");
  identity.set_uid(1000);
  identity.set_first_rank(first_rank);
  identity.set_n_local(4);
  identity.set_n_ranks(8);
  identity.set_name("host");
  identity.set_address("10.0.0.1:7000");
  identity.set_worker("worker");
  return identity;
}

struct Side {
  Side(Identity identity, std::string key, bool initiator)
      : self(std::move(identity)), secret(std::move(key)), handshake(&self, &secret, initiator) {}
  Identity self;
  std::string secret;
  Handshake handshake;
};

std::vector<std::pair<FrameType, std::string>> Split(std::string* bytes) {
  std::vector<std::pair<FrameType, std::string>> frames;
  while (!bytes->empty()) {
    FrameHeader header;
    memcpy(&header, bytes->data(), sizeof(header));
    frames.emplace_back(header.type, bytes->substr(sizeof(header), header.bytes));
    bytes->erase(0, sizeof(header) + header.bytes);
  }
  return frames;
}

struct Result {
  absl::Status initiator, other;
  bool initiator_done = false, other_done = false;
};

// Runs both sides until neither has anything to say. `change` may alter a frame on its way.
Result Shake(Side* initiator, Side* other,
             const std::function<void(FrameType, std::string*)>& change = nullptr) {
  Result result;
  std::string to_other, to_initiator;
  initiator->handshake.Begin(&to_other);
  for (int i = 0; i < 10 && !(to_other.empty() && to_initiator.empty()); ++i) {
    for (auto& [type, payload] : Split(&to_other)) {
      if (change) change(type, &payload);
      if (!result.other.ok() || result.other_done) continue;
      const absl::StatusOr<bool> done = other->handshake.Take(type, payload, &to_initiator);
      result.other = done.status();
      result.other_done = done.ok() && *done;
    }
    for (auto& [type, payload] : Split(&to_initiator)) {
      if (change) change(type, &payload);
      if (!result.initiator.ok() || result.initiator_done) continue;
      const absl::StatusOr<bool> done = initiator->handshake.Take(type, payload, &to_other);
      result.initiator = done.status();
      result.initiator_done = done.ok() && *done;
    }
  }
  return result;
}

TEST(SecretTest, HmacIsThatOfTheStandard) {
  // Python: hmac.new(b"key", struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 0), "sha256")
  EXPECT_EQ(absl::BytesToHexString(Hmac("key", {"ab", ""})),
            "c6fe77ec40008d17f468155841db8b26fe8d5fcacfdaed9235876e79e3878768");
  EXPECT_NE(Hmac("key", {"a", "b"}), Hmac("key", {"ab", ""}));
  EXPECT_TRUE(SameBytes("same", "same"));
  EXPECT_FALSE(SameBytes("same", "sane"));
  EXPECT_FALSE(SameBytes("same", "sam"));
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
}

TEST(HandshakeTest, GivesBothSidesTheSameKeysAndIdentities) {
  Side a(IdentityOf(4), "a secret of 16 b", true), b(IdentityOf(0), "a secret of 16 b", false);
  const Result result = Shake(&a, &b);
  ASSERT_TRUE(result.initiator_done && result.other_done)
      << result.initiator << " " << result.other;
  EXPECT_EQ(a.handshake.other().first_rank(), 0u);
  EXPECT_EQ(b.handshake.other().first_rank(), 4u);
  EXPECT_EQ(a.handshake.keys().sent, b.handshake.keys().received);
  EXPECT_EQ(a.handshake.keys().received, b.handshake.keys().sent);
  EXPECT_NE(a.handshake.keys().sent, a.handshake.keys().received);
  EXPECT_EQ(a.handshake.keys().sent_tag, b.handshake.keys().received_tag);
  EXPECT_NE(a.handshake.keys().sent_tag, a.handshake.keys().received_tag);
  // Another connection has other keys.
  Side c(IdentityOf(4), "a secret of 16 b", true), d(IdentityOf(0), "a secret of 16 b", false);
  ASSERT_TRUE(Shake(&c, &d).other_done);
  EXPECT_NE(c.handshake.keys().sent_tag, a.handshake.keys().sent_tag);
}

TEST(HandshakeTest, SaysBothSidesThatSecretsDiffer) {
  Side a(IdentityOf(4), "a secret of 16 b", true), b(IdentityOf(0), "another of 16 by", false);
  const Result result = Shake(&a, &b);
  EXPECT_TRUE(absl::IsPermissionDenied(result.other));
  EXPECT_TRUE(absl::StrContains(result.other.message(), "different secrets")) << result.other;
  EXPECT_TRUE(absl::StrContains(result.initiator.message(), "different secrets"))
      << result.initiator;
}

TEST(HandshakeTest, NamesBothVersions) {
  Side a(IdentityOf(4), "a secret of 16 b", true), b(IdentityOf(0), "a secret of 16 b", false);
  const Result result = Shake(&a, &b, [](FrameType type, std::string* payload) {
    if (type == FrameType::kHello) (*payload)[8] = 7;
  });
  for (const absl::Status& status : {result.initiator, result.other}) {
    EXPECT_TRUE(absl::StrContains(status.message(), "version 7")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("version ", kProtocolVersion)))
        << status;
  }
}

TEST(HandshakeTest, RefusesEveryFrameThatWasChanged) {
  for (const FrameType changed :
       {FrameType::kHello, FrameType::kChallenge, FrameType::kProof, FrameType::kWelcome}) {
    for (size_t at : {size_t{0}, size_t{13}, size_t{31}, size_t{40}, size_t{60}}) {
      Side a(IdentityOf(4), "a secret of 16 b", true), b(IdentityOf(0), "a secret of 16 b", false);
      bool did = false;
      const Result result = Shake(&a, &b, [&](FrameType type, std::string* payload) {
        if (type != changed || at >= payload->size()) return;
        (*payload)[at] ^= 1;
        did = true;
      });
      EXPECT_FALSE(did && result.initiator_done) << static_cast<int>(changed) << " " << at;
    }
  }
}

TEST(HandshakeTest, AFrameOfAnotherConnectionProvesNothing) {
  std::string recorded;
  Side a(IdentityOf(4), "a secret of 16 b", true), b(IdentityOf(0), "a secret of 16 b", false);
  ASSERT_TRUE(Shake(&a, &b, [&](FrameType type, std::string* payload) {
                if (type == FrameType::kProof) recorded = *payload;
              }).other_done);
  Side c(IdentityOf(4), "guessed", true), d(IdentityOf(0), "a secret of 16 b", false);
  const Result result = Shake(&c, &d, [&](FrameType type, std::string* payload) {
    if (type == FrameType::kProof) *payload = recorded;
  });
  EXPECT_TRUE(absl::IsPermissionDenied(result.other)) << result.other;
}

TEST(HandshakeTest, RefusesNodesThatDoNotFit) {
  const auto refusal = [](const std::function<void(Identity*)>& change) {
    Identity other = IdentityOf(4);
    change(&other);
    Side a(other, "a secret of 16 b", true), b(IdentityOf(0), "a secret of 16 b", false);
    const Result result = Shake(&a, &b);
    EXPECT_FALSE(result.other.ok());
    EXPECT_TRUE(absl::StrContains(result.initiator.message(), result.other.message()));
    return std::string(result.other.message());
  };
  EXPECT_TRUE(absl::StrContains(refusal([](Identity* i) { i->set_job("x\n"); }), "\"x?\""));
  EXPECT_TRUE(absl::StrContains(refusal([](Identity* i) { i->set_uid(7); }), "1000 and 7"));
  EXPECT_TRUE(absl::StrContains(refusal([](Identity* i) { i->set_n_ranks(9); }), "8 and 9 ranks"));
  EXPECT_TRUE(absl::StrContains(refusal([](Identity* i) { i->set_first_rank(3); }), "3 to 6"));
  EXPECT_TRUE(absl::StrContains(refusal([](Identity* i) { i->set_n_local(5); }), "4 to 8"));
  refusal([](Identity* i) { i->set_n_local(0); });
  refusal([](Identity* i) { i->set_n_local(~0u); });
}

TEST(HandshakeTest, RefusesFramesOutOfTurn) {
  for (const FrameType type : {FrameType::kProof, FrameType::kWelcome, FrameType::kChallenge,
                               FrameType::kBeat, static_cast<FrameType>(77)}) {
    Side b(IdentityOf(0), "a secret of 16 b", false);
    std::string out;
    EXPECT_FALSE(b.handshake.Take(type, std::string(100, 'x'), &out).ok());
    EXPECT_EQ(out, "") << "a stranger learns nothing";
  }
}

}  // namespace
}  // namespace iris::port
