// Tests of tools:evaluate, and of evaluations on tasks inside a run, which have the same results.
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
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

constexpr char kAcc[] = "tasks/hellaswag_llmc/acc", kWord[] = "tasks/lambada_strict/perplexity",
               kBits[] = "tasks/bits_per_byte/bits_per_byte", kLoss[] = "tasks/wikitext103/loss";

class EvaluateTest : public PretrainProgramTest {
 protected:
  EvaluateTest() {
    std::string choices, words, texts;
    for (int i = 0; i < 12; ++i) {
      choices += Json{{"ctx", absl::StrCat("Once ", i, " cats")},
                      {"endings", {"saw a hat.", absl::StrCat("took ", i), "zqx"}},
                      {"label", i % 3}}
                     .dump() +
                 "\n";
      words += Json{{"text", absl::StrCat("The owl saw ", i, " hats")}}.dump() + "\n";
      texts += Json{{"text", absl::StrCat("Once there was a cat with ", i, " long words. ",
                                          std::string(static_cast<size_t>(i) * 9, 'a'))}}
                   .dump() +
               "\n";
    }
    Write("choices.jsonl", choices);
    Write("words.jsonl", words);
    Write("texts.jsonl", texts);
    Write("wiki.tokens", texts + " = A = \n" + texts);
  }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_THAT(WriteFileAtomically(PosixFileSystem(), Path(name), text), IsOk());
  }

  Arguments With(const std::string& save) const {
    return {SaveTo(save),
            absl::StrCat("--set=train.eval_tasks=[\"hellaswag_llmc=", Path("choices.jsonl"),
                         "\", \"lambada_strict=", Path("words.jsonl"), "\", \"bits_per_byte=",
                         Path("texts.jsonl"), "\", \"wikitext103=", Path("wiki.tokens"), "\"]"),
            "--set=train.overlapping_eval=20"};
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

  Outcome RunWell(const Arguments& arguments) const {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    return outcome;
  }

  // Runs tools:evaluate on the four tasks of the run.
  Outcome Evaluate(const std::string& checkpoint, const Arguments& more) const {
    Arguments command = {ProgramPath("tools/evaluate"), "--checkpoint=" + Path(checkpoint),
                         "--task=hellaswag_llmc,lambada_strict,bits_per_byte,wikitext103",
                         absl::StrCat("--path=", Path("choices.jsonl"), ",", Path("words.jsonl"),
                                      ",", Path("texts.jsonl"), ",", Path("wiki.tokens")),
                         "--overlapping_eval=20"};
    command.insert(command.end(), more.begin(), more.end());
    const std::string log = Path("evaluate.log");
    return FinishProgram(StartProgram(command, log), log);
  }

  // Compares what a run has written of its tasks with what tools:evaluate has.
  void ExpectSame(const Json& record, const Json& results) const {
    int compared = 0;
    for (const auto& [key, value] : record.items()) {
      const std::vector<std::string> parts = absl::StrSplit(key, '/');
      if (parts[0] != "tasks") continue;
      const double tool = results["results"][parts[1]][parts[2] + ",none"];
      EXPECT_NEAR(value.get<double>(), tool, 1e-5 * std::abs(tool)) << key;
      ++compared;
    }
    EXPECT_EQ(compared, 2 + 2 + 3 + 4);
  }
};

TEST_F(EvaluateTest, ARunHasTheMetricsThatTheToolHasOfItsCheckpoint) {
  const Outcome run = RunWell(Joined(
      With("run"), {absl::StrCat("--set=logging.on_event=\"cat >> ", Path("events.jsonl"), "\"")}));
  EXPECT_THAT(ReadTextFile(Path("events.jsonl")),
              AllOf(HasSubstr("\"event\":\"evaluated\""), HasSubstr("hellaswag_llmc/acc 0.")));
  EXPECT_THAT(run.output, AllOf(HasSubstr(" | hellaswag_llmc/acc: "),
                                HasSubstr(" | wikitext103/adjusted_ppl: ")));
  const std::vector<Json> evaluations = Records("run", kAcc);
  ASSERT_THAT(evaluations, SizeIs(2));
  EXPECT_NE(evaluations[0].at(kBits), evaluations[1].at(kBits));
  for (const Arguments& layout : std::vector<Arguments>{
           {},
           {"--data_parallel_size=3", "--max_batch=2"},
           {"--tensor_model_parallel_size=2", "--pipeline_model_parallel_size=2"}}) {
    const Outcome tool = Evaluate("run", Joined(layout, {"--output=" + Path("results.json")}));
    ASSERT_EQ(tool.exit_code, 0) << tool.output;
    EXPECT_THAT(tool.output, HasSubstr("hellaswag_llmc        12  acc_norm"));
    const Json results = Json::parse(ReadTextFile(Path("results.json")));
    ExpectSame(evaluations.back(), results);
    EXPECT_EQ(results["config"]["iteration"], evaluations.back().at("iteration"));
  }
}

