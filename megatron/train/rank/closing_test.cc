#include "megatron/train/rank/closing.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/command_line/user_commands.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ClosingTest : public ::testing::Test {
 protected:
  ClosingTest() {
    fs::create_directories(root_);
    for (const char* tool :
         {"generate_text", "fill_mask", "report", "export_hf", "inspect_checkpoint"}) {
      std::ofstream(root_ / tool) << "#!/bin/sh\n";
      fs::permissions(root_ / tool, fs::perms::owner_all);
    }
  }

  // A run of this configuration, by a user who stands beside all programs.
  PretrainRun Run(const std::string& config, const std::vector<std::string>& overrides) const {
    PretrainRun run;
    const auto loaded = LoadConfig(config, overrides, ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, IsOk());
    if (!loaded.ok()) return run;
    run.training.options = ToRunOptions(loaded->config, /*vocab_size=*/257);
    run.training.options.loop.train_iters = 400;
    UserCommands::Surroundings here;
    here.typed_program = "./pretrain_gpt";
    here.program_file = (root_ / "pretrain_gpt").string();
    here.working_directory = root_.string();
    run.user.commands = UserCommands(here);
    run.user.arguments = {absl::StrCat("--config=", config), "--set=data.split=9,1 "};
    return run;
  }

  static RunEnd End(int64_t iteration, ExitCode code = kExitDone) {
    RunEnd end;
    end.code = code;
    end.iteration = iteration;
    StepMetrics step;
    step.loss = 1.25;
    step.speed.elapsed_ms = 500;
    step.speed.tokens_per_second = 12345;
    step.speed.mfu = 0.456;
    end.totals.Add(step);
    end.totals.Add(step);
    end.peak_bytes = 3 << 20;
    end.elapsed = absl::Seconds(62);
    return end;
  }

  const fs::path root_ = fs::path(::testing::TempDir()) / "closing_test";
};

TEST_F(ClosingTest, AFinishedRunSaysWhatCameOfItAndWhatToDoNext) {
  const PretrainRun run = Run("gpt_demo", {"checkpoint.save=run", "generation={prompt: \"Sam \"}"});
  EXPECT_EQ(FormatClosing(run, End(400)),
            "\nfinished at iteration 400 of 400, 1m02s after the start\n"
            "  last loss 1.25, 12,345 tokens/s, MFU 45.6 %, peak memory 3.00 MiB\n"
            "  checkpoint run/iter_0000400\n"
            "next:\n"
            "  ./generate_text '--prompt=Sam ' run\n"
            "  ./report run\n"
            "  ./export_hf --output=run-hf run\n");
}

TEST_F(ClosingTest, EvaluationsAreAmongTheFigures) {
  RunEnd end = End(400);
  EvaluationMetrics evaluation;
  evaluation.loss = 1.5;
  end.totals.Add(evaluation);
  EXPECT_THAT(FormatClosing(Run("gpt_demo", {}), end),
              HasSubstr("last loss 1.25, validation 1.5, 12,345 tokens/s"));
}

TEST_F(ClosingTest, TheLossOfARunThatDivergedIsNotThatOfItsEnd) {
  RunEnd end = End(400);
  StepMetrics step;
  step.loss = 1e30;
  step.skipped = true;
  for (int i = 0; i < 39; ++i) end.totals.Add(step);
  EXPECT_THAT(FormatClosing(Run("gpt_demo", {}), end),
              HasSubstr("last loss 1.25, the last 39 steps skipped, "));
}

TEST_F(ClosingTest, AStoppedRunSaysWhyAndHowToContinue) {
  const PretrainRun run = Run("gpt_demo", {"checkpoint.save=run"});
  EXPECT_THAT(FormatClosing(run, End(7, kExitSavedOnSignal)),
              AllOf(HasSubstr("\nstopped at iteration 7 of 400 by a signal, 1m02s after"),
                    EndsWith("to continue:\n"
                             "  ./pretrain_gpt --config=gpt_demo '--set=data.split=9,1 '\n")));
  EXPECT_THAT(FormatClosing(run, End(7, kExitTimeLimit)),
              HasSubstr("by train.exit_duration_in_mins"));
  EXPECT_THAT(FormatClosing(run, End(7)), HasSubstr("by train.exit_interval"));
}

TEST_F(ClosingTest, ARunWhosePrivacyBudgetIsSpentIsNotToBeContinued) {
  RunEnd end = End(30);
  end.budget_spent = true;
  EXPECT_THAT(FormatClosing(Run("gpt_demo", {"checkpoint.save=run"}), end),
              AllOf(HasSubstr("\nfinished at iteration 30 of 400 by its privacy budget, 1m02s"),
                    Not(HasSubstr("to continue"))));
}

TEST_F(ClosingTest, ALauncherIsNotKnown) {
  PretrainRun run = Run("gpt_demo", {"checkpoint.save=run"});
  run.user.has_launcher = true;
  EXPECT_THAT(FormatClosing(run, End(7, kExitSavedOnSignal)),
              EndsWith("to continue, start it again in the same way\n"));
}

TEST_F(ClosingTest, WithoutCheckpointsThereIsNothingToDoNext) {
  const PretrainRun run = Run("gpt_demo", {});
  for (const ExitCode code : {kExitDone, kExitSavedOnSignal})
    EXPECT_THAT(FormatClosing(run, End(7, code)), EndsWith("peak memory 3.00 MiB\n"));
  EXPECT_THAT(FormatClosing(run, End(400)), EndsWith("peak memory 3.00 MiB\n"));
}

TEST_F(ClosingTest, ARunWithNothingToDoSaysNothing) {
  RunEnd end;
  end.iteration = 400;
  EXPECT_THAT(FormatClosing(Run("gpt_demo", {"checkpoint.save=run"}), end), IsEmpty());
}

TEST_F(ClosingTest, EachKindOfModelHasItsCommands) {
  const std::vector<std::string> save = {"checkpoint.save=run/"};
  EXPECT_THAT(FormatClosing(Run("bert_demo", save), End(400)), HasSubstr("\n  ./fill_mask "));
  EXPECT_THAT(FormatClosing(Run("t5_demo", save), End(400)), HasSubstr("\n  ./generate_text "));
  // Hugging Face has a Llama; its models with experts are not written.
  EXPECT_THAT(FormatClosing(Run("llama_tiny", save), End(400)),
              HasSubstr("\n  ./export_hf --output=run-hf run\n"));
  EXPECT_THAT(FormatClosing(Run("moe_tiny", save), End(400)),
              AllOf(HasSubstr("\n  ./inspect_checkpoint run\n"), Not(HasSubstr("export_hf"))));
  // Mock tokens are no text.
  EXPECT_THAT(FormatClosing(Run("gpt2_124m", save), End(400)), Not(HasSubstr("generate_text")));
}

TEST_F(ClosingTest, HasAtMostNineLines) {
  RunEnd end = End(400);
  EvaluationMetrics evaluation;
  evaluation.loss = 1.5;
  end.totals.Add(evaluation);
  evaluation.on_test_set = true;
  end.totals.Add(evaluation);
  const std::string text = FormatClosing(Run("gpt_demo", {"checkpoint.save=run"}), end);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_LE(lines.size(), 8u);
  EXPECT_LE(lines[1].size(), 100u);
}

}  // namespace
}  // namespace megatron
