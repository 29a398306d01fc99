#include "megatron/http/response.h"

#include "absl/strings/str_cat.h"

namespace megatron::http {
namespace {

const char* Phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "";
  }
}

}  // namespace

Response ErrorResponse(int status, absl::string_view sentence) {
  Response response;
  response.status = status;
  response.body = absl::StrCat(sentence, "\n");
  return response;
}

std::string ResponseText(const Response& response, bool to_head, bool keep_alive) {
  std::string text = absl::StrCat("HTTP/1.1 ", response.status, " ", Phrase(response.status),
                                  "\r\nContent-Type: ", response.content_type,
                                  "\r\nContent-Length: ", response.body.size(),
                                  "\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store",
                                  "\r\nConnection: ", keep_alive ? "keep-alive" : "close", "\r\n");
  if (!response.allow.empty()) absl::StrAppend(&text, "Allow: ", response.allow, "\r\n");
  absl::StrAppend(&text, "\r\n", to_head ? "" : response.body);
  return text;
}

}  // namespace megatron::http
