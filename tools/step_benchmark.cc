// Measures one training step of a model on this machine: its speed, the time of each operation, and
// both in relation to the rate of the matrix products alone, ours and Eigen's, on the step's own
// shapes, and to the peak of fused multiply-adds, in the same process. For BERT it also compares a
// step of packed samples of any length with the step of as many samples that are padded to the
// longest.
//
//   bazel run //tools:step_benchmark -- --config=gpt2_124m --micro_batch_size=4 --seq_length=256
//   bazel run //tools:step_benchmark -- --config=bert_345m --vocab_size=30522 --seq_length=512
//       --set=model.num_layers=12,model.hidden_size=768,model.num_attention_heads=12

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/median.h"
#include "megatron/base/philox.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cpu/eigen_matmul.h"
#include "megatron/ops/cpu/fma_peak.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "megatron/train/trainer/trainer.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, config, "gpt2_124m",
          "The model: a configuration file or the name of a shipped one.");
ABSL_FLAG(int64_t, vocab_size, 50257,
          "Tokens of the model's vocabulary; they are drawn at random.");
ABSL_FLAG(int64_t, micro_batch_size, 4, "Samples of the step.");
ABSL_FLAG(int64_t, seq_length, 256, "Tokens of a sample.");
ABSL_FLAG(std::string, dtype, "fp32", "fp32, bf16 or fp16.");
ABSL_FLAG(std::vector<std::string>, set, {}, "Fields of the configuration to change: a.b=c,...");
ABSL_FLAG(
    int64_t, shortest_sample, 0,
    "BERT: lengths of the packed samples are spread evenly from this to seq_length; 0: from a "
    "quarter of it.");
ABSL_FLAG(int, rounds, 7, "Measurements of each thing; medians are printed.");

namespace megatron {
namespace {

// Samples of lengths from `shortest` to `longest`, in turn. Both GPT and BERT can read them.
class RandomTokens : public SampleSource {
 public:
  RandomTokens(int64_t shortest, int64_t longest, int64_t vocab_size)
      : shortest_(shortest), longest_(longest), vocab_size_(vocab_size) {}
  int64_t size() const override { return int64_t{1} << 40; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    const int64_t length = LengthOf(index);
    sample->tokens.resize(length);
    sample->labels.resize(length);
    sample->positions.resize(length);
    sample->types.assign(length, 0);
    sample->loss_mask.assign(length, 1.0f);
    sample->document_starts.assign(1, 0);
    for (int64_t i = 0; i < length; ++i) {
      const PhiloxBlock words =
          Philox({1, 2}, {{static_cast<uint32_t>(index), static_cast<uint32_t>(i), 0, 0}});
      sample->tokens[i] = static_cast<int32_t>(words.word[0] % vocab_size_);
      sample->labels[i] = static_cast<int32_t>(words.word[1] % vocab_size_);
      sample->positions[i] = static_cast<int32_t>(i);
    }
    return absl::OkStatus();
  }

  // Eight lengths at equal distances.
  int64_t LengthOf(int64_t index) const {
    return longest_ - (longest_ - shortest_) * (index % 8) / 7;
  }

 private:
  int64_t shortest_, longest_, vocab_size_;
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Something that a step does `count` times.
struct Part {
  std::string name;
  int64_t count = 0;
  std::function<void()> run;
  std::function<void()> eigen;  // empty: no matrix product
  double flops = 0;             // the sizes of one matrix product
};

// Tensors of the step's shapes with values of its size.
class Operands {
 public:
  Tensor Make(DType dtype, const Shape& shape) {
    buffers_.emplace_back(Device{}, shape.numel() * SizeOf(dtype), "benchmark", nullptr);
    const Tensor tensor = buffers_.back().At(0, dtype, shape);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const float value = 0.02f * static_cast<float>((i * 2654435761u >> 7) % 201) / 100.0f - 0.02f;
      switch (dtype) {
        case DType::kFloat32:
          tensor.data<float>()[i] = value;
          break;
        case DType::kBFloat16:
          tensor.data<BFloat16>()[i] = ToBFloat16(value);
          break;
        case DType::kFloat16:
          tensor.data<Float16>()[i] = ToFloat16(value);
          break;
        default:
          tensor.data<int32_t>()[i] = static_cast<int32_t>(i);
          break;
      }
    }
    return tensor;
  }

