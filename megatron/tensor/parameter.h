// Parameter: a trained tensor that knows which part of the whole model's tensor it is.
//
// Vocabulary: the *global* tensor is what one process without parallelism would hold; this rank
// holds a rectangular *block* of it. From the description alone follow initialization, gradient
// reduction, norm and clipping, optimizer shards, checkpoints and the replica check; no layer does
// any of these by hand.
#ifndef MEGATRON_TENSOR_PARAMETER_H_
#define MEGATRON_TENSOR_PARAMETER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/tensor/axis.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct Sharding {
  Shape global_shape;
  Shape offset;              // start of this rank's block, per dim
  Shape local_shape;         // shape of this rank's block
  bool expert_grid = false;  // whether the axes below belong to the expert grid
  AxisSet sharded;           // axes that cut the tensor: ranks along them hold different blocks
  // The number of consecutive tensor-parallel ranks that hold each block of a tensor that is cut
  // over them. Where it is more than one, `partial` over kTensor means over these ranks.
  int tensor_replicas = 1;
  // Axes, besides data and context, over which each rank's gradient is only a summand.
  AxisSet partial;
};

// The whole tensor on every rank.
Sharding Replicated(const Shape& shape, AxisSet partial = {});
// Dim `dim` in `parts` equal pieces over tensor-parallel ranks, of which this is piece `part`.
Sharding SplitOverTensor(const Shape& shape, int dim, int parts, int part);

struct Initializer {
  enum Kind { kZeros, kOnes, kNormal, kUniform, kLogUniform, kStepBias };
  Kind kind = kZeros;
  float stddev = 0;  // with kUniform the bound: values lie between its negative and it
  float low = 0, high = 0;

  static Initializer Zeros() { return {kZeros, 0}; }
  static Initializer Ones() { return {kOnes, 0}; }
  static Initializer Normal(float stddev) { return {kNormal, stddev}; }
  static Initializer Uniform(float bound) { return {kUniform, bound}; }
  // The logarithm of a number that is uniform between the two.
  static Initializer LogUniform(float low, float high) { return {kLogUniform, 0, low, high}; }
  // What softplus makes a number of whose logarithm is uniform between those of the two.
  static Initializer StepBias(float low, float high) { return {kStepBias, 0, low, high}; }
};

// The matrices that a hidden layer's weight consists of, for optimizers that update a matrix as a
// whole. The last dim has their columns, the dims in front of it their rows.
struct MatrixDims {
  // The first dims, which are no part of the rows but number matrices: experts, gate and up.
  int stacked = 0;
  // Where not empty, dim 1 of the global tensor is cut into matrices of their own, of these sizes:
  // the queries, keys and values of each group of heads. Not with `stacked`.
  std::vector<int64_t> parts;
};

struct Parameter {
  std::string name;  // the name in Megatron's checkpoints: "decoder.layers.0.mlp.linear_fc1.weight"
  Sharding sharding;
  Initializer initializer;
  bool weight_decay = true;
  // Whether it keeps its values: it has no gradient, `grad` is empty, and no optimizer sees it.
  bool frozen = false;
  // Whether it is the table of the word embedding or the matrix of the output layer.
  bool is_embedding_or_output = false;
  // Whether its learning rate is the scaled one of a step, and the factor of AdamW's epsilon
  // (optim/mup.h).
  bool has_scaled_lr = false;
  float epsilon_factor = 1;
  // None: no matrix of a hidden layer, but an embedding, an output layer, a norm or a bias.
  std::optional<MatrixDims> matrix;
  // The number in the whole model of the layer whose self-attention has its queries and keys from
  // this weight, or from the bias beside it. Dim 0 of the global tensor then counts groups of
  // heads, dim 1 the query heads of a group, its key and its value, and dim 2 channels.
  std::optional<int64_t> attention_layer;
  // A tied weight that several pipeline stages hold: every copy has the owner's name (the first
  // stage's), and the owner alone counts in norms, is optimized and saved. `tied` without `owner`
  // is a copy.
  bool tied = false;
  bool owner = true;
  // Parameters of a stage that are used together have the same block: numbers in the order in which
  // stages list their parameters. Its weights are gathered and its gradients reduced at once.
  int block = 0;

  // Views, bound by whoever owns the memory (optim's buffers): the values that layers use, in the
  // model's dtype, and the fp32 gradient that backward accumulates into. Both have the block's
  // shape.
  Tensor data;
  Tensor grad;
};

// Returns the bound of Glorot and Bengio's uniform distribution for the parameter's matrix, of
// which an expert's tensor has one for each expert: sqrt(6 / (rows + columns)).
float XavierBound(const Parameter& parameter);

// Returns whether any of them is not frozen.
bool AnyIsTrained(const std::vector<const Parameter*>& parameters);

// The block of parameters that come behind these.
inline int NextBlock(const std::vector<Parameter*>& parameters) {
  return parameters.empty() ? 0 : parameters.back()->block + 1;
}
// Appends parameters that make a block of their own.
void AppendBlock(const std::vector<Parameter*>& block, std::vector<Parameter*>* out);

// Fills `out` (fp32, contiguous, the block's shape, CPU) with the initial values of the parameter's
// block. They depend on the seed, the name and the position in the global tensor alone, so any
// layout starts from the same model.
void FillInitial(const Parameter& parameter, uint64_t seed, const Tensor& out);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_PARAMETER_H_
