// Fills gaps in a text with a trained BERT:  fill_mask --text="by a [MASK] he saw the cat"
// CHECKPOINT_DIRECTORY

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/text/masked_text.h"
#include "megatron/train/trainer/inference_model.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, text, "", "A text in which [MASK] stands for each token that is missing.");
ABSL_FLAG(int32_t, top_k, 5, "How many tokens to show for each gap.");

namespace megatron {
namespace {

absl::Status FillMask(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one checkpoint directory");
  const int guesses = absl::GetFlag(FLAGS_top_k);
  if (guesses < 1) return absl::InvalidArgumentError("--top_k must be at least 1");
  MEGATRON_RETURN_IF_ERROR(ops::CheckCpu());
  MEGATRON_ASSIGN_OR_RETURN(
      const std::unique_ptr<InferenceModel> model,
      AsArgument(InferenceModel::Load(PosixFileSystem(), arguments[0], AvailableCores())));
  if (model->options().kind != ModelKind::kBert) {
    return absl::InvalidArgumentError(
        absl::StrCat(arguments[0], " is no BERT; generate_text continues text with a GPT"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const FilledText filled,
                            FillMasks(absl::GetFlag(FLAGS_text), guesses, model->tokenizer(),
                                      model->limits().max_context, &model->generator()),
                            _ << "in --text");
  std::printf("%s\n%s", filled.text.c_str(), FormatGuesses(filled).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  const int code = megatron::RunTool(
      argc, argv,
      "Fills gaps in a text with a trained BERT.\n\n  fill_mask --text=TEXT "
      "CHECKPOINT_DIRECTORY\n\n"
      "The directory is that of all checkpoints of a run (the latest is taken) or that of one "
      "iteration.",
      megatron::FillMask);
  // The data here is a checkpoint.
  return code == megatron::kExitData ? megatron::kExitCorruptCheckpoint : code;
}
