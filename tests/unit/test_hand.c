/* test_hand.c - the jobs in hand of several claims at once: their leases, answers and ends. */
#include "base/clock.h"
#include "engine/worker/hand.h"
#include "tests/check.h"

static struct error err;

static void claim(struct claimed_job *jobs, size_t n, int number)
{
    for (size_t i = 0; i < n; i++) {
        jobs[i] = (struct claimed_job){.payload = strdup("text"), .payload_len = 4};
        snprintf(jobs[i].id, sizeof(jobs[i].id), "job%d-%zu", number, i);
        snprintf(jobs[i].token, sizeof(jobs[i].token), "e:%d", number);
    }
}

static void holds_three_claims_at_once(void)
{
    static struct claimed_job jobs[QUEUE_CLAIM_MAX], copy[HAND_MAX];
    static struct held *held[HAND_BATCHES][QUEUE_CLAIM_MAX];
    struct hand *h;

    CHECK_OK(hand_create(&h, &err));
    for (int round = 0; round < 3; round++) {
        for (int b = 0; b < HAND_BATCHES; b++) {
            claim(jobs, QUEUE_CLAIM_MAX, b);
            hand_take(h, jobs, QUEUE_CLAIM_MAX, held[b]);
        }
        CHECK(hand_n(h) == HAND_MAX);
        CHECK(hand_copy(h, copy) == HAND_MAX);
        CHECK(copy[0].payload == NULL);
        for (int b = 0; b < HAND_BATCHES; b++) /* in any order */
            for (size_t i = 0; i < QUEUE_CLAIM_MAX; i++) {
                struct held *one = held[(b + round) % HAND_BATCHES][i];
                CHECK(strcmp(one->job.payload, "text") == 0);
                hand_end(h, one);
            }
        CHECK(hand_n(h) == 0);
        CHECK(hand_copy(h, copy) == 0);
    }
    claim(jobs, 2, 9);
    hand_take(h, jobs, 2, held[0]);
    hand_free(h); /* with two in it */
}

static void the_oldest_lease_is_the_one_to_renew(void)
{
    struct claimed_job first[1], second[1];
    enum lease_answer ok[] = {LEASE_OK}, cancelled[] = {LEASE_CANCELLED};
    struct held *a, *b;
    struct hand *h;

    CHECK_OK(hand_create(&h, &err));
    CHECK(hand_oldest_ms(h) == 0.0);
    claim(first, 1, 1);
    claim(second, 1, 2);
    hand_take(h, first, 1, &a);
    clock_pause_ms(20);
    hand_take(h, second, 1, &b);
    CHECK(hand_oldest_ms(h) >= 20);
    hand_note_answers(h, second, cancelled, 1);
    CHECK(hand_answer(h, a) == LEASE_OK);
    CHECK(hand_answer(h, b) == LEASE_CANCELLED);
    CHECK(hand_oldest_ms(h) >= 20); /* the first one's */
    hand_note_answers(h, first, ok, 1);
    CHECK(hand_oldest_ms(h) < 20);
    hand_end(h, a);
    clock_pause_ms(5);
    CHECK(hand_oldest_ms(h) >= 5); /* the second one's */
    hand_free(h);
}

/* A place is used again: what Q says of the claim before must not reach the new one. */
static void an_answer_is_for_its_claim_alone(void)
{
    enum lease_answer stale[] = {LEASE_STALE};
    struct claimed_job old[1], new[1];
    struct held *held;
    struct hand *h;

    CHECK_OK(hand_create(&h, &err));
    claim(old, 1, 1);
    claim(new, 1, 2);
    snprintf(new->id, sizeof(new->id), "%s", old->id);
    hand_take(h, old, 1, &held);
    hand_end(h, held);
    hand_take(h, new, 1, &held);
    hand_note_answers(h, old, stale, 1);
    CHECK(hand_answer(h, held) == LEASE_OK);
    hand_note_answers(h, new, stale, 1);
    CHECK(hand_answer(h, held) == LEASE_STALE);
    hand_free(h);
}

int main(void)
{
    RUN(holds_three_claims_at_once);
    RUN(the_oldest_lease_is_the_one_to_renew);
    RUN(an_answer_is_for_its_claim_alone);
    return check_result();
}
