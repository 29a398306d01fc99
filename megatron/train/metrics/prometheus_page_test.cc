#include "megatron/train/metrics/prometheus_page.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/metrics/full_step.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

StepMetrics StepOf(int64_t iteration, double loss) {
  StepMetrics step;
  step.time = absl::FromUnixSeconds(2000 + iteration);
  step.iteration = iteration;
  step.train_iters = 100;
  step.loss = loss;
  step.speed.elapsed_ms = 250;
  step.speed.model_tflops = 3;
  step.world_size = 2;
  return step;
}

PrometheusPage PageOf(const std::string& run_id) {
  return PrometheusPage(run_id, absl::FromUnixSeconds(1000));
}

TEST(PrometheusPageTest, EachMetricHasAValidNameOfItsOwn) {
  std::set<std::string> names;
  for (const PrometheusMetric& metric : AllPrometheusMetrics()) {
    EXPECT_THAT(metric.name, MatchesRegex("megatron_[a-z0-9_]+"));
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_FALSE(metric.help.empty()) << metric.name;
    EXPECT_EQ(metric.is_counter,
              metric.name.size() > 6 && metric.name.substr(metric.name.size() - 6) == "_total");
  }
}

TEST(PrometheusPageTest, EachMetricOfTheListCanBeExported) {
  PrometheusPage page = PageOf("a");
  const StepMetrics step = FullStep();
  page.SetStep(step);
  EvaluationMetrics evaluation;
  evaluation.others = step.others;
  evaluation.sets = {{"news", 1, /*is_loss=*/true}};
  evaluation.tasks = {{"piqa/acc", 0.5}};
  for (const bool on_test_set : {false, true}) {
    evaluation.on_test_set = on_test_set;
    page.SetEvaluation(evaluation);
  }
  for (const PrometheusMetric& metric : AllPrometheusMetrics())
    EXPECT_THAT(page.Text(), HasSubstr("\n" + metric.name + "{run=\"a\""));
}

TEST(PrometheusPageTest, NamesHaveBaseUnits) {
  EXPECT_EQ(ToPrometheus(metric::kIterationTime)->metric.name, "megatron_iteration_time_seconds");
  EXPECT_EQ(ToPrometheus(metric::kMemory)->metric.name, "megatron_mem_allocated_bytes");
  EXPECT_EQ(ToPrometheus(metric::kMfu)->metric.name, "megatron_mfu_ratio");
  EXPECT_EQ(ToPrometheus(ShareMetric(TimeCategory::kCompute))->metric.name,
            "megatron_share_compute_ratio");
  EXPECT_EQ(ToPrometheus(metric::kThroughput)->metric.name, "megatron_throughput_flops_per_second");
  EXPECT_EQ(ToPrometheus(metric::kThroughput)->factor, 1e12);
  EXPECT_FALSE(ToPrometheus(metric::kElapsed).has_value());
}

