// Trains on the emulated device with weights in host memory, which come to the device block by
// block while they are used.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/optim/state_file.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

// The weights and their gradients, and where masters and states lie otherwise.
constexpr const char* kOfParameters[] = {"weights", "gradients", "master weights", "exp_avg",
                                         "exp_avg_sq"};

int64_t BytesOf(const LayoutOutcome& outcome, const std::string& kind) {
  const auto found = outcome.memory.find(kind);
  return found == outcome.memory.end() ? 0 : found->second;
}

int64_t BytesOnDevice(const LayoutOutcome& outcome) {
  int64_t bytes = 0;
  for (const auto& [name, held] : outcome.memory) bytes += name.rfind("host/", 0) == 0 ? 0 : held;
  return bytes;
}

void ExpectSame(const LayoutOutcome& with, const LayoutOutcome& without) {
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
  EXPECT_EQ(with.evaluation, without.evaluation);
  EXPECT_TRUE(with.state == without.state);
}

TrainerOptions With(DType dtype, const ModelOptions& model = SmallGpt2(),
                    OptimizerOptions::Kind kind = OptimizerOptions::kAdamW) {
  TrainerOptions options = TinyRun(model, kind);
  options.model.transformer.dtype = dtype;
  options.clip_grad = 0.1;
  return options;
}

// What lies in files and not in host memory.
struct InFiles {
  bool states = false, weights = false;
};
constexpr InFiles kPlaces[] = {{false, false}, {true, false}, {false, true}, {true, true}};

std::string ToString(const InFiles& files) {
  return absl::StrCat(files.states ? ", states in files" : "",
                      files.weights ? ", weights in files" : "");
}

TrainerOptions Offloaded(TrainerOptions options, const InFiles& files = {}) {
  options.weights_on_host = true;
  options.host_fraction = 1;
  options.state_extent_elements = 1000;
  if (files.states) options.state_directory = testing::TempDir();
  if (files.weights) options.weight_directory = testing::TempDir();
  return options;
}

LayoutOutcome Train(const TrainerOptions& options, const LayoutRun& how,
                    const SampleSource& source = CountingSource()) {
  LayoutRun run = how;
  run.device = DeviceType::kCuda;
  if (run.steps == 0) run.steps = 3;
  return TrainOnLayout(options, run, source);
}

// Expects the bits of losses, norms, weights and states that a run has without offload, and that
// the weights lie on the host.
void ExpectSameBits(const TrainerOptions& options, const LayoutRun& how,
                    const SampleSource& source = CountingSource()) {
  const LayoutOutcome without = Train(options, how, source);
  for (const InFiles& files : kPlaces) {
    // Weights in files alone are tried on one and two ranks.
    if (files.weights && !files.states && how.layout.ranks() > 2) continue;
    SCOPED_TRACE(absl::StrCat(ToString(how.layout), ToString(files)));
    const LayoutOutcome with = Train(Offloaded(options, files), how, source);
    ExpectSame(with, without);
    EXPECT_EQ(BytesOf(with, "weights"), 0);
    EXPECT_EQ(BytesOf(with, "host/weights"), files.weights ? 0 : BytesOf(without, "weights"));
    EXPECT_EQ(BytesOf(with, "host/weights read ahead") > 0, files.weights);
    EXPECT_EQ(BytesOf(with, "gradients"), 0);
    EXPECT_EQ(BytesOf(with, "host/gradients"), BytesOf(without, "gradients"));
    EXPECT_GT(BytesOf(with, "gradients/whole"), 0);
    EXPECT_GT(BytesOf(with, "weights/gathered"), 0);
    EXPECT_EQ(BytesOf(with, "master weights"), 0);
  }
}

LayoutRun On(int tensor, int pipeline, int data, bool overlap = false) {
  LayoutRun how;
  how.layout.tensor = tensor;
  how.layout.sequence_parallel = tensor > 1;
  how.layout.pipeline = pipeline;
  how.layout.data = data;
  how.layout.overlap = overlap;
  if (data > 1) how.layout.sharding = DataSharding::kWeights;
  how.evaluate = true;
  return how;
}

TEST(ParameterOffloadTest, OneRankHasTheSameBitsWithEveryDtypeAndOptimizer) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const auto kind :
         {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(absl::StrCat(SizeOf(dtype), " bytes, optimizer ", kind));
        ExpectSameBits(With(dtype, SmallGpt2(), kind), On(1, 1, 1, overlap));
      }
    }
  }
}

