// A tokenizer put together from steps: added tokens are found in the text, the rest is normalized,
// cut and encoded by a model; a decoder turns pieces into text again. What Hugging Face's
// tokenizer.json describes; GPT-2's and tiktoken's vocabularies are simple cases of it.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_PIPELINE_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_PIPELINE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/data/tokenizer/added_tokens.h"
#include "megatron/data/tokenizer/pipeline/normalizer.h"
#include "megatron/data/tokenizer/pipeline/text_model.h"
#include "megatron/data/tokenizer/pipeline/token_decoder.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct PipelineParts {
  std::string name;
  SpecialTokens special;
  std::vector<std::string> pieces;  // the vocabulary, by id, added tokens included
  std::vector<AddedToken> added;
  Normalizer normalizer;  // may be null
  std::unique_ptr<TextModel> model;
  TokenDecoder decoder;  // may be null: pieces are joined with a space between
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts);

  absl::string_view name() const override { return parts_.name; }
  int32_t vocab_size() const override { return static_cast<int32_t>(parts_.pieces.size()); }
  const SpecialTokens& special() const override { return parts_.special; }
  std::string Decode(absl::Span<const int32_t> ids) const override;
  std::string Piece(int32_t id) const override;

 private:
  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override;
  // Encodes text[span], which holds no token that is looked for in the text as it is.
  absl::Status EncodeSection(absl::string_view text, TextSpan span, const EncodeOptions& options,
                             std::vector<int32_t>* ids) const;
  // Encodes normalized text, which begins the whole text if `first`.
  absl::Status EncodeNormalized(absl::string_view text, bool first, const EncodeOptions& options,
                                std::vector<int32_t>* ids) const;

  PipelineParts parts_;
  AddedTokens in_text_, in_normalized_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_PIPELINE_TOKENIZER_H_
