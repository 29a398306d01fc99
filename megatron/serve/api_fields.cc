#include "megatron/serve/api_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "megatron/base/quantity.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/json/json_reader.h"
#include "megatron/serve/api_error.h"

namespace megatron::serve {

using Json = nlohmann::json;

absl::StatusOr<Json> ParseBody(absl::string_view body, size_t max_bytes) {
  // The parser takes a zero byte for the end of the text.
  if (body.find('\0') != body.npos) return RequestError("", "the body has a zero byte in it");
  absl::StatusOr<Json> json = ParseJson(body, max_bytes);
  if (absl::IsResourceExhausted(json.status())) {
    return RequestError(
        "", absl::StrCat("the values of the body take more than the ",
                         FormatBytes(static_cast<int64_t>(max_bytes)),
                         " of memory that are for them (each number takes ", kJsonValueBytes,
                         " bytes); ask for fewer prompts or tokens at once"));
  }
  if (!json.ok()) {
    return RequestError(
        "", absl::StrCat("the body is not the JSON of a request: ", json.status().message()));
  }
  if (!json->is_object()) return RequestError("", "the body is JSON, but no object");
  return json;
}

const Json* ApiFields::Find(const std::string& name) {
  read_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<int64_t>> ApiFields::Int(const std::string& name, int64_t min,
                                                      int64_t max) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const bool is_int = value->is_number_integer();
  const bool is_large = is_int && value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  if (!is_int || is_large || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return RequestError(name, absl::StrCat(name, " is a whole number of ", min, " to ", max));
  }
  return value->get<int64_t>();
}

absl::StatusOr<std::optional<double>> ApiFields::Number(const std::string& name, double min,
                                                        double max) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : max + 1;
  if (!(number >= min && number <= max))
    return RequestError(name, absl::StrCat(name, " is a number of ", min, " to ", max));
  return number;
}

absl::StatusOr<bool> ApiFields::Bool(const std::string& name, bool absent) {
  const Json* const value = Find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return RequestError(name, absl::StrCat(name, " is true or false"));
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> ApiFields::String(const std::string& name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return RequestError(name, absl::StrCat(name, " is a text"));
  return value->get<std::string>();
}

absl::Status ApiFields::Refuse(const std::string& name, std::initializer_list<Json> neutral) {
  const Json* const value = Find(name);
  if (value == nullptr || std::find(neutral.begin(), neutral.end(), *value) != neutral.end())
    return absl::OkStatus();
  return RequestError(name, absl::StrCat(name, " is not supported here; leave it out"),
                      "unsupported_parameter");
}

absl::Status ApiFields::RefuseOthers() const {
  for (const auto& [name, value] : object_.get_ref<const Json::object_t&>()) {
    if (read_.count(name) > 0 || value.is_null()) continue;
    return RequestError(name.substr(0, 64),
                        absl::StrCat("there is no field ", Quoted(name), "; leave it out"),
                        "unknown_parameter");
  }
  return absl::OkStatus();
}

}  // namespace megatron::serve
