// Byte-pair encoding over characters: a character without a token is spelled by its bytes' tokens,
// "<0xE3>", or is unknown. Llama 2's and Mistral's vocabularies in tokenizer.json.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_FALLBACK_BPE_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_BPE_FALLBACK_BPE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"
#include "megatron/data/tokenizer/bpe/merge_table.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct FallbackBpeOptions {
  std::string unk_token;  // empty: unknown characters can't be encoded
  bool fuse_unk = false;  // a run of unknown characters is one token
  bool byte_fallback = false;
  bool whole_words_first = false;  // a word that is a token is not merged
  std::string continuing_prefix;   // of the spelling of what does not begin a word
  std::string end_of_word_suffix;  // of the spelling of what ends one
};

class FallbackBpeModel {
 public:
  // `pieces[id]` spells a token; empty where an id names none. kInvalidArgument where the unknown
  // token is no token.
  static absl::StatusOr<FallbackBpeModel> Create(std::vector<std::string> pieces, MergeTable merges,
                                                 FallbackBpeOptions options);
  // Moves keep what ids_ views.
  FallbackBpeModel(FallbackBpeModel&&) = default;

  // Appends the ids of `word`, valid UTF-8, and where in it they stand to `spans` if not null.
  // kInvalidArgument for an unknown character without a token for it, and for 4 GiB of text;
  // nothing is appended then.
  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids,
                      std::vector<TextSpan>* spans) const;

 private:
  // What merging starts from: ids, and how many bytes of the word each stands for.
  struct Symbols {
    std::vector<int32_t> ids;
    std::vector<uint32_t> bytes;
  };

  FallbackBpeModel() = default;
  // The bytes [begin, end) of the word are a character.
  absl::Status AppendChar(absl::string_view word, size_t begin, size_t end, Symbols* symbols) const;

  std::vector<std::string> pieces_;
  TokenIds ids_;  // views of pieces_
  MergeTable merges_;
  FallbackBpeOptions options_;
  int32_t unk_id_ = -1;
  std::vector<int32_t> byte_ids_;  // empty: no byte fallback
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_FALLBACK_BPE_MODEL_H_
