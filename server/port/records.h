// The data that ports exchange: a message is a MessageHeader and records, some with data. Bytes of
// a peer are hostile until RecordReader and the executor have checked them. Pure functions.
//
// A message has its records and their data in the payload, or one record behind the MessageHeader
// and this record's data in the payload, so that large data is sent from where it lies. Each port
// numbers its messages to a peer from 0, and the peer handles them in this order. Each record of a
// request gets one answer, in the same order: kDone for several, kValue, kData or kError.
#pragma once

#include <string.h>

#include <cstdint>
#include <string_view>

#include "device/iris/port_types.h"
#include "server/port/ucx.h"

namespace iris::port {

struct MessageHeader {
  uint64_t tag = 0;  // of the sender's direction of this connection
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  uint32_t from = 0;  // first rank of the sender's node
  uint32_t reserved = 0;
};
static_assert(sizeof(MessageHeader) == 32);

enum class RecordKind : uint8_t {
  kPut = 1,      // data to `offset`, then the signal, if `other` is its offset
  kPutRows = 2,  // `value` rows of `bytes` bytes to `offset`, `other` bytes apart
  kGet = 3,
  kGetRows = 4,
  kAtomic = 5,  // `value` is the operand, `bytes` the word to compare with
  // Memory of the sender that the receiver may access directly: `bytes` bytes of the heap of `rank`
  // from `offset` on. Data: an Offer and UCX's key, `value` bytes together.
  kOffer = 6,
  kWithdraw = 7,  // of the offer with the id `value`; kDone when the receiver uses it no more
  kDone = 16,     // `bytes` records are done
  kValue = 17,
  kData = 18,
  kError = 19,  // one record failed; `value` is the StatusCode
};

struct Record {
  RecordKind kind{};
  uint8_t atomic = 0;     // PortAtomic
  uint8_t type = 0;       // PortType
  uint8_t signal_op = 0;  // SignalOp
  uint32_t rank = 0;      // whose heap; of answers 0
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t value = 0;
  uint64_t other = kNoPortSignal;
};
static_assert(sizeof(Record) == 40);

// Before the key in the data of kOffer.
struct Offer {
  uint64_t id = 0;
  uint64_t address = 0;  // of the memory, in the sender
};
static_assert(sizeof(Offer) == 16);

// Data up to this size is copied into a message with other records; larger data is sent from where
// it lies, in pieces, or copied directly, in larger pieces.
inline constexpr uint64_t kCopiedBytes = 8 << 10;
inline constexpr uint64_t kPieceBytes = kFragmentBytes;
inline constexpr uint64_t kDirectPieceBytes = 1 << 20;
// A message with several records is sent when it has so many bytes. Rows that are copied into one
// record have at most as many.
inline constexpr uint64_t kBatchBytes = 64 << 10;
inline constexpr uint64_t kMaxPayloadBytes = kPieceBytes + kBatchBytes + sizeof(Record);

// Limits of what one port has asked another for, without an answer yet.
inline constexpr uint64_t kMaxUnansweredRecords = 8192;
inline constexpr uint64_t kMaxUnansweredBytes = 8 << 20;

constexpr uint64_t Padded(uint64_t bytes) { return (bytes + 7) & ~7ull; }

// Returns how many bytes of data belong to a record, or a number above any limit if the record
// itself is wrong.
constexpr uint64_t DataBytes(const Record& record) {
  constexpr uint64_t kTooMany = ~0ull >> 1;
  switch (record.kind) {
    case RecordKind::kPut:
    case RecordKind::kData:
      return record.bytes <= kMaxPayloadBytes ? record.bytes : kTooMany;
    case RecordKind::kPutRows:
      if (record.bytes == 0 || record.bytes > kMaxPayloadBytes || record.value > kMaxPayloadBytes) {
        return kTooMany;
      }
      return record.bytes * record.value;
    case RecordKind::kOffer:
      return record.value <= sizeof(Offer) + UcxWorker::kMaxKeyBytes ? record.value : kTooMany;
    default:
      return 0;
  }
}

class RecordReader {
 public:
  // `header` is all that came with the message as its header, `payload` its data.
  RecordReader(std::string_view header, std::string_view payload) {
    separate_ = header.size() > sizeof(MessageHeader);
    records_ = separate_ ? header.substr(sizeof(MessageHeader)) : payload;
    data_ = payload;
  }

  // The payload of a message of what Next has not returned, with the same header.
  std::string_view rest() const { return separate_ ? data_ : records_; }

  enum class Got { kRecord, kEnd, kBad };
  // Returns the next record; *data has DataBytes(*record) bytes.
  Got Next(Record* record, const char** data) {
    if (records_.empty()) return Got::kEnd;
    if (records_.size() < sizeof(Record)) return Got::kBad;
    memcpy(record, records_.data(), sizeof(Record));
    records_.remove_prefix(sizeof(Record));
    const uint64_t bytes = DataBytes(*record);
    if (separate_) {
      if (!records_.empty() || bytes != data_.size()) return Got::kBad;
      *data = data_.data();
      return Got::kRecord;
    }
    if (bytes > records_.size() || Padded(bytes) > records_.size()) return Got::kBad;
    *data = records_.data();
    records_.remove_prefix(Padded(bytes));
    return Got::kRecord;
  }

 private:
  bool separate_ = false;
  std::string_view records_, data_;
};

}  // namespace iris::port
