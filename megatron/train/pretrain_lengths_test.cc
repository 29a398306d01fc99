// Tests of runs whose length, schedules and batch sizes are given in samples and tokens, and of
// iterations that are passed over.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PretrainLengthsTest : public PretrainProgramTest {
 protected:
  // The steps in metrics.jsonl of a run.
  std::vector<Json> Steps(const std::string& name) const {
    std::vector<Json> steps;
    const std::vector<std::string> lines =
        absl::StrSplit(ReadTextFile(Path(name + "/metrics.jsonl")), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      Json record = Json::parse(line);
      if (record.contains("grad-norm")) steps.push_back(std::move(record));
    }
    return steps;
  }

  std::vector<double> Values(const std::string& name, const std::string& key) const {
    std::vector<double> values;
    for (const Json& step : Steps(name)) values.push_back(step.at(key));
    return values;
  }
};

// The configuration has 12 iterations of 4 samples, and a warm-up of 2 iterations.
TEST_F(PretrainLengthsTest, LengthsInSamplesAreThoseInIterations) {
  ASSERT_EQ(Run({SaveTo("iterations")}).exit_code, kExitDone);
  const Outcome samples =
      Run({SaveTo("samples"), "--set=train.train_iters=", "--set=train.train_samples=51",
           "--set=optimizer.lr_warmup_iters=", "--set=optimizer.lr_warmup_samples=8",
           "--set=optimizer.lr_decay_samples=48"});
  ASSERT_EQ(samples.exit_code, kExitDone) << samples.output;
  EXPECT_THAT(samples.output, HasSubstr(" iteration       12/      12 |"));
  ExpectEqualCheckpoints("iterations", "samples");
}

TEST_F(PretrainLengthsTest, BatchesGrowByTokens) {
  const auto run = [this](const std::string& save, int64_t samples) {
    return Run({SaveTo(save),
                "--set=train.train_iters=", absl::StrCat("--set=train.train_samples=", samples),
                "--set=optimizer.lr_warmup_iters=", "--set=train.global_batch_size=",
                "--set=train.step_batch_size_schedule=0:2 0.5K:4 1024:8"});
  };
  const Outcome outcome = run("save", 30);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("training: 7 iterations of 2 to 8 samples, "));
  // 500 tokens are 7 samples of 64, and 1024 are 16.
  EXPECT_THAT(Values("save", "batch-size"), ElementsAre(2, 2, 2, 2, 4, 4, 8));
  EXPECT_THAT(Values("save", "consumed_samples"), ElementsAre(2, 4, 6, 8, 12, 16, 24));
  // The sizes that a run comes to are named, and no others.
  EXPECT_THAT(run("six", 16).output, HasSubstr("training: 6 iterations of 2 to 4 samples, "));
  EXPECT_THAT(run("four", 8).output, HasSubstr("training: 4 iterations of 2 samples, "));
}

TEST_F(PretrainLengthsTest, TheEmbeddingHasALearningRateOfItsOwnWhichIsLogged) {
  const Arguments few = {"--set=train.train_iters=4", "--set=optimizer.lr_decay_style=constant",
                         "--set=optimizer.lr_warmup_iters=0"};
  ASSERT_EQ(Run(Joined({SaveTo("one")}, few)).exit_code, kExitDone);
  const Outcome outcome = Run(Joined({SaveTo("two"), "--set=optimizer.decoupled_lr=1e-3"}, few));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr(" learning rate: 3.000000E-03 | decoupled learning rate: 1.000000E-03 |"));
  EXPECT_THAT(Values("two", "decoupled-learning-rate"), Each(1e-3));
  EXPECT_NE(Values("two", "lm loss").back(), Values("one", "lm loss").back());
  const Outcome same = Run(Joined({SaveTo("same"), "--set=optimizer.decoupled_lr=3e-3"}, few));
  ASSERT_EQ(same.exit_code, kExitDone) << same.output;
  ExpectEqualCheckpoints("one", "same");
}

// Loads the weights that the first phase has left into a run of the second phase's data alone: with
// the same samples it has the same loss.
TEST_F(PretrainLengthsTest, DataChangeAfterAPhaseAndBeginWithTheirFirstSample) {
  for (const int32_t step : {3, 5}) {
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), Path(absl::StrCat("by", step)),
                                               TokenType::kU16);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (int32_t d = 0; d < 40; ++d) {
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < 70; ++i) tokens.push_back((d * d + step * i) % 256);
      ASSERT_TRUE((*writer)->AddDocument(tokens).ok());
    }
    ASSERT_TRUE((*writer)->Finalize().ok());
  }
  const auto with = [this](const std::string& data, const Arguments& more) {
    return Run(
        Joined({"--set=data.stories=", "--set=data.data_path=" + Path(data), "--set=data.split=8,2",
                "--set=model.hidden_dropout=0", "--set=model.attention_dropout=0"},
               more));
  };
  const std::string phases = "--set=train.phase_transition_iterations=[5]";
  const Outcome first = with("by3", {SaveTo("run"), phases});
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_THAT(first.output, HasSubstr("stopped at iteration 5 of 12 by "
                                      "train.phase_transition_iterations"));
  const Outcome alone =
      with("by5", {SaveTo("alone"), "--set=checkpoint.load=" + Path("run"),
                   "--set=checkpoint.finetune=true", "--set=train.exit_interval=1"});
  ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
  const Outcome part = with("by5", {SaveTo("run"), phases, "--set=train.exit_interval=8"});
  ASSERT_EQ(part.exit_code, kExitDone) << part.output;
  EXPECT_EQ(Values("run", "lm loss").at(5), Values("alone", "lm loss").at(0));
  EXPECT_THAT(Values("run", "consumed_samples"), ElementsAre(4, 8, 12, 16, 20, 24, 28, 32));

  const Outcome other = with("by3", {SaveTo("run"), phases});
  EXPECT_EQ(other.exit_code, kExitConfig) << other.output;
  EXPECT_THAT(other.output, HasSubstr("is of iteration 8, and was trained on other data"));
  const Outcome rest = with("by5", {SaveTo("run"), phases});
  ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
  // The same run without the stop at iteration 8.
  ASSERT_EQ(with("by3", {SaveTo("whole"), phases}).exit_code, kExitDone);
  const Outcome whole = with("by5", {SaveTo("whole"), phases});
  ASSERT_EQ(whole.exit_code, kExitDone) << whole.output;
  ExpectEqualCheckpoints("run", "whole");
  EXPECT_EQ(Values("run", "lm loss"), Values("whole", "lm loss"));
}

