#include "server/session/outbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {
namespace {

using Flushed = Outbox::Flushed;

constexpr Party kAnn{1000}, kBob{1001};
constexpr auto kPatience = absl::Seconds(30);

AdmissionLimits Limits() {
  AdmissionLimits limits;
  limits.max_in_flight = 128;
  limits.max_in_flight_per_tenant = 40;
  return limits;
}

// Stands for the session's socket: takes `room` frames, then gives the answers that the test sets.
class FakeSocket {
 public:
  Outbox::Socket socket() {
    return {[this](const wire::DescriptorsPayload& payload, absl::Span<const int> fds) {
              return Send(payload, fds);
            },
            [this] { return all_received_; }};
  }
  absl::Status Send(const wire::DescriptorsPayload& payload, absl::Span<const int> fds) {
    if (room_ == 0) return full_;
    --room_;
    EXPECT_EQ(payload.count, fds.size());
    EXPECT_LE(fds.size(), wire::kMaxDescriptorsPerFrame);
    frame_sizes_.push_back(payload.count);
    for (uint32_t i = 0; i < payload.count; ++i) {
      EXPECT_GE(fcntl(fds[i], F_GETFD), 0) << "a closed descriptor was sent";
      segments_.push_back(payload.records[i].segment_id);
      fds_.push_back(fds[i]);
    }
    return absl::OkStatus();
  }
  void Answer(int room, absl::Status full) {
    room_ = room;
    full_ = std::move(full);
  }
  // Sets the kernel's answer about received data.
  void set_all_received(bool all_received) { all_received_ = all_received; }
  const std::vector<uint32_t>& frame_sizes() const { return frame_sizes_; }
  const std::vector<uint64_t>& segments() const { return segments_; }
  const std::vector<int>& fds() const { return fds_; }

 private:
  int room_ = 1 << 20;
  bool all_received_ = true;
  absl::Status full_;
  std::vector<uint32_t> frame_sizes_;
  std::vector<uint64_t> segments_;
  std::vector<int> fds_;
};

class OutboxTest : public ::testing::Test {
 protected:
  // `n` descriptors of the segments first, first + 1, ...
  std::vector<OutgoingDescriptor> Descriptors(size_t n, uint64_t first = 0) {
    std::vector<OutgoingDescriptor> out(n);
    for (size_t i = 0; i < n; ++i) {
      out[i].record.segment_id = first + i;
      out[i].open = [this]() -> absl::StatusOr<int> {
        if (!open_status_.ok()) return open_status_;
        ++n_opened_;
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
      };
    }
    return out;
  }
  void Queue(size_t n, uint64_t first = 0) {
    const absl::Status status = outbox_.Queue(Descriptors(n, first));
    ASSERT_TRUE(status.ok()) << status;
  }
  void ExpectFlushed(Flushed want) {
    const auto flushed = Flush();
    ASSERT_TRUE(flushed.ok()) << flushed.status();
    EXPECT_EQ(*flushed, want);
  }

  absl::StatusOr<Flushed> Flush() { return outbox_.Flush(socket_.socket(), now_, kPatience); }

  InFlight in_flight_{Limits()};
  Outbox outbox_{InFlight::Hold(&in_flight_, {kAnn, false})};
  FakeSocket socket_;
  absl::Time now_ = absl::UnixEpoch();
  absl::Status open_status_;
  int n_opened_ = 0;
};

TEST_F(OutboxTest, SendsInOrderAsManyInAFrameAsFit) {
  Queue(20);
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.frame_sizes(), (std::vector<uint32_t>{16, 4}));
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(socket_.segments()[i], i);
  EXPECT_EQ(outbox_.n_in_flight(), 20u);
  EXPECT_EQ(outbox_.n_queued(), 0u);
}

TEST_F(OutboxTest, ClosesWhatItHasSent) {
  Queue(3);
  ExpectFlushed(Flushed::kIdle);
  for (const int fd : socket_.fds()) EXPECT_LT(fcntl(fd, F_GETFD), 0) << fd;
}

TEST_F(OutboxTest, TheWindowBoundsWhatIsInFlight) {
  Queue(100);
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(outbox_.n_in_flight(), wire::kDescriptorWindow);
  EXPECT_EQ(n_opened_, static_cast<int>(wire::kDescriptorWindow)) << "opened before it is sent";
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments().size(), wire::kDescriptorWindow);
  // Each acknowledgement makes just that much room.
  ASSERT_TRUE(outbox_.Acknowledge(5).ok());
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments().size(), wire::kDescriptorWindow + 5);
  EXPECT_EQ(socket_.segments().back(), wire::kDescriptorWindow + 4);
  while (outbox_.n_in_flight() > 0) {
    ASSERT_TRUE(outbox_.Acknowledge(1).ok());
    ExpectFlushed(Flushed::kIdle);
  }
  ASSERT_EQ(socket_.segments().size(), 100u);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(socket_.segments()[i], i);
}

TEST_F(OutboxTest, AcknowledgingWhatIsNotOnItsWayIsRefused) {
  EXPECT_EQ(outbox_.Acknowledge(1).code(), absl::StatusCode::kInvalidArgument);
  Queue(3);
  ExpectFlushed(Flushed::kIdle);
  const absl::Status status = outbox_.Acknowledge(4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "acknowledges 4 descriptors; 3 are"));
  EXPECT_EQ(outbox_.Acknowledge(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(outbox_.n_in_flight(), 3u);
}

TEST_F(OutboxTest, AFullSocketIsTriedAgain) {
  socket_.Answer(1, absl::ResourceExhaustedError("full"));
  Queue(20);
  ExpectFlushed(Flushed::kBlocked);
  EXPECT_EQ(outbox_.n_in_flight(), 16u);
  EXPECT_EQ(outbox_.n_queued(), 4u);
  socket_.Answer(1, absl::OkStatus());
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments().size(), 20u);
  EXPECT_EQ(socket_.segments().back(), 19u);
}

