// The part of the CUDA driver's and NVRTC's binary interface that we call, declared here so that no CUDA header is
// needed to build. Names follow the CUDA documentation without the `cu` and `CU_`; the values are those of cuda.h and
// nvrtc.h (12.0 to 13.0).
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw::cuda {

using Result = int;              // CUresult
using DeviceHandle = int;        // CUdevice, an ordinal
using DevicePointer = uint64_t;  // CUdeviceptr

using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using GraphHandle = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using GraphNode = struct GraphNodeTag*;

// CUresult
constexpr Result Success = 0;
constexpr Result ErrorInvalidValue = 1;
constexpr Result ErrorOutOfMemory = 2;
constexpr Result ErrorNoDevice = 100;
constexpr Result ErrorEccUncorrectable = 214;
constexpr Result ErrorIllegalAddress = 700;
constexpr Result ErrorLaunchOutOfResources = 701;
constexpr Result ErrorLaunchTimeout = 702;
constexpr Result ErrorContextIsDestroyed = 709;
constexpr Result ErrorAssert = 710;
constexpr Result ErrorHardwareStack = 714;
constexpr Result ErrorIllegalInstruction = 715;
constexpr Result ErrorMisalignedAddress = 716;
constexpr Result ErrorInvalidAddressSpace = 717;
constexpr Result ErrorInvalidPc = 718;
constexpr Result ErrorLaunchFailed = 719;

// CUdevice_attribute
enum class Attribute : int {
    MaxThreadsPerBlock = 1,
    MaxBlockX = 2,
    MaxBlockY = 3,
    MaxBlockZ = 4,
    MaxGridX = 5,
    MaxGridY = 6,
    MaxGridZ = 7,
    SharedBytesPerBlock = 8,
    WarpSize = 10,
    ClockKilohertz = 13,
    Multiprocessors = 16,
    MemoryClockKilohertz = 36,
    MemoryBusBits = 37,
    L2Bytes = 38,
    MaxThreadsPerMultiprocessor = 39,
    ComputeMajor = 75,
    ComputeMinor = 76,
    SharedBytesPerMultiprocessor = 81,
    RegistersPerMultiprocessor = 82,
    SharedBytesPerBlockOptin = 97,
    MaxBlocksPerMultiprocessor = 106,
    ReservedSharedBytesPerBlock = 111,
};

// CUfunction_attribute
constexpr int FunctionStaticSharedBytes = 1;
constexpr int FunctionMaxDynamicSharedBytes = 8;

// CUpointer_attribute
constexpr int PointerDeviceOrdinal = 9;
constexpr int PointerRangeStart = 11;
constexpr int PointerRangeBytes = 12;

constexpr unsigned StreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

/// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParams {
    Function function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned dynamic_shared_bytes;
    void** arguments;
    void** extra;
    void* kernel;     // used when function is null
    Context context;  // likewise
};
static_assert(sizeof(KernelNodeParams) == 72);

/// CUDA_MEMCPY3D_v2, of whose ends each is of one kind of memory.
struct MemcpyEnd {
    size_t x_bytes, y, z, level;
    int kind;
    void* host;
    DevicePointer device;
    void* array;
    void* reserved;
    size_t pitch, height;
};
struct MemcpyParams {
    MemcpyEnd from, to;
    size_t width_bytes, height, depth;
};
static_assert(sizeof(MemcpyParams) == 200);
constexpr int MemoryOfDevice = 2;  // CU_MEMORYTYPE_DEVICE

/// CUDA_MEMSET_NODE_PARAMS
struct MemsetParams {
    DevicePointer to;
    size_t pitch;
    unsigned value, element_bytes;
    size_t width, height;  // elements, rows
};
static_assert(sizeof(MemsetParams) == 40);

/// CUlaunchAttribute
struct LaunchAttribute {
    int id;
    alignas(8) int value;
    char rest[60];  // of the widest value
};
static_assert(sizeof(LaunchAttribute) == 72);
constexpr int LaunchProgrammaticStreamSerialization = 6;

/// CUlaunchConfig
struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned dynamic_shared_bytes;
    StreamHandle stream;
    LaunchAttribute* attributes;
    unsigned num_attributes;
};
static_assert(sizeof(LaunchConfig) == 56);

/// CUgraphEdgeData
struct GraphEdge {
    unsigned char from_port, to_port, type;
    unsigned char reserved[5];
};
/// From a kernel whose blocks have all let the next start, or ended, to a kernel that waits for the rest itself.
constexpr GraphEdge ProgrammaticEdge{.from_port = 1, .to_port = 0, .type = 1, .reserved = {}};

// CUtensorMapDataType
enum class TensorElement : int {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    S32 = 3,
    U64 = 4,
    S64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9
};
constexpr int TensorL2Promotion128 = 2;  // CUtensorMapL2promotion

using NvrtcResult = int;
using NvrtcProgram = struct NvrtcProgramTag*;
constexpr NvrtcResult NvrtcSuccess = 0;
constexpr NvrtcResult NvrtcErrorCompilation = 6;
constexpr NvrtcResult NvrtcErrorBuiltinOperation = 7;

}  // namespace tw::cuda
