// The parts of byte-pair vocabularies, and the files that hold them.
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

// Maps tokens to their index, as views of `tokens`; empty tokens have no id.
TokenIds MakeTokenIds(const std::vector<std::string>& tokens);

using TokenPair = std::pair<absl::string_view, absl::string_view>;

// Parses merges.txt: each line has a pair of tokens separated by a space, lowest rank first; lines
// that begin with "#version" are skipped. The pairs are views of `text`.
absl::StatusOr<std::vector<TokenPair>> ParseMerges(absl::string_view text);

// Returns the merges by ids. kInvalidArgument for a duplicate pair, and for a pair of which a half
// or the result is no token. `inner_prefix` ("##") of the right half is left out of the result.
absl::StatusOr<MergeTable> ResolveMerges(absl::Span<const TokenPair> merges, const TokenIds& ids,
                                         absl::string_view inner_prefix = "");

// Parses a tiktoken file: each line has a token in base64 and its rank, which is the id. Returns
// the tokens by id. kInvalidArgument, with the line, for anything else, for gaps between ranks or
// duplicate ranks, and for tokens longer than 1024 bytes.
absl::StatusOr<std::vector<std::string>> ParseTiktoken(absl::string_view text);

// Parses the same vocabulary in the form of Megatron's TikTokenizer: a JSON list of objects with
// token_bytes and rank. Reads only the first `max_tokens`.
absl::StatusOr<std::vector<std::string>> ParseTiktokenJson(absl::string_view text,
                                                           size_t max_tokens);

// Returns tiktoken's merges: two tokens merge if their concatenation is a token, whose id is the
// rank.
MergeTable MergesOfRanks(const std::vector<std::string>& tokens);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BPE_VOCABULARY_H_
