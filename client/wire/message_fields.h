// MessageWriter and MessageField write and read messages of protobuf's format.
//
//   std::string bytes = MessageWriter().Uint(2, pid).Text(3, uuid, kMaxUuidBytes).bytes();
//
//   void Fields(MessageField& field, Peer* to) {  // is called for each field of the message
//     field.Number(2, &to->pid);
//     field.Text(3, &to->device_uuid);
//   }
//   ReadMessage(bytes, &peer);
//
// ReadMessage throws an exception of protozero's family if the bytes are no such message; its
// caller catches it. Not thread-safe. Readers borrow the bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/base/utf8.h"
#include "protozero/pbf_reader.hpp"
#include "protozero/pbf_writer.hpp"

namespace iris::internal {

using FieldNumber = protozero::pbf_tag_type;

// Fields are added in the order of their numbers. A field with its default value is left out, as in
// proto3.
class MessageWriter {
 public:
  MessageWriter& Uint(FieldNumber number, uint64_t value) {
    if (value != 0) Out().add_uint64(number, value);
    return *this;
  }
  // Adds an int64. A negative number takes ten bytes.
  MessageWriter& Int(FieldNumber number, int64_t value) {
    if (value != 0) Out().add_int64(number, value);
    return *this;
  }
  // Adds a sint32, which takes more bytes the farther the number is from zero.
  MessageWriter& Sint(FieldNumber number, int32_t value) {
    if (value != 0) Out().add_sint32(number, value);
    return *this;
  }
  MessageWriter& Bool(FieldNumber number, bool value) { return Uint(number, value); }
  MessageWriter& Fixed64(FieldNumber number, uint64_t value) {
    if (value != 0) Out().add_fixed64(number, value);
    return *this;
  }
  // Adds a text, cut just beyond `limit_bytes` if it is longer, so that irisd refuses it.
  MessageWriter& Text(FieldNumber number, absl::string_view value,
                      size_t limit_bytes = absl::string_view::npos - 1) {
    value = value.substr(0, limit_bytes + 1);
    if (!value.empty()) Out().add_bytes(number, value.data(), value.size());
    return *this;
  }
  // Adds a list, cut in the same way.
  template <typename T>
  MessageWriter& Uints(FieldNumber number, const std::vector<T>& values, size_t limit) {
    const auto n = static_cast<ptrdiff_t>(std::min(values.size(), limit + 1));
    Out().add_packed_uint64(number, values.begin(), values.begin() + n);
    return *this;
  }
  // Adds a message, also an empty one, because its presence has a meaning.
  MessageWriter& Message(FieldNumber number, const MessageWriter& message) {
    Out().add_message(number, message.bytes_);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  protozero::pbf_writer Out() { return protozero::pbf_writer(bytes_); }

  std::string bytes_;
};

class Malformed : public protozero::exception {
 public:
  explicit Malformed(const char* what) : what_(what) {}
  const char* what() const noexcept override { return what_; }

 private:
  const char* const what_;  // a literal
};

template <typename T>
void ReadMessage(absl::string_view bytes, T* to);

// A field of a received message. A function reads the field if it has the given number and the wire
// type of the function, and returns true if so. A repeated field replaces the first one, a repeated
// message is merged into it.
class MessageField {
 public:
  explicit MessageField(protozero::pbf_reader* message)
      : message_(message), tag_and_type_(message->tag_and_type()) {}

  // Reads any integer or a bool.
  template <typename T>
  bool Number(FieldNumber number, T* to) {
    if (!Is(number, protozero::pbf_wire_type::varint)) return false;
    *to = static_cast<T>(message_->get_uint64());
    return true;
  }
  // Reads a time. It is never negative, even for a very large number.
  bool Time(FieldNumber number, absl::Duration unit, absl::Duration* to) {
    uint64_t n = 0;
    if (!Number(number, &n)) return false;
    *to = static_cast<int64_t>(std::min<uint64_t>(n, INT64_MAX)) * unit;
    return true;
  }
  bool Fixed64(FieldNumber number, uint64_t* to) {
    if (!Is(number, protozero::pbf_wire_type::fixed64)) return false;
    *to = message_->get_fixed64();
    return true;
  }
  bool Bytes(FieldNumber number, std::string* to) {
    if (!IsBytes(number)) return false;
    *to = std::string(View());
    return true;
  }
  bool Text(FieldNumber number, std::string* to) {
    if (!Bytes(number, to)) return false;
    if (!IsUtf8(*to)) throw Malformed("a text in it is not UTF-8");
    return true;
  }
  template <typename T>
  bool Message(FieldNumber number, T* to) {
    if (!IsBytes(number)) return false;
    ReadMessage(View(), to);
    return true;
  }
  template <typename T>
  bool Message(FieldNumber number, std::optional<T>* to) {
    if (!IsBytes(number)) return false;
    if (!to->has_value()) to->emplace();
    ReadMessage(View(), &**to);
    return true;
  }
  // Decodes one of several messages. If several come, the last one counts.
  template <typename T, typename... All>
  bool Alternative(FieldNumber number, std::variant<All...>* to) {
    if (!IsBytes(number)) return false;
    if (!std::holds_alternative<T>(*to)) to->template emplace<T>();
    ReadMessage(View(), &std::get<T>(*to));
    return true;
  }
  // Reads one element of a list, which has at most `limit`; `too_many` is the error.
  template <typename T>
  bool Element(FieldNumber number, std::vector<T>* to, size_t limit, const char* too_many) {
    if (!IsBytes(number)) return false;
    ReadMessage(View(), &Add(to, limit, too_many));
    return true;
  }
  // Reads a list of numbers, which may be one field or many.
  bool Uints(FieldNumber number, std::vector<uint32_t>* to, size_t limit, const char* too_many) {
    if (Is(number, protozero::pbf_wire_type::varint)) {
      Add(to, limit, too_many) = message_->get_uint32();
    } else if (IsBytes(number)) {
      for (const uint32_t n : message_->get_packed_uint32()) Add(to, limit, too_many) = n;
    } else {
      return false;
    }
    return true;
  }

  bool read() const { return read_; }

 private:
  bool Is(FieldNumber number, protozero::pbf_wire_type type) {
    const bool is = tag_and_type_ == protozero::tag_and_type(number, type);
    read_ |= is;
    return is;
  }
  bool IsBytes(FieldNumber number) {
    return Is(number, protozero::pbf_wire_type::length_delimited);
  }
  absl::string_view View() {
    const protozero::data_view view = message_->get_view();
    return absl::string_view(view.data(), view.size());
  }
  template <typename T>
  static T& Add(std::vector<T>* list, size_t limit, const char* too_many) {
    if (list->size() >= limit) throw Malformed(too_many);
    return list->emplace_back();
  }

  protozero::pbf_reader* const message_;
  const uint32_t tag_and_type_;
  bool read_ = false;
};

// Reads a message into an existing value. A field that Fields does not know, or that has another
// wire type than in Fields, is skipped.
template <typename T>
void ReadMessage(absl::string_view bytes, T* to) {
  protozero::pbf_reader message(bytes.data(), bytes.size());
  while (message.next()) {
    MessageField field(&message);
    Fields(field, to);
    if (!field.read()) message.skip();
  }
}

}  // namespace iris::internal
