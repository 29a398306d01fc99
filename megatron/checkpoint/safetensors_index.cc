#include "megatron/checkpoint/safetensors_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/strict_json.h"

namespace megatron {
namespace {

constexpr char kMapKey[] = "weight_map";
constexpr size_t kMaxFileName = 128;

bool IsFileName(absl::string_view name) {
  return name.size() <= kMaxFileName && name[0] != '.' && absl::EndsWith(name, ".safetensors") &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

// Takes the weight map and passes over the values of all other keys.
class IndexHandler : public StrictJsonHandler {
 public:
  explicit IndexHandler(SafetensorsIndex* index) : index_(*index) {}

  bool has_map() const { return has_map_; }

  bool null() override { return Other("null"); }
  bool boolean(bool) override { return Other("a boolean"); }
  bool number_integer(number_integer_t) override { return Other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Other("a number"); }

  bool string(string_t& value) override {
    if (!in_map_) return Other("a string");
    if (!IsFileName(value)) {
      return Fail(
          absl::StrCat(Place(), " is ", Quoted(value), ", which is no file of the directory"));
    }
    if (index_.emplace(tensor_, std::move(value)).second) return true;
    return Fail(absl::StrCat("there are two tensors ", Quoted(tensor_)));
  }

  bool start_object(size_t) override {
    if (in_map_ || (depth_ == 1 && in_map_value_ && std::exchange(has_map_, true))) {
      return Unexpected("an object more");
    }
    in_map_ = depth_ == 1 && in_map_value_;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    in_map_ = false;
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
    if (depth_ == 1) in_map_value_ = name == kMapKey;
    if (in_map_) tensor_ = std::move(name);
    return true;
  }

 protected:
  std::string Place() const override {
    if (depth_ == 0) return "the index";
    return in_map_ ? absl::StrCat("the file of ", Quoted(tensor_)) : "weight_map";
  }

 private:
  // Returns whether the value is allowed, which it is below other keys than the map's.
  bool Other(absl::string_view what) {
    return depth_ > 0 && !(depth_ == 1 && in_map_value_) && !in_map_ ? true : Unexpected(what);
  }

  SafetensorsIndex& index_;
  int64_t depth_ = 0;
  bool in_map_value_ = false;  // the last key at the top is weight_map
  bool in_map_ = false, has_map_ = false;
  std::string tensor_;
};

}  // namespace

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text) {
  SafetensorsIndex index;
  IndexHandler handler(&index);
  MEGATRON_RETURN_IF_ERROR(ParseStrictJson(text, &handler));
  if (!handler.has_map()) return absl::DataLossError("there is no weight_map");
  return index;
}

std::string SerializeSafetensorsIndex(const SafetensorsIndex& index, int64_t total_bytes) {
  const nlohmann::json json = {{"metadata", {{"total_size", total_bytes}}}, {kMapKey, index}};
  return json.dump(2) + "\n";
}

std::string SafetensorsShardName(size_t index, size_t count) {
  if (count == 1) return kSafetensorsFileName;
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

std::vector<std::vector<SafetensorsTensor>> PlanSafetensorsShards(
    const std::vector<SafetensorsTensor>& tensors, int64_t max_bytes) {
  std::vector<std::vector<SafetensorsTensor>> shards(1);
  int64_t bytes = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (!shards.back().empty() && tensor.bytes() > max_bytes - bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(tensor);
  }
  return shards;
}

}  // namespace megatron
