// Tests of pretrain_gpt as a program, with one rank and with ranks that are threads.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

class PretrainGptTest : public PretrainProgramTest {};

TEST_F(PretrainGptTest, TrainsEvaluatesAndSaves) {
  const Outcome outcome = Run({SaveTo("save")});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  for (const char* text :
       {" iteration        1/      12 | consumed samples:            4 |",
        " iteration       12/      12 |",
        "validation loss at iteration 12 | lm loss value:", "saved checkpoint of iteration 12"}) {
    EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
  }
  EXPECT_EQ(ReadTextFile(Path("save/latest_checkpointed_iteration.txt")).substr(0, 2), "12");
  EXPECT_FALSE(ReadTextFile(Path("save/metrics.jsonl")).empty());
  EXPECT_FALSE(std::filesystem::is_empty(Path("save/tensorboard")));
}

TEST_F(PretrainGptTest, AFailedSaveIsAWarningAndTheRunContinues) {
  // A directory that no run of this program has made is not removed, and the save ends there.
  std::filesystem::create_directories(Path("save/iter_0000004.tmp"));
  std::ofstream(Path("save/iter_0000004.tmp/notes.txt")) << "mine\n";
  std::filesystem::create_directories(Path("save/iter_0000008.tmp"));
  std::ofstream(Path("save/iter_0000008.tmp/notes.txt")) << "mine\n";
  for (const bool async : {false, true}) {
    const Outcome outcome =
        Run({SaveTo("save"), "--set=checkpoint.save_interval=4",
             absl::StrCat("--set=checkpoint.async_save=", async ? "true" : "false")});
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    for (const char* text :
         {"WARNING: the checkpoint of iteration 4 was not saved: '",
          "iter_0000004.tmp' is left alone",
          async
              ? "; training continues, the next save is now, and no checkpoint has been saved "
                "since "
                "the start\n"
              : "; training continues, the next save is at iteration 8, and no checkpoint has been "
                "saved since the start\n",
          "WARNING: the checkpoint of iteration 8 was not saved: '",
          "saved checkpoint of iteration 12"}) {
      EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
    }
    std::filesystem::remove_all(Path("save/iter_0000012"));
    std::filesystem::remove(Path("save/latest_checkpointed_iteration.txt"));
  }
}

TEST_F(PretrainGptTest, StepsWhoseGradientsAreNotFiniteAreCountedAtTheEnd) {
  const auto run = [this](const std::string& loss_scale) {
    return Run({"--set=precision.fp16=true", "--set=precision.loss_scale=" + loss_scale,
                SaveTo("with_" + loss_scale)});
  };
  const Outcome skipped = run("1e12");
  EXPECT_EQ(skipped.exit_code, kExitDone) << skipped.output;
  EXPECT_TRUE(absl::StrContains(skipped.output,
                                "WARNING: 12 of 12 iterations changed no weight, because their "
                                "gradients were not finite\n"))
      << skipped.output;
  const std::string manifest = ReadTextFile(Path("with_1e12/iter_0000012/manifest.json"));
  EXPECT_TRUE(absl::StrContains(manifest, "\"skipped_iterations\":12")) << manifest;
  EXPECT_TRUE(absl::StrContains(manifest, "\"nan_iterations\":0")) << manifest;
  const Outcome good = run("1");
  EXPECT_EQ(good.exit_code, kExitDone) << good.output;
  EXPECT_FALSE(absl::StrContains(good.output, "changed no weight")) << good.output;
}

TEST_F(PretrainGptTest, TheStepThatEndsARunForItsNumbersIsRecorded) {
  const Outcome outcome =
      Run({"--set=precision.fp16=true", "--set=precision.loss_scale=1e12",
           "--set=train.train_iters=60", "--set=train.eval_interval=0", SaveTo("save")});
  EXPECT_EQ(outcome.exit_code, kExitNumeric) << outcome.output;
  EXPECT_EQ(CountOf(ReadTextFile(Path("save/metrics.jsonl")), "\"skipped\":true"), 50);
  // All steps since the last line were skipped.
  EXPECT_EQ(CountOf(outcome.output, " | lm loss: "), CountOf(outcome.output, "elapsed time per"))
      << outcome.output;
}

