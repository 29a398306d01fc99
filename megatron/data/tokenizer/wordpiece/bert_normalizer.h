// The steps before BERT's WordPiece: cleaning, lower case, removal of accents, splitting into
// words.
//
// There are two dialects of the same rules. Megatron uses those that came with BERT. Hugging Face's
// also remove private-use characters, do not write a Σ at a word's end as ς, and do not count
// U+2B820 to U+2B91F as ideographs.
#ifndef MEGATRON_DATA_TOKENIZER_WORDPIECE_BERT_NORMALIZER_H_
#define MEGATRON_DATA_TOKENIZER_WORDPIECE_BERT_NORMALIZER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

enum class BertDialect { kMegatron, kHuggingFace };

struct BertNormalizerOptions {
  bool clean_text = true;            // removes control characters, turns white space into ' '
  bool handle_chinese_chars = true;  // puts spaces around ideographs
  bool strip_accents = true;         // decomposes and removes nonspacing marks
  bool lowercase = true;
  BertDialect dialect = BertDialect::kHuggingFace;
};

// Returns the normalized text. Invalid UTF-8 bytes count as U+FFFD, which cleaning removes. If
// `origins` is not null, it is set to one number for each byte of the result, the position in
// `text` of the character that it comes from, and text.size() at the end. The time is O(text),
// except that runs of accents are sorted.
std::string NormalizeBert(absl::string_view text, const BertNormalizerOptions& options,
                          std::vector<size_t>* origins = nullptr);

// Returns the words: runs of characters that are not white space, and each punctuation character by
// itself, as in Hugging Face's BertPreTokenizer. All ASCII symbols are punctuation.
std::vector<TextSpan> SplitBertWords(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_BERT_NORMALIZER_H_
