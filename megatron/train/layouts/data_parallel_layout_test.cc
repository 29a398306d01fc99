// Tests sharding and overlap in whole runs: they give the same bits where docs/numerics.md says so,
// and take the memory and the messages that docs/data_parallel.md promises.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr DataSharding kShardings[] = {DataSharding::kNone, DataSharding::kStates,
                                       DataSharding::kGradients, DataSharding::kWeights};

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps,
                    bool evaluate = false) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.evaluate = evaluate;
  return TrainOnLayout(run, how, CountingSource());
}

void ExpectSameBits(const LayoutOutcome& got, const LayoutOutcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluation, want.evaluation);
  EXPECT_TRUE(got.state == want.state);
}

Layout LayoutOf(int tensor, int pipeline, int data, int chunks = 1) {
  Layout layout;
  layout.tensor = tensor;
  layout.sequence_parallel = tensor > 1;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.chunks = chunks;
  return layout;
}

// Batches have 8 samples: the first layouts have several micro-batches a step, the last has one.
TEST(DataParallelLayoutTest, ResultsDependOnlyOnTheOrderOfSums) {
  for (const Layout& layout :
       {LayoutOf(1, 1, 2), LayoutOf(2, 1, 2), LayoutOf(1, 2, 2, 2), LayoutOf(1, 1, 8)}) {
    const bool one_micro_batch = layout.data == 8;
    for (const bool bf16 : {false, true}) {
      TrainerOptions run = TinyRun(bf16 ? SmallLlama() : SmallGpt2(), OptimizerOptions::kAdamW);
      if (bf16) run.model.transformer.dtype = DType::kBFloat16;
      if (layout.tensor > 1) run.model.layer_recompute = {LayerRecompute::kUniform, 2};
      if (layout.pipeline > 1) run.model.logits_chunk = 20;
      // The first outcomes that add over micro-batches first, and over ranks first.
      LayoutOutcome first[2];
      for (DataSharding sharding : kShardings) {
        const bool ranks_first = sharding >= DataSharding::kGradients && !one_micro_batch;
        for (const bool overlap : {false, true}) {
          Layout mine = layout;
          mine.sharding = sharding;
          mine.overlap = overlap;
          SCOPED_TRACE(absl::StrCat(ToString(mine), bf16 ? " bf16" : " fp32"));
          const LayoutOutcome got = Train(run, mine, /*steps=*/3, /*evaluate=*/true);
          LayoutOutcome& want = first[ranks_first];
          if (want.losses.empty()) {
            want = got;
          } else {
            ExpectSameBits(got, want);
          }
        }
      }
    }
  }
}

// Shards cut parameters anywhere, and moments in 8-bit floats are the same there.
TEST(DataParallelLayoutTest, MomentsInFloat8TrainTheSameBitsWithEverySharding) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.model.transformer.dtype = DType::kBFloat16;
  const LayoutOutcome in_fp32 = Train(run, LayoutOf(1, 1, 8), /*steps=*/3, /*evaluate=*/true);
  run.optimizer.exp_avg_dtype = run.optimizer.exp_avg_sq_dtype = DType::kUInt8;
  const LayoutOutcome want = Train(run, LayoutOf(1, 1, 8), /*steps=*/3, /*evaluate=*/true);
  EXPECT_NE(want.losses, in_fp32.losses);
  for (DataSharding sharding : kShardings) {
    Layout layout = LayoutOf(1, 1, 8);
    layout.sharding = sharding;
    SCOPED_TRACE(ToString(layout));
    ExpectSameBits(Train(run, layout, /*steps=*/3, /*evaluate=*/true), want);
  }
}

