// Python's side of the image operations: checks shapes, joins what the tasks found.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <string>
#include <vector>

#include "dispatch.hpp"
#include "images.hpp"

namespace nb = nanobind;

namespace weft {

#if defined(WEFT_X86)
extern const ImageKernels avx512_kernels, avx2_kernels;
#endif
extern const ImageKernels baseline_kernels;

namespace {

using Int = std::int64_t;

const ImageKernels* const BUILT[] = {
#if defined(WEFT_X86)
    &avx512_kernels, &avx2_kernels,
#endif
    &baseline_kernels};

// A normalisation's scale and shift, as both directions compute them from the same moments.
template <class T>
struct Affine {
    std::vector<T> scale, shift, centre;
    std::vector<double> inverse;  // of the standard deviations

    Affine(Int channels, const T* weight, const T* bias, const double* moments, double epsilon) {
        for (Int c = 0; c < channels; ++c) {
            const double mean = moments[c];
            inverse.push_back(1 / std::sqrt(moments[channels + c] + epsilon));
            const double gain = weight[c] * inverse[c];
            scale.push_back(T(gain));
            shift.push_back(T(bias[c] - mean * gain));
            centre.push_back(T(mean));
        }
    }

    void into(Norm<T>& norm) const {
        norm.scale = scale.data();
        norm.shift = shift.data();
        norm.centre = centre.data();
    }
};

template <class T>
Norm<T> norm_of(const Array<const T>& input, const Array<const T>& weight,
                const Array<const T>& bias, const Array<double>& moments) {
    require(input.ndim() == 2 && input.size() > 0, "Input must be (pixels, channels), not empty.");
    Norm<T> norm{};
    norm.pixels = input.shape(0);
    norm.channels = input.shape(1);
    norm.input = input.data();
    require(shaped(weight, {norm.channels}) && shaped(bias, {norm.channels}) &&
                shaped(moments, {2, norm.channels}),
            "Weight and bias must be (channels), moments (2, channels).");
    return norm;
}

// Mean and variance of each channel.
template <class T>
void find_moments(const Norm<T>& norm, const ImageKernel<T>& kernel, Int threads, double* found) {
    const Int channels = norm.channels;
    std::vector<std::vector<double>> parts(TASKS);
    spread(kernel.blocks(norm), threads, [&](Int task, Int first, Int last) {
        std::vector<T> space(kernel.norm_scratch(norm));
        parts[task].resize(2 * (1 + 2 * channels));
        kernel.moments(norm, first, last, parts[task].data(), space.data());
    });
    std::vector<double> sum(1 + 2 * channels);
    for (const std::vector<double>& part : parts)
        if (!part.empty()) join(channels, sum.data(), part.data());
    for (Int c = 0; c < channels; ++c) {
        found[c] = sum[1 + c];
        found[channels + c] = sum[1 + channels + c] / sum[0];
    }
}

// What tasks found, added up in their order.
template <class S>
std::vector<double> add_up(const std::vector<std::vector<S>>& parts, Int count) {
    std::vector<double> sum(count);
    for (const std::vector<S>& part : parts)
        for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
    return sum;
}

// The gradient of a normalisation given its sums, which are (2, channels). It may be written over
// the cotangent.
template <class T>
void finish_gradient(Norm<T>& norm, const Affine<T>& affine, const std::vector<double>& sum,
                     const ImageKernel<T>& kernel, Int threads, T* d_weight, T* d_bias) {
    const Int channels = norm.channels;
    std::vector<T> offset(channels), slope(channels);
    for (Int c = 0; c < channels; ++c) {
        const double inverse = affine.inverse[c], gain = affine.scale[c];
        offset[c] = T(gain * sum[c] / norm.pixels);
        slope[c] = T(gain * inverse * inverse * sum[channels + c] / norm.pixels);
        d_bias[c] = T(sum[c]);
        d_weight[c] = T(inverse * sum[channels + c]);
    }
    norm.gain = affine.scale.data();
    norm.offset = offset.data();
    norm.slope = slope.data();
    spread(kernel.blocks(norm), threads, [&](Int, Int first, Int last) {
        std::vector<T> space(kernel.norm_scratch(norm));
        kernel.normalise_gradient(norm, first, last, space.data());
    });
}

template <class T>
void normalise(Array<const T> input, Array<const T> weight, Array<const T> bias, double epsilon,
               Array<T> output, Array<double> moments, const std::string& kernels, Int threads) {
    Norm<T> norm = norm_of<T>(input, weight, bias, moments);
    require(shaped(output, {norm.pixels, norm.channels}), "Output must be shaped like the input.");
    norm.output = output.data();
    double* found = moments.data();
    const T *by = weight.data(), *beyond = bias.data();
    const ImageKernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    find_moments(norm, kernel, threads, found);
    const Affine<T> affine(norm.channels, by, beyond, found, epsilon);
    affine.into(norm);
    spread(kernel.blocks(norm), threads, [&](Int, Int first, Int last) {
        std::vector<T> space(kernel.norm_scratch(norm));
        kernel.normalise(norm, first, last, space.data());
    });
}

template <class T>
void normalise_gradient(Array<const T> input, Array<const T> weight, Array<const T> bias,
                        double epsilon, Array<double> moments, Array<const T> cotangent,
                        Array<T> d_input, Array<T> d_weight, Array<T> d_bias,
                        const std::string& kernels, Int threads) {
    Norm<T> norm = norm_of<T>(input, weight, bias, moments);
    const Int channels = norm.channels;
    require(shaped(cotangent, {norm.pixels, channels}) && shaped(d_input, {norm.pixels, channels}),
            "Cotangent and gradient must be shaped like the input.");
    require(shaped(d_weight, {channels}) && shaped(d_bias, {channels}),
            "Gradients of weight and bias must be (channels).");
    norm.cotangent = cotangent.data();
    norm.d_input = d_input.data();
    T *by = d_weight.data(), *beyond = d_bias.data();
    const Affine<T> affine(channels, weight.data(), bias.data(), moments.data(), epsilon);
    affine.into(norm);
    const ImageKernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    std::vector<std::vector<double>> parts(TASKS);
    spread(kernel.blocks(norm), threads, [&](Int task, Int first, Int last) {
        std::vector<T> space(kernel.norm_scratch(norm));
        parts[task].resize(2 * channels);
        kernel.sums(norm, first, last, parts[task].data(), space.data());
    });
    finish_gradient(norm, affine, add_up(parts, 2 * channels), kernel, threads, by, beyond);
}

// The input comes as (pixels, inputs), as for the normalisation; its height and width are half the
// output's, rounded up.
template <class T, class Output>
Enlarge<T> enlarge_of(const Norm<T>& norm, const Array<const T>& weight,
                      const Array<const T>& bias, const Output& output) {
    require(output.ndim() == 4, "Output must be (rows, outputs, height, width).");
    Enlarge<T> e{};
    e.norm = norm;
    e.inputs = norm.channels;
    e.rows = output.shape(0);
    e.outputs = output.shape(1);
    e.tall = output.shape(2);
    e.wide = output.shape(3);
    e.height = (e.tall + 1) / 2;
    e.width = (e.wide + 1) / 2;
    require(norm.pixels == e.rows * e.height * e.width,
            "Output must be twice as high and wide as the input, or one less.");
    require(shaped(weight, {e.inputs, e.outputs, 4, 4}) && shaped(bias, {e.outputs}),
            "Weight must be (inputs, outputs, 4, 4), bias (outputs).");
    e.weight = weight.data();
    e.bias = bias.data();
    return e;
}

template <class T>
void enlarge(Array<const T> input, Array<const T> gain, Array<const T> shift, double epsilon,
             Array<double> moments, Array<const T> weight, Array<const T> bias, Array<T> output,
             const std::string& kernels, Int threads) {
    Enlarge<T> e =
        enlarge_of<T>(norm_of<T>(input, gain, shift, moments), weight, bias, output);
    e.output = output.data();
    double* found = moments.data();
    const T *by = gain.data(), *beyond = shift.data();
    const ImageKernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    find_moments(e.norm, kernel, threads, found);
    const Affine<T> affine(e.inputs, by, beyond, found, epsilon);
    affine.into(e.norm);
    spread(e.rows, threads, [&](Int, Int first, Int last) {
        std::vector<T> space(kernel.enlarge_scratch(e));
        kernel.enlarge(e, first, last, space.data());
    });
}

template <class T>
void enlarge_gradient(Array<const T> input, Array<const T> gain, Array<const T> shift,
                      double epsilon, Array<double> moments, Array<const T> weight,
                      Array<const T> bias, Array<const T> cotangent, Array<T> d_input,
                      Array<T> d_gain, Array<T> d_shift, Array<T> d_weight, Array<T> d_bias,
                      const std::string& kernels, Int threads) {
    Enlarge<T> e =
        enlarge_of<T>(norm_of<T>(input, gain, shift, moments), weight, bias, cotangent);
    require(shaped(d_input, {e.norm.pixels, e.inputs}),
            "The input's gradient must be shaped like the input.");
    require(shaped(d_gain, {e.inputs}) && shaped(d_shift, {e.inputs}),
            "Gradients of the normalisation's parameters must be (inputs).");
    require(shaped(d_weight, {e.outputs, 4, 4, e.inputs}) && shaped(d_bias, {e.outputs}),
            "The weight's gradient must be (outputs, 4, 4, inputs), the bias's (outputs).");
    e.cotangent = cotangent.data();
    e.norm.d_input = d_input.data();
    e.norm.cotangent = e.norm.d_input;
    T *weights = d_weight.data(), *biases = d_bias.data();
    T *by = d_gain.data(), *beyond = d_shift.data();
    const Affine<T> affine(e.inputs, gain.data(), shift.data(), moments.data(), epsilon);
    affine.into(e.norm);
    const ImageKernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    const Int count = e.outputs * 16 * e.inputs;
    std::vector<std::vector<T>> parts(TASKS);
    std::vector<std::vector<double>> norm_parts(TASKS);
    spread(e.rows, threads, [&](Int task, Int first, Int last) {
        std::vector<T> space(kernel.enlarge_scratch(e));
        parts[task].resize(count + e.outputs);
        norm_parts[task].resize(2 * e.inputs);
        Enlarge<T> own = e;
        own.d_weight = parts[task].data();
        own.d_bias = own.d_weight + count;
        own.sums = norm_parts[task].data();
        kernel.enlarge_gradient(own, first, last, space.data());
    });
    const std::vector<double> sum = add_up(parts, count + e.outputs);
    for (Int i = 0; i < count; ++i) weights[i] = T(sum[i]);
    for (Int o = 0; o < e.outputs; ++o) biases[o] = T(sum[count + o]);
    finish_gradient(e.norm, affine, add_up(norm_parts, 2 * e.inputs), kernel, threads, by, beyond);
}

template <class T>
Density<T> density_of(const Array<const T>& raw, const Array<const T>& value,
                      const Array<const bool>& observed) {
    require(raw.ndim() == 2, "Raw output must be (rows, entries).");
    Density<T> d{};
    d.rows = raw.shape(0);
    d.entries = raw.shape(1);
    require(shaped(value, {d.rows, d.entries}) && shaped(observed, {d.rows, d.entries}),
            "Values and masks must be shaped like the raw output.");
    d.raw = raw.data();
    d.value = value.data();
    d.observed = (const std::uint8_t*)observed.data();
    return d;
}

template <class T>
void density(Array<const T> raw, Array<const T> value, Array<const bool> observed, Array<T> score,
             const std::string& kernels, Int threads) {
    Density<T> d = density_of<T>(raw, value, observed);
    require(shaped(score, {d.rows}), "Scores must be (rows).");
    d.score = score.data();
    const ImageKernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    spread(d.rows, threads, [&](Int, Int first, Int last) { kernel.density(d, first, last); });
}

template <class T>
void density_gradient(Array<const T> raw, Array<const T> value, Array<const bool> observed,
                      Array<const T> cotangent, Array<T> d_raw, const std::string& kernels,
                      Int threads) {
    Density<T> d = density_of<T>(raw, value, observed);
    require(shaped(cotangent, {d.rows}), "Cotangents must be (rows).");
    require(shaped(d_raw, {d.rows, d.entries}), "The gradient must be shaped like the raw output.");
    d.cotangent = cotangent.data();
    d.d_raw = d_raw.data();
    const ImageKernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    spread(d.rows, threads,
           [&](Int, Int first, Int last) { kernel.density_gradient(d, first, last); });
}

template <class T>
void define(nb::module_& module) {
    using namespace nb::literals;
    module.def("normalise", &normalise<T>, "input"_a, "weight"_a, "bias"_a, "epsilon"_a,
               "output"_a, "moments"_a, "kernels"_a, "threads"_a);
    module.def("normalise_gradient", &normalise_gradient<T>, "input"_a, "weight"_a, "bias"_a,
               "epsilon"_a, "moments"_a, "cotangent"_a, "d_input"_a, "d_weight"_a, "d_bias"_a,
               "kernels"_a, "threads"_a);
    module.def("enlarge", &enlarge<T>, "input"_a, "gain"_a, "shift"_a, "epsilon"_a, "moments"_a,
               "weight"_a, "bias"_a, "output"_a, "kernels"_a, "threads"_a);
    module.def("enlarge_gradient", &enlarge_gradient<T>, "input"_a, "gain"_a, "shift"_a,
               "epsilon"_a, "moments"_a, "weight"_a, "bias"_a, "cotangent"_a, "d_input"_a,
               "d_gain"_a, "d_shift"_a, "d_weight"_a, "d_bias"_a, "kernels"_a, "threads"_a);
    module.def("density", &density<T>, "raw"_a, "value"_a, "observed"_a, "score"_a, "kernels"_a,
               "threads"_a);
    module.def("density_gradient", &density_gradient<T>, "raw"_a, "value"_a, "observed"_a,
               "cotangent"_a, "d_raw"_a, "kernels"_a, "threads"_a);
}

}  // namespace
}  // namespace weft

NB_MODULE(_images, module) {
    module.doc() = "Operations of image networks and their densities, and their gradients.";
    weft::define<float>(module);
    weft::define<double>(module);
}
