// Tests that the comparison with one rank finds mistakes: a run in which every call of one kind in
// one group is wrong must not pass for the run of one rank. The calls go wrong as by a forgotten
// reduction, a doubled one, a mean in place of a sum, or shards in the wrong order.

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

enum class Fault {
  kDropped,    // the call is not made
  kDoubled,    // a sum is made twice
  kHalved,     // the result of a sum is halved
  kLeftOut,    // the second rank of a group adds nothing to a sum
  kRotated,    // each rank gets what the one before it should get
  kWrongRoot,  // a broadcast comes from the next rank
};

struct Mutation {
  const char* name;
  const char* group;  // the beginning of its name
  Collective collective;
  Fault fault;
};

void Rotate(const Tensor& tensor, int parts) {
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  const size_t part = bytes.size() / static_cast<size_t>(parts);
  char* const data = static_cast<char*>(tensor.raw());
  std::memcpy(bytes.data(), data + bytes.size() - part, part);
  std::memcpy(bytes.data() + part, data, bytes.size() - part);
  std::memcpy(data, bytes.data(), bytes.size());
}

void ScaleFloats(const Tensor& tensor, float factor) {
  if (tensor.dtype() != DType::kFloat32) return;
  float* const values = tensor.data<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] *= factor;
}

class MutatedCommunicator : public ForwardingCommunicator {
 public:
  MutatedCommunicator(std::shared_ptr<Communicator> communicator, const Mutation& mutation)
      : ForwardingCommunicator(std::move(communicator)), mutation_(mutation) {}

  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (call.collective != mutation_.collective || !absl::StartsWith(name(), mutation_.group)) {
      inner().Run(call, stream);
      return;
    }
    const Tensor& result = call.out.empty() ? call.in : call.out;
    switch (mutation_.fault) {
      case Fault::kDropped:
        break;
      case Fault::kDoubled:
        inner().Run(call, stream);
        ScaleFloats(result, 2);
        break;
      case Fault::kHalved:
        inner().Run(call, stream);
        ScaleFloats(result, 0.5f);
        break;
      case Fault::kLeftOut:
        if (rank() == 1) ScaleFloats(call.in, 0);
        inner().Run(call, stream);
        break;
      case Fault::kRotated: {
        CollectiveCall rotated = call;
        // A gathered result is rotated afterwards, and before what is sent in parts.
        const bool sends_parts = call.collective == Collective::kReduceScatter ||
                                 call.collective == Collective::kAllToAll;
        if (sends_parts) Rotate(call.in, size());
        inner().Run(rotated, stream);
        if (!sends_parts) Rotate(result, size());
        break;
      }
      case Fault::kWrongRoot: {
        CollectiveCall moved = call;
        moved.root = (call.root + 1) % size();
        inner().Run(moved, stream);
        break;
      }
    }
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return std::make_shared<MutatedCommunicator>(std::move(part), mutation_);
  }

  const Mutation mutation_;
};

Layout EightRanks(DataSharding sharding) {
  Layout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  layout.sharding = sharding;
  return layout;
}

enum Model {
  kDense,
  kExperts,
  kEncoder,
  kMatrices,
  kCodes,
  kRows,
  kDropping,
  kRounded,
  kLatent,
  kMtp,
  kTiedMtp,
  kStates,
  kModels
};

struct Scene {
  const char* name;
  Layout layout;
  std::vector<Mutation> mutations;
  Model model = kDense;
};

