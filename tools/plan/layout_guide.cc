#include "tools/plan/layout_guide.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/search_layouts.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

constexpr const char* kProgram = "megatron_cc";
constexpr double kGiB = 1073741824.0;
constexpr int64_t kGptVocab = 50257, kLlamaVocab = 128256;

std::string TrainingText(int64_t samples, int64_t vocab) {
  return absl::StrFormat(
      "train { micro_batch_size: 1 global_batch_size: %d train_iters: 1000 }\n"
      "precision { bf16: true }\n"
      "optimizer { lr: 1e-4 }\n"
      "data { mock_data: true tokenizer_type: NullTokenizer vocab_size: %d }\n",
      samples, vocab);
}

GuideModel Gpt(const char* name, int64_t layers, int64_t hidden, int64_t heads, int64_t samples) {
  return {name, absl::StrFormat("model { num_layers: %d hidden_size: %d num_attention_heads: %d\n"
                                "  seq_length: 2048 hidden_dropout: 0 attention_dropout: 0 }\n%s",
                                layers, hidden, heads, TrainingText(samples, kGptVocab))};
}

GuideModel Llama(const char* name, int64_t layers, int64_t hidden, int64_t ffn, int64_t heads,
                 int64_t samples) {
  return {name,
          absl::StrFormat(
              "model { num_layers: %d hidden_size: %d ffn_hidden_size: %d num_attention_heads: %d\n"
              "  group_query_attention: true num_query_groups: 8 seq_length: 8192\n"
              "  position_embedding_type: rope normalization: RMSNorm swiglu: true\n"
              "  disable_bias_linear: true untie_embeddings_and_output_weights: true\n"
              "  hidden_dropout: 0 attention_dropout: 0 }\n%s",
              layers, hidden, ffn, heads, TrainingText(samples, kLlamaVocab))};
}

// A row of the guide; without a layout where none fits.
struct Row {
  const GuideModel* model;
  int64_t gpus = 0;
  absl::optional<FoundLayout> layout;
};

absl::StatusOr<Row> Search(const GuideModel& model, int64_t gpus, const Planner& planner) {
  const ParsedConfig parsed = ParseConfig(model.config, model.name);
  MEGATRON_RETURN_IF_ERROR(ToStatus(parsed.errors));
  const int64_t vocab = parsed.config.data().vocab_size();
  Row row = {&model, gpus, absl::nullopt};
  // What takes the host's memory isn't measured, and is looked at where nothing else fits.
  for (const bool offloads : {false, true}) {
    SearchOptions options;
    options.ranks = gpus;
    options.best = 1;
    options.offloads = offloads;
    MEGATRON_ASSIGN_OR_RETURN(LayoutSearch found,
                              SearchLayouts(parsed.config, vocab, planner, options));
    if (found.best.empty()) continue;
    row.layout = std::move(found.best.front());
    break;
  }
  return row;
}

std::string RowText(const Row& row, const Hardware& hardware) {
  if (!row.layout) {
    return absl::StrFormat("| %s | %s | fits with no layout | | | |\n", row.model->name,
                           FormatCount(row.gpus));
  }
  const StepPrediction& step = row.layout->prediction;
  const double seconds = step.seconds.total;
  const std::string three_digits = seconds < 1000 ? absl::StrFormat("%.3g", seconds)
                                                  : FormatCount(std::llround(seconds / 10) * 10);
  return absl::StrFormat("| %s | %s | %s | %s s | %.1f %% | %.1f GiB |\n", row.model->name,
                         FormatCount(row.gpus), DescribeLayout(row.layout->axes), three_digits,
                         100 * step.model_flops / seconds / (1e12 * hardware.bf16_tflops()),
                         double(row.layout->memory_bytes) / kGiB);
}

// Something that layouts may have, and its size in one that has it.
struct Trait {
  const char* name;
  std::function<int64_t(const LayoutAxes&)> size;  // 0: the layout doesn't have it
};

const std::vector<Trait>& Traits() {
  const auto above_one = [](int64_t size) { return size > 1 ? size : 0; };
  static const auto* const traits = new std::vector<Trait>{
      {"tensor parallelism", [=](const LayoutAxes& axes) { return above_one(axes.tensor); }},
      {"pipeline parallelism", [=](const LayoutAxes& axes) { return above_one(axes.pipeline); }},
      {"several chunks of a pipeline stage",
       [=](const LayoutAxes& axes) { return above_one(axes.chunks); }},
      {"context parallelism", [=](const LayoutAxes& axes) { return above_one(axes.context); }},
      {"micro-batches of several samples",
       [=](const LayoutAxes& axes) { return above_one(axes.micro_batch); }},
      {"data-parallel ranks outermost",
       [](const LayoutAxes& axes) { return int64_t(axes.data_is_outermost); }},
      {"recomputation of whole layers",
       [](const LayoutAxes& axes) { return int64_t(axes.recompute == PlanRecompute::kFull); }},
      {"recomputation of attention",
       [](const LayoutAxes& axes) { return int64_t(axes.recompute == PlanRecompute::kSelective); }},
      {"ZeRO-1",
       [](const LayoutAxes& axes) { return int64_t(axes.shared_out == SharedOut::kOptimizer); }},
      {"ZeRO-2",
       [](const LayoutAxes& axes) { return int64_t(axes.shared_out == SharedOut::kGradients); }},
      {"ZeRO-3",
       [](const LayoutAxes& axes) { return int64_t(axes.shared_out == SharedOut::kWeights); }},
      {"optimizer's states on the host",
       [](const LayoutAxes& axes) { return int64_t(axes.host_fraction > 0); }}};
  return *traits;
}

