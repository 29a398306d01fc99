// Answers of HTTP/1.1.
#ifndef MEGATRON_HTTP_RESPONSE_H_
#define MEGATRON_HTTP_RESPONSE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron::http {

// Whoever waits for an answer.
class Client {
 public:
  virtual ~Client() = default;
  // Returns whether the connection has ended. A client that has closed its side of it is gone, too.
  virtual bool Gone() const = 0;
  // Sends a piece of the body at once. Returns false if the client is gone, or does not read.
  virtual bool Send(absl::string_view piece) = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields;  // others: {"Allow", "GET"}
  // If it is set, it sends the body piece by piece after the head, and `body` is not used. The body
  // ends when it returns.
  std::function<void(Client*)> stream;
};

// Returns an answer whose body is the sentence and the end of a line.
Response ErrorResponse(int status, absl::string_view sentence);

// Returns the bytes to send. An answer to HEAD has the length of the body without the body.
std::string ResponseText(const Response& response, bool to_head, bool keep_alive);

// Returns the head of an answer whose body is streamed: in chunks, or to the end of the connection.
std::string StreamHead(const Response& response, bool in_chunks, bool keep_alive);

// Returns a piece of a body, which is not empty, as a chunk.
std::string Chunk(absl::string_view piece);

// What follows the last chunk.
inline constexpr absl::string_view kLastChunk = "0\r\n\r\n";

}  // namespace megatron::http

#endif  // MEGATRON_HTTP_RESPONSE_H_
