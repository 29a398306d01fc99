#include "megatron/train/preflight/plan_report.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "megatron/base/quantity.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/configs/config_shipped.h"
#include "megatron/train/preflight/check_memory.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int64_t kGiB = int64_t{1} << 30;

struct Planned {
  LoadedConfig loaded;
  PlannedPretraining run;
};

Planned Plan(const std::string& name, const std::vector<std::string>& overrides = {}) {
  Planned planned;
  auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, IsOk());
  if (!loaded.ok()) return planned;
  planned.loaded = *std::move(loaded);
  auto run = PlanPretraining(planned.loaded.config);
  EXPECT_THAT(run, IsOk());
  if (run.ok()) planned.run = *std::move(run);
  return planned;
}

MachineMemory Host(int64_t bytes) {
  MachineMemory machine;
  machine.host_bytes = bytes;
  return machine;
}

std::string ScreenOf(const Planned& planned, const MachineMemory& machine = Host(64 * kGiB)) {
  return FormatPlanScreen(planned.loaded, planned.run, machine);
}

// Returns the text's words, without the breaks of lines.
std::string WordsOf(const std::string& text) {
  return absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
}

Json JsonOf(const Planned& planned, const MachineMemory& machine = Host(64 * kGiB)) {
  return Json::parse(FormatPlanJson(planned.loaded, planned.run, machine));
}

TEST(PlanScreenTest, EveryShippedConfigurationFitsOnOneScreen) {
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    SCOPED_TRACE(shipped.name);
    const std::string screen = ScreenOf(Plan(std::string(shipped.name)));
    const std::vector<std::string> lines = absl::StrSplit(screen, '\n');
    EXPECT_LE(lines.size(), 41u) << screen;  // the last is empty
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << line;
  }
}

// Megatron's examples, their parameters reckoned by hand.
TEST(PlanScreenTest, ParametersOfMegatronsExamplesAreThoseOfTheirArchitectures) {
  const int64_t h = 12288;
  EXPECT_EQ(JsonOf(Plan("gpt3_175b"))["parameters"],
            51200 * h + 2048 * h + 96 * (12 * h * h + 13 * h) + 2 * h);
  // Queries and the output, keys and values of 8 of 32 heads, three matrices of the MLP, two norms.
  const int64_t attention = 2 * 4096 * 4096 + 2 * 4096 * 1024, mlp = 3 * 4096 * 14336;
  EXPECT_EQ(JsonOf(Plan("llama3_8b"))["parameters"],
            2 * 128256 * 4096 + 32 * (attention + mlp + 2 * 4096) + 4096);
  EXPECT_EQ(JsonOf(Plan("mixtral_8x7b"))["parameters"],
            2 * 32000 * 4096 + 32 * (attention + 8 * mlp + 8 * 4096 + 2 * 4096) + 4096);
  EXPECT_EQ(JsonOf(Plan("mixtral_8x7b"))["parameters"], 46702792704);
  // Latent attention: down to 1536 for queries and to 512 and the shared 64 for keys and values,
  // both normalized, up to 128 heads of 192, and of 128 and 128, and back. Then experts, a shared
  // one and the router, or an MLP in the first three layers, and two norms.
  const int64_t d = 7168, latent = d * (1536 + 512 + 64) + 1536 + 512 + 128 * 192 * 1536 +
                                   128 * (128 + 128) * 512 + d * 128 * 128;
  const int64_t dense = latent + 3 * d * 18432 + 2 * d;
  const int64_t mixture = latent + (256 + 1) * 3 * d * 2048 + 256 * d + 2 * d;
  const int64_t model = 2 * 129280 * d + 3 * dense + 58 * mixture + d;
  EXPECT_EQ(model,
            671026404352);  // as published, but for a bias of each expert that is not trained
  // A layer of multi-token prediction is like the last, with three norms and two of d to one of d.
  EXPECT_EQ(JsonOf(Plan("deepseek_v3"))["parameters"], model + mixture + 3 * d + 2 * d * d);
  // 64 heads with sinks, 8 groups, biases everywhere, experts with gates.
  const int64_t o = 2880, heads = o * (2 * 4096 + 2 * 512) + 4096 + 2 * 512 + o + 64;
  const int64_t expert = 3 * o * o + 2 * o + o;
  EXPECT_EQ(JsonOf(Plan("gpt_oss_20b"))["parameters"],
            2 * 201088 * o + 24 * (heads + 32 * expert + 32 * o + 32 + 2 * o) + o);
  EXPECT_EQ(JsonOf(Plan("gpt_oss_20b"))["parameters"], 20914757184);  // as published
  // Embeddings of words, positions and token types; layers; the last norm; the head's layer and
  // norm with a bias for each word; the pooler and two classes.
  const int64_t b = 1024;
  EXPECT_EQ(JsonOf(Plan("bert_345m"))["parameters"],
            (30592 + 512 + 2) * b + 24 * (12 * b * b + 13 * b) + 2 * b + (b * b + b) + 2 * b +
                30592 + (b * b + b) + (2 * b + 2));
  // Both stacks have one embedding. A layer of the decoder has another attention and its norm.
  const int64_t t = 768;
  EXPECT_EQ(JsonOf(Plan("t5_220m"))["parameters"], (29184 + 512) * t + 12 * (12 * t * t + 13 * t) +
                                                       12 * (16 * t * t + 19 * t) + 4 * t + 29184);
}

