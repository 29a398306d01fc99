#include "megatron/serve/http_client.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "megatron/base/steady_now.h"

namespace megatron::serve {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

std::vector<std::string> HttpAnswer::Events() const {
  std::vector<std::string> events;
  for (absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    CHECK(absl::ConsumePrefix(&event, "data: ")) << event;
    events.emplace_back(event);
  }
  return events;
}

HttpClient::HttpClient(const Endpoint& server) {
  auto socket = ConnectTcp(server, SteadyNow() + kPatience);
  CHECK_EQ(socket.status(), absl::OkStatus());
  socket_ = *std::move(socket);
}

void HttpClient::Send(absl::string_view path, absl::string_view body, absl::string_view fields) {
  const std::string text = absl::StrCat(
      body.empty() ? "GET " : "POST ", path, " HTTP/1.1\r\nHost: localhost\r\n", fields,
      body.empty() ? "" : absl::StrCat("Content-Length: ", body.size(), "\r\n"), "\r\n", body);
  SendAll(socket_, text, SteadyNow() + kPatience).IgnoreError();
}

std::string HttpClient::ReadUntil(absl::string_view end) {
  std::string text;
  char byte;
  while (!absl::EndsWith(text, end) &&
         ReceiveAll(socket_, &byte, 1, SteadyNow() + kPatience).ok()) {
    text += byte;
  }
  return text;
}

HttpAnswer HttpClient::Read() {
  HttpAnswer answer;
  answer.head = ReadUntil("\r\n\r\n");
  if (answer.head.size() < 12) return answer;
  answer.status = std::atoi(answer.head.substr(9, 3).c_str());
  const auto receive = [&](size_t size) {
    std::string bytes(size, '\0');
    if (!ReceiveAll(socket_, &bytes[0], size, SteadyNow() + kPatience).ok()) answer.status = 0;
    return bytes;
  };
  if (!absl::StrContains(answer.head, "Transfer-Encoding: chunked")) {
    const size_t at = answer.head.find("Content-Length: ");
    if (at != answer.head.npos) answer.body = receive(std::atoi(answer.head.c_str() + at + 16));
    return answer;
  }
  for (;;) {
    const std::string line = ReadUntil("\r\n");
    const size_t size = std::strtoul(line.c_str(), nullptr, 16);
    answer.body += receive(size);
    if (receive(2) != "\r\n" || size == 0) return answer;
  }
}

}  // namespace megatron::serve
