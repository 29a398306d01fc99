#include "megatron/train/planning/planned_run.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/offload_timeline.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/model_costs.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

Implementation OwnProgram() {
  Implementation own;
  own.set_name("own");
  own.set_is_fused(true);
  own.set_is_causal_counted(true);
  own.set_product_efficiency(0.8);
  own.set_attention_efficiency(1);
  own.set_memory_efficiency(1);
  own.set_link_efficiency(1);
  own.set_network_efficiency(1);
  return own;
}

config::PretrainConfig Load(const std::string& name, const std::vector<std::string>& overrides) {
  auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded->config;
}

TEST(PlannedRunTest, HasTheLayoutOfTheConfiguration) {
  const auto config = Load(
      "gpt3_857m",
      {"parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=4",
       "parallel.data_parallel_size=2", "parallel.sequence_parallel=true",
       "train.micro_batch_size=1", "train.global_batch_size=16",
       "parallel.num_virtual_stages_per_pipeline_rank=3", "recompute.recompute_granularity=full"});
  auto run = ToPlannedRun(config, 50304, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->layout.tp, 2);
  EXPECT_EQ(run->layout.pp, 4);
  EXPECT_EQ(run->layout.vpp, 3);
  EXPECT_EQ(run->layout.dp, 2);
  EXPECT_EQ(run->layout.micro_batches, 8);
  EXPECT_EQ(run->layout.recompute, PlanRecompute::kFull);
  EXPECT_EQ(run->layout.precision, PlanPrecision::k16Bits);
  EXPECT_TRUE(run->layout.is_sequence_parallel);
  EXPECT_EQ(run->layout.gpus(), 16);
}

TEST(PlannedRunTest, HasTheFormsOfDataParallelCommunication) {
  const std::vector<std::string> zero3 = {
      "parallel.data_parallel_size=8", "parallel.use_distributed_optimizer=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params", "train.micro_batch_size=1",
      "train.global_batch_size=8"};
  std::vector<std::string> set = zero3;
  set.insert(set.end(),
             {"parallel.zero_hpz_partition_size=4", "parallel.zero_quantized_weights=true",
              "parallel.zero_quantized_gradients=true",
              "parallel.hierarchical_collectives_ranks_per_host=2"});
  auto run = ToPlannedRun(Load("gpt_demo", set), 512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->layout.hosts, 2);
  EXPECT_TRUE(run->layout.quantizes_weights && run->layout.quantizes_gradients);
  EXPECT_EQ(run->layout.ranks_per_host, 2);
  EXPECT_EQ(run->layout.sync_every, 0);
  set = zero3;
  set.insert(set.end(), {"parallel.num_distributed_optimizer_instances=2", "diloco.sync_every=10",
                         "diloco.outer_gradient_dtype=int8"});
  run = ToPlannedRun(Load("gpt_demo", set), 512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->layout.hosts, 1);
  EXPECT_EQ(run->layout.sync_every, 10);
  EXPECT_EQ(run->layout.instances, 2);
  EXPECT_EQ(run->layout.outer_code_bytes, 1 + 4.0 / 256);
  // The hosts are those of hierarchical collectives, on each of which two have the same weights.
  set = zero3;
  set.insert(
      set.end(),
      {"parallel.zero_hpz_partition_size=0", "parallel.tensor_model_parallel_size=2",
       "parallel.hierarchical_collectives_ranks_per_host=4", "parallel.collective_algorithm=ring"});
  run = ToPlannedRun(Load("gpt_demo", set), 512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->layout.hosts, 4);
  EXPECT_EQ(run->program.route(), Implementation::RING);
}

