#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/layers/context_slice.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

void CheckLayout(ConfigChecker& check) {
  if (!check.IsDefault("parallel.tensor_parallel_mode")) return;  // CheckTensorGrid
  CheckTensorCuts(check, PlanGrid());
  const config::ModelConfig& model = check.resolved().model();
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const int64_t tensor = check.resolved().parallel().tensor_model_parallel_size();
  if (check.resolved().parallel().sequence_parallel() &&
      ModelRulesOf(model).filling() != SampleFilling::kToAnyLength &&
      check.Usable({kTensor, "model.seq_length"}) && model.seq_length() % tensor != 0) {
    check.Error("model.seq_length", absl::StrCat("must be divisible by ", check.Named(kTensor),
                                                 " with parallel.sequence_parallel: true"));
  }
}

// Samples of different lengths are filled up until they can be shared out evenly. A sample of the
// greatest length must need no filling.
void CheckStripes(ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!check.Usable({"model.seq_length", kTensor})) return;
  const bool rows = parallel.sequence_parallel() && parallel.tensor_model_parallel_size() > 1;
  const int64_t multiple = kContextStripe * parallel.context_parallel_size() *
                           (rows ? parallel.tensor_model_parallel_size() : 1);
  if (check.resolved().model().seq_length() % multiple == 0) return;
  check.Error("model.seq_length",
              absl::StrCat("must be divisible by ", kContextStripe, " * ", check.Named(kContext),
                           rows ? absl::StrCat(" * ", check.Named(kTensor)) : "", " with ",
                           check.Named(check.IsWritten("recompute.attention_chunk_tokens")
                                           ? "recompute.attention_chunk_tokens"
                                           : "model.model_type")));
}

// Samples of one length are cut into chunks of equal length.
void CheckChunks(ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t size = parallel.context_parallel_size();
  const int64_t length = check.resolved().model().seq_length();
  if (!check.Usable({"model.seq_length"})) return;
  if (length % (2 * size) != 0) {
    check.Error("model.seq_length", absl::StrCat("must be divisible by 2 * ", check.Named(kContext),
                                                 ": each rank has a part from each end"));
  } else if (parallel.sequence_parallel() && check.Usable({kTensor}) &&
             length / size % parallel.tensor_model_parallel_size() != 0) {
    check.Error("model.seq_length",
                absl::StrCat("must be divisible by ", check.Named(kContext), " times ",
                             check.Named(kTensor), " with parallel.sequence_parallel: true"));
  }
}

// Checks that heads divide evenly over `ranks` context-parallel ranks, whose number is the field
// `named`.
void CheckHeadsAreShared(ConfigChecker& check, int64_t ranks, absl::string_view named) {
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ModelConfig& model = check.resolved().model();
  const char* const heads =
      model.group_query_attention() ? "model.num_query_groups" : "model.num_attention_heads";
  const int64_t count =
      model.group_query_attention() ? model.num_query_groups() : model.num_attention_heads();
  if (!check.Usable({heads, kTensor})) return;
  const int64_t tensor_ranks = check.resolved().parallel().tensor_model_parallel_size();
  if (count % (ranks * tensor_ranks) == 0) return;
  check.Error(heads, absl::StrCat("must be divisible by ", named, " times ", check.Named(kTensor),
                                  " with ", check.Named("parallel.cp_comm_type")));
}

void CheckTeams(ConfigChecker& check) {
  constexpr char kTeams[] = "parallel.hierarchical_context_parallel_sizes";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const auto& sizes = parallel.hierarchical_context_parallel_sizes();
  const int64_t size = parallel.context_parallel_size();
  if (!check.Usable({kTeams})) return;
  const bool fits = sizes.size() == 2 && sizes[0] >= 1 && sizes[0] <= size && sizes[1] >= 1 &&
                    sizes[1] <= size && sizes[0] * sizes[1] == size;
  if (!fits) {
    return check.Error(kTeams, absl::StrCat("must be two numbers whose product is ",
                                            check.Named("parallel.context_parallel_size"), " with ",
                                            check.Named("parallel.cp_comm_type")));
  }
  CheckHeadsAreShared(check, sizes[0], check.Named(kTeams));
}

