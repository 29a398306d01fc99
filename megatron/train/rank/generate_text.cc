#include "megatron/train/rank/generate_text.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "megatron/models/text_generator.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/recipes/recipes.h"
#include "megatron/train/trainer/consensus.h"

namespace megatron {
namespace {

// Returns the text with control characters as \xNN. An untrained model of bytes makes them, and
// they could change the state of a terminal.
std::string ForTerminal(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    const bool control = absl::ascii_iscntrl(static_cast<unsigned char>(c));
    if (control && c != '\n' && c != '\t') {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      shown += c;
    }
  }
  return shown;
}

}  // namespace

void GenerateText(const PretrainRun& run, const ProcessGroup& world, MemoryLedger* ledger,
                  Trainer* trainer, RankConsole* console, RankProgress* progress) {
  progress->Enter(Phase::kGenerate);
  const TrainerOptions& options = run.options().trainer;
  const GenerationOptions& generation = run.options().generation;
  Consensus consensus(world);
  TextGenerator model = trainer->MakeGenerator(ledger);
  PromptTask task;
  task.prompt = generation.prompt;
  task.tokens = generation.tokens;
  task.sampling = generation.sampling;
  task.limits = options.generation_limits();
  task.tokenizer = run.tokenizer.get();
  task.model = &model;
  task.print = [&](const std::string& text) { console->Print(ForTerminal(text)); };
  task.begin_token = [&] { progress->Enter(Phase::kGenerate); };
  task.go_on = [&] { return !consensus.Any(StopSignal() != 0) && world.status().ok(); };
  RecipeOf(options.model.kind).FinishRun(task);
}

}  // namespace megatron
