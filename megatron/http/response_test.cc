#include "megatron/http/response.h"

#include "gtest/gtest.h"

namespace megatron::http {
namespace {

TEST(ResponseTest, HasALengthAndABody) {
  Response response;
  response.body = "ok\n";
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
      "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: keep-alive\r\n"
      "Content-Length: 3\r\n";
  EXPECT_EQ(ResponseText(response, /*to_head=*/false, /*keep_alive=*/true), head + "\r\nok\n");
  EXPECT_EQ(ResponseText(response, /*to_head=*/true, /*keep_alive=*/true), head + "\r\n");
}

TEST(ResponseTest, AnErrorIsASentence) {
  Response error = ErrorResponse(405, "no");
  error.fields = {{"Allow", "GET"}, {"Retry-After", "1"}};
  const std::string text = ResponseText(error, false, false);
  EXPECT_EQ(text.rfind("HTTP/1.1 405 Method Not Allowed\r\n", 0), 0u);
  EXPECT_NE(text.find("Connection: close\r\nAllow: GET\r\nRetry-After: 1\r\n"
                      "Content-Length: 3\r\n\r\nno\n"),
            text.npos);
}

TEST(ResponseTest, AStreamIsInChunksOrEndsWithTheConnection) {
  Response response;
  response.content_type = "text/event-stream";
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
      "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: ";
  EXPECT_EQ(StreamHead(response, /*in_chunks=*/true, /*keep_alive=*/true),
            head + "keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(StreamHead(response, /*in_chunks=*/false, /*keep_alive=*/false),
            head + "close\r\n\r\n");
  EXPECT_EQ(Chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
}

}  // namespace
}  // namespace megatron::http
