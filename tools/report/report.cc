#include "tools/report/report.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/trainer/run_plan.h"
#include "tools/report/layer_figures.h"
#include "tools/report/metric_figures.h"
#include "tools/report/numbers.h"
#include "tools/report/profile_blocks.h"
#include "tools/report/rank_blocks.h"
#include "tools/report/summary.h"

namespace megatron::report {
namespace {

constexpr size_t kLongestValue = 120;  // bytes of a configuration's value in a table
constexpr size_t kMostListed = 10;     // iterations in a list

std::string Cut(const std::string& value) {
  if (value.size() <= kLongestValue) return value;
  return absl::StrCat(value.substr(0, kLongestValue), "\xe2\x80\xa6");
}

void Append(std::vector<Block> more, std::vector<Block>* blocks) {
  std::move(more.begin(), more.end(), std::back_inserter(*blocks));
}

bool HasExperts(const RunRecord& run) { return run.config.config.model().num_experts() > 0; }

// "iterations 12, 13 and 40, and 7 more"
std::string ListOf(const std::vector<double>& iterations) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(iterations.size(), kMostListed); ++i)
    texts.push_back(absl::StrFormat("%.0f", iterations[i]));
  if (iterations.size() > kMostListed)
    texts.push_back(absl::StrCat("and ", iterations.size() - kMostListed, " more"));
  return absl::StrJoin(texts, ", ");
}

class Author {
 public:
  explicit Author(const std::vector<RunRecord>& runs) : runs_(runs), figures_(runs) {}

  Document Write() && {
    std::vector<std::string> names;
    for (const RunRecord& run : runs_) names.push_back(run.name);
    document_.title = absl::StrJoin(names, " and ");
    document_.subtitle = runs_.size() == 1
                             ? DescribeRun(runs_.front())
                             : absl::StrCat("A comparison of ", runs_.size(), " runs.");
    if (runs_.size() == 1) AddTiles();
    AddMetrics("loss", "Loss", MetricGroup::kLoss);
    AddNumbers();
    AddMetrics("training", "Training", MetricGroup::kTraining);
    AddMetrics("speed", "Speed", MetricGroup::kSpeed);
    AddStepTime();
    AddCommunication();
    AddMemory();
    AddLayers();
    AddExperts();
    AddMetrics("more", "More metrics", MetricGroup::kOther);
    AddConfiguration();
    AddEvents();
    AddMissing();
    return std::move(document_);
  }

 private:
  // Words after a title that tell of which run it is.
  std::string OfRun(const RunRecord& run) const {
    return runs_.size() == 1 ? "" : absl::StrCat(", ", run.name);
  }
  // A sentence about a run.
  std::string About(const RunRecord& run, const std::string& sentence) const {
    return runs_.size() == 1 ? sentence : absl::StrCat(run.name, ": ", sentence);
  }
  static std::string IdOf(size_t run) { return absl::StrCat("run-", run + 1); }

  Section& Add(const char* id, const char* title) {
    return document_.sections.emplace_back(Section{id, title, {}});
  }

  static std::string DescribeRun(const RunRecord& run) {
    std::string text;
    const config::ModelConfig& model = run.config.config.model();
    if (!run.config.text.empty()) {
      absl::StrAppendFormat(&text, "%s of %d layers, hidden size %d, sequences of %d tokens. ",
                            absl::AsciiStrToUpper(config::ModelType::Type_Name(model.model_type())),
                            model.num_layers(), model.hidden_size(), model.seq_length());
    }
    if (run.checkpoint) absl::StrAppend(&text, "Run ", run.checkpoint->run_id, ". ");
    if (!run.events.starts.empty())
      absl::StrAppend(&text, "Last step at ", ClockTime(run.events.starts.back().end), ".");
    return text;
  }

  void AddTiles() {
    for (const SummaryRow& row : Summarize(runs_.front())) {
      if (row.is_main) document_.tiles.push_back({row.label, row.value, row.note});
    }
  }

  void AddNumbers() {
    Section& section = Add("numbers", "Numbers");
    section.blocks.emplace_back(SummaryTable(runs_));
    Table constants = figures_.Constants();
    if (!constants.rows.empty()) section.blocks.emplace_back(std::move(constants));
  }

