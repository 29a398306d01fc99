#include "megatron/train/metrics/tensorboard_writer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/tensorboard/event_records.h"
#include "megatron/tensorboard/summaries.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using tensorboard::Event;
using tensorboard::Summary;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr char kDirectory[] = "run/tensorboard";
constexpr int64_t kBatch = 16;

using Points = std::vector<std::pair<int64_t, float>>;
using Curves = std::map<std::string, Points>;

StepMetrics Step(int64_t iteration, bool logged = false) {
  StepMetrics step;
  step.time = absl::UnixEpoch() + absl::Seconds(iteration);
  step.iteration = iteration;
  step.consumed_samples = kBatch * iteration;
  step.loss = 1.0 / static_cast<double>(iteration);
  step.learning_rate = 3e-5;
  step.grad_norm = 2.5;
  step.global_batch_size = kBatch;
  step.speed.elapsed_ms = 81.25;
  step.speed.tokens_per_second = 50443;
  step.speed.model_tflops = 0.5;
  step.world_size = 2;
  if (logged) {
    step.interval.emplace();
    step.memory_bytes = 1000;
    step.peak_memory_bytes = 2000;
  }
  return step;
}

EvaluationMetrics Evaluation(int64_t iteration, double loss) {
  EvaluationMetrics evaluation;
  evaluation.iteration = iteration;
  evaluation.consumed_samples = kBatch * iteration;
  evaluation.loss = loss;
  return evaluation;
}

// Returns the events of these files of the folder.
std::vector<Event> ReadEvents(MemoryFileSystem* disk, const std::vector<std::string>& names) {
  std::vector<Event> events;
  for (const std::string& name : names) {
    const std::string text = *ReadFileToString(*disk, JoinPath(kDirectory, name));
    absl::string_view rest = text;
    while (const std::optional<absl::string_view> record = tensorboard::TakeRecord(&rest))
      EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(*record)));
    EXPECT_THAT(rest, IsEmpty()) << name;
  }
  return events;
}

// Returns the curves of a reader that forgets nothing.
Curves AllPoints(const std::vector<Event>& events) {
  Curves curves;
  for (const Event& event : events) {
    for (const Summary::Value& value : event.summary().value()) {
      if (value.has_simple_value())
        curves[value.tag()].emplace_back(event.step(), value.simple_value());
    }
  }
  return curves;
}

// Returns the curves of TensorBoard's fast loader: a point removes those of its tag from its step
// on. `curves` has what it has read before.
Curves Loaded(const std::vector<Event>& events, Curves curves = {}) {
  for (const auto& [tag, points] : AllPoints(events)) {
    Points& known = curves[tag];
    for (const auto& point : points) {
      while (!known.empty() && known.back().first >= point.first) known.pop_back();
      known.push_back(point);
    }
  }
  return curves;
}

void ExpectOnePointPerStep(const Curves& curves) {
  for (const auto& [tag, points] : curves) {
    for (size_t i = 1; i < points.size(); ++i)
      EXPECT_LT(points[i - 1].first, points[i].first) << tag;
  }
}

class TensorboardWriterTest : public ::testing::Test {
 protected:
  std::unique_ptr<TensorboardWriter> OpenAt(int64_t last, const std::string& run = "0123") {
    RunStart start;
    start.last_iteration = last;
    start.consumed_samples = kBatch * last;
    start.run_id = run;
    start.config_text = "model { num_layers: 4 }";
    return std::make_unique<TensorboardWriter>(fs_, kDirectory, start,
                                               [] { return absl::FromUnixSeconds(1700000000); });
  }

  static void WriteSteps(TensorboardWriter* writer, int64_t first, int64_t last) {
    for (int64_t i = first; i <= last; ++i) ASSERT_THAT(writer->WriteStep(Step(i)), IsOk());
  }

  std::vector<std::string> Names() { return *disk_.List(kDirectory); }
  std::vector<Event> Events() { return ReadEvents(&disk_, Names()); }
  // Returns the events of the files that are not among `known`.
  std::vector<Event> EventsOfNewFiles(const std::vector<std::string>& known) {
    std::vector<std::string> files;
    for (const std::string& name : Names()) {
      if (std::find(known.begin(), known.end(), name) == known.end()) files.push_back(name);
    }
    return ReadEvents(&disk_, files);
  }
  // Returns the number of bytes of all files.
  size_t Bytes() {
    size_t bytes = 0;
    for (const std::string& name : Names())
      bytes += ReadFileToString(disk_, JoinPath(kDirectory, name))->size();
    return bytes;
  }

