// Loads a configuration by its name: finds it, reads it, applies overrides, computes unset values,
// and checks it.
//
//   MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadConfig("gpt_demo",
//   {"train.train_iters=50"}, ConfigPurpose::kRun));

#ifndef MEGATRON_TRAIN_CONFIGS_CONFIG_LOADER_H_
#define MEGATRON_TRAIN_CONFIGS_CONFIG_LOADER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_locations.h"
#include "megatron/train/validate/validate.h"

namespace megatron {

struct LoadedConfig {
  config::PretrainConfig config;  // valid, and with its computed fields set
  ConfigLocations locations;
};

struct FoundConfig {
  std::string source;  // its name in messages: the given path, or "gpt_demo.textproto (shipped)"
  std::string text;
};

// Reads the file `name`, taken from the directory in which the user stands: that is
// $BUILD_WORKING_DIRECTORY under `bazel run`, which starts programs elsewhere, and the current
// directory else. If there is no such file and `name` has no directory, reads the shipped
// configuration of that name, with or without ".textproto". Returns NotFound with both places and
// the names of the shipped ones.
absl::StatusOr<FoundConfig> FindConfig(const std::string& name);

// Returns the path by which this process reaches the user's `path`: relative ones start in the
// user's directory.
std::string PathFromWhereTheUserStands(const std::string& path);

// Parses, applies overrides, completes and checks. Returns InvalidArgument with every error of
// text, types and values, one on each line.
absl::StatusOr<LoadedConfig> LoadConfigFromString(absl::string_view text, absl::string_view source,
                                                  const std::vector<std::string>& overrides,
                                                  ConfigPurpose purpose);

// Does the same with the configuration that a checkpoint keeps. A section that another program has
// added, and this one does not know, is passed over. So are checkpoint.no_load_optim and
// data.data_sharding, which say how a run goes on and not what the checkpoint holds.
absl::StatusOr<LoadedConfig> LoadSavedConfig(absl::string_view text, absl::string_view source);

absl::StatusOr<LoadedConfig> LoadConfig(const std::string& name,
                                        const std::vector<std::string>& overrides,
                                        ConfigPurpose purpose);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIGS_CONFIG_LOADER_H_
