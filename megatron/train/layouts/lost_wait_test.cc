// Tests that the emulated device finds every missing wait between computing and what is
// communicated or copied beside it: training in which a rank leaves out any one of its waits ends
// the program.
#include <cstdint>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gtest/gtest.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/nccl/fake_nccl.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/models/model_harness.h"
#include "megatron/tensor/emulated_order.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

struct Case {
  std::string name;
  ModelOptions model;
  Layout layout;
  int64_t num_layers = 4;
  bool weights_on_host = false, weights_in_file = false, gradients_on_host = false;
  bool delays_updates = false, evaluates = false;
  int steps = 1;
  DType main_grads = DType::kFloat32;
  // Waits that put nothing behind anything: those of the first copy, into memory that was in no use
  // before; those for reductions at the end of a backward, whose memory is not used again before a
  // later wait that covers them; and those of an update in host memory. The host has waited for the
  // sums of the step's gradients by then, and so for all that the update's copies read or
  // overwrite. In each pass attention brings the first keys of earlier chunks into memory that
  // nothing has used since it waited for all copies. Waits that others cover put nothing behind
  // anything either.
  std::set<int64_t> unneeded;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class LostWaitTest : public testing::TestWithParam<Case> {
 protected:
  // Trains, and the first rank leaves out its wait of this number. Returns the number of its waits.
  static int64_t Train(const Case& c, int64_t number) {
    FakeNccl nccl;
    LostWait lost = {number};
    LayoutRun run;
    run.layout = c.layout;
    run.steps = c.steps;
    run.evaluate = c.evaluates;
    run.device = DeviceType::kCuda;
    run.wrap = [&](std::shared_ptr<Communicator> host) {
      // Sums are NCCL's: those in the order of ranks make the host wait when their memory grows.
      auto world = NcclWorld::Create(&nccl, std::move(host), NcclWorldOptions());
      CHECK(world.ok()) << world.status();
      const std::shared_ptr<NcclWorld> owner = *std::move(world);
      if (owner->communicator()->rank() == 0) LoseWait(&lost);
      return std::shared_ptr<Communicator>(owner, owner->communicator().get());
    };
    TrainerOptions options = TinyRun(c.model, OptimizerOptions::kAdamW);
    options.model.transformer.num_layers = c.num_layers;
    options.weights_on_host = c.weights_on_host;
    options.gradients_on_host = c.gradients_on_host;
    options.main_grads_dtype = c.main_grads;
    if (c.weights_on_host || c.gradients_on_host || c.delays_updates) options.host_fraction = 1;
    if (c.delays_updates) options.optimizer.delayed_gradients = DType::kFloat32;
    if (c.weights_in_file) options.weight_directory = testing::TempDir();
    TrainOnLayout(options, run, CountingSource());
    return lost.waits;
  }
};

TEST_P(LostWaitTest, EndsTheProgram) {
  const Case& c = GetParam();
  const int64_t waits = Train(c, -1);
  EXPECT_GT(waits, 0);
  for (int64_t number = 0; number < waits; ++number) {
    if (c.unneeded.count(number) > 0) {
      Train(c, number);
      continue;
    }
    EXPECT_DEATH(Train(c, number), "nothing puts one behind the other") << "wait " << number;
  }
}

// A step of one micro-batch.
Case Small(const char* name, const ModelOptions& model) {
  Case c = {name, model, {}};
  c.layout.micro_batch_size = 8;
  return c;
}

Case Context(const char* name, ContextParallel kind, int ranks, int team_size, int heads) {
  Case c = Small(name, SmallGpt2());
  c.model.transformer.num_attention_heads = heads;
  c.model.transformer.num_query_groups = heads;
  c.layout.context = ranks;
  c.layout.context_parallel = kind;
  c.layout.context_team_size = team_size;
  return c;
}

Case TensorParallel(const char* name, bool tp_comm_overlap) {
  Case c = Small(name, SmallGpt2());
  c.layout.tensor = 2;
  c.layout.tp_comm_overlap = tp_comm_overlap;
  return c;
}

// The pieces of a product in FP8 share codes in scratch memory.
Case TensorParallelInFloat8(const char* name) {
  Case c = TensorParallel(name, /*tp_comm_overlap=*/true);
  TransformerOptions& transformer = c.model.transformer;
  transformer.dtype = DType::kBFloat16;
  transformer.ffn_hidden_size = 64;
  transformer.float8.enabled = true;
  return c;
}

Case Experts(const char* name, const ModelOptions& model) {
  Case c = Small(name, model);
  c.layout.data = c.layout.expert = 2;
  c.layout.micro_batch_size = 4;
  return c;
}

// Each rank has two of four experts, which get their rows one after the other.
Case ExpertsInParts(const char* name, bool recompute) {
  Case c = Experts(name, SmallMixtral());
  c.model.transformer.moe.dispatch_in_parts = true;
  c.model.transformer.recompute.mlp = recompute;
  return c;
}

// Each rank is a host.
Case DeduplicatedDispatch(const char* name, const ModelOptions& model) {
  Case c = Experts(name, model);
  c.layout.ranks_per_host = 1;
  c.layout.deduplicated_dispatch = true;
  return c;
}

// More layers than windows, so that each kind of wait comes in the first pass already.
Case Offload(const char* name, const ModelOptions& model) {
  Case c = Small(name, model);
  c.model.num_offloaded_layers = 5;
  c.num_layers = 6;
  c.layout.data = 2;
  c.layout.micro_batch_size = 4;
  return c;
}

Case OffloadedModules(const char* name, const ModelOptions& model) {
  Case c = Offload(name, model);
  c.model.offload_modules = {OffloadModule::kAttentionNorm, OffloadModule::kCoreAttention};
  return c;
}

// Layers keep their inputs alone, which leave beside attention's chunks. There are more chunks than
// windows, and they end within samples, so that some see keys of earlier ones.
Case OffloadedInputsBesideAttention(const char* name) {
  Case c = Offload(name, SmallGpt2());
  c.model.num_offloaded_layers = 4;
  c.num_layers = 5;
  c.model.layer_recompute = {LayerRecompute::kUniform, 1};
  c.model.attention_on_host = true;
  c.model.transformer.recompute.attention_chunk_tokens = 24;
  c.unneeded = {12, 29, 47, 52, 65, 70, 83, 100, 142, 184, 226, 256, 269};
  return c;
}

// Two ranks that hold parts of each weight, or share all of them out.
Case WeightsOnHost(const char* name, bool shared_out) {
  Case c = Small(name, SmallGpt2());
  c.layout.overlap = true;
  c.weights_on_host = true;
  c.unneeded = {0, 43, 45, 47};
  if (!shared_out) {
    c.layout.tensor = 2;
    return c;
  }
  c.unneeded = {0, 22, 24, 26};
  c.layout.data = 2;
  c.layout.micro_batch_size = 4;
  c.layout.sharding = DataSharding::kWeights;
  return c;
}

// The sums of the first micro-batch come back for the second.
Case SumsOnHost(const char* name) {
  Case c = WeightsOnHost(name, /*shared_out=*/false);
  c.layout.micro_batch_size = 4;
  c.unneeded = {0, 43, 45, 62, 88, 93, 97};
  return c;
}

// Weights that come from files need the waits of those that come from memory.
Case WeightsInFiles(const char* name) {
  Case c = WeightsOnHost(name, /*shared_out=*/true);
  c.weights_in_file = true;
  return c;
}

// Two micro-batches, whose sums are kept in bf16, or in either type on the host.
Case Gradients(const char* name, bool on_host, DType main_grads, std::set<int64_t> unneeded) {
  Case c = Small(name, SmallGpt2());
  c.layout.overlap = true;
  c.layout.data = 2;
  c.layout.micro_batch_size = 2;
  c.layout.sharding = on_host ? DataSharding::kGradients : DataSharding::kNone;
  c.gradients_on_host = on_host;
  c.main_grads = main_grads;
  c.evaluates = on_host;  // waits for weights that are gathered beside the next step
  c.unneeded = std::move(unneeded);
  return c;
}

// Gradients leave in the first step, the update comes in the second one, and the third one uses it.
Case DelayedUpdates(const char* name, std::set<int64_t> unneeded) {
  Case c = Small(name, SmallGpt2());
  c.layout.data = 2;
  c.layout.micro_batch_size = 4;
  c.delays_updates = true;
  c.steps = 3;
  c.unneeded = std::move(unneeded);
  return c;
}

std::vector<Case> Cases() {
  return {
      Context("Ring", ContextParallel::kRing, 2, 1, 4),
      Context("AllToAll", ContextParallel::kAllToAll, 2, 1, 4),
      Context("AllToAllOfThirds", ContextParallel::kAllToAll, 2, 1, 6),
      Context("Gather", ContextParallel::kGather, 2, 1, 3),
      Context("Hierarchical", ContextParallel::kHierarchical, 4, 2, 4),
      TensorParallel("TensorInBackward", false),
      TensorParallel("TensorInBothPasses", true),
      TensorParallelInFloat8("TensorInBothPassesInFloat8"),
      Experts("Experts", SmallMixtral()),
      Experts("ExpertsAndASharedOne", SmallDeepSeek()),
      ExpertsInParts("ExpertsInParts", /*recompute=*/false),
      ExpertsInParts("ExpertsInPartsThatRecompute", /*recompute=*/true),
      DeduplicatedDispatch("DeduplicatedDispatch", SmallMixtral()),
      DeduplicatedDispatch("DeduplicatedDispatchAndASharedExpert", SmallDeepSeek()),
      Offload("OffloadedActivations", SmallGpt2()),
      OffloadedModules("OffloadedModules", SmallGpt2()),
      OffloadedInputsBesideAttention("OffloadedInputsBesideAttention"),
      WeightsOnHost("OffloadedWeights", false),
      SumsOnHost("OffloadedWeightsOfTwoMicroBatches"),
      WeightsOnHost("OffloadedWeightsSharedOut", true),
      WeightsInFiles("OffloadedWeightsInFiles"),
      DelayedUpdates("DelayedUpdates", {0, 2, 4, 6, 8}),
      Gradients("RoundedGradients", false, DType::kBFloat16, {1, 7, 9, 15, 21, 23, 25}),
      Gradients("OffloadedGradients", true, DType::kFloat32, {1, 7, 9, 15, 21, 23, 25, 28, 29}),
      Gradients("OffloadedRoundedGradients", true, DType::kBFloat16, {1, 7, 15, 21, 25, 28, 29}),
  };
}

INSTANTIATE_TEST_SUITE_P(Overlaps, LostWaitTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megatron
