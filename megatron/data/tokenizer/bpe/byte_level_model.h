// Byte-level BPE as a step of a tokenizer, including the splitting of text into pieces.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_MODEL_H_

#include <memory>
#include <vector>

#include "megatron/data/tokenizer/bpe/byte_level_bpe.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/pipeline/text_model.h"

namespace megatron {

struct ByteLevelSplit {
  std::vector<FirstPiece> stages;  // each stage splits the pieces of the stage before
  bool add_prefix_space = false;   // texts that do not begin with a space get one
};

class ByteLevelModel : public TextModel {
 public:
  ByteLevelModel(std::unique_ptr<ByteLevelBpe> bpe, ByteLevelSplit split);

  absl::Status Encode(absl::string_view text, bool first, std::vector<int32_t>* ids,
                      std::vector<TextSpan>* spans) const override;

 private:
  std::unique_ptr<ByteLevelBpe> bpe_;
  ByteLevelSplit split_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_MODEL_H_
