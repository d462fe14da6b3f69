// An Engine with a hostile peer, which knows the connection's tags. The peer is this test: it hands
// messages to the engine, and receives the engine's by a UCX worker.
#include "server/port/engine.h"

#include <gtest/gtest.h>
#include <string.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "device/driver/emu_driver.h"
#include "device/iris/types.h"
#include "server/port/testing/fake_atomics.h"

namespace iris::port {
namespace {

constexpr uint64_t kStride = 1ull << 30, kHeap = 4 << 20, kEpoch = 5;
constexpr Tags kTags = {.sent = 11, .received = 22};

std::unique_ptr<UcxWorker> NewWorker(UcxWorker::Handlers handlers) {
  UcxOptions options;
  options.device = "lo";
  auto worker = UcxWorker::Create(options, std::move(handlers));
  EXPECT_TRUE(worker.ok()) << worker.status();
  return worker.ok() ? *std::move(worker) : nullptr;
}

// A message's header, as the peer would write it.
struct Sent {
  uint64_t tag = kTags.received, epoch = kEpoch;
  uint32_t from = 2;
};

class EngineTest : public testing::Test {
 protected:
  // UCX is opened once: its threads stay.
  static void SetUpTestSuite() {
    if (here_ != nullptr) return;  // another fixture has opened it
    here_ = NewWorker({[](std::string_view header, std::string_view data) {},
                       [](UcxWorker::SendTag* tag, bool ok) { engine_->OnSent(tag, ok); },
                       [](void* tag, const char* reason) { engine_->OnFailed(tag, reason); }})
                .release();
    there_ = NewWorker({[](std::string_view header, std::string_view data) {
                          got_.push_back({std::string(header), std::string(data)});
                        },
                        [](UcxWorker::SendTag*, bool) {}, [](void*, const char*) {}})
                 .release();
  }

  void SetUp() override {
    ASSERT_NE(here_, nullptr);
    got_.clear();
    OpenMemory(HeapMemory::Options());
    NewEngine();
  }
  void OpenMemory(const HeapMemory::Options& options) {
    auto memory = HeapMemory::Open("emu", kStride, options);
    ASSERT_TRUE(memory.ok());
    memory_ = *std::move(memory);
    driver::EmuOptions emu;
    emu.n_devices = 1;
    emu.memory_bytes_per_device = 1 << 30;
    driver_ = driver::CreateEmuDriver(emu);
    AddRank(0);
  }
  void AddRank(uint32_t rank) {
    auto physical = driver_->Create(0, kHeap, false);
    ASSERT_TRUE(physical.ok());
    const auto fd = (*physical)->ExportFd(driver::Access::kReadWrite);
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(memory_->Add(rank + 1, rank, 0, kHeap, "", wire::UniqueFd(*fd)).ok());
  }
  // Ranks 0 and 1 are here, 2 and 3 there. Sends that UCX has not finished refer to an engine, so
  // it stays.
  void NewEngine(const Tags& tags = kTags, Engine::Turn turn = Engine::Turn::kOnly) {
    static auto* const all = new std::vector<std::unique_ptr<Engine>>;
    all->push_back(std::make_unique<Engine>(RequestLimits{0, 2, 4, kStride}, memory_.get()));
    engine_ = all->back().get();
    engine_->SetWorker(here_);
    ASSERT_TRUE(engine_->Connect(2, there_->address(), tags, turn).ok());
  }

  void Layout() { ASSERT_TRUE(engine_->SetLayout(kEpoch, {{0, 2}, {2, 2}}).ok()); }

