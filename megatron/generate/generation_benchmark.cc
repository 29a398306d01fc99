// Tokens that a GPT-2 of 124 million parameters generates, beside what limits them, measured in
// turn in the same process on the same threads.
//
// For one sequence that is reading the weights and the cache: `of_bandwidth` is the rate at which a
// step reads them divided by that of a loop that only reads the weights. For a batch it is the
// products: `of_products` is the time of the products with all weights divided by that of a step.
//
// Arguments: sequences, tokens of each that are cached before, dtype.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/models/cached_model.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_stage.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

constexpr int64_t kContext = 1024;

ModelOptions Gpt2(DType dtype) {
  ModelOptions options;
  options.transformer.num_layers = 12;
  options.transformer.hidden_size = 768;
  options.transformer.ffn_hidden_size = 3072;
  options.transformer.num_attention_heads = options.transformer.num_query_groups = 12;
  options.transformer.kv_channels = 64;
  options.transformer.dtype = dtype;
  options.vocab_size = 50257;
  options.padded_vocab_size = 50304;
  options.max_positions = kContext;
  return options;
}

template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Model {
 public:
  // With a cache for one token more than `tokens` of each sequence.
  Model(const ModelOptions& options, int64_t sequences, int64_t tokens)
      : options_(options),
        pool_(AvailableCores()),
        stream_(Stream::Cpu(&pool_)),
        stage_(MakeStage(options, {Device(), nullptr})) {
    const CachedModelLimits limits = {sequences, tokens + 1, sequences, sequences};
    weights_ = Buffer({}, Bind(stage_.get(), nullptr), "weights", nullptr);
    Bind(stage_.get(), &weights_);
    Fill(weights_.data(), weights_.bytes());
    const std::unique_ptr<ModelStage> planned = MakeStage(options, {{DeviceType::kMeta}});
    Bind(planned.get(), nullptr);
    StageMemory plan({DeviceType::kMeta}, {}, nullptr);
    CachedModel({planned.get(), &plan}, limits, Stream::Meta(), nullptr).Measure();
    memory_ = std::make_unique<StageMemory>(Device(), plan.HighWater(), nullptr);
    model_ = std::make_unique<CachedModel>(GeneratorSetup{stage_.get(), memory_.get()}, limits,
                                           stream_, nullptr);
    // The tokens before are as if they had been computed.
    Fill(model_->cache().Keys(0).raw(), CacheBytes(tokens + 1));
  }

  // Computes one more token of each sequence.
  void Step(int64_t position) {
    std::vector<NewToken> step;
    for (int32_t slot = 0; slot < model_->limits().slots; ++slot)
      step.push_back({slot, static_cast<int32_t>(position), 1000 + slot, true});
    model_->Run(step);
  }

  // Multiplies one row for each sequence by every weight matrix.
  void Multiply() {
    const int64_t rows = model_->limits().slots;
    const DType dtype = options_.transformer.dtype;
    for (Parameter* parameter : stage_->parameters()) {
      if (!parameter->matrix.has_value() && parameter->name != "embedding.word_embeddings.weight")
        continue;
      const int64_t in = parameter->data.dim(-1), out = parameter->data.numel() / in;
      if (x_.bytes() < rows * 3072 * 4) x_ = Buffer({}, rows * 3072 * 4, "x", nullptr);
      if (y_.bytes() < rows * out * 4) y_ = Buffer({}, rows * out * 4, "y", nullptr);
      ops::LinearForward(stream_, x_.At(0, dtype, {rows, in}), parameter->data.View({out, in}),
                         Tensor(), y_.At(0, dtype, {rows, out}));
    }
  }

  // Reads the weights and does as good as nothing with them.
  void ReadWeights() {
    const int64_t words = weights_.bytes() / 64;
    const auto* const data = static_cast<const uint64_t*>(weights_.data());
    pool_.ParallelFor(words, [&](int64_t begin, int64_t end) {
      uint64_t sums[8] = {};
      for (int64_t i = 8 * begin; i < 8 * end; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += data[i + j];
      }
      benchmark::DoNotOptimize(std::accumulate(sums, sums + 8, uint64_t{0}));
    });
  }

  // The bytes that a step reads: all weights but the tables of positions and types, and the cache.
  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t StepBytes(int64_t tokens) const {
    const TransformerOptions& layer = options_.transformer;
    return weight_bytes() - kContext * layer.hidden_size * SizeOf(layer.dtype) + CacheBytes(tokens);
  }

 private:
  // Numbers around 0.01 in both formats.
  static void Fill(void* memory, int64_t bytes) {
    auto* const words = static_cast<uint16_t*>(memory);
    for (int64_t i = 0; i < bytes / 2; ++i)
      words[i] = static_cast<uint16_t>(0x3c00 + i % 113 - (i % 2 == 0 ? 0x8000 : 0));
  }

  // The bytes of the keys and values of so many tokens of each sequence.
  int64_t CacheBytes(int64_t tokens) const {
    const TransformerOptions& layer = options_.transformer;
    return model_->limits().slots * tokens * 2 * layer.num_layers * layer.num_query_groups *
           layer.kv_channels * SizeOf(layer.dtype);
  }

  int64_t Bind(ModelStage* stage, const Buffer* buffer) {
    int64_t offset = 0;
    for (Parameter* parameter : stage->parameters()) {
      const Shape& shape = parameter->sharding.local_shape;
      const DType dtype = options_.transformer.dtype;
      parameter->data = buffer == nullptr ? Tensor(nullptr, dtype, shape, {DeviceType::kMeta})
                                          : buffer->At(offset, dtype, shape);
      offset += (parameter->data.bytes() + Buffer::kAlignment - 1) / Buffer::kAlignment *
                Buffer::kAlignment;
    }
    return offset;
  }

  ModelOptions options_;
  ThreadPool pool_;
  Stream stream_;
  std::unique_ptr<ModelStage> stage_;
  Buffer weights_, x_, y_;
  std::unique_ptr<StageMemory> memory_;
  std::unique_ptr<CachedModel> model_;
};

void BM_GeneratedTokens(benchmark::State& state) {
  const int64_t sequences = state.range(0), tokens = state.range(1);
  Model model(Gpt2(static_cast<DType>(state.range(2))), sequences, tokens);
  model.Step(tokens);
  model.Multiply();
  double step = 0, read = 0, products = 0;
  for (auto _ : state) {
    const double seconds = Seconds([&] { model.Step(tokens); });
    step += seconds;
    read += Seconds([&] { model.ReadWeights(); });
    products += Seconds([&] { model.Multiply(); });
    state.SetIterationTime(seconds);
  }
  const double steps = static_cast<double>(state.iterations());
  const double bandwidth = static_cast<double>(model.weight_bytes()) * steps / read;
  const double rate = static_cast<double>(model.StepBytes(tokens)) * steps / step;
  state.counters["tokens/s"] = static_cast<double>(sequences) * steps / step;
  state.counters["GB/s"] = rate / 1e9;
  state.counters["bandwidth_GB/s"] = bandwidth / 1e9;
  state.counters["of_bandwidth"] = rate / bandwidth;
  state.counters["of_products"] = products / step;
}
constexpr auto kFp32 = static_cast<int64_t>(DType::kFloat32);
constexpr auto kBf16 = static_cast<int64_t>(DType::kBFloat16);
BENCHMARK(BM_GeneratedTokens)
    ->Args({1, 16, kFp32})
    ->Args({1, 1000, kFp32})
    ->Args({16, 200, kFp32})
    ->Args({1, 16, kBf16})
    ->Args({1, 1000, kBf16})
    ->Args({16, 200, kBf16})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
