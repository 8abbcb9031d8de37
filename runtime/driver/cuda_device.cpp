// Streams are created so that they wait for the NULL stream and it for them (flag 0). The synchronous copies run on the
// NULL stream, hence are ordered after all work submitted before; where wrapped streams do not wait for it, copies and
// fills wait for the whole device.
#include "runtime/driver/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "dsl/target.h"
#include "runtime/driver/compile_images.h"
#include "runtime/driver/cuda_context.h"
#include "runtime/driver/cuda_graph.h"
#include "runtime/driver/cuda_structures.h"
#include "runtime/driver/cuda_tensor_map.h"
#include "runtime/driver/kernel_parameters.h"
#include "runtime/driver/memory_pool.h"

namespace tw {
namespace {

using cuda::Result;

cuda::StreamHandle as_stream(void* handle) { return static_cast<cuda::StreamHandle>(handle); }
cuda::EventHandle as_event(void* handle) { return static_cast<cuda::EventHandle>(handle); }

class CudaDevice final : public Device, private CudaContext {
public:
    explicit CudaDevice(const DriverTable& call) : CudaContext(call) {}

    ~CudaDevice() override {
        if (!context_) return;
        call_.ctx_set_current(context_);
        release_pool();
        if (stream_) call_.stream_destroy(stream_);
        call_.primary_ctx_release(ordinal_);
    }

    // After construction, so that the destructor undoes what was done when a later part fails.
    void open(const Driver& driver, int ordinal) {
        properties_ = cuda_properties(driver, ordinal);
        name_ = properties_.name;
        ordinal_ = ordinal;
        check(call_.primary_ctx_retain(&context_, ordinal), "cuDevicePrimaryCtxRetain");
        enter();
        check(call_.stream_create(&stream_, 0), "cuStreamCreate");
    }

    DeviceKind kind() const override { return DeviceKind::Cuda; }

    void synchronize() override {
        enter();
        uint64_t submitted = submitted_;
        check(call_.ctx_synchronize(), "cuCtxSynchronize");
        finished_ = std::max<uint64_t>(finished_, submitted);
    }

    void release_pool() override {
        for (uint64_t pointer : pool_.drain()) call_.mem_free(pointer);
    }

    MemoryState memory_state() override {
        enter();
        size_t free_bytes = 0, total_bytes = 0;
        check(call_.mem_get_info(&free_bytes, &total_bytes), "cuMemGetInfo");
        return {int64_t(free_bytes), int64_t(total_bytes)};
    }

    uint64_t allocate_memory(int64_t bytes, const std::string& name) override {
        enter();
        int64_t rounded = MemoryPool::round_up(bytes);
        if (auto block = pool_.take(rounded)) {
            if (has_more_streams_ && block->freed_at > finished_) wait_for_users_of(rounded, *block);
            return block->pointer;
        }
        cuda::DevicePointer pointer = 0;
        Result result = call_.mem_alloc(&pointer, size_t(rounded));
        if (result == cuda::ErrorOutOfMemory) {
            release_pool();  // what was freed in other sizes may do
            result = call_.mem_alloc(&pointer, size_t(rounded));
        }
        if (result == cuda::ErrorOutOfMemory) refuse_allocation(rounded, name);
        check(result, "cuMemAlloc");
        return pointer;
    }

    void free_memory(uint64_t pointer, int64_t bytes) noexcept override {
        try {
            pool_.put(MemoryPool::round_up(bytes), {pointer, submitted_});
        } catch (...) {  // no memory for the note
            leave_to_driver([&] { call_.mem_free(pointer); });
        }
    }

    // What the driver can tell of memory that others allocated. Work that fails on a wrong pointer loses the device.
    void register_memory(uint64_t pointer, int64_t bytes, const std::string& name) override {
        enter();
        if (bytes == 0 || !call_.pointer_get_attribute) return;
        const std::string what = fmt::format("wrap '{}': {} bytes at {:#x}", name, bytes, pointer);
        int ordinal = 0;
        uint64_t begin = 0;
        size_t size = 0;
        Result result = call_.pointer_get_attribute(&ordinal, cuda::PointerDeviceOrdinal, pointer);
        if (result == cuda::ErrorInvalidValue)
            throw_error(LaunchError,
                        "{}: the driver of {} knows no memory there; is it a host pointer, or freed already? Memory of "
                        "others is allocated by CUDA",
                        what, properties_.name);
        check(result, "cuPointerGetAttribute", name);
        if (ordinal != ordinal_)
            throw_error(LaunchError, "{} belong to device {}; this is {}, device {}", what, ordinal, properties_.name,
                        ordinal_);
        check(call_.pointer_get_attribute(&begin, cuda::PointerRangeStart, pointer), "cuPointerGetAttribute", name);
        check(call_.pointer_get_attribute(&size, cuda::PointerRangeBytes, pointer), "cuPointerGetAttribute", name);
        if (pointer + uint64_t(bytes) > begin + size)
            throw_error(LaunchError, "{} leave their allocation of {} bytes from {:#x} on: {} are left there", what,
                        size, begin, begin + size - pointer);
    }

