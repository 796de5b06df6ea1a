/* replay.c - a main() for fuzz targets where there is no libFuzzer: runs every file of the folders
 * named on the command line through the target. A folder without files is a failure, so a corpus
 * cannot get lost unnoticed. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_folder(const char *folder)
{
    struct error err = {0};
    struct dirent *entry;
    DIR *dir = opendir(folder);
    int n = 0;

    if (dir == NULL) {
        fprintf(stderr, "%s: cannot open the corpus\n", folder);
        return -1;
    }
    while ((entry = readdir(dir)) != NULL) {
        struct file_map map;
        char path[4096];
        uint8_t *copy;

        if (entry->d_name[0] == '.')
            continue;
        if (file_join(path, sizeof(path), folder, entry->d_name, &err) != OK ||
            file_map_open(&map, path, &err) != OK) {
            fprintf(stderr, "%s\n", err.text);
            closedir(dir);
            return -1;
        }
        /* on the heap, so that the sanitizer sees a read past the end */
        copy = malloc(map.size > 0 ? map.size : 1);
        if (copy != NULL) {
            if (map.size > 0)
                memcpy(copy, map.data, map.size);
            LLVMFuzzerTestOneInput(copy, map.size);
            n++;
        }
        free(copy);
        file_map_close(&map);
    }
    closedir(dir);
    printf("%s: %d inputs\n", folder, n);
    return n;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (replay_folder(argv[i]) <= 0)
            return EXIT_FAILURE;
    return argc > 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
