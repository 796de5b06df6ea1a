#include "base/metrics.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void metric_add(struct metric *m, int64_t n)
{
    atomic_fetch_add_explicit(&m->value, n, memory_order_relaxed);
}

void metric_set(struct metric *m, int64_t n)
{
    atomic_store_explicit(&m->value, n, memory_order_relaxed);
}

int64_t metric_value(const struct metric *m)
{
    return atomic_load_explicit(&m->value, memory_order_relaxed);
}

/* The upper bound of bucket i, in seconds. */
static double bucket_bound(int i)
{
    return (double)(1u << i) / 1000.0;
}

void metric_observe(struct metric *m, double seconds)
{
    int i = 0;

    while (i < METRIC_BUCKETS && seconds > bucket_bound(i))
        i++;
    atomic_fetch_add_explicit(&m->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->sum_us, seconds > 0 ? (uint64_t)(seconds * 1e6) : 0,
                              memory_order_relaxed);
}

/* name, suffix, labels and `extra`, as far as they are there: pe_x_bucket{a="b",le="1"} */
static int append_series(struct buf *out, const struct metric *m, const char *suffix,
                         const char *extra, struct error *err)
{
    const char *labels = m->labels == NULL ? "" : m->labels;
    bool both = labels[0] != '\0' && extra[0] != '\0', any = labels[0] != '\0' || extra[0] != '\0';

    return buf_printf(out, err, "%s%s%s%s%s%s%s ", m->name, suffix, any ? "{" : "", labels,
                      both ? "," : "", extra, any ? "}" : "");
}

static int append_histogram(struct buf *out, struct metric *m, struct error *err)
{
    uint64_t count = 0;
    char bound[32];
    int rc;

    for (int i = 0; i <= METRIC_BUCKETS; i++) {
        count += atomic_load_explicit(&m->buckets[i], memory_order_relaxed);
        if (i < METRIC_BUCKETS)
            snprintf(bound, sizeof(bound), "le=\"%g\"", bucket_bound(i));
        else
            snprintf(bound, sizeof(bound), "le=\"+Inf\"");
        if ((rc = append_series(out, m, "_bucket", bound, err)) != OK ||
            (rc = buf_printf(out, err, "%" PRIu64 "\n", count)) != OK)
            return rc;
    }
    if ((rc = append_series(out, m, "_sum", "", err)) != OK ||
        (rc = buf_printf(out, err, "%.6f\n",
                         (double)atomic_load_explicit(&m->sum_us, memory_order_relaxed) / 1e6)) !=
            OK ||
        (rc = append_series(out, m, "_count", "", err)) != OK)
        return rc;
    return buf_printf(out, err, "%" PRIu64 "\n", count);
}

int metrics_render(struct metric *metrics, size_t n, struct buf *out, struct error *err)
{
    int rc;

    for (size_t i = 0; i < n; i++) {
        struct metric *m = &metrics[i];
        if (i == 0 || strcmp(m->name, metrics[i - 1].name) != 0)
            if ((rc = metrics_family(out, m->kind, m->name, m->help, err)) != OK)
                return rc;
        if (m->kind == METRIC_HISTOGRAM)
            rc = append_histogram(out, m, err);
        else if ((rc = append_series(out, m, "", "", err)) == OK)
            rc = buf_printf(out, err, "%" PRId64 "\n", metric_value(m));
        if (rc != OK)
            return rc;
    }
    return OK;
}

int metrics_family(struct buf *out, enum metric_kind kind, const char *name, const char *help,
                   struct error *err)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};

    return buf_printf(out, err, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kinds[kind]);
}

/* A label's value between its quotes. */
static int append_value(struct buf *out, const char *value, struct error *err)
{
    int rc;

    for (const char *c = value; *c != '\0'; c++) {
        const char *text = *c == '\n' ? "\\n" : *c == '"' ? "\\\"" : *c == '\\' ? "\\\\" : NULL;
        if ((rc = text != NULL ? buf_append(out, text, 2, err) : buf_append(out, c, 1, err)) != OK)
            return rc;
    }
    return OK;
}

int metrics_row(struct buf *out, const char *name, const struct metric_label *labels,
                size_t n_labels, double value, struct error *err)
{
    int rc;

    if ((rc = buf_printf(out, err, "%s", name)) != OK)
        return rc;
    for (size_t i = 0; i < n_labels; i++)
        if ((rc = buf_printf(out, err, "%c%s=\"", i == 0 ? '{' : ',', labels[i].name)) != OK ||
            (rc = append_value(out, labels[i].value, err)) != OK ||
            (rc = buf_append(out, "\"", 1, err)) != OK)
            return rc;
    /* 15 digits: every whole number up to a thousand million million as it is */
    return buf_printf(out, err, "%s %.15g\n", n_labels > 0 ? "}" : "", value);
}
