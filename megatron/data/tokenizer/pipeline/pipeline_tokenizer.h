// A tokenizer composed of steps: added tokens are found in the text; the rest is normalized, split
// and encoded by a model; a decoder turns pieces back into text. Hugging Face's tokenizer.json
// describes such tokenizers; GPT-2's and tiktoken's vocabularies are simple cases.
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
  std::vector<std::string> pieces;  // the vocabulary by id, including added tokens
  std::vector<AddedToken> added;
  Normalizer normalizer;  // may be null
  std::unique_ptr<TextModel> model;
  TokenDecoder decoder;  // may be null: pieces are then joined with spaces
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
  // Encodes text[span], which contains no token that is searched for in the original text.
  absl::Status EncodeSection(absl::string_view text, TextSpan span, const EncodeOptions& options,
                             std::vector<int32_t>* ids) const;
  // Encodes normalized text. `first` means that it begins the whole text.
  absl::Status EncodeNormalized(absl::string_view text, bool first, const EncodeOptions& options,
                                std::vector<int32_t>* ids) const;

  PipelineParts parts_;
  AddedTokens in_text_, in_normalized_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_PIPELINE_TOKENIZER_H_
