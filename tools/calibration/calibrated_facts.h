// The files that the planner reads, from what was measured.
#ifndef TOOLS_CALIBRATION_CALIBRATED_FACTS_H_
#define TOOLS_CALIBRATION_CALIBRATED_FACTS_H_

#include <string>

#include "megatron/plan/csv_table.h"
#include "megatron/plan/plan_facts.pb.h"
#include "tools/calibration/measure_cores.h"
#include "tools/calibration/measure_links.h"

namespace megatron {

struct MeasuredMachine {
  std::string name;
  int cores = 1;
  double memory_gib = 0;
  CoreRates core;
  LinkRates threads;
  LinkRates processes;
  double turn_seconds = 0;  // see Implementation.turn_seconds
};

// Returns one hardware and one implementation: `program` with the machine's efficiencies.
PlanFacts CalibratedFacts(const MeasuredMachine& machine, const Implementation& program);

// Returns the columns of measured_kernels.csv. An expert's product is a product by itself on a
// processor, so that each product is also there as a grouped one.
CsvTable CalibratedKernels(const MeasuredMachine& machine);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_CALIBRATED_FACTS_H_
