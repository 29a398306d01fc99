#include "megatron/train/layouts/layout_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/recorded_communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/model_stage.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {
namespace {

constexpr int64_t kGlobalBatch = 8;
constexpr uint64_t kSeed = 1234;

const RunDescription& Description() {
  static const auto* const description = new RunDescription{"a tiny run", "config"};
  return *description;
}

StagePlacement PlacementOf(const Layout& layout, int stage) {
  StagePlacement placement;
  placement.stages = layout.pipeline;
  placement.stage = stage;
  placement.chunks = layout.chunks;
  placement.layers = layout.layers;
  placement.mtp_before_last = layout.mtp_before_last;
  placement.order = OrderOf(layout.schedule);
  return placement;
}

TrainerOptions OptionsOf(const TrainerOptions& run, const Layout& layout, int stage,
                         int data_rank) {
  TrainerOptions options = run;
  options.placement = PlacementOf(layout, stage);
  options.pipeline_schedule = layout.schedule;
  options.model.transformer.sequence_parallel = layout.sequence_parallel;
  options.model.transformer.tp_comm_overlap = layout.tp_comm_overlap;
  options.model.transformer.context_parallel = layout.context_parallel;
  options.model.transformer.context_team_size = layout.context_team_size;
  options.sharding = layout.sharding;
  options.shards_states_over_instances = layout.shards_states_over_instances;
  options.data_parallel.secondary_shards = layout.hosts > 1;
  options.data_parallel.overlap_grad_reduce = layout.overlap;
  options.data_parallel.overlap_param_gather =
      layout.overlap && (layout.sharding != DataSharding::kNone || run.weights_on_host);
  options.packing.layout = {layout.micro_batch_size, layout.data, data_rank};
  options.packing.has_classes = options.model.kind == ModelKind::kBert;
  options.packing.sequences_per_sample = options.model.num_choices;
  if (options.model.kind == ModelKind::kT5)
    options.packing.encoder_seq_length = CountingSource::kLength;
  if (layout.sequence_parallel) options.packing.token_multiple = layout.tensor;
  options.batch_size.granularity = layout.micro_batch_size * layout.data;
  options.batch_size.uneven = true;  // where it has to be
  options.packing.max_micro_batches = options.batch_size.MicroBatchesOf(kGlobalBatch);
  return options;
}

// Puts the parts of all ranks together to whole tensors.
class Gathering {
 public:
  void Add(const CheckpointState& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const ShardedTensor& block : part.tensors) {
      WholeTensor& whole = tensors_[block.name];
      std::string& held = held_[block.name];
      const int64_t size = SizeOf(block.tensor.dtype());
      whole.dtype = block.tensor.dtype();
      whole.shape = block.global_shape;
      whole.bytes.resize(whole.shape.numel() * size);
      held.resize(whole.shape.numel());
      const Rectangle mine = {block.offset, block.tensor.shape()};
      // What is in a file is read for this.
      std::vector<int64_t> memory(block.elements ? block.tensor.bytes() / sizeof(int64_t) + 1 : 0);
      const void* values = block.tensor.raw();
      if (block.elements) {
        values = memory.data();
        CHECK_EQ(absl::OkStatus(),
                 block.elements(0, Tensor(memory.data(), whole.dtype, {block.tensor.numel()})));
      }
      Rectangle all = {block.global_shape, block.global_shape};
      for (int d = 0; d < all.start.rank(); ++d) all.start[d] = 0;
      const absl::Status status = ForEachRun(mine, all, mine, [&](const CommonRun& run) {
        std::memcpy(&whole.bytes[run.target * size],
                    static_cast<const char*>(values) + run.source * size, run.count * size);
        for (int64_t i = run.target; i < run.target + run.count; ++i) ++held[i];
        return absl::OkStatus();
      });
      CHECK_EQ(status, absl::OkStatus());
    }
  }

  std::map<std::string, WholeTensor> Take() {
    for (const auto& [name, held] : held_) {
      EXPECT_EQ(held.find_first_not_of('\1'), std::string::npos) << name;
    }
    return std::move(tensors_);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, WholeTensor> tensors_;
  std::map<std::string, std::string> held_;  // the number of parts that hold each element
};

// The smallest difference of scores, relative to their unit, that decided about the rows that a
// router saw: between the last expert chosen and the best one not chosen, and between the last
// choice of a sample that an expert took and the first that it dropped.
class RouterMargin {
 public:
  RouterMargin(const MoeOptions& moe, double* smallest) : moe_(moe), smallest_(smallest) {}

