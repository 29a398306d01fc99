// Finds which of our tokenizers a Hugging Face directory has, and copies its files.
#ifndef MEGATRON_TRAIN_HUGGINGFACE_HF_TOKENIZER_FILES_H_
#define MEGATRON_TRAIN_HUGGINGFACE_HF_TOKENIZER_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {

// Returns the tokenizer according to the files that are there: HuggingFaceTokenizer
// (tokenizer.json), GPT2BPETokenizer (vocab.json and merges.txt), Llama2Tokenizer
// (tokenizer.model), BertWordPieceLowerCase or, where tokenizer_config.json says so,
// BertWordPieceCase (vocab.txt); without a type where there are none of these.
TokenizerOptions FindHfTokenizer(FileSystem& fs, const std::string& directory);

// Copies the tokenizer's files into `directory`, which is created, under the names that
// FindHfTokenizer and Hugging Face's packages look for, and for a vocab.txt also what says there
// whether it lowers case. What lies beside them is copied too: the names of special tokens, a chat
// template, and, where they are no model's own directory, generation_config.json. Returns the names
// of the copies.
absl::StatusOr<std::vector<std::string>> CopyHfTokenizer(FileSystem& fs,
                                                         const TokenizerOptions& tokenizer,
                                                         const std::string& directory);

// Copies all such files of a model's directory, and its generation_config.json.
absl::Status CopyHfTokenizerFiles(FileSystem& fs, const std::string& from,
                                  const std::string& directory);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_HUGGINGFACE_HF_TOKENIZER_FILES_H_