TEST(ParameterOffloadTest, RemaindersHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16);
  options.optimizer.store_param_remainders = true;
  for (const int data : {1, 2}) ExpectSameBits(options, On(1, 1, data, /*overlap=*/true));
}

TEST(ParameterOffloadTest, RanksThatShareWeightsOutHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool overlap : {false, true}) ExpectSameBits(With(dtype), On(1, 1, 2, overlap));
  }
}

// The table of SmallGpt2 is on both stages.
TEST(ParameterOffloadTest, TensorAndPipelineRanksHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int data : {1, 2}) ExpectSameBits(With(dtype), On(2, 2, data, /*overlap=*/true));
  }
}

TEST(ParameterOffloadTest, EveryScheduleHasTheSameBits) {
  for (const ScheduleKind schedule :
       {ScheduleKind::kGPipe, ScheduleKind::kZeroBubbleH1, ScheduleKind::kZeroBubbleV}) {
    LayoutRun how = On(1, 2, 1, /*overlap=*/true);
    how.layout.schedule = schedule;
    if (schedule == ScheduleKind::kZeroBubbleV) how.layout.chunks = 2;
    ExpectSameBits(With(DType::kBFloat16), how);
  }
  LayoutRun interleaved = On(1, 2, 2, /*overlap=*/true);
  interleaved.layout.chunks = 2;
  ExpectSameBits(With(DType::kBFloat16), interleaved);
}

TEST(ParameterOffloadTest, LayersThatAreRecomputedHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16, SmallLlama());
  options.model.layer_recompute = {LayerRecompute::kUniform, 2};
  for (const int data : {1, 2}) ExpectSameBits(options, On(1, 1, data, /*overlap=*/true));
}

TEST(ParameterOffloadTest, InstancesAndSecondaryShardsHaveTheSameBits) {
  LayoutRun instances = On(1, 1, 4, /*overlap=*/true);
  instances.layout.optimizer_instances = 2;
  ExpectSameBits(With(DType::kBFloat16), instances);
  LayoutRun hosts = On(1, 1, 4, /*overlap=*/true);
  hosts.layout.hosts = 2;
  ExpectSameBits(With(DType::kBFloat16), hosts);
}

TEST(ParameterOffloadTest, WeightsThatAreSentAsCodesHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16);
  options.data_parallel.quantized_weights = true;
  for (const bool overlap : {false, true}) ExpectSameBits(options, On(1, 1, 2, overlap));
}

// With one rank of each weight but those of experts, which two have, nothing is shared out.
TEST(ParameterOffloadTest, ExpertsHaveTheSameBits) {
  const TrainerOptions options = With(DType::kBFloat16, SmallMixtral());
  LayoutRun shared_out = On(1, 1, 2, /*overlap=*/true);
  shared_out.layout.expert = 2;
  ExpectSameBits(options, shared_out);
  ExpectSameBits(options, On(2, 1, 1, /*overlap=*/true));
}

TEST(ParameterOffloadTest, EveryKindOfModelHasTheSameBits) {
  ExpectSameBits(With(DType::kBFloat16, SmallBert()), On(1, 1, 1, true), PairSource());
  TrainerOptions t5 = With(DType::kBFloat16, SmallMegatronT5());
  t5.model.num_encoder_layers = 2;
  ExpectSameBits(t5, On(1, 1, 1, true), GapSource());
}

TEST(ParameterOffloadTest, NormsOfWeightsAndUpdatesHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = With(dtype);
    options.diagnostics_interval = 1;
    const LayoutOutcome without = Train(options, On(1, 1, 1));
    for (const bool weights_in_file : {false, true}) {
      TrainerOptions offloaded = Offloaded(options, {false, weights_in_file});
      // Extents do not cut the portions in which squares of an update are summed.
      offloaded.state_extent_elements = StateFile::kExtentElements;
      const LayoutOutcome with = Train(offloaded, On(1, 1, 1));
      ExpectSame(with, without);
      ASSERT_EQ(with.diagnostics.size(), without.diagnostics.size());
      for (size_t step = 0; step < with.diagnostics.size(); ++step) {
        const auto &got = with.diagnostics[step].layers, &want = without.diagnostics[step].layers;
        ASSERT_FALSE(want.empty());
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_EQ(got[i].value, want[i].value) << want[i].name;
      }
    }
  }
}

