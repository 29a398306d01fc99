#include "megatron/train/preflight/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "megatron/base/quantity.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"
#include "megatron/optim/rules/make_update_rule.h"
#include "megatron/plan/tensor_grid_traffic.h"
#include "megatron/tensor/dtype.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/console/wrap_text.h"
#include "megatron/train/preflight/check_memory.h"
#include "megatron/train/preflight/describe_run.h"
#include "megatron/train/trainer/flops.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 80;
constexpr size_t kMostLines = 40;
constexpr size_t kMostWarnings = 4;
constexpr size_t kMostStages = 4;
constexpr int kFirstColumn = 12;
constexpr size_t kLongestValue = 40;

// The counts that all forms of the report share.
struct Counts {
  int64_t parameters = 0;
  int64_t step_samples = 0, step_tokens = 0, tokens = 0;
  int64_t micro_batches = 0;
  bool grows = false;  // whether the batch size does; the counts are those of its last size
  // Whether samples do; step_tokens is that of the longest ones, and tokens the sum of all.
  bool has_curriculum = false;
};

Counts CountsOf(const config::PretrainConfig& config, const RunOptions& options) {
  Counts counts;
  counts.parameters = CountParameters(config.model(), options.trainer.model.padded_vocab_size);
  counts.step_samples = options.trainer.batch_size.global_batch_size;
  counts.step_tokens = counts.step_samples * config.model().seq_length();
  counts.has_curriculum = options.trainer.curriculum.enabled();
  counts.tokens =
      counts.has_curriculum
          ? counts.step_samples * options.trainer.curriculum.SumOver(options.loop.train_iters)
          : counts.step_tokens * options.loop.train_iters;
  counts.micro_batches = options.trainer.batch_size.MicroBatchesOf(counts.step_samples);
  counts.grows = options.trainer.batch_size.steps.size() > 1;
  return counts;
}

// A kind of memory that the screen has a column for.
enum Column { kWeights, kGradients, kOptimizer, kActivations, kOther, kColumnCount };

Column ColumnOf(absl::string_view name, const std::vector<OptimizerState>& states) {
  if (absl::StartsWith(name, "weights")) return kWeights;
  if (absl::StartsWith(name, "gradients")) return kGradients;
  if (absl::StartsWith(name, "activations")) return kActivations;
  if (name == "master weights" || name == "optimizer statistics" || name == "global weights" ||
      name == "outer momentum" || name == "optimizer temporaries")
    return kOptimizer;
  const bool is_state = std::any_of(states.begin(), states.end(), [&](const OptimizerState& state) {
    return name == state.name;
  });
  return is_state ? kOptimizer : kOther;
}

size_t WorstStage(const RunPlan& plan) {
  const auto worst = std::max_element(
      plan.stages.begin(), plan.stages.end(),
      [](const RankPlan& a, const RankPlan& b) { return a.total_bytes() < b.total_bytes(); });
  return static_cast<size_t>(worst - plan.stages.begin());
}

// Returns the least of the numbers, of which there are some.
int64_t LeastOf(const std::vector<int64_t>& numbers) {
  return *std::min_element(numbers.begin(), numbers.end());
}

int64_t HostBytesOfAll(const PlannedPretraining& planned) {
  return HostBytes(planned.options, planned.plan, planned.options.num_ranks());
}

int DevicesOf(const MachineMemory& machine) { return static_cast<int>(machine.gpu_bytes.size()); }

// Returns what the GPUs of all machines of the run would have, if they were like this one.
std::vector<GpuShare> GpusPlanned(const RunOptions& options, const MachineMemory& machine) {
  std::vector<GpuShare> gpus;
  const int ranks = options.num_ranks(), here = RanksPlannedHere(options, DevicesOf(machine));
  if (options.device != DeviceType::kCuda || here == 0) return gpus;
  for (int first = 0; first < ranks; first += here) {
    for (GpuShare& share : ShareGpus(first, std::min(here, ranks - first), machine.gpu_bytes))
      gpus.push_back(std::move(share));
  }
  return gpus;
}

