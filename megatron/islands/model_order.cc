#include "megatron/islands/model_order.h"

#include "absl/strings/str_cat.h"
#include "megatron/base/quoted.h"
#include "megatron/checkpoint/rectangle.h"

namespace megatron {

ModelOrder::ModelOrder(const std::vector<NamedShape>& tensors) {
  for (const NamedShape& tensor : tensors) {
    places_[tensor.name] = {elements_, tensor.shape};
    elements_ += tensor.shape.numel();
  }
}

absl::Status ModelOrder::ForEachRun(const TensorBlock& block,
                                    absl::FunctionRef<void(const Run&)> run) const {
  const auto found = places_.find(block.name);
  if (found == places_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no parameter ", Quoted(block.name)));
  }
  const Shape& shape = found->second.shape;
  const Rectangle& place = block.place;
  if (place.start.rank() != shape.rank() || !IsInside(place, shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the block ", ToString(place), " is not in ", Quoted(block.name)));
  }
  Rectangle whole{shape, shape};
  for (int d = 0; d < shape.rank(); ++d) whole.start[d] = 0;
  return megatron::ForEachRun(place, whole, place, [&](const CommonRun& common) {
    run({common.source, found->second.begin + common.target, common.count});
    return absl::OkStatus();
  });
}

}  // namespace megatron
