// Tests of several validation sets, and of evaluations that read all of their data.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
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

using ::absl_testing::IsOk;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kMean[] = "lm loss validation", kNews[] = "lm loss validation news",
               kBooks[] = "lm loss validation books";

class PretrainValidationSetsTest : public PretrainProgramTest {
 protected:
  PretrainValidationSetsTest() {
    Write("train", 0, 40);
    Write("news", 7, 3);   // 3 documents of 101 tokens: 4 samples of 64 and their next one
    Write("books", 3, 5);  // 7 samples
  }

  // Documents that count upwards in steps of their own.
  void Write(const std::string& name, int32_t step, int documents) {
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), Path(name), TokenType::kU16);
    ASSERT_THAT(writer, IsOk());
    for (int d = 0; d < documents; ++d) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 101; ++i) tokens.push_back((d * 13 + i * (step + d % 3)) % 250);
      ASSERT_THAT((*writer)->AddDocument(tokens), IsOk());
    }
    ASSERT_THAT((*writer)->Finalize(), IsOk());
  }

  std::string Quoted(const std::string& name) const { return absl::StrCat("\"", Path(name), "\""); }

  // A run that evaluates on these sets.
  Arguments With(const std::string& save, const std::vector<std::string>& sets) const {
    std::string list;
    for (const std::string& set : sets)
      absl::StrAppend(&list, list.empty() ? "" : ", ", Quoted(set));
    return {SaveTo(save),
            "--set=data.stories=",
            "--set=data.split=",
            absl::StrCat("--set=data.train_data_path=[", Quoted("train"), "]"),
            absl::StrCat("--set=data.valid_data_path=[", list, "]"),
            "--set=train.multiple_validation_sets=true"};
  }

  // The records of metrics.jsonl that have a value.
  std::vector<Json> Records(const std::string& save, const char* key) const {
    std::vector<Json> records;
    const std::vector<std::string> lines =
        absl::StrSplit(ReadTextFile(Path(save + "/metrics.jsonl")), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      Json record = Json::parse(line);
      if (record.contains(key)) records.push_back(std::move(record));
    }
    return records;
  }
  std::vector<Json> Evaluations(const std::string& save) const { return Records(save, kMean); }

  void RunWell(const Arguments& arguments) const {
    const Outcome outcome = Run(arguments);
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  }
};

TEST_F(PretrainValidationSetsTest, EachSetHasTheLossThatItHasAlone) {
  const Outcome outcome = Run(With("both", {"news", "books"}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(" | lm loss news value: "));
  EXPECT_THAT(outcome.output, HasSubstr(" | lm loss books PPL: "));
  RunWell(With("news alone", {"news"}));
  RunWell(With("books alone", {"books"}));
  const std::vector<Json> both = Evaluations("both"), news = Evaluations("news alone"),
                          books = Evaluations("books alone");
  ASSERT_THAT(both, SizeIs(2));
  for (size_t i = 0; i < both.size(); ++i) {
    // The first batches of a set do not depend on what else is evaluated.
    EXPECT_EQ(both[i].at(kNews), news[i].at(kNews));
    EXPECT_EQ(both[i].at(kBooks), books[i].at(kBooks));
    EXPECT_NE(both[i].at(kNews), both[i].at(kBooks));
    EXPECT_DOUBLE_EQ(both[i].at(kMean),
                     (both[i].at(kNews).get<double>() + both[i].at(kBooks).get<double>()) / 2);
  }
  // Evaluations change nothing in the run.
  const std::vector<Json> steps = Records("both", "grad-norm"),
                          few = Records("news alone", "grad-norm");
  ASSERT_THAT(steps, SizeIs(12));
  ASSERT_EQ(few.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(steps[i].at("grad-norm"), few[i].at("grad-norm"));
}

TEST_F(PretrainValidationSetsTest, ARunThatIsContinuedEvaluatesWhatTheWholeOneDoes) {
  const Arguments whole = With("whole", {"news", "books"}),
                  parts = With("parts", {"news", "books"});
  RunWell(whole);
  RunWell(Joined(parts, {"--set=train.exit_interval=6"}));
  RunWell(parts);
  EXPECT_EQ(Evaluations("parts"), Evaluations("whole"));
}

// "books" has 7 samples, so its second batch has one that does not count.
TEST_F(PretrainValidationSetsTest, FullValidationIsTheMeanOfAllSamplesInAnyLayout) {
  const auto full = [&](const std::string& save, const Arguments& layout) {
    RunWell(Joined(Joined(With(save, {"news", "books"}),
                          {"--set=train.full_validation=true", "--set=train.eval_interval=12"}),
                   layout));
    const std::vector<Json> evaluations = Evaluations(save);
    EXPECT_THAT(evaluations, SizeIs(1)) << save;
    return evaluations.empty() ? Json() : evaluations[0];
  };
  const Json one = full("one", {});
  for (const Arguments& layout :
       std::vector<Arguments>{{"--set=parallel.data_parallel_size=2"},
                              {"--set=parallel.tensor_model_parallel_size=2"},
                              {"--set=parallel.pipeline_model_parallel_size=2"},
                              {"--set=parallel.context_parallel_size=2"},
                              {"--set=train.micro_batch_size=4"}}) {
    const Json other = full("other", layout);
    EXPECT_NEAR(other.at(kNews), one.at(kNews), 2e-5) << layout[0];
    EXPECT_NEAR(other.at(kBooks), one.at(kBooks), 2e-5) << layout[0];
    ASSERT_THAT(PosixFileSystem().RemoveTree(Path("other")), IsOk());
  }
  // The 4 samples of "news" are one batch, which a run of one batch reads, too; of "books" it reads
  // 4 of 7.
  RunWell(Joined(With("first", {"news", "books"}), {"--set=train.eval_interval=12"}));
  const Json first = Evaluations("first")[0];
  EXPECT_NE(first.at(kBooks), one.at(kBooks));
}

TEST_F(PretrainValidationSetsTest, WeightsAndMissingNamesAreRefused) {
  const Outcome outcome = Run(Joined(
      With("save", {"news"}), {absl::StrCat("--set=data.valid_data_path=[\"0.5\", ", Quoted("news"),
                                            ", \"0.5\", ", Quoted("books"), "]")}));
  EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("error: data.valid_data_path: has weights, and with "
                                        "train.multiple_validation_sets"));
  const Outcome names = Run(
      Joined(With("names", {"news", "books"}), {"--set=train.validation_set_names=[\"German\"]"}));
  EXPECT_EQ(names.exit_code, kExitConfig) << names.output;
  EXPECT_THAT(names.output, HasSubstr("error: train.validation_set_names: has 1 name for 2 files"));
}

}  // namespace
}  // namespace megatron
