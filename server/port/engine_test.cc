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
#include "device/driver/testing/install.h"
#include "device/driver/vmm_driver.h"
#include "device/iris/types.h"
#include "server/port/testing/fake_atomics.h"
#include "server/port/testing/needs_ucx.h"
#include "server/port/testing/port_requester.h"

namespace iris::port {
namespace {

constexpr uint64_t kStride = 1ull << 30, kHeap = 4 << 20, kEpoch = 5;
constexpr Tags kTags = {.sent = 11, .received = 22};

std::unique_ptr<UcxWorker> NewWorker(UcxWorker::Handlers handlers, bool direct = false) {
  UcxOptions options;
  options.device = "lo";
  options.direct = direct;
  auto worker = UcxWorker::Create(options, std::move(handlers));
  EXPECT_TRUE(worker.ok()) << worker.status();
  return worker.ok() ? *std::move(worker) : nullptr;
}

// A message's header, as the peer would write it.
struct Sent {
  uint64_t tag = kTags.received, epoch = kEpoch;
  uint32_t from = 2;
};

// Those of the engine and of its peer.
struct Workers {
  UcxWorker* here = nullptr;
  UcxWorker* there = nullptr;
};

class EngineTest : public testing::Test {
 protected:
  // UCX is opened once: its threads stay.
  static void SetUpTestSuite() {
    if (message_workers_.here != nullptr) return;  // another fixture has opened it
    message_workers_ = NewWorkers(false);
  }

  static Workers NewWorkers(bool direct) {
    UcxWorker::Handlers here = {
        [](std::string_view header, std::string_view data) {},
        [](UcxWorker::SendTag* tag, bool ok) { engine_->OnSent(tag, ok); },
        [](void* tag, const char* reason) { engine_->OnFailed(tag, reason); }};
    UcxWorker::Handlers there = {[](std::string_view header, std::string_view data) {
                                   got_.push_back({std::string(header), std::string(data)});
                                 },
                                 [](UcxWorker::SendTag*, bool) {}, [](void*, const char*) {}};
    return {NewWorker(std::move(here), direct).release(),
            NewWorker(std::move(there), direct).release()};
  }