TEST(PrometheusPageTest, CountersAreThereBeforeTheFirstStep) {
  const std::string text = PageOf("f00d").Text();
  EXPECT_THAT(text, HasSubstr("# TYPE megatron_steps_total counter\n"
                              "megatron_steps_total{run=\"f00d\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("megatron_events_total{run=\"f00d\",kind=\"save_failed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("megatron_last_step_timestamp_seconds{run=\"f00d\"} 1000\n"));
  EXPECT_THAT(text, Not(HasSubstr("megatron_lm_loss")));
}

TEST(PrometheusPageTest, HasTheLastStep) {
  PrometheusPage page = PageOf("f00d");
  page.SetStep(StepOf(6, 3));
  StepMetrics step = StepOf(7, 2.5);
  step.skipped = true;
  step.memory_bytes = int64_t{1} << 40;
  step.time_shares.categories[static_cast<int>(TimeCategory::kCompute)] = 0.1;
  step.others = {{"sop loss", 0.5, true}, {"not in the table", 1, true}};
  page.SetStep(step);
  const std::string text = page.Text();
  for (const char* line :
       {"megatron_steps_total{run=\"f00d\"} 2\n", "megatron_lm_loss{run=\"f00d\"} 2.5\n",
        "megatron_skipped_iterations_total{run=\"f00d\"} 1\n",
        "megatron_iteration{run=\"f00d\"} 7\n", "megatron_train_iterations{run=\"f00d\"} 100\n",
        "megatron_iteration_time_seconds{run=\"f00d\"} 0.25\n",
        "megatron_throughput_flops_per_second{run=\"f00d\"} 1500000000000\n",
        "megatron_mem_allocated_bytes{run=\"f00d\"} 1099511627776\n",
        "megatron_share_compute_ratio{run=\"f00d\"} 0.1\n", "megatron_sop_loss{run=\"f00d\"} 0.5\n",
        "megatron_last_step_timestamp_seconds{run=\"f00d\"} 2007\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("not_in")));
}

TEST(PrometheusPageTest, ValuesThatAreNotFiniteAreSpelledAsTheFormatSays) {
  PrometheusPage page = PageOf("a");
  page.SetStep(StepOf(1, std::nan("")));
  EXPECT_THAT(page.Text(), HasSubstr("megatron_lm_loss{run=\"a\"} NaN\n"));
  EXPECT_THAT(page.Text(), HasSubstr("megatron_loss_is_finite{run=\"a\"} 0\n"));
  page.SetStep(StepOf(2, std::numeric_limits<double>::infinity()));
  EXPECT_THAT(page.Text(), HasSubstr("megatron_lm_loss{run=\"a\"} +Inf\n"));
  page.SetStep(StepOf(3, -std::numeric_limits<double>::infinity()));
  EXPECT_THAT(page.Text(), HasSubstr("megatron_lm_loss{run=\"a\"} -Inf\n"));
}

TEST(PrometheusPageTest, ValuesKeepAllOfTheirDigits) {
  PrometheusPage page = PageOf("a");
  page.SetStep(StepOf(1, 0.1 + 0.2));
  EXPECT_THAT(page.Text(), HasSubstr("megatron_lm_loss{run=\"a\"} 0.30000000000000004\n"));
}

TEST(PrometheusPageTest, LabelsAreEscaped) {
  EXPECT_THAT(PageOf("a\"b\\c\nd").Text(),
              HasSubstr("megatron_steps_total{run=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

TEST(PrometheusPageTest, HasEvaluationsAndEvents) {
  PrometheusPage page = PageOf("a");
  EvaluationMetrics evaluation;
  evaluation.loss = 1;
  evaluation.sets = {{"a \"b\"", 3, /*is_loss=*/true}, {"c", 4, /*is_loss=*/true}};
  evaluation.tasks = {{"piqa/acc", 0.5}, {"piqa/acc_norm", 0.25}};
  page.SetEvaluation(evaluation);
  evaluation.on_test_set = true;
  evaluation.loss = 2;
  page.SetEvaluation(evaluation);
  RunEvent saved;
  saved.kind = RunEventKind::kSaved;
  saved.iteration = 40;
  saved.time = absl::FromUnixSeconds(3000);
  page.SetEvent(saved);
  const std::string text = page.Text();
  for (const char* line :
       {"megatron_lm_loss_validation{run=\"a\"} 1\n", "megatron_lm_loss_test{run=\"a\"} 2\n",
        "megatron_lm_loss_validation_ppl{run=\"a\"} 2.7182818284590",
        "megatron_validation_set_loss{run=\"a\",set=\"a \\\"b\\\"\"} 3\n",
        "megatron_validation_set_loss{run=\"a\",set=\"c\"} 4\n",
        "megatron_task{run=\"a\",task=\"piqa\",metric=\"acc\"} 0.5\n",
        "megatron_task{run=\"a\",task=\"piqa\",metric=\"acc_norm\"} 0.25\n",
        "megatron_lm_loss_test_ppl{run=\"a\"} 7.38905609893065\n",
        "megatron_events_total{run=\"a\",kind=\"saved\"} 1\n",
        "megatron_last_checkpoint_iteration{run=\"a\"} 40\n",
        "megatron_last_checkpoint_timestamp_seconds{run=\"a\"} 3000\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(PrometheusPageTest, TrainingFilesKeepTheirLastLosses) {
  PrometheusPage page = PageOf("a");
  StepMetrics step = StepOf(1, 1);
  EXPECT_THAT(page.Text(), Not(HasSubstr("megatron_training_file_loss")));
  step.sources = {{"a \"b\"", 3, /*is_loss=*/true}, {"c", 4, /*is_loss=*/true}};
  page.SetStep(step);
  step.sources = {{"c", 2, /*is_loss=*/true}};
  page.SetStep(step);
  EXPECT_THAT(page.Text(),
              HasSubstr("megatron_training_file_loss{run=\"a\",file=\"a \\\"b\\\"\"} 3\n"
                        "megatron_training_file_loss{run=\"a\",file=\"c\"} 2\n"));
}

TEST(PrometheusPageTest, EachLineIsOfTheFormat) {
  PrometheusPage page = PageOf("a");
  page.SetStep(StepOf(1, 1));
  const std::string text = page.Text();
  ASSERT_EQ(text.back(), '\n');
  std::string name;
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, text.size() - 1), '\n');
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#" && words[1] == "HELP") {
      name = words[2];
    } else if (words[0] == "#") {
      EXPECT_EQ(words[2], name);
    } else {
      EXPECT_EQ(words[0].substr(0, words[0].find('{')), name);
      EXPECT_EQ(words.size(), 2u) << line;
    }
  }
}

}  // namespace
}  // namespace megatron
