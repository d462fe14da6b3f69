// Tests a rank that traces itself, on emulated devices: start, records and file.
#include "client/trace/trace_recorder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/base/whole_file.h"
#include "device/driver/emu_driver.h"
#include "iris/backend/host_functions.h"
#include "nlohmann/json.hpp"

namespace iris::internal {
namespace {

using Json = nlohmann::json;

class TraceRecorderTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kEvents = 8;

  std::unique_ptr<TraceRecorder> Make(const std::string& file = "", uint32_t rank = 3) {
    TraceRecorder::Options options;
    options.job = "job";
    options.rank = rank;
    options.backend = "emu";
    options.address = reinterpret_cast<uint64_t>(memory_.data());
    options.bytes = TraceAreaBytes(kEvents);
    options.file = file;
    auto made = TraceRecorder::Make(options, &guard_, driver_.get());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(::testing::TempDir(), "/recorder.", getpid(), ".", name);
  }
  // Returns the names of the events in a trace file.
  static std::multiset<std::string> Names(const std::string& path) {
    const auto text = ReadFile(path, 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status();
    std::multiset<std::string> names;
    if (!text.ok()) return names;
    const Json json = Json::parse(*text);
    EXPECT_EQ(json["otherData"]["ranks"][0]["rank"], 3);
    EXPECT_EQ(json["otherData"]["ranks"][0]["clock_drift_known"], true);
    for (const Json& event : json["traceEvents"]) {
      if (event["ph"] == "X") names.insert(event["name"]);
    }
    return names;
  }
  static void Tell(TraceRecorder* recorder, TraceHostCall call) {
    const TraceRecorder::Span span(recorder, call);
  }
  static void TellSpan(TraceRecorder* recorder, const char* name) {
    const absl::Status status = recorder->EndSpan(recorder->BeginSpan(), name);
    EXPECT_TRUE(status.ok()) << status;
  }

  ContextGuard guard_;
  std::unique_ptr<driver::GpuDriver> driver_ = driver::CreateEmuDriver({1, 1ull << 30});
  alignas(64) std::array<uint8_t, TraceAreaBytes(kEvents)> memory_ = {};
};

TEST_F(TraceRecorderTest, TellsFromStartToStop) {
  auto recorder = Make();
  Tell(recorder.get(), TraceHostCall::kAllocate);
  TellSpan(recorder.get(), "before");
  ASSERT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
  Tell(recorder.get(), TraceHostCall::kBarrier);
  TellSpan(recorder.get(), "inside");
  ASSERT_TRUE(recorder->Save(Path("on.%r.json")).ok());
  EXPECT_EQ(Names(Path("on.3.json")), (std::multiset<std::string>{"barrier", "inside"}));
  ASSERT_TRUE(recorder->Stop().ok());
  Tell(recorder.get(), TraceHostCall::kFree);
  TellSpan(recorder.get(), "behind");
  ASSERT_TRUE(recorder->Save(Path("off.json")).ok());
  EXPECT_EQ(Names(Path("off.json")), (std::multiset<std::string>{"barrier", "inside"}));
  // The next one begins with nothing.
  ASSERT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
  ASSERT_TRUE(recorder->Stop().ok());
  ASSERT_TRUE(recorder->Save(Path("next.json")).ok());
  EXPECT_TRUE(Names(Path("next.json")).empty());
  EXPECT_TRUE(recorder->Close().ok());
}

TEST_F(TraceRecorderTest, RefusesWhatHasNoStart) {
  auto recorder = Make();
  EXPECT_EQ(recorder->Stop().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(recorder->Save(Path("none.json")).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
  const absl::Status again = recorder->Start(absl::ZeroDuration());
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(again.message().find("a trace of rank 3 is on already, until its own program ends it"),
            std::string::npos)
      << again;
  ASSERT_TRUE(recorder->Stop().ok());
  EXPECT_EQ(recorder->Stop().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(recorder->Save("/nowhere/x.json").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(recorder->Close().ok());
  EXPECT_EQ(recorder->Start(absl::ZeroDuration()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(recorder->Save(Path("none.json")).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TraceRecorderTest, ATraceOfAnotherIsNotItsOwn) {
  auto recorder = Make();
  MappedTrace other(driver_.get(), reinterpret_cast<uint64_t>(memory_.data()), memory_.size());
  const uint64_t now = backend::HostClockNanoseconds();
  ASSERT_TRUE(other.SwitchOn(now, now + 600'000'000'000).ok());
  EXPECT_EQ(recorder->Start(absl::ZeroDuration()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(recorder->Stop().code(), absl::StatusCode::kFailedPrecondition);
  // A trace that another process started gets calls, but not spans, which have names.
  Tell(recorder.get(), TraceHostCall::kBarrier);
  TellSpan(recorder.get(), "mine");
  const auto read = other.Read();
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->events.size(), 1u);
  EXPECT_EQ(read->unfinished, 0u);
  EXPECT_TRUE(other.SwitchOff().ok());
}

TEST_F(TraceRecorderTest, ATraceWithALimitEndsByItself) {
  auto recorder = Make();
  ASSERT_TRUE(recorder->Start(absl::Nanoseconds(1)).ok());
  Tell(recorder.get(), TraceHostCall::kBarrier);
  TellSpan(recorder.get(), "late");
  ASSERT_TRUE(recorder->Save(Path("limit.json")).ok());
  EXPECT_TRUE(Names(Path("limit.json")).empty());
  EXPECT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
  EXPECT_TRUE(recorder->Stop().ok());
}

TEST_F(TraceRecorderTest, SpansThatCannotBeToldAreRefused) {
  auto recorder = Make();
  for (const bool on : {false, true}) {
    if (on) {
      ASSERT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
    }
    for (const std::string& name : {std::string(), std::string(257, 'x'), std::string("\xff")}) {
      EXPECT_EQ(recorder->EndSpan(recorder->BeginSpan(), name).code(),
                absl::StatusCode::kInvalidArgument);
    }
  }
  EXPECT_EQ(recorder->EndSpan(~uint64_t{0}, "later").code(), absl::StatusCode::kInvalidArgument);
  // One that has begun before the trace, and one that is left out.
  EXPECT_TRUE(recorder->EndSpan(1, "early").ok());
  EXPECT_TRUE(recorder->EndSpan(0, "none").ok());
  TellSpan(recorder.get(), std::string(256, 'y').c_str());
  ASSERT_TRUE(recorder->Save(Path("spans.json")).ok());
  EXPECT_EQ(Names(Path("spans.json")), (std::multiset<std::string>{std::string(256, 'y')}));
}

TEST_F(TraceRecorderTest, WhatDoesNotFitIsCounted) {
  auto recorder = Make();
  ASSERT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
  for (uint64_t i = 0; i < kEvents + 5; ++i) Tell(recorder.get(), TraceHostCall::kBarrier);
  for (int i = 0; i < 5000; ++i) TellSpan(recorder.get(), absl::StrCat("span ", i).c_str());
  ASSERT_TRUE(recorder->Save(Path("full.json")).ok());
  const Json json = Json::parse(*ReadFile(Path("full.json"), 1 << 24));
  const Json& told = json["otherData"]["ranks"][0];
  EXPECT_EQ(told["capacity"], kEvents);
  EXPECT_EQ(told["events"], kEvents + 4096);
  EXPECT_EQ(told["dropped"], 5 + (5000 - 4096));
}

TEST_F(TraceRecorderTest, TheEnvironmentsFileIsWrittenAtTheEnd) {
  auto recorder = Make(Path("own.json"));
  EXPECT_EQ(recorder->Start(absl::ZeroDuration()).code(), absl::StatusCode::kFailedPrecondition);
  TellSpan(recorder.get(), "inside");
  EXPECT_TRUE(recorder->Close().ok());
  EXPECT_EQ(Names(Path("own.rank3.json")), (std::multiset<std::string>{"inside"}));
  // A program that has ended it before still gets its file.
  recorder = Make(Path("stopped.json"));
  TellSpan(recorder.get(), "inside");
  EXPECT_TRUE(recorder->Stop().ok());
  TellSpan(recorder.get(), "behind");
  EXPECT_TRUE(recorder->Close().ok());
  EXPECT_EQ(Names(Path("stopped.rank3.json")), (std::multiset<std::string>{"inside"}));
  const absl::Status failed = Make("/nowhere/x.json")->Close();
  EXPECT_NE(failed.message().find("IRIS_TRACE=/nowhere/x.json"), std::string::npos) << failed;
}

TEST_F(TraceRecorderTest, AForkedChildTellsNothing) {
  auto recorder = Make();
  ASSERT_TRUE(recorder->Start(absl::ZeroDuration()).ok());
  const pid_t child = fork();
  if (child == 0) {
    Tell(recorder.get(), TraceHostCall::kBarrier);
    const bool told = recorder->BeginSpan() != 0 || recorder->Start(absl::ZeroDuration()).ok() ||
                      recorder->Stop().ok() || recorder->area()->position != 0;
    _exit(told ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TraceFileOfRankTest, HasTheRankOnce) {
  EXPECT_EQ(TraceFileOfRank("x.json", 3), "x.rank3.json");
  EXPECT_EQ(TraceFileOfRank("x", 3), "x.rank3.json");
  EXPECT_EQ(TraceFileOfRank("out/%r/x.json", 3), "out/3/x.json");
  EXPECT_EQ(TraceFileOfRank("%r.%r", 12), "12.12");
}

}  // namespace
}  // namespace iris::internal
