// Compares the planner's traffic (plan/step_traffic.h) of what data-parallel ranks and islands send
// in other forms than fp32 gradients to all, and of optimizers that send more, with the bytes that
// the trainer's communicators count.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/train/layouts/counted_traffic_harness.h"

namespace megatron::counted_traffic {
namespace {

// Two hosts of two ranks.
Layout TwoHosts(DataSharding sharding) {
  Layout layout;
  layout.data = 4;
  layout.sharding = sharding;
  return layout;
}

// Returns what the rows of data parallelism send out of domains of two ranks.
double PlannedBetweenHosts(const Sent& sent) {
  Hardware hardware;
  hardware.set_domain(2);
  double bytes = 0;
  for (const TrafficRow& row : sent.rows) bytes += NetworkBytes(hardware, row);
  return bytes;
}

TEST(CountedDataTrafficTest, HierarchicalCallsSendWhatIsPlannedWithinHostsAndBetweenThem) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                      DataSharding::kGradients, DataSharding::kWeights}) {
    Layout layout = TwoHosts(sharding);
    layout.ranks_per_host = 2;
    SCOPED_TRACE(ToString(layout));
    const Sent sent = SentOn(LlamaRun(), LlamaModel(), layout, 0);
    ExpectWithinOnePercent(sent);
    const double between = CountedBytes(*sent.all, "dp-cp-0-between-hosts");
    EXPECT_GT(between, 0);
    EXPECT_NEAR(PlannedBetweenHosts(sent), between, 0.01 * between + 256);
  }
}

TEST(CountedDataTrafficTest, SecondaryShardsAndCodesSendWhatIsPlannedWithinHostsAndBetweenThem) {
  for (const int hosts : {1, 2}) {
    for (const bool quantized_weights : {false, true}) {
      for (const bool quantized_gradients : {false, true}) {
        TrainerOptions run = LlamaRun();
        run.data_parallel.quantized_weights = quantized_weights;
        run.data_parallel.quantized_gradients = quantized_gradients;
        Layout layout = TwoHosts(DataSharding::kWeights);
        layout.hosts = hosts;
        SCOPED_TRACE(testing::Message()
                     << ToString(layout) << ", " << quantized_weights << quantized_gradients);
        const Sent sent = SentOn(run, LlamaModel(), layout, 0);
        ExpectWithinOnePercent(sent);
        if (hosts == 1) continue;
        double in_host = 0;
        for (const TrafficRow& row : sent.rows) {
          if (row.group.ranks == 2 && row.group.stride == 1) in_host += SentBytes(row);
        }
        const double counted = CountedBytes(*sent.all, "dp-cp-host");
        EXPECT_NEAR(in_host, counted, 0.01 * counted);
      }
    }
  }
}

// With a threshold of 0 as many elements are sent as there is room for.
TEST(CountedDataTrafficTest, CompressedGradientsSendWhatIsPlanned) {
  for (const CompressionType type : {CompressionType::kInt8, CompressionType::kTopK,
                                     CompressionType::kThreshold, CompressionType::kPowerSgd}) {
    TrainerOptions run = LlamaRun();
    run.data_parallel.compression.type = type;
    run.data_parallel.compression.rank = 3;
    run.data_parallel.compression.max_density = 0.02;
    std::vector<Layout> layouts = {TwoHosts(DataSharding::kNone), TwoHosts(DataSharding::kStates)};
    layouts.emplace_back().tensor = 2;
    layouts.back().data = 2;
    layouts.emplace_back().pipeline = 2;
    layouts.back().data = 2;
    if (type != CompressionType::kPowerSgd) {
      for (const DataSharding sharding : {DataSharding::kStates, DataSharding::kWeights}) {
        layouts.push_back(TwoHosts(sharding));
        layouts.back().optimizer_instances = 2;
      }
    }
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(type) << " on " << ToString(layout));
      ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
    }
  }
}