  MemoryFileSystem disk_;
  FaultFileSystem fs_{&disk_};
};

TEST_F(TensorboardWriterTest, AStepHasMegatronsTagsOnBothAxes) {
  WriteSteps(OpenAt(0).get(), 1, 2);
  const Curves curves = AllPoints(Events());
  for (const char* tag : {"lm loss", "learning-rate", "batch-size", "loss-scale", "grad-norm"}) {
    ASSERT_THAT(curves, Contains(Key(tag)));
    EXPECT_THAT(curves.at(tag), ElementsAre(Pair(1, testing::_), Pair(2, testing::_))) << tag;
    EXPECT_THAT(curves.at(absl::StrCat(tag, " vs samples")),
                ElementsAre(Pair(16, testing::_), Pair(32, testing::_)))
        << tag;
  }
  EXPECT_THAT(curves.at("lm loss"), ElementsAre(Pair(1, 1), Pair(2, 0.5)));
  EXPECT_THAT(curves.at("iteration-time"), Contains(Pair(1, 0.08125f)));
  EXPECT_THAT(curves.at("throughput"), Contains(Pair(1, 0.25)));
  EXPECT_THAT(curves, Not(Contains(Key("throughput vs samples"))));
  EXPECT_THAT(curves, Not(Contains(Key("params-norm"))));
}

TEST_F(TensorboardWriterTest, AStepThatIsLoggedHasMore) {
  StepMetrics step = Step(1, /*logged=*/true);
  step.interval->skipped_iterations = 3;
  step.others = {{"load_balancing_loss", 1.5}};
  step.params_norm = 7;
  step.num_zeros = 9;
  step.speed.mfu = 0.5;
  step.time_shares.categories[static_cast<int>(TimeCategory::kCompute)] = 0.75;
  step.time_shares.slowest_rank = 5;
  step.timers = {{"optimizer-time", 0.25}};
  step.sources = {{"news", 2.5, /*is_loss=*/true}};
  ASSERT_THAT(OpenAt(0)->WriteStep(step), IsOk());
  const Curves curves = AllPoints(Events());
  for (const auto& [tag, value] : std::map<std::string, float>{{"world-size", 2},
                                                               {"skipped-iterations", 3},
                                                               {"nan-iterations", 0},
                                                               {"mem-allocated-bytes", 1000},
                                                               {"mem-max-allocated-bytes", 2000},
                                                               {"load_balancing_loss", 1.5},
                                                               {"params-norm", 7},
                                                               {"num-zeros", 9},
                                                               {"mfu", 0.5},
                                                               {"share/compute", 0.75},
                                                               {"slowest-rank", 5},
                                                               {"lm loss train news", 2.5},
                                                               {"optimizer-time", 0.25}}) {
    ASSERT_THAT(curves, Contains(Key(tag)));
    EXPECT_THAT(curves.at(tag), ElementsAre(Pair(1, value))) << tag;
  }
  EXPECT_THAT(curves, Not(Contains(Key("share/tp"))));
}

TEST_F(TensorboardWriterTest, EvaluationsHaveLossesAndPerplexities) {
  const auto writer = OpenAt(0);
  ASSERT_THAT(writer->WriteStep(Step(1)), IsOk());
  EvaluationMetrics evaluation = Evaluation(1, 0);
  evaluation.others = {{"lm accuracy", 0.25}};
  evaluation.sets = {{"news", 0.75, /*is_loss=*/true}};
  evaluation.tasks = {{"piqa/acc", 0.5}};
  ASSERT_THAT(writer->WriteEvaluation(evaluation), IsOk());
  evaluation.sets.clear();
  evaluation.tasks.clear();
  evaluation.on_test_set = true;
  ASSERT_THAT(writer->WriteEvaluation(evaluation), IsOk());
  const Curves curves = AllPoints(Events());
  EXPECT_THAT(curves.at("lm loss validation news"), ElementsAre(Pair(1, 0.75)));
  EXPECT_THAT(curves.at("tasks/piqa/acc"), ElementsAre(Pair(1, 0.5)));
  for (const std::string set : {"validation", "test"}) {
    EXPECT_THAT(curves.at("lm loss " + set), ElementsAre(Pair(1, 0)));
    EXPECT_THAT(curves.at("lm loss " + set + " ppl"), ElementsAre(Pair(1, 1)));
    EXPECT_THAT(curves.at("lm loss " + set + " ppl vs samples"), ElementsAre(Pair(16, 1)));
    EXPECT_THAT(curves.at("lm accuracy " + set), ElementsAre(Pair(1, 0.25)));
  }
}

