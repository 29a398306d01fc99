#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

void CheckRandomLtd(ConfigChecker& check) {
  constexpr char kSection[] = "data.random_ltd";
  constexpr char kMin[] = "data.random_ltd.min_value", kMax[] = "data.random_ltd.max_value";
  constexpr char kStep[] = "data.random_ltd.seq_per_step";
  const config::PretrainConfig& config = check.resolved();
  if (!config.data().has_random_ltd()) return;
  const config::RandomLtdConfig& random_ltd = config.data().random_ltd();
  if (check.Usable({kMin, kMax, kStep})) {
    if (random_ltd.min_value() >= random_ltd.max_value())
      check.Error(kMin, absl::StrCat("must be less than ", check.Named(kMax)));
    check.MustDivide(kStep, kMin, random_ltd.seq_per_step(), random_ltd.min_value());
    check.MustDivide(kStep, kMax, random_ltd.seq_per_step(), random_ltd.max_value());
  }
  check.MustNotExceed(kMax, "model.seq_length", static_cast<double>(random_ltd.max_value()),
                      static_cast<double>(config.model().seq_length()));
  if (check.Usable({"model.num_layers"}) && config.model().num_layers() < 3) {
    check.MessageError(kSection,
                       absl::StrCat("has no effect with ", check.Named("model.num_layers"),
                                    ": the first and the last layer see all tokens"));
  }
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.MessageError(kSection,
                         absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
    }
  };
  const config::ParallelConfig& parallel = config.parallel();
  refuse(parallel.sequence_parallel() && parallel.tensor_model_parallel_size() > 1,
         "parallel.sequence_parallel", "no rank has all rows that tokens are chosen from");
  refuse(parallel.context_parallel_size() > 1, "parallel.context_parallel_size",
         "no rank has all tokens that some are chosen from");
  refuse(config.model().num_experts() > 0, "model.num_experts",
         "experts' losses and capacities are those of all tokens");
  refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
         "it is not available for the tokens that are kept");
  refuse(config.data().reset_attention_mask(), "data.reset_attention_mask",
         "tokens are chosen of whole samples, and a document might lose all of its own");
  refuse(check.IsWritten("recompute.attention_chunk_tokens"), "recompute.attention_chunk_tokens",
         "it is not available for the tokens that are kept");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "it measures layers that see all tokens");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it predicts steps of layers that see all tokens");
  const config::SystemConfig& system = config.system();
  if (system.has_device() ? system.device() == config::Device::cuda : CudaDeviceCount() > 0) {
    check.MessageError(kSection,
                       "has no kernels that choose tokens on GPUs; it runs with system.device: "
                       "cpu");
  }
}

}  // namespace megatron
