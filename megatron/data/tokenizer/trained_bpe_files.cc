#include "megatron/data/tokenizer/trained_bpe_files.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr std::pair<absl::string_view, absl::string_view> kPatterns[] = {
    {"gpt2", R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re"},
    {"llama3",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {"qwen2",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {"o200k",
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
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
