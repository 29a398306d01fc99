#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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
    CheckSampleLength(check, kStep, random_ltd.seq_per_step());
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
  refuse(config.data().reset_position_ids() && config.parallel().context_parallel_size() > 1,
         "parallel.context_parallel_size",
         "with data.reset_position_ids no rank has the positions of the tokens that it gets");
  refuse(config.model().has_window_size(), "model.window_size",
         "tokens of a window that are dropped would bring others into it");
  refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
         "it is not available for the tokens that are kept");
  refuse(config.data().reset_attention_mask(), "data.reset_attention_mask",
         "tokens are chosen of whole samples, and a document might lose all of its own");
  refuse(config.data().sft(), "data.sft",
         "tokens are chosen of whole samples, and a conversation might lose all of its own");
  refuse(check.IsWritten("recompute.attention_chunk_tokens"), "recompute.attention_chunk_tokens",
         "it is not available for the tokens that are kept");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "it measures layers that see all tokens");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it predicts steps of layers that see all tokens");
}

}  // namespace megatron
