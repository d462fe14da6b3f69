// How libFuzzer changes an input of state_fuzzer. Bytes of a message that is nested in others are
// rarely changed into another message, so most changes are made to the messages themselves.
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/state/machine_state.pb.h"
#include "tests/fuzz/journal_text.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t n_bytes, size_t max_bytes);

namespace iris::fuzz {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed + 1) {}

  void Change(JournalText* text) {
    std::vector<std::string>& records = text->records;
    const size_t which = records.empty() ? 0 : Below(records.size());
    switch (records.empty() ? 99 : Below(24)) {
      case 0:
        records.insert(records.begin() + static_cast<int>(Below(records.size() + 1)),
                       records[which]);
        return;
      case 1:
        records.erase(records.begin() + static_cast<int>(which));
        return;
      case 2:
        records[which].swap(records[Below(records.size())]);
        return;
      case 3:
        records.resize(which + 1);
        return;
      case 4:
        text->torn_bytes = Below(100);
        return;
      case 5:
        records.push_back("");
        return;
      case 99:
        records.push_back("\x08\x01");  // a state of version 1
        return;
      default:
        break;
    }
    server::state::MachineState state;
    server::state::Change change;
    Message* const message = which == 0 ? static_cast<Message*>(&state) : &change;
    if (!message->ParseFromString(records[which])) return;
    numbers_ = {0, 1, 2, 64, 1024, 65536, 1 << 20, ~uint64_t{0}, ~uint64_t{0} >> 1, 1ull << 31};
    Collect(*message);
    for (uint64_t n = 1 + Below(3); n > 0; --n) Change(message);
    records[which] = message->SerializeAsString();
  }

  uint64_t Below(uint64_t n) { return random_() % n; }

 private:
  // The numbers that are there: ids and sizes of which others speak.
  void Collect(const Message& message) {
    const Reflection& r = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    r.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const int n = field->is_repeated() ? r.FieldSize(message, field) : 1;
      for (int i = 0; i < n && numbers_.size() < 2000; ++i) {
        const bool one = !field->is_repeated();
        switch (field->cpp_type()) {
          case FieldDescriptor::CPPTYPE_UINT64:
            numbers_.push_back(one ? r.GetUInt64(message, field)
                                   : r.GetRepeatedUInt64(message, field, i));
            break;
          case FieldDescriptor::CPPTYPE_UINT32:
            numbers_.push_back(one ? r.GetUInt32(message, field)
                                   : r.GetRepeatedUInt32(message, field, i));
            break;
          case FieldDescriptor::CPPTYPE_MESSAGE:
            Collect(one ? r.GetMessage(message, field) : r.GetRepeatedMessage(message, field, i));
            break;
          default:
            break;
        }
      }
    }
  }

  uint64_t Number(uint64_t now) {
    switch (Below(5)) {
      case 0:
        return now + 1;
      case 1:
        return now - 1;
      case 2:
        return now ^ (uint64_t{1} << Below(64));
      default:
        return numbers_[Below(numbers_.size())];
    }
  }

  void Change(Message* message) {
    const Reflection& r = *message->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    r.ListFields(*message, &fields);
    // Mostly one that is there.
    const int n_fields = message->GetDescriptor()->field_count();
    const FieldDescriptor* const field = !fields.empty() && Below(8) != 0
                                             ? fields[Below(fields.size())]
                                             : message->GetDescriptor()->field(static_cast<int>(
                                                   Below(static_cast<uint64_t>(n_fields))));
    if (field->is_repeated()) return ChangeRepeated(message, r, field);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (r.HasField(*message, field) && Below(12) == 0) return r.ClearField(message, field);
        return Change(r.MutableMessage(message, field));
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.SetUInt32(message, field,
                           static_cast<uint32_t>(Number(r.GetUInt32(*message, field))));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.SetUInt64(message, field, Number(r.GetUInt64(*message, field)));
      case FieldDescriptor::CPPTYPE_INT64:
        return r.SetInt64(
            message, field,
            static_cast<int64_t>(Number(static_cast<uint64_t>(r.GetInt64(*message, field)))));
      case FieldDescriptor::CPPTYPE_BOOL:
        return r.SetBool(message, field, !r.GetBool(*message, field));
      case FieldDescriptor::CPPTYPE_STRING:
        return r.SetString(message, field, Text(r.GetString(*message, field)));
      default:
        return;
    }
  }

  void ChangeRepeated(Message* message, const Reflection& r, const FieldDescriptor* field) {
    const int n = r.FieldSize(*message, field);
    const int which = n == 0 ? 0 : static_cast<int>(Below(static_cast<uint64_t>(n)));
    const bool nested = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (n > 0 && nested && Below(8) < 6) {
      return Change(r.MutableRepeatedMessage(message, field, which));
    }
    if (n > 0 && Below(3) == 0) {
      r.SwapElements(message, field, which, n - 1);
      return r.RemoveLast(message, field);
    }
    if (n > 1 && Below(3) == 0) return r.SwapElements(message, field, which, n - 1);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        const std::unique_ptr<Message> like(
            n > 0 ? r.GetRepeatedMessage(*message, field, which).New() : nullptr);
        if (like != nullptr) like->CopyFrom(r.GetRepeatedMessage(*message, field, which));
        Message* const added = r.AddMessage(message, field);
        if (like != nullptr) added->CopyFrom(*like);
        return Change(added);
      }
      case FieldDescriptor::CPPTYPE_UINT32:
        if (n > 0 && Below(2) == 0) {
          return r.SetRepeatedUInt32(message, field, which, static_cast<uint32_t>(Number(0)));
        }
        return r.AddUInt32(message, field, static_cast<uint32_t>(Number(0)));
      case FieldDescriptor::CPPTYPE_UINT64:
        if (n > 0 && Below(2) == 0) {
          return r.SetRepeatedUInt64(message, field, which, Number(0));
        }
        return r.AddUInt64(message, field, Number(0));
      case FieldDescriptor::CPPTYPE_BOOL:
        return r.AddBool(message, field, Below(2) == 0);
      default:
        return;
    }
  }

  std::string Text(std::string text) {
    const size_t n_bytes = text.size();
    text.resize(n_bytes + 16);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), n_bytes, text.size()));
    return text;
  }

  std::minstd_rand random_;
  std::vector<uint64_t> numbers_;
};

}  // namespace
}  // namespace iris::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t n_bytes, size_t max_bytes,
                                          unsigned seed) {
  using iris::fuzz::Setting;
  iris::fuzz::Mutator mutator(seed);
  if (n_bytes < sizeof(Setting) || mutator.Below(5) == 0) {
    return LLVMFuzzerMutate(data, n_bytes, max_bytes);
  }
  if (mutator.Below(8) == 0) {
    LLVMFuzzerMutate(data, sizeof(Setting), sizeof(Setting));
    return n_bytes;
  }
  iris::fuzz::JournalText text = iris::fuzz::Split(
      {reinterpret_cast<const char*>(data) + sizeof(Setting), n_bytes - sizeof(Setting)});
  mutator.Change(&text);
  const std::string journal = iris::fuzz::Join(text);
  if (sizeof(Setting) + journal.size() > max_bytes) {
    return LLVMFuzzerMutate(data, n_bytes, max_bytes);
  }
  memcpy(data + sizeof(Setting), journal.data(), journal.size());
  return sizeof(Setting) + journal.size();
}
