// What happens to a text before BERT's WordPiece: cleaning, lower case, accents off, words.
//
// Two dialects of the same rules exist. Megatron uses those that came with BERT. Hugging Face's
// also remove private-use characters, don't write a Σ at a word's end as ς, and don't count U+2B820
// to U+2B91F as ideographs.
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
  bool clean_text = true;            // control characters go, white space becomes ' '
  bool handle_chinese_chars = true;  // spaces around ideographs
  bool strip_accents = true;         // decomposed, nonspacing marks go
  bool lowercase = true;
  BertDialect dialect = BertDialect::kHuggingFace;
};

// Bytes that aren't UTF-8 count as U+FFFD, which cleaning removes. If `origins` is not null it is
// set to where in `text` the character begins that each byte of the result comes from, and
// text.size() at the end. O(text), but for runs of accents, which get sorted.
std::string NormalizeBert(absl::string_view text, const BertNormalizerOptions& options,
                          std::vector<size_t>* origins = nullptr);

// Words: runs of characters that are no white space, and each punctuation character by itself. As
// Hugging Face's BertPreTokenizer. All of ASCII's symbols are punctuation.
std::vector<TextSpan> SplitBertWords(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_BERT_NORMALIZER_H_
