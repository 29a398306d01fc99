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

std::string FindMoved(FileSystem& fs, const std::string& path,
                      const std::vector<std::string>& folders) {
  if (path.empty() || fs.Stat(path).ok()) return path;
  for (const std::string& folder : folders) {
    std::string moved = JoinPath(folder, LastName(path));
    if (fs.Stat(moved).ok()) return moved;
  }
  return path;
}

TokenizerOptions CheckpointTokenizer(FileSystem& fs, TokenizerOptions tokenizer,
                                     const std::string& iteration) {
  const std::string run = JoinPath(iteration, "..");
  for (std::string* path :
       {&tokenizer.vocab_file, &tokenizer.merge_file, &tokenizer.tokenizer_model})
    *path = FindMoved(fs, *path, {run, JoinPath(run, "tokenizer")});
  return tokenizer;
}

}  // namespace megatron
