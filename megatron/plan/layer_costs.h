// What one layer of a model, and its head, cost a rank in one micro-batch: step_prediction.h makes
// a step of these.
#ifndef MEGATRON_PLAN_LAYER_COSTS_H_
#define MEGATRON_PLAN_LAYER_COSTS_H_

#include <utility>

#include "absl/types/optional.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/model_costs.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// What a layer costs in one micro-batch on one rank.
struct LayerCosts {
  double forward = 0;  // seconds
  double backward = 0;
  double backward_weight = 0;  // the part of it that makes weights' gradients
  double attention_core = 0;   // forward seconds that selective recomputation runs again
  double tensor_forward = 0;   // seconds of collectives
  double tensor_backward = 0;
  double context_forward = 0;  // what attention does not hide
  double context_backward = 0;
  double expert = 0;
  double expert_products = 0;         // seconds of them in both passes
  double expert_weight_products = 0;  // those of weights' gradients
  double flops = 0;                   // the forward pass's, as the model's FLOPs count them
  double parameters = 0;              // this rank's, without experts
  double expert_parameters = 0;
  double saved_bytes = 0;    // held for the backward pass
  double input_bytes = 0;    // held with full recomputation
  double host_bytes = 0;     // the part of either that leaves for host memory behind the layer
  double link_seconds = 0;   // for which the link to the host carries chunks of attention
  double widest = 0;         // bytes of the backward pass's temporaries
  double weight_shapes = 0;  // weights of one product of each shape
};

// What a rank does in a second, and the bytes of an activation or weight.
struct RankRates {
  double element_bytes = 2;
  double kept_input_bytes = 2;  // those of a product's input that its weight's gradient needs alone
  double flops = 0;             // those of products in 16 or 32 bits
  double product_flops = 0;     // those of products in the layout's precision
  double memory = 0;            // bytes
  double optimizer = 0;         // bytes of memory that the optimizer passes over
};

RankRates RatesOf(const Hardware& gpu, const Implementation& program, const PlanLayout& layout);

// Returns what is seen of communication that takes `seconds` beside work that takes `window`: at
// least `least`. The cores of a processor that compute move the bytes too: nothing is hidden there.
double ExposedSeconds(const Hardware& gpu, double seconds, double window, double least);

// Returns the encoder of a model that has one, as a model of its own, and the layout with its
// samples.
PlanModel EncoderOf(const PlanModel& model);
PlanLayout EncoderLayout(const PlanModel& model, PlanLayout layout);

// The costs of the layers of one model in one layout, behind its encoder. The arguments of the
// constructor must live as long as it does.
class LayerPredictor {
 public:
  LayerPredictor(const Hardware& gpu, const Implementation& program, const MeasuredKernels& kernels,
                 const PlanModel& model, const PlanLayout& layout);

  LayerCosts Layer(bool is_mixture) const;
  // The costs of a hybrid model's layer.
  LayerCosts Branch(PlanBranch branch) const;
  double HeadSeconds() const;  // all passes together

 private:
  double query_width() const { return model_.heads() * model_.head_dim(); }
  double kv_width() const { return model_.kv_heads() * model_.head_dim(); }

  LayerShape RankShape() const;
  absl::optional<double> MeasuredSeconds(const KernelShape& shape, double flops, double peak) const;
  double ProductSeconds(const KernelShape& shape, double peak) const;
  void AddProduct(LayerCosts* layer, double m, double n, double k) const;
  void AddProducts(LayerCosts* layer, const MatrixProducts& products) const;
  MatrixProduct OfRank(MatrixProduct product) const;
  double GroupedSeconds(const char* pass, const MatrixProduct& product) const;
  double PermutationRate() const;
  void AddExperts(LayerCosts* layer, const MatrixProduct& product) const;
  void AddAttentionCore(LayerCosts* layer) const;
  void AddCore(LayerCosts* layer, double read, double seen, bool is_causal) const;
  void AddCrossAttention(LayerCosts* layer) const;
  // Returns into how many chunks attention cuts a sample.
  double ChunksOfAttention() const;
  // The seconds for which chunks of attention that lie on the host come over its link in one pass.
  struct ChunkCopies {
    double forward = 0, backward = 0;
  };
  ChunkCopies CopiesOfChunks() const;
  void AddChunks(LayerCosts* layer) const;
  double ElementwiseRate() const;
  void AddElementwise(LayerCosts* layer, double ffn) const;
  void AddTensor(bool is_mixture, LayerCosts* layer) const;
  double PiecesBeside(double in, double out) const;
  double ForwardInPieces(bool is_mixture) const;
  RecurrenceCosts Recurrence(PlanBranch branch) const;
  std::pair<double, double> BranchWidths(PlanBranch branch) const;
  void AddRecurrence(PlanBranch branch, LayerCosts* layer) const;
  void AddStateExchange(LayerCosts* layer, const RecurrenceCosts& costs) const;
  void AddNormSums(LayerCosts* layer) const;
  void AddBranchTensor(PlanBranch branch, LayerCosts* layer) const;
  void AddBranchElementwise(PlanBranch branch, double ffn, LayerCosts* layer) const;
  void AddBranchMemory(PlanBranch branch, double ffn, LayerCosts* layer) const;
  void AddGrid(LayerCosts* layer) const;
  LayerMatrices Matrices() const;
  void AddContext(LayerCosts* layer, double read, double core) const;
  void AddHeadExchange(const PlanGroup& group, LayerCosts* layer, double read) const;
  bool HasHalves(const PlanGroup& group) const;
  void AddMerges(double sources, LayerCosts* layer, double read) const;
  void AddRing(const PlanGroup& group, LayerCosts* layer, double read, double core) const;
  void AddRingOfProcessors(const PlanGroup& group, LayerCosts* layer, double read) const;
  void AddGather(const PlanGroup& group, LayerCosts* layer, double read, double core) const;
  double HiddenReturn(const LayerCosts& layer) const;
  void AddExpertExchange(LayerCosts* layer) const;
  void AddRouter(LayerCosts* layer) const;
  double AttentionBytes() const;
  double MlpBytes(double width) const;
  void AddMemory(LayerCosts* layer, bool is_mixture) const;
  void AddOffload(LayerCosts* layer) const;

  const Hardware& gpu_;
  const Implementation& program_;
  const MeasuredKernels& kernels_;
  const PlanModel& model_;
  const PlanLayout& l_;
  const RankRates rates_;
  const double tokens_;
  const double tp_;
  const double sp_;       // ranks that share out what lies between layers
  const double meeting_;  // seconds in which a rank's threads meet behind a kernel
};

}  // namespace megatron

#endif  // MEGATRON_PLAN_LAYER_COSTS_H_
