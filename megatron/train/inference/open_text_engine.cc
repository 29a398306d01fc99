#include "megatron/train/inference/open_text_engine.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/train/inference/batch_memory.h"
#include "megatron/train/inference/inference_stage.h"
#include "megatron/train/preflight/check_memory.h"

namespace megatron {
namespace {

constexpr int kMostRanks = 64;

absl::Status CheckLayout(const ModelOptions& model, const TextEngineOptions& options) {
  const int64_t tensor = options.tensor_parallel, stages = options.pipeline_parallel;
  const TransformerOptions& layer = model.transformer;
  if (tensor < 1 || stages < 1 || tensor * stages > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat(tensor, " tensor-parallel x ", stages,
                                                   " pipeline-parallel ranks: there must be 1 to ",
                                                   kMostRanks));
  }
  const auto divides = [&](int64_t count, const char* what) {
    if (count % tensor == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the model's ", count, " ", what,
                                                   " cannot be cut over ", tensor,
                                                   " tensor-parallel ranks"));
  };
  MEGATRON_RETURN_IF_ERROR(divides(layer.num_attention_heads, "attention heads"));
  if (tensor < layer.num_query_groups) {
    MEGATRON_RETURN_IF_ERROR(divides(layer.num_query_groups, "query groups"));
  } else if (tensor % layer.num_query_groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor, " tensor-parallel ranks cannot share the model's ",
                     layer.num_query_groups, " query groups"));
  }
  MEGATRON_RETURN_IF_ERROR(divides(layer.ffn_hidden_size, "columns of its MLP"));
  if (layer.moe.num_experts > 0) {
    MEGATRON_RETURN_IF_ERROR(divides(layer.moe.ffn_hidden_size, "columns of its experts"));
    MEGATRON_RETURN_IF_ERROR(divides(layer.moe.shared_ffn_hidden_size, "columns of its expert"));
  }
  for (const HybridLayer kind : layer.hybrid_layers) {
    if (kind == HybridLayer::kMamba) {
      MEGATRON_RETURN_IF_ERROR(divides(layer.mamba.num_groups, "groups of Mamba-2 heads"));
    } else if (kind == HybridLayer::kDelta) {
      MEGATRON_RETURN_IF_ERROR(divides(layer.delta.num_key_heads, "key heads of gated delta nets"));
    }
  }
  MEGATRON_RETURN_IF_ERROR(divides(model.padded_vocab_size, "rows of its vocabulary"));
  if (stages > layer.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("the model's ", layer.num_layers,
                                                   " layers cannot be cut into ", stages,
                                                   " pipeline stages"));
  }
  return absl::OkStatus();
}

// Changes what the header says, and what training alone uses.
ModelOptions ForInference(ModelOptions model) {
  TransformerOptions& layer = model.transformer;
  layer.float8 = Float8Options();
  layer.moe.capacity_factor.reset();
  layer.moe.pad_to_capacity = false;
  layer.sequence_parallel = layer.tp_comm_overlap = false;
  layer.recompute = RecomputeOptions();
  model.num_offloaded_layers = 0;
  return model;
}

struct RankGrids {
  RankGrid dense, expert;
};

absl::StatusOr<RankGrids> GridsOf(const TextEngineOptions& options) {
  ParallelSizes sizes;
  sizes.tensor = options.tensor_parallel;
  sizes.pipeline = options.pipeline_parallel;
  const int ranks = options.tensor_parallel * options.pipeline_parallel;
  RankGrids grids;
  MEGATRON_ASSIGN_OR_RETURN(grids.dense, RankGrid::Create(sizes, ranks));
  MEGATRON_ASSIGN_OR_RETURN(grids.expert, RankGrid::CreateExpert(sizes, ranks));
  return grids;
}

// The engine of `batch` requests.
BatchedTextEngineOptions EngineOptions(const SavedModel& saved, const TextEngineOptions& options,
                                       int batch) {
  BatchedTextEngineOptions engine;
  engine.vocab_size = saved.limits.vocab_size;
  engine.max_context = options.max_context > 0 ? options.max_context : saved.limits.max_context;
  engine.max_batch = batch;
  engine.max_queue = options.max_queue;
  engine.max_step_tokens = std::max<int64_t>(options.max_step_tokens, batch);
  engine.max_step_logits = std::max<int64_t>(options.max_step_logits, batch);
  return engine;
}

// Returns the bytes that all ranks will take.
int64_t PlannedBytes(const ModelOptions& model, const RankGrids& grids,
                     const CachedModelLimits& limits) {
  int64_t bytes = 0;
  const auto measure = [&](const GeneratorSetup& setup) {
    CachedModel cached(setup, limits, Stream::Meta(), nullptr);
    cached.Measure();
    bytes += cached.bytes();
  };
  for (int rank = 0; rank < grids.dense.world_size(); ++rank) {
    const ProcessGroups groups = GroupsForPlanning(grids.dense, grids.expert, rank);
    const int64_t of_stage = InferenceStage::PlannedBytes(model, groups, measure);
    bytes += of_stage;
  }
  return bytes;
}

}  // namespace

