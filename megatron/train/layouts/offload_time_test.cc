// Measures on the emulated device's clock what offload costs a step: how much longer it takes than
// the same step with everything on the device, and how much of the copies' time is hidden behind
// computing and updates. Steps with files are compared with the same steps in host memory, and the
// time of a disk's transfers is hidden.
//
// Products of matrices and attention take the time of their operations, and other kernels none: so
// it is in wide models. Rates are chosen from the formulas of docs/offload.md and
// docs/long_sequences.md: at `slack` 1 what the link carries takes just as long as what is computed
// meanwhile, at 2 half as long.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/block_file.h"
#include "megatron/models/model_harness.h"
#include "megatron/models/offload_timeline.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/tensor/emulated_clock.h"
#include "megatron/tensor/emulated_order.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/profile/trace_json.h"

namespace megatron {
namespace {

// A link of PCIe 5, and AdamW's 30 bytes an element in memory of 100 GB/s.
constexpr double kLink = 25e9, kUpdates = 3.3e9;
// A disk that is never waited for.
constexpr double kNoDisk = 1e18;
// Enough that operands take no time.
constexpr double kDeviceMemory = 1e18;

EmulatedRates Rates(double operations_per_second) {
  return {operations_per_second, kDeviceMemory, kLink, kUpdates, kNoDisk, kNoDisk};
}

// Puts the transfers of files on the clock.
class DiskOnTheClock : public BlockFileObserver {
 public:
  DiskOnTheClock() { ObserveBlockFiles(this); }
  ~DiskOnTheClock() override { ObserveBlockFiles(nullptr); }

  void Started(const BlockFile& file, int64_t transfer, bool is_write, int64_t bytes) override {
    EmulatedCost cost;
    cost.engine = is_write ? EmulatedEngine::kDiskWrites : EmulatedEngine::kDiskReads;
    cost.bytes = static_cast<double>(bytes);
    under_way_[{&file, transfer}] = RecordDiskTransfer(is_write ? "write" : "read", cost);
  }
  void Finished(const BlockFile& file, int64_t transfer) override {
    const auto found = under_way_.find({&file, transfer});
    RecordHostWait(found->second);
    under_way_.erase(found);
  }

 private:
  std::map<std::pair<const BlockFile*, int64_t>, EmulatedPoint> under_way_;
};

// Samples of any length.
class LongSource : public SampleSource {
 public:
  explicit LongSource(int64_t length) : length_(length) {}
  int64_t size() const override { return 1 << 10; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = Sample();
    for (int32_t i = 0; i < length_; ++i) {
      sample->tokens.push_back(static_cast<int32_t>((7 * index + 3 * i) % 50));
      sample->labels.push_back(static_cast<int32_t>((7 * index + 3 * i + 3) % 50));
      sample->positions.push_back(i);
      sample->loss_mask.push_back(1.0f);
    }
    sample->document_starts = {0};
    return absl::OkStatus();
  }

 private:
  const int64_t length_;
};

// Times of a step in seconds: as long as it takes, and of each engine's work.
struct StepTimes {
  double step = 0, kernels = 0, to_host = 0, from_host = 0, processor = 0;
  double disk_reads = 0, disk_writes = 0;
};

std::string RowOf(int64_t stream) {
  if (stream > 0) return absl::StrCat("stream ", stream);
  if (stream == 0) return "processor";
  if (stream == -static_cast<int64_t>(EmulatedEngine::kProcessor)) return "processor, beside";
  return stream == -static_cast<int64_t>(EmulatedEngine::kDiskReads) ? "disk reads" : "disk writes";
}

// Rows of a trace for ui.perfetto.dev: one for each stream, one for the processor, and one for what
// a disk reads and for what it writes.
std::vector<TracedStream> TraceOf(const std::vector<EmulatedWork>& works,
                                  const EmulatedTimes& times) {
  std::map<int64_t, TracedStream> streams;
  for (size_t i = 0; i < works.size(); ++i) {
    const auto [begin, end] = times.begin_and_end[i];
    if (end == begin) continue;
    TracedStream& stream = streams[works[i].stream];
    TracedSpan span;
    span.name = works[i].cost.engine == EmulatedEngine::kToHost     ? "copy to host"
                : works[i].cost.engine == EmulatedEngine::kFromHost ? "copy from host"
                                                                    : works[i].name;
    span.begin = static_cast<int64_t>(begin * 1e9);
    span.end = static_cast<int64_t>(end * 1e9);
    stream.spans.push_back(span);
  }
  std::vector<TracedStream> rows;
  for (auto& [number, stream] : streams) {
    stream.name = RowOf(number);
    rows.push_back(std::move(stream));
  }
  return rows;
}

class OffloadTimeTest : public testing::Test {
 protected:
  static TrainerOptions Gpt(int64_t hidden, int64_t layers, int64_t length) {
    TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
    TransformerOptions& transformer = options.model.transformer;
    transformer.dtype = DType::kBFloat16;
    transformer.num_layers = layers;
    transformer.hidden_size = hidden;
    transformer.ffn_hidden_size = 4 * hidden;
    transformer.gated = false;
    transformer.num_attention_heads = transformer.num_query_groups = 4;
    transformer.kv_channels = hidden / 4;
    transformer.hidden_dropout = transformer.attention_dropout = 0;
    options.packing.seq_length = options.model.max_positions = length;
    return options;
  }

