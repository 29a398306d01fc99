// Tests of fine-tuning BERT and T5 for labelled tasks as a user does it: from a pretrained
// checkpoint, on files in the forms of their authors.
#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PretrainTasksTest : public PretrainProgramTest {
 protected:
  static constexpr int kExamples = 120;
  // Words of stories.
  static constexpr const char* kWords[] = {"tom", "ana", "max", "zoe"};

  std::string Write(const std::string& name, const std::string& header,
                    const std::function<std::string(int)>& line) const {
    std::ofstream file(Path(name));
    file << header;
    for (int i = 0; i < kExamples; ++i) file << line(i) << "\n";
    return Path(name);
  }
  // Texts of which the name says what the label is.
  std::string WriteQqp() const {
    return Write("qqp.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n", [](int i) {
      return absl::StrCat(i, "\t1\t2\t", kWords[i % 2], " was happy\tand sad\t", i % 2);
    });
  }
  std::string WriteMnli() const {
    const char* const labels[] = {"contradiction", "entailment", "neutral"};
    return Write("mnli.tsv", "0\t1\t2\t3\t4\t5\t6\t7\t8\t9\tlabel1\tgold_label\n", [&](int i) {
      return absl::StrCat("0\t1\t2\t3\t4\t5\t6\t7\t", kWords[i % 3], " was happy\tand sad\tx\t",
                          labels[i % 3]);
    });
  }
  // The right one of four answers is the one that has the word of the article.
  std::string WriteRace() const {
    return Write("race.txt", "", [](int i) {
      return absl::StrCat(R"({"article": "and sad", "questions": ["was _"], "options": [["he", )",
                          i % 2 == 0 ? R"("tom", "she")" : R"("she", "tom")",
                          R"(, "they"]], "answers": [")", i % 2 == 0 ? "B" : "C", "\"]}");
    });
  }
  std::string WritePairs() const {
    return Write("pairs.jsonl", "", [](int i) {
      return absl::StrCat(R"({"inputs": "who: )", kWords[i % 4], R"( was happy", "targets": ")",
                          kWords[(i + 1) % 4], " was sad\"}");
    });
  }

  Outcome RunOf(const std::string& model, const Arguments& more) const {
    Arguments command = Command(
        Joined({absl::StrCat("--set=model.model_type=", model),
                "--set=data.tokenizer_type=StoryWordPiece", "--set=model.init_method_std=0.1"},
               more));
    command[0] = ProgramPath("megatron/train/pretrain_" + model);
    const std::string log = Path(model + ".txt");
    return FinishProgram(StartProgram(command, log), log);
  }
  // Trains the model that is tuned then.
  void PretrainBert(const Arguments& more = {}) const {
    const Outcome outcome = RunOf("bert", Joined({SaveTo("bert")}, more));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  }
  Arguments Tuning(const std::string& task, const std::string& file,
                   const std::string& save) const {
    return {"--set=data.stories=",
            "--set=data.split=",
            absl::StrCat("--set=data.task=", task),
            absl::StrCat("--set=data.train_data_path=\"", file, "\""),
            absl::StrCat("--set=data.valid_data_path=\"", file, "\""),
            "--set=train.full_validation=true",
            "--set=train.train_iters=120",
            "--set=train.eval_interval=120",
            "--set=optimizer.lr=5e-3",
            "--set=model.hidden_dropout=0.1",
            absl::StrCat("--set=checkpoint.load=", Path("bert")),
            "--set=checkpoint.finetune=true",
            SaveTo(save)};
  }
};

TEST_F(PretrainTasksTest, ABertIsTunedForEachTask) {
  PretrainBert();
  const std::pair<std::string, std::string> tasks[] = {
      {"MNLI", WriteMnli()}, {"QQP", WriteQqp()}, {"RACE", WriteRace()}};
  for (const auto& [task, file] : tasks) {
    SCOPED_TRACE(task);
    const Outcome outcome = RunOf("bert", Tuning(task, file, task));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("120 examples, "), HasSubstr("so that these begin anew"),
                      HasSubstr(task == "RACE" ? "has no multichoice_head.bias"
                                               : "has no classification_head.bias"),
                      Not(HasSubstr("pooler.dense.weight, "))));
    EXPECT_GT(NumberAfter(outcome.output, "| accuracy value: "), 0.95) << outcome.output;
  }
}

