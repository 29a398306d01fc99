#include "tools/huggingface/hf_tokenizer_files.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

constexpr char kTokenizerJson[] = "tokenizer.json";
constexpr char kVocab[] = "vocab.json";
constexpr char kMerges[] = "merges.txt";
constexpr char kSentencePiece[] = "tokenizer.model";
constexpr char kWordPiece[] = "vocab.txt";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kLowerCase[] = "BertWordPieceLowerCase";
// All tokenizer files that a directory may have.
constexpr const char* kNames[] = {kTokenizerJson,
                                  kVocab,
                                  kMerges,
                                  kTokenizerConfig,
                                  "special_tokens_map.json",
                                  kSentencePiece,
                                  kWordPiece,
                                  "added_tokens.json"};

// Files by the names that their copies get.
using Copies = std::vector<std::pair<std::string, std::string>>;

bool IsWordPiece(const TokenizerOptions& tokenizer) {
  return absl::StartsWith(tokenizer.type, "Bert");
}

Copies FilesOf(FileSystem& fs, const TokenizerOptions& tokenizer) {
  Copies files;
  const std::string& model = tokenizer.tokenizer_model;
  if (!model.empty() && fs.List(model).ok()) {
    for (const char* name : kNames) {
      if (fs.Stat(JoinPath(model, name)).ok()) files.emplace_back(name, JoinPath(model, name));
    }
  } else if (!model.empty()) {
    const bool json = tokenizer.type == "HuggingFaceTokenizer";
    files.emplace_back(json ? kTokenizerJson : kSentencePiece, model);
  }
  if (!tokenizer.vocab_file.empty()) {
    files.emplace_back(IsWordPiece(tokenizer) ? kWordPiece : kVocab, tokenizer.vocab_file);
  }
  if (!tokenizer.merge_file.empty()) files.emplace_back(kMerges, tokenizer.merge_file);
  return files;
}

// BertTokenizer lowers case there unless it is told not to.
bool LowersCase(FileSystem& fs, const std::string& directory) {
  const auto text = ReadFileToString(fs, JoinPath(directory, kTokenizerConfig));
  if (!text.ok()) return true;
  const auto config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return !config.is_object() || config.value("do_lower_case", nlohmann::json(true)) != false;
}

}  // namespace

TokenizerOptions FindHfTokenizer(FileSystem& fs, const std::string& directory) {
  auto has = [&](const char* name) { return fs.Stat(JoinPath(directory, name)).ok(); };
  TokenizerOptions options;
  if (has(kTokenizerJson)) {
    options.type = "HuggingFaceTokenizer";
    options.tokenizer_model = directory;
  } else if (has(kVocab) && has(kMerges)) {
    options.type = "GPT2BPETokenizer";
    options.vocab_file = JoinPath(directory, kVocab);
    options.merge_file = JoinPath(directory, kMerges);
  } else if (has(kSentencePiece)) {
    options.type = "Llama2Tokenizer";
    options.tokenizer_model = JoinPath(directory, kSentencePiece);
  } else if (has(kWordPiece)) {
    options.type = LowersCase(fs, directory) ? kLowerCase : "BertWordPieceCase";
    options.vocab_file = JoinPath(directory, kWordPiece);
  }
  return options;
}

absl::StatusOr<int> CopyHfTokenizer(FileSystem& fs, const TokenizerOptions& tokenizer,
                                    const std::string& directory) {
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  const Copies files = FilesOf(fs, tokenizer);
  for (const auto& [name, from] : files) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string contents, ReadFileToString(fs, from),
                              _ << "while copying the tokenizer");
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(directory, name), contents));
  }
  if (IsWordPiece(tokenizer) && tokenizer.tokenizer_model.empty()) {
    const nlohmann::json config = {{"tokenizer_class", "BertTokenizer"},
                                   {"do_lower_case", tokenizer.type == kLowerCase}};
    MEGATRON_RETURN_IF_ERROR(
        WriteFileAtomically(fs, JoinPath(directory, kTokenizerConfig), config.dump(2) + "\n"));
  }
  return static_cast<int>(files.size());
}

}  // namespace megatron
