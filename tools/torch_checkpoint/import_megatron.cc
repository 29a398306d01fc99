// Makes a checkpoint of one of Megatron-LM (--ckpt-format torch_dist) or of a universal one of
// DeepSpeed.  import_megatron --save=DIRECTORY CHECKPOINT

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/mapped_file.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/run_options.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/import_text.h"
#include "tools/common/interrupt.h"
#include "tools/common/tool_main.h"
#include "tools/torch_checkpoint/dcp_weights.h"
#include "tools/torch_checkpoint/megatron_args.h"
#include "tools/torch_checkpoint/megatron_layout.h"
#include "tools/torch_checkpoint/optimizer_buffers.h"
#include "tools/torch_checkpoint/torch_file.h"
#include "tools/torch_checkpoint/torch_import.h"
#include "tools/torch_checkpoint/torch_progress.h"
#include "tools/torch_checkpoint/universal_weights.h"

ABSL_FLAG(std::string, save, "",
          "The directory of checkpoints to write, as pretrain_gpt's checkpoint.load.");
ABSL_FLAG(std::string, config, "",
          "A configuration, whose sections model and precision count in place of the checkpoint's "
          "own arguments; with --continue_run so do optimizer, train and, of data, how samples are "
          "made.");
ABSL_FLAG(
    bool, continue_run, false,
    "Takes Adam's moments and updates, the iteration, the consumed samples and the schedule's "
    "step too, so that the run goes on where it stopped.");

namespace megatron {
namespace {

constexpr char kWords[] = "embedding.word_embeddings.weight";
constexpr char kCommon[] = "common_state/shard_0_1";  // an object in place of common.pt

// What lies in the directory that the user named.
struct Checkpoint {
  std::string directory;
  std::string arguments;  // the file that has Megatron's arguments
  bool is_universal = false;
  std::unique_ptr<TorchWeights> weights;
  const DcpWeights* dcp = nullptr;  // the same as Megatron's format; null: it is another
};

// Megatron's directory of checkpoints names the last one.
absl::StatusOr<std::string> LastCheckpoint(FileSystem& fs, const std::string& directory) {
  constexpr int64_t kMostBytes = 64;
  const std::string tracker = JoinPath(directory, "latest_checkpointed_iteration.txt");
  if (!fs.Stat(tracker).ok()) return directory;
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, tracker, kMostBytes));
  const absl::string_view word = absl::StripAsciiWhitespace(text);
  int64_t iteration;
  if (word == "release") return JoinPath(directory, "release");
  if (absl::SimpleAtoi(word, &iteration) && iteration >= 0)
    return JoinPath(directory, absl::StrFormat("iter_%07d", iteration));
  return absl::DataLossError(absl::StrCat(tracker, " names no iteration"));
}

absl::StatusOr<Checkpoint> OpenCheckpoint(FileSystem& fs, const std::string& path) {
  Checkpoint checkpoint;
  MEGATRON_ASSIGN_OR_RETURN(checkpoint.directory, LastCheckpoint(fs, path));
  const std::string& directory = checkpoint.directory;
  if (fs.Stat(JoinPath(directory, ".metadata")).ok()) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<DcpWeights> weights, DcpWeights::Open(directory));
    checkpoint.dcp = weights.get();
    checkpoint.weights = std::move(weights);
    checkpoint.arguments = JoinPath(directory, "common.pt");
    return checkpoint;
  }
  if (fs.Stat(JoinPath(directory, "zero")).ok()) {
    MEGATRON_ASSIGN_OR_RETURN(checkpoint.weights, UniversalWeights::Open(directory));
    checkpoint.arguments = JoinPath(directory, "mp_rank_00_model_states.pt");
    checkpoint.is_universal = true;
    return checkpoint;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      directory,
      ": neither Megatron's torch_dist (.metadata) nor DeepSpeed's universal checkpoint "
      "(zero/)"));
}

