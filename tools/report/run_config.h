// The configuration of a run, and what in it is not as it would be by itself.
#ifndef MEGATRON_TOOLS_REPORT_RUN_CONFIG_H_
#define MEGATRON_TOOLS_REPORT_RUN_CONFIG_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"

namespace megatron::report {

struct ConfigValue {
  std::string path;   // "optimizer.lr"
  std::string value;  // as the text format spells it
  // The value without this line: the default, or what follows from other fields. Empty: none.
  std::string otherwise;

  bool differs() const { return value != otherwise; }
};

struct RunConfig {
  std::string text;  // the whole configuration; empty if it is not known
  config::PretrainConfig config;
  std::vector<ConfigValue> values;  // in the order of the schema
};

// `text` is that of EffectiveConfigText(); lines that cannot be read are passed over.
RunConfig ParseRunConfig(absl::string_view text);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_RUN_CONFIG_H_
