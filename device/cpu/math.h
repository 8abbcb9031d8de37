// Twins of ../math.cuh.
namespace tw {

template <class T>
TW_INLINE T infinity() { return (T)__builtin_inff(); }
template <class T>
TW_INLINE T nan() { return (T)bits_float(0x7fffffff); }

TW_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TW_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
TW_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
TW_INLINE double sqrt(double x) { return __builtin_sqrt(x); }

// The hardware's approximations: rounded from double.
inline float ex2_approx(float x) { return (float)__builtin_exp2((double)x); }
inline float lg2_approx(float x) { return (float)__builtin_log2((double)x); }
inline float rcp_approx(float x) { return 1.0f / x; }
inline float flushed(float x) { return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x; }
inline float ex2_approx_ftz(float x) { return flushed(ex2_approx(flushed(x))); }
inline float rcp_approx_ftz(float x) { return flushed(rcp_approx(flushed(x))); }
inline float rsqrt_approx(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
inline float tanh_approx(float x) { return (float)__builtin_tanh((double)x); }

namespace emulated {
template <class Float>
TW_INLINE bool less(Float a, Float b) { return a < b || (a == b && __builtin_signbit(a) && !__builtin_signbit(b)); }
template <class Float>
TW_INLINE Float chosen(Float a, Float b, bool first) { return a != a || b != b ? chosen_beside_nan(a, b) : first ? a : b; }
}  // namespace emulated

TW_INLINE float min(float a, float b) { return emulated::chosen(a, b, emulated::less(a, b)); }
TW_INLINE double min(double a, double b) { return emulated::chosen(a, b, emulated::less(a, b)); }
TW_INLINE int min(int a, int b) { return a < b ? a : b; }
TW_INLINE unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
TW_INLINE long long min(long long a, long long b) { return a < b ? a : b; }

TW_INLINE float max(float a, float b) { return emulated::chosen(a, b, emulated::less(b, a)); }
TW_INLINE double max(double a, double b) { return emulated::chosen(a, b, emulated::less(b, a)); }
TW_INLINE int max(int a, int b) { return a > b ? a : b; }
TW_INLINE unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
TW_INLINE long long max(long long a, long long b) { return a > b ? a : b; }

/// Exact in double, but for the first step, which rounds as fma does.
inline float whole_power(float x) {
    const float share = __builtin_fmaf(x, 0.00570235215f, 0.498023719f);
    const float kept = share > 0.0f ? (share < 1.0f ? share : 1.0f) : 0.0f;
    return (float)__builtin_floor((double)kept * 253.0 + 12582913.0);
}

TW_INLINE float abs(float x) { return __builtin_fabsf(x); }
TW_INLINE double abs(double x) { return __builtin_fabs(x); }
TW_INLINE int abs(int x) { return x < 0 ? (int)-(unsigned)x : x; }
TW_INLINE long long abs(long long x) { return x < 0 ? (long long)-(unsigned long long)x : x; }
TW_INLINE float floor(float x) { return __builtin_floorf(x); }
TW_INLINE double floor(double x) { return __builtin_floor(x); }
TW_INLINE float ceil(float x) { return __builtin_ceilf(x); }
TW_INLINE double ceil(double x) { return __builtin_ceil(x); }
TW_INLINE float round(float x) { return __builtin_rintf(x); }
TW_INLINE double round(double x) { return __builtin_rint(x); }

TW_INLINE double library_exp(double x) { return __builtin_exp(x); }
TW_INLINE double library_exp2(double x) { return __builtin_exp2(x); }
TW_INLINE double library_log(double x) { return __builtin_log(x); }
TW_INLINE double library_log2(double x) { return __builtin_log2(x); }
TW_INLINE double library_tanh(double x) { return __builtin_tanh(x); }
TW_INLINE double library_erf(double x) { return __builtin_erf(x); }

}  // namespace tw
