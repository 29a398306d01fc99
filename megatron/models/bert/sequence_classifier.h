// The end of a BERT that tells the classes of sequences, or which of several sequences is the right
// one: the last norm and the head (sequence_head.h). It stands where other models have an LmHead.
//
// Legend: T tokens of this rank, H hidden.
#ifndef MEGATRON_MODELS_BERT_SEQUENCE_CLASSIFIER_H_
#define MEGATRON_MODELS_BERT_SEQUENCE_CLASSIFIER_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/models/bert/sequence_head.h"
#include "megatron/models/measure.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class SequenceClassifier {
 public:
  struct Saved {
    NormLayer::Saved norm;
    SequenceHead::Saved head;
  };

  SequenceClassifier(const ModelOptions& options, const Measures& measures);

  // Adds to the measures' rows of `sums` (fp32 [measures, 2]) the losses and hits of sequences.
  // `losses` is that of SequenceHead::Forward.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums, Saved* saved,
               const Tensor& losses = Tensor()) const;
  // dx (=), parameter gradients (+=).
  void Backward(const LayerContext& ctx, const Tensor& dx_TH, const Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out);

  // Returns whether a parameter of this name is part of a classifier, which a pretrained BERT lacks
  // or may lack.
  static bool IsOwn(absl::string_view name);
  // Returns whether a parameter of this name has a row for each class.
  static bool HasClasses(absl::string_view name);
  // Returns whether a parameter of this name belongs to a head that a pretrained BERT, or one for
  // another task, has in its place.
  static bool IsOfOtherHead(absl::string_view name);

 private:
  const DType dtype_;
  const Measures measures_;
  std::unique_ptr<NormLayer> norm_;  // null in a post-norm model
  SequenceHead head_;
  int block_ = WeightBlocks::kNone;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_BERT_SEQUENCE_CLASSIFIER_H_
