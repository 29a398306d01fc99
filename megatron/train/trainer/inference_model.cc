#include "megatron/train/trainer/inference_model.h"

#include <utility>

#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"

namespace megatron {

InferenceModel::InferenceModel(SavedModel saved, int num_threads)
    : saved_(std::move(saved)),
      pool_(num_threads),
      stage_(
          saved_.options, ProcessGroups(),
          [this](const GeneratorSetup& setup) {
            TextGenerator(setup, saved_.limits, Stream::Meta(), nullptr).Measure();
          },
          &ledger_),
      generator_(std::make_unique<TextGenerator>(stage_.setup(), saved_.limits, Stream::Cpu(&pool_),
                                                 &ledger_)) {}

absl::StatusOr<std::unique_ptr<InferenceModel>> InferenceModel::Load(FileSystem& fs,
                                                                     const std::string& directory,
                                                                     int num_threads) {
  MEGATRON_ASSIGN_OR_RETURN(SavedModel saved, OpenSavedModel(fs, directory));
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                            CheckpointReader::Open(fs, saved.directory));
  std::unique_ptr<InferenceModel> model(new InferenceModel(std::move(saved), num_threads));
  MEGATRON_RETURN_IF_ERROR(model->stage_.LoadWeights(reader),
                           _ << "while loading weights from " << model->saved_.directory);
  return model;
}

}  // namespace megatron