TEST(ParameterOffloadTest, ACheckpointContinuesWithAndWithoutIt) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TrainerOptions options = With(dtype);
    LayoutRun whole = On(1, 1, 1);
    whole.steps = 4;
    const LayoutOutcome expected = Train(options, whole);
    // On the device, in host memory, and with weights, or weights and states, in files.
    const std::vector<TrainerOptions> places = {options, Offloaded(options),
                                                Offloaded(options, {false, true}),
                                                Offloaded(options, {true, true})};
    for (size_t saved = 0; saved < places.size(); ++saved) {
      LayoutRun first = On(1, 1, 1);
      first.steps = 2;
      first.save = absl::StrCat(testing::TempDir(), "/parameters_", SizeOf(dtype), "_", saved);
      Train(places[saved], first);
      for (size_t loaded = 0; loaded < places.size(); ++loaded) {
        SCOPED_TRACE(absl::StrCat("saved ", saved, ", loaded ", loaded));
        LayoutRun second = On(1, 1, 1, /*overlap=*/true);
        second.steps = 2;
        second.load = first.save;
        EXPECT_TRUE(Train(places[loaded], second).state == expected.state);
      }
    }
  }
}

// A model whose weights, gradients, masters and states are ten times as large as the device.
class LargeModelTest : public testing::Test {
 protected:
  LargeModelTest() : options_(With(DType::kBFloat16, SmallLlama())) {
    TransformerOptions& transformer = options_.model.transformer;
    transformer.num_layers = 24;
    transformer.hidden_size = 256;
    transformer.ffn_hidden_size = 1024;
    transformer.num_attention_heads = transformer.num_query_groups = 4;
    transformer.kv_channels = 64;
    options_.model.layer_recompute = {LayerRecompute::kUniform, 1};
    how_.steps = 2;
    how_.layout.overlap = true;
    how_.layout.micro_batch_size = 2;
  }
  ~LargeModelTest() override { LimitEmulatedMemory(int64_t{1} << 40); }

  static int64_t HeldNow() {
    int64_t bytes = 0;
    for (const EmulatedMemory& memory : MemoryOfEmulatedCuda())
      bytes += static_cast<int64_t>(memory.bytes);
    return bytes;
  }

  TrainerOptions options_;
  LayoutRun how_;
};

TEST_F(LargeModelTest, TrainsOnADeviceOfATenthOfItsSize) {
  LayoutOutcome without = Train(options_, how_);
  without.state.clear();  // it is as large as the model
  int64_t size = 0;
  for (const char* kind : kOfParameters) size += BytesOf(without, kind);
  LimitEmulatedMemory(HeldNow() + size / 10);
  for (const InFiles& files : {InFiles{false, false}, InFiles{true, false}, InFiles{true, true}}) {
    TrainerOptions options = Offloaded(options_, files);
    options.state_extent_elements = StateFile::kExtentElements;
    const LayoutOutcome with = Train(options, how_);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.norms, without.norms);
    EXPECT_LE(BytesOnDevice(with), size / 10);
    if (!files.weights) continue;
    // Host memory has the gradients, three layers, and the extents on their way.
    EXPECT_LT(BytesOf(with, "host/weights read ahead"), BytesOf(without, "weights") / 4);
    EXPECT_EQ(BytesOf(with, "host/weights"), 0);
  }
}

using LargeModelDeathTest = LargeModelTest;

TEST_F(LargeModelDeathTest, DoesNotTrainThereWithItsWeightsOnTheDevice) {
  TrainerOptions states = options_;
  states.host_fraction = 1;
  const LayoutOutcome with = Train(Offloaded(options_), how_);
  LimitEmulatedMemory(HeldNow() + BytesOnDevice(with));
  EXPECT_DEATH(Train(states, how_), "out of memory of the emulated device");
}

TEST(ParameterOffloadLockTest, MemoryThatCannotBeLockedIsAnErrorWithTheBytes) {
  // What the host reads and writes of batches and losses is less.
  LimitPageLockedMemory(1 << 14);
  // TrainOnLayout fails the test with the status of the rank.
  EXPECT_NONFATAL_FAILURE(Train(Offloaded(With(DType::kFloat32)), On(1, 1, 1)),
                          "bytes for host/weights");
  LimitPageLockedMemory(int64_t{1} << 60);
}

}  // namespace
}  // namespace megatron