// Returns the reasons for which the run's ranks don't find here what they take.
std::vector<std::string> Shortages(const PlannedPretraining& planned,
                                   const MachineMemory& machine) {
  std::vector<std::string> shortages;
  const RunOptions& options = planned.options;
  int ranks = RanksPlannedHere(options, DevicesOf(machine));
  // Host memory is compared without GPUs, too: of all ranks where they are threads, and where they
  // are processes of one, which each machine has at least.
  if (ranks == 0) ranks = options.ranks.processes ? 1 : options.num_ranks();
  for (const absl::Status& checked :
       {CheckGpus(planned.plan, GpusPlanned(options, machine)),
        CheckHostMemory(options, planned.plan, ranks, machine.host_bytes)}) {
    if (!checked.ok()) shortages.emplace_back(checked.message());
  }
  for (const std::string& refusal : {machine.limit_refusal, machine.disk_refusal}) {
    if (!refusal.empty()) shortages.push_back(refusal);
  }
  return shortages;
}

// Returns whether nothing is short here; nothing if it is unknown.
std::optional<bool> Fits(const PlannedPretraining& planned, const MachineMemory& machine) {
  if (!Shortages(planned, machine).empty()) return false;
  const bool is_known = planned.options.device == DeviceType::kCuda
                            ? !machine.gpu_bytes.empty()
                            : machine.host_bytes.has_value();
  return is_known ? std::optional<bool>(true) : std::nullopt;
}

// Returns whether the field was written with another value than its default. Required fields, which
// have no default, do not count.
bool IsSetOtherwise(const LoadedConfig& loaded, const std::string& path) {
  if (!loaded.locations.IsSet(path)) return false;
  const FieldRef ref = Resolve(loaded.config, path);
  if (RulesOf(*ref.field).required() || !IsPresent(ref)) return false;
  if (!ref.field->has_default_value()) return true;
  const Message& empty = *ref.message->GetReflection()->GetMessageFactory()->GetPrototype(
      ref.message->GetDescriptor());
  return ValueText(ref) != ValueText({&empty, ref.field});
}

std::vector<std::string> FieldsSetOtherwise(const LoadedConfig& loaded) {
  std::vector<std::string> paths = LeafPaths(*config::PretrainConfig::descriptor());
  paths.erase(
      std::remove_if(paths.begin(), paths.end(),
                     [&](const std::string& path) { return !IsSetOtherwise(loaded, path); }),
      paths.end());
  return paths;
}

std::vector<std::string> Warnings(const PlannedPretraining& planned, const MachineMemory& machine) {
  std::vector<std::string> warnings = Shortages(planned, machine);
  const RunOptions& options = planned.options;
  if (options.checkpoint.save.empty())
    warnings.push_back("nothing would be saved: checkpoint.save is not set");
  if (!machine.checkpoint_shortage.empty()) warnings.push_back(machine.checkpoint_shortage);
  if (options.device == DeviceType::kCuda && machine.gpu_bytes.empty()) {
    warnings.push_back("there is no GPU here to compare with");
    return warnings;
  }
  if (!machine.refusal.empty())
    warnings.push_back(absl::StrCat("a run here would be refused: ", machine.refusal));
  for (std::string& advice : AdviceFor(options, options.num_ranks()))
    warnings.push_back(std::move(advice));
  return warnings;
}

std::string Rounded(double value) { return absl::StrFormat("%.3g", value); }

PlanGrid GridOf(const RunOptions& options) {
  const ParallelSizes& sizes = options.parallel;
  return {sizes.tensor_side, sizes.tensor_depth, sizes.tensor_cube};
}

// What a rank of a grid receives, and when that is less than along one dim.
std::string DescribeGridTraffic(const RunOptions& options) {
  const TransformerOptions& model = options.trainer.model.transformer;
  const LayerMatrices layer =
      MatricesOf(model.hidden_size, model.ffn_hidden_size, model.gated, model.num_attention_heads,
                 model.num_query_groups, model.kv_channels);
  const PlanGrid grid = GridOf(options);
  const int bytes = static_cast<int>(SizeOf(model.dtype));
  const PackerOptions& packing = options.trainer.packing;
  const int64_t tokens = packing.layout.micro_batch_size * packing.seq_length;
  const auto less = TokensFromWhichGridIsLess(layer, grid, bytes);
  const double of_levels = BytesOfLevels(layer, grid);
  return absl::StrCat(
      FormatBytes(std::llround(BytesReceivedOnGrid(layer, grid, tokens, bytes))),
      " to a rank in a layer and micro-batch of ", FormatCount(tokens), " tokens; ",
      FormatBytes(std::llround(BytesReceivedIn1d(layer, grid.ranks(), tokens, bytes))), " in 1D; ",
      grid.mode(), " is less ",
      less.has_value()
          ? absl::StrCat("from ", FormatCount(*less), " tokens on (",
                         Rounded(double(*less) / double(model.hidden_size)), " times hidden_size)")
          : "with no number of tokens",
      of_levels > 0 ? absl::StrCat("; ", FormatBytes(std::llround(of_levels)),
                                   " in a layer and step for gradients over levels")
                    : "");
}

