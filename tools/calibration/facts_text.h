// Changes constants in a text of the planner's facts, and leaves what people have written there.
#ifndef TOOLS_CALIBRATION_FACTS_TEXT_H_
#define TOOLS_CALIBRATION_FACTS_TEXT_H_

#include <string>

#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

// Returns the text with the measured_efficiency and the step_seconds of the program in its entry
// `implementation` of that name. Comments, spaces and the order of fields stay. Without such an
// entry one with all of the program's fields is added. Expects a text that ParsePlanFacts() takes.
std::string WithFittedConstants(const std::string& text, const Implementation& program);

// Returns the text with the hardware's rates, size and folder of a disk in its entry of that name,
// which is there. All else stays.
std::string WithDisk(const std::string& text, const Hardware& hardware);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_FACTS_TEXT_H_
