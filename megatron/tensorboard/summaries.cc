#include "megatron/tensorboard/summaries.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/crc32c.h"

namespace megatron::tensorboard {
namespace {

// A reader refuses a whole event if one of its texts is not UTF-8.
std::string Ascii(absl::string_view text) {
  std::string ascii(text);
  std::replace_if(
      ascii.begin(), ascii.end(), [](char c) { return !absl::ascii_isascii(c); }, '_');
  return ascii;
}

Summary::Value StringValue(absl::string_view tag, absl::string_view plugin, std::string text) {
  Summary::Value value;
  value.set_tag(std::string(tag));
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name(std::string(plugin));
  value.mutable_metadata()->set_data_class(DataClass::TENSOR);
  value.mutable_tensor()->set_dtype(DataType::STRING);
  value.mutable_tensor()->mutable_tensor_shape();  // no dimensions: one string
  value.mutable_tensor()->add_string_val(std::move(text));
  return value;
}

void SetHparam(double value, Hparam* out) { out->set_number_value(value); }
void SetHparam(bool value, Hparam* out) { out->set_bool_value(value); }
void SetHparam(const std::string& value, Hparam* out) { out->set_string_value(Ascii(value)); }

// Returns the regular expression that matches `tag` alone.
std::string Exactly(absl::string_view tag) {
  std::string expression = "^";
  for (const char c : tag) {
    if (!absl::ascii_isalnum(c) && c != ' ' && c != '_') expression.push_back('\\');
    expression.push_back(c);
  }
  return expression + "$";
}

}  // namespace

std::string ToTag(absl::string_view name) {
  std::string tag = Ascii(name);
  std::replace_if(
      tag.begin(), tag.end(), [](char c) { return absl::ascii_iscntrl(c); }, '_');
  if (tag.size() <= kMaxTagBytes) return tag;
  const std::string checksum = absl::StrCat("_", absl::Hex(Crc32c(name), absl::kZeroPad8));
  return tag.substr(0, kMaxTagBytes - checksum.size()) + checksum;
}

Summary::Value ScalarValue(absl::string_view tag, double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Summary::Value point;
  point.set_tag(std::string(tag));
  if (value > kMax || value < -kMax) {
    point.set_simple_value(value > 0 ? kInfinity : -kInfinity);
  } else {
    point.set_simple_value(static_cast<float>(value));
  }
  return point;
}

// Without its data class the fast loader ignores what is said about a simple value.
void DescribeScalar(absl::string_view description, Summary::Value* value) {
  SummaryMetadata& metadata = *value->mutable_metadata();
  metadata.mutable_plugin_data()->set_plugin_name("scalars");
  metadata.set_data_class(DataClass::SCALAR);
  metadata.set_summary_description(Ascii(description));
}

Summary::Value TextValue(absl::string_view tag, absl::string_view markdown) {
  return StringValue(tag, "text", Ascii(markdown));
}

Summary::Value HparamsValue(const std::vector<std::pair<std::string, HparamValue>>& hparams,
                            absl::string_view group, absl::Time start) {
  HParamsPluginData data;
  SessionStartInfo& session = *data.mutable_session_start_info();
  for (const auto& [name, value] : hparams) {
    Hparam& hparam = (*session.mutable_hparams())[Ascii(name)];
    std::visit([&hparam](const auto& v) { SetHparam(v, &hparam); }, value);
  }
  session.set_group_name(Ascii(group));
  session.set_start_time_secs(absl::ToDoubleSeconds(start - absl::UnixEpoch()));
  Summary::Value value;
  value.set_tag("_hparams_/session_start_info");
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("hparams");
  value.mutable_metadata()->mutable_plugin_data()->set_content(data.SerializeAsString());
  value.mutable_metadata()->set_data_class(DataClass::TENSOR);
  // All is in the metadata, but a value there must be.
  value.mutable_tensor()->set_dtype(DataType::FLOAT);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);
  return value;
}

Summary::Value LayoutValue(absl::string_view title, const std::vector<ChartOfTags>& charts) {
  Layout layout;
  Category& category = *layout.add_category();
  category.set_title(std::string(title));
  for (const ChartOfTags& tags : charts) {
    Chart& chart = *category.add_chart();
    chart.set_title(tags.title);
    for (const std::string& tag : tags.tags) chart.mutable_multiline()->add_tag(Exactly(tag));
  }
  return StringValue("custom_scalars__config__", "custom_scalars", layout.SerializeAsString());
}

}  // namespace megatron::tensorboard
