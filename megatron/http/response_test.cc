#include "megatron/http/response.h"

#include "gtest/gtest.h"

namespace megatron::http {
namespace {

TEST(ResponseTest, HasALengthAndABody) {
  Response response;
  response.body = "ok\n";
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
      "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: keep-alive\r\n";
  EXPECT_EQ(ResponseText(response, /*to_head=*/false, /*keep_alive=*/true), head + "\r\nok\n");
  EXPECT_EQ(ResponseText(response, /*to_head=*/true, /*keep_alive=*/true), head + "\r\n");
}

TEST(ResponseTest, AnErrorIsASentence) {
  Response error = ErrorResponse(405, "no");
  error.allow = "GET";
  const std::string text = ResponseText(error, false, false);
  EXPECT_EQ(text.rfind("HTTP/1.1 405 Method Not Allowed\r\n", 0), 0u);
  EXPECT_NE(text.find("Connection: close\r\nAllow: GET\r\n\r\nno\n"), text.npos);
}

}  // namespace
}  // namespace megatron::http
