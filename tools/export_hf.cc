// Writes a checkpoint as a Hugging Face model: config.json, model.safetensors and the tokenizer's
// files.  export_hf --output=DIRECTORY CHECKPOINT_DIRECTORY

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/safetensors_writer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/text/checkpoint_tokenizer.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/training_checkpoint.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/interrupt.h"
#include "tools/common/tool_main.h"
#include "tools/huggingface/hf_tokenizer_files.h"

ABSL_FLAG(std::string, output, "",
          "The directory to write, which must not be there yet. It appears when all is in it.");
ABSL_FLAG(int64_t, max_file_bytes, 5'000'000'000,
          "The most tensor bytes in one .safetensors file; a larger model gets several, and an "
          "index.");
ABSL_FLAG(int64_t, vocab_size, 0,
          "The rows of the vocabulary to write. 0: as many as the tokenizer has tokens. A model "
          "that was imported with more rows than its tokenizer has tokens gets them back this "
          "way.");

ABSL_FLAG(bool, openai_gelu, false,
          "Of a BERT with gelu_tanh whose head has the exact GELU: writes a model whose head, too, "
          "has GELU by tanh (gelu_new), as all of theirs have the head's like the layers'. The two "
          "differ by less than 0.0005, and so scores change a little.");

namespace megatron {
namespace {

struct Source {
  std::unique_ptr<CheckpointReader> reader;
  TokenizerOptions tokenizer;
  ModelOptions model;
  HfTokens tokens;
};

// Returns the number of rows of the embedding in the checkpoint.
absl::StatusOr<int64_t> VocabularyRows(const CheckpointReader& reader) {
  const TensorEntry* const entry =
      FindTensor(reader.manifest(), "embedding.word_embeddings.weight");
  if (entry != nullptr && entry->shape.rank() == 2) return entry->shape[0];
  return absl::InvalidArgumentError(
      absl::StrCat(reader.directory(), ": holds no embedding, so it is no GPT"));
}

// Returns the type of the weights, which all have the same.
absl::StatusOr<DType> WeightType(const CheckpointReader& reader,
                                 const std::vector<HfTensor>& tensors) {
  std::vector<std::string> problems;
  const TensorEntry* const first = FindTensor(reader.manifest(), tensors[0].parameter);
  for (const HfTensor& tensor : tensors) {
    if (tensor.parameter.empty()) continue;
    const TensorEntry* const entry = FindTensor(reader.manifest(), tensor.parameter);
    if (entry == nullptr) {
      problems.push_back(absl::StrCat("'", tensor.parameter, "' is missing"));
    } else if (entry->shape != tensor.parameter_shape || entry->dtype != first->dtype) {
      problems.push_back(absl::StrCat("'", tensor.parameter, "' has another shape or type"));
    }
  }
  if (problems.empty()) return first->dtype;
  return absl::DataLossError(
      absl::StrCat(reader.directory(), ": does not hold the model that its configuration says:\n  ",
                   absl::StrJoin(problems, "\n  ")));
}

absl::Status ReadTokenizer(Source* source) {
  const int64_t asked = absl::GetFlag(FLAGS_vocab_size);
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(source->tokenizer);
  if (!tokenizer.ok() && asked == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokenizer.status().message(),
                     "; without the tokenizer, --vocab_size says how many rows of the vocabulary "
                     "mean something"));
  }
  if (tokenizer.ok()) {
    const SpecialTokens& special = (*tokenizer)->special();
    source->tokens = {special.bos, special.eos >= 0 ? special.eos : special.eod, special.pad};
  }
  source->model.vocab_size = asked > 0 ? asked : (*tokenizer)->vocab_size();
  if (tokenizer.ok() && source->model.vocab_size < (*tokenizer)->vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat("--vocab_size=", asked, ": the tokenizer has ",
                                                   (*tokenizer)->vocab_size(),
                                                   " tokens, and some of them would have no row"));
  }
  if (source->model.vocab_size <= source->model.padded_vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the checkpoint has ",
                                                 source->model.padded_vocab_size, " rows of the ",
                                                 "vocabulary, not ", source->model.vocab_size));
}

absl::Status TakeGeluOfHead(ModelOptions* model) {
  if (!absl::GetFlag(FLAGS_openai_gelu)) return absl::OkStatus();
  if (model->kind != ModelKind::kBert ||
      model->transformer.activation != ops::Activation::kGeluTanh ||
      model->masked_lm_activation == ops::Activation::kGeluTanh) {
    return absl::InvalidArgumentError(
        "--openai_gelu is for a BERT with activation_func: gelu_tanh and without openai_gelu");
  }
  model->masked_lm_activation = ops::Activation::kGeluTanh;
  return absl::OkStatus();
}