TEST(CountedDataTrafficTest, GradientsIn16BitsSendWhatIsPlanned) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kGradients}) {
    TrainerOptions run = LlamaRun();
    run.data_parallel.gradient_dtype = DType::kFloat16;
    ExpectWithinOnePercent(SentOn(run, LlamaModel(), TwoHosts(sharding), 0));
  }
}

// Between islands go outer gradients alone, and single numbers in each step.
TEST(CountedDataTrafficTest, IslandsSendWhatIsPlanned) {
  for (const OuterGradientType type :
       {OuterGradientType::kFloat32, OuterGradientType::kInt8, OuterGradientType::kE3M0}) {
    TrainerOptions run = LlamaRun();
    run.outer.sync_every = 2;
    run.outer.gradient_type = type;
    Layout layout = TwoHosts(DataSharding::kStates);
    layout.optimizer_instances = 2;
    const Sent sent = SentOn(run, LlamaModel(), layout, 0);
    ExpectWithinOnePercent(sent);
    const double counted = CountedBytes(*sent.all, "dp-cp-replicas");
    EXPECT_GT(counted, 0);
    EXPECT_NEAR(2 * PlannedBetweenHosts(sent), counted, 0.01 * counted + 256);
  }
}

void ExpectShardsAsPlanned(const TrainerOptions& run) {
  for (const int ranks : {2, 4}) {
    for (const DataSharding sharding :
         {DataSharding::kNone, DataSharding::kStates, DataSharding::kWeights}) {
      Layout layout;
      layout.data = ranks;
      layout.sharding = sharding;
      SCOPED_TRACE(ToString(layout));
      ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
    }
  }
}

// Shards of Muon hold whole weights, and are padded to the largest.
TEST(CountedDataTrafficTest, MuonSendsPaddedShardsAndWhatItsModesNeed) {
  TrainerOptions run = LlamaRun();
  run.optimizer.kind = OptimizerOptions::kMuon;
  ExpectShardsAsPlanned(run);
  Layout layout;
  layout.tensor = 2;
  for (const MuonTensorMode mode :
       {MuonTensorMode::kBlockwise, MuonTensorMode::kDuplicated, MuonTensorMode::kDistributed}) {
    SCOPED_TRACE(static_cast<int>(mode));
    run.optimizer.muon.tensor_mode = mode;
    layout.data = 1;
    layout.sharding = DataSharding::kNone;
    ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
    layout.data = 2;
    layout.sharding = DataSharding::kStates;
    ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
  }
}

// Shards of LAMB hold whole parameters, a word table too.
TEST(CountedDataTrafficTest, LambSendsPaddedShards) {
  TrainerOptions run = LlamaRun();
  run.optimizer.kind = OptimizerOptions::kLamb;
  ExpectShardsAsPlanned(run);
  Layout layout;
  layout.tensor = layout.data = 2;
  layout.sharding = DataSharding::kStates;
  ExpectWithinOnePercent(SentOn(run, LlamaModel(), layout, 0));
}

// All else that ranks send is the same.
TEST(CountedDataTrafficTest, LargestScoresAreSentOnceAStep) {
  TrainerOptions run = LlamaRun();
  Layout layout;
  layout.tensor = layout.data = 2;
  const auto counted = [&] {
    return CountedBytes(*SentOn(run, LlamaModel(), layout, 0).all, /*group=*/"");
  };
  const double before = counted();
  run.qk_clip.enabled = true;
  double planned = 0;
  for (const TrafficRow& row : SentOn(run, LlamaModel(), layout, 0).rows) {
    if (row.what == std::string(kLargestScores)) planned += SentBytes(row);
  }
  EXPECT_EQ(planned, 2 * 3 / 4.0 * 4 * kLayers * kHeads);
  EXPECT_EQ(counted() - before, planned);
}

}  // namespace
}  // namespace megatron::counted_traffic