// The file of torch.save that says what no tensor says: the arguments, and how far the run had
// come.
class CommonFile {
 public:
  static absl::StatusOr<CommonFile> Open(const Checkpoint& checkpoint) {
    CommonFile common;
    common.name_ = checkpoint.arguments;
    if (PosixFileSystem().Stat(checkpoint.arguments).ok()) {
      MEGATRON_ASSIGN_OR_RETURN(common.file_, MappedFile::Open(checkpoint.arguments));
      return common;
    }
    if (checkpoint.dcp != nullptr &&
        absl::c_linear_search(checkpoint.dcp->ObjectNames(), kCommon)) {
      common.name_ = absl::StrCat(checkpoint.directory, ", ", kCommon);
      MEGATRON_ASSIGN_OR_RETURN(common.bytes_, checkpoint.dcp->ReadObject(kCommon));
      return common;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.arguments,
        " is not there: --config=FILE says what the model is, and a run cannot go on"));
  }

  const std::string& name() const { return name_; }
  absl::StatusOr<TorchFile> Parse() const {
    absl::StatusOr<TorchFile> saved =
        TorchFile::Parse(file_.has_value() ? file_->data() : absl::string_view(bytes_));
    if (saved.ok()) return saved;
    return absl::Status(saved.status().code(), absl::StrCat(name_, ": ", saved.status().message()));
  }

 private:
  std::string name_;
  std::optional<MappedFile> file_;
  std::string bytes_;  // where there is no file of its own
};

// Returns the arguments' model, and the size of the vocabulary without padding; 0 where they do not
// say it.
struct TheirModel {
  config::PretrainConfig config;
  int64_t vocab_size = 0;
};

absl::StatusOr<TheirModel> ReadModel(const Checkpoint& checkpoint) {
  TheirModel model;
  if (const std::string given = absl::GetFlag(FLAGS_config); !given.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                              LoadConfig(given, {}, ConfigPurpose::kDryRun));
    *model.config.mutable_model() = loaded.config.model();
    *model.config.mutable_precision() = loaded.config.precision();
    if (absl::GetFlag(FLAGS_continue_run)) {
      *model.config.mutable_optimizer() = loaded.config.optimizer();
      *model.config.mutable_train() = loaded.config.train();
      CopySamples(loaded.config.data(), model.config.mutable_data());
    }
    model.vocab_size = loaded.config.data().vocab_size();
    return model;
  }
  MEGATRON_ASSIGN_OR_RETURN(const CommonFile common, CommonFile::Open(checkpoint));
  MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, common.Parse());
  const PickleValue* const arguments = saved.object().Get("args");
  if (arguments == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        common.name(), " has no arguments of Megatron: --config=FILE says what the model is"));
  }
  const bool goes_on = absl::GetFlag(FLAGS_continue_run);
  MEGATRON_ASSIGN_OR_RETURN(
      model.config, goes_on ? ConfigOfMegatronRun(*arguments) : ConfigOfMegatronArgs(*arguments),
      _.SetPrepend() << common.name() << ": ");
  model.vocab_size = std::max<int64_t>(MegatronNumber(*arguments, "vocab_size"), 0);
  return model;
}

// The rows of the embedding are the vocabulary. Text is ids until the user names a tokenizer.
absl::Status SetVocabulary(const Checkpoint& checkpoint, int64_t vocab_size,
                           config::PretrainConfig* config) {
  const int64_t usual = config->model().make_vocab_size_divisible_by();
  const std::vector<int64_t>* const words = checkpoint.weights->ShapeOf(kWords);
  if (words == nullptr || words->size() != 2 || (*words)[0] < 1)
    return absl::DataLossError(absl::StrCat(checkpoint.directory, " has no ", kWords));
  const int64_t rows = (*words)[0];
  if (vocab_size < 1 || vocab_size > rows) vocab_size = rows;
  // A universal checkpoint has no padding.
  const int64_t padded = checkpoint.is_universal ? RoundUp(vocab_size, usual) : rows;
  config->mutable_model()->set_make_vocab_size_divisible_by(
      RoundUp(vocab_size, usual) == padded ? usual : padded);
  config->mutable_data()->set_tokenizer_type(config::Tokenizer::NullTokenizer);
  config->mutable_data()->set_vocab_size(vocab_size);
  return absl::OkStatus();
}

// The configuration as text, and the model that it describes.
struct CheckedConfig {
  std::string text;
  std::string identity;  // of a run without data
  ModelOptions model;
  bool is_fp16 = false;
};

absl::StatusOr<CheckedConfig> Check(const std::string& text, int64_t vocab_size) {
  CheckedConfig checked;
  checked.text = text;
  MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                            LoadConfigFromString(text, "configuration of the imported model", {},
                                                 ConfigPurpose::kDryRun));
  checked.identity = RunIdentity(loaded.config, "none");
  checked.model = ToRunOptions(loaded.config, vocab_size).trainer.model;
  checked.is_fp16 = loaded.config.precision().fp16();
  return checked;
}

