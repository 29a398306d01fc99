// Trains on a layout, and compares the bytes that ranks send with the planner's
// (plan/step_traffic.h), for tests.
#ifndef MEGATRON_TRAIN_LAYOUTS_COUNTED_TRAFFIC_HARNESS_H_
#define MEGATRON_TRAIN_LAYOUTS_COUNTED_TRAFFIC_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/plan/step_traffic.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron::counted_traffic {

constexpr int kLayers = 4, kHidden = 256, kFfn = 512, kHeads = 4, kGroups = 2, kChannels = 64;
constexpr int kVocab = 64, kBatch = 8;

// A run of a small Llama, and the same model for the planner.
TrainerOptions LlamaRun();
PlanModel LlamaModel();

PlanLayout ToPlan(const Layout& layout);

// The part of the model on the first rank, `mixtures` of whose layers have experts. It holds the
// embedding, and the head too if its stage is the only one.
TrafficStage FirstStage(const Layout& layout, int mixtures);

// The bytes of a run by the prefix of the group's name, as planned and as counted.
struct Sent {
  std::map<std::string, double> planned, counted;
  std::map<std::string, int64_t> calls;
  std::vector<TrafficRow> rows;
  std::shared_ptr<BytesSent> all;
};

// The bytes that ranks of groups with this prefix have sent.
double CountedBytes(const BytesSent& sent, const std::string& group);

// Trains a step; with islands as many steps as they have between outer steps. `length` is that of
// the samples that the decoder sees.
Sent SentBy(const TrainerOptions& run, const PlanModel& model, const Layout& layout,
            const TrafficStage& stage, const SampleSource& source, int64_t length);
// The same with CountingSource and FirstStage.
Sent SentOn(const TrainerOptions& run, const PlanModel& model, const Layout& layout, int mixtures);

void ExpectWithinOnePercent(const Sent& sent);

}  // namespace megatron::counted_traffic

#endif  // MEGATRON_TRAIN_LAYOUTS_COUNTED_TRAFFIC_HARNESS_H_