std::string DescribeLayout(const RunOptions& options, const config::ParallelConfig& config) {
  const int ranks = options.num_ranks();
  if (ranks == 1) return "1 rank";
  std::string text = absl::StrCat(ranks, " ranks = ", DescribeSizes(options.parallel));
  if (options.trainer.model.transformer.moe.num_experts > 0) {
    absl::StrAppend(&text, ", ", options.trainer.model.transformer.moe.num_experts, " experts on ",
                    options.parallel.expert);
  }
  if (config.sequence_parallel()) absl::StrAppend(&text, ", sequence parallel");
  if (const PlanGrid grid = GridOf(options); grid.is_grid()) {
    absl::StrAppend(&text, ", ", grid.mode(), " tensor parallel over ",
                    grid.depth > 1 ? absl::StrCat(grid.depth, " x ") : "", grid.side, " x ",
                    grid.side, " ranks");
  }
  if (options.parallel.ranks_per_host > 0) {
    absl::StrAppend(&text, ", hierarchical collectives over hosts of ",
                    options.parallel.ranks_per_host);
  }
  if (options.parallel.deduplicated_dispatch)
    absl::StrAppend(&text, ", rows to each host of their experts once");
  if (config.use_distributed_optimizer()) {
    absl::StrAppend(
        &text, ", sharded: ",
        config::DataParallelSharding::Type_Name(config.data_parallel_sharding_strategy()));
    const int instances = options.parallel.optimizer_instances;
    if (instances > 1) absl::StrAppend(&text, " in ", instances, " instances");
    if (const int hosts = options.parallel.hosts; hosts > 1)
      absl::StrAppend(&text, " and again within each of ", hosts, " hosts");
    if (options.trainer.shards_states_over_instances)
      absl::StrAppend(&text, " that share the optimizer's state");
  }
  if (options.trainer.outer.enabled()) {
    absl::StrAppend(&text, ", joined by DiLoCo every ",
                    FormatQuantity(options.trainer.outer.sync_every, "step"));
    if (const int fragments = options.trainer.outer.num_fragments; fragments > 1)
      absl::StrAppend(&text, " in ", fragments, " fragments");
    if (const int64_t delay = options.trainer.outer.sync_delay; delay > 0)
      absl::StrAppend(&text, ", ", FormatQuantity(delay, "step"), " later");
  }
  return absl::StrCat(text, options.ranks.processes ? ", as processes" : ", as threads");
}

std::string DescribeData(const config::DataConfig& data) {
  std::string source = "files";
  if (data.mock_data()) source = "mock tokens";
  if (data.has_stories()) source = absl::StrCat(data.stories().num_bytes(), " bytes of stories");
  if (data.data_path_size() > 0) source = data.data_path(data.data_path_size() - 1);
  if (data.data_path_size() > 2) absl::StrAppend(&source, " and others");
  return absl::StrCat(source, ", ", config::Tokenizer::Type_Name(data.tokenizer_type()));
}

class Screen {
 public:
  Screen(const LoadedConfig& loaded, const PlannedPretraining& planned,
         const MachineMemory& machine)
      : loaded_(loaded), planned_(planned), options_(planned.options), machine_(machine) {}

  std::string Format() {
    absl::StrAppend(&text_, loaded_.locations.source(), ": nothing has been started\n\n");
    AppendRun();
    AppendMemory();
    const std::string end = absl::StrCat(
        WarningLines(), "\n--dry_run=full prints every field, and what the memory is for\n");
    const size_t used = LinesOf(text_) + LinesOf(end);
    AppendFields(used < kMostLines ? kMostLines - used : 0);
    return absl::StrCat(text_, end);
  }

