#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/island_groups.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kSync = "diloco.sync_every";

void CheckRanksOfIslands(ConfigChecker& check) {
  constexpr absl::string_view kInstances = "parallel.num_distributed_optimizer_instances";
  const std::optional<RankGrids> grids = GridsOf(check);
  if (!grids.has_value() || grids->dense.optimizer_instances() == 1) return;
  const absl::Status islands = CheckIslands(grids->dense, grids->expert);
  if (!islands.ok()) {
    check.Error(kInstances, absl::StrCat("cannot be the number of islands of ", check.Named(kSync),
                                         ": ", islands.message()));
  }
}

// Fragments have their turns at equal distances, and what is sent for one arrives before the next
// one's turn.
void CheckFragments(ConfigChecker& check) {
  constexpr absl::string_view kFragments = "diloco.num_fragments";
  constexpr absl::string_view kDelay = "diloco.fragment_sync_delay";
  constexpr absl::string_view kLayers = "model.num_layers";
  if (!check.Usable({kFragments})) return;
  const config::DilocoConfig& diloco = check.resolved().diloco();
  const int64_t fragments = diloco.num_fragments();
  check.MustDivide(kFragments, kSync, fragments, diloco.sync_every());
  if (fragments > 1 && check.Usable({kLayers})) {
    check.MustNotExceed(kFragments, kLayers, static_cast<double>(fragments),
                        static_cast<double>(check.resolved().model().num_layers()));
  }
  const int64_t turn = diloco.sync_every() / fragments;
  if (check.Usable({kDelay}) && turn > 0 && diloco.fragment_sync_delay() >= turn) {
    check.Error(kDelay,
                absl::StrCat("must be less than ", turn, ", which is ", check.Named(kSync), " / ",
                             check.Named(kFragments), ", so that one fragment is sent at a time"));
  }
}

}  // namespace

void CheckDiloco(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  if (config.diloco().sync_every() == 0 || !check.Usable({kSync})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kSync, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  if (check.Usable({"train.train_iters"}) &&
      config.train().train_iters() % config.diloco().sync_every() != 0) {
    check.Error(kSync, absl::StrCat("must divide ", check.Named("train.train_iters"),
                                    ", so that the last step joins the islands"));
  }
  refuse(config.parallel().outer_dp_sharding_strategy() == config::OuterSharding::optim,
         "parallel.outer_dp_sharding_strategy", "each island has states of its own");
  refuse(config.optimizer().optimizer_cpu_offload(), "optimizer.optimizer_cpu_offload",
         "outer steps need the master weights in the memory of the device");
  const bool delayed = config.precision().fp8_format() != config::Fp8Format::none &&
                       config.precision().fp8_recipe() == config::Fp8Recipe::delayed;
  refuse(delayed, "precision.fp8_recipe",
         "scales of earlier steps are those of one model, and islands have several");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "it measures gradients of one model, and islands have several");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it chooses the number of islands by time, and their number changes results");
  CheckRanksOfIslands(check);
  CheckFragments(check);
}

}  // namespace megatron
