#include "tools/plan_search.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/nothing_fits.h"
#include "megatron/train/planning/search_layouts.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

constexpr double kGiB = 1073741824.0;
constexpr const char* kOwnProgram = "megatron_cc";

// A run as the search sees it.
struct Searched {
  config::PretrainConfig config;    // as its text has it
  config::PretrainConfig resolved;  // with its computed fields
  int64_t vocab_size = 0;
  Planner planner;
  SearchOptions options;
  double limit = 0;
};

absl::StatusOr<Searched> Read(const PlanSearchOptions& options, const PlanFacts& facts,
                              const MeasuredKernels& kernels) {
  if (options.gpus < 1) {
    return absl::InvalidArgumentError("--gpus is the number of GPUs to divide the model over");
  }
  if (options.best < 1) return absl::InvalidArgumentError("--best must be at least 1");
  if (options.memory_gib < 0) return absl::InvalidArgumentError("--memory_limit must be positive");
  Searched searched;
  const auto found = FindConfig(options.config);
  if (!found.ok()) return absl::InvalidArgumentError(found.status().message());
  ParsedConfig parsed = ParseConfig(found->text, found->source, options.overrides);
  MEGATRON_RETURN_IF_ERROR(ToStatus(parsed.errors));
  searched.config = std::move(parsed.config);
  searched.resolved = searched.config;
  ResolveDefaults(&searched.resolved);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizer(ToTokenizerOptions(searched.resolved.data())));
  searched.vocab_size = tokenizer->vocab_size();
  MEGATRON_ASSIGN_OR_RETURN(searched.planner.hardware, FindHardware(facts, options.gpu));
  MEGATRON_ASSIGN_OR_RETURN(searched.planner.program, FindImplementation(facts, kOwnProgram));
  searched.planner.kernels = &kernels;
  searched.planner.is_gpu = searched.planner.hardware->name() != "CPU";
  searched.options.ranks = options.gpus;
  searched.options.best = options.best;
  searched.limit = options.memory_gib > 0 ? options.memory_gib * kGiB
                                          : DefaultMemoryLimit(*searched.planner.hardware);
  searched.options.memory_bytes = searched.limit;
  return searched;
}

std::string Head(const PlanSearchOptions& options, const Searched& searched) {
  const config::ModelConfig& model = searched.resolved.model();
  const Hardware& hardware = *searched.planner.hardware;
  std::string text = absl::StrFormat(
      "model: %s, %d layers, hidden size %d, %d heads, %s positions, steps of %s samples\n",
      options.config, model.num_layers(), model.hidden_size(), model.num_attention_heads(),
      FormatCount(model.seq_length()), FormatCount(searched.resolved.train().global_batch_size()));
  absl::StrAppendFormat(
      &text, "hardware: %s x %s, %g GiB each, of which a layout may take %.1f%s\n",
      FormatCount(options.gpus), hardware.name(), hardware.memory_gib(), searched.limit / kGiB,
      options.memory_gib > 0
          ? ""
          : absl::StrFormat(" (%.0f %% are left to CUDA and NCCL)", 100 * kMemoryMargin));
  return text;
}

std::string Pruned(const Searched& searched, const LayoutSearch& found) {
  std::string text = absl::StrFormat("looked at: %s ways to divide the GPUs into tp, cp, pp, dp\n",
                                     FormatCount(found.divisions));
  for (const PrunedLayouts& pruned : found.pruned_divisions) {
    if (pruned.count == 0) continue;
    absl::StrAppendFormat(&text, "  %s left out: %s\n", FormatCount(pruned.count), pruned.rule);
  }
  absl::StrAppendFormat(
      &text, "  %s layouts; of those that were looked at %s don't fit in %.1f GiB\n",
      FormatCount(found.layouts), FormatCount(found.too_large), searched.limit / kGiB);
  if (found.refused > 0) {
    absl::StrAppendFormat(&text, "  %s fast ones were refused, the first because: %s\n",
                          FormatCount(found.refused), found.first_refusal);
  }
  return text;
}

