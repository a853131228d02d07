// All of Wick that a program of one's own needs.
#pragma once

#include "wick/nn/peft.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/convert.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/language_model.h"
#include "wick/pipelines/merge.h"
#include "wick/train/latent_cache.h"
#include "wick/train/objective.h"
#include "wick/train/optimizer.h"
#include "wick/train/text_batch.h"
