// Reads back what pretrain_gpt writes and prints of the iterations that are profiled.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

struct Span {
  std::string name;
  double begin, end;
  Json args;
};

// A trace file by its threads, spans in the order in which they began.
struct TraceFile {
  std::map<std::string, std::vector<Span>> threads;
  std::map<std::string, std::vector<int64_t>> counts;
  std::set<int> processes;
};

TraceFile ReadTrace(const std::string& path) {
  TraceFile trace;
  const Json file = Json::parse(ReadTextFile(path), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(file.is_object()) << path;
  if (!file.is_object()) return trace;
  std::map<int, std::string> names;
  for (const Json& event : file.at("traceEvents")) {
    trace.processes.insert(event.at("pid").get<int>());
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      names[event.at("tid").get<int>()] = event.at("args").at("name");
    if (event.at("ph") == "C")
      trace.counts[event.at("name")].push_back(event.at("args").at("value").get<int64_t>());
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    trace.threads[names.at(event.at("tid").get<int>())].push_back(
        {event.at("name"), begin, begin + event.at("dur").get<double>(), event.at("args")});
  }
  return trace;
}

// Each span lies within the one that it began in, or behind it.
void ExpectNested(const std::vector<Span>& spans) {
  constexpr double kRounding = 1e-3;
  std::vector<Span> open;
  for (const Span& span : spans) {
    EXPECT_LE(span.begin, span.end) << span.name;
    while (!open.empty() && open.back().end <= span.begin + kRounding) open.pop_back();
    if (!open.empty()) {
      EXPECT_GE(span.begin, open.back().begin - kRounding) << span.name;
      EXPECT_LE(span.end, open.back().end + kRounding) << span.name << " in " << open.back().name;
    }
    open.push_back(span);
  }
}

std::vector<std::string> NamesOf(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  return names;
}

std::vector<std::string> StepsOf(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) {
    if (absl::StartsWith(span.name, "step ")) names.push_back(span.name);
  }
  return names;
}

class PretrainProfileTest : public PretrainProgramTest {
 protected:
  std::vector<std::string> FilesIn(const std::string& directory) const {
    const auto names = PosixFileSystem().List(Path(directory));
    return names.ok() ? *names : std::vector<std::string>();
  }
};

