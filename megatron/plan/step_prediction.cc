#include "megatron/plan/step_prediction.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/check_plan_sizes.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/compressed_attention.h"
#include "megatron/plan/model_costs.h"
#include "megatron/plan/shared_cores.h"

namespace megatron {
namespace {

constexpr double kTera = 1e12;
constexpr const char* kForward = "forward";
constexpr const char* kInputGradient = "input_gradient";
constexpr const char* kWeightGradient = "weight_gradient";

// What a layer costs in one micro-batch on one rank.
struct LayerCosts {
  double forward = 0;  // seconds
  double backward = 0;
  double backward_weight = 0;  // the part of it that makes weights' gradients
  double attention_core = 0;   // forward seconds that selective recomputation runs again
  double tensor_forward = 0;   // seconds of collectives
  double tensor_backward = 0;
  double context = 0;
  double expert = 0;
  double flops = 0;       // of the forward pass, as the model's FLOPs count them
  double parameters = 0;  // of this rank, without experts
  double expert_parameters = 0;
  double saved_bytes = 0;    // held for the backward pass
  double input_bytes = 0;    // held with full recomputation
  double widest = 0;         // bytes of the backward pass's temporaries
  double weight_shapes = 0;  // weights of one product of each shape
};

class Predictor {
 public:
  Predictor(const Hardware& gpu, const Implementation& program, const MeasuredKernels& kernels,
            const PlanModel& model, const PlanLayout& layout)
      : gpu_(gpu), program_(program), kernels_(kernels), model_(model), l_(layout) {
    tokens_ = double(l_.micro_batch) * l_.sequence / l_.cp;
    tp_ = double(l_.tp);
    sp_ = l_.is_sequence_parallel ? tp_ : 1;
    peak_ = gpu.bf16_tflops() * kTera;
    if (l_.precision == PlanPrecision::k32Bits) {
      peak_ = gpu.fp32_tflops() * kTera;
      element_bytes_ = 4;
    }
    peak_ *= RankSpeed(gpu, l_.gpus());
    product_peak_ = peak_;
    if (l_.precision == PlanPrecision::kFp8) {
      product_peak_ = gpu.fp8_tflops() * kTera * program.low_precision_efficiency();
    }
    if (l_.precision == PlanPrecision::kFp4) {
      product_peak_ = gpu.fp4_tflops() * kTera * program.low_precision_efficiency();
    }
    const double memory = gpu.memory_gb_per_s() * 1e9 * RankSpeed(gpu, l_.gpus());
    memory_rate_ = memory * program.memory_efficiency();
    optimizer_rate_ = memory * (program.optimizer_efficiency() > 0 ? program.optimizer_efficiency()
                                                                   : program.memory_efficiency());
  }

  StepPrediction Predict() const;
  PredictedParts Parts(const std::vector<PartLayers>& positions) const;

 private:
  double query_width() const { return model_.heads() * model_.head_dim(); }
  double kv_width() const { return model_.kv_heads() * model_.head_dim(); }
  bool has_experts() const { return model_.experts() > 0; }

  LayerShape RankShape() const;
  absl::optional<double> MeasuredSeconds(const KernelShape& shape, double flops) const;
  double ProductSeconds(const KernelShape& shape, double peak) const;
  void AddProduct(LayerCosts* layer, double m, double n, double k) const;
  void AddProducts(LayerCosts* layer, const MatrixProducts& products) const;
  MatrixProduct OfRank(MatrixProduct product) const;
  double GroupedSeconds(const char* pass, const MatrixProduct& product) const;
  void AddExperts(LayerCosts* layer, const MatrixProduct& product) const;
  void AddAttentionCore(LayerCosts* layer) const;
  void AddElementwise(LayerCosts* layer, double ffn) const;
  void AddCollectives(LayerCosts* layer, bool is_mixture) const;
  void AddMemory(LayerCosts* layer, bool is_mixture) const;
  LayerCosts Layer(bool is_mixture) const;

