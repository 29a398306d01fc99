#include "megatron/plan/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/compressed_attention.h"
#include "megatron/plan/shared_cores.h"

namespace megatron {
namespace {

constexpr double kTera = 1e12;
constexpr const char* kForward = "forward";
constexpr const char* kInputGradient = "input_gradient";
constexpr const char* kWeightGradient = "weight_gradient";

// Kernels between the products of a layer: norms, rotations of queries and of keys, sums, the
// activation, and backward the gradients of biases, too.
constexpr double kKernelsForward = 7;
constexpr double kKernelsBackward = 11;
// Kernels of the embedding and of the loss in both passes.
constexpr double kEndKernels = 5;

double Saturation(double size, double half) { return size / (size + half); }

// Returns how many branches of a layer gather or sum up the activations of tensor-parallel ranks:
// attention, and an MLP or a shared expert. Experts gather rows and give them back themselves, and
// what they give is summed up where ranks don't share out rows.
int CutBranches(const PlanModel& model, bool is_sequence_parallel, bool is_mixture) {
  if (!is_mixture) return 2;
  return 1 + (model.shared_ffn() > 0 ? 1 : 0) + (is_sequence_parallel ? 0 : 1);
}

}  // namespace

RankRates RatesOf(const Hardware& gpu, const Implementation& program, const PlanLayout& layout) {
  RankRates rates;
  rates.flops = gpu.bf16_tflops() * kTera;
  if (layout.precision == PlanPrecision::k32Bits) {
    rates.flops = gpu.fp32_tflops() * kTera;
    rates.element_bytes = 4;
  }
  // Products in FP8 keep the codes of their inputs.
  rates.kept_input_bytes = layout.precision == PlanPrecision::kFp8 ? 1 : rates.element_bytes;
  const double speed = RankSpeed(gpu, program, layout.gpus());
  rates.flops *= speed;
  rates.product_flops = rates.flops;
  if (layout.precision == PlanPrecision::kFp8)
    rates.product_flops = gpu.fp8_tflops() * kTera * program.low_precision_efficiency();
  if (layout.precision == PlanPrecision::kFp4)
    rates.product_flops = gpu.fp4_tflops() * kTera * program.low_precision_efficiency();
  const double memory = gpu.memory_gb_per_s() * 1e9 * speed;
  rates.memory = memory * program.memory_efficiency();
  rates.optimizer = memory * (program.optimizer_efficiency() > 0 ? program.optimizer_efficiency()
                                                                 : program.memory_efficiency());
  return rates;
}

double ExposedSeconds(const Hardware& gpu, double seconds, double window, double least) {
  return gpu.cores() > 0 ? seconds : std::max(least, seconds - window);
}

PlanModel EncoderOf(const PlanModel& model) {
  PlanModel encoder = model;
  encoder.set_layers(model.encoder_layers());
  encoder.set_is_bidirectional(true);
  encoder.clear_encoder_layers();
  encoder.clear_encoder_sequence();
  return encoder;
}

PlanLayout EncoderLayout(const PlanModel& model, PlanLayout layout) {
  layout.sequence = static_cast<int64_t>(model.encoder_sequence());
  return layout;
}

LayerPredictor::LayerPredictor(const Hardware& gpu, const Implementation& program,
                               const MeasuredKernels& kernels, const PlanModel& model,
                               const PlanLayout& layout)
    : gpu_(gpu),
      program_(program),
      kernels_(kernels),
      model_(model),
      l_(layout),
      rates_(RatesOf(gpu, program, layout)),
      tokens_(double(layout.micro_batch) * layout.sequence / layout.cp),
      tp_(double(layout.tp)),
      sp_(layout.shares_rows() ? double(layout.tp) : 1),
      meeting_(ThreadMeetingSeconds(gpu, layout.gpus())) {}

// The share of a layer that one tensor-parallel rank has; AddProduct() cuts what a grid has.
// Experts aren't cut.
LayerShape LayerPredictor::RankShape() const {
  const double cut = l_.grid.is_grid() ? 1 : tp_;
  const auto of_rank = [&](double size) { return int64_t(std::ceil(size / cut)); };
  LayerShape shape;
  shape.hidden = int64_t(model_.hidden());
  shape.query_width = of_rank(query_width());
  shape.key_value_width = of_rank(kv_width());
  SetStateSizes(model_, cut, &shape);
  shape.ffn = of_rank(model_.ffn());
  shape.is_gated = model_.is_gated();
  shape.num_experts = int64_t(model_.experts());
  shape.experts_per_token = int64_t(model_.experts_per_token());
  shape.expert_ffn = int64_t(model_.expert_ffn());
  shape.shared_expert_ffn = of_rank(model_.shared_ffn());
  return shape;
}

// Returns nothing where the GPU's table has no such shape, or the products aren't of 16 bits.
absl::optional<double> LayerPredictor::MeasuredSeconds(const KernelShape& shape, double flops,
                                                       double peak) const {
  if (program_.measured_efficiency() == 0) return absl::nullopt;
  const auto share = kernels_.ShareOfPeak(gpu_.name(), shape);
  if (!share.has_value()) return absl::nullopt;
  return flops / (peak * *share * program_.measured_efficiency());
}

double LayerPredictor::ProductSeconds(const KernelShape& shape, double peak) const {
  const double m = shape.m;
  const double n = shape.n;
  const double k = shape.k;
  if (peak == rates_.flops) {
    const auto measured = MeasuredSeconds(shape, 2 * m * n * k, peak);
    if (measured.has_value()) return meeting_ + *measured;
  }
  const double half = program_.product_half_size();
  const double share = program_.product_efficiency() * Saturation(m, half) * Saturation(n, half) *
                       Saturation(k, half);
  return meeting_ + 2 * m * n * k / (peak * share) +
         rates_.element_bytes * (m * n + n * k + m * k) / rates_.memory;
}

// On a grid m, n and k are those of all tensor-parallel ranks, of which each rank has blocks: in
// squares one for each round.
void LayerPredictor::AddProduct(LayerCosts* layer, double m, double n, double k) const {
  const double weights = n * k / (l_.grid.is_grid() ? double(l_.grid.weight_ranks()) : 1);
  double rounds = 1;
  if (l_.grid.is_grid()) {
    const double side = double(l_.grid.side);
    if (!l_.grid.is_cube) rounds = side;
    m /= l_.grid.is_cube ? side : side * double(l_.grid.depth);
    n /= side;
    k /= side;
  }
  const auto seconds = [&](const char* pass) {
    return rounds * ProductSeconds({"product", pass, m, n, k}, rates_.product_flops);
  };
  const double weight = seconds(kWeightGradient);
  layer->forward += seconds(kForward);
  layer->backward += seconds(kInputGradient) + weight;
  layer->backward_weight += weight;
  layer->flops += rounds * 2 * m * n * k;
  layer->parameters += weights;
  layer->weight_shapes += weights;
}

// Programs run neighbouring products of one input as one: that of query, key and value. Each
// tensor-parallel rank routes a part of the tokens.
void LayerPredictor::AddProducts(LayerCosts* layer, const MatrixProducts& products) const {
  for (size_t i = 0; i < products.size(); ++i) {
    const MatrixProduct& product = products[i];
    if (product.weight_matrices == 0) continue;
    if (product.weight_matrices > 1) {
      AddExperts(layer, OfRank(product));
      continue;
    }
    double n = product.n;
    if (std::string(product.name) == "query" && i + 1 < products.size()) n += products[++i].n;
    const double m = std::string(product.name) == "router" ? product.m / tp_ : product.m;
    AddProduct(layer, m, n, product.k);
    // In chunks, what lies between the matrices of an MLP is computed again.
    if (product.is_mlp_input && l_.mlp_chunk > 0) {
      layer->backward +=
          ProductSeconds({"product", kForward, product.m, n, product.k}, rates_.product_flops);
    }
  }
}

void LayerPredictor::AddAttentionCore(LayerCosts* layer) const {
  // Under the causal mask a position sees half of the others, and of a window all.
  double seen = 1;
  const double share = model_.windowed_share() > 0 ? model_.windowed_share() : 0.5;
  if (model_.window() > 0)
    seen = 1 - share + share * std::min(1.0, 2 * model_.window() / l_.sequence);
  AddCore(layer, double(l_.sequence), seen, !model_.is_bidirectional());
}

// Each position reads `read` others, of which it sees that share. Fused kernels skip what a causal
// mask hides, but their rates count it as work.
void LayerPredictor::AddCore(LayerCosts* layer, double read, double seen, bool is_causal) const {
  const double width = query_width() + model_.heads() * model_.rope_dim() / 2;
  const double flops = 4 * tokens_ * read * width / tp_ * seen;
  const double work = flops * (program_.is_fused() && !is_causal ? 2 : 1);
  const double seconds = work / (rates_.flops * program_.attention_efficiency());
  layer->flops += flops * (program_.is_causal_counted() && is_causal ? 0.5 : 1);
  if (!program_.is_fused()) {
    // Softmax and dropout pass over the scores, which are in memory.
    const double scores =
        (4 * rates_.element_bytes + 1) * tokens_ * read * model_.heads() / tp_ / rates_.memory;
    layer->attention_core += seconds + scores;
    layer->forward += seconds + scores;
    layer->backward += 2 * seconds + 1.5 * scores;
    return;
  }
  // In rings, each rank has all heads and a part of the queries. Kernels of GPUs run as fast for
  // both, and those of processors as for a sample as short as that part.
  const bool sees_parts =
      gpu_.cores() > 0 && (l_.context == PlanContext::kRing || l_.context == PlanContext::kGather);
  const double heads = model_.heads() / tp_ / (sees_parts ? 1 : double(l_.cp));
  const double channels = model_.head_dim() + model_.rope_dim();
  const double reached = sees_parts ? read / double(l_.cp) : read;
  const double positions =
      l_.attention_chunk > 0 ? std::min(double(l_.attention_chunk), reached) : reached;
  const auto pass = [&](const char* name, double times, double half) {
    const auto measured = MeasuredSeconds({"attention", name, positions, heads, channels},
                                          times * work, rates_.flops);
    if (measured.has_value()) return meeting_ + *measured;
    const double filled = l_.micro_batch * heads * positions / 4096;
    return meeting_ + times * seconds / Saturation(filled, half);
  };
  const double forward = pass(kForward, 1, program_.attention_half_heads());
  layer->attention_core += forward;
  layer->forward += forward;
  layer->backward += pass(kInputGradient, 2.5, program_.attention_half_heads_backward());
}

// A layer behind an encoder attends to the encoder's output, too, and has one more norm. Each such
// layer makes keys and values of the whole output, whose gradients all of them add up.
void LayerPredictor::AddCrossAttention(LayerCosts* layer) const {
  const double read = double(l_.micro_batch) * model_.encoder_sequence() / double(l_.cp);
  const LayerShape shape = RankShape();
  MatrixProducts products = CrossAttentionProducts(shape, tokens_, read);
  for (MatrixProduct& product : products) {
    if (product.weight_matrices > 0) AddProduct(layer, product.m, product.n, product.k);
  }
  const double self = layer->attention_core;
  AddCore(layer, model_.encoder_sequence(), 1, /*is_causal=*/false);
  const double h = model_.hidden();
  layer->parameters += h;
  if (program_.is_fused()) {
    const double bytes =
        rates_.element_bytes *
        (3 * h * tokens_ / sp_ + 2 * (query_width() * tokens_ + kv_width() * read) / tp_);
    layer->forward += bytes / rates_.memory;
    layer->backward += 1.6 * bytes / rates_.memory;
  }
  const auto seconds = [&](TrafficCall call, double tokens) {
    return CollectiveSeconds(gpu_, program_, call, {l_.tp, 1}, rates_.element_bytes * tokens * h);
  };
  if (l_.is_sequence_parallel) {
    const double written = seconds(TrafficCall::kAllGather, tokens_);
    const double all_read = seconds(TrafficCall::kAllGather, read);
    layer->tensor_forward += 2 * written + all_read;
    layer->tensor_backward += 3 * written + 2 * all_read;
  } else {
    const double written = seconds(TrafficCall::kAllReduce, tokens_);
    layer->tensor_forward += written;
    layer->tensor_backward += written + seconds(TrafficCall::kAllReduce, read);
  }
  AddContext(layer, read, layer->attention_core - self);
  const double of_token = (3 * rates_.element_bytes * h / sp_ + 4 * model_.heads() / tp_);
  layer->saved_bytes += tokens_ * of_token + 2 * rates_.element_bytes * kv_width() * read / tp_;
}

double LayerPredictor::ChunksOfAttention() const {
  if (l_.attention_chunk == 0 || l_.attention_chunk >= l_.sequence) return 1;
  return std::ceil(double(l_.sequence) / double(l_.attention_chunk));
}

// From the host come keys and values forward, and backward queries, outputs, their gradients and
// the sum, which goes back meanwhile.
LayerPredictor::ChunkCopies LayerPredictor::CopiesOfChunks() const {
  if (!l_.attention_chunks_on_host) return {};
  const double rounds = (ChunksOfAttention() - 1) / 2;  // pairs for each chunk, on average
  const double queries = tokens_ * query_width() / tp_, keys = 2 * tokens_ * kv_width() / tp_;
  const double bytes = rates_.element_bytes;
  const double link = gpu_.host_link_gb_per_s() * 1e9 * program_.link_efficiency();
  return {rounds * bytes * keys / link, rounds * (3 * bytes + 4) * queries / link};
}

// Each chunk attends to those before it, pair by pair. Partial results are merged in 32 bits, and
// so are the gradients of queries, keys and values. Pairs hide what the next ones need of the host.
void LayerPredictor::AddChunks(LayerCosts* layer) const {
  const double chunks = ChunksOfAttention();
  if (chunks == 1) return;
  const double rounds = (chunks - 1) / 2;
  const double queries = tokens_ * query_width() / tp_, keys = 2 * tokens_ * kv_width() / tp_;
  const double bytes = rates_.element_bytes;
  double forward = rounds * (8 + bytes) * queries / rates_.memory;
  double backward = rounds * 12 * (queries + keys) / rates_.memory;
  if (l_.attention_chunks_on_host) {
    const ChunkCopies copies = CopiesOfChunks();
    const double window = layer->attention_core * (chunks - 1) / chunks;
    forward += ExposedSeconds(gpu_, copies.forward, window, 0);
    backward += ExposedSeconds(gpu_, copies.backward, 2.5 * window, 0);
    const bool is_full = l_.recompute == PlanRecompute::kFull;
    layer->link_seconds = (is_full ? 2 : 1) * copies.forward + copies.backward;
  }
  layer->attention_core += forward;
  layer->forward += forward;
  layer->backward += backward;
  // Outputs are exchanged once more.
  if (l_.cp > 1)
    layer->context_backward +=
        CollectiveSeconds(gpu_, program_, TrafficCall::kAllToAll, {l_.cp, l_.tp}, bytes * queries);
}

// Returns the bytes that kernels between products pass over in a second.
double LayerPredictor::ElementwiseRate() const {
  if (!model_.is_gated() || program_.gated_memory_efficiency() == 0) return rates_.memory;
  return rates_.memory * program_.gated_memory_efficiency() / program_.memory_efficiency();
}

void LayerPredictor::AddElementwise(LayerCosts* layer, double ffn) const {
  const double h = model_.hidden();
  double bytes = 0;
  if (program_.is_fused()) {
    bytes = rates_.element_bytes * tokens_ *
            (6 * h / sp_ +
             (ffn * (model_.is_gated() ? 3 : 2) + 2 * (query_width() + kv_width())) / tp_);
  } else {
    bytes = rates_.element_bytes * tokens_ * (12 * h / sp_ + 18 * h / tp_);
  }
  const double rate = ElementwiseRate();
  const double overhead = program_.layer_overhead_seconds() / 2.6;
  layer->forward += bytes / rate + overhead + kKernelsForward * meeting_;
  layer->backward += 1.6 * (bytes / rate + overhead) + kKernelsBackward * meeting_;
}

LayerMatrices LayerPredictor::Matrices() const {
  return MatricesOf(int64_t(model_.hidden()), int64_t(model_.ffn()), model_.is_gated(),
                    int64_t(model_.heads()), int64_t(model_.kv_heads()),
                    int64_t(model_.head_dim()));
}

// Blocks are broadcast, gathered and summed up in front of products and behind them, and nothing
// beside them.
void LayerPredictor::AddGrid(LayerCosts* layer) const {
  for (const GridCall& call : GridCallsOf(Matrices(), l_.grid, tokens_, rates_.element_bytes)) {
    (call.is_forward ? layer->tensor_forward : layer->tensor_backward) +=
        call.calls *
        CollectiveSeconds(gpu_, program_,
                          call.sums ? TrafficCall::kReduceScatter : TrafficCall::kAllGather,
                          {call.ranks, call.stride}, call.bytes);
  }
}

void LayerPredictor::AddTensor(bool is_mixture, LayerCosts* layer) const {
  if (l_.grid.is_grid()) return AddGrid(layer);
  const double bytes = rates_.element_bytes * tokens_ * model_.hidden();
  const auto seconds_of = [&](TrafficCall call) {
    return CollectiveSeconds(gpu_, program_, call, {l_.tp, 1}, bytes);
  };
  const bool gathers = l_.is_sequence_parallel;
  const double gather = gathers ? seconds_of(TrafficCall::kAllGather) : 0;
  const double sum = gathers ? gather + seconds_of(TrafficCall::kReduceScatter)
                             : seconds_of(TrafficCall::kAllReduce);
  const int branches = CutBranches(model_, l_.is_sequence_parallel, is_mixture);
  layer->tensor_forward = branches * sum;
  // With sequence parallelism the inputs of the products are gathered once more.
  layer->tensor_backward = branches * (sum + gather);
  if (l_.overlaps_forward && l_.tp > 1) layer->tensor_forward = ForwardInPieces(is_mixture);
  if (!program_.overlaps_tensor_parallel()) return;
  // All parts but one pass beside products.
  const auto exposed = [&](double seconds, double products) {
    return ExposedSeconds(gpu_, seconds, products, seconds / tp_);
  };
  layer->tensor_forward = exposed(layer->tensor_forward, layer->forward - layer->attention_core);
  layer->tensor_backward =
      exposed(layer->tensor_backward, layer->backward - 2 * layer->attention_core);
}

// `read` are the tokens of which a rank has keys and values, and `core` the seconds of attention to
// them.
void LayerPredictor::AddContext(LayerCosts* layer, double read, double core) const {
  if (l_.cp == 1) return;
  switch (l_.context) {
    case PlanContext::kRing:
      return AddRing({l_.cp, l_.tp}, layer, read, core);
    case PlanContext::kAllToAll:
      return AddHeadExchange({l_.cp, l_.tp}, layer, read);
    case PlanContext::kGather:
      return AddGather({l_.cp, l_.tp}, layer, read, core);
    case PlanContext::kTeams:
      AddHeadExchange({l_.cp_team, l_.tp}, layer, read);
      return AddRing({l_.cp / l_.cp_team, l_.tp * l_.cp_team}, layer, read, core);
  }
}

// Queries, keys and values go to the ranks of their heads and the result comes back, in either
// pass.
void LayerPredictor::AddHeadExchange(const PlanGroup& group, LayerCosts* layer, double read) const {
  const double bytes =
      rates_.element_bytes * 2 * (tokens_ * query_width() + read * kv_width()) / tp_;
  // Processors send what goes there and what comes back by itself, of each half of the heads.
  const double calls = gpu_.cores() == 0 ? 1 : HasHalves(group) ? 4 : 2;
  const double exchange =
      calls * (CollectiveSeconds(gpu_, program_, TrafficCall::kAllToAll, group, bytes / calls) +
               LaneSeconds(gpu_));
  layer->context_forward += exchange;
  layer->context_backward += exchange;
}

// Returns whether a rank of the group has several groups of heads, one half of which it computes
// with while it sends the other.
bool LayerPredictor::HasHalves(const PlanGroup& group) const {
  return model_.kv_heads() / tp_ / double(group.ranks) > 1;
}

// Results of the parts of the keys are merged: each but the first reads and writes what was there.
// On GPUs, whose rings nothing has measured, this is left out.
void LayerPredictor::AddMerges(double sources, LayerCosts* layer, double read) const {
  if (gpu_.cores() == 0 || sources <= 1) return;
  const double queries = tokens_ * query_width() / tp_, keys = 2 * read * kv_width() / tp_;
  const double bytes = rates_.element_bytes;
  layer->forward += (sources - 1) * (8 + bytes) * queries / rates_.memory;
  layer->backward += (sources - 1) * 12 * (queries + keys) / rates_.memory;
}

// Keys and values go around, once forward and, with their gradients, twice backward. Attention to
// the part at hand hides them, but for the last message.
void LayerPredictor::AddRing(const PlanGroup& group, LayerCosts* layer, double read,
                             double core) const {
  AddMerges(double(group.ranks), layer, read);
  if (gpu_.cores() > 0) return AddRingOfProcessors(group, layer, read);
  const double bytes = rates_.element_bytes * read * double(group.ranks) * 2 * kv_width() / tp_;
  const double pass = CollectiveSeconds(gpu_, program_, TrafficCall::kAllGather, group, bytes);
  layer->context_forward += ExposedSeconds(gpu_, pass, core, 0);
  layer->context_backward +=
      ExposedSeconds(gpu_, 2 * pass, 2 * core, 0) + pass / double(group.ranks);
}

// Each message to the next rank is an exchange. Backward the sums of gradients, in 32 bits, follow
// one rank behind the keys, and go on to the rank whose keys they are of.
void LayerPredictor::AddRingOfProcessors(const PlanGroup& group, LayerCosts* layer,
                                         double read) const {
  const double elements = 2 * read * kv_width() / tp_, hops = double(group.ranks - 1);
  const auto exchange = [&](double bytes) {
    return MessageSeconds(gpu_, program_, group.stride, bytes) + LaneSeconds(gpu_);
  };
  const double keys = rates_.element_bytes * elements, sums = 4 * elements;
  layer->context_forward += hops * exchange(keys);
  layer->context_backward +=
      exchange(keys) + (hops - 1) * exchange(keys + sums) + 2 * exchange(sums);
}

// The keys and values of one half of a rank's heads are gathered, and their gradients summed in 32
// bits, while attention computes with the other half.
void LayerPredictor::AddGather(const PlanGroup& group, LayerCosts* layer, double read,
                               double all) const {
  AddMerges(double(group.ranks), layer, read);
  const double elements = read * double(group.ranks) * 2 * kv_width() / tp_;
  const double calls = gpu_.cores() > 0 && model_.kv_heads() / tp_ > 1 ? 2 : 1;
  const auto seconds = [&](TrafficCall call, double bytes) {
    return calls *
           (CollectiveSeconds(gpu_, program_, call, group, bytes / calls) + LaneSeconds(gpu_));
  };
  const double gather = seconds(TrafficCall::kAllGather, rates_.element_bytes * elements);
  const double sum = seconds(TrafficCall::kReduceScatter, 4 * elements);
  // A single group of heads has no halves.
  const double core = model_.kv_heads() / tp_ > 1 ? all : 0;
  const auto exposed = [&](double seconds, double window) {
    return seconds / 2 + ExposedSeconds(gpu_, seconds / 2, window, 0);
  };
  layer->context_forward += exposed(gather, core / 2);
  layer->context_backward += exposed(gather, core) + exposed(sum, core);
}

// Returns what AddMemory() takes queries, keys, values, outputs and their log-sum-exp of a token to
// be, of kernels that keep no scores.
double LayerPredictor::AttentionBytes() const {
  const double bytes = rates_.element_bytes, statistics = 4 * model_.heads() / tp_;
  if (model_.key_value_rank() > 0) {
    return bytes * model_.heads() * (4 * model_.head_dim() + 2 * model_.rope_dim()) / tp_ +
           statistics;
  }
  return 2 * bytes * (std::min(query_width(), model_.hidden()) / sp_ + kv_width() / tp_) +
         statistics;
}

// Returns what is kept of a token between the matrices of an MLP or an expert of that width: the
// second one's input, and what that is made of.
double LayerPredictor::MlpBytes(double width) const {
  return ((model_.is_gated() ? 2 : 1) * rates_.element_bytes + rates_.kept_input_bytes) * width;
}

void LayerPredictor::AddMemory(LayerCosts* layer, bool is_mixture) const {
  const double h = model_.hidden();
  layer->input_bytes = rates_.element_bytes * tokens_ * h / sp_;
  if (!program_.is_fused()) {
    const double scores = l_.recompute == PlanRecompute::kSelective
                              ? 0
                              : (2 * rates_.element_bytes + 1) * model_.heads() * l_.sequence;
    // Two of the ten and one of the five are masks of dropout, a byte of each element.
    const double wide = rates_.element_bytes / 2;
    layer->saved_bytes = tokens_ * ((8 * wide + 2) * h / sp_ + (24 * wide * h + scores) / tp_);
    layer->widest = 8 * rates_.element_bytes * tokens_ * h / tp_;
    return;
  }
  double of_token = 6 * rates_.element_bytes * h / sp_ +
                    (2 * rates_.element_bytes * kv_width() + 4 * model_.heads()) / tp_;
  if (model_.key_value_rank() > 0) {
    of_token = 4 * rates_.element_bytes * h / sp_ +
               rates_.element_bytes * (model_.query_rank() + model_.key_value_rank()) * 2 +
               rates_.element_bytes * model_.heads() *
                   (4 * model_.head_dim() + 2 * model_.rope_dim()) / tp_ +
               4 * model_.heads() / tp_;
  }
  if (l_.attention_chunks_on_host) of_token -= AttentionBytes();
  // Something else reads the input of latent attention, which two products have, and that of a
  // mixture, which its router has. Codes of all rows are no less than a part of the rows themselves.
  if (sp_ == 1) {
    const int alone = (model_.key_value_rank() > 0 ? 0 : 1) + (is_mixture ? 0 : 1);
    of_token -= alone * (rates_.element_bytes - rates_.kept_input_bytes) * h;
  }
  const double halves = model_.is_gated() ? 3 : 2;
  double ffn = model_.ffn();
  if (is_mixture) {
    ffn = model_.shared_ffn();
    of_token += model_.experts_per_token() / tp_ *
                (l_.etp * (rates_.kept_input_bytes * h + 8) + MlpBytes(model_.expert_ffn()));
  }
  // In chunks, what lies between an MLP's matrices is there for one of them, in backward.
  const bool is_cut = l_.mlp_chunk > 0;
  if (!is_cut) of_token += MlpBytes(ffn) / tp_;
  layer->saved_bytes = tokens_ * of_token;
  const double rows = is_cut ? std::min(tokens_, double(l_.mlp_chunk)) : tokens_;
  layer->widest = rates_.element_bytes * halves * rows *
                  std::max(ffn, is_mixture ? model_.experts_per_token() * model_.expert_ffn() : 0) /
                  tp_;
}

// A layer's tensors leave while the next one computes, and come back likewise. In a pipeline a
// backward pass follows the forward pass of another micro-batch: its last layer waits until what
// that one kept has left, and its own has come. Without one the tensors of the last layers are
// still on the GPU. What is computed again leaves nothing. Chunks of attention that lie on the host
// have the link first.
void LayerPredictor::AddOffload(LayerCosts* layer) const {
  if (!l_.activations_on_host) return;
  const bool is_full = l_.recompute == PlanRecompute::kFull;
  layer->host_bytes = is_full ? layer->input_bytes : layer->saved_bytes;
  const double copy =
      layer->host_bytes / (gpu_.host_link_gb_per_s() * 1e9 * program_.link_efficiency());
  const double forward =
      layer->forward + layer->tensor_forward + layer->context_forward + layer->expert / 2;
  const double backward =
      layer->backward + layer->tensor_backward + layer->context_backward + layer->expert / 2;
  const ChunkCopies chunks = CopiesOfChunks();
  const double left = ExposedSeconds(gpu_, copy, forward - chunks.forward, 0);
  layer->forward += left;
  const double window = backward + (is_full ? forward : 0) - (layer->link_seconds - chunks.forward);
  layer->backward += ExposedSeconds(gpu_, copy, window, 0);
  if (is_full) layer->backward -= left;
  const double layers = double(model_.layers()) / double(l_.pp * l_.vpp);
  if (l_.pp > 1) layer->backward += 2 * copy / std::max(1.0, layers);
}

LayerCosts LayerPredictor::Layer(bool is_mixture) const {
  LayerCosts layer;
  const LayerShape shape = RankShape();
  const double seen = CausallySeen(double(l_.sequence), FlopsConvention::kClassic);
  AddProducts(&layer, model_.key_value_rank() > 0
                          ? CompressedAttentionProducts(model_, tokens_, tp_, sp_)
                          : SelfAttentionProducts(shape, tokens_, seen));
  AddAttentionCore(&layer);
  AddChunks(&layer);
  double ffn = model_.ffn();
  if (is_mixture) {
    AddProducts(&layer, MixtureProducts(shape, tokens_));
    ffn = model_.shared_ffn() + model_.experts_per_token() * model_.expert_ffn();
  } else {
    AddProducts(&layer, MlpProducts(shape, tokens_));
  }
  layer.parameters += 2 * model_.hidden();  // norms
  AddElementwise(&layer, ffn);
  AddTensor(is_mixture, &layer);
  AddContext(&layer, tokens_, layer.attention_core);
  if (is_mixture) {
    AddExpertExchange(&layer);
    AddRouter(&layer);
  }
  AddMemory(&layer, is_mixture);
  if (model_.encoder_layers() > 0) AddCrossAttention(&layer);
  layer.forward = std::max(layer.forward, program_.layer_seconds() - layer.tensor_forward);
  layer.backward =
      std::max(layer.backward, program_.layer_seconds_backward() - layer.tensor_backward);
  if (is_mixture && !l_.drops_tokens) {
    // With deduplicated dispatch the host learns the rows of hosts, and then those of experts.
    layer.forward += (l_.deduplicates_dispatch ? 2 : 1) * program_.routing_seconds();
    layer.backward += program_.routing_seconds();
  }
  AddOffload(&layer);
  return layer;
}

double LayerPredictor::HeadSeconds() const {
  const double vocab = model_.vocab() / tp_;
  const double bytes = rates_.element_bytes * (program_.is_fused() ? 2 : 6) * tokens_ * vocab;
  double seconds = 3 * bytes / rates_.memory + kEndKernels * meeting_;
  for (const char* pass : {kForward, kInputGradient, kWeightGradient}) {
    seconds += ProductSeconds({"product", pass, tokens_, vocab, model_.hidden()}, rates_.flops);
  }
  return seconds;
}

}  // namespace megatron
