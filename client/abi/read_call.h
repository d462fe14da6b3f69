// Reads the structs of calls, with the lists of iris/fields.h.
#pragma once

#include <type_traits>

#include "client/abi/objects.h"
#include "iris/dtype.h"
#include "iris/fields.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"

namespace iris::abi {

// How many enumerators there are, and what a message calls one.
template <typename Enum>
struct Enumerators;
template <>
struct Enumerators<DType> {
  static constexpr uint32_t kCount = kDTypeCount;
};
template <>
struct Enumerators<ops::Activation> {
  static constexpr uint32_t kCount = ops::kActivationCount;
};
template <>
struct Enumerators<ops::Variant> {
  static constexpr uint32_t kCount = ops::kVariantCount;
};
template <>
struct Enumerators<norm::Scaling> {
  static constexpr uint32_t kCount = norm::kScalingCount;
};
template <>
struct Enumerators<norm::Variant> {
  static constexpr uint32_t kCount = norm::kVariantCount;
};

// Copies fields of C, after a check of the numbers that are enumerators in C++. Keeps the first
// error, which names `what` and the field.
class FieldReader {
 public:
  explicit FieldReader(const char* what) : what_(what) {}

  template <typename C, typename Cpp>
  void operator()(const C& c, Cpp& cpp, const char* field) {
    if constexpr (std::is_enum_v<Cpp>) {
      if (c < 0 || static_cast<uint32_t>(c) >= Enumerators<Cpp>::kCount) {
        if (status_.ok()) status_ = Unknown<Cpp>(c, field);
        return;
      }
    }
    cpp = static_cast<Cpp>(c);
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename Cpp>
  absl::Status Unknown(int32_t number, const char* field) const {
    if constexpr (std::is_same_v<Cpp, DType>) {
      return absl::InvalidArgumentError(
          absl::StrCat(what_, ": ", field, " is ", number, ", which is no iris_dtype"));
    }
    const bool variant = absl::string_view(field) == "variant";
    return absl::InvalidArgumentError(absl::StrCat(what_, ": ", number, " is no ", field,
                                                   variant ? "; 0 is automatic" : " of ",
                                                   variant ? "" : what_));
  }

  const char* what_;
  absl::Status status_;
};

}  // namespace iris::abi