  void SetUp() override {
    here_ = message_workers_.here;
    there_ = message_workers_.there;
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
    const absl::Status added =
        memory_->Add(rank + 1, rank, 0, kHeap, driver_->devices()[0].uuid, wire::UniqueFd(*fd));
    ASSERT_TRUE(added.ok()) << added;
  }
  // Ranks 0 and 1 are here, 2 and 3 there. Sends that UCX has not finished refer to an engine, so
  // it stays.
  void NewEngine(const Tags& tags = kTags, Engine::Turn turn = Engine::Turn::kFirst) {
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

  static inline Workers message_workers_;
  UcxWorker* here_ = nullptr;
  UcxWorker* there_ = nullptr;
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
  NewEngine(kOwn);
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

// Direct access, which UCX emulates here: a copy is over when the other side has made progress.
// Memory of a GPU, which the driver writes later.
class GpuMemoryTest : public EngineTest {
 protected:
  static void SetUpTestSuite() {
    EngineTest::SetUpTestSuite();
    if (fake_ == nullptr) fake_ = driver::testing::InstallFakeGpu(testing::TempDir());
  }
  void SetUp() override {
    ASSERT_NE(fake_, nullptr);
    EngineTest::SetUp();
    auto memory = HeapMemory::Open(driver::testing::kFakeBackend, kStride);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    auto opened = driver::OpenVmmDriver({});
    ASSERT_TRUE(opened.ok()) << opened.status();
    driver_ = std::move(opened->driver);
    AddRank(0);
    NewEngine();
    Layout();
  }
  void TearDown() override { fake_->fail_call.clear(); }

  static inline driver::testing::FakeGpu* fake_ = nullptr;
};

TEST_F(GpuMemoryTest, PutsAreAnsweredWhenTheyAreDone) {
  fake_->busy = true;
  Hand(0, PutOf(0, "12345678") + PutOf(4000, std::string(5001, 'x')));
  Hand(1, PutOf(64, "abc"));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(engine_->Poll());
  EXPECT_TRUE(Answers(1).empty());
  fake_->busy = false;
  const std::vector<Record> answers = Answers(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].kind, RecordKind::kDone);
  EXPECT_EQ(answers[0].bytes, 3u);
  EXPECT_EQ(Heap(0, 8), "12345678");
  EXPECT_EQ(Heap(4000, 5001), std::string(5001, 'x'));
  EXPECT_EQ(fake_->n_writes_in_turn, 0);
  EXPECT_FALSE(engine_->Poll());
}

TEST_F(GpuMemoryTest, EachPutThatFailsIsAnError) {
  fake_->fail_call = "cuStreamQuery";
  fake_->fail_error = 700;  // an illegal address
  Hand(0, PutOf(0, "12345678") + PutOf(8, "12345678") + PutOf(16, "12345678"));
  const std::vector<Record> answers = Answers(3);
  ASSERT_EQ(answers.size(), 3u);
  for (const Record& answer : answers) {
    EXPECT_EQ(answer.kind, RecordKind::kError);
    EXPECT_EQ(answer.value, static_cast<uint64_t>(StatusCode::kInternal));
  }
  EXPECT_FALSE(memory_->TakeFailure().ok());
  EXPECT_EQ(Broken(), "");
}

TEST_F(GpuMemoryTest, RandomPutsAndGetsMatchAModel) {
  std::mt19937 random(3);
  std::string model(kHeap, '\0');
  size_t n_answers = 0;
  for (uint64_t sequence = 0; sequence < 200; ++sequence) {
    std::string body;
    for (int n = 1 + random() % 6; n > 0; --n) {
      const uint64_t sizes[] = {0, 1, 4, 8, random() % 100, random() % 20'000};
      std::string data(sizes[random() % 6], '\0');
      for (char& byte : data) byte = static_cast<char>(random());
      const uint64_t offset = random() % (kHeap - data.size()) / 4 * 4;
      memcpy(model.data() + offset, data.data(), data.size());
      body += PutOf(offset, data);
      ++n_answers;
    }
    fake_->busy = random() % 2 == 0;
    Hand(sequence, body);
  }
  fake_->busy = false;
  for (const Record& answer : Answers(1)) {
    EXPECT_EQ(answer.kind, RecordKind::kDone);
    n_answers -= answer.bytes;
  }
  while (n_answers > 0) {
    const std::vector<Record> more = Answers(1);
    ASSERT_FALSE(more.empty());
    for (const Record& answer : more) n_answers -= answer.bytes;
  }
  EXPECT_EQ(Heap(0, kHeap), model);
}

class DirectTest : public EngineTest {
 protected:
  static constexpr uint64_t kId = 7, kFar = 1 << 20, kSignal = 64;

  static void SetUpTestSuite() {
    EngineTest::SetUpTestSuite();
    if (direct_workers_.here == nullptr) direct_workers_ = NewWorkers(true);
  }
  void SetUp() override {
    EngineTest::SetUp();
    here_ = direct_workers_.here;
    there_ = direct_workers_.there;
    ASSERT_NE(here_, nullptr);
    wire::UniqueFd fd;
    port_ = NewPortMemory(0, &fd);
    ASSERT_NE(port_, nullptr);
    auto mapping = PortMapping::Map(std::move(fd), 0);
    ASSERT_TRUE(mapping.ok());
    mapping_ = *std::move(mapping);
    far_.assign(kFar, 0);
    auto region =
        there_->Register(reinterpret_cast<uint64_t>(far_.data()), kFar, driver::UcxMemory());
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = *std::move(region);
    Restart();
  }
  void TearDown() override { munmap(port_, sizeof(PortMemory)); }
  void Restart() {
    NewEngine();
    Layout();
    engine_->Attach(0, mapping_);
    engine_->Offer(0, 0);
    sequence_ = 0;
    // The offer of rank 0's heap, and the answers to what the peer sends, may be underway.
    for (int i = 0; i < 1000; ++i) Progress();
  }
  void Progress() {
    (void)engine_->Poll();
    (void)there_->Progress();
  }
  void Say(const std::string& body) { Hand(sequence_++, body); }

  std::string OfferOf(uint32_t rank, uint64_t offset, uint64_t bytes, uint64_t id,
                      std::string key) {
    const Offer offer = {id, reinterpret_cast<uint64_t>(far_.data())};
    Record record;
    record.kind = RecordKind::kOffer;
    record.rank = rank;
    record.offset = offset;
    record.bytes = bytes;
    record.value = sizeof(offer) + key.size();
    return Bytes(record, std::string(reinterpret_cast<const char*>(&offer), sizeof(offer)) + key);
  }
  std::string GoodOffer() { return OfferOf(2, 0, kFar, kId, region_->key()); }
  static std::string WithdrawalOf(uint64_t id) {
    Record record;
    record.kind = RecordKind::kWithdraw;
    record.value = id;
    return Bytes(record);
  }
  static PortRequest Copy(PortOp op, uint64_t dst, uint64_t src, uint64_t bytes) {
    PortRequest request = {};
    request.op = op;
    request.to = 2;
    request.dst = dst;
    request.src = src;
    request.bytes = bytes;
    request.signal = kNoPortSignal;
    return request;
  }
  std::vector<Record> RecordsOf(RecordKind kind) {
    std::vector<Record> found;
    for (const auto& [header, data] : got_) {
      RecordReader reader(header, data);
      Record record;
      const char* bytes = nullptr;
      while (reader.Next(&record, &bytes) == RecordReader::Got::kRecord) {
        if (record.kind == kind) found.push_back(record);
      }
    }
    return found;
  }
  template <typename Condition>
  bool Eventually(Condition condition) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (condition()) return true;
      Progress();
    }
    return false;
  }