TEST_F(EvaluateTest, AFlagBelowOneIsNamed) {
  for (const char* flag : {"max_batch", "overlapping_eval", "data_parallel_size"}) {
    const Outcome tool = Evaluate("none", {absl::StrCat("--", flag, "=0")});
    EXPECT_NE(tool.exit_code, 0);
    EXPECT_THAT(tool.output, HasSubstr(absl::StrCat("--", flag, " is 0")));
  }
}

TEST_F(EvaluateTest, EvaluationsChangeNothingInTheRun) {
  RunWell(With("with"));
  RunWell({SaveTo("without")});
  ExpectEqualCheckpoints("with", "without");
  EXPECT_THAT(Records("without", kAcc), SizeIs(0));
}

TEST_F(EvaluateTest, ARunThatIsContinuedEvaluatesWhatTheWholeOneDoes) {
  RunWell(With("whole"));
  RunWell(Joined(With("parts"), {"--set=train.exit_interval=6"}));
  RunWell(With("parts"));
  EXPECT_EQ(Records("parts", kWord), Records("whole", kWord));
}

TEST_F(EvaluateTest, ALayoutHasTheMetricsOfOneRank) {
  RunWell(With("one"));
  const Json one = Records("one", kLoss).back();
  for (const Arguments& layout :
       std::vector<Arguments>{{"--set=parallel.data_parallel_size=2"},
                              {"--set=parallel.context_parallel_size=2",
                               "--set=parallel.tensor_model_parallel_size=2"},
                              {"--set=parallel.pipeline_model_parallel_size=2"}}) {
    RunWell(Joined(With("other"), layout));
    const Json other = Records("other", kLoss).back();
    for (const char* key : {kWord, kBits, kLoss})
      EXPECT_NEAR(other.at(key), one.at(key), 1e-4 * one.at(key).get<double>()) << layout[0];
    ASSERT_THAT(PosixFileSystem().RemoveTree(Path("other")), IsOk());
  }
}

TEST_F(EvaluateTest, AnIntervalOfItsOwnAndALimit) {
  RunWell(Joined(With("run"), {"--set=train.eval_interval=3", "--set=train.eval_tasks_interval=9",
                               "--set=train.eval_tasks_limit=1"}));
  std::vector<int64_t> iterations;
  for (const Json& record : Records("run", kAcc)) iterations.push_back(record.at("iteration"));
  EXPECT_THAT(iterations, ::testing::ElementsAre(9, 12));  // and the finished model
  EXPECT_THAT(Records("run", "lm loss validation"), SizeIs(4));
  const Outcome tool = Evaluate("run", {"--limit=1", "--output=" + Path("results.json")});
  ASSERT_EQ(tool.exit_code, 0) << tool.output;
  const Json results = Json::parse(ReadTextFile(Path("results.json")));
  EXPECT_EQ(results["n-samples"]["wikitext103"]["effective"], 1);
  ExpectSame(Records("run", kAcc).back(), results);
}

