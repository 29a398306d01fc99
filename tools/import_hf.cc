// Makes a checkpoint of a Hugging Face model, from which pretrain_gpt can start and which
// generate_text can run.  import_hf --save=DIRECTORY HUGGING_FACE_DIRECTORY

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/train/huggingface/hf_tokenizer_files.h"
#include "megatron/train/trainer/run_identity.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/interrupt.h"
#include "tools/common/tool_main.h"
#include "tools/huggingface/hf_import_adapter.h"
#include "tools/huggingface/hf_import_config.h"
#include "tools/huggingface/hf_import_weights.h"

ABSL_FLAG(std::string, save, "",
          "The directory of checkpoints to write, as pretrain_gpt's checkpoint.load.");
ABSL_FLAG(int64_t, make_vocab_size_divisible_by, 128,
          "The vocabulary is padded with zero rows to a multiple of this.");
ABSL_FLAG(int64_t, seq_length, 0,
          "Tokens per sample in the configuration; 0: the model's positions, at most 2048.");
ABSL_FLAG(bool, no_tokenizer, false,
          "Leaves the tokenizer out: text is ids, with NullTokenizer, until the configuration is "
          "given another one.");
ABSL_FLAG(std::string, adapter, "",
          "A directory with PEFT's low-rank adapters of the model. They become its model.lora.");
ABSL_FLAG(bool, rotary_interleaved, false,
          "Reorders the channels of queries and keys for pairs (2i, 2i+1) in place of (i, i+d/2). "
          "The function stays the same.");

namespace megatron {
namespace {

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

struct TheirConfig {
  std::string model_type;
  ModelOptions model;
  HfTokens tokens;
};

absl::StatusOr<TheirConfig> ReadConfig(FileSystem& fs, const std::string& directory) {
  const std::string path = JoinPath(directory, kHfConfigFileName);
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            AsInput(ReadFileToString(fs, path, kMaxHfConfigBytes)));
  TheirConfig config;
  ModelOptions& model = config.model;
  MEGATRON_ASSIGN_OR_RETURN(model, ParseHfConfig(text), _.SetPrepend() << path << ": ");
  MEGATRON_ASSIGN_OR_RETURN(config.model_type, ParseHfModelType(text));
  MEGATRON_ASSIGN_OR_RETURN(config.tokens, ParseHfTokens(text, model.vocab_size));
  if (model.transformer.rotary && absl::GetFlag(FLAGS_rotary_interleaved))
    model.transformer.rotary_options.interleaved = true;
  model.padded_vocab_size =
      RoundUp(model.vocab_size, absl::GetFlag(FLAGS_make_vocab_size_divisible_by));
  return config;
}

// The name of a file that is in --save while an import writes there. What lies beside it is that of
// an import that was killed.
constexpr char kUnfinished[] = "import_hf.unfinished";

std::string TokenizerCopy() { return JoinPath(absl::GetFlag(FLAGS_save), "tokenizer"); }

// The configuration to train from the import.
std::string TrainingConfig() { return JoinPath(absl::GetFlag(FLAGS_save), "config.textproto"); }

absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) != nullptr) return std::string(resolved);
  return absl::ErrnoToStatus(errno, absl::StrCat("resolve '", path, "'"));
}

// Copies the tokenizer's files beside the checkpoint, after checking that they can be read and
// belong to the model. BERT's tokenizer here has [BOS] and [EOS] after the tokens of its file, in
// rows that pad the vocabulary.
absl::Status TakeTokenizer(FileSystem& fs, const std::string& directory, const ModelOptions& model,
                           ImportOptions* options) {
  if (absl::GetFlag(FLAGS_no_tokenizer)) return absl::OkStatus();
  const TokenizerOptions theirs = FindHfTokenizer(fs, directory);
  if (theirs.type.empty()) {
    std::cout << directory << " has no tokenizer that is known here: text is ids, with "
              << "NullTokenizer, until the configuration names one\n";
    return absl::OkStatus();
  }
  constexpr char kHint[] = "--no_tokenizer imports the model without it";
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            AsInput(CreateTokenizer(theirs)), _ << kHint);
  options->tokenizer_vocab_size = tokenizer->vocab_size();
  const int64_t rows =
      absl::StartsWith(theirs.type, "Bert") ? model.padded_vocab_size : model.vocab_size;
  if (tokenizer->vocab_size() > rows) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": the tokenizer has ",
                                                   tokenizer->vocab_size(),
                                                   " tokens and the model ", rows, "; ", kHint));
  }
  MEGATRON_RETURN_IF_ERROR(CopyHfTokenizerFiles(fs, directory, TokenizerCopy()));
  MEGATRON_ASSIGN_OR_RETURN(const std::string copy, AbsolutePath(TokenizerCopy()));
  options->tokenizer = FindHfTokenizer(fs, copy);
  return absl::OkStatus();
}

