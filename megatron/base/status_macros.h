// Early return on errors, with context added on the way up.
//
//   absl::Status Load(const std::string& path) {
//     MEGATRON_ASSIGN_OR_RETURN(File file, Open(path), _ << "while loading " << path);
//     MEGATRON_RETURN_IF_ERROR(file.Verify());
//     return absl::OkStatus();
//   }
//
// The optional last argument is an expression in which `_` is a StatusBuilder that holds the error.
// Text streamed into it is appended to the message after "; ", or put before the message if
// `_.SetPrepend()` is called first; code and payloads are kept. The semantics are those of Abseil's
// own status macros, which the pinned release does not have yet. The names have a prefix so that
// they cannot collide with those of other libraries.
#ifndef MEGATRON_BASE_STATUS_MACROS_H_
#define MEGATRON_BASE_STATUS_MACROS_H_

#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace megatron {

// An error with added context. Converts to absl::Status and absl::StatusOr<T>.
class StatusBuilder {
 public:
  explicit StatusBuilder(absl::Status status) : status_(std::move(status)) {}

  StatusBuilder& SetPrepend() {
    prepend_ = true;
    return *this;
  }
  template <typename T>
  StatusBuilder& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

  operator absl::Status() const { return Build(); }
  template <typename T>
  operator absl::StatusOr<T>() const {
    return Build();
  }

 private:
  absl::Status Build() const;

  absl::Status status_;
  bool prepend_ = false;
  std::ostringstream text_;
};

}  // namespace megatron

#define MEGATRON_RETURN_IF_ERROR(...)                                                          \
  MEGATRON_STATUS_PICK_(__VA_ARGS__, MEGATRON_RETURN_IF_ERROR_2_, MEGATRON_RETURN_IF_ERROR_1_) \
  (__VA_ARGS__)
#define MEGATRON_ASSIGN_OR_RETURN(lhs, ...)                                                      \
  MEGATRON_STATUS_PICK_(__VA_ARGS__, MEGATRON_ASSIGN_OR_RETURN_2_, MEGATRON_ASSIGN_OR_RETURN_1_) \
  (MEGATRON_STATUS_NAME_(megatron_status_or_, __LINE__), lhs, __VA_ARGS__)

// Implementation details follow.

#define MEGATRON_STATUS_PICK_(first, second, name, ...) name
#define MEGATRON_STATUS_NAME_(prefix, line) MEGATRON_STATUS_NAME_INNER_(prefix, line)
#define MEGATRON_STATUS_NAME_INNER_(prefix, line) prefix##line

#define MEGATRON_RETURN_IF_ERROR_1_(expr) MEGATRON_RETURN_IF_ERROR_2_(expr, _)
// The loop returns in its first iteration. It is a loop and not another `if`, so that an `else` of
// the caller belongs to the caller's own `if`.
#define MEGATRON_RETURN_IF_ERROR_2_(expr, error)                                  \
  if (absl::Status megatron_status_ = (expr); megatron_status_.ok()) {            \
  } else                                                                          \
    for (::megatron::StatusBuilder _(std::move(megatron_status_));;) /* NOLINT */ \
    return error

#define MEGATRON_ASSIGN_OR_RETURN_1_(temporary, lhs, expr) \
  MEGATRON_ASSIGN_OR_RETURN_2_(temporary, lhs, expr, _)
#define MEGATRON_ASSIGN_OR_RETURN_2_(temporary, lhs, expr, error) \
  auto temporary = (expr);                                        \
  if (!temporary.ok()) {                                          \
    ::megatron::StatusBuilder _(std::move(temporary).status());   \
    return error;                                                 \
  }                                                               \
  lhs = *std::move(temporary)

#endif  // MEGATRON_BASE_STATUS_MACROS_H_
