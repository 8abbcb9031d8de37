// Every primitive compiles for every architecture, by NVRTC and by nvcc.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "device/vocabulary.h"
#include "runtime/driver/driver.h"

namespace tw {
namespace {

/// A kernel that calls all of them.
std::string use_of_everything() {
    std::set<std::string> names;
    for (const std::string& name : device::vocabulary()) names.insert(name);
    names.insert("wgmma_m64n8k16_bf16");
    return device::vocabulary_text(names) + R"(
struct Shared {
    alignas(1024) float a[64];
    tw::Barrier barrier;
};

extern "C" __global__ void __launch_bounds__(128, 1) use(const tw::bf16* x, float* y, double* d, int* i, long long* l, unsigned* u,
                                                         const __grid_constant__ tw::TensorMap map) {
    Shared& shared = tw::shared_memory<Shared>();
    tw::bf16 h[8];
    float f[4];
    tw::load<8>(h, x);
    tw::begin_array(&shared.a[0], sizeof shared.a);
    tw::copy<4>(&shared.a[0], y);
    tw::copy_where<4>(y[0] > 0, y, &shared.a[0]);
    y[tw::inside(i[0], 4, "y", 0)] = y[tw::inside(l[0], 4LL, "y", 0)];
    tw::cp_async<1>(&shared.a[0], y);
    tw::cp_async<2>(&shared.a[2], y + 2);
    tw::cp_async_or_zero<2>(&shared.a[6], y + 6, y[0] > 0);
    tw::cp_async_or_zero<4>(&shared.a[8], y + 8, y[0] > 0);
    tw::cp_async_commit();
    tw::cp_async_wait<0>();
    tw::ldmatrix<4>(h, reinterpret_cast<tw::bf16*>(shared.a));
    tw::ldmatrix_trans<2>(h, reinterpret_cast<tw::bf16*>(shared.a));
    tw::ldmatrix<1>(f, shared.a);
    tw::f16 half[8] = {};
    signed char s[16] = {};
    tw::mma_m16n8k16(f, h, h);
    tw::mma_m16n8k16(f, half, half);
    tw::mma_m16n8k8(f, h, h);
    tw::mma_m16n8k8(f, half, half);
    tw::mma_m16n8k8(f, f, f);
    tw::mma_m16n8k4(f, f, f);
    tw::mma_m16n8k32(i, s, s);
    tw::mma_m16n8k16_negated(f, h, h);
    tw::mma_m16n8k8_negated(f, half, half);
    tw::mma_m16n8k4_negated(f, f, f);
#if defined(TW_EMULATED) || __CUDA_ARCH__ >= 890
    tw::e4m3 e4[16] = {};
    tw::e5m2 e5[16] = {};
    tw::narrow_pair(e4, f);
    tw::narrow_pair(e5, f);
    signed char i8[2];
    unsigned char u8[2];
    tw::narrow_pair(i8, f);
    tw::narrow_pair(u8, f);
    i[0] += i8[0] + i8[1] + u8[0] + u8[1];
    tw::mma_m16n8k32(f, e4, e4);
    tw::mma_m16n8k32(f, e4, e5);
    tw::mma_m16n8k32(f, e5, e4);
    tw::mma_m16n8k32(f, e5, e5);
    tw::mma_m16n8k32_negated(f, e5, e5);
    tw::stmatrix<4>(reinterpret_cast<tw::bf16*>(shared.a), h);
    tw::stmatrix_trans<2>(reinterpret_cast<tw::bf16*>(shared.a), h);
    tw::stmatrix<1>(shared.a, f);
#endif
    __syncthreads();
    tw::load<4>(f, shared.a);
    f[0] += tw::to_f32(h[0]) + tw::to_f32(tw::to_f16(f[1])) + tw::to_f32(tw::to_bf16(f[2])) + tw::to_f32(tw::to_e4m3(f[2]));
    f[0] += tw::to_f32(tw::to_e5m2(f[3])) + tw::to_tf32(f[0]) + tw::truncate_tf32(f[1]);
    f[0] += tw::round_to_odd(d[0]) + tw::round_to_odd(i[0]) + tw::round_to_odd(u[0]) + tw::round_to_odd(l[0]);
    f[1] = tw::exp(f[0]) + tw::exp2(f[1]) + tw::log(f[2]) + tw::log2(f[3]) + tw::tanh(f[0]) + tw::erf(f[1]) + tw::sigmoid(f[2]);
    f[1] += tw::ex2_approx(f[0]) + tw::lg2_approx(f[1]) + tw::rcp_approx(f[2]) + tw::rsqrt_approx(f[3]) + tw::tanh_approx(f[1]);
    f[2] = tw::fma(f[0], f[1], f[2]) + tw::sqrt(f[0]) + tw::rsqrt(f[1]) + tw::min(f[0], f[1]) + tw::max(f[0], f[2]) + tw::abs(f[1]);
    f[2] += tw::floor(f[0]) + tw::ceil(f[1]) + tw::round(f[2]) + tw::infinity<float>() + tw::nan<float>();
    d[0] = tw::exp(d[0]) + tw::exp2(d[1]) + tw::log(d[2]) + tw::log2(d[3]) + tw::tanh(d[0]) + tw::erf(d[1]) + tw::sigmoid(d[2]);
    d[0] += tw::fma(d[0], d[1], d[2]) + tw::sqrt(d[0]) + tw::rsqrt(d[1]) + tw::min(d[0], d[1]) + tw::max(d[0], d[2]) + tw::abs(d[1]);
    d[0] += tw::floor(d[0]) + tw::ceil(d[1]) + tw::round(d[2]) + tw::infinity<double>() + tw::nan<double>();
    i[0] = tw::floor_div(i[0], i[1]) + tw::floor_mod(i[1], i[2]) + tw::min(i[0], i[1]) + tw::max(i[0], i[1]) + tw::abs(i[0]);
    i[0] += tw::to_i32(f[0]) + tw::to_i32(d[0]) + tw::to_i8(f[1]) + tw::to_u8(d[1]);
    i[0] += tw::round_to_i32(f[0]) + tw::round_to_i8(f[1]) + tw::round_to_u8(f[2]);
    l[0] = tw::floor_div(l[0], l[1]) + tw::floor_mod(l[1], l[2]) + tw::min(l[0], l[1]) + tw::max(l[0], l[1]) + tw::abs(l[0]);
    l[0] += tw::to_i64(f[0]) + tw::to_i64(d[0]);
    u[0] = tw::min(u[0], u[1]) + tw::max(u[0], u[1]) + tw::to_u32(f[0]) + tw::to_u32(d[0]);
    tw::barrier_arrive(2, 128);
    tw::barrier_sync(1, 128);
    __syncwarp();
    f[0] = tw::shuffle_xor(f[0], 1) + tw::shuffle_up(f[1], 1) + tw::shuffle_down(f[0], 2) + tw::shuffle_from(f[2], 3);
    l[1] = tw::shuffle_xor(l[0], 1);
    d[1] = tw::shuffle_up(d[0], 1);
    i[1] = tw::shuffle_down(i[0], 1);
    u[1] = tw::shuffle_from(u[0], 1);
    tw::atomic_add(y, f[0]);
    tw::atomic_add(d, d[1]);
    tw::atomic_add(i, 1);
    tw::atomic_add(u, 1u);
    tw::atomic_add(l, 1ll);
    tw::atomic_add(&shared.a[1], f[1]);
    tw::atomic_min(i, 1);
    tw::atomic_min(u, 1u);
    tw::atomic_min(l, 1ll);
    tw::atomic_max(i, 1);
    tw::atomic_max(u, 1u);
    tw::atomic_max(l, 1ll);
    tw::take_ticket(i, u, 3, 2);
    tw::store<4>(y, f);
#if defined(TW_EMULATED) || __CUDA_ARCH__ >= 900
    tw::mbarrier_init(shared.barrier, 1);
    tw::fence_mbarrier_init();
    tw::cluster_arrive();
    tw::cluster_wait();
    tw::mbarrier_arrive(shared.barrier);
    tw::mbarrier_arrive_at(shared.barrier, tw::cluster_rank());
    tw::mbarrier_expect_tx(shared.barrier, 16);
    tw::tma_load<1>(shared.a, map, 0, shared.barrier);
    tw::tma_load<2>(shared.a, map, 0, 0, shared.barrier);
    tw::tma_load<3>(shared.a, map, 0, 0, 0, shared.barrier);
    tw::tma_load<4>(shared.a, map, 0, 0, 0, 0, shared.barrier);
    tw::tma_load<5>(shared.a, map, 0, 0, 0, 0, 0, shared.barrier);
    tw::tma_load_im2col<3>(shared.a, map, 0, 0, 0, 1, shared.barrier);
    tw::tma_load_im2col<4>(shared.a, map, 0, 0, 0, 0, 1, 2, shared.barrier);
    tw::tma_load_im2col<5>(shared.a, map, 0, 0, 0, 0, 0, 1, 2, 3, shared.barrier);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1200
    tw::tma_load_multicast<1>(shared.a, map, 0, shared.barrier, 3);
    tw::tma_load_multicast<2>(shared.a, map, 0, 0, shared.barrier, 3);
    tw::tma_load_multicast<3>(shared.a, map, 0, 0, 0, shared.barrier, 3);
    tw::tma_load_multicast<4>(shared.a, map, 0, 0, 0, 0, shared.barrier, 3);
    tw::tma_load_multicast<5>(shared.a, map, 0, 0, 0, 0, 0, shared.barrier, 3);
    tw::tma_load_im2col_multicast<3>(shared.a, map, 0, 0, 0, 1, shared.barrier, 3);
    tw::tma_load_im2col_multicast<4>(shared.a, map, 0, 0, 0, 0, 1, 2, shared.barrier, 3);
    tw::tma_load_im2col_multicast<5>(shared.a, map, 0, 0, 0, 0, 0, 1, 2, 3, shared.barrier, 3);
#endif
    tw::prefetch_tensor_map(map);
    tw::fence_proxy_async();
    tw::tma_store<1>(map, 0, shared.a);
    tw::tma_store<2>(map, 0, 0, shared.a);
    tw::tma_store<3>(map, 0, 0, 0, shared.a);
    tw::tma_store<4>(map, 0, 0, 0, 0, shared.a);
    tw::tma_store<5>(map, 0, 0, 0, 0, 0, shared.a);
    tw::tma_reduce_add<1>(map, 0, shared.a);
    tw::tma_reduce_add<2>(map, 0, 0, shared.a);
    tw::tma_reduce_add<3>(map, 0, 0, 0, shared.a);
    tw::tma_reduce_add<4>(map, 0, 0, 0, 0, shared.a);
    tw::tma_reduce_add<5>(map, 0, 0, 0, 0, 0, shared.a);
    tw::tma_store_commit();
    tw::tma_store_wait_read<0>();
    tw::tma_store_wait<0>();
    tw::mbarrier_wait(shared.barrier, 0);
    y[5] = *tw::peer_shared(&shared.a[0], 0);
    if (tw::elect_one()) y[6] = 1.0f;
#endif
#if defined(TW_EMULATED) || __CUDA_ARCH__ == 900
    tw::setmaxnreg_dec<40>();
    tw::setmaxnreg_inc<48>();
    const unsigned long long descriptor = tw::matrix_descriptor(shared.a, 128, 16, 1024);
    tw::leave_undefined(f);
    if (tw::always()) f[0] += 1.0f;
    tw::wgmma_fence_operand(f);
    tw::wgmma_fence();
    tw::wgmma_m64n8k16_bf16(f, descriptor, descriptor, false);
    tw::wgmma_commit();
    tw::wgmma_wait<0>();
    tw::wgmma_fence_operand(f);
    y[7] = f[0];
#endif
}
)";
}

class VocabularyCompiles : public testing::TestWithParam<const char*> {};

TEST_P(VocabularyCompiles, ByNvrtc) {
    auto device = open_device(fmt::format("null:{}", GetParam()));
    try {
        device->load({.name = "use.cu", .source = use_of_everything(), .entry = "use"});
    } catch (const NvrtcMissing& missing) {
        GTEST_SKIP() << missing.what();
    }
}

TEST_P(VocabularyCompiles, ByNvcc) {
    std::string nvcc = std::filesystem::exists("/usr/local/cuda/bin/nvcc") ? "/usr/local/cuda/bin/nvcc" : "nvcc";
    if (std::system((nvcc + " --version > /dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "there is no nvcc";
    const std::filesystem::path source =
        std::filesystem::path(testing::TempDir()) / fmt::format("use_{}.cu", GetParam());
    std::ofstream(source) << use_of_everything();
    EXPECT_EQ(std::system(fmt::format("{} -Werror all-warnings -std=c++17 -arch={} -cubin -o /dev/null {}", nvcc,
                                      GetParam(), source.string())
                              .c_str()),
              0);
    std::filesystem::remove(source);
}

INSTANTIATE_TEST_SUITE_P(Architectures, VocabularyCompiles, testing::Values("sm_80", "sm_90a", "sm_100a", "sm_120a"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Vocabulary, CompilesForTheEmulator) {
    EXPECT_NO_THROW(open_device("emulated")->load({.name = "use.cu", .source = use_of_everything(), .entry = "use"}));
}

}  // namespace
}  // namespace tw
