#include "tools/report/report.h"

#include <cmath>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/schedule.h"
#include "tools/report/html.h"
#include "tools/report/markdown.h"
#include "tools/report/read_run.h"

namespace megatron::report {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMostPageBytes = 1000000;

std::string Step(int64_t iteration, double loss) {
  return absl::StrFormat(
      "{\"iteration\":%d,\"consumed_samples\":%d,\"lm loss\":%.4f,\"learning-rate\":%g,"
      "\"grad-norm\":%.4f,\"loss-scale\":1.0,\"batch-size\":8,\"skipped\":%s,\"elapsed_ms\":%.2f,"
      "\"tokens_per_second\":%.1f,\"tflops\":0.25}\n",
      iteration, 8 * iteration, loss, 1e-3 / static_cast<double>(iteration), 1 + 0.1 * loss,
      iteration == 7 ? "true" : "false", 80 + std::sin(static_cast<double>(iteration)),
      50000 * loss);
}

std::string Metrics(int64_t steps) {
  std::string text;
  for (int64_t i = 1; i <= steps; ++i) {
    absl::StrAppend(&text, Step(i, 1 + 5 / static_cast<double>(i) +
                                       0.1 * std::sin(1.7 * static_cast<double>(i))));
    if (i % (steps / 4) == 0)
      absl::StrAppend(&text, "{\"iteration\":", i, ",\"lm loss validation\":", 1 + 5.0 / i,
                      ",\"lm loss validation ppl\":3}\n");
  }
  return text;
}

RunRecord RunOf(const std::string& name, const std::string& metrics) {
  RunRecord run;
  run.name = name;
  run.metrics = ParseRunMetrics(metrics);
  return run;
}

std::string PageOf(const std::vector<RunRecord>& runs) { return HtmlOf(ReportOf(runs)); }

TEST(ReportTest, ARunWithMetricsAloneHasItsNumbersAndCurves) {
  const std::vector<RunRecord> runs = {RunOf("small", Metrics(20))};
  const std::string page = PageOf(runs);
  EXPECT_THAT(page, AllOf(HasSubstr("<title id=\"metric-1-title\">lm loss over iterations</title>"),
                          HasSubstr(">grad-norm</h3>"), HasSubstr(">learning-rate</h3>")));
  // What never changed is no curve.
  EXPECT_THAT(page, AllOf(Not(HasSubstr(">batch-size</h3>")), HasSubstr(">batch-size</th>")));
  EXPECT_THAT(page, HasSubstr("finite: 1, at 7."));
  EXPECT_THAT(page, HasSubstr("train with --profile"));
  EXPECT_THAT(page,
              AllOf(Not(HasSubstr("no data")), Not(HasSubstr("nan")), Not(HasSubstr("inf\""))));
}

TEST(ReportTest, TheTextOfASmallRun) {
  const std::string text = MarkdownOf(ReportOf({RunOf("small", Metrics(20))}));
  EXPECT_THAT(text, HasSubstr("# small\n"));
  EXPECT_THAT(text, HasSubstr("| iterations | 20 |\n| samples | 160 |\n"));
  EXPECT_THAT(text, HasSubstr("| lm loss, validation | 1.25 |\n"));
  EXPECT_THAT(text, HasSubstr("| best validation loss | 1.25 at iteration 20 |\n"));
  EXPECT_THAT(text, HasSubstr("| skipped steps | 1 |\n"));
  EXPECT_THAT(text, HasSubstr("| loss-scale | 1 |  |\n"));
}

TEST(ReportTest, SeveralValidationSetsHaveANumberAndACurveEach) {
  std::string metrics = Metrics(8);
  for (const int iteration : {4, 8}) {
    absl::StrAppend(&metrics, "{\"iteration\":", iteration,
                    ",\"lm loss validation\":2,\"lm loss validation ppl\":7.4,"
                    "\"lm loss validation news\":",
                    0.5 * iteration, "}\n");
  }
  const std::vector<RunRecord> runs = {RunOf("small", metrics)};
  EXPECT_THAT(MarkdownOf(ReportOf(runs)), HasSubstr("| lm loss, validation on news | 4 |\n"));
  EXPECT_THAT(PageOf(runs), HasSubstr(">lm loss validation news</h3>"));
}

// Not every log line has tokens of each file.
TEST(ReportTest, TrainingFilesAreInOnePicture) {
  std::string metrics;
  for (int i = 1; i <= 30; ++i) {
    absl::StrAppend(&metrics, "{\"iteration\":", i, ",\"consumed_samples\":", 8 * i,
                    ",\"lm loss\":", 5 - 0.1 * i);
    if (i % 2 == 0) absl::StrAppend(&metrics, ",\"lm loss train news\":", 6 - 0.1 * i);
    if (i % 3 == 0) absl::StrAppend(&metrics, ",\"lm loss train books test\":", 4 - 0.1 * i);
    absl::StrAppend(&metrics, "}\n");
  }
  const std::string one = PageOf({RunOf("small", metrics)});
  EXPECT_THAT(one, HasSubstr(">lm loss by training file</h3>"));
  EXPECT_THAT(one, HasSubstr("news, mean"));
  EXPECT_THAT(one, HasSubstr("books test, mean"));
  EXPECT_THAT(one, Not(HasSubstr(">lm loss train news</h3>")));
  const std::string two = PageOf({RunOf("small", metrics), RunOf("large", metrics)});
  EXPECT_THAT(two, HasSubstr(">lm loss by training file, small</h3>"));
  EXPECT_THAT(two, HasSubstr(">lm loss by training file, large</h3>"));
}

TEST(ReportTest, TheTextHasTheSharesOfAStepWithTheLeastAndTheMostOfAllRanks) {
  std::string metrics;
  for (const double compute : {0.5, 0.7}) {
    absl::StrAppendFormat(&metrics,
                          "{\"iteration\":%d,\"consumed_samples\":8,\"share/compute\":%g,"
                          "\"share/dp\":%g,\"share/least-compute\":%g,\"share/most-compute\":%g}\n",
                          compute == 0.5 ? 1 : 2, compute, 1 - compute, compute - 0.1,
                          compute + 0.2);
  }
  const std::string text = MarkdownOf(ReportOf({RunOf("small", metrics)}));
  EXPECT_THAT(text, HasSubstr("| part | mean | lowest | highest | least rank | most rank |\n"));
  EXPECT_THAT(text, HasSubstr("| compute | 60.0 % | 50.0 % | 70.0 % | 50.0 % | 80.0 % |\n"));
  EXPECT_THAT(text, HasSubstr("| dp | 40.0 % | 30.0 % | 50.0 % |  |  |\n"));
  EXPECT_THAT(text, Not(HasSubstr("least-compute")));
}

// The first steps of a start are logged one by one. Of the second start here, which begins at
// iteration 201, one step is logged.
TEST(ReportTest, TheMeanOfAShareIsThatOfAllSteps) {
  std::string metrics;
  for (const int iteration : {1, 2, 3, 100, 201}) {
    const double compute = iteration == 100 ? 0.8 : 0.2;
    absl::StrAppendFormat(&metrics,
                          "{\"iteration\":%d,\"consumed_samples\":8,\"share/compute\":%g,"
                          "\"share/dp\":%g,\"share/least-compute\":%g}\n",
                          iteration, compute, 1 - compute, compute - 0.1);
  }
  RunRecord run = RunOf("small", metrics);
  run.events.starts.resize(2);
  run.events.starts[0].first_iteration = 1;
  run.events.starts[1].first_iteration = 201;
  const std::string text = MarkdownOf(ReportOf({run}));
  EXPECT_THAT(text, HasSubstr("| compute | 77.6 % | 20.0 % | 80.0 % | 67.6 % |  |\n"));
  EXPECT_THAT(text, HasSubstr("| dp | 22.4 % | 20.0 % | 80.0 % |  |  |\n"));
}

TEST(ReportTest, SeveralRunsShareThePictures) {
  RunRecord small = RunOf("small", Metrics(20)), large = RunOf("large", Metrics(40));
  small.config = ParseRunConfig("model { num_layers: 2 } optimizer { lr: 0.001 }");
  large.config = ParseRunConfig("model { num_layers: 4 } optimizer { lr: 0.001 }");
  const Document report = ReportOf({small, large});
  const std::string page = HtmlOf(report), text = MarkdownOf(report);
  EXPECT_THAT(page, AllOf(HasSubstr("small, training"), HasSubstr("large, training")));
  EXPECT_THAT(page, HasSubstr("<h1>small and large</h1>"));
  EXPECT_THAT(text, HasSubstr("| number | small | large |\n"));
  EXPECT_THAT(text, HasSubstr("| iterations | 20 | 40 |\n"));
  EXPECT_THAT(text, HasSubstr("| model.num_layers | 2 | 4 |\n"));
  EXPECT_THAT(text, Not(HasSubstr("optimizer.lr")));
}

TEST(ReportTest, APipelineIsDrawnAsPredictedAndAsMeasured) {
  RunRecord run = RunOf("run", Metrics(20));
  run.pipeline.emplace();
  run.pipeline->schedule = GPipeSchedule(2, 3);
  run.pipeline->timelines = CheckSchedule(run.pipeline->schedule)->stages;
  EXPECT_THAT(PageOf({run}), AllOf(HasSubstr("As its mean times predict: "),
                                   HasSubstr("As measured: "), HasSubstr(">stage 1</text>")));
}

// A run of `layers` layers with experts whose steps are measured.
std::string MeasuredMetrics(int64_t steps, int64_t layers, int64_t experts) {
  std::string text;
  for (int64_t i = 1; i <= steps; ++i) {
    absl::StrAppend(&text, "{\"iteration\":", i, ",\"consumed_samples\":", i, ",\"lm loss\":2");
    for (const char* metric : {"grad-norm", "params-norm", "update-norm", "update-ratio",
                               "output-rms", "output-max", "expert-load-max", "expert-entropy"}) {
      for (int64_t layer = 0; layer < layers; ++layer)
        absl::StrAppend(&text, ",\"", metric, "/decoder.layers.", layer, "\":",
                        i == 2 && layer == 0 ? "null" : absl::StrCat((i * 31 + layer * 17) % 97));
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      absl::StrAppend(&text, ",\"expert-load/decoder.layers.", layer, "\":[1");
      for (int64_t e = 1; e < experts; ++e) absl::StrAppend(&text, ",", e * layer % 50);
      absl::StrAppend(&text, "]");
    }
    absl::StrAppend(&text, "}\n");
  }
  return text;
}

TEST(ReportTest, LayersAndExpertsOfAMeasuredRunAreHeatMaps) {
  const std::string page = PageOf({RunOf("measured", MeasuredMetrics(4, 3, 4))});
  EXPECT_THAT(page,
              AllOf(HasSubstr(">grad-norm by layer</h3>"), HasSubstr(">update-ratio by layer</h3>"),
                    HasSubstr("not finite"), HasSubstr(">expert-entropy by layer</h3>"),
                    HasSubstr(">Load of experts at iteration 4</h3>")));
  // Layer 2 was chosen 1, 2, 4 and 6 times.
  EXPECT_THAT(MarkdownOf(ReportOf({RunOf("measured", MeasuredMetrics(4, 3, 4))})),
              HasSubstr("| decoder.layers.2 | 13 | 3 | 46.2 % | 0 | 7.7 % |"));
  EXPECT_THAT(page, Not(HasSubstr("diagnostics_interval")));
  EXPECT_THAT(PageOf({RunOf("plain", Metrics(20))}), HasSubstr("diagnostics_interval=100"));
}

TEST(ReportTest, ManyLayersAndExpertsGiveASmallPage) {
  std::vector<RunRecord> runs;
  for (size_t i = 0; i < 2; ++i) {
    runs.push_back(RunOf(absl::StrCat("run ", i), MeasuredMetrics(100, 96, 128)));
    EXPECT_LT(PageOf(runs).size(), kMostPageBytes) << i;
  }
  runs.push_back(runs[0]);
  EXPECT_THAT(PageOf(runs), HasSubstr("Layers are drawn for at most 2 runs."));
}

TEST(ReportTest, HostileLoadsOfExpertsGiveAPage) {
  const RunRecord run = RunOf(
      "loads",
      "{\"iteration\":1,\"consumed_samples\":1,\"expert-load/<b>\":[0,0],\"expert-load/\":[1],"
      "\"expert-load/a\":[],\"expert-load/b\":[-1],\"expert-load/c\":[1,\"x\"],"
      "\"expert-load/d\":[[1]],\"expert-load/e\":[1e308,1e308],\"grad-norm/x\":null}\n");
  EXPECT_EQ(run.metrics.expert_load.size(), 3);
  EXPECT_THAT(PageOf({run}), AllOf(Not(HasSubstr("<b>")), HasSubstr("grad-norm by layer")));
}

TEST(ReportTest, ALongRunGivesASmallPage) {
  const std::string page = PageOf({RunOf("long", Metrics(1000000))});
  EXPECT_LT(page.size(), kMostPageBytes);
  EXPECT_THAT(page, HasSubstr("1,000,000"));
}

TEST(ReportTest, ManyRunsOfManyMetricsGiveASmallPage) {
  std::string metrics;
  for (int64_t i = 1; i <= 5000; ++i) {
    absl::StrAppend(&metrics, "{\"iteration\":", i, ",\"consumed_samples\":", i);
    for (int64_t k = 0; k < 60; ++k)
      absl::StrAppend(&metrics, ",\"metric ", k, "\":", (i * 7919 + k * 104729) % 10007);
    absl::StrAppend(&metrics, "}\n");
  }
  std::vector<RunRecord> runs;
  for (size_t i = 0; i < kMostRuns; ++i) runs.push_back(RunOf(absl::StrCat("run ", i), metrics));
  const std::string page = PageOf(runs);
  EXPECT_LT(page.size(), kMostPageBytes);
  EXPECT_THAT(page, HasSubstr("pictures are left out"));
}

TEST(ReportTest, HostileMetricsGiveAPage) {
  const std::string page = PageOf(
      {RunOf("<b>",
             "{\"iteration\":1,\"consumed_samples\":1,\"</svg><script>\":1,\"lm loss\":1e308}\n"
             "{\"iteration\":2,\"consumed_samples\":2,\"</svg><script>\":2,\"lm loss\":-1e308}\n"
             "{\"iteration\":1125899906842624,\"consumed_samples\":3,\"lm loss\":1e-300,"
             "\"elapsed_ms\":1e308,\"mfu\":-1e300}\n")});
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<b>")),
                          HasSubstr("&lt;/svg&gt;&lt;script&gt;")));
  EXPECT_THAT(PageOf({RunOf("null", "{\"iteration\":1,\"lm loss\":null}\n")}), HasSubstr("null"));
}