// Sums over two ranks are the same in either order. So four ranks in two instances add as two ranks
// of two and two, and the instances decide nothing else.
TEST(DataParallelLayoutTest, InstancesTrainTheSameBitsForEveryShardingAndOverlap) {
  for (const Layout& layout :
       {LayoutOf(1, 1, 4), LayoutOf(2, 1, 4), LayoutOf(1, 2, 4, 2), LayoutOf(1, 1, 8)}) {
    const bool one_micro_batch = layout.data == 8;
    for (const bool bf16 : {false, true}) {
      TrainerOptions run = TinyRun(bf16 ? SmallLlama() : SmallGpt2(), OptimizerOptions::kAdamW);
      if (bf16) run.model.transformer.dtype = DType::kBFloat16;
      if (layout.tensor > 1) run.model.layer_recompute = {LayerRecompute::kUniform, 2};
      LayoutOutcome first[2], plain;
      for (DataSharding sharding :
           {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
        const bool ranks_first = sharding >= DataSharding::kGradients && !one_micro_batch;
        for (const auto& [overlap, parts] :
             {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
          Layout mine = layout;
          mine.sharding = sharding;
          mine.overlap = overlap;
          if (plain.losses.empty()) plain = Train(run, mine, /*steps=*/3, /*evaluate=*/true);
          mine.optimizer_instances = 2;
          mine.shards_states_over_instances = parts;
          SCOPED_TRACE(absl::StrCat(ToString(mine), bf16 ? " bf16" : " fp32"));
          const LayoutOutcome got = Train(run, mine, /*steps=*/3, /*evaluate=*/true);
          LayoutOutcome& want = first[ranks_first];
          if (want.losses.empty()) {
            want = got;
          } else {
            ExpectSameBits(got, want);
          }
          for (size_t i = 0; i < plain.losses.size(); ++i)
            EXPECT_NEAR(got.losses[i], plain.losses[i], (bf16 ? 1e-2 : 1e-5) * plain.losses[i]);
        }
      }
    }
  }
}

// A rank's host has one, two or four ranks with the same weights; a table that two stages share is
// gathered too.
TEST(DataParallelLayoutTest, SecondaryShardsTrainTheSameBits) {
  for (const Layout& layout : {LayoutOf(1, 1, 4), LayoutOf(2, 1, 4), LayoutOf(1, 2, 4, 2)}) {
    for (const bool bf16 : {false, true}) {
      TrainerOptions run = TinyRun(bf16 ? SmallLlama() : SmallGpt2(), OptimizerOptions::kAdamW);
      if (bf16) run.model.transformer.dtype = DType::kBFloat16;
      if (layout.tensor > 1) run.model.layer_recompute = {LayerRecompute::kUniform, 2};
      Layout mine = layout;
      mine.sharding = DataSharding::kWeights;
      const LayoutOutcome want = Train(run, mine, /*steps=*/3, /*evaluate=*/true);
      mine.hosts = 2;
      for (const bool overlap : {false, true}) {
        mine.overlap = overlap;
        SCOPED_TRACE(absl::StrCat(ToString(mine), bf16 ? " bf16" : " fp32"));
        ExpectSameBits(Train(run, mine, /*steps=*/3, /*evaluate=*/true), want);
      }
    }
  }
}

// A run of a model so large that padding is small.
TrainerOptions MediumRun(DType dtype) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  run.model.transformer.hidden_size = 64;
  run.model.transformer.ffn_hidden_size = 256;
  run.model.transformer.num_attention_heads = run.model.transformer.num_query_groups = 4;
  run.model.transformer.kv_channels = 16;
  run.model.transformer.dtype = dtype;
  return run;
}

// Numbers of parameters by block, with the names of docs/data_parallel.md.
struct Counts {
  explicit Counts(const ModelOptions& model) {
    const auto stage = MakeStage(model, {{DeviceType::kMeta}});
    std::vector<double> blocks;
    for (const Parameter* parameter : stage->parameters()) {
      blocks.resize(parameter->block + 1);
      blocks[parameter->block] += static_cast<double>(parameter->sharding.local_shape.numel());
      all += static_cast<double>(parameter->sharding.local_shape.numel());
    }
    words = blocks[0];
    positions = blocks[1];
    layer = blocks[2];
    norm = blocks.back();
  }
  double all = 0, words = 0, positions = 0, layer = 0, norm = 0;
};

double BytesOf(const LayoutOutcome& outcome, std::initializer_list<const char*> kinds) {
  double bytes = 0;
  for (const char* kind : kinds) {
    const auto found = outcome.memory.find(kind);
    if (found != outcome.memory.end()) bytes += static_cast<double>(found->second);
  }
  return bytes;
}

void ExpectWithinTenPercent(double got, double want, const char* what) {
  EXPECT_LE(got, 1.1 * want) << what;
  EXPECT_GE(got, 0.9 * want) << what;
}

TEST(DataParallelLayoutTest, PeakMemoryOfEachKindMatchesTheDocumentation) {
  constexpr int kRanks = 4;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TrainerOptions run = MediumRun(dtype);
    const Counts count(run.model);
    const double b = SizeOf(dtype), k = dtype == DType::kFloat32 ? 8 : 12;
    for (DataSharding sharding : kShardings) {
      for (const bool overlap : {false, true}) {
        Layout layout = LayoutOf(1, 1, kRanks);
        layout.sharding = sharding;
        layout.overlap = overlap;
        SCOPED_TRACE(ToString(layout));
        const LayoutOutcome got = Train(run, layout, 1);
        const auto over = [&](DataSharding what) { return sharding >= what ? kRanks : 1; };
        double weights = b * count.all / over(DataSharding::kWeights);
        double gradients = 4 * count.all / over(DataSharding::kGradients);
        if (sharding == DataSharding::kWeights) {
          weights += b * (overlap ? std::max(2 * count.layer, count.words + count.positions)
                                  : std::max(count.layer, count.words + count.norm));
        }
        if (sharding >= DataSharding::kGradients)
          gradients += 4 * (count.words + (overlap ? 2 : 1) * count.layer);
        ExpectWithinTenPercent(BytesOf(got, {"weights", "weights/gathered"}), weights, "weights");
        ExpectWithinTenPercent(BytesOf(got, {"gradients", "gradients/whole"}), gradients,
                               "gradients");
        ExpectWithinTenPercent(BytesOf(got, {"master weights", "exp_avg", "exp_avg_sq"}),
                               k * count.all / over(DataSharding::kStates), "states");
      }
    }
  }
}

