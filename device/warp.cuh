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
