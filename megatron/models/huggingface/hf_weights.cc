#include "megatron/models/huggingface/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/models/huggingface/hf_decoder.h"
#include "megatron/models/huggingface/hf_table.h"

namespace megatron {
namespace {

constexpr char kGpt2Prefix[] = "transformer.";

class Gpt2Table : public HfTable {
 public:
  using HfTable::HfTable;

  std::vector<HfTensor> Build() {
    AddTable("transformer.wte.weight", "embedding.word_embeddings.weight", options_.vocab_size);
    AddMatrix("transformer.wpe.weight", "embedding.position_embeddings.weight",
              {options_.max_positions, layer_.hidden_size}, options_.max_positions, SameRow);
    for (int64_t i = 0; i < layer_.num_layers; ++i) AddLayer(i);
    AddNorm("transformer.ln_f", "decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    if (!options_.tied_embeddings)
      AddTable(kHfHeadName, "output_layer.weight", options_.vocab_size);
    return std::move(tensors_);
  }

 private:
  void AddLayer(int64_t i) {
    const std::string theirs = absl::StrCat("transformer.h.", i);
    const std::string ours = absl::StrCat("decoder.layers.", i);
    AddLayerNorm(theirs + ".ln_1", ours + ".self_attention.linear_qkv");
    const QkvRows qkv = qkv_;
    AddConv1d(theirs + ".attn.c_attn", Qkv(ours), [qkv](int64_t r) { return qkv.Concatenated(r); });
    AddConv1d(theirs + ".attn.c_proj", Proj(ours), SameRow);
    AddLayerNorm(theirs + ".ln_2", ours + ".mlp.linear_fc1");
    AddConv1d(theirs + ".mlp.c_fc", Fc1(ours), SameRow);
    AddConv1d(theirs + ".mlp.c_proj", Fc2(ours), SameRow);
  }
};

// Calls copy(row here, column, row there) in blocks that stay in the cache when one side is walked
// across.
template <typename Copy>
void ForEachElement(const HfTensor& tensor, const Copy& copy) {
  constexpr int64_t kBlock = 64;
  const int64_t height = tensor.rows / tensor.transposed;  // rows of one matrix there
  for (int64_t r0 = 0; r0 < tensor.rows; r0 += kBlock) {
    const int64_t r1 = std::min(r0 + kBlock, tensor.rows);
    for (int64_t c0 = 0; c0 < tensor.columns; c0 += kBlock) {
      const int64_t c1 = std::min(c0 + kBlock, tensor.columns);
      for (int64_t r = r0; r < r1; ++r) {
        const int64_t ours = tensor.row(r);
        const int64_t first = r / height * height * tensor.columns + r % height;
        for (int64_t c = c0; c < c1; ++c) copy(ours * tensor.columns + c, first + c * height);
      }
    }
  }
}

template <typename Element>
void CopyTransposed(const HfTensor& tensor, bool to_theirs, char* ours, char* theirs) {
  ForEachElement(tensor, [&](int64_t our_index, int64_t their_index) {
    char* const a = ours + our_index * static_cast<int64_t>(sizeof(Element));
    char* const b = theirs + their_index * static_cast<int64_t>(sizeof(Element));
    if (to_theirs) {
      std::memcpy(b, a, sizeof(Element));
    } else {
      std::memcpy(a, b, sizeof(Element));
    }
  });
}

void Copy(const HfTensor& tensor, int64_t element_size, bool to_theirs, char* ours, char* theirs) {
  if (tensor.transposed > 0) {
    switch (element_size) {
      case 1:
        return CopyTransposed<uint8_t>(tensor, to_theirs, ours, theirs);
      case 2:
        return CopyTransposed<uint16_t>(tensor, to_theirs, ours, theirs);
      case 4:
        return CopyTransposed<uint32_t>(tensor, to_theirs, ours, theirs);
      case 8:
        return CopyTransposed<uint64_t>(tensor, to_theirs, ours, theirs);
      default:
        LOG(FATAL) << "elements of " << element_size << " bytes";
    }
  }
  const int64_t row_bytes = tensor.columns * element_size;
  for (int64_t r = 0; r < tensor.rows; ++r) {
    char* const a = ours + tensor.row(r) * row_bytes;
    char* const b = theirs + r * row_bytes;
    std::memcpy(to_theirs ? b : a, to_theirs ? a : b, static_cast<size_t>(row_bytes));
  }
}

}  // namespace

Shape HfTensor::part_shape() const {
  Shape shape = parameter_shape;
  shape[0] /= parts;
  return shape;
}

Shape HfTensor::part_offset() const {
  Shape offset = parameter_shape;
  for (int d = 0; d < offset.rank(); ++d) offset[d] = 0;
  offset[0] = part * (parameter_shape[0] / parts);
  return offset;
}

std::vector<HfTensor> HfTensors(const ModelOptions& options, absl::string_view model_type) {
  if (options.kind == ModelKind::kBert) return HfBertTensors(options);
  if (options.kind == ModelKind::kT5) return HfT5Tensors(options);
  if (IsHfGpt2(options, model_type)) return Gpt2Table(options).Build();
  HfReasons reasons;
  const HfDecoder* const family = ChooseHfDecoder(options, model_type, &reasons);
  CHECK(family != nullptr) << reasons.front();
  return HfDecoderTensors(*family, options);
}

void CopyToHf(const HfTensor& tensor, int64_t element_size, const char* ours, char* theirs) {
  Copy(tensor, element_size, /*to_theirs=*/true, const_cast<char*>(ours), theirs);
}

void CopyFromHf(const HfTensor& tensor, int64_t element_size, const char* theirs, char* ours) {
  Copy(tensor, element_size, /*to_theirs=*/false, ours, const_cast<char*>(theirs));
}

std::string HfNameWithoutHead(const HfTensor& tensor) {
  absl::string_view name = tensor.name;
  return absl::ConsumePrefix(&name, kGpt2Prefix) ? std::string(name) : std::string();
}

std::string HfCopiedParameter(absl::string_view name) {
  if (name == kHfHeadName || name == "embed_out.weight" ||
      name == "cls.predictions.decoder.weight" || name == "encoder.embed_tokens.weight" ||
      name == "decoder.embed_tokens.weight")
    return "embedding.word_embeddings.weight";
  return name == "cls.predictions.decoder.bias" ? "output_layer.bias" : "";
}

bool IsHfBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".attention.bias") ||
         absl::EndsWith(name, ".attention.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq") ||
         absl::EndsWith(name, "embeddings.position_ids") ||
         // Early T5s have a table that their cross-attention does not read.
         absl::EndsWith(name, ".EncDecAttention.relative_attention_bias.weight");
}

}  // namespace megatron
