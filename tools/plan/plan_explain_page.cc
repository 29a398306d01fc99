#include "tools/plan/plan_explain_page.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/plan/scaling_curve.h"
#include "tools/pictures/line_chart.h"
#include "tools/pictures/schedule_svg.h"
#include "tools/pictures/stack_chart.h"
#include "tools/plan/measured_timeline.h"
#include "tools/report/html.h"

namespace megatron {
namespace {

using report::Block;
using report::Figure;
using report::Section;

constexpr int kWide = 1080;          // pixels of a picture as wide as the page
constexpr size_t kMostBoxes = 1200;  // passes in a picture
constexpr size_t kMostLanes = 32;
constexpr int64_t kMostGpus = 131072;
constexpr int kHybrid = 0, kData = 1, kIdeal = 2, kShaped = 3, kCoded = 4;  // colors

Figure TimelineFigure(const Explanation& e) {
  std::vector<Timeline> stages;
  std::vector<double> ends;
  for (const SimulatedStage& stage : e.step.simulated.stages) {
    if (stages.size() == kMostLanes) break;
    stages.push_back(stage.passes);
    for (const TimedAction& pass : stage.passes) ends.push_back(pass.end);
  }
  const bool is_cut = ends.size() > kMostBoxes;
  if (is_cut) {
    std::nth_element(ends.begin(), ends.begin() + kMostBoxes, ends.end());
    const double until = ends[kMostBoxes];
    for (Timeline& stage : stages) {
      stage.erase(std::remove_if(stage.begin(), stage.end(),
                                 [&](const TimedAction& pass) { return pass.end > until; }),
                  stage.end());
    }
  }
  LaneChart chart;
  chart.frame.title = is_cut ? "The first passes of a step" : "The passes of a step";
  chart.frame.description =
      absl::StrCat("The passes of ", stages.size(), " pipeline stages, one below the other.");
  chart.frame.width = kWide;
  chart.x_label = "ms";
  chart.panels.push_back(ScheduleLanes({"", SummarizeTimelines(std::move(stages))}, 1e3));
  Figure figure;
  figure.title = chart.frame.title;
  figure.wide = true;
  figure.svg = LaneChartInPage(chart, "timeline");
  for (const LaneKind& kind : KindsThere(chart.panels, ScheduleKinds()))
    figure.legend.push_back({StackKey(kind.color), kind.name});
  figure.caption =
      "Simulated with the schedule that the trainer executes and the seconds of each part of the "
      "model. Gaps are the bubble, and waiting for messages.";
  return figure;
}

Figure MeasuredFigure(const Explanation& e) {
  LaneChart chart = ChartBeside(e.step.simulated, e.measured, kMostLanes);
  chart.frame.width = kWide;
  chart.most_boxes = kMostBoxes;
  Figure figure;
  figure.title = chart.frame.title;
  figure.wide = true;
  figure.svg = LaneChartInPage(chart, "measured");
  for (const LaneKind& kind : chart.kinds)
    figure.legend.push_back({StackKey(kind.color), kind.name});
  figure.caption = chart.frame.description;
  return figure;
}

std::string TextOf(const absl::optional<ScalingPoint>& point) {
  if (!point.has_value()) return "-";
  const PlanLayout& l = point->layout;
  return absl::StrFormat("%.4g s: tp%d pp%d%s dp%d%s%s%s, micro-batch %d%s", point->seconds, l.tp,
                         l.pp, l.vpp > 1 ? absl::StrCat(" of ", l.vpp, " chunks") : "", l.dp,
                         l.data_is_outermost ? " outermost" : "",
                         l.ranks_per_host > 0 ? " in two levels" : "",
                         l.compression.form != PlanCompression::kNone ? " in codes" : "",
                         l.micro_batch, l.recompute == PlanRecompute::kFull ? ", recomputed" : "");
}

using ScalingPoints = std::vector<absl::optional<ScalingPoint>>;

PlotPoints PointsOf(const ScalingOptions& options, const ScalingPoints& curve) {
  PlotPoints points;
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].has_value())
      points.emplace_back(double(options.gpus[i]), curve[i]->tokens_per_second);
  }
  return points;
}

// Returns by how many percent the points are faster than those of `plain`.
PlotPoints SavedOf(const ScalingOptions& options, const ScalingPoints& curve,
                   const ScalingPoints& plain) {
  PlotPoints points;
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].has_value() && plain[i].has_value())
      points.emplace_back(double(options.gpus[i]),
                          100 * (plain[i]->seconds / curve[i]->seconds - 1));
  }
  return points;
}

Figure FigureOf(LineChart chart, const std::string& id) {
  chart.frame.width = kWide / 2;
  chart.frame.height = 360;
  chart.x_label = "GPUs";
  chart.log_x = true;
  Figure figure;
  figure.title = chart.frame.title;
  figure.svg = LineChartInPage(chart, id);
  for (const Curve& drawn : chart.curves)
    figure.legend.push_back({CurveKey(drawn.look, drawn.color), drawn.name});
  figure.caption = chart.frame.description;
  figure.values.caption = chart.frame.title;
  figure.values.numbers = false;
  return figure;
}

