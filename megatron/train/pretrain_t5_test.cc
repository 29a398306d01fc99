// Tests of pretrain_t5 as a program; what it shares with pretrain_gpt is tested there.

#include <signal.h>

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

class PretrainT5Test : public PretrainProgramTest {
 protected:
  Arguments T5Command(const Arguments& more) const {
    Arguments command = Command(
        Joined({"--set=model.model_type=t5", "--set=model.decoder_seq_length=24",
                "--set=data.tokenizer_type=StoryWordPiece", "--set=data.vocab_extra_ids=10"},
               more));
    command[0] = ProgramPath("megatron/train/pretrain_t5");
    return command;
  }
  Outcome RunT5(const Arguments& more) const {
    const std::string log = Path("t5.txt");
    return FinishProgram(StartProgram(T5Command(more), log), log);
  }
  // All of them.
  static void ExpectSaid(const Outcome& outcome, std::initializer_list<const char*> texts) {
    for (const char* text : texts)
      EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
  }
};

TEST_F(PretrainT5Test, TrainsEvaluatesSavesAndRestores) {
  const Outcome outcome =
      RunT5({SaveTo("save"),
             "--set=generation={prompt: \"Once <extra_id_0> owl took 15 <extra_id_1>.\" "
             "tokens_to_generate: 8 temperature: 0}"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  ExpectSaid(outcome, {"model: T5 of 2 + 2 layers", " iteration       12/      12 |",
                       " | lm loss: ", "validation loss at iteration 12 | lm loss value:",
                       "saved checkpoint of iteration 12", "--- the model restores ---", "\n2. "});
}

TEST_F(PretrainT5Test, TrainsOnMockDataOverEightRanks) {
  const Outcome outcome = RunT5(
      {"--set=data.stories=", "--set=data.mock_data=true", "--set=data.vocab_extra_ids=0",
       "--set=data.tokenizer_type=NullTokenizer", "--set=data.vocab_size=200",
       "--set=parallel={tensor_model_parallel_size: 2 pipeline_model_parallel_size: 2 "
       "data_parallel_size: 2 pipeline_model_parallel_split_rank: 1 sequence_parallel: true}"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
}

TEST_F(PretrainT5Test, KilledItContinuesBitForBitOnAnotherNumberOfThreads) {
  const Arguments long_run = {"--set=train.train_iters=40", "--set=checkpoint.save_interval=5"};
  ASSERT_EQ(RunT5(Joined(long_run, {SaveTo("whole")})).exit_code, kExitDone);
  const Arguments killed = Joined(long_run, {SaveTo("killed")});
  const std::string log = Path("killed.txt");
  const pid_t pid = StartProgram(T5Command(killed), log);
  WaitFor("saved checkpoint of iteration 5 ", log);
  kill(pid, SIGKILL);
  FinishProgram(pid, log);
  const Outcome last = RunT5(Joined(killed, {"--set=system.num_threads=3"}));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("whole", "killed");
}

TEST_F(PretrainT5Test, EachProgramTakesItsOwnConfigurations) {
  const Outcome outcome = RunT5({"--set=model.model_type=bert", "--set=model.decoder_seq_length="});
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  ExpectSaid(outcome, {"pretrain_bert"});
}

TEST_F(PretrainT5Test, UnusableInputsAreReported) {
  const Outcome sentinels = RunT5({"--set=data.vocab_extra_ids=0", "--dry_run"});
  EXPECT_EQ(sentinels.exit_code, kExitConfig) << sentinels.output;
  ExpectSaid(sentinels, {"vocab_extra_ids"});
  const Outcome prompt =
      RunT5({"--set=generation={prompt: \"<extra_id_0> owl <extra_id_0>\"}", "--dry_run"});
  EXPECT_EQ(prompt.exit_code, kExitConfig) << prompt.output;
  ExpectSaid(prompt, {"generation.prompt: the text has <extra_id_0> twice"});
  std::string words;
  for (int i = 0; i < 100; ++i) words += " owl";
  const Outcome too_long =
      RunT5({"--set=generation={prompt: \"<extra_id_0>" + words + "\"}", "--dry_run"});
  EXPECT_EQ(too_long.exit_code, kExitConfig) << too_long.output;
  ExpectSaid(too_long, {"generation.prompt: the text is ", "and the encoder reads 64"});
  const Outcome config = RunT5(
      {"--set=model.post_norm=true", "--set=model.num_experts=4", "--set=model.qk_layernorm=true"});
  EXPECT_EQ(config.exit_code, kExitConfig) << config.output;
  ExpectSaid(config, {"post_norm", "num_experts", "qk_layernorm"});
}

}  // namespace
}  // namespace megatron
