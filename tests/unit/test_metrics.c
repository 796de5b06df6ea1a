/* test_metrics.c - what Prometheus would read. */
#include "base/metrics.h"
#include "tests/check.h"

enum { HITS, MISSES, WAITERS, LATENCY, N };
static struct metric metrics[] = {
    [HITS] = METRIC(METRIC_COUNTER, "pe_cache_total", "result=\"hit\"", "lookups"),
    [MISSES] = METRIC(METRIC_COUNTER, "pe_cache_total", "result=\"miss\"", "lookups"),
    [WAITERS] = METRIC(METRIC_GAUGE, "pe_waiters", NULL, "clients that wait"),
    [LATENCY] = METRIC(METRIC_HISTOGRAM, "pe_encode_seconds", "kind=\"x\"", "time of an encode"),
};
static struct error err;

static void the_exposition_format(void)
{
    struct buf out = {.max = 1 << 16};

    metric_add(&metrics[HITS], 2);
    metric_add(&metrics[WAITERS], 5);
    metric_add(&metrics[WAITERS], -1);
    metric_observe(&metrics[LATENCY], 0.0005);
    metric_observe(&metrics[LATENCY], 0.003);
    metric_observe(&metrics[LATENCY], 1000.0);
    CHECK_OK(metrics_render(metrics, N, &out, &err));
    CHECK(strstr(out.data, "# HELP pe_cache_total lookups\n# TYPE pe_cache_total counter\n"
                           "pe_cache_total{result=\"hit\"} 2\n"
                           "pe_cache_total{result=\"miss\"} 0\n# HELP pe_waiters") != NULL);
    CHECK(strstr(out.data, "# TYPE pe_waiters gauge\npe_waiters 4\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_bucket{kind=\"x\",le=\"0.001\"} 1\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_bucket{kind=\"x\",le=\"0.002\"} 1\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_bucket{kind=\"x\",le=\"0.004\"} 2\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_bucket{kind=\"x\",le=\"65.536\"} 2\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_bucket{kind=\"x\",le=\"+Inf\"} 3\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_sum{kind=\"x\"} 1000.003500\n") != NULL);
    CHECK(strstr(out.data, "pe_encode_seconds_count{kind=\"x\"} 3\n") != NULL);
    buf_free(&out);
}

static void rows_made_at_run_time(void)
{
    const struct metric_label one[] = {{"model", "a"}, {"state", "waiting"}};
    const struct metric_label other[] = {{"model", "a\\b\"c\nd"}, {"state", "dead"}};
    struct buf out = {.max = 1 << 16};

    CHECK_OK(metrics_family(&out, METRIC_GAUGE, "pe_queue_jobs", "jobs", &err));
    CHECK_OK(metrics_row(&out, "pe_queue_jobs", one, 2, 123456789012345.0, &err));
    CHECK_OK(metrics_row(&out, "pe_queue_jobs", other, 2, 0.25, &err));
    CHECK_OK(metrics_family(&out, METRIC_COUNTER, "pe_lost_total", "lost", &err));
    CHECK_OK(metrics_row(&out, "pe_lost_total", NULL, 0, 0, &err));
    CHECK_TEXT(out.data, "# HELP pe_queue_jobs jobs\n# TYPE pe_queue_jobs gauge\n"
                         "pe_queue_jobs{model=\"a\",state=\"waiting\"} 123456789012345\n"
                         "pe_queue_jobs{model=\"a\\\\b\\\"c\\nd\",state=\"dead\"} 0.25\n"
                         "# HELP pe_lost_total lost\n# TYPE pe_lost_total counter\n"
                         "pe_lost_total 0\n");
    buf_free(&out);
}

int main(void)
{
    RUN(the_exposition_format);
    RUN(rows_made_at_run_time);
    return check_result();
}
