// What users include to train: layers, the tape, optimizers.
#pragma once
#include <tilewright/tilewright.h>

#include "ops/attention.h"
#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/persistence/checkpoint.h"
#include "ops/persistence/npy.h"
#include "ops/pooling.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
