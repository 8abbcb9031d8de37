// What a device does in a second, for the model of time: a small table of numbers, which `tw calibrate` measures.
#pragma once
#include <vector>

namespace tw::codegen {

/// Multiply-adds of 16 bits a cycle, of a multiprocessor's tensor cores.
inline constexpr double tensor_core_macs = 2048;

/// As measured on an H200. The last five are what suits the times of 475 schedules there; none is measured alone.
struct DeviceSpeeds {
    double clock = 1.755e9;        ///< cycles a second
    double memory_bytes = 4.5e12;  ///< a second, read or written
    double l2_bytes = 8e12;        ///< a second, that pass the second cache
    double launch = 1.2e-6;        ///< seconds of a kernel that does nothing, behind others
    double round_trip = 3e-7;      ///< seconds until what is read is there, of what others do not hide
    double instructions = 4;       ///< a cycle, of a multiprocessor's warps
    double specials = 0.5;         ///< the same of exponentials and their like
    double doubles = 2;            ///< the same of f64
    double blocks = 8.6e8;         ///< that begin in a second, of all multiprocessors
    double atomics = 1.2e10;       ///< sectors combined in a second, of all
    double barrier = 150;          ///< cycles of a barrier of a block
    double wavefronts = 2;         ///< a cycle, of a multiprocessor's shared memory and first cache
    double warp_latency = 3.4;     ///< cycles from one instruction of a warp to its next
    double spill_bytes = 60;       ///< that move for each register that a thread's arrays have too many
};

struct DeviceSpeed {
    const char* name;
    double DeviceSpeeds::*value;
    const char* unit;
};
/// All of them, by name.
const std::vector<DeviceSpeed>& device_speeds();

}  // namespace tw::codegen
