// All operations. Each checks its arguments, runs forward on the backend of its inputs, and records its backward.
#pragma once

#include "wick/autograd/checkpoint.h"
#include "wick/autograd/tape.h"
#include "wick/ops/attention.h"
#include "wick/ops/conv.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/embedding.h"
#include "wick/ops/gated.h"
#include "wick/ops/lora.h"
#include "wick/ops/loss.h"
#include "wick/ops/matmul.h"
#include "wick/ops/norm.h"
#include "wick/ops/random.h"
#include "wick/ops/rope.h"
#include "wick/ops/shape.h"