 private:
  std::vector<Buffer> buffers_;
};

class StepParts {
 public:
  StepParts(const ModelOptions& model, int64_t samples, int64_t length, ThreadPool* pool)
      : model_(model),
        stream_(Stream::Cpu(pool)),
        pool_(pool),
        tokens_(samples * length),
        dtype_(model.transformer.dtype) {
    const TransformerOptions& t = model.transformer;
    const int64_t hidden = t.hidden_size, heads = t.num_attention_heads * t.kv_channels;
    AddLinear("qkv", t.num_layers, heads + 2 * t.num_query_groups * t.kv_channels, hidden);
    AddLinear("attention output", t.num_layers, hidden, heads);
    AddLinear("fc1", t.num_layers, (t.gated ? 2 : 1) * t.ffn_hidden_size, hidden);
    AddLinear("fc2", t.num_layers, hidden, t.ffn_hidden_size);
    AddLinear("logits", 1, model.padded_vocab_size, hidden);
    if (model.kind == ModelKind::kBert) AddLinear("head", 1, hidden, hidden);
    AddAttention(samples, length);
    AddNorm();
    AddLoss();
  }
  std::vector<Part>& parts() { return parts_; }

 private:
  const ops::EigenMatmul& Eigen() const {
    return ops::ActiveIsa() == ops::CpuIsa::kAvx512 ? ops::avx512::kEigenMatmul
                                                    : ops::avx2::kEigenMatmul;
  }

  void AddLinear(const std::string& name, int64_t count, int64_t out, int64_t in) {
    const Tensor x = operands_.Make(dtype_, {tokens_, in}), w = operands_.Make(dtype_, {out, in});
    const Tensor y = operands_.Make(dtype_, {tokens_, out}),
                 dw = operands_.Make(DType::kFloat32, {out, in});
    const Tensor ex = operands_.Make(DType::kFloat32, {tokens_, in}),
                 ew = operands_.Make(DType::kFloat32, {out, in});
    const Tensor ey = operands_.Make(DType::kFloat32, {tokens_, out});
    const double flops =
        2.0 * static_cast<double>(tokens_) * static_cast<double>(out) * static_cast<double>(in);
    auto rows = [=](int64_t total, std::function<void(int64_t, int64_t)> body) {
      return [=] { pool_->ParallelFor(total, body); };
    };
    float *px = ex.data<float>(), *pw = ew.data<float>(), *py = ey.data<float>(),
          *pdw = dw.data<float>();
    const int64_t tokens = tokens_;
    const ops::EigenMatmul eigen = Eigen();
    parts_.push_back({"linear: " + name + ", forward", count,
                      [=] { ops::LinearForward(stream_, x, w, Tensor(), y); },
                      rows(tokens,
                           [=](int64_t b, int64_t e) {
                             eigen.forward(px + b * in, pw, py + b * out, e - b, out, in);
                           }),
                      flops});
    parts_.push_back({"linear: " + name + ", input gradient", count,
                      [=] { ops::LinearBackwardInput(stream_, y, w, x); },
                      rows(tokens,
                           [=](int64_t b, int64_t e) {
                             eigen.backward_input(py + b * out, pw, px + b * in, e - b, in, out);
                           }),
                      flops});
    parts_.push_back({"linear: " + name + ", weight gradient", count,
                      [=] { ops::LinearBackwardWeight(stream_, y, x, dw, Tensor()); },
                      rows(out,
                           [=](int64_t b, int64_t e) {
                             eigen.backward_weight(py + b, out, px, pdw + b * in, e - b, in,
                                                   tokens);
                           }),
                      flops});
  }