 private:
  void AppendRow(absl::string_view name, absl::string_view value) {
    const std::string line = absl::StrFormat("%-12s %s", name, value);
    absl::StrAppend(&text_, WrapText(line, std::string(13, ' '), kColumns), "\n");
  }

  void AppendRun() {
    const config::PretrainConfig& config = loaded_.config;
    const Counts counts = CountsOf(config, options_);
    const ModelOptions& model = options_.trainer.model;
    const double flops = planned_.speed.flops_per_token;
    const double step_tokens = static_cast<double>(counts.step_tokens);
    const double tokens = static_cast<double>(counts.tokens);
    AppendRow("model", DescribeModel(config.model(), options_));
    AppendRow("parameters",
              absl::StrFormat("%s; vocabulary %s, padded to %s", FormatCount(counts.parameters),
                              FormatCount(model.vocab_size), FormatCount(model.padded_vocab_size)));
    if (const int64_t frozen = planned_.plan.frozen_parameters; frozen > 0) {
      AppendRow("frozen", absl::StrFormat("%s; %s are trained", FormatCount(frozen),
                                          FormatCount(counts.parameters - frozen)));
    }
    AppendRow("layout", DescribeLayout(options_, config.parallel()));
    if (const PlanGrid grid = GridOf(options_); grid.is_grid())
      AppendRow(absl::StrCat(grid.mode(), " traffic"), DescribeGridTraffic(options_));
    if (!planned_.rank_order.empty()) AppendRow("rank order", planned_.rank_order);
    if (!planned_.offload.empty()) AppendRow("offload", planned_.offload);
    AppendRow("batch", absl::StrFormat("%sglobal %d = micro-batch %d x accumulation %d x data %d",
                                       counts.grows ? "grows to " : "", counts.step_samples,
                                       options_.trainer.packing.layout.micro_batch_size,
                                       counts.micro_batches, options_.parallel.data));
    AppendRow("training",
              absl::StrFormat(
                  "%s steps of %s%s tokens; %s%s tokens, %s a parameter",
                  FormatCount(options_.loop.train_iters), counts.has_curriculum ? "at most " : "",
                  FormatCount(counts.step_tokens), counts.grows ? "at most " : "", Rounded(tokens),
                  Rounded(tokens / static_cast<double>(counts.parameters))));
    if (counts.has_curriculum) {
      const LengthSchedule& curriculum = options_.trainer.curriculum;
      AppendRow("curriculum",
                absl::StrFormat("samples of %d tokens in the first step, of %d in "
                                "the last",
                                curriculum.At(1), curriculum.At(options_.loop.train_iters)));
    }
    if (options_.trainer.random_ltd.enabled()) {
      const LengthSchedule& kept = options_.trainer.random_ltd;
      AppendRow(
          "random-LTD",
          absl::StrFormat("layers but the first and the last see %d tokens of a sample in the "
                          "first step, %d in the last",
                          kept.At(1), kept.At(options_.loop.train_iters)));
    }
    AppendRow("data", DescribeData(config.data()));
    AppendRow("model FLOPs",
              absl::StrCat(
                  counts.has_curriculum || options_.trainer.random_ltd.enabled() ? "at most " : "",
                  Rounded(flops), " a token, ", Rounded(flops * step_tokens), " a step, ",
                  Rounded(flops * tokens), " in all"));
    AppendRow("device", options_.device == DeviceType::kCuda
                            ? "cuda"
                            : absl::StrCat("cpu, ", options_.num_threads, " threads"));
    if (!options_.checkpoint.save.empty())
      AppendRow("checkpoints", absl::StrCat("in ", options_.checkpoint.save));
  }

