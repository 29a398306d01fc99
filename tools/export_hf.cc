// Writes a checkpoint as a Hugging Face model: config.json, model.safetensors and the tokenizer's
// files.  export_hf --output=DIRECTORY CHECKPOINT_DIRECTORY

#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/huggingface/export_checkpoint.h"
#include "megatron/train/trainer/training_checkpoint.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/interrupt.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, output, "",
          "The directory to write, which must not be there yet. It appears when all is in it.");
ABSL_FLAG(int64_t, max_file_bytes, 5'000'000'000,
          "The most tensor bytes in one .safetensors file; a larger model gets several, and an "
          "index.");
ABSL_FLAG(int64_t, vocab_size, 0,
          "The rows of the vocabulary to write. 0: as many as the tokenizer has tokens. A model "
          "that was imported with more rows than its tokenizer has tokens gets them back this "
          "way.");

ABSL_FLAG(
    std::string, model_type, "",
    "The model_type to write, where several families have the model: mistral in place of llama, "
    "for example. Empty: the first of docs/huggingface.md that has it.");
ABSL_FLAG(
    bool, adapter, false,
    "Writes the low-rank adapters of the model (model.lora) alone, as PEFT loads them. Without "
    "it, they are added to the weights beside them.");
ABSL_FLAG(bool, openai_gelu, false,
          "Of a BERT with gelu_tanh whose head has the exact GELU: writes a model whose head, too, "
          "has GELU by tanh (gelu_new), as all of theirs have the head's like the layers'. The two "
          "differ by less than 0.0005, and so scores change a little.");

namespace megatron {
namespace {

absl::Status Export(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one checkpoint directory");
  HfExportOptions options;
  options.output = absl::GetFlag(FLAGS_output);
  while (options.output.size() > 1 && options.output.back() == '/') options.output.pop_back();
  if (options.output.empty()) return absl::InvalidArgumentError("--output=DIRECTORY is needed");
  options.model_type = absl::GetFlag(FLAGS_model_type);
  options.max_file_bytes = absl::GetFlag(FLAGS_max_file_bytes);
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  options.adapter = absl::GetFlag(FLAGS_adapter);
  options.openai_gelu = absl::GetFlag(FLAGS_openai_gelu);
  options.keep_going = CheckInterrupted;
  if (options.max_file_bytes < 1 || options.vocab_size < 0) {
    return absl::InvalidArgumentError(
        "--max_file_bytes must be at least 1 and --vocab_size not negative");
  }
  FileSystem& fs = PosixFileSystem();
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(options.output));
  CatchInterrupts();
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found,
                            AsArgument(LocateCheckpoint(fs, arguments[0])));
  MEGATRON_ASSIGN_OR_RETURN(const std::string note, ExportCheckpoint(fs, found.directory, options));
  if (!note.empty()) std::cerr << "note: " << note << "\n";
  std::cout << "wrote " << options.output << " from " << found.directory << "\n";
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
