// Makes a checkpoint of a Hugging Face model, for pretrain_gpt to start from and generate_text to
// run.  import_hf --save=DIRECTORY HUGGING_FACE_DIRECTORY

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <set>
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
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/hf_config.h"
#include "megatron/models/hf_weights.h"
#include "megatron/train/run_options.h"
#include "tools/hf_import_config.h"
#include "tools/hf_tokenizer_files.h"
#include "tools/tool_main.h"

ABSL_FLAG(std::string, save, "",
          "The directory of checkpoints to write, as pretrain_gpt's checkpoint.load.");
ABSL_FLAG(int64_t, make_vocab_size_divisible_by, 128,
          "The vocabulary is padded with zero rows to a multiple of this.");
ABSL_FLAG(int64_t, seq_length, 0,
          "Tokens per sample in the configuration; 0: the model's positions, at most 2048.");
ABSL_FLAG(bool, no_tokenizer, false,
          "Leaves the tokenizer out: text is ids, with NullTokenizer, until the configuration is "
          "given another one.");
ABSL_FLAG(bool, rotary_interleaved, false,
          "Reorders the channels of queries and keys for pairs (2i, 2i+1) in place of (i, i+d/2). "
          "The function stays the same.");

namespace megatron {
namespace {

constexpr size_t kProblemsShown = 20;

// A weight, where the files have it.
struct Found {
  const HfTensor* tensor;
  const SafetensorsTensor* file;
};

std::string Describe(absl::string_view dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(dtype, " [", absl::StrJoin(shape, ", "), "]");
}

absl::Status Report(const std::string& directory, std::vector<std::string> problems) {
  if (problems.empty()) return absl::OkStatus();
  const size_t count = problems.size();
  if (count > kProblemsShown) {
    problems.resize(kProblemsShown);
    problems.push_back(absl::StrCat("and ", count - kProblemsShown, " more"));
  }
  return absl::DataLossError(
      absl::StrCat(directory, ": the files do not hold the model that config.json describes:\n  ",
                   absl::StrJoin(problems, "\n  ")));
}

// Finds every weight, and accounts for every tensor that is none.
absl::StatusOr<std::vector<Found>> Match(const std::string& directory,
                                         const std::vector<HfTensor>& tensors, bool tied,
                                         const SafetensorsModel& model) {
  std::vector<Found> found;
  std::vector<std::string> problems;
  std::set<absl::string_view> rest;
  for (absl::string_view name : model.Names()) rest.insert(name);
  for (const HfTensor& tensor : tensors) {
    const SafetensorsTensor* file = model.Find(tensor.name);
    const std::string other_name = HfNameWithoutHead(tensor);
    if (file == nullptr && !other_name.empty()) file = model.Find(other_name);
    if (file == nullptr) {
      problems.push_back(absl::StrCat("'", tensor.name, "' is missing"));
      continue;
    }
    rest.erase(file->name);
    const absl::string_view dtype = found.empty() ? file->dtype : found[0].file->dtype;
    if (file->shape != tensor.shape || file->dtype != dtype) {
      problems.push_back(absl::StrCat("'", file->name, "' is ", Describe(file->dtype, file->shape),
                                      " and not ", Describe(dtype, tensor.shape)));
    }
    found.push_back({&tensor, file});
  }
  for (absl::string_view name : rest) {
    if (IsHfBuffer(name)) continue;
    const bool copy = tied && name == kHfHeadName && !found.empty() &&
                      model.Bytes(*model.Find(name)) == model.Bytes(*found[0].file);
    if (!copy) problems.push_back(absl::StrCat("'", name, "' has no place in this model"));
  }
  MEGATRON_RETURN_IF_ERROR(Report(directory, std::move(problems)));
  return found;
}

absl::StatusOr<DType> WeightType(const std::string& directory, const std::vector<Found>& found) {
  DType dtype;
  if (FromSafetensorsName(found[0].file->dtype, &dtype) &&
      (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16)) {
    return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      directory, ": the weights are ", found[0].file->dtype, "; F32, BF16 and F16 can be trained"));
}

// The parameters, each in memory of its own; 16-bit ones with the fp32 masters that training
// starts from.
class Weights {
 public:
  Weights(const SafetensorsModel& model, const std::vector<Found>& found, DType dtype) {
    for (const Found& each : found) {
      const Tensor ours = Parameter(*each.tensor, dtype);
      CopyFromHf(*each.tensor, SizeOf(dtype), model.Bytes(*each.file).data(),
                 static_cast<char*>(ours.raw()));
    }
    if (dtype != DType::kFloat32) AddMasters();
  }

  std::vector<ShardedTensor> Blocks() const {
    std::vector<ShardedTensor> blocks;
    for (const auto& [name, tensor] : tensors_) {
      ShardedTensor block;
      block.name = name;
      block.tensor = tensor;
      block.global_shape = block.offset = tensor.shape();
      for (int d = 0; d < block.offset.rank(); ++d) block.offset[d] = 0;
      blocks.push_back(block);
    }
    return blocks;
  }

 private:
  // Zero at first.
  Tensor Allocate(const std::string& name, DType dtype, const Shape& shape) {
    memory_.emplace_back(static_cast<size_t>(shape.numel() * SizeOf(dtype) + 7) / 8);
    return tensors_[name] = Tensor(memory_.back().data(), dtype, shape);
  }

  Tensor Parameter(const HfTensor& tensor, DType dtype) {
    const auto known = tensors_.find(tensor.parameter);
    if (known != tensors_.end()) return known->second;
    return Allocate(tensor.parameter, dtype, tensor.parameter_shape);
  }