// Each rank needs less than the memory of the GPUs that the configuration names.
TEST(PlanScreenTest, MegatronsExamplesFitTheirGpus) {
  const std::vector<std::pair<std::string, double>> gigabytes = {{"gpt3_175b", 80},
                                                                 {"llama3_8b", 80},
                                                                 {"mixtral_8x7b", 80},
                                                                 {"gpt_oss_20b", 80},
                                                                 {"deepseek_v3", 141}};
  for (const auto& [name, memory] : gigabytes) {
    const Json plan = JsonOf(Plan(name));
    for (const Json& stage : plan["memory"]["stages"])
      EXPECT_LT(stage["bytes"].get<double>(), memory * 1e9) << name << stage["first_rank"];
  }
}

TEST(PlanJsonTest, WarnsOfFieldsThatLeaveAllLayersAlike) {
  const auto warnings = [](const std::string& no_rope, const std::string& skip) {
    const Planned planned =
        Plan("llama_tiny", {"system.device=cpu", "model.window_size=8",
                            absl::StrCat("model.no_rope_freq=\"", no_rope, "\""),
                            absl::StrCat("model.window_attn_skip_freq=\"", skip, "\"")});
    return JsonOf(planned)["warnings"].dump();
  };
  const std::string still = "model.no_rope_freq does nothing: all layers with attention rotate";
  const std::string open =
      "model.window_attn_skip_freq does nothing: all layers with attention see the window";
  EXPECT_THAT(warnings("9", "2"), AllOf(HasSubstr(still), Not(HasSubstr(open))));
  EXPECT_THAT(warnings("2", "9"), AllOf(Not(HasSubstr(still)), HasSubstr(open)));
}

TEST(PlanScreenTest, SaysWhatRunsAndWhatItTakes) {
  const std::string screen = ScreenOf(Plan("gpt3_857m", {"system.device=cpu"}));
  for (const char* text :
       {"GPT of 24 layers, hidden 1024, 16 heads, sequence 2048, fp16", "355,919,872; vocabulary",
        "4 ranks = tensor 2 x pipeline 2 x data 1",
        "global 16 = micro-batch 1 x accumulation 16 x data 1", "nothing would be saved",
        "available here: 64.00 GiB", "--dry_run=full"}) {
    EXPECT_THAT(screen, HasSubstr(text));
  }
  EXPECT_THAT(screen, AllOf(ContainsRegex("\nranks 0-1 +[0-9.]+ [MG]iB "),
                            ContainsRegex("\nranks 2-3 +[0-9.]+ [MG]iB ")));
}

TEST(PlanScreenTest, ListsWhatIsNotTheDefault) {
  const std::string screen =
      ScreenOf(Plan("gpt_demo", {"optimizer.clip_grad=0.5", "optimizer.weight_decay=0.01",
                                 "logging.log_params_norm=true"}));
  EXPECT_THAT(screen, AllOf(HasSubstr("clip_grad=0.5"), HasSubstr("log_params_norm=true"),
                            Not(HasSubstr("weight_decay=")), Not(HasSubstr("num_layers="))));
}

