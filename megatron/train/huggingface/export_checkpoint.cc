#include "megatron/train/huggingface/export_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/safetensors_writer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/huggingface/hf_adapter.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/huggingface/hf_merge_adapter.h"
#include "megatron/train/huggingface/hf_tokenizer_files.h"
#include "megatron/train/text/checkpoint_tokenizer.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

struct Source {
  const HfExportOptions& options;
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
    } else if (entry->shape != tensor.parameter_shape ||
               entry->dtype != (tensor.is_state ? DType::kFloat32 : first->dtype)) {
      problems.push_back(absl::StrCat("'", tensor.parameter, "' has another shape or type"));
    }
  }
  if (problems.empty()) return first->dtype;
  return absl::DataLossError(
      absl::StrCat(reader.directory(), ": does not hold the model that its configuration says:\n  ",
                   absl::StrJoin(problems, "\n  ")));
}

absl::Status ReadTokenizer(Source* source) {
  const int64_t asked = source->options.vocab_size;
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

absl::Status TakeGeluOfHead(bool asked, ModelOptions* model) {
  if (!asked) return absl::OkStatus();
  if (model->kind != ModelKind::kBert ||
      model->transformer.activation != ops::Activation::kGeluTanh ||
      model->masked_lm_activation == ops::Activation::kGeluTanh) {
    return absl::InvalidArgumentError(
        "--openai_gelu is for a BERT with activation_func: gelu_tanh and without openai_gelu");
  }
  model->masked_lm_activation = ops::Activation::kGeluTanh;
  return absl::OkStatus();
}

absl::StatusOr<Source> OpenSource(FileSystem& fs, const std::string& directory,
                                  const HfExportOptions& export_options) {
  Source source{export_options};
  MEGATRON_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(fs, directory));
  source.reader = std::make_unique<CheckpointReader>(std::move(reader));
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, source.reader->String("config"));
  MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadSavedConfig(text, directory));
  const RunOptions options = ToRunOptions(loaded.config, /*vocab_size=*/1);
  source.model = options.trainer.model;
  MEGATRON_RETURN_IF_ERROR(TakeGeluOfHead(export_options.openai_gelu, &source.model));
  source.tokenizer = CheckpointTokenizer(fs, options.tokenizer, directory);
  MEGATRON_ASSIGN_OR_RETURN(source.model.padded_vocab_size, VocabularyRows(*source.reader));
  MEGATRON_RETURN_IF_ERROR(ReadTokenizer(&source));
  return source;
}

// Returns the type of a tensor of a model whose weights have type `dtype`.
DType TypeOf(const HfTensor& tensor, DType dtype) {
  return tensor.is_state ? DType::kFloat32 : dtype;
}

// Reads a tensor, with the product of its adapter, if it has one and that is to be added.
absl::Status ReadTensor(const Source& source, const HfTensor& tensor, DType dtype,
                        std::string* bytes) {
  if (source.options.keep_going) {
    MEGATRON_RETURN_IF_ERROR(source.options.keep_going());
  }
  if (tensor.parameter.empty()) return absl::OkStatus();
  const Shape shape = tensor.part_shape();
  // Aligned for any type.
  std::vector<int64_t> memory(static_cast<size_t>(shape.numel() * SizeOf(dtype) + 7) / 8);
  const Tensor part(memory.data(), dtype, shape);
  MEGATRON_RETURN_IF_ERROR(source.reader->Read(tensor.parameter, tensor.part_offset(), part));
  // Experts, which have parts, have no adapters.
  if (tensor.parts == 1) {
    MEGATRON_RETURN_IF_ERROR(
        AddAdapter(*source.reader, source.model.transformer.lora, tensor.parameter, part));
  }
  CopyToHf(tensor, SizeOf(dtype), static_cast<const char*>(part.raw()), &(*bytes)[0]);
  return absl::OkStatus();
}

absl::Status WriteWeights(FileSystem& fs, const std::string& directory, const Source& source,
                          const std::vector<HfTensor>& tensors, DType dtype) {
  std::map<std::string, const HfTensor*> by_name;
  std::vector<SafetensorsTensor> files;
  for (const HfTensor& tensor : tensors) {
    by_name[tensor.name] = &tensor;
    files.push_back({tensor.name, SafetensorsName(TypeOf(tensor, dtype)), tensor.shape});
  }
  const auto read = [&](const SafetensorsTensor& file, std::string* bytes) {
    bytes->assign(static_cast<size_t>(file.bytes()), '\0');
    const HfTensor& tensor = *by_name.at(file.name);
    return ReadTensor(source, tensor, TypeOf(tensor, dtype), bytes);
  };
  SafetensorsModelOptions options;
  options.max_file_bytes = source.options.max_file_bytes;
  if (!source.options.adapter) return WriteSafetensorsModel(fs, directory, files, options, read);
  SafetensorsHeader header;
  header.metadata = options.metadata;
  header.tensors = std::move(files);
  return WriteSafetensorsFile(fs, JoinPath(directory, kHfAdapterWeightsFileName), std::move(header),
                              read);
}