TEST_F(PretrainProfileTest, OneFlagWritesTwoStepsAndChangesNoResult) {
  ASSERT_EQ(Run({SaveTo("plain")}).exit_code, kExitDone);
  const Outcome outcome = Run({SaveTo("save"), "--profile"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  ExpectEqualCheckpoints("plain", "save");
  EXPECT_THAT(FilesIn("save/profile"), ElementsAre("trace_rank_0.json"));
  const TraceFile trace = ReadTrace(Path("save/profile/trace_rank_0.json"));
  EXPECT_THAT(trace.processes, ElementsAre(0));
  ASSERT_THAT(trace.threads, SizeIs(1));
  const std::vector<Span>& spans = trace.threads.at("compute");
  ExpectNested(spans);
  EXPECT_THAT(StepsOf(spans), ElementsAre("step 11", "step 12"));
  EXPECT_THAT(NamesOf(spans),
              IsSupersetOf({"data", "forward 0", "embedding", "decoder.layers.1", "attention",
                            "core attention", "mlp", "head", "backward 0", "measure",
                            "reduce gradients", "optimizer", "start checkpoint"}));
  EXPECT_GT(*std::max_element(trace.counts.at("bytes kept for backward").begin(),
                              trace.counts.at("bytes kept for backward").end()),
            0);
  EXPECT_EQ(trace.counts.at("bytes kept for backward").back(), 0);
  EXPECT_GT(trace.counts.at("bytes held").at(0), 0);
  for (const char* text : {"profile of iterations 11 to 12 in ", "at the peak      planned",
                           "    gradients ", "    all of these ", "    the process, resident "}) {
    EXPECT_EQ(CountOf(outcome.output, text), 1) << text << "\n" << outcome.output;
  }
}

TEST_F(PretrainProfileTest, ATraceShowsWhenTheUpdateWaitsForTheDisk) {
  const Outcome outcome =
      Run({SaveTo("save"), "--profile", "--set=optimizer.optimizer_cpu_offload=true",
           absl::StrCat("--set=optimizer.optimizer_offload_path=", Path("states"))});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const TraceFile trace = ReadTrace(Path("save/profile/trace_rank_0.json"));
  const std::vector<Span>& spans = trace.threads.at("compute");
  ExpectNested(spans);
  EXPECT_THAT(NamesOf(spans), ::testing::Contains("wait for the disk"));
}

TEST_F(PretrainProfileTest, EachRankThatIsAskedForWritesItsOwnWithItsCollectives) {
  const Outcome outcome = Run(
      {SaveTo("save"), "--profile", "--set=logging.profile_ranks=[1, 6]",
       "--set=logging.profile_step_start=2", "--set=logging.profile_step_end=5",
       absl::StrCat("--set=logging.profile_dir=", Path("traces")), "--set=train.micro_batch_size=1",
       "--set=parallel.tensor_model_parallel_size=2", "--set=parallel.sequence_parallel=true",
       "--set=parallel.pipeline_model_parallel_size=2", "--set=parallel.data_parallel_size=2",
       "--set=parallel.use_distributed_optimizer=true", "--set=parallel.overlap_grad_reduce=true",
       "--set=checkpoint.save_interval=4", "--set=checkpoint.async_save=true"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "profile of iterations 3 to 5"), 2) << outcome.output;
  EXPECT_THAT(FilesIn("traces"), ElementsAre("trace_rank_1.json", "trace_rank_6.json"));
  for (const int rank : {1, 6}) {
    const TraceFile trace = ReadTrace(Path(absl::StrCat("traces/trace_rank_", rank, ".json")));
    EXPECT_THAT(trace.processes, ElementsAre(rank));
    ASSERT_THAT(trace.threads, SizeIs(4));
    for (const auto& [name, spans] : trace.threads) ExpectNested(spans);
    const std::vector<Span>& spans = trace.threads.at("compute");
    EXPECT_THAT(StepsOf(spans), ElementsAre("step 3", "step 4", "step 5"));
    // Layers are those of the rank's own stage.
    const std::string mine = absl::StrCat("decoder.layers.", rank / 4);
    const std::string others = absl::StrCat("decoder.layers.", 1 - rank / 4);
    EXPECT_THAT(NamesOf(spans), IsSupersetOf({mine, std::string("wait for checkpoint")}));
    EXPECT_THAT(NamesOf(spans), Not(::testing::Contains(others)));
    std::map<std::string, int64_t> bytes;  // indexed by call and group
    for (const auto& [name, thread] : trace.threads) {
      for (const Span& span : thread) {
        if (!span.args.contains("group")) continue;
        bytes[absl::StrCat(name, ": ", span.name, " in ",
                           span.args.at("group").get<std::string>().substr(0, 2))] +=
            span.args.at("bytes").get<int64_t>();
      }
    }
    for (const char* call :
         {"compute: all-gather in tp", "compute: reduce-scatter in tp",
          "communication tp: reduce-scatter in tp", "communication pp: exchange in pp",
          "communication: reduce-scatter in dp"}) {
      EXPECT_GT(bytes[call], 0) << call;
    }
  }
}

TEST_F(PretrainProfileTest, ContinuedWithinTheWindowARunKeepsWhatItSawBefore) {
  const Arguments window = {SaveTo("save"), "--profile", "--set=logging.profile_step_start=2",
                            "--set=logging.profile_step_end=8"};
  ASSERT_EQ(Run(Joined(window, {"--set=train.exit_interval=4"})).exit_code, kExitDone);
  ASSERT_EQ(Run(window).exit_code, kExitDone);
  EXPECT_THAT(FilesIn("save/profile"),
              ElementsAre("trace_rank_0.json", "trace_rank_0_from_5.json"));
  const auto steps = [this](const std::string& name) {
    return StepsOf(ReadTrace(Path("save/profile/" + name)).threads.at("compute"));
  };
  EXPECT_THAT(steps("trace_rank_0.json"), ElementsAre("step 3", "step 4"));
  EXPECT_THAT(steps("trace_rank_0_from_5.json"),
              ElementsAre("step 5", "step 6", "step 7", "step 8"));
}

TEST_F(PretrainProfileTest, ADirectoryThatCannotBeWrittenIsFoundBeforeTheFirstStep) {
  std::ofstream(Path("file")) << "no directory";
  const Outcome outcome =
      Run({"--profile", absl::StrCat("--set=logging.profile_dir=", Path("file"))});
  EXPECT_EQ(outcome.exit_code, kExitIo) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "logging.profile_dir = "), 1) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "iteration"), 0) << outcome.output;
}

TEST_F(PretrainProfileTest, AGpuHasTheHostsTimesAndItsOwn) {
  Arguments command = Command({"--profile", absl::StrCat("--set=logging.profile_dir=", Path("p"))});
  command[0] = ProgramPath("megatron/train/pretrain_gpt_emulated_cuda");
  const std::string log = Path("cuda.txt");
  const Outcome outcome = FinishProgram(StartProgram(command, log), log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "    taken of cuda:0 "), 1) << outcome.output;
  const TraceFile trace = ReadTrace(Path("p/trace_rank_0.json"));
  ASSERT_THAT(trace.threads, SizeIs(2));
  const std::vector<Span>&host = trace.threads.at("compute (host)"),
        &device = trace.threads.at("compute (GPU)");
  EXPECT_EQ(NamesOf(device), NamesOf(host));
  EXPECT_THAT(StepsOf(device), ElementsAre("step 11", "step 12"));
  ExpectNested(host);
  ExpectNested(device);
}

TEST_F(PretrainProfileTest, TrainingThatEndsEarlierEndsTheProfile) {
  const Outcome outcome = Run({SaveTo("save"), "--profile", "--set=logging.profile_step_start=1",
                               "--set=logging.profile_step_end=9", "--set=train.exit_interval=3"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "profile of iterations 2 to 3"), 1) << outcome.output;
  // Continued, what is left of the window is profiled, and behind it nothing is, which is said.
  const Outcome rest = Run({SaveTo("save"), "--profile", "--set=logging.profile_step_start=1",
                            "--set=logging.profile_step_end=9"});
  EXPECT_EQ(CountOf(rest.output, "profile of iterations 4 to 9"), 1) << rest.output;
  const Outcome behind = Run({SaveTo("save"), "--profile", "--set=logging.profile_step_start=1",
                              "--set=logging.profile_step_end=9", "--set=train.train_iters=14"});
  EXPECT_EQ(CountOf(behind.output, "nothing is profiled: 12 iterations are done"), 1)
      << behind.output;
}

}  // namespace
}  // namespace megatron