TEST(PlanScreenTest, LongListsOfFieldsAndLongValuesAreCut) {
  Planned planned = Plan("gpt_demo");
  std::vector<std::string> overrides = {absl::StrCat("generation.prompt=", std::string(60, 'x'))};
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const FieldRef ref = Resolve(config::PretrainConfig::default_instance(), path);
    if (ref.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL)
      overrides.push_back(absl::StrCat(path, "=", ValueText(ref) == "true" ? "false" : "true"));
  }
  ParsedConfig parsed = ParseConfig("", "x", overrides);
  // The plan stays that of gpt_demo; only the list of fields comes from here.
  planned.loaded.locations = parsed.locations;
  planned.loaded.config.MergeFrom(parsed.config);
  const std::string screen = ScreenOf(planned);
  EXPECT_LE(std::count(screen.begin(), screen.end(), '\n'), 40) << screen;
  EXPECT_THAT(screen, ContainsRegex("\nand [0-9]+ more\n"));
  planned.loaded.locations = ConfigLocations("x");
  planned.loaded.locations.Set("generation.prompt", "x");
  EXPECT_THAT(ScreenOf(planned),
              HasSubstr("generation   prompt=\"" + std::string(36, 'x') + "...\n"));
}

TEST(PlanScreenTest, SaysWhereMemoryIsShort) {
  const Planned planned = Plan("gpt2_124m", {"system.device=cpu", "checkpoint.save=x"});
  EXPECT_THAT(WordsOf(ScreenOf(planned, Host(kGiB))),
              AllOf(HasSubstr("WARNING: the run takes "),
                    HasSubstr(" of memory and 1.00 GiB are available; --dry_run says")));
  EXPECT_THAT(ScreenOf(planned), Not(HasSubstr("the run takes")));
  const Planned on_gpu = Plan("gpt2_124m", {"system.device=cuda", "checkpoint.save=x"});
  EXPECT_THAT(ScreenOf(on_gpu), HasSubstr("no GPU here"));
  MachineMemory machine = Host(kGiB);
  machine.gpu_bytes = {kGiB};
  EXPECT_THAT(WordsOf(ScreenOf(on_gpu, machine)),
              AllOf(HasSubstr("free on a GPU here: 1.00 GiB"), HasSubstr("WARNING: rank 0 takes "),
                    HasSubstr(" of the memory of GPU 0 and 1.00 GiB are available")));
  machine.gpu_bytes = {80 * kGiB};
  EXPECT_THAT(WordsOf(ScreenOf(on_gpu, machine)), Not(HasSubstr("are available")));
}

// The rule is that of the run: each GPU has to hold the ranks that would have it.
TEST(PlanScreenTest, ComparesEachGpuWithItsOwnRanks) {
  const std::vector<std::string> four = {
      "system.device=cuda", "checkpoint.save=x", "parallel.pipeline_model_parallel_size=2",
      "parallel.tensor_model_parallel_size=1", "parallel.data_parallel_size=2"};
  Planned planned = Plan("gpt3_857m", four);
  const std::vector<RankPlan>& stages = planned.run.plan.stages;
  ASSERT_EQ(stages.size(), 2u);
  const int64_t first = stages[0].total_bytes(), last = stages[1].total_bytes();
  ASSERT_NE(first, last);
  MachineMemory machine = Host(64 * kGiB);
  const auto fits = [&](const std::vector<int64_t>& free) {
    machine.gpu_bytes = free;
    const Json json = JsonOf(planned, machine);
    EXPECT_EQ(json["memory"]["device_bytes_available"],
              *std::min_element(free.begin(), free.end()));
    return json["memory"]["fits"] == true;
  };
  // Ranks 0 and 1 are of the first stage. As threads all of them are here, two on each of two GPUs.
  ASSERT_EQ(stages[0].ranks, std::vector<int>({0, 1}));
  planned.run.options.ranks.processes = false;
  EXPECT_TRUE(fits({first, first, last, last}));
  EXPECT_FALSE(fits({first, first - 1, last, last + 1}));
  EXPECT_TRUE(fits({first + last, first + last}));
  EXPECT_FALSE(fits({first + last, first + last - 1}));
  EXPECT_FALSE(fits({2 * first + 2 * last - 1}));
  // As processes they are on two machines with two GPUs each, of which each rank has one.
  planned.run.options.ranks.processes = true;
  const int64_t most = std::max(first, last);
  EXPECT_TRUE(fits({most, most}));
  EXPECT_FALSE(fits({most, most - 1}));
}