// Checks how samples and heads are divided over context-parallel ranks.
void CheckContext(ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t size = parallel.context_parallel_size();
  if (!check.Usable({kContext}) || size == 1) return;
  const SampleFilling filling = ModelRulesOf(check.resolved().model()).filling();
  const bool stripes = check.IsWritten("recompute.attention_chunk_tokens");
  if (filling == SampleFilling::kToSeqLength || stripes) {
    CheckStripes(check);
  } else if (filling == SampleFilling::kNone) {
    CheckChunks(check);
  }
  if (parallel.cp_comm_type() == config::ContextParallelComm::a2a_p2p) return CheckTeams(check);
  if (parallel.cp_comm_type() == config::ContextParallelComm::a2a)
    CheckHeadsAreShared(check, size, check.Named(kContext));
}

void CheckRankOrder(ConfigChecker& check) {
  constexpr char kOrder[] = "parallel.rank_order";
  absl::StatusOr<ParallelSizes> sizes = ToParallelSizes(check.resolved().parallel());
  if (!sizes.ok()) return check.Error(kOrder, sizes.status().message());
  if (!check.Usable({"parallel.tensor_model_parallel_size", "parallel.context_parallel_size",
                     "parallel.pipeline_model_parallel_size", "parallel.data_parallel_size",
                     "parallel.expert_model_parallel_size",
                     "parallel.expert_tensor_parallel_size"})) {
    return;
  }
  const int64_t ranks = int64_t{sizes->tensor} * sizes->context * sizes->pipeline * sizes->data;
  if (ranks > std::numeric_limits<int>::max()) return;
  const auto grid = [&] {
    return RankGrid::CreateExpert(*sizes, static_cast<int>(ranks)).status();
  };
  const absl::Status numbered = grid();
  sizes->order = RankOrder();
  // Sizes that do not multiply to the ranks are an error of other fields.
  if (grid().ok() && !numbered.ok()) check.Error(kOrder, numbered.message());
}

// Returns the number of ranks with the same experts; nothing without experts, or if other fields
// have errors.
std::optional<int64_t> RanksWithTheSameExperts(const ConfigChecker& check) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (check.resolved().model().num_experts() == 0 ||
      !check.Usable({"parallel.tensor_model_parallel_size", "parallel.expert_model_parallel_size",
                     "parallel.expert_tensor_parallel_size"})) {
    return std::nullopt;
  }
  const int64_t dense = parallel.data_parallel_size() * parallel.context_parallel_size() *
                        parallel.tensor_model_parallel_size();
  const int64_t cut =
      parallel.expert_model_parallel_size() * parallel.expert_tensor_parallel_size();
  if (dense % cut != 0) return std::nullopt;
  return dense / cut;
}

constexpr char kSameWeights[] =
    " with the same weights (parallel.data_parallel_size * parallel.context_parallel_size)";
constexpr char kSameExperts[] = " with the same experts (what expert parallelism leaves of them)";
constexpr char kInstances[] = "parallel.num_distributed_optimizer_instances";

// Checks that the ranks with the same weights, and those with the same experts, divide into
// optimizer instances.
void CheckInstances(ConfigChecker& check) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t instances = parallel.num_distributed_optimizer_instances();
  if (!check.Usable(
          {kInstances, "parallel.data_parallel_size", "parallel.context_parallel_size"}) ||
      instances == 1) {
    return;
  }
  const auto expect = [&](int64_t ranks, absl::string_view same) {
    if (ranks % instances != 0) {
      check.Error(kInstances,
                  absl::StrCat("must divide the ", FormatQuantity(ranks, "rank"), same));
    }
  };
  expect(parallel.data_parallel_size() * parallel.context_parallel_size(), kSameWeights);
  if (const auto ranks = RanksWithTheSameExperts(check)) expect(*ranks, kSameExperts);
}

