#include "tests/fuzz/journal_text.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

namespace iris::fuzz {
namespace {

constexpr size_t kFormatAt = 8, kHeadSumAt = 12, kHeadCheckedFrom = 16;
constexpr size_t kTypeAt = 4, kSequenceAt = 8, kContentSumAt = 16, kRecordSumAt = 20;

uint32_t Sum(const char* from, size_t n_bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(from), n_bytes));
}

template <typename T>
void Put(std::string* to, size_t at, T value) {
  memcpy(to->data() + at, &value, sizeof(value));
}

}  // namespace

JournalText Split(std::string_view journal) {
  JournalText text;
  text.head = journal.substr(0, kHeadBytes);
  journal.remove_prefix(text.head.size());
  while (journal.size() >= kRecordHeadBytes) {
    uint32_t n_bytes;
    memcpy(&n_bytes, journal.data(), sizeof(n_bytes));
    journal.remove_prefix(kRecordHeadBytes);
    const size_t n_there = std::min<size_t>(n_bytes, journal.size());
    text.torn_bytes = n_bytes - n_there;
    text.records.emplace_back(journal.substr(0, n_there));
    journal.remove_prefix(n_there);
  }
  return text;
}

std::string Join(const JournalText& text) {
  std::string journal = text.head;
  if (journal.size() < kHeadBytes) return journal;
  memcpy(journal.data(), "IRISTATE", 8);
  Put(&journal, kFormatAt, uint32_t{1});
  Put(&journal, kHeadSumAt, Sum(journal.data() + kHeadCheckedFrom, kHeadBytes - kHeadCheckedFrom));
  for (size_t i = 0; i < text.records.size(); ++i) {
    const std::string& content = text.records[i];
    const size_t torn_bytes = i + 1 == text.records.size() ? text.torn_bytes : 0;
    std::string head(kRecordHeadBytes, '\0');
    Put(&head, 0, static_cast<uint32_t>(content.size() + torn_bytes));
    Put(&head, kTypeAt, uint32_t{i == 0 ? 1u : 2u});
    Put(&head, kSequenceAt, uint64_t{i});
    Put(&head, kContentSumAt, Sum(content.data(), content.size()));
    Put(&head, kRecordSumAt, Sum(head.data(), kRecordSumAt));
    journal += head;
    journal += content;
  }
  return journal;
}

}  // namespace iris::fuzz
