// What users include to declare, schedule, print, build, run and check.
#pragma once
#include <tilewright/dsl.h>

#include "dsl/interpret.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "ops/program.h"
#include "runtime/driver.h"