  static inline Workers direct_workers_;
  PortMemory* port_ = nullptr;
  std::shared_ptr<PortMapping> mapping_;
  std::string far_;
  std::unique_ptr<UcxWorker::Region> region_;
  uint64_t sequence_ = 0;
};

TEST_F(DirectTest, OffersItsMemory) {
  ASSERT_TRUE(Eventually([&] { return !RecordsOf(RecordKind::kOffer).empty(); }));
  const Record record = RecordsOf(RecordKind::kOffer).front();
  EXPECT_EQ(record.rank, 0u);
  EXPECT_EQ(record.offset, 0u);
  EXPECT_EQ(record.bytes, kHeap);
  engine_->Withdraw(1);
  ASSERT_TRUE(Eventually([&] { return !RecordsOf(RecordKind::kWithdraw).empty(); }));
  EXPECT_EQ(RecordsOf(RecordKind::kWithdraw).front().value, 1u);
  EXPECT_EQ(Broken(), "");
}

TEST_F(DirectTest, ASignalComesAfterItsData) {
  Say(GoodOffer());
  const std::string data(100'000, 'd');
  ASSERT_EQ(memory_->Write(0, 4096, data.data(), data.size()), StatusCode::kOk);
  PortRequest put = Copy(PortOp::kPut, 8, 4096, data.size());
  put.signal = kSignal;
  put.signal_value = 5;
  for (int i = 0; i < 1000; ++i) Progress();
  const uint64_t before = engine_->TrafficWith(2).sent_bytes;
  PortRequester ring(port_, -1);
  const uint64_t number = ring.Post(put);
  // Until the other side takes the data, nothing else is sent.
  for (int i = 0; i < 2000; ++i) (void)engine_->Poll();
  EXPECT_EQ(engine_->TrafficWith(2).sent_bytes, before + data.size());
  ASSERT_TRUE(Eventually([&] { return !RecordsOf(RecordKind::kPut).empty(); }));
  const Record signal = RecordsOf(RecordKind::kPut).front();
  EXPECT_EQ(signal.bytes, 0u) << "the data came as a message";
  EXPECT_EQ(signal.other, kSignal);
  EXPECT_EQ(signal.value, 5u);
  EXPECT_EQ(far_.substr(8, data.size()), data);
  StatusCode code;
  EXPECT_FALSE(ring.Done(number, &code));
  // Answers to this engine's own offer, and to the signal.
  Record done;
  done.kind = RecordKind::kDone;
  done.bytes = 2;
  Say(Bytes(done));
  ASSERT_TRUE(ring.Done(number, &code));
  EXPECT_EQ(code, StatusCode::kOk);
}

TEST_F(DirectTest, AWithdrawalIsAnsweredWhenNothingUsesIt) {
  Say(GoodOffer());
  ASSERT_TRUE(Eventually([&] { return !RecordsOf(RecordKind::kDone).empty(); }));
  got_.clear();
  PortRequester ring(port_, -1);
  const uint64_t number = ring.Post(Copy(PortOp::kGet, 0, 8, 100'000));
  far_.replace(8, 4, "read");
  for (int i = 0; i < 2000; ++i) (void)engine_->Poll();
  const uint64_t sent = engine_->TrafficWith(2).sent_bytes;
  Say(WithdrawalOf(kId));
  for (int i = 0; i < 2000; ++i) (void)engine_->Poll();
  EXPECT_EQ(engine_->TrafficWith(2).sent_bytes, sent) << "it answered";
  StatusCode code;
  ASSERT_TRUE(Eventually([&] { return ring.Done(number, &code); }));
  EXPECT_EQ(code, StatusCode::kOk);
  EXPECT_EQ(Heap(0, 4), "read");
  ASSERT_TRUE(Eventually([&] { return !RecordsOf(RecordKind::kDone).empty(); }));
  // From now on it is a message.
  (void)ring.Post(Copy(PortOp::kPut, 8, 0, 100'000));
  EXPECT_TRUE(Eventually([&] { return !RecordsOf(RecordKind::kPut).empty(); }));
}

TEST_F(DirectTest, ALostPeerEndsCopies) {
  Say(GoodOffer());
  PortRequester ring(port_, -1);
  const uint64_t put = ring.Post(Copy(PortOp::kPut, 8, 0, 100'000));
  const uint64_t get = ring.Post(Copy(PortOp::kGet, 1 << 20, 200'000, 100'000));
  for (int i = 0; i < 2000; ++i) (void)engine_->Poll();
  engine_->Lose(2);
  StatusCode code;
  for (const uint64_t number : {put, get}) {
    ASSERT_TRUE(ring.Done(number, &code));
    EXPECT_EQ(code, StatusCode::kAborted);
  }
  for (int i = 0; i < 2000; ++i) Progress();
}

TEST_F(DirectTest, RefusesOffersThatCannotBe) {
  const std::string key = region_->key();
  const auto after = [&](const std::string& body) {
    Restart();
    Say(GoodOffer());
    Say(body);
    return Broken();
  };
  EXPECT_EQ(after(OfferOf(3, 0, kFar, kId + 1, key)), "");
  EXPECT_EQ(after(WithdrawalOf(kId + 1)), "");
  for (const std::string& body :
       {OfferOf(0, kFar, kFar, 9, key), OfferOf(4, kFar, kFar, 9, key), OfferOf(2, kFar, 0, 9, key),
        OfferOf(2, kStride, 1, 9, key), OfferOf(2, kStride - 1, 2, 9, key),
        OfferOf(2, 8, ~0ull, 9, key)}) {
    EXPECT_TRUE(absl::StrContains(after(body), "that it has not"));
  }
  for (const std::string& body :
       {OfferOf(2, kFar - 1, 8, 9, key), OfferOf(2, 0, 8, 9, key), OfferOf(2, kFar, 8, kId, key)}) {
    EXPECT_TRUE(absl::StrContains(after(body), "for the second time"));
  }
  EXPECT_TRUE(absl::StrContains(after(OfferOf(2, kFar, 8, 9, std::string(1025, 'k'))), "cut off"));
  Restart();
  std::string many;
  for (uint64_t i = 0; i < 4096; ++i) {
    many += OfferOf(3, i * 8, 8, 100 + i, key);
    if (i % 1024 == 1023) Say(std::exchange(many, ""));
  }
  EXPECT_EQ(Broken(), "");
  Say(GoodOffer());
  EXPECT_TRUE(absl::StrContains(Broken(), "more than is allowed"));
}

TEST_F(EngineTest, OffersAreIgnoredWithoutDirectAccess) {
  Layout();
  engine_->Offer(0, 0);
  Record record;
  record.kind = RecordKind::kOffer;
  record.value = 3;
  Hand(0, Bytes(record, "key"));
  const std::vector<Record> answers = Answers(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].kind, RecordKind::kDone);
  EXPECT_EQ(Broken(), "");
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
