#include "megatron/plan/stage_shapes.h"

#include <algorithm>
#include <cmath>

namespace megatron {

StageShapes::StageShapes(const PlanModel& model, const PlanLayout& layout)
    : model_(model), l_(layout), inner_layers_(InnerLayers()) {}

double StageShapes::InnerLayers() const {
  double layers = double(model_.layers()), parts = double(l_.pp * l_.vpp);
  for (const int64_t end : {l_.first_layers, l_.last_layers}) {
    if (end == PlanLayout::kAsOthers) continue;
    layers -= double(end);
    --parts;
  }
  return parts > 0 ? std::max(0.0, layers / parts) : 0;
}

double StageShapes::LayersOfPart(int64_t part) const {
  if (part == 0) return LayersOfEnd(l_.first_layers);
  return part + 1 == l_.pp * l_.vpp ? LayersOfEnd(l_.last_layers) : inner_layers_;
}

StageShape StageShapes::First() const {
  StageShape stage;
  stage.ends = l_.pp == 1 ? 2 : 1;
  stage.has_head = l_.pp == 1;
  stage.layers = LayersOfEnd(l_.first_layers) + double(l_.vpp - 1) * inner_layers_;
  if (l_.pp == 1) stage.layers = double(model_.layers());
  const double m = double(l_.micro_batches), p = double(l_.pp), v = double(l_.vpp);
  stage.flight = std::min(m, p);
  if (l_.schedule == PlanSchedule::kGPipe) stage.flight = m;
  if (l_.schedule == PlanSchedule::kZeroBubbleV) {
    stage.ends = 2;
    stage.has_head = true;
    stage.layers = LayersOfEnd(l_.first_layers) + LayersOfEnd(l_.last_layers);
  } else if (l_.vpp > 1) {
    stage.flight = p * (1 + (p - 1) / (p * v));
  }
  return stage;
}

StageShape StageShapes::Inner() const {
  StageShape stage;
  stage.layers = double(l_.vpp) * inner_layers_;
  const bool is_plain = l_.schedule == PlanSchedule::kOneForwardOneBackward && l_.vpp == 1;
  stage.flight =
      is_plain ? std::min<double>(double(l_.micro_batches), double(l_.pp - 1)) : First().flight;
  return stage;
}

StageShape StageShapes::Last() const {
  if (l_.pp == 1) return First();
  if (l_.schedule == PlanSchedule::kZeroBubbleV) return Inner();
  StageShape stage;
  stage.ends = 1;
  stage.has_head = true;
  stage.layers = LayersOfEnd(l_.last_layers) + double(l_.vpp - 1) * inner_layers_;
  if (l_.schedule == PlanSchedule::kGPipe) stage.flight = double(l_.micro_batches);
  return stage;
}

// An encoder's layers lie in front of the others.
StageShape StageShapes::Part(int64_t position) const {
  StageShape part;
  const double encoders = double(model_.encoder_layers());
  if (l_.encoder_stages > 0) {
    const bool is_encoder = position < l_.encoder_stages;
    part.layers = is_encoder
                      ? encoders / double(l_.encoder_stages)
                      : (double(model_.layers()) - encoders) / double(l_.pp - l_.encoder_stages);
    part.encoders = is_encoder ? part.layers : 0;
    return part;
  }
  const double before = position == 0 ? 0 : LayersOfPart(0) + double(position - 1) * inner_layers_;
  part.layers = LayersOfPart(position);
  if (!model_.hybrid_layers().empty()) {
    part.branches = CountBranches(model_.hybrid_layers().substr(size_t(std::llround(before)),
                                                                size_t(std::llround(part.layers))));
  }
  part.encoders = std::min(part.layers, std::max(0.0, encoders - before));
  return part;
}

StageShape StageShapes::At(int64_t number) const {
  StageShape stage = number == 0 ? First() : number + 1 == l_.pp ? Last() : Inner();
  if (!HasSeveralKinds()) return stage;
  stage.layers = 0;
  for (int64_t chunk = 0; chunk < l_.vpp; ++chunk) {
    const bool comes_back = l_.schedule == PlanSchedule::kZeroBubbleV && chunk == 1;
    const StageShape part = Part(chunk * l_.pp + (comes_back ? l_.pp - 1 - number : number));
    stage.layers += part.layers;
    stage.encoders += part.encoders;
    AddBranches(part.branches, &stage.branches);
  }
  return stage;
}

}  // namespace megatron