  void Hand(uint64_t sequence, const std::string& body, const Sent& sent = {}) {
    const MessageHeader header = {sent.tag, sent.epoch, sequence, sent.from, 0};
    engine_->OnMessage({reinterpret_cast<const char*>(&header), sizeof(header)}, body);
    (void)engine_->Poll();
  }
  static std::string Bytes(const Record& record, const std::string& data = "") {
    std::string bytes(reinterpret_cast<const char*>(&record), sizeof(record));
    bytes += data;
    bytes.resize((bytes.size() + 7) / 8 * 8);
    return bytes;
  }
  static std::string PutOf(uint64_t offset, const std::string& data, uint32_t rank = 0) {
    Record record;
    record.kind = RecordKind::kPut;
    record.rank = rank;
    record.offset = offset;
    record.bytes = data.size();
    return Bytes(record, data);
  }
  // The records of the next `n` answers.
  std::vector<Record> Answers(size_t n) {
    std::vector<Record> answers;
    for (int i = 0; i < 100'000 && answers.size() < n; ++i) {
      (void)engine_->Poll();
      (void)there_->Progress();
      for (const auto& [header, data] : std::exchange(got_, {})) {
        RecordReader reader(header, data);
        Record record;
        const char* bytes = nullptr;
        while (reader.Next(&record, &bytes) == RecordReader::Got::kRecord) {
          answers.push_back(record);
        }
      }
    }
    return answers;
  }
  std::string Heap(uint64_t offset, uint64_t bytes) {
    std::string data(bytes, '\0');
    EXPECT_EQ(memory_->Read(0, offset, data.data(), bytes), StatusCode::kOk);
    return data;
  }
  // The reason for which the engine gave the peer up; empty if it did not.
  std::string Broken() {
    (void)engine_->Poll();
    const auto broken = engine_->TakeBroken();
    return broken.empty() ? "" : broken.front().second;
  }

  static inline UcxWorker* here_ = nullptr;
  static inline UcxWorker* there_ = nullptr;
  static inline Engine* engine_ = nullptr;
  static inline std::vector<std::pair<std::string, std::string>> got_;
  std::unique_ptr<HeapMemory> memory_;
  std::unique_ptr<driver::GpuDriver> driver_;
};

TEST_F(EngineTest, ExecutesWhatFitsAndRefusesWhatIsOutOfBounds) {
  Layout();
  Hand(0, PutOf(8, "hello"));
  Hand(1, PutOf(kHeap - 2, "beyond") + PutOf(0, "no rank", 1) + PutOf(0, "other", 3) +
              PutOf(~0ull - 2, "wraps"));
  Record rows;
  rows.kind = RecordKind::kPutRows;
  rows.offset = kHeap - 8;
  rows.bytes = 4;
  rows.value = 4;
  rows.other = ~0ull / 2;
  Hand(2, Bytes(rows, "0123456789abcdef"));
  Record get;
  get.kind = RecordKind::kGet;
  get.offset = kHeap - 100;
  get.bytes = 100'000;
  Hand(3, Bytes(get));
  Record signal;
  signal.kind = RecordKind::kPut;
  signal.other = 12;
  Hand(4, Bytes(signal));
  signal.other = 16;
  signal.signal_op = 2;
  Hand(5, Bytes(signal));
  const std::vector<Record> answers = Answers(9);
  ASSERT_EQ(answers.size(), 9u);
  EXPECT_EQ(answers[0].kind, RecordKind::kDone);
  for (size_t i = 1; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].kind, RecordKind::kError) << i;
  }
  EXPECT_EQ(Heap(8, 5), "hello");
  EXPECT_EQ(Heap(kHeap - 2, 2), std::string(2, '\0'));
  EXPECT_EQ(Broken(), "");
}

TEST_F(EngineTest, IgnoresMessagesThatProveNothing) {
  Layout();
  Hand(0, PutOf(0, "forged"), {.tag = 23});
  Hand(0, PutOf(0, "forged"), {.from = 3});
  Hand(0, PutOf(0, "forged"), {.tag = kTags.sent});
  engine_->OnMessage("short", "");
  engine_->OnMessage("", PutOf(0, "forged"));
  EXPECT_EQ(engine_->refused(), 5u);
  EXPECT_EQ(Heap(0, 6), std::string(6, '\0'));
  EXPECT_EQ(Broken(), "") << "somebody else could end the connection";
  Hand(0, PutOf(0, "true"));
  EXPECT_EQ(Heap(0, 4), "true");
}

