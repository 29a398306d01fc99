// Counts, from a configuration, the parameters of a model and the arithmetic that one of its tokens
// costs.
//
// The model must be complete (config_defaults.h). `padded_vocab_size` is the vocabulary's size as
// the model holds it.

#ifndef MEGATRON_TRAIN_TRAINER_FLOPS_H_
#define MEGATRON_TRAIN_TRAINER_FLOPS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Every trained number, norms and biases included; a tied embedding counts once, and every expert.
int64_t CountParameters(const config::ModelConfig& model, int64_t padded_vocab_size);

// Both count the matrix products of forward and backward, a multiplication and an addition each as
// one, and nothing for recomputation. Of experts those count that a token goes to.
enum class FlopsConvention {
  // Attention as if each position saw all others: Megatron up to 0.12, its README's tables and
  // Narayanan et al. (2021),
  // 72 B L s h^2 (1 + s/6h + V/12hL) per step of a plain GPT. For comparison with published
  // figures.
  kClassic,
  // Attention counted where the causal mask lets it be: half of that. Megatron 0.20, and this
  // program's log.
  kCausalHalved,
};

// Training FLOPs per token, at samples of seq_length tokens; of T5, whose decoder's part is shared
// out over them, at the most that the decoder writes.
double FlopsPerToken(const config::ModelConfig& model, int64_t padded_vocab_size,
                     FlopsConvention convention);

enum class MatmulPrecision { kFp32, kHalf };

// The dense peak of a known accelerator, in FLOP/s, by the name that its driver gives ("NVIDIA
// H200"); nothing for others.
std::optional<double> PeakFlopsPerSecond(absl::string_view device_name, MatmulPrecision precision);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_FLOPS_H_
