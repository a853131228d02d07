#include "wick/autograd/checkpoint.h"

namespace wick {
const Op kCheckpoint("checkpoint");
}
