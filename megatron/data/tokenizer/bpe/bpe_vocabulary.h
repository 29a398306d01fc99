// What byte-pair vocabularies are made of, and the files that hold them.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_BPE_VOCABULARY_H_
#define MEGATRON_DATA_TOKENIZER_BPE_BPE_VOCABULARY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/bpe/merge_table.h"

namespace megatron {

using TokenIds = absl::flat_hash_map<absl::string_view, int32_t>;

// Views of the tokens; empty ones have no id.
TokenIds IdsOf(const std::vector<std::string>& tokens);

using TokenPair = std::pair<absl::string_view, absl::string_view>;

// merges.txt: a pair of tokens on each line, with a space between, lowest rank first; lines that
// begin with "#version" are skipped. The pairs are views of `text`.
absl::StatusOr<std::vector<TokenPair>> ParseMerges(absl::string_view text);

// The merges by ids. kInvalidArgument for a pair that stands twice, or of which a half or the whole
// is no token. `inner_prefix` ("##") is not repeated within the whole.
absl::StatusOr<MergeTable> ResolveMerges(absl::Span<const TokenPair> merges, const TokenIds& ids,
                                         absl::string_view inner_prefix = "");

// A tiktoken file: a token in base64 and its rank on each line; the rank is the id. Tokens by id;
// kInvalidArgument, with the line, for anything else, ranks that leave holes or stand twice, and
// tokens longer than 1024 bytes.
absl::StatusOr<std::vector<std::string>> ParseTiktoken(absl::string_view text);

// The same vocabulary as Megatron's TikTokenizer has it: a JSON list of objects with token_bytes
// and rank. Only the first `max_tokens` are taken.
absl::StatusOr<std::vector<std::string>> ParseTiktokenJson(absl::string_view text,
                                                           size_t max_tokens);

// Tiktoken's rule: two tokens merge where their bytes put together are a token, whose id is the
// rank.
MergeTable MergesOfRanks(const std::vector<std::string>& tokens);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BPE_VOCABULARY_H_