struct ServedModel::RankPart {
  explicit RankPart(int num_threads) : pool(num_threads) {}

  ThreadPool pool;
  MemoryLedger ledger;
  std::unique_ptr<InferenceStage> stage;
  std::unique_ptr<CachedModel> model;
};

ServedModel::ServedModel() = default;

ServedModel::~ServedModel() {
  if (engine_ != nullptr) engine_->Stop();
  if (ranks_.joinable()) ranks_.join();
}

int64_t ServedModel::SumOf(const std::string& name) const {
  int64_t sum = 0;
  for (const auto& part : parts_) {
    const std::map<std::string, int64_t> held = part->ledger.AtPeak();
    const auto found = held.find(name);
    if (found != held.end()) sum += found->second;
  }
  return sum;
}

int64_t ServedModel::weight_bytes() const { return SumOf("weights"); }

int64_t ServedModel::cache_bytes() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->model->cache_bytes();
  return sum;
}

int64_t ServedModel::total_bytes() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->ledger.current_bytes();
  return sum;
}

absl::Status ServedModel::RunRank(FileSystem& fs, const TextEngineOptions& options, int rank,
                                  const ProcessGroup& world) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrids grids, GridsOf(options));
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                            MakeGroups(grids.dense, grids.expert, world.communicator()));
  RankPart& part = *parts_[rank];
  const CachedModelLimits limits = BatchedTextEngine::ModelLimits(engine_options_);
  part.stage = std::make_unique<InferenceStage>(
      saved_.options, groups,
      [&](const GeneratorSetup& setup) {
        CachedModel(setup, limits, Stream::Meta(), nullptr).Measure();
      },
      &part.ledger);
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                            CheckpointReader::Open(fs, saved_.directory));
  MEGATRON_RETURN_IF_ERROR(part.stage->LoadWeights(reader),
                           _ << "while loading weights from " << saved_.directory);
  part.model = std::make_unique<CachedModel>(part.stage->setup(), limits, Stream::Cpu(&part.pool),
                                             &part.ledger);
  world.Barrier(Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(world.status());
  if (rank > 0) return FollowTextEngine(part.model.get(), world);
  engine_ = std::make_unique<BatchedTextEngine>(engine_options_, part.model.get(), world);
  started_.set_value(absl::OkStatus());
  return engine_->Run();
}

absl::Status ServedModel::Start(FileSystem& fs, const TextEngineOptions& options) {
  const int ranks = options.tensor_parallel * options.pipeline_parallel;
  const int threads = options.num_threads > 0 ? options.num_threads : AvailableCores();
  for (int rank = 0; rank < ranks; ++rank)
    parts_.push_back(std::make_unique<RankPart>(std::max(1, threads / ranks)));
  ranks_ = std::thread([this, &fs, options, ranks] {
    const absl::Status status = RunRanks(ranks, [&](int rank, const ProcessGroup& world) {
      return RunRank(fs, options, rank, world);
    });
    // All ranks have ended, so nothing sets the engine any more.
    if (engine_ == nullptr) started_.set_value(status);
  });
  return started_.get_future().get();
}

absl::StatusOr<std::unique_ptr<ServedModel>> OpenTextEngine(FileSystem& fs,
                                                            const TextEngineOptions& options) {
  std::unique_ptr<ServedModel> model(new ServedModel());
  MEGATRON_ASSIGN_OR_RETURN(model->saved_, OpenSavedModel(fs, options.checkpoint));
  SavedModel& saved = model->saved_;
  if (saved.options.kind != ModelKind::kGpt) {
    return absl::InvalidArgumentError(absl::StrCat(
        saved.directory, " is a ", saved.options.kind == ModelKind::kBert ? "BERT" : "T5",
        "; only a GPT continues text"));
  }
  saved.options = ForInference(saved.options);
  MEGATRON_RETURN_IF_ERROR(CheckLayout(saved.options, options));
  if (options.max_batch < 1 || options.max_queue < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", options.max_batch,
                                                   " requests and a queue of ", options.max_queue));
  }
  model->engine_options_ = EngineOptions(saved, options, options.max_batch);
  const int64_t context = model->engine_options_.max_context;
  if (context > saved.options.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("a context of ", context,
                                                   " tokens: the model has ",
                                                   saved.options.max_positions, " positions"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const RankGrids grids, GridsOf(options));
  const std::optional<int64_t> available = AvailableHostBytes();
  MEGATRON_RETURN_IF_ERROR(CheckBatchMemory(
      options.max_batch, context, available, ReservedBytes(available.value_or(0)),
      [&](int64_t batch) {
        const BatchedTextEngineOptions engine =
            EngineOptions(saved, options, static_cast<int>(batch));
        const int64_t of_requests =
            options.bytes_of_requests == nullptr
                ? 0
                : options.bytes_of_requests(BatchedTextEngine::Limits(engine));
        return of_requests +
               PlannedBytes(saved.options, grids, BatchedTextEngine::ModelLimits(engine));
      }));
  MEGATRON_RETURN_IF_ERROR(model->Start(fs, options));
  return model;
}

}  // namespace megatron
