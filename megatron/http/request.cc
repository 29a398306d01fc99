#include "megatron/http/request.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron::http {
namespace {

constexpr absl::string_view kLineEnd = "\r\n", kHeadEnd = "\r\n\r\n";
constexpr char kNoRequestLine[] = "the request line is not \"METHOD /path HTTP/1.1\"";

ParsedRequest Bad(int status, std::string reason) {
  ParsedRequest parsed;
  parsed.state = ParsedRequest::State::kBad;
  parsed.status = status;
  parsed.reason = std::move(reason);
  return parsed;
}

bool IsTokenByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
}

bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenByte);
}

bool IsTarget(absl::string_view text) {
  return absl::StartsWith(text, "/") && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isgraph(static_cast<unsigned char>(c));
         });
}

bool IsFieldValue(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const unsigned char byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= ' ' && byte != 0x7f);
  });
}

// Returns the text before the separator and takes both away; all of the text if there is none.
absl::string_view TakeBefore(absl::string_view separator, absl::string_view* text) {
  const size_t at = text->find(separator);
  const absl::string_view piece = text->substr(0, at);
  text->remove_prefix(at == text->npos ? text->size() : at + separator.size());
  return piece;
}

absl::string_view TrimBlanks(absl::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Returns whether the list, "close, upgrade", has the word, in any case.
bool HasWord(absl::string_view list, absl::string_view word) {
  while (!list.empty()) {
    if (absl::EqualsIgnoreCase(TrimBlanks(TakeBefore(",", &list)), word)) return true;
  }
  return false;
}

// Returns whether it is a number of decimal digits. One that is too large gives the largest.
bool ReadLength(absl::string_view text, uint64_t* length) {
  *length = 0;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
    constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
    const uint64_t digit = c - '0';
    *length = *length > (kMost - digit) / 10 ? kMost : *length * 10 + digit;
  }
  return !text.empty();
}

// Reads the request line. Returns 0 or the status of the answer.
int ReadRequestLine(absl::string_view line, Request* request) {
  const absl::string_view method = TakeBefore(" ", &line);
  const absl::string_view target = TakeBefore(" ", &line);
  if (!IsToken(method) || !IsTarget(target)) return 400;
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return absl::StartsWith(line, "HTTP/") ? 505 : 400;
  request->is_http_1_0 = line == "HTTP/1.0";
  request->method = std::string(method);
  absl::string_view rest = target;
  request->path = std::string(TakeBefore("?", &rest));
  request->query = std::string(rest);
  return 0;
}

bool ReadField(absl::string_view line, Request* request) {
  if (line.find(':') == line.npos) return false;
  const absl::string_view name = TakeBefore(":", &line);
  if (!IsToken(name) || !IsFieldValue(line)) return false;
  request->fields.emplace_back(absl::AsciiStrToLower(name), std::string(TrimBlanks(line)));
  return true;
}

// Reads the head, which ends with an empty line. Returns OK's state kIncomplete.
ParsedRequest ReadHead(absl::string_view head, const RequestLimits& limits) {
  ParsedRequest parsed;
  const int status = ReadRequestLine(TakeBefore(kLineEnd, &head), &parsed.request);
  if (status == 505) return Bad(status, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  if (status != 0) return Bad(status, kNoRequestLine);
  while (!head.empty()) {
    if (parsed.request.fields.size() >= limits.fields)
      return Bad(431, absl::StrCat("there are more than ", limits.fields, " header fields"));
    if (!ReadField(TakeBefore(kLineEnd, &head), &parsed.request))
      return Bad(400, "a header field is not \"Name: value\"");
  }
  return parsed;
}

// Finds the length of the body. Returns 0 or the status of the answer.
int ReadBodyLength(const Request& request, uint64_t* length, std::string* reason) {
  *length = 0;
  bool known = false;
  for (const auto& [name, value] : request.fields) {
    if (name == "transfer-encoding") {
      *reason = "a body needs Content-Length; Transfer-Encoding is not taken";
      return 411;
    }
    if (name != "content-length") continue;
    uint64_t one = 0;
    if (!ReadLength(value, &one) || (known && one != *length)) {
      *reason = "Content-Length is no length";
      return 400;
    }
    *length = one;
    known = true;
  }
  return 0;
}

bool KeepsAlive(const Request& request) {
  const absl::string_view connection = request.Field("connection");
  if (HasWord(connection, "close")) return false;
  return !request.is_http_1_0 || HasWord(connection, "keep-alive");
}

}  // namespace

void Request::FreeBody() {
  std::string().swap(body);
  body_share.reset();
}

absl::string_view Request::Field(absl::string_view name) const {
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  return {};
}

ParsedRequest ParseRequest(absl::string_view bytes, const RequestLimits& limits) {
  // Whoever speaks another protocol, such as TLS, waits for an answer and never ends the head.
  if (!bytes.empty() && !IsTokenByte(bytes.front())) return Bad(400, kNoRequestLine);
  const size_t head_end = bytes.substr(0, limits.head_bytes + 1).find(kHeadEnd);
  if (head_end == bytes.npos) {
    if (bytes.size() <= limits.head_bytes) return ParsedRequest();
    return Bad(431, absl::StrCat("the head has more than ", limits.head_bytes, " bytes"));
  }
  // The last field's line keeps its end.
  ParsedRequest parsed = ReadHead(bytes.substr(0, head_end + kLineEnd.size()), limits);
  if (parsed.state == ParsedRequest::State::kBad) return parsed;
  Request& request = parsed.request;
  const auto is_host = [](const auto& field) { return field.first == "host"; };
  if (std::count_if(request.fields.begin(), request.fields.end(), is_host) > 1)
    return Bad(400, "there is more than one field Host");
  if (!request.is_http_1_0 && request.Field("host").empty())
    return Bad(400, "the field Host is missing");
  uint64_t length = 0;
  std::string reason;
  const int status = ReadBodyLength(request, &length, &reason);
  if (status != 0) return Bad(status, reason);
  if (length > limits.body_bytes)
    return Bad(413, absl::StrCat("the body has more than ", limits.body_bytes, " bytes"));
  request.keep_alive = KeepsAlive(request);
  const size_t body_at = head_end + kHeadEnd.size();
  parsed.head_bytes = body_at;
  parsed.body_bytes = length;
  if (bytes.size() - body_at < length) {
    parsed.expects_continue = absl::EqualsIgnoreCase(request.Field("expect"), "100-continue");
    return parsed;
  }
  request.body = std::string(bytes.substr(body_at, length));
  parsed.bytes = body_at + length;
  parsed.state = ParsedRequest::State::kDone;
  return parsed;
}

}  // namespace megatron::http
