#include "megatron/train/gemm/choose_epilogues.h"

#include "megatron/layers/moe/moe_options.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/activation_type.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/consensus.h"

namespace megatron {
namespace {

constexpr int kLeastComputeCapability = 90;

bool HasBiases(const TransformerOptions& model) { return model.qkv_bias || model.has_mlp_bias(); }

// Experts do not compute their activations in products.
bool HasGelu(const TransformerOptions& model) {
  const MoeOptions& moe = model.moe;
  const bool has_mlp =
      moe.num_experts == 0 || !moe.layers.empty() || moe.shared_ffn_hidden_size > 0;
  return has_mlp && model.activation == ops::Activation::kGeluTanh && !model.gated;
}

}  // namespace

GemmOptions ChooseEpilogues(const RunOptions& options, int compute_capability,
                            const ProcessGroup& processes) {
  const TransformerOptions& model = options.trainer.model.transformer;
  const bool has_older = Consensus(processes).Any(compute_capability < kLeastComputeCapability);
  const bool fuses = !has_older && !model.float8.enabled;
  GemmOptions gemms = options.gemms;
  if (!gemms.fuse_bias_gradients.has_value()) gemms.fuse_bias_gradients = fuses && HasBiases(model);
  if (gemms.fuse_gelu == config::FuseGelu::auto_)
    gemms.fuse_gelu = fuses && HasGelu(model) ? config::FuseGelu::backward : config::FuseGelu::none;
  return gemms;
}

}  // namespace megatron
