/* metrics.h - counters, gauges and histograms as Prometheus reads them.
 *
 * A program's metrics are one array of `struct metric`, in the order of /metrics; several rows of
 * one name differ by their labels. Counting is one atomic addition, from any thread.
 *
 *     enum { M_HITS, M_MISSES, M_LATENCY };
 *     static struct metric metrics[] = {
 *         [M_HITS] = METRIC(METRIC_COUNTER, "pe_cache_total", "result=\"hit\"", "lookups"),
 *         [M_MISSES] = METRIC(METRIC_COUNTER, "pe_cache_total", "result=\"miss\"", "lookups"),
 *         [M_LATENCY] = METRIC(METRIC_HISTOGRAM, "pe_encode_seconds", NULL, "time of an encode"),
 *     };
 *     metric_add(&metrics[M_HITS], 1);
 *     metric_observe(&metrics[M_LATENCY], 0.012);
 *
 * Names end in a unit, as the exposition format asks: _total, _seconds, _bytes. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

enum { METRIC_BUCKETS = 17 }; /* 1 ms, 2 ms, 4 ms .. 65.5 s, then infinity */

struct metric {
    enum metric_kind kind;
    const char *name;
    const char *labels; /* inside the braces, or NULL */
    const char *help;
    /* private: */
    _Atomic int64_t value; /* counters and gauges */
    _Atomic uint64_t buckets[METRIC_BUCKETS + 1];
    _Atomic uint64_t sum_us;
};

#define METRIC(kind_, name_, labels_, help_)                                                       \
    {                                                                                              \
        .kind = (kind_), .name = (name_), .labels = (labels_), .help = (help_)                     \
    }

void metric_add(struct metric *m, int64_t n);          /* counters and gauges */
void metric_set(struct metric *m, int64_t n);          /* gauges */
int64_t metric_value(const struct metric *m);          /* counters and gauges */
void metric_observe(struct metric *m, double seconds); /* histograms */

/* Appends all `n` as text exposition format 0.0.4. */
int metrics_render(struct metric *metrics, size_t n, struct buf *out, struct error *err);

/* ---- families whose rows are known only when they are rendered ----
 *
 *     metrics_family(out, METRIC_GAUGE, "pe_queue_jobs", "jobs of a model", err)
 *     metrics_row(out, "pe_queue_jobs", (struct metric_label[]){{"model", id}}, 1, depth, err)
 *
 * Counters and gauges. One family's rows follow its head, with no other family's between. */

struct metric_label {
    const char *name, *value; /* the value is any text: what needs it is escaped */
};

int metrics_family(struct buf *out, enum metric_kind kind, const char *name, const char *help,
                   struct error *err);
int metrics_row(struct buf *out, const char *name, const struct metric_label *labels,
                size_t n_labels, double value, struct error *err);
