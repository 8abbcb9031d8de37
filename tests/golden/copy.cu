// b[i] = a[i]
// schedule: 256 elements a block
// 256 threads

extern "C" __global__ void __launch_bounds__(256, 1)
copy_kernel(const float* __restrict__ a, float* __restrict__ b, int n) {
    const int block_x = blockIdx.x;
    const int thread = threadIdx.x;
    const int i = block_x * 256 + thread;
    if (i < n) b[i] = a[i];
}
