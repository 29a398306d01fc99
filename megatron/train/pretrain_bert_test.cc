// Tests of pretrain_bert as a program; what it shares with pretrain_gpt is tested there.

#include <signal.h>

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

class PretrainBertTest : public PretrainProgramTest {
 protected:
  Arguments BertCommand(const Arguments& more) const {
    Arguments command = Command(
        Joined({"--set=model.model_type=bert", "--set=data.tokenizer_type=StoryWordPiece"}, more));
    command[0] = ProgramPath("megatron/train/pretrain_bert");
    return command;
  }
  Outcome RunBert(const Arguments& more) const {
    const std::string log = Path("bert.txt");
    return FinishProgram(StartProgram(BertCommand(more), log), log);
  }
};

TEST_F(PretrainBertTest, TrainsEvaluatesSavesAndFillsIn) {
  const Outcome outcome =
      RunBert({SaveTo("save"), "--set=generation.prompt=\"Once [MASK] the owl took 15 [MASK].\""});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  for (const char* text :
       {"model: BERT of 2 layers", " iteration       12/      12 |",
        " | lm loss: ", " | sop loss: ", "validation loss at iteration 12 | lm loss value:",
        "| lm accuracy value: ", "| sop accuracy value: ", "saved checkpoint of iteration 12",
        "--- the model fills in ---", "\n2. "}) {
    EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
  }
}

TEST_F(PretrainBertTest, WithoutItsBinaryHeadItHasOneLoss) {
  const Outcome outcome = RunBert({"--set=model.bert_binary_head=false"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, " | lm loss: "));
  EXPECT_FALSE(absl::StrContains(outcome.output, "sop"));
}

TEST_F(PretrainBertTest, AnEvaluationInWhichNothingIsMaskedHasNoLoss) {
  const Outcome outcome = RunBert({"--set=data.mask_prob=1e-9"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  for (const char* text : {"the evaluation has no lm loss: nothing in its samples counts for it",
                           "| lm loss value: NAN |", "| sop loss value: "})
    EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
}

TEST_F(PretrainBertTest, HasExpertsWhereTheyAreAskedFor) {
  const Outcome outcome = RunBert(
      {"--set=model.num_experts=4", "--set=model.disable_bias_linear=true",
       "--set=model.moe_aux_loss_coeff=0.01", "--set=model.moe_z_loss_coeff=0.001",
       "--set=parallel.data_parallel_size=2", "--set=parallel.expert_model_parallel_size=2"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  for (const char* text : {" | sop loss: ", " | seq_load_balancing_loss: ", " | z_loss: "})
    EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
}

TEST_F(PretrainBertTest, TrainsOnMockData) {
  const Outcome outcome =
      RunBert({"--set=data.stories=", "--set=data.mock_data=true",
               "--set=data.tokenizer_type=NullTokenizer", "--set=data.vocab_size=200"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
}

TEST_F(PretrainBertTest, KilledItContinuesBitForBitOnAnotherNumberOfThreads) {
  const Arguments long_run = {"--set=train.train_iters=40", "--set=checkpoint.save_interval=5"};
  ASSERT_EQ(RunBert(Joined(long_run, {SaveTo("whole")})).exit_code, kExitDone);
  const Arguments killed = Joined(long_run, {SaveTo("killed")});
  const std::string log = Path("killed.txt");
  const pid_t pid = StartProgram(BertCommand(killed), log);
  WaitFor("saved checkpoint of iteration 5 ", log);
  kill(pid, SIGKILL);
  FinishProgram(pid, log);
  const Outcome last = RunBert(Joined(killed, {"--set=system.num_threads=3"}));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("whole", "killed");
}

TEST_F(PretrainBertTest, EachProgramTakesItsOwnConfigurations) {
  const Outcome bert = RunBert({"--set=model.model_type=gpt"});
  EXPECT_EQ(bert.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(bert.output, "pretrain_gpt")) << bert.output;
}

TEST_F(PretrainBertTest, UnusableInputsAreReported) {
  const Outcome tokenizer = RunBert({"--set=data.tokenizer_type=ByteLevel"});
  EXPECT_EQ(tokenizer.exit_code, kExitData) << tokenizer.output;
  EXPECT_TRUE(absl::StrContains(tokenizer.output, "[CLS]")) << tokenizer.output;
  const Outcome config =
      RunBert({"--set=data.eod_mask_loss=true", "--set=model.num_tokentypes=1",
               "--set=parallel.context_parallel_size=3", "--set=generation={prompt: \"nothing\"}"});
  EXPECT_EQ(config.exit_code, kExitConfig) << config.output;
  for (const char* text :
       {"data.eod_mask_loss", "model.num_tokentypes", "[MASK]", "context_parallel_size"})
    EXPECT_TRUE(absl::StrContains(config.output, text)) << text << "\n" << config.output;
}

}  // namespace
}  // namespace megatron
