#include "megatron/train/preflight/plan_pretraining.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

config::PretrainConfig Config(const std::string& name, const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, IsOk());
  return loaded->config;
}

TEST(PlanPretrainingTest, AProgramRefusesAnotherModel) {
  const config::PretrainConfig bert = Config("bert_demo", {});
  EXPECT_THAT(CheckModelType(bert, "bert_demo", "bert"), IsOk());
  EXPECT_THAT(CheckModelType(bert, "bert_demo", "gpt"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bert_demo has model.model_type = bert, which pretrain_bert")));
}

TEST(PlanPretrainingTest, PlansEachPipelineStage) {
  const auto planned =
      PlanPretraining(Config("gpt_demo", {"parallel.pipeline_model_parallel_size=2"}));
  ASSERT_THAT(planned, IsOk());
  EXPECT_EQ(planned->plan.stages.size(), 2);
  EXPECT_EQ(planned->options.num_ranks(), 2);
  EXPECT_GT(planned->speed.flops_per_token, 0);
  EXPECT_GT(planned->speed.full_flops_per_token, planned->speed.flops_per_token);
  EXPECT_FALSE(planned->speed.peak_flops.has_value());
}

// The first and the last layer drop no tokens, of which the first has no experts here.
TEST(PlanPretrainingTest, OnlyLayersThatDropTokensCountAsSuch) {
  const auto planned = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"model.num_experts=4", "model.disable_bias_linear=true"});
    const auto plan = PlanPretraining(Config("gpt_demo", overrides));
    EXPECT_THAT(plan, IsOk());
    return plan->speed;
  };
  const SpeedBasis dropping = planned(
      {"model.moe_layer_freq=\"[0]+[1]*3\"", "data.random_ltd={min_value: 128 require_steps: 9}"});
  const SpeedBasis ends = planned({"model.moe_layer_freq=\"[0,1]\"", "model.num_layers=2"});
  EXPECT_GT(dropping.dropping_flops_per_token, 0);
  EXPECT_DOUBLE_EQ(dropping.dropping_flops_per_token,
                   dropping.flops_per_token - ends.flops_per_token);
  EXPECT_DOUBLE_EQ(dropping.dropping_share, 0.5);
}

// Returns the plan of a run on GPUs that choose how many of 24 layers leave, with a link of this
// speed.
absl::StatusOr<PlannedPretraining> PlanWithLink(const std::string& link,
                                                std::vector<std::string> overrides) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/hardware.textproto");
  const std::string text = absl::StrCat(
      "hardware { name: 'mine' fp32_tflops: 20 bf16_tflops: 300 memory_gib: 80 "
      "memory_gb_per_s: 2000 link_gb_per_s: 300 domain: 8 network_gb_per_s: 50 ",
      link, " }");
  EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
  overrides.insert(overrides.end(),
                   {"system.device=cuda", absl::StrCat("system.hardware_file=\"", path, "\""),
                    "parallel.tensor_model_parallel_size=1"});
  return PlanPretraining(Config("gpt3_857m", overrides));
}

TEST(PlanPretrainingTest, ActivationsLeaveAsFarAsTheLinkHidesThem) {
  const std::string is_auto = "recompute.cpu_offloading_auto=true",
                    one_stage = "parallel.pipeline_model_parallel_size=1";
  const auto layers = [&](const std::string& link, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {is_auto, one_stage});
    const auto planned = PlanWithLink(absl::StrCat("host_link_gb_per_s: ", link), overrides);
    EXPECT_THAT(planned, IsOk());
    EXPECT_THAT(planned->offload, HasSubstr("hardware.textproto (mine)"));
    return planned->options.trainer.model.num_offloaded_layers;
  };
  EXPECT_EQ(layers("0.001", {}), 0);
  EXPECT_EQ(layers("1e6", {}), 24);
  const int64_t some = layers("63", {});
  EXPECT_LE(layers("31.5", {}), some);
  EXPECT_LE(some, layers("126", {}));
  // What is recomputed keeps inputs alone, and a part of what a layer keeps is less than all of it.
  EXPECT_GT(layers("63", {"recompute.recompute_granularity=full"}), some);
  EXPECT_GT(layers("63", {"recompute.offload_modules=[mlp_norm]"}), some);
  // Other micro-batches come between the passes of one in the first of two stages, whose last layer
  // therefore stays.
  EXPECT_EQ(layers("1e6", {"parallel.pipeline_model_parallel_size=2"}), 11);
  // The plan is that of the number that was chosen.
  const auto chosen = PlanWithLink("host_link_gb_per_s: 63", {is_auto, one_stage});
  const auto written =
      PlanWithLink("host_link_gb_per_s: 63",
                   {absl::StrCat("recompute.cpu_offloading_num_layers=", some), one_stage});
  ASSERT_THAT(chosen, IsOk());
  ASSERT_THAT(written, IsOk());
  EXPECT_EQ(chosen->plan.stages[0].all_memory(), written->plan.stages[0].all_memory());
  EXPECT_EQ(written->offload, "");
}

TEST(PlanPretrainingTest, ActivationsNeedALinkOfKnownSpeed) {
  EXPECT_THAT(PlanWithLink("", {"recompute.cpu_offloading_auto=true"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("for recompute.cpu_offloading_auto"),
                             HasSubstr("has no host_link_gb_per_s"))));
}

