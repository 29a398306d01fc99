#include <algorithm>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/layer_costs.h"
#include "megatron/plan/shared_cores.h"

namespace megatron {
namespace {

// Kernels between the products of a branch, those around it included; with a state a convolution, a
// recurrence and a norm besides, which backward computes again.
constexpr double kKernelsForward = 3.5;
constexpr double kKernelsBackward = 5.5;
constexpr double kStateKernelsForward = 4;
constexpr double kStateKernelsBackward = 8;

// What a recurrence does for one token in one pass.
struct RecurrencePass {
  const char* name;  // of measured kernels
  double pairs;      // of a multiplication and an addition
  double channels;   // numbers that it, the convolution and the norm read and write
  double own;        // those of them that are the recurrence's
  double states;     // times that a chunk's states are read and written
};

bool HasState(PlanBranch branch) { return branch == kMambaBranch || branch == kDeltaBranch; }

}  // namespace

RecurrenceCosts LayerPredictor::Recurrence(PlanBranch branch) const {
  return RecurrenceOf(branch, RankShape());
}

// Recurrences are computed in 32 bits, whatever type activations have. A channel of the convolution
// is read and written forward, read with its gradient and written backward, and computed again
// there; the norm, which has a gate, is computed again too. For a norm of all groups what is
// normalized is read once more in each pass, in backward with its gradient. Each chunk's states are
// in memory. What is measured of a recurrence includes its memory.
void LayerPredictor::AddRecurrence(PlanBranch branch, LayerCosts* layer) const {
  const LayerShape shape = RankShape();
  const RecurrenceCosts costs = Recurrence(branch);
  const double peak = gpu_.fp32_tflops() > 0
                          ? gpu_.fp32_tflops() * 1e12 * RankSpeed(gpu_, program_, l_.gpus())
                          : rates_.flops;
  const double rate = peak * program_.product_efficiency();
  const double states = 4 * costs.states / double(kRecurrenceChunk);
  const auto seconds = [&](const RecurrencePass& pass) {
    const double flops = 2 * tokens_ * pass.pairs;
    const auto measured = MeasuredSeconds(RecurrenceKernel(branch, shape, pass.name), flops, peak);
    const double channels = measured.has_value() ? pass.channels - pass.own : pass.channels;
    const double moving = rates_.element_bytes * tokens_ * channels / rates_.memory;
    if (measured.has_value()) return *measured + moving;
    return flops / rate + moving + tokens_ * pass.states * states / rates_.memory;
  };
  const double in = costs.convolved, out = costs.outputs;
  const double sums = NormsAllGroups(branch, model_) ? 1 : 0;  // kernels of a pass
  layer->forward +=
      seconds({"forward", costs.forward, 3 * in + (4 + 2 * sums) * out, in + out, 2}) +
      (kStateKernelsForward + sums) * meeting_;
  layer->backward +=
      seconds({"input_gradient", costs.backward, 7 * in + (9 + 3 * sums) * out, 2 * in + out, 4}) +
      (kStateKernelsBackward + sums) * meeting_;
  layer->parameters += costs.vectors;
}

// Context-parallel ranks exchange tokens for groups of heads, and give back what the norm gives. In
// backward that goes once more with the two gradients.
void LayerPredictor::AddStateExchange(LayerCosts* layer, const RecurrenceCosts& costs) const {
  if (l_.cp == 1) return;
  const auto exchange = [&](double channels) {
    return CollectiveSeconds(gpu_, program_, TrafficCall::kAllToAll, {l_.cp, l_.tp},
                             rates_.element_bytes * tokens_ * channels) +
           LaneSeconds(gpu_);
  };
  const double packed = exchange(costs.packed), outputs = exchange(costs.outputs);
  layer->context_forward += packed + outputs;
  layer->context_backward += packed + 2 * outputs;
}

// Each rank that has some of the groups has all of their tokens.
void LayerPredictor::AddNormSums(LayerCosts* layer) const {
  const auto sum = [&](const PlanGroup& group) {
    return CollectiveSeconds(gpu_, program_, TrafficCall::kAllReduce, group,
                             NormSumBytes(tokens_ * double(l_.cp)));
  };
  const double tensor = sum({l_.tp, 1}), context = sum({l_.cp, l_.tp});
  layer->tensor_forward += tensor;
  layer->tensor_backward += tensor;
  layer->context_forward += context;
  layer->context_backward += context;
}

// Returns the channels of a branch's first product on this rank, and those that its last one reads.
std::pair<double, double> LayerPredictor::BranchWidths(PlanBranch branch) const {
  switch (branch) {
    case kAttentionBranch:
      return {(query_width() + 2 * kv_width()) / tp_, query_width() / tp_};
    case kMambaBranch:
    case kDeltaBranch: {
      const RecurrenceCosts costs = Recurrence(branch);
      return {costs.packed, costs.outputs};
    }
    default: {
      const double ffn = (branch == kExpertsBranch ? model_.shared_ffn() : model_.ffn()) / tp_;
      return {(model_.is_gated() ? 2 : 1) * ffn, ffn};
    }
  }
}

// Experts gather rows and give them back themselves, and a shared one is as an MLP. What experts
// give is summed up, in the open, where ranks don't share out rows.
void LayerPredictor::AddBranchTensor(PlanBranch branch, LayerCosts* layer) const {
  if (l_.tp == 1) return;
  const bool is_mixture = branch == kExpertsBranch, gathers = l_.is_sequence_parallel;
  const auto seconds_of = [&](TrafficCall call) {
    return CollectiveSeconds(gpu_, program_, call, {l_.tp, 1},
                             rates_.element_bytes * tokens_ * model_.hidden());
  };
  const double gather = gathers ? seconds_of(TrafficCall::kAllGather) : 0;
  const double sum = gathers ? gather + seconds_of(TrafficCall::kReduceScatter)
                             : seconds_of(TrafficCall::kAllReduce);
  const double in_the_open = is_mixture && !gathers ? 1 : 0;
  const double cut = is_mixture && model_.shared_ffn() == 0 ? 0 : 1;
  layer->tensor_forward = (cut + in_the_open) * sum;
  layer->tensor_backward = (cut + in_the_open) * (sum + gather);
  if (l_.overlaps_forward && cut > 0) {
    const auto [in, out] = BranchWidths(branch);
    layer->tensor_forward = PiecesBeside(in, out) + in_the_open * sum;
  }
}

// What lies between the products of attention and of an MLP, and around all branches.
void LayerPredictor::AddBranchElementwise(PlanBranch branch, double ffn, LayerCosts* layer) const {
  double channels = 3 * model_.hidden() / sp_;
  if (branch == kAttentionBranch) channels += 2 * (query_width() + kv_width()) / tp_;
  if (branch == kMlpBranch || branch == kExpertsBranch)
    channels += ffn * (model_.is_gated() ? 3 : 2) / tp_;
  const double seconds = rates_.element_bytes * tokens_ * channels / ElementwiseRate() +
                         program_.layer_overhead_seconds() / 2.6 / 2;
  layer->forward += seconds + kKernelsForward * meeting_;
  layer->backward += 1.6 * seconds + kKernelsBackward * meeting_;
}

void LayerPredictor::AddBranchMemory(PlanBranch branch, double ffn, LayerCosts* layer) const {
  const double h = model_.hidden(), bytes = rates_.element_bytes;
  const double halves = model_.is_gated() ? 3 : 2;
  layer->input_bytes = bytes * tokens_ * h / sp_;
  double channels = 2 * h / sp_, widest = 0, others = 0;
  if (HasState(branch)) {
    const RecurrenceCosts costs = Recurrence(branch);
    channels += costs.packed + costs.outputs;
    widest = costs.packed + costs.outputs + 2 * costs.convolved;
    layer->widest = 8 * tokens_ * costs.states / double(kRecurrenceChunk);
    if (NormsAllGroups(branch, model_)) others = NormSumBytes(double(l_.cp));
  } else if (branch == kAttentionBranch) {
    channels += 2 * (query_width() + kv_width()) / tp_;
    others = 4 * model_.heads() / tp_;
  } else {
    channels += halves * ffn / tp_;
    widest = halves * ffn / tp_;
    if (branch == kExpertsBranch)
      others = model_.experts_per_token() / tp_ * double(l_.etp) * (bytes * h + 8);
  }
  layer->saved_bytes = tokens_ * (bytes * channels + others);
  layer->widest += bytes * tokens_ * widest;
}

LayerCosts LayerPredictor::Branch(PlanBranch branch) const {
  LayerCosts layer;
  const LayerShape shape = RankShape();
  double ffn = model_.ffn();
  switch (branch) {
    case kMambaBranch:
    case kDeltaBranch: {
      const MatrixProducts products =
          branch == kMambaBranch ? MambaProducts(shape, tokens_) : DeltaProducts(shape, tokens_);
      AddProducts(&layer, products);
      layer.flops += 2 * ActivationMultiplyAdds(products);
      AddRecurrence(branch, &layer);
      AddStateExchange(&layer, Recurrence(branch));
      break;
    }
    case kAttentionBranch:
      AddProducts(&layer, SelfAttentionProducts(
                              shape, tokens_,
                              CausallySeen(double(l_.sequence), FlopsConvention::kClassic)));
      AddAttentionCore(&layer);
      AddChunks(&layer);
      AddContext(&layer, tokens_, layer.attention_core);
      break;
    case kMlpBranch:
      AddProducts(&layer, MlpProducts(shape, tokens_));
      break;
    case kExpertsBranch:
      ffn = model_.shared_ffn() + model_.experts_per_token() * model_.expert_ffn();
      AddProducts(&layer, MixtureProducts(shape, tokens_));
      break;
  }
  layer.parameters += model_.hidden();  // the norm
  AddBranchElementwise(branch, ffn, &layer);
  AddBranchTensor(branch, &layer);
  if (NormsAllGroups(branch, model_)) AddNormSums(&layer);
  if (branch == kExpertsBranch) {
    AddExpertExchange(&layer);
    AddRouter(&layer);
  }
  AddBranchMemory(branch, ffn, &layer);
  layer.forward = std::max(layer.forward, program_.layer_seconds() / 2 - layer.tensor_forward);
  layer.backward =
      std::max(layer.backward, program_.layer_seconds_backward() / 2 - layer.tensor_backward);
  if (branch == kExpertsBranch && !l_.drops_tokens) {
    layer.forward += (l_.deduplicates_dispatch ? 2 : 1) * program_.routing_seconds();
    layer.backward += program_.routing_seconds();
  }
  return layer;
}

}  // namespace megatron
