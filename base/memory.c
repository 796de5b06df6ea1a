#include "base/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number behind `key` in a file of lines "key number"; false: it is not there. */
static bool read_line(uint64_t *out, const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[256];
    bool found = false;

    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found = strncmp(line, key, strlen(key)) == 0 &&
                sscanf(line + strlen(key), "%" SCNu64, out) == 1;
    fclose(f);
    return found;
}

/* What a control group leaves; UINT64_MAX: it has no limit, or does not say. */
static uint64_t left_in_group(const char *folder)
{
    uint64_t limit, taken, files = 0;
    char path[PATH_MAX + 32];

    snprintf(path, sizeof(path), "%s/memory.max", folder);
    if (!read_line(&limit, path, "")) /* "max" is no number */
        return UINT64_MAX;
    snprintf(path, sizeof(path), "%s/memory.current", folder);
    if (!read_line(&taken, path, ""))
        return UINT64_MAX;
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    if (!read_line(&files, path, "file ")) /* given back when others want it */
        files = 0;
    taken -= files < taken ? files : taken;
    return taken < limit ? limit - taken : 0;
}

/* Bounds *out by the process's group and by all that it lies in. */
static void bound_by_groups(const char *root, uint64_t *out)
{
    char path[PATH_MAX], name[PATH_MAX / 2] = "", *end;
    FILE *f;

    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    if ((f = fopen(path, "r")) == NULL)
        return;
    while (fgets(name, sizeof(name), f) != NULL && strncmp(name, "0::", 3) != 0)
        name[0] = '\0';
    fclose(f);
    if (name[0] == '\0')
        return;
    name[strcspn(name, "\n")] = '\0';
    do {
        uint64_t left;
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s", root, name + 3);
        left = left_in_group(path);
        *out = left < *out ? left : *out;
        if ((end = strrchr(name + 3, '/')) != NULL)
            *end = '\0';
    } while (end != NULL);
}

int memory_available_under(const char *root, uint64_t *out, struct error *err)
{
    char path[PATH_MAX];
    uint64_t kib;

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    if (!read_line(&kib, path, "MemAvailable:"))
        return error_set(err, ERR_IO, "%s does not say what memory is available", path);
    *out = kib * 1024;
    bound_by_groups(root, out);
    return OK;
}

int memory_available(uint64_t *out, struct error *err)
{
    return memory_available_under("", out, err);
}