std::vector<Scene> Scenes() {
  Layout sequence = EightRanks(DataSharding::kStates);
  sequence.sequence_parallel = true;
  Layout context;
  context.context = context.data = 2;
  Layout ulysses = context;
  ulysses.context_parallel = ContextParallel::kAllToAll;
  Layout gathered = context;
  gathered.context_parallel = ContextParallel::kGather;
  Layout experts = context;
  experts.expert = 2;
  Layout dispatch;
  dispatch.data = dispatch.expert = 4;
  dispatch.ranks_per_host = 2;
  dispatch.deduplicated_dispatch = true;
  Layout instances;
  instances.data = 4;
  instances.sharding = DataSharding::kWeights;
  instances.optimizer_instances = 2;
  Layout secondary = instances;
  secondary.optimizer_instances = 1;
  secondary.hosts = 2;
  Layout parts = instances;
  parts.sharding = DataSharding::kStates;
  parts.shards_states_over_instances = true;
  Layout blocks;
  blocks.tensor = 2;
  Layout matrices;
  matrices.data = 4;
  matrices.sharding = DataSharding::kStates;
  Layout rows;
  rows.data = 4;
  Layout hosts;
  hosts.data = 4;
  hosts.ranks_per_host = 2;
  Layout sharded_hosts = hosts;
  sharded_hosts.sharding = DataSharding::kStates;
  Layout square;
  square.tensor = 4;
  square.tensor_side = square.micro_batch_size = square.data = 2;
  Layout squares;
  squares.tensor = 8;
  squares.tensor_side = squares.tensor_depth = 2;
  squares.micro_batch_size = 4;
  Layout cube = squares;
  cube.tensor_cube = true;
  Layout mtp_stage;
  mtp_stage.pipeline = 4;
  mtp_stage.data = 2;
  mtp_stage.layers = {2, 2, 0, 0};
  mtp_stage.mtp_before_last = true;
  return {
      {"tensor, pipeline and data",
       EightRanks(DataSharding::kNone),
       {{"row outputs not summed", "tp", Collective::kAllReduce, Fault::kDropped},
        {"row outputs summed twice", "tp", Collective::kAllReduce, Fault::kDoubled},
        {"row outputs averaged", "tp", Collective::kAllReduce, Fault::kHalved},
        {"gradients not summed over data", "dp-cp", Collective::kAllReduce, Fault::kDropped},
        {"gradients summed twice over data", "dp-cp", Collective::kAllReduce, Fault::kDoubled},
        {"gradients averaged over data", "dp-cp", Collective::kAllReduce, Fault::kHalved},
        {"tied gradients not summed", "embedding", Collective::kAllReduce, Fault::kDropped},
        {"tied gradients summed twice", "embedding", Collective::kAllReduce, Fault::kDoubled},
        {"tied weights not sent", "embedding", Collective::kBroadcast, Fault::kDropped},
        {"tied weights from the copy", "embedding", Collective::kBroadcast, Fault::kWrongRoot},
        {"norm not summed", "world", Collective::kAllReduce, Fault::kDropped},
        {"norm summed twice", "world", Collective::kAllReduce, Fault::kDoubled},
        {"loss from the wrong stage", "pp", Collective::kBroadcast, Fault::kWrongRoot}}},
      {"a square of ranks",
       square,
       {{"inputs from the wrong column", "tp-row", Collective::kBroadcast, Fault::kWrongRoot},
        {"weights from the wrong row", "tp-column", Collective::kBroadcast, Fault::kWrongRoot},
        {"gradients of inputs to the wrong column", "tp-row", Collective::kReduceScatter,
         Fault::kRotated},
        {"gradients of weights to the wrong row", "tp-column", Collective::kReduceScatter,
         Fault::kRotated},
        {"gradients of columns not summed", "tp-column", Collective::kAllReduce, Fault::kDropped},
        {"statistics of norms not gathered", "tp-row", Collective::kAllGather, Fault::kDropped},
        {"sums of a row made twice", "tp-row", Collective::kAllReduce, Fault::kDoubled},
        {"tokens of a column in the wrong order", "tp-column", Collective::kAllGather,
         Fault::kRotated},
        {"blocks of the output matrix not swapped", "tp-0", Collective::kExchange, Fault::kDropped},
        {"tokens of other rows not counted", "dp-rows", Collective::kAllReduce, Fault::kDropped}}},
      {"two squares of ranks",
       squares,
       {{"gradients not summed over levels", "tp-depth", Collective::kAllReduce, Fault::kDropped},
        {"gradients averaged over levels", "tp-depth", Collective::kAllReduce, Fault::kHalved},
        {"gradients of columns not summed over levels", "tp-replicas", Collective::kAllReduce,
         Fault::kDropped},
        {"weights from the wrong row of a level", "tp-column", Collective::kBroadcast,
         Fault::kWrongRoot},
        {"tokens of a level's column in the wrong order", "tp-column", Collective::kAllGather,
         Fault::kRotated},
        {"blocks of a level's output matrix not swapped", "tp-square", Collective::kExchange,
         Fault::kDropped},
        {"tokens of other levels not counted", "dp-rows", Collective::kAllReduce,
         Fault::kDropped}}},
      {"a cube of ranks",
       cube,
       {{"tokens gathered in the wrong order of rows", "tp-column", Collective::kAllGather,
         Fault::kRotated},
        {"tokens gathered in the wrong order of columns", "tp-row", Collective::kAllGather,
         Fault::kRotated},
        {"outputs to the wrong row", "tp-column", Collective::kReduceScatter, Fault::kRotated},
        {"outputs to the wrong column", "tp-row", Collective::kReduceScatter, Fault::kRotated},
        {"weights in the wrong order of levels", "tp-depth", Collective::kAllGather,
         Fault::kRotated},
        {"gradients of weights to the wrong level", "tp-depth", Collective::kReduceScatter,
         Fault::kRotated},
        {"losses not summed over levels", "tp-depth", Collective::kAllReduce, Fault::kDropped},
        {"gradients of whole biases not summed", "tp-0", Collective::kAllReduce, Fault::kDropped},
        {"gradients of columns not summed", "tp-replicas", Collective::kAllReduce, Fault::kDropped},
        {"words to the wrong tokens", "tp-replicas", Collective::kReduceScatter, Fault::kRotated},
        {"tokens of the inner layout not counted", "dp-inner-rows", Collective::kAllReduce,
         Fault::kDropped}}},
      {"sequence parallel and sharded states",
       sequence,
       {{"rows gathered in the wrong order", "tp", Collective::kAllGather, Fault::kRotated},
        {"rows scattered to the wrong rank", "tp", Collective::kReduceScatter, Fault::kRotated},
        {"rows averaged", "tp", Collective::kReduceScatter, Fault::kHalved},
        {"gradients scattered to the wrong rank", "dp-cp", Collective::kReduceScatter,
         Fault::kRotated},
        {"weights gathered in the wrong order", "dp-cp", Collective::kAllGather, Fault::kRotated},
        {"gradients averaged while scattered", "dp-cp", Collective::kReduceScatter,
         Fault::kHalved}}},
      {"latent attention, tensor and pipeline",
       EightRanks(DataSharding::kNone),
       {{"gradients of latents not summed", "tp", Collective::kAllReduce, Fault::kDropped},
        {"gradients of latents averaged", "tp", Collective::kAllReduce, Fault::kHalved}},
       kLatent},
      {"latent attention, sequence parallel",
       sequence,
       {{"latents gathered in the wrong order", "tp", Collective::kAllGather, Fault::kRotated},
        {"gradients of latents to the wrong rank", "tp", Collective::kReduceScatter,
         Fault::kRotated},
        {"gradients of whole matrices not summed", "tp", Collective::kAllReduce, Fault::kDropped}},
       kLatent},
      {"multi-token prediction",
       EightRanks(DataSharding::kNone),
       {{"gradients of the copied table not summed", "embedding", Collective::kAllReduce,
         Fault::kDropped},
        {"the copied table not sent", "embedding", Collective::kBroadcast, Fault::kDropped}},
       kMtp},
      {"multi-token prediction on a stage of its own",
       mtp_stage,
       {{"gradients of its copy of the table left out", "embedding", Collective::kAllReduce,
         Fault::kLeftOut},
        {"its copy of the table not sent", "embedding", Collective::kBroadcast, Fault::kDropped}},
       kMtp},
      {"multi-token prediction on a stage of its own, and two copies of the table",
       mtp_stage,
       {{"gradients of one copy left out", "embedding", Collective::kAllReduce, Fault::kLeftOut},
        {"gradients of the copies not summed", "embedding", Collective::kAllReduce,
         Fault::kDropped},
        {"the copies not sent", "embedding", Collective::kBroadcast, Fault::kDropped}},
       kTiedMtp},
      {"instances of sharded weights",
       instances,
       {{"gradients not summed over instances", "dp-cp-replicas", Collective::kAllReduce,
         Fault::kDropped},
        {"gradients summed twice over instances", "dp-cp-replicas", Collective::kAllReduce,
         Fault::kDoubled},
        {"gradients averaged over instances", "dp-cp-replicas", Collective::kAllReduce,
         Fault::kHalved},
        {"gradients scattered to the wrong rank of an instance", "dp-cp-shards",
         Collective::kReduceScatter, Fault::kRotated},
        {"weights of an instance in the wrong order", "dp-cp-shards", Collective::kAllGather,
         Fault::kRotated}}},
      {"secondary shards",
       secondary,
       {{"secondary shards in the wrong order", "dp-cp-host", Collective::kAllGather,
         Fault::kRotated},
        {"secondary shards not gathered", "dp-cp-host", Collective::kAllGather, Fault::kDropped},
        {"shards in the wrong order", "dp-cp-0", Collective::kAllGather, Fault::kRotated}}},
      {"instances that share states",
       parts,
       {{"parts of gradients scattered to the wrong rank", "dp-cp-replicas",
         Collective::kReduceScatter, Fault::kRotated},
        {"parts of gradients averaged", "dp-cp-replicas", Collective::kReduceScatter,
         Fault::kHalved},
        {"parts of weights in the wrong order", "dp-cp-replicas", Collective::kAllGather,
         Fault::kRotated},
        {"parts of weights not gathered", "dp-cp-replicas", Collective::kAllGather,
         Fault::kDropped}}},
      {"hierarchical all-reduce",
       hosts,
       {{"gradients not summed over hosts", "dp-cp-0-between-hosts", Collective::kAllReduce,
         Fault::kDropped},
        {"gradients summed twice over hosts", "dp-cp-0-between-hosts", Collective::kAllReduce,
         Fault::kDoubled},
        {"gradients scattered to the wrong rank of a host", "dp-cp-0-in-host",
         Collective::kReduceScatter, Fault::kRotated},
        {"gradients of a host in the wrong order", "dp-cp-0-in-host", Collective::kAllGather,
         Fault::kRotated}}},
      {"hierarchical reduce-scatter",
       sharded_hosts,
       {{"gradients scattered to the wrong host", "dp-cp-0-between-hosts",
         Collective::kReduceScatter, Fault::kRotated},
        {"sums of a host scattered to the wrong rank", "dp-cp-0-in-host",
         Collective::kReduceScatter, Fault::kRotated}}},
      {"ring",
       context,
       {{"gradients not summed over context", "dp-cp", Collective::kAllReduce, Fault::kDropped}}},
      {"all-to-all",
       ulysses,
       {{"heads to the wrong rank", "cp", Collective::kAllToAll, Fault::kRotated}}},
      {"gathered keys",
       gathered,
       {{"keys in the wrong order", "cp", Collective::kAllGather, Fault::kRotated},
        {"gradients of keys to the wrong rank", "cp", Collective::kReduceScatter,
         Fault::kRotated}}},
      {"a norm of all groups of heads, over context",
       context,
       {{"sums of rows not added up", "cp", Collective::kAllReduce, Fault::kDropped},
        {"sums of rows added up twice", "cp", Collective::kAllReduce, Fault::kDoubled}},
       kStates},
      {"experts over context and data",
       experts,
       {{"choices not gathered over context", "cp", Collective::kAllReduce, Fault::kDropped},
        {"gradients of experts not summed", "edp", Collective::kAllReduce, Fault::kDropped},
        {"gradients of experts averaged", "edp", Collective::kAllReduce, Fault::kHalved}},
       kExperts},
      {"Muon's whole matrices on ranks",
       matrices,
       {{"gradients of matrices scattered to the wrong rank", "dp-cp", Collective::kReduceScatter,
         Fault::kRotated},
        {"gradients of matrices not summed", "dp-cp", Collective::kReduceScatter, Fault::kDropped},
        {"matrices gathered in the wrong order", "dp-cp", Collective::kAllGather, Fault::kRotated},
        {"matrices not gathered", "dp-cp", Collective::kAllGather, Fault::kDropped}},
       kMatrices},
      {"Muon's blocks, gathered",
       blocks,
       {{"blocks in the wrong order", "tp", Collective::kAllGather, Fault::kRotated},
        {"blocks not gathered", "tp", Collective::kAllGather, Fault::kDropped}},
       kMatrices},
      {"quantized weights and gradients",
       secondary,
       {{"codes of weights in the wrong order", "dp-cp-0", Collective::kAllGather, Fault::kRotated},
        {"codes of weights not gathered", "dp-cp-0", Collective::kAllGather, Fault::kDropped},
        {"codes of gradients to the wrong rank of a host", "dp-cp-host", Collective::kAllToAll,
         Fault::kRotated},
        {"codes of gradients not exchanged within hosts", "dp-cp-host", Collective::kAllToAll,
         Fault::kDropped},
        {"codes of gradients to the wrong host", "dp-cp-across-hosts", Collective::kAllToAll,
         Fault::kRotated},
        {"codes of gradients not exchanged across hosts", "dp-cp-across-hosts",
         Collective::kAllToAll, Fault::kDropped}},
       kCodes},
      {"the word table by its rows",
       rows,
       {{"rows not gathered", "dp-cp", Collective::kAllGather, Fault::kDropped}},
       kRows},
      {"layers that drop tokens, over context",
       context,
       {{"kept rows to the wrong rank of a context", "cp", Collective::kReduceScatter,
         Fault::kRotated},
        {"kept rows halved", "cp", Collective::kReduceScatter, Fault::kHalved},
        {"rows behind a layer in the wrong order of a context", "cp", Collective::kAllGather,
         Fault::kRotated},
        {"rows behind a layer not gathered", "cp", Collective::kAllGather, Fault::kDropped}},
       kDropping},
      {"gradients in 8 bits",
       rows,
       {{"codes of gradients to the wrong rank", "dp-cp", Collective::kAllToAll, Fault::kRotated},
        {"codes of gradients not exchanged", "dp-cp", Collective::kAllToAll, Fault::kDropped},
        {"codes of sums in the wrong order", "dp-cp", Collective::kAllGather, Fault::kRotated},
        {"codes of sums not gathered", "dp-cp", Collective::kAllGather, Fault::kDropped}},
       kRounded},
      {"deduplicated dispatch",
       dispatch,
       {{"rows between hosts doubled", "etp-ep-across-hosts", Collective::kAllToAllV,
         Fault::kDoubled},
        {"rows to the wrong rank of a host", "etp-ep-host", Collective::kAllToAllV,
         Fault::kRotated},
        {"rows within a host doubled", "etp-ep-host", Collective::kAllToAllV, Fault::kDoubled}},
       kExperts},
      {"an encoder's keys, all-to-all",
       ulysses,
       {{"heads of both sides to the wrong rank", "cp", Collective::kAllToAll, Fault::kRotated}},
       kEncoder},
      {"an encoder's keys, gathered",
       gathered,
       {{"keys of an encoder in the wrong order", "cp", Collective::kAllGather, Fault::kRotated},
        {"gradients of an encoder not summed", "cp", Collective::kReduceScatter, Fault::kDropped},
        {"gradients of an encoder averaged", "cp", Collective::kReduceScatter, Fault::kHalved}},
       kEncoder},
      {"an encoder's keys, around a ring",
       context,
       {{"keys of an encoder not passed on", "cp", Collective::kExchange, Fault::kDropped}},
       kEncoder},
  };
}

