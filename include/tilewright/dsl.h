// What users of the language include.
#pragma once
#include "dsl/declare_scan.h"
#include "dsl/declare_scatter.h"
#include "dsl/differentiate.h"
#include "dsl/expr.h"
#include "dsl/four_bits.h"
#include "dsl/hoist.h"
#include "dsl/interleaved_pairs.h"
#include "dsl/philox.h"
#include "dsl/schedule.h"
#include "dsl/target.h"
#include "dsl/tensor.h"
#include "dsl/tree.h"
