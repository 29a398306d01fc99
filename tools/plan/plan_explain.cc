#include "tools/plan/plan_explain.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/tensor_forms.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/explain_step.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/planning/unpriced_fields.h"
#include "megatron/train/profile/trace_json.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "tools/common/tool_main.h"
#include "tools/pictures/lane_chart.h"
#include "tools/plan/measured_timeline.h"
#include "tools/plan/missing_shapes.h"
#include "tools/plan/plan_explain_page.h"
#include "tools/plan/plan_explain_text.h"
#include "tools/report/run_profile.h"

namespace megatron {
namespace {

constexpr int kWide = 1080;  // pixels of a picture
constexpr size_t kMostLanes = 32;

// Returns the changes to the configuration: those that are asked for, and what follows from the
// GPUs.
absl::StatusOr<std::vector<std::string>> FieldsOf(const ExplainArguments& arguments, bool is_gpu) {
  std::vector<std::string> fields = arguments.set;
  MEGATRON_ASSIGN_OR_RETURN(const FoundConfig found, FindConfig(arguments.config));
  // Errors are those of LoadConfig later: a layout may be right with this number of GPUs alone.
  const ParsedConfig parsed = ParseConfig(found.text, found.source, fields);
  // The machine that explains need not have the GPU.
  if (is_gpu && !parsed.config.system().has_device()) fields.push_back("system.device=cuda");
  if (arguments.gpus > 0) {
    const config::ParallelConfig& parallel = parsed.config.parallel();
    const int64_t width = parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
                          parallel.pipeline_model_parallel_size();
    if (width > 0 && arguments.gpus % width != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--gpus=", arguments.gpus, " can't be divided by the ", width,
          " ranks of tensor, context and pipeline parallelism (",
          parallel.tensor_model_parallel_size(), " x ", parallel.context_parallel_size(), " x ",
          parallel.pipeline_model_parallel_size(),
          "): change these sizes, as with --set=parallel.tensor_model_parallel_size=1,",
          "parallel.pipeline_model_parallel_size=1, or let --config=", arguments.config,
          " search a layout"));
    }
    // A size below 1 is an error of its field.
    if (width > 0)
      fields.push_back(absl::StrCat("parallel.data_parallel_size=", arguments.gpus / width));
  }
  return fields;
}

// Returns the first error that the trainer has with the configuration in this form of tensor
// parallelism; empty: it takes it.
std::string RefusalOf(const ExplainArguments& arguments, std::vector<std::string> fields,
                      const TensorForm& form) {
  const auto set = [&](absl::string_view field, absl::string_view value) {
    fields.push_back(absl::StrCat("parallel.", field, "=", value));
  };
  set("tensor_parallel_mode", form.mode());
  const bool has_levels = form.grid.depth > 1 && !form.grid.is_cube;
  set("tensor_parallel_depth", has_levels ? absl::StrCat(form.grid.depth) : "");
  set("sequence_parallel", form.is_sequence_parallel ? "true" : "");
  const absl::Status status = LoadConfig(arguments.config, fields, ConfigPurpose::kDryRun).status();
  if (status.ok()) return "";
  // The first line says how many errors there are.
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  return std::string(absl::StripAsciiWhitespace(lines[lines.size() > 1 ? 1 : 0]));
}

// The trainer's reasons come before those of predictions, which know fewer.
void RefuseForms(const ExplainArguments& arguments, const std::vector<std::string>& fields,
                 const PlanGrid& own, std::vector<TensorForm>* forms) {
  for (TensorForm& form : *forms) {
    const PlanGrid& grid = form.grid;
    const bool is_own =
        grid.side == own.side && grid.depth == own.depth && grid.is_cube == own.is_cube;
    if (is_own) continue;
    if (std::string refusal = RefusalOf(arguments, fields, form); !refusal.empty())
      form.refusal = std::move(refusal);
  }
}

