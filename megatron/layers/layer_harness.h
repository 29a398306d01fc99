// One layer with everything around it, for tests: values for its parameters, memory, a packed
// batch.
//
//   LayerHarness harness({5, 3});  // sequences of 5 and 3 tokens
//   const auto mlp = std::make_shared<Mlp>(options, "mlp", harness.tensor_group());
//   ExpectGradients(&harness, CallsOf(mlp), kHiddenSize);
//
// Everything is fp32 on the CPU, without dropout. Parameters get normal values that depend on their
// names and on the place in the whole tensor, so that every rank holds blocks of one layer.
#ifndef MEGATRON_LAYERS_LAYER_HARNESS_H_
#define MEGATRON_LAYERS_LAYER_HARNESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/base/thread_pool.h"
#include "megatron/layers/context_slice.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// The calls that a test makes to a layer. What `forward` keeps, the others read.
struct LayerCalls {
  std::function<void(const LayerContext&, const Tensor& x, const Tensor& y)> forward;
  std::function<void(const LayerContext&, const Tensor& dy, const Tensor& dx)> backward;
  std::function<void(const LayerContext&)> backward_weight;  // null: the layer has none
  std::vector<Parameter*> parameters;
};

// The parameters of a layer but for the one named `left_out`: a row layer's bias, which the layer
// leaves to its caller.
template <typename Layer>
std::vector<Parameter*> ParametersOf(Layer* layer, const std::string& left_out = "") {
  std::vector<Parameter*> all, parameters;
  layer->AppendParameters(&all);
  for (Parameter* parameter : all) {
    if (parameter->name != left_out) parameters.push_back(parameter);
  }
  return parameters;
}

// The calls of a layer whose three methods take nothing more than the usual arguments.
template <typename Layer>
LayerCalls CallsOf(const std::shared_ptr<Layer>& layer, const std::string& left_out = "") {
  const auto saved = std::make_shared<typename Layer::Saved>();
  LayerCalls calls;
  calls.forward = [layer, saved](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    *saved = {};
    layer->Forward(ctx, x, y, saved.get());
  };
  calls.backward = [layer, saved](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    layer->Backward(ctx, dy, dx, saved.get());
  };
  calls.backward_weight = [layer, saved](const LayerContext& ctx) {
    layer->BackwardWeight(ctx, saved.get());
  };
  calls.parameters = ParametersOf(layer.get(), left_out);
  return calls;
}

// The same for a layer that is also given rotary tables, which may be null and must outlive it.
template <typename Layer>
LayerCalls CallsOf(const std::shared_ptr<Layer>& layer, const RotaryTables* rotary,
                   const std::string& left_out = "") {
  const auto saved = std::make_shared<typename Layer::Saved>();
  LayerCalls calls;
  calls.forward = [layer, rotary, saved](const LayerContext& ctx, const Tensor& x,
                                         const Tensor& y) {
    *saved = {};
    layer->Forward(ctx, rotary, x, y, saved.get());
  };
  calls.backward = [layer, rotary, saved](const LayerContext& ctx, const Tensor& dy,
                                          const Tensor& dx) {
    layer->Backward(ctx, rotary, dy, dx, saved.get());
  };
  calls.backward_weight = [layer, saved](const LayerContext& ctx) {
    layer->BackwardWeight(ctx, saved.get());
  };
  calls.parameters = ParametersOf(layer.get(), left_out);
  return calls;
}

class LayerHarness {
 public:
  // `lengths` are those of the batch's sequences, each a sample of its own.
  explicit LayerHarness(const std::vector<int>& lengths, const ProcessGroup& tensor_group = {},
                        bool sequence_parallel = false);

  const ProcessGroup& tensor_group() const { return context_.tensor_group; }
  LayerContext& context() { return context_; }
  MicroBatch& batch() { return batch_; }

  // Gives the parameters memory: values with a standard deviation of 0.3, and gradients.
  void Bind(const std::vector<Parameter*>& parameters);
  // The values of the bound parameters, which a test may change.
  std::vector<ops::HostTensor>& values() { return values_; }

  // The results of a forward and a backward.
  struct Results {
    std::vector<double> y, dx;
    std::vector<std::vector<double>> gradients;  // in the order of the parameters
  };
  // `deferred`: parameter gradients are put off, and computed by backward_weight.
  Results Run(const LayerCalls& calls, const ops::HostTensor& x, const ops::HostTensor& dy,
              bool deferred = false);
  // y alone.
  void Forward(const LayerCalls& calls, const Tensor& x, const Tensor& y);

 private:
  void ResetArenas();

  ThreadPool pool_{1};
  Arena saved_, scratch_, recompute_, deferred_;
  std::vector<int32_t> tokens_, positions_, cu_seqlens_;
  std::vector<int64_t> samples_;
  MicroBatch batch_;
  LayerContext context_;
  std::vector<ops::HostTensor> values_, gradients_;
};

// Fails where the layer's gradients, of its input and of its parameters, are not those of finite
// differences of its forward, and where putting parameter gradients off changes a bit. x and y have
// a row for each token and these widths.
void ExpectGradients(LayerHarness* harness, const LayerCalls& calls, int64_t input_width,
                     int64_t output_width);
inline void ExpectGradients(LayerHarness* harness, const LayerCalls& calls, int64_t width) {
  ExpectGradients(harness, calls, width, width);
}

// Fails where two layers with the same parameters, such as one that recomputes and one that does
// not, differ in a bit of their outputs or gradients.
void ExpectSameBits(const std::vector<int>& lengths, const LayerCalls& one, const LayerCalls& other,
                    int64_t width);

// Makes a layer for a rank; the calls must keep it alive.
using MakeLayer =
    std::function<LayerCalls(const ProcessGroup& tensor_group, bool sequence_parallel)>;

// Fails where two tensor-parallel ranks, with sequence parallelism and without, compute another
// output or other gradients than one rank does, or other bits where they communicate beside
// computing. Each rank's gradients are compared with its block of one rank's. x and y are rows of
// the residual stream.
void ExpectTwoRanksEqualOne(const std::vector<int>& lengths, const MakeLayer& make, int64_t width);

// Fails where context-parallel ranks, each with its part of the micro-batch, compute another output
// or other gradients than one rank does. `make` makes the same layer for one rank and for each of
// several.
void ExpectContextRanksEqualOne(const std::vector<int>& lengths, const ContextShard& form,
                                const std::function<LayerCalls()>& make, int64_t width);

// Makes a layer for a rank of a grid, with the ranks over which heads are cut.
using MakeGridLayer = std::function<LayerCalls(const ProcessGroup& heads, const TensorGrid& grid)>;

// The numbers of a grid (tensor_grid.h).
struct GridForm {
  int side = 1, depth = 1;
  bool is_cube = false;

  int ranks() const { return side * side * depth; }
};

// The layouts of a layer's input and output; those of squares are the same.
enum class GridLayout { kResidual, kInner };
struct GridWidths {
  int64_t input = 0, output = 0;
  GridLayout of_input = GridLayout::kResidual, of_output = GridLayout::kResidual;
};

// Fails where the ranks of a grid compute another output or other gradients than one rank does,
// with parameter gradients put off and without. Each part of the samples has the sequences of one
// entry of `lengths`, with as many tokens in each.
void ExpectGridEqualsOne(const GridForm& form, const std::vector<std::vector<int>>& lengths,
                         const MakeGridLayer& make, const GridWidths& widths);
// Makes the groups of the context for a world that is a grid.
absl::Status UseGrid(const ProcessGroup& world, const GridForm& form, LayerContext* ctx);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LAYER_HARNESS_H_
