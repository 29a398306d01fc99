// Tests of the losses of single training files, as a run prints and writes them.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/blend.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kSteps = 12, kBatch = 4;
// Every tenth sample is one of "books": most steps have none.
constexpr double kWeights[] = {0.9, 0.1};
constexpr const char* kNames[] = {"lm loss train news", "lm loss train books"};

class PretrainSourcesTest : public PretrainProgramTest {
 protected:
  PretrainSourcesTest() {
    Write("news", 7);
    Write("books", 3);
  }

  // Documents that count upwards in steps of their own.
  void Write(const std::string& name, int32_t step) {
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), Path(name), TokenType::kU16);
    ASSERT_THAT(writer, IsOk());
    for (int d = 0; d < 40; ++d) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 101; ++i) tokens.push_back((d * 13 + i * (step + d % 3)) % 250);
      ASSERT_THAT((*writer)->AddDocument(tokens), IsOk());
    }
    ASSERT_THAT((*writer)->Finalize(), IsOk());
  }

  // A run over both files that logs each step.
  Arguments With(const std::string& save) const {
    return {SaveTo(save),
            "--set=data.stories=",
            "--set=data.split=",
            absl::StrCat("--set=data.train_data_path=[\"0.9\", \"", Path("news"), "\", \"0.1\", \"",
                         Path("books"), "\"]"),
            "--set=train.eval_iters=0",
            "--set=train.log_interval=1"};
  }

  // The steps of metrics.jsonl.
  std::vector<Json> Steps(const std::string& save) const {
    std::vector<Json> records;
    const std::vector<std::string> lines =
        absl::StrSplit(ReadTextFile(Path(save + "/metrics.jsonl")), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) records.push_back(Json::parse(line));
    return records;
  }

  std::string RunWell(const Arguments& arguments) const {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    return outcome.output;
  }
};

// Returns how many samples of the file the steps (first, last] have.
int64_t SamplesIn(int file, int64_t first, int64_t last) {
  const BlendIndex index = BuildBlendIndex(kWeights, kSteps * kBatch);
  return std::count(index.dataset.begin() + first * kBatch, index.dataset.begin() + last * kBatch,
                    file);
}

// Expects of a record of the steps (first, last] the means over them of each file's losses, which
// those of a run have that logs every step. All samples have as many tokens.
void ExpectMeans(const Json& record, const std::vector<Json>& each, int64_t first, int64_t last) {
  for (const int file : {0, 1}) {
    double sum = 0;
    for (int64_t step = first; step < last; ++step) {
      const int64_t samples = SamplesIn(file, step, step + 1);
      if (samples > 0)
        sum += static_cast<double>(samples) * each[step].at(kNames[file]).get<double>();
    }
    const int64_t samples = SamplesIn(file, first, last);
    ASSERT_EQ(record.contains(kNames[file]), samples > 0) << record;
    if (samples > 0) {
      EXPECT_NEAR(record.at(kNames[file]), sum / static_cast<double>(samples), 1e-5) << record;
    }
  }
}

TEST_F(PretrainSourcesTest, TheLossesOfFilesMakeUpTheLoss) {
  EXPECT_THAT(RunWell(With("run")),
              AllOf(HasSubstr(" | lm loss train news: "), HasSubstr(" | lm loss train books: ")));
  const std::vector<Json> steps = Steps("run");
  ASSERT_THAT(steps, SizeIs(kSteps));
  int64_t without_books = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (const int file : {0, 1}) {
      const int64_t samples = SamplesIn(file, step, step + 1);
      ASSERT_EQ(steps[step].contains(kNames[file]), samples > 0) << steps[step];
      if (samples > 0) {
        sum += static_cast<double>(samples) * steps[step].at(kNames[file]).get<double>();
      } else {
        ++without_books;
      }
    }
    EXPECT_NEAR(sum / kBatch, steps[step].at("lm loss"), 1e-5) << steps[step];
  }
  EXPECT_GT(without_books, 3);
  EXPECT_LT(without_books, kSteps);
}

