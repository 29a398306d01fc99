#include "megatron/http/request.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::http {
namespace {

using State = ParsedRequest::State;
using ::testing::HasSubstr;

RequestLimits Limits() {
  RequestLimits limits;
  limits.head_bytes = 200;
  limits.fields = 3;
  limits.body_bytes = 10;
  return limits;
}

ParsedRequest Parse(absl::string_view bytes) { return ParseRequest(bytes, Limits()); }

void ExpectBad(absl::string_view bytes, int status, const std::string& reason) {
  const ParsedRequest parsed = Parse(bytes);
  EXPECT_EQ(parsed.state, State::kBad) << bytes;
  EXPECT_EQ(parsed.status, status) << bytes;
  EXPECT_THAT(parsed.reason, HasSubstr(reason));
}

TEST(RequestTest, ReadsARequestAndLeavesTheNext) {
  const std::string first =
      "POST /v1/texts?n=2&x=? HTTP/1.1\r\nHost: a\r\nCONTENT-length:  5 \r\n\r\nhello";
  const ParsedRequest parsed = Parse(first + "GET / HTTP/1.1\r\n");
  ASSERT_EQ(parsed.state, State::kDone);
  EXPECT_EQ(parsed.bytes, first.size());
  EXPECT_EQ(parsed.request.method, "POST");
  EXPECT_EQ(parsed.request.path, "/v1/texts");
  EXPECT_EQ(parsed.request.query, "n=2&x=?");
  EXPECT_EQ(parsed.request.body, "hello");
  EXPECT_EQ(parsed.request.Field("content-length"), "5");
  EXPECT_EQ(parsed.request.Field("accept"), "");
  EXPECT_TRUE(parsed.request.keep_alive);
}

TEST(RequestTest, EveryBeginningIsIncomplete) {
  const std::string text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
  for (size_t size = 0; size < text.size(); ++size)
    EXPECT_EQ(Parse(absl::string_view(text).substr(0, size)).state, State::kIncomplete) << size;
  EXPECT_EQ(Parse(text).state, State::kDone);
  // The head says how many bytes will come.
  const ParsedRequest head = Parse(absl::string_view(text).substr(0, text.size() - 3));
  EXPECT_EQ(head.head_bytes, text.size() - 3);
  EXPECT_EQ(head.body_bytes, 3u);
  const ParsedRequest shorter = Parse(absl::string_view(text).substr(0, text.size() - 4));
  EXPECT_EQ(shorter.head_bytes, 0u);
  EXPECT_EQ(shorter.body_bytes, 0u);
}

TEST(RequestTest, AByteThatBeginsNoMethodIsRefusedAtOnce) {
  // A hello of TLS, rubbish, and an empty line.
  for (const char* bytes : {"\x16\x03\x01", "\xff", "\x01", " ", "{", "/", "\r"})
    ExpectBad(bytes, 400, "request line");
  ExpectBad(absl::string_view("\0", 1), 400, "request line");
  for (const char* bytes : {"G", "g", "!", "~", "0"})
    EXPECT_EQ(Parse(bytes).state, State::kIncomplete) << bytes;
}

TEST(RequestTest, TheConnectionStaysOpenByTheVersionsRules) {
  EXPECT_FALSE(
      Parse("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n").request.keep_alive);
  EXPECT_FALSE(Parse("GET / HTTP/1.0\r\n\r\n").request.keep_alive);
  EXPECT_TRUE(Parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").request.keep_alive);
}

TEST(RequestTest, SaysThatTheClientWaitsForConsent) {
  const std::string head =
      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n";
  EXPECT_TRUE(Parse(head).expects_continue);
  EXPECT_EQ(Parse(head).state, State::kIncomplete);
}

TEST(RequestTest, RefusesWhatIsTooLarge) {
  const std::string line = "GET / HTTP/1.1\r\nHost: a\r\n";
  ExpectBad(absl::StrCat(line, "A: ", std::string(300, 'x')), 431, "more than 200 bytes");
  ExpectBad(absl::StrCat(line, "A: 1\r\nB: 1\r\nC: 1\r\n\r\n"), 431, "more than 3 header fields");
  for (const char* length : {"11", "18446744073709551616", "99999999999999999999999999"})
    ExpectBad(absl::StrCat(line, "Content-Length: ", length, "\r\n\r\n"), 413, "10 bytes");
}

TEST(RequestTest, RefusesWhatCouldBeReadInTwoWays) {
  const std::string line = "POST / HTTP/1.1\r\nHost: a\r\n";
  ExpectBad(line + "Transfer-Encoding: chunked\r\n\r\n", 411, "Content-Length");
  ExpectBad(line + "HOST: b\r\n\r\n", 400, "more than one field Host");
  ExpectBad("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400, "more than one field Host");
  ExpectBad(line + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "Content-Length");
  ExpectBad(line + "Content-Length: +1\r\n\r\n", 400, "Content-Length");
  ExpectBad(line + "Content-Length: 1, 1\r\n\r\n", 400, "Content-Length");
  ExpectBad(line + "Content-Length : 1\r\n\r\n", 400, "Name: value");
  ExpectBad(line + " folded\r\n\r\n", 400, "Name: value");
  ExpectBad(line + "A: b\nC: d\r\n\r\n", 400, "Name: value");
  ExpectBad("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request line");
  ExpectBad("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request line");
  ExpectBad("GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request line");
  ExpectBad("\r\n\r\n", 400, "request line");
  ExpectBad("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "HTTP/1.1");
  ExpectBad("GET / HTTP/1.1\r\n\r\n", 400, "Host");
}

}  // namespace
}  // namespace megatron::http
