// What users include to plan a step of many operations as a whole: cut, schedule, place in memory, run as one launch.
#pragma once
#include <tilewright/tilewright.h>

#include "dsl/own_schedule.h"
#include "ops/step/explain_step.h"
#include "ops/step/first_not_finite.h"
#include "ops/step/interpret_step.h"
#include "ops/step/memory_map.h"
#include "ops/step/planned_step.h"
#include "schedules/views.h"
