// The weights of a model under Hugging Face's names and in its layout.
//
// Every tensor there is made of rows of one of our parameters, in another order and sometimes
// transposed; so copying moves bytes, whatever their type, and loses nothing. What differs:
//
//   linear_qkv       here groups of [queries..., key, value]; there q, k and v one after the other,
//                    in one tensor (gpt2) or three
//   linear_fc1       with a gate, here [2, I, H]; there gate_proj and up_proj, or wi_0 and wi_1
//   linear_kv        of cross-attention: here [heads, key and value, head size]; there k and v
//   gpt2's linears   are stored [in, out] there ("Conv1D"), as are gpt_oss's experts
//   experts          one parameter of all experts here; there tensors of each, or, in gpt_oss, one
//                    whose gates and ups take turns
//   latents          the same here and there
//   rotary           pairs (i, i + D/2) there, or (2i, 2i + 1) in some families; here either, so
//                    that channels may be reordered
//   mixers           rows by groups here; there the same part of all groups together
//   vocabulary       the rows of padding exist only here; coming from there they are zero
//   tied embeddings  one tensor, here and there
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_WEIGHTS_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct HfTensor {
  std::string name;            // there
  std::vector<int64_t> shape;  // its shape in the file
  std::string parameter;       // ours that it is made of; empty: there is none, and it is zero
  Shape parameter_shape;       // the global one
  // It is a state of the model and no weight: in fp32, whatever the weights are.
  bool is_state = false;
  // It is made of this one of so many equal parts of the parameter, along its first dimension: of
  // one expert, for example.
  int64_t part = 0, parts = 1;

  int64_t rows = 0, columns = 1;  // it and the part, seen as matrices, have so many
  // There it is this number of matrices, each [columns, rows / transposed]; 0: [rows, columns].
  int64_t transposed = 0;
  // Row r there is row row(r) of the part here.
  std::function<int64_t(int64_t r)> row;

  // The shape and the beginning of the part in the parameter.
  Shape part_shape() const;
  Shape part_offset() const;
};

// All tensors of the model, in the order in which it uses them. The options, and the model type,
// must be such that HfConfigJson accepts them. Of sizes, only the numbers of layers and of experts
// cost memory.
std::vector<HfTensor> HfTensors(const ModelOptions& options, absl::string_view model_type = "");

// Copies one tensor, of elements of `element_size` (1, 2, 4 or 8) bytes: `ours` is its part of the
// parameter, `theirs` the whole tensor, both row-major. Both ways are exact inverses.
void CopyToHf(const HfTensor& tensor, int64_t element_size, const char* ours, char* theirs);
void CopyFromHf(const HfTensor& tensor, int64_t element_size, const char* theirs, char* ours);

// The name that the same tensor has in files of the model without its head (GPT2Model): without
// "transformer.". Empty for other models.
std::string HfNameWithoutHead(const HfTensor& tensor);

// Returns whether files may hold a tensor of this name that the model does not use: masks and
// frequencies that old versions saved, which follow from the configuration, and the like.
bool IsHfBuffer(absl::string_view name);

// The output matrix, where it is not tied.
inline constexpr char kHfHeadName[] = "lm_head.weight";
// Returns our parameter that files of tied models may hold a second time under this name; empty for
// others.
std::string HfCopiedParameter(absl::string_view name);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_WEIGHTS_H_