// Reads the profile of a run of so many ranks.
absl::StatusOr<report::RunProfile> ReadMeasured(const std::string& directory, int64_t ranks) {
  report::RunProfile measured = report::ReadRunProfile(PosixFileSystem(), directory);
  if (!measured.warnings.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--measured=", directory, ": ", measured.warnings.front()));
  }
  if (measured.ranks.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--measured=", directory,
        " has no trace_rank_0.json or the like: it is the directory in which a run with "
        "logging.profile has written its profile"));
  }
  if (const int64_t last = measured.ranks.back().rank; last >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--measured=", directory, " has rank ", last, ", and this layout has ", ranks,
                     " rank(s): explain the configuration and the fields of that run"));
  }
  return measured;
}

absl::StatusOr<Explanation> Explain(const ExplainArguments& arguments, const PlanFacts& facts,
                                    const MeasuredKernels& kernels) {
  Explanation e;
  MEGATRON_ASSIGN_OR_RETURN(const Hardware* gpu, AsArgument(FindHardware(facts, arguments.gpu)));
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* own,
                            AsArgument(FindImplementation(facts, arguments.program)));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> fields,
                            AsArgument(FieldsOf(arguments, !IsProcessor(*gpu))));
  MEGATRON_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      AsArgument(LoadConfig(arguments.config, fields, ConfigPurpose::kDryRun)));
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizer(ToTokenizerOptions(loaded.config.data())));
  const RunOptions options = ToRunOptions(loaded.config, tokenizer->vocab_size());
  const Hardware hardware = HardwareOfRun(loaded.config, options.num_ranks(), *gpu);
  MEGATRON_ASSIGN_OR_RETURN(
      e.step,
      ExplainStep(loaded.config, options.trainer.model.padded_vocab_size, hardware, *own, kernels));
  e.tensor_forms = CompareTensorForms(hardware, e.step.run.program, kernels, e.step.run.model,
                                      e.step.run.layout);
  RefuseForms(arguments, fields, e.step.run.layout.grid, &e.tensor_forms);
  MEGATRON_ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(options));
  for (const RankPlan& stage : plan.stages)
    e.stages.push_back(
        {double(stage.parameters), double(stage.total_bytes()), double(stage.host_bytes())});
  e.unpriced =
      UnpricedFields(loaded.config, !IsProcessor(*gpu), KnowsDisk(*gpu), /*searches=*/false);
  e.missing_shapes = MissingShapes(e.step.run, hardware, kernels);
  if (!arguments.measured.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(e.measured, ReadMeasured(arguments.measured, options.num_ranks()));
  }
  e.name = arguments.config;
  e.layout = options.num_ranks() == 1 ? "one rank" : DescribeSizes(options.parallel);
  e.gpu = hardware;
  e.price = arguments.price;
  e.watts = arguments.watts;
  e.tokens = arguments.tokens > 0 ? arguments.tokens
                                  : e.step.tokens * double(loaded.config.train().train_iters());
  return e;
}

}  // namespace

absl::Status ExplainPlan(const ExplainArguments& arguments, const PlanFacts& facts,
                         const MeasuredKernels& kernels) {
  MEGATRON_ASSIGN_OR_RETURN(const Explanation explanation, Explain(arguments, facts, kernels));
  FileSystem& files = PosixFileSystem();
  if (!arguments.html.empty()) {
    MEGATRON_RETURN_IF_ERROR(
        WriteFileAtomically(files, arguments.html, ExplanationPage(explanation, kernels)));
  }
  if (!arguments.timeline.empty()) {
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(
        files, arguments.timeline,
        TraceJson(TraceBeside(explanation.step.simulated, explanation.measured))));
  }
  if (!arguments.picture.empty()) {
    LaneChart chart = ChartBeside(explanation.step.simulated, explanation.measured, kMostLanes);
    chart.frame.width = kWide;
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(files, arguments.picture, LaneChartAlone(chart)));
  }
  return WriteToStdout(ExplanationText(explanation));
}

}  // namespace megatron