TEST(PlanScreenTest, SaysWhereHostMemoryIsShortForWhatIsOffloaded) {
  const Planned planned =
      Plan("gpt2_124m", {"system.device=cuda", "precision.bf16=true",
                         "optimizer.optimizer_cpu_offload=true", "checkpoint.save=x"});
  MachineMemory machine = Host(kGiB);
  machine.gpu_bytes = {80 * kGiB};
  // The message is that of the run.
  const absl::Status refused =
      CheckHostMemory(planned.run.options, planned.run.plan, 1, machine.host_bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(WordsOf(ScreenOf(planned, machine)),
              HasSubstr(absl::StrCat("WARNING: ", refused.message())));
  const Json json = JsonOf(planned, machine);
  EXPECT_EQ(json["memory"]["fits"], false);
  EXPECT_EQ(json["memory"]["shortages"], Json::array({std::string(refused.message())}));
  machine.host_bytes = 64 * kGiB;
  EXPECT_EQ(JsonOf(planned, machine)["memory"]["fits"], true);
  EXPECT_EQ(JsonOf(planned, machine)["memory"]["shortages"], Json::array());
  // Host memory is known to be short where there is no GPU, too.
  EXPECT_EQ(JsonOf(planned, Host(kGiB))["memory"]["fits"], false);
  EXPECT_EQ(JsonOf(planned, Host(kGiB))["memory"]["shortages"],
            Json::array({std::string(refused.message())}));
  EXPECT_THAT(WordsOf(ScreenOf(planned, Host(kGiB))),
              HasSubstr(absl::StrCat("WARNING: ", refused.message())));
  EXPECT_TRUE(JsonOf(planned, Host(64 * kGiB))["memory"]["fits"].is_null());
  EXPECT_EQ(JsonOf(planned, Host(64 * kGiB))["memory"]["shortages"], Json::array());
}

TEST(PlanScreenTest, SaysWhereFilesFindTooLittleRoom) {
  MachineMemory machine = Host(64 * kGiB);
  machine.disk_refusal = "optimizer.optimizer_offload_path: the files take too much";
  const Planned planned = Plan("gpt_demo", {"system.device=cpu", "checkpoint.save=x"});
  EXPECT_THAT(WordsOf(ScreenOf(planned, machine)), HasSubstr("WARNING: " + machine.disk_refusal));
  const Json json = JsonOf(planned, machine);
  EXPECT_EQ(json["memory"]["fits"], false);
  EXPECT_EQ(json["memory"]["shortages"], Json::array({machine.disk_refusal}));
  machine.host_bytes.reset();
  EXPECT_EQ(JsonOf(planned, machine)["memory"]["fits"], false);
}

TEST(PlanScreenTest, SaysWhereLimitsOrCheckpointsFindTooLittle) {
  const Planned planned = Plan("gpt_demo", {"system.device=cpu", "checkpoint.save=x"});
  MachineMemory machine = Host(64 * kGiB);
  machine.limit_refusal = "ulimit -v leaves too little";
  EXPECT_THAT(WordsOf(ScreenOf(planned, machine)), HasSubstr("WARNING: " + machine.limit_refusal));
  EXPECT_EQ(JsonOf(planned, machine)["memory"]["shortages"], Json::array({machine.limit_refusal}));
  EXPECT_EQ(JsonOf(planned, machine)["memory"]["fits"], false);
  // A run goes on where saves fail.
  machine.limit_refusal.clear();
  machine.checkpoint_shortage = "checkpoint.save: no room";
  EXPECT_EQ(JsonOf(planned, machine)["memory"]["fits"], true);
  EXPECT_THAT(JsonOf(planned, machine)["warnings"],
              ::testing::Contains("checkpoint.save: no room"));
}

TEST(PlanScreenTest, SaysWhatACheckpointTakes) {
  const Json saves = JsonOf(Plan("gpt3_857m", {"system.device=cpu", "checkpoint.save=x"}));
  // Masters and two moments of fp32 and weights of fp16, each parameter once.
  const int64_t parameters = saves["parameters"].get<int64_t>();
  EXPECT_GE(saves["memory"]["checkpoint_bytes"].get<int64_t>(), 14 * parameters);
  EXPECT_LT(saves["memory"]["checkpoint_bytes"].get<int64_t>(), 15 * parameters);
  int64_t shards = 0;
  for (const Json& stage : saves["memory"]["stages"])
    shards += stage["checkpoint_shard_bytes"].get<int64_t>();
  EXPECT_GT(shards, 0);
  EXPECT_LT(shards, saves["memory"]["checkpoint_bytes"].get<int64_t>());
  const Json never = JsonOf(Plan("gpt3_857m", {"system.device=cpu"}));
  EXPECT_EQ(never["memory"]["checkpoint_bytes"], 0);
  EXPECT_EQ(never["memory"]["stages"][0]["checkpoint_shard_bytes"], 0);
}

TEST(PlanScreenTest, ComparesTheRanksThatThisMachineWouldRun) {
  RunOptions options;
  options.parallel.data = 16;
  EXPECT_EQ(RanksPlannedHere(options, 0), 16);
  options.device = DeviceType::kCuda;
  EXPECT_EQ(RanksPlannedHere(options, 0), 0);
  EXPECT_EQ(RanksPlannedHere(options, 8), 16);
  options.ranks.processes = true;
  EXPECT_EQ(RanksPlannedHere(options, 8), 8);
  EXPECT_EQ(RanksPlannedHere(options, 32), 16);
}

TEST(PlanScreenTest, SaysWhatLayersKeepInHostMemory) {
  const std::vector<std::string> all = {"system.device=cuda", "precision.bf16=true"};
  std::vector<std::string> some = all;
  some.push_back("recompute.cpu_offloading_num_layers=8");
  const Planned without = Plan("gpt2_124m", all), with = Plan("gpt2_124m", some);
  const RankPlan &kept = without.run.plan.stages[0], &left = with.run.plan.stages[0];
  const int64_t on_host = left.host_memory.at("activations");
  const int64_t windows = left.memory.at("activations/windows");
  // Layers are alike, but the first one's input stays where it is.
  EXPECT_GT(on_host, 7 * windows / 3);
  EXPECT_LT(on_host, 8 * windows / 3);
  EXPECT_EQ(left.memory.at("activations/saved") + on_host, kept.memory.at("activations/saved"));
  EXPECT_EQ(left.total_bytes() + on_host, kept.total_bytes() + windows);
  EXPECT_THAT(FormatFullPlan(with.loaded, with.run),
              AllOf(HasSubstr("activations/windows"), HasSubstr("and in host memory: ")));
  some[0] = "system.device=cpu";
  EXPECT_EQ(Plan("gpt2_124m", some).run.plan.stages[0].host_bytes(), 0);
}

TEST(PlanScreenTest, SaysWhatLayersAndAttentionInChunksKeepInHostMemory) {
  std::vector<std::string> chunks = {"system.device=cuda", "precision.bf16=true",
                                     "recompute.attention_chunk_tokens=256"};
  const Planned on_gpu = Plan("gpt2_124m", chunks);
  chunks.push_back("recompute.attention_chunks_on_host=true");
  const Planned attention = Plan("gpt2_124m", chunks);
  chunks.push_back("recompute.cpu_offloading_num_layers=8");
  const Planned both = Plan("gpt2_124m", chunks);
  const RankPlan &none = on_gpu.run.plan.stages[0], &some = attention.run.plan.stages[0],
                 &most = both.run.plan.stages[0];
  EXPECT_EQ(none.host_bytes(), 0);
  EXPECT_LT(some.memory.at("activations/saved"), none.memory.at("activations/saved"));
  // What layers keep besides goes from one to the other, and the windows come on top. The first
  // layer's input stays.
  const int64_t leaving = most.host_bytes() - some.host_bytes();
  const int64_t windows = most.memory.at("activations/windows");
  EXPECT_GT(leaving, 7 * windows / 3);
  EXPECT_LT(leaving, 8 * windows / 3);
  EXPECT_EQ(most.memory.at("activations/saved") + most.host_bytes(),
            some.memory.at("activations/saved") + some.host_bytes());
  EXPECT_EQ(most.total_bytes() + most.host_bytes(),
            some.total_bytes() + some.host_bytes() + windows);
  EXPECT_THAT(FormatFullPlan(both.loaded, both.run),
              AllOf(HasSubstr("activations/windows"), HasSubstr("and in host memory: ")));
}

TEST(PlanScreenTest, SaysWhatLiesInHostMemory) {
  const std::vector<std::string> half = {"system.device=cuda", "precision.bf16=true"};
  std::vector<std::string> offload = half;
  offload.push_back("optimizer.optimizer_cpu_offload=true");
  const Planned on_gpu = Plan("gpt2_124m", half), on_host = Plan("gpt2_124m", offload);
  const RankPlan &all = on_gpu.run.plan.stages[0], &rest = on_host.run.plan.stages[0];
  EXPECT_EQ(all.host_bytes(), 0);
  for (const char* state : {"master weights", "exp_avg", "exp_avg_sq"}) {
    EXPECT_EQ(rest.memory.at(state), 0) << state;
    EXPECT_EQ(rest.host_memory.at(state), all.memory.at(state)) << state;
  }
  EXPECT_THAT(ScreenOf(on_gpu), Not(HasSubstr("host memory")));
  EXPECT_THAT(ScreenOf(on_host, Host(kGiB)),
              AllOf(HasSubstr("in host memory, all ranks: 1.40"), HasSubstr("here: 1.00 GiB")));
  const Json json = JsonOf(on_host);
  EXPECT_EQ(json["memory"]["stages"][0]["host_bytes"], rest.host_bytes());
  EXPECT_EQ(json["memory"]["stages"][0]["host_kinds"]["exp_avg"], rest.host_memory.at("exp_avg"));
  EXPECT_THAT(FormatFullPlan(on_host.loaded, on_host.run),
              AllOf(HasSubstr("and in host memory: 1.40 GiB"), HasSubstr("+ offloaded 1.40 GiB")));
  offload[0] = "system.device=cpu";
  EXPECT_EQ(Plan("gpt2_124m", offload).run.plan.stages[0].host_bytes(), 0);
}

TEST(PlanScreenTest, SaysWhichWeightsLieInHostMemory) {
  const std::vector<std::string> states = {"system.device=cuda", "precision.bf16=true",
                                           "optimizer.optimizer_cpu_offload=true"};
  std::vector<std::string> weights = states;
  weights.push_back("parallel.param_cpu_offload=true");
  const Planned on_gpu = Plan("gpt2_124m", states), on_host = Plan("gpt2_124m", weights);
  const RankPlan &all = on_gpu.run.plan.stages[0], &rest = on_host.run.plan.stages[0];
  EXPECT_EQ(rest.memory.at("weights"), 0);
  EXPECT_EQ(rest.host_memory.at("weights"), all.memory.at("weights"));
  EXPECT_EQ(rest.memory.at("gradients"), 0);
  EXPECT_EQ(rest.host_memory.at("gradients"), all.memory.at("gradients"));
  // The word table, which the head uses too, and a layer or two are there at a time.
  const int64_t moved = all.memory.at("weights") + all.memory.at("gradients");
  const int64_t in_use = rest.memory.at("weights/gathered") + rest.memory.at("gradients/whole");
  EXPECT_LT(in_use, moved * 2 / 3);
  // Norms of gradients need more room than those of masters, and updates need no staging.
  constexpr int64_t kPiece = int64_t{1} << 20;
  EXPECT_EQ(rest.total_bytes() - in_use, all.total_bytes() - moved + (4 - 1) * kPiece * 4);
  EXPECT_EQ(rest.host_bytes(), all.host_bytes() + moved - 2 * kPiece * (4 + 2));
  EXPECT_THAT(FormatFullPlan(on_host.loaded, on_host.run), HasSubstr("weights/gathered"));
  weights[0] = "system.device=cpu";
  EXPECT_EQ(Plan("gpt2_124m", weights).run.plan.stages[0].host_bytes(), 0);
}

TEST(PlanScreenTest, SaysWhatLiesInFiles) {
  const std::vector<std::string> common = {"precision.bf16=true",
                                           "optimizer.optimizer_cpu_offload=true"};
  for (const std::string device : {"cpu", "cuda"}) {
    SCOPED_TRACE(device);
    std::vector<std::string> overrides = common;
    overrides.push_back("system.device=" + device);
    EXPECT_EQ(Plan("gpt2_124m", overrides).run.plan.stages[0].file_bytes, 0);
    overrides.push_back("optimizer.optimizer_offload_path=/nvme");
    const Planned planned = Plan("gpt2_124m", overrides);
    const RankPlan& rank = planned.run.plan.stages[0];
    // 12 bytes of a parameter, and less than 4 KiB at the end of each tensor of an extent.
    EXPECT_GE(rank.file_bytes, 12 * rank.parameters);
    EXPECT_LE(rank.file_bytes, 12.1 * static_cast<double>(rank.parameters));
    EXPECT_EQ(rank.memory.at("exp_avg"), 0);
    EXPECT_EQ(rank.host_memory.count("exp_avg"), 0);
    // Three extents of 2^20 elements.
    EXPECT_EQ(rank.host_memory.at("optimizer extents"), (int64_t{36} << 20) + 4096);
    EXPECT_EQ(rank.host_memory.count("optimizer staging"), device == "cuda" ? 1 : 0);
    MachineMemory machine = Host(64 * kGiB);
    machine.disk_bytes = 10 * kGiB;
    EXPECT_THAT(
        WordsOf(ScreenOf(planned, machine)),
        AllOf(HasSubstr("in files, all ranks: 1.39 GiB, which each step reads and writes"),
              HasSubstr(absl::StrCat(
                  "writes (", FormatBytes(rank.file_bytes * planned.run.options.loop.train_iters),
                  " written in ", planned.run.options.loop.train_iters, " iterations, ",
                  FormatBytes(rank.file_bytes * 86400), " a day with a step a second)")),
              HasSubstr("free there: 10.00 GiB")));
    EXPECT_THAT(FormatFullPlan(planned.loaded, planned.run),
                AllOf(HasSubstr("and in a file in /nvme: 1.39 GiB"),
                      HasSubstr(absl::StrCat(FormatBytes(rank.file_bytes * 86400),
                                             " written a day with a step a second"))));
    const Json json = JsonOf(planned, machine);
    EXPECT_EQ(json["memory"]["stages"][0]["file_bytes"], rank.file_bytes);
    EXPECT_EQ(json["memory"]["file_bytes_written_a_step"], rank.file_bytes);
    EXPECT_EQ(json["memory"]["file_bytes_written_in_all"],
              rank.file_bytes * planned.run.options.loop.train_iters);
    EXPECT_EQ(json["memory"]["file_bytes_written_a_day_with_a_step_a_second"],
              rank.file_bytes * 86400);
    EXPECT_EQ(json["memory"]["disk_bytes_available"], 10 * kGiB);
  }
}

TEST(PlanScreenTest, SaysWhereAWindowDoesNothing) {
  const std::string longer = ScreenOf(Plan("gpt_demo", {"model.window_size=511"}));
  EXPECT_THAT(longer, HasSubstr("model.window_size = 511 does nothing"));
  const std::string shorter = ScreenOf(Plan("gpt_demo", {"model.window_size=510"}));
  EXPECT_THAT(shorter, Not(HasSubstr("does nothing")));
}

TEST(PlanScreenTest, SaysWhichWeightsLieInFiles) {
  const std::vector<std::string> on_host = {"system.device=cuda", "precision.bf16=true",
                                            "optimizer.optimizer_cpu_offload=true",
                                            "parallel.param_cpu_offload=true"};
  std::vector<std::string> in_files = on_host;
  in_files.push_back("parallel.param_offload_path=/nvme");
  const Planned before = Plan("gpt2_124m", on_host), planned = Plan("gpt2_124m", in_files);
  const RankPlan &was = before.run.plan.stages[0], &rank = planned.run.plan.stages[0];
  EXPECT_EQ(was.weight_file_bytes, 0);
  EXPECT_GE(rank.weight_file_bytes, was.host_memory.at("weights"));
  EXPECT_LE(rank.weight_file_bytes, was.host_memory.at("weights") + 4096);
  EXPECT_EQ(rank.host_memory.count("weights"), 0);
  EXPECT_EQ(rank.host_memory.at("gradients"), was.host_memory.at("gradients"));
  // Three extents of 2^20 elements, and three word tables, the largest block.
  EXPECT_EQ(rank.host_memory.at("weight extents"), (int64_t{6} << 20) + 4096);
  EXPECT_GE(rank.host_memory.at("weights read ahead"), int64_t{3} * 2 * 50257 * 768);
  EXPECT_EQ(rank.total_bytes(), was.total_bytes());
  EXPECT_THAT(FormatFullPlan(planned.loaded, planned.run), HasSubstr("and in a file in /nvme: "));
  const Json json = JsonOf(planned, Host(64 * kGiB));
  EXPECT_EQ(json["memory"]["stages"][0]["weight_file_bytes"], rank.weight_file_bytes);
}

TEST(PlanScreenTest, SaysWhyARunHereWouldBeRefused) {
  MachineMemory machine = Host(64 * kGiB);
  machine.refusal = "system.fuse_bias_gradients = true: has no effect on the CPU";
  EXPECT_THAT(ScreenOf(Plan("gpt_demo", {}), machine),
              HasSubstr("a run here would be refused: system.fuse_bias_gradients"));
}

TEST(PlanScreenTest, OfALongPipelinePrintsTheEndsAndTheWorst) {
  const std::string screen =
      ScreenOf(Plan("gpt_demo", {"model.num_layers=16", "parallel.pipeline_model_parallel_size=16",
                                 "system.device=cpu"}));
  EXPECT_THAT(screen, AllOf(ContainsRegex("\nrank 0 "), ContainsRegex("\nrank 15 "),
                            HasSubstr("(16 pipeline stages"), Not(ContainsRegex("\nrank 7 "))));
}

TEST(PlanScreenTest, NamesTheStagesWhereTheirRanksAreNoNeighbours) {
  const Planned planned =
      Plan("gpt3_857m", {"system.device=cpu", "parallel.rank_order=pp-tp-cp-ep-dp"});
  EXPECT_THAT(ScreenOf(planned),
              AllOf(HasSubstr("numbered pp-tp-cp-ep-dp"), ContainsRegex("\nranks 0, 2 "),
                    ContainsRegex("\nranks 1, 3 ")));
  const Json json = JsonOf(planned);
  EXPECT_EQ(json["layout"]["rank_order"], "pp-tp-cp-ep-dp");
  EXPECT_EQ(json["memory"]["stages"][1]["first_rank"], 1);
  EXPECT_EQ(json["memory"]["stages"][1]["last_rank"], 3);
}

TEST(PlanJsonTest, HasTheNumbersOfThePlan) {
  const Planned planned = Plan("gpt3_857m", {"system.device=cpu", "checkpoint.save=x"});
  const Json json = JsonOf(planned);
  EXPECT_EQ(json["parameters"], 355919872);
  EXPECT_EQ(json["layout"]["ranks"], 4);
  EXPECT_EQ(json["layout"]["tensor"], 2);
  EXPECT_EQ(json["tokens_per_step"], json["samples_per_step"].get<int64_t>() * 2048);
  ASSERT_EQ(json["memory"]["stages"].size(), 2u);
  EXPECT_EQ(json["memory"]["stages"][1]["first_rank"], 2);
  EXPECT_EQ(json["memory"]["stages"][0]["bytes"], planned.run.plan.stages[0].total_bytes());
  EXPECT_EQ(json["memory"]["stages"][0]["kinds"]["weights"],
            planned.run.plan.stages[0].memory.at("weights"));
  EXPECT_EQ(json["memory"]["all_ranks_bytes"], planned.run.plan.rank_bytes());
  EXPECT_EQ(json["memory"]["fits"], true);
  EXPECT_EQ(json["flops_per_token"], planned.run.speed.flops_per_token);
  EXPECT_EQ(json["config"]["model"]["num_layers"], 24);
  EXPECT_EQ(json["config"]["optimizer"]["optimizer"], "adam");
}

TEST(PlanJsonTest, SaysWhatIsSetAndWarns) {
  const Json json = JsonOf(Plan("gpt_demo", {"optimizer.clip_grad=0.5", "data.split=\"8,2\"",
                                             "recompute.recompute_granularity=selective"}),
                           Host(1));
  EXPECT_THAT(json["set"], ::testing::Contains("optimizer.clip_grad"));
  EXPECT_EQ(json["config"]["optimizer"]["clip_grad"], 0.5);
  EXPECT_EQ(json["config"]["recompute"]["recompute_modules"], Json::array({"core_attn"}));
  EXPECT_EQ(json["memory"]["fits"], false);
  EXPECT_GE(json["warnings"].size(), 2u);
}

TEST(PlanJsonTest, WhatIsUnknownIsNull) {
  const Json json = JsonOf(Plan("gpt_demo", {"system.device=cpu"}), MachineMemory());
  EXPECT_TRUE(json["memory"]["fits"].is_null());
  EXPECT_TRUE(json["memory"]["host_bytes_available"].is_null());
}

}  // namespace
}  // namespace megatron
