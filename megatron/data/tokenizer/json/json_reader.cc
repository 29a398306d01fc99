#include "megatron/data/tokenizer/json/json_reader.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;

// What a value takes beside its place in a list, with what the allocator adds. A place takes 16
// bytes; a list that grows has three times its places for a moment, and one that ends up to five.
constexpr size_t kTextBytes = 48, kListBytes = 32, kObjectBytes = 64, kMemberBytes = 96;

// Builds a value while it is parsed, so that an invalid text fails at its first error. nlohmann's
// parser is not recursive: depth costs no stack.
class Builder {
 public:
  explicit Builder(size_t max_bytes) : left_(max_bytes) {}

  bool null() { return Put(nullptr); }
  bool boolean(bool value) { return Put(value); }
  bool number_integer(int64_t value) { return Put(value); }
  bool number_unsigned(uint64_t value) { return Put(value); }
  bool number_float(double value, const std::string&) { return Put(value); }
  bool string(std::string& value) { return Put(std::move(value), kTextBytes); }
  bool binary(json::binary_t&) { return Fail("binary data"); }
  bool start_object(size_t) { return Open(json::object(), kObjectBytes); }
  bool start_array(size_t) { return Open(json::array(), kListBytes); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& key) {
    if (!Take(kMemberBytes)) return false;
    const auto [member, inserted] = open_.back()->get_ref<json::object_t&>().emplace(key, nullptr);
    if (!inserted) return Fail(absl::StrCat("the key '", key.substr(0, 64), "' stands twice"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) {
    return Fail(absl::StrCat("no JSON at byte ", position));
  }

  const std::string& error() const { return error_; }
  bool takes_too_much() const { return takes_too_much_; }
  json TakeValue() { return std::move(root_); }

 private:
  // Returns the place of the next value.
  json* Place() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return member_;
    json::array_t& array = open_.back()->get_ref<json::array_t&>();
    array.emplace_back();
    return &array.back();
  }

  bool Put(json value, size_t bytes = 0) {
    if (!Take(kJsonValueBytes + bytes)) return false;
    *Place() = std::move(value);
    return true;
  }

  bool Open(json container, size_t bytes) {
    if (open_.size() == kMaxDepth) return Fail(absl::StrCat("more than ", kMaxDepth, " levels"));
    if (!Take(kJsonValueBytes + bytes)) return false;
    json* const place = Place();
    *place = std::move(container);
    open_.push_back(place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  bool Take(size_t bytes) {
    takes_too_much_ = bytes > left_;
    if (takes_too_much_) return Fail("the values take too much memory");
    left_ -= bytes;
    return true;
  }

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  json root_;
  // Open arrays and objects; an array grows only while its last element is closed.
  std::vector<json*> open_;
  json* member_ = nullptr;
  size_t left_;
  bool takes_too_much_ = false;
  std::string error_;
};

absl::Status WrongType(const std::string& key, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("'", key, "' is not ", wanted));
}

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, size_t max_bytes) {
  Builder builder(max_bytes);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    if (builder.takes_too_much()) return absl::ResourceExhaustedError(builder.error());
    return absl::InvalidArgumentError(builder.error());
  }
  return builder.TakeValue();
}

const json& JsonMember(const json& object, const char* key) {
  static const auto* const null = new json();
  if (!object.is_object()) return *null;
  const auto member = object.find(key);
  return member == object.end() ? *null : *member;
}

absl::StatusOr<std::string> JsonString(const json& object, const std::string& key,
                                       absl::string_view default_value) {
  const json& member = JsonMember(object, key.c_str());
  if (member.is_null()) return std::string(default_value);
  if (!member.is_string()) return WrongType(key, "a string");
  return member.get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonBool(const json& object, const std::string& key, bool default_value) {
  const json& member = JsonMember(object, key.c_str());
  if (member.is_null()) return default_value;
  if (!member.is_boolean()) return WrongType(key, "true or false");
  return member.get<bool>();
}

absl::StatusOr<int64_t> JsonInt(const json& object, const std::string& key, int64_t default_value) {
  const json& member = JsonMember(object, key.c_str());
  if (member.is_null()) return default_value;
  if (!member.is_number_integer() ||
      (member.is_number_unsigned() && member.get<uint64_t>() > INT64_MAX)) {
    return WrongType(key, "a whole number");
  }
  return member.get<int64_t>();
}

size_t MaxVocabularySize(size_t num_tokens) { return 2 * num_tokens + 4096; }

absl::StatusOr<std::vector<std::string>> JsonVocabulary(const json& vocabulary, size_t max_size) {
  if (!vocabulary.is_object()) return absl::InvalidArgumentError("the vocabulary is no object");
  std::vector<std::string> tokens;
  std::vector<bool> taken;
  for (const auto& [token, id] : vocabulary.get_ref<const json::object_t&>()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= max_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the id of '", token.substr(0, 64), "' is no number below ", max_size));
    }
    const size_t index = id.get<size_t>();
    if (index >= tokens.size()) {
      tokens.resize(index + 1);
      taken.resize(index + 1);
    }
    if (taken[index]) {
      return absl::InvalidArgumentError(absl::StrCat("'", tokens[index].substr(0, 64), "' and '",
                                                     token.substr(0, 64), "' have the same id ",
                                                     index));
    }
    taken[index] = true;
    tokens[index] = token;
  }
  return tokens;
}

}  // namespace megatron
