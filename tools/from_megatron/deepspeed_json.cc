#include "tools/from_megatron/deepspeed_json.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/json_error.h"
#include "megatron/base/quoted.h"

namespace megatron {
namespace {

using Json = nlohmann::json;

constexpr size_t kLargestJson = 1 << 20;
constexpr int kDeepestJson = 20;

}  // namespace

absl::Status ParseDeepSpeedJson(absl::string_view text, nlohmann::json* object) {
  if (text.size() > kLargestJson) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", text.size(), " bytes; at most ", kLargestJson, " are read"));
  }
  if (text.find('\0') != absl::string_view::npos)
    return absl::InvalidArgumentError("it holds a zero byte");
  std::vector<absl::flat_hash_set<std::string>> keys(1);
  std::string wrong;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      if (depth > kDeepestJson) wrong = "it is nested too deeply";
      keys.resize(std::max<size_t>(keys.size(), depth + 2));
      keys[depth + 1].clear();
    } else if (event == Json::parse_event_t::array_start && depth > kDeepestJson) {
      wrong = "it is nested too deeply";
    } else if (event == Json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      keys.resize(std::max<size_t>(keys.size(), depth + 1));
      if (!keys[depth].insert(key).second && wrong.empty())
        wrong = absl::StrCat("it has the key ", Quoted(key), " twice");
    }
    return wrong.empty();
  };
  *object = Json::parse(text.begin(), text.end(), check, /*allow_exceptions=*/false);
  if (!wrong.empty()) return absl::InvalidArgumentError(wrong);
  if (object->is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat("it is no JSON: ", FirstJsonError(text)));
  }
  if (!object->is_object()) return absl::InvalidArgumentError("it is no JSON object");
  return absl::OkStatus();
}

}  // namespace megatron