// Counts what the layouts have: a rule of thumb is no more than that.
std::string CommonText(const std::vector<Row>& rows) {
  std::string text = "| what | layouts that have it | largest | models |\n|---|---|---|---|\n";
  const auto found = std::count_if(rows.begin(), rows.end(),
                                   [](const Row& row) { return row.layout.has_value(); });
  for (const Trait& trait : Traits()) {
    int count = 0;
    int64_t largest = 0;
    std::vector<std::string> models;
    for (const Row& row : rows) {
      const int64_t size = row.layout ? trait.size(row.layout->axes) : 0;
      if (size == 0) continue;
      ++count;
      largest = std::max(largest, size);
      if (std::find(models.begin(), models.end(), row.model->name) == models.end())
        models.push_back(row.model->name);
    }
    absl::StrAppendFormat(
        &text, "| %s | %d of %d | %s | %s |\n", trait.name, count, found,
        largest > 1 ? absl::StrCat(largest) : "",
        models.size() == GuideModels().size() ? "all" : absl::StrJoin(models, ", "));
  }
  return text;
}

std::string ModelsText(const std::vector<const GuideModel*>& models) {
  std::string text =
      "| model | layers, hidden size, heads | positions | samples of a step |\n|---|---|---|---|\n";
  for (const GuideModel* model : models) {
    const config::PretrainConfig config = ParseConfig(model->config, model->name).config;
    absl::StrAppendFormat(
        &text, "| %s | %d, %s, %d | %s | %s |\n", model->name, config.model().num_layers(),
        FormatCount(config.model().hidden_size()), config.model().num_attention_heads(),
        FormatCount(config.model().seq_length()), FormatCount(config.train().global_batch_size()));
  }
  return text;
}

absl::StatusOr<std::vector<const GuideModel*>> Chosen(const std::vector<std::string>& names) {
  std::vector<const GuideModel*> chosen;
  std::vector<std::string> known;
  for (const GuideModel& model : GuideModels()) {
    known.push_back(model.name);
    if (names.empty() || std::find(names.begin(), names.end(), model.name) != names.end())
      chosen.push_back(&model);
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the guide has no model '", name, "'; it has: ", absl::StrJoin(known, ", ")));
  }
  return chosen;
}

}  // namespace

// The shapes of GPTs are those of Narayanan et al. (2021), table 1, with its batches, of GPT-3's
// smallest model with its batch, and of GPT-3; those of Llama 3 are its report's.
const std::vector<GuideModel>& GuideModels() {
  static const auto* const models = new std::vector<GuideModel>{
      Gpt("GPT-125M", 12, 768, 12, 256),    Gpt("GPT-1.7B", 24, 2304, 24, 512),
      Gpt("GPT-7.5B", 36, 4096, 32, 512),   Llama("Llama-3-8B", 32, 4096, 14336, 32, 512),
      Gpt("GPT-39B", 48, 8192, 64, 1536),   Llama("Llama-3-70B", 80, 8192, 28672, 64, 1024),
      Gpt("GPT-175B", 96, 12288, 96, 1536), Llama("Llama-3-405B", 126, 16384, 53248, 128, 2048),
      Gpt("GPT-1T", 128, 25600, 160, 3072)};
  return *models;
}

absl::StatusOr<std::string> LayoutGuide(const PlanFacts& facts, const MeasuredKernels& kernels,
                                        const GuideOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<const GuideModel*> models, Chosen(options.models));
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* program, FindImplementation(facts, kProgram));
  std::string text =
      "# Layouts by model size\n\n"
      "    ./bazelw run //tools:plan -- --guide=$PWD/docs/layout_guide.md\n\n"
      "This page is what that command writes: for each model and number of GPUs the layout that\n"
      "[`tools:plan --config`](planning.md#choosing-a-layout) predicts to be the fastest, in bf16 "
      "and\n"
      "without dropout. None of these runs was measured, and the efficiencies of this program on\n"
      "GPUs are guesses. Look up your model's size and your GPUs, then search with your own\n"
      "configuration. Layouts with the optimizer's states on the host are looked at only where\n"
      "nothing else fits.\n\n"
      "`tp`: tensor (`sp`: with sequence parallelism), `cp`: context, `pp`: pipeline (x its "
      "chunks),\n"
      "`dp`: data parallelism.\n\n"
      "## Models\n\n";
  absl::StrAppend(&text, ModelsText(models));
  std::vector<Row> all;
  for (const std::string& name : options.gpus) {
    MEGATRON_ASSIGN_OR_RETURN(const Hardware* hardware, FindHardware(facts, name));
    Planner planner;
    planner.hardware = hardware;
    planner.program = program;
    planner.kernels = &kernels;
    absl::StrAppend(
        &text, "\n## ", name, " of ", hardware->memory_gib(), " GiB\n\n",
        "| model | GPUs | layout | a step | MFU | memory |\n|---|---|---|---|---|---|\n");
    for (const GuideModel* model : models) {
      for (const int64_t gpus : options.counts) {
        MEGATRON_ASSIGN_OR_RETURN(Row row, Search(*model, gpus, planner));
        absl::StrAppend(&text, RowText(row, *hardware));
        all.push_back(std::move(row));
      }
    }
  }
  absl::StrAppend(&text, "\n## What the layouts have in common\n\n", CommonText(all));
  return text;
}

}  // namespace megatron