  // The works of a run of so many steps on one rank.
  static std::vector<EmulatedWork> Works(const TrainerOptions& options, int64_t micro_batch_size,
                                         int steps) {
    LayoutRun run;
    run.device = DeviceType::kCuda;
    run.layout.micro_batch_size = micro_batch_size;
    run.layout.overlap = true;
    run.steps = steps;
    EmulatedRecord record;
    DiskOnTheClock disk;
    RecordEmulatedWork(&record);
    TrainOnLayout(options, run, LongSource(options.packing.seq_length));
    RecordEmulatedWork(nullptr);
    return record.works();
  }

  // A step between others: the third one.
  static StepTimes Measure(const std::string& name, const TrainerOptions& options,
                           int64_t micro_batch_size, const EmulatedRates& rates) {
    const std::vector<EmulatedWork> works = Works(options, micro_batch_size, 3);
    const EmulatedTimes two = PlayEmulated(Works(options, micro_batch_size, 2), rates),
                        three = PlayEmulated(works, rates);
    const auto busy = [&](EmulatedEngine engine) {
      const auto i = static_cast<size_t>(engine);
      return three.busy[i] - two.busy[i];
    };
    const StepTimes times = {three.end - two.end,
                             busy(EmulatedEngine::kKernels),
                             busy(EmulatedEngine::kToHost),
                             busy(EmulatedEngine::kFromHost),
                             busy(EmulatedEngine::kProcessor),
                             busy(EmulatedEngine::kDiskReads),
                             busy(EmulatedEngine::kDiskWrites)};
    std::printf(
        "%-44s step %9.1f us, kernels %9.1f, to host %8.1f, from host %8.1f, updates %8.1f, disk "
        "reads %8.1f, writes %8.1f\n",
        name.c_str(), 1e6 * times.step, 1e6 * times.kernels, 1e6 * times.to_host,
        1e6 * times.from_host, 1e6 * times.processor, 1e6 * times.disk_reads,
        1e6 * times.disk_writes);
    if (const char* directory = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR")) {
      std::ofstream(absl::StrCat(directory, "/", name, ".json"))
          << TraceJson(0, name, TraceOf(works, three));
    }
    return times;
  }

  // The part of the copies' time that the step does not become longer by.
  static double Hidden(const StepTimes& with, const StepTimes& without) {
    const double copies = with.to_host + with.from_host - without.to_host - without.from_host;
    const double lost = with.step - without.step - (with.processor - without.processor);
    std::printf(
        "  lost %.1f us of %.1f without offload, updates apart; hidden %.3f of the copies\n",
        1e6 * lost, 1e6 * without.step, 1 - lost / copies);
    return 1 - lost / copies;
  }