  void AppendStage(size_t stage) {
    const RankPlan& part = planned_.plan.stages[stage];
    std::array<int64_t, kColumnCount> bytes = {};
    const auto states = MakeUpdateRule(options_.trainer.optimizer)->states();
    for (const auto& [name, held] : part.memory) bytes[ColumnOf(name, states)] += held;
    const std::string ranks = DescribeRanks(part.ranks);
    const bool fits = static_cast<int>(ranks.size()) < kFirstColumn;
    absl::StrAppendFormat(&text_, "%-*s", kFirstColumn,
                          fits ? ranks : absl::StrCat("stage ", stage));
    for (const int64_t held : bytes) absl::StrAppendFormat(&text_, " %10s", FormatBytes(held));
    absl::StrAppendFormat(&text_, " %11s\n", FormatBytes(part.total_bytes()));
  }

  // Prints the first and the last stage of a long pipeline, and the worst between them.
  void AppendMemory() {
    absl::StrAppendFormat(&text_, "\n%-*s %10s %10s %10s %10s %10s %11s\n", kFirstColumn,
                          "memory of", "weights", "gradients", "optimizer", "activation", "other",
                          "each rank");
    const size_t stages = planned_.plan.stages.size();
    const size_t worst = WorstStage(planned_.plan);
    for (size_t stage = 0; stage < stages; ++stage) {
      if (stages <= kMostStages || stage == 0 || stage + 1 == stages || stage == worst)
        AppendStage(stage);
    }
    if (stages > kMostStages)
      absl::StrAppend(&text_, "(", stages, " pipeline stages; the others need no more)\n");
    std::string sum;
    if (options_.device == DeviceType::kCuda) {
      sum = "not counted: the CUDA context, NCCL and cuDNN";
      if (!machine_.gpu_bytes.empty())
        absl::StrAppend(&sum, "; free on a GPU here: ", FormatBytes(LeastOf(machine_.gpu_bytes)));
      const int64_t host = planned_.plan.host_bytes(options_.num_ranks());
      if (host > 0) {
        absl::StrAppend(&sum, "; in host memory, all ranks: ", FormatBytes(host));
        if (machine_.host_bytes)
          absl::StrAppend(&sum, ", available here: ", FormatBytes(*machine_.host_bytes));
      }
    } else {
      sum = absl::StrCat("all ranks, data and program: ", FormatBytes(HostBytesOfAll(planned_)));
      if (machine_.host_bytes)
        absl::StrAppend(&sum, "; available here: ", FormatBytes(*machine_.host_bytes));
    }
    const int64_t states = planned_.plan.file_bytes(options_.num_ranks());
    const int64_t weights = planned_.plan.weight_file_bytes(options_.num_ranks());
    if (states + weights > 0) {
      absl::StrAppend(&sum, "; in files, all ranks: ", FormatBytes(states + weights),
                      ", which each step reads and writes (",
                      FormatBytes((states + weights) * options_.loop.train_iters), " written in ",
                      FormatQuantity(options_.loop.train_iters, "iteration"), ", ",
                      FormatBytes((states + weights) * kSecondsOfADay),
                      " a day with a step a second)");
      if (weights > 0)
        absl::StrAppend(&sum, " (", FormatBytes(weights), " of weights, which each pass reads)");
      if (machine_.disk_bytes)
        absl::StrAppend(&sum, ", free there: ", FormatBytes(*machine_.disk_bytes));
    }
    if (const int64_t local = planned_.plan.local_bytes(); local > 0) {
      absl::StrAppend(
          &sum, "; in local checkpoints, all ranks: ",
          FormatBytes(kLocalCheckpoints * (1 + options_.checkpoint.peer_copies) * local));
    }
    absl::StrAppend(&text_, WrapText(sum, "  ", kColumns), "\n");
  }

  // Prints a heading, and then as many sections as fit into the lines.
  void AppendFields(size_t lines) {
    std::vector<std::pair<std::string, std::vector<std::string>>> sections;
    size_t left = 0;
    for (const std::string& path : FieldsSetOtherwise(loaded_)) {
      const size_t dot = path.find('.');
      if (sections.empty() || sections.back().first != path.substr(0, dot))
        sections.push_back({path.substr(0, dot), {}});
      std::string value = ValueText(Resolve(loaded_.config, path));
      if (value.size() > kLongestValue) value = value.substr(0, kLongestValue - 3) + "...";
      sections.back().second.push_back(absl::StrCat(path.substr(dot + 1), "=", value));
      ++left;
    }
    if (sections.empty() || lines < 4) return;
    absl::StrAppend(&text_, "\nset, and not to the default:\n");
    const size_t last_line = LinesOf(text_) + lines - 3;  // a line is kept for the rest
    for (const auto& [section, fields] : sections) {
      const std::string line = absl::StrFormat("%-12s %s", section, absl::StrJoin(fields, ", "));
      const std::string wrapped = WrapText(line, std::string(13, ' '), kColumns) + "\n";
      if (LinesOf(text_) + LinesOf(wrapped) > last_line) {
        absl::StrAppend(&text_, "and ", left, " more\n");
        return;
      }
      absl::StrAppend(&text_, wrapped);
      left -= fields.size();
    }
  }

