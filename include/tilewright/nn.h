// What users include to train: layers, the tape, optimizers.
#pragma once
#include <tilewright/tilewright.h>

#include "ops/attention.h"
#include "ops/checkpoint.h"
#include "ops/convolution.h"
#include "ops/elementwise.h"
#include "ops/joining.h"
#include "ops/layers.h"
#include "ops/modules/dropout.h"
#include "ops/modules/module.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/modules/sequential.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/persistence/checkpoint.h"
#include "ops/persistence/npy.h"
#include "ops/pooling.h"
#include "ops/reductions.h"
#include "ops/step/compile_step.h"
#include "ops/step/compiled_function.h"
#include "ops/views.h"
