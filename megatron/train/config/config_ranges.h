// The values that each field of the configuration accepts, taken alone. Rules between fields are in
// validate.h.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_RANGES_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_RANGES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace megatron {

// An interval; an end that is excluded is accepted by no value equal to it.
struct FieldRange {
  double min;
  double max;
  bool min_excluded = false;
  bool max_excluded = false;

  // False for NaN.
  bool Contains(double value) const;
};

// The range of the numeric field at `path` ("model.num_layers"). Every numeric field has one.
const FieldRange& RangeOf(absl::string_view path);

// What the field at `path` takes, to be read after "expects": "an integer from 1 to 100000", "true
// or false", "one of adam, sgd".
std::string DescribeAccepted(const google::protobuf::FieldDescriptor& field,
                             absl::string_view path);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_RANGES_H_
