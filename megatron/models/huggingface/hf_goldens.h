// Tests compare a model with Hugging Face's of the same weights. The weights follow from a formula,
// and what is theirs was written by testdata/hf/make_goldens.py.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_GOLDENS_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_GOLDENS_H_

#include <string>

#include "megatron/models/model_harness.h"

namespace megatron {

// Expects the losses, all gradients and the logits behind token `logits_of` of the batch to be
// those in testdata/hf/`golden`.txt, which has nothing else. Fails where a weight does not keep its
// bits on its way there and back.
void ExpectComputesWhatHuggingFaceComputes(const ModelOptions& options, HostBatch batch,
                                           int64_t logits_of, const std::string& golden);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_GOLDENS_H_