  std::string WarningLines() const {
    std::vector<std::string> warnings = Warnings(planned_, machine_);
    if (warnings.size() > kMostWarnings) warnings.resize(kMostWarnings);
    std::string text = warnings.empty() ? "" : "\n";
    for (const std::string& warning : warnings)
      absl::StrAppend(&text, WrapText(absl::StrCat("WARNING: ", warning), "  ", kColumns), "\n");
    return text;
  }

  static size_t LinesOf(absl::string_view text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  const LoadedConfig& loaded_;
  const PlannedPretraining& planned_;
  const RunOptions& options_;
  const MachineMemory& machine_;
  std::string text_;
};

// Returns a value, or one element of a repeated field if `index` is not negative.
Json ValueJson(const FieldRef& ref, int index) {
  const google::protobuf::Reflection& of = *ref.message->GetReflection();
  const Message& message = *ref.message;
  const FieldDescriptor* const field = ref.field;
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? of.GetBool(message, field) : of.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? of.GetDouble(message, field) : of.GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? of.GetInt64(message, field) : of.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return one ? of.GetEnum(message, field)->name()
                 : of.GetRepeatedEnum(message, field, index)->name();
    default:
      return one ? of.GetString(message, field) : of.GetRepeatedString(message, field, index);
  }
}

// Returns an object of the fields that have a value or a default.
Json FieldsJson(const Message& message) {
  Json fields = Json::object();
  for (const FieldDescriptor* field : FieldsOf(*message.GetDescriptor())) {
    const FieldRef ref = {&message, field};
    if (field->message_type() != nullptr) {
      if (IsPresent(ref))
        fields[field->name()] = FieldsJson(message.GetReflection()->GetMessage(message, field));
    } else if (field->is_repeated()) {
      if (!IsPresent(ref)) continue;
      Json list = Json::array();
      for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i)
        list.push_back(ValueJson(ref, i));
      fields[field->name()] = std::move(list);
    } else if (IsPresent(ref) || field->has_default_value()) {
      fields[field->name()] = ValueJson(ref, -1);
    }
  }
  return fields;
}

Json MemoryJson(const PlannedPretraining& planned, const MachineMemory& machine) {
  const RunPlan& plan = planned.plan;
  const int ranks = planned.options.num_ranks();
  const int64_t written = plan.file_bytes(ranks) + plan.weight_file_bytes(ranks);
  Json stages = Json::array();
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const RankPlan& part = plan.stages[stage];
    stages.push_back({{"first_rank", part.ranks.front()},
                      {"last_rank", part.ranks.back()},
                      {"parameters", part.parameters},
                      {"bytes", part.total_bytes()},
                      {"kinds", part.memory},
                      {"host_bytes", part.host_bytes()},
                      {"host_kinds", part.host_memory},
                      {"file_bytes", part.file_bytes},
                      {"weight_file_bytes", part.weight_file_bytes},
                      {"checkpoint_shard_bytes", part.shard_bytes},
                      {"local_checkpoint_bytes", part.local_bytes},
                      {"activations_of_a_micro_batch", part.activations}});
  }
  Json memory = {{"stages", std::move(stages)},
                 {"all_ranks_bytes", plan.rank_bytes()},
                 {"data_bytes", plan.data_bytes},
                 {"program_bytes", plan.program_bytes},
                 {"file_bytes_written_a_step", written},
                 {"file_bytes_written_in_all", written * planned.options.loop.train_iters},
                 {"file_bytes_written_a_day_with_a_step_a_second", written * kSecondsOfADay},
                 {"host_bytes_available", nullptr},
                 {"checkpoint_bytes", plan.checkpoint_bytes()},
                 {"checkpoint_room_bytes", plan.checkpoint_room()},
                 {"devices", machine.gpu_bytes.size()},
                 {"device_bytes_available", nullptr},
                 {"disk_bytes_available", nullptr},
                 {"fits", nullptr},
                 {"shortages", Shortages(planned, machine)}};
  if (machine.host_bytes) memory["host_bytes_available"] = *machine.host_bytes;
  if (machine.disk_bytes) memory["disk_bytes_available"] = *machine.disk_bytes;
  if (!machine.gpu_bytes.empty()) memory["device_bytes_available"] = LeastOf(machine.gpu_bytes);
  if (const std::optional<bool> fits = Fits(planned, machine)) memory["fits"] = *fits;
  return memory;
}