constexpr int kSteps = 3;

// What runs of a model train, and how far its layouts may be from one rank.
struct Training {
  TrainerOptions run;
  double tolerance = 2e-6;   // the tolerance of parallel_equivalence_test
  bool compares_all = true;  // norms and weights too; else losses alone
};

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, const Mutation* mutation) {
  const bool encodes = run.model.kind == ModelKind::kT5;
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  if (mutation != nullptr) {
    how.wrap = [mutation](std::shared_ptr<Communicator> world) {
      return std::make_shared<MutatedCommunicator>(std::move(world), *mutation);
    };
  }
  return encodes ? TrainOnLayout(run, how, GapSource()) : TrainOnLayout(run, how, CountingSource());
}

bool Close(double got, double want, double tolerance) {
  return std::abs(got - want) <= tolerance * want;
}

bool SameWeights(const WholeTensor& got, const WholeTensor& want, double tolerance) {
  if (got.bytes.size() != want.bytes.size()) return false;
  const auto* const a = reinterpret_cast<const float*>(got.bytes.data());
  const auto* const b = reinterpret_cast<const float*>(want.bytes.data());
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < want.shape.numel(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return difference <= tolerance * tolerance * norm;
}

bool SameRun(const LayoutOutcome& got, const LayoutOutcome& want, const Training& training) {
  const double tolerance = training.tolerance;
  for (int i = 0; i < kSteps; ++i) {
    if (!Close(got.losses[i], want.losses[i], tolerance)) return false;
    if (training.compares_all && !Close(got.norms[i], want.norms[i], tolerance)) return false;
  }
  if (!training.compares_all) return true;
  for (const auto& [name, tensor] : want.state) {
    if (absl::StartsWith(name, "optimizer.state.") || absl::EndsWith(name, "linear_qkv.bias"))
      continue;
    const auto found = got.state.find(name);
    if (found == got.state.end() || !SameWeights(found->second, tensor, tolerance)) return false;
  }
  return true;
}

// The same model as in parallel_equivalence_test, which asserts how far apart its routers' scores
// lie.
TrainerOptions RunWithExperts() {
  TrainerOptions run = TinyRun(SmallMixtral(), OptimizerOptions::kSgd);
  run.model.transformer.moe.layers = {false, true, false, true};
  run.model.transformer.init_std = 0.08f;
  return run;
}

// Newton-Schulz makes rounding errors larger; the weights of a mistaken run are 6e-2 apart or more.
Training OfMatrices() {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kMuon);
  run.optimizer.muon.tensor_mode = MuonTensorMode::kDuplicated;
  run.optimizer.muon.extra_scale_factor = 0.2;
  run.optimizer.muon.product_dtype = DType::kFloat32;
  return {run, 2e-5};
}

