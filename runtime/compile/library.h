// Finding and loading libcuda and libnvrtc at run time. Neither is linked: a machine without them is a normal state,
// and what was tried is kept, so that a message can say exactly where we looked.
//
// Order of the search: the library's own variable (decisive: no other place is tried when it is set), already loaded
// into the process, the linker's own search by soname, $CUDA_HOME and $CUDA_PATH, beside nvcc on $PATH,
// /usr/local/cuda*, Python wheels.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/compile/cuda_abi.h"

namespace tw {

/// One place that was looked at, and what came of it.
struct SearchAttempt {
    std::string rule;     // "CUDA_HOME", "soname", ...
    std::string tried;    // a path, a soname or a folder
    std::string outcome;  // "loaded", "no such file", dlopen's words
};

/// What to look for.
struct LibrarySpec {
    std::string name;                           // "NVRTC"
    std::string variable;                       // "TW_NVRTC"
    std::vector<std::string> file_names;        // best first: "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"
    std::vector<std::string> required_symbols;  // a library without them is passed over
    bool comes_with_driver = false;             // libcuda: not in a toolkit, where only a stub of it lies
};

/// Where to look; tests replace both.
struct Surroundings {
    std::function<std::optional<std::string>(const std::string&)> variable;  // like getenv
    std::string root;                                                        // before /usr/local: "" but in tests
};
Surroundings process_surroundings();

/// A library that was found, or the record of the search that found none. Stays loaded until the process ends.
struct Library {
    std::string name;
    void* handle = nullptr;
    std::string path;  // of the file that was loaded
    std::vector<SearchAttempt> attempts;

