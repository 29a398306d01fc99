// What each stage of a pipeline has of a model.
#ifndef MEGATRON_PLAN_STAGE_SHAPES_H_
#define MEGATRON_PLAN_STAGE_SHAPES_H_

#include <cstdint>

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

struct StageShape {
  double layers = 0;
  double encoders = 0;      // those of them that are an encoder's
  BranchCounts branches{};  // all of them, of a hybrid model
  int ends = 0;             // the number of embeddings and heads
  bool has_head = false;
  double flight = 1;  // micro-batches whose activations are held
};

// The arguments must live as long as this.
class StageShapes {
 public:
  StageShapes(const PlanModel& model, const PlanLayout& layout);

  // The stages of a model without an encoder, by the number of their layers: those between the
  // first and the last are alike.
  StageShape First() const;
  StageShape Inner() const;
  StageShape Last() const;
  // The stage of that number of any model.
  StageShape At(int64_t number) const;
  // Returns whether stages with as many layers may have others.
  bool HasSeveralKinds() const {
    return model_.encoder_layers() > 0 || !model_.hybrid_layers().empty();
  }
  // The layers of one of the model's parts, of which a stage has `vpp`.
  StageShape Part(int64_t position) const;

 private:
  double InnerLayers() const;
  double LayersOfEnd(int64_t end) const {
    return end == PlanLayout::kAsOthers ? inner_layers_ : double(end);
  }
  double LayersOfPart(int64_t part) const;

  const PlanModel& model_;
  const PlanLayout& l_;
  const double inner_layers_;  // those of a part between the first and the last
};

}  // namespace megatron

#endif  // MEGATRON_PLAN_STAGE_SHAPES_H_
