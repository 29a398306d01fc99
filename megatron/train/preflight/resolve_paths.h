// Finds the files that a configuration names.
#ifndef MEGATRON_TRAIN_PREFLIGHT_RESOLVE_PATHS_H_
#define MEGATRON_TRAIN_PREFLIGHT_RESOLVE_PATHS_H_

#include <string>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Relative paths start in the user's directory. A directory that import_hf made may be moved: a
// file that is no longer where its configuration says is looked for beside the configuration,
// `config_file`, and the tokenizer in a folder there. An empty name of a configuration is an error,
// and so is a relative path where the directory that this process stands in is gone.
absl::Status ResolvePaths(FileSystem& fs, const std::string& config_file,
                          config::PretrainConfig* config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_RESOLVE_PATHS_H_