std::string Row(const Searched& searched, const FoundLayout& layout, const FoundLayout& first) {
  const double seconds = layout.prediction.seconds.total;
  const config::PretrainConfig& config = searched.resolved;
  const double tokens =
      double(config.train().global_batch_size()) * double(config.model().seq_length());
  const bool is_half = config.precision().bf16() || config.precision().fp16();
  const Hardware& hardware = *searched.planner.hardware;
  const double peak = 1e12 * (is_half ? hardware.bf16_tflops() : hardware.fp32_tflops());
  return absl::StrFormat(
      "%9.4g s %10.0f %6.1f %% %8.1f GiB  %s\n%s", seconds,
      tokens / seconds / double(searched.options.ranks),
      100 * layout.prediction.model_flops / seconds / peak, double(layout.memory_bytes) / kGiB,
      DescribeLayout(layout.axes),
      &layout == &first
          ? ""
          : absl::StrCat("            ",
                         WhyItLoses(first.prediction.seconds, layout.prediction.seconds), "\n"));
}

// Names the products of a dense layer that no measured kernel is near to.
std::string MissingShapes(const Searched& searched, const LayoutAxes& axes) {
  const config::ModelConfig& model = searched.resolved.model();
  const double tokens = double(axes.micro_batch * model.seq_length()) / double(axes.context);
  const double hidden = double(model.hidden_size());
  const double width = double(model.num_attention_heads() * model.kv_channels());
  const double keys = double(2 * model.num_query_groups() * model.kv_channels());
  const double ffn = double(model.ffn_hidden_size());
  const double cut = double(axes.tensor);
  const double inputs = model.swiglu() || model.gated_linear_unit() ? 2 : 1;
  std::vector<std::string> missing;
  for (const auto& [n, k] : std::vector<std::pair<double, double>>{{(width + keys) / cut, hidden},
                                                                   {hidden, width / cut},
                                                                   {inputs * ffn / cut, hidden},
                                                                   {hidden, ffn / cut}}) {
    const auto share = searched.planner.kernels->ShareOfPeak(searched.planner.hardware->name(),
                                                             {"product", "forward", tokens, n, k});
    if (!share.has_value()) missing.push_back(absl::StrFormat("%.0fx%.0fx%.0f", tokens, n, k));
  }
  if (missing.empty()) return "";
  return absl::StrCat("not measured on ", searched.planner.hardware->name(),
                      ", taken from a curve: products of ", absl::StrJoin(missing, ", "), "\n");
}

absl::Status Write(const std::string& path, const Searched& searched, const FoundLayout& layout) {
  std::string fields;
  google::protobuf::TextFormat::PrintToString(layout.config, &fields);
  const std::string text = absl::StrFormat(
      "# A layout for %s x %s, chosen by the planner: %s.\n# Predicted: %.4g s a step, %.1f GiB of "
      "each GPU.\n%s",
      FormatCount(searched.options.ranks), searched.planner.hardware->name(),
      DescribeLayout(layout.axes), layout.prediction.seconds.total,
      double(layout.memory_bytes) / kGiB, fields);
  return WriteFileAtomically(PosixFileSystem(), path, text);
}

}  // namespace

absl::StatusOr<std::string> SearchPlan(const PlanSearchOptions& options, const PlanFacts& facts,
                                       const MeasuredKernels& kernels) {
  MEGATRON_ASSIGN_OR_RETURN(const Searched searched, Read(options, facts, kernels));
  MEGATRON_ASSIGN_OR_RETURN(
      const LayoutSearch found,
      SearchLayouts(searched.config, searched.vocab_size, searched.planner, searched.options));
  if (found.best.empty()) {
    return NothingFits(searched.config, searched.vocab_size, searched.planner, searched.options,
                       found);
  }
  const FoundLayout& first = found.best.front();
  std::string text = absl::StrCat(Head(options, searched), Pruned(searched, found), "\n",
                                  "  a step  tokens/s/GPU    MFU     memory  layout\n");
  for (const FoundLayout& layout : found.best) absl::StrAppend(&text, Row(searched, layout, first));
  absl::StrAppend(&text, "\n", MissingShapes(searched, first.axes));
  if (options.output.empty()) return text;
  MEGATRON_RETURN_IF_ERROR(Write(options.output, searched, first));
  absl::StrAppend(&text, "wrote ", options.output, ": pretrain_",
                  config::ModelType::Type_Name(searched.resolved.model().model_type()),
                  " --config=", options.output, "\n");
  return text;
}

}  // namespace megatron
