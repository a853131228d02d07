#include "wick/backend/cuda/optimizer/rules.h"

namespace wick {

void CudaBackend::optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) {
  const RuleStep all{*this, slots, step, scalars.as<float>()};
  switch (step.rule.kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adamw8bit:
      return adamw(all);
    case OptimizerKind::lion:
    case OptimizerKind::lion8bit:
      return lion(all);
    case OptimizerKind::adafactor:
      return adafactor(all);
    case OptimizerKind::prodigy:
      return prodigy(all);
    case OptimizerKind::schedule_free:
    case OptimizerKind::radam_schedule_free:
      return schedule_free(all);
  }
}

}  // namespace wick
