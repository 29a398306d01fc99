// Creates tokenizers from Hugging Face's tokenizer.json.
//
// The supported models are BPE (byte-level as in GPT-2, Llama 3 and Qwen; with byte fallback as in
// Llama 2 and Mistral), WordPiece and Unigram, with the steps of tokenizer_steps_json.h. Anything
// unknown is refused. The tokens that the post-processor adds are in SpecialTokens; Encode adds
// none of them.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_JSON_H_
#define MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_JSON_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Spellings of the special tokens; empty if there is none.
struct SpecialTokenNames {
  std::string bos, eos, pad, unk, cls, sep, mask;
};

// Parses the names in a tokenizer_config.json or a special_tokens_map.json: bos_token and so on,
// each a string or an object with "content".
absl::StatusOr<SpecialTokenNames> ParseSpecialTokenNames(absl::string_view json);

// Creates a tokenizer. If `names` lacks a special token, it is recognized by its usual spellings
// ("</s>", "<|endoftext|>", "[CLS]", …). eod is eos. <extra_id_0>, <extra_id_1>, … are sentinels.
// All of these are added tokens even if the file does not say so, as in Hugging Face's library.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizerFromJson(absl::string_view tokenizer_json,
                                                                   const SpecialTokenNames& names);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_TOKENIZER_JSON_H_