TEST_F(EngineTest, HoldsMessagesUntilTheirTurn) {
  Hand(1, PutOf(0, "second"));
  Hand(0, PutOf(0, "first "));
  EXPECT_EQ(Heap(0, 1), std::string(1, '\0')) << "there is no layout yet";
  Layout();
  EXPECT_EQ(Heap(0, 6), "second");
  Hand(3, PutOf(0, "fourth"));
  EXPECT_EQ(Heap(0, 6), "second");
  Hand(2, PutOf(0, "third "));
  EXPECT_EQ(Heap(0, 6), "fourth");
  EXPECT_EQ(Broken(), "");
}

TEST_F(EngineTest, SendsNothingToAPeerThatDoesNotKnowTheTagsYet) {
  // Messages of earlier tests may still come.
  constexpr Tags kOwn = {.sent = 33, .received = kTags.received};
  NewEngine(kOwn, Engine::Turn::kSecond);
  Layout();
  Hand(0, PutOf(0, "early"));
  EXPECT_EQ(Heap(0, 5), "early");
  const auto comes = [&](int polls) {
    for (int i = 0; i < polls; ++i) {
      (void)engine_->Poll();
      (void)there_->Progress();
      for (const auto& [header, data] : std::exchange(got_, {})) {
        if (memcmp(header.data(), &kOwn.sent, sizeof(kOwn.sent)) == 0) return true;
      }
    }
    return false;
  };
  EXPECT_FALSE(comes(1000));
  engine_->AllowSending(2);
  EXPECT_TRUE(comes(100'000));
}

TEST_F(EngineTest, TheFirstOfTwoNodesSendsAnEmptyMessage) {
  constexpr Tags kOwn = {.sent = 35, .received = kTags.received};
  NewEngine(kOwn, Engine::Turn::kFirst);
  Layout();
  bool came = false;
  for (int i = 0; i < 100'000 && !came; ++i) {
    (void)engine_->Poll();
    (void)there_->Progress();
    for (const auto& [header, data] : std::exchange(got_, {})) {
      if (memcmp(header.data(), &kOwn.sent, sizeof(kOwn.sent)) != 0) continue;
      came = true;
      EXPECT_EQ(header.size(), sizeof(MessageHeader));
      EXPECT_EQ(data, "");
    }
  }
  EXPECT_TRUE(came);
}

TEST_F(EngineTest, GivesUpAPeerThatBreaksTheProtocol) {
  Layout();
  const auto after = [&](const std::string& body, uint64_t sequence = 0, uint64_t epoch = kEpoch) {
    NewEngine();
    Layout();
    Hand(sequence, body, {.epoch = epoch});
    return Broken();
  };
  EXPECT_EQ(after(PutOf(0, "good")), "");
  EXPECT_TRUE(absl::StrContains(after(PutOf(0, "old"), 0, kEpoch + 1), "another run"));
  EXPECT_TRUE(absl::StrContains(after("not a record"), "cut off"));
  EXPECT_TRUE(absl::StrContains(after(PutOf(0, "long").substr(0, 40)), "cut off"));
  EXPECT_TRUE(absl::StrContains(after(std::string(kMaxPayloadBytes + 1, 'x')), "too long"));
  Record record;
  record.kind = static_cast<RecordKind>(9);
  EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "no known kind"));
  record.kind = RecordKind::kPut;
  record.bytes = ~0ull;
  EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "cut off"));
  record.kind = RecordKind::kPutRows;
  record.bytes = 1 << 16;
  record.value = 1ull << 48;
  EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "cut off"));
  record.bytes = 0;  // rows that cost time, but no data
  record.value = kMaxPayloadBytes;
  EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "cut off"));
  record.kind = RecordKind::kGet;
  record.bytes = kPieceBytes + 1;
  EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "too long"));
  record.kind = RecordKind::kGetRows;
  record.bytes = 1ull << 40;
  record.value = 1ull << 40;
  EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "too long"));
  for (const RecordKind kind : {RecordKind::kDone, RecordKind::kValue, RecordKind::kError}) {
    record = Record();
    record.kind = kind;
    record.bytes = 1;
    EXPECT_TRUE(absl::StrContains(after(Bytes(record)), "nobody asked"));
  }
  std::string many;
  record = Record();
  record.kind = RecordKind::kGet;
  record.bytes = kPieceBytes;
  for (int i = 0; i < 100; ++i) many += Bytes(record);
  EXPECT_TRUE(absl::StrContains(after(many), "more than is allowed"));
  EXPECT_EQ(after(PutOf(0, "early"), 1), "");
  EXPECT_EQ(after(PutOf(0, "first"), 0), "");
  Hand(0, PutOf(0, "again"));
  EXPECT_TRUE(absl::StrContains(Broken(), "repeated"));
}

