// Weights with the products of their low-rank adapters added.
#ifndef MEGATRON_TRAIN_HUGGINGFACE_HF_MERGE_ADAPTER_H_
#define MEGATRON_TRAIN_HUGGINGFACE_HF_MERGE_ADAPTER_H_

#include <string>

#include "absl/status/status.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/layers/lora_options.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Adds to `weight`, the whole of parameter `name` of the checkpoint, alpha / dim · B A of its
// adapter, in fp32. Does nothing if it has none.
absl::Status AddAdapter(const CheckpointReader& reader, const LoraOptions& lora,
                        const std::string& name, const Tensor& weight);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_HUGGINGFACE_HF_MERGE_ADAPTER_H_