  // `bias` holds biases for all rows, or for the rows of each sample; in the second case the rows
  // are those of whole samples.
  void See(const RouterLayer::Saved& saved, const Tensor& bias) {
    const int64_t experts = moe_.num_experts, topk = moe_.router.topk;
    const float* logits = saved.logits_NE.data<float>();
    const int32_t* chosen = saved.chosen_NK.data<int32_t>();
    for (int64_t row = 0; row < saved.logits_NE.dim(0); ++row) {
      double worst_chosen = 1e9, best_other = -1e9;
      for (int64_t e = 0; e < experts; ++e) {
        double score = logits[row * experts + e];
        if (moe_.router.score == ops::RouterScore::kSigmoid && !moe_.router.choose_by_logit)
          score = 1 / (1 + std::exp(-score));
        if (bias.rank() == 2) {
          const int64_t sample = row / CountingSource::kLength % bias.dim(0);
          score += bias.data<float>()[sample * experts + e];
        } else if (!bias.empty()) {
          score += bias.data<float>()[e];
        }
        const int32_t* mine = chosen + row * topk;
        if (std::find(mine, mine + topk, e) != mine + topk) {
          worst_chosen = std::min(worst_chosen, score);
        } else {
          best_other = std::max(best_other, score);
        }
      }
      *smallest_ = std::min(*smallest_, worst_chosen - best_other);
    }
    if (moe_.capacity_factor.has_value()) SeeDrops(saved);
  }

 private:
  // The capacity is that of whole samples: a rank that sees parts of them may find more room, never
  // less.
  void SeeDrops(const RouterLayer::Saved& saved) {
    const int64_t topk = moe_.router.topk, rows = saved.expert_NK.dim(0);
    for (int64_t begin = 0; begin < rows; begin += CountingSource::kLength) {
      std::map<int32_t, double> kept, dropped;
      const int64_t end = std::min<int64_t>(rows, begin + CountingSource::kLength) * topk;
      for (int64_t i = begin * topk; i < end; ++i) {
        const int32_t expert = saved.chosen_NK.data<int32_t>()[i];
        const double probability = saved.probability_NK.data<float>()[i];
        kept.emplace(expert, 1);
        dropped.emplace(expert, 0);
        double& bound = saved.expert_NK.data<int32_t>()[i] < 0 ? dropped[expert] : kept[expert];
        bound = saved.expert_NK.data<int32_t>()[i] < 0 ? std::max(bound, probability)
                                                       : std::min(bound, probability);
      }
      for (const auto& [expert, least] : kept) {
        if (dropped[expert] > 0) *smallest_ = std::min(*smallest_, least - dropped[expert]);
      }
    }
  }

  const MoeOptions moe_;
  double* const smallest_;
};

void ExpectEqual(const DiagnosticValues& got, const DiagnosticValues& want) {
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (size_t i = 0; i < got.layers.size(); ++i) {
    EXPECT_EQ(got.layers[i].name, want.layers[i].name);
    EXPECT_EQ(got.layers[i].value, want.layers[i].value) << got.layers[i].name;
  }
  ASSERT_EQ(got.experts.size(), want.experts.size());
  for (size_t i = 0; i < got.experts.size(); ++i)
    EXPECT_EQ(got.experts[i].choices, want.experts[i].choices);
  EXPECT_EQ(got.noise_scale, want.noise_scale);
}

// One rank of the run.
class LayoutRank {
 public:
  LayoutRank(const TrainerOptions& run, const LayoutRun& how, const RankGrid& dense,
             const RankGrid& expert, const ProcessGroup& world, const LayoutOutcome& outcome)
      : how_(how),
        dense_(dense),
        expert_(expert),
        world_(world),
        sent_(outcome.sent),
        progress_([this](Phase phase) {
          if (how_.on_piece && trainer_ != nullptr)
            how_.on_piece(world_.rank(), phase, &trainer_->buffers());
        }),
        pool_(1),
        stream_(Stream::Cpu(&pool_)) {
    if (how.device == DeviceType::kCuda) {
      cuda_ = std::make_unique<CudaStream>(0);
      stream_ = Stream::Cuda(0, cuda_.get());
    }
    if (world.size() > 1) {
      std::shared_ptr<Communicator> ranks = world.communicator();
      if (run.rerun.enabled()) ranks = Recorded(std::move(ranks), &calls_);
      if (how.wrap) ranks = how.wrap(std::move(ranks));
      world_ = ProcessGroup(Counted(ranks, sent_.get()));
    }
    const int rank = world.rank();
    options_ = OptionsOf(run, how.layout, dense.Coordinate(rank, Axis::kPipeline),
                         dense.Coordinate(rank, Axis::kData));
    options_.device = how.device;
    if (how.ranks_of_host > 0) options_.host = rank / how.ranks_of_host;
  }

