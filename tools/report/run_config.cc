#include "tools/report/run_config.h"

#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/schema_fields.h"

namespace megatron::report {
namespace {

// Returns the value's text, or nothing if the field has neither a value nor a default.
std::string TextOf(const FieldRef& ref) {
  return IsPresent(ref) || ref.field->has_default_value() ? ValueText(ref) : "";
}

}  // namespace

RunConfig ParseRunConfig(absl::string_view text) {
  RunConfig run;
  run.text = std::string(text);
  if (text.empty()) return run;
  run.config = ParseConfig(text, "the run's configuration").config;
  // Without a field that is not written the configuration is the same, whichever field it is.
  config::PretrainConfig completed = run.config;
  ResolveDefaults(&completed);
  for (const SchemaField& field : SchemaFields()) {
    if (field.is_message()) continue;
    const FieldRef ref = field.In(run.config);
    const std::string value = TextOf(ref);
    if (value.empty()) continue;
    if (!IsPresent(ref)) {
      run.values.push_back({field.path, value, TextOf(field.In(completed))});
      continue;
    }
    config::PretrainConfig without = run.config;
    ClearField(&without, field.path);
    ResolveDefaults(&without);
    run.values.push_back({field.path, value, TextOf(field.In(without))});
  }
  return run;
}

}  // namespace megatron::report
