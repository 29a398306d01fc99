// Asks a server of this machine, for tests.
#ifndef MEGATRON_SERVE_HTTP_CLIENT_H_
#define MEGATRON_SERVE_HTTP_CLIENT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/comm/socket/socket.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {

struct HttpAnswer {
  int status = 0;    // 0: there was none
  std::string head;  // with the status line
  std::string body;  // put together from its chunks
  nlohmann::json Json() const { return nlohmann::json::parse(body, nullptr, false); }
  // The data of the events of a stream.
  std::vector<std::string> Events() const;
};

// One connection.
class HttpClient {
 public:
  explicit HttpClient(const Endpoint& server);

  // `fields` are further lines of the head, each with its end. A request with a body is a POST.
  void Send(absl::string_view path, absl::string_view body = "", absl::string_view fields = "");
  HttpAnswer Read();
  HttpAnswer Ask(absl::string_view path, absl::string_view body = "",
                 absl::string_view fields = "") {
    Send(path, body, fields);
    return Read();
  }
  // Returns the bytes up to the text and with it, or to the end of the connection.
  std::string ReadUntil(absl::string_view end);

 private:
  Socket socket_;
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_HTTP_CLIENT_H_
