#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/json/json_reader.h"

namespace megatron {
namespace {

// Every split of a token is looked up, so a long token costs the square of its length.
constexpr size_t kMaxTokenBytes = 1024;

absl::Status AtLine(size_t line, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", problem));
}

std::string Short(absl::string_view text) { return absl::CHexEscape(text.substr(0, 64)); }

absl::Status Place(int64_t rank, std::string token, std::vector<std::string>* tokens) {
  if (rank < 0 || static_cast<size_t>(rank) >= tokens->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rank ", rank, " among ", tokens->size(), " tokens leaves a hole"));
  }
  if (token.empty() || token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token of ", token.size(), " bytes; 1 to ", kMaxTokenBytes, " can be"));
  }
  if (!(*tokens)[rank].empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the rank ", rank, " stands twice"));
  }
  (*tokens)[rank] = std::move(token);
  return absl::OkStatus();
}

absl::Status RefuseDuplicates(const std::vector<std::string>& tokens) {
  TokenIds ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto [other, inserted] = ids.emplace(tokens[id], static_cast<int32_t>(id));
    if (inserted) continue;
    return absl::InvalidArgumentError(absl::StrCat("the token '", Short(tokens[id]),
                                                   "' has the ranks ", other->second, " and ", id));
  }
  return absl::OkStatus();
}

template <typename Visit>
void ForEachCut(const std::vector<std::string>& tokens, const TokenIds& ids, const Visit& visit) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    const absl::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) visit(left->second, right->second, static_cast<int32_t>(id));
    }
  }
}

}  // namespace

TokenIds MakeTokenIds(const std::vector<std::string>& tokens) {
  TokenIds ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

absl::StatusOr<std::vector<TokenPair>> ParseMerges(absl::string_view text) {
  std::vector<TokenPair> merges;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (absl::StartsWith(line, "#version")) continue;
    const size_t space = line.find(' ');
    const bool last = line.data() + line.size() == text.data() + text.size();
    if (line.empty() && last) break;
    if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != line.npos) {
      return AtLine(number,
                    absl::StrCat("'", Short(line), "' is not two tokens with a space between"));
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

absl::StatusOr<MergeTable> ResolveMerges(absl::Span<const TokenPair> merges, const TokenIds& ids,
                                         absl::string_view inner_prefix) {
  MergeTable table(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = merges[rank];
    absl::string_view inner = right;
    absl::ConsumePrefix(&inner, inner_prefix);
    const std::string whole = absl::StrCat(left, inner);
    for (const absl::string_view token : {left, right, absl::string_view(whole)}) {
      if (ids.contains(token)) continue;
      return absl::InvalidArgumentError(absl::StrCat("the merge '", Short(left), " ", Short(right),
                                                     "' needs '", Short(token),
                                                     "', which is not in the vocabulary"));
    }
    if (!table.Insert(ids.at(left), ids.at(right), {static_cast<uint32_t>(rank), ids.at(whole)})) {
      return absl::InvalidArgumentError(
          absl::StrCat("the merge '", Short(left), " ", Short(right), "' stands twice"));
    }
  }
  return table;
}

absl::StatusOr<std::vector<std::string>> ParseTiktoken(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::vector<std::string> tokens(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> fields =
        absl::StrSplit(absl::StripSuffix(lines[i], "\r"), absl::MaxSplits(' ', 1));
    std::string token;
    int64_t rank;
    if (!absl::Base64Unescape(fields.first, &token) || !absl::SimpleAtoi(fields.second, &rank)) {
      return AtLine(i + 1,
                    absl::StrCat("'", Short(lines[i]), "' is not a token in base64 and a rank"));
    }
    const absl::Status placed = Place(rank, std::move(token), &tokens);
    if (!placed.ok()) return AtLine(i + 1, placed.message());
  }
  MEGATRON_RETURN_IF_ERROR(RefuseDuplicates(tokens));
  return tokens;
}

absl::StatusOr<std::vector<std::string>> ParseTiktokenJson(absl::string_view text,
                                                           size_t max_tokens) {
  MEGATRON_ASSIGN_OR_RETURN(const nlohmann::json list, ParseJson(text));
  if (!list.is_array()) return absl::InvalidArgumentError("the vocabulary is no list of tokens");
  std::vector<std::string> tokens(std::min(list.size(), max_tokens));
  for (size_t i = 0; i < tokens.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string base64, JsonString(list[i], "token_bytes"),
                              _ << "in entry " << i);
    MEGATRON_ASSIGN_OR_RETURN(const int64_t rank, JsonInt(list[i], "rank", -1),
                              _ << "in entry " << i);
    std::string token;
    if (rank != static_cast<int64_t>(i) || !absl::Base64Unescape(base64, &token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", i, " has no token_bytes in base64 with the rank ", i));
    }
    MEGATRON_RETURN_IF_ERROR(Place(rank, std::move(token), &tokens), _ << "in entry " << i);
  }
  MEGATRON_RETURN_IF_ERROR(RefuseDuplicates(tokens));
  return tokens;
}

MergeTable MergesOfRanks(const std::vector<std::string>& tokens) {
  const TokenIds ids = MakeTokenIds(tokens);
  size_t num_pairs = 0;
  ForEachCut(tokens, ids, [&](int32_t, int32_t, int32_t) { ++num_pairs; });
  MergeTable table(num_pairs);
  ForEachCut(tokens, ids, [&](int32_t left, int32_t right, int32_t id) {
    table.Insert(left, right, {static_cast<uint32_t>(id), id});
  });
  return table;
}

}  // namespace megatron