// Atomics that a device carries out later.
class LaterTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    OpenMemory({.atomics = device_.table()});
    AddRank(1);
    NewEngine();
    Layout();
  }

  static std::string AddOf(uint64_t offset, uint64_t value, uint32_t rank = 0) {
    Record record;
    record.kind = RecordKind::kAtomic;
    record.atomic = static_cast<uint8_t>(PortAtomic::kAdd);
    record.type = static_cast<uint8_t>(PortType::kUint64);
    record.rank = rank;
    record.offset = offset;
    record.value = value;
    return Bytes(record);
  }
  static std::string SignalOf(uint64_t offset, uint64_t value, const std::string& data = "",
                              SignalOp op = SignalOp::kAdd) {
    Record record;
    record.kind = RecordKind::kPut;
    record.signal_op = static_cast<uint8_t>(op);
    record.offset = 64;
    record.bytes = data.size();
    record.value = value;
    record.other = offset;
    return Bytes(record, data);
  }
  static std::string GetOf(uint64_t offset, uint64_t bytes) {
    Record record;
    record.kind = RecordKind::kGet;
    record.offset = offset;
    record.bytes = bytes;
    return Bytes(record);
  }
  uint64_t Word(uint64_t offset) {
    uint64_t word = 0;
    memcpy(&word, Heap(offset, sizeof(word)).data(), sizeof(word));
    return word;
  }

  FakeAtomics device_;
};

TEST_F(LaterTest, RequestsToTheRankWaitForTheAtomic) {
  Hand(0, AddOf(0, 5) + AddOf(0, 6) + SignalOf(0, 7) + PutOf(8, "after") + GetOf(0, 8));
  Hand(1, PutOf(16, "next"));
  EXPECT_TRUE(Answers(1).empty());
  EXPECT_EQ(Heap(8, 1), std::string(1, '\0')) << "the put has overtaken the atomics";
  EXPECT_EQ(Heap(16, 1), std::string(1, '\0')) << "the message has overtaken the one before";
  EXPECT_TRUE(engine_->Poll()) << "a port that sleeps would not see the device's end";
  device_.runs = true;
  const std::vector<Record> answers = Answers(6);
  ASSERT_EQ(answers.size(), 6u);
  EXPECT_EQ(answers[0].kind, RecordKind::kValue);
  EXPECT_EQ(answers[0].value, 0u);
  EXPECT_EQ(answers[1].value, 5u);
  EXPECT_EQ(answers[2].kind, RecordKind::kDone) << "of the signal";
  EXPECT_EQ(answers[2].bytes, 1u);
  EXPECT_EQ(answers[3].kind, RecordKind::kDone) << "of the put";
  EXPECT_EQ(answers[4].kind, RecordKind::kData);
  EXPECT_EQ(answers[5].kind, RecordKind::kDone);
  EXPECT_EQ(Word(0), 18u);
  EXPECT_EQ(Heap(8, 5), "after");
  EXPECT_EQ(Heap(16, 4), "next");
  EXPECT_EQ(device_.list_lengths.size(), 1u) << "what needs no wait goes in one launch";
  EXPECT_EQ(Broken(), "");
  while (engine_->Poll()) {
  }
}

