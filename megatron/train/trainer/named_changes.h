// What differs between two lists of named values, for people.
//
//   NameChanges("ranks = 4; form = topk", "ranks = 2; form = topk") == "ranks was 4 and is 2"
#ifndef MEGATRON_TRAIN_TRAINER_NAMED_CHANGES_H_
#define MEGATRON_TRAIN_TRAINER_NAMED_CHANGES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns "name = value; name = value". No name and no value has a semicolon or an equals sign.
std::string JoinNamed(const std::vector<std::pair<std::string, std::string>>& values);

// Returns the values that differ between two such lists, by name, in the order of `now`; empty
// where none does. What one list lacks, or is no such list, is passed over.
std::string NameChanges(absl::string_view before, absl::string_view now);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_NAMED_CHANGES_H_