TEST_F(OutboxTest, WithoutDescriptorsItIsTriedAgain) {
  Queue(2);
  open_status_ = absl::ResourceExhaustedError("too many open files");
  ExpectFlushed(Flushed::kBlocked);
  EXPECT_TRUE(socket_.segments().empty());
  open_status_ = absl::OkStatus();
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments(), (std::vector<uint64_t>{0, 1}));
}

TEST_F(OutboxTest, AnotherFailureIsReturned) {
  Queue(2);
  open_status_ = absl::InternalError("no such memory");
  EXPECT_EQ(Flush().status().code(), absl::StatusCode::kInternal);
  open_status_ = absl::OkStatus();
  socket_.Answer(0, absl::InvalidArgumentError("bad frame"));
  EXPECT_EQ(Flush().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(outbox_.n_queued(), 2u);
}

TEST_F(OutboxTest, APeerThatIsGoneIsNoError) {
  socket_.Answer(0, absl::UnavailableError("gone"));
  Queue(2);
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(outbox_.n_in_flight(), 0u);
}

TEST_F(OutboxTest, TheQueueIsBounded) {
  Queue(Outbox::kMaxQueued - 1);
  const absl::Status full = outbox_.Queue(Descriptors(2));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(outbox_.n_queued(), Outbox::kMaxQueued - 1);
  EXPECT_TRUE(outbox_.Queue(Descriptors(1)).ok());
}

TEST_F(OutboxTest, ClosingForgetsTheQueueAndHandsOverWhatIsInFlight) {
  Queue(40);
  socket_.set_all_received(false);
  ExpectFlushed(Flushed::kIdle);
  {
    const InFlight::Hold share = outbox_.Close();
    EXPECT_EQ(share.count(), wire::kDescriptorWindow);
    EXPECT_EQ(in_flight_.of(kAnn), wire::kDescriptorWindow) << "the kernel still holds them";
  }
  EXPECT_EQ(outbox_.n_queued(), 0u);
  EXPECT_EQ(outbox_.n_in_flight(), 0u);
  EXPECT_EQ(in_flight_.total(), 0u);
}

TEST_F(OutboxTest, AnAcknowledgementOfWhatIsUnreadMakesNoRoom) {
  socket_.set_all_received(false);
  Queue(100);
  ExpectFlushed(Flushed::kIdle);
  ASSERT_TRUE(outbox_.Acknowledge(wire::kDescriptorWindow).ok());  // a lie
  now_ += 2 * kPatience;
  ExpectFlushed(Flushed::kUnread);
  EXPECT_EQ(socket_.segments().size(), wire::kDescriptorWindow);
  socket_.set_all_received(true);
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments().size(), 2 * wire::kDescriptorWindow);
}

TEST_F(OutboxTest, WhatIsReceivedAndNotAcknowledgedMakesNoRoomEither) {
  Queue(100);
  ExpectFlushed(Flushed::kIdle);
  EXPECT_TRUE(outbox_.Look(socket_.socket()));
  EXPECT_EQ(in_flight_.total(), 0u);
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments().size(), wire::kDescriptorWindow);
}

TEST_F(OutboxTest, BeyondItsTenantsShareItWaitsAndGoesOnWhenThereIsRoom) {
  InFlight::Hold other(&in_flight_, {kAnn, false});  // of another session of Ann
  other.Add(37);
  socket_.set_all_received(false);
  Queue(10);
  ExpectFlushed(Flushed::kBlocked);
  EXPECT_EQ(socket_.segments().size(), 3u);
  now_ += kPatience / 2;
  ExpectFlushed(Flushed::kBlocked);
  other.Clear();
  ExpectFlushed(Flushed::kIdle);
  EXPECT_EQ(socket_.segments().size(), 10u);
}

TEST_F(OutboxTest, WhoseShareStaysUsedUpIsEndedAndToldWhoseItWas) {
  InFlight::Hold other(&in_flight_, {kAnn, false});
  other.Add(40);
  Queue(10);
  ExpectFlushed(Flushed::kBlocked);
  now_ += kPatience - absl::Milliseconds(1);
  ExpectFlushed(Flushed::kBlocked);
  now_ += absl::Milliseconds(1);
  const absl::Status status = Flush().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "10 descriptors could not be sent")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "uid 1000 has 40 descriptors on their way"))
      << status;
  // Another tenant is not concerned.
  Outbox bobs{InFlight::Hold(&in_flight_, {kBob, false})};
  ASSERT_TRUE(bobs.Queue(Descriptors(10)).ok());
  const auto flushed = bobs.Flush(socket_.socket(), now_, kPatience);
  ASSERT_TRUE(flushed.ok()) << flushed.status();
  EXPECT_EQ(*flushed, Flushed::kIdle);
  EXPECT_EQ(bobs.n_queued(), 0u);
}

TEST_F(OutboxTest, ProgressStartsThePatienceAnew) {
  socket_.Answer(1, absl::ResourceExhaustedError("full"));
  Queue(20);
  ExpectFlushed(Flushed::kBlocked);
  now_ += kPatience / 2;
  socket_.Answer(1, absl::ResourceExhaustedError("full"));
  Queue(20, 20);
  ExpectFlushed(Flushed::kIdle);  // the window is full
  ASSERT_TRUE(outbox_.Acknowledge(20).ok());
  socket_.Answer(0, absl::ResourceExhaustedError("full"));
  now_ += kPatience * 2 / 3;
  ExpectFlushed(Flushed::kBlocked);
  now_ += kPatience;
  EXPECT_EQ(Flush().status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace iris::server
