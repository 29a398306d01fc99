// Turns the text of a configuration and the --set arguments after it into a PretrainConfig, and
// finds every error on the way.
//
// The text is protobuf's text format. An override is `path.to.field=value`:
//
//   optimizer.lr=3e-4                          a number, a name of an enumeration, true or false:
//                                              as in a file
//   checkpoint.save=/data/run 7                a string, which needs no quotes
//   recompute.recompute_modules=core_attn,mlp  a repeated field: replaced as a whole, brackets are
//                                              optional
//   data.stories={num_bytes: 1000000}          a message: replaced as a whole
//   data.stories=                              removes the field, as if the file did not have it
//
// An override wins over the file, a later one over an earlier one.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_PARSER_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_PARSER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_locations.h"

namespace megatron {

struct ParsedConfig {
  // The fields that could be read. Fields in error are unset here, and broken in `locations`.
  config::PretrainConfig config;
  ConfigLocations locations;
  // Errors of syntax, names and types. validate.h finds those of values.
  std::vector<ConfigError> errors;
};

enum class UnknownSections {
  kRefuse,
  kIgnore,  // passes over those that another program has added
};

// `source` names the text in messages: "gpt_demo.textproto".
ParsedConfig ParseConfig(absl::string_view text, absl::string_view source,
                         const std::vector<std::string>& overrides = {},
                         UnknownSections unknown_sections = UnknownSections::kRefuse);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_PARSER_H_
