#include "megatron/train/rank/closing.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/checkpoint/names.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/train/metrics/log_line.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

bool Finished(const RunOptions& options, const RunEnd& end) {
  return end.iteration >= options.loop.train_iters || end.budget_spent;
}

std::string DescribeEnd(const RunOptions& options, const RunEnd& end) {
  std::string why;
  if (end.code == kExitSavedOnSignal) why = " by a signal";
  if (end.code == kExitTimeLimit) why = " by train.exit_duration_in_mins";
  if (end.code == kExitDone && !Finished(options, end)) {
    why = options.loop.phase_transitions.contains(end.iteration)
              ? " by train.phase_transition_iterations, to go on with the next data"
              : " by train.exit_interval";
  }
  if (end.budget_spent) why = " by its privacy budget";
  return absl::StrFormat("\n%s at iteration %d of %d%s, %s after the start",
                         Finished(options, end) ? "finished" : "stopped", end.iteration,
                         options.loop.train_iters, why, FormatTimeLeft(end.elapsed));
}

std::string DescribeFigures(const RunOptions& options, const RunEnd& end) {
  const RunTotals& totals = end.totals;
  std::vector<std::string> figures;
  const auto add_loss = [&](absl::string_view name, std::optional<double> loss) {
    if (loss) figures.push_back(absl::StrFormat("%s %.4g", name, *loss));
  };
  add_loss("last loss", totals.loss());
  if (totals.skipped_at_end() > 0) {
    figures.push_back(
        absl::StrCat("the last ", FormatQuantity(totals.skipped_at_end(), "step"), " skipped"));
  }
  add_loss("validation", totals.validation_loss());
  add_loss("test", totals.test_loss());
  if (const std::optional<double> speed = totals.tokens_per_second()) {
    figures.push_back(absl::StrCat(FormatCount(static_cast<int64_t>(*speed + 0.5)), " tokens/s"));
  }
  if (const std::optional<double> mfu = totals.mfu())
    figures.push_back(absl::StrFormat("MFU %.1f %%", 100 * *mfu));
  figures.push_back(absl::StrCat("peak memory ", FormatBytes(end.peak_bytes),
                                 options.num_ranks() > 1 ? " a rank" : ""));
  return absl::StrJoin(figures, ", ");
}

// Returns the command that tries the model on a text; nothing if there is none.
std::optional<std::string> TryCommand(const PretrainRun& run, const std::string& checkpoints) {
  const RunOptions& options = run.options();
  if (options.tokenizer.type == "NullTokenizer") return std::nullopt;
  const std::string& prompt = options.generation.prompt;
  const auto text = [&](const char* otherwise) { return prompt.empty() ? otherwise : prompt; };
  switch (options.trainer.model.kind) {
    case ModelKind::kGpt:
      return run.user.commands.Tool(
          "generate_text", {absl::StrCat("--prompt=", text("Once upon a time")), checkpoints});
    case ModelKind::kT5:
      return run.user.commands.Tool(
          "generate_text",
          {absl::StrCat("--prompt=", text("Once <extra_id_0> a time")), checkpoints});
    case ModelKind::kBert:
      return run.user.commands.Tool(
          "fill_mask", {absl::StrCat("--text=", text("Once upon a [MASK].")), checkpoints});
  }
  return std::nullopt;
}

// Returns whether there is an architecture of Hugging Face's for the model.
bool CanBeExported(const RunOptions& options) {
  return options.tokenizer.type != "NullTokenizer" &&
         HfConfigJson(options.trainer.model, HfTokens()).ok();
}

std::vector<std::string> NextCommands(const PretrainRun& run) {
  const RunOptions& options = run.options();
  const UserCommands& user = run.user.commands;
  const std::string checkpoints(absl::StripSuffix(user.PathFromHere(options.checkpoint.save), "/"));
  std::vector<std::string> commands;
  const auto add = [&](std::optional<std::string> command) {
    if (command) commands.push_back(*std::move(command));
  };
  add(TryCommand(run, checkpoints));
  if (!options.loop.metrics_file.empty()) {
    const std::string metrics = user.PathFromHere(options.loop.metrics_file);
    const bool beside = metrics == absl::StrCat(checkpoints, "/metrics.jsonl");
    add(user.Tool("report", {beside ? checkpoints : metrics}));
  }
  add(CanBeExported(options)
          ? user.Tool("export_hf", {absl::StrCat("--output=", checkpoints, "-hf"), checkpoints})
          : user.Tool("inspect_checkpoint", {checkpoints}));
  return commands;
}

}  // namespace

std::string FormatClosing(const PretrainRun& run, const RunEnd& end) {
  const RunOptions& options = run.options();
  if (end.totals.steps() == 0) return "";
  std::string text =
      absl::StrCat(DescribeEnd(options, end), "\n  ", DescribeFigures(options, end), "\n");
  if (options.checkpoint.save.empty()) return text;
  absl::StrAppend(&text, "  checkpoint ",
                  JoinPath(run.user.commands.PathFromHere(options.checkpoint.save),
                           DirectoryName(end.iteration)),
                  "\n");
  if (!Finished(options, end)) {
    absl::StrAppend(&text, "to continue",
                    run.user.has_launcher
                        ? ", start it again in the same way\n"
                        : absl::StrCat(":\n  ", run.user.commands.Self(run.user.arguments), "\n"));
    return text;
  }
  const std::vector<std::string> commands = NextCommands(run);
  if (!commands.empty()) absl::StrAppend(&text, "next:\n");
  for (const std::string& command : commands) absl::StrAppend(&text, "  ", command, "\n");
  return text;
}

}  // namespace megatron
