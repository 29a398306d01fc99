#include "megatron/serve/api_error.h"

#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace megatron::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kField[] = "megatron/serve/field", kCode[] = "megatron/serve/code";

absl::Status WithPayloads(absl::Status error, absl::string_view field, absl::string_view code) {
  if (!field.empty()) error.SetPayload(kField, absl::Cord(field));
  if (!code.empty()) error.SetPayload(kCode, absl::Cord(code));
  return error;
}

Json Payload(const absl::Status& error, absl::string_view name) {
  const std::optional<absl::Cord> payload = error.GetPayload(name);
  return payload ? Json(std::string(*payload)) : Json(nullptr);
}

const char* TypeName(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      // A version of HTTP that is not spoken is the client's choice.
      return status < 500 || status == 505 ? "invalid_request_error" : "server_error";
  }
}

Json ErrorObject(int status, absl::string_view message, Json field, Json code) {
  Json object;
  object["message"] = std::string(message);
  object["type"] = TypeName(status);
  object["param"] = std::move(field);
  object["code"] = std::move(code);
  Json json;
  json["error"] = std::move(object);
  return json;
}

http::Response ResponseOf(int status, const Json& error) {
  http::Response response;
  response.status = status;
  response.content_type = "application/json";
  response.body = JsonText(error) + "\n";
  if (status == 401) response.fields = {{"WWW-Authenticate", "Bearer"}};
  if (status == 429 || status == 503) response.fields = {{"Retry-After", "1"}};
  return response;
}

}  // namespace

absl::Status RequestError(absl::string_view field, absl::string_view message,
                          absl::string_view code) {
  return WithPayloads(absl::InvalidArgumentError(message), field, code);
}

absl::Status NoModelError(absl::string_view message) {
  return WithPayloads(absl::NotFoundError(message), "model", "model_not_found");
}

int HttpStatus(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kUnimplemented:
      return 405;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json ErrorJson(const absl::Status& error) {
  return ErrorObject(HttpStatus(error), error.message(), Payload(error, kField),
                     Payload(error, kCode));
}

http::Response ApiErrorResponse(const absl::Status& error) {
  return ResponseOf(HttpStatus(error), ErrorJson(error));
}

http::Response ApiErrorResponse(int status, absl::string_view message) {
  return ResponseOf(status, ErrorObject(status, message, nullptr, nullptr));
}

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace megatron::serve
