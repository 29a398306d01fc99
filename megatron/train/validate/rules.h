// The rules between fields, by subject. Each function adds an error to the checker for each broken
// rule. Rules about a single field, and the conditions under which it has an effect, stand beside
// the field in config.proto; rules of one kind of model are in recipes/<kind>_rules.cc.

#ifndef MEGATRON_TRAIN_VALIDATE_RULES_H_
#define MEGATRON_TRAIN_VALIDATE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/plan/tensor_grid_traffic.h"
#include "megatron/train/config/config_checker.h"

namespace megatron {

struct RankGrids {
  RankGrid dense, expert;
};
// Returns the grids of the ranks that the configuration asks for; nothing if a field that they are
// made of is broken, which is an error of that field.
std::optional<RankGrids> GridsOf(const ConfigChecker& check);

// The network, by the rules for any kind of model and by those of its own kind
// (recipes/model_rules.h).
void CheckModel(ConfigChecker& check);

// Latent attention, and values that are not as wide as keys.
void CheckLatentAttention(ConfigChecker& check);

// Hybrid models, whose layers have one branch each.
void CheckHybridLayers(ConfigChecker& check);

// Multi-token prediction.
void CheckMultiTokenPrediction(ConfigChecker& check);

// muP.
void CheckMup(ConfigChecker& check);

// Mixtures of experts.
void CheckExperts(ConfigChecker& check);

// The division of the model and its samples over ranks, including the pipeline.
void CheckParallel(ConfigChecker& check);

// 2D, 2.5D and 3D tensor parallelism.
void CheckTensorGrid(ConfigChecker& check);

// What tensor-parallel ranks share out, over a grid or without one.
void CheckTensorCuts(ConfigChecker& check, const PlanGrid& grid);

// The fields that say how the model and the work on it are cut along the pipeline.
void CheckPipeline(ConfigChecker& check);

// Checks what an interleaved schedule needs of the field at `path`, which gives batch sizes that
// make so many micro-batches on each data-parallel rank. Adds an error for the first that is wrong.
void CheckThatPipelineIsFilled(ConfigChecker& check, absl::string_view path,
                               const std::vector<int64_t>& micro_batches);

// Products of 8-bit floats.
void CheckFloat8(ConfigChecker& check);

// Activations in host memory.
void CheckActivationOffload(ConfigChecker& check);
// Gradients, and weights, in host memory.
void CheckGradientOffload(ConfigChecker& check);
void CheckDelayedUpdate(ConfigChecker& check);
void CheckParameterOffload(ConfigChecker& check);

// Gradients in 16 bits.
void CheckMainGrads(ConfigChecker& check);

// Islands that seldom communicate.
void CheckDiloco(ConfigChecker& check);

// Gradients that are sent in fewer bytes.
void CheckGradientCompression(ConfigChecker& check);
void CheckSparseGradients(ConfigChecker& check);
void CheckOneBit(ConfigChecker& check);

// Low-rank adapters.
void CheckLora(ConfigChecker& check);

// Parameters that keep their values.
void CheckFreeze(ConfigChecker& check);

// Samples that begin short.
void CheckCurriculum(ConfigChecker& check);
// Checks that ranks can share out `length` tokens of each sample, of which the field at `path` is
// the length or a divisor.
void CheckSampleLength(ConfigChecker& check, absl::string_view path, int64_t length);

// Layers that see some of the tokens.
void CheckRandomLtd(ConfigChecker& check);

// CUDA graphs.
void CheckCudaGraphs(ConfigChecker& check);

// Learning rate, weight decay and batch sizes.
void CheckTraining(ConfigChecker& check);

// Batches that follow from the number of ranks, and restarts with fewer of them.
void CheckElasticity(ConfigChecker& check);

// The corpus and the tokenizer.
void CheckData(ConfigChecker& check);

// The profiler.
void CheckProfile(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_RULES_H_
