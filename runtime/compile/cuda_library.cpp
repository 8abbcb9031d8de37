// The function tables of libcuda and libnvrtc: which symbol each entry is.
#include <filesystem>
#include <memory>
#include <mutex>

#include "runtime/compile/errors.h"
#include "runtime/compile/library.h"

namespace tw {
namespace {

constexpr bool Optional = true;

// Visits each entry of the driver's table with its symbol. The version suffixes are those that cuda.h maps the plain
// names to.
template <class Visit>
void visit_driver(DriverTable& call, Visit visit) {
    visit(call.init, "cuInit");
    visit(call.driver_get_version, "cuDriverGetVersion");
    visit(call.get_error_name, "cuGetErrorName");
    visit(call.get_error_string, "cuGetErrorString");
    visit(call.device_get, "cuDeviceGet");
    visit(call.device_get_count, "cuDeviceGetCount");
    visit(call.device_get_name, "cuDeviceGetName");
    visit(call.device_total_mem, "cuDeviceTotalMem_v2");
    visit(call.device_get_attribute, "cuDeviceGetAttribute");
    visit(call.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
    visit(call.primary_ctx_release, "cuDevicePrimaryCtxRelease_v2");
    visit(call.ctx_set_current, "cuCtxSetCurrent");
    visit(call.ctx_synchronize, "cuCtxSynchronize");
    visit(call.module_load_data, "cuModuleLoadData");
    visit(call.module_unload, "cuModuleUnload");
    visit(call.module_get_function, "cuModuleGetFunction");
    visit(call.func_get_attribute, "cuFuncGetAttribute");
    visit(call.func_set_attribute, "cuFuncSetAttribute");
    visit(call.func_get_param_info, "cuFuncGetParamInfo", Optional);
    visit(call.mem_get_info, "cuMemGetInfo_v2");
    visit(call.mem_alloc, "cuMemAlloc_v2");
    visit(call.mem_free, "cuMemFree_v2");
    visit(call.memcpy_htod, "cuMemcpyHtoD_v2");
    visit(call.memcpy_dtoh, "cuMemcpyDtoH_v2");
    visit(call.memcpy_dtod_async, "cuMemcpyDtoDAsync_v2");
    visit(call.memcpy_htod_async, "cuMemcpyHtoDAsync_v2");
    visit(call.memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2");
    visit(call.mem_host_alloc, "cuMemHostAlloc");
    visit(call.mem_free_host, "cuMemFreeHost");
    visit(call.pointer_get_attribute, "cuPointerGetAttribute", Optional);
    visit(call.memset_d8_async, "cuMemsetD8Async");
    visit(call.memset_d16_async, "cuMemsetD16Async");
    visit(call.memset_d32_async, "cuMemsetD32Async");
    visit(call.stream_create, "cuStreamCreate");
    visit(call.stream_destroy, "cuStreamDestroy_v2");
    visit(call.stream_synchronize, "cuStreamSynchronize");
    visit(call.stream_wait_event, "cuStreamWaitEvent");
    visit(call.stream_get_ctx, "cuStreamGetCtx", Optional);
    visit(call.stream_get_flags, "cuStreamGetFlags", Optional);
    visit(call.event_create, "cuEventCreate");
    visit(call.event_destroy, "cuEventDestroy_v2");
    visit(call.event_record, "cuEventRecord");
    visit(call.event_synchronize, "cuEventSynchronize");
    visit(call.event_elapsed_time, "cuEventElapsedTime");
    visit(call.launch_kernel, "cuLaunchKernel");
    visit(call.launch_kernel_ex, "cuLaunchKernelEx", Optional);
    visit(call.tensor_map_encode_tiled, "cuTensorMapEncodeTiled", Optional);
    visit(call.tensor_map_encode_im2col, "cuTensorMapEncodeIm2col", Optional);
    visit(call.graph_create, "cuGraphCreate");
    visit(call.graph_destroy, "cuGraphDestroy");
    visit(call.graph_add_kernel_node, "cuGraphAddKernelNode_v2");
    visit(call.graph_add_memcpy_node, "cuGraphAddMemcpyNode");
    visit(call.graph_add_memset_node, "cuGraphAddMemsetNode");
    visit(call.graph_add_dependencies, "cuGraphAddDependencies_v2", Optional);
    visit(call.graph_instantiate, "cuGraphInstantiateWithFlags");
    visit(call.graph_exec_kernel_node_set_params, "cuGraphExecKernelNodeSetParams_v2");
    visit(call.graph_exec_destroy, "cuGraphExecDestroy");
    visit(call.graph_launch, "cuGraphLaunch");
}

template <class Visit>
void visit_nvrtc(NvrtcTable& call, Visit visit) {
    visit(call.get_error_string, "nvrtcGetErrorString");
    visit(call.version, "nvrtcVersion");
    visit(call.create_program, "nvrtcCreateProgram");
    visit(call.destroy_program, "nvrtcDestroyProgram");
    visit(call.compile_program, "nvrtcCompileProgram");
    visit(call.get_ptx_size, "nvrtcGetPTXSize");
    visit(call.get_ptx, "nvrtcGetPTX");
    visit(call.get_cubin_size, "nvrtcGetCUBINSize");
    visit(call.get_cubin, "nvrtcGetCUBIN");
    visit(call.get_log_size, "nvrtcGetProgramLogSize");
    visit(call.get_log, "nvrtcGetProgramLog");
}

// A visitor that fills a table from a library.
struct Fill {
    const Library& library;
    template <class Function>
    void operator()(Function& function, const char* symbol, bool = false) const {
        function = reinterpret_cast<Function>(library.symbol(symbol));
    }
};

// A visitor that lists the symbols that must be there.
struct ListRequired {
    std::vector<std::string>& symbols;
    template <class Function>
    void operator()(Function&, const char* symbol, bool optional = false) const {
        if (!optional) symbols.push_back(symbol);
    }
};

}  // namespace

LibrarySpec driver_spec() {
    LibrarySpec spec{.name = "the CUDA driver",
                     .variable = "TW_CUDA_DRIVER",
                     .file_names = {"libcuda.so.1", "libcuda.so"},
                     .required_symbols = {},
                     .comes_with_driver = true};
    DriverTable table{};
    visit_driver(table, ListRequired{spec.required_symbols});
    return spec;
}

LibrarySpec nvrtc_spec() {
    LibrarySpec spec{.name = "NVRTC",
                     .variable = "TW_NVRTC",
                     .file_names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
                     .required_symbols = {},
                     .comes_with_driver = false};
    NvrtcTable table{};
    visit_nvrtc(table, ListRequired{spec.required_symbols});
    return spec;
}

DriverTable driver_table(const Library& library) {
    DriverTable table{};
    visit_driver(table, Fill{library});
    return table;
}

NvrtcTable nvrtc_table(const Library& library) {
    NvrtcTable table{};
    visit_nvrtc(table, Fill{library});
    return table;
}

Driver start_driver(Library library) {
    if (!library)
        throw_error(NoDriver,
                    "no CUDA driver: libcuda was not found. Looked in:\n{}"
                    "Install the NVIDIA driver, or set TW_CUDA_DRIVER to the file.",
                    library.search_text());
    Driver driver{library, driver_table(library)};
    cuda::Result result = driver.call.init(0);
    if (result == cuda::ErrorNoDevice)
        throw_error(NoDevice, "the CUDA driver ({}) sees no device (cuInit: {}); is CUDA_VISIBLE_DEVICES empty?",
                    library.path, describe(driver.call, result));
    if (result != cuda::Success)
        throw_error(NoDriver, "the CUDA driver ({}) does not start: cuInit: {}", library.path,
                    describe(driver.call, result));
    return driver;
}

Nvrtc start_nvrtc(Library library) {
    if (!library)
        throw_error(
            NvrtcMissing,
            "NVRTC was not found. Looked in:\n{}"
            "Install the CUDA Toolkit 12 or 13 (or pip install nvidia-cuda-nvrtc), or set TW_NVRTC to the file.",
            library.search_text());
    Nvrtc nvrtc;
    nvrtc.library = library;
    nvrtc.call = nvrtc_table(library);
    if (auto result = nvrtc.call.version(&nvrtc.major, &nvrtc.minor); result != cuda::NvrtcSuccess)
        throw_error(NvrtcMissing, "NVRTC ({}) does not tell its version: {}", library.path,
                    nvrtc.call.get_error_string(result));
    // Builds of one version differ; the size of the file tells most of them apart.
    std::error_code ignored;
    auto bytes = std::filesystem::file_size(library.path, ignored);
    nvrtc.identity = fmt::format("{}.{} ({} bytes)", nvrtc.major, nvrtc.minor, bytes);
    return nvrtc;
}

// A failure is not remembered: a driver that is installed meanwhile is found by the next call.
const Driver& load_driver() {
    static std::mutex mutex;
    static std::unique_ptr<const Driver> driver;
    std::lock_guard lock(mutex);
    if (!driver) driver = std::make_unique<const Driver>(start_driver(find_library(driver_spec())));
    return *driver;
}

const Nvrtc& load_nvrtc() {
    static std::mutex mutex;
    static std::unique_ptr<const Nvrtc> nvrtc;
    std::lock_guard lock(mutex);
    if (!nvrtc) nvrtc = std::make_unique<const Nvrtc>(start_nvrtc(find_library(nvrtc_spec())));
    return *nvrtc;
}

std::string describe(const DriverTable& call, cuda::Result result) {
    const char* name = nullptr;
    const char* text = nullptr;
    call.get_error_name(result, &name);
    call.get_error_string(result, &text);
    return fmt::format("error {} ({}: {})", result, name ? name : "unknown", text ? text : "no description");
}

}  // namespace tw