Json LayoutJson(const RunOptions& options) {
  const ParallelSizes& sizes = options.parallel;
  return {{"ranks", options.num_ranks()},
          {"tensor", sizes.tensor},
          {"context", sizes.context},
          {"pipeline", sizes.pipeline},
          {"data", sizes.data},
          {"expert", sizes.expert},
          {"expert_tensor", sizes.expert_tensor},
          {"optimizer_instances", sizes.optimizer_instances},
          {"ranks_per_host", sizes.ranks_per_host},
          {"hosts_with_secondary_shards", sizes.hosts > 1 ? sizes.hosts : 0},
          {"rank_order", sizes.order.ToString()}};
}

}  // namespace

MachineMemory MemoryOfThisMachine(int ranks) {
  MachineMemory machine;
  machine.host_bytes = AvailableHostBytes();
  machine.gpu_bytes = FreeGpuBytes(ranks);
  return machine;
}

int RanksPlannedHere(const RunOptions& options, int devices) {
  const int ranks = options.num_ranks();
  if (options.device != DeviceType::kCuda) return ranks;
  if (devices == 0) return 0;
  return options.ranks.processes ? std::min(ranks, devices) : ranks;
}

std::string FormatPlanScreen(const LoadedConfig& loaded, const PlannedPretraining& planned,
                             const MachineMemory& machine) {
  return Screen(loaded, planned, machine).Format();
}

std::string FormatFullPlan(const LoadedConfig& loaded, const PlannedPretraining& planned) {
  // The plan is a comment, so that --config accepts the whole text.
  std::string text = absl::StrCat(EffectiveConfigText(loaded.config, loaded.locations), "\n");
  const std::string plan = FormatRunPlan(loaded.config, planned.options, planned.plan);
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(plan, "\n"), '\n'))
    absl::StrAppend(&text, line.empty() ? "#" : "# ", line, "\n");
  return text;
}

std::string FormatPlanJson(const LoadedConfig& loaded, const PlannedPretraining& planned,
                           const MachineMemory& machine) {
  const RunOptions& options = planned.options;
  const Counts counts = CountsOf(loaded.config, options);
  const ModelOptions& model = options.trainer.model;
  const double tokens = static_cast<double>(counts.step_tokens);
  const Json report = {{"source", loaded.locations.source()},
                       {"parameters", counts.parameters},
                       {"frozen_parameters", planned.plan.frozen_parameters},
                       {"vocab_size", model.vocab_size},
                       {"padded_vocab_size", model.padded_vocab_size},
                       {"layout", LayoutJson(options)},
                       {"device", options.device == DeviceType::kCuda ? "cuda" : "cpu"},
                       {"steps", options.loop.train_iters},
                       {"samples_per_step", counts.step_samples},
                       {"tokens_per_step", counts.step_tokens},
                       {"micro_batches_per_step", counts.micro_batches},
                       {"tokens", counts.tokens},
                       {"flops_per_token", planned.speed.flops_per_token},
                       {"flops_per_step", planned.speed.flops_per_token * tokens},
                       {"flops_per_token_with_full_attention", planned.speed.full_flops_per_token},
                       {"memory", MemoryJson(planned, machine)},
                       {"set", FieldsSetOtherwise(loaded)},
                       {"warnings", Warnings(planned, machine)},
                       {"config", FieldsJson(loaded.config)}};
  // Paths need not be UTF-8.
  return report.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace megatron
