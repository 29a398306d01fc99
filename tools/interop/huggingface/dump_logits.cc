// Writes the logits of a checkpoint's model after each of the given tokens, for compare.py:
//
//   dump_logits --tokens="1 2 3" --output=logits.npy CHECKPOINT_DIRECTORY
//
// fp32 [tokens, vocabulary without padding]. For BERT the second half of the tokens has type 1; for
// T5 these are the decoder's tokens, beside --encoder_tokens. With --gradients it also writes the
// gradients of the mean loss of the second token and all later ones, under Hugging Face's names.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/safetensors_writer.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/stage_memory.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/training_checkpoint.h"
#include "tools/common/tool_main.h"
#include "tools/interop/npy.h"

ABSL_FLAG(std::string, tokens, "", "Ids, with spaces between.");
ABSL_FLAG(std::string, encoder_tokens, "", "What the encoder of a T5 reads.");
ABSL_FLAG(std::string, output, "", "The .npy file to write.");
ABSL_FLAG(int64_t, vocab_size, 0, "Of the model, without padding.");
ABSL_FLAG(std::string, gradients, "", "The folder of a model.safetensors to write, if set.");
ABSL_FLAG(std::string, model_type, "", "Hugging Face's name of the family, for --gradients.");

namespace megatron {
namespace {

// One sequence, as host arrays.
struct Sequence {
  std::vector<int32_t> tokens, labels, types, positions, cu_seqlens;
  std::vector<int64_t> samples;
  std::vector<float> weights, gradient_weights;

  Shape shape() const { return {static_cast<int64_t>(tokens.size())}; }
  Tensor Ids(std::vector<int32_t>* ids) const {
    return Tensor(ids->data(), DType::kInt32, {static_cast<int64_t>(ids->size())});
  }

  MicroBatch View(Sequence* encoder) {
    MicroBatch batch;
    batch.tokens_T = Ids(&tokens);
    batch.labels_T = Ids(&labels);
    batch.loss_weight_T = Tensor(weights.data(), DType::kFloat32, shape());
    batch.gradient_weight_T = Tensor(gradient_weights.data(), DType::kFloat32, shape());
    batch.token_type_T = Ids(&types);
    batch.position_T = batch.sample_position_T = Ids(&positions);
    batch.sample_T = Tensor(samples.data(), DType::kInt64, shape());
    batch.cu_seqlens = Ids(&cu_seqlens);
    batch.max_seqlen = shape()[0];
    batch.encoder.tokens_T = Ids(&encoder->tokens);
    batch.encoder.position_T = batch.encoder.sample_position_T = Ids(&encoder->positions);
    batch.encoder.sample_T = Tensor(encoder->samples.data(), DType::kInt64, encoder->shape());
    batch.encoder.cu_seqlens = Ids(&encoder->cu_seqlens);
    batch.encoder.max_seqlen = encoder->shape()[0];
    return batch;
  }
};

absl::StatusOr<Sequence> ReadTokens(const std::string& text) {
  Sequence sequence;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    int32_t id;
    if (!absl::SimpleAtoi(word, &id) || id < 0 || id >= absl::GetFlag(FLAGS_vocab_size)) {
      return absl::InvalidArgumentError("--tokens must be ids below --vocab_size");
    }
    sequence.positions.push_back(static_cast<int32_t>(sequence.tokens.size()));
    sequence.tokens.push_back(id);
  }
  for (size_t i = 0; i < sequence.tokens.size(); ++i)
    sequence.types.push_back(i < sequence.tokens.size() / 2 ? 0 : 1);
  const size_t count = sequence.tokens.size();
  for (size_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    sequence.labels.push_back(sequence.tokens[last ? 0 : i + 1]);
    sequence.weights.push_back(last ? 0.0f : 1.0f);
    sequence.gradient_weights.push_back(last ? 0.0f : 1.0f / static_cast<float>(count - 1));
  }
  sequence.samples.resize(count);
  sequence.cu_seqlens = {0, static_cast<int32_t>(sequence.tokens.size())};
  return sequence;
}

// Positions in a table end; relative ones do not.
absl::Status CheckPositions(const ModelOptions& options, absl::string_view flag,
                            const Sequence& sequence) {
  const bool in_table = options.learned_positions || options.transformer.rotary;
  const int64_t tokens = sequence.shape()[0];
  if (!in_table || tokens <= options.max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " has ", tokens, " tokens, and the model ", options.max_positions,
                   " positions (model.max_position_embeddings): give fewer tokens"));
}

// The parameters with memory of their own, filled from the checkpoint.
absl::Status LoadWeights(const CheckpointReader& reader, DType dtype, ModelStage* stage,
                         std::vector<std::vector<int64_t>>* memory) {
  for (Parameter* parameter : stage->parameters()) {
    const Shape& shape = parameter->sharding.local_shape;
    memory->emplace_back(static_cast<size_t>(shape.numel() * SizeOf(dtype) + 7) / 8);
    parameter->data = Tensor(memory->back().data(), dtype, shape);
    MEGATRON_RETURN_IF_ERROR(
        reader.Read(parameter->name, parameter->sharding.offset, parameter->data));
  }
  for (const RouterState::Named& state : stage->router_state().Tensors()) {
    MEGATRON_RETURN_IF_ERROR(reader.Read(state.name, {0}, state.tensor));
  }
  return absl::OkStatus();
}

