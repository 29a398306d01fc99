// The tensors of a trainer's checkpoint and their names: what this rank saves, and what it loads.
#ifndef MEGATRON_TRAIN_TRAINER_CHECKPOINT_TENSORS_H_
#define MEGATRON_TRAIN_TRAINER_CHECKPOINT_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/optim/outer/outer_optimizer.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

inline constexpr char kMasterPrefix[] = "optimizer.state.fp32_param.";
inline constexpr char kInstructionSet[] = "instruction_set";
inline constexpr char kIslands[] = "diloco.islands";
inline constexpr char kCompression[] = "gradient_compression";
inline constexpr char kCompressionShare[] = "gradient_compression.share";
inline constexpr char kPhaseData[] = "phase_data";
// Optimizer::local_rates, where ranks differ.
inline constexpr char kLocalRates[] = "optimizer.local_rates";
// What a pending update (optim/pending_update.h) has besides gradients, where there is one.
inline constexpr char kPendingScale[] = "optimizer.pending.grad_scale";
inline constexpr char kPendingLr[] = "optimizer.pending.lr";
inline constexpr char kPendingDecoupledLr[] = "optimizer.pending.decoupled_lr";
inline constexpr char kPendingScaledLr[] = "optimizer.pending.scaled_lr";
inline constexpr char kPendingWeightDecay[] = "optimizer.pending.weight_decay";
// The fragment that islands send each other, after which step they began, and of how many it is.
inline constexpr char kFragmentInFlight[] = "diloco.fragment_in_flight";
inline constexpr char kFragmentIteration[] = "diloco.fragment_iteration";
inline constexpr char kNumFragments[] = "diloco.num_fragments";
// The outer server's run and round that the global copy is of.
inline constexpr char kServerRun[] = "diloco.server_run";
inline constexpr char kServerRound[] = "diloco.server_round";

// Names of states besides those of the update rule.
inline constexpr char kMaster[] = "fp32_param";
inline constexpr char kOuterMomentum[] = "outer_momentum";
inline constexpr char kOuterGradient[] = "outer_gradient";
inline constexpr char kNumbers[] = "numbers";

// Returns what stands before the names of the parameters whose state it is.
std::string StatePrefix(absl::string_view state);

// Returns whether the checkpoint has a pending update.
bool HasPendingUpdate(const CheckpointReader& reader);

// Returns the number of islands of the run that saved the checkpoint; 0: it had none.
int64_t SavedIslands(const CheckpointReader& reader);

// Returns what stands in the checkpoint before the names of this rank's states.
std::string SavedIsland(const CheckpointReader& reader, Trainer& trainer);

// Returns the prefix that the checkpoint has for the state of the parameter. `island` is
// SavedIsland().
std::string SavedPrefix(const CheckpointReader& reader, const std::string& island,
                        const OptimizerState& state, const std::string& parameter);

// Returns elements `range` of the flat memory as elements of the parameter's block.
FlatRange Within(const FlatParameter& flat, const FlatRange& range);

// Returns whether islands send each other the parameter's outer gradient.
bool IsInFlight(const OuterOptimizer& outer, const Parameter& parameter);

// Appends elements `range` of a parameter's block, whose values are `elements`, as blocks named
// `prefix` + the parameter's name.
void AppendBlocks(const std::string& prefix, const Parameter& parameter, const FlatRange& range,
                  const Tensor& elements, std::vector<ShardedTensor>* blocks);

// Returns the blocks of weights, masters and optimizer states that this rank saves: those of which
// it is the main replica.
std::vector<ShardedTensor> SavedBlocks(Trainer& trainer);

// Returns the numbers that the rule keeps for parameter `index` of the buffers.
ShardedTensor NumbersBlock(Trainer& trainer, size_t index);

// Returns the router's state tensors, which no optimizer updates.
std::vector<ShardedTensor> RouterBlocks(Trainer& trainer);

// Returns the history of the operands of FP8 products, which is the same on all ranks of a stage.
std::vector<ShardedTensor> HistoryBlocks(Trainer& trainer);

// Lists what the states of gradient compression depend on (named_changes.h): a rank's errors are of
// use to the same rank in the same layout. Empty: gradients are not compressed.
std::string CompressionLayout(Trainer& trainer);

// Lists how much of the gradients is sent, where a field says that. What was not sent is of use
// with any other such number.
std::string CompressionShare(Trainer& trainer);

// Returns this rank's states of gradient compression, each one row of elements.
std::vector<ShardedTensor> CompressionBlocks(Trainer& trainer);

// Returns this rank's own states, each one row of elements, where ranks differ.
std::vector<ShardedTensor> LocalBlocks(Trainer& trainer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_CHECKPOINT_TENSORS_H_
