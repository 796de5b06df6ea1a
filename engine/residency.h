/* residency.h - which of the weights a rank takes into its memory: all, or a share.
 *
 * As the options say, or, with ENGINE_RESIDENCY_AUTO, all where every rank's device has room for
 * that. All ranks of a group come to the same answer. For the files of engine/ that are engine.h
 * together. */
#pragma once
#include "engine/group/portion.h"

struct error;
struct rank;

/* What a rank is to load, or, where its home has weights, what these are: on the rank's thread,
 * once its device is open and has joined its group; all ranks call it. A GPU that is too small for
 * its portion says so now, not after minutes of loading; what a CPU's memory lacks, the system
 * finds elsewhere, or nobody can tell. Room to sleep is made sure of, too. ERR_MEM, on all ranks:
 * of the first that has too little; ERR_GPU: another rank failed otherwise. */
int residency_choose(struct rank *r, struct portion *out, struct error *err);
