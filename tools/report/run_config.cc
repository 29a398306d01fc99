#include "tools/report/run_config.h"

#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_paths.h"

namespace megatron::report {
namespace {

// Returns the value's text, or nothing if the field has neither a value nor a default.
std::string TextOf(const config::PretrainConfig& config, const std::string& path) {
  const FieldRef ref = Resolve(config, path);
  return IsPresent(ref) || ref.field->has_default_value() ? ValueText(ref) : "";
}

}  // namespace

RunConfig ParseRunConfig(absl::string_view text) {
  RunConfig run;
  run.text = std::string(text);
  if (text.empty()) return run;
  run.config = ParseConfig(text, "the run's configuration").config;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const std::string value = TextOf(run.config, path);
    if (value.empty()) continue;
    config::PretrainConfig without = run.config;
    ClearField(&without, path);
    ResolveDefaults(&without);
    run.values.push_back({path, value, TextOf(without, path)});
  }
  return run;
}

}  // namespace megatron::report