  absl::Status Start() {
    const LossScaler scaler = how_.scaler == nullptr ? LossScaler::MakeConstant(1) : *how_.scaler;
    MemoryLedger planned;
    MEGATRON_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> plan,
        Trainer::Create(options_, scaler, GroupsForPlanning(dense_, expert_, world_.rank()), {},
                        Stream::Meta(), &planned));
    const StageMemorySizes sizes = plan->Measure();
    planned_bytes_ = planned.peak_bytes() + sizes.total() + sizes.host();
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(dense_, expert_, world_.communicator()));
    MEGATRON_ASSIGN_OR_RETURN(trainer_,
                              Trainer::Create(options_, scaler, groups, sizes, stream_, &ledger_));
    trainer_->ReportTo(&progress_);
    trainer_->RecordCallsIn(&calls_);
    if (how_.load.empty()) {
      trainer_->InitializeWeights(kSeed);
      return how_.at_start ? how_.at_start(world_.rank(), trainer_.get()) : absl::OkStatus();
    }
    MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found,
                              LocateCheckpoint(PosixFileSystem(), how_.load));
    MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                              CheckpointReader::Open(PosixFileSystem(), found.directory));
    std::vector<std::string> warnings;
    return RestoreCheckpoint(reader, Restore::kEverything, Description(), trainer_.get(),
                             &warnings);
  }

  absl::Status Train(const SampleSource& source, LayoutOutcome* outcome) {
    sent_->Reset();
    RouterMargin margin(options_.model.transformer.moe, &outcome->smallest_margin);
    for (MoeLayer* layer : trainer_->stage().moe_layers()) {
      // The observer reads the router's tensors on the host.
      if (how_.device != DeviceType::kCpu) break;
      layer->router().set_observer(
          [&](const RouterLayer::Saved& saved, const Tensor& bias) { margin.See(saved, bias); });
    }
    GraphedStage* const graphed = trainer_->graphed_stage();
    if (graphed != nullptr) graphed->set_comparison(how_.compare_graphs);
    for (int i = 0; i < how_.steps; ++i) {
      if (how_.eval_interval > 0 && i > 0 && i % how_.eval_interval == 0) {
        MEGATRON_RETURN_IF_ERROR(trainer_->Evaluate(source, 1).status());
      }
      if (how_.update_ahead) trainer_->UpdateAhead();
      MEGATRON_ASSIGN_OR_RETURN(const StepReport report, trainer_->Step(source));
      // A NaN would differ from itself.
      outcome->losses.push_back(std::isnan(report.loss) ? std::numeric_limits<double>::infinity()
                                                        : report.loss);
      outcome->norms.push_back(report.update.finite ? report.update.grad_norm
                                                    : std::numeric_limits<double>::infinity());
      if (report.sent_gradients.has_value())
        outcome->sent_gradients.push_back(*report.sent_gradients);
      outcome->balances.push_back(report.load_balancing_loss);
      outcome->z_losses.push_back(report.z_loss);
      for (const auto& [measure, value] : report.values) {
        if (measure.kind == MeasureKind::kLmLoss) outcome->lm_losses.push_back(value);
      }
      outcome->sources.push_back(report.sources);
      outcome->diagnostics.push_back(report.diagnostics);
      outcome->reruns.push_back(report.rerun);
    }
    if (how_.evaluate) {
      MEGATRON_ASSIGN_OR_RETURN(const Measured measured, trainer_->Evaluate(source, 2));
      outcome->evaluation = measured.loss;
    }
    if (how_.scored != nullptr) {
      MEGATRON_RETURN_IF_ERROR(trainer_->ScoreTokens(
          *how_.scored, [&](int64_t, absl::Span<const float> losses, absl::Span<const float> hits) {
            outcome->token_losses.insert(outcome->token_losses.end(), losses.begin(), losses.end());
            outcome->token_hits.insert(outcome->token_hits.end(), hits.begin(), hits.end());
          }));
    }
    if (how_.at_end) {
      MEGATRON_RETURN_IF_ERROR(how_.at_end(world_.rank(), trainer_.get()));
    }
    if (graphed != nullptr) outcome->graphs = graphed->counts();
    EXPECT_EQ(ledger_.peak_bytes(), planned_bytes_);
    outcome->memory = ledger_.AtPeak();
    return absl::OkStatus();
  }

  absl::Status Finish(Gathering* gathering) {
    const CheckpointState state = MakeCheckpointState(*trainer_, Description());
    gathering->Add(state);
    if (how_.save.empty()) return absl::OkStatus();
    Consensus consensus(world_);
    SaveOptions save;
    save.directory = how_.save;
    save.rank = world_.rank();
    save.world_size = world_.size();
    save.agree = [&](absl::Status status) { return consensus.FirstError(status); };
    save.chunk_bytes = 256;  // even small tensors have many chunks
    return SaveCheckpoint(PosixFileSystem(), save, state);
  }

 private:
  const LayoutRun& how_;
  const RankGrid &dense_, &expert_;
  ProcessGroup world_;
  const std::shared_ptr<BytesSent> sent_;
  RankProgress progress_;
  CallRecord calls_;
  TrainerOptions options_;
  ThreadPool pool_;
  std::unique_ptr<CudaStream> cuda_;
  Stream stream_;
  MemoryLedger ledger_;
  int64_t planned_bytes_ = 0;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