TEST_F(TensorboardWriterTest, EveryTagIsDescribedOnce) {
  const auto writer = OpenAt(0);
  for (int64_t i = 1; i <= 2; ++i) {
    StepMetrics step = Step(i, /*logged=*/true);
    step.others = {{"sop loss", 1}};
    ASSERT_THAT(writer->WriteStep(step), IsOk());
    ASSERT_THAT(writer->WriteEvaluation(Evaluation(i, 1)), IsOk());
  }
  std::set<std::string> tags, described;
  for (const Event& event : Events()) {
    for (const Summary::Value& value : event.summary().value()) {
      if (!value.has_simple_value()) continue;
      tags.insert(value.tag());
      if (!value.has_metadata()) continue;
      EXPECT_THAT(value.metadata().summary_description(), Not(IsEmpty()));
      EXPECT_TRUE(described.insert(value.tag()).second) << value.tag();
    }
  }
  EXPECT_EQ(described, tags);
}

TEST_F(TensorboardWriterTest, AStartWritesTheConfigurationAndALayout) {
  WriteSteps(OpenAt(0).get(), 1, 1);
  std::map<std::string, Summary::Value> cards;
  for (const Event& event : Events()) {
    for (const Summary::Value& value : event.summary().value()) {
      if (!value.has_simple_value()) cards[value.tag()] = value;
    }
  }
  EXPECT_THAT(cards["configuration"].tensor().string_val(0), HasSubstr("num_layers: 4"));
  tensorboard::HParamsPluginData hparams;
  ASSERT_TRUE(hparams.ParseFromString(
      cards["_hparams_/session_start_info"].metadata().plugin_data().content()));
  EXPECT_EQ(hparams.session_start_info().hparams().at("model.num_layers").number_value(), 4);
  tensorboard::Layout layout;
  ASSERT_TRUE(layout.ParseFromString(cards["custom_scalars__config__"].tensor().string_val(0)));
  EXPECT_EQ(layout.category(0).chart(0).title(), "loss");
  EXPECT_THAT(layout.category(0).chart(0).multiline().tag(), Contains("^lm loss validation$"));
  std::vector<std::string> charts;
  for (const tensorboard::Chart& chart : layout.category(0).chart())
    charts.push_back(chart.title());
  EXPECT_THAT(charts, Contains("perplexity"));
  EXPECT_THAT(charts, Contains("gradient norm"));
  EXPECT_THAT(charts, Not(Contains("accuracy")));  // this model has none
}

TEST_F(TensorboardWriterTest, AStepIsSmall) {
  const auto writer = OpenAt(0);
  const auto bytes_of = [&](StepMetrics step) {
    step.speed.mfu = 0.5;
    const size_t before = Bytes();
    EXPECT_THAT(writer->WriteStep(step), IsOk());
    return Bytes() - before;
  };
  ASSERT_THAT(writer->WriteStep(Step(1, /*logged=*/true)), IsOk());
  bytes_of(Step(2));
  EXPECT_LE(bytes_of(Step(1000000)), 400);
  EXPECT_LE(bytes_of(Step(1000001, /*logged=*/true)), 4096);
}

TEST_F(TensorboardWriterTest, AfterAKillEachTagHasOnePointPerStep) {
  // The run is killed after `killed` steps, with a checkpoint at `saved`; the evaluations are at
  // every third step.
  const auto run = [this](int64_t saved, int64_t last) {
    const auto writer = OpenAt(saved);
    for (int64_t i = saved + 1; i <= last; ++i) {
      ASSERT_THAT(writer->WriteStep(Step(i, /*logged=*/i % 2 == 0)), IsOk());
      if (i % 3 != 0) continue;
      ASSERT_THAT(writer->WriteEvaluation(Evaluation(i, 2)), IsOk());
    }
  };
  run(0, 20);
  const Curves uninterrupted = AllPoints(Events());
  for (int64_t killed = 1; killed <= 14; ++killed) {
    for (int64_t saved = 0; saved <= killed; ++saved) {
      ASSERT_THAT(disk_.RemoveTree(kDirectory), IsOk());
      run(0, killed);
      const Curves open = Loaded(Events());  // a TensorBoard that has read the killed run
      const std::vector<std::string> known = Names();
      run(saved, saved + 1);  // is killed again
      run(saved, 20);
      EXPECT_EQ(Loaded(Events()), uninterrupted) << killed << " " << saved;
      EXPECT_EQ(Loaded(EventsOfNewFiles(known), open), uninterrupted) << killed << " " << saved;
      // A reader that forgets nothing has one equal point more.
      for (auto [tag, points] : AllPoints(Events())) {
        const auto twice = std::adjacent_find(points.begin(), points.end());
        if (twice != points.end()) points.erase(twice);
        EXPECT_EQ(points, uninterrupted.at(tag)) << tag;
      }
    }
  }
}