// The test set is the validation set here, so the losses must be the same.
TEST_F(PretrainGptTest, AFinishedModelIsTestedBehindItsCheckpoint) {
  auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), Path("tokens"), TokenType::kU16);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int32_t d = 0; d < 30; ++d) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 70; ++i) tokens.push_back((d * i + d) % 256);
    ASSERT_TRUE((*writer)->AddDocument(tokens).ok());
  }
  ASSERT_TRUE((*writer)->Finalize().ok());
  std::ofstream(Path("paths.json"))
      << absl::StrCat("{\"train\": [\"", Path("tokens"), "\"], \"valid\": [\"", Path("tokens"),
                      "\"], \"test\": [\"", Path("tokens"), "\"]}");
  const std::string config = absl::StrReplaceAll(
      ReadTextFile(Path("run.textproto")),
      {{"eval_interval: 6", "eval_interval: 100"},
       {"stories { num_bytes: 100000 } split: \"8,2\"",
        absl::StrCat("per_split_data_args_path: \"", Path("paths.json"), "\"")}});
  std::ofstream(Path("run.textproto")) << config;
  const Outcome outcome = Run({SaveTo("save")});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const std::vector<std::string> parts = absl::StrSplit(outcome.output, "validation loss at ");
  ASSERT_EQ(parts.size(), 3u) << outcome.output;
  const std::string loss = parts[1].substr(parts[1].find('|'), 60);
  EXPECT_TRUE(absl::StartsWith(parts[2], "iteration 12 on test set | ")) << parts[2];
  EXPECT_TRUE(absl::StrContains(parts[2], loss.substr(0, loss.find('\n')))) << outcome.output;
  EXPECT_TRUE(absl::StrContains(parts[1], "saved checkpoint of iteration 12")) << outcome.output;
  EXPECT_TRUE(absl::StrContains(ReadTextFile(Path("save/metrics.jsonl")), "\"lm loss test\":"));
  const Outcome again = Run({SaveTo("save")});
  EXPECT_FALSE(absl::StrContains(again.output, "on test set")) << again.output;
}

