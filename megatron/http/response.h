// Answers of HTTP/1.1.
#ifndef MEGATRON_HTTP_RESPONSE_H_
#define MEGATRON_HTTP_RESPONSE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron::http {

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string allow;  // status 405: the methods that the path has
};

// Returns an answer whose body is the sentence and the end of a line.
Response ErrorResponse(int status, absl::string_view sentence);

// Returns the bytes to send. An answer to HEAD has the length of the body without the body.
std::string ResponseText(const Response& response, bool to_head, bool keep_alive);

}  // namespace megatron::http

#endif  // MEGATRON_HTTP_RESPONSE_H_
