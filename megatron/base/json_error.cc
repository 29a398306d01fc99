#include "megatron/base/json_error.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

class ErrorFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    bytes_read = position;
    return false;
  }

  size_t bytes_read = std::string::npos;
};

}  // namespace

std::string FirstJsonError(absl::string_view text) {
  ErrorFinder finder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &finder);
  // The last byte that was read is the wrong one, and there is none where the text ends too early.
  // The parser takes a zero byte for the end, and may find nothing wrong in front of it.
  const size_t at = std::min({finder.bytes_read - 1, text.find('\0'), text.size()});
  const absl::string_view front = text.substr(0, at), rest = text.substr(at);
  const auto line = 1 + std::count(front.begin(), front.end(), '\n');
  const size_t last = front.rfind('\n');
  const size_t column = last == absl::string_view::npos ? at + 1 : at - last;
  std::string what;
  if (rest.empty()) {
    what = "the text ends too early";
  } else if (absl::StartsWith(rest, "NaN")) {
    what = "NaN is no number of JSON";
  } else if (absl::StartsWith(rest, "Infinity")) {
    what = absl::StrCat(absl::EndsWith(front, "-") ? "-" : "", "Infinity is no number of JSON");
  } else {
    what = absl::StrCat("'", absl::CHexEscape(rest.substr(0, 1)), "' cannot stand here");
  }
  return absl::StrCat("line ", line, ", column ", column, ": ", what);
}

}  // namespace megatron
