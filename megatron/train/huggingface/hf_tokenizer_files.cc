#include "megatron/train/huggingface/hf_tokenizer_files.h"

#include <string>
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
constexpr char kGenerationConfig[] = "generation_config.json";
// All files of a tokenizer alone.
constexpr const char* kModels[] = {kTokenizerJson, kVocab, kMerges, kSentencePiece, kWordPiece};
// What may lie beside them and goes with them.
constexpr const char* kCompanions[] = {kTokenizerConfig,     "special_tokens_map.json",
                                       "added_tokens.json",  "chat_template.jinja",
                                       "chat_template.json", kGenerationConfig};

// Files by the names that their copies get.
using Copies = std::vector<std::pair<std::string, std::string>>;

bool IsWordPiece(const TokenizerOptions& tokenizer) {
  return absl::StartsWith(tokenizer.type, "Bert");
}

bool Has(FileSystem& fs, const std::string& directory, const char* name) {
  return fs.Stat(JoinPath(directory, name)).ok();
}

// A model's own directory has the generation_config.json of that model, and not of ours.
void AddCompanions(FileSystem& fs, const std::string& folder, Copies* files) {
  for (const char* name : kCompanions) {
    if (name == kGenerationConfig && Has(fs, folder, "config.json")) continue;
    if (Has(fs, folder, name)) files->emplace_back(name, JoinPath(folder, name));
  }
}

Copies FilesOf(FileSystem& fs, const TokenizerOptions& tokenizer) {
  Copies files;
  const std::string& model = tokenizer.tokenizer_model;
  std::string folder;
  if (!model.empty() && fs.List(model).ok()) {
    folder = model;
    for (const char* name : kModels) {
      if (Has(fs, model, name)) files.emplace_back(name, JoinPath(model, name));
    }
  } else if (!model.empty()) {
    const bool json = tokenizer.type == "HuggingFaceTokenizer";
    files.emplace_back(json ? kTokenizerJson : kSentencePiece, model);
  }
  if (!tokenizer.vocab_file.empty()) {
    files.emplace_back(IsWordPiece(tokenizer) ? kWordPiece : kVocab, tokenizer.vocab_file);
  }
  if (!tokenizer.merge_file.empty()) files.emplace_back(kMerges, tokenizer.merge_file);
  if (files.empty()) return files;
  AddCompanions(fs, folder.empty() ? ParentPath(files.front().second) : folder, &files);
  return files;
}

absl::Status Copy(FileSystem& fs, const Copies& files, const std::string& directory) {
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  for (const auto& [name, from] : files) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string contents, ReadFileToString(fs, from),
                              _ << "while copying the tokenizer");
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(directory, name), contents));
  }
  return absl::OkStatus();
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

absl::StatusOr<std::vector<std::string>> CopyHfTokenizer(FileSystem& fs,
                                                         const TokenizerOptions& tokenizer,
                                                         const std::string& directory) {
  const Copies files = FilesOf(fs, tokenizer);
  MEGATRON_RETURN_IF_ERROR(Copy(fs, files, directory));
  if (IsWordPiece(tokenizer) && tokenizer.tokenizer_model.empty()) {
    const nlohmann::json config = {{"tokenizer_class", "BertTokenizer"},
                                   {"do_lower_case", tokenizer.type == kLowerCase}};
    MEGATRON_RETURN_IF_ERROR(
        WriteFileAtomically(fs, JoinPath(directory, kTokenizerConfig), config.dump(2) + "\n"));
  }
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(file.first);
  return names;
}

absl::Status CopyHfTokenizerFiles(FileSystem& fs, const std::string& from,
                                  const std::string& directory) {
  Copies files;
  for (const char* name : kModels) {
    if (Has(fs, from, name)) files.emplace_back(name, JoinPath(from, name));
  }
  for (const char* name : kCompanions) {
    if (Has(fs, from, name)) files.emplace_back(name, JoinPath(from, name));
  }
  return Copy(fs, files, directory);
}

}  // namespace megatron
