#include "tools/plan/plan_search.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/nothing_fits.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/planning/search_layouts.h"
#include "megatron/train/planning/unpriced_fields.h"
#include "megatron/train/planning/written_layout.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "tools/common/tool_main.h"
#include "tools/plan/missing_shapes.h"

namespace megatron {
namespace {

constexpr double kGiB = 1073741824.0;
constexpr double kMiB = 1048576.0;
constexpr const char* kOwnProgram = "megatron_cc";
constexpr const char* kMicroBatch = "train.micro_batch_size";
constexpr int kMostBest = 1000;
constexpr double kMostGib = 1e9;
constexpr double kLeastShown = 0.001;  // the share of a step by which a layout is slower

// A run as the search sees it.
struct Searched {
  config::PretrainConfig config;    // as its text has it
  config::PretrainConfig resolved;  // with its computed fields
  int64_t vocab_size = 0;
  std::unique_ptr<const Hardware> hardware;
  Planner planner;
  SearchOptions options;
  double limit = 0;
  double host_limit = 0;
  std::vector<WrittenField> held;         // by --set
  std::vector<WrittenField> passed_over;  // the configuration's own layout

  // What the layouts are for.
  const char* noun() const { return planner.is_gpu ? "GPU" : "rank"; }
  const char* nouns() const { return planner.is_gpu ? "GPUs" : "ranks"; }
};

std::string Memory(double bytes) {
  return bytes >= kGiB ? absl::StrFormat("%.1f GiB", bytes / kGiB)
                       : absl::StrFormat("%.1f MiB", bytes / kMiB);
}

std::string Time(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.4g s", seconds);
  return absl::StrFormat("%.4g ms", 1e3 * seconds);
}

// Returns whether an override sets the field, by itself or with its section.
bool IsSet(const std::vector<std::string>& overrides, const std::string& path) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& text) {
    const std::string set = text.substr(0, text.find('='));
    return set == path || absl::StartsWith(path, absl::StrCat(set, "."));
  });
}

void Divide(const std::vector<std::string>& overrides, Searched* searched) {
  for (WrittenField& field : WrittenLayout(searched->config)) {
    (IsSet(overrides, field.path) ? searched->held : searched->passed_over)
        .push_back(std::move(field));
  }
  if (!IsSet(overrides, kMicroBatch)) return;
  if (auto field = FindWritten(searched->config, kMicroBatch))
    searched->held.push_back(*std::move(field));
}

absl::StatusOr<Searched> Read(const PlanSearchOptions& options, const PlanFacts& facts,
                              const MeasuredKernels& kernels) {
  if (options.gpus < 1) {
    return absl::InvalidArgumentError("--gpus is the number of GPUs to divide the model over");
  }
  if (options.best < 1 || options.best > kMostBest)
    return absl::InvalidArgumentError(absl::StrCat("--best must be from 1 to ", kMostBest));
  for (const auto& [flag, gib] :
       {std::make_pair("--memory_limit", options.memory_gib),
        std::make_pair("--host_memory_limit", options.host_memory_gib.value_or(0))}) {
    if (!(gib >= 0 && gib <= kMostGib))
      return absl::InvalidArgumentError(absl::StrCat(flag, " must be from 0 to ", kMostGib));
  }
  Searched searched;
  const auto found = FindConfig(options.config);
  if (!found.ok()) return absl::InvalidArgumentError(found.status().message());
  ParsedConfig parsed = ParseConfig(found->text, found->source, options.overrides);
  MEGATRON_RETURN_IF_ERROR(ToStatus(parsed.errors));
  searched.config = std::move(parsed.config);
  Divide(options.overrides, &searched);
  searched.resolved = searched.config;
  ResolveDefaults(&searched.resolved);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizer(ToTokenizerOptions(searched.resolved.data())));
  searched.vocab_size = tokenizer->vocab_size();
  MEGATRON_ASSIGN_OR_RETURN(const Hardware* hardware, AsArgument(FindHardware(facts, options.gpu)));
  searched.hardware =
      std::make_unique<const Hardware>(HardwareOfRun(searched.config, options.gpus, *hardware));
  searched.planner.hardware = searched.hardware.get();
  MEGATRON_ASSIGN_OR_RETURN(searched.planner.program, FindImplementation(facts, kOwnProgram));
  searched.planner.kernels = &kernels;
  searched.planner.is_gpu = !IsProcessor(*hardware);
  searched.options.ranks = options.gpus;
  searched.options.best = options.best;
  searched.options.allows = FilterOf(searched.config, searched.held, searched.planner.is_gpu);
  // Ranks that share a processor share its memory, too.
  searched.options.shares_memory = hardware->cores() > 0;
  searched.limit = DefaultMemoryLimit(*hardware);
  if (searched.options.shares_memory) searched.limit /= double(options.gpus);
  if (options.memory_gib > 0) searched.limit = options.memory_gib * kGiB;
  searched.options.memory_bytes = searched.limit;
  searched.host_limit = options.host_memory_gib.has_value() ? *options.host_memory_gib * kGiB
                                                            : DefaultHostLimit(*hardware);
  searched.options.host_bytes = searched.host_limit;
  if (searched.host_limit == 0) {
    // A search takes a limit of 0 for the default; less than a byte leaves room for nothing.
    searched.options.offloads = false;
    searched.options.host_bytes = 0.5;
  }
  return searched;
}

