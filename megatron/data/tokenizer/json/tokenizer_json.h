// Hugging Face's tokenizer.json.
//
// Models: BPE (byte-level as GPT-2, Llama 3 and Qwen; with byte fallback as Llama 2 and Mistral),
// WordPiece and Unigram, with the steps of tokenizer_steps_json.h. What isn't known is refused.
// What the post-processor adds is in SpecialTokens: Encode adds nothing around.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_JSON_H_
#define MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_JSON_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Special tokens by their spelling; empty where there is none.
struct SpecialTokenNames {
  std::string bos, eos, pad, unk, cls, sep, mask;
};

// The names in a tokenizer_config.json or a special_tokens_map.json: bos_token and so on, each a
// string or an object with "content".
absl::StatusOr<SpecialTokenNames> ParseSpecialTokenNames(absl::string_view json);

// Where names has none, special tokens are known by usual spellings ("</s>", "<|endoftext|>",
// "[CLS]", …). eod is eos. <extra_id_0>, <extra_id_1>, … are sentinels. All of them are added
// tokens, too, where the file does not say so, as in Hugging Face's library.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizerFromJson(absl::string_view tokenizer_json,
                                                                   const SpecialTokenNames& names);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_JSON_H_
