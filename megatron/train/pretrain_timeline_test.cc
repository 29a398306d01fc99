// Compares the planner's simulated step with the profile of a real one: the same passes in the same
// order on every stage, and the same exchanges of messages.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/planning/explain_step.h"
#include "megatron/train/pretrain_harness.h"
#include "megatron/train/profile/check_trace.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

// What a rank did: its passes in order, with their chunks, and how often it made each exchange.
struct Structure {
  std::vector<std::string> passes;
  std::map<std::string, int> exchanges;
};

bool IsPass(const std::string& name) {
  return (absl::StartsWith(name, "forward ") || absl::StartsWith(name, "backward ")) &&
         name.find_first_of("0123456789") != std::string::npos;
}

bool IsExchange(const std::string& name) {
  return absl::StrContains(name, "-send") || absl::StrContains(name, "-recv");
}

std::map<int, Structure> Read(const std::string& text) {
  std::map<int, Structure> ranks;
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(file.is_object()) << text;
  if (!file.is_object()) return ranks;
  std::map<std::pair<int, int>, std::string> threads;
  for (const Json& event : file.at("traceEvents")) {
    const int rank = event.at("pid");
    if (event.at("name") == "thread_name")
      threads[{rank, event.at("tid")}] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    const std::string thread = threads.at({rank, event.at("tid")});
    if (IsPass(name)) {
      EXPECT_EQ(thread, "compute");
      ranks[rank].passes.push_back(
          absl::StrCat(name, " of chunk ", event.at("args").at("chunk").get<int>()));
    } else if (IsExchange(name)) {
      EXPECT_EQ(thread, "communication pp");
      ++ranks[rank].exchanges[name];
    }
  }
  return ranks;
}

class PretrainTimelineTest : public PretrainProgramTest {};

TEST_F(PretrainTimelineTest, TheSimulatedStepHasTheStructureOfTheMeasuredOne) {
  for (const char* schedule : {"1f1b", "zb_h1", "zb_v"}) {
    SCOPED_TRACE(schedule);
    const std::vector<std::string> overrides = {
        "model.num_layers=4",
        "train.micro_batch_size=1",
        "train.global_batch_size=6",
        "train.train_iters=4",
        "train.eval_iters=0",
        "parallel.pipeline_model_parallel_size=2",
        absl::StrCat("parallel.pipeline_schedule=\"", schedule, "\""),
        "logging.profile=true",
        "logging.profile_step_start=2",
        "logging.profile_step_end=3",
        "logging.profile_ranks=[0, 1]"};
    Arguments arguments = {SaveTo(schedule)};
    for (const std::string& override : overrides) arguments.push_back("--set=" + override);
    const Outcome outcome = Run(arguments);
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;

    auto loaded = LoadConfigFromString(ReadTextFile(Path("run.textproto")), "run.textproto",
                                       overrides, ConfigPurpose::kDryRun);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
    const auto step = ExplainStep(loaded->config, 384, **FindHardware(facts, "H100"),
                                  **FindImplementation(facts, "megatron_core"), MeasuredKernels());
    ASSERT_TRUE(step.ok()) << step.status();
    std::map<int, Structure> simulated = Read(TraceJson(ToTrace(step->simulated)));
    ASSERT_EQ(simulated.size(), 2);
    for (const int rank : {0, 1}) {
      const std::string trace =
          ReadTextFile(Path(absl::StrCat(schedule, "/profile/trace_rank_", rank, ".json")));
      const absl::Status readable = CheckTrace(trace);
      EXPECT_TRUE(readable.ok()) << readable;
      std::map<int, Structure> measured = Read(trace);
      EXPECT_FALSE(measured[rank].passes.empty());
      EXPECT_EQ(simulated[rank].passes, measured[rank].passes) << rank;
      EXPECT_EQ(simulated[rank].exchanges, measured[rank].exchanges) << rank;
    }
  }
}

}  // namespace
}  // namespace megatron
