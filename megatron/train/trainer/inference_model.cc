#include "megatron/train/trainer/inference_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/make_stage.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/text/checkpoint_tokenizer.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {
namespace {

int64_t AlignedBytes(const Tensor& tensor) { return RoundUp(tensor.bytes(), Buffer::kAlignment); }

// Gives every parameter its place in a block from `buffer`, or without one just its shape; returns
// the bytes of the block.
int64_t BindWeights(const ModelOptions& options, const Buffer* buffer, ModelStage* stage) {
  int64_t offset = 0;
  for (Parameter* parameter : stage->parameters()) {
    const Shape& shape = parameter->sharding.local_shape;
    parameter->data = buffer == nullptr
                          ? Tensor(nullptr, options.transformer.dtype, shape, {DeviceType::kMeta})
                          : buffer->At(offset, options.transformer.dtype, shape);
    offset += AlignedBytes(parameter->data);
  }
  return offset;
}

// Returns the sizes of the arenas that predicting needs, by doing it on the meta device.
StageMemorySizes MeasurePrediction(const ModelOptions& options, const GeneratorLimits& limits) {
  const Device meta = {DeviceType::kMeta};
  const std::unique_ptr<ModelStage> stage = MakeStage(options, {meta});
  StageMemory memory(meta, {}, nullptr);
  BindWeights(options, nullptr, stage.get());
  TextGenerator({stage.get(), &memory}, limits, Stream::Meta(), nullptr).Measure();
  return memory.HighWater();
}

}  // namespace

InferenceModel::InferenceModel(std::unique_ptr<Tokenizer> tokenizer, const ModelOptions& options,
                               const GeneratorLimits& limits, int num_threads)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      limits_(limits),
      pool_(num_threads),
      stage_(MakeStage(options, {Device(), &ledger_})) {
  const int64_t bytes = BindWeights(options, nullptr, stage_.get());
  weights_ = Buffer({}, bytes, "weights", &ledger_);
  BindWeights(options, &weights_, stage_.get());
  memory_ = std::make_unique<StageMemory>(Device(), MeasurePrediction(options, limits), &ledger_);
  generator_ = std::make_unique<TextGenerator>(GeneratorSetup{stage_.get(), memory_.get()}, limits,
                                               Stream::Cpu(&pool_), &ledger_);
}

absl::Status InferenceModel::LoadWeights(const CheckpointReader& reader) {
  for (Parameter* parameter : stage_->parameters()) {
    MEGATRON_RETURN_IF_ERROR(
        reader.Read(parameter->name, parameter->sharding.offset, parameter->data));
  }
  for (const RouterState::Named& state : stage_->router_state().Tensors()) {
    MEGATRON_RETURN_IF_ERROR(reader.Read(state.name, {0}, state.tensor));
  }
  return absl::OkStatus();
}

InferenceModel::~InferenceModel() = default;

absl::StatusOr<std::unique_ptr<InferenceModel>> InferenceModel::Load(FileSystem& fs,
                                                                     const std::string& directory,
                                                                     int num_threads) {
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found, LocateCheckpoint(fs, directory));
  const std::string& iteration = found.directory;
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, iteration));
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, reader.String("config"));
  MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadSavedConfig(text, iteration));
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizer(CheckpointTokenizer(
                                fs, ToTokenizerOptions(loaded.config.data()), iteration)));
  RunOptions options = ToRunOptions(loaded.config, tokenizer->vocab_size());
  const PackerOptions& packing = options.trainer.packing;
  const GeneratorLimits limits = {options.trainer.model.vocab_size, packing.seq_length,
                                  packing.encoder_seq_length};
  std::unique_ptr<InferenceModel> model(
      new InferenceModel(std::move(tokenizer), options.trainer.model, limits, num_threads));
  MEGATRON_RETURN_IF_ERROR(model->LoadWeights(reader),
                           _ << "while loading weights from " << iteration);
  MEGATRON_ASSIGN_OR_RETURN(model->iteration_, reader.Int("iteration"));
  return model;
}

}  // namespace megatron