TEST_F(PretrainGptTest, ACheckpointNamesItsTokenizerForAnyDirectory) {
  std::ofstream(Path("vocab.json")) << R"({"a": 0, "b": 1, "<|endoftext|>": 2})";
  std::ofstream(Path("merges.txt")) << "#version: 0.2\n";
  const std::string config = absl::StrReplaceAll(
      ReadTextFile(Path("run.textproto")),
      {{"stories { num_bytes: 100000 } split: \"8,2\"",
        "mock_data: true tokenizer_type: GPT2BPETokenizer vocab_file: \"vocab.json\" "
        "merge_file: \"./merges.txt\""}});
  std::ofstream(Path("run.textproto")) << config;
  const std::string log = Path("log.txt");
  // The variable by which `bazel run` tells programs the user's directory.
  const Outcome outcome = FinishProgram(
      StartProgram(Command({SaveTo("save")}), log, {{"BUILD_WORKING_DIRECTORY", Path("")}}), log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const std::string manifest = Checkpoint("save").at("manifest.json");
  for (const char* name : {"vocab.json", "merges.txt"}) {
    const std::string path = std::filesystem::path(Path(name)).lexically_normal();
    EXPECT_TRUE(absl::StrContains(manifest, path)) << path << "\n" << manifest;
  }
}

TEST_F(PretrainGptTest, SettingsWithoutEffectGiveTheSameBits) {
  ASSERT_EQ(Run({SaveTo("a")}).exit_code, kExitDone);
  const auto expected = Checkpoint("a");
  ASSERT_FALSE(expected.empty());
  const std::map<std::string, std::vector<std::string>> ways = {
      {"again", {}},
      {"one_thread", {"--set=system.num_threads=1"}},
      {"three_threads", {"--set=system.num_threads=3"}},
      {"async", {"--set=checkpoint.async_save=true", "--set=checkpoint.save_interval=2"}},
      {"recompute", {"--set=recompute.recompute_granularity=full"}}};
  for (const auto& [name, more] : ways) {
    std::vector<std::string> args = more;
    args.push_back(SaveTo(name));
    ASSERT_EQ(Run(args).exit_code, kExitDone) << name;
    auto files = Checkpoint(name);
    ASSERT_EQ(files.size(), expected.size());
    for (const auto& [file, bytes] : expected) {
      // The manifest keeps the configuration, which names these differences.
      if (absl::EndsWith(file, ".bin")) {
        EXPECT_TRUE(files[file] == bytes) << name << " " << file;
      }
    }
  }
}

TEST_F(PretrainGptTest, AStoppedRunContinuesBitForBit) {
  ASSERT_EQ(Run({SaveTo("whole")}).exit_code, kExitDone);
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(Run({SaveTo("parts"), "--set=train.exit_interval=5"}).exit_code, kExitDone);
  const Outcome last = Run({SaveTo("parts")});
  ASSERT_EQ(last.exit_code, kExitDone);
  EXPECT_TRUE(absl::StrContains(last.output, "iter_0000010 at iteration 10")) << last.output;
  auto whole = Checkpoint("whole"), parts = Checkpoint("parts");
  for (const auto& [file, bytes] : whole) {
    if (absl::EndsWith(file, ".bin")) {
      EXPECT_TRUE(parts[file] == bytes) << file;
    }
  }
}

TEST_F(PretrainGptTest, KilledAtAnyMomentItEndsWithTheSameBytes) {
  const std::vector<std::string> args = {SaveTo("killed"), "--set=checkpoint.save_interval=1",
                                         "--set=train.train_iters=60",
                                         "--set=checkpoint.keep_last=2"};
  std::vector<std::string> undisturbed = args;
  undisturbed[0] = SaveTo("whole");
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(Run(undisturbed).exit_code, kExitDone);
  const auto duration = std::chrono::steady_clock::now() - begin;

  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  auto longest = duration / 4;
  for (int kills = 0; kills < 20;) {
    const std::string log = Path("killed.txt");
    const pid_t pid = Start(args, log);
    // A save takes most of a step of a model this small, so that most kills fall into one.
    std::this_thread::sleep_for(longest * (random() % 1000) / 1000);
    kill(pid, SIGKILL);
    if (FinishProgram(pid, log).exit_code == -SIGKILL) {
      ++kills;
      continue;
    }
    // It was done before it was killed: once more, with less time.
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("killed")).ok());
    longest /= 2;
  }
  const Outcome last = Run(args);
  ASSERT_EQ(last.exit_code, kExitDone) << "seed " << seed << "\n" << last.output;
  EXPECT_EQ(Checkpoint("killed").size(), 2u);
  auto whole = Checkpoint("whole"), killed = Checkpoint("killed");
  for (const auto& [file, bytes] : whole) {
    if (absl::EndsWith(file, ".bin")) {
      EXPECT_TRUE(killed[file] == bytes) << file << ", seed " << seed;
    }
  }
}

TEST_F(PretrainGptTest, LogsTheFirstStepsThenByTheFirstRanksClockAndTheLastOne) {
  for (const auto& [seconds, lines] :
       std::vector<std::pair<const char*, int>>{{"0", 4}, {"1e-6", 12}}) {
    const Outcome outcome =
        Run({"--set=train.log_interval=1000", "--set=parallel.data_parallel_size=2",
             absl::StrCat("--set=logging.log_interval_seconds=", seconds)});
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_EQ(CountOf(outcome.output, "elapsed time per iteration"), lines) << outcome.output;
  }
}

TEST_F(PretrainGptTest, ASignalSavesAndLeaves) {
  signal(SIGHUP, SIG_DFL);  // what ignores it hands that on to the programs that it starts
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP}) {
    const std::string log = Path("signal.txt"), save = absl::StrCat("signal", signal_number);
    const pid_t pid =
        Start({SaveTo(save), "--set=train.train_iters=100000", "--set=train.log_interval=1"}, log);
    WaitFor("iteration        2/", log);
    kill(pid, signal_number);
    if (signal_number == SIGHUP) kill(pid, SIGHUP);  // from the shell, and from the terminal
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
    EXPECT_EQ(CountOf(outcome.output, "by a signal"), 1) << outcome.output;
    EXPECT_EQ(CountOf(outcome.output, "to continue:\n"), 1) << outcome.output;
    EXPECT_FALSE(Checkpoint(save).empty());
  }
}