// Returns the objects that say how far optimizers had come: dp_reshardable has them in place of
// what common.pt says in other forms.
absl::StatusOr<std::vector<std::string>> ReadOptimizers(const DcpWeights& checkpoint) {
  std::vector<std::string> objects;
  for (const std::string& name : checkpoint.ObjectNames()) {
    if (!absl::StrContains(name, "optimizer.distributed.") ||
        (!absl::StrContains(name, ".optimizer/") && !absl::StrContains(name, ".grad_scaler/")))
      continue;
    MEGATRON_ASSIGN_OR_RETURN(std::string object, checkpoint.ReadObject(name));
    objects.push_back(std::move(object));
  }
  return objects;
}

// Reads how far the run had come.
absl::StatusOr<TorchProgress> ReadProgress(const Checkpoint& checkpoint, bool is_fp16) {
  MEGATRON_ASSIGN_OR_RETURN(const CommonFile common, CommonFile::Open(checkpoint));
  MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, common.Parse());
  std::vector<std::string> optimizers;
  if (checkpoint.dcp != nullptr) {
    MEGATRON_ASSIGN_OR_RETURN(optimizers, ReadOptimizers(*checkpoint.dcp));
  }
  const absl::StatusOr<TorchProgress> progress =
      checkpoint.is_universal
          ? UniversalProgress(saved, JoinPath(checkpoint.directory, "zero"), is_fp16)
          : MegatronProgress(saved, optimizers, is_fp16);
  if (progress.ok()) return progress;
  return absl::Status(progress.status().code(),
                      absl::StrCat(common.name(), " ", progress.status().message()));
}

// Returns the optimizer's states that are in buffers, and nothing where they are not.
absl::StatusOr<std::optional<OptimizerBuffers>> OpenBuffers(const Checkpoint& checkpoint,
                                                            const TorchImport& import,
                                                            const ModelOptions& model) {
  if (checkpoint.dcp == nullptr || !OptimizerBuffers::AreIn(*checkpoint.dcp)) return std::nullopt;
  MEGATRON_ASSIGN_OR_RETURN(const CommonFile common, CommonFile::Open(checkpoint));
  MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, common.Parse());
  const PickleValue* const arguments = saved.object().Get("args");
  if (arguments == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        common.name(),
        " has no arguments of Megatron, which say how ranks shared the optimizer's states"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const MegatronLayout layout, LayoutOfMegatronArgs(*arguments),
                            _.SetPrepend() << common.name() << ": ");
  MEGATRON_ASSIGN_OR_RETURN(OptimizerBuffers buffers,
                            OptimizerBuffers::Open(*checkpoint.dcp, model, layout, import.Blocks()),
                            _.SetPrepend() << checkpoint.directory << ": ");
  return std::optional<OptimizerBuffers>(std::move(buffers));
}

absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) != nullptr) return std::string(resolved);
  return absl::ErrnoToStatus(errno, absl::StrCat("resolve '", path, "'"));
}

// Makes the checkpoint one of a run that goes on: with the optimizer's states, and with how far it
// had come. `buffers` must live until it is saved.
absl::Status SetRun(const Checkpoint& checkpoint, const TorchImport& import,
                    const CheckedConfig& checked, const std::optional<OptimizerBuffers>& buffers,
                    CheckpointState* state) {
  if (buffers.has_value()) {
    state->tensors = import.BlocksWithStates(
        [&buffers](absl::string_view name, const std::string& parameter, const Tensor& out) {
          return buffers->Read(name, parameter, out);
        });
  } else {
    MEGATRON_ASSIGN_OR_RETURN(state->tensors, import.BlocksWithStates(),
                              _.SetPrepend() << checkpoint.directory << ": ");
  }
  MEGATRON_ASSIGN_OR_RETURN(const TorchProgress progress,
                            ReadProgress(checkpoint, checked.is_fp16));
  SetProgress(progress, state);
  state->strings["identity"] = checked.identity;
  state->strings[kSavedBy] = checkpoint.is_universal ? "DeepSpeed" : "Megatron-LM";
  return absl::OkStatus();
}

std::string ConfigPath(const std::string& save) { return JoinPath(save, "config.textproto"); }

// Returns an error if there is a configuration that another one would replace. One with the same
// text is what an import that was killed has left.
absl::Status CheckConfigPath(FileSystem& fs, const std::string& path, const std::string& text) {
  if (!fs.Stat(path).ok()) return absl::OkStatus();
  const absl::StatusOr<std::string> there =
      ReadFileToString(fs, path, static_cast<int64_t>(text.size()));
  if (there.ok() && *there == text) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", path,
                   "' is there already, with another text than this import's; move it, or give "
                   "another --save"));
}

