// A mixture of experts that begins with the weights of a dense model (model.moe_use_upcycling), by
// Megatron's rule (A. Khattar et al., "Upcycling Large Language Models into Mixture of Experts",
// arXiv 2410.07524).
//
// With g = ffn_hidden_size / moe_ffn_hidden_size, expert e has the (e mod g)-th of g parts of the
// dense MLP, and its router's row is row floor(e / g) of a router with initial weights: a token
// that chooses a copy chooses all its parts first. Experts' weights are scaled, so that a layer's
// output keeps its size when a token goes to some of the copies alone.
#ifndef MEGATRON_TRAIN_TRAINER_UPCYCLING_H_
#define MEGATRON_TRAIN_TRAINER_UPCYCLING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class Upcycling {
 public:
  // `seed` is that of initial weights.
  Upcycling(const TransformerOptions& options, uint64_t seed);

  // Returns the name that the dense model has for the weights that a tensor begins with: its own,
  // unless the tensor is an expert's or the norm's in front of experts. Empty: the tensor is a
  // router's, and begins with initial weights. What stands in front of a layer's name stays.
  static std::string DenseName(absl::string_view name);

  // Fills a block of the parameter, in fp32 or the model's type.
  absl::Status Load(const CheckpointReader& dense, const Parameter& parameter,
                    const ShardedTensor& block) const;

 private:
  // Fills a block of a router's weights.
  void Begin(const Parameter& parameter, const ShardedTensor& block) const;

  const int64_t parts_;      // of an MLP
  const int64_t part_size_;  // an expert's width
  const float scale_;
  const uint64_t seed_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_UPCYCLING_H_
