// The values that TensorBoard's plugins show: curves, a text, a row of the table of runs, and which
// curves share a picture.
#ifndef MEGATRON_TENSORBOARD_SUMMARIES_H_
#define MEGATRON_TENSORBOARD_SUMMARIES_H_

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/tensorboard/event.pb.h"

namespace megatron::tensorboard {

// The longest tag, in bytes.
inline constexpr size_t kMaxTagBytes = 200;

// Returns the tag that stands for `name`, which may be any bytes: it is `name` itself if that is
// ASCII text of at most kMaxTagBytes. Else other bytes become "_", and a longer name is cut and
// ends with a checksum, so that two names still have two tags.
std::string ToTag(absl::string_view name);

// A point of a curve. A value beyond the range of float is infinite.
Summary::Value ScalarValue(absl::string_view tag, double value);
// Adds what TensorBoard shows with the curve. It counts in the first value of a tag in a file.
void DescribeScalar(absl::string_view description, Summary::Value* value);

// A card of text in Markdown.
Summary::Value TextValue(absl::string_view tag, absl::string_view markdown);

// A row of the table of runs: hyperparameters and their values. `start` is when the run began.
using HparamValue = std::variant<double, bool, std::string>;
Summary::Value HparamsValue(const std::vector<std::pair<std::string, HparamValue>>& hparams,
                            absl::string_view group, absl::Time start);

// Pictures of several curves each, on the page "Custom Scalars".
struct ChartOfTags {
  std::string title;
  std::vector<std::string> tags;
};
Summary::Value LayoutValue(absl::string_view title, const std::vector<ChartOfTags>& charts);

}  // namespace megatron::tensorboard

#endif  // MEGATRON_TENSORBOARD_SUMMARIES_H_
