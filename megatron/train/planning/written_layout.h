// The parts of a layout that a configuration has written, and that a search is to keep.
#ifndef MEGATRON_TRAIN_PLANNING_WRITTEN_LAYOUT_H_
#define MEGATRON_TRAIN_PLANNING_WRITTEN_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/search_layouts.h"

namespace megatron {

// A field and its value, as --set takes them.
struct WrittenField {
  std::string path, value;
};

// Returns "parallel.tensor_model_parallel_size=2, parallel.sequence_parallel=true".
std::string ToText(const std::vector<WrittenField>& fields);

// Returns whether the field, "parallel.tensor_model_parallel_size", is a part of a layout. The size
// of micro-batches is not: every configuration has one.
bool IsOfLayout(absl::string_view path);

// Returns the field if it is written.
std::optional<WrittenField> FindWritten(const config::PretrainConfig& config,
                                        const std::string& path);

// Returns the parts of a layout that are written.
std::vector<WrittenField> WrittenLayout(const config::PretrainConfig& config);

// Returns whether the configuration has these fields with these values.
bool Keeps(const config::PretrainConfig& config, const std::vector<WrittenField>& fields);

// Returns a filter that allows layouts of the configuration which keep the fields; null if there
// are no fields.
LayoutFilter FilterOf(const config::PretrainConfig& config, std::vector<WrittenField> fields,
                      bool is_gpu);

// Returns the error of a search that found no layout of the configuration with these fields on so
// many of what the noun, "rank" or "GPU", names. It names the field that is out of its range, if
// there is one.
absl::Status NothingKeeps(const config::PretrainConfig& config,
                          const std::vector<WrittenField>& fields, int64_t count,
                          absl::string_view noun);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_WRITTEN_LAYOUT_H_