// Codes round, and the run of one rank has none: losses are 6e-5 apart, and with a mistake 2e-3 or
// more. Weights that hardly change, such as biases, are mostly rounding.
Training OfCodes() {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  run.data_parallel.quantized_weights = run.data_parallel.quantized_gradients = true;
  return {run, 5e-4, /*compares_all=*/false};
}

// More words than occur in a step.
Training OfRows() {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  run.model.vocab_size = run.model.padded_vocab_size = 1024;
  run.data_parallel.sparse_table = "embedding.word_embeddings.weight";
  run.data_parallel.most_sparse_rows = 32;
  return {run};
}

// Two of the four layers see half of the tokens.
Training OfDropping() {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  run.random_ltd.min = run.random_ltd.multiple = CountingSource::kLength / 2;
  run.random_ltd.max = CountingSource::kLength;
  run.random_ltd.total_steps = 2 * kSteps;
  return {run};
}

// As with the codes of ZeRO++, the run of one rank has none.
Training OfRounded() {
  TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  run.data_parallel.compression.type = CompressionType::kInt8;
  return {run, 5e-4, /*compares_all=*/false};
}

// The output matrix is not the word table, of which the last stage has a copy.
Training OfMtp() {
  TrainerOptions run = TinyRun(SmallMtp(), OptimizerOptions::kSgd);
  run.model.tied_embeddings = false;
  return {run};
}