// Returns the plan of eight ranks on the machines that `topology` describes.
absl::StatusOr<PlannedPretraining> PlanOn(const std::string& topology,
                                          std::vector<std::string> overrides) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/topology.textproto");
  EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, topology), IsOk());
  overrides.insert(
      overrides.end(),
      {"parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
       "parallel.data_parallel_size=2", absl::StrCat("parallel.topology_file=\"", path, "\"")});
  return PlanPretraining(Config("gpt_demo", overrides));
}

TEST(PlanPretrainingTest, ATopologyChoosesTheOrderOfRanksUnlessOneIsWritten) {
  // Machines of two ranks, which tensor-parallel ranks should share.
  constexpr char kPairs[] =
      "node { ranks: 2 } node { ranks: 2 } node { ranks: 2 } node { ranks: 2 }\n"
      "domain_gb_per_s: 10 rail_gb_per_s: 0.1\n";
  const auto chosen = PlanOn(kPairs, {});
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->options.parallel.order.axes()[0], Axis::kTensor);
  EXPECT_THAT(chosen->rank_order, HasSubstr("on 4 nodes of 2 ranks"));
  const auto written = PlanOn(kPairs, {"parallel.rank_order=dp-cp-ep-pp-tp"});
  ASSERT_THAT(written, IsOk());
  EXPECT_EQ(written->options.parallel.order.ToString(), "dp-cp-ep-pp-tp");
  EXPECT_EQ(written->plan.stages[1].ranks, (std::vector<int>{2, 3, 6, 7}));
  EXPECT_THAT(written->rank_order, HasSubstr("as parallel.rank_order says"));
}

TEST(PlanPretrainingTest, ATopologyThatDoesNotFitIsAMistakeOfTheConfiguration) {
  const absl::Status few = PlanOn("node { ranks: 4 } domain_gb_per_s: 1", {}).status();
  EXPECT_EQ(ExitCodeOf(few), kExitConfig);
  EXPECT_THAT(std::string(few.message()), AllOf(HasSubstr("parallel.topology_file = "),
                                                HasSubstr("has 4 ranks, and the run 8")));
  const absl::Status wrong = PlanOn("node { gpus: 8 }", {}).status();
  EXPECT_EQ(ExitCodeOf(wrong), kExitConfig);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("line 1"));
  const absl::Status gone = PlanPretraining(Config("gpt_demo", {"parallel.data_parallel_size=2",
                                                                "parallel.topology_file=gone"}))
                                .status();
  EXPECT_EQ(ExitCodeOf(gone), kExitConfig);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("parallel.topology_file = gone"));
}

// A rank's logits are 13 billion numbers, far beyond 32 bits.
TEST(PlanPretrainingTest, MemoryOfTwoMillionTokensOnEightRanksIsInProportion) {
  const std::vector<std::vector<std::string>> forms = {
      {"parallel.cp_comm_type=p2p"},
      {"parallel.cp_comm_type=a2a"},
      {"parallel.cp_comm_type=allgather"},
      {"parallel.cp_comm_type=a2a_p2p", "parallel.hierarchical_context_parallel_sizes=[4, 2]"}};
  for (std::vector<std::string> overrides : forms) {
    overrides.insert(overrides.end(),
                     {"parallel.context_parallel_size=8", "train.micro_batch_size=1",
                      "train.global_batch_size=1", "system.device=cuda"});
    int64_t whole = 0;
    for (const bool in_chunks : {false, true}) {
      SCOPED_TRACE(overrides.front() + (in_chunks ? " in chunks" : ""));
      if (in_chunks) {
        overrides.insert(overrides.end(),
                         {"recompute.mlp_chunk_tokens=4096", "train.logits_chunk_tokens=4096"});
      }
      std::vector<int64_t> bytes;
      for (const int64_t tokens : {1 << 19, 1 << 20, 1 << 21}) {
        std::vector<std::string> all = overrides;
        all.push_back(absl::StrCat("model.seq_length=", tokens));
        const auto planned = PlanPretraining(Config("llama_1500m", all));
        ASSERT_THAT(planned, IsOk());
        bytes.push_back(planned->plan.stages[0].total_bytes());
      }
      EXPECT_EQ(bytes[2] - bytes[1], 2 * (bytes[1] - bytes[0]));
      // 28 layers keep gates, ups and their products of 262,144 tokens: 5,632 features of 2 bytes.
      if (in_chunks) {
        EXPECT_GT(whole - bytes[2], int64_t{28} * 262144 * 3 * 5632 * 2);
      }
      whole = bytes[2];
    }
  }
}

TEST(PlanPretrainingTest, ATokenizerThatIsNotThereIsAMistakeOfTheConfiguration) {
  config::PretrainConfig config = Config("gpt2_124m", {});
  config.mutable_data()->set_tokenizer_type(config::Tokenizer::GPT2BPETokenizer);
  config.mutable_data()->set_vocab_file("/nowhere/vocab.json");
  config.mutable_data()->set_merge_file("/nowhere/merges.txt");
  EXPECT_EQ(ExitCodeOf(PlanPretraining(config).status()), kExitConfig);
}

}  // namespace
}  // namespace megatron
