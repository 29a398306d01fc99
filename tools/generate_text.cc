// Continues a text with a trained GPT, or restores missing spans of a text with a trained T5:
//   generate_text --prompt="Once upon a time" CHECKPOINT_DIRECTORY

#include <cstdio>
#include <iostream>
#include <iterator>
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
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/text/context_warning.h"
#include "megatron/train/text/prompt_tokens.h"
#include "megatron/train/text/restored_text.h"
#include "megatron/train/text/text_stream.h"
#include "megatron/train/trainer/inference_model.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(
    std::string, prompt, "",
    "What to continue; - reads it from stdin; nothing starts a new document. Of a T5: what its "
    "encoder reads, in which <extra_id_0>, <extra_id_1>, ... stand for what is missing.");
ABSL_FLAG(int64_t, tokens_to_generate, 400,
          "The most tokens to write; the end of the document ends the text before.");
ABSL_FLAG(double, temperature, 1.0, "0 takes the likeliest token every time.");
ABSL_FLAG(int64_t, top_k, 0, "Draws among so many likeliest tokens; 0: among all.");
ABSL_FLAG(double, top_p, 0.0,
          "Draws among the likeliest tokens that have this much of the probability; 0: among all.");
ABSL_FLAG(uint64_t, seed, 1, "Equal seeds give equal texts.");

namespace megatron {
namespace {

absl::Status CheckFlags() {
  if (absl::GetFlag(FLAGS_tokens_to_generate) < 1)
    return absl::InvalidArgumentError("--tokens_to_generate must be at least 1");
  if (!(absl::GetFlag(FLAGS_temperature) >= 0))
    return absl::InvalidArgumentError("--temperature must not be negative");
  if (absl::GetFlag(FLAGS_top_k) < 0)
    return absl::InvalidArgumentError("--top_k must not be negative");
  const double top_p = absl::GetFlag(FLAGS_top_p);
  if (!(top_p >= 0 && top_p <= 1))
    return absl::InvalidArgumentError("--top_p must be between 0 and 1");
  return absl::OkStatus();
}

SamplingOptions Sampling() {
  SamplingOptions sampling;
  sampling.temperature = absl::GetFlag(FLAGS_temperature);
  sampling.top_k = absl::GetFlag(FLAGS_top_k);
  sampling.top_p = absl::GetFlag(FLAGS_top_p);
  sampling.seed = absl::GetFlag(FLAGS_seed);
  return sampling;
}

std::string Prompt() {
  const std::string prompt = absl::GetFlag(FLAGS_prompt);
  if (prompt != "-") return prompt;
  return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
}

// Prints what the decoder writes, and, if the prompt has gaps, the prompt with the gaps filled.
absl::Status Restore(InferenceModel* model) {
  RestoreOptions how;
  how.sampling = Sampling();
  how.tokens = absl::GetFlag(FLAGS_tokens_to_generate);
  how.limits = model->limits();
  MEGATRON_ASSIGN_OR_RETURN(
      const RestoredText restored,
      RestoreText(Prompt(), model->tokenizer(), how, &model->generator(), [] { return true; }),
      _ << "in the prompt");
  std::printf("%s\n", restored.written.c_str());
  if (!restored.spans.empty()) std::printf("%s\n", restored.text.c_str());
  std::fflush(stdout);
  if (restored.cut_off) std::fputs(CutOffWarning(how.limits.max_context).c_str(), stderr);
  return absl::OkStatus();
}

absl::Status Continue(InferenceModel* model) {
  const std::string prompt = Prompt();
  MEGATRON_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, PromptTokens(prompt, model->tokenizer()),
                            _ << "in the prompt");
  std::printf("%s", prompt.c_str());
  TextStream text(model->tokenizer(), tokens);
  const absl::Status generated = model->generator().Generate(
      Sampling(), absl::GetFlag(FLAGS_tokens_to_generate), &tokens, [&](int32_t token) {
        if (token == model->tokenizer().eod()) return false;
        std::printf("%s", text.Add(token).c_str());
        return std::fflush(stdout) == 0;
      });
  std::printf("\n");
  std::fflush(stdout);
  std::fputs(ContextWarning(tokens.size(), model->limits().max_context).c_str(), stderr);
  return WithExitCode(generated, kExitNumeric);
}

absl::Status Generate(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return absl::InvalidArgumentError("give one checkpoint directory");
  MEGATRON_RETURN_IF_ERROR(CheckFlags());
  MEGATRON_RETURN_IF_ERROR(ops::CheckCpu());
  MEGATRON_ASSIGN_OR_RETURN(
      const std::unique_ptr<InferenceModel> model,
      AsArgument(InferenceModel::Load(PosixFileSystem(), arguments[0], AvailableCores())));
  switch (model->options().kind) {
    case ModelKind::kGpt:
      return Continue(model.get());
    case ModelKind::kBert:
      return absl::InvalidArgumentError(
          absl::StrCat(arguments[0], " is a BERT; fill_mask fills gaps in text with it"));
    case ModelKind::kT5:
      return Restore(model.get());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  const int code = megatron::RunTool(
      argc, argv,
      "Continues text with a trained GPT, or restores what is missing of one with a trained T5.\n\n"
      "  generate_text [flags] CHECKPOINT_DIRECTORY\n\n"
      "The directory is that of all checkpoints of a run (the latest is taken) or that of one "
      "iteration.",
      megatron::Generate);
  // The data here is a checkpoint.
  return code == megatron::kExitData ? megatron::kExitCorruptCheckpoint : code;
}