// Without a bucket size, each of the four layers, the two blocks of tables and the last norm is a
// message of its own.
TEST(DataParallelLayoutTest, ABucketSizeMakesFewerMessagesOfTheSameGradients) {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  const Counts count(run.model);
  constexpr int kSteps = 2;
  for (DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
    const Collective sent =
        sharding == DataSharding::kNone ? Collective::kAllReduce : Collective::kReduceScatter;
    for (const bool overlap : {false, true}) {
      Layout layout = LayoutOf(1, 1, /*data=*/2);
      layout.sharding = sharding;
      layout.overlap = overlap;
      SCOPED_TRACE(ToString(layout));
      run.bucket_size = 0;
      const LayoutOutcome want = Train(run, layout, kSteps);
      const auto calls = [&](const LayoutOutcome& outcome) {
        return outcome.sent->CallsOf("dp-cp", sent) / kSteps;
      };
      const auto with_size = [&](double elements) {
        run.bucket_size = static_cast<int64_t>(elements);
        const LayoutOutcome got = Train(run, layout, kSteps);
        EXPECT_EQ(got.losses[0], want.losses[0]);
        EXPECT_NEAR(got.losses[1], want.losses[1], 1e-6 * want.losses[1]);
        return calls(got);
      };
      const int64_t others = calls(want) - 7;  // the calls for losses
      EXPECT_EQ(with_size(2 * count.layer), 3 + others);
      EXPECT_EQ(with_size(2 * count.all), 1 + others);
    }
  }
}

TEST(DataParallelLayoutTest, BytesSentMatchTheDocumentation) {
  constexpr int kRanks = 4, kMicroBatches = 2;  // a global batch has 8 samples
  constexpr double kShare = (kRanks - 1.0) / kRanks;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions run = MediumRun(dtype);
    run.data_parallel.gradient_dtype = dtype;
    run.model.layer_recompute = {LayerRecompute::kUniform, 1};  // recomputation sends no message
    const Counts count(run.model);
    const double b = SizeOf(dtype), g = SizeOf(dtype);
    for (DataSharding sharding : kShardings) {
      for (const bool overlap : {false, true}) {
        Layout layout = LayoutOf(1, 1, kRanks);
        layout.sharding = sharding;
        layout.overlap = overlap;
        SCOPED_TRACE(ToString(layout));
        const LayoutOutcome got = Train(run, layout, 1);
        double reduced = 0, scattered = kShare * g * count.all, gathered = kShare * b * count.all;
        if (sharding == DataSharding::kNone) {
          reduced = 2 * scattered;
          scattered = gathered = 0;
        }
        if (sharding >= DataSharding::kGradients) scattered *= kMicroBatches;
        if (sharding == DataSharding::kWeights)
          gathered = kMicroBatches * kShare * b * (2 * count.all + count.words - count.positions);
        const auto sent = [&](Collective collective) {
          return static_cast<double>(got.sent->Of("dp-cp", collective));
        };
        // The loss takes a few bytes.
        EXPECT_LE(sent(Collective::kAllReduce) - reduced, 0.1 * reduced + 32);
        EXPECT_GE(sent(Collective::kAllReduce), 0.9 * reduced);
        ExpectWithinTenPercent(sent(Collective::kReduceScatter), scattered, "reduce-scatter");
        ExpectWithinTenPercent(sent(Collective::kAllGather), gathered, "all-gather");
      }
    }
  }
}