TEST_F(PretrainGptTest, ErrorsAreReportedWithTheirExitCode) {
  ASSERT_EQ(Run({SaveTo("good")}).exit_code, kExitDone);
  ASSERT_EQ(Run({SaveTo("other"), "--set=train.seed=7"}).exit_code, kExitDone);
  std::ofstream(Path("file")) << "not a directory";
  struct Case {
    std::vector<std::string> args;
    int exit_code;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {{"--set=model.hidden_sizes=3", "--set=train.train_iters=x"},
       kExitConfig,
       {"hidden_size", "train_iters"}},
      {{"--wrong"}, kExitConfig, {"--wrong", "--config=FILE"}},
      {{"--config=nowhere.textproto"}, kExitConfig, {"nowhere.textproto", "gpt_demo"}},
      {{"--set=data.stories.num_bytes=100"}, kExitData, {"data.split"}},
      {{SaveTo("file")}, kExitIo, {"file"}},
      {{SaveTo("good"), "--set=model.hidden_size=64", "--set=train.train_iters=13"},
       kExitConfig,
       {"another run", "model.hidden_size: saved 32, now 64"}},
      {{SaveTo("new"), "--set=checkpoint.finetune=true"}, kExitConfig, {"finetune"}},
      {{SaveTo("good"), "--set=optimizer.optimizer=sgd", "--set=train.train_iters=13"},
       kExitConfig,
       {"adam", "no_load_optim"}},
      {{absl::StrCat("--set=checkpoint.load=\"", Path("nothing"), "\"")},
       kExitConfig,
       {"there is no checkpoint"}},
      {{"--set=model.hidden_size=1048576", "--set=model.num_layers=1000"},
       kExitConfig,
       {"of memory", "are available"}},
      {{SaveTo("good"), absl::StrCat("--set=checkpoint.load=\"", Path("other"), "\""),
        "--set=checkpoint.finetune=true", "--set=train.seed=9"},
       kExitConfig,
       {"directory of its own"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.args.front());
    const Outcome outcome = Run(c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << outcome.output;
    for (const std::string& text : c.says)
      EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
  }
}

TEST_F(PretrainGptTest, AFinishedRunHasNothingToDo) {
  ASSERT_EQ(Run({SaveTo("save")}).exit_code, kExitDone);
  const std::string metrics = ReadTextFile(Path("save/metrics.jsonl"));
  const auto checkpoint = Checkpoint("save");
  const Outcome again = Run({SaveTo("save")});
  EXPECT_EQ(again.exit_code, kExitDone);
  EXPECT_TRUE(absl::StrContains(again.output, "already at iteration 12 of 12")) << again.output;
  EXPECT_FALSE(absl::StrContains(again.output, "finished at")) << again.output;
  EXPECT_EQ(ReadTextFile(Path("save/metrics.jsonl")), metrics);
  EXPECT_EQ(Checkpoint("save"), checkpoint);
}

TEST_F(PretrainGptTest, ARunCanBeMadeLongerWhateverItEvaluates) {
  ASSERT_EQ(Run({SaveTo("save"), "--set=train.eval_interval=1"}).exit_code, kExitDone);
  const Outcome longer = Run({SaveTo("save"), "--set=train.train_iters=18"});
  EXPECT_EQ(longer.exit_code, kExitDone) << longer.output;
  EXPECT_EQ(ReadTextFile(Path("save/latest_checkpointed_iteration.txt")).substr(0, 2), "18");
}

TEST_F(PretrainGptTest, FinetuningTakesTheWeightsOnceAndThenContinuesItself) {
  const std::string load = absl::StrCat("--set=checkpoint.load=\"", Path("from"), "\"");
  ASSERT_EQ(Run({SaveTo("from")}).exit_code, kExitDone);
  const std::vector<std::string> args = {SaveTo("tuned"), load, "--set=checkpoint.finetune=true",
                                         "--set=train.seed=5", "--set=train.exit_interval=5"};
  const Outcome first = Run(args);
  EXPECT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_TRUE(absl::StrContains(first.output, "starting from the weights of")) << first.output;
  const Outcome second = Run(args);
  EXPECT_EQ(second.exit_code, kExitDone) << second.output;
  EXPECT_TRUE(absl::StrContains(second.output, "tuned/iter_0000005 at iteration 5"))
      << second.output;
  const std::vector<std::string> to_the_end(args.begin(), args.end() - 1);
  ASSERT_EQ(Run(to_the_end).exit_code, kExitDone);
  const Outcome finished = Run(to_the_end);
  EXPECT_EQ(finished.exit_code, kExitDone) << finished.output;
  EXPECT_TRUE(absl::StrContains(finished.output, "nothing to do")) << finished.output;
  EXPECT_FALSE(absl::StrContains(finished.output, "saved checkpoint")) << finished.output;
  // Weights are rounded, or taken from the fp32 masters, where the precision differs.
  EXPECT_EQ(
      Run({SaveTo("bf16"), load, "--set=checkpoint.finetune=true", "--set=precision.bf16=true"})
          .exit_code,
      kExitDone);
  const Outcome other =
      Run({SaveTo("other"), load, "--set=checkpoint.finetune=true", "--set=model.num_layers=1"});
  EXPECT_EQ(other.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(other.output, "only saved: decoder.layers.1.")) << other.output;
}

TEST_F(PretrainGptTest, TwoProcessesDoNotSaveToOneDirectory) {
  const std::string log = Path("first.txt");
  const pid_t pid =
      Start({SaveTo("save"), "--set=train.train_iters=100000", "--set=train.log_interval=1"}, log);
  WaitFor("iteration        2/", log);
  const Outcome second = Run({SaveTo("save")});
  EXPECT_EQ(second.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(second.output, "another process is saving")) << second.output;
  kill(pid, SIGKILL);
  FinishProgram(pid, log);
}

TEST_F(PretrainGptTest, ADamagedCheckpointIsNotTrained) {
  ASSERT_EQ(Run({SaveTo("save")}).exit_code, kExitDone);
  const std::string shard = Path("save/iter_0000012/shard_00000_of_00001.bin");
  std::string bytes = ReadTextFile(shard);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  const Outcome outcome = Run({SaveTo("save"), "--set=train.train_iters=20"});
  EXPECT_EQ(outcome.exit_code, kExitCorruptCheckpoint) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "shard_00000_of_00001.bin")) << outcome.output;
}

