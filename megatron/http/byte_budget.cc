#include "megatron/http/byte_budget.h"

namespace megatron::http {

ByteBudget::Share ByteBudget::Take(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (bytes > bytes_ - held_) return nullptr;
  held_ += bytes;
  return Share(this, [bytes](ByteBudget* budget) {
    absl::MutexLock lock(&budget->mutex_);
    budget->held_ -= bytes;
  });
}

}  // namespace megatron::http
