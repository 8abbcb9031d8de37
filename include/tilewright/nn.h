// What users include to train: layers, the tape, optimizers.
#pragma once
#include <tilewright/tilewright.h>

#include "ops/attention.h"
#include "ops/layers.h"
#include "ops/optimizer.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