    void copy_in(uint64_t to, const void* from, int64_t bytes) override {
        enter();
        wait_for_others();
        check(call_.memcpy_htod(to, from, size_t(bytes)), "cuMemcpyHtoD");
        wait_for_others();  // it returns once the bytes have left the host
    }

    void copy_out(void* to, uint64_t from, int64_t bytes) override {
        enter();
        wait_for_others();
        check(call_.memcpy_dtoh(to, from, size_t(bytes)), "cuMemcpyDtoH");
    }

    void copy_across(uint64_t to, uint64_t from, int64_t bytes, void* stream) override {
        enter();
        ++submitted_;
        check(call_.memcpy_dtod_async(to, from, size_t(bytes), as_stream(stream)), "cuMemcpyDtoDAsync");
    }

    void* allocate_host_memory(int64_t bytes, const std::string& name) override {
        enter();
        void* pointer = nullptr;
        check(call_.mem_host_alloc(&pointer, size_t(bytes), 0), "cuMemHostAlloc", name);
        return pointer;
    }

    void free_host_memory(void* pointer) noexcept override {
        leave_to_driver([&] { call_.mem_free_host(pointer); });
    }

    void copy_in_later(uint64_t to, const void* from, int64_t bytes, void* stream) override {
        enter();
        ++submitted_;
        check(call_.memcpy_htod_async(to, from, size_t(bytes), as_stream(stream)), "cuMemcpyHtoDAsync");
    }

    void copy_out_later(void* to, uint64_t from, int64_t bytes, void* stream) override {
        enter();
        ++submitted_;
        check(call_.memcpy_dtoh_async(to, from, size_t(bytes), as_stream(stream)), "cuMemcpyDtoHAsync");
    }

    void fill_memory(uint64_t pointer, uint8_t value, int64_t bytes) override {
        enter();
        wait_for_others();
        ++submitted_;
        check(call_.memset_d8_async(pointer, value, size_t(bytes), nullptr), "cuMemsetD8Async");
        wait_for_others();
    }

    void fill_later(uint64_t to, uint32_t pattern, int64_t element_bytes, int64_t bytes, void* stream) override {
        enter();
        ++submitted_;
        const auto elements = size_t(bytes / element_bytes);
        const cuda::StreamHandle handle = as_stream(stream);
        if (element_bytes == 1)
            check(call_.memset_d8_async(to, static_cast<unsigned char>(pattern), elements, handle), "cuMemsetD8Async");
        else if (element_bytes == 2)
            check(call_.memset_d16_async(to, static_cast<unsigned short>(pattern), elements, handle),
                  "cuMemsetD16Async");
        else
            check(call_.memset_d32_async(to, pattern, elements, handle), "cuMemsetD32Async");
    }

    void* default_stream_handle() override { return stream_; }

    void* make_stream() override {
        enter();
        has_more_streams_ = true;
        cuda::StreamHandle stream = nullptr;
        check(call_.stream_create(&stream, 0), "cuStreamCreate");
        return stream;
    }

    void drop_stream(void* stream) noexcept override {
        leave_to_driver([&] { call_.stream_destroy(as_stream(stream)); });
    }

    void register_stream(void* stream, const std::string& name) override {
        enter();
        cuda::Context context = nullptr;
        unsigned flags = 0;
        if (stream && call_.stream_get_ctx) {
            check(call_.stream_get_ctx(as_stream(stream), &context), "cuStreamGetCtx", name);
            if (context != context_)
                throw_error(LaunchError,
                            "wrap_stream '{}': it belongs to another context than the primary one of {}; create it "
                            "while that is current",
                            name, properties_.name);
        }
        if (stream && call_.stream_get_flags)
            check(call_.stream_get_flags(as_stream(stream), &flags), "cuStreamGetFlags", name);
        has_more_streams_ = true;
        if (flags & cuda::StreamNonBlocking) has_apart_streams_ = true;
        wait_for_others();
    }

    void wait_stream(void* stream) override {
        enter();
        check(call_.stream_synchronize(as_stream(stream)), "cuStreamSynchronize");
    }

    void* make_event() override {
        enter();
        cuda::EventHandle event = nullptr;
        check(call_.event_create(&event, 0), "cuEventCreate");
        return event;
    }

    void drop_event(void* event) noexcept override {
        leave_to_driver([&] { call_.event_destroy(as_event(event)); });
    }

    void record_event(void* event, void* stream) override {
        enter();
        check(call_.event_record(as_event(event), as_stream(stream)), "cuEventRecord");
    }