TEST_F(PretrainSourcesTest, ALogLineHasTheMeansSinceTheOneBefore) {
  RunWell(With("each"));
  const std::vector<Json> each = Steps("each");
  RunWell(Joined(With("some"), {"--set=train.log_interval=5"}));
  const std::vector<Json> some = Steps("some");
  ASSERT_THAT(some, SizeIs(kSteps));
  ExpectMeans(some[4], each, 3, 5);  // the first three steps are logged, too
  ExpectMeans(some[9], each, 5, 10);
  ExpectMeans(some[11], each, 10, 12);
  for (const int64_t step : {3, 5, 6, 7, 8, 10}) EXPECT_FALSE(some[step].contains(kNames[0]));

  // A run that continues begins its interval anew, and logs its first three steps.
  const Arguments parts = Joined(With("parts"), {"--set=train.log_interval=5"});
  RunWell(Joined(parts, {"--set=train.exit_interval=6"}));
  RunWell(parts);
  const std::vector<Json> rest = Steps("parts");
  ASSERT_THAT(rest, SizeIs(kSteps));
  ExpectMeans(rest[4], each, 3, 5);
  EXPECT_FALSE(rest[5].contains(kNames[0]));
  for (const int64_t step : {6, 7, 8}) ExpectMeans(rest[step], each, step, step + 1);
  ExpectMeans(rest[9], each, 9, 10);
  ExpectMeans(rest[11], each, 10, 12);
}

TEST_F(PretrainSourcesTest, LayoutsHaveTheSameLosses) {
  RunWell(With("one"));
  const std::vector<Json> one = Steps("one");
  int number = 0;
  for (const Arguments& layout :
       {Arguments{"--set=parallel.data_parallel_size=2"},
        Arguments{"--set=parallel.tensor_model_parallel_size=2",
                  "--set=parallel.pipeline_model_parallel_size=2",
                  "--set=train.micro_batch_size=1"},
        Arguments{"--set=parallel.context_parallel_size=2", "--set=train.micro_batch_size=4"}}) {
    const std::string save = absl::StrCat("other", ++number);
    RunWell(Joined(With(save), layout));
    const std::vector<Json> other = Steps(save);
    ASSERT_THAT(other, SizeIs(kSteps));
    for (int64_t step = 0; step < kSteps; ++step) {
      for (const char* name : kNames) {
        ASSERT_EQ(other[step].contains(name), one[step].contains(name)) << layout[0];
        if (one[step].contains(name)) {
          EXPECT_NEAR(other[step].at(name), one[step].at(name), 2e-5) << layout[0];
        }
      }
    }
  }
}

TEST_F(PretrainSourcesTest, AListInAFileNamesSourcesToo) {
  std::ofstream(Path("list.txt")) << "0.9 " << Path("news") << "\n0.1 " << Path("books") << "\n";
  Arguments listed = With("listed");
  listed[3] = absl::StrCat("--set=data.data_args_path=", Path("list.txt"));
  listed[2] = "--set=data.split=1";
  EXPECT_THAT(RunWell(listed),
              AllOf(HasSubstr(" | lm loss train news: "), HasSubstr(" | lm loss train books: ")));
  // One file has no loss but that of the run, even if the list names it twice.
  std::ofstream(Path("list.txt")) << "0.9 " << Path("news") << " 0.1 " << Path("news") << "\n";
  EXPECT_THAT(RunWell(Joined(listed, {SaveTo("twice")})), Not(HasSubstr("lm loss train")));
  listed[3] = absl::StrCat("--set=data.data_args_path=", Path("none.txt"));
  const Outcome outcome = Run(listed);
  EXPECT_EQ(outcome.exit_code, kExitData) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("for data.data_args_path"));
}

// The blend is drawn for iterations of the present batch, and the others have taken more.
TEST_F(PretrainSourcesTest, ABlendIsNotContinuedWithBatchesForWhichItHasTooFewSamples) {
  RunWell(Joined(With("parts"), {"--set=train.exit_interval=6"}));
  const Outcome refused = Run(Joined(With("parts"), {"--set=train.global_batch_size=2"}));
  EXPECT_EQ(refused.exit_code, kExitConfig) << refused.output;
  EXPECT_THAT(refused.output,
              HasSubstr("has taken 24 samples, and the iterations from 7 to 12 take 12; the "
                        "training data"));
  RunWell(With("parts"));
}

// 24 samples are drawn for 12 iterations of 2, of which the first 3 have taken 12.
TEST_F(PretrainSourcesTest, ABlendIsContinuedWithSmallerBatchesAsFarAsItsSamplesReach) {
  RunWell(Joined(With("parts"), {"--set=train.exit_interval=3"}));
  const Arguments smaller = Joined(With("parts"), {"--set=train.global_batch_size=2"});
  EXPECT_THAT(RunWell(Joined(smaller, {"--set=train.exit_interval=9"})),
              HasSubstr("so that training ends with an error after iteration 9: "));
  EXPECT_THAT(Steps("parts"), SizeIs(9));
  // Nothing is left of them.
  EXPECT_EQ(Run(smaller).exit_code, kExitConfig);
}

}  // namespace
}  // namespace megatron