    explicit operator bool() const { return handle != nullptr; }
    void* symbol(const std::string& symbol_name) const;  // nullptr where there is none
    std::string search_text() const;                     // one indented line for each attempt
};
Library find_library(const LibrarySpec& spec, const Surroundings& surroundings = process_surroundings());

/// The driver's functions; the comment names the symbol where it has a version. Optional ones may be null.
struct DriverTable {
    cuda::Result (*init)(unsigned flags);
    cuda::Result (*driver_get_version)(int* version);
    cuda::Result (*get_error_name)(cuda::Result, const char** text);
    cuda::Result (*get_error_string)(cuda::Result, const char** text);
    cuda::Result (*device_get)(cuda::DeviceHandle*, int ordinal);
    cuda::Result (*device_get_count)(int* count);
    cuda::Result (*device_get_name)(char* name, int length, cuda::DeviceHandle);
    cuda::Result (*device_total_mem)(size_t* bytes, cuda::DeviceHandle);  // _v2
    cuda::Result (*device_get_attribute)(int* value, cuda::Attribute, cuda::DeviceHandle);
    cuda::Result (*primary_ctx_retain)(cuda::Context*, cuda::DeviceHandle);
    cuda::Result (*primary_ctx_release)(cuda::DeviceHandle);  // _v2
    cuda::Result (*ctx_set_current)(cuda::Context);
    cuda::Result (*ctx_synchronize)();
    cuda::Result (*module_load_data)(cuda::Module*, const void* image);
    cuda::Result (*module_unload)(cuda::Module);
    cuda::Result (*module_get_function)(cuda::Function*, cuda::Module, const char* name);
    cuda::Result (*func_get_attribute)(int* value, int attribute, cuda::Function);
    cuda::Result (*func_set_attribute)(cuda::Function, int attribute, int value);
    cuda::Result (*func_get_param_info)(cuda::Function, size_t index, size_t* offset, size_t* bytes);  // optional, 12.4
    cuda::Result (*mem_get_info)(size_t* free_bytes, size_t* total_bytes);                             // _v2
    cuda::Result (*mem_alloc)(cuda::DevicePointer*, size_t bytes);                                     // _v2
    cuda::Result (*mem_free)(cuda::DevicePointer);                                                     // _v2
    cuda::Result (*memcpy_htod)(cuda::DevicePointer, const void* from, size_t bytes);                  // _v2
    cuda::Result (*memcpy_dtoh)(void* to, cuda::DevicePointer, size_t bytes);                          // _v2
    cuda::Result (*memcpy_dtod_async)(cuda::DevicePointer to, cuda::DevicePointer from, size_t bytes,
                                      cuda::StreamHandle);                                                       // _v2
    cuda::Result (*memcpy_htod_async)(cuda::DevicePointer, const void* from, size_t bytes, cuda::StreamHandle);  // _v2
    cuda::Result (*memcpy_dtoh_async)(void* to, cuda::DevicePointer, size_t bytes, cuda::StreamHandle);          // _v2
    cuda::Result (*mem_host_alloc)(void** pointer, size_t bytes, unsigned flags);
    cuda::Result (*mem_free_host)(void* pointer);
    cuda::Result (*pointer_get_attribute)(void* value, int attribute, cuda::DevicePointer);  // optional
    cuda::Result (*memset_d8_async)(cuda::DevicePointer, unsigned char value, size_t bytes, cuda::StreamHandle);
    cuda::Result (*memset_d16_async)(cuda::DevicePointer, unsigned short value, size_t elements, cuda::StreamHandle);
    cuda::Result (*memset_d32_async)(cuda::DevicePointer, unsigned value, size_t elements, cuda::StreamHandle);
    cuda::Result (*stream_create)(cuda::StreamHandle*, unsigned flags);
    cuda::Result (*stream_destroy)(cuda::StreamHandle);  // _v2
    cuda::Result (*stream_synchronize)(cuda::StreamHandle);
    cuda::Result (*stream_wait_event)(cuda::StreamHandle, cuda::EventHandle, unsigned flags);
    cuda::Result (*stream_get_ctx)(cuda::StreamHandle, cuda::Context*);     // optional
    cuda::Result (*stream_get_flags)(cuda::StreamHandle, unsigned* flags);  // optional
    cuda::Result (*event_create)(cuda::EventHandle*, unsigned flags);
    cuda::Result (*event_destroy)(cuda::EventHandle);  // _v2
    cuda::Result (*event_record)(cuda::EventHandle, cuda::StreamHandle);
    cuda::Result (*event_synchronize)(cuda::EventHandle);
    cuda::Result (*event_elapsed_time)(float* milliseconds, cuda::EventHandle begin, cuda::EventHandle end);
    cuda::Result (*launch_kernel)(cuda::Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                  unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes, cuda::StreamHandle,
                                  void** arguments, void** extra);
    cuda::Result (*launch_kernel_ex)(const cuda::LaunchConfig*, cuda::Function, void** arguments,
                                     void** extra);  // optional, 11.8
    cuda::Result (*tensor_map_encode_tiled)(void* map, int element, unsigned rank, void* base, const uint64_t* sizes,
                                            const uint64_t* strides, const unsigned* box,
                                            const unsigned* element_strides, int interleave, int swizzle,
                                            int l2_promotion, int fill);  // optional, 12.0
    cuda::Result (*tensor_map_encode_im2col)(void* map, int element, unsigned rank, void* base, const uint64_t* sizes,
                                             const uint64_t* strides, const int* lower, const int* upper,
                                             unsigned channels, unsigned pixels, const unsigned* element_strides,
                                             int interleave, int swizzle, int l2_promotion,
                                             int fill);  // optional, 12.0
    cuda::Result (*graph_create)(cuda::GraphHandle*, unsigned flags);
    cuda::Result (*graph_destroy)(cuda::GraphHandle);
    cuda::Result (*graph_add_kernel_node)(cuda::GraphNode*, cuda::GraphHandle, const cuda::GraphNode* dependencies,
                                          size_t num_dependencies, const cuda::KernelNodeParams*);  // _v2
    cuda::Result (*graph_add_memcpy_node)(cuda::GraphNode*, cuda::GraphHandle, const cuda::GraphNode* dependencies,
                                          size_t num_dependencies, const cuda::MemcpyParams*, cuda::Context);
    cuda::Result (*graph_add_memset_node)(cuda::GraphNode*, cuda::GraphHandle, const cuda::GraphNode* dependencies,
                                          size_t num_dependencies, const cuda::MemsetParams*, cuda::Context);
    cuda::Result (*graph_add_dependencies)(cuda::GraphHandle, const cuda::GraphNode* from, const cuda::GraphNode* to,
                                           const cuda::GraphEdge*, size_t count);  // _v2, optional, 12.3
    cuda::Result (*graph_instantiate)(cuda::GraphExec*, cuda::GraphHandle, unsigned long long flags);  // WithFlags
    cuda::Result (*graph_exec_kernel_node_set_params)(cuda::GraphExec, cuda::GraphNode,
                                                      const cuda::KernelNodeParams*);  // _v2
    cuda::Result (*graph_exec_destroy)(cuda::GraphExec);
    cuda::Result (*graph_launch)(cuda::GraphExec, cuda::StreamHandle);
};

struct NvrtcTable {
    const char* (*get_error_string)(cuda::NvrtcResult);
    cuda::NvrtcResult (*version)(int* major, int* minor);
    cuda::NvrtcResult (*create_program)(cuda::NvrtcProgram*, const char* source, const char* name, int num_headers,
                                        const char* const* headers, const char* const* include_names);
    cuda::NvrtcResult (*destroy_program)(cuda::NvrtcProgram*);
    cuda::NvrtcResult (*compile_program)(cuda::NvrtcProgram, int num_options, const char* const* options);
    cuda::NvrtcResult (*get_ptx_size)(cuda::NvrtcProgram, size_t*);
    cuda::NvrtcResult (*get_ptx)(cuda::NvrtcProgram, char*);
    cuda::NvrtcResult (*get_cubin_size)(cuda::NvrtcProgram, size_t*);
    cuda::NvrtcResult (*get_cubin)(cuda::NvrtcProgram, char*);
    cuda::NvrtcResult (*get_log_size)(cuda::NvrtcProgram, size_t*);
    cuda::NvrtcResult (*get_log)(cuda::NvrtcProgram, char*);
};

LibrarySpec driver_spec();
LibrarySpec nvrtc_spec();

/// The table of a library that find_library accepted for the same spec.
DriverTable driver_table(const Library& library);
NvrtcTable nvrtc_table(const Library& library);

struct Driver {
    Library library;
    DriverTable call{};
};
struct Nvrtc {
    Library library;
    NvrtcTable call{};
    int major = 0, minor = 0;
    std::string identity;  // version and file size, part of every cache key: "13.0 (109338064 bytes)"
};

/// From a search's result: calls cuInit, asks for the version. Throw NoDriver, NoDevice and NvrtcMissing
/// (runtime/compile/errors.h), which say where we looked.
Driver start_driver(Library library);
Nvrtc start_nvrtc(Library library);

/// The process' own driver and NVRTC, loaded by the first call; after a failure, a later call looks again.
const Driver& load_driver();
const Nvrtc& load_nvrtc();

/// "error 700 (CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered)"
std::string describe(const DriverTable& call, cuda::Result result);

}  // namespace tw
