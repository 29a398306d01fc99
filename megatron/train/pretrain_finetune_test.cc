// Tests of fine-tuning as a user does it: on conversations, with all weights or with adapters
// alone.
#include <fstream>
#include <string>

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

class PretrainFinetuneTest : public PretrainProgramTest {
 protected:
  PretrainFinetuneTest() {
    std::ofstream file(Path("chat.jsonl"));
    for (int i = 0; i < 60; ++i) file << Line(i);
  }

  // A question whose answer has the same letter.
  static std::string Line(int i) {
    const std::string letter(1, static_cast<char>('a' + i % 20));
    return absl::StrCat(R"({"messages": [{"role": "user", "content": "Letter? )", letter,
                        R"("}, {"role": "assistant", "content": ")", letter, "\"}]}\n");
  }

  Arguments Conversations() const {
    return {
        "--set=data.stories=", absl::StrCat("--set=data.data_path=\"", Path("chat.jsonl"), "\""),
        "--set=data.sft=true"};
  }
  // Trains the model that is tuned then.
  void Pretrain() const {
    const Outcome outcome = Run({SaveTo("first")});
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  }
  Arguments Adapting(const std::string& save) const {
    return Joined(Conversations(),
                  {SaveTo(save), absl::StrCat("--set=checkpoint.load=", Path("first")),
                   "--set=checkpoint.finetune=true", "--set=model.lora={dim: 4 alpha: 16}",
                   "--set=optimizer.lr=2e-2"});
  }
};

TEST_F(PretrainFinetuneTest, ConversationsAreLearnedAndTold) {
  const Outcome outcome = Run(Joined(
      Conversations(), {"--set=train.train_iters=80", "--set=optimizer.lr=1e-2", SaveTo("sft")}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("chat.jsonl, 60 conversations, "), HasSubstr(" of them in answers")));
  // Of the three tokens of an answer the letter alone has something to say: ln(20) / 3 is 1.
  EXPECT_LT(NumberAfter(outcome.output, "lm loss: "), 1.2) << outcome.output;
}

// Samples are packed of conversations of one file.
TEST_F(PretrainFinetuneTest, FilesOfConversationsHaveLossesOfTheirOwn) {
  {
    std::ofstream file(Path("same.jsonl"));
    for (int i = 0; i < 60; ++i) file << Line(0);
  }
  const Outcome outcome = Run(
      Joined(Conversations(), {absl::StrCat("--set=data.data_path=[\"0.5\", \"", Path("chat.jsonl"),
                                            "\", \"0.5\", \"", Path("same.jsonl"), "\"]"),
                               "--set=train.train_iters=80", "--set=optimizer.lr=1e-2"}));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  // One letter is learned at once.
  const double letters = NumberAfter(outcome.output, "| lm loss train chat.jsonl: "),
               same = NumberAfter(outcome.output, "| lm loss train same.jsonl: ");
  EXPECT_LT(same, 0.5 * letters) << outcome.output;
  EXPECT_GT(same, 0) << outcome.output;
}

TEST_F(PretrainFinetuneTest, LayoutsAndStopsChangeNothing) {
  ASSERT_EQ(Run(Joined(Conversations(), {SaveTo("whole")})).exit_code, kExitDone);
  ASSERT_EQ(
      Run(Joined(Conversations(), {SaveTo("parts"), "--set=train.exit_interval=5"})).exit_code,
      kExitDone);
  const Outcome rest = Run(Joined(Conversations(), {SaveTo("parts")}));
  ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
  ExpectEqualCheckpoints("parts", "whole");
  const double loss = NumberAfter(rest.output, "lm loss: ");
  for (const Arguments& layout : {Arguments{"--set=parallel.data_parallel_size=2"},
                                  Arguments{"--set=parallel.context_parallel_size=2"},
                                  Arguments{"--set=parallel.tensor_model_parallel_size=2",
                                            "--set=parallel.sequence_parallel=true",
                                            "--set=parallel.pipeline_model_parallel_size=2"}}) {
    const Outcome other = Run(Joined(Conversations(), layout));
    ASSERT_EQ(other.exit_code, kExitDone) << other.output;
    EXPECT_NEAR(NumberAfter(other.output, "lm loss: "), loss, 1e-4 * loss) << layout[0];
  }
}

TEST_F(PretrainFinetuneTest, AdaptersBeginBesideAModelThatHasNone) {
  Pretrain();
  const Outcome whole = Run(Adapting("whole"));
  ASSERT_EQ(whole.exit_code, kExitDone) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr("has no adapters (model.lora), so that these begin anew"));
  // Were A zero as B is, neither would ever have a gradient.
  EXPECT_GT(NumberAfter(whole.output, "grad norm: "), 0) << whole.output;
  // What the run has saved is continued with its adapters, bit for bit.
  ASSERT_EQ(Run(Joined(Adapting("parts"), {"--set=train.exit_interval=5"})).exit_code, kExitDone);
  const Outcome rest = Run(Adapting("parts"));
  ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
  EXPECT_THAT(rest.output, Not(HasSubstr("has no adapters")));
  ExpectEqualCheckpoints("parts", "whole");
  // The model may be that of the checkpoint; the adapters are those of the run.
  const Outcome taken =
      Run(Joined(Adapting("taken"), {"--set=checkpoint.use_checkpoint_args=true"}));
  ASSERT_EQ(taken.exit_code, kExitDone) << taken.output;
  ExpectEqualCheckpoints("taken", "whole");
}

