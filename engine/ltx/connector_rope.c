/* connector_rope.c - see connector_rope.h.
 *
 * The reference makes the frequencies in float64 (numpy) or in float32 (torch), as the setting
 * frequencies_precision says, and the angles in float32 both times; the largest are some ten
 * thousand, where one step of a float32 is 1e-3. So every rounding below is the reference's own,
 * and what lies between the roundings is computed in double. */
#include "engine/ltx/connector_rope.h"

#include <math.h>

#define THETA 10000.0
#define PI    3.14159265358979323846

/* Frequency i of m, from pi/2 to theta * pi/2 in equal ratios. */
static float frequency(const struct ltx_config *config, int i, int m)
{
    float step, exponent;

    if (config->rope_float64)
        return (float)(pow(THETA, (double)i / (m - 1)) * PI / 2);
    /* torch.linspace(0, 1, m): from both ends to the middle, with one rounding */
    step = (float)(1.0 / (m - 1));
    exponent = i < m / 2 ? (float)((double)step * i) : (float)(1.0 - (double)step * (m - 1 - i));
    return (float)pow(THETA, (double)exponent) * (float)(PI / 2);
}

static float rounded(double x, enum dtype act)
{
    return act == DTYPE_BF16 ? bf16_to_float(bf16_from_float((float)x)) : (float)x;
}

void connector_rope_build(float *cos_table, float *sin_table, const struct ltx_config *config,
                          int W, int P, enum dtype act)
{
    int m = W / 2;

    for (int i = 0; i < m; i++) {
        float f = frequency(config, i, m);
        for (int p = 0; p < P; p++) {
            float place = (float)(2.0 * p / config->max_pos - 1.0); /* from -1 up */
            float angle = f * place;
            cos_table[(size_t)p * m + i] = rounded(cos((double)angle), act);
            sin_table[(size_t)p * m + i] = rounded(sin((double)angle), act);
        }
    }
}