TEST_F(PretrainTasksTest, AClassifierIsTunedForAnotherNumberOfClasses) {
  PretrainBert();
  const Arguments mnli = Tuning("MNLI", WriteMnli(), "mnli");
  ASSERT_EQ(RunOf("bert", mnli).exit_code, kExitDone);
  const Arguments from_mnli = {absl::StrCat("--set=checkpoint.load=", Path("mnli"))};
  const Arguments qqp = Joined(Tuning("QQP", WriteQqp(), "qqp"), from_mnli);
  const Outcome outcome = RunOf("bert", Joined(qqp, {"--set=train.exit_interval=100"}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("has another number of classes in classification_head.bias, "
                              "classification_head.weight, so that these begin anew"),
                    Not(HasSubstr("has no classification_head"))));
  const Outcome rest = RunOf("bert", qqp);
  ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
  EXPECT_THAT(rest.output, Not(HasSubstr("begin anew")));
  EXPECT_GT(NumberAfter(rest.output, "| accuracy value: "), 0.95) << rest.output;
  // With as many classes the head goes on.
  const Outcome again = RunOf("bert", Joined(Tuning("MNLI", WriteMnli(), "again"), from_mnli));
  ASSERT_EQ(again.exit_code, kExitDone) << again.output;
  EXPECT_THAT(again.output, Not(HasSubstr("begin anew")));
  // A run does not go on with another task.
  const Outcome other =
      RunOf("bert", Joined(Tuning("QQP", WriteQqp(), "other"),
                           Joined(from_mnli, {"--set=checkpoint.finetune=false"})));
  EXPECT_EQ(other.exit_code, kExitConfig) << other.output;
}