absl::Status Save(FileSystem& fs, const std::string& save, const Checkpoint& checkpoint) {
  MEGATRON_ASSIGN_OR_RETURN(TheirModel theirs, ReadModel(checkpoint));
  config::PretrainConfig& config = theirs.config;
  MEGATRON_RETURN_IF_ERROR(SetVocabulary(checkpoint, theirs.vocab_size, &config));
  const bool goes_on = absl::GetFlag(FLAGS_continue_run);
  config.mutable_data()->set_mock_data(true);
  if (!goes_on) {
    config.mutable_optimizer()->set_lr(1e-5);
    config.mutable_train()->set_micro_batch_size(1);
    config.mutable_train()->set_train_iters(1000);
  }
  if (goes_on && config.optimizer().optimizer() != config::Optimizer::adam) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the run's optimizer is ", config::Optimizer::Type_Name(config.optimizer().optimizer()),
        "; only runs with adam go on, and --nocontinue_run takes the weights alone"));
  }
  const int64_t vocab_size = config.data().vocab_size();
  MEGATRON_ASSIGN_OR_RETURN(const CheckedConfig checked, Check(CompleteText(config), vocab_size));
  MEGATRON_ASSIGN_OR_RETURN(const TorchImport import,
                            TorchImport::Match(*checkpoint.weights, checked.model),
                            _.SetPrepend() << checkpoint.directory << ": ");
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(save));
  MEGATRON_ASSIGN_OR_RETURN(const std::string absolute, AbsolutePath(save));
  config.mutable_checkpoint()->set_load(absolute);
  config.mutable_checkpoint()->set_finetune(!goes_on);
  MEGATRON_ASSIGN_OR_RETURN(
      const CheckedConfig training,
      Check(goes_on ? CompleteText(config) : TextToTrainFrom(config), vocab_size));
  MEGATRON_RETURN_IF_ERROR(CheckConfigPath(fs, ConfigPath(save), training.text));
  CheckpointState state;
  state.run_id = RunId(checked.text);
  state.strings["config"] = checked.text;
  std::optional<OptimizerBuffers> buffers;
  if (goes_on) {
    MEGATRON_ASSIGN_OR_RETURN(buffers, OpenBuffers(checkpoint, import, checked.model));
    MEGATRON_RETURN_IF_ERROR(SetRun(checkpoint, import, checked, buffers, &state));
  } else {
    state.tensors = import.Blocks();
    state.ints = {{"iteration", 0}};
    state.strings["identity"] = absl::StrCat("imported from PyTorch\n", checked.text);
  }
  // The checkpoint comes last: it is what refuses another import, and one that is killed before its
  // end can be run again.
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, ConfigPath(save), training.text));
  SaveOptions options;
  options.directory = save;
  MEGATRON_RETURN_IF_ERROR(SaveCheckpoint(fs, options, state));
  std::cout << "wrote " << save << ", and " << ConfigPath(save) << " to "
            << (goes_on ? absl::StrCat("go on after iteration ", state.iteration)
                        : std::string("train from it"))
            << "\n";
  return absl::OkStatus();
}

absl::Status Import(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one checkpoint");
  std::string save = absl::GetFlag(FLAGS_save);
  if (save.empty()) return absl::InvalidArgumentError("--save=DIRECTORY is needed");
  while (save.size() > 1 && save.back() == '/') save.pop_back();
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(ParentPath(save)));
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(save));
  if (fs.Stat(JoinPath(save, kLatestFileName)).ok())
    return absl::InvalidArgumentError(absl::StrCat("'", save, "' holds a checkpoint already"));
  CatchInterrupts();
  MEGATRON_ASSIGN_OR_RETURN(const Checkpoint checkpoint, AsInput(OpenCheckpoint(fs, arguments[0])));
  const bool is_new = !fs.Stat(save).ok();
  const absl::Status status = Save(fs, save, checkpoint);
  if (!status.ok() && is_new && !fs.Stat(JoinPath(save, kLatestFileName)).ok()) {
    fs.Remove(ConfigPath(save)).IgnoreError();
    fs.Remove(save).IgnoreError();
  }
  return status;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Makes a checkpoint of one of Megatron-LM or DeepSpeed; docs/torch_checkpoints.md says which."
      "\n\n  import_megatron --save=DIRECTORY CHECKPOINT\n"
      "  import_megatron --continue_run --save=DIRECTORY CHECKPOINT\n\n"
      "CHECKPOINT is a directory of Megatron's --ckpt-format torch_dist, with or without its "
      "iteration, or one that DeepSpeed's ds_to_universal.py wrote.",
      megatron::Import);
}
