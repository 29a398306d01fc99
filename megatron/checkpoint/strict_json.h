// A base for readers of JSON that know their grammar: text that isn't JSON is an error, and so are
// values of the rarer kinds unless a derived class overrides them.
//
//   Handler handler(&result);
//   MEGATRON_RETURN_IF_ERROR(ParseStrictJson(text, &handler));
#ifndef MEGATRON_CHECKPOINT_STRICT_JSON_H_
#define MEGATRON_CHECKPOINT_STRICT_JSON_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace megatron {

class StrictJsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is no 64-bit integer");
  }
  bool binary(binary_t&) override { return Unexpected("binary"); }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is no JSON at byte ", position));
  }

  const std::string& error() const { return error_; }

 protected:
  // Ends the parse. The first message stays.
  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool Unexpected(absl::string_view what) { return Fail(absl::StrCat(Place(), " is ", what)); }

  // The parser's place, for messages: "the shape of 'wte.weight'".
  virtual std::string Place() const = 0;

 private:
  std::string error_;
};

// Feeds the handler. kDataLoss with the handler's first error.
inline absl::Status ParseStrictJson(absl::string_view text, StrictJsonHandler* handler) {
  // The parser takes a zero byte for the end of the text.
  if (text.find('\0') != absl::string_view::npos) {
    return absl::DataLossError("the JSON has a zero byte in it");
  }
  if (nlohmann::json::sax_parse(text.begin(), text.end(), handler)) return absl::OkStatus();
  return absl::DataLossError(handler->error());
}

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_STRICT_JSON_H_
