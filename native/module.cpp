// Python's side of the scan: checks shapes, picks kernels for this processor, spreads threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dispatch.hpp"
#include "scan.hpp"

namespace nb = nanobind;

namespace weft {

#if defined(WEFT_X86)
extern const Kernels avx512_kernels, avx2_kernels;
#endif
extern const Kernels baseline_kernels;

namespace {

const Kernels* const BUILT[] = {
#if defined(WEFT_X86)
    &avx512_kernels, &avx2_kernels,
#endif
    &baseline_kernels};

template <class T>
using Strided = nb::ndarray<const T, nb::device::cpu>;

// Whether the last axis lies without gaps.
template <class A>
bool dense(const A& array) {
    const std::size_t last = array.ndim() - 1;
    return array.shape(last) == 1 || array.stride(last) == 1;
}

// Everything a scan reads, as Python gives it; `Scan` points into it.
template <class T>
struct Problem {
    Array<const T> weights, prior, bounds;  // (w), (2, latent), (2, latent)
    Array<const T> start_precision, start_information;
    Array<const T> factor_precision, factor_information;
    Strided<T> future_precision, future_information;
    Array<const bool> seen;
    Strided<T> points;  // (steps, particles, rows, latent); with none of them, numbers are drawn
    std::int64_t hidden, particles;
    std::uint64_t seed;
    bool mirrored, reversed;

    Scan<T> scan() const {
        Scan<T> s{};
        require(factor_precision.ndim() == 3, "Factors must be (steps, rows, latent).");
        s.steps = factor_precision.shape(0);
        s.data_rows = factor_precision.shape(1);
        s.latent = factor_precision.shape(2);
        s.hidden = hidden;
        s.particles = particles;
        require(start_precision.ndim() == 2, "The start must be (rows, latent).");
        s.rows = start_precision.shape(0);
        const std::int64_t T_ = s.steps, N = s.data_rows, D = s.latent;
        require(D > 0 && hidden > 0 && particles > 0 && N > 0, "Sizes must be positive.");
        require(s.rows % N == 0, "The start's rows must be a multiple of the factors'.");
        require(shaped(weights, {weight_count(D, hidden)}), "The weights have another size.");
        require(shaped(prior, {2, D}) && shaped(bounds, {2, D}), "Prior and bounds: (2, latent).");
        require(shaped(start_precision, {s.rows, D}) && shaped(start_information, {s.rows, D}),
                "The start must be (rows, latent).");
        require(shaped(factor_information, {T_, N, D}), "Factors must be (steps, rows, latent).");
        require(shaped(future_precision, {T_, N, D}) && shaped(future_information, {T_, N, D}),
                "The future must be (steps, rows, latent).");
        require(dense(future_precision) && dense(future_information) &&
                    future_precision.stride(0) == future_information.stride(0) &&
                    future_precision.stride(1) == future_information.stride(1),
                "The future's latent axis must be dense, and both its parameters laid out alike.");
        require(shaped(seen, {T_, N}), "The mask must be (steps, rows).");
        s.weights = weights.data();
        s.prior_precision = prior.data();
        s.prior_information = prior.data() + D;
        s.low = bounds.data();
        s.high = bounds.data() + D;
        s.start_precision = start_precision.data();
        s.start_information = start_information.data();
        s.factor_precision = factor_precision.data();
        s.factor_information = factor_information.data();
        s.future_precision = future_precision.data();
        s.future_information = future_information.data();
        s.future_step = future_precision.stride(0);
        s.future_row = future_precision.stride(1);
        s.seen = (const std::uint8_t*)seen.data();
        s.noise.seed = seed;
        s.noise.mirrored = mirrored;
        s.reversed = reversed;
        if (points.size() > 0) {
            require(shaped(points, {T_, particles, s.rows, D}) && dense(points),
                    "Points must be (steps, particles, rows, latent), dense in the last axis.");
            s.noise.points = points.data();
            s.noise.step = points.stride(0);
            s.noise.particle = points.stride(1);
            s.noise.row = points.stride(2);
        }
        return s;
    }
};

// What a scan gives, or the cotangents of it: messages, and with one particle, if wanted, what it
// was drawn from and where it came to lie (arrays without elements if not). Drifts are for the
// gradient alone.
template <class T>
struct Found {
    Array<T> precision, information, posterior_precision, posterior_information, states;
    Array<T> drift;

