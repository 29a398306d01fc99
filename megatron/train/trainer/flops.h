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
#include "megatron/plan/model_costs.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/trained_layers.h"

namespace megatron {

// Counts every trained number, norms and biases included; a tied embedding counts once, and every
// expert.
int64_t CountParameters(const config::ModelConfig& model, int64_t padded_vocab_size);

// Counts the training FLOPs per token, at samples of seq_length tokens; of T5, whose decoder's part
// is shared out over them, at the most that the decoder writes. The matrix products of forward and
// backward count, a multiplication and an addition each as one, and nothing for recomputation. Of
// experts those count that a token goes to. Of what is frozen those products count that are
// computed, and those of adapters.
double FlopsPerToken(const config::ModelConfig& model, int64_t padded_vocab_size,
                     FlopsConvention convention, const TrainedLayers& trained = {});

enum class MatmulPrecision { kFp32, kHalf };

// The dense peak of a known accelerator, in FLOP/s, by the name that its driver gives ("NVIDIA
// H200"); nothing for others.
std::optional<double> PeakFlopsPerSecond(absl::string_view device_name, MatmulPrecision precision);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_FLOPS_H_