TEST_F(PretrainGptTest, ADryRunWritesNothing) {
  const Outcome screen = Run({SaveTo("save"), "--dry_run"});
  EXPECT_EQ(screen.exit_code, kExitDone);
  for (const char* text : {"\nparameters   ", "\nrank 0 ", "--dry_run=full"})
    EXPECT_TRUE(absl::StrContains(screen.output, text)) << text << "\n" << screen.output;
  const Outcome full = Run({SaveTo("save"), "--dry_run=full"});
  EXPECT_EQ(full.exit_code, kExitDone);
  for (const char* text :
       {"\n# parameters: ", "# memory of rank 0 (pipeline stage 0)", "num_layers: 2  # "}) {
    EXPECT_TRUE(absl::StrContains(full.output, text)) << text << "\n" << full.output;
  }
  EXPECT_FALSE(PosixFileSystem().Stat(Path("save")).ok());
}

TEST_F(PretrainGptTest, AJsonDryRunPrintsOneObjectAndNothingElse) {
  const Outcome outcome = Run({"--dry_run", "--json", "--set=parallel.data_parallel_size=2"});
  EXPECT_EQ(outcome.exit_code, kExitDone);
  const auto json = nlohmann::json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << outcome.output;
  EXPECT_EQ(json["layout"]["data"], 2);
  EXPECT_EQ(json["config"]["model"]["num_layers"], 2);
  const Outcome wrong = Run({"--dry_run", "--json", "--set=model.num_layers=-1"});
  EXPECT_EQ(wrong.exit_code, kExitConfig);
  EXPECT_FALSE(absl::StrContains(wrong.output, "{")) << wrong.output;
}

