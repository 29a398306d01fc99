#include "megatron/train/metrics/run_hparams.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

using ::google::protobuf::FieldDescriptor;

bool IsInATable(absl::string_view path) {
  for (const char* section : {"model", "parallel", "precision", "optimizer", "train"}) {
    if (absl::StartsWith(path, absl::StrCat(section, "."))) return true;
  }
  return false;
}

std::optional<tensorboard::HparamValue> ToHparam(const FieldRef& ref) {
  if (ref.field->is_repeated()) return std::nullopt;
  const std::string text = ValueText(ref);
  switch (ref.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return text == "true";
    case FieldDescriptor::CPPTYPE_ENUM:
      return text;
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number;
      if (!absl::SimpleAtod(text, &number)) return std::nullopt;
      return number;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<std::pair<std::string, tensorboard::HparamValue>> HparamsOf(
    absl::string_view config_text) {
  const ParsedConfig parsed = ParseConfig(config_text, "the run's configuration");
  std::vector<std::pair<std::string, tensorboard::HparamValue>> hparams;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const FieldRef ref = Resolve(parsed.config, path);
    if (!IsInATable(path) || !IsPresent(ref)) continue;
    const FieldRef other = Resolve(config::PretrainConfig::default_instance(), path);
    if (ref.field->has_default_value() && ValueText(ref) == ValueText(other)) continue;
    const std::optional<tensorboard::HparamValue> value = ToHparam(ref);
    if (value) hparams.emplace_back(path, *value);
  }
  return hparams;
}

}  // namespace megatron
