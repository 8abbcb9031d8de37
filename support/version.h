// The version of the library: CMake reads it here.
#pragma once

#define TILEWRIGHT_VERSION "0.1.0"