// Says what of the host a layout may take.
std::string HostLine(const PlanSearchOptions& options, const Searched& searched) {
  if (!searched.planner.is_gpu) return "";
  const Hardware& hardware = *searched.planner.hardware;
  if (!KnowsHost(searched.planner)) {
    return absl::StrFormat(
        "host: no layout has anything there, since %s has no host_link_gb_per_s, "
        "host_memory_gb_per_s or host_memory_gb\n",
        hardware.name());
  }
  if (!searched.options.offloads)
    return "host: no layout has anything there, by --host_memory_limit=0\n";
  std::string disk;
  if (KnowsDisk(hardware)) {
    disk = absl::StrFormat("disk: %s for files of a GPU, %g GB/s read and %g GB/s written\n",
                           hardware.disk_gb() > 0 ? Memory(hardware.disk_gb() * 1e9) : "room",
                           hardware.disk_read_gb_per_s(), hardware.disk_write_gb_per_s());
  }
  return absl::StrFormat(
      "host: %s of its memory for what a GPU leaves there (%s), %g GB/s over the link and %g "
      "GB/s of memory for each\n%s",
      Memory(searched.host_limit),
      options.host_memory_gib.has_value()
          ? std::string("by --host_memory_limit")
          : absl::StrFormat("%.0f %% are left to programs", 100 * kHostMargin),
      hardware.host_link_gb_per_s(), hardware.host_memory_gb_per_s(), disk);
}

std::string HardwareLine(const PlanSearchOptions& options, const Searched& searched) {
  const Hardware& hardware = *searched.planner.hardware;
  std::string text =
      searched.options.shares_memory
          ? absl::StrFormat("hardware: %s on the %s and in the %.1f GiB of %s",
                            FormatQuantity(options.gpus, "rank"),
                            FormatQuantity(hardware.cores(), "core"), hardware.memory_gib(),
                            hardware.name())
          : absl::StrFormat("hardware: %s x %s, %g GiB each", FormatCount(options.gpus),
                            hardware.name(), hardware.memory_gib());
  absl::StrAppendFormat(&text, "; a layout may take %s of a %s", Memory(searched.limit),
                        searched.noun());
  if (options.memory_gib > 0) return text + ", by --memory_limit\n" + HostLine(options, searched);
  const char* const others = searched.planner.is_gpu ? "CUDA and NCCL" : "other programs";
  return text + absl::StrFormat(" (%.0f %% are left to %s)\n", 100 * kMemoryMargin, others) +
         HostLine(options, searched);
}

// Says what a search keeps of the configuration, and what it replaces.
std::string HeldLines(const PlanSearchOptions& options, const Searched& searched) {
  std::vector<WrittenField> kept;
  for (const char* path :
       {"train.global_batch_size", "model.seq_length", "parallel.overlap_grad_reduce"}) {
    if (auto field = FindWritten(searched.config, path)) kept.push_back(*std::move(field));
  }
  std::string text = absl::StrCat("held: ", ToText(kept));
  if (!searched.held.empty()) absl::StrAppend(&text, "; and by --set ", ToText(searched.held));
  absl::StrAppend(&text, "\n");
  if (searched.passed_over.empty()) return text;
  absl::StrAppend(&text, "chosen anew: ", ToText(searched.passed_over), " of ", options.config,
                  " (--set=FIELD=VALUE holds a field)\n");
  return text;
}

