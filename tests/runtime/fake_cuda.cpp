#include "tests/runtime/fake_cuda.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/compile/cuda_abi.h"

namespace {

std::recursive_mutex mutex;
FakeCuda state;
thread_local bool has_context = false;
std::map<uint64_t, size_t> memory;
std::set<void*> handles;

constexpr std::array Sticky{214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
constexpr int InvalidValue = 1, OutOfMemory = 2, InvalidContext = 201, InvalidHandle = 400, NotFound = 500;

// Each exported call begins with it.
int next_call() {
    if (state.stuck_code) return ++state.num_calls, state.stuck_code;
    if (state.num_calls++ != state.fail_at) return 0;
    if (std::find(Sticky.begin(), Sticky.end(), state.fail_code) != Sticky.end()) state.stuck_code = state.fail_code;
    return state.fail_code;
}

int misuse(int code) {
    ++state.num_misuses;
    return code;
}

int next_call_in_context() {
    int code = next_call();
    return code ? code : has_context ? 0 : misuse(InvalidContext);
}

template <class Handle>
int create(Handle** handle, size_t bytes = 16) {
    if (int code = next_call_in_context()) return code;
    *handle = static_cast<Handle*>(std::malloc(bytes));
    handles.insert(*handle);
    ++state.num_alive;
    return 0;
}

// Destroys in any case, as a driver does that reports an earlier failure here.
int destroy(void* handle) {
    int code = next_call();
    if (!handles.erase(handle)) return misuse(InvalidHandle);
    std::free(handle);
    --state.num_alive;
    return code;
}

int known(void* handle) { return handles.contains(handle) ? 0 : misuse(InvalidHandle); }

// The range must lie in one allocation.
int check_range(uint64_t pointer, size_t bytes) {
    auto block = memory.upper_bound(pointer);
    if (block == memory.begin()) return misuse(InvalidValue);
    --block;
    return pointer + bytes <= block->first + block->second ? 0 : misuse(InvalidValue);
}

struct NodeParams {
    void* function;
    unsigned grid[3], block[3], shared;
    void** arguments;
    void** extra;
    void* kernel;
    void* context;
};

// One recorded launch; the arguments are copied, as cuGraphAddKernelNode does.
struct Node {
    float a;
    uint64_t x;
    int64_t n;
    std::vector<tw::cuda::MemcpyParams> copy = {};  // instead, at most one of both
    std::vector<tw::cuda::MemsetParams> fill = {};
};
std::map<void*, std::vector<void*>> nodes_of_graph;
std::map<void*, std::set<void*>> waits_of_node;
std::map<void*, Node> nodes;
std::map<void*, void*> graph_of_exec;

Node read_arguments(void** arguments) {
    Node node;
    std::memcpy(&node.a, arguments[0], 4);
    std::memcpy(&node.x, arguments[1], 8);
    std::memcpy(&node.n, arguments[2], 8);
    return node;
}

int set_elements(uint64_t to, unsigned value, size_t element_bytes, size_t count) {
    if (int code = check_range(to, count * element_bytes)) return code;
    for (size_t n = 0; n < count; ++n)
        std::memcpy(reinterpret_cast<char*>(to) + n * element_bytes, &value, element_bytes);
    return 0;
}

int copy_bytes(const tw::cuda::MemcpyParams& copy) {
    if (int code = check_range(copy.from.device, copy.width_bytes)) return code;
    if (int code = check_range(copy.to.device, copy.width_bytes)) return code;
    std::memcpy(reinterpret_cast<void*>(copy.to.device), reinterpret_cast<void*>(copy.from.device), copy.width_bytes);
    return 0;
}

int scale(const Node& node) {
    if (!node.copy.empty()) return copy_bytes(node.copy[0]);
    if (!node.fill.empty())
        return set_elements(node.fill[0].to, node.fill[0].value, node.fill[0].element_bytes, node.fill[0].width);
    if (int code = check_range(node.x, size_t(node.n) * 4)) return code;
    auto* x = reinterpret_cast<float*>(node.x);
    for (int64_t i = 0; i < node.n; ++i) x[i] *= node.a;
    return 0;
}

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace

extern "C" {

FakeCuda* fake_cuda() { return &state; }

int cuInit(unsigned) {
    Lock lock(mutex);
    int code = next_call();
    return code ? code : state.init_code;
}
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorName(int code, const char** text) {
    *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuGetErrorString(int code, const char** text) {
    *text = code == 700 ? "an illegal memory access was encountered" : "something else";
    return 0;
}
int cuDeviceGetCount(int* count) {
    Lock lock(mutex);
    *count = state.num_devices;
    return next_call();
}
int cuDeviceGet(int* device, int ordinal) {
    Lock lock(mutex);
    *device = ordinal;
    return next_call();
}
int cuDeviceGetName(char* name, int length, int) {
    Lock lock(mutex);
    std::strncpy(name, "Fake H200", size_t(length));
    return next_call();
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
    Lock lock(mutex);
    *bytes = size_t(state.memory_limit);
    return next_call();
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    Lock lock(mutex);
    static const std::map<int, int> values{
        {1, 1024}, {2, 1024},     {3, 1024},   {4, 64},       {5, 2147483647}, {6, 65535},     {7, 65535}, {8, 49152},
        {10, 32},  {13, 1980000}, {16, 132},   {36, 3201000}, {37, 6144},      {38, 62914560}, {39, 2048}, {75, 9},
        {76, 0},   {81, 233472},  {82, 65536}, {97, 232448},  {106, 32},       {111, 1024}};
    auto found = values.find(attribute);
    if (found == values.end()) return misuse(InvalidValue);
    *value = found->second;
    return next_call();
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    Lock lock(mutex);
    if (int code = next_call()) return code;
    state.memory_device = device;
    *context = &state;
    ++state.num_alive;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    Lock lock(mutex);
    --state.num_alive;
    has_context = false;
    return next_call();
}
int cuCtxSetCurrent(void* context) {
    Lock lock(mutex);
    has_context = context == &state;
    return next_call();
}
int cuCtxSynchronize() {
    Lock lock(mutex);
    ++state.num_synchronizations;
    return next_call_in_context();
}
int cuModuleLoadData(void** module, const void*) {
    Lock lock(mutex);
    return create(module);
}
int cuModuleUnload(void* module) {
    Lock lock(mutex);
    return destroy(module);
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(module)) return code;
    *function = module;
    return std::string(name) == "scale" ? 0 : NotFound;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
    Lock lock(mutex);
    *value = attribute == 1 ? 1024 : 0;
    int code = next_call_in_context();
    return code ? code : known(function);
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (attribute == 8) state.max_dynamic_shared_bytes = value;
    return known(function);
}
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(function)) return code;
    if (index > 2) {
        ++state.num_refused_questions;
        return InvalidValue;
    }
    *offset = index * 8;
    *bytes = index == 0 ? 4 : 8;
    return 0;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    Lock lock(mutex);
    *free_bytes = size_t(state.memory_limit - state.memory_used);
    *total_bytes = size_t(state.memory_limit);
    return next_call_in_context();
}
int cuMemAlloc_v2(uint64_t* pointer, size_t bytes) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (bytes == 0) return misuse(InvalidValue);
    if (int64_t(bytes) > state.memory_limit - state.memory_used) return OutOfMemory;
    *pointer = reinterpret_cast<uint64_t>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
    memory[*pointer] = bytes;
    state.memory_used += int64_t(bytes);
    ++state.num_alive;
    ++state.num_allocations;
    return 0;
}
int cuMemFree_v2(uint64_t pointer) {
    Lock lock(mutex);
    int code = next_call();
    auto block = memory.find(pointer);
    if (block == memory.end()) return misuse(InvalidValue);
    state.memory_used -= int64_t(block->second);
    memory.erase(block);
    std::free(reinterpret_cast<void*>(pointer));
    --state.num_alive;
    return code;
}
/// Of a pointer that lies nowhere it knows nothing, which is no misuse: others may ask it so.
int cuPointerGetAttribute(void* value, int attribute, uint64_t pointer) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    auto block = memory.upper_bound(pointer);
    if (block == memory.begin()) return InvalidValue;
    --block;
    if (pointer >= block->first + block->second) return InvalidValue;
    switch (attribute) {
        case 9: std::memcpy(value, &state.memory_device, sizeof(int)); return 0;
        case 11: std::memcpy(value, &block->first, sizeof(uint64_t)); return 0;
        case 12: std::memcpy(value, &block->second, sizeof(size_t)); return 0;
        default: return misuse(InvalidValue);
    }
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = check_range(to, bytes)) return code;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = check_range(from, bytes)) return code;
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(stream)) return code;
    if (int code = check_range(from, bytes)) return code;
    if (int code = check_range(to, bytes)) return code;
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return 0;
}
int cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    Lock lock(mutex);
    if (bytes == 0 || flags != 0) return misuse(InvalidValue);
    if (int64_t(bytes) > state.memory_limit) return OutOfMemory;
    return create(pointer, bytes);
}
int cuMemFreeHost(void* pointer) {
    Lock lock(mutex);
    return destroy(pointer);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    Lock lock(mutex);
    if (int code = known(stream)) return code;
    ++state.num_later_copies;
    return cuMemcpyHtoD_v2(to, from, bytes);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    Lock lock(mutex);
    if (int code = known(stream)) return code;
    ++state.num_later_copies;
    return cuMemcpyDtoH_v2(to, from, bytes);
}
int cuMemsetD8Async(uint64_t pointer, unsigned char value, size_t bytes, void*) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = check_range(pointer, bytes)) return code;
    std::memset(reinterpret_cast<void*>(pointer), value, bytes);
    return 0;
}
int cuMemsetD16Async(uint64_t pointer, unsigned short value, size_t elements, void* stream) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(stream)) return code;
    return set_elements(pointer, value, 2, elements);
}
int cuMemsetD32Async(uint64_t pointer, unsigned value, size_t elements, void* stream) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(stream)) return code;
    return set_elements(pointer, value, 4, elements);
}
int cuStreamCreate(void** stream, unsigned flags) {
    Lock lock(mutex);
    if (flags != 0) misuse(0);  // copies on the NULL stream would not wait for it
    return create(stream);
}
int cuStreamGetCtx(void* stream, void** context) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    *context = state.streams_are_foreign ? nullptr : &state;
    return known(stream);
}
int cuStreamGetFlags(void* stream, unsigned* flags) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    *flags = state.stream_flags;
    return known(stream);
}
int cuStreamDestroy_v2(void* stream) {
    Lock lock(mutex);
    return destroy(stream);
}
int cuStreamSynchronize(void* stream) {
    Lock lock(mutex);
    int code = next_call_in_context();
    return code ? code : known(stream);
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(stream)) return code;
    return known(event);
}
int cuEventCreate(void** event, unsigned) {
    Lock lock(mutex);
    return create(event);
}
int cuEventDestroy_v2(void* event) {
    Lock lock(mutex);
    return destroy(event);
}
int cuEventRecord(void* event, void* stream) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(stream)) return code;
    return known(event);
}
int cuEventSynchronize(void* event) {
    Lock lock(mutex);
    int code = next_call_in_context();
    return code ? code : known(event);
}
int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
    Lock lock(mutex);
    static int calls = 0;
    *milliseconds = float(1 + calls++ % 3);  // 1, 2, 3, 1, ...
    if (int code = next_call_in_context()) return code;
    if (int code = known(begin)) return code;
    return known(end);
}
int cuLaunchKernel(void* function, unsigned grid_x, unsigned, unsigned, unsigned block_x, unsigned, unsigned,
                   unsigned shared_bytes, void* stream, void** arguments, void**) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(function)) return code;
    if (int code = known(stream)) return code;
    if (grid_x == 0 || block_x == 0 || int(shared_bytes) > state.max_dynamic_shared_bytes) return misuse(InvalidValue);
    ++state.num_launches;
    state.last_shared_bytes = shared_bytes;
    return scale(read_arguments(arguments));
}
int cuLaunchKernelEx(const tw::cuda::LaunchConfig* config, void* function, void** arguments, void** extra) {
    bool early = config->num_attributes == 1 && config->attributes->id == 6 && config->attributes->value == 1;
    if (!early) return misuse(InvalidValue);
    ++state.num_early_launches;
    return cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y,
                          config->block_z, config->dynamic_shared_bytes, config->stream, arguments, extra);
}
/// Leaves what it was given in the map, as 16 numbers.
int cuTensorMapEncodeTiled(void* map, int element, unsigned rank, void* base, const uint64_t* sizes,
                           const uint64_t* strides, const unsigned* box, const unsigned* element_strides,
                           int interleave, int swizzle, int l2_promotion, int fill) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    uint64_t given[16] = {uint64_t(element),
                          rank,
                          reinterpret_cast<uint64_t>(base),
                          sizes[0],
                          sizes[1],
                          strides[0],
                          box[0],
                          box[1],
                          element_strides[0],
                          element_strides[1],
                          uint64_t(interleave),
                          uint64_t(swizzle),
                          uint64_t(l2_promotion),
                          uint64_t(fill)};
    std::memcpy(map, given, sizeof given);
    return 0;
}
/// Likewise.
int cuTensorMapEncodeIm2col(void* map, int element, unsigned rank, void* base, const uint64_t* sizes,
                            const uint64_t* strides, const int* lower, const int* upper, unsigned channels,
                            unsigned pixels, const unsigned* element_strides, int interleave, int swizzle,
                            int l2_promotion, int fill) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    auto pair = [](int first, int second) { return uint64_t(uint32_t(first)) << 32 | uint32_t(second); };
    uint64_t given[16] = {uint64_t(element),
                          rank,
                          reinterpret_cast<uint64_t>(base),
                          sizes[rank - 1],
                          strides[rank - 2],
                          pair(lower[0], lower[1]),
                          pair(upper[0], upper[1]),
                          channels,
                          pixels,
                          element_strides[0],
                          element_strides[1],
                          element_strides[2],
                          uint64_t(interleave),
                          uint64_t(swizzle),
                          uint64_t(l2_promotion),
                          uint64_t(fill)};
    std::memcpy(map, given, sizeof given);
    return 0;
}
int cuGraphCreate(void** graph, unsigned) {
    Lock lock(mutex);
    int code = create(graph);
    if (!code) nodes_of_graph[*graph] = {};
    return code;
}
int cuGraphDestroy(void* graph) {
    Lock lock(mutex);
    for (void* node : nodes_of_graph[graph]) {
        nodes.erase(node);
        waits_of_node.erase(node);
        std::free(node);
    }
    nodes_of_graph.erase(graph);
    return destroy(graph);
}
static int add_node(void** node, void* graph, void* const* dependencies, size_t num_dependencies, const Node& made) {
    if (int code = known(graph)) return code;
    auto& list = nodes_of_graph[graph];
    const std::set<void*> waits(dependencies, dependencies + num_dependencies);
    bool is_known = waits.size() == num_dependencies;
    for (void* before : waits) is_known = is_known && std::find(list.begin(), list.end(), before) != list.end();
    if (!is_known) return misuse(InvalidValue);
    *node = std::malloc(16);
    nodes[*node] = made;
    waits_of_node[*node] = waits;
    list.push_back(*node);
    state.num_edges += long(num_dependencies);
    return 0;
}
int cuGraphAddKernelNode_v2(void** node, void* graph, void* const* dependencies, size_t num_dependencies,
                            const NodeParams* params) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(params->function)) return code;
    return add_node(node, graph, dependencies, num_dependencies, read_arguments(params->arguments));
}
int cuGraphAddMemcpyNode(void** node, void* graph, void* const* dependencies, size_t num_dependencies,
                         const tw::cuda::MemcpyParams* params, void* context) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    const bool is_flat = params->height == 1 && params->depth == 1 && params->from.kind == 2 && params->to.kind == 2;
    if (!is_flat || !context) return misuse(InvalidValue);
    ++state.num_copy_nodes;
    return add_node(node, graph, dependencies, num_dependencies, {0, 0, 0, {*params}, {}});
}
int cuGraphAddMemsetNode(void** node, void* graph, void* const* dependencies, size_t num_dependencies,
                         const tw::cuda::MemsetParams* params, void* context) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (params->height != 1 || !context) return misuse(InvalidValue);
    ++state.num_fill_nodes;
    return add_node(node, graph, dependencies, num_dependencies, {0, 0, 0, {}, {*params}});
}
int cuGraphAddDependencies_v2(void* graph, void* const* from, void* const* to, const tw::cuda::GraphEdge* edge,
                              size_t count) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(graph)) return code;
    auto& list = nodes_of_graph[graph];
    bool is_known = count == 1 && !list.empty() && *to == list.back() && *from != *to && waits_of_node[*to].empty();
    is_known = is_known && nodes[*from].copy.empty() && nodes[*from].fill.empty();  // programmatic: of kernels alone
    is_known = is_known && std::find(list.begin(), list.end(), *from) != list.end();
    if (!is_known || edge->from_port != 1 || edge->type != 1) return misuse(InvalidValue);
    waits_of_node[*to].insert(*from);
    ++state.num_edges;
    ++state.num_early_launches;
    return 0;
}
int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    Lock lock(mutex);
    if (int code = known(graph)) return code;
    int code = create(exec);
    if (!code) graph_of_exec[*exec] = graph;
    return code;
}
int cuGraphExecKernelNodeSetParams_v2(void* exec, void* node, const NodeParams* params) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(exec)) return code;
    if (!nodes.contains(node)) return misuse(InvalidHandle);
    nodes[node] = read_arguments(params->arguments);
    return 0;
}
int cuGraphExecDestroy(void* exec) {
    Lock lock(mutex);
    graph_of_exec.erase(exec);
    return destroy(exec);
}
int cuGraphLaunch(void* exec, void* stream) {
    Lock lock(mutex);
    if (int code = next_call_in_context()) return code;
    if (int code = known(exec)) return code;
    if (int code = known(stream)) return code;
    std::vector<void*> open = nodes_of_graph[graph_of_exec[exec]];
    std::set<void*> done;
    while (!open.empty()) {  // the last one that may run
        auto next = std::find_if(open.rbegin(), open.rend(), [&](void* node) {
            const auto& waits = waits_of_node[node];
            return std::includes(done.begin(), done.end(), waits.begin(), waits.end());
        });
        if (int code = scale(nodes[*next])) return code;
        done.insert(*next);
        open.erase(std::next(next).base());
    }
    return 0;
}

}  // extern "C"
