// What programs say of a text that is longer than the model's context, after a short run.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOutgrown[] = "WARNING: the text has ";
constexpr char kCutOff[] = "WARNING: the text is cut off";

// The run's context is of 64 tokens.
class ContextTest : public PretrainProgramTest {
 protected:
  Outcome RunTool(const std::string& label, const Arguments& arguments) const {
    const std::string log = Path("tool.txt");
    return FinishProgram(StartProgram(Joined({ProgramPath(label)}, arguments), log), log);
  }
  static std::string Letters() { return std::string(300, 'x'); }
};

TEST_F(ContextTest, ATextThatOutgrowsTheContextIsWrittenWithAWarning) {
  const Outcome run =
      Run({SaveTo("save"), "--set=train.train_iters=3", "--set=generation.tokens_to_generate=1",
           absl::StrCat("--set=generation.prompt=", Letters())});
  ASSERT_EQ(run.exit_code, kExitDone) << run.output;
  EXPECT_THAT(run.output, HasSubstr(kOutgrown));
  const Outcome outgrown = RunTool("tools/generate_text", {absl::StrCat("--prompt=", Letters()),
                                                           "--tokens_to_generate=1", Path("save")});
  EXPECT_EQ(outgrown.exit_code, kExitDone) << outgrown.output;
  EXPECT_THAT(outgrown.output, HasSubstr(kOutgrown));
  EXPECT_THAT(outgrown.output, HasSubstr(" tokens and the context 64 (model.seq_length)"));
  const Outcome fits =
      RunTool("tools/generate_text", {"--prompt=Sam", "--tokens_to_generate=3", Path("save")});
  EXPECT_EQ(fits.exit_code, kExitDone) << fits.output;
  EXPECT_THAT(fits.output, Not(HasSubstr(kOutgrown)));
}

// At this temperature the tokens are drawn from all of the vocabulary, and the end is not among the
// first 23.
TEST_F(ContextTest, ATextThatTheDecodersContextEndsComesWithAWarning) {
  Arguments train = Command(
      {SaveTo("save"), "--set=train.train_iters=3", "--set=model.model_type=t5",
       "--set=model.decoder_seq_length=24", "--set=data.tokenizer_type=StoryWordPiece",
       "--set=data.vocab_extra_ids=10",
       "--set=generation={prompt: \"Once <extra_id_0>\" tokens_to_generate: 24 temperature: 100}"});
  train[0] = ProgramPath("megatron/train/pretrain_t5");
  const std::string log = Path("train.txt");
  const Outcome run = FinishProgram(StartProgram(train, log), log);
  ASSERT_EQ(run.exit_code, kExitDone) << run.output;
  EXPECT_THAT(run.output, HasSubstr(kCutOff));
  const auto restore = [this](int tokens) {
    return RunTool("tools/generate_text",
                   {"--prompt=Once <extra_id_0>", "--temperature=100",
                    absl::StrCat("--tokens_to_generate=", tokens), Path("save")});
  };
  const Outcome cut = restore(24);
  EXPECT_EQ(cut.exit_code, kExitDone) << cut.output;
  EXPECT_THAT(cut.output, HasSubstr(kCutOff));
  EXPECT_THAT(cut.output, HasSubstr("context of 24 (model.decoder_seq_length)"));
  const Outcome fits = restore(23);
  EXPECT_EQ(fits.exit_code, kExitDone) << fits.output;
  EXPECT_THAT(fits.output, Not(HasSubstr(kCutOff)));
}

TEST_F(ContextTest, LogitsAreRefusedBehindTheLastPosition) {
  ASSERT_EQ(Run({SaveTo("save"), "--set=train.train_iters=3"}).exit_code, kExitDone);
  std::string tokens;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&tokens, i, " ");
  const Outcome outcome = RunTool(
      "tools/interop/huggingface/dump_logits",
      {"--tokens=" + tokens, "--vocab_size=257", "--output=" + Path("logits.npy"), Path("save")});
  EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--tokens has 65 tokens, and the model 64 positions "
                                        "(model.max_position_embeddings): give fewer tokens"));
}

}  // namespace
}  // namespace megatron
