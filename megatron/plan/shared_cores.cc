#include "megatron/plan/shared_cores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "megatron/pipeline/check_schedule.h"

namespace megatron {
namespace {

// The bytes of a core between which memory becomes slower (Hardware.far_memory_efficiency).
constexpr double kNearBytes = 32 << 20;
constexpr double kFarBytes = 256 << 20;

// Returns the share of its cores' speed that a rank of so many threads has. Each doubling of the
// threads costs the same share.
double ThreadEfficiency(const Hardware& hardware, int64_t threads) {
  return std::pow(hardware.thread_efficiency(),
                  std::log(double(threads)) / std::log(double(hardware.cores())));
}

// Plays a schedule, pass by pass.
class Player {
 public:
  Player(const Schedule& schedule, const PartCosts& seconds, double turn)
      : schedule_(schedule),
        seconds_(seconds),
        turn_(turn),
        stages_(schedule.stages),
        forwarded_(Cells(), kNever),
        backwarded_(Cells(), kNever) {}

  // Returns the time in which the cores do nothing, divided by their number.
  double Play(double ranks, double cores) {
    double work = 0;
    while (true) {
      double running = 0, least = kNever;
      next_turn_ = kNever;
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        if (!Runs(stage)) continue;
        least = std::min(least, stages_[stage].left);
        ++running;
      }
      if (running == 0 && next_turn_ == kNever) return now_ - work;
      if (running == 0) {
        now_ = next_turn_;
        continue;
      }
      // A stage whose turn comes sooner than a pass ends makes the others slower.
      const double slowness = std::max(1.0, running * ranks / cores);
      least = std::min(least, (next_turn_ - now_) / slowness);
      now_ += least * slowness;
      work += least * running * ranks / cores;
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        Stage& its = stages_[stage];
        if (!its.runs) continue;
        its.left -= least;
        if (its.left <= kSame * its.seconds) Finish(stage);
      }
    }
  }

 private:
  static constexpr double kSame = 1e-9;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Stage {
    size_t next = 0;  // the action that it does, or waits for
    bool runs = false;
    double seconds = 0, left = 0;  // those of the action, and those that are left of it
  };

  size_t Cells() const { return size_t(schedule_.positions()) * size_t(schedule_.microbatches); }
  size_t Cell(int position, const Action& action) const {
    return size_t(position) * size_t(schedule_.microbatches) + size_t(action.microbatch);
  }

  // Returns whether the stage has something to do, which it begins.
  bool Runs(int number) {
    Stage& stage = stages_[number];
    if (stage.runs || stage.next == schedule_.actions[number].size()) return stage.runs;
    const Action& action = schedule_.actions[number][stage.next];
    const int position = schedule_.PositionAt(number, action.chunk);
    const bool is_forward = action.kind == ActionKind::kForward;
    const int before = is_forward ? position - 1 : position + 1;
    if (action.kind != ActionKind::kBackwardWeight && before >= 0 &&
        before < schedule_.positions()) {
      const double ready = (is_forward ? forwarded_ : backwarded_)[Cell(before, action)];
      if (ready > now_ + kSame * turn_) {
        next_turn_ = std::min(next_turn_, ready);
        return false;
      }
    }
    stage.seconds = stage.left = CostOf(action.kind, seconds_.At(position));
    return stage.runs = true;
  }

  // A stage goes on with what it made itself at once.
  void Finish(int number) {
    Stage& stage = stages_[number];
    const Action& action = schedule_.actions[number][stage.next++];
    stage.runs = false;
    if (action.kind == ActionKind::kBackwardWeight) return;
    const int position = schedule_.PositionAt(number, action.chunk);
    const bool is_forward = action.kind == ActionKind::kForward;
    const int after = is_forward ? position + 1 : position - 1;
    const bool is_sent = after >= 0 && after < schedule_.positions() &&
                         PlaceOf(schedule_.order, schedule_.stages, after).stage != number;
    (is_forward ? forwarded_ : backwarded_)[Cell(position, action)] = now_ + (is_sent ? turn_ : 0);
  }

  const Schedule& schedule_;
  const PartCosts& seconds_;
  const double turn_;
  double now_ = 0;
  double next_turn_ = kNever;  // the first time at which something that was sent has waited
  std::vector<Stage> stages_;
  // The times from which results are used, by position and micro-batch.
  std::vector<double> forwarded_, backwarded_;
};

}  // namespace

bool HasMoreRanksThanCores(const Hardware& hardware, int64_t ranks) {
  return hardware.cores() > 0 && ranks > hardware.cores();
}

bool HasThreads(const Hardware& hardware, int64_t ranks) {
  return hardware.cores() / std::max<int64_t>(1, ranks) > 1;
}

double RankSpeed(const Hardware& hardware, const Implementation& program, int64_t ranks) {
  if (!HasThreads(hardware, ranks)) return 1;
  const int64_t cores = hardware.cores() / std::max<int64_t>(1, ranks);
  const double in_a_step = program.threads_efficiency() > 0 ? program.threads_efficiency() : 1;
  return double(cores) * ThreadEfficiency(hardware, cores) * in_a_step;
}

double ThreadMeetingSeconds(const Hardware& hardware, int64_t ranks) {
  return HasThreads(hardware, ranks) ? 1e-6 * hardware.thread_meeting_us() : 0;
}

double MemoryShareOf(const Hardware& hardware, int64_t ranks, double bytes) {
  if (hardware.cores() == 0 || hardware.far_memory_efficiency() == 0) return 1;
  const double of_core = bytes * double(ranks) / hardware.cores();
  const double way = std::log(of_core / kNearBytes) / std::log(kFarBytes / kNearBytes);
  return std::pow(hardware.far_memory_efficiency(), std::clamp(way, 0.0, 1.0));
}

double MemoryOfRank(const Hardware& hardware, int64_t ranks) {
  return hardware.memory_gib() * (1 << 30) / (hardware.cores() > 0 ? double(ranks) : 1);
}

Hardware WithFewerCores(Hardware hardware, int64_t cores) {
  if (cores >= hardware.cores()) return hardware;
  hardware.set_thread_efficiency(ThreadEfficiency(hardware, cores));
  hardware.set_cores(static_cast<int32_t>(cores));
  return hardware;
}

double IdleSecondsOfCores(const Schedule& schedule, const PartCosts& seconds, int64_t ranks,
                          int64_t cores, double turn) {
  return Player(schedule, seconds, turn).Play(double(ranks), double(cores));
}

void ShareCores(const Hardware& hardware, const Implementation& program, const PlanLayout& layout,
                double excess, double idle, StepSeconds* seconds) {
  if (!HasMoreRanksThanCores(hardware, layout.gpus())) return;
  StepSeconds& s = *seconds;
  const double alone = s.total - s.constant;
  s.compute -= excess;
  // What a rank needs of a core, as a multiple of what it would need of its own.
  const double ranks_of_a_core =
      double(layout.gpus()) / hardware.cores() * (1 + program.turn_cost());
  const double busy = alone - s.bubble - excess;
  const double shared = ranks_of_a_core * busy + idle;
  for (double StepSeconds::*part :
       {&StepSeconds::compute, &StepSeconds::tensor_parallel, &StepSeconds::context_parallel,
        &StepSeconds::expert_parallel, &StepSeconds::messages, &StepSeconds::data_parallel,
        &StepSeconds::host_link, &StepSeconds::optimizer}) {
    s.*part *= ranks_of_a_core;
  }
  s.bubble = std::max(shared, alone) - ranks_of_a_core * busy;
  s.total = std::max(shared, alone) + s.constant;
}

}  // namespace megatron
