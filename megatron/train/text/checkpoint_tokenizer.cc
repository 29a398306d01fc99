#include "megatron/train/text/checkpoint_tokenizer.h"

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace megatron {
namespace {

absl::string_view LastName(absl::string_view path) {
  while (absl::ConsumeSuffix(&path, "/")) continue;
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

}  // namespace

TokenizerOptions CheckpointTokenizer(FileSystem& fs, TokenizerOptions tokenizer,
                                     const std::string& iteration) {
  const std::string run = JoinPath(iteration, "..");
  for (std::string* path :
       {&tokenizer.vocab_file, &tokenizer.merge_file, &tokenizer.tokenizer_model}) {
    if (path->empty() || fs.Stat(*path).ok()) continue;
    const absl::string_view name = LastName(*path);
    for (const std::string& folder : {run, JoinPath(run, "tokenizer")}) {
      const std::string beside = JoinPath(folder, name);
      if (!fs.Stat(beside).ok()) continue;
      *path = beside;
      break;
    }
  }
  return tokenizer;
}

}  // namespace megatron
