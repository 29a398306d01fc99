// SIGTERM, SIGINT and SIGHUP ask for a stop. The first one stops at the end of the step, with a
// checkpoint; a second SIGTERM or SIGINT ends the process at once, as without a handler. Signals
// that come soon after the first one belong to the same request: a service manager sends one to
// each process of a job, and the launcher passes its own on. A second SIGHUP has no effect: a
// terminal that is closed may send several. None has where the process was started without them,
// as nohup does.
#ifndef MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
#define MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_

#include "absl/time/time.h"

namespace megatron {

// `answer`: the first signal is answered on stderr. Signals within `one_request` after the first
// one have no effect.
void ListenForStopSignals(bool answer, absl::Duration one_request = absl::Seconds(1));
// Returns the signal that was received, or 0.
int StopSignal();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