TEST_F(PretrainFinetuneTest, AdaptersOfAnotherShapeAreRefused) {
  Pretrain();
  ASSERT_EQ(Run(Adapting("tuned")).exit_code, kExitDone);
  const Outcome other = Run(Joined(
      Conversations(), {SaveTo("other"), absl::StrCat("--set=checkpoint.load=", Path("tuned")),
                        "--set=checkpoint.finetune=true", "--set=model.lora={dim: 8}"}));
  EXPECT_NE(other.exit_code, kExitDone);
  EXPECT_THAT(other.output, HasSubstr("adapter.linear_in.weight"));
  // A model without adapters is another model.
  const Outcome none = Run(Joined(
      Conversations(), {SaveTo("none"), absl::StrCat("--set=checkpoint.load=", Path("tuned")),
                        "--set=checkpoint.finetune=true"}));
  EXPECT_NE(none.exit_code, kExitDone);
  EXPECT_THAT(none.output, HasSubstr("only saved: decoder.layers.0"));
}

TEST_F(PretrainFinetuneTest, ThePlanSaysWhatIsFrozen) {
  const Outcome plan = Run({"--dry_run", "--set=model.lora={dim: 4}"});
  ASSERT_EQ(plan.exit_code, kExitDone) << plan.output;
  EXPECT_THAT(plan.output, AllOf(HasSubstr("frozen"), HasSubstr("are trained")));
}

TEST_F(PretrainFinetuneTest, ABrokenLineIsToldByNumber) {
  std::ofstream(Path("chat.jsonl")) << Line(0) << Line(1) << "{\"messages\": [}\n" << Line(2);
  const Outcome outcome = Run(Conversations());
  EXPECT_EQ(outcome.exit_code, kExitData) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("chat.jsonl, line 3: is no JSON"));
}

// With two parts of a copy chosen at even odds, and activations that powers pass through, the
// mixture computes what the dense model did.
TEST_F(PretrainFinetuneTest, ExpertsBeginAsPartsOfADenseModel) {
  const Arguments model = {"--set=model.activation_func=squared_relu",
                           "--set=model.disable_bias_linear=true",
                           "--set=model.ffn_hidden_size=128",
                           "--set=model.init_method_std=0.3",
                           "--set=model.hidden_dropout=0",
                           "--set=model.attention_dropout=0",
                           "--set=optimizer.lr_decay_style=constant",
                           "--set=train.log_interval=1",
                           "--set=train.exit_interval=1"};
  // The run's first step shows the loss of the weights that it saves.
  const Outcome dense =
      Run(Joined(model, {SaveTo("dense"), "--set=optimizer.lr=1e-12", "--set=optimizer.min_lr=0"}));
  ASSERT_EQ(dense.exit_code, kExitDone) << dense.output;
  const Arguments experts =
      Joined(model, {absl::StrCat("--set=checkpoint.load=", Path("dense")),
                     "--set=model.moe_use_upcycling=true", "--set=model.num_experts=8",
                     "--set=model.moe_ffn_hidden_size=64", "--set=model.moe_router_topk=2"});
  const Outcome mixture = Run(Joined(experts, {SaveTo("mixture")}));
  ASSERT_EQ(mixture.exit_code, kExitDone) << mixture.output;
  EXPECT_THAT(mixture.output, HasSubstr("starting from the weights of "));
  const double loss = NumberAfter(mixture.output, "lm loss: ");
  EXPECT_NEAR(loss, NumberAfter(dense.output, "lm loss: "), 1e-4 * loss);
  for (const Arguments& layout : {Arguments{"--set=parallel.data_parallel_size=2",
                                            "--set=parallel.expert_model_parallel_size=2",
                                            "--set=parallel.use_distributed_optimizer=true"},
                                  Arguments{"--set=parallel.tensor_model_parallel_size=2",
                                            "--set=parallel.expert_tensor_parallel_size=2",
                                            "--set=parallel.pipeline_model_parallel_size=2"}}) {
    const Outcome other = Run(Joined(experts, layout));
    ASSERT_EQ(other.exit_code, kExitDone) << other.output;
    EXPECT_NEAR(NumberAfter(other.output, "lm loss: "), loss, 1e-4 * loss) << layout[0];
    EXPECT_NEAR(NumberAfter(other.output, "grad norm: "),
                NumberAfter(mixture.output, "grad norm: "),
                1e-3 * NumberAfter(mixture.output, "grad norm: "))
        << layout[0];
  }
  // It continues itself, not the dense model.
  const Outcome more = Run(Joined(experts, {SaveTo("mixture")}));
  ASSERT_EQ(more.exit_code, kExitDone) << more.output;
  EXPECT_THAT(more.output, HasSubstr("at iteration 1"));
  // A checkpoint that has experts already is no dense model's.
  const Outcome twice =
      Run(Joined(experts, {absl::StrCat("--set=checkpoint.load=", Path("mixture"))}));
  EXPECT_EQ(twice.exit_code, kExitConfig) << twice.output;
  EXPECT_THAT(twice.output, HasSubstr("holds the weights of another model"));
}

}  // namespace
}  // namespace megatron
