// Megatron's list of the data files that each part of a run reads, a JSON object:
//
//   {"train": ["0.3", "a_text_document", "0.7", "b_text_document"],
//    "valid": "c_text_document d_text_document", "test": null}
//
// A value is a list of prefixes and weights as ParseBlend (data/blend.h) takes them, a weight as a
// string or a number; or one string of them, separated by white space; or null for none.
#ifndef MEGATRON_TRAIN_BATCHES_PER_SPLIT_PATHS_H_
#define MEGATRON_TRAIN_BATCHES_PER_SPLIT_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct PerSplitPaths {
  std::vector<std::string> train;  // never empty
  std::vector<std::string> valid, test;
};

// Returns kDataLoss if the file is wrong: it must have "train" and no keys other than the three.
absl::StatusOr<PerSplitPaths> ParsePerSplitPaths(absl::string_view json);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_PER_SPLIT_PATHS_H_
