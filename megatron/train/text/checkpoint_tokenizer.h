// Finds the files of a checkpoint's tokenizer.
#ifndef MEGATRON_TRAIN_TEXT_CHECKPOINT_TOKENIZER_H_
#define MEGATRON_TRAIN_TEXT_CHECKPOINT_TOKENIZER_H_

#include <string>
#include <vector>

#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {

// Returns the tokenizer that the configuration in a checkpoint describes. Its files are where the
// configuration says. A file that is not there is looked for by its name beside the checkpoint and
// in `tokenizer/` beside it, so that a directory of checkpoints with its tokenizer inside, as
// import_hf makes it, can be moved. `iteration` is the directory of one checkpoint.
TokenizerOptions CheckpointTokenizer(FileSystem& fs, TokenizerOptions tokenizer,
                                     const std::string& iteration);

// Returns `path` if it is there or nowhere, else the file of its name in one of `folders`.
std::string FindMoved(FileSystem& fs, const std::string& path,
                      const std::vector<std::string>& folders);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_CHECKPOINT_TOKENIZER_H_