  void AddMetrics(const char* id, const char* title, MetricGroup group) {
    Add(id, title).blocks = figures_.Of(group);
  }

  void AddStepTime() {
    Section& section = Add("step", "Where a step's time goes");
    section.blocks = figures_.Of(MetricGroup::kShares);
    if (section.blocks.empty()) {
      missing_.push_back(
          "Shares of the steps over the run are drawn from metrics of metrics.jsonl "
          "that are parts of a step; there are none.");
    }
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecord& run = runs_[i];
      if (run.ranks) Append(RankBlocks(*run.ranks, OfRun(run)), &section.blocks);
      Append(StepBlocks(run.profile, OfRun(run), IdOf(i)), &section.blocks);
      if (run.profile.ranks.empty()) {
        missing_.push_back(
            About(run,
                  "The parts of a step, the calls with other ranks and the memory within a "
                  "step come from a profile: train with --profile, and with --set "
                  "'logging.profile_ranks=[0, 1]' for more ranks than 0."));
      }
      if (run.pipeline) {
        Append(PipelineBlocks(*run.pipeline, OfRun(run), IdOf(i)), &section.blocks);
      } else if (run.config.config.parallel().pipeline_model_parallel_size() > 1) {
        missing_.push_back(About(run,
                                 "The pipeline's timeline comes from a file: set "
                                 "logging.pipeline_timeline_file."));
      }
    }
  }

  void AddCommunication() {
    Section& section = Add("communication", "Communication");
    for (const RunRecord& run : runs_) {
      if (run.ranks) Append(CallBlocks(*run.ranks, OfRun(run)), &section.blocks);
      Append(CommunicationBlocks(run.profile, OfRun(run)), &section.blocks);
    }
  }

  void AddMemory() {
    Section& section = Add("memory", "Memory");
    section.blocks = figures_.Of(MetricGroup::kMemory);
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecord& run = runs_[i];
      Append(CounterBlocks(run.profile, OfRun(run), IdOf(i)), &section.blocks);
      if (!run.planned_memory.empty()) section.blocks.emplace_back(PlannedTable(run));
      const bool has_curve = std::any_of(
          run.events.columns.begin(), run.events.columns.end(),
          [](const MetricColumn& column) { return GroupOf(column.key) == MetricGroup::kMemory; });
      if (!has_curve) {
        missing_.push_back(About(run,
                                 "Memory over the run is in TensorBoard's files, and there are "
                                 "none: see logging.tensorboard_dir."));
      }
    }
  }

  Table PlannedTable(const RunRecord& run) const {
    Table table;
    table.caption = absl::StrCat("Planned memory of a rank", OfRun(run));
    table.columns = {"kind"};
    std::map<std::string, int64_t> totals;
    for (size_t stage = 0; stage < run.planned_memory.size(); ++stage) {
      table.columns.push_back(run.planned_memory.size() == 1 ? "bytes"
                                                             : absl::StrCat("stage ", stage));
      for (const auto& [kind, bytes] : run.planned_memory[stage]) totals[kind] += bytes;
    }
    std::vector<std::pair<int64_t, std::string>> kinds;
    for (const auto& [kind, bytes] : totals) {
      if (bytes > 0) kinds.emplace_back(-bytes, kind);
    }
    std::sort(kinds.begin(), kinds.end());
    std::vector<int64_t> sums(run.planned_memory.size());
    for (const auto& [bytes, kind] : kinds) {
      std::vector<TableCell> cells = {kind};
      for (size_t stage = 0; stage < sums.size(); ++stage) {
        const auto found = run.planned_memory[stage].find(kind);
        const int64_t held = found == run.planned_memory[stage].end() ? 0 : found->second;
        sums[stage] += held;
        cells.emplace_back(FormatBytes(held));
      }
      table.rows.push_back(std::move(cells));
    }
    std::vector<TableCell> cells = {"all"};
    for (int64_t sum : sums) cells.emplace_back(FormatBytes(sum));
    table.rows.push_back(std::move(cells));
    table.note =
        "What --dry_run=full plans for this configuration. All ranks of a stage are alike.";
    return table;
  }

  void AddExperts() {
    Section& section = Add("experts", "Experts");
    section.blocks = figures_.Of(MetricGroup::kExperts);
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecord& run = runs_[i];
      if (runs_.size() <= kMostRunsWithLayers)
        Append(ExpertBlocks(run.metrics, OfRun(run), IdOf(i) + "-experts", runs_.size()),
               &section.blocks);
      if (!HasExperts(run) || !run.metrics.expert_load.empty()) continue;
      missing_.push_back(About(run,
                               "How often each expert is chosen: train with "
                               "--set logging.diagnostics_interval=100."));
    }
  }

  void AddLayers() {
    Section& section = Add("layers", "Layers");
    if (runs_.size() > kMostRunsWithLayers) {
      missing_.push_back(
          absl::StrCat("Layers are drawn for at most ", kMostRunsWithLayers, " runs."));
      return;
    }
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecord& run = runs_[i];
      Append(LayerBlocks(run.metrics, OfRun(run), IdOf(i) + "-layers", runs_.size()),
             &section.blocks);
      if (!run.metrics.layer_columns.empty()) continue;
      missing_.push_back(About(run,
                               "Norms and extremes of each layer: train with "
                               "--set logging.diagnostics_interval=100."));
    }
  }

  void AddConfiguration() {
    Section& section = Add("configuration", "Configuration");
    bool has_any = false;
    for (const RunRecord& run : runs_) {
      has_any = has_any || !run.config.values.empty();
      if (run.config.text.empty()) {
        missing_.push_back(About(run,
                                 "The configuration is in the run's checkpoints and in "
                                 "TensorBoard's files, and there are neither."));
      }
    }
    if (!has_any) return;
    section.blocks.emplace_back(runs_.size() == 1 ? OwnValues(runs_.front()) : Differences());
    for (const RunRecord& run : runs_) {
      if (!run.config.text.empty()) {
        section.blocks.emplace_back(
            Preformatted{absl::StrCat("Whole configuration", OfRun(run)), run.config.text});
      }
    }
  }

  static Table OwnValues(const RunRecord& run) {
    Table table;
    table.caption = "What differs from the defaults";
    table.columns = {"field", "value", "default"};
    table.numbers = false;
    for (const ConfigValue& value : run.config.values) {
      if (value.differs())
        table.rows.push_back({value.path, Cut(value.value), Cut(value.otherwise)});
    }
    return table;
  }

  Table Differences() const {
    Table table;
    table.caption = "Where the configurations differ";
    table.columns = {"field"};
    table.numbers = false;
    std::vector<std::string> paths;
    std::set<std::string> seen;
    std::vector<std::map<std::string, std::string>> values;
    for (const RunRecord& run : runs_) {
      table.columns.push_back(run.name);
      auto& of_run = values.emplace_back();
      for (const ConfigValue& value : run.config.values) {
        of_run[value.path] = value.value;
        if (seen.insert(value.path).second) paths.push_back(value.path);
      }
    }
    for (const std::string& path : paths) {
      std::vector<TableCell> cells = {path};
      std::set<std::string> different;
      for (auto& of_run : values) {
        different.insert(of_run[path]);
        cells.emplace_back(Cut(of_run[path]));
      }
      if (different.size() > 1) table.rows.push_back(std::move(cells));
    }
    return table;
  }

  void AddEvents() {
    Section& section = Add("events", "Starts and errors");
    for (const RunRecord& run : runs_) {
      if (run.events.starts.empty()) {
        missing_.push_back(About(run,
                                 "When the program was started is in TensorBoard's files, and "
                                 "there are none: see logging.tensorboard_dir."));
      } else {
        section.blocks.emplace_back(StartsTable(run));
      }
      for (std::string& sentence : Troubles(run))
        section.blocks.emplace_back(Paragraph{About(run, sentence)});
    }
  }

  Table StartsTable(const RunRecord& run) const {
    Table table;
    table.caption = absl::StrCat("Starts of the program", OfRun(run));
    table.columns = {"start", "first step done", "last step done", "iterations", "time between"};
    const bool has_reasons = absl::c_any_of(
        run.events.starts, [](const ProgramStart& start) { return !start.reason.empty(); });
    if (has_reasons) table.columns.emplace_back("why it was started again");
    table.numbers = false;
    double between = 0;
    for (size_t i = 0; i < run.events.starts.size(); ++i) {
      const ProgramStart& start = run.events.starts[i];
      between += start.end - start.begin;
      table.rows.push_back(
          {absl::StrCat(i + 1), ClockTime(start.begin), ClockTime(start.end),
           absl::StrFormat("%.0f\xe2\x80\x93%.0f", start.first_iteration, start.last_iteration),
           ShortDuration(start.end - start.begin)});
      if (has_reasons) table.rows.back().push_back(start.reason);
    }
    const ProgramStart &first = run.events.starts.front(), &last = run.events.starts.back();
    const double all = last.end - first.begin;
    if (run.events.starts.size() > 1 && all > 0) {
      table.note = absl::StrFormat(
          "Of the %s from the first to the last step, %.1f %% lie in these starts; the rest was "
          "lost between them, or in steps that were taken again.",
          ShortDuration(all), 100 * between / all);
    }
    return table;
  }

  static std::vector<std::string> Troubles(const RunRecord& run) {
    std::vector<std::string> sentences;
    const RunMetrics& metrics = run.metrics;
    const MetricColumn* const skipped = metrics.Find(metric::kSkipped.key);
    std::vector<double> skips;
    if (skipped != nullptr) {
      for (const auto& [iteration, value] : skipped->points) {
        if (value != 0) skips.push_back(iteration);
      }
    }
    if (skips.empty() && skipped != nullptr) sentences.push_back("No step was skipped.");
    if (!skips.empty()) {
      sentences.push_back(
          absl::StrCat("Steps whose update was skipped, because gradients were not "
                       "finite: ",
                       skips.size(), ", at ", ListOf(skips), "."));
    }
    const MetricColumn* const loss = metrics.Find(kLmLossName);
    if (loss != nullptr && !loss->absent.empty()) {
      sentences.push_back(absl::StrCat("Losses that are not finite: ", loss->absent.size(), ", at ",
                                       ListOf(loss->absent), "."));
    }
    if (metrics.unreadable_lines > 0) {
      sentences.push_back(
          absl::StrCat("Lines of metrics.jsonl that are no records: ", metrics.unreadable_lines,
                       ". A crash or a full disk leaves such lines."));
    }
    if (metrics.repeated_records > 0) {
      sentences.push_back(absl::StrCat("Steps that were taken again after the run was continued: ",
                                       metrics.repeated_records, "; the later ones are shown."));
    }
    if (metrics.ignored_keys > 0) {
      sentences.push_back(absl::StrCat("metrics.jsonl has more than ", RunMetrics::kMostColumns,
                                       " metrics; the others are left out."));
    }
    for (const std::string& warning : run.warnings) sentences.push_back(warning);
    return sentences;
  }

  void AddMissing() {
    Section& section = Add("missing", "Not in this report");
    for (const RunRecord& run : runs_) {
      if (run.metrics.Find(EvaluationName(kLmLossName, /*on_test_set=*/false)) == nullptr) {
        missing_.push_back(About(run,
                                 "There was no evaluation: see train.eval_interval and "
                                 "train.eval_iters."));
      }
      if (run.metrics.Find(metric::kMfu.key) == nullptr) {
        missing_.push_back(About(run, "MFU is recorded where the peak of the devices is known."));
      }
    }
    if (figures_.left_out() > 0) {
      missing_.push_back(absl::StrCat(figures_.left_out(),
                                      " pictures are left out: a report has at "
                                      "most ",
                                      MetricFigures::kMostFigures, " of metrics."));
    }
    for (std::string& sentence : missing_)
      section.blocks.emplace_back(Paragraph{std::move(sentence)});
  }

  const std::vector<RunRecord>& runs_;
  MetricFigures figures_;
  Document document_;
  std::vector<std::string> missing_;  // sentences
};

}  // namespace

Document ReportOf(const std::vector<RunRecord>& runs) {
  CHECK(!runs.empty() && runs.size() <= kMostRuns);
  return Author(runs).Write();
}

}  // namespace megatron::report
