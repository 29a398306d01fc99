#include "megatron/train/batches/per_split_paths.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

absl::Status Wrong(absl::string_view key, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("\"", key, "\" ", what));
}

absl::StatusOr<std::vector<std::string>> ReadPaths(const std::string& key, const Json& value) {
  std::vector<std::string> paths;
  if (value.is_null()) return paths;
  if (value.is_string()) {
    return std::vector<std::string>(absl::StrSplit(
        value.get<std::string>(), absl::ByAnyChar(" \t\r\n\v\f"), absl::SkipEmpty()));
  }
  if (!value.is_array()) return Wrong(key, "is neither a list, a string nor null");
  for (const Json& entry : value) {
    if (!entry.is_string() && !entry.is_number())
      return Wrong(key, "holds something else than strings and numbers");
    paths.push_back(entry.is_string() ? entry.get<std::string>() : entry.dump());
    if (paths.back().empty()) return Wrong(key, "holds an empty prefix");
  }
  return paths;
}

}  // namespace

absl::StatusOr<PerSplitPaths> ParsePerSplitPaths(absl::string_view json) {
  const Json object = Json::parse(json.begin(), json.end(), /*cb=*/nullptr,
                                  /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::DataLossError("is no JSON object");
  PerSplitPaths paths;
  for (const auto& [key, value] : object.items()) {
    std::vector<std::string>* const list = key == "train"   ? &paths.train
                                           : key == "valid" ? &paths.valid
                                           : key == "test"  ? &paths.test
                                                            : nullptr;
    if (list == nullptr) return Wrong(key, "is none of \"train\", \"valid\" and \"test\"");
    MEGATRON_ASSIGN_OR_RETURN(*list, ReadPaths(key, value));
  }
  if (paths.train.empty()) return Wrong("train", "names nothing to train on");
  return paths;
}

}  // namespace megatron
