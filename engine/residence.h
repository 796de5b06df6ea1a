/* residence.h - where a model's weights are: on the devices of an engine's ranks, or asleep in the
 * host's memory. Engines of one process that compute with the same weights have one together, and
 * the last of them takes it with it.
 *
 * Weights sleep while all engines that have them are asleep. Where all ranks hold the same bytes
 * one copy of them, the first rank's, serves all; of shares there is one of each. They are kept
 * from the first sleep on, as weights never change: whoever sleeps again copies nothing.
 *
 * Each engine calls from its own thread, and does not call from two. */
#pragma once
#include "engine/group/team.h"
#include "engine/replica.h"
#include "engine/source.h"

struct residence;

/* Weights on one device. */
struct home {
    struct device *device; /* NULL: nothing is there yet */
    struct replica replica;
};

/* Of one engine, which is awake: its ranks open the devices of their homes and load into them
 * before anything else is asked. The devices then belong to the residence.
 * n_homes: of the first n ranks, or 1 for all. sleeps: its devices are opened to sleep; ERR_INPUT:
 * the table has no device that could. */
int residence_create(struct residence **out, const struct ops *ops, int n_homes, bool sleeps,
                     struct error *err);
struct home *residence_home(struct residence *r, int rank);
bool residence_sleeps(const struct residence *r);
/* Whether more than one engine has it now. */
bool residence_is_shared(struct residence *r);

/* For another engine, which is asleep: it wakes before it uses anything. */
struct residence *residence_share(struct residence *r);
/* An engine goes; its ranks have closed. `source` is the one that the weights came from, which has
 * to stay as long as they do: it is taken over, and closed with them; NULL from an engine that
 * shares. A residence of NULL is fine, and closes the source. */
void residence_leave(struct residence *r, bool awake, struct source *source);

/* The engine, which is awake, has nothing to do; and has something again. By the threads of its
 * ranks, which `watch` watches. On failure it is as before, but after ERR_GPU.
 * ERR_MEM: no memory of the host's for the copy; or, waking, others have the devices' memory. */
int residence_sleep(struct residence *r, struct team *team, const struct team_watch *watch,
                    struct error *err);
int residence_wake(struct residence *r, struct team *team, const struct team_watch *watch,
                   struct error *err);