absl::StatusOr<Source> OpenSource(FileSystem& fs, const std::string& argument) {
  Source source;
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found,
                            AsArgument(LocateCheckpoint(fs, argument)));
  MEGATRON_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(fs, found.directory));
  source.reader = std::make_unique<CheckpointReader>(std::move(reader));
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, source.reader->String("config"));
  MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadSavedConfig(text, found.directory));
  const RunOptions options = ToRunOptions(loaded.config, /*vocab_size=*/1);
  source.model = options.trainer.model;
  MEGATRON_RETURN_IF_ERROR(TakeGeluOfHead(&source.model));
  source.tokenizer = CheckpointTokenizer(fs, options.tokenizer, found.directory);
  MEGATRON_ASSIGN_OR_RETURN(source.model.padded_vocab_size, VocabularyRows(*source.reader));
  MEGATRON_RETURN_IF_ERROR(ReadTokenizer(&source));
  return source;
}

absl::Status WriteWeights(FileSystem& fs, const std::string& directory, const Source& source,
                          const std::vector<HfTensor>& tensors, DType dtype) {
  std::map<std::string, const HfTensor*> by_name;
  std::vector<SafetensorsTensor> files;
  for (const HfTensor& tensor : tensors) {
    by_name[tensor.name] = &tensor;
    files.push_back({tensor.name, SafetensorsName(dtype), tensor.shape});
  }
  SafetensorsModelOptions options;
  options.max_file_bytes = absl::GetFlag(FLAGS_max_file_bytes);
  std::vector<int64_t> parameter;  // aligned for any type
  return WriteSafetensorsModel(
      fs, directory, files, options,
      [&](const SafetensorsTensor& file, std::string* bytes) -> absl::Status {
        MEGATRON_RETURN_IF_ERROR(CheckInterrupted());
        const HfTensor& tensor = *by_name.at(file.name);
        bytes->assign(static_cast<size_t>(file.bytes()), '\0');
        if (tensor.parameter.empty()) return absl::OkStatus();
        const Shape& shape = tensor.parameter_shape;
        parameter.resize(static_cast<size_t>(shape.numel() * SizeOf(dtype) + 7) / 8);
        Shape start = shape;
        for (int d = 0; d < start.rank(); ++d) start[d] = 0;
        MEGATRON_RETURN_IF_ERROR(
            source.reader->Read(tensor.parameter, start, Tensor(parameter.data(), dtype, shape)));
        CopyToHf(tensor, SizeOf(dtype), reinterpret_cast<const char*>(parameter.data()),
                 &(*bytes)[0]);
        return absl::OkStatus();
      });
}

absl::Status WriteAll(FileSystem& fs, const Source& source, const std::string& directory) {
  ModelOptions model = source.model;
  MEGATRON_RETURN_IF_ERROR(HfConfigJson(model, source.tokens).status());
  const std::vector<HfTensor> tensors = HfTensors(model);
  MEGATRON_ASSIGN_OR_RETURN(model.transformer.dtype, WeightType(*source.reader, tensors));
  MEGATRON_ASSIGN_OR_RETURN(const std::string config, HfConfigJson(model, source.tokens));

  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(directory, kHfConfigFileName), config));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(directory, kHfGenerationConfigFileName),
                                               HfGenerationConfigJson(model, source.tokens)));
  MEGATRON_ASSIGN_OR_RETURN(const int copied, CopyHfTokenizer(fs, source.tokenizer, directory));
  if (copied == 0) {
    std::cerr << "note: the tokenizer, " << source.tokenizer.type << ", has no files to copy\n";
  }
  return WriteWeights(fs, directory, source, tensors, model.transformer.dtype);
}

absl::Status Export(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one checkpoint directory");
  std::string output = absl::GetFlag(FLAGS_output);
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  if (output.empty()) return absl::InvalidArgumentError("--output=DIRECTORY is needed");
  if (absl::GetFlag(FLAGS_max_file_bytes) < 1 || absl::GetFlag(FLAGS_vocab_size) < 0) {
    return absl::InvalidArgumentError(
        "--max_file_bytes must be at least 1 and --vocab_size not negative");
  }
  FileSystem& fs = PosixFileSystem();
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(output));
  const std::string temporary = output + ".tmp";
  for (const std::string& path : {output, temporary}) {
    if (fs.Stat(path).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' is there already; remove it, or give another --output"));
    }
  }
  CatchInterrupts();
  MEGATRON_ASSIGN_OR_RETURN(const Source source, OpenSource(fs, arguments[0]));
  absl::Status status = WriteAll(fs, source, temporary);
  if (status.ok()) status = fs.SyncDir(temporary);
  if (status.ok()) status = fs.Rename(temporary, output);
  if (!status.ok()) {
    fs.RemoveTree(temporary).IgnoreError();  // The first error is reported.
    return status;
  }
  MEGATRON_RETURN_IF_ERROR(fs.SyncDir(ParentPath(output)));
  std::cout << "wrote " << output << " from " << source.reader->directory() << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  const int code = megatron::RunTool(
      argc, argv,
      "Writes a checkpoint as a Hugging Face model.\n\n  export_hf --output=DIRECTORY "
      "CHECKPOINT_DIRECTORY\n\nThe checkpoint is that of one iteration, or the latest of a run's.",
      megatron::Export);
  // The data here is a checkpoint.
  return code == megatron::kExitData ? megatron::kExitCorruptCheckpoint : code;
}
