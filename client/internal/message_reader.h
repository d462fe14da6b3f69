// MessageReader: the fields of a message that came from outside, one after the other.
//
//   for (MessageReader<field::Peer> message(bytes); message.next();) {
//     switch (message.tag_and_type()) {
//       case Varint(field::Peer::kPid):
//         to->pid = message.get_int64();
//         break;
//       default:
//         message.skip();
//     }
//   }
//
// What is wrong is an exception of protozero's family; who decodes a message catches it. Not
// thread-safe. Borrows the bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/internal/utf8.h"
#include "protozero/pbf_message.hpp"

namespace iris::internal {

class Malformed : public protozero::exception {
 public:
  explicit Malformed(const char* what) : what_(what) {}
  const char* what() const noexcept override { return what_; }

 private:
  const char* const what_;  // a literal
};

// Cases of a switch over a message's tag and type. A field of another wire type than its own is an
// unknown one.
template <typename Field>
constexpr uint32_t Varint(Field field) {
  return protozero::tag_and_type(field, protozero::pbf_wire_type::varint);
}
template <typename Field>
constexpr uint32_t Bytes(Field field) {
  return protozero::tag_and_type(field, protozero::pbf_wire_type::length_delimited);
}
template <typename Field>
constexpr uint32_t Fixed64(Field field) {
  return protozero::tag_and_type(field, protozero::pbf_wire_type::fixed64);
}

// A message that is being read. A field that comes again takes the place of the first, a message
// that comes again adds to it: so the functions below read into values that are there.
template <typename Field>
class MessageReader : public protozero::pbf_message<Field> {
 public:
  explicit MessageReader(absl::string_view bytes)
      : protozero::pbf_message<Field>(bytes.data(), bytes.size()) {}

  bool Bool() { return this->get_uint64() != 0; }
  absl::string_view View() {
    const protozero::data_view view = this->get_view();
    return absl::string_view(view.data(), view.size());
  }
  std::string Text() {
    const absl::string_view text = View();
    if (!IsUtf8(text)) throw Malformed("a text in it is not UTF-8");
    return std::string(text);
  }
};

// No time is negative, however large the number.
inline absl::Duration MillisecondsOf(uint64_t number) {
  return absl::Milliseconds(std::min<uint64_t>(number, INT64_MAX));
}
inline absl::Duration NanosecondsOf(uint64_t number) {
  return absl::Nanoseconds(std::min<uint64_t>(number, INT64_MAX));
}

// A list that grows by one; the new element.
template <typename T>
T& Add(std::vector<T>* list, size_t n_max, const char* too_many) {
  if (list->size() >= n_max) throw Malformed(too_many);
  return list->emplace_back();
}

}  // namespace iris::internal
