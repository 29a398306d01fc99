// SentencePiece models (.model), BPE and unigram, as Megatron's tokenizers use them.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto tokenizer, SentencePieceTokenizer::Create("llama.model", {}));
//
// The values of --tokenizer_type differ in the ids that they add to the model's, and in EOD:
//
//   | --tokenizer_type          | added ids                                    | EOD         |
//   |---------------------------|----------------------------------------------|-------------|
//   | SentencePieceTokenizer    | <CLS> <SEP> <EOD> <MASK>; <PAD> <BOS> <EOS>  | <EOD>       |
//   |                           | if the model has none; <extra_id_0> …        |             |
//   |                           | (vocab_extra_ids)                            |             |
//   | GPTSentencePieceTokenizer | none                                         | model's EOS |
//   | Llama2Tokenizer           | none                                         | model's EOS |
//
// An added token that the model has a piece for gets that piece's id. Encoding adds no BOS, unlike
// Megatron's Llama2Tokenizer.
//
// Text is normalized first, so decoding gives the text as the model sees it; invalid UTF-8 bytes,
// for example, become U+FFFD. Decode follows SentencePiece: control symbols ("<s>") give nothing,
// the unknown piece gives " ⁇ ", and bytes that are not UTF-8 give U+FFFD. SentencePieceTokenizer
// spells its special tokens with a space before and after them, as Megatron does.
//
// A text to encode must be shorter than 128 MiB.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/added_tokens.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_bpe.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_model.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_normalizer.h"
#include "megatron/data/tokenizer/sentencepiece/unigram_model.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct SentencePieceTokenizerOptions {
  enum class Flavor { kSentencePiece, kGptSentencePiece, kLlama2 };

  Flavor flavor = Flavor::kLlama2;
  int32_t vocab_extra_ids = 0;  // number of sentinels; only for kSentencePiece
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  // Reads a model file. kInvalidArgument for a damaged file, kUnimplemented for word and character
  // models, and for models that SentencePieceBpe refuses.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(
      const std::string& path, const SentencePieceTokenizerOptions& options);
  // Does the same for the contents of a file.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> FromBytes(
      absl::string_view bytes, const SentencePieceTokenizerOptions& options);

  absl::string_view name() const override;
  int32_t vocab_size() const override {
    return static_cast<int32_t>(model_.pieces.size() + added_.size());
  }
  const SpecialTokens& special() const override { return special_; }
  std::string Decode(absl::Span<const int32_t> ids) const override;
  std::string Piece(int32_t id) const override;

 private:
  using Encoder = std::variant<UnigramModel, SentencePieceBpe>;
  using Flavor = SentencePieceTokenizerOptions::Flavor;

  SentencePieceTokenizer(SentencePieceModel model, Flavor flavor, Encoder encoder,
                         SentencePieceNormalizer normalizer, SentencePieceNormalizer denormalizer);

  void FindModelsSpecialTokens();
  void AddMegatronsSpecialTokens(int32_t vocab_extra_ids);
  // Returns the id of a control symbol; -1 if there is none.
  int32_t FindControl(absl::string_view piece) const;

  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override;
  absl::Status EncodeSection(absl::string_view text, size_t begin, std::vector<int32_t>* ids,
                             std::vector<TextSpan>* spans) const;
  std::string DecodePieces(absl::Span<const int32_t> ids) const;
  std::string DecodePiece(int32_t id, bool first, bool* took_space) const;

  SentencePieceModel model_;
  Flavor flavor_;
  Encoder encoder_;
  SentencePieceNormalizer normalizer_, denormalizer_;
  std::vector<std::string> added_;  // pieces with the ids after the model's
  std::vector<bool> is_special_;    // whether each id is a special token
  AddedTokens special_texts_;
  SpecialTokens special_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TOKENIZER_H_
