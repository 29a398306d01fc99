// The options of a run's data, from a configuration.
#ifndef MEGATRON_TRAIN_TRAINER_DATA_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_DATA_SECTION_H_

#include "megatron/data/length_schedule.h"
#include "megatron/train/batches/training_data.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// All expect a valid configuration with its computed fields set.
LengthSchedule ToCurriculum(const config::DataConfig& config);
LengthSchedule ToRandomLtd(const config::DataConfig& config);
DataOptions ToDataOptions(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_DATA_SECTION_H_
