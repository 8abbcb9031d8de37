// What users include to give kernels of their own a name: TW_KERNEL, and `tw --load`.
#pragma once
#include <tilewright/dsl.h>

#include "schedules/register_kernel.h"