// Two hosts of two ranks: each block is gathered once a step over all ranks, and then within the
// host.
TEST(DataParallelLayoutTest, MemoryAndBytesOfSecondaryShardsMatchTheDocumentation) {
  constexpr int kRanks = 4, kHosts = 2, kOfHost = kRanks / kHosts, kMicroBatches = 2;
  constexpr double kShare = (kRanks - 1.0) / kRanks, kShareOfHost = (kOfHost - 1.0) / kOfHost;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TrainerOptions run = MediumRun(dtype);
    const Counts count(run.model);
    const double b = SizeOf(dtype);
    for (const bool overlap : {false, true}) {
      Layout layout = LayoutOf(1, 1, kRanks);
      layout.sharding = DataSharding::kWeights;
      layout.hosts = kHosts;
      layout.overlap = overlap;
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome got = Train(run, layout, 1);
      ExpectWithinTenPercent(BytesOf(got, {"weights/secondary"}), b * count.all / kOfHost,
                             "secondary shards");
      EXPECT_EQ(2 * BytesOf(got, {"weights"}), BytesOf(got, {"weights/secondary"}));
      const auto gathered = [&](const char* group) {
        return static_cast<double>(got.sent->Of(group, Collective::kAllGather));
      };
      const double gathers = kMicroBatches * (2 * count.all + count.words - count.positions);
      ExpectWithinTenPercent(gathered("dp-cp-0"), kShare * b * count.all, "over all ranks");
      ExpectWithinTenPercent(gathered("dp-cp-host"), kShareOfHost * b * (gathers - count.all),
                             "within the host");
    }
  }
}

// Weights go over all ranks once a step, and gradients within a host and across hosts. A code of 8
// bits takes 1 + 4/256 bytes, one of 4 bits 1/2 + 4/64.
TEST(DataParallelLayoutTest, BytesOfQuantizedMessagesMatchTheDocumentation) {
  constexpr int kRanks = 4, kHosts = 2, kOfHost = kRanks / kHosts, kMicroBatches = 2;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions run = MediumRun(dtype);
    run.data_parallel.quantized_weights = run.data_parallel.quantized_gradients = true;
    const Counts count(run.model);
    for (const bool overlap : {false, true}) {
      Layout layout = LayoutOf(1, 1, kRanks);
      layout.sharding = DataSharding::kWeights;
      layout.hosts = kHosts;
      layout.overlap = overlap;
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome got = Train(run, layout, 1);
      const auto sent = [&](const char* group, Collective collective) {
        return static_cast<double>(got.sent->Of(group, collective));
      };
      const double gradients = kMicroBatches * (0.5 + 4.0 / 64) * count.all;
      ExpectWithinTenPercent(sent("dp-cp-0", Collective::kAllGather),
                             (kRanks - 1.0) / kRanks * (1 + 4.0 / 256) * count.all, "weights");
      ExpectWithinTenPercent(sent("dp-cp-host", Collective::kAllToAll),
                             (kOfHost - 1.0) / kOfHost * gradients, "gradients in a host");
      ExpectWithinTenPercent(sent("dp-cp-across-hosts", Collective::kAllToAll),
                             (kHosts - 1.0) / kHosts * gradients / kOfHost, "gradients across");
      EXPECT_EQ(sent("dp-cp", Collective::kReduceScatter), 0);
    }
  }
}