  // The same of a disk's transfers: `without` has in host memory what files have.
  static double HiddenOfDisk(const StepTimes& with, const StepTimes& without) {
    const double transfers = with.disk_reads + with.disk_writes, lost = with.step - without.step;
    std::printf("  lost %.1f us of %.1f in host memory; hidden %.3f of the disk's time\n",
                1e6 * lost, 1e6 * without.step, 1 - lost / transfers);
    return 1 - lost / transfers;
  }
};

// Five pieces of 2^20 elements. Where updates take longer than copies, those of the first gradients
// and of the last weights are lost; where copies take longer, both directions go at once.
TEST_F(OffloadTimeTest, GradientsAndWeightsOfStatesOnTheHost) {
  TrainerOptions options = Gpt(/*hidden=*/256, /*layers=*/6, /*length=*/16);
  for (const double faster : {1.0, 5.0}) {
    EmulatedRates rates = Rates(1e12);
    rates.updated_elements_per_second *= faster;
    const std::string name = absl::StrCat("updates ", faster, " times as fast");
    options.host_fraction = 0;
    const StepTimes without =
        Measure(absl::StrCat("states on the device, ", name), options, 8, rates);
    options.host_fraction = 1;
    const StepTimes with = Measure(absl::StrCat("states on the host, ", name), options, 8, rates);
    EXPECT_GT(Hidden(with, without), faster == 1 ? 0.82 : 0.45);
  }
}

// The update goes on beside the next step, and the gradients leave during its forward. What is lost
// are the weights on their way back.
TEST_F(OffloadTimeTest, DelayedUpdates) {
  TrainerOptions options = Gpt(/*hidden=*/256, /*layers=*/6, /*length=*/16);
  const EmulatedRates rates = Rates(1e12);
  const StepTimes without = Measure("states on the device, all of them", options, 8, rates);
  options.host_fraction = 1;
  const StepTimes prompt = Measure("states on the host, updates in their steps", options, 8, rates);
  options.optimizer.delayed_gradients = DType::kFloat32;
  const StepTimes late = Measure("states on the host, updates one step late", options, 8, rates);
  EXPECT_NEAR(late.processor, prompt.processor, 1e-6 * prompt.processor);
  const double copies = late.to_host + late.from_host - without.to_host - without.from_host;
  const double lost = late.step - without.step;
  std::printf("  lost %.1f us, of weights that come back %.1f; hidden %.3f of updates and copies\n",
              1e6 * lost, 1e6 * late.from_host, 1 - lost / (late.processor + copies));
  EXPECT_LT(lost, 1.02 * late.from_host);
  EXPECT_LT(lost, 0.3 * (prompt.step - without.step));
}

// What is lost are gradients on their way to the norm, and the first layer of each pass.
TEST_F(OffloadTimeTest, WeightsAndGradientsOnTheHost) {
  TrainerOptions options = Gpt(/*hidden=*/128, /*layers=*/8, /*length=*/16);
  for (const int64_t micro_batch_size : {8, 2}) {
    for (const double slack : {1.0, 2.0}) {
      // Docs: 8 / link < 6 t / speed, and half as many tokens again behind the first micro-batch.
      const double tokens = static_cast<double>(16 * micro_batch_size);
      const double needed = (micro_batch_size == 8 ? 8 : 12) / (6 * tokens) / kLink;
      const EmulatedRates rates = Rates(1 / (slack * needed));
      const std::string name = absl::StrCat(8 / micro_batch_size, " micro-batches, slack ", slack);
      const StepTimes without =
          Measure(absl::StrCat("weights on the device, ", name), options, micro_batch_size, rates);
      TrainerOptions offloaded = options;
      offloaded.host_fraction = 1;
      offloaded.weights_on_host = true;
      const StepTimes with =
          Measure(absl::StrCat("weights on the host, ", name), offloaded, micro_batch_size, rates);
      EXPECT_GT(Hidden(with, without), micro_batch_size == 8 ? 0.56 : 0.78);
    }
  }
}

// What is lost are gradients on their way to the norm; they leave while other layers' are computed.
TEST_F(OffloadTimeTest, GradientsOnTheHost) {
  TrainerOptions options = Gpt(/*hidden=*/128, /*layers=*/8, /*length=*/16);
  for (const int64_t micro_batch_size : {8, 2}) {
    for (const DType gradients : {DType::kFloat32, DType::kBFloat16}) {
      // A layer's gradients leave, and behind the first micro-batch their sum comes, during twice
      // the operations of its forward.
      const double tokens = static_cast<double>(16 * micro_batch_size);
      const double bytes = gradients == DType::kFloat32 ? 4 : 2;
      const EmulatedRates rates = Rates(4 * tokens / bytes * kLink);
      const std::string name =
          absl::StrCat(8 / micro_batch_size, " micro-batches, ", bytes, " bytes");
      options.main_grads_dtype = gradients;
      options.host_fraction = 1;
      options.gradients_on_host = false;
      const StepTimes without =
          Measure(absl::StrCat("states on the host, ", name), options, micro_batch_size, rates);
      options.gradients_on_host = true;
      const StepTimes with =
          Measure(absl::StrCat("gradients too, ", name), options, micro_batch_size, rates);
      const bool waits = micro_batch_size == 2 && gradients == DType::kBFloat16;
      EXPECT_GT(Hidden(with, without), waits ? 0.43 : micro_batch_size == 2 ? 0.8 : 0.47);
    }
  }
}

// At slack 1 a disk reads an extent, and writes one, in the time of its update; less is slower.
TEST_F(OffloadTimeTest, StatesInAFile) {
  TrainerOptions options = Gpt(/*hidden=*/256, /*layers=*/6, /*length=*/16);
  options.host_fraction = 1;
  for (const double slack : {1.0, 2.0, 0.25}) {
    EmulatedRates rates = Rates(1e12);
    rates.disk_read_bytes_per_second = rates.disk_write_bytes_per_second = slack * 12 * kUpdates;
    const std::string name = absl::StrCat("slack ", slack);
    options.state_directory.clear();
    const StepTimes without =
        Measure(absl::StrCat("states in host memory, ", name), options, 8, rates);
    options.state_directory = testing::TempDir();
    const StepTimes with = Measure(absl::StrCat("states in a file, ", name), options, 8, rates);
    EXPECT_GT(HiddenOfDisk(with, without), slack < 1 ? 0.49 : slack == 1 ? 0.83 : 0.94);
  }
}

// Docs: 4 / disk < 6 t / speed, so that a disk of half the link's speed has as much slack.
TEST_F(OffloadTimeTest, WeightsInAFile) {
  TrainerOptions options = Gpt(/*hidden=*/128, /*layers=*/8, /*length=*/16);
  options.host_fraction = 1;
  options.weights_on_host = true;
  for (const double slack : {1.0, 2.0}) {
    EmulatedRates rates = Rates(6 * 16 * 8 / 8.0 * kLink / slack);
    rates.disk_read_bytes_per_second = rates.disk_write_bytes_per_second = kLink / 2;
    const std::string name = absl::StrCat("slack ", slack);
    options.weight_directory.clear();
    const StepTimes without =
        Measure(absl::StrCat("weights in host memory, ", name), options, 8, rates);
    options.weight_directory = testing::TempDir();
    const StepTimes with = Measure(absl::StrCat("weights in a file, ", name), options, 8, rates);
    EXPECT_GT(HiddenOfDisk(with, without), slack == 1 ? 0.69 : 0.78);
  }
}

TEST_F(OffloadTimeTest, ActivationsOnTheHost) {
  const int64_t hidden = 64;
  TrainerOptions options = Gpt(hidden, /*layers=*/12, /*length=*/32);
  for (const double slack : {1.0, 2.0}) {
    const EmulatedRates rates = Rates(24.0 * hidden / 32 * kLink / slack);
    const std::string name = absl::StrCat("slack ", slack);
    options.model.num_offloaded_layers = 0;
    const StepTimes without =
        Measure(absl::StrCat("activations on the device, ", name), options, 8, rates);
    options.model.num_offloaded_layers = 10;
    const StepTimes with =
        Measure(absl::StrCat("activations on the host, ", name), options, 8, rates);
    EXPECT_GT(Hidden(with, without), 0.99);
  }
}

// One step's layers as the clock sees them: operations and bytes of a run of 12 layers, all of
// which leave. Each layer's forward pass ends with a copy to the host; and the backward passes of
// all but the last three, which come from the host, begin with the end of another layer's.
TimedStage StageOf(const std::vector<EmulatedWork>& works, int64_t layers, double rate) {
  // Bytes of a layer that has its input: the most of which there are copies of all of them.
  std::map<double, int64_t> copies;
  for (const EmulatedWork& work : works) {
    if (work.cost.engine == EmulatedEngine::kToHost) ++copies[work.cost.bytes];
  }
  double most = 0;
  for (const auto& [bytes, count] : copies) most = count + 1 >= layers ? bytes : most;
  TimedStage stage;
  stage.chunks.resize(1);
  TimedChunk& chunk = stage.chunks[0];
  double operations = 0, first = 0, forward = 0, backward = 0, between = 0;
  int64_t left = 0, came = 0;
  for (const EmulatedWork& work : works) {
    if (work.cost.engine == EmulatedEngine::kKernels) operations += work.cost.operations;
    const bool leaves = work.cost.engine == EmulatedEngine::kToHost && work.cost.bytes == most;
    const bool comes = work.cost.engine == EmulatedEngine::kFromHost && work.cost.bytes == most;
    if (left == 0 && work.cost.engine == EmulatedEngine::kToHost && work.cost.bytes < most)
      first = work.cost.bytes;  // the last one before the others is that of the first layer
    if (!leaves && !comes) continue;
    if (leaves && ++left == 2) forward = operations;
    if (comes && ++came == 1) between = operations;
    if (comes && came == 2) backward = operations;
    operations = 0;
  }
  for (int64_t i = 0; i < layers; ++i)
    chunk.segments.push_back({{forward / rate, backward / rate}, i == 0 ? first : most});
  // Between the last forward pass and the first copy back lie the head and one layer's backward.
  chunk.head.forward = (between - backward) / rate;
  return stage;
}

// The plan's choice hides, one layer more doesn't, and what is lost then is what the plan says.
TEST_F(OffloadTimeTest, AsManyLayersAsTheLinkHides) {
  const int64_t hidden = 64, layers = 12;
  TrainerOptions options = Gpt(hidden, layers, /*length=*/32);
  for (const int64_t micro_batch_size : {8, 4}) {
    for (const double slack : {micro_batch_size == 8 ? 0.7 : 0.8}) {
      const EmulatedRates rates = Rates(24.0 * hidden / 32 * kLink / slack);
      options.model.num_offloaded_layers = layers;
      TimedStage stage =
          StageOf(Works(options, micro_batch_size, 1), layers, rates.operations_per_second);
      for (int i = 0; i < 8 / micro_batch_size; ++i) {
        stage.actions.push_back({ActionKind::kForward, i, 0});
        stage.actions.push_back({ActionKind::kBackward, i, 0});
      }
      const int64_t chosen = MostHiddenSegments({stage}, kLink);
      EXPECT_GT(chosen, 3);
      EXPECT_LT(chosen, layers);
      const auto measure = [&](int64_t count) {
        options.model.num_offloaded_layers = count;
        return Measure(absl::StrCat(count, " layers leave, ", 8 / micro_batch_size,
                                    " micro-batches, slack ", slack),
                       options, micro_batch_size, rates)
            .step;
      };
      const double without = measure(0), planned = SecondsWithOffload(stage, 0, kLink);
      EXPECT_NEAR(measure(chosen), without, 1e-4 * without);
      for (const int64_t count : {chosen + 1, layers}) {
        const double lost = measure(count) - without;
        EXPECT_GT(lost, 1e-3 * without) << count << " layers";
        EXPECT_NEAR(lost, SecondsWithOffload(stage, count, kLink) - planned, 0.02 * lost)
            << count << " layers";
      }
    }
  }
}

TEST_F(OffloadTimeTest, AttentionInChunksOnTheHost) {
  const int64_t chunk = 32;
  TrainerOptions options = Gpt(/*hidden=*/32, /*layers=*/2, /*length=*/256);
  options.model.transformer.recompute.attention_chunk_tokens = chunk;
  for (const double slack : {1.0, 2.0}) {
    // Docs: a pair of chunks takes 4 C^2 operations a channel and brings 4 C bytes; in backward 2.5
    // times as many, and 14 bytes.
    const EmulatedRates rates = Rates(chunk * kLink / 1.4 / slack);
    const std::string name = absl::StrCat("slack ", slack);
    options.model.attention_on_host = false;
    const StepTimes without =
        Measure(absl::StrCat("attention on the device, ", name), options, 1, rates);
    options.model.attention_on_host = true;
    const StepTimes with =
        Measure(absl::StrCat("attention on the host, ", name), options, 1, rates);
    EXPECT_GT(Hidden(with, without), 0.97);
  }
}

}  // namespace
}  // namespace megatron