  double MixtureShare(bool is_first) const;
  LayerCosts MeanLayer(double mixture_share) const;
  double HeadSeconds() const;
  double Recomputed(const LayerCosts& layer) const;
  void AddLayers(PartSeconds* part, const LayerCosts& layer, int64_t count) const;
  double SecondsOfMessage() const;
  double Exposed(double seconds, double window, double least) const;
  double HeadFlops() const { return 2 * tokens_ * model_.hidden() * model_.vocab() / tp_; }
  double DataParallelSeconds(double parameters, double expert_parameters, double window) const;
  double OptimizerSeconds(double parameters, double expert_parameters) const;
  double MemoryBytes(bool is_first) const;
  StepSeconds Seconds(const LayerCosts& layer) const;
  double StateBytes(double parameters, double shards) const;

  double data_shards() const { return double(l_.dp * l_.cp); }
  double expert_shards() const {
    return std::max<double>(1, double(l_.dp * l_.cp * l_.tp) / (l_.ep * l_.etp));
  }

  const Hardware& gpu_;
  const Implementation& program_;
  const MeasuredKernels& kernels_;
  const PlanModel& model_;
  const PlanLayout& l_;
  double tokens_ = 0;
  double tp_ = 1;
  double sp_ = 1;
  double element_bytes_ = 2;
  double peak_ = 0;
  double product_peak_ = 0;
  double memory_rate_ = 0;
  double optimizer_rate_ = 0;
};

double Saturation(double size, double half) { return size / (size + half); }

// The share of a layer that one tensor-parallel rank has. Experts aren't cut.
LayerShape Predictor::RankShape() const {
  const auto of_rank = [&](double size) { return int64_t(std::ceil(size / tp_)); };
  LayerShape shape;
  shape.hidden = int64_t(model_.hidden());
  shape.query_width = of_rank(query_width());
  shape.key_value_width = of_rank(kv_width());
  shape.ffn = of_rank(model_.ffn());
  shape.is_gated = model_.is_gated();
  shape.num_experts = int64_t(model_.experts());
  shape.experts_per_token = int64_t(model_.experts_per_token());
  shape.expert_ffn = int64_t(model_.expert_ffn());
  shape.shared_expert_ffn = of_rank(model_.shared_ffn());
  return shape;
}

// Returns nothing where the GPU's table has no such shape, or the products aren't of 16 bits.
absl::optional<double> Predictor::MeasuredSeconds(const KernelShape& shape, double flops) const {
  if (program_.measured_efficiency() == 0) return absl::nullopt;
  const auto share = kernels_.ShareOfPeak(gpu_.name(), shape);
  if (!share.has_value()) return absl::nullopt;
  return flops / (peak_ * *share * program_.measured_efficiency());
}

double Predictor::ProductSeconds(const KernelShape& shape, double peak) const {
  const double m = shape.m;
  const double n = shape.n;
  const double k = shape.k;
  if (peak == peak_) {
    const auto measured = MeasuredSeconds(shape, 2 * m * n * k);
    if (measured.has_value()) return *measured;
  }
  const double half = program_.product_half_size();
  const double share = program_.product_efficiency() * Saturation(m, half) * Saturation(n, half) *
                       Saturation(k, half);
  return 2 * m * n * k / (peak * share) + element_bytes_ * (m * n + n * k + m * k) / memory_rate_;
}

void Predictor::AddProduct(LayerCosts* layer, double m, double n, double k) const {
  layer->forward += ProductSeconds({"product", kForward, m, n, k}, product_peak_);
  const double weight = ProductSeconds({"product", kWeightGradient, m, n, k}, product_peak_);
  layer->backward += ProductSeconds({"product", kInputGradient, m, n, k}, product_peak_) + weight;
  layer->backward_weight += weight;
  layer->flops += 2 * m * n * k;
  layer->parameters += n * k;
  layer->weight_shapes += n * k;
}

// Programs run neighbouring products of one input as one: that of query, key and value.
void Predictor::AddProducts(LayerCosts* layer, const MatrixProducts& products) const {
  for (size_t i = 0; i < products.size(); ++i) {
    const MatrixProduct& product = products[i];
    if (product.weight_matrices == 0) continue;
    if (product.weight_matrices > 1) {
      AddExperts(layer, OfRank(product));
      continue;
    }
    double n = product.n;
    if (std::string(product.name) == "query" && i + 1 < products.size()) n += products[++i].n;
    AddProduct(layer, product.m, n, product.k);
  }
}

// Returns one rank's share of the experts' product, of which m are the rows of all its experts.
MatrixProduct Predictor::OfRank(MatrixProduct product) const {
  const double cut = double(l_.etp);
  product.m *= product.count * cut / tp_;
  (product.is_mlp_input ? product.n : product.k) /= cut;
  product.weight_matrices /= l_.ep;
  return product;
}

double Predictor::GroupedSeconds(const char* pass, const MatrixProduct& product) const {
  const double rows = product.m;
  const double experts = product.weight_matrices;
  const double flops = 2 * rows * product.n * product.k;
  if (product_peak_ == peak_) {
    const auto measured =
        MeasuredSeconds({"grouped", pass, rows / experts, product.n, product.k}, flops);
    if (measured.has_value()) return *measured;
  }
  const double share =
      program_.product_efficiency() * Saturation(rows / experts, program_.grouped_half_rows());
  const double bytes =
      element_bytes_ * (experts * product.n * product.k + rows * (product.n + product.k));
  return flops / (product_peak_ * share) + bytes / memory_rate_;
}

// Routers balance: all experts have as many rows. Each row is permuted there and back.
void Predictor::AddExperts(LayerCosts* layer, const MatrixProduct& product) const {
  const double rows = product.m;
  const double permutation = element_bytes_ * 2 * rows * model_.hidden() / memory_rate_;
  layer->forward += GroupedSeconds(kForward, product) + permutation;
  const double weight = GroupedSeconds(kWeightGradient, product);
  layer->backward += GroupedSeconds(kInputGradient, product) + weight + permutation;
  layer->backward_weight += weight;
  layer->flops += 2 * rows * product.n * product.k;
  layer->expert_parameters += product.weight_matrices * product.n * product.k;
}

void Predictor::AddAttentionCore(LayerCosts* layer) const {
  const double width = query_width() + model_.heads() * model_.rope_dim() / 2;
  // Under the causal mask a position sees half of the others, and of a window all.
  double seen = 1;
  if (model_.window() > 0) seen = (1 + std::min(1.0, 2 * model_.window() / l_.sequence)) / 2;
  const double flops = 4 * tokens_ * l_.sequence * width / tp_ * seen;
  const double seconds = flops / (peak_ * program_.attention_efficiency());
  layer->flops += flops * (program_.is_causal_counted() ? 0.5 : 1);
  if (!program_.is_fused()) {
    // Softmax and dropout pass over the scores, which are in memory.
    const double scores =
        (4 * element_bytes_ + 1) * tokens_ * l_.sequence * model_.heads() / tp_ / memory_rate_;
    layer->attention_core = seconds + scores;
    layer->forward += layer->attention_core;
    layer->backward += 2 * seconds + 1.5 * scores;
    return;
  }
  // Of rings, each rank has all heads and a part of the queries; kernels run as fast for both.
  const double heads = model_.heads() / tp_ / l_.cp;
  const double channels = model_.head_dim() + model_.rope_dim();
  const double positions = double(l_.sequence);
  const auto pass = [&](const char* name, double times, double half) {
    const auto measured =
        MeasuredSeconds({"attention", name, positions, heads, channels}, times * flops);
    if (measured.has_value()) return *measured;
    const double filled = l_.micro_batch * heads * positions / 4096;
    return times * seconds / Saturation(filled, half);
  };
  layer->attention_core = pass(kForward, 1, program_.attention_half_heads());
  layer->forward += layer->attention_core;
  layer->backward += pass(kInputGradient, 2.5, program_.attention_half_heads_backward());
}

void Predictor::AddElementwise(LayerCosts* layer, double ffn) const {
  const double h = model_.hidden();
  double bytes = 0;
  if (program_.is_fused()) {
    bytes = element_bytes_ * tokens_ *
            (6 * h / sp_ +
             (ffn * (model_.is_gated() ? 3 : 2) + 2 * (query_width() + kv_width())) / tp_);
  } else {
    bytes = element_bytes_ * tokens_ * (12 * h / sp_ + 18 * h / tp_);
  }
  layer->forward += bytes / memory_rate_;
  layer->backward += 1.6 * bytes / memory_rate_;
}

void Predictor::AddCollectives(LayerCosts* layer, bool is_mixture) const {
  const double h = model_.hidden();
  const double all_reduce =
      2 * CollectiveSeconds(gpu_, program_, {l_.tp, 1}, element_bytes_ * tokens_ * h);
  layer->tensor_forward = 2 * all_reduce;
  // With sequence parallelism the inputs of the products are gathered once more.
  layer->tensor_backward = (l_.is_sequence_parallel ? 3 : 2) * all_reduce;
  if (program_.overlaps_tensor_parallel()) {
    // All parts but one pass beside products.
    const auto exposed = [&](double seconds, double products) {
      return Exposed(seconds, products, seconds / tp_);
    };
    layer->tensor_forward = exposed(layer->tensor_forward, layer->forward - layer->attention_core);
    layer->tensor_backward =
        exposed(layer->tensor_backward, layer->backward - 2 * layer->attention_core);
  }
  if (l_.cp > 1 && program_.exchanges_heads()) {
    // Queries, keys and values go to the ranks of their heads and the result comes back, in either
    // pass.
    const double bytes = element_bytes_ * tokens_ * 2 * (query_width() + kv_width()) / tp_;
    layer->context = 2 * CollectiveSeconds(gpu_, program_, {l_.cp, l_.tp}, bytes);
  } else if (l_.cp > 1) {
    // Keys and values go around, once forward and, with their gradients, twice backward. Attention
    // to the part at hand hides them.
    const double bytes = element_bytes_ * tokens_ * l_.cp * 2 * kv_width() / tp_;
    const double pass = CollectiveSeconds(gpu_, program_, {l_.cp, l_.tp}, bytes);
    layer->context = Exposed(3 * pass, 3 * layer->attention_core, 0) + pass / l_.cp;
  }
  if (!is_mixture) return;
  // Rows go to their experts and come back, in either pass. Ranks that share an expert gather its
  // rows and add up what it gives.
  const double bytes = element_bytes_ * tokens_ / tp_ * model_.experts_per_token() * h;
  layer->expert = 4 * CollectiveSeconds(gpu_, program_, {l_.ep, l_.etp}, bytes) +
                  4 * CollectiveSeconds(gpu_, program_, {l_.etp, 1}, bytes * l_.etp);
}

void Predictor::AddMemory(LayerCosts* layer, bool is_mixture) const {
  const double h = model_.hidden();
  layer->input_bytes = element_bytes_ * tokens_ * h / sp_;
  if (!program_.is_fused()) {
    const double scores = l_.recompute == PlanRecompute::kSelective
                              ? 0
                              : (2 * element_bytes_ + 1) * model_.heads() * l_.sequence;
    // Two of the ten and one of the five are masks of dropout, a byte of each element.
    const double wide = element_bytes_ / 2;
    layer->saved_bytes = tokens_ * ((8 * wide + 2) * h / sp_ + (24 * wide * h + scores) / tp_);
    layer->widest = 8 * element_bytes_ * tokens_ * h / tp_;
    return;
  }
  double of_token =
      6 * element_bytes_ * h / sp_ + (2 * element_bytes_ * kv_width() + 4 * model_.heads()) / tp_;
  if (model_.key_value_rank() > 0) {
    of_token =
        4 * element_bytes_ * h / sp_ +
        element_bytes_ * (model_.query_rank() + model_.key_value_rank()) * 2 +
        element_bytes_ * model_.heads() * (4 * model_.head_dim() + 2 * model_.rope_dim()) / tp_ +
        4 * model_.heads() / tp_;
  }
  const double halves = model_.is_gated() ? 3 : 2;
  double ffn = model_.ffn();
  if (is_mixture) {
    ffn = model_.shared_ffn();
    of_token += model_.experts_per_token() / tp_ *
                (l_.etp * (element_bytes_ * h + 8) + element_bytes_ * halves * model_.expert_ffn());
  }
  of_token += element_bytes_ * halves * ffn / tp_;
  layer->saved_bytes = tokens_ * of_token;
  layer->widest = element_bytes_ * halves * tokens_ *
                  std::max(ffn, is_mixture ? model_.experts_per_token() * model_.expert_ffn() : 0) /
                  tp_;
}

LayerCosts Predictor::Layer(bool is_mixture) const {
  LayerCosts layer;
  const LayerShape shape = RankShape();
  const double seen = CausallySeen(double(l_.sequence), FlopsConvention::kClassic);
  AddProducts(&layer, model_.key_value_rank() > 0
                          ? CompressedAttentionProducts(model_, tokens_, tp_, sp_)
                          : SelfAttentionProducts(shape, tokens_, seen));
  AddAttentionCore(&layer);
  double ffn = model_.ffn();
  if (is_mixture) {
    AddProducts(&layer, MixtureProducts(shape, tokens_));
    ffn = model_.shared_ffn() + model_.experts_per_token() * model_.expert_ffn();
  } else {
    AddProducts(&layer, MlpProducts(shape, tokens_));
  }
  layer.parameters += 2 * model_.hidden();  // norms
  AddElementwise(&layer, ffn);
  AddCollectives(&layer, is_mixture);
  AddMemory(&layer, is_mixture);
  layer.forward = std::max(layer.forward, program_.layer_seconds() - layer.tensor_forward);
  layer.backward =
      std::max(layer.backward, program_.layer_seconds_backward() - layer.tensor_backward);
  if (is_mixture && !l_.drops_tokens) {
    layer.forward += program_.routing_seconds();
    layer.backward += program_.routing_seconds();
  }
  return layer;
}

// Returns the share of mixtures among the layers of the first stage, or of the stages after it.
// Dense layers come first.
double Predictor::MixtureShare(bool is_first) const {
  if (!has_experts()) return 0;
  const double layers = double(model_.layers()) / l_.pp;
  if (is_first) return 1 - std::min(1.0, model_.dense_layers() / layers);
  const double dense = std::max(0.0, model_.dense_layers() - layers);
  return l_.pp == 1 ? 0 : 1 - std::min(1.0, dense / (layers * (l_.pp - 1)));
}

LayerCosts Predictor::MeanLayer(double share) const {
  if (share == 0) return Layer(false);
  const LayerCosts mixture = Layer(true);
  if (share == 1) return mixture;
  const LayerCosts dense = Layer(false);
  LayerCosts mean = mixture;
  for (double LayerCosts::*part :
       {&LayerCosts::forward, &LayerCosts::backward, &LayerCosts::attention_core,
        &LayerCosts::tensor_forward, &LayerCosts::tensor_backward, &LayerCosts::context,
        &LayerCosts::expert, &LayerCosts::flops, &LayerCosts::parameters,
        &LayerCosts::expert_parameters, &LayerCosts::saved_bytes, &LayerCosts::input_bytes}) {
    mean.*part = share * mixture.*part + (1 - share) * dense.*part;
  }
  return mean;
}

double Predictor::HeadSeconds() const {
  const double vocab = model_.vocab() / tp_;
  const double bytes = element_bytes_ * (program_.is_fused() ? 2 : 6) * tokens_ * vocab;
  double seconds = 3 * bytes / memory_rate_;
  for (const char* pass : {kForward, kInputGradient, kWeightGradient}) {
    seconds += ProductSeconds({"product", pass, tokens_, vocab, model_.hidden()}, peak_);
  }
  return seconds;
}

// The cores that compute move the bytes too: nothing is hidden there.
double Predictor::Exposed(double seconds, double window, double least) const {
  return gpu_.cores() > 0 ? seconds : std::max(least, seconds - window);
}

double Predictor::DataParallelSeconds(double parameters, double expert_parameters,
                                      double window) const {
  const PlanGroup dense{l_.dp * l_.cp, l_.tp};
  const PlanGroup experts{int64_t(expert_shards()), l_.ep};
  const auto pass = [&](double bytes) {
    return CollectiveSeconds(gpu_, program_, dense, bytes * parameters) +
           (expert_parameters > 0
                ? CollectiveSeconds(gpu_, program_, experts, bytes * expert_parameters)
                : 0);
  };
  const double width = program_.gradient_bytes();
  double all = pass(width > 0 ? width : 4) + pass(element_bytes_);
  if (l_.shards_parameters) {
    // Parameters come for each pass, and gradients go once per micro-batch.
    all = l_.micro_batches * (all + pass(element_bytes_));
    window *= double(l_.micro_batches);
  } else if (!program_.shards_optimizer()) {
    all = 2 * pass(width > 0 ? width : element_bytes_);
  }
  return program_.overlaps_gradients() ? Exposed(all, window, 0.1 * all) : all;
}

double Predictor::OptimizerSeconds(double parameters, double expert_parameters) const {
  if (!program_.shards_optimizer() && !l_.shards_parameters) {
    return 32 * (parameters + expert_parameters) / optimizer_rate_;
  }
  const double updated = parameters / data_shards() + expert_parameters / expert_shards();
  return (26 * updated + 6 * (parameters + expert_parameters)) / optimizer_rate_;
}

// Weights of 32 bits need no master copies.
double Predictor::StateBytes(double parameters, double shards) const {
  if (l_.precision == PlanPrecision::k32Bits) {
    if (l_.shards_parameters) return 16 * parameters / shards;
    return parameters * (program_.shards_optimizer() ? 8 + 8 / shards : 16);
  }
  if (l_.shards_parameters) return 18 * parameters / shards;
  if (program_.shards_optimizer()) return parameters * (6 + 12 / shards);
  return (program_.holds_fp32_gradients() ? 18 : 16) * parameters;
}

double Predictor::MemoryBytes(bool is_first) const {
  const LayerCosts layer = MeanLayer(MixtureShare(is_first));
  const double layers = double(model_.layers()) / l_.pp;
  const double p = double(l_.pp);
  const double v = double(l_.vpp);
  const bool is_last = !is_first || l_.pp == 1;
  const double embedding = model_.vocab() * model_.hidden() / tp_;
  const double ends = l_.pp == 1 && !model_.is_tied() ? 2 : 1;
  double flight = 1;  // micro-batches whose activations are held
  if (is_first) {
    flight = std::min<double>(double(l_.micro_batches), p);
    if (l_.vpp > 1) flight = p * (1 + (p - 1) / (p * v));
  }
  const bool is_full = l_.recompute == PlanRecompute::kFull;
  double bytes = flight * layers * (is_full ? layer.input_bytes : layer.saved_bytes);
  if (is_full) bytes += layer.saved_bytes;
  if (is_last) bytes += element_bytes_ * tokens_ * model_.vocab() / tp_;
  if (program_.has_dummy_gradients()) {
    bytes += element_bytes_ * (layer.weight_shapes + (is_last ? embedding : 0));
  }
  if (l_.shards_parameters)
    bytes += 2 * element_bytes_ * (layer.parameters + layer.expert_parameters);
  return bytes + layer.widest +
         StateBytes(layers * layer.parameters + ends * embedding, data_shards()) +
         StateBytes(layers * layer.expert_parameters, expert_shards());
}

double Predictor::Recomputed(const LayerCosts& layer) const {
  if (l_.recompute == PlanRecompute::kFull) return layer.forward;
  const bool runs_core = !program_.is_fused() || program_.recomputes_attention();
  return l_.recompute == PlanRecompute::kSelective && runs_core ? layer.attention_core : 0;
}

// The last stage has the head besides, and no more dense layers than others: it is the slowest.
StepSeconds Predictor::Seconds(const LayerCosts& layer) const {
  const double layers = double(model_.layers()) / l_.pp;
  const double m = double(l_.micro_batches);
  const double again = Recomputed(layer);
  double tensor = layer.tensor_forward + layer.tensor_backward;
  double expert = layer.expert;
  if (l_.recompute == PlanRecompute::kFull) {
    tensor += layer.tensor_forward;
    expert *= 1.5;
  }
  const double head = HeadSeconds();
  const double compute = layers * (layer.forward + layer.backward + again);
  const double messages = 2 * l_.vpp * SecondsOfMessage();
  const double work = compute + layers * (tensor + layer.context + expert) + messages;
  StepSeconds s;
  s.compute = m * (compute + head);
  s.tensor_parallel = m * layers * tensor;
  s.context_parallel = m * layers * layer.context;
  s.expert_parallel = m * layers * expert;
  s.messages = m * messages;
  s.bubble = (l_.pp - 1) * work / l_.vpp;
  const double parameters = layers * layer.parameters + model_.vocab() * model_.hidden() / tp_;
  const double experts = layers * layer.expert_parameters;
  s.data_parallel = DataParallelSeconds(parameters, experts, work);
  s.optimizer = OptimizerSeconds(parameters, experts);
  s.constant = program_.step_seconds();
  s.total = PipelineSeconds(work, head, l_.pp, l_.vpp, l_.micro_batches) + s.data_parallel +
            s.optimizer + s.constant;
  ShareCores(gpu_, l_, m * head, &s);
  return s;
}

double Predictor::SecondsOfMessage() const {
  if (l_.pp == 1) return 0;
  return MessageSeconds(gpu_, program_, l_.tp * l_.cp * l_.dp,
                        element_bytes_ * tokens_ * model_.hidden() / tp_);
}

// Forward passes have a third of the calls that context parallelism does not hide, and half of the
// experts'.
void Predictor::AddLayers(PartSeconds* part, const LayerCosts& layer, int64_t count) const {
  const bool is_full = l_.recompute == PlanRecompute::kFull;
  part->forward += count * layer.forward;
  part->backward_input += count * (layer.backward - layer.backward_weight + Recomputed(layer));
  part->backward_weight += count * layer.backward_weight;
  part->tensor +=
      count * (layer.tensor_forward + layer.tensor_backward + (is_full ? layer.tensor_forward : 0));
  part->context += count * layer.context;
  part->expert += count * (is_full ? 1.5 : 1) * layer.expert;
  part->forward_calls += count * (layer.tensor_forward + layer.context / 3 + layer.expert / 2);
  part->backward_calls = part->tensor + part->context + part->expert - part->forward_calls;
}

PredictedParts Predictor::Parts(const std::vector<PartLayers>& positions) const {
  PredictedParts parts;
  const LayerCosts dense = Layer(false);
  const LayerCosts mixture = has_experts() ? Layer(true) : LayerCosts();
  for (const PartLayers& layers : positions) {
    PartSeconds part;
    AddLayers(&part, dense, layers.dense);
    AddLayers(&part, mixture, layers.mixtures);
    parts.positions.push_back(part);
  }
  parts.message = SecondsOfMessage();
  for (double PartSeconds::*pass :
       {&PartSeconds::forward, &PartSeconds::backward_input, &PartSeconds::backward_weight}) {
    parts.positions.back().*pass += HeadSeconds() / 3;
  }
  return parts;
}

StepPrediction Predictor::Predict() const {
  const double first = MixtureShare(true);
  const double others = MixtureShare(false);
  const LayerCosts mean = MeanLayer((first + (l_.pp - 1) * others) / l_.pp);
  StepPrediction step;
  step.seconds = Seconds(MeanLayer(l_.pp == 1 ? first : others));
  step.model_flops =
      3 * double(l_.micro_batches) / l_.pp * (model_.layers() * mean.flops + HeadFlops());
  step.memory_bytes = std::max(MemoryBytes(true), l_.pp == 1 ? 0 : MemoryBytes(false));
  step.total_parameters =
      model_.layers() * (mean.parameters * tp_ + mean.expert_parameters * l_.ep * l_.etp) +
      (model_.is_tied() ? 1 : 2) * model_.vocab() * model_.hidden();
  return step;
}

}  // namespace

absl::StatusOr<StepPrediction> PredictStep(const Hardware& gpu, const Implementation& program,
                                           const MeasuredKernels& kernels, const PlanModel& model,
                                           const PlanLayout& layout) {
  MEGATRON_RETURN_IF_ERROR(CheckPlanSizes(gpu, model, layout));
  return Predictor(gpu, program, kernels, model, layout).Predict();
}

absl::StatusOr<PredictedParts> PredictParts(const Hardware& gpu, const Implementation& program,
                                            const MeasuredKernels& kernels, const PlanModel& model,
                                            const PlanLayout& layout,
                                            const std::vector<PartLayers>& positions) {
  MEGATRON_RETURN_IF_ERROR(CheckPlanSizes(gpu, model, layout));
  if (int64_t(positions.size()) != layout.pp * layout.vpp) {
    return absl::InvalidArgumentError("each chunk of each stage has one part of the model");
  }
  return Predictor(gpu, program, kernels, model, layout).Parts(positions);
}

}  // namespace megatron