TEST_F(PretrainGptTest, AFinishedRunEndsWithItsFigures) {
  const Outcome outcome =
      Run({SaveTo("save"), "--set=generation={prompt: \"Sam\" tokens_to_generate: 12}"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const size_t closing = outcome.output.find("\nfinished at iteration 12 of 12, ");
  ASSERT_NE(closing, std::string::npos) << outcome.output;
  EXPECT_GT(closing, outcome.output.find("--- the model continues ---"));
  for (const char* text : {"  last loss ", ", validation ", " tokens/s, peak memory "})
    EXPECT_TRUE(absl::StrContains(outcome.output.substr(closing), text)) << outcome.output;
}

TEST_F(PretrainGptTest, AStoppedRunNamesTheCommandThatContinuesIt) {
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{},
        std::vector<std::string>{"--set=parallel.data_parallel_size=2",
                                 "--set=parallel.ranks_as=processes"}}) {
    const std::string save = absl::StrCat("save", ranks.size());
    const Outcome first = Run(Joined(
        {SaveTo(save), "--set=train.exit_interval=5", "--set=generation.prompt=It's \"$HOME\""},
        ranks));
    ASSERT_EQ(first.exit_code, kExitDone) << first.output;
    const std::vector<std::string> parts = absl::StrSplit(first.output, "to continue:\n");
    ASSERT_EQ(parts.size(), 2u) << first.output;
    std::string command = parts[1].substr(0, parts[1].find('\n'));
    if (!ranks.empty()) command = command.substr(command.find(']') + 1);  // "[rank 1]"
    const Outcome second =
        FinishProgram(StartProgram({"/bin/bash", "-c", command}, Path("log.txt")), Path("log.txt"));
    EXPECT_EQ(second.exit_code, kExitDone) << second.output;
    EXPECT_TRUE(absl::StrContains(second.output, "at iteration 5\n")) << second.output;
    EXPECT_TRUE(absl::StrContains(second.output, "stopped at iteration 10 of 12")) << second.output;
  }
}

TEST_F(PretrainGptTest, TrainingGoesOnWhenNobodyReadsWhatItPrints) {
  const std::string command =
      absl::StrJoin(Command({SaveTo("save"), "--set=train.log_interval=1"}), "' '");
  const std::string script =
      absl::StrCat("set -o pipefail; '", command, "' | head -n 1; echo code ${PIPESTATUS[0]}");
  const Outcome outcome =
      FinishProgram(StartProgram({"/bin/bash", "-c", script}, Path("log.txt")), Path("log.txt"));
  EXPECT_TRUE(absl::StrContains(outcome.output, "code 0")) << outcome.output;
  EXPECT_EQ(Checkpoint("save").size(), 2u);
}

std::string TextOfTheModel(const Outcome& outcome) {
  const size_t begin = outcome.output.find("--- the model");
  EXPECT_NE(begin, std::string::npos) << outcome.output;
  return outcome.output.substr(begin, outcome.output.find("\nfinished at") - begin);
}

// Eight ranks: every axis, with all that goes with it.
const std::vector<std::string>& EightRanks() {
  static const auto* const args = new std::vector<std::string>{
      "--set=train.micro_batch_size=1",
      "--set=parallel.tensor_model_parallel_size=2",
      "--set=parallel.sequence_parallel=true",
      "--set=parallel.pipeline_model_parallel_size=2",
      "--set=parallel.data_parallel_size=2",
      "--set=parallel.use_distributed_optimizer=true",
      "--set=parallel.data_parallel_sharding_strategy=optim_grads_params",
      "--set=parallel.overlap_grad_reduce=true",
      "--set=parallel.overlap_param_gather=true"};
  return *args;
}

