//: shuffle_xor
/// The value of the lane whose number differs by these bits.
template <class T>
__device__ inline T shuffle_xor(T value, int lane_bits) { return __shfl_xor_sync(0xffffffff, value, lane_bits); }

//: shuffle_up
/// The value of the lane `distance` below; the first lanes keep their own.
template <class T>
__device__ inline T shuffle_up(T value, int distance) { return __shfl_up_sync(0xffffffff, value, distance); }

//: shuffle_down
/// The value of the lane `distance` above; the last lanes keep their own.
template <class T>
__device__ inline T shuffle_down(T value, int distance) { return __shfl_down_sync(0xffffffff, value, distance); }

//: shuffle_from
/// The value of one lane, for all.
template <class T>
__device__ inline T shuffle_from(T value, int lane) { return __shfl_sync(0xffffffff, value, lane); }

//: transpose_lanes needs pack_register unpack_register shuffle_xor
/// Of `lanes` neighbouring lanes, 2 or 4, each has as many words of two elements: lane i gets word i of each, in their
/// order.
template <int lanes, class T>
__device__ inline void transpose_lanes(T* elements) {
    constexpr int registers = sizeof(T) / 2;  // of a word
    unsigned words[lanes][registers];
    const int lane = threadIdx.x % lanes;
#pragma unroll
    for (int i = 0; i < lanes * registers; ++i)
        words[i / registers][i % registers] = pack_register(elements + i * (4 / (int)sizeof(T)));
#pragma unroll
    for (int bit = 1; bit < lanes; bit *= 2)
#pragma unroll
        for (int i = 0; i < lanes; ++i)
#pragma unroll
            for (int r = 0; r < registers; ++r) {
                if (i & bit) continue;
                unsigned &low = words[i][r], &high = words[i | bit][r];
                const unsigned other = shuffle_xor(lane & bit ? low : high, bit);
                if (lane & bit)
                    low = other;
                else
                    high = other;
            }
#pragma unroll
    for (int i = 0; i < lanes * registers; ++i)
        unpack_register(elements + i * (4 / (int)sizeof(T)), words[i / registers][i % registers]);
}
