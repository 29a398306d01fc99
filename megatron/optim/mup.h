// Maximal update parametrization (G. Yang et al., "Tensor Programs V", arXiv 2203.03466), as
// Megatron has it: initial weights and learning rates that suit a model of one width suit one that
// is `width_mult` times as wide, if these are scaled.
//
//   weights of hidden layers    initial deviation / sqrt(width_mult), and
//     AdamW                     learning rate / width_mult, epsilon / width_mult
//     Lion, LAMB                learning rate / width_mult
//     Muon                      none of it: Muon scales its own updates
//   all other parameters        with SGD, learning rate * width_mult
//
// Embeddings, the output matrix, norms and biases are the other parameters. Scales of the model,
// such as that of logits, are options of the model.
#ifndef MEGATRON_OPTIM_MUP_H_
#define MEGATRON_OPTIM_MUP_H_

#include "megatron/optim/rules/make_update_rule.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// Returns the factor of the learning rate of parameters with has_scaled_lr.
double MupLrFactor(OptimizerOptions::Kind kind, double width_mult);

// Sets the parameter's initial deviation, has_scaled_lr and epsilon_factor.
void ApplyMup(OptimizerOptions::Kind kind, double width_mult, Parameter* parameter);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_MUP_H_