ParallelSizes SizesOf(const Layout& layout, bool has_experts) {
  ParallelSizes sizes;
  sizes.tensor = layout.tensor;
  sizes.tensor_side = layout.tensor_side;
  sizes.tensor_depth = layout.tensor_depth;
  sizes.tensor_cube = layout.tensor_cube;
  sizes.context = layout.context;
  sizes.pipeline = layout.pipeline;
  sizes.data = layout.data;
  sizes.expert = layout.expert;
  if (has_experts) sizes.expert_tensor = layout.expert_tensor;
  sizes.optimizer_instances = layout.optimizer_instances;
  sizes.hosts = layout.hosts;
  sizes.ranks_per_host = layout.ranks_per_host;
  sizes.deduplicated_dispatch = layout.deduplicated_dispatch;
  sizes.algorithm = layout.algorithm;
  sizes.order = layout.order;
  return sizes;
}

std::string ToString(const Layout& layout) {
  std::string text =
      absl::StrCat("tp", layout.tensor,
                   layout.tensor_side == 1   ? ""
                   : layout.tensor_cube      ? " 3d"
                   : layout.tensor_depth > 1 ? " 2.5d"
                                             : " 2d",
                   layout.sequence_parallel ? " sp" : "",
                   layout.tp_comm_overlap ? " overlapped" : "", " pp", layout.pipeline);
  static constexpr const char* kSchedules[] = {" gpipe", "", " zb_h1", " zb_v"};
  absl::StrAppend(&text, kSchedules[static_cast<int>(layout.schedule)]);
  if (layout.chunks > 1) absl::StrAppend(&text, " chunks ", layout.chunks);
  if (!layout.layers.empty()) absl::StrAppend(&text, " layers ", absl::StrJoin(layout.layers, "+"));
  if (layout.mtp_before_last) absl::StrAppend(&text, " mtp before the last");
  if (layout.context > 1) {
    constexpr const char* kKinds[] = {"ring", "all-to-all", "gather", "hierarchical"};
    absl::StrAppend(&text, " cp", layout.context, " ",
                    kKinds[static_cast<int>(layout.context_parallel)]);
  }
  if (layout.expert > 1) absl::StrAppend(&text, " ep", layout.expert);
  if (layout.expert_tensor > 1) absl::StrAppend(&text, " etp", layout.expert_tensor);
  absl::StrAppend(&text, " dp", layout.data, " zero", static_cast<int>(layout.sharding),
                  layout.optimizer_instances > 1
                      ? absl::StrCat(" in ", layout.optimizer_instances, " instances",
                                     layout.shards_states_over_instances ? " of parts" : "")
                      : "",
                  layout.hosts > 1 ? absl::StrCat(" on ", layout.hosts, " hosts") : "",
                  layout.overlap ? " overlap" : "", " micro-batch ", layout.micro_batch_size);
  if (layout.ranks_per_host > 0) absl::StrAppend(&text, " hosts of ", layout.ranks_per_host);
  if (layout.deduplicated_dispatch) absl::StrAppend(&text, " deduplicated");
  if (layout.algorithm != CollectiveAlgorithm::kMesh)
    absl::StrAppend(&text, " by ", Name(layout.algorithm));
  if (layout.order != RankOrder()) absl::StrAppend(&text, " ", layout.order.ToString());
  return text;
}

