#include "megatron/train/inference/saved_model.h"

#include <utility>

#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/text/checkpoint_tokenizer.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {

absl::StatusOr<SavedModel> OpenSavedModel(FileSystem& fs, const std::string& directory) {
  SavedModel model;
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found, LocateCheckpoint(fs, directory));
  model.directory = found.directory;
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                            CheckpointReader::Open(fs, model.directory));
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, reader.String("config"));
  MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadSavedConfig(text, model.directory));
  MEGATRON_ASSIGN_OR_RETURN(model.tokenizer,
                            CreateTokenizer(CheckpointTokenizer(
                                fs, ToTokenizerOptions(loaded.config.data()), model.directory)));
  const RunOptions options = ToRunOptions(loaded.config, model.tokenizer->vocab_size());
  model.options = options.trainer.model;
  const PackerOptions& packing = options.trainer.packing;
  model.limits = {model.options.vocab_size, packing.seq_length, packing.encoder_seq_length};
  MEGATRON_ASSIGN_OR_RETURN(model.iteration, reader.Int("iteration"));
  return model;
}

}  // namespace megatron
