// The ops of the emulated device, except products of 8-bit floats (emulated_float8_product.cc). A
// new op is one more name here.
#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/compression/group_codes.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/emulated_op.h"
#include "megatron/ops/cut_norm.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/float8/flat.h"
#include "megatron/ops/float8/flat_blocks.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/float8/quantize_blocks.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/host_choices.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/moe/sinkhorn.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/sequence_part.h"
#include "megatron/ops/shared_key.h"
#include "megatron/ops/state_space.h"
#include "megatron/ops/token_subset.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron::ops::cuda {
namespace {

[[maybe_unused]] const bool in_graphs = EmulateInGraphs<
    ActivationForward, ActivationBackward, GateForward, GateBackward, AttentionForward,
    AttentionBackward, BiasBackward, CrossEntropy, CrossEntropyStatistics, RescaleSum,
    CrossEntropyLoss, CrossEntropyHits, CrossEntropyBackward, BiasDropoutAdd, DropoutBackward, Copy,
    Add, Scale, SoftCap, Zero, EmbeddingForward, EmbeddingBackward, AbsMax, Quantize,
    QuantizeAndMeasure, QuantizeBlocks, LinearForward, LinearActivationForward, LinearBackwardInput,
    LinearActivationBackwardInput, LinearBackwardWeight, NormForward, ResidualNormForward,
    NormBackward, CutNormSums, CutNormForward, CutNormGradientSums, CutNormBackward, Rope,
    JoinSharedKey, SplitSharedKey, PartOfSequences, WeightedSum, ChooseTokens, FindKeptRows,
    FindKeptPart, GatherNumbers, CausalConvForward, CausalConvBackward, GatedNormSums,
    GatedNormGradientSums, GatedNormForward, GatedNormBackward, StateSpaceForward,
    StateSpaceBackward, GatedDeltaForward, GatedDeltaBackward, Jitter, GroupedLinearForward,
    GroupedLinearBackwardInput, GroupedLinearBackwardWeight, PlaceByExpert, Permute,
    PermuteBackward, Unpermute, UnpermuteBackward, RouterForward, CountChoices, CountMargins,
    RouterBackward, AddRouterLosses, DropOverCapacity, SinkhornBias>();

// The emulated device counts as one that the kernels for Hopper run on.
[[maybe_unused]] const bool hopper_is_available =
    RegisterCudaKernel<&HopperAttentionIsAvailable>(+[] { return true; });

// Graphs contain neither updates of weights, nor dispatch by host, nor passes with a cache.
[[maybe_unused]] const bool outside_graphs =
    EmulateOutsideGraphs<FirstChoiceOfHost, PackChoices, UnpackChoices, AdamWUpdate, JoinMasters,
                         SgdUpdate, LionUpdate, SumOfSquares, CountZeros, EncodeFloat8,
                         DecodeFloat8, AbsMaxOfBlocks, EncodeFloat8Blocks, DecodeFloat8Blocks,
                         EncodeGroups, DecodeGroups, AddDecodedGroups, CausalConvContinue,
                         StateSpaceContinue, GatedDeltaContinue>();

}  // namespace
}  // namespace megatron::ops::cuda
