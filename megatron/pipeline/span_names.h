// The names of what a stage does, in traces and tables of times.
#ifndef MEGATRON_PIPELINE_SPAN_NAMES_H_
#define MEGATRON_PIPELINE_SPAN_NAMES_H_

#include "megatron/pipeline/schedule.h"
#include "megatron/pipeline/stage_plan.h"

namespace megatron {

// "backward input".
const char* SpanName(ActionKind kind);

// Returns the name of Megatron's timer of an exchange.
const char* ExchangeName(const Step& step);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_SPAN_NAMES_H_