TEST_F(EvaluateTest, BadFilesAreToldBeforeTheFirstStep) {
  Write("words.jsonl", "{\"text\": \"a b\"}\n{\"text\": 3}\n");
  const Outcome bad = Run(With("run"));
  EXPECT_EQ(bad.exit_code, kExitData) << bad.output;
  EXPECT_THAT(bad.output, AllOf(HasSubstr("words.jsonl: line 2: \"text\" is no text"),
                                HasSubstr("train.eval_tasks")));
  const Outcome missing =
      Run({SaveTo("run"), "--set=train.eval_tasks=[\"piqa=" + Path("none.jsonl") + "\"]"});
  EXPECT_EQ(missing.exit_code, kExitData) << missing.output;
  EXPECT_THAT(missing.output, HasSubstr("none.jsonl"));
}

TEST_F(EvaluateTest, TheToolsWrongArguments) {
  RunWell({SaveTo("run"), "--set=train.train_iters=1", "--set=optimizer.lr_warmup_iters=0",
           "--set=train.eval_iters=0"});
  const auto tool = [&](const Arguments& arguments) {
    Arguments command = {ProgramPath("tools/evaluate")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const std::string log = Path("evaluate.log");
    return FinishProgram(StartProgram(command, log), log);
  };
  const std::string run = "--checkpoint=" + Path("run");
  const struct {
    Arguments arguments;
    int code;
    const char* text;
  } cases[] = {{{}, kExitConfig, "--checkpoint must name"},
               {{run}, kExitConfig, "--task must name a task"},
               {{run, "--task=piqa"}, kExitConfig, "--task names 1 task, and --path 0 files"},
               {{run, "--task=piqua", "--path=a"}, kExitConfig, "there is no task 'piqua'"},
               {{run, "--task=piqa,piqa", "--path=a,b"}, kExitConfig, "names piqa twice"},
               {{run, "--task=piqa", "--path=none.jsonl"}, kExitData, "none.jsonl"},
               {{run, "--task=lambada", "--path=" + Path("choices.jsonl")},
                kExitData,
                "choices.jsonl: line 1: \"text\" is missing"},
               {{run, "--task=lambada", "--path=" + Path("words.jsonl"), "--limit=-1"},
                kExitConfig,
                "--limit"},
               {{run, "--task=lambada", "--path=" + Path("words.jsonl"), "--max_context=1000000"},
                kExitConfig,
                "a context of 1000000 tokens"},
               {{run, "--task=wikitext103", "--path=" + Path("wiki.tokens"), "--max_context=24",
                 "--overlapping_eval=25"},
                kExitConfig,
                "--overlapping_eval=25 must not exceed the context, which is 24 tokens"},
               // The default is lowered where nobody has asked for it, and there alone.
               {{run, "--task=wikitext103", "--path=" + Path("wiki.tokens"), "--max_context=24",
                 "--overlapping_eval=32"},
                kExitConfig,
                "--overlapping_eval=32 must not exceed the context, which is 24 tokens"},
               {{"--checkpoint=" + Path("gone"), "--task=lambada", "--path=" + Path("words.jsonl")},
                kExitConfig,
                "gone"},
               {{run, "--task=lambada", "--path=" + Path("words.jsonl"), "--output=" + Path("run")},
                kExitIo,
                "run"}};
  for (const auto& [arguments, code, text] : cases) {
    const Outcome outcome = tool(arguments);
    EXPECT_EQ(outcome.exit_code, code) << text << ": " << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  const Outcome cut =
      tool({run, "--task=bits_per_byte", "--path=" + Path("texts.jsonl"), "--max_context=8"});
  EXPECT_EQ(cut.exit_code, 0) << cut.output;
  const Outcome short_windows =
      tool({run, "--task=wikitext103", "--path=" + Path("wiki.tokens"), "--max_context=24"});
  EXPECT_EQ(short_windows.exit_code, 0) << short_windows.output;
  const std::string shard = "run/iter_0000001/shard_00000_of_00001.bin";
  std::string bytes = ReadTextFile(Path(shard));
  constexpr size_t kHeaderBytes = 128;  // a weight is behind it
  ASSERT_GT(bytes.size(), kHeaderBytes);
  bytes[kHeaderBytes] ^= 1;
  Write(shard, bytes);
  const Outcome damaged = tool({run, "--task=lambada", "--path=" + Path("words.jsonl")});
  EXPECT_EQ(damaged.exit_code, kExitCorruptCheckpoint) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr("shard_00000_of_00001.bin"));
}

}  // namespace
}  // namespace megatron