// Checks that the ranks with the same weights, and those with the same experts, divide into hosts
// that have secondary shards, and that these are not other hosts than those of hierarchical
// collectives.
void CheckSecondaryShards(ConfigChecker& check) {
  constexpr char kPartition[] = "parallel.zero_hpz_partition_size";
  constexpr char kLevels[] = "parallel.hierarchical_collectives_ranks_per_host";
  constexpr char kFile[] = "parallel.topology_file";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!check.Usable({kPartition, kInstances, kLevels, "parallel.data_parallel_size",
                     "parallel.context_parallel_size"}) ||
      parallel.zero_hpz_partition_size() == 1) {
    return;
  }
  check.HaveNoEffect({"precision.fp8_param_gather"},
                     absl::StrCat("with ", check.Named(kPartition),
                                  ": secondary shards are gathered in the weights' own type"));
  if (parallel.num_distributed_optimizer_instances() > 1) {
    return check.Error(kPartition, absl::StrCat("does not go with ", check.Named(kInstances),
                                                ": an instance gathers within itself anyway"));
  }
  const bool is_of_levels = parallel.zero_hpz_partition_size() == 0;
  if (is_of_levels && parallel.hierarchical_collectives_ranks_per_host() == 0)
    return check.Error(kPartition, absl::StrCat("takes the hosts of ", kLevels, ", which is 0"));
  if (is_of_levels && check.IsWritten(kFile) && !check.IsWritten("parallel.rank_order")) {
    return check.Error(kPartition, absl::StrCat("does not go with ", check.Named(kFile),
                                                ", which chooses the ranks of a host: write their "
                                                "number, or parallel.rank_order"));
  }
  const int64_t ranks = parallel.data_parallel_size() * parallel.context_parallel_size();
  const int64_t of_host = SecondaryShardRanks(parallel), of_level = CopiesOnAHost(parallel);
  const std::optional<RankGrids> grids = GridsOf(check);
  // Hosts that give no collective two levels are an error already.
  if (is_of_levels && grids.has_value() &&
      !CheckHierarchicalGroups(grids->dense, grids->expert).ok()) {
    return;
  }
  if (is_of_levels && (of_host == 1 || of_host == ranks)) {
    return check.Error(
        kPartition, absl::StrCat("takes the hosts of ", check.Named(kLevels), ", each with ",
                                 of_host, " of the ", FormatQuantity(ranks, "rank"), kSameWeights,
                                 ": there must be several on each of several"));
  }
  if (ranks % of_host != 0 || ranks == of_host) {
    return check.Error(kPartition, absl::StrCat("must divide, and be less than, the ",
                                                FormatQuantity(ranks, "rank"), kSameWeights));
  }
  if (of_level > 1 && of_host % of_level != 0 && of_level % of_host != 0) {
    return check.Error(kPartition, absl::StrCat("must divide, or be divisible by, the ",
                                                FormatQuantity(of_level, "rank"),
                                                " with the same weights on a "
                                                "host of ",
                                                check.Named(kLevels)));
  }
  const int64_t hosts = ranks / of_host;
  const auto experts = RanksWithTheSameExperts(check);
  if (experts.has_value() && *experts % hosts != 0) {
    check.Error(kPartition, absl::StrCat("makes ", hosts, " hosts, which must divide the ",
                                         FormatQuantity(*experts, "rank"), kSameExperts));
  }
}

// Checks that there are hosts whose ranks go together, and that they have as many ranks of a group.
void CheckHierarchical(ConfigChecker& check) {
  constexpr char kRanksPerHost[] = "parallel.hierarchical_collectives_ranks_per_host";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (parallel.hierarchical_collectives_ranks_per_host() == 0 || !check.Usable({kRanksPerHost}))
    return;
  const std::optional<RankGrids> grids = GridsOf(check);
  const bool has_experts = check.resolved().model().num_experts() > 0;
  // Without effect, which is an error already.
  if (!grids.has_value() ||
      (!has_experts && parallel.data_parallel_size() * parallel.context_parallel_size() == 1)) {
    return;
  }
  constexpr char kDispatch[] = "parallel.moe_deduplicated_dispatch";
  if (grids->expert.deduplicated_dispatch()) {
    if (parallel.expert_model_parallel_size() == 1) return;  // without effect, an error already
    const absl::Status dispatches = CheckDeduplicatedDispatch(grids->expert);
    if (!dispatches.ok()) return check.Error(kDispatch, dispatches.message());
    if (check.resolved().model().moe_pad_expert_input_to_capacity()) {
      check.Error(kDispatch, absl::StrCat("does not go with ",
                                          check.Named("model.moe_pad_expert_input_to_capacity"),
                                          ": how many rows go to a host depends on the choices"));
    }
  }
  const absl::Status fits = CheckHierarchicalGroups(grids->dense, grids->expert);
  if (!fits.ok()) check.Error(kRanksPerHost, fits.message());
}

// Checks what weights and gradients that are sent as integers exclude.
void CheckQuantized(ConfigChecker& check) {
  constexpr char kWeights[] = "parallel.zero_quantized_weights",
                 kGradients[] = "parallel.zero_quantized_gradients";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (parallel.zero_quantized_weights()) {
    check.HaveNoEffect(
        {"precision.fp8_param_gather"},
        absl::StrCat("with ", check.Named(kWeights), ": weights are sent as integers of 8 bits"));
  }
  if (parallel.zero_quantized_gradients()) {
    check.HaveNoEffect({"parallel.grad_reduce_in_bf16", "parallel.communication_data_type"},
                       absl::StrCat("with ", check.Named(kGradients),
                                    ": gradients are sent as integers of 4 bits"));
  }
  for (const char* path : {kWeights, kGradients}) {
    if (check.IsDefault(path)) continue;
    if (check.Usable({kInstances}) && parallel.num_distributed_optimizer_instances() > 1)
      check.Error(path, absl::StrCat("does not go with ", check.Named(kInstances)));
  }
}