// Were the head's weights zero, nothing below them would ever have a gradient.
TEST_F(PretrainTasksTest, ABertWithoutABinaryHeadGetsAPooler) {
  PretrainBert({"--set=model.bert_binary_head=false", "--set=model.num_tokentypes=2"});
  const Outcome outcome = RunOf("bert", Joined(Tuning("QQP", WriteQqp(), "tuned"),
                                               {"--set=checkpoint.use_checkpoint_args=true"}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("pooler.dense.bias"));
  EXPECT_GT(NumberAfter(outcome.output, "| accuracy value: "), 0.95) << outcome.output;
}

TEST_F(PretrainTasksTest, StopsAndLayoutsChangeNothing) {
  PretrainBert();
  for (const auto& [task, file] :
       {std::pair<std::string, std::string>("MNLI", WriteMnli()), {"RACE", WriteRace()}}) {
    SCOPED_TRACE(task);
    const Outcome whole = RunOf("bert", Tuning(task, file, "whole" + task));
    ASSERT_EQ(whole.exit_code, kExitDone) << whole.output;
    const Arguments parts = Tuning(task, file, "parts" + task);
    ASSERT_EQ(RunOf("bert", Joined(parts, {"--set=train.exit_interval=50"})).exit_code, kExitDone);
    const Outcome rest = RunOf("bert", parts);
    ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
    EXPECT_THAT(rest.output, Not(HasSubstr("begin anew")));
    ExpectEqualCheckpoints("parts" + task, "whole" + task);
    const Outcome other =
        RunOf("bert", Joined(Tuning(task, file, "other" + task),
                             {"--set=parallel={tensor_model_parallel_size: 2 data_parallel_size: 2 "
                              "pipeline_model_parallel_size: 2 sequence_parallel: true}",
                              "--set=train.micro_batch_size=1"}));
    ASSERT_EQ(other.exit_code, kExitDone) << other.output;
    EXPECT_GT(NumberAfter(other.output, "| accuracy value: "), 0.95) << other.output;
  }
}

TEST_F(PretrainTasksTest, AT5AnswersTextsWithTexts) {
  const Outcome outcome =
      RunOf("t5", Joined(Tuning("text_to_text", WritePairs(), "t5"),
                         {"--set=model.decoder_seq_length=16", "--set=data.vocab_extra_ids=10",
                          "--set=checkpoint.load=", "--set=checkpoint.finetune=",
                          "--set=train.train_iters=200", "--set=train.eval_interval=200",
                          "--set=model.hidden_dropout=0", "--set=model.attention_dropout=0"}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("120 examples, "));
  EXPECT_GT(NumberAfter(outcome.output, "| exact span accuracy value: "), 0.95) << outcome.output;
}

// The second task counts a quarter, and has its whole loss.
TEST_F(PretrainTasksTest, TasksOfAT5HaveLossesOfTheirOwn) {
  const std::string pairs = WritePairs(),
                    longer = Write("longer.jsonl", "", [](int i) {
                      return absl::StrCat(R"({"inputs": "all: )", kWords[i % 4],
                                          R"(", "targets": ")", kWords[i % 4], " was sad and ",
                                          kWords[(i + 2) % 4], " was happy\"}");
                    });
  const Outcome outcome =
      RunOf("t5", Joined(Tuning("text_to_text", pairs, "t5"),
                         {absl::StrCat("--set=data.train_data_path=[\"0.5\", \"", pairs,
                                       "\", \"0.5\", \"", longer, "\"]"),
                          "--set=data.loss_weights=[1, 0.25]", "--set=model.decoder_seq_length=16",
                          "--set=data.vocab_extra_ids=10", "--set=checkpoint.load=",
                          "--set=checkpoint.finetune=", "--set=train.train_iters=40",
                          "--set=train.eval_interval=40", "--set=parallel.data_parallel_size=2"}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const double first = NumberAfter(outcome.output, "| lm loss train pairs.jsonl: "),
               second = NumberAfter(outcome.output, "| lm loss train longer.jsonl: "),
               all = NumberAfter(outcome.output, "| lm loss: ");
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 0);
  EXPECT_NE(first, second);
  EXPECT_GT(all, std::min(first, second) - 0.05) << outcome.output;
  EXPECT_LT(all, std::max(first, second) + 0.05) << outcome.output;
}

TEST_F(PretrainTasksTest, WhatDoesNotFitIsRefused) {
  const Arguments tuning = Joined(Tuning("QQP", WriteQqp(), "none"),
                                  {"--set=checkpoint.load=", "--set=checkpoint.finetune="});
  const auto expect = [&](const Arguments& more, int code, const char* text) {
    const Outcome outcome = RunOf("bert", Joined(tuning, more));
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  };
  std::ofstream(Path("bad.tsv")) << "h\n1\t2\t3\ttom\tana\t1\n1\t2\t3\ttom\tana\t2\n";
  expect({absl::StrCat("--set=data.train_data_path=\"", Path("bad.tsv"), "\"")}, kExitData,
         "bad.tsv, line 3: the label in the last column is '2', and not 0 or 1");
  expect({absl::StrCat("--set=data.train_data_path=\"", Path("bad.tsv"), "\""), "--dry_run"},
         kExitDone, "the data can't be read here: ");
  expect({"--set=data.task=text_to_text"}, kExitConfig, "is one of a T5");
  expect({"--set=model.num_classes=3"}, kExitConfig, "must be the 2 of data.task = QQP");
  expect({"--set=data.task=RACE", "--set=parallel.context_parallel_size=2"}, kExitConfig,
         "parallel.context_parallel_size = 2: is not there with data.task = RACE");
  expect({"--set=data.tokenizer_type=ByteLevel"}, kExitData, "has no [CLS]");
  expect({"--set=generation.prompt=\"[MASK]\""}, kExitConfig, "--set generation= takes it away");
  expect({"--set=generation.prompt=\"[MASK]\"", "--set=generation=", "--dry_run"}, kExitDone, "");
}

}  // namespace
}  // namespace megatron