  void AddAttention(int64_t samples, int64_t length) {
    const TransformerOptions& t = model_.transformer;
    const int64_t groups = t.num_query_groups, heads = t.num_attention_heads / groups;
    const Tensor cu = operands_.Make(DType::kInt32, {samples + 1});
    for (int64_t s = 0; s <= samples; ++s) cu.data<int32_t>()[s] = static_cast<int32_t>(s * length);
    ops::Attention attention;
    attention.scale = 0.125f;
    attention.causal = t.causal;
    attention.cu_seqlens_q = attention.cu_seqlens_k = cu;
    attention.max_seqlen_q = attention.max_seqlen_k = length;
    auto make = [&] { return operands_.Make(dtype_, {tokens_, groups, heads + 2, t.kv_channels}); };
    const Tensor qkv = make(), dqkv = make();
    auto split = [=](const Tensor& packed) {
      return ops::AttentionInputs{packed.Slice(2, 0, heads), packed.Select(2, heads),
                                  packed.Select(2, heads + 1)};
    };
    const Tensor out = operands_.Make(dtype_, {tokens_, groups, heads, t.kv_channels});
    const Tensor dout = operands_.Make(dtype_, {tokens_, groups, heads, t.kv_channels});
    const Tensor lse = operands_.Make(DType::kFloat32, {tokens_, groups, heads});
    parts_.push_back({"attention, forward", t.num_layers,
                      [=] { ops::AttentionForward(stream_, attention, split(qkv), out, lse); },
                      nullptr, 0});
    parts_.push_back({"attention, backward", t.num_layers,
                      [=] {
                        ops::AttentionBackward(stream_, attention, split(qkv), out, lse, dout,
                                               split(dqkv));
                      },
                      nullptr, 0});
  }

  void AddNorm() {
    const int64_t hidden = model_.transformer.hidden_size,
                  norms = 2 * model_.transformer.num_layers + 1;
    const bool centered = model_.transformer.norm.kind == ops::Norm::kLayerNorm;
    const Tensor x = operands_.Make(dtype_, {tokens_, hidden}),
                 y = operands_.Make(dtype_, {tokens_, hidden});
    const Tensor dx = operands_.Make(dtype_, {tokens_, hidden});
    const Tensor gamma = operands_.Make(dtype_, {hidden}),
                 dgamma = operands_.Make(DType::kFloat32, {hidden});
    const Tensor statistic = operands_.Make(DType::kFloat32, {tokens_}),
                 other = operands_.Make(DType::kFloat32, {tokens_});
    const ops::NormTensors tensors = {gamma, centered ? gamma : Tensor(),
                                      centered ? other : Tensor(), statistic};
    const ops::Norm norm = model_.transformer.norm;
    parts_.push_back({"norm, forward", norms,
                      [=] { ops::NormForward(stream_, norm, x, tensors, y); }, nullptr, 0});
    parts_.push_back({"norm, backward", norms,
                      [=] {
                        ops::NormBackward(stream_, norm, y, x, tensors, Tensor(), dx, dgamma,
                                          centered ? dgamma : Tensor());
                      },
                      nullptr, 0});
  }

  void AddLoss() {
    const int64_t vocab = model_.padded_vocab_size;
    const Tensor logits = operands_.Make(dtype_, {tokens_, vocab});
    const Tensor labels = operands_.Make(DType::kInt32, {tokens_});
    for (int64_t t = 0; t < tokens_; ++t)
      labels.data<int32_t>()[t] = static_cast<int32_t>(t % model_.vocab_size);
    const Tensor weight = operands_.Make(DType::kFloat32, {tokens_}),
                 loss = operands_.Make(DType::kFloat32, {tokens_});
    const ops::VocabRange range = {0, model_.vocab_size};
    parts_.push_back(
        {"cross-entropy, with its gradient", 1,
         [=] { ops::CrossEntropy(stream_, logits, labels, range, weight, loss, Tensor()); },
         nullptr, 0});
  }

