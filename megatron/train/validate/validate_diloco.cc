#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/island_groups.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/federated/privacy_accountant.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/router_balance.h"
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

// Outer steps that a server makes are of all parameters at once.
void CheckServer(ConfigChecker& check) {
  constexpr absl::string_view kAddress = "diloco.server_address";
  constexpr absl::string_view kSecret = "diloco.secret_file";
  constexpr absl::string_view kIsland = "diloco.island";
  constexpr absl::string_view kIslands = "diloco.num_islands";
  const config::PretrainConfig& config = check.resolved();
  const config::DilocoConfig& diloco = config.diloco();
  if (!diloco.has_server_address() || !check.Usable({kAddress})) return;
  const absl::StatusOr<Endpoint> server = Endpoint::Parse(diloco.server_address());
  if (!server.ok() || server->port == 0)
    check.Error(kAddress, "must be HOST:PORT of an outer_server, with a port from 1 to 65535");
  if (!diloco.has_secret_file()) {
    check.Error(kAddress, absl::StrCat("needs ", kSecret,
                                       ", the file with the secret that the server has, too"));
  }
  if (check.Usable({kIsland, kIslands}) && diloco.num_islands() > 0 &&
      diloco.island() >= diloco.num_islands()) {
    check.Error(kIsland, absl::StrCat("must be less than ", check.Named(kIslands)));
  }
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kAddress, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  refuse(config.parallel().num_distributed_optimizer_instances() > 1,
         "parallel.num_distributed_optimizer_instances", "the run is one island");
  constexpr absl::string_view kWhole = "the server's outer steps are of all parameters at once";
  refuse(diloco.num_fragments() > 1, "diloco.num_fragments", kWhole);
  refuse(diloco.fragment_sync_delay() > 0, "diloco.fragment_sync_delay",
         "steps wait for the server");
  refuse(diloco.fragment_update_alpha() > 0, "diloco.fragment_update_alpha",
         "an island goes on from the global copy");
  constexpr absl::string_view kCounts =
      "the biases count the tokens of all islands, and no counts are sent to the server";
  refuse(config.model().moe_router_enable_expert_bias(), "model.moe_router_enable_expert_bias",
         kCounts);
  refuse(HasRouterBalance(config.model(), config::RouterLoadBalancing::quantile_balancing),
         "model.moe_router_load_balancing_type", kCounts);
}

// Masked updates are integers of 32 bits, and a budget is for one round at least.
void CheckFederatedRounds(ConfigChecker& check) {
  constexpr absl::string_view kNorm = "federated.clip_norm";
  constexpr absl::string_view kEpsilon = "federated.max_epsilon";
  constexpr absl::string_view kType = "diloco.outer_gradient_dtype";
  const config::PretrainConfig& config = check.resolved();
  const config::FederatedConfig& federated = config.federated();
  if (!federated.has_clip_norm() || !check.Usable({kNorm})) return;
  if (check.Usable({kType}) &&
      config.diloco().outer_gradient_dtype() != config::OuterGradient::fp32) {
    check.Error(kNorm, absl::StrCat("cannot be used with ", check.Named(kType),
                                    ": masked updates are integers of 32 bits"));
  }
  if (!check.Usable({kEpsilon, "federated.noise_multiplier", "federated.delta"}) ||
      !federated.has_max_epsilon() || federated.noise_multiplier() == 0)
    return;
  const PrivacyBudget budget(federated.noise_multiplier(), federated.delta(),
                             federated.max_epsilon());
  const absl::Status round = budget.MayTakeRound();
  if (!round.ok()) check.Error(kEpsilon, absl::StrCat("allows no round: ", round.message()));
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
  CheckServer(check);
  CheckFederatedRounds(check);
}

}  // namespace megatron