absl::Status CountingSource::Get(int64_t index, Sample* sample) const {
  ++reads_[index];
  sample->tokens.resize(kLength);
  sample->labels.resize(kLength);
  sample->positions.resize(kLength);
  sample->loss_mask.resize(kLength);
  sample->document_starts.assign(1, 0);
  for (int i = 0; i < kLength; ++i) {
    sample->tokens[i] = static_cast<int32_t>((7 * index + 3 * i) % 50);
    sample->labels[i] = static_cast<int32_t>((7 * index + 3 * i + 3) % 50);
    sample->positions[i] = i;
    sample->loss_mask[i] = (index + i) % 7 == 0 ? 0.0f : 1.0f;
  }
  if (!documents_) return absl::OkStatus();
  for (const auto begin : {1 + index % 7, 8 + 3 * index % 8}) {
    sample->document_starts.push_back(static_cast<int32_t>(begin));
    for (int64_t i = begin; i < kLength; ++i)
      sample->positions[i] = static_cast<int32_t>(i - begin);
  }
  return absl::OkStatus();
}

absl::Status GapSource::Get(int64_t index, Sample* sample) const {
  *sample = Sample();
  std::vector<int32_t> missing;
  for (int32_t i = 0; i < static_cast<int32_t>(4 + index * 7 % 13); ++i) {
    const int32_t token = static_cast<int32_t>((index + 3 * i) % 47);
    if (i % 3 == 1) missing.push_back(token);
    sample->encoder_tokens.push_back(i % 3 == 1 ? 49 : token);
  }
  sample->tokens = {48};
  sample->tokens.insert(sample->tokens.end(), missing.begin(), missing.end());
  sample->labels = missing;
  sample->labels.push_back(47);
  for (size_t i = 0; i < sample->tokens.size(); ++i)
    sample->positions.push_back(static_cast<int32_t>(i));
  sample->loss_mask.assign(sample->tokens.size(), 1.0f);
  sample->document_starts = {0};
  sample->spans.assign(sample->tokens.size(), 0);
  sample->spans[0] = -1;
  return absl::OkStatus();
}

absl::Status PairSource::Get(int64_t index, Sample* sample) const {
  const int32_t length = static_cast<int32_t>(4 + index * 7 % 13);
  *sample = Sample();
  for (int32_t i = 0; i < length; ++i) {
    const int32_t token = static_cast<int32_t>((index + i + (i < length / 2) * 5) % 49);
    const bool masked = (index + i) % 4 == 1;
    sample->tokens.push_back(masked ? 49 : token);
    sample->labels.push_back(masked ? token : -1);
    sample->loss_mask.push_back(masked ? 1.0f : 0.0f);
    sample->positions.push_back(i);
    sample->types.push_back(i < length / 2 ? 0 : 1);
  }
  sample->document_starts = {0};
  sample->sequence_class = static_cast<int32_t>(index % 2);
  return absl::OkStatus();
}