// Two instances of two ranks: what an instance sends within is what two ranks send, and each rank's
// shard is summed once a step with that of the other instance.
TEST(DataParallelLayoutTest, MemoryAndBytesOfInstancesMatchTheDocumentation) {
  constexpr int kRanks = 4, kInstances = 2, kShards = kRanks / kInstances, kMicroBatches = 2;
  constexpr double kShare = (kShards - 1.0) / kShards;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions run = MediumRun(dtype);
    run.data_parallel.gradient_dtype = dtype;
    const Counts count(run.model);
    const double b = SizeOf(dtype), g = SizeOf(dtype);
    const double k = dtype == DType::kFloat32 ? 8 : 12;
    for (DataSharding sharding :
         {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
      for (const auto& [overlap, parts] :
           {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
        Layout layout = LayoutOf(1, 1, kRanks);
        layout.sharding = sharding;
        layout.optimizer_instances = kInstances;
        layout.shards_states_over_instances = parts;
        layout.overlap = overlap;
        SCOPED_TRACE(ToString(layout));
        const LayoutOutcome got = Train(run, layout, 1);
        ExpectWithinTenPercent(BytesOf(got, {"master weights", "exp_avg", "exp_avg_sq"}),
                               k * count.all / (parts ? kRanks : kShards), "states");
        double scattered = kShare * g * count.all, gathered = kShare * b * count.all;
        if (sharding >= DataSharding::kGradients) scattered *= kMicroBatches;
        if (sharding == DataSharding::kWeights)
          gathered = kMicroBatches * kShare * b * (2 * count.all + count.words - count.positions);
        // What an instance sends to the others of its shard, in bytes an element.
        const double between = (kInstances - 1.0) / kInstances * count.all / kShards;
        const auto sent = [&](const char* group, Collective collective) {
          return static_cast<double>(got.sent->Of(group, collective));
        };
        ExpectWithinTenPercent(sent("dp-cp-shards", Collective::kReduceScatter), scattered,
                               "reduce-scatter");
        ExpectWithinTenPercent(sent("dp-cp-shards", Collective::kAllGather), gathered,
                               "all-gather");
        ExpectWithinTenPercent(sent("dp-cp-replicas", Collective::kAllReduce),
                               parts ? 0 : 2 * g * between, "all-reduce");
        ExpectWithinTenPercent(sent("dp-cp-replicas", Collective::kReduceScatter),
                               parts ? g * between : 0, "reduce-scatter of shards");
        ExpectWithinTenPercent(sent("dp-cp-replicas", Collective::kAllGather),
                               parts ? b * between : 0, "all-gather of shards");
        // Losses alone go over all ranks.
        EXPECT_LE(sent("dp-cp-0", Collective::kAllReduce), 64);
      }
    }
  }
}

// Two hosts of two ranks: sums are formed within hosts, then between them, wherever they are
// formed.
TEST(DataParallelLayoutTest, HierarchicalCollectivesTrainTheSameBitsForEveryShardingAndOverlap) {
  for (const bool bf16 : {false, true}) {
    TrainerOptions run = TinyRun(bf16 ? SmallLlama() : SmallGpt2(), OptimizerOptions::kAdamW);
    if (bf16) run.model.transformer.dtype = DType::kBFloat16;
    LayoutOutcome first[2];
    for (DataSharding sharding : kShardings) {
      for (const bool overlap : {false, true}) {
        Layout mine = LayoutOf(1, 1, 4);
        mine.sharding = sharding;
        mine.overlap = overlap;
        const LayoutOutcome plain = Train(run, mine, /*steps=*/3, /*evaluate=*/true);
        mine.ranks_per_host = 2;
        SCOPED_TRACE(absl::StrCat(ToString(mine), bf16 ? " bf16" : " fp32"));
        const LayoutOutcome got = Train(run, mine, /*steps=*/3, /*evaluate=*/true);
        LayoutOutcome& want = first[sharding >= DataSharding::kGradients];
        if (want.losses.empty()) {
          want = got;
        } else {
          ExpectSameBits(got, want);
        }
        for (size_t i = 0; i < plain.losses.size(); ++i)
          EXPECT_NEAR(got.losses[i], plain.losses[i], (bf16 ? 1e-2 : 1e-5) * plain.losses[i]);
      }
    }
  }
}

// What ranks of two hosts of two send between hosts: of what the whole group of four reduces or
// gathers, each rank sends the part of its local rank to the other host.
TEST(DataParallelLayoutTest, BytesBetweenHostsMatchTheDocumentation) {
  constexpr int kRanks = 4, kHosts = 2, kMicroBatches = 2;
  constexpr double kBetween = (kHosts - 1.0) / kRanks;  // (K - 1) / K of 1 / G
  const TrainerOptions run = MediumRun(DType::kFloat32);
  const Counts count(run.model);
  for (DataSharding sharding : kShardings) {
    Layout layout = LayoutOf(1, 1, kRanks);
    layout.sharding = sharding;
    layout.ranks_per_host = kRanks / kHosts;
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(run, layout, 1);
    double reduced = 0, scattered = kBetween * 4 * count.all, gathered = scattered;
    if (sharding == DataSharding::kNone) {
      reduced = 2 * scattered;
      scattered = gathered = 0;
    }
    if (sharding >= DataSharding::kGradients) scattered *= kMicroBatches;
    if (sharding == DataSharding::kWeights)
      gathered = kMicroBatches * kBetween * 4 * (2 * count.all + count.words - count.positions);
    const auto sent = [&](Collective collective) {
      return static_cast<double>(got.sent->Of("dp-cp-0-between-hosts", collective));
    };
    EXPECT_LE(sent(Collective::kAllReduce) - reduced, 0.1 * reduced + 64);
    EXPECT_GE(sent(Collective::kAllReduce), 0.9 * reduced);
    ExpectWithinTenPercent(sent(Collective::kReduceScatter), scattered, "reduce-scatter");
    ExpectWithinTenPercent(sent(Collective::kExchange), gathered, "all-gather");
  }
}

}  // namespace
}  // namespace megatron