Figure SpeedFigure(const ScalingOptions& options, const ScalingCurve& curve, LineChart chart,
                   const std::string& id) {
  chart.y_label = "tokens a second";
  chart.log_y = true;
  const PlotPoints hybrid = PointsOf(options, curve.hybrid);
  PlotPoints ideal;
  for (const auto& [gpus, unused] : hybrid)
    ideal.emplace_back(gpus, hybrid[0].second * gpus / hybrid[0].first);
  chart.curves = {
      {"best layout", hybrid, CurveLook::kDots, kHybrid},
      {"data parallelism alone", PointsOf(options, curve.data), CurveLook::kDots, kData},
      {"in proportion to the GPUs", ideal, CurveLook::kLine, kIdeal}};
  Figure figure = FigureOf(std::move(chart), id);
  figure.values.columns = {"GPUs", "best layout: a step", "data parallelism alone: a step"};
  for (size_t i = 0; i < options.gpus.size(); ++i) {
    figure.values.rows.push_back(
        {absl::StrCat(options.gpus[i]), TextOf(curve.hybrid[i]), TextOf(curve.data[i])});
  }
  return figure;
}

Figure SavedFigure(const ScalingOptions& options, const ScalingCurve& curve, LineChart chart,
                   const std::string& id) {
  chart.y_label = "% faster than the best layout";
  chart.curves = {{"groups of the machine's shape", SavedOf(options, curve.shaped, curve.hybrid),
                   CurveLook::kDots, kShaped},
                  {"and gradients in codes of 8 bits", SavedOf(options, curve.coded, curve.hybrid),
                   CurveLook::kDots, kCoded}};
  Figure figure = FigureOf(std::move(chart), id);
  figure.values.columns = {"GPUs", "groups of the machine's shape: a step",
                           "and gradients in codes of 8 bits: a step"};
  for (size_t i = 0; i < options.gpus.size(); ++i) {
    figure.values.rows.push_back(
        {absl::StrCat(options.gpus[i]), TextOf(curve.shaped[i]), TextOf(curve.coded[i])});
  }
  return figure;
}

void AddScaling(const Explanation& e, const MeasuredKernels& kernels, const ScalingOptions& options,
                const std::string& title, const std::string& id, const std::string& samples,
                std::vector<Block>* blocks) {
  Implementation program = e.step.run.program;
  program.set_shards_optimizer(true);
  const ScalingCurve curve =
      MakeScalingCurve(e.gpu, program, kernels, e.step.run.model, e.step.run.layout, options);
  LineChart speed, saved;
  speed.frame.title = title;
  speed.frame.description = absl::StrCat(
      samples,
      " Optimizer states are sharded. Layouts that don't fit the memory are left out; where a "
      "curve has no points, none fits or the batch is too small.");
  saved.frame.title = absl::StrCat(title, ": what saves communication");
  saved.frame.description = absl::StrCat(
      samples,
      " Groups of the machine's shape: pipelines whose ranks are nearer to each other than copies "
      "are (parallel.rank_order), or data-parallel calls in two levels "
      "(parallel.hierarchical_collectives_ranks_per_host), where that is faster. Codes are those "
      "of gradient_compression.type = int8, which change the loss.");
  blocks->push_back(SpeedFigure(options, curve, std::move(speed), id));
  blocks->push_back(SavedFigure(options, curve, std::move(saved), absl::StrCat(id, "-saved")));
}

std::vector<Block> ScalingFigures(const Explanation& e, const MeasuredKernels& kernels) {
  ScalingOptions options;
  for (int64_t gpus = 1; gpus <= kMostGpus; gpus *= 2) options.gpus.push_back(gpus);
  const PlanLayout& layout = e.step.run.layout;
  options.batch = layout.micro_batch * layout.micro_batches * layout.dp;
  std::vector<Block> blocks;
  AddScaling(e, kernels, options, "Strong scaling", "strong",
             absl::StrCat("The step keeps its ", options.batch, " samples on any number of GPUs."),
             &blocks);
  // A batch for each GPU, with which pipelines of up to eight stages have micro-batches enough.
  options.batch = std::max<int64_t>(8, options.batch / layout.gpus());
  options.is_weak = true;
  AddScaling(e, kernels, options, "Weak scaling", "weak",
             absl::StrCat("The step has ", options.batch, " samples for each GPU."), &blocks);
  return blocks;
}

}  // namespace

std::string ExplanationPage(const Explanation& e, const MeasuredKernels& kernels) {
  report::Document page;
  page.program = "//tools:plan";
  page.title = absl::StrCat("What a step of ", e.name, " costs");
  page.subtitle = absl::StrCat(e.step.run.layout.gpus(), " x ", e.gpu.name(), ": ", e.layout);
  Section step = {"step", "A step", {}};
  for (const std::string& sentence : Sentences(e))
    step.blocks.push_back(report::Paragraph{sentence});
  step.blocks.push_back(TimeTable(e));
  if (!e.step.traffic.empty()) step.blocks.push_back(TrafficTable(e));
  page.sections.push_back(std::move(step));
  if (e.step.simulated.stages.size() > 1)
    page.sections.push_back({"pipeline", "The pipeline", {TimelineFigure(e)}});
  if (!e.measured.ranks.empty())
    page.sections.push_back({"measured", "A measured step", {MeasuredFigure(e)}});
  Section tensor = {"tensor", "Tensor parallelism", {}};
  if (e.tensor_forms.size() > 1) tensor.blocks.push_back(TensorTable(e));
  for (const std::string& sentence : TensorSentences(e))
    tensor.blocks.push_back(report::Paragraph{sentence});
  if (!tensor.blocks.empty()) page.sections.push_back(std::move(tensor));
  page.sections.push_back({"memory", "Memory", {MemoryTable(e)}});
  page.sections.push_back({"run", "The run", {RunTable(e)}});
  Section doubts = {"doubts", "What is not known", {}};
  for (const std::string& doubt : Doubts(e)) doubts.blocks.push_back(report::Paragraph{doubt});
  if (!doubts.blocks.empty()) page.sections.push_back(std::move(doubts));
  page.sections.push_back({"scaling", "More GPUs", ScalingFigures(e, kernels)});
  return report::HtmlOf(page);
}

}  // namespace megatron