TEST_F(PretrainLengthsTest, APassedOverIterationTakesItsSamplesAlone) {
  const Arguments skip = {"--set=train.iterations_to_skip=[4, 5]"};
  const Outcome outcome = Run(Joined({SaveTo("whole")}, skip));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("iteration 5 is passed over"));
  EXPECT_THAT(Values("whole", "iteration"), ElementsAre(1, 2, 3, 4, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(Values("whole", "consumed_samples"),
              ElementsAre(4, 8, 12, 16, 28, 32, 36, 40, 44, 48));
  // The schedule stands still: it ends before its end, at 40 of 48 samples.
  EXPECT_GT(Values("whole", "learning-rate").back(), 0);

  // A run that ends where an iteration is passed over continues with the same bits.
  for (int i = 0; i < 2; ++i) {
    const Outcome part = Run(Joined({SaveTo("parts"), "--set=train.exit_interval=4"}, skip));
    ASSERT_EQ(part.exit_code, kExitDone) << part.output;
  }
  ASSERT_EQ(Run(Joined({SaveTo("parts")}, skip)).exit_code, kExitDone);
  ExpectEqualCheckpoints("whole", "parts");
}

// Steps that are not made do not count for the step at which the second moment is frozen. Else it
// would be frozen before it is anything, and nothing would be learned.
TEST_F(PretrainLengthsTest, PassedOverIterationsDoNotBringTheFreezeNearer) {
  const Outcome outcome =
      Run({SaveTo("save"), "--set=train.iterations_to_skip=[0, 1, 2]", "--set=train.train_iters=24",
           "--set=parallel.data_parallel_size=2", "--set=optimizer.optimizer=onebit_adam",
           "--set=optimizer.freeze_step=3"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_LT(Values("save", "lm loss").back(), Values("save", "lm loss").front() - 0.1);
}

TEST_F(PretrainLengthsTest, ARunWhoseBatchFollowsFromItsRanksDoesNotGoOnWithAnother) {
  const Arguments unwritten = {SaveTo("save"),
                               "--set=train.global_batch_size=", "--set=train.train_iters=8"};
  ASSERT_EQ(
      Run(Joined(unwritten, {"--set=parallel.data_parallel_size=2", "--set=train.exit_interval=4"}))
          .exit_code,
      kExitDone);
  const Outcome refused = Run(unwritten);
  EXPECT_EQ(refused.exit_code, kExitConfig) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("train.global_batch_size was 4 in"));
  EXPECT_EQ(Run(Joined(unwritten, {"--set=train.global_batch_size=4"})).exit_code, kExitDone);
}

TEST_F(PretrainLengthsTest, ALengthInSamplesIsNotContinuedWithOtherBatches) {
  const Arguments samples = {SaveTo("save"),
                             "--set=train.train_iters=", "--set=train.train_samples=32",
                             "--set=optimizer.lr_warmup_iters="};
  ASSERT_EQ(Run(Joined(samples, {"--set=train.exit_interval=4"})).exit_code, kExitDone);
  const Outcome refused = Run(Joined(samples, {"--set=train.global_batch_size=2"}));
  EXPECT_EQ(refused.exit_code, kExitConfig) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("give the run's length as train.train_iters"));
  EXPECT_EQ(Run(samples).exit_code, kExitDone);
}

TEST_F(PretrainLengthsTest, CheckpointsOfTheIntervalStay) {
  const Outcome outcome =
      Run({SaveTo("save"), "--set=checkpoint.save_interval=2",
           "--set=checkpoint.save_retain_interval=6", "--set=train.train_iters=10"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  for (const auto& [iteration, stays] : std::vector<std::pair<const char*, bool>>{
           {"02", false}, {"04", false}, {"06", true}, {"08", false}, {"10", true}}) {
    EXPECT_EQ(
        ReadTextFile(Path("save/iter_00000" + std::string(iteration) + "/manifest.json")).empty(),
        !stays)
        << iteration;
  }
}

}  // namespace
}  // namespace megatron
