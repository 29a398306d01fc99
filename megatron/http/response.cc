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
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
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
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "";
  }
}

// Returns the head up to the fields that say where the body ends.
std::string HeadText(const Response& response, bool keep_alive) {
  std::string text = absl::StrCat("HTTP/1.1 ", response.status, " ", Phrase(response.status),
                                  "\r\nContent-Type: ", response.content_type,
                                  "\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store",
                                  "\r\nConnection: ", keep_alive ? "keep-alive" : "close", "\r\n");
  for (const auto& [name, value] : response.fields)
    absl::StrAppend(&text, name, ": ", value, "\r\n");
  return text;
}

}  // namespace

Response ErrorResponse(int status, absl::string_view sentence) {
  Response response;
  response.status = status;
  response.body = absl::StrCat(sentence, "\n");
  return response;
}

std::string ResponseText(const Response& response, bool to_head, bool keep_alive) {
  return absl::StrCat(HeadText(response, keep_alive), "Content-Length: ", response.body.size(),
                      "\r\n\r\n", to_head ? "" : response.body);
}

std::string StreamHead(const Response& response, bool in_chunks, bool keep_alive) {
  return absl::StrCat(HeadText(response, keep_alive),
                      in_chunks ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

std::string Chunk(absl::string_view piece) {
  return absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n");
}

}  // namespace megatron::http