TEST(ReadRunsTest, RunsAreNamedByWhatTellsThemApart) {
  MemoryFileSystem fs;
  for (const char* directory : {"/runs/a/out", "/runs/b/out"}) {
    ASSERT_THAT(fs.CreateDirs(directory), IsOk());
    ASSERT_THAT(WriteFileAtomically(fs, JoinPath(directory, "metrics.jsonl"), Metrics(20)), IsOk());
  }
  const auto runs = ReadRuns(fs, {"/runs/a/out", "/runs/b/out/metrics.jsonl", "/runs/a/out"});
  ASSERT_THAT(runs, IsOk());
  EXPECT_EQ((*runs)[0].name, "a/out");
  EXPECT_EQ((*runs)[1].name, "b/out/metrics.jsonl");
  EXPECT_EQ((*runs)[2].name, "a/out (3)");
  EXPECT_EQ((*runs)[1].metrics.steps, 20);
}

TEST(ReadRunsTest, AFolderWithoutMetricsIsAnErrorThatNamesIt) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("/runs/a"), IsOk());
  EXPECT_THAT(ReadRun(fs, "/runs/a").status().message(), HasSubstr("/runs/a/metrics.jsonl"));
  ASSERT_THAT(WriteFileAtomically(fs, "/runs/a/metrics.jsonl", "no metrics"), IsOk());
  EXPECT_THAT(ReadRun(fs, "/runs/a").status().message(), HasSubstr("no record of metrics"));
}

}  // namespace
}  // namespace megatron::report
