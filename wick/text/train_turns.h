// The assistant's turns of a conversation that count in the loss.
#pragma once

namespace wick {

enum class TrainTurns { all, last };

}  // namespace wick
