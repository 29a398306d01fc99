#include "megatron/train/huggingface/hf_merge_adapter.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

std::vector<float> Widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  ops::Copy(Stream::Inline(), tensor, Tensor(values.data(), DType::kFloat32, tensor.shape()));
  return values;
}

absl::StatusOr<std::vector<float>> Read(const CheckpointReader& reader, const TensorEntry& entry) {
  std::vector<int64_t> memory(static_cast<size_t>(entry.shape.numel() * SizeOf(entry.dtype) + 7) /
                              8);
  const Tensor tensor(memory.data(), entry.dtype, entry.shape);
  Shape start = entry.shape;
  for (int d = 0; d < start.rank(); ++d) start[d] = 0;
  MEGATRON_RETURN_IF_ERROR(reader.Read(entry.name, start, tensor));
  return Widened(tensor);
}

}  // namespace

absl::Status AddAdapter(const CheckpointReader& reader, const LoraOptions& lora,
                        const std::string& name, const Tensor& weight) {
  const std::string layer(absl::StripSuffix(name, ".weight"));
  const std::string adapter = layer + kAdapterName;
  const TensorEntry* const a_entry = FindTensor(reader.manifest(), adapter + "linear_in.weight");
  const TensorEntry* const b_entry = FindTensor(reader.manifest(), adapter + "linear_out.weight");
  if (a_entry == nullptr || b_entry == nullptr) return absl::OkStatus();
  const std::vector<absl::string_view> parts = absl::StrSplit(layer, '.');
  const LowRankOptions options = lora.Of(parts.back());
  const int64_t inputs = weight.shape()[-1], outputs = weight.numel() / inputs, dim = options.dim;
  if (dim == 0 || a_entry->shape != Shape({dim, inputs}) ||
      b_entry->shape.numel() != outputs * dim) {
    return absl::DataLossError(absl::StrCat(reader.directory(), ": the adapter of ", name,
                                            " has other shapes than model.lora says"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<float> a, Read(reader, *a_entry));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<float> b, Read(reader, *b_entry));
  std::vector<float> sum = Widened(weight);
  for (int64_t o = 0; o < outputs; ++o) {
    float* const row = sum.data() + o * inputs;
    for (int64_t r = 0; r < dim; ++r) {
      const float factor = options.scale * b[static_cast<size_t>(o * dim + r)];
      const float* const from = a.data() + r * inputs;
      for (int64_t i = 0; i < inputs; ++i) row[i] += factor * from[i];
    }
  }
  ops::Copy(Stream::Inline(), Tensor(sum.data(), DType::kFloat32, weight.shape()), weight);
  return absl::OkStatus();
}

}  // namespace megatron
