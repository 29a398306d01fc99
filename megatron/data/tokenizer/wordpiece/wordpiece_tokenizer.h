// BERT's tokenizer with a vocab.txt: Megatron's BertWordPieceLowerCase and BertWordPieceCase.
//
//   WordPieceTokenizerOptions options;
//   options.lower_case = true;
//   MEGATRON_ASSIGN_OR_RETURN(auto tokenizer, WordPieceTokenizer::Create("vocab.txt", options));
//
// The tokens [BOS], [EOS] and the sentinels <extra_id_0> … are added after the vocabulary if it
// lacks them, and EOD is [EOS], as in Megatron. Decode joins pieces and puts a space before words,
// except before punctuation and English contractions, so its result is not a copy of the text.
#ifndef MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/added_tokens.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/data/tokenizer/wordpiece/wordpiece_model.h"

namespace megatron {

struct WordPieceTokenizerOptions {
  bool lower_case = true;
  int32_t vocab_extra_ids = 0;  // number of sentinels
};

class WordPieceTokenizer : public Tokenizer {
 public:
  // Reads a file of one piece per line, ignoring white space around pieces. kInvalidArgument if a
  // piece is not UTF-8 or occurs twice, or if [UNK], [CLS], [SEP], [PAD] or [MASK] is missing.
  static absl::StatusOr<std::unique_ptr<WordPieceTokenizer>> Create(
      const std::string& path, const WordPieceTokenizerOptions& options);
  // Does the same for the contents of a file.
  static absl::StatusOr<std::unique_ptr<WordPieceTokenizer>> FromBytes(
      absl::string_view bytes, const WordPieceTokenizerOptions& options);

  absl::string_view name() const override {
    return lower_case_ ? "BertWordPieceLowerCase" : "BertWordPieceCase";
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  const SpecialTokens& special() const override { return special_; }
  std::string Decode(absl::Span<const int32_t> ids) const override;
  std::string Piece(int32_t id) const override;

 private:
  WordPieceTokenizer(std::vector<std::string> pieces, WordPieceModel model, bool lower_case)
      : pieces_(std::move(pieces)), model_(std::move(model)), lower_case_(lower_case) {}

  absl::Status FindSpecialTokens(int32_t vocab_extra_ids);
  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override;
  void EncodeSection(absl::string_view text, size_t begin, std::vector<int32_t>* ids,
                     std::vector<TextSpan>* spans) const;

  std::vector<std::string> pieces_;
  WordPieceModel model_;
  bool lower_case_;
  AddedTokens special_texts_;
  SpecialTokens special_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_TOKENIZER_H_