absl::Status Save(FileSystem& fs, const ImportedConfig& imported, const HfImportWeights& weights,
                  const HfImportAdapter& adapter) {
  CheckpointState state;
  state.run_id = RunId(imported.checkpoint_text);
  state.tensors = weights.Blocks();
  for (ShardedTensor& block : adapter.Blocks(weights.dtype()))
    state.tensors.push_back(std::move(block));
  state.ints = {{"iteration", 0}};
  state.strings = {
      {"config", imported.checkpoint_text},
      {"identity", absl::StrCat("imported from Hugging Face\n", imported.checkpoint_text)}};
  SaveOptions options;
  options.directory = absl::GetFlag(FLAGS_save);
  MEGATRON_RETURN_IF_ERROR(SaveCheckpoint(fs, options, state));
  const std::string config = TrainingConfig();
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, config, imported.training_text));
  std::cout << "wrote " << options.directory << ", and " << config << " to train from it\n";
  return absl::OkStatus();
}

absl::Status WriteAll(FileSystem& fs, const std::string& directory, const TheirConfig& theirs,
                      const HfImportWeights& weights, const HfImportAdapter& adapter) {
  const ModelOptions& model = theirs.model;
  ImportOptions options;
  options.tokens = theirs.tokens;
  options.seq_length = absl::GetFlag(FLAGS_seq_length);
  const std::string& save = absl::GetFlag(FLAGS_save);
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(save));
  MEGATRON_ASSIGN_OR_RETURN(options.save, AbsolutePath(save));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(save, kUnfinished), ""));
  MEGATRON_RETURN_IF_ERROR(fs.RemoveTree(TokenizerCopy()));
  MEGATRON_RETURN_IF_ERROR(TakeTokenizer(fs, directory, model, &options));
  MEGATRON_ASSIGN_OR_RETURN(const ImportedConfig imported, MakeImportedConfig(model, options));
  MEGATRON_RETURN_IF_ERROR(Save(fs, imported, weights, adapter));
  return fs.Remove(JoinPath(save, kUnfinished));
}

// Returns an error if there are files that would be overwritten, or be taken for files of this
// import. Those of an import that was killed may be overwritten. A checkpoint of a later iteration
// is none of its files.
absl::Status CheckSaveDirectory(FileSystem& fs, const std::string& save) {
  const bool unfinished = fs.Stat(JoinPath(save, kUnfinished)).ok();
  const std::string latest = JoinPath(save, kLatestFileName);
  if (fs.Stat(latest).ok() &&
      !(unfinished && absl::StripAsciiWhitespace(ReadFileToString(fs, latest).value_or("")) == "0"))
    return absl::InvalidArgumentError(absl::StrCat("'", save, "' holds a checkpoint already"));
  if (unfinished) return absl::OkStatus();
  for (const std::string& path : {TokenizerCopy(), TrainingConfig()}) {
    if (!fs.Stat(path).ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is there already; remove it, or give another --save"));
  }
  return absl::OkStatus();
}

absl::Status Import(const std::vector<std::string>& arguments) {
  MEGATRON_RETURN_IF_ERROR(CheckFlags(arguments));
  FileSystem& fs = PosixFileSystem();
  const std::string& directory = arguments[0];
  std::string save = absl::GetFlag(FLAGS_save);
  while (save.size() > 1 && save.back() == '/') save.pop_back();
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(ParentPath(save)));
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(save));
  MEGATRON_RETURN_IF_ERROR(CheckSaveDirectory(fs, save));
  CatchInterrupts();
  MEGATRON_ASSIGN_OR_RETURN(TheirConfig theirs, ReadConfig(fs, directory));
  MEGATRON_ASSIGN_OR_RETURN(
      const HfImportWeights weights,
      AsInput(HfImportWeights::Open(directory, theirs.model, theirs.model_type)));
  theirs.model.transformer.dtype = weights.dtype();
  HfImportAdapter adapter;
  if (const std::string path = absl::GetFlag(FLAGS_adapter); !path.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(
        adapter, AsInput(HfImportAdapter::Open(fs, path, theirs.model_type, &theirs.model)));
  }
  const bool is_new = !fs.Stat(save).ok();
  const absl::Status status = WriteAll(fs, directory, theirs, weights, adapter);
  if (status.ok() || fs.Stat(JoinPath(save, kLatestFileName)).ok()) return status;
  // The first error is reported.
  fs.RemoveTree(TokenizerCopy()).IgnoreError();
  fs.Remove(JoinPath(save, kUnfinished)).IgnoreError();
  if (is_new) fs.Remove(save).IgnoreError();
  return status;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Makes a checkpoint of a Hugging Face model; docs/huggingface.md says which.\n\n"
      "  import_hf --save=DIRECTORY HUGGING_FACE_DIRECTORY\n\n"
      "The directory holds config.json and model.safetensors, or several files and their index.",
      megatron::Import);
}