    void wait_event(void* event) override {
        enter();
        check(call_.event_synchronize(as_event(event)), "cuEventSynchronize");
    }

    void stream_wait_event(void* stream, void* event) override {
        enter();
        check(call_.stream_wait_event(as_stream(stream), as_event(event), 0), "cuStreamWaitEvent");
    }

    double event_seconds(void* begin, void* end) override {
        enter();
        float milliseconds = 0;
        check(call_.event_elapsed_time(&milliseconds, as_event(begin), as_event(end)), "cuEventElapsedTime");
        return double(milliseconds) * 1e-3;
    }

    std::vector<std::shared_ptr<Kernel::State>> load_kernels(std::span<const KernelImage> images) override {
        auto compiled = compile_images(images);
        std::vector<std::shared_ptr<Kernel::State>> kernels;
        for (size_t i = 0; i < images.size(); ++i) kernels.push_back(load_cubin(images[i], compiled[i]));
        return kernels;
    }

    std::shared_ptr<Kernel::State> load_cubin(const KernelImage& image,
                                              std::shared_ptr<const CompiledKernel> compiled) {
        auto kernel = std::make_shared<CudaKernel>(
            [this](cuda::Module module) { leave_to_driver([&] { call_.module_unload(module); }); });
        kernel->device = shared_from_this();
        const std::string& cubin = compiled ? compiled->cubin : image.cubin;
        kernel->compiled = std::move(compiled);
        enter();
        check(call_.module_load_data(&kernel->module, cubin.data()), "cuModuleLoadData", image.name);
        check(call_.module_get_function(&kernel->function, kernel->module, image.entry.c_str()), "cuModuleGetFunction",
              image.entry);
        int static_shared_bytes = 0;
        check(call_.func_get_attribute(&static_shared_bytes, cuda::FunctionStaticSharedBytes, kernel->function),
              "cuFuncGetAttribute", image.entry);
        kernel->static_shared_bytes = static_shared_bytes;
        // The limit before it is raised by prepare_kernel, which is for static and dynamic together.
        kernel->dynamic_shared_allowed = properties_.shared_bytes_per_block - static_shared_bytes;
        read_parameters(*kernel, image.entry, number_of_parameters(image, cubin));
        kernel->interned_entry = intern(image.entry);
        return kernel;
    }

    void prepare_kernel(Kernel::State& state, const LaunchShape& shape) override {
        auto& kernel = static_cast<CudaKernel&>(state);
        std::lock_guard lock(kernel.mutex);
        if (shape.dynamic_shared_bytes <= kernel.dynamic_shared_allowed) return;
        enter();
        check(call_.func_set_attribute(kernel.function, cuda::FunctionMaxDynamicSharedBytes,
                                       int(shape.dynamic_shared_bytes)),
              "cuFuncSetAttribute(max dynamic shared bytes)", state.image.entry);
        kernel.dynamic_shared_allowed = shape.dynamic_shared_bytes;
    }

    void launch(const Launch& launch, void* stream) override {
        enter();
        const auto& kernel = static_cast<const CudaKernel&>(*launch.kernel().state());
        last_entry_.store(kernel.interned_entry, std::memory_order_relaxed);
        submitted_.fetch_add(1, std::memory_order_relaxed);
        if (can_start_early(launch) && call_.launch_kernel_ex) return launch_early(launch, kernel.function, stream);
        const auto shape = of_shape<cuda::LaunchConfig>(launch.shape());
        check(call_.launch_kernel(kernel.function, shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x,
                                  shape.block_y, shape.block_z, shape.dynamic_shared_bytes, as_stream(stream),
                                  launch.arguments().addresses(), nullptr),
              "cuLaunchKernel");
    }

    void encode_tensor_map(const emulator::TensorMapBits& map, void* bits) override {
        enter();
        if (!call_.tensor_map_encode_tiled || !call_.tensor_map_encode_im2col)
            throw_error(LaunchError, "the driver of {} knows no tensor maps; they need CUDA 12", properties_.name);
        auto [result, function] = encode_by_driver(call_, map, bits);
        check(result, function);
    }

    std::shared_ptr<Graph::State> make_graph(std::vector<Launch> launches,
                                             std::vector<std::vector<size_t>> after) override {
        enter();
        auto graph = std::make_shared<CudaGraph>([this](cuda::GraphHandle made, cuda::GraphExec exec) {
            leave_to_driver([&] {
                if (exec) call_.graph_exec_destroy(exec);
                if (made) call_.graph_destroy(made);
            });
        });
        graph->device = shared_from_this();
        graph->launches = std::move(launches);
        graph->after = std::move(after);
        check(call_.graph_create(&graph->graph, 0), "cuGraphCreate");
        const auto [result, what, entry] =
            add_nodes(call_, *graph, context_, [this](auto& one) { return can_start_early(one); });
        check(result, what, entry);
        check(call_.graph_instantiate(&graph->exec, graph->graph, 0), "cuGraphInstantiate");
        return graph;
    }

