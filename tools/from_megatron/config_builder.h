// A configuration that is put together field by field, with the place that each field came from.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_CONFIG_BUILDER_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_CONFIG_BUILDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_locations.h"

namespace megatron {

class ConfigBuilder {
 public:
  // Sets the field to the values, which are spelled as on Megatron's command lines: a flag without
  // a value sets a bool, '-' and '+' in the name of an enumeration's value count as '_'. A message
  // takes one value for each of its fields, or none. `origin` is what the comment of the line says.
  // Returns kNotFound for an enumeration that has no such value, kInvalidArgument for everything
  // else that does not fit; the field stays as it was.
  absl::Status Set(absl::string_view path, const std::vector<std::string>& values,
                   absl::string_view origin);
  absl::Status SetNumber(absl::string_view path, int64_t value, absl::string_view origin);

  void Clear(absl::string_view path);
  bool IsSet(absl::string_view path) const;
  std::string Origin(absl::string_view path) const;

  // A reference to a part of it ends with the next Set.
  const config::PretrainConfig& config() const { return config_; }

  // The origins as the places of the fields.
  ConfigLocations Locations() const;

  // The fields that were set, as a configuration's text, each with its origin as a comment.
  std::string Text() const;

 private:
  config::PretrainConfig config_;
  std::map<std::string, std::string, std::less<>> origins_;
};

// Returns the text without line feeds and other control characters, for a comment of one line.
std::string OneLine(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_CONFIG_BUILDER_H_