  void AddMasters() {
    const std::map<std::string, Tensor> parameters = tensors_;
    for (const auto& [name, tensor] : parameters) {
      const Tensor master = Allocate(absl::StrCat("optimizer.state.fp32_param.", name),
                                     DType::kFloat32, tensor.shape());
      float* const out = master.data<float>();
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        out[i] = tensor.dtype() == DType::kBFloat16 ? ToFloat(tensor.data<BFloat16>()[i])
                                                    : ToFloat(tensor.data<Float16>()[i]);
      }
    }
  }

  std::vector<std::vector<int64_t>> memory_;
  std::map<std::string, Tensor> tensors_;
};

absl::Status CheckFlags(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one Hugging Face directory");
  if (absl::GetFlag(FLAGS_save).empty()) {
    return absl::InvalidArgumentError("--save=DIRECTORY is needed");
  }
  if (absl::GetFlag(FLAGS_make_vocab_size_divisible_by) < 1 ||
      absl::GetFlag(FLAGS_seq_length) < 0) {
    return absl::InvalidArgumentError(
        "--make_vocab_size_divisible_by must be at least 1 and --seq_length not negative");
  }
  return absl::OkStatus();
}

absl::StatusOr<GptOptions> ReadConfig(FileSystem& fs, const std::string& directory) {
  const std::string path = JoinPath(directory, kHfConfigFileName);
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMaxHfConfigBytes));
  MEGATRON_ASSIGN_OR_RETURN(GptOptions model, ParseHfConfig(text), _.SetPrepend() << path << ": ");
  model.transformer.rotary_options.interleaved =
      model.transformer.rotary && absl::GetFlag(FLAGS_rotary_interleaved);
  const int64_t multiple = absl::GetFlag(FLAGS_make_vocab_size_divisible_by);
  model.padded_vocab_size = (model.vocab_size + multiple - 1) / multiple * multiple;
  return model;
}

// Copies the tokenizer's files beside the checkpoint, after finding out that they can be read and
// belong to a model with so many rows.
absl::Status TakeTokenizer(FileSystem& fs, const std::string& directory, int64_t rows,
                           ImportOptions* options) {
  if (absl::GetFlag(FLAGS_no_tokenizer)) return absl::OkStatus();
  const TokenizerOptions theirs = FindHfTokenizer(fs, directory);
  if (theirs.type.empty()) return absl::OkStatus();
  constexpr char kHint[] = "--no_tokenizer imports the model without it";
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, CreateTokenizer(theirs),
                            _ << kHint);
  options->tokenizer_vocab_size = tokenizer->vocab_size();
  if (tokenizer->vocab_size() > rows) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": the tokenizer has ",
                                                   tokenizer->vocab_size(),
                                                   " tokens and the model ", rows, "; ", kHint));
  }
  TokenizerOptions everything = theirs;
  everything.tokenizer_model = directory;
  everything.vocab_file = everything.merge_file = "";
  const std::string copy = JoinPath(options->save, "tokenizer");
  MEGATRON_RETURN_IF_ERROR(CopyHfTokenizer(fs, everything, copy).status());
  char resolved[PATH_MAX];
  if (realpath(copy.c_str(), resolved) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("resolve '", copy, "'"));
  }
  options->tokenizer = FindHfTokenizer(fs, resolved);
  return absl::OkStatus();
}

absl::Status Save(FileSystem& fs, const ImportedConfig& imported, const Weights& weights) {
  CheckpointState state;
  state.run_id = RunId(imported.checkpoint_text);
  state.tensors = weights.Blocks();
  state.ints = {{"iteration", 0}};
  state.strings = {
      {"config", imported.checkpoint_text},
      {"identity", absl::StrCat("imported from Hugging Face\n", imported.checkpoint_text)}};
  SaveOptions options;
  options.directory = absl::GetFlag(FLAGS_save);
  MEGATRON_RETURN_IF_ERROR(SaveCheckpoint(fs, options, state));
  const std::string config = JoinPath(options.directory, "config.textproto");
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, config, imported.training_text));
  std::cout << "wrote " << options.directory << ", and " << config << " to train from it\n";
  return absl::OkStatus();
}

absl::Status Import(const std::vector<std::string>& arguments) {
  MEGATRON_RETURN_IF_ERROR(CheckFlags(arguments));
  FileSystem& fs = PosixFileSystem();
  const std::string& directory = arguments[0];
  if (fs.Stat(JoinPath(absl::GetFlag(FLAGS_save), kLatestFileName)).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::GetFlag(FLAGS_save), "' holds a checkpoint already"));
  }
  MEGATRON_ASSIGN_OR_RETURN(GptOptions model, ReadConfig(fs, directory));
  MEGATRON_ASSIGN_OR_RETURN(const SafetensorsModel files, SafetensorsModel::Open(directory));
  const std::vector<HfTensor> tensors = HfTensors(model);
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Found> found,
                            Match(directory, tensors, model.tied_embeddings, files));
  MEGATRON_ASSIGN_OR_RETURN(model.transformer.dtype, WeightType(directory, found));
  ImportOptions options;
  options.seq_length = absl::GetFlag(FLAGS_seq_length);
  options.save = absl::GetFlag(FLAGS_save);
  MEGATRON_RETURN_IF_ERROR(TakeTokenizer(fs, directory, model.vocab_size, &options));
  MEGATRON_ASSIGN_OR_RETURN(const ImportedConfig imported, MakeImportedConfig(model, options));
  return Save(fs, imported, Weights(files, found, model.transformer.dtype));
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Makes a checkpoint of a Hugging Face model (gpt2, llama, mistral, qwen2).\n\n"
      "  import_hf --save=DIRECTORY HUGGING_FACE_DIRECTORY\n\n"
      "The directory holds config.json and model.safetensors, or several files and their index.",
      megatron::Import);
}
