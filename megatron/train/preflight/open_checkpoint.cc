#include "megatron/train/preflight/open_checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/train/config/batch_sizes.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

// Puts the field that gives the directory before an error, unless nothing was found: NothingToLoad
// names it.
absl::StatusOr<FoundCheckpoint> WithField(absl::string_view field,
                                          absl::StatusOr<FoundCheckpoint> found) {
  if (absl::IsNotFound(found.status())) return found;
  MEGATRON_RETURN_IF_ERROR(found.status(), _.SetPrepend() << field << ": ");
  return found;
}

absl::StatusOr<FoundCheckpoint> ChooseCheckpoint(FileSystem& fs, const CheckpointOptions& options,
                                                 StartingPoint* start) {
  start->is_own = true;
  if (!options.save.empty() && options.save != options.load) {
    absl::StatusOr<FoundCheckpoint> own = FindLatestCheckpoint(fs, options.save);
    if (own.ok() || own.status().code() != absl::StatusCode::kNotFound)
      return WithField("checkpoint.save", std::move(own));
  }
  if (options.load.empty()) return absl::NotFoundError("no checkpoint is asked for");
  start->is_own = options.load == options.save;
  if (options.no_load_optim && !start->is_own) start->restore = Restore::kWithoutOptimizer;
  if (options.finetune) start->restore = Restore::kWeights;
  if (options.upcycles) start->restore = Restore::kDenseWeights;
  return WithField("checkpoint.load", LocateCheckpoint(fs, options.load));
}

absl::Status NothingToLoad(const CheckpointOptions& options, const absl::Status& status) {
  return WithExitCode(absl::NotFoundError(absl::StrCat(
                          "checkpoint.load = ", options.load,
                          ": there is no checkpoint; unset it to start from the beginning (",
                          status.message(), ")")),
                      kExitConfig);
}

bool HaveSameBatches(const config::PretrainConfig& a, const config::PretrainConfig& b) {
  if (a.train().global_batch_size() != b.train().global_batch_size()) return false;
  const auto one = BatchSizeSteps(a.train(), a.model().seq_length()),
             other = BatchSizeSteps(b.train(), b.model().seq_length());
  return one.ok() && other.ok() &&
         absl::c_equal(*one, *other, [](const BatchSizeStep& x, const BatchSizeStep& y) {
           return x.samples == y.samples && x.size == y.size;
         });
}

bool HasShardedData(const config::PretrainConfig& config) {
  return config.data().dataloader_type() == config::DataloaderType::cyclic &&
         config.data().data_sharding();
}

// The sizes that Megatron's order of samples depends on (data/sample_order.h).
std::string ShardingSizes(const config::PretrainConfig& config) {
  return absl::StrCat("parallel.data_parallel_size = ", config.parallel().data_parallel_size(),
                      " and train.micro_batch_size = ", config.train().micro_batch_size());
}

// Returns how many samples there have been after so many iterations more.
int64_t SamplesAfter(const std::vector<BatchSizeStep>& steps, int64_t last_size, int64_t taken,
                     int64_t iterations) {
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const int64_t left = std::max<int64_t>(steps[i + 1].samples - taken, 0);
    const int64_t count = std::min((left + steps[i].size - 1) / steps[i].size, iterations);
    taken += count * steps[i].size;
    iterations -= count;
  }
  return taken + iterations * last_size;
}

// Returns the most iterations, up to `most`, after which there have been no more than `samples`.
int64_t IterationsOf(const std::vector<BatchSizeStep>& steps, int64_t last_size, int64_t taken,
                     int64_t samples, int64_t most) {
  int64_t enough = 0;
  for (int64_t too_many = most + 1; enough + 1 < too_many;) {
    const int64_t middle = enough + (too_many - enough) / 2;
    (SamplesAfter(steps, last_size, taken, middle) <= samples ? enough : too_many) = middle;
  }
  return enough;
}

// The samples that have been taken are known by their number alone.
absl::Status CheckSharding(const CheckpointReader& checkpoint, const config::PretrainConfig& saved,
                           const config::PretrainConfig& config) {
  if (!HasShardedData(saved) || !HasShardedData(config)) return absl::OkStatus();
  const std::string before = ShardingSizes(saved), now = ShardingSizes(config);
  if (before == now) return absl::OkStatus();
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          "data.data_sharding: ", checkpoint.directory(), " took samples in the order of ", before,
          "; that of ", now,
          " would repeat some of an epoch's samples and leave out others: continue with the sizes "
          "of the checkpoint")),
      kExitConfig);
}

}  // namespace

