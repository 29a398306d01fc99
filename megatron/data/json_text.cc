#include "megatron/data/json_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

// Receives the parser's events. Returning false ends the parse.
class TextHandler : public nlohmann::json_sax<Json> {
 public:
  TextHandler(const std::vector<std::string>& keys, std::vector<std::string>* texts)
      : keys_(keys), texts_(*texts), found_(keys.size(), false) {
    texts_.resize(keys.size());
  }

  absl::Status Finish() const {
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (!found_[i])
        return absl::InvalidArgumentError(absl::StrCat("there is no \"", keys_[i], "\""));
    }
    return absl::OkStatus();
  }

  bool null() override { return Other("null"); }
  bool boolean(bool) override { return Other("a boolean"); }
  bool number_integer(number_integer_t) override { return Other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Other("a number"); }
  bool binary(binary_t&) override { return Other("binary"); }

  bool string(string_t& value) override {
    if (depth_ == 0) return Other("a string");
    if (depth_ > 1 || current_ == keys_.size()) return true;
    texts_[current_] = std::move(value);
    found_[current_] = true;
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ > 0 && !Other("an object")) return false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (!Other("an array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1)
      current_ = static_cast<size_t>(std::find(keys_.begin(), keys_.end(), name) - keys_.begin());
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    const absl::string_view what = error.what();
    error_ = std::string(what.substr(std::min(what.find("] ") + 2, what.size())));
    return false;
  }

 private:
  // A value that is no string matters only where the line itself or one of our keys has it.
  bool Other(absl::string_view type) {
    if (depth_ == 0) {
      error_ = absl::StrCat("expected an object, this is ", type);
      return false;
    }
    if (depth_ > 1 || current_ == keys_.size()) return true;
    error_ = absl::StrCat("\"", keys_[current_], "\" is ", type, ", not a string");
    return false;
  }

  const std::vector<std::string>& keys_;
  std::vector<std::string>& texts_;
  std::vector<bool> found_;
  std::string error_;
  int64_t depth_ = 0;
  size_t current_ = 0;  // the key at depth 1 whose value comes; keys_.size(): one that nobody wants
};

}  // namespace

absl::Status ExtractJsonTexts(absl::string_view line, const std::vector<std::string>& keys,
                              std::vector<std::string>* texts) {
  TextHandler handler(keys, texts);
  Json::sax_parse(line.begin(), line.end(), &handler);
  return handler.Finish();
}

}  // namespace megatron
