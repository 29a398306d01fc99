// Requests of HTTP/1.1 (RFC 9112), read from bytes that anybody may have sent.
//
//   absl::string_view rest = received;
//   ParsedRequest parsed = ParseRequest(rest, limits);
//   switch (parsed.state) ...
//
// What is taken: the methods' tokens, a target that begins with '/', versions 1.0 and 1.1, header
// fields, and a body of a length that Content-Length gives. A body in chunks is refused (411), and
// so is whatever could be read in two ways: spaces before a colon, folded lines, two lengths that
// differ, two hosts, bare line feeds within a line.
#ifndef MEGATRON_HTTP_REQUEST_H_
#define MEGATRON_HTTP_REQUEST_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron::http {

struct RequestLimits {
  size_t head_bytes = 8 << 10;  // the request line and the header fields
  size_t fields = 64;
  size_t body_bytes = 0;
};

struct Request {
  std::string method;  // "GET"
  std::string path;    // "/metrics", without the query
  std::string query;   // what follows '?', or empty
  bool is_http_1_0 = false;
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case
  std::string body;
  bool keep_alive = true;  // whether the client wants to send another one
  // What the body takes of a server's budget; null where there is none.
  std::shared_ptr<const void> body_share;

  // Frees the body, and its share of the budget, before work that needs neither.
  void FreeBody();
  // Returns the field's value; empty if there is none. The name is in lower case.
  absl::string_view Field(absl::string_view name) const;
};

struct ParsedRequest {
  enum class State {
    kIncomplete,  // more bytes are needed
    kDone,
    kBad,  // the connection must be closed after the answer
  };
  State state = State::kIncomplete;
  Request request;
  size_t bytes = 0;               // what of the input belongs to the request
  size_t head_bytes = 0;          // the length of the head, once it has come
  size_t body_bytes = 0;          // the length of the body, once the head has come
  bool expects_continue = false;  // incomplete: the client waits for "100 Continue"
  int status = 0;                 // bad: the status of the answer
  std::string reason;             // bad: a sentence for the client
};

// Reads the first request of the bytes. It never looks at more of them than the limits allow, plus
// one. A first byte that begins no method, as of TLS, is bad at once.
ParsedRequest ParseRequest(absl::string_view bytes, const RequestLimits& limits);

}  // namespace megatron::http

#endif  // MEGATRON_HTTP_REQUEST_H_
