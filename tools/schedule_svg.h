// Draws a played pipeline schedule as one SVG picture: a lane for each stage, a box for each
// action.
#ifndef MEGATRON_TOOLS_SCHEDULE_SVG_H_
#define MEGATRON_TOOLS_SCHEDULE_SVG_H_

#include <string>

#include "megatron/pipeline/check_schedule.h"

namespace megatron {

// Forwards blue, backwards orange, their input and weight parts orange and green; the chunks of a
// stage are told by their shade, micro-batches by their number where it fits. `title` stands above.
std::string ScheduleSvg(const ScheduleReport& report, const std::string& title);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_SCHEDULE_SVG_H_