TEST_F(PretrainGptTest, EightRanksTrainWhatOneTrainsAndOneRankPrints) {
  const std::vector<std::string> tell = {
      "--set=generation={prompt: \"Sam\" tokens_to_generate: 12 temperature: 0}"};
  const Outcome alone = Run(Joined({SaveTo("alone")}, tell));
  ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
  const Outcome together = Run(Joined(Joined({SaveTo("together")}, tell), EightRanks()));
  ASSERT_EQ(together.exit_code, kExitDone) << together.output;
  for (const char* once :
       {"8 ranks = tensor 2 x pipeline 2 x data 2", "iteration       12/", "first step done",
        "validation loss at iteration 12", "saved checkpoint of iteration 12",
        "--- the model continues ---", "finished at iteration 12"}) {
    EXPECT_EQ(CountOf(together.output, once), 1) << once << "\n" << together.output;
  }
  for (const char* number : {"lm loss: ", "lm loss value: "}) {
    const double want = NumberAfter(alone.output, number);
    EXPECT_NEAR(NumberAfter(together.output, number), want, 1e-5 * want) << number;
  }
  EXPECT_EQ(TextOfTheModel(together), TextOfTheModel(alone));
  EXPECT_EQ(Checkpoint("together").size(), 9u);  // a shard of each rank, and the manifest
  EXPECT_EQ(CountOf(ReadTextFile(Path("together/metrics.jsonl")), "grad-norm"), 12);
}

TEST_F(PretrainGptTest, RanksThatShareSamplesTrainAndTellWhatOneDoes) {
  const std::vector<std::string> tell = {
      "--set=generation={prompt: \"Sam\" tokens_to_generate: 12 temperature: 0}"};
  const Outcome alone = Run(Joined({SaveTo("alone")}, tell));
  ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
  for (const char* kind : {"p2p", "a2a", "allgather"}) {
    const std::vector<std::string> layout = {"--set=parallel.context_parallel_size=2",
                                             absl::StrCat("--set=parallel.cp_comm_type=", kind)};
    const Outcome together = Run(Joined(Joined({SaveTo(kind)}, tell), layout));
    ASSERT_EQ(together.exit_code, kExitDone) << together.output;
    EXPECT_EQ(CountOf(together.output, "2 ranks = tensor 1 x context 2 x pipeline 1 x data 1"), 1)
        << together.output;
    for (const char* number : {"lm loss: ", "lm loss value: "}) {
      const double want = NumberAfter(alone.output, number);
      EXPECT_NEAR(NumberAfter(together.output, number), want, 1e-5 * want) << number;
    }
    EXPECT_EQ(TextOfTheModel(together), TextOfTheModel(alone));
  }
}

TEST_F(PretrainGptTest, MultiTokenPredictionMayHaveAStageOfItsOwn) {
  const std::vector<std::string> model = {
      "--set=model.position_embedding_type=rope", "--set=model.mtp_num_layers=1",
      "--set=generation={prompt: \"Sam\" tokens_to_generate: 12 temperature: 0}"};
  const Outcome alone = Run(Joined({SaveTo("alone")}, model));
  ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
  const Outcome together = Run(Joined(Joined({SaveTo("together")}, model),
                                      {"--set=parallel.pipeline_model_parallel_size=4",
                                       "--set=parallel.pipeline_model_parallel_layout=Et|t|m|L"}));
  ASSERT_EQ(together.exit_code, kExitDone) << together.output;
  for (const char* number : {"lm loss: ", "mtp_1 loss: ", "lm loss value: "}) {
    const double want = NumberAfter(alone.output, number);
    EXPECT_NEAR(NumberAfter(together.output, number), want, 1e-5 * want) << number;
  }
  EXPECT_EQ(TextOfTheModel(together), TextOfTheModel(alone));
  const Outcome continued = Run(Joined({SaveTo("together"), "--set=train.train_iters=15"}, model));
  EXPECT_EQ(continued.exit_code, kExitDone) << continued.output;
  EXPECT_EQ(CountOf(continued.output, "at iteration 12\n"), 1) << continued.output;
}