// Runs forward and backward, and writes the gradients of each of Hugging Face's tensors.
absl::Status DumpGradients(FileSystem& fs, ModelOptions options, MicroBatch batch,
                           const Stream& stream, StageMemory* memory, ModelStage* stage) {
  std::map<std::string, std::vector<float>> gradients;
  for (Parameter* parameter : stage->parameters()) {
    const Shape& shape = parameter->sharding.local_shape;
    std::vector<float>& values = gradients[parameter->name];
    values.assign(static_cast<size_t>(shape.numel()), 0.0f);
    parameter->grad = Tensor(values.data(), DType::kFloat32, shape);
  }
  const std::vector<MicroBatch> batches = {batch};
  stage->StartStep({memory, nullptr, &batches, StageMode::kTrain});
  stage->Forward({}, {}, {}, stream);
  stage->Backward({}, {}, {}, stream);

  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  std::map<std::string, HfTensor> tensors;
  std::vector<SafetensorsTensor> files;
  for (const HfTensor& tensor : HfTensors(options, absl::GetFlag(FLAGS_model_type))) {
    if (tensor.is_state) continue;
    files.push_back({tensor.name, SafetensorsName(DType::kFloat32), tensor.shape});
    tensors.emplace(tensor.name, tensor);
  }
  const std::string directory = absl::GetFlag(FLAGS_gradients);
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  const auto write = [&](const SafetensorsTensor& file, std::string* bytes) -> absl::Status {
    const HfTensor& tensor = tensors.at(file.name);
    const float* const part =
        gradients.at(tensor.parameter).data() + tensor.part * tensor.part_shape().numel();
    bytes->assign(static_cast<size_t>(file.bytes()), '\0');
    CopyToHf(tensor, sizeof(float), reinterpret_cast<const char*>(part), &(*bytes)[0]);
    return absl::OkStatus();
  };
  return WriteSafetensorsModel(fs, directory, files, SafetensorsModelOptions(), write);
}

absl::Status Dump(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one checkpoint directory");
  FileSystem& fs = PosixFileSystem();
  MEGATRON_ASSIGN_OR_RETURN(Sequence sequence, ReadTokens(absl::GetFlag(FLAGS_tokens)));
  MEGATRON_ASSIGN_OR_RETURN(Sequence encoder, ReadTokens(absl::GetFlag(FLAGS_encoder_tokens)));
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found, LocateCheckpoint(fs, arguments[0]));
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                            CheckpointReader::Open(fs, found.directory));
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, reader.String("config"));
  MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadSavedConfig(text, found.directory));
  const int64_t vocab_size = absl::GetFlag(FLAGS_vocab_size);
  ModelOptions options = ToRunOptions(loaded.config, vocab_size).trainer.model;
  options.transformer.hidden_dropout = options.transformer.attention_dropout = 0;
  MEGATRON_RETURN_IF_ERROR(CheckPositions(options, "--tokens", sequence));
  MEGATRON_RETURN_IF_ERROR(CheckPositions(options, "--encoder_tokens", encoder));

  ThreadPool pool(AvailableCores());
  MemoryLedger ledger;
  const std::unique_ptr<ModelStage> stage = MakeStage(options, {Device(), &ledger});
  std::vector<std::vector<int64_t>> weights;
  MEGATRON_RETURN_IF_ERROR(LoadWeights(reader, options.transformer.dtype, stage.get(), &weights));
  StageMemorySizes sizes;  // more than the small models of compare.py need
  sizes.slots[0].bytes = sizes.scratch = int64_t{64} << 20;
  StageMemory memory(Device(), sizes, &ledger);
  const std::vector<MicroBatch> batches = {sequence.View(&encoder)};

  std::vector<int32_t> numbers(sequence.tokens.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto count = static_cast<int64_t>(numbers.size());
  std::vector<float> padded(static_cast<size_t>(count * options.padded_vocab_size)), all;
  stage->StartStep({&memory, nullptr, &batches, StageMode::kPredict,
                    Tensor(numbers.data(), DType::kInt32, {count}),
                    Tensor(padded.data(), DType::kFloat32, {count, options.padded_vocab_size})});
  stage->Forward({}, {}, {}, Stream::Cpu(&pool));
  for (int64_t t = 0; t < count; ++t) {
    const auto row = padded.begin() + t * options.padded_vocab_size;
    all.insert(all.end(), row, row + vocab_size);
  }
  const Shape shape = {count, vocab_size};
  if (!absl::GetFlag(FLAGS_gradients).empty()) {
    MEGATRON_RETURN_IF_ERROR(
        DumpGradients(fs, options, batches[0], Stream::Cpu(&pool), &memory, stage.get()));
  }
  return WriteNpy(fs, absl::GetFlag(FLAGS_output), Tensor(all.data(), DType::kFloat32, shape));
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Writes the logits of a checkpoint's model.",
                           megatron::Dump);
}