TEST_F(TensorboardWriterTest, AnOpenReaderForgetsTheEvaluationsOfTheKilledRun) {
  const auto writer = OpenAt(0);
  WriteSteps(writer.get(), 1, 4);
  ASSERT_THAT(writer->WriteEvaluation(Evaluation(2, 7)), IsOk());
  ASSERT_THAT(writer->WriteEvaluation(Evaluation(4, 8)), IsOk());
  const Curves open = Loaded(Events());
  const std::vector<std::string> known = Names();
  WriteSteps(OpenAt(3).get(), 4, 4);
  EXPECT_THAT(Loaded(EventsOfNewFiles(known), open).at("lm loss validation"),
              ElementsAre(Pair(2, 7)));
}

TEST_F(TensorboardWriterTest, AnotherRunsFilesStay) {
  WriteSteps(OpenAt(0, "other").get(), 1, 3);
  WriteSteps(OpenAt(0).get(), 1, 1);
  EXPECT_THAT(AllPoints(Events()).at("lm loss"),
              ElementsAre(Pair(1, 1), Pair(2, 0.5), Pair(3, testing::_), Pair(1, 1)));
}

TEST_F(TensorboardWriterTest, NumbersThatAreNotFiniteArePoints) {
  StepMetrics step = Step(1);
  step.loss = std::nan("");
  step.grad_norm = std::numeric_limits<double>::infinity();
  step.time = absl::InfinitePast();
  ASSERT_THAT(OpenAt(0)->WriteStep(step), IsOk());
  for (const Event& event : Events()) EXPECT_TRUE(std::isfinite(event.wall_time()));
  const Curves curves = AllPoints(Events());
  EXPECT_TRUE(std::isnan(curves.at("lm loss")[0].second));
  EXPECT_THAT(curves.at("grad-norm"), ElementsAre(Pair(1, step.grad_norm.value())));
}

TEST_F(TensorboardWriterTest, ANameThatIsTooLongIsSaidOnce) {
  const auto writer = OpenAt(0);
  for (int64_t i = 1; i <= 3; ++i) {
    StepMetrics step = Step(i);
    step.others = {{std::string(5000, 'x'), 1}, {"a\nb\xff", 2}};
    EXPECT_THAT(writer->WriteStep(step),
                i == 1 ? StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long"))
                       : StatusIs(absl::StatusCode::kOk));
  }
  const Curves curves = AllPoints(Events());
  EXPECT_THAT(curves.at("a_b_"), ElementsAre(Pair(1, 2), Pair(2, 2), Pair(3, 2)));
  for (const auto& [tag, points] : curves) EXPECT_LT(tag.size(), 220) << tag;
}

TEST_F(TensorboardWriterTest, AFullDiskLosesNoStep) {
  const auto writer = OpenAt(0);
  WriteSteps(writer.get(), 1, 3);
  fs_.FailAt(0, ENOSPC, /*lasting=*/true);
  for (int64_t i = 4; i <= 30; ++i)
    EXPECT_THAT(writer->WriteStep(Step(i)), StatusIs(absl::StatusCode::kResourceExhausted));
  fs_.ClearFault();
  for (int64_t i = 31; i <= 60; ++i) writer->WriteStep(Step(i)).IgnoreError();
  EXPECT_THAT(writer->Sync(), IsOk());
  EXPECT_EQ(AllPoints(Events()).at("lm loss").size(), 60);
  ExpectOnePointPerStep(AllPoints(Events()));
}

TEST_F(TensorboardWriterTest, StartsInAFolderThatCannotBeRead) {
  ASSERT_THAT(disk_.CreateDirs("run"), IsOk());
  ASSERT_THAT(WriteFileAtomically(disk_, kDirectory, "a file"), IsOk());
  const auto writer = OpenAt(0);
  for (int64_t i = 1; i <= 5; ++i) EXPECT_FALSE(writer->WriteStep(Step(i)).ok());
  ASSERT_THAT(disk_.Remove(kDirectory), IsOk());
  EXPECT_THAT(writer->Sync(), IsOk());
  EXPECT_EQ(AllPoints(Events()).at("lm loss").size(), 5);
}

}  // namespace
}  // namespace megatron