  ModelOptions model_;
  Stream stream_;
  ThreadPool* pool_;
  int64_t tokens_;
  DType dtype_;
  Operands operands_;
  std::vector<Part> parts_;
};

absl::StatusOr<LoadedConfig> LoadModel() {
  std::vector<std::string> overrides = {
      absl::StrCat("train.micro_batch_size=", absl::GetFlag(FLAGS_micro_batch_size)),
      absl::StrCat("train.global_batch_size=", absl::GetFlag(FLAGS_micro_batch_size)),
      absl::StrCat("model.seq_length=", absl::GetFlag(FLAGS_seq_length)),
      "parallel.tensor_model_parallel_size=1",
      "parallel.pipeline_model_parallel_size=1",
      "train.eval_iters=0",
      "precision.bf16=false",
      "precision.fp16=false"};
  const std::string dtype = absl::GetFlag(FLAGS_dtype);
  if (dtype != "fp32") overrides.push_back(absl::StrCat("precision.", dtype, "=true"));
  for (const std::string& field : absl::GetFlag(FLAGS_set)) overrides.push_back(field);
  return LoadConfig(absl::GetFlag(FLAGS_config), overrides, ConfigPurpose::kRun);
}

int Rounds() { return std::max(1, absl::GetFlag(FLAGS_rounds)); }

// `seconds` is the time of all runs of the part, `peak` is in GFLOP/s.
void Print(const Part& part, double seconds, double step, double peak) {
  std::printf("  %-36s %9.1f ms %5.1f %%", part.name.c_str(), seconds * 1e3, 100 * seconds / step);
  const double rate = part.flops * static_cast<double>(part.count) / seconds * 1e-9;
  if (part.flops > 0) std::printf("  %7.1f GFLOP/s, %5.1f %% of the peak", rate, 100 * rate / peak);
  std::printf("\n");
}

// Steps of samples of any length and of samples that are all padded to the longest, in turn.
absl::Status ComparePacked(Trainer* trainer, const RandomTokens& packed,
                           const RandomTokens& padded) {
  std::vector<double> packed_steps, padded_steps;
  double tokens = 0, all_tokens = 0;
  for (int round = 0; round < Rounds(); ++round) {
    const int64_t first = trainer->progress().consumed_train_samples;
    absl::Status status;
    packed_steps.push_back(Seconds([&] { status = trainer->Step(packed).status(); }));
    MEGATRON_RETURN_IF_ERROR(status);
    for (int64_t i = first; i < trainer->progress().consumed_train_samples; ++i) {
      tokens += static_cast<double>(packed.LengthOf(i));
      all_tokens += static_cast<double>(padded.LengthOf(i));
    }
    padded_steps.push_back(Seconds([&] { status = trainer->Step(padded).status(); }));
    MEGATRON_RETURN_IF_ERROR(status);
  }
  const double share = Median(packed_steps) / Median(padded_steps);
  std::printf(
      "packed: %.1f %% of the padded tokens take %.1f %% of the padded step's %.1f ms: %.3f of the "
      "time that a padded step takes for a token\n",
      100 * tokens / all_tokens, 100 * share, Median(padded_steps) * 1e3,
      share / (tokens / all_tokens));
  return absl::OkStatus();
}

// Seconds of every round.
struct Times {
  std::vector<double> steps;
  std::vector<double> products, eigen_products;      // those of all parts together
  std::map<std::string, std::vector<double>> parts;  // those of each part, by its name
  std::vector<double> peaks;                         // FLOP/s of multiply-adds alone
};

absl::StatusOr<Times> MeasureTimes(Trainer* trainer, const RandomTokens& source, StepParts* parts,
                                   ThreadPool* pool) {
  Times times;
  absl::Status status;
  auto step = [&] { status = trainer->Step(source).status(); };
  step();
  for (Part& part : parts->parts()) part.run();
  // Steps and products take turns, so that changes in the machine's speed affect both.
  for (int round = 0; round < Rounds(); ++round) {
    times.steps.push_back(Seconds(step));
    MEGATRON_RETURN_IF_ERROR(status);
    double products = 0, eigen_products = 0;
    for (Part& part : parts->parts()) {
      const double seconds = Seconds(part.run) * static_cast<double>(part.count);
      times.parts[part.name].push_back(seconds);
      if (part.eigen == nullptr) continue;
      products += seconds;
      eigen_products += Seconds(part.eigen) * static_cast<double>(part.count);
      times.peaks.push_back(ops::MeasureFmaPeak(pool));
    }
    times.products.push_back(products);
    times.eigen_products.push_back(eigen_products);
  }
  return times;
}

// Prints the rates of the step and of its products. `step_flops` are the model's.
void PrintRates(const Times& times, const std::vector<Part>& parts, double tokens,
                double step_flops) {
  double product_flops = 0;
  for (const Part& part : parts) product_flops += part.flops * static_cast<double>(part.count);
  const double seconds = Median(times.steps), step_rate = step_flops / seconds * 1e-9;
  const double our_rate = product_flops / Median(times.products) * 1e-9,
               eigen_rate = product_flops / Median(times.eigen_products) * 1e-9,
               peak = Median(times.peaks) * 1e-9;
  std::printf("step: %.1f ms, %.1f tokens/s, %.1f model GFLOP/s\n", seconds * 1e3, tokens / seconds,
              step_rate);
  std::printf(
      "matrix products alone, the step's shapes: %.1f GFLOP/s ours, %.1f Eigen's (fp32): ratio "
      "%.3f\n",
      our_rate, eigen_rate, our_rate / eigen_rate);
  std::printf("step / better of the two: %.1f %%\n",
              100 * step_rate / std::max(our_rate, eigen_rate));
  std::printf(
      "fused multiply-adds alone: %.1f GFLOP/s; products / peak: %.1f %%, step / peak: %.1f %%\n",
      peak, 100 * our_rate / peak, 100 * step_rate / peak);
}

void PrintParts(const Times& times, const std::vector<Part>& parts) {
  const double seconds = Median(times.steps), peak = Median(times.peaks) * 1e-9;
  double rest = seconds;
  for (const Part& part : parts) {
    const double part_seconds = Median(times.parts.at(part.name));
    Print(part, part_seconds, seconds, peak);
    rest -= part_seconds;
  }
  Print({"the rest (activations, embedding, optimizer, data)"}, rest, seconds, peak);
}

absl::Status Benchmark(const std::vector<std::string>&) {
  MEGATRON_RETURN_IF_ERROR(ops::CheckCpu());
  MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadModel());
  const int64_t samples = absl::GetFlag(FLAGS_micro_batch_size),
                length = absl::GetFlag(FLAGS_seq_length);
  RunOptions options = ToRunOptions(loaded.config, absl::GetFlag(FLAGS_vocab_size));
  MEGATRON_ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(options));
  MEGATRON_ASSIGN_OR_RETURN(const LossScaler scaler, MakeLossScaler(options.precision));
  ThreadPool pool(AvailableCores());
  MemoryLedger ledger;
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                            Trainer::Create(options.trainer, scaler, ProcessGroups(),
                                            plan.stages[0].sizes, Stream::Cpu(&pool), &ledger));
  trainer->InitializeWeights(1234);
  const ModelOptions& model = options.trainer.model;
  const RandomTokens source(length, length, model.vocab_size);
  StepParts parts(model, samples, length, &pool);
  MEGATRON_ASSIGN_OR_RETURN(const Times times, MeasureTimes(trainer.get(), source, &parts, &pool));

  std::printf("%s, %s, %d x %d tokens, %s, %d threads; medians of %d\n",
              absl::GetFlag(FLAGS_config).c_str(), Name(model.transformer.dtype),
              static_cast<int>(samples), static_cast<int>(length), ops::IsaName(),
              pool.num_threads(), Rounds());
  const double tokens = static_cast<double>(samples * length);
  PrintRates(times, parts.parts(), tokens,
             tokens * FlopsPerToken(loaded.config.model(), model.padded_vocab_size,
                                    FlopsConvention::kCausalHalved));
  PrintParts(times, parts.parts());
  if (!options.trainer.packing.lengths_vary()) return absl::OkStatus();
  int64_t shortest = absl::GetFlag(FLAGS_shortest_sample);
  if (shortest == 0) shortest = std::max<int64_t>(1, length / 4);
  return ComparePacked(trainer.get(), RandomTokens(shortest, length, model.vocab_size), source);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Measures a training step and its parts.",
                           megatron::Benchmark);
}