// What is normalized is small: epsilon must not hide its sums.
Training OfStates() {
  TrainerOptions run = TinyRun(SmallHybrid(), OptimizerOptions::kSgd);
  run.model.transformer.norm.epsilon = 1e-5f;
  run.model.transformer.mamba.norm_all_groups = true;
  return {run};
}

TEST(MutationTest, EveryWrongCollectiveIsDetected) {
  const Training trainings[kModels] = {{TinyRun(SmallGpt2(), OptimizerOptions::kSgd)},
                                       {RunWithExperts()},
                                       {TinyRun(SmallT5(), OptimizerOptions::kSgd)},
                                       OfMatrices(),
                                       OfCodes(),
                                       OfRows(),
                                       OfDropping(),
                                       OfRounded(),
                                       {TinyRun(SmallLatent(), OptimizerOptions::kSgd)},
                                       OfMtp(),
                                       {TinyRun(SmallMtp(), OptimizerOptions::kSgd)},
                                       OfStates()};
  Layout one;
  one.micro_batch_size = 4;
  LayoutOutcome outcomes[kModels];
  for (int model = 0; model < kModels; ++model)
    outcomes[model] = Train(trainings[model].run, one, nullptr);
  for (const Scene& scene : Scenes()) {
    SCOPED_TRACE(scene.name);
    const Training& training = trainings[scene.model];
    const LayoutOutcome& alone = outcomes[scene.model];
    const Mutation none = {"none", "no such group", Collective::kAllReduce, Fault::kDropped};
    EXPECT_TRUE(SameRun(Train(training.run, scene.layout, &none), alone, training));
    for (const Mutation& mutation : scene.mutations) {
      // Ranks that disagree fail the harness, which also finds the mistake.
      testing::TestPartResultArray failures;
      bool same = false;
      {
        testing::ScopedFakeTestPartResultReporter reporter(
            testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
        same = SameRun(Train(training.run, scene.layout, &mutation), alone, training);
      }
      EXPECT_TRUE(failures.size() > 0 || !same) << mutation.name;
    }
  }
}

}  // namespace
}  // namespace megatron
