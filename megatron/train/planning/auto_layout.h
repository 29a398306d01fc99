// train.auto_layout: the layout that a run takes on the ranks that there are.
//
//   MEGATRON_ASSIGN_OR_RETURN(const SavedLayout chosen, ChooseLayout(fs, request));
//   LoadConfigFromString(text, source, WithLayout(overrides, chosen), purpose);
//
// The choice follows from the configuration, the number of ranks and the files that are read.
// Fields of `parallel` and `recompute` that are written are kept, train.micro_batch_size is not.
#ifndef MEGATRON_TRAIN_PLANNING_AUTO_LAYOUT_H_
#define MEGATRON_TRAIN_PLANNING_AUTO_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/planning/saved_layout.pb.h"

namespace megatron {

// The file's name in the directory of checkpoints.
inline constexpr char kSavedLayoutName[] = "auto_layout.textproto";

struct LayoutRequest {
  ParsedConfig parsed;  // without errors; its paths are resolved
  // The ranks that a launcher has started, and those of this machine; 0: nobody has.
  int64_t launched = 0;
  int64_t launched_here = 0;
};

// Returns the layout that the directory of checkpoints has for as many ranks, if it fits what is
// written; else the fastest one by prediction. `line` says what was chosen, beside what, and why.
// Errors are kInvalidArgument: wrong fields, wrong files, no global batch size, a model that fits
// nowhere; and kUnimplemented for models that can't be planned.
absl::StatusOr<SavedLayout> ChooseLayout(FileSystem& fs, const LayoutRequest& request);

// Returns the overrides with those of the layout behind them.
std::vector<std::string> WithLayout(std::vector<std::string> overrides, const SavedLayout& layout);

// Writes the file into this directory of checkpoints, for the next start, unless it is there.
absl::Status SaveLayout(FileSystem& fs, const std::string& directory, const SavedLayout& layout);

// The same as text, for other ranks.
std::string LayoutText(const SavedLayout& layout);
absl::StatusOr<SavedLayout> ParseSavedLayout(const std::string& text);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_AUTO_LAYOUT_H_