absl::Status CheckBatches(const CheckpointReader& checkpoint, const config::PretrainConfig& config,
                          const ConfigLocations& written) {
  const ParsedConfig saved = ParseConfig(checkpoint.String("config").value_or(""), "checkpoint");
  const int64_t before = saved.config.train().global_batch_size(),
                now = config.train().global_batch_size();
  if (!saved.errors.empty() || before == 0) return absl::OkStatus();
  const bool is_written = written.IsSet("train.global_batch_size") ||
                          written.IsSet("train.step_batch_size_schedule") ||
                          config.elasticity().enabled();
  if (before != now && !is_written) {
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "train.global_batch_size was ", before, " in ", checkpoint.directory(),
            ", and would be ", now,
            " now, because it follows from the number of ranks: write it, or the section "
            "elasticity, and the run goes on as it was")),
        kExitConfig);
  }
  if (config.train().has_train_samples() && !HaveSameBatches(saved.config, config)) {
    return WithExitCode(
        absl::FailedPreconditionError(
            absl::StrCat("train.train_samples counts iterations of one list of batch sizes, and ",
                         checkpoint.directory(),
                         " was trained with another: give the run's length as "
                         "train.train_iters")),
        kExitConfig);
  }
  return CheckSharding(checkpoint, saved.config, config);
}

absl::Status CheckSamplesLeft(const CheckpointReader& checkpoint,
                              const config::PretrainConfig& config, int64_t num_samples,
                              absl::FunctionRef<void(const std::string&)> warn) {
  const config::TrainConfig& training = config.train();
  // Each phase has data for all iterations, and begins with the first sample.
  if (training.phase_transition_iterations_size() > 0) return absl::OkStatus();
  const auto iteration = checkpoint.Int("iteration");
  const auto taken = checkpoint.Int("consumed_train_samples");
  const auto steps = BatchSizeSteps(training, config.model().seq_length());
  // Restoring it says what it lacks.
  if (!iteration.ok() || !taken.ok() || !steps.ok()) return absl::OkStatus();
  const int64_t iterations = training.train_iters() - *iteration;
  if (iterations <= 0) return absl::OkStatus();
  const int64_t batch = training.global_batch_size();
  const int64_t needed = SamplesAfter(*steps, batch, *taken, iterations);
  if (needed <= num_samples) return absl::OkStatus();
  const std::string what =
      absl::StrCat("train.global_batch_size: ", checkpoint.directory(), " has taken ", *taken,
                   " samples, and the iterations from ", *iteration + 1, " to ",
                   training.train_iters(), " take ", needed - *taken,
                   "; the training data that are drawn for their batches end after ", num_samples);
  const int64_t left = IterationsOf(*steps, batch, *taken, num_samples, iterations);
  if (left > 0) {
    const int64_t last = *iteration + left, missing = needed - num_samples;
    warn(absl::StrCat(what, ", so that training ends with an error after iteration ", last,
                      ": with train.exit_interval = ", last,
                      " it saves there and ends; continue with the batches of the checkpoint, or "
                      "with train.train_iters = ",
                      training.train_iters() + (missing + batch - 1) / batch,
                      ", for which more are drawn, to go further"));
    return absl::OkStatus();
  }
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          what,
          ": continue with the batches of the checkpoint, or with a larger train.train_iters, for "
          "which more are drawn, or begin another run with its weights (checkpoint.finetune)")),
      kExitConfig);
}

absl::StatusOr<StartingPoint> OpenCheckpoint(FileSystem& fs, const CheckpointOptions& options,
                                             absl::FunctionRef<void(const std::string&)> warn) {
  StartingPoint start;
  const absl::StatusOr<FoundCheckpoint> found = ChooseCheckpoint(fs, options, &start);
  if (found.status().code() == absl::StatusCode::kNotFound) {
    // A run that saves where it loads from begins there, too.
    if (options.load == options.save) return start;
    return NothingToLoad(options, found.status());
  }
  if (!found.ok()) {
    const bool damaged = found.status().code() == absl::StatusCode::kDataLoss;
    const std::string remedy =
        damaged && start.is_own
            ? absl::StrCat("; to begin anew move '", options.save, "' away, or what is in it")
            : "";
    MEGATRON_RETURN_IF_ERROR(
        WithExitCode(found.status(), damaged ? kExitCorruptCheckpoint : kExitIo), _ << remedy);
  }
  for (const std::string& warning : found->warnings) warn(warning);
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs, found->directory);
  if (!reader.ok()) return WithExitCode(reader.status(), kExitCorruptCheckpoint);
  start.checkpoint = std::make_unique<CheckpointReader>(*std::move(reader));
  return start;
}

}  // namespace megatron
