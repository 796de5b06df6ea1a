/* gelu.cuh - GELU by tanh, as x / (1 + e^(-2u)), u being the tanh's argument. Private to
 * kernels/cuda/. */
#pragma once

static __device__ inline float gelu(float x)
{
    float u = 0.7978845608028654f * (x + 0.044715f * x * x * x); /* sqrt(2/pi) */

    return x / (1.0f + expf(-2.0f * u));
}
