#include "megatron/data/tokenizer/training/trained_bpe_files.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"

namespace megatron {
namespace {

constexpr size_t kMaxTiktokenBytes = 1024;  // limit of the readers

constexpr std::pair<absl::string_view, absl::string_view> kPatterns[] = {
    {"gpt2", R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re"},
    {"llama3",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {"qwen2",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {"o200k",
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {"tekken",
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
};

std::string JsonString(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json.append({'\\', c});
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&json, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      json.push_back(c);
    }
  }
  json.push_back('"');
  return json;
}

std::string MergeText(const TrainedBpe& bpe, const std::pair<int32_t, int32_t>& merge) {
  return absl::StrCat(bpe.tokens[merge.first], " ", bpe.tokens[merge.second]);
}

constexpr absl::string_view kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )";

std::string PreTokenizer(const NamedSplitPattern& split) {
  if (split.pattern == SplitPattern::kGpt2) return absl::StrCat(kByteLevel, "true}");
  return absl::StrCat(
      R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": )",
      JsonString(split.regex), R"(}, "behavior": "Isolated", "invert": false},
    )",
      kByteLevel, "false}\n  ]}");
}

using Ranks = absl::flat_hash_map<absl::string_view, int32_t>;

// Returns the parts of a token's bytes after tiktoken's rule has applied all merges of lower rank.
std::vector<absl::string_view> PartsOf(absl::string_view token, int32_t rank, const Ranks& ranks) {
  std::vector<absl::string_view> parts;
  for (size_t i = 0; i < token.size(); ++i) parts.push_back(token.substr(i, 1));
  while (true) {
    size_t best = parts.size();
    int32_t best_rank = rank;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i].data(), parts[i].size() + parts[i + 1].size()});
      if (found == ranks.end() || found->second >= best_rank) continue;
      best = i;
      best_rank = found->second;
    }
    if (best == parts.size()) return parts;
    parts[best] = {parts[best].data(), parts[best].size() + parts[best + 1].size()};
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Returns whether the token of `rank` is made of the two halves that trained merge number `merge`
// joins. Inside of any text, the bytes of a token that nothing has merged with their surroundings
// are merged as they are alone, so if this holds for all tokens, both rules merge alike.
bool MergesAlike(const std::vector<std::string>& tokens, int32_t rank,
                 const std::pair<int32_t, int32_t>& merge, const Ranks& ranks) {
  if (merge.first < 0 || merge.second < 0) return false;  // a special token is spelled like a byte
  const std::vector<absl::string_view> parts =
      PartsOf(tokens[static_cast<size_t>(rank)], rank, ranks);
  return parts.size() == 2 && parts[0] == tokens[static_cast<size_t>(merge.first)] &&
         parts[1] == tokens[static_cast<size_t>(merge.second)];
}

}  // namespace

absl::StatusOr<NamedSplitPattern> FindNamedSplitPattern(absl::string_view name) {
  std::string known;
  for (const auto& [known_name, regex] : kPatterns) {
    if (known_name == name) {
      MEGATRON_ASSIGN_OR_RETURN(const SplitPattern pattern, FindSplitPattern(regex));
      return NamedSplitPattern{known_name, regex, pattern};
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", known_name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no split pattern is called '", name, "'; there are ", known));
}

std::string VocabJson(const TrainedBpe& bpe) {
  std::string json = "{";
  for (size_t id = 0; id < bpe.tokens.size(); ++id) {
    absl::StrAppend(&json, id == 0 ? "" : ",", JsonString(bpe.tokens[id]), ":", id);
  }
  json.push_back('}');
  return json;
}

std::string MergesText(const TrainedBpe& bpe) {
  std::string text = "#version: 0.2\n";
  for (const auto& merge : bpe.merges) absl::StrAppend(&text, MergeText(bpe, merge), "\n");
  return text;
}

absl::StatusOr<std::string> TiktokenText(const TrainedBpe& bpe) {
  constexpr size_t kNumBytes = 256;
  const int32_t num_special = bpe.num_special_tokens;
  std::vector<std::string> tokens;
  for (size_t id = static_cast<size_t>(num_special); id < bpe.tokens.size(); ++id)
    AppendSpelledBytes(bpe.tokens[id], &tokens.emplace_back());
  if (tokens.size() != kNumBytes + bpe.merges.size()) {
    return absl::FailedPreconditionError("not every byte and every merge has a token of its own");
  }
  Ranks ranks;
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string& token = tokens[rank];
    if (token.size() > kMaxTiktokenBytes) {
      return absl::FailedPreconditionError(absl::StrCat("a token of ", token.size(), " bytes"));
    }
    ranks.emplace(token, static_cast<int32_t>(rank));
    absl::StrAppend(&text, absl::Base64Escape(token), " ", rank, "\n");
  }
  for (size_t i = 0; i < bpe.merges.size(); ++i) {
    const std::pair<int32_t, int32_t> merge = {bpe.merges[i].first - num_special,
                                               bpe.merges[i].second - num_special};
    const int32_t rank = static_cast<int32_t>(kNumBytes + i);
    if (MergesAlike(tokens, rank, merge, ranks)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tiktoken would not make '", bpe.tokens[bpe.merges[i].first], "' and '",
                     bpe.tokens[bpe.merges[i].second], "' one token where the training did"));
  }
  return text;
}

std::string TokenizerJson(const TrainedBpe& bpe, const NamedSplitPattern& split) {
  std::string added, merges;
  for (int32_t id = 0; id < bpe.num_special_tokens; ++id) {
    absl::StrAppend(&added, id == 0 ? "\n    " : ",\n    ", R"({"id": )", id, R"(, "content": )",
                    JsonString(bpe.tokens[id]),
                    R"(, "single_word": false, "lstrip": false, "rstrip": false, )"
                    R"("normalized": false, "special": true})");
  }
  for (const auto& merge : bpe.merges) {
    absl::StrAppend(&merges, merges.empty() ? "\n      " : ",\n      ",
                    JsonString(MergeText(bpe, merge)));
  }
  return absl::StrCat(R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [)",
                      added, R"(
  ],
  "normalizer": null,
  "pre_tokenizer": )",
                      PreTokenizer(split), R"(,
  "post_processor": null,
  "decoder": )",
                      kByteLevel, R"(true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": )",
                      VocabJson(bpe), R"(,
    "merges": [)",
                      merges, R"(
    ]
  }
}
)");
}

}  // namespace megatron
