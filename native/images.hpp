// Operations of image networks and their densities: plain data, shared by the module and its
// kernels. Images lie channels last, (rows, height, width, channels), unless said otherwise.
#pragma once
#include <cstdint>

namespace weft {

// Normalisation of each channel followed by a ReLU, max(0, input · scale + shift), where
// scale = weight / std and shift = bias - mean · scale.
template <class T>
struct Norm {
    std::int64_t pixels, channels;
    const T *input, *scale, *shift;
    T* output;
    // The gradient, where g is the cotangent of what the ReLU let through:
    // gain · g - offset - slope · (input - centre).
    const T *cotangent, *centre, *gain, *offset, *slope;
    T* d_input;
};

// A transposed convolution of 4 × 4, stride 2 and padding 1, of what a normalisation with its ReLU
// makes of the input. The output (rows, outputs, tall, wide) lies channel by channel; its last row
// and column may be left out.
template <class T>
struct Enlarge {
    std::int64_t rows, inputs, outputs, height, width, tall, wide;
    Norm<T> norm;            // of all images; not its output
    const T *weight, *bias;  // weight is (inputs, outputs, 4, 4)
    T* output;
    const T* cotangent;
    T *d_weight, *d_bias;  // (outputs, 4, 4, inputs), (outputs); added to
    double* sums;          // those of the normalisation's gradient, (2, inputs); added to
};

// Log-density of what lies between 0 and 1 given log-odds: sums over a row's observed entries of
// value · raw - softplus(raw).
template <class T>
struct Density {
    std::int64_t rows, entries;
    const T *raw, *value;
    const std::uint8_t* observed;
    T* score;            // (rows)
    const T* cotangent;  // (rows)
    T* d_raw;
};

// One instruction set's kernels. Each runs over a share of the blocks or rows; scratch is in units
// of T.
template <class T>
struct ImageKernel {
    std::int64_t (*blocks)(const Norm<T>&);
    std::int64_t (*norm_scratch)(const Norm<T>&);
    // count, then mean and sum of squared deviations per channel, and as many numbers of scratch
    void (*moments)(const Norm<T>&, std::int64_t first, std::int64_t last, double* found,
                    T* scratch);
    void (*normalise)(const Norm<T>&, std::int64_t first, std::int64_t last, T* scratch);
    // sums of g and of g · (input - centre) per channel, added to
    void (*sums)(const Norm<T>&, std::int64_t first, std::int64_t last, double* found, T* scratch);
    void (*normalise_gradient)(const Norm<T>&, std::int64_t first, std::int64_t last, T* scratch);

    std::int64_t (*enlarge_scratch)(const Enlarge<T>&);
    void (*enlarge)(const Enlarge<T>&, std::int64_t first, std::int64_t last, T* scratch);
    // the gradient of the normalisation's output is left in norm.d_input
    void (*enlarge_gradient)(const Enlarge<T>&, std::int64_t first, std::int64_t last, T* scratch);

    void (*density)(const Density<T>&, std::int64_t first, std::int64_t last);
    void (*density_gradient)(const Density<T>&, std::int64_t first, std::int64_t last);
};

struct ImageKernels {
    const char* name;
    ImageKernel<float> single;
    ImageKernel<double> twofold;
};

// Joins the count, mean and squared deviations of `other` with those of `one`.
static inline void join(std::int64_t channels, double* one, const double* other) {
    const double count = one[0] + other[0];
    if (other[0] == 0) return;
    const double share = other[0] / count, weight = one[0] * share;
    for (std::int64_t c = 1; c <= channels; ++c) {
        const double step = other[c] - one[c];
        one[c] += share * step;
        one[channels + c] += other[channels + c] + weight * step * step;
    }
    one[0] = count;
}

}  // namespace weft
