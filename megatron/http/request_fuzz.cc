// Fuzzes the parser of requests: any bytes are a request, the beginning of one or a mistake, and
// what is said of them holds for whatever follows, and however the bytes come in pieces.

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/http/request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using megatron::http::ParsedRequest;
  using megatron::http::ParseRequest;
  using State = ParsedRequest::State;
  megatron::http::RequestLimits limits;
  limits.head_bytes = 512;
  limits.fields = 8;
  limits.body_bytes = 64;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const ParsedRequest whole = ParseRequest(bytes, limits);
  if (whole.state == State::kIncomplete) {
    CHECK_LE(bytes.size(), limits.head_bytes + 4 + limits.body_bytes);
    return 0;
  }
  if (whole.state == State::kBad) {
    CHECK_GE(whole.status, 400);
    CHECK(!whole.reason.empty());
  } else {
    CHECK_LE(whole.bytes, bytes.size());
    CHECK_LE(whole.request.body.size(), limits.body_bytes);
    CHECK_LE(whole.request.fields.size(), limits.fields);
    CHECK_EQ(whole.request.path.front(), '/');
    CHECK(ParseRequest(bytes.substr(0, whole.bytes), limits).state == State::kDone);
    CHECK(whole.bytes == 0 ||
          ParseRequest(bytes.substr(0, whole.bytes - 1), limits).state == State::kIncomplete);
  }
  const ParsedRequest longer = ParseRequest(absl::StrCat(bytes, "GET / HTTP/1.1\r\n"), limits);
  CHECK(longer.state == whole.state);
  CHECK_EQ(longer.bytes, whole.bytes);
  CHECK_EQ(longer.status, whole.status);
  return 0;
}
