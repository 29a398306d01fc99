// Errors as OpenAI's API has them: a status of HTTP and a JSON object.
#ifndef MEGATRON_SERVE_API_ERROR_H_
#define MEGATRON_SERVE_API_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/http/response.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {

// Returns kInvalidArgument. `field` is what of the request is wrong, and `code` a word for programs
// ("context_length_exceeded"); either may be empty.
absl::Status RequestError(absl::string_view field, absl::string_view message,
                          absl::string_view code = "");

// Returns kNotFound, for a model of another name.
absl::Status NoModelError(absl::string_view message);

// Returns the status of HTTP: 400 for kInvalidArgument, 401 for kUnauthenticated, 403 for
// kPermissionDenied, 404 for kNotFound, 405 for kUnimplemented, 429 for kResourceExhausted, 504 for
// kDeadlineExceeded, 503 for kUnavailable, 500 for others.
int HttpStatus(const absl::Status& error);

// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
nlohmann::ordered_json ErrorJson(const absl::Status& error);

// An answer that says when to try again, where that helps.
http::Response ApiErrorResponse(const absl::Status& error);
// The same for a status of HTTP that no absl::Status has.
http::Response ApiErrorResponse(int status, absl::string_view message);

// Returns the JSON in one line; what is not UTF-8 becomes U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_API_ERROR_H_
