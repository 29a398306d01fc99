#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

constexpr char kServer[] = "diloco.server_address=a:1";
constexpr char kSecret[] = "diloco.secret_file=s";

TEST(ValidateDilocoTest, RefusesEachBrokenRuleByName) {
  ExpectOnlyError({
      {{"diloco.outer_lr=0.5"}, "has no effect with diloco.sync_every = 0 (default)"},
      {{"diloco.sync_every=5", "diloco.outer_momentum=0", "diloco.nesterov=false"},
       "has no effect with diloco.outer_momentum = 0"},
      {{"diloco.sync_every=4"}, "must divide train.train_iters = 10"},
      {{"diloco.num_fragments=2"}, "has no effect with diloco.sync_every = 0 (default)"},
      {{"diloco.sync_every=5", "diloco.num_fragments=2"},
       "must be divisible by diloco.num_fragments = 2"},
      {{"diloco.sync_every=10", "diloco.num_fragments=10"}, "must be at most model.num_layers = 4"},
      {{"diloco.sync_every=10", "diloco.num_fragments=2", "diloco.fragment_sync_delay=5"},
       "must be less than 5, which is diloco.sync_every = 10"},
      {{"diloco.sync_every=5", "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_size=2", "parallel.num_distributed_optimizer_instances=2",
        "parallel.outer_dp_sharding_strategy=optim"},
       "cannot be used with parallel.outer_dp_sharding_strategy = optim"},
      {{"diloco.sync_every=5", "parallel.use_distributed_optimizer=true",
        "parallel.context_parallel_size=2", "parallel.num_distributed_optimizer_instances=2"},
       "ranks 0 and 1 work on the same samples, and would be in islands 0 and 1"},
      {{"diloco.sync_every=5", "optimizer.optimizer_cpu_offload=true"},
       "cannot be used with optimizer.optimizer_cpu_offload = true"},
      {{"diloco.sync_every=5", "precision.bf16=true", "precision.fp8_format=hybrid",
        "precision.fp8_recipe=delayed"},
       "cannot be used with precision.fp8_recipe = delayed"},
      {{"diloco.sync_every=5", "logging.diagnostics_interval=5"},
       "cannot be used with logging.diagnostics_interval = 5"},
      {{"diloco.server_address=a:1"}, "has no effect with diloco.sync_every = 0 (default)"},
      {{"diloco.sync_every=5", "diloco.island=1"}, "has no effect without diloco.server_address"},
      {{"diloco.sync_every=5", "diloco.server_address=a", "diloco.secret_file=s"},
       "must be HOST:PORT of an outer_server"},
      {{"diloco.sync_every=5", "diloco.server_address=a:1"}, "needs diloco.secret_file"},
      {{"diloco.sync_every=5", "diloco.server_address=a:1", "diloco.secret_file=s",
        "diloco.island=2", "diloco.num_islands=2"},
       "must be less than diloco.num_islands = 2"},
      {{"diloco.sync_every=10", "diloco.server_address=a:1", "diloco.secret_file=s",
        "diloco.num_fragments=2"},
       "cannot be used with diloco.num_fragments = 2"},
      {{"diloco.sync_every=5", "diloco.server_address=a:1", "diloco.secret_file=s",
        "parallel.use_distributed_optimizer=true", "parallel.data_parallel_size=2",
        "parallel.num_distributed_optimizer_instances=2"},
       "the run is one island"},
      {{"diloco.sync_every=5", "federated.clip_norm=1"},
       "has no effect without diloco.server_address"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.noise_multiplier=1"},
       "has no effect without federated.clip_norm"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.clip_norm=1", "federated.delta=1e-6"},
       "has no effect with federated.noise_multiplier = 0"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.clip_norm=1",
        "diloco.outer_gradient_dtype=int8"},
       "cannot be used with diloco.outer_gradient_dtype = int8"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.clip_norm=1",
        "federated.noise_multiplier=1", "federated.max_epsilon=4.7"},
       "one round more would make it 4.729"},
      {{"diloco.sync_every=5", "train.auto_layout=true"},
       "cannot be used with train.auto_layout = true"},
      {{"optimizer.store_param_remainders=true", "precision.bf16=true", "diloco.sync_every=5"},
       "cannot be used with diloco.sync_every = 5"},
  });
}

}  // namespace
}  // namespace megatron