    void update_graph(Graph::State& state, size_t index, const Launch& launch) override {
        enter();
        auto& graph = static_cast<CudaGraph&>(state);
        auto params = node_params(launch);
        check(call_.graph_exec_kernel_node_set_params(graph.exec, graph.nodes[index], &params),
              "cuGraphExecKernelNodeSetParams", launch.kernel().entry());
    }

    void run_graph(Graph::State& state, void* stream) override {
        enter();
        auto& graph = static_cast<CudaGraph&>(state);
        for (auto launch = state.launches.rbegin(); launch != state.launches.rend(); ++launch) {
            const Kernel::State& kernel = *launch->kernel().state();
            if (kernel.is_memory_work) continue;
            last_entry_ = static_cast<const CudaKernel&>(kernel).interned_entry;
            break;
        }
        ++submitted_;
        check(call_.graph_launch(graph.exec, as_stream(stream)), "cuGraphLaunch");
    }

    // For destructors: no error can leave them, and on a lost context the driver's answer does not matter.
    template <class Action>
    void leave_to_driver(Action action) noexcept {
        call_.ctx_set_current(context_);
        action();
    }

private:
    bool can_start_early(const Launch& launch) const {
        const Target* target = find_target(properties_.arch);
        return launch.shape().starts_early && target && target->has_programmatic_launch;
    }

    void launch_early(const Launch& launch, cuda::Function function, void* stream) {
        cuda::LaunchAttribute overlap{.id = cuda::LaunchProgrammaticStreamSerialization, .value = 1, .rest = {}};
        auto config = of_shape<cuda::LaunchConfig>(launch.shape());
        config.stream = as_stream(stream);
        config.attributes = &overlap;
        config.num_attributes = 1;
        check(call_.launch_kernel_ex(&config, function, launch.arguments().addresses(), nullptr), "cuLaunchKernelEx");
    }

    // Streams of others may have been made such that the NULL stream, on which host copies and fills run, does not wait
    // for them, nor they for it. Called before such work and behind it.
    void wait_for_others() {
        if (has_apart_streams_) check(call_.ctx_synchronize(), "cuCtxSynchronize");
    }

    [[noreturn]] void refuse_allocation(int64_t bytes, const std::string& name) {
        size_t free_bytes = 0, total_bytes = 0;
        call_.mem_get_info(&free_bytes, &total_bytes);
        throw_error(OutOfMemory, "{}: no {} bytes for '{}'; {} of {} are free, and the pool of freed buffers is empty",
                    properties_.name, bytes, name, free_bytes, total_bytes);
    }

    // Work that was submitted before the block was freed may still use it. (With one stream it is ahead of the new
    // user's.)
    void wait_for_users_of(int64_t rounded, const MemoryPool::Block& block) {
        try {
            synchronize();
        } catch (...) {
            pool_.put(rounded, block);
            throw;
        }
    }

    static std::optional<size_t> number_of_parameters(const KernelImage& image, const std::string& cubin) {
        if (auto count = count_parameters(cubin, image.entry)) return count;
        auto parameters = kernel_parameters(image.source, image.entry);
        return parameters ? std::optional(parameters->size()) : std::nullopt;
    }

    // To ask for one behind the last is an error, which tools that watch the driver report: only what nobody tells the
    // number of is asked for until there is none.
    void read_parameters(CudaKernel& kernel, const std::string& entry, std::optional<size_t> count) {
        if (!call_.func_get_param_info) return;  // a driver before 12.4
        std::vector<size_t> sizes;
        size_t offset = 0, bytes = 0;
        for (size_t i = 0; i < count.value_or(SIZE_MAX); ++i) {
            Result result = call_.func_get_param_info(kernel.function, i, &offset, &bytes);
            if (result == cuda::ErrorInvalidValue) break;  // past the last one
            check(result, "cuFuncGetParamInfo", entry);
            sizes.push_back(bytes);
        }
        kernel.parameter_bytes = std::move(sizes);
    }

    int ordinal_ = 0;
    cuda::StreamHandle stream_ = nullptr;
    MemoryPool pool_;
    std::atomic<uint64_t> submitted_ = 0;          // pieces of work so far
    std::atomic<uint64_t> finished_ = 0;           // of which so many are known to be done
    std::atomic<bool> has_more_streams_ = false;   // than the default one
    std::atomic<bool> has_apart_streams_ = false;  // wrapped ones that do not wait for the NULL stream
};

}  // namespace

std::shared_ptr<Device> make_cuda_device(const Driver& driver, int ordinal) {
    auto device = std::make_shared<CudaDevice>(driver.call);
    device->open(driver, ordinal);
    return device;
}

}  // namespace tw
