// What users include to have schedules found by measuring: tune(), tune_on_first_use(), choices of their own rules.
// Link with tilewright::tuning, too.
#pragma once
#include <tilewright/tilewright.h>

#include "schedules/candidates.h"
#include "tuning/search_schedules.h"
#include "tuning/tune_declaration.h"
#include "tuning/tune_on_first_use.h"