TEST(PlannedRunTest, HasTheOptimizerAndWhatTensorParallelRanksHide) {
  auto run = ToPlannedRun(Load("gpt_demo", {}), 512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_FALSE(run->layout.is_lamb || run->layout.clips_scores || run->layout.overlaps_forward);
  run = ToPlannedRun(
      Load("gpt_demo", {"optimizer.optimizer=lamb", "optimizer.qk_clip=true",
                        "parallel.tensor_model_parallel_size=2", "parallel.tp_comm_overlap=true"}),
      512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->layout.is_lamb && run->layout.clips_scores && run->layout.overlaps_forward);
  run = ToPlannedRun(
      Load("moe_tiny", {"parallel.data_parallel_size=4", "parallel.expert_model_parallel_size=4",
                        "parallel.hierarchical_collectives_ranks_per_host=2",
                        "parallel.moe_deduplicated_dispatch=true"}),
      512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->layout.deduplicates_dispatch);
  EXPECT_EQ(run->layout.ranks_per_host, 2);
}

// A step of LAMB passes over more memory, its tables and weights go whole, and scores are summed.
TEST(PlannedRunTest, LambAndQkClipTakeLongerThanAdamW) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Hardware* gpu = *FindHardware(facts, "H100");
  const auto predict = [&](std::vector<std::string> set) {
    set.insert(set.end(),
               {"parallel.tensor_model_parallel_size=1", "parallel.pipeline_model_parallel_size=1",
                "parallel.data_parallel_size=8", "parallel.use_distributed_optimizer=true",
                "train.global_batch_size=8", "train.micro_batch_size=1"});
    auto run = ToPlannedRun(Load("gpt3_857m", set), 50304, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    return PredictStep(*gpu, run->program, MeasuredKernels(), run->model, run->layout)->seconds;
  };
  const StepSeconds adam = predict({}), lamb = predict({"optimizer.optimizer=lamb"}),
                    clip = predict({"optimizer.qk_clip=true"});
  EXPECT_GT(lamb.optimizer, 4 * adam.optimizer);
  EXPECT_GT(lamb.data_parallel, 1.5 * adam.data_parallel);
  EXPECT_EQ(lamb.compute, adam.compute);
  EXPECT_GT(clip.optimizer, adam.optimizer);
  EXPECT_EQ(clip.data_parallel, adam.data_parallel);
}

// Rows of experts are padded, and a few bytes have scales.
TEST(PlannedRunTest, Fp8KeepsAsMuchLessAsTheTrainerPlans) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Hardware* gpu = *FindHardware(facts, "H100");
  const std::vector<std::string> experts = {"model.num_experts=8", "model.moe_router_topk=2",
                                            "model.moe_ffn_hidden_size=1024",
                                            "model.disable_bias_linear=true", "model.swiglu=true"};
  std::vector<std::string> shared = experts;
  shared.push_back("model.moe_shared_expert_intermediate_size=512");
  const std::vector<std::vector<std::string>> models = {
      {},
      {"model.swiglu=true"},
      {"parallel.tensor_model_parallel_size=2"},
      {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"},
      experts,
      shared};
  for (const std::vector<std::string>& model : models) {
    SCOPED_TRACE(model.empty() ? "dense" : model.back());
    double planned = 0, predicted = 0;  // what 16 bits keep more
    for (const bool is_fp8 : {false, true}) {
      std::vector<std::string> set = {"model.num_layers=4",
                                      "train.micro_batch_size=4",
                                      "precision.fp16=",
                                      "precision.bf16=true",
                                      "parallel.tensor_model_parallel_size=1",
                                      "parallel.pipeline_model_parallel_size=1"};
      set.insert(set.end(), model.begin(), model.end());
      if (is_fp8) set.push_back("precision.fp8_format=hybrid");
      const config::PretrainConfig config = Load("gpt3_857m", set);
      const auto plan = PlanRun(ToRunOptions(config, 50257));
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto run = ToPlannedRun(config, 50304, OwnProgram());
      ASSERT_TRUE(run.ok()) << run.status();
      const auto step = PredictStep(*gpu, run->program, MeasuredKernels(), run->model, run->layout);
      ASSERT_TRUE(step.ok()) << step.status();
      const int sign = is_fp8 ? -1 : 1;
      planned += sign * double(plan->stages[0].sizes.saved());
      predicted += sign * step->memory_bytes;
    }
    EXPECT_GT(planned, 0);
    EXPECT_NEAR(predicted, planned, 0.01 * planned);
  }
}

// Large products hide all but the last piece. On a processor nothing is hidden, and there are more
// calls.
TEST(PlannedRunTest, CommunicationBesideForwardIsHiddenAsFarAsProductsGo) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Hardware gpu = **FindHardware(facts, "H100");
  const auto waits = [&](bool rows, bool overlaps) {
    std::vector<std::string> set = {"parallel.pipeline_model_parallel_size=1",
                                    "model.hidden_size=8192", "model.num_attention_heads=64",
                                    "train.micro_batch_size=8"};
    if (rows) set.push_back("parallel.sequence_parallel=true");
    if (overlaps) set.push_back("parallel.tp_comm_overlap=true");
    auto run = ToPlannedRun(Load("gpt3_857m", set), 50304, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    return PredictStep(gpu, run->program, MeasuredKernels(), run->model, run->layout)
        ->seconds.tensor_parallel;
  };
  for (const bool rows : {false, true}) {
    gpu = **FindHardware(facts, "H100");
    const double before = waits(rows, false), after = waits(rows, true);
    EXPECT_LT(after, before) << rows;
    // Backward is as it was.
    EXPECT_GT(after, 0.5 * before) << rows;
    gpu.set_cores(2);
    gpu.set_thread_efficiency(1);
    EXPECT_GT(waits(rows, true), waits(rows, false)) << rows;
  }
}

// Modes divide the same model: its FLOPs and parameters are those of 1D. Levels have a copy of the
// weights each, and a cube has none.
TEST(PlannedRunTest, PricesGridsOfTensorParallelRanks) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Hardware* gpu = *FindHardware(facts, "H100");
  const auto predict = [&](const std::string& mode, int ranks, int depth, PlanGrid* grid) {
    std::vector<std::string> set = {"train.micro_batch_size=4", "model.num_attention_heads=8",
                                    "parallel.tensor_parallel_mode=" + mode,
                                    "parallel.tensor_model_parallel_size=" + std::to_string(ranks)};
    if (depth > 1) set.push_back("parallel.tensor_parallel_depth=" + std::to_string(depth));
    auto run = ToPlannedRun(Load("gpt_demo", set), 512, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    *grid = run->layout.grid;
    const auto step = PredictStep(*gpu, run->program, MeasuredKernels(), run->model, run->layout);
    EXPECT_TRUE(step.ok()) << step.status();
    return *step;
  };
  PlanGrid grid;
  const StepPrediction one = predict("1d", 8, 1, &grid);
  EXPECT_FALSE(grid.is_grid());
  const StepPrediction squares = predict("2.5d", 8, 2, &grid);
  EXPECT_TRUE(grid.side == 2 && grid.depth == 2 && !grid.is_cube);
  const StepPrediction cube = predict("3d", 8, 1, &grid);
  EXPECT_TRUE(grid.side == 2 && grid.depth == 2 && grid.is_cube);
  for (const StepPrediction& step : {squares, cube}) {
    EXPECT_NEAR(step.model_flops / one.model_flops, 1, 1e-9);
    EXPECT_NEAR(step.total_parameters / one.total_parameters, 1, 0.02);
    EXPECT_NE(step.seconds.tensor_parallel, one.seconds.tensor_parallel);
  }
  EXPECT_GT(squares.data.parameters, 1.8 * cube.data.parameters);
  EXPECT_LT(cube.memory_bytes, squares.memory_bytes);
}

TEST(PlannedRunTest, HasTheFormOfCompressedGradients) {
  const auto plan = [](std::vector<std::string> set) {
    set.push_back("parallel.data_parallel_size=2");
    auto run = ToPlannedRun(Load("gpt_demo", set), 512, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    return *run;
  };
  EXPECT_EQ(plan({}).layout.compression.form, PlanCompression::kNone);
  EXPECT_EQ(plan({"gradient_compression.type=int8"}).layout.compression.form,
            PlanCompression::kCodes);
  EXPECT_EQ(plan({"gradient_compression.type=topk", "gradient_compression.density=0.03"})
                .layout.compression.density,
            0.03);
  EXPECT_EQ(plan({"gradient_compression.type=threshold", "gradient_compression.threshold=1",
                  "gradient_compression.max_density=0.07"})
                .layout.compression.density,
            0.07);
  const PlanCompression low_rank = plan({"gradient_compression.type=powersgd",
                                         "gradient_compression.matrix_approximation_rank=8",
                                         "gradient_compression.min_compression_rate=3"})
                                       .layout.compression;
  EXPECT_EQ(low_rank.form, PlanCompression::kLowRank);
  EXPECT_EQ(low_rank.rank, 8);
  EXPECT_EQ(low_rank.least_gain, 3);
  EXPECT_EQ(plan({}).program.gradient_bytes(), 4);
  EXPECT_EQ(plan({"parallel.communication_data_type=fp16"}).program.gradient_bytes(), 2);
}

// The planner and the log of a run count the same FLOPs, in the same convention.
TEST(PlannedRunTest, CountsTheFlopsThatTheLogCounts) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Hardware* gpu = *FindHardware(facts, "H100");
  for (const char* name :
       {"gpt3_857m", "gpt2_124m", "llama_1500m", "moe_tiny", "t5_220m", "hybrid_tiny"}) {
    const auto config = Load(name, {});
    const int64_t vocab = 50304;
    auto run = ToPlannedRun(config, vocab, OwnProgram());
    ASSERT_TRUE(run.ok()) << run.status();
    const auto step = PredictStep(*gpu, run->program, MeasuredKernels(), run->model, run->layout);
    ASSERT_TRUE(step.ok()) << step.status();
    const double tokens = double(config.train().global_batch_size()) * config.model().seq_length();
    const double logged =
        tokens * FlopsPerToken(config.model(), vocab, FlopsConvention::kCausalHalved);
    EXPECT_NEAR(step->model_flops * double(run->layout.gpus()) / logged, 1, 2e-3) << name;
    EXPECT_NEAR(step->total_parameters / CountParameters(config.model(), vocab), 1, 0.02) << name;
  }
}

TEST(PlannedRunTest, HasTheChunksOfTheConfiguration) {
  const auto run = ToPlannedRun(
      Load("gpt_demo", {"train.logits_chunk_tokens=64", "recompute.mlp_chunk_tokens=32",
                        "recompute.attention_chunk_tokens=16"}),
      512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->layout.logits_chunk, 64);
  EXPECT_EQ(run->layout.mlp_chunk, 32);
  EXPECT_EQ(run->layout.attention_chunk, 16);
}

// A window is that of the layers with attention, and dense layers are those with an MLP.
TEST(PlannedRunTest, HasTheLayersOfAHybridModel) {
  const auto run = ToPlannedRun(
      Load("hybrid_tiny",
           {"model.hybrid_layer_pattern=M-GE*E*-", "model.num_experts=4", "model.window_size=63",
            "model.window_attn_skip_freq=\"[0]*6+[1]*2\"", "model.mamba_norm_all_groups=true"}),
      512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  const PlanModel& model = run->model;
  EXPECT_EQ(model.hybrid_layers(), "M-GE*E*-");
  EXPECT_EQ(model.layers(), 8);
  EXPECT_EQ(model.dense_layers(), 2);
  EXPECT_EQ(model.experts(), 4);
  EXPECT_EQ(model.windowed_share(), 0.5);
  EXPECT_EQ(model.mamba_heads() * model.mamba_head_dim(), 256);
  EXPECT_EQ(model.mamba_state(), 32);
  EXPECT_TRUE(model.mamba_norm_all_groups());
  EXPECT_EQ(model.delta_value_heads() * model.delta_value_dim(), 256);
  EXPECT_EQ(model.delta_taps(), 4);
}

TEST(PlannedRunTest, ProcessesOnAProcessorAreJoinedByItsNetwork) {
  Hardware cpu;
  cpu.set_cores(2);
  cpu.set_domain(100);
  const std::vector<std::string> two = {"parallel.data_parallel_size=2"};
  EXPECT_EQ(HardwareOfRun(Load("gpt_demo", two), 2, cpu).domain(), 100);
  const auto processes =
      Load("gpt_demo", {"parallel.data_parallel_size=2", "parallel.ranks_as=processes"});
  EXPECT_EQ(HardwareOfRun(processes, 2, cpu).domain(), 1);
  cpu.set_cores(0);
  EXPECT_EQ(HardwareOfRun(processes, 2, cpu).domain(), 100);
}

TEST(PlannedRunTest, RanksHaveNoMoreCoresThanThreads) {
  Hardware cpu;
  cpu.set_cores(8);
  cpu.set_thread_efficiency(0.8);
  EXPECT_EQ(HardwareOfRun(Load("gpt_demo", {}), 1, cpu).cores(), 8);
  const auto three = Load("gpt_demo", {"system.num_threads=3"});
  EXPECT_EQ(HardwareOfRun(three, 1, cpu).cores(), 3);
  // Each rank has a thread.
  EXPECT_EQ(HardwareOfRun(three, 4, cpu).cores(), 4);
  cpu.set_cores(2);
  EXPECT_EQ(HardwareOfRun(three, 4, cpu).cores(), 2);
}

TEST(PlannedRunTest, KnowsActivationsInHostMemoryOfAllLayers) {
  const std::string two_chunks = "parallel.num_virtual_stages_per_pipeline_rank=2";
  const auto offloads = [](std::vector<std::string> set) {
    set.push_back("system.device=cuda");
    auto loaded = LoadConfig("gpt3_857m", set, ConfigPurpose::kDryRun);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    const auto run = ToPlannedRun(loaded->config, 50304, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    return run->layout.activations_on_host;
  };
  EXPECT_FALSE(offloads({}));
  EXPECT_FALSE(offloads({"recompute.cpu_offloading_num_layers=11"}));
  EXPECT_TRUE(offloads({"recompute.cpu_offloading_num_layers=12"}));
  EXPECT_TRUE(offloads({"recompute.cpu_offloading_num_layers=6", two_chunks}));
  EXPECT_FALSE(offloads(
      {"recompute.cpu_offloading_num_layers=12", "recompute.offload_modules=[core_attn]"}));
  // Attention's tensors may be there, too.
  EXPECT_TRUE(
      offloads({"recompute.cpu_offloading_num_layers=12", "recompute.attention_chunk_tokens=512",
                "recompute.attention_chunks_on_host=true"}));
  // The larger one of two stages has 14.
  const std::string uneven = "parallel.decoder_last_pipeline_num_layers=10";
  EXPECT_FALSE(offloads({"recompute.cpu_offloading_num_layers=13", uneven}));
  EXPECT_TRUE(offloads({"recompute.cpu_offloading_num_layers=14", uneven}));
}

TEST(PlannedRunTest, KnowsStatesInFilesOfAGpu) {
  const auto in_files = [](std::vector<std::string> set) {
    set.push_back("optimizer.optimizer_offload_path=/states");
    set.push_back("optimizer.optimizer_cpu_offload=true");
    auto loaded = LoadConfig("gpt3_857m", set, ConfigPurpose::kDryRun);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    const auto run = ToPlannedRun(loaded->config, 50304, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    return run->layout.states_in_files;
  };
  EXPECT_TRUE(in_files({"system.device=cuda"}));
  EXPECT_FALSE(in_files({"system.device=cpu"}));
}

// Predictions are no shorter than the timeline of the copies, which spares those of the last three
// layers.
TEST(PlannedRunTest, ActivationsInHostMemoryTakeWhatTheirTimelineSays) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Hardware gpu = **FindHardware(facts, "H100");
  const int64_t layers = 24;
  auto run = ToPlannedRun(
      Load("gpt3_857m", {"parallel.tensor_model_parallel_size=1",
                         "parallel.pipeline_model_parallel_size=1", "train.global_batch_size=4"}),
      50304, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  const auto passes = [&](int64_t count) {
    const auto parts = PredictParts(gpu, run->program, MeasuredKernels(), run->model, run->layout,
                                    {PartLayers{count}});
    EXPECT_TRUE(parts.ok()) << parts.status();
    const PartSeconds& part = parts->positions[0];
    return SegmentSeconds{part.forward, part.backward_input + part.backward_weight};
  };
  const SegmentSeconds head = passes(0), one = passes(1);
  run->layout.activations_on_host = true;
  const auto step = PredictStep(gpu, run->program, MeasuredKernels(), run->model, run->layout);
  ASSERT_TRUE(step.ok()) << step.status();
  TimedSegment segment;
  segment.seconds = {one.forward - head.forward, one.backward - head.backward};
  segment.bytes = step->host_bytes / double(layers);
  ASSERT_GT(segment.bytes, 0);
  TimedStage stage;
  stage.chunks.resize(1);
  stage.chunks[0].segments.assign(layers, segment);
  stage.chunks[0].head = head;
  const double micro_batches = 2;
  for (const int micro_batch : {0, 1}) {
    stage.actions.push_back({ActionKind::kForward, micro_batch, 0});
    stage.actions.push_back({ActionKind::kBackward, micro_batch, 0});
  }
  // A copy takes so many times as long as a layer's forward pass.
  for (const double slowness : {0.5, 1.2, 2.0, 8.0}) {
    const double rate = segment.bytes / (slowness * segment.seconds.forward);
    gpu.set_host_link_gb_per_s(rate / 1e9);
    const SegmentSeconds all = passes(layers);
    const double predicted = micro_batches * (all.forward + all.backward);
    const double played = SecondsWithOffload(stage, layers, rate);
    EXPECT_LE(played, predicted * (1 + 1e-9)) << slowness;
    EXPECT_GE(played, (slowness < 1 ? 1 - 1e-9 : 0.8) * predicted) << slowness;
  }
}

// Its positions see all others. The dense layer in front of its head is left out.
TEST(PlannedRunTest, CountsAllOfABertsAttention) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const auto config = Load("bert_demo", {"model.num_layers=24"});
  auto run = ToPlannedRun(config, 512, OwnProgram());
  ASSERT_TRUE(run.ok()) << run.status();
  const auto step = PredictStep(**FindHardware(facts, "H100"), run->program, MeasuredKernels(),
                                run->model, run->layout);
  ASSERT_TRUE(step.ok()) << step.status();
  const double tokens = double(config.train().global_batch_size()) * config.model().seq_length();
  const double logged = tokens * FlopsPerToken(config.model(), 512, FlopsConvention::kCausalHalved);
  EXPECT_NEAR(step->model_flops * double(run->layout.gpus()) / logged, 1, 1e-2);
}

// 12 layers read 512 tokens and 12 write 128. With as many layers of a decoder that reads nothing
// beside what it writes, a step takes less.
TEST(PlannedRunTest, PricesBothStacksOfAT5) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Hardware* gpu = *FindHardware(facts, "H100");
  const auto predict = [&](const std::vector<std::string>& set) {
    auto run = ToPlannedRun(Load("t5_220m", set), 29184, OwnProgram());
    EXPECT_TRUE(run.ok()) << run.status();
    const auto step = PredictStep(*gpu, run->program, MeasuredKernels(), run->model, run->layout);
    EXPECT_TRUE(step.ok()) << step.status();
    return std::make_pair(run->layout, step->seconds);
  };
  const StepSeconds both = predict({}).second;
  const StepSeconds shallow = predict({"model.decoder_num_layers=1"}).second;
  const StepSeconds narrow = predict({"model.encoder_seq_length=128"}).second;
  EXPECT_LT(shallow.compute, 0.85 * both.compute);
  EXPECT_LT(narrow.compute, 0.5 * both.compute);
  // With as many layers on each of 3 stages the first has 8 of the encoder's; else 6.
  const std::vector<std::string> pipeline = {"parallel.pipeline_model_parallel_size=3",
                                             "train.micro_batch_size=8"};
  std::vector<std::string> split = pipeline;
  split.push_back("parallel.pipeline_model_parallel_split_rank=2");
  const auto even = predict(pipeline), by_stacks = predict(split);
  EXPECT_EQ(by_stacks.first.encoder_stages, 2);
  EXPECT_LT(by_stacks.second.compute, 0.9 * even.second.compute);
  EXPECT_LT(by_stacks.second.total, even.second.total);
}

}  // namespace
}  // namespace megatron
