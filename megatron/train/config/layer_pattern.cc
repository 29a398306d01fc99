#include "megatron/train/config/layer_pattern.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

absl::Status Malformed(absl::string_view part) {
  return absl::InvalidArgumentError(
      absl::StrCat("expects a number from 1, or lists of 0 and 1 as in \"[0]+[1]*3\", and found \"",
                   part, "\""));
}

// Parses a list like "[0, 1]*3" and appends it to `layers`, which may not grow beyond `most`.
absl::Status AppendTerm(absl::string_view term, size_t most, std::vector<bool>* layers) {
  const std::vector<absl::string_view> factors = absl::StrSplit(term, '*');
  int64_t times = 1;
  absl::string_view list = absl::StripAsciiWhitespace(factors[0]);
  if (factors.size() > 2 || (factors.size() == 2 && !absl::SimpleAtoi(factors[1], &times)) ||
      times < 0 || !absl::ConsumePrefix(&list, "[") || !absl::ConsumeSuffix(&list, "]")) {
    return Malformed(term);
  }
  std::vector<bool> once;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (entry != "0" && entry != "1") return Malformed(term);
    once.push_back(entry == "1");
  }
  for (int64_t i = 0; i < times && layers->size() <= most; ++i)
    layers->insert(layers->end(), once.begin(), once.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<bool>> ParseLayerPattern(absl::string_view text, int64_t num_layers,
                                                    LayersOfEach number) {
  text = absl::StripAsciiWhitespace(text);
  std::vector<bool> layers;
  int64_t every = 0;
  if (absl::SimpleAtoi(text, &every)) {
    if (every < 1) return Malformed(text);
    for (int64_t i = 0; i < num_layers; ++i) {
      const bool is_last = i % every == every - 1;
      layers.push_back(number == LayersOfEach::kFirst  ? i % every == 0
                       : number == LayersOfEach::kLast ? is_last
                                                       : !is_last);
    }
    return layers;
  }
  if (absl::ConsumePrefix(&text, "(") && !absl::ConsumeSuffix(&text, ")")) return Malformed(text);
  for (absl::string_view term : absl::StrSplit(text, '+'))
    MEGATRON_RETURN_IF_ERROR(AppendTerm(term, num_layers, &layers));
  if (static_cast<int64_t>(layers.size()) == num_layers) return layers;
  return absl::InvalidArgumentError(absl::StrCat(
      "says it of ", static_cast<int64_t>(layers.size()) > num_layers ? "more" : "fewer", " than ",
      num_layers, " layers"));
}

absl::StatusOr<std::string> HybridLayers(const config::ModelConfig& model) {
  const std::string& pattern = model.hybrid_layer_pattern();
  if (pattern.empty()) return absl::InvalidArgumentError("has no layers");
  const size_t other = pattern.find_first_not_of("MG*-E");
  if (other == std::string::npos) return pattern;
  const char letter = pattern[other];
  const absl::string_view because =
      letter == '|'   ? "; write the pipeline's stages as parallel.pipeline_model_parallel_layout"
      : letter == '/' ? "; there is no multi-token prediction behind layers of one branch"
                      : "";
  return absl::InvalidArgumentError(
      absl::StrCat("expects the letters M, G, *, - and E, and found \"",
                   absl::CHexEscape(std::string(1, letter)), "\"", because));
}

absl::StatusOr<std::vector<bool>> WindowLayers(const config::ModelConfig& model) {
  if (!model.has_window_attn_skip_freq())
    return std::vector<bool>(model.num_layers(), model.has_window_size());
  return ParseLayerPattern(model.window_attn_skip_freq(), model.num_layers(),
                           LayersOfEach::kAllButLast);
}

absl::StatusOr<std::vector<bool>> RotaryLayers(const config::ModelConfig& model) {
  if (!model.has_no_rope_freq()) return std::vector<bool>(model.num_layers(), true);
  MEGATRON_ASSIGN_OR_RETURN(
      std::vector<bool> layers,
      ParseLayerPattern(model.no_rope_freq(), model.num_layers(), LayersOfEach::kLast));
  layers.flip();
  return layers;
}

}  // namespace megatron
