// Byte-pair encoding over characters: a character without a token is spelled by the tokens of its
// bytes, "<0xE3>", or is unknown. The vocabularies of Llama 2 and Mistral in tokenizer.json use it.
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
  std::string unk_token;  // if empty, unknown characters cannot be encoded
  bool fuse_unk = false;  // a run of unknown characters becomes one token
  bool byte_fallback = false;
  bool whole_words_first = false;  // a word that is a token is not merged
  std::string continuing_prefix;   // prefix of pieces that do not begin a word
  std::string end_of_word_suffix;  // suffix of pieces that end a word
  // Whether an id, the index, is no token of a whole word; empty: each may be.
  std::vector<bool> hidden;
};

class FallbackBpeModel {
 public:
  // `pieces[id]` spells a token; it is empty if the id has none. kInvalidArgument if the unknown
  // token is not among them.
  static absl::StatusOr<FallbackBpeModel> Create(std::vector<std::string> pieces, MergeTable merges,
                                                 FallbackBpeOptions options);
  // A move keeps the strings that ids_ views.
  FallbackBpeModel(FallbackBpeModel&&) = default;

  // Appends the ids of `word`, valid UTF-8, and to `spans`, if it is not null, their positions in
  // the word. kInvalidArgument for an unknown character if there is no unknown token, and for 4 GiB
  // of text; nothing is appended then.
  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids,
                      std::vector<TextSpan>* spans) const;

 private:
  // The initial symbols: ids, and how many bytes of the word each stands for.
  struct Symbols {
    std::vector<int32_t> ids;
    std::vector<uint32_t> bytes;
  };

  FallbackBpeModel() = default;
  // Appends the symbols of a character, the bytes [begin, end) of the word.
  absl::Status AppendChar(absl::string_view word, size_t begin, size_t end, Symbols* symbols) const;

  std::vector<std::string> pieces_;
  TokenIds ids_;  // views of pieces_
  MergeTable merges_;
  FallbackBpeOptions options_;
  int32_t unk_id_ = -1;
  std::vector<int32_t> byte_ids_;  // empty without byte fallback
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_FALLBACK_BPE_MODEL_H_