std::string Head(const PlanSearchOptions& options, const Searched& searched) {
  const config::ModelConfig& model = searched.resolved.model();
  return absl::StrCat(
      absl::StrFormat(
          "model: %s, %d layers, hidden size %d, %d heads, %s positions, steps of %s samples\n",
          options.config, model.num_layers(), model.hidden_size(), model.num_attention_heads(),
          FormatCount(model.seq_length()),
          FormatCount(searched.resolved.train().global_batch_size())),
      HardwareLine(options, searched), HeldLines(options, searched));
}

std::string Pruned(const Searched& searched, const LayoutSearch& found) {
  std::string text = absl::StrFormat(
      "looked at: %s to divide the %s into tp, cp, pp, dp\n",
      found.divisions == 1 ? "1 way" : absl::StrCat(FormatCount(found.divisions), " ways"),
      searched.nouns());
  for (const PrunedLayouts& pruned : found.pruned_divisions) {
    if (pruned.count == 0) continue;
    absl::StrAppendFormat(&text, "  %s left out: %s\n", FormatCount(pruned.count), pruned.rule);
  }
  absl::StrAppendFormat(&text, "  the others have %s layouts\n",
                        FormatCount(found.layouts + found.not_allowed));
  if (found.not_allowed > 0)
    absl::StrAppendFormat(&text, "  %s left out: not as --set holds\n",
                          FormatCount(found.not_allowed));
  if (found.too_large > 0) {
    absl::StrAppendFormat(&text, "  %s of the fastest left out: they don't fit in %s\n",
                          FormatCount(found.too_large), Memory(searched.limit));
  }
  if (found.refused > 0) {
    absl::StrAppendFormat(&text, "  %s of the fastest refused, the first because: %s\n",
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
  std::string text =
      absl::StrFormat("%10s %13.0f %6.1f %% %10s  %s\n", Time(seconds),
                      tokens / seconds / double(searched.options.ranks),
                      100 * layout.prediction.model_flops / seconds / peak,
                      Memory(double(layout.memory_bytes)), DescribeLayout(layout.axes));
  if (layout.host_bytes > 0)
    absl::StrAppendFormat(
        &text, "            with %s of the host%s\n", Memory(double(layout.host_bytes)),
        layout.file_bytes > 0
            ? absl::StrCat(", and ", Memory(double(layout.file_bytes)), " in files")
            : "");
  if (&layout == &first) return text;
  const double slower = seconds / first.prediction.seconds.total - 1;
  if (slower >= kLeastShown)
    absl::StrAppendFormat(&text, "            %.1f %% slower:", 100 * slower);
  else
    absl::StrAppend(&text, "           ");
  absl::StrAppend(&text, " ", WhyItLoses(first.prediction.seconds, layout.prediction.seconds),
                  "\n");
  return text;
}

absl::Status Write(const std::string& path, const Searched& searched, const FoundLayout& layout) {
  std::string fields;
  google::protobuf::TextFormat::PrintToString(layout.config, &fields);
  const std::string text = absl::StrFormat(
      "# A layout for %s x %s, chosen by the planner: %s.\n# Predicted: %s a step, %s of each %s.\n"
      "%s",
      FormatCount(searched.options.ranks), searched.planner.hardware->name(),
      DescribeLayout(layout.axes), Time(layout.prediction.seconds.total),
      Memory(double(layout.memory_bytes)), searched.noun(), fields);
  return WriteFileAtomically(PosixFileSystem(), path, text);
}

// Says what a model needs that fits with the optimizer's states, activations or attention on the
// host alone: what every layout has there that is printed.
absl::StatusOr<std::string> HostNeeds(const Searched& searched, const LayoutSearch& found) {
  if (!found.needs_host && !found.needs_activations_on_host && !found.needs_attention_on_host &&
      !found.needs_files) {
    return "";
  }
  const auto all = [&](auto has) {
    return std::all_of(found.best.begin(), found.best.end(),
                       [&](const FoundLayout& layout) { return has(layout.axes); });
  };
  std::vector<std::string> needed;
  if (all([](const LayoutAxes& axes) { return axes.host_fraction > 0 && !axes.states_in_files; }))
    needed.push_back("the optimizer's states");
  if (all([](const LayoutAxes& axes) { return axes.weights_on_host; })) {
    needed.push_back("weights");
    needed.push_back("gradients");
  }
  if (found.needs_activations_on_host) needed.push_back("all activations");
  if (found.needs_attention_on_host) needed.push_back("attention's queries, keys and values");
  if (needed.empty() && !found.needs_files) return "";
  std::string text = found.needs_files ? "the optimizer's states in files" : "";
  if (!needed.empty()) {
    const std::string last = needed.back();
    needed.pop_back();
    absl::StrAppend(&text, text.empty() ? "" : "; ", absl::StrJoin(needed, ", "),
                    needed.empty() ? "" : " and ", last, " on the host");
  }
  SearchOptions alone = searched.options;
  alone.offloads = false;
  MEGATRON_ASSIGN_OR_RETURN(
      const std::string enough,
      RanksToTake(searched.config, searched.vocab_size, searched.planner, alone));
  return absl::StrCat("needed: ", text, "; without them there, ", enough, "\n");
}

// Says what predictions don't know, and which of their figures are guesses.
std::string Doubts(const Searched& searched, const FoundLayout& layout) {
  std::string text;
  if (const std::string losses = DescribeLosses(layout.axes); !losses.empty())
    absl::StrAppend(&text, "the first layout: ", losses, "\n");
  const std::string missing =
      MissingShapes(layout.run, *searched.planner.hardware, *searched.planner.kernels);
  if (!missing.empty()) absl::StrAppend(&text, missing, "\n");
  const std::vector<std::string> unpriced =
      UnpricedFields(layout.config, searched.planner.is_gpu, KnowsDisk(*searched.planner.hardware));
  if (!unpriced.empty())
    absl::StrAppend(&text, "not priced: ", absl::StrJoin(unpriced, ", "), "\n");
  const std::string guesses = NameGuesses(*searched.planner.hardware, *searched.planner.program);
  if (!guesses.empty()) absl::StrAppend(&text, guesses, "\n");
  return text;
}

constexpr char kLegend[] =
    "tp: tensor (sp: with sequence parallelism), cp: context, pp: pipeline (x its chunks), ep and "
    "etp: experts, dp: data\n";

}  // namespace

absl::StatusOr<std::string> SearchPlan(const PlanSearchOptions& options, const PlanFacts& facts,
                                       const MeasuredKernels& kernels) {
  MEGATRON_ASSIGN_OR_RETURN(const Searched searched, Read(options, facts, kernels));
  MEGATRON_ASSIGN_OR_RETURN(
      const LayoutSearch found,
      SearchLayouts(searched.config, searched.vocab_size, searched.planner, searched.options));
  if (found.best.empty() && found.layouts == 0 && found.not_allowed > 0)
    return NothingKeeps(searched.config, searched.held, options.gpus, searched.noun());
  if (found.best.empty()) {
    return NothingFits(searched.config, searched.vocab_size, searched.planner, searched.options,
                       found);
  }
  const FoundLayout& first = found.best.front();
  MEGATRON_ASSIGN_OR_RETURN(const std::string host_needs, HostNeeds(searched, found));
  std::string text =
      absl::StrCat(Head(options, searched), Pruned(searched, found), "\n",
                   absl::StrFormat("%10s %13s %8s %10s  layout\n", "a step",
                                   absl::StrCat("tokens/s/", searched.noun()), "MFU", "memory"));
  for (const FoundLayout& layout : found.best) absl::StrAppend(&text, Row(searched, layout, first));
  absl::StrAppend(&text, "\n", kLegend, host_needs, Doubts(searched, first));
  if (options.output.empty()) return text;
  MEGATRON_RETURN_IF_ERROR(Write(options.output, searched, first));
  absl::StrAppend(&text, "wrote ", options.output, ": pretrain_",
                  config::ModelType::Type_Name(searched.resolved.model().model_type()),
                  " --config=", options.output, "\n");
  if (searched.planner.is_gpu) {
    absl::StrAppend(&text, "its memory without a GPU: --dry_run=full --set=system.device=cuda\n");
  }
  return text;
}

}  // namespace megatron