// Writes the adapters alone.
absl::StatusOr<std::string> WriteAdapter(FileSystem& fs, const Source& source,
                                         const std::string& directory) {
  const std::string& type = source.options.model_type;
  MEGATRON_RETURN_IF_ERROR(HfConfigJson(source.model, source.tokens, type).status());
  std::vector<HfTensor> tensors;
  for (HfAdapter& adapter : HfAdapters(source.model, type)) {
    tensors.push_back(std::move(adapter.a));
    tensors.push_back(std::move(adapter.b));
  }
  if (tensors.empty())
    return absl::InvalidArgumentError("--adapter: the model has no adapters (model.lora)");
  MEGATRON_ASSIGN_OR_RETURN(const DType dtype, WeightType(*source.reader, tensors));
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(directory, kHfAdapterConfigFileName),
                                               HfAdapterConfigJson(source.model, type)));
  MEGATRON_RETURN_IF_ERROR(WriteWeights(fs, directory, source, tensors, dtype));
  return std::string();
}

absl::StatusOr<std::string> WriteAll(FileSystem& fs, const Source& source,
                                     const std::string& directory) {
  if (source.options.adapter) return WriteAdapter(fs, source, directory);
  ModelOptions model = source.model;
  const std::string& type = source.options.model_type;
  MEGATRON_RETURN_IF_ERROR(HfConfigJson(model, source.tokens, type).status());
  const std::vector<HfTensor> tensors = HfTensors(model, type);
  MEGATRON_ASSIGN_OR_RETURN(model.transformer.dtype, WeightType(*source.reader, tensors));
  MEGATRON_ASSIGN_OR_RETURN(const std::string config, HfConfigJson(model, source.tokens, type));

  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(directory, kHfConfigFileName), config));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> copied,
                            CopyHfTokenizer(fs, source.tokenizer, directory));
  const bool kept =
      std::find(copied.begin(), copied.end(), kHfGenerationConfigFileName) != copied.end();
  if (!kept) {
    MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs,
                                                 JoinPath(directory, kHfGenerationConfigFileName),
                                                 HfGenerationConfigJson(model, source.tokens)));
  }
  MEGATRON_RETURN_IF_ERROR(WriteWeights(fs, directory, source, tensors, model.transformer.dtype));
  if (!copied.empty()) return std::string();
  return absl::StrCat("the tokenizer, ", source.tokenizer.type, ", has no files to copy");
}

// Removes what a killed export has left.
absl::Status RemoveLeftovers(FileSystem& fs, const std::string& temporary) {
  const absl::StatusOr<FileInfo> info = fs.Stat(temporary);
  if (!info.ok()) return absl::OkStatus();
  if (info->type == FileType::kDirectory) return fs.RemoveTree(temporary);
  return absl::InvalidArgumentError(
      absl::StrCat("'", temporary,
                   "' is no directory, and the export is made there; remove it, or name another "
                   "directory"));
}

}  // namespace

absl::StatusOr<std::string> ExportCheckpoint(FileSystem& fs, const std::string& directory,
                                             const HfExportOptions& options) {
  if (fs.Stat(options.output).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", options.output, "' is there already; remove it, or name another directory"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const Source source, OpenSource(fs, directory, options));
  const std::string temporary = options.output + ".tmp";
  MEGATRON_RETURN_IF_ERROR(RemoveLeftovers(fs, temporary));
  absl::StatusOr<std::string> note = WriteAll(fs, source, temporary);
  absl::Status status = note.status();
  if (status.ok()) status = fs.SyncDir(temporary);
  if (status.ok()) status = fs.Rename(temporary, options.output);
  if (!status.ok()) {
    fs.RemoveTree(temporary).IgnoreError();  // The first error is reported.
    return status;
  }
  MEGATRON_RETURN_IF_ERROR(fs.SyncDir(ParentPath(options.output)));
  return note;
}

}  // namespace megatron
