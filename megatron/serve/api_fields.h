// Reads the fields of a request's JSON object, and refuses those that nobody reads: a field without
// effect would change a result in silence.
#ifndef MEGATRON_SERVE_API_FIELDS_H_
#define MEGATRON_SERVE_API_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {

// Parses a body. kInvalidArgument for what is no JSON object, for a key that stands twice, and for
// more than 32 levels; also for one whose values would take more than `max_bytes` of memory
// (ParseJson).
absl::StatusOr<nlohmann::json> ParseBody(absl::string_view body,
                                         size_t max_bytes = std::numeric_limits<size_t>::max());

// Errors are kInvalidArgument and name the field. An absent field and null are the same.
class ApiFields {
 public:
  // `object` must be an object and outlive this.
  explicit ApiFields(const nlohmann::json& object) : object_(object) {}

  // Returns null for an absent field.
  const nlohmann::json* Find(const std::string& name);
  absl::StatusOr<std::optional<int64_t>> Int(const std::string& name, int64_t min, int64_t max);
  absl::StatusOr<std::optional<double>> Number(const std::string& name, double min, double max);
  absl::StatusOr<bool> Bool(const std::string& name, bool absent);
  absl::StatusOr<std::optional<std::string>> String(const std::string& name);

  // Takes a field that has no effect here, whatever its value.
  void Ignore(const std::string& name) { read_.insert(name); }
  // Refuses a field of this API that is not implemented, unless its value asks for nothing.
  absl::Status Refuse(const std::string& name, std::initializer_list<nlohmann::json> neutral);
  // Refuses all fields that none of the calls above has named.
  absl::Status RefuseOthers() const;

 private:
  const nlohmann::json& object_;
  std::set<std::string> read_;
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_API_FIELDS_H_