TrainerOptions TinyRun(const ModelOptions& model, OptimizerOptions::Kind optimizer) {
  TrainerOptions options;
  options.model = model;
  TransformerOptions& transformer = options.model.transformer;
  transformer.num_layers = 4;
  transformer.init_std = transformer.output_init_std = 0.05f;
  options.model.embedding_init_std = 0.05f;
  transformer.hidden_dropout = transformer.attention_dropout = 0.1f;
  options.optimizer.kind = optimizer;
  options.schedule.max_lr = optimizer == OptimizerOptions::kSgd ? 1e-2 : 1e-3;
  options.schedule.lr_decay_steps = 1000;
  options.schedule.lr_decay_style = LrDecayStyle::kCosine;
  options.schedule.start_weight_decay = options.schedule.end_weight_decay = 0.1;
  options.schedule.weight_decay_steps = 1000;
  options.batch_size.global_batch_size = kGlobalBatch;
  options.packing.seq_length = CountingSource::kLength;
  options.packing.mtp_depths = model.mtp_num_layers;
  if (model.mtp_num_layers > 0) {
    options.packing.mtp_loss_factor =
        model.mtp_loss_scaling_factor / static_cast<float>(model.mtp_num_layers);
  }
  options.clip_grad = 1;
  return options;
}

LayoutOutcome TrainOnLayout(const TrainerOptions& run, const LayoutRun& how,
                            const SampleSource& source) {
  const int ranks = how.layout.ranks();
  ParallelSizes sizes = SizesOf(how.layout, run.model.transformer.moe.num_experts > 0);
  if (how.layout.mtp_before_last) {
    sizes.embedding_stages = PlacementOf(how.layout, /*stage=*/0)
                                 .StagesWithWords(run.model.tied_embeddings, /*has_mtp=*/true);
  }
  const auto dense = RankGrid::Create(sizes, ranks), expert = RankGrid::CreateExpert(sizes, ranks);
  CHECK(dense.ok() && expert.ok());
  Gathering gathering;
  std::vector<LayoutOutcome> outcomes(ranks);
  const absl::Status status =
      RunRanks(ranks, [&](int rank, const ProcessGroup& world) -> absl::Status {
        LayoutRank mine(run, how, *dense, *expert, world, outcomes[rank]);
        MEGATRON_RETURN_IF_ERROR(mine.Start());
        MEGATRON_RETURN_IF_ERROR(mine.Train(source, &outcomes[rank]));
        return mine.Finish(&gathering);
      });
  EXPECT_TRUE(status.ok()) << status;
  for (const LayoutOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
    EXPECT_EQ(outcome.norms, outcomes[0].norms);
    EXPECT_EQ(outcome.sent_gradients, outcomes[0].sent_gradients);
    EXPECT_EQ(outcome.balances, outcomes[0].balances);
    EXPECT_EQ(outcome.z_losses, outcomes[0].z_losses);
    EXPECT_EQ(outcome.evaluation, outcomes[0].evaluation);
    EXPECT_TRUE(outcome.sources == outcomes[0].sources);
    EXPECT_EQ(outcome.token_losses, outcomes[0].token_losses);
    EXPECT_EQ(outcome.token_hits, outcomes[0].token_hits);
    for (size_t i = 0; i < outcome.diagnostics.size(); ++i)
      ExpectEqual(outcome.diagnostics[i], outcomes[0].diagnostics[i]);
  }
  outcomes[0].state = gathering.Take();
  return std::move(outcomes[0]);
}

void ExpectThatCheckpointsMove(const TrainerOptions& run, int steps,
                               const std::vector<Layout>& layouts) {
  const std::string directory = ::testing::TempDir() + "/moving_checkpoints";
  LayoutRun how;
  how.layout.data = how.layout.pipeline = 2;
  how.layout.sharding = DataSharding::kWeights;
  how.steps = steps;
  const LayoutOutcome whole = TrainOnLayout(run, how, CountingSource());
  ASSERT_TRUE(PosixFileSystem().RemoveTree(directory).ok());
  how.steps = steps / 2;
  how.save = directory;
  const LayoutOutcome saved = TrainOnLayout(run, how, CountingSource());
  how.save = "";
  how.load = directory;
  const LayoutOutcome again = TrainOnLayout(run, how, CountingSource());
  EXPECT_TRUE(again.state == whole.state);
  EXPECT_EQ(again.losses.back(), whole.losses.back());
  how.steps = 0;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    how.layout = layout;
    EXPECT_TRUE(TrainOnLayout(run, how, CountingSource()).state == saved.state);
  }
}

}  // namespace megatron