    void check(const Scan<T>& s) const {
        require(shaped(precision, {s.steps + 1, s.rows, s.latent}) &&
                    shaped(information, {s.steps + 1, s.rows, s.latent}),
                "Messages must be (steps + 1, rows, latent).");
        if (!states.size()) return;
        require(s.particles == 1, "Only single particles have states to show.");
        for (const auto* array : {&posterior_precision, &posterior_information, &states})
            require(shaped(*array, {s.steps, s.rows, s.latent}),
                    "Posteriors and states must be (steps, rows, latent).");
    }

    void into(Scan<T>& s) const {
        check(s);
        s.message_precision = precision.data();
        s.message_information = information.data();
        if (drift.size()) {
            require(shaped(drift, {s.steps + 1, s.rows, s.latent}), "Drifts: shaped like messages.");
            s.drift = drift.data();
        }
        if (!states.size()) return;
        s.posterior_precision = posterior_precision.data();
        s.posterior_information = posterior_information.data();
        s.states = states.data();
    }
};

template <class T>
void forward(const Problem<T>& problem, const Found<T>& found, const std::string& kernels,
             std::int64_t threads) {
    Scan<T> scan = problem.scan();
    found.into(scan);
    const Kernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    spread(kernel.blocks(scan), threads,
           [&](std::int64_t, std::int64_t first, std::int64_t last) {
               std::vector<T> scratch(kernel.scratch(scan));
               kernel.forward(scan, first, last, scratch.data());
           });
}

template <class T>
void backward(const Problem<T>& problem, const Found<T>& found, const Found<T>& cotangents,
              Array<T> d_weights, Array<T> d_prior, Array<T> d_start_precision,
              Array<T> d_start_information, Array<T> d_factor_precision,
              Array<T> d_factor_information, Array<T> d_future_precision,
              Array<T> d_future_information, const std::string& kernels, std::int64_t threads) {
    Scan<T> scan = problem.scan();
    found.into(scan);
    cotangents.check(scan);
    require(scan.drift, "A gradient needs the drifts of its scan.");
    const std::int64_t steps = scan.steps, rows = scan.rows, D = scan.latent;
    for (const auto* array : {&d_start_precision, &d_start_information})
        require(shaped(*array, {rows, D}), "Gradients of the start must be (rows, latent).");
    for (const auto* array : {&d_factor_precision, &d_factor_information, &d_future_precision,
                              &d_future_information})
        require(shaped(*array, {steps, rows, D}), "Gradients of data: (steps, rows, latent).");
    const std::int64_t weights = weight_count(D, scan.hidden);
    require(shaped(d_weights, {weights}) && shaped(d_prior, {2, D}),
            "Gradients of weights and prior have another size.");
    Gradients<T> to{};
    to.message_precision = cotangents.precision.data();
    to.message_information = cotangents.information.data();
    if (cotangents.states.size()) {
        to.posterior_precision = cotangents.posterior_precision.data();
        to.posterior_information = cotangents.posterior_information.data();
        to.states = cotangents.states.data();
    }
    to.start_precision = d_start_precision.data();
    to.start_information = d_start_information.data();
    to.factor_precision = d_factor_precision.data();
    to.factor_information = d_factor_information.data();
    to.future_precision = d_future_precision.data();
    to.future_information = d_future_information.data();
    T *sum_weights = d_weights.data(), *sum_prior = d_prior.data();
    const Kernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    nb::gil_scoped_release released;
    std::vector<std::vector<T>> parts(TASKS);
    spread(kernel.blocks(scan), threads,
           [&](std::int64_t task, std::int64_t first, std::int64_t last) {
               std::vector<T> scratch(kernel.scratch(scan));
               parts[task].resize(weights + 2 * D);
               Gradients<T> own = to;
               own.weights = parts[task].data();
               own.prior = own.weights + weights;
               kernel.backward(scan, own, first, last, scratch.data());
           });
    std::fill(sum_weights, sum_weights + weights, T(0));
    std::fill(sum_prior, sum_prior + 2 * D, T(0));
    for (const std::vector<T>& part : parts) {
        if (part.empty()) continue;
        for (std::int64_t i = 0; i < weights; ++i) sum_weights[i] += part[i];
        for (std::int64_t i = 0; i < 2 * D; ++i) sum_prior[i] += part[weights + i];
    }
}

template <class T>
void normal(Array<T> out, std::uint64_t seed, bool mirrored, const std::string& kernels) {
    require(out.ndim() == 4, "Noise must be (steps, particles, rows, latent).");
    Scan<T> scan{};
    scan.steps = out.shape(0);
    scan.particles = out.shape(1);
    scan.rows = scan.data_rows = out.shape(2);
    scan.latent = out.shape(3);
    scan.hidden = 1;
    scan.noise.seed = seed;
    scan.noise.mirrored = mirrored;
    const Kernel<T>& kernel = of_type<T>(named(BUILT, kernels));
    std::vector<T> scratch(kernel.scratch(scan));
    kernel.normal(scan, out.data(), scratch.data());
}

template <class T>
void define(nb::module_& module, const char* problem, const char* found) {
    using namespace nb::literals;
    using P = Problem<T>;
    using F = Found<T>;
    nb::class_<P>(module, problem)
        .def(
            "__init__",
            [](P* self, Array<const T> weights, Array<const T> prior, Array<const T> bounds,
               Array<const T> start_precision, Array<const T> start_information,
               Array<const T> factor_precision, Array<const T> factor_information,
               Strided<T> future_precision, Strided<T> future_information, Array<const bool> seen,
               Strided<T> points, std::int64_t hidden, std::int64_t particles, std::uint64_t seed,
               bool mirrored, bool reversed) {
                new (self) P{weights, prior, bounds, start_precision, start_information,
                             factor_precision, factor_information, future_precision,
                             future_information, seen, points, hidden, particles, seed, mirrored,
                             reversed};
                self->scan();
            },
            "weights"_a, "prior"_a, "bounds"_a, "start_precision"_a, "start_information"_a,
            "factor_precision"_a, "factor_information"_a, "future_precision"_a,
            "future_information"_a, "seen"_a, "points"_a, "hidden"_a, "particles"_a, "seed"_a,
            "mirrored"_a, "reversed"_a);
    nb::class_<F>(module, found)
        .def(
            "__init__",
            [](F* self, Array<T> precision, Array<T> information, Array<T> posterior_precision,
               Array<T> posterior_information, Array<T> states, Array<T> drift) {
                new (self) F{precision, information, posterior_precision, posterior_information,
                             states, drift};
            },
            "precision"_a, "information"_a, "posterior_precision"_a, "posterior_information"_a,
            "states"_a, "drift"_a);
    module.def("forward", &forward<T>, "problem"_a, "found"_a, "kernels"_a, "threads"_a);
    module.def("backward", &backward<T>, "problem"_a, "found"_a, "cotangents"_a, "d_weights"_a,
               "d_prior"_a, "d_start_precision"_a, "d_start_information"_a,
               "d_factor_precision"_a, "d_factor_information"_a, "d_future_precision"_a,
               "d_future_information"_a, "kernels"_a, "threads"_a);
    module.def("normal", &normal<T>, "out"_a, "seed"_a, "mirrored"_a, "kernels"_a);
}

}  // namespace
}  // namespace weft

NB_MODULE(_scan, module) {
    module.doc() = "The gated transition's scan along time, and its gradient.";
    weft::define<float>(module, "SingleProblem", "SingleFound");
    weft::define<double>(module, "DoubleProblem", "DoubleFound");
    module.def("kernels", [] {
        std::vector<std::string> names;
        for (const weft::Kernels* kernels : weft::usable(weft::BUILT)) names.push_back(kernels->name);
        return names;
    });
}