TEST_F(PretrainGptTest, ACheckpointOfEightRanksContinuesOnAnyOthers) {
  ASSERT_EQ(Run(Joined({SaveTo("save")}, EightRanks())).exit_code, kExitDone);
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"--set=parallel.pipeline_model_parallel_size=2"},
      {"--set=parallel.context_parallel_size=4", "--set=parallel.cp_comm_type=a2a_p2p",
       "--set=parallel.hierarchical_context_parallel_sizes=2,2"},
      {"--set=parallel.pipeline_model_parallel_size=2", "--set=parallel.pipeline_schedule=zb_v",
       "--set=parallel.pipeline_model_parallel_layout=E|t|t|L",
       absl::StrCat("--set=logging.pipeline_timeline_file=", Path("timeline.txt"))},
      {"--set=train.micro_batch_size=1", "--set=parallel.data_parallel_size=4"},
      EightRanks()};
  int iterations = 12;
  for (const std::vector<std::string>& layout : layouts) {
    const std::string before = absl::StrCat("at iteration ", iterations, "\n");
    iterations += 3;
    const Outcome outcome =
        Run(Joined({SaveTo("save"), absl::StrCat("--set=train.train_iters=", iterations)}, layout));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_EQ(CountOf(outcome.output, before), 1) << before << outcome.output;
  }
  EXPECT_EQ(CountOf(ReadTextFile(Path("timeline.txt")), "pipeline 2 2 "), 1);
}

TEST_F(PretrainGptTest, EightRanksKilledEndWithTheSameBytes) {
  const std::vector<std::string> args =
      Joined({"--set=checkpoint.save_interval=1", "--set=train.train_iters=30",
              "--set=checkpoint.keep_last=2", "--set=checkpoint.async_save=true"},
             EightRanks());
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const auto duration = std::chrono::steady_clock::now() - begin;
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  for (int kills = 0; kills < 6; ++kills) {
    const std::string log = Path("killed.txt");
    const pid_t pid = Start(Joined({SaveTo("killed")}, args), log);
    std::this_thread::sleep_for(duration / 4 * (random() % 1000) / 1000);
    kill(pid, SIGKILL);
    FinishProgram(pid, log);
  }
  const Outcome last = Run(Joined({SaveTo("killed")}, args));
  ASSERT_EQ(last.exit_code, kExitDone) << "seed " << seed << "\n" << last.output;
  auto whole = Checkpoint("whole"), killed = Checkpoint("killed");
  ASSERT_EQ(killed.size(), 9u);
  for (const auto& [file, bytes] : whole) {
    if (absl::EndsWith(file, ".bin")) {
      EXPECT_TRUE(killed[file] == bytes) << file << ", seed " << seed;
    }
  }
}

TEST_F(PretrainGptTest, ASignalStopsEightRanksAtOneStep) {
  const std::string log = Path("signal.txt");
  const pid_t pid = Start(
      Joined({SaveTo("signal"), "--set=train.train_iters=100000", "--set=train.log_interval=1"},
             EightRanks()),
      log);
  WaitFor("iteration        2/", log);
  kill(pid, SIGTERM);
  const Outcome outcome = FinishProgram(pid, log);
  EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "saved checkpoint"), 1) << outcome.output;
  EXPECT_EQ(Checkpoint("signal").size(), 9u);
}

TEST_F(PretrainGptTest, TheErrorOfOneOfEightRanksIsToldOnceAndEndsAll) {
  ASSERT_EQ(Run(Joined({SaveTo("save")}, EightRanks())).exit_code, kExitDone);
  // Its last bytes are moments of the last stage, which other ranks do not read.
  const std::string shard = Path("save/iter_0000012/shard_00007_of_00008.bin");
  std::string bytes = ReadTextFile(shard);
  bytes[bytes.size() - 1] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  const Outcome outcome = Run(Joined({SaveTo("save"), "--set=train.train_iters=20"}, EightRanks()));
  EXPECT_EQ(outcome.exit_code, kExitCorruptCheckpoint) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "error: "), 1) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "shard_00007_of_00008.bin")) << outcome.output;
}

}  // namespace
}  // namespace megatron
