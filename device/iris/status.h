// Status and StatusOr: the results of all host calls of Iris.
//
//   iris::StatusOr<iris::Context> context = iris::Context::Create();
//   if (!context.ok()) {
//     std::cerr << context.status() << "\n";   // DEADLINE_EXCEEDED: join job "x": rank 2 ...
//     return 1;
//   }
//   context->rank();
//
// In a function that returns a Status or a StatusOr itself:
//
//   IRIS_RETURN_IF_ERROR(context->Barrier());
//   IRIS_ASSIGN_OR_RETURN(iris::Allocation x, context->Allocate<float>(1024, "x"));
//
// Success costs no allocation. Thread-compatible, as std::string. C++17.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "iris/backend/nodiscard.h"
#include "iris/status_code.h"

namespace iris {

class IRIS_NODISCARD Status {
 public:
  // Makes an OK status.
  Status() = default;
  // With kOk, makes an OK status and ignores the message.
  Status(StatusCode code, std::string message) {
    if (code != StatusCode::kOk) {
      error_ = std::make_shared<const Error>(Error{code, std::move(message)});
    }
  }

  bool ok() const { return error_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : error_->code; }
  // Returns the text: what failed, the object, and the remedy. Empty if ok().
  const std::string& message() const {
    static const std::string* const none = new std::string();
    return ok() ? *none : error_->message;
  }
  // Returns "OK", or the code and the message: "INVALID_ARGUMENT: the text".
  std::string ToString() const {
    return ok() ? "OK" : std::string(StatusCodeName(code())) + ": " + error_->message;
  }

  friend bool operator==(const Status& a, const Status& b) {
    return a.code() == b.code() && a.message() == b.message();
  }
  friend bool operator!=(const Status& a, const Status& b) { return !(a == b); }
  friend std::ostream& operator<<(std::ostream& out, const Status& status) {
    return out << status.ToString();
  }

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

inline Status OkStatus() { return Status(); }

namespace impl {

[[noreturn]] inline void DieWithoutValue(const Status& status) {
  std::fprintf(stderr, "iris: a StatusOr has no value, but was asked for it: %s\n",
               status.ToString().c_str());
  std::abort();
}

}  // namespace impl

// Holds a T, or an error. Taking the value of an error ends the process with the error's text.
template <typename T>
class IRIS_NODISCARD StatusOr {
 public:
  using value_type = T;

  // `status` must be an error. An OK status would leave no value, so it becomes kInternal.
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT: stands for either
    if (status_.ok()) status_ = Status(StatusCode::kInternal, "an OK status in place of a value");
  }
  template <typename U = T,
            typename = std::enable_if_t<std::is_constructible_v<T, U&&> &&
                                        !std::is_same_v<std::decay_t<U>, StatusOr> &&
                                        !std::is_same_v<std::decay_t<U>, Status>>>
  StatusOr(U&& value) : value_(std::forward<U>(value)) {}  // NOLINT: stands for either

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<StatusOr*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<StatusOr*>(this)->Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<StatusOr*>(this)->Checked(); }
  template <typename U>
  T value_or(U&& other) const& {
    return value_.has_value() ? *value_ : static_cast<T>(std::forward<U>(other));
  }

 private:
  T& Checked() {
    if (!value_.has_value()) impl::DieWithoutValue(status_);
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace iris

#define IRIS_STATUS_CONCAT_INNER(a, b) a##b
#define IRIS_STATUS_CONCAT(a, b) IRIS_STATUS_CONCAT_INNER(a, b)

// Returns from the function with the error of a Status expression.
#define IRIS_RETURN_IF_ERROR(...)                                                  \
  do {                                                                             \
    if (::iris::Status iris_status_here = (__VA_ARGS__); !iris_status_here.ok()) { \
      return iris_status_here;                                                     \
    }                                                                              \
  } while (false)

// Declares or assigns `target` with the value of a StatusOr expression, or returns its error.
#define IRIS_ASSIGN_OR_RETURN(target, ...) \
  IRIS_ASSIGN_OR_RETURN_AS(IRIS_STATUS_CONCAT(iris_value_, __LINE__), target, __VA_ARGS__)
#define IRIS_ASSIGN_OR_RETURN_AS(name, target, ...) \
  auto name = (__VA_ARGS__);                        \
  if (!name.ok()) return name.status();             \
  target = *std::move(name)