void CheckDataParallel(ConfigChecker& check) {
  if (check.resolved().parallel().grad_reduce_in_bf16() && !check.resolved().precision().bf16())
    check.Error("parallel.grad_reduce_in_bf16", "needs precision.bf16: true");
}

void CheckReplicas(ConfigChecker& check) {
  constexpr char kInterval[] = "parallel.check_weight_hash_across_dp_replicas_interval";
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (!check.Usable({kInterval}) || parallel.check_weight_hash_across_dp_replicas_interval() == 0) {
    return;
  }
  constexpr char kGather[] = "precision.fp8_param_gather";
  if (config.precision().fp8_param_gather()) {
    check.Error(kInterval, absl::StrCat("cannot be used with ", check.Named(kGather),
                                        ": an owner's weights are not rounded as the others' are"));
  }
  constexpr char kStrategy[] = "parallel.data_parallel_sharding_strategy";
  if (check.Usable({kStrategy, "parallel.num_distributed_optimizer_instances",
                    "parallel.tensor_model_parallel_size"}) &&
      parallel.data_parallel_sharding_strategy() ==
          config::DataParallelSharding::optim_grads_params &&
      parallel.num_distributed_optimizer_instances() == 1 &&
      parallel.tensor_model_parallel_size() == 1) {
    check.Error(kInterval, absl::StrCat("has no effect with ", check.Named(kStrategy),
                                        ": no weight is on two ranks"));
  }
}

void CheckBackend(ConfigChecker& check) {
  constexpr absl::string_view kBackend = "parallel.distributed_backend";
  if (!check.IsWritten(kBackend)) return;
  if (check.resolved().parallel().distributed_backend() == config::DistributedBackend::nccl) {
    return check.HaveNoEffect(
        {"parallel.collective_algorithm"},
        absl::StrCat("with ", check.Named(kBackend), ": NCCL chooses its own, by NCCL_ALGO"));
  }
  if (check.resolved().system().device() != config::Device::cuda) return;
  for (absl::string_view path : {"parallel.overlap_grad_reduce", "parallel.overlap_param_gather"}) {
    if (!check.IsDefault(path))
      check.Error(path, absl::StrCat("on GPUs NCCL alone overlaps, not ", check.Named(kBackend),
                                     "; --set ", path, "= leaves it out"));
  }
}

}  // namespace

std::optional<RankGrids> GridsOf(const ConfigChecker& check) {
  if (!check.Usable({"parallel.tensor_model_parallel_size", "parallel.context_parallel_size",
                     "parallel.pipeline_model_parallel_size", "parallel.data_parallel_size",
                     "parallel.num_distributed_optimizer_instances", "parallel.rank_order"})) {
    return std::nullopt;
  }
  // Without experts these two have no value.
  if (check.resolved().model().num_experts() > 0 &&
      !check.Usable(
          {"parallel.expert_model_parallel_size", "parallel.expert_tensor_parallel_size"})) {
    return std::nullopt;
  }
  const absl::StatusOr<ParallelSizes> sizes = ToParallelSizes(check.resolved().parallel());
  if (!sizes.ok()) return std::nullopt;
  const int64_t ranks = int64_t{sizes->tensor} * sizes->context * sizes->pipeline * sizes->data;
  if (ranks > std::numeric_limits<int>::max()) return std::nullopt;
  const auto dense = RankGrid::Create(*sizes, static_cast<int>(ranks)),
             expert = RankGrid::CreateExpert(*sizes, static_cast<int>(ranks));
  if (!dense.ok() || !expert.ok()) return std::nullopt;
  return RankGrids{*dense, *expert};
}

void CheckParallel(ConfigChecker& check) {
  CheckLayout(check);
  CheckTensorGrid(check);
  CheckContext(check);
  CheckExperts(check);
  CheckPipeline(check);
  CheckRankOrder(check);
  CheckInstances(check);
  CheckHierarchical(check);
  CheckSecondaryShards(check);
  CheckQuantized(check);
  CheckDataParallel(check);
  CheckReplicas(check);
  CheckBackend(check);
}

}  // namespace megatron