TEST_F(LaterTest, RequestsToOtherRanksDoNotWait) {
  Hand(0, AddOf(0, 5, /*rank=*/1) + PutOf(8, "goes on"));
  EXPECT_EQ(Heap(8, 7), "goes on");
  EXPECT_TRUE(Answers(1).empty()) << "answers keep the order";
  device_.runs = true;
  EXPECT_EQ(Answers(2).size(), 2u);
}

TEST_F(LaterTest, ASignalFollowsItsDataAndEarlierSignals) {
  Hand(0, SignalOf(0, 1, "first") + SignalOf(0, 1, "other") +
              SignalOf(0, 40, "third", SignalOp::kSet) + SignalOf(0, 2));
  EXPECT_EQ(Heap(64, 5), "first");
  device_.runs = true;
  EXPECT_EQ(Answers(4).size(), 4u);
  EXPECT_EQ(Heap(64, 5), "third");
  EXPECT_EQ(Word(0), 42u);
}

TEST_F(LaterTest, AnAtomicThatFailsIsAnswered) {
  device_.starts = {StatusCode::kUnavailable, "lost"};
  Hand(0, AddOf(0, 5) + SignalOf(0, 1) + PutOf(8, "data"));
  const std::vector<Record> answers = Answers(3);
  ASSERT_EQ(answers.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answers[i].kind, RecordKind::kError);
    EXPECT_EQ(answers[i].value, static_cast<uint64_t>(StatusCode::kInternal));
  }
  EXPECT_EQ(answers[2].kind, RecordKind::kDone);
}

TEST_F(LaterTest, AWaitingPeerIsBoundToTheProtocol) {
  Hand(0, AddOf(0, 1) + PutOf(8, "waits"));
  Hand(0, PutOf(8, "again"));
  EXPECT_TRUE(absl::StrContains(Broken(), "repeated"));
  NewEngine();
  Layout();
  Hand(0, AddOf(0, 1) + PutOf(8, "waits") + "not a record");
  EXPECT_EQ(Broken(), "");
  device_.runs = true;
  std::string broken;
  for (int i = 0; i < 100 && broken.empty(); ++i) broken = Broken();
  EXPECT_TRUE(absl::StrContains(broken, "cut off")) << broken;
}

TEST_F(LaterTest, ALostPeerLeavesItsAtomicsBehind) {
  Hand(0, AddOf(0, 5) + PutOf(8, "never"));
  engine_->Lose(2);
  for (int i = 0; i < 10; ++i) (void)engine_->Poll();
  EXPECT_TRUE(engine_->Poll()) << "the device is not done";
  device_.runs = true;
  while (engine_->Poll()) {
  }
  EXPECT_EQ(Word(0), 5u) << "the device had it already";
  EXPECT_EQ(Heap(8, 1), std::string(1, '\0'));
}

TEST_F(EngineTest, SurvivesRandomBytes) {
  const char* const chosen = getenv("IRIS_TEST_SEED");
  std::mt19937_64 random(chosen == nullptr ? 1 : strtoull(chosen, nullptr, 10));
  for (int round = 0; round < 300; ++round) {
    NewEngine();
    Layout();
    for (uint64_t sequence = 0; sequence < 10; ++sequence) {
      std::string body;
      for (uint64_t n = random() % 6; n > 0; --n) {
        Record record;
        auto* const words = reinterpret_cast<uint64_t*>(&record);
        for (int w = 0; w < 5; ++w) words[w] = random() >> (random() % 64);
        record.kind = static_cast<RecordKind>(random() % 2 == 0 ? 1 + random() % 5 : random() % 22);
        if (random() % 2 == 0) record.rank = 0;
        body += Bytes(record, std::string(random() % 200, 'x'));
      }
      if (random() % 4 == 0) body.resize(random() % (body.size() + 1));
      Hand(sequence, body);
    }
    (void)there_->Progress();
  }
}

}  // namespace
}  // namespace iris::port
